// SPDX-License-Identifier: Apache-2.0
// Steps of the fp32 backend: against the oracle, repeated, clipped, resumed, stopped, in an arena.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "runtime/feature_table.hpp"
#include "runtime/rounding.hpp"
#include "runtime/tiny_plan.hpp"
#include "slimpack/core/random.hpp"
#include "slimpack/plan/memory.hpp"
#include "slimpack/runtime/arena_size.hpp"
#include "slimpack/runtime/executor.hpp"
#include "slimpack/runtime/program.hpp"
#include "slimpack/runtime/run_step.hpp"
#include "slimpack/sim/simulate_plan.hpp"
#include "slimpack_cpu/check_plan.hpp"
#include "support/draws.hpp"
#include "support/random_plan.hpp"

using namespace slimpack;

namespace {

using FastDevices = std::vector<cpu::FastDevice>;

std::vector<float> fast_values(FastDevices& devices) {
  std::vector<float> values;
  for (cpu::FastDevice& device : devices) {
    for (const runtime::HeldTensor& tensor : device.tensors()) {
      for (const auto& part : {std::as_const(device).weights(tensor), device.gradients(tensor)}) {
        values.insert(values.end(), part.begin(), part.end());
      }
    }
    for (const auto& part : device.optimizer_state()) {
      values.insert(values.end(), part.first_moment.begin(), part.first_moment.end());
      values.insert(values.end(), part.second_moment.begin(), part.second_moment.end());
    }
  }
  return values;
}

test::RandomPlanOptions in_fp32() {
  test::RandomPlanOptions options;
  options.bytes_per_element = 4;
  options.gradient_bytes = 4;
  return options;
}

/// A fast device whose gradients are not finite though its losses are: of the hidden states, or of
/// its last tensor of weights alone.
enum class Spoilt { hidden, weights };
template <Spoilt what>
class SpoiltDevice : public cpu::FastDevice {
 public:
  using cpu::FastDevice::FastDevice;
  template <class Link>
  void head(const runtime::HeadCall& call, Link& link) {
    cpu::FastDevice::head(call, link);
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    if constexpr (what == Spoilt::weights) {
      const_cast<float&>(gradients(tensors().back())[0]) = kInfinity;
      return;
    }
    for (const runtime::BlockMemory& memory : call.blocks) {
      cpu::numbers<float>(memory.hidden_gradient)[0] = kInfinity;
    }
  }
};

/// A backend that takes places of a layout and refuses those that another buffer is using.
class PlacedDevice : public runtime::detail::ReplayDevice {
 public:
  class Buffer {
   public:
    Buffer(std::map<std::size_t, std::size_t>& used, std::size_t i, std::size_t size)
        : used_(&used), at_(i), size_(size) {
      if (size == 0) return;
      const auto next = used.lower_bound(i);
      const bool free = (next == used.end() || next->first >= i + size) &&
                        (next == used.begin() || std::prev(next)->second <= i);
      if (!free) throw std::logic_error("the place is in use");
      used.emplace(i, i + size);
    }
    Buffer(Buffer&& other) noexcept
        : used_(other.used_), at_(other.at_), size_(std::exchange(other.size_, 0)) {}
    Buffer& operator=(Buffer&& other) noexcept {
      std::swap(used_, other.used_);
      std::swap(at_, other.at_);
      std::swap(size_, other.size_);
      return *this;
    }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    ~Buffer() {
      if (size_ > 0) used_->erase(at_);
    }

   private:
    std::map<std::size_t, std::size_t>* used_;
    std::size_t at_, size_;
  };

  PlacedDevice(const runtime::BufferLayout& layout, const ElementBytes& size)
      : runtime::detail::ReplayDevice(size, 1, 0), layout_(layout) {}
  [[nodiscard]] Buffer allocate(Bytes bytes) {
    const std::size_t i = layout_.places.at(taken_++);
    if (Bytes{static_cast<std::int64_t>(i)} + bytes > layout_.capacity) {
      throw std::logic_error("the place is behind the arena's end");
    }
    return {*used_, i, static_cast<std::size_t>(bytes.value)};
  }
  [[nodiscard]] static std::span<std::byte> bytes(const Buffer&) noexcept { return {}; }
  static void clear(Buffer&) noexcept {}
  [[nodiscard]] std::size_t taken() const noexcept { return taken_; }

