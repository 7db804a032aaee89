// SPDX-License-Identifier: Apache-2.0
#include "slimpack/runtime/run_step.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "runtime/tiny_plan.hpp"
#include "slimpack_cpu/check_plan.hpp"
#include "support/draws.hpp"
#include "support/random_plan.hpp"

using namespace slimpack;

namespace {

std::vector<double> all_values(const std::vector<cpu::Device>& devices) {
  std::vector<double> values;
  for (const cpu::Device& device : devices) {
    for (const runtime::HeldTensor& tensor : device.tensors()) {
      const cpu::In weights = device.weights(tensor), gradients = device.gradients(tensor);
      values.insert(values.end(), weights.begin(), weights.end());
      values.insert(values.end(), gradients.begin(), gradients.end());
    }
  }
  return values;
}

/// A CPU device whose `fatal`-th F, B or H throws.
class FailingDevice : public cpu::Device {
 public:
  using cpu::Device::Device;
  int fatal = -1;

  template <class Link>
  void forward(const runtime::PackCall& call, Link& link) {
    count();
    cpu::Device::forward(call, link);
  }
  template <class Link>
  void backward(const runtime::PackCall& call, Link& link) {
    count();
    cpu::Device::backward(call, link);
  }
  template <class Link>
  void head(const runtime::HeadCall& call, Link& link) {
    count();
    cpu::Device::head(call, link);
  }

 private:
  void count() {
    if (fatal-- == 0) throw std::runtime_error("out of luck");
  }
};

/// A CPU device whose fresh buffers are full of NaN.
class PoisonedDevice : public cpu::Device {
 public:
  using cpu::Device::Device;
  [[nodiscard]] Buffer allocate(Bytes bytes) {
    Buffer buffer(bytes);
    std::ranges::fill(cpu::numbers(buffer.bytes()), std::numeric_limits<double>::quiet_NaN());
    return buffer;
  }
};

runtime::StepResult run(const Plan& plan, std::uint64_t seed = 1) {
  auto devices = cpu::make_devices(plan, seed);
  return runtime::run_step(plan, cpu::step_data(plan, cpu::random_tokens(plan, seed)),
                           std::span(devices));
}

void remove_unit(Plan& plan, std::size_t device, Unit unit) {
  std::erase(plan.schedule[device].order, unit);
}

}  // namespace

TEST_CASE("run_step: two runs are equal to the last bit") {
  for (std::uint64_t seed = 0; seed < test::draws(40U); ++seed) {
    CAPTURE(seed);
    const Plan plan = test::random_plan(seed);
    const auto data = cpu::step_data(plan, cpu::random_tokens(plan, seed));
    std::vector<std::vector<double>> values;
    std::vector<double> losses;
    for (int draw = 0; draw < 2; ++draw) {
      auto devices = cpu::make_devices(plan, seed);
      losses.push_back(runtime::run_step(plan, data, std::span(devices)).loss);
      values.push_back(all_values(devices));
    }
    CHECK(losses[0] == losses[1]);
    CHECK(values[0] == values[1]);
  }
}

TEST_CASE("run_step: units read nothing that was not written or kept for them") {
  for (std::uint64_t seed = 0; seed < test::draws(60U); ++seed) {
    CAPTURE(seed);
    const Plan plan = test::random_plan(seed);
    const auto data = cpu::step_data(plan, cpu::random_tokens(plan, seed));
    auto devices = cpu::make_devices(plan, seed);
    std::vector<PoisonedDevice> poisoned;
    for (std::size_t device = 0; device < devices.size(); ++device) {
      poisoned.emplace_back(plan, device, seed);
    }
    const double loss = runtime::run_step(plan, data, std::span(devices)).loss;
    CHECK(runtime::run_step(plan, data, std::span(poisoned)).loss == loss);
    std::vector<cpu::Device> sliced;
    for (const PoisonedDevice& device : poisoned) sliced.push_back(device);
    CHECK(all_values(sliced) == all_values(devices));
  }
}

