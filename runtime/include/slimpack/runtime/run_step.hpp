// SPDX-License-Identifier: Apache-2.0
// One training step of a plan with a thread for each device.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/runtime/backend.hpp"
#include "slimpack/runtime/detail/hang_detector.hpp"
#include "slimpack/runtime/detail/rendezvous.hpp"
#include "slimpack/runtime/device_threads.hpp"
#include "slimpack/runtime/executor.hpp"
#include "slimpack/runtime/program.hpp"
#include "slimpack/runtime/thread_transport.hpp"
#include "slimpack/runtime/transport.hpp"

namespace slimpack::runtime {

/// What a step ends with.
struct StepResult {
  double loss = 0;                  ///< sum of all losses over the step's targets
  std::vector<double> sample_loss;  ///< sum over the sample's targets, not divided
  std::vector<Bytes> peak;          ///< one a device, by dp, pp, tp
};

/// Throws InvalidInput unless the data fit the plan: as many tokens as each sample is long, tokens
/// and targets below the vocabulary, as many targets as the plan divides by, and at least one.
/// O(tokens).
inline void check_data(const Plan& plan, const StepData& data) {
  const auto size = [](const auto& values) { return static_cast<std::int64_t>(values.size()); };
  require(data.tokens.size() == plan.samples.size(),
          "run_step: tokens must be given for every sample", size(data.tokens));
  require(data.targets.size() == plan.samples.size(),
          "run_step: targets must be given for every sample", size(data.targets));
  const auto known = [&](std::int32_t token) { return token >= 0 && token < plan.model.vocab; };
  std::int64_t targets = 0;
  for (std::size_t sample = 0; sample < plan.samples.size(); ++sample) {
    const std::string place = "run_step: sample " + std::to_string(sample);
    const std::int64_t length = plan.samples[sample].value;
    require(size(data.tokens[sample]) == length, place + " must have a token a position",
            size(data.tokens[sample]));
    require(size(data.targets[sample]) == length, place + " must have a target entry a position",
            size(data.targets[sample]));
    // A sentence is put together for a value that is refused alone: devices wait for this.
    for (const std::int32_t token : data.tokens[sample]) {
      if (!known(token)) require(false, place + " must have tokens below model.vocab", token);
    }
    for (const auto& target : data.targets[sample]) {
      if (!target) continue;
      if (!known(*target)) require(false, place + " must have targets below model.vocab", *target);
      ++targets;
    }
  }
  require(targets > 0, "run_step: the step must have a target");
  require(targets == plan.target_tokens, "run_step: step.target_tokens must be the targets given",
          targets);
}

/// The results of the step's devices, by dp, pp, tp, as one. Losses are
/// summed in the order of samples and tokens, so that they do not depend on how the plan is cut nor
/// on which devices computed them. O(tokens).
[[nodiscard]] inline StepResult step_result(const Plan& plan,
                                            std::span<const DeviceResult> devices) {
  StepResult result;
  std::vector<std::vector<double>> losses(plan.samples.size());
  for (std::size_t sample = 0; sample < losses.size(); ++sample) {
    losses[sample].resize(static_cast<std::size_t>(plan.samples[sample].value));
  }
  for (const DeviceResult& device : devices) {
    result.peak.push_back(device.peak);
    for (const TokenLosses& part : device.losses) {
      std::copy(part.values.begin(), part.values.end(),
                losses[index(part.sample)].begin() + part.begin.value);
    }
  }
  double sum = 0;
  for (const auto& sample : losses) {
    double part = 0;
    for (const double loss : sample) part += loss;
    result.sample_loss.push_back(part);
    sum += part;
  }
  result.loss = sum / static_cast<double>(plan.target_tokens);
  return result;
}

/// Makes the link of a device to the rendezvous of a step, on the device's thread.
template <class Make, class Link, class RendezvousType>
concept LinkMaker = requires(const Make& make, RendezvousType& rendezvous, std::size_t device) {
  { make(rendezvous, device) } -> std::derived_from<Link>;
};

/// Runs one step: forward, loss, backward, reduction, optimizer, on one backend a device (dp, pp,
/// tp) in this order (`device_number`), each on its own of `device_threads`. `program` is the
/// plan's. The plan must be one that `validate` passes. `Link` is a BasicThreadTransport or is used
/// as one, as AnyTransport with the rendezvous of what is behind it. Throws InvalidInput before any
/// work if the data do not fit it; ExecutionError naming device and unit if a unit fails, if a
/// device does not answer (`DeviceThreadsOptions::hang_timeouts`) or something is left at the end;
/// Deadlock if no device can go on. All devices have ended when it returns or throws.
template <class Link, class RendezvousType = typename Link::RendezvousType, Backend<Link> Device,
          LinkMaker<Link, RendezvousType> Make>
[[nodiscard]] StepResult run_step_with(DeviceThreads& device_threads, const Plan& plan,
                                       const Program& program, const StepData& data,
                                       std::span<Device> backends, const Make& make_link,
                                       const MemoryObserver& observer = {}) {
  check_data(plan, data);
  const std::size_t devices = program.device_count();
  require(backends.size() == devices, "run_step: backends must be one a device",
          static_cast<std::int64_t>(backends.size()));
  require(device_threads.size() == devices, "run_step: there must be one thread a device",
          static_cast<std::int64_t>(device_threads.size()));

  RendezvousType rendezvous(devices, plan.max_in_flight);
  std::vector<DeviceResult> results(devices);
  std::vector<std::exception_ptr> failures(devices);
  const auto run_device = [&](std::size_t device) {
    try {
      auto link = make_link(rendezvous, device);
      DeviceRun<Device, Link> run(plan, program, data, device, backends[device], link, observer);
      results[device] = run.run();
    } catch (const Aborted&) {
      // Another device failed first; its exception is the one to tell.
    } catch (...) {
      failures[device] = std::current_exception();
      rendezvous.abort("run_step: a device ended before its time");  // unless it has said so itself
    }
    rendezvous.leave(device);
  };
  const std::optional<HangTimeouts>& hang_timeouts = device_threads.options().hang_timeouts;
  std::optional<std::string> silent;
  if (hang_timeouts) {
    HangDetector hang_detector(device_threads, rendezvous, *hang_timeouts);
    device_threads.run(run_device, hang_timeouts->tick, std::ref(hang_detector));
    silent = hang_detector.silent();
  } else {
    device_threads.run(run_device);
  }
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
  if (silent) throw ExecutionError(*silent);
  if (const auto sentence = rendezvous.aborted()) throw Deadlock(*sentence);
  if (const std::string left = rendezvous.leftover(); !left.empty()) {
    throw ExecutionError("the step must end drained, but holds " + left);
  }
  return step_result(plan, results);
}

/// The same between devices whose memory is the host's: as `run_step_with` a ThreadTransport.
template <Backend<ThreadTransport> Device>
[[nodiscard]] StepResult run_step(DeviceThreads& device_threads, const Plan& plan,
                                  const Program& program, const StepData& data,
                                  std::span<Device> backends, const MemoryObserver& observer = {}) {
  return run_step_with<ThreadTransport>(
      device_threads, plan, program, data, backends,
      [](Rendezvous& rendezvous, std::size_t device) {
        return ThreadTransport(rendezvous, device);
      },
      observer);
}

/// The same with threads of its own, which are waited for without limit.
///
///     std::vector<cpu::Device> devices = cpu::make_devices(plan, seed);
///     const StepData data = cpu::step_data(plan, tokens);
///     const StepResult result = run_step(plan, data, std::span(devices));
///     std::cout << "loss " << result.loss << '\n';
///
/// Throws InvalidInput, too, if the plan cannot be executed.
template <Backend<ThreadTransport> Device>
[[nodiscard]] StepResult run_step(const Plan& plan, const StepData& data,
                                  std::span<Device> backends, const MemoryObserver& observer = {}) {
  const Program program = make_program(plan);
  DeviceThreads device_threads(program.device_count());
  return run_step(device_threads, plan, program, data, backends, observer);
}

}  // namespace slimpack::runtime