 private:
  const runtime::BufferLayout& layout_;
  std::unique_ptr<std::map<std::size_t, std::size_t>> used_ =
      std::make_unique<std::map<std::size_t, std::size_t>>();  ///< begin and end
  std::size_t taken_ = 0;
};

/// Sends end when asked for with a chance of 1 to `chance`, or never before they must.
struct ChanceLink : runtime::detail::ReplayLink {
  ChanceLink(Random random, std::uint64_t chance) : random_(random), chance_(chance) {}
  [[nodiscard]] bool send_ended(const runtime::Channel&, std::size_t) {
    return chance_ > 0 && random_.chance(1, chance_);
  }

 private:
  Random random_;
  std::uint64_t chance_;
};

/// All tensors of the optimizer, whole, by name: first moments, then second ones.
using State = std::map<std::string, std::pair<std::vector<double>, std::vector<double>>>;

template <class Devices>
State collect(Devices& devices) {
  State state;
  for (auto& device : devices) {
    for (const auto& part : device.optimizer_state()) {
      const auto size = static_cast<std::size_t>(part.tensor.rows * part.tensor.cols);
      auto& [first, second] = state[part.tensor.name];
      first.resize(size, std::numeric_limits<double>::quiet_NaN());
      second.resize(size, std::numeric_limits<double>::quiet_NaN());
      std::ranges::copy(part.first_moment, first.begin() + static_cast<std::ptrdiff_t>(part.first));
      std::ranges::copy(part.second_moment,
                        second.begin() + static_cast<std::ptrdiff_t>(part.first));
    }
  }
  return state;
}

/// Sets weights, moments and step count of `into` from those of `from`, however both are cut.
template <class From, class Into>
void carry_over(From& from, Into& into) {
  const State state = collect(from);
  std::map<std::string, std::vector<double>> weights;
  for (auto& device : from) {
    for (const runtime::HeldTensor& tensor : device.tensors()) {
      auto& whole = weights[tensor.shape.name];
      whole.resize(static_cast<std::size_t>(tensor.whole_rows * tensor.shape.cols));
      std::ranges::copy(std::as_const(device).weights(tensor),
                        whole.begin() + tensor.first_row * tensor.shape.cols);
    }
  }
  for (auto& device : into) {
    device.set_steps(from.front().steps());
    for (const runtime::HeldTensor& tensor : device.tensors()) {
      std::copy_n(weights.at(tensor.shape.name).begin() + tensor.first_row * tensor.shape.cols,
                  tensor.size(), device.weights(tensor).begin());
    }
    for (const auto& part : device.optimizer_state()) {
      const auto& [first, second] = state.at(part.tensor.name);
      const auto i = static_cast<std::ptrdiff_t>(part.first);
      std::copy_n(first.begin() + i, part.first_moment.size(), part.first_moment.begin());
      std::copy_n(second.begin() + i, part.second_moment.size(), part.second_moment.begin());
    }
  }
}

}  // namespace

TEST_CASE("fp32 steps: loss and gradients of random plans are those of the fp64 oracle") {
  test::FeatureTable table;
  std::int64_t plans = 0, shaky = 0;
  const auto check = [&](std::uint64_t seed, const test::RandomPlanOptions& options) {
    CAPTURE(seed);
    const Plan plan = test::random_plan(seed, options);
    const auto data = cpu::step_data(plan, cpu::random_tokens(plan, seed));
    const auto found = cpu::check_plan<cpu::FastMath>(plan, data, seed);
    CAPTURE(found.worst_tensor);
    CHECK(found.loss_difference <= 1e-6);
    ++plans;
    if (found.gradient_difference <= 2e-5) {
      table.add(plan, found);
      return;
    }
    ++shaky;
    CHECK(found.gradient_difference <= 8 * test::change_by_rounding(plan, data, seed));
  };
  for (std::uint64_t seed = 0; seed < slimpack::test::draws(110U); ++seed) check(seed, {});
  for (std::uint64_t seed = 300; seed < 324; ++seed) {
    test::RandomPlanOptions options;
    options.cp_groups = true;
    options.exchange = seed % 2 == 0 ? RingMode::pass_kv : RingMode::pass_q;
    options.recompute = static_cast<Recompute>(seed / 2 % kRecomputeModes);
    check(seed, options);
  }
  for (std::uint64_t seed = 324; seed < 340; ++seed) {
    test::RandomPlanOptions options;
    options.uncut = true;
    options.cp_groups = seed % 2 == 0;
    options.recompute = static_cast<Recompute>(seed / 2 % kRecomputeModes);
    check(seed, options);
  }
  table.print();
  std::printf("  %lld plans, %lld of them beyond 2e-5 because the model magnifies rounding\n",
              static_cast<long long>(plans), static_cast<long long>(shaky));
  CHECK(shaky * 20 <= plans);
  for (const char* name : {"merged, kv exchange", "merged, q exchange", "chunks", "sharded head",
                           "tied, sharded head", "differing cuts", "recompute none",
                           "recompute light", "recompute layer", "recompute full"}) {
    CAPTURE(name);
    CHECK(table.plans(name) >= slimpack::test::draws(10));
  }
}

