// SPDX-License-Identifier: Apache-2.0
// A rank on a GPU of its own; the others are other processes, on this machine and on others.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cuda_device.hpp"
#include "options.hpp"
#include "slimpack/plan/cluster.hpp"
#include "slimpack/plan/measured_on.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/runtime/program.hpp"
#include "slimpack/runtime/run_step.hpp"
#include "slimpack_cuda/nccl/api.hpp"
#include "slimpack_cuda/nccl/control.hpp"
#include "slimpack_cuda/nccl/nccl_transport.hpp"
#include "slimpack_cuda/nccl/run_step.hpp"
#include "slimpack_processes/session.hpp"
#include "slimpack_processes/together.hpp"
#include "unit_time.hpp"

namespace slimpack::trainer {

/// Chooses the GPU of this rank among those that it sees: the one of its number among the machine's
/// ranks, or the only one where the launcher shows each rank its own (CUDA_VISIBLE_DEVICES). All
/// ranks call it. Throws std::runtime_error with a sentence where there is no GPU, where there are
/// fewer than ranks, and where two ranks would share one.
void choose_gpu(processes::Session& session);

class NcclRanks {
 public:
  using Device = CudaDevice;

  /// Each rank times candidates for itself, where any are; choices of a file are those that rank 0
  /// has read, for all.
  NcclRanks(processes::Session& session, const Options& options)
      : session_(session), control_(session), api_(cuda::nccl::make_nccl()) {
    choose_gpu(session);
    const std::string mine_read = is_root() ? gemm_choices_text_of(options) : std::string();
    const auto read = session.share(processes::bytes_of(std::span<const char>(mine_read)));
    gemm_choices_ =
        gemm_choices(options, {reinterpret_cast<const char*>(read.data()), read.size()});
    const Bytes mine = cuda::nccl::communicator_bytes(*api_, control_, size());
    const auto all = processes::everyone(session_, mine.value);
    communicator_bytes_ = *std::max_element(all.begin(), all.end());
  }
  NcclRanks(const NcclRanks&) = delete;
  NcclRanks& operator=(const NcclRanks&) = delete;
  /// Gives up the link where an exception ends the rank: the other ranks do not come to end
  /// communicators with it.
  ~NcclRanks() {
    if (link_ != nullptr && std::uncaught_exceptions() > exceptions_) link_->give_up();
  }

  [[nodiscard]] bool is_root() const noexcept { return first() == 0; }
  [[nodiscard]] std::size_t size() const noexcept { return session_.size(); }
  [[nodiscard]] std::size_t first() const noexcept { return session_.rank(); }
  [[nodiscard]] std::size_t here() const noexcept { return 1; }
  [[nodiscard]] std::span<Device> local() noexcept {
    return device_ ? std::span(&*device_, 1) : std::span<Device>{};
  }

  template <class Work>
  void each(const Work& work) {
    if (device_) work(*device_);
  }
  [[nodiscard]] Cluster cluster(const Options& options, const ModelShape& model) const {
    Cluster cluster = gpu_as_cluster(options, model, size(), 1);
    // What NCCL takes cannot be had for buffers.
    const std::int32_t tp = options.tp, stages = static_cast<std::int32_t>(size()) / tp;
    const std::int32_t pp = options.pp.value_or(options.dp ? stages / *options.dp : 1);
    const std::int64_t communicators =
        cuda::nccl::most_communicators(options.dp.value_or(stages / pp), pp, tp);
    cluster.reserved = std::min(
        cluster.memory, Bytes{cluster.reserved.value + communicators * communicator_bytes_});
    cluster.devices_per_node =
        std::count(session_.hosts().begin(), session_.hosts().end(), session_.hosts().front());
    return cluster;
  }
  /// What a calibration must have been measured on.
  [[nodiscard]] MeasuredDevice device() const { return gpu_as_device(size(), 1); }

  void make_devices(const Plan& plan, std::uint64_t seed, const cuda::AdamW& settings) {
    cuda::RankOptions rank_options;
    rank_options.gemm_choices = gemm_choices_.get();
    device_.emplace(plan, first(), seed, settings, rank_options);
    cuda::nccl::NcclOptions options;
    options.device = cuda::RankOptions{}.hang_timeouts;
    link_ =
        std::make_unique<cuda::nccl::NcclTransport>(*api_, control_, device_->stream(), options);
  }
  [[nodiscard]] runtime::StepResult run(const Plan& plan, const runtime::Program& program,
                                        const runtime::StepData& data) {
    return cuda::nccl::run_step(*link_, session_, plan, program, data, *device_);
  }
  /// Writes what all ranks have chosen, where that is asked for; all of them call it.
  void save_choices(const Options& options) {
    const std::string mine = chosen_text(gemm_choices_.get());
    std::vector<std::string> all;
    for (const auto& bytes : session_.gather(std::as_bytes(std::span(mine)))) {
      all.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    }
    if (is_root()) save_gemm_choices(options, all);
  }
  void check_same_plan(const Plan& plan) { processes::check_same_plan(session_, plan); }
  void await_all() { session_.pass(); }
  [[nodiscard]] std::int64_t sum(std::int64_t here) {
    std::int64_t total = 0;
    for (const std::int64_t each : processes::everyone(session_, here)) total += each;
    return total;
  }
  [[nodiscard]] double most(double here) {
    const auto all = processes::everyone(session_, here);
    return *std::max_element(all.begin(), all.end());
  }
  [[nodiscard]] std::vector<std::vector<UnitTime>> times() {
    std::vector<std::vector<UnitTime>> all;
    for (const auto& bytes : session_.gather(std::as_bytes(std::span(device_->times())))) {
      std::vector<UnitTime>& times = all.emplace_back(bytes.size() / sizeof(UnitTime));
      if (!times.empty()) std::memcpy(times.data(), bytes.data(), bytes.size());
    }
    return all;
  }

 private:
  processes::Session& session_;
  cuda::nccl::SessionControl control_;
  int exceptions_ = std::uncaught_exceptions();
  std::unique_ptr<cuda::nccl::NcclApi> api_;
  std::int64_t communicator_bytes_ = 0;  ///< of one, the most of all ranks
  std::unique_ptr<cuda::GemmChoices> gemm_choices_;
  std::optional<Device> device_;
  std::unique_ptr<cuda::nccl::NcclTransport> link_;  ///< ends before its device and NCCL
};

}  // namespace slimpack::trainer
