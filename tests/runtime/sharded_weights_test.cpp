// SPDX-License-Identifier: Apache-2.0
// Plans whose ranks share weights, executed: against the oracle, the simulator's bytes, and the
// same plans with weights whole.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/feature_table.hpp"
#include "runtime/rounding.hpp"
#include "runtime/tiny_plan.hpp"
#include "slimpack/plan/memory.hpp"
#include "slimpack/runtime/executable.hpp"
#include "slimpack/runtime/parameters.hpp"
#include "slimpack/runtime/program.hpp"
#include "slimpack/runtime/run_step.hpp"
#include "slimpack/runtime/weight_units.hpp"
#include "slimpack/validate/validate.hpp"
#include "slimpack_cpu/check_plan.hpp"
#include "support/draws.hpp"
#include "support/executed_memory.hpp"
#include "support/random_sharded_plan.hpp"

using namespace slimpack;

namespace {

/// The same plan, every rank with all weights.
Plan with_whole_weights(Plan plan) {
  plan.memory.weights = WeightState::replicated;
  return plan;
}

/// Two ranks in one round each of F, H and B, then R and O; every rank alone.
Plan tiny_rounds() {
  Plan plan = test::tiny_plan(2, {{0}, {1}}, {{6, 0}, {5, 1}});
  plan.version = 3;
  plan.sample_first = {0, 0};
  plan.memory.weights = WeightState::sharded;
  return plan;
}

/// Whether a rank takes part in a MicroPack of whose tokens it has none.
bool has_idle_rank(const runtime::Program& program) {
  return std::ranges::any_of(program.packs, [](const auto& ranks) {
    return std::ranges::any_of(ranks, [](const auto& part) { return part.rows == Tokens{}; });
  });
}

enum class Sort : std::uint8_t { weight, first_moment, second_moment };
using Elements = std::map<std::pair<Sort, std::string>, std::map<std::size_t, double>>;

/// All that devices hold of weights and moments, by place in the named tensor. Copies must be
/// equal, of norms of tensor-parallel devices too.
Elements elements_of(std::vector<cpu::Device>& devices) {
  Elements all;
  const auto add = [&](Sort sort, const std::string& name, std::size_t first, auto values) {
    auto& of_tensor = all[{sort, name}];
    for (const double value : values) {
      CHECK(of_tensor.emplace(first, value).first->second == value);
      ++first;
    }
  };
  for (cpu::Device& device : devices) {
    for (const runtime::HeldTensor& tensor : device.tensors()) {
      const auto [begin, end] = device.here(tensor);
      const cpu::In weights = std::as_const(device).weights(tensor);
      tensor.for_each_run(
          begin, end, [&, from = begin](std::size_t first, std::size_t i, std::size_t count) {
            add(Sort::weight, tensor.shape.name, first, weights.subspan(i - from, count));
          });
    }
    for (const auto& part : device.optimizer_state()) {
      add(Sort::first_moment, part.tensor.name, part.first, part.first_moment);
      add(Sort::second_moment, part.tensor.name, part.first, part.second_moment);
    }
  }
  return all;
}

/// A device whose first gradient is not finite when the optimizer comes to it.
class OverflowingDevice : public cpu::Device {
 public:
  using cpu::Device::Device;
  template <class Link>
  void reduce(std::int32_t chunk, Link& link) {
    cpu::Device::reduce(chunk, link);
    const auto values = gradients(tensors().front());
    if (!values.empty()) {
      const_cast<double&>(values[0]) = std::numeric_limits<double>::infinity();
    }
  }
};

}  // namespace

