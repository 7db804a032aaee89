// SPDX-License-Identifier: Apache-2.0
// What the simulations of one request cost, and the budget that they must keep to.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/parallel_for.hpp"
#include "slimpack/core/thread_seconds.hpp"
#include "slimpack/planners/planner.hpp"

namespace slimpack::planners {

/// What has been simulated.
struct Simulations {
  std::int64_t simulations = 0;  ///< candidates and whole plans
  std::int64_t devices = 0;      ///< of each, summed
};

/// Starts every simulation of a request, counts it as it starts, and refuses those that the budget
/// does not pay for. A simulation costs the devices that it simulates, whether its candidate fits
/// into memory or not: a whole step costs all of them, a component of ranks alone its part. The
/// budget is hard; what turns out to have been known is given back.
///
///     SimulationCounter counter(request);
///     const std::vector<std::int64_t> costs(4, counter.step_devices());
///     counter.run(costs, 0, [&](std::size_t i) { simulate(candidate[i]); });
class SimulationCounter {
 public:
  /// The budget of a request: `evaluations(request)` whole steps. `cpu_start` is what
  /// `thread_seconds` was when planning began, on this thread. The request must outlive the
  /// counter.
  explicit SimulationCounter(const PlanRequest& request, double cpu_start = thread_seconds())
      : SimulationCounter(planners::evaluations(request), all_devices(request), request.threads,
                          request.progress, cpu_start) {}
  /// A budget of `steps` whole steps of so many devices, used by at most `threads` threads.
  /// Progress is told how many whole steps' worth has been simulated, and `steps`. Throws
  /// InvalidInput if a number is < 1.
  SimulationCounter(std::int64_t steps, std::int64_t step_devices, std::int32_t threads,
                    std::function<void(std::int64_t, std::int64_t)> progress = {},
                    double cpu_start = thread_seconds())
      : step_devices_(step_devices),
        steps_(steps),
        threads_(threads),
        progress_(std::move(progress)),
        cpu_start_(cpu_start) {
    require(steps >= 1, "search: budget must be >= 1", steps);
    require(step_devices >= 1, "search: a step must have devices", step_devices);
    require(threads >= 1, "search: threads must be >= 1", threads);
  }

  /// The devices of a whole step: what it costs to simulate one.
  [[nodiscard]] std::int64_t step_devices() const noexcept { return step_devices_; }
  /// What may be spent in all, in devices.
  [[nodiscard]] std::int64_t budget() const noexcept { return steps_ * step_devices_; }
  /// What may still be spent, in devices.
  [[nodiscard]] std::int64_t left() const noexcept { return budget() - devices_; }

  /// Runs simulation i for each i, in order as far as the budget pays for it and leaves `keep`
  /// devices: one that costs `costs[i]` more than that is left out. They run on several threads, in
  /// no promised order. Returns which were run. Throws what `simulate` throws for the lowest i.
  template <std::invocable<std::size_t> Simulate>
  std::vector<std::size_t> run(std::span<const std::int64_t> costs, std::int64_t keep,
                               const Simulate& simulate) {
    std::vector<std::size_t> started;
    for (std::size_t i = 0; i < costs.size(); ++i) {
      SLIMPACK_ASSERT(costs[i] >= 1);
      if (left() - costs[i] < keep) continue;
      devices_ += costs[i];
      ++evaluations_;
      started.push_back(i);
    }
    Mutex mutex;
    double all_seconds = 0;
    const double before = thread_seconds();
    parallel_for(started.size(), threads_, [&](std::size_t i) {
      const double begin = thread_seconds();
      simulate(started[i]);
      const double took = thread_seconds() - begin;
      const Lock lock(mutex);
      all_seconds += took;
      done_ += costs[started[i]];
      if (progress_) progress_(done_ / step_devices_, steps_);
    });
    // The caller's own part is in its own seconds already.
    helpers_seconds_ += std::max(0.0, all_seconds - (thread_seconds() - before));
    return started;
  }

  /// Takes back what was counted but not simulated, for its results were known. To be called by the
  /// thread that began.
  void give_back(const Simulations& known) noexcept {
    evaluations_ -= known.simulations;
    devices_ -= known.devices;
    done_ -= known.devices;
  }

  /// Writes what has been spent so far into an outcome. To be called by the thread that began.
  void report(PlanOutcome& outcome) const {
    outcome.evaluations = evaluations_;
    outcome.simulated_devices = devices_;
    outcome.cpu_seconds = thread_seconds() - cpu_start_ + helpers_seconds_;
  }
  /// Simulations that have been started.
  [[nodiscard]] std::int64_t evaluations() const noexcept { return evaluations_; }

 private:
  std::int64_t step_devices_, steps_;
  std::int32_t threads_;
  std::function<void(std::int64_t, std::int64_t)> progress_;
  double cpu_start_, helpers_seconds_ = 0;
  std::int64_t evaluations_ = 0, devices_ = 0, done_ = 0;
};

}  // namespace slimpack::planners
