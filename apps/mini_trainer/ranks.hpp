// SPDX-License-Identifier: Apache-2.0
// The devices of a training run: threads of this process, or one process each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cpu_device.hpp"
#include "options.hpp"
#include "slimpack/core/error.hpp"
#include "slimpack/plan/cluster.hpp"
#include "slimpack/plan/measured_on.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/runtime/device_threads.hpp"
#include "slimpack/runtime/program.hpp"
#include "slimpack/runtime/run_step.hpp"
#include "slimpack/runtime/thread_system.hpp"
#include "slimpack_cpu/profile_cluster.hpp"
#include "steps.hpp"

#ifdef SLIMPACK_HAS_MPI
#include "slimpack_mpi/mpi_transport.hpp"
#include "slimpack_mpi/run_step.hpp"
#include "slimpack_mpi/session.hpp"
#endif

namespace slimpack::trainer {

/// All devices are here, each on a thread that stays on one core.
template <cpu::Mathematics Math>
class ThreadRanks {
 public:
  static constexpr bool kOneHere = false;
  using Device = CpuDevice<Math>;

  explicit ThreadRanks(std::size_t devices) : device_threads_(devices, options(devices)) {}

  [[nodiscard]] bool is_root() const noexcept { return true; }
  [[nodiscard]] std::size_t size() const noexcept { return device_threads_.size(); }
  /// Positions in `Plan::schedule` of the devices that are here.
  [[nodiscard]] std::size_t first() const noexcept { return 0; }
  [[nodiscard]] std::span<Device> local() noexcept { return devices_; }

  /// Calls work(device) for the devices that are here, in their order, wherever their memory is
  /// within reach.
  template <class Work>
  void each(const Work& work) {
    for (Device& device : devices_) work(device);
  }
  /// What planners are told of the ranks.
  [[nodiscard]] Cluster cluster(const Options& options, const ModelShape&) const {
    return cores_as_cluster(options, size());
  }
  /// What a calibration must have been measured on.
  [[nodiscard]] MeasuredDevice device() const { return cpu::measured_device(size()); }

  void make_devices(const Plan& plan, std::uint64_t seed, const cpu::AdamW& settings) {
    devices_.reserve(size());
    for (std::size_t device = 0; device < size(); ++device) {
      devices_.emplace_back(plan, device, seed, settings);
    }
  }
  [[nodiscard]] runtime::StepResult run(const Plan& plan, const runtime::Program& program,
                                        const runtime::StepData& data) {
    return runtime::run_step(device_threads_, plan, program, data, std::span(devices_));
  }
  /// Throws where ranks have different plans; threads of one process have the same.
  void check_same_plan(const Plan&) const noexcept {}
  /// Returns when every process has called it.
  void await_all() const noexcept {}
  /// The sum, and the largest, of what every process gives.
  [[nodiscard]] std::int64_t sum(std::int64_t here) const noexcept { return here; }
  [[nodiscard]] double most(double here) const noexcept { return here; }
  /// What every device has, on the root, in the order of devices.
  [[nodiscard]] std::vector<std::vector<UnitTime>> times() const {
    std::vector<std::vector<UnitTime>> all;
    for (const Device& device : devices_) all.push_back(device.times());
    return all;
  }

 private:
  [[nodiscard]] static runtime::DeviceThreadsOptions options(std::size_t devices) {
    runtime::DeviceThreadsOptions options;
    const std::vector<std::size_t> cores = runtime::allowed_cores();
    for (std::size_t device = 0; !cores.empty() && device < devices; ++device) {
      options.cores.push_back(cores[device % cores.size()]);
    }
    options.hang_timeouts = runtime::HangTimeouts{};
    return options;
  }

  runtime::DeviceThreads device_threads_;
  std::vector<Device> devices_;
};

#ifdef SLIMPACK_HAS_MPI
/// One device is here; the others are other processes.
template <cpu::Mathematics Math>
class MpiRanks {
 public:
  static constexpr bool kOneHere = true;
  using Device = CpuDevice<Math>;

  explicit MpiRanks(mpi::Session& session) : link_(session) {}

  [[nodiscard]] bool is_root() noexcept { return first() == 0; }
  [[nodiscard]] std::size_t size() noexcept { return link_.session().size(); }
  [[nodiscard]] std::size_t first() noexcept { return link_.session().rank(); }
  [[nodiscard]] std::span<Device> local() noexcept {
    return device_ ? std::span(&*device_, 1) : std::span<Device>{};
  }

  /// Calls work(device) for the device that is here.
  template <class Work>
  void each(const Work& work) {
    if (device_) work(*device_);
  }
  [[nodiscard]] Cluster cluster(const Options& options, const ModelShape&) {
    return cores_as_cluster(options, size());
  }
  /// What a calibration must have been measured on.
  [[nodiscard]] MeasuredDevice device() { return cpu::measured_device(size()); }

  void make_devices(const Plan& plan, std::uint64_t seed, const cpu::AdamW& settings) {
    device_.emplace(plan, first(), seed, settings);
  }
  [[nodiscard]] runtime::StepResult run(const Plan& plan, const runtime::Program& program,
                                        const runtime::StepData& data) {
    return mpi::run_step(link_, plan, program, data, *device_);
  }
  void check_same_plan(const Plan& plan) { mpi::check_same_plan(link_, plan); }
  void await_all() { static_cast<void>(sum(0)); }
  [[nodiscard]] std::int64_t sum(std::int64_t here) {
    std::int64_t total = 0;
    for (const std::int64_t each : everyone(here)) total += each;
    return total;
  }
  [[nodiscard]] double most(double here) {
    double largest = here;
    for (const double each : everyone(here)) largest = each > largest ? each : largest;
    return largest;
  }
  [[nodiscard]] std::vector<std::vector<UnitTime>> times() {
    std::vector<std::vector<UnitTime>> all;
    for (const auto& bytes : link_.engine().gather(std::as_bytes(std::span(device_->times())))) {
      all.push_back(values_of<UnitTime>(bytes));
    }
    return all;
  }

 private:
  template <class Value>
  [[nodiscard]] static std::vector<Value> values_of(std::span<const std::byte> bytes) {
    std::vector<Value> values(bytes.size() / sizeof(Value));
    if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  /// What every rank gives, on all of them.
  template <class Value>
  [[nodiscard]] std::vector<Value> everyone(const Value& here) {
    std::vector<std::byte> together;
    for (const auto& bytes : link_.engine().gather(std::as_bytes(std::span(&here, 1)))) {
      together.insert(together.end(), bytes.begin(), bytes.end());
    }
    return values_of<Value>(link_.engine().share(std::move(together)));
  }

  mpi::MpiTransport link_;
  std::optional<Device> device_;
};
#endif

}  // namespace slimpack::trainer