TEST_CASE("shared weights: random plans give the loss, gradients and weights of the oracle") {
  test::FeatureTable table;
  for (std::uint64_t seed = 0; seed < test::draws(150U); ++seed) {
    CAPTURE(seed);
    const Plan plan = test::random_sharded_plan(seed);
    const Validation validation = validate(plan);
    for (const Violation& violation : validation.violations) FAIL_CHECK(violation.message);
    const auto found = cpu::check_plan(plan, cpu::random_tokens(plan, seed), seed);
    CAPTURE(found.worst_tensor);
    CHECK(found.loss_difference <= 1e-10);
    CHECK(found.gradient_difference <= 1e-10);
    CHECK(found.weight_difference <= 1e-10);
    table.add(plan, found);
    if (plan.parallel.tp > 1) table.add("tensor parallelism", found);
    if (has_idle_rank(runtime::make_program(plan))) table.add("a rank without rows", found);
  }
  table.print();
  for (const char* name :
       {"merged, kv exchange", "merged, q exchange", "ranks in several groups", "tied",
        "differing cuts", "recompute none", "recompute light", "recompute layer", "recompute full",
        "keys made again", "key gradients not kept", "tensor parallelism", "a rank without rows"}) {
    CAPTURE(name);
    CHECK(table.plans(name) >= test::draws(10));
  }
}

TEST_CASE("shared weights: the fast backend is within 2e-5 of the oracle") {
  for (std::uint64_t seed = 0; seed < test::draws(60U); ++seed) {
    CAPTURE(seed);
    const Plan plan = test::random_sharded_plan(seed);
    const auto tokens = cpu::random_tokens(plan, seed);
    const auto found = cpu::check_plan<cpu::FastMath>(plan, tokens, seed);
    CAPTURE(found.worst_tensor);
    CHECK(found.loss_difference <= 1e-6);
    if (found.gradient_difference > 2e-5) {  // gradients may cancel: no fp32 can do better
      CHECK(found.gradient_difference <=
            8 * test::change_by_rounding(plan, cpu::step_data(plan, tokens), seed));
    }
  }
}

TEST_CASE("shared weights: devices hold the simulator's bytes, event by event and at the peak") {
  for (std::uint64_t seed = 0; seed < test::draws(100U); ++seed) {
    CAPTURE(seed);
    const Plan plan = test::random_sharded_plan(seed);
    test::Executed executed(plan);
    auto devices = cpu::make_devices(plan, seed);
    (void)runtime::run_step(plan, cpu::step_data(plan, cpu::random_tokens(plan, seed)),
                            std::span(devices), executed.observer());
    executed.finish();
    test::check_memory(plan, executed, 16);
    // Where the vocabulary does not divide, one tensor-parallel part has a row more than another;
    // the plan counts the largest.
    const StaticBytes predicted = static_bytes(plan, 0);
    Bytes weights, gradients;
    for (const cpu::Device& device : devices) {
      weights = std::max(weights, device.static_bytes().weights);
      gradients = std::max(gradients, device.static_bytes().gradients);
    }
    CHECK(weights == predicted.weights);
    CHECK(gradients == predicted.gradients);
  }
}

TEST_CASE("shared weights: steps of AdamW are those of the same plan with weights whole") {
  double worst = 0;
  for (std::uint64_t seed = 0; seed < test::draws(40U); ++seed) {
    CAPTURE(seed);
    const Plan plan = test::random_sharded_plan(seed);
    const Plan whole_plan = with_whole_weights(plan);
    auto shared = cpu::make_devices(plan, seed), whole = cpu::make_devices(whole_plan, seed);
    for (std::uint64_t step = 0; step < 3; ++step) {
      const auto data = cpu::step_data(plan, cpu::random_tokens(plan, 100 * seed + step));
      const auto one = runtime::run_step(plan, data, std::span(shared));
      const auto two = runtime::run_step(whole_plan, data, std::span(whole));
      CHECK(std::abs(one.loss - two.loss) <= 1e-12 * two.loss);
      for (std::size_t device = 0; device < shared.size(); ++device) {
        const double norm = whole[device].gradient_norm();
        CHECK(std::abs(shared[device].gradient_norm() - norm) <= 1e-12 * norm);
        CHECK(shared[device].gradient_norm() == shared.front().gradient_norm());
      }
    }
    const Elements got = elements_of(shared), expected = elements_of(whole);
    REQUIRE(got.size() == expected.size());
    for (const auto& entry : expected) {
      const auto& name = entry.first;
      const auto& values = entry.second;
      CAPTURE(name.second);
      const auto& own = got.at(name);
      REQUIRE(own.size() == values.size());
      double largest = 0, difference = 0;
      for (const auto& [place, value] : values) {
        largest = std::max(largest, std::abs(value));
        difference = std::max(difference, std::abs(own.at(place) - value));
      }
      CHECK(difference <= 1e-12 * largest);
      if (largest > 0) worst = std::max(worst, difference / largest);
    }
  }
  MESSAGE("largest relative difference " << worst);
}