TEST_CASE("run_step: samples never see each other") {
  for (std::uint64_t seed = 0; seed < test::draws(60U); ++seed) {
    CAPTURE(seed);
    const Plan plan = test::random_plan(seed);
    const auto tokens = cpu::random_tokens(plan, seed);
    auto changed = tokens;
    Random random(seed);
    const auto victim = static_cast<std::size_t>(random.below(tokens.size()));
    for (auto& token : changed[victim]) {
      token = static_cast<std::int32_t>((token + 1) % plan.model.vocab);
    }
    auto devices = cpu::make_devices(plan, seed);
    auto others = cpu::make_devices(plan, seed);
    const auto before = runtime::run_step(plan, cpu::step_data(plan, tokens), std::span(devices));
    const auto after = runtime::run_step(plan, cpu::step_data(plan, changed), std::span(others));
    for (std::size_t sample = 0; sample < tokens.size(); ++sample) {
      CAPTURE(sample);
      if (sample != victim) CHECK(before.sample_loss[sample] == after.sample_loss[sample]);
      if (sample == victim && before.sample_loss[sample] != 0) {
        CHECK(before.sample_loss[sample] != after.sample_loss[sample]);
      }
    }
  }
}

TEST_CASE("run_step: a token's loss does not depend on later tokens") {
  const Plan plan = test::tiny_plan(1, {{0}}, {{9, 0}});
  auto tokens = cpu::random_tokens(plan, 5);
  auto data = cpu::step_data(plan, tokens);
  for (std::size_t t = 4; t < 9; ++t) data.targets[0][t].reset();
  Plan shorter = plan;
  shorter.target_tokens = 4;
  auto devices = cpu::make_devices(shorter, 3);
  const double before = runtime::run_step(shorter, data, std::span(devices)).sample_loss[0];
  data.tokens[0][7] = (data.tokens[0][7] + 1) % 17;
  devices = cpu::make_devices(shorter, 3);
  CHECK(runtime::run_step(shorter, data, std::span(devices)).sample_loss[0] == before);
}

TEST_CASE("run_step: weights after several steps of AdamW are those of the unsliced oracle") {
  for (std::uint64_t seed = 0; seed < test::draws(25U); ++seed) {
    CAPTURE(seed);
    const Plan plan = test::random_plan(seed);
    auto devices = cpu::make_devices(plan, seed);
    cpu::Tensors weights = cpu::initial_weights(plan.model, seed);
    cpu::ReferenceOptimizer optimizer{cpu::AdamW{}};
    for (std::uint64_t step = 0; step < 3; ++step) {
      const auto data = cpu::step_data(plan, cpu::random_tokens(plan, 100 * seed + step));
      const double loss = runtime::run_step(plan, data, std::span(devices)).loss;
      const auto reference = cpu::reference_step(plan.model, weights, data);
      CHECK(loss == doctest::Approx(reference.loss).epsilon(1e-9));
      optimizer.update(weights, reference.gradients);
    }
    for (const cpu::Device& device : devices) {
      for (const runtime::HeldTensor& tensor : device.tensors()) {
        const cpu::Matrix& expected = weights.at(tensor.shape.name);
        CHECK(cpu::detail::largest_difference<double>(device.weights(tensor), expected, tensor) <=
              1e-9 * cpu::detail::largest_value(expected));
      }
    }
  }
}

TEST_CASE("run_step: a failure on one device ends all with a sentence naming device and unit") {
  for (std::uint64_t seed = 0; seed < 80; ++seed) {
    CAPTURE(seed);
    const Plan plan = test::random_plan(seed);
    Random random(seed + 1);
    std::vector<FailingDevice> devices;
    std::vector<std::pair<std::size_t, std::size_t>> candidates;  // device, unit
    for (std::size_t device = 0; device < plan.schedule.size(); ++device) {
      devices.emplace_back(plan, device, seed);
      const auto& order = plan.schedule[device].order;
      for (std::size_t unit = 0; unit < order.size(); ++unit) {
        if (order[unit].kind < UnitKind::reduce) candidates.emplace_back(device, unit);
      }
    }
    const auto [device, unit] = candidates[random.below(candidates.size())];
    const auto& order = plan.schedule[device].order;
    devices[device].fatal = static_cast<int>(
        std::count_if(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(unit),
                      [](const Unit& u) { return u.kind < UnitKind::reduce; }));
    const std::string sentence = "device (dp " + std::to_string(plan.schedule[device].dp) +
                                 ", pp " + std::to_string(plan.schedule[device].pp) + "), unit " +
                                 std::to_string(unit) + ", " + to_string(order[unit]) +
                                 ", failed: out of luck";
    const auto data = cpu::step_data(plan, cpu::random_tokens(plan, seed));
    CHECK_THROWS_WITH_AS((void)runtime::run_step(plan, data, std::span(devices)), sentence.c_str(),
                         runtime::ExecutionError);
  }
}

