// SPDX-License-Identifier: Apache-2.0
// Ranks that share weights on emulated devices: against the unsliced oracle, and against the same
// plan with all weights on each rank.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "cuda/ranks/rank_plans.hpp"
#include "cuda/ranks/shared_plan.hpp"
#include "slimpack/plan/memory.hpp"
#include "slimpack/validate/validate.hpp"
#include "slimpack_cuda/emulation.hpp"
#include "support/executed_memory.hpp"

namespace shared_weights_test {

using namespace slimpack;

namespace {

/// Every kind of them, by turns.
test::SharedPlanOptions options_of(std::uint64_t seed) {
  test::SharedPlanOptions options;
  if (seed % 3 == 2) {
    options.tp = 2;
    options.dp = 2;
  }
  if (seed % 4 < 2) options.recompute = static_cast<Recompute>(seed / 4 % kRecomputeModes);
  options.tied = seed % 2 == 1;
  return options;
}

/// Trains for some steps; gives the losses too.
std::vector<double> train(const Plan& plan, std::uint64_t seed, test::RankDevices& devices) {
  std::vector<double> losses;
  for (std::uint64_t step = 0; step < 3; ++step) {
    const runtime::StepData data = test::random_data(plan, 100 * seed + step);
    losses.push_back(test::run_ranks(plan, data, std::span(devices)).loss);
  }
  return losses;
}

/// What all ranks have of a kind of parts, put together tensor by tensor; ranks with whole weights
/// give their parts of the optimizer.
template <class PartsOf, class Name, class Values>
std::map<std::string, std::vector<float>> whole(const ModelShape& model,
                                                const test::RankDevices& devices, PartsOf parts_of,
                                                Name name, Values values) {
  std::map<std::string, std::vector<float>> all;
  for (const runtime::TensorShape& tensor : runtime::model_tensors(model)) {
    all[tensor.name].resize(static_cast<std::size_t>(tensor.rows * tensor.cols));
  }
  for (const cuda::RankDevice& device : devices) {
    for (const auto& part : parts_of(device)) {
      std::ranges::copy(values(part),
                        all.at(name(part)).begin() + static_cast<std::ptrdiff_t>(part.first));
    }
  }
  return all;
}
auto weights_of(const ModelShape& model, const test::RankDevices& devices) {
  return whole(
      model, devices, [](const cuda::RankDevice& device) { return device.weight_parts(); },
      [](const cuda::TensorPart& part) { return part.tensor; },
      [](const cuda::TensorPart& part) { return part.values; });
}
auto masters_of(const ModelShape& model, const test::RankDevices& devices) {
  return whole(
      model, devices, [](const cuda::RankDevice& device) { return device.master_parts(); },
      [](const cuda::MasterPart& part) { return part.tensor.name; },
      [](const cuda::MasterPart& part) { return part.weights; });
}

cuda::AdamW unclipped() {
  cuda::AdamW settings;
  settings.largest_norm = 1e6;
  return settings;
}

/// More bytes than whole vectors of 8 elements in each rank's part of a unit make, of weights,
/// gradients and the optimizer, and in the parts of whole units.
std::int64_t rounding_of(const Plan& plan) {
  const std::int64_t units = plan.model.layers + 2;
  return units * 8 * (2 + 4 + 12) + 8 * plan.parallel.dp * (2 * 2 + 2 * 4);
}

}  // namespace

TEST_CASE("ranks that share weights: the oracle's loss and gradients in the simulator's memory") {
  double loss = 0, gradient = 0, norm = 0;
  std::size_t groups = 0, rounds = 0, rest = 0;
  for (std::uint64_t seed = 0; seed < 24; ++seed) {
    CAPTURE(seed);
    const Plan plan = test::shared_plan(seed, options_of(seed));
    const Validation validation = validate(plan);
    REQUIRE(validation.valid());
    test::Executed executed(plan);
    const test::RankCheck found = test::check_ranks(plan, seed, executed.observer());
    executed.finish();
    test::check_memory(plan, executed, rounding_of(plan));
    CAPTURE(found.worst_tensor);
    CHECK(found.loss <= 2e-3);
    CHECK(found.norm <= 2e-2);
    CHECK(found.gradient <= 4e-2);
    loss = std::max(loss, found.loss);
    gradient = std::max(gradient, found.gradient);
    norm = std::max(norm, found.norm);
    const auto several = [&](const MicroPack& pack) {
      return plan.groups[index(pack.group)].size() > 1;
    };
    groups += std::ranges::any_of(plan.micropacks, several) ? 1 : 0;
    rounds += plan.schedule.front().order.size() > 5 ? 1 : 0;
    rest += plan.model.vocab % cuda::VocabularyPart::kWhole > 0 ? 1 : 0;
  }
  CHECK(groups >= 8);
  CHECK(rounds >= 8);
  CHECK(rest >= 8);
  std::printf("  largest difference: loss %.1e, gradients %.1e, their norm %.1e\n", loss, gradient,
              norm);
}

TEST_CASE("ranks that share weights: one round trains to the bits of ranks with whole weights") {
  for (std::uint64_t seed = 100; seed < 112; ++seed) {
    CAPTURE(seed);
    test::SharedPlanOptions options = options_of(seed);
    options.rounds = 1;
    options.tied = false;  // the head and the embedding would be added up in another order
    const Plan plan = test::shared_plan(seed, options);
    const Plan replicated = test::with_whole_weights(plan);
    test::RankDevices shared = test::rank_devices(plan, seed, unclipped());
    test::RankDevices all = test::rank_devices(replicated, seed, unclipped());
    CHECK(train(plan, seed, shared) == train(replicated, seed, all));
    CHECK(weights_of(plan.model, shared) == weights_of(plan.model, all));
    CHECK(masters_of(plan.model, shared) == masters_of(plan.model, all));
  }
}

TEST_CASE("ranks that share weights: steps are those of ranks with whole weights") {
  for (std::uint64_t seed = 120; seed < 129; ++seed) {
    CAPTURE(seed);
    const Plan plan = test::shared_plan(seed, options_of(seed));
    const Plan replicated = test::with_whole_weights(plan);
    cuda::AdamW settings;
    settings.largest_norm = 0.05;
    test::RankDevices shared = test::rank_devices(plan, seed, settings);
    test::RankDevices all = test::rank_devices(replicated, seed, settings);
    const std::vector<double> losses = train(plan, seed, shared);
    const std::vector<double> expected = train(replicated, seed, all);
    for (std::size_t step = 0; step < losses.size(); ++step) {
      CHECK(losses[step] == doctest::Approx(expected[step]).epsilon(1e-3));
    }
    const auto masters = masters_of(plan.model, shared), want = masters_of(plan.model, all);
    double squares = 0, off = 0;
    for (const auto& [name, values] : want) {
      const std::vector<float>& found = masters.at(name);
      for (std::size_t i = 0; i < values.size(); ++i) {
        const double difference = static_cast<double>(found[i]) - static_cast<double>(values[i]);
        off += difference * difference;
        squares += static_cast<double>(values[i]) * static_cast<double>(values[i]);
      }
    }
    CHECK(std::sqrt(off / squares) <= 1e-4);
  }
}

TEST_CASE("ranks that share weights: equal bits whenever streams run, and nothing read too early") {
  for (std::uint64_t seed = 130; seed < 136; ++seed) {
    CAPTURE(seed);
    const Plan plan = test::shared_plan(seed, options_of(seed));
    test::RankDevices first = test::rank_devices(plan, seed);
    const std::vector<double> losses = train(plan, seed, first);
    cuda::Emulation late = cuda::emulation();
    late.timing = cuda::EmulatedTiming::late;
    const cuda::ScopedEmulation scope(late);
    test::RankDevices second = test::rank_devices(plan, seed);
    CHECK(train(plan, seed, second) == losses);
    CHECK(test::state_of(second) == test::state_of(first));
  }
}

TEST_CASE("ranks that share weights: an evaluation gives the losses of a step, changes nothing") {
  for (std::uint64_t seed = 140; seed < 143; ++seed) {
    CAPTURE(seed);
    const Plan plan = test::shared_plan(seed, options_of(seed));
    const runtime::StepData data = test::random_data(plan, seed);
    test::RankDevices devices = test::rank_devices(plan, seed);
    const std::vector<float> before = test::state_of(devices);
    for (cuda::RankDevice& device : devices) device.set_evaluating(true);
    const runtime::StepResult evaluated = test::run_ranks(plan, data, std::span(devices));
    CHECK(test::state_of(devices) == before);
    for (cuda::RankDevice& device : devices) device.set_evaluating(false);
    CHECK(test::run_ranks(plan, data, std::span(devices)).sample_loss == evaluated.sample_loss);
  }
}

TEST_CASE("ranks that share weights: training goes on from saved state") {
  for (std::uint64_t seed = 150; seed < 153; ++seed) {
    CAPTURE(seed);
    const Plan plan = test::shared_plan(seed, options_of(seed));
    test::RankDevices devices = test::rank_devices(plan, seed);
    (void)train(plan, seed, devices);
    test::RankDevices resumed = test::rank_devices(plan, seed + 1);
    for (std::size_t device = 0; device < devices.size(); ++device) {
      resumed[device].set_master_parts(devices[device].master_parts());
      resumed[device].set_steps(devices[device].steps());
    }
    CHECK(train(plan, seed + 1, resumed) == train(plan, seed + 1, devices));
    CHECK(test::state_of(resumed) == test::state_of(devices));
  }
}

TEST_CASE("ranks that share weights: devices hold what plans count and fixed_bytes, no more") {
  for (std::uint64_t seed = 160; seed < 166; ++seed) {
    CAPTURE(seed);
    const Plan plan = test::shared_plan(seed, options_of(seed));
    const runtime::Program program = runtime::make_program(plan);
    const std::int64_t before = cuda::free_memory();
    test::RankDevices devices = test::rank_devices(plan, seed);
    (void)test::run_ranks(plan, test::random_data(plan, seed), std::span(devices));
    std::int64_t held = 0;
    for (std::size_t device = 0; device < devices.size(); ++device) {
      const StaticBytes always = devices[device].static_bytes();
      CHECK(always.total().value < static_bytes(plan, 0).total().value + rounding_of(plan));
      held += always.total().value + devices[device].arena()->capacity().value +
              cuda::fixed_bytes(plan, program, device, 4096).value;
    }
    const std::int64_t used = before - cuda::free_memory();
    CHECK(used <= held);
    CHECK(used >= held - static_cast<std::int64_t>(devices.size()) * 8192);
  }
}

TEST_CASE("ranks that share weights: what cannot be done with them is refused in a sentence") {
  const Plan plan = test::shared_plan(170);
  const auto said = [](const auto& work) -> std::string {
    try {
      work();
    } catch (const InvalidInput& error) {
      return error.what();
    }
    return "accepted";
  };
  cuda::RankDevice shared(plan, 0, 1, {}, test::plain_path());
  const Plan whole = test::with_whole_weights(plan);
  cuda::RankDevice all(whole, 0, 1, {}, test::plain_path());
  const runtime::StepData data = test::random_data(plan, 1);
  const std::string mixed = "RankDevice: ranks must share weights in all steps or in none";
  CHECK(said([&] { shared.begin_step(whole, data); }) == mixed);
  CHECK(said([&] { all.begin_step(plan, data); }) == mixed);
  CHECK(said([&] { (void)shared.weights(shared.tensors().front()); }) ==
        "RankDevice: shared weights are read part by part");
  Plan wrong = plan;
  wrong.memory.optimizer = OptimizerState::replicated;
  CHECK(said([&] { const cuda::RankDevice device(wrong, 0, 1); }) ==
        "execution: sharded weights need sharded optimizer state");
}

}  // namespace shared_weights_test