TEST_CASE("shared weights: each element is on one rank") {
  for (std::uint64_t seed = 0; seed < test::draws(40U); ++seed) {
    CAPTURE(seed);
    const Plan plan = test::random_sharded_plan(seed);
    const auto devices = cpu::make_devices(plan, seed);
    const auto parts = static_cast<std::size_t>(plan.parallel.tp);
    for (std::size_t part = 0; part < parts; ++part) {
      std::vector<std::size_t> next(devices[part].tensors().size());
      for (std::size_t device = part; device < devices.size(); device += parts) {
        CHECK(devices[device].shares_weights());
        std::size_t i = 0;
        for (const runtime::HeldTensor& tensor : devices[device].tensors()) {
          const auto [begin, end] = devices[device].here(tensor);
          CHECK(devices[device].weights(tensor).size() == end - begin);
          CHECK(devices[device].gradients(tensor).size() == end - begin);
          if (begin < end) CHECK(begin == next[i]);
          next[i++] += end - begin;
        }
      }
      std::size_t i = 0;
      for (const auto& tensor : devices[part].tensors()) CHECK(next[i++] == tensor.size());
    }
  }
}

TEST_CASE("shared weights: units make up a device's memory, a tied table is in two of them") {
  for (std::uint64_t seed = 0; seed < test::draws(40U); ++seed) {
    CAPTURE(seed);
    const Plan plan = test::random_sharded_plan(seed);
    for (std::int32_t tp = 0; tp < plan.parallel.tp; ++tp) {
      const runtime::ParameterLayout layout = runtime::layout_of(plan, 0, tp);
      std::vector<runtime::ElementRange> units{runtime::embedding_unit(layout),
                                               runtime::head_unit(layout)};
      for (std::int64_t layer = 0; layer < plan.model.layers; ++layer) {
        units.push_back(runtime::layer_unit(layout, layer));
      }
      std::size_t largest = 0, end = units.front().end;
      for (const runtime::ElementRange& unit : units) largest = std::max(largest, unit.size());
      CHECK(runtime::largest_unit(layout) == largest);
      CHECK(units.front().begin == 0);
      if (plan.model.tied) end = units[1].begin = end;
      for (std::size_t i = 1; i < units.size(); ++i) {
        CHECK(units[i].begin == end);
        end = units[i].end;
      }
      CHECK(end == layout.size());
      if (plan.model.tied) CHECK(runtime::head_unit(layout).begin == 0);
    }
  }
  CHECK(runtime::part_of_rank(7, 3, 1).size() == 3);
  CHECK(runtime::part_of_rank(7, 3, 2).size() == 1);
  CHECK(runtime::part_of_rank(4, 3, 2).size() == 0);  // two elements each: nothing is left
  const runtime::ElementRange unit{10, 20};
  CHECK(runtime::ElementRange{5, 12}.within(unit).end == 12);
  CHECK(runtime::ElementRange{25, 30}.within(unit).size() == 0);
  CHECK(runtime::ElementRange{25, 30}.within(unit).from(10).end == 10);
}

TEST_CASE("shared weights: a gradient that is not finite is named by the rank that owns it") {
  const Plan plan = tiny_rounds();
  const auto data = cpu::step_data(plan, cpu::random_tokens(plan, 1));
  std::vector<OverflowingDevice> devices;
  for (std::size_t device = 0; device < 2; ++device) devices.emplace_back(plan, device, 1);
  CHECK_THROWS_WITH_AS((void)runtime::run_step(plan, data, std::span(devices)),
                       "device (dp 0, pp 0), unit 4, O, failed: the gradient of step 1 is not "
                       "finite in 'model.embed_tokens.weight', where the MicroPacks' gradients are "
                       "added up",
                       runtime::ExecutionError);
  for (const OverflowingDevice& device : devices) CHECK(device.steps() == 0);
}