TEST_CASE("long slices: rows in several groups and blocks give the oracle's step, merged or not") {
  // Just above 1,024 rows a rank, which is what a group and, at 64 numbers a row, a block holds.
  Plan plan = test::tiny_plan(2, {{0}, {1}, {0, 1}}, {{2060, 2}, {1030, 0}, {40, 1}});
  plan.version = 3;
  plan.sample_first = {0, 0, 0};
  plan.model.layers = plan.stages.front().end_layer = 1;
  plan.model.heads = plan.model.kv_heads = 2;
  plan.model.head_dim = 32;
  plan.memory.page_tokens = Tokens{128};
  plan.memory.cp_block_tokens = Tokens{1030};
  plan.memory.head_tile = Tokens{700};
  const auto data = cpu::step_data(plan, cpu::random_tokens(plan, 1));
  for (const RingMode exchange : {RingMode::pass_kv, RingMode::pass_q, RingMode::by_heads}) {
    const Recompute recompute = exchange == RingMode::pass_kv ? Recompute::none : Recompute::full;
    CAPTURE(recompute);
    for (MicroPack& pack : plan.micropacks) {
      std::ranges::fill(pack.exchange, exchange);
      pack.recompute = recompute;
    }
    const auto found = cpu::check_plan<cpu::FastMath>(plan, data, 1);
    CAPTURE(found.worst_tensor);
    CHECK(found.loss_difference <= 1e-6);
    CHECK(found.gradient_difference <= 2e-5);
  }
  CHECK(cpu::check_plan(plan, data, 1).worst() <= 1e-11);
}

TEST_CASE("fp32 steps: two runs are equal to the last bit, on pinned threads and in an arena too") {
  for (std::uint64_t seed = 0; seed < slimpack::test::draws(16U); ++seed) {
    CAPTURE(seed);
    const Plan plan = test::random_plan(seed);
    auto devices = cpu::make_devices<cpu::FastDevice>(plan, seed);
    auto others = cpu::make_devices<cpu::FastDevice>(plan, seed);
    for (cpu::FastDevice& device : others) device.reserve(Bytes{50'000'000});
    const runtime::Program program = runtime::make_program(plan);
    const std::vector<std::size_t> allowed = runtime::allowed_cores();
    runtime::DeviceThreadsOptions options;
    for (std::size_t device = 0; !allowed.empty() && device < devices.size(); ++device) {
      options.cores.push_back(allowed[device % allowed.size()]);
    }
    runtime::DeviceThreads device_threads(devices.size(), options);
    for (std::uint64_t step = 0; step < 2; ++step) {
      const auto data = cpu::step_data(plan, cpu::random_tokens(plan, 10 * seed + step));
      const auto one = runtime::run_step(plan, data, std::span(devices));
      const auto two = runtime::run_step(device_threads, plan, program, data, std::span(others));
      CHECK(one.loss == two.loss);
      CHECK(one.sample_loss == two.sample_loss);
    }
    CHECK(fast_values(devices) == fast_values(others));
    for (const cpu::FastDevice& device : others) CHECK(device.arena()->held() == Bytes{});
  }
}

