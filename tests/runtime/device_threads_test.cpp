// SPDX-License-Identifier: Apache-2.0
// Threads over many steps: exchanges, whole steps, devices that fail and devices that do not
// answer.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "runtime/tiny_plan.hpp"
#include "runtime/transport_laws.hpp"
#include "slimpack/runtime/device_threads.hpp"
#include "slimpack/runtime/run_step.hpp"
#include "slimpack/runtime/thread_system.hpp"
#include "slimpack/runtime/thread_transport.hpp"
#include "slimpack_cpu/check_plan.hpp"
#include "support/draws.hpp"
#include "support/random_plan.hpp"
#include "support/skip.hpp"

using namespace slimpack;
using std::chrono::milliseconds;

namespace {

template <class Element>
void exchange_on(runtime::DeviceThreads& device_threads, std::uint64_t seed) {
  const auto plan = test::random_exchange(seed, device_threads.size());
  runtime::Rendezvous rendezvous(device_threads.size(),
                                 static_cast<std::int32_t>(plan.max_in_flight));
  std::vector<std::string> wrong(device_threads.size());
  device_threads.run([&](std::size_t device) {
    runtime::ThreadTransport link(rendezvous, device);
    wrong[device] = test::ExchangeRun<Element, runtime::ThreadTransport>(plan, device, link).run();
    rendezvous.leave(device);
  });
  CHECK(wrong == std::vector<std::string>(device_threads.size()));
  CHECK(rendezvous.leftover().empty());
}

/// A CPU device that can throw, wait or compute for long in its forward units.
class OddDevice : public cpu::Device {
 public:
  using cpu::Device::Device;
  enum class Oddity { none, thrown, waiting, busy };
  struct Gate {
    std::mutex mutex;
    std::condition_variable opened;
    bool open = false;
  };
  Oddity oddity = Oddity::none;
  Gate* gate = nullptr;

  template <class Link>
  void forward(const runtime::PackCall& call, Link& link) {
    if (oddity == Oddity::thrown) throw std::runtime_error("out of luck");
    if (oddity == Oddity::waiting) {
      std::unique_lock lock(gate->mutex);
      gate->opened.wait(lock, [&] { return gate->open; });
    }
    if (oddity == Oddity::busy) {
      const auto begin = std::chrono::steady_clock::now();
      while (std::chrono::steady_clock::now() - begin < milliseconds(900)) {
      }
    }
    cpu::Device::forward(call, link);
  }
};

std::vector<double> weights_of(std::span<const cpu::Device> devices) {
  std::vector<double> values;
  for (const cpu::Device& device : devices) {
    for (const runtime::HeldTensor& tensor : device.tensors()) {
      const cpu::In weights = device.weights(tensor);
      values.insert(values.end(), weights.begin(), weights.end());
    }
  }
  return values;
}

/// Two ranks that meet in every unit.
Plan merged_plan() {
  return test::tiny_plan(2, {{0, 1}}, {{8, 0}, {7, 0}});
}

std::vector<OddDevice> odd_devices(const Plan& plan) {
  std::vector<OddDevice> devices;
  for (std::size_t device = 0; device < plan.schedule.size(); ++device) {
    devices.emplace_back(plan, device, 1);
  }
  return devices;
}

}  // namespace

TEST_CASE(
    "ThreadTransport: random exchanges bring every device what the others gave, on one team") {
  for (std::size_t devices = 1; devices <= 4; ++devices) {
    CAPTURE(devices);
    runtime::DeviceThreads device_threads(devices);
    for (std::uint64_t seed = 0; seed < test::draws(60U); ++seed) {
      CAPTURE(seed);
      exchange_on<double>(device_threads, seed);
      exchange_on<float>(device_threads, seed + 1000);
    }
  }
}

TEST_CASE("DeviceThreads: the same threads do the work of every round, each its own device's") {
  runtime::DeviceThreads device_threads(3);
  CHECK(device_threads.size() == 3);
  std::vector<std::thread::id> first(3), later(3);
  device_threads.run([&](std::size_t device) { first[device] = std::this_thread::get_id(); });
  for (int round = 0; round < 200; ++round) {
    device_threads.run([&](std::size_t device) { later[device] = std::this_thread::get_id(); });
    CHECK(later == first);
  }
  CHECK(std::set<std::thread::id>(first.begin(), first.end()).size() == 3);
  CHECK_FALSE(first[0] == std::this_thread::get_id());
}

TEST_CASE(
    "DeviceThreads: what the first device throws is thrown after all have ended, and work goes "
    "on") {
  runtime::DeviceThreads device_threads(3);
  std::atomic<int> ended = 0;
  for (int round = 1; round <= 20; ++round) {
    CHECK_THROWS_WITH_AS(device_threads.run([&](std::size_t device) {
      ++ended;
      if (device > 0) throw std::runtime_error("device " + std::to_string(device));
    }),
                         "device 1", std::runtime_error);
    CHECK(ended == 3 * round);
  }
}

TEST_CASE("DeviceThreads: threads stay on the cores that they are given" *
          doctest::test_suite("needs-cores")) {
  const std::vector<std::size_t> cores = runtime::allowed_cores();
  if (cores.empty()) {
    test::skip("cores", "the system does not say on which cores a thread may run");
    return;
  }
  const std::vector<std::size_t> given{cores.front(), cores.back()};
  runtime::DeviceThreads device_threads(2, {given, {}});
  std::vector<std::vector<std::size_t>> seen(2);
  device_threads.run([&](std::size_t device) { seen[device] = runtime::allowed_cores(); });
  for (std::size_t device = 0; device < 2; ++device) {
    CHECK(seen[device] == std::vector<std::size_t>{given[device]});
  }
  CHECK(runtime::allowed_cores() == cores);
  CHECK_FALSE(runtime::stay_on_core(1'000'000));
}