TEST_CASE("shared weights: whether ranks share them stays from step to step") {
  const Plan plan = tiny_rounds();
  const auto data = cpu::step_data(plan, cpu::random_tokens(plan, 1));
  const auto refused = [&](const Plan& first, const Plan& then) {
    auto devices = cpu::make_devices(first, 1);
    CHECK_NOTHROW((void)runtime::run_step(first, data, std::span(devices)));
    std::string said;
    try {
      (void)runtime::run_step(then, data, std::span(devices));
    } catch (const runtime::ExecutionError& error) {
      said = error.what();
    }
    CHECK(
        said.ends_with("start of the step, failed: Device: model and partition must stay from "
                       "step to step"));
  };
  refused(plan, with_whole_weights(plan));
  refused(with_whole_weights(plan), plan);
}

TEST_CASE("shared weights: plans that ranks cannot run in rounds are refused") {
  const Plan good = tiny_rounds();
  CHECK_NOTHROW((void)runtime::make_program(good));
  const auto refused = [&](auto change, const std::string& sentence) {
    Plan plan = good;
    change(plan);
    CAPTURE(sentence);
    CHECK_THROWS_WITH_AS((void)runtime::make_program(plan), sentence.c_str(), InvalidInput);
  };
  refused(
      [](Plan& plan) {
        plan.parallel.chunks = 2;
        plan.stages = {{0, 0, 0, 1, true}, {0, 1, 1, 2, false}};
      },
      "execution: sharded weights need parallel.chunks 1, got 2");
  refused([](Plan& plan) { plan.memory.optimizer = OptimizerState::replicated; },
          "execution: sharded weights need sharded optimizer state");
  refused([](Plan& plan) { plan.schedule[1].order.pop_back(); },
          "execution: sharded weights need as many units on all ranks, not so rank 1 at unit, got "
          "4");
  refused(
      [](Plan& plan) {
        auto& order = plan.schedule[1].order;
        std::swap(order[1], order[2]);
      },
      "execution: sharded weights need units of one kind on all ranks, not so rank 1 at unit, got "
      "1");
  refused([](Plan& plan) { plan.micropacks[1].weights = WeightGradients::apart; },
          "execution: sharded weights need the gradients of weights to be computed in B, not so "
          "rank 0 at unit, got 2");
  Plan stages = good;
  stages.parallel.pp = 2;
  stages.stages = {{0, 0, 0, 1, true}, {1, 0, 1, 2, false}};
  stages.placement.clear();
  stages.schedule.clear();
  for (std::int32_t dp = 0; dp < 2; ++dp) {
    for (std::int32_t pp = 0; pp < 2; ++pp) {
      stages.placement.push_back({dp, pp, 0, 2 * dp + pp});
      stages.schedule.push_back({dp, pp, {}});
    }
  }
  CHECK_THROWS_WITH_AS(runtime::check_executable(stages),
                       "execution: sharded weights need parallel.pp 1, got 2", InvalidInput);

  // Two groups of two ranks, of which rank 1 is in both and runs the second one's pack first.
  Plan groups = test::tiny_plan(3, {{0, 1}, {1, 2}, {0}, {2}}, {{8, 0}, {9, 1}, {7, 2}, {5, 3}});
  groups.version = 3;
  groups.sample_first.assign(4, 0);
  groups.memory.weights = WeightState::sharded;
  auto& order = groups.schedule[1].order;
  std::swap(order[0], order[2]);
  std::swap(order[1], order[3]);
  CHECK_THROWS_WITH_AS((void)runtime::make_program(groups),
                       "execution: sharded weights need a MicroPack at one place of all its ranks' "
                       "orders, not so rank 0 at unit, got 0",
                       InvalidInput);
}
