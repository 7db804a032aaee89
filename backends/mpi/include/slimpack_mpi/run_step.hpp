// SPDX-License-Identifier: Apache-2.0
// One training step of a plan with a process for each device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/exec/executor.hpp"
#include "slimpack/exec/program.hpp"
#include "slimpack/exec/run_step.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/plan/plan_hash.hpp"
#include "slimpack_mpi/mpi_transport.hpp"

namespace slimpack::mpi {

namespace detail {

/// Numbers as bytes, one after the other.
class Packed {
 public:
  Packed() = default;
  explicit Packed(std::vector<std::byte> bytes) : bytes_(std::move(bytes)) {}
  template <class Value>
  requires std::is_trivially_copyable_v<Value>
  void put(const Value& value) {
    const auto bytes = std::as_bytes(std::span(&value, 1));
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  void put(const std::vector<double>& values) {
    put(std::uint64_t{values.size()});
    const auto bytes = std::as_bytes(std::span(values));
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  template <class Value>
  requires std::is_trivially_copyable_v<Value>
  void get(Value& value) {
    std::memcpy(&value, bytes_.data() + at_, sizeof(value));
    at_ += sizeof(value);
  }
  void get(std::vector<double>& values) {
    std::uint64_t size = 0;
    get(size);
    values.resize(size);
    if (size > 0) std::memcpy(values.data(), bytes_.data() + at_, size * sizeof(double));
    at_ += size * sizeof(double);
  }
  [[nodiscard]] const std::vector<std::byte>& bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
  std::size_t at_ = 0;
};

inline std::vector<std::byte> pack(const exec::DeviceResult& result) {
  Packed packed;
  packed.put(result.held);
  packed.put(result.peak);
  packed.put(std::uint64_t{result.losses.size()});
  for (const exec::TokenLosses& part : result.losses) {
    packed.put(part.sample);
    packed.put(part.begin);
    packed.put(part.values);
  }
  return packed.take();
}

inline exec::DeviceResult unpack_device(std::vector<std::byte> bytes) {
  Packed packed(std::move(bytes));
  exec::DeviceResult result;
  std::uint64_t parts = 0;
  packed.get(result.held);
  packed.get(result.peak);
  packed.get(parts);
  result.losses.resize(parts);
  for (exec::TokenLosses& part : result.losses) {
    packed.get(part.sample);
    packed.get(part.begin);
    packed.get(part.values);
  }
  return result;
}

inline std::vector<std::byte> pack(const exec::StepResult& result) {
  Packed packed;
  packed.put(result.loss);
  packed.put(result.sample_loss);
  packed.put(std::uint64_t{result.peak.size()});
  for (const Bytes peak : result.peak) packed.put(peak);
  return packed.take();
}

inline exec::StepResult unpack_step(std::vector<std::byte> bytes) {
  Packed packed(std::move(bytes));
  exec::StepResult result;
  std::uint64_t devices = 0;
  packed.get(result.loss);
  packed.get(result.sample_loss);
  packed.get(devices);
  result.peak.resize(devices);
  for (Bytes& peak : result.peak) packed.get(peak);
  return result;
}

/// The rank's device of the plan, for sentences.
inline std::string device_of(const Plan& plan, std::size_t rank) {
  const auto stages = static_cast<std::size_t>(plan.parallel.pp);
  return "device (dp " + std::to_string(rank / stages) + ", pp " + std::to_string(rank % stages) +
         ")";
}

}  // namespace detail

/// All ranks together: throws InvalidInput on every rank unless all have a plan of one hash, naming
/// the ranks whose hash is not rank 0's.
inline void check_same_plan(MpiTransport& link, const Plan& plan) {
  const PlanHash mine = plan_hash(plan);
  std::string differing;
  const auto all = link.engine().gather(std::as_bytes(std::span(&mine, 1)));
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    PlanHash hash;
    std::memcpy(&hash, all[rank].data(), sizeof(hash));
    if (hash == mine) continue;
    differing += (differing.empty() ? "rank " : ", rank ") + std::to_string(rank) + ", " +
                 detail::device_of(plan, rank) + ", has " + to_string(hash);
  }
  const auto said = link.engine().share(
      {std::as_bytes(std::span(differing)).begin(), std::as_bytes(std::span(differing)).end()});
  if (said.empty()) return;
  const std::string text(reinterpret_cast<const char*>(said.data()), said.size());
  const auto root = link.engine().share(
      {std::as_bytes(std::span(&mine, 1)).begin(), std::as_bytes(std::span(&mine, 1)).end()});
  PlanHash expected;
  std::memcpy(&expected, root.data(), sizeof(expected));
  throw InvalidInput("ranks must run one plan, whose hash is " + to_string(expected) +
                     " on rank 0, but " + text);
}

/// Runs one step on this rank's backend, with all other ranks; device and rank are one number.
/// Every rank gets the same result, with the bits of exec::run_step: losses of all devices are
/// summed on rank 0 in the order of samples and tokens. Throws as that one, and Aborted with the
/// first cause if another rank has failed, was killed or stopped. Does not compare plans
/// (`check_same_plan`).
template <class Device>
requires exec::Backend<Device, MpiTransport>
[[nodiscard]] exec::StepResult run_step(MpiTransport& link, const Plan& plan,
                                        const exec::Program& program, const exec::StepData& data,
                                        Device& backend,
                                        const exec::MemoryObserver& observer = {}) {
  exec::check_data(plan, data);
  const std::size_t rank = link.session().rank();
  require(link.session().size() == program.devices.size(),
          "run_step: ranks must be one a device of the plan",
          static_cast<std::int64_t>(link.session().size()));
  link.begin_step(plan.parallel.pp, plan.window);
  exec::DeviceRun<Device, MpiTransport> run(plan, program, data, rank, backend, link, observer);
  const exec::DeviceResult mine = run.run();
  link.end_step(detail::device_of(plan, rank) + ", between steps");
  std::vector<exec::DeviceResult> all;
  for (auto& bytes : link.engine().gather(detail::pack(mine))) {
    all.push_back(detail::unpack_device(std::move(bytes)));
  }
  return detail::unpack_step(link.engine().share(
      rank == 0 ? detail::pack(exec::step_result(plan, all)) : std::vector<std::byte>{}));
}

}  // namespace slimpack::mpi