TEST_CASE("DeviceThreads: numbers that do not fit are refused") {
  CHECK_THROWS_WITH_AS(runtime::DeviceThreads(0), "DeviceThreads: devices must be >= 1",
                       InvalidInput);
  CHECK_THROWS_WITH_AS(runtime::DeviceThreads(2, {{0}, {}}),
                       "DeviceThreads: cores must be none or one a device, got 1", InvalidInput);
  const Plan plan = merged_plan();
  auto devices = cpu::make_devices(plan, 1);
  runtime::DeviceThreads device_threads(3);
  CHECK_THROWS_WITH_AS((void)runtime::run_step(device_threads, plan, runtime::make_program(plan),
                                               cpu::step_data(plan, cpu::random_tokens(plan, 1)),
                                               std::span(devices)),
                       "run_step: there must be one thread a device, got 3", InvalidInput);
}

TEST_CASE(
    "run_step: many steps on one team are the steps on threads of their own, to the last bit") {
  for (std::uint64_t seed = 0; seed < test::draws(24U); ++seed) {
    CAPTURE(seed);
    const Plan plan = test::random_plan(seed);
    const runtime::Program program = runtime::make_program(plan);
    auto devices = cpu::make_devices(plan, seed), others = cpu::make_devices(plan, seed);
    runtime::DeviceThreads device_threads(plan.schedule.size(), {{}, runtime::HangTimeouts{}});
    for (std::uint64_t step = 0; step < 4; ++step) {
      const auto data = cpu::step_data(plan, cpu::random_tokens(plan, 10 * seed + step));
      const auto on_device_threads =
          runtime::run_step(device_threads, plan, program, data, std::span(devices));
      const auto alone = runtime::run_step(plan, data, std::span(others));
      CHECK(on_device_threads.loss == alone.loss);
      CHECK(on_device_threads.sample_loss == alone.sample_loss);
    }
    CHECK(weights_of(devices) == weights_of(others));
  }
}

TEST_CASE("run_step: a team whose step has failed runs the next one") {
  const Plan plan = merged_plan();
  const runtime::Program program = runtime::make_program(plan);
  const auto data = cpu::step_data(plan, cpu::random_tokens(plan, 1));
  runtime::DeviceThreads device_threads(2, {{}, runtime::HangTimeouts{}});
  for (int round = 0; round < 10; ++round) {
    auto devices = odd_devices(plan);
    devices[1].oddity = OddDevice::Oddity::thrown;
    CHECK_THROWS_WITH_AS(
        (void)runtime::run_step(device_threads, plan, program, data, std::span(devices)),
        "device (dp 1, pp 0), unit 0, F of MicroPack 0, chunk 0, failed: out of luck",
        runtime::ExecutionError);
    auto good = cpu::make_devices(plan, 1);
    CHECK(runtime::run_step(device_threads, plan, program, data, std::span(good)).loss > 0);
  }
}

TEST_CASE("run_step: a device that never answers is named with its unit, and given up") {
  const Plan plan = merged_plan();
  const runtime::Program program = runtime::make_program(plan);
  const auto data = cpu::step_data(plan, cpu::random_tokens(plan, 1));
  for (std::size_t victim = 0; victim < 2; ++victim) {
    OddDevice::Gate gate;
    std::string told;
    runtime::HangTimeouts hang_timeouts;
    hang_timeouts.silence = milliseconds(300);
    hang_timeouts.grace = milliseconds(100);
    hang_timeouts.tick = milliseconds(20);
    hang_timeouts.give_up = [&](const std::string& sentence) {
      told = sentence;
      const std::lock_guard lock(gate.mutex);
      gate.open = true;
      gate.opened.notify_all();
    };
    runtime::DeviceThreads device_threads(2, {{}, hang_timeouts});
    auto devices = odd_devices(plan);
    devices[victim].oddity = OddDevice::Oddity::waiting;
    devices[victim].gate = &gate;
    std::string thrown;
    try {
      (void)runtime::run_step(device_threads, plan, program, data, std::span(devices));
    } catch (const runtime::ExecutionError& error) {
      thrown = error.what();
    }
    CHECK(thrown == told);
    CHECK(thrown.starts_with("device (dp " + std::to_string(victim) +
                             ", pp 0), unit 0, F of MicroPack 0, chunk 0, has not answered for "));
    CHECK(thrown.ends_with(" ms: it neither computes nor waits for another device"));
  }
}

TEST_CASE("run_step: a device that computes for longer than the timeouts is waited for") {
  const Plan plan = merged_plan();
  runtime::HangTimeouts hang_timeouts;
  hang_timeouts.silence = milliseconds(400);
  hang_timeouts.tick = milliseconds(20);
  std::string told;
  hang_timeouts.give_up = [&](const std::string& sentence) { told = sentence; };
  runtime::DeviceThreads device_threads(2, {{}, hang_timeouts});
  auto devices = odd_devices(plan);
  devices[1].oddity = OddDevice::Oddity::busy;
  const auto data = cpu::step_data(plan, cpu::random_tokens(plan, 1));
  CHECK(
      runtime::run_step(device_threads, plan, runtime::make_program(plan), data, std::span(devices))
          .loss > 0);
  CHECK(told.empty());
}
