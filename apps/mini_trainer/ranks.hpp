// SPDX-License-Identifier: Apache-2.0
// The devices of a training run: threads of this process, or one process each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "cpu_device.hpp"
#include "options.hpp"
#include "slimpack/core/error.hpp"
#include "slimpack/plan/cluster.hpp"
#include "slimpack/plan/measured_on.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/runtime/any_transport.hpp"
#include "slimpack/runtime/device_threads.hpp"
#include "slimpack/runtime/program.hpp"
#include "slimpack/runtime/run_step.hpp"
#include "slimpack/runtime/thread_system.hpp"
#include "slimpack/runtime/thread_transport.hpp"
#include "slimpack_cpu/profile_cluster.hpp"
#include "steps.hpp"

#ifdef SLIMPACK_HAS_MPI
#include "slimpack_mpi/mpi_transport.hpp"
#include "slimpack_mpi/run_step.hpp"
#include "slimpack_mpi/session.hpp"
#endif

namespace slimpack::trainer {

/// Ranks on cores. What they have in common is here, how they are joined in a class of its own
/// each, so that a training run is compiled once for all of them.
template <cpu::Mathematics Math>
class CpuRanks {
 public:
  using Device = CpuDevice<Math>;

  CpuRanks() = default;
  CpuRanks(const CpuRanks&) = delete;
  CpuRanks& operator=(const CpuRanks&) = delete;
  virtual ~CpuRanks() = default;

  [[nodiscard]] bool is_root() { return first() == 0; }
  [[nodiscard]] virtual std::size_t size() = 0;
  /// Number of the first device that is here (`device_number`), and how many are.
  [[nodiscard]] virtual std::size_t first() = 0;
  [[nodiscard]] virtual std::size_t here() = 0;
  [[nodiscard]] std::span<Device> local() noexcept { return devices_; }

  /// Calls work(device) for the devices that are here, in their order, wherever their memory is
  /// within reach.
  template <class Work>
  void each(const Work& work) {
    for (Device& device : devices_) work(device);
  }
  /// What planners are told of the ranks.
  [[nodiscard]] Cluster cluster(const Options& options, const ModelShape&) {
    return cores_as_cluster(options, size());
  }
  /// What a calibration must have been measured on.
  [[nodiscard]] MeasuredDevice device() { return cpu::measured_device(size()); }

  void make_devices(const Plan& plan, std::uint64_t seed, const cpu::AdamW& settings) {
    devices_.reserve(here());
    for (std::size_t device = 0; device < here(); ++device) {
      devices_.emplace_back(plan, first() + device, seed, settings);
    }
  }
  [[nodiscard]] virtual runtime::StepResult run(const Plan& plan, const runtime::Program& program,
                                                const runtime::StepData& data) = 0;
  /// Throws where ranks have different plans.
  virtual void check_same_plan(const Plan& plan) = 0;
  /// Returns when every process has called it.
  virtual void await_all() = 0;
  /// The sum, and the largest, of what every process gives.
  [[nodiscard]] virtual std::int64_t sum(std::int64_t own) = 0;
  [[nodiscard]] virtual double most(double own) = 0;
  /// What every device has, on the root, in the order of devices.
  [[nodiscard]] virtual std::vector<std::vector<UnitTime>> times() = 0;

 private:
  std::vector<Device> devices_;
};

/// All devices are here, each on a thread that stays on one core.
template <cpu::Mathematics Math>
class ThreadRanks final : public CpuRanks<Math> {
 public:
  explicit ThreadRanks(std::size_t devices) : device_threads_(devices, options(devices)) {}

  [[nodiscard]] std::size_t size() override { return device_threads_.size(); }
  [[nodiscard]] std::size_t first() override { return 0; }
  [[nodiscard]] std::size_t here() override { return size(); }

  [[nodiscard]] runtime::StepResult run(const Plan& plan, const runtime::Program& program,
                                        const runtime::StepData& data) override {
    return runtime::run_step_with<runtime::AnyTransport, runtime::Rendezvous>(
        device_threads_, plan, program, data, this->local(),
        [](runtime::Rendezvous& rendezvous, std::size_t device) {
          return runtime::ErasedTransport(runtime::ThreadTransport(rendezvous, device));
        });
  }
  void check_same_plan(const Plan&) override {}  // threads of one process have the same
  void await_all() override {}
  [[nodiscard]] std::int64_t sum(std::int64_t own) override { return own; }
  [[nodiscard]] double most(double own) override { return own; }
  [[nodiscard]] std::vector<std::vector<UnitTime>> times() override {
    std::vector<std::vector<UnitTime>> all;
    for (const auto& device : this->local()) all.push_back(device.times());
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
};

#ifdef SLIMPACK_HAS_MPI
/// One device is here; the others are other processes.
template <cpu::Mathematics Math>
class MpiRanks final : public CpuRanks<Math> {
 public:
  explicit MpiRanks(mpi::Session& session) : link_(session), through_(link_) {}

  [[nodiscard]] std::size_t size() override { return link_.session().size(); }
  [[nodiscard]] std::size_t first() override { return link_.session().rank(); }
  [[nodiscard]] std::size_t here() override { return 1; }

  [[nodiscard]] runtime::StepResult run(const Plan& plan, const runtime::Program& program,
                                        const runtime::StepData& data) override {
    return mpi::run_step_through<runtime::AnyTransport>(through_, link_, plan, program, data,
                                                        this->local().front());
  }
  void check_same_plan(const Plan& plan) override { mpi::check_same_plan(link_, plan); }
  void await_all() override { static_cast<void>(sum(0)); }
  [[nodiscard]] std::int64_t sum(std::int64_t own) override {
    std::int64_t total = 0;
    for (const std::int64_t each : everyone(own)) total += each;
    return total;
  }
  [[nodiscard]] double most(double own) override {
    double largest = own;
    for (const double each : everyone(own)) largest = each > largest ? each : largest;
    return largest;
  }
  [[nodiscard]] std::vector<std::vector<UnitTime>> times() override {
    const std::vector<UnitTime>& own = this->local().front().times();
    std::vector<std::vector<UnitTime>> all;
    for (const auto& bytes : link_.engine().gather(std::as_bytes(std::span(own)))) {
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
  [[nodiscard]] std::vector<Value> everyone(const Value& own) {
    std::vector<std::byte> together;
    for (const auto& bytes : link_.engine().gather(std::as_bytes(std::span(&own, 1)))) {
      together.insert(together.end(), bytes.begin(), bytes.end());
    }
    return values_of<Value>(link_.engine().share(std::move(together)));
  }

  mpi::MpiTransport link_;
  runtime::ErasedTransport<mpi::MpiTransport&> through_;
};
#endif

}  // namespace slimpack::trainer