TEST_CASE("run_step: a backend of another model ends all at the start, and so does any exception") {
  const Plan plan = test::tiny_plan(2, {{0}, {1}}, {{6, 0}, {5, 1}});
  Plan other = plan;
  other.model.rope_theta = 7;
  const auto data = cpu::step_data(plan, cpu::random_tokens(plan, 1));
  std::vector<cpu::Device> devices;
  devices.emplace_back(plan, 0, 1);
  devices.emplace_back(other, 1, 1);
  CHECK_THROWS_WITH_AS((void)runtime::run_step(plan, data, std::span(devices)),
                       "device (dp 1, pp 0), start of the step, failed: Device: model and "
                       "partition must stay from step to step",
                       runtime::ExecutionError);
  const auto observe = [](const runtime::MemoryEvent& event) {
    if (event.device == 1 && event.moment == runtime::Moment::unit_start) throw 7;
  };
  auto good = cpu::make_devices(plan, 1);
  CHECK_THROWS_WITH_AS((void)runtime::run_step(plan, data, std::span(good), observe),
                       "device (dp 1, pp 0), unit 0, F of MicroPack 2, chunk 0, failed: an "
                       "exception of unknown type",
                       runtime::ExecutionError);
}

TEST_CASE("run_step: tensor parallelism that does not divide is refused by name, before any work") {
  test::RandomPlanOptions options;
  options.tp = 2;
  options.version = 2;
  const Plan good = test::random_plan(3, options);
  const auto data = cpu::step_data(good, cpu::random_tokens(good, 1));
  auto devices = cpu::make_devices(good, 1);
  const auto refused = [&](auto change, const std::string& sentence) {
    Plan plan = good;
    change(plan);
    CAPTURE(sentence);
    CHECK_THROWS_WITH_AS((void)runtime::run_step(plan, data, std::span(devices)), sentence.c_str(),
                         InvalidInput);
    CHECK_THROWS_WITH_AS((void)cpu::make_devices(plan, 1), sentence.c_str(), InvalidInput);
  };
  refused([](Plan& p) { p.model.heads = 3; },
          "execution: parallel.tp must divide model.heads (3), got 2");
  refused([](Plan& p) { p.model.kv_heads = 1; },
          "execution: parallel.tp must divide model.kv_heads (1), got 2");
  refused([](Plan& p) { p.model.ffn = 15; },
          "execution: parallel.tp must divide model.ffn (15), got 2");
  refused([](Plan& p) { p.version = 1; },
          "execution: tensor parallelism needs a plan of version 2, got 1");
}

TEST_CASE("run_step: the drained test names what is left") {
  const Plan whole = test::tiny_plan(1, {{0}}, {{6, 0}, {5, 0}});
  CHECK(run(whole).loss > 0);
  Plan plan = whole;
  remove_unit(plan, 0, {UnitKind::backward, PackId{3}, 0});
  CHECK_THROWS_WITH_AS((void)run(plan),
                       "device (dp 0, pp 0), end of the step, failed: the step must end drained, "
                       "but holds kept activations (1)",
                       runtime::ExecutionError);
  plan = whole;
  remove_unit(plan, 0, {UnitKind::backward, PackId{3}, 0});
  remove_unit(plan, 0, {UnitKind::head, PackId{2}, 0});
  remove_unit(plan, 0, {UnitKind::forward, PackId{2}, 0});
  plan.target_tokens = 9;
  CHECK_NOTHROW((void)run(plan));  // a sample nobody runs leaves nothing behind: validate's case

  Plan chunks = whole;
  chunks.parallel.chunks = 2;
  chunks.stages = {{0, 0, 0, 1, true}, {0, 1, 1, 2, false}};
  auto& order = chunks.schedule[0].order;
  order = {{UnitKind::forward, PackId{0}, 0}, {UnitKind::optimizer, {}, 0}};
  order.insert(order.end() - 1, {UnitKind::reduce, {}, 0});
  order.insert(order.end() - 1, {UnitKind::reduce, {}, 1});
  CHECK_THROWS_WITH_AS((void)run(chunks),
                       "device (dp 0, pp 0), end of the step, failed: the step must end drained, "
                       "but holds kept activations (1)",
                       runtime::ExecutionError);
}