TEST_CASE("fp32 steps: where keys and values are held changes no bit") {
  std::int64_t differing = 0;
  for (std::uint64_t seed = 0; seed < slimpack::test::draws(24U); ++seed) {
    CAPTURE(seed);
    test::RandomPlanOptions options;
    options.uncut = seed % 3 != 0;
    if (seed % 2 == 0) options.recompute = Recompute::full;
    options.version = 2;
    Plan plan = test::random_plan(seed, options);
    const std::vector<KeptKeys> kept = kept_keys(plan);
    const auto data = cpu::step_data(plan, cpu::random_tokens(plan, seed));
    auto devices = cpu::make_devices<cpu::FastDevice>(plan, seed);
    const auto one = runtime::run_step(plan, data, std::span(devices));
    plan.version = 1;
    differing += kept == kept_keys(plan) ? 0 : 1;
    auto others = cpu::make_devices<cpu::FastDevice>(plan, seed);
    const auto two = runtime::run_step(plan, data, std::span(others));
    CHECK(one.loss == two.loss);
    CHECK(fast_values(devices) == fast_values(others));
  }
  CHECK(differing > slimpack::test::draws(12));
}

TEST_CASE("fp32 steps: samples never see each other") {
  for (std::uint64_t seed = 0; seed < slimpack::test::draws(20U); ++seed) {
    CAPTURE(seed);
    const Plan plan = test::random_plan(seed);
    const auto tokens = cpu::random_tokens(plan, seed);
    auto changed = tokens;
    Random random(seed);
    const auto victim = static_cast<std::size_t>(random.below(tokens.size()));
    for (auto& token : changed[victim]) {
      token = static_cast<std::int32_t>((token + 1) % plan.model.vocab);
    }
    auto devices = cpu::make_devices<cpu::FastDevice>(plan, seed);
    auto others = cpu::make_devices<cpu::FastDevice>(plan, seed);
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

TEST_CASE("fp32 steps: the executor holds the bytes that the simulator predicts") {
  for (std::uint64_t seed = 0; seed < slimpack::test::draws(24U); ++seed) {
    CAPTURE(seed);
    const Plan plan = test::random_plan(seed, in_fp32());
    const sim::PlanSimulation simulation = sim::simulate_plan(plan);
    auto devices = cpu::make_devices<cpu::FastDevice>(plan, seed);
    const auto data = cpu::step_data(plan, cpu::random_tokens(plan, seed));
    std::vector<std::vector<runtime::MemoryEvent>> events(devices.size());
    (void)runtime::run_step(plan, data, std::span(devices), [&](const runtime::MemoryEvent& event) {
      events[event.device].push_back(event);
    });
    std::int64_t workspace = 0, predicted = 0;
    for (const auto& device : events) {
      for (const runtime::MemoryEvent& event : device) {
        const bool counts = event.kind == runtime::MemoryKind::workspace && event.change > Bytes{};
        if (counts) workspace += event.change.value;
      }
    }
    for (std::size_t i = 0; i < simulation.dag.size(); ++i) {
      const sim::NodeId node{static_cast<std::uint32_t>(i)};
      for (const sim::MemoryEvent& event : simulation.dag.memory_at(node, sim::Moment::start)) {
        if (event.kind == sim::MemoryKind::workspace) predicted += event.bytes.value;
      }
    }
    CHECK(workspace == predicted);
  }
}

TEST_CASE("gradient norm: counted once over stages, ranks and copies, and clipped by") {
  std::int64_t clipped = 0;
  for (std::uint64_t seed = 0; seed < slimpack::test::draws(24U); ++seed) {
    CAPTURE(seed);
    const Plan plan = test::random_plan(seed);
    const auto data = cpu::step_data(plan, cpu::random_tokens(plan, seed));
    cpu::Tensors weights = cpu::initial_weights(plan.model, seed);
    const auto reference = cpu::reference_step(plan.model, weights, data);
    double squares = 0;
    for (const auto& [name, gradient] : reference.gradients) {
      for (const double value : gradient.values) squares += value * value;
    }
    cpu::AdamW settings;
    settings.largest_norm = seed % 2 == 0 ? 0.5 * std::sqrt(squares) : 2 * std::sqrt(squares);
    clipped += seed % 2 == 0 ? 1 : 0;
    auto devices = cpu::make_devices(plan, seed, settings);
    (void)runtime::run_step(plan, data, std::span(devices));
    for (const cpu::Device& device : devices) {
      CHECK(device.gradient_norm() == doctest::Approx(std::sqrt(squares)).epsilon(1e-10));
      CHECK(device.gradient_norm() == devices.front().gradient_norm());
      CHECK(device.steps() == 1);
    }
    // The first moment is (1 - beta1) times the clipped gradient, without AdamW's division.
    const double factor = seed % 2 == 0 ? 0.5 : 1.0;
    const State state = collect(devices);
    CHECK(state.size() == reference.gradients.size());
    for (const auto& named : reference.gradients) {
      CAPTURE(named.first);
      const cpu::Matrix& gradient = named.second;
      const auto& first = state.at(named.first).first;
      REQUIRE(first.size() == gradient.values.size());
      const double largest = cpu::detail::largest_value(gradient);
      for (std::size_t i = 0; i < first.size(); ++i) {
        const double expected = (1.0 - settings.beta1) * factor * gradient.values[i];
        CHECK(std::abs(first[i] - expected) <= 1e-10 * largest);
      }
    }
  }
  CHECK(clipped > 0);
}

TEST_CASE("clipping: check_plan agrees with the oracle's own") {
  cpu::AdamW settings;
  settings.largest_norm = 1e-3;
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    CAPTURE(seed);
    const Plan plan = test::random_plan(seed);
    const auto found = cpu::check_plan(plan, cpu::random_tokens(plan, seed), seed, settings);
    CHECK(found.weight_difference <= 1e-9);
  }
}

TEST_CASE("optimizer state: training goes on from it on another partition as if never stopped") {
  for (std::uint64_t seed = 0; seed < slimpack::test::draws(12U); ++seed) {
    CAPTURE(seed);
    // Plans of one seed share model and samples only if nothing else is drawn in between.
    const Plan plan = test::random_plan(seed);
    const Plan other = test::tiny_plan(2, {{0}, {1}}, {{7, 0}, {9, 1}});
    Plan alike = other;
    alike.model = plan.model;
    alike.stages = {{0, 0, 0, plan.model.layers, true}};
    alike.memory.optimizer = seed % 2 == 0 ? OptimizerState::sharded : OptimizerState::replicated;
    auto devices = cpu::make_devices(plan, seed);
    for (std::uint64_t step = 0; step < 2; ++step) {
      const auto data = cpu::step_data(plan, cpu::random_tokens(plan, 100 * seed + step));
      (void)runtime::run_step(plan, data, std::span(devices));
    }
    auto moved = cpu::make_devices(alike, seed + 1);
    carry_over(devices, moved);
    auto back = cpu::make_devices(plan, seed + 2);
    carry_over(moved, back);
    CHECK(collect(back) == collect(devices));
    const auto data = cpu::step_data(plan, cpu::random_tokens(plan, 100 * seed + 2));
    const double loss = runtime::run_step(plan, data, std::span(devices)).loss;
    CHECK(runtime::run_step(plan, data, std::span(back)).loss == loss);
    CHECK(collect(back) == collect(devices));
    for (std::size_t device = 0; device < devices.size(); ++device) {
      CHECK(back[device].steps() == 3);
      for (const runtime::HeldTensor& tensor : devices[device].tensors()) {
        CHECK(std::ranges::equal(std::as_const(devices[device]).weights(tensor),
                                 std::as_const(back[device]).weights(tensor)));
      }
    }
  }
  auto single = cpu::make_devices(test::tiny_plan(1, {{0}}, {{7, 0}}), 1);
  CHECK_THROWS_WITH_AS(single.front().set_steps(-1), "Device: steps must be >= 0, got -1",
                       InvalidInput);
}

TEST_CASE("settings: the learning rate of a step is the one set before it") {
  const Plan plan = test::tiny_plan(1, {{0}}, {{7, 0}});
  const auto data = cpu::step_data(plan, cpu::random_tokens(plan, 1));
  auto devices = cpu::make_devices<cpu::FastDevice>(plan, 1);
  cpu::AdamW settings = devices.front().settings();
  settings.learning_rate = 0;
  devices.front().set_settings(settings);
  const auto& tensor = devices.front().tensors().front();
  const auto weights = std::as_const(devices.front()).weights(tensor);
  const std::vector<float> before(weights.begin(), weights.end());
  (void)runtime::run_step(plan, data, std::span(devices));
  CHECK(std::ranges::equal(before, weights));
  settings.learning_rate = 0.1;
  devices.front().set_settings(settings);
  (void)runtime::run_step(plan, data, std::span(devices));
  CHECK_FALSE(std::ranges::equal(before, weights));
}

TEST_CASE("losses and gradients that are not finite stop the step before the update") {
  const Plan plan = test::tiny_plan(2, {{0}, {1}}, {{7, 0}, {9, 1}, {5, 1}});
  auto tokens = cpu::random_tokens(plan, 1);
  for (auto& token : tokens[2]) token = 3;
  for (auto& token : tokens[0]) token = 5;
  for (auto& token : tokens[1]) token = 5;
  const auto data = cpu::step_data(plan, tokens);
  auto devices = cpu::make_devices<cpu::FastDevice>(plan, 1);
  (void)runtime::run_step(plan, data, std::span(devices));
  for (cpu::FastDevice& device : devices) {  // the embedding of token 3, in sample 2 only
    device.weights(device.tensors().front())[3 * 8] = std::numeric_limits<float>::infinity();
  }
  CHECK_THROWS_WITH_AS((void)runtime::run_step(plan, data, std::span(devices)),
                       "device (dp 1, pp 0), unit 3, H of MicroPack 4, failed: the loss of step 2 "
                       "is not finite in samples 2",
                       runtime::ExecutionError);
  const auto weights_of = [](FastDevices& all) {
    std::vector<float> values;
    for (cpu::FastDevice& device : all) {
      for (const runtime::HeldTensor& tensor : device.tensors()) {
        const auto part = std::as_const(device).weights(tensor);
        values.insert(values.end(), part.begin(), part.end());
      }
    }
    return values;
  };
  const auto check_spoilt = [&]<class Device>(std::vector<Device> spoilt, const auto& rule) {
    spoilt.emplace_back(plan, 0, 1);
    spoilt.emplace_back(plan, 1, 1);
    FastDevices untouched = cpu::make_devices<cpu::FastDevice>(plan, 1);
    std::string said;
    try {
      (void)runtime::run_step(plan, data, std::span(spoilt));
    } catch (const runtime::ExecutionError& error) {
      said = error.what();
    }
    CAPTURE(said);
    CHECK(rule(said));
    FastDevices left;
    for (Device& device : spoilt) {
      CHECK(device.steps() == 0);
      left.push_back(std::move(static_cast<cpu::FastDevice&>(device)));
    }
    CHECK(weights_of(left) == weights_of(untouched));
  };
  // Finite losses, but what H hands to B is spoilt: of the first token that a block has.
  check_spoilt(std::vector<SpoiltDevice<Spoilt::hidden>>(), [&](const std::string& said) {
    constexpr std::string_view kPack = ", B of MicroPack ";
    const std::size_t i = said.find(kPack);
    REQUIRE(i != std::string::npos);
    const MicroPack& pack = plan.micropacks.at(std::stoull(said.substr(i + kPack.size())));
    REQUIRE(pack.slices.size() == 1);
    return said.ends_with(" failed: the gradient of step 1 is not finite in samples " +
                          std::to_string(index(pack.slices.front().sample)));
  });
  // Every token's gradient is finite, but a sum of them is not.
  const std::string last = devices.front().tensors().back().shape.name;
  check_spoilt(std::vector<SpoiltDevice<Spoilt::weights>>(), [&](const std::string& said) {
    return said.ends_with(", O, failed: the gradient of step 1 is not finite in '" + last +
                          "', where the MicroPacks' gradients are added up");
  });
}

TEST_CASE("arena: the size from a plan is enough, and little more than the predicted peak") {
  double sum = 0, worst = 0;
  std::int64_t seen = 0;
  for (std::uint64_t seed = 0; seed < slimpack::test::draws(20U); ++seed) {
    CAPTURE(seed);
    test::RandomPlanOptions options = in_fp32();
    options.max_tokens = 400;
    const Plan plan = test::random_plan(seed, options);
    const sim::PlanSimulation simulation = sim::simulate_plan(plan);
    const runtime::Program program = runtime::make_program(plan);
    const auto data = cpu::step_data(plan, cpu::random_tokens(plan, seed));
    auto devices = cpu::make_devices<cpu::FastDevice>(plan, seed);
    for (std::size_t device = 0; device < devices.size(); ++device) {
      devices[device].reserve(runtime::arena_bytes(
          plan, program, device, devices[device].element_bytes(), cpu::kBufferAlignment));
    }
    CHECK_NOTHROW((void)runtime::run_step(plan, data, std::span(devices)));
    for (std::size_t device = 0; device < devices.size(); ++device) {
      CAPTURE(device);
      CHECK(devices[device].arena()->held() == Bytes{});
      const Bytes predicted = simulation.timeline.peak[device].bytes -
                              sim::total(simulation.dag.devices[device].always);
      if (predicted < Bytes{1'000'000}) continue;  // rounding to 64 bytes is all that shows
      const double share = static_cast<double>(devices[device].arena()->reached().value) /
                           static_cast<double>(predicted.value);
      sum += share;
      worst = std::max(worst, share);
      ++seen;
    }
  }
  std::printf(
      "  reached of the arena over the predicted peak: mean %.3f, largest %.3f (%lld devices)\n",
      sum / static_cast<double>(seen), worst, static_cast<long long>(seen));
  CHECK(sum <= 1.1 * static_cast<double>(seen));
}

TEST_CASE("arena: places that are laid out hold all buffers of a step, whenever sends end") {
  double sum = 0, worst = 0;
  std::int64_t seen = 0;
  for (std::uint64_t seed = 0; seed < slimpack::test::draws(40U); ++seed) {
    CAPTURE(seed);
    test::RandomPlanOptions options = in_fp32();
    options.max_tokens = 400;
    const Plan plan = test::random_plan(seed, options);
    const sim::PlanSimulation simulation = sim::simulate_plan(plan);
    const runtime::Program program = runtime::make_program(plan);
    constexpr std::size_t kAlignment = 64;
    for (std::size_t device = 0; device < plan.schedule.size(); ++device) {
      CAPTURE(device);
      const ElementBytes size{4, 4, 4};
      const runtime::BufferLayout layout =
          runtime::buffer_layout(plan, program, device, size, kAlignment);
      for (const std::uint64_t chance : {0U, 1U, 2U, 4U}) {
        PlacedDevice placed(layout, size);
        ChanceLink link{Random(seed), chance};
        CHECK_NOTHROW((void)runtime::DeviceRun<PlacedDevice, ChanceLink>(
                          plan, program, runtime::StepData{}, device, placed, link, {})
                          .run());
        CHECK(placed.taken() == layout.places.size());
      }
      const Bytes predicted = simulation.timeline.peak[device].bytes -
                              sim::total(simulation.dag.devices[device].always);
      if (predicted < Bytes{1'000'000}) continue;
      const double share =
          static_cast<double>(layout.capacity.value) / static_cast<double>(predicted.value);
      sum += share;
      worst = std::max(worst, share);
      ++seen;
    }
  }
  std::printf("  arena laid out over the predicted peak: mean %.3f, largest %.3f (%lld devices)\n",
              sum / static_cast<double>(seen), worst, static_cast<long long>(seen));
  CHECK(sum <= 1.1 * static_cast<double>(seen));
}

TEST_CASE("arena: a step that needs more than there is ends with what was needed and available") {
  const Plan plan = test::tiny_plan(1, {{0}}, {{7, 0}});
  const auto data = cpu::step_data(plan, cpu::random_tokens(plan, 1));
  auto devices = cpu::make_devices<cpu::FastDevice>(plan, 1);
  devices.front().reserve(Bytes{4096});
  CHECK_THROWS_WITH_AS(
      (void)runtime::run_step(plan, data, std::span(devices)),
      "device (dp 0, pp 0), unit 0, F of MicroPack 0, chunk 0, failed: the arena "
      "of 4096 bytes has no room for 4928: available are 4096 bytes in 1 gaps, the "
      "largest of 4096",
      runtime::ExecutionError);
  CHECK(devices.front().arena()->held() == Bytes{});
}
