// SPDX-License-Identifier: Apache-2.0
// Ranks on GPUs that are threads of this process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cuda_device.hpp"
#include "slimpack/plan/measured_on.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/runtime/device_threads.hpp"
#include "slimpack/runtime/program.hpp"
#include "slimpack/runtime/run_step.hpp"
#include "slimpack_cuda/device.hpp"
#include "slimpack_cuda/stream_transport.hpp"

namespace slimpack::trainer {

/// Multiprocessors of a GPU that stay idle where several ranks share it.
inline constexpr int kSpareMultiprocessors = 4;

/// All ranks are here, each on a thread of its own: rank r on GPU r modulo the number of GPUs.
/// Ranks of one GPU get equal, disjoint parts of its multiprocessors.
class CudaThreadRanks {
 public:
  using Device = CudaDevice;

  /// Algorithms of products are those of `gemm_choices`, one for all ranks, or the first ones.
  /// Throws std::runtime_error with a sentence where there is no GPU, CudaError where one cannot be
  /// divided.
  explicit CudaThreadRanks(std::size_t ranks,
                           std::unique_ptr<cuda::GemmChoices> gemm_choices = nullptr);
  CudaThreadRanks(const CudaThreadRanks&) = delete;
  CudaThreadRanks& operator=(const CudaThreadRanks&) = delete;
  ~CudaThreadRanks();

  [[nodiscard]] bool is_root() const noexcept { return true; }
  [[nodiscard]] std::size_t size() const noexcept { return device_threads_.size(); }
  [[nodiscard]] std::size_t first() const noexcept { return 0; }
  [[nodiscard]] std::size_t here() const noexcept { return size(); }
  [[nodiscard]] std::span<Device> local() noexcept { return devices_; }
  [[nodiscard]] std::size_t ranks_a_gpu() const noexcept { return (size() + gpus_ - 1) / gpus_; }
  [[nodiscard]] runtime::DeviceThreads& device_threads() noexcept { return device_threads_; }

  /// Calls work(device) for all devices in their order, on their threads. What it throws names the
  /// rank and its GPU.
  template <class Work>
  void each(const Work& work) {
    for (std::size_t rank = 0; rank < size(); ++rank) {
      on_thread(rank, [&] { work(devices_[rank]); });
    }
  }
  [[nodiscard]] Cluster cluster(const Options& options, const ModelShape& model);
  /// What a calibration must have been measured on.
  [[nodiscard]] MeasuredDevice device() const { return gpu_as_device(size(), ranks_a_gpu()); }

  void make_devices(const Plan& plan, std::uint64_t seed, const cuda::AdamW& settings);
  [[nodiscard]] runtime::StepResult run(const Plan& plan, const runtime::Program& program,
                                        const runtime::StepData& data);
  void check_same_plan(const Plan&) const noexcept {}
  void await_all() const noexcept {}
  [[nodiscard]] std::int64_t sum(std::int64_t here) const noexcept { return here; }
  [[nodiscard]] double most(double here) const noexcept { return here; }
  [[nodiscard]] std::vector<std::vector<UnitTime>> times() const;

  /// What all ranks choose algorithms of products with; null where they take the first.
  [[nodiscard]] const cuda::GemmChoices* gemm_choices() const noexcept {
    return gemm_choices_.get();
  }
  /// How RankDevice is to be made for a rank.
  [[nodiscard]] cuda::RankOptions rank_options(std::size_t rank) const;

 private:
  /// Calls work() on the thread of the rank.
  void on_thread(std::size_t rank, const std::function<void()>& work);

  /// On GPUs of one kind; ranks with parts of other sizes choose apart.
  std::unique_ptr<cuda::GemmChoices> gemm_choices_;
  std::size_t gpus_ = 1;
  std::vector<std::vector<cuda::Partition>> partitions_;  ///< by GPU; none where it has one rank
  runtime::DeviceThreads device_threads_;
  std::vector<Device> devices_;
  std::vector<std::unique_ptr<cuda::RankStreams>> streams_;
};

}  // namespace slimpack::trainer