TEST_CASE("run_step: units in an impossible order are refused by sample or stage") {
  const auto failed = [](std::size_t unit, const std::string& text) {
    return "device (dp 0, pp 0), unit " + std::to_string(unit) + ", " + text;
  };
  Plan plan = test::tiny_plan(1, {{0}}, {{6, 0}});
  plan.micropacks[0].slices = {{SampleId{0}, Tokens{0}, Tokens{3}}};
  plan.micropacks.push_back(
      {Pass::forward, GroupId{0}, {{SampleId{0}, Tokens{3}, Tokens{6}}}, {}, Recompute::none});
  auto& order = plan.schedule[0].order;
  order.insert(order.begin(), {UnitKind::forward, PackId{2}, 0});
  order.insert(order.begin() + 1, {UnitKind::head, PackId{2}, 0});
  CHECK_THROWS_WITH_AS(
      (void)run(plan),
      failed(0,
             "F of MicroPack 2, chunk 0, failed: forward slices must run in rising order, not "
             "so sample, got 0")
          .c_str(),
      runtime::ExecutionError);
  order = {{UnitKind::forward, PackId{0}, 0}, {UnitKind::backward, PackId{1}, 0}};
  CHECK_THROWS_WITH_AS(
      (void)run(plan),
      failed(1,
             "B of MicroPack 1, chunk 0, failed: backward slices must run in falling order "
             "after all forward ones, not so sample, got 0")
          .c_str(),
      runtime::ExecutionError);
  order = {{UnitKind::head, PackId{0}, 0}};
  CHECK_THROWS_WITH_AS(
      (void)run(plan),
      failed(0, "H of MicroPack 0, failed: F of the last stage must have run before").c_str(),
      runtime::ExecutionError);
  order = {{UnitKind::forward, PackId{0}, 0},
           {UnitKind::forward, PackId{2}, 0},
           {UnitKind::backward, PackId{1}, 0}};
  CHECK_THROWS_WITH_AS((void)run(plan),
                       failed(2,
                              "B of MicroPack 1, chunk 0, failed: tokens must have been through "
                              "H, not so MicroPack, got 0")
                           .c_str(),
                       runtime::ExecutionError);
  plan.parallel.chunks = 2;
  plan.stages = {{0, 0, 0, 1, true}, {0, 1, 1, 2, false}};
  order = {{UnitKind::forward, PackId{0}, 1}};
  CHECK_THROWS_WITH_AS((void)run(plan),
                       failed(0,
                              "F of MicroPack 0, chunk 1, failed: the neighbouring stage must "
                              "have run before")
                           .c_str(),
                       runtime::ExecutionError);
}

TEST_CASE("run_step: ranks that wait for each other for ever end in Deadlock") {
  Plan plan = test::tiny_plan(3, {{0, 1}, {0, 1, 2}}, {{8, 0}, {9, 1}});
  CHECK(run(plan).loss > 0);
  auto& order = plan.schedule[0].order;
  std::swap(order[0], order[2]);
  std::swap(order[1], order[3]);
  CHECK_THROWS_WITH_AS(
      (void)run(plan),
      "execution cannot end: device (dp 0, pp 0), unit 0, F of MicroPack 2, chunk 0 awaits a "
      "collective with [device (dp 1, pp 0), unit 0, F of MicroPack 0, chunk 0] [device (dp 2, pp "
      "0), unit 0, F of MicroPack 2, chunk 0]; device (dp 1, pp 0), unit 0, F of MicroPack 0, "
      "chunk 0 awaits a collective with [device (dp 0, pp 0), unit 0, F of MicroPack 2, chunk 0]; "
      "device (dp 2, pp 0), unit 0, F of MicroPack 2, chunk 0 awaits a collective with [device (dp "
      "0, pp 0), unit 0, F of MicroPack 2, chunk 0] [device (dp 1, pp 0), unit 0, F of MicroPack "
      "0, chunk 0]",
      Deadlock);
}

TEST_CASE("run_step: a device that has ended leaves nobody waiting for ever") {
  Plan plan = test::tiny_plan(2, {{0}, {1}}, {{6, 0}, {5, 1}});
  plan.schedule[1].order.clear();
  CHECK_THROWS_WITH_AS((void)run(plan),
                       "execution cannot end: device (dp 0, pp 0), unit 4, O awaits sum 3 with "
                       "[device (dp 1, pp 0), end of the step]",
                       Deadlock);
}

TEST_CASE("run_step: data that do not fit the plan are refused") {
  const Plan plan = test::tiny_plan(1, {{0}}, {{6, 0}, {5, 0}});
  const auto good = cpu::step_data(plan, cpu::random_tokens(plan, 1));
  const auto refused = [&](const runtime::StepData& data, const char* sentence) {
    auto devices = cpu::make_devices(plan, 1);
    CHECK_THROWS_WITH_AS((void)runtime::run_step(plan, data, std::span(devices)), sentence,
                         InvalidInput);
  };
  auto data = good;
  data.tokens.pop_back();
  refused(data, "run_step: tokens must be given for every sample, got 1");
  data = good;
  data.targets.pop_back();
  refused(data, "run_step: targets must be given for every sample, got 1");
  data = good;
  data.tokens[1].pop_back();
  refused(data, "run_step: sample 1 must have a token a position, got 4");
  data = good;
  data.targets[0].pop_back();
  refused(data, "run_step: sample 0 must have a target entry a position, got 5");
  data = good;
  data.tokens[0][2] = 17;
  refused(data, "run_step: sample 0 must have tokens below model.vocab, got 17");
  data = good;
  data.targets[0][2] = -1;
  refused(data, "run_step: sample 0 must have targets below model.vocab, got -1");
  data = good;
  data.targets[0][2].reset();
  refused(data, "run_step: step.target_tokens must be the targets given, got 8");
  for (auto& sample : data.targets) {
    for (auto& target : sample) target.reset();
  }
  refused(data, "run_step: the step must have a target");
  std::vector<cpu::Device> none;
  CHECK_THROWS_WITH_AS((void)runtime::run_step(plan, good, std::span(none)),
                       "run_step: backends must be one a device, got 0", InvalidInput);
}

TEST_CASE("run_step: counted bytes return to what is always held") {
  for (std::uint64_t seed = 0; seed < test::draws(40U); ++seed) {
    CAPTURE(seed);
    const Plan plan = test::random_plan(seed);
    std::vector<std::vector<runtime::MemoryEvent>> events(plan.schedule.size());
    const auto check = cpu::check_plan(
        plan, cpu::step_data(plan, cpu::random_tokens(plan, seed)), seed, {},
        [&](const runtime::MemoryEvent& event) { events[event.device].push_back(event); });
    for (std::size_t device = 0; device < events.size(); ++device) {
      std::array<std::int64_t, runtime::kMemoryKinds> now{};
      std::int64_t sum = 0, peak = 0;
      for (const runtime::MemoryEvent& event : events[device]) {
        auto& kind = now[static_cast<std::size_t>(event.kind)];
        kind += event.change.value;
        sum += event.change.value;
        peak = std::max(peak, sum);
        CHECK(event.change != Bytes{});
        CHECK(kind >= 0);
      }
      CHECK(peak == check.peak[device].value);
      for (std::size_t kind = 0; kind < now.size(); ++kind) {
        const bool always = kind <= static_cast<std::size_t>(runtime::MemoryKind::optimizer_state);
        CHECK((now[kind] > 0) == (always && now[kind] > 0));
      }
    }
  }
}
