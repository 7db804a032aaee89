// SPDX-License-Identifier: Apache-2.0
#include "cuda_ranks.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "slimpack/core/error.hpp"
#include "slimpack/cost/presets.hpp"
#include "slimpack/io/file.hpp"
#include "slimpack_cuda/gemm_choices_file.hpp"

namespace slimpack::trainer {
namespace {

/// GPUs that `ranks` ranks take turns on.
[[nodiscard]] std::size_t gpus_for(std::size_t ranks) {
  if (const auto why = cuda::why_no_device()) {
    throw std::runtime_error("--backend cuda: " + *why);
  }
  return std::min(ranks, static_cast<std::size_t>(cuda::device_count()));
}

/// Multiprocessors are given out in multiples of this on every device since 9.0, of less before.
constexpr int kMultiprocessorsAtOnce = 8;

/// Memory of a rank that no plan can have: CUDA's own, and at most what a rank holds for units of
/// so many rows beside what plans count.
[[nodiscard]] Bytes reserved_bytes(const ModelShape& model, Tokens rows, std::size_t ranks_a_gpu) {
  constexpr std::int64_t kContext = std::int64_t{512} << 20U;
  constexpr auto kTables = static_cast<std::int64_t>(2 * sizeof(cuda::RopeRow) + 16);
  return Bytes{kContext / static_cast<std::int64_t>(ranks_a_gpu) + cuda::kGemmWorkspaceBytes +
               4 * cuda::norm_workspace(model) + rows.value * (model.layers + 1) * kTables};
}

/// The name of the preset cluster of GPUs of this name, if there is one.
[[nodiscard]] std::optional<std::string> preset_of(const std::string& gpu) {
  constexpr std::array<std::pair<const char*, const char*>, 3> kPresets{
      {{"H200", "h200"}, {"A100", "a100"}, {"H100", "h100"}}};
  for (const auto& [part, preset] : kPresets) {
    if (gpu.find(part) != std::string::npos) return preset;
  }
  return std::nullopt;
}

/// What choices of algorithms hold for on the current GPU.
[[nodiscard]] cuda::GemmOrigin gemm_origin() {
  return {cuda::device_properties().name, cuda::gemm_library_version()};
}

[[nodiscard]] runtime::DeviceThreadsOptions device_threads_options() {
  runtime::DeviceThreadsOptions options;
  // Threads sleep while they wait for a device, and for each other when they allocate memory there.
  options.hang_timeouts = runtime::HangTimeouts{};
  options.hang_timeouts->silence = std::chrono::milliseconds(60'000);
  return options;
}

}  // namespace

std::string gemm_choices_text_of(const Options& options) {
  if (options.gemm_choices.empty()) return {};
  if (options.gemm_candidates == 1) return read_file(options.gemm_choices);
  check_writable(options.gemm_choices);
  return {};
}

std::unique_ptr<cuda::GemmChoices> gemm_choices(const Options& options, std::string_view text) {
  if (options.gemm_candidates > 1) {
    return std::make_unique<cuda::GemmChoices>(options.gemm_candidates);
  }
  if (options.gemm_choices.empty()) return nullptr;
  const cuda::GemmChoicesFile file =
      cuda::parse_gemm_choices(text, options.gemm_choices, gemm_origin());
  return std::make_unique<cuda::GemmChoices>(file.candidates, file.choices);
}

std::string chosen_text(const cuda::GemmChoices* choices) {
  if (choices == nullptr) return {};
  return cuda::gemm_choices_text({gemm_origin(), choices->candidates(), choices->made()});
}

void save_gemm_choices(const Options& options, std::span<const std::string> texts) {
  if (options.gemm_choices.empty() || options.gemm_candidates == 1) return;
  cuda::GemmChoices all(options.gemm_candidates);
  for (const std::string& text : texts) {
    for (const cuda::GemmChoice& choice :
         cuda::parse_gemm_choices(text, options.gemm_choices, gemm_origin()).choices) {
      all.keep(choice.multiprocessors, choice.key, choice.choice);
    }
  }
  write_file(options.gemm_choices, chosen_text(&all));
}

CudaThreadRanks::CudaThreadRanks(std::size_t ranks, std::unique_ptr<cuda::GemmChoices> gemm_choices)
    : gemm_choices_(std::move(gemm_choices)),
      gpus_(gpus_for(ranks)),
      device_threads_(ranks, device_threads_options()),
      devices_(ranks),
      streams_(ranks) {
  partitions_.resize(gpus_);
  for (std::size_t gpu = 0; gpu < gpus_; ++gpu) {
    const auto here = static_cast<int>((ranks - gpu + gpus_ - 1) / gpus_);
    if (here < 2) continue;
    cuda::set_device(static_cast<int>(gpu));
    const int all = cuda::device_properties().multiprocessors - kSpareMultiprocessors;
    const int each = all / here / kMultiprocessorsAtOnce * kMultiprocessorsAtOnce;
    if (each < kMultiprocessorsAtOnce) {
      throw std::runtime_error("--backend cuda: " + std::to_string(here) + " ranks on GPU " +
                               std::to_string(gpu) + " would have fewer than " +
                               std::to_string(kMultiprocessorsAtOnce) + " multiprocessors each");
    }
    partitions_[gpu] = cuda::split_device(here, each);
  }
  device_threads_.run([&](std::size_t rank) {
    const std::size_t gpu = rank % gpus_;
    cuda::set_device(static_cast<int>(gpu));
    for (std::size_t other = 0; other < gpus_; ++other) {
      if (other != gpu) cuda::reach_memory_of(static_cast<int>(other));
    }
    if (!partitions_[gpu].empty()) partitions_[gpu][rank / gpus_].make_current();
  });
}

CudaThreadRanks::~CudaThreadRanks() {
  device_threads_.run([&](std::size_t rank) {
    streams_[rank].reset();
    devices_[rank] = Device();
  });
}

void CudaThreadRanks::on_thread(std::size_t rank, const std::function<void()>& work) {
  device_threads_.run([&](std::size_t device) {
    if (device != rank) return;
    try {
      work();
    } catch (const cuda::CudaError& error) {
      throw std::runtime_error("rank " + std::to_string(rank) + ", on GPU " +
                               std::to_string(rank % gpus_) + ": " + error.what());
    }
  });
}

cuda::RankOptions CudaThreadRanks::rank_options(std::size_t rank) const {
  cuda::RankOptions options;
  const auto& parts = partitions_[rank % gpus_];
  if (!parts.empty()) options.multiprocessors = parts[rank / gpus_].multiprocessors();
  options.gemm_choices = gemm_choices_.get();
  return options;
}

Cluster CudaThreadRanks::cluster(const Options& options, const ModelShape& model) {
  return gpu_as_cluster(options, model, size(), ranks_a_gpu());
}

void CudaThreadRanks::make_devices(const Plan& plan, std::uint64_t seed,
                                   const cuda::AdamW& settings) {
  for (std::size_t rank = 0; rank < size(); ++rank) {
    on_thread(rank, [&] {
      devices_[rank] = Device(plan, rank, seed, settings, rank_options(rank));
      streams_[rank] = std::make_unique<cuda::RankStreams>(devices_[rank].stream());
    });
  }
}

runtime::StepResult CudaThreadRanks::run(const Plan& plan, const runtime::Program& program,
                                         const runtime::StepData& data) {
  return runtime::run_step_with<cuda::StreamTransport>(
      device_threads_, plan, program, data, std::span(devices_),
      [this](cuda::StreamRendezvous& rendezvous, std::size_t rank) {
        return cuda::StreamTransport(rendezvous, rank, cuda::StreamMover(*streams_[rank]));
      });
}

std::vector<std::vector<UnitTime>> CudaThreadRanks::times() const {
  std::vector<std::vector<UnitTime>> all;
  for (const Device& device : devices_) all.push_back(device.times());
  return all;
}

std::string CudaDevice::describe(const Plan& plan) {
  std::int64_t page = plan.memory.page_tokens.value;
  for (const auto& group : plan.groups) {
    if (group.size() > 1) page = std::gcd(page, plan.memory.cp_block_tokens.value);
  }
  const ModelShape part = runtime::part_of(plan.model, plan.parallel.tp);
  const cuda::AttentionShape shape{
      static_cast<std::int32_t>(part.heads), static_cast<std::int32_t>(part.kv_heads),
      static_cast<std::int32_t>(part.head_dim), static_cast<std::int32_t>(page)};
  const cuda::DeviceProperties gpu = cuda::device_properties();
  switch (cuda::best_path(shape, gpu.major, gpu.minor)) {
    case cuda::AttentionPath::wgmma:
      return ", attention on wgmma";
    case cuda::AttentionPath::mma:
      return ", attention on mma";
    case cuda::AttentionPath::plain:
      break;
  }
  return ", attention plain";
}

Cluster gpu_as_cluster(const Options& options, const ModelShape& model, std::size_t devices,
                       std::size_t ranks_a_gpu) {
  const cuda::DeviceProperties gpu = cuda::device_properties();
  Cluster cluster = *cluster_preset(preset_of(gpu.name).value_or("h100"));
  const auto ranks = static_cast<double>(ranks_a_gpu);
  cluster.name = gpu.name;
  if (ranks_a_gpu > 1) {
    for (double* rate :
         {&cluster.peak_flops, &cluster.matrix_flops, &cluster.attention_forward_flops,
          &cluster.attention_backward_flops, &cluster.memory_bytes_per_s}) {
      *rate /= ranks;
    }
    // Between ranks of one GPU bytes are read and written in the same memory.
    cluster.inside.bytes_per_s = cluster.memory_bytes_per_s / 2;
    cluster.devices_per_node = static_cast<std::int64_t>(devices);
  }
  // A cost that was fitted to units with collectives holds only what these do not hide.
  if (!options.cost.empty()) cluster.small.tp_overlap = 0;
  cluster.memory =
      options.memory.value_or(Bytes{gpu.memory / static_cast<std::int64_t>(ranks_a_gpu)});
  cluster.reserved =
      std::min(cluster.memory, reserved_bytes(model, options.batch_tokens, ranks_a_gpu));
  return cluster;
}

MeasuredDevice gpu_as_device(std::size_t devices, std::size_t ranks_a_gpu) {
  const std::string gpu = cuda::device_properties().name;
  const auto ranks = static_cast<std::int64_t>(devices);
  if (ranks_a_gpu == 1) return {gpu, preset_of(gpu).value_or(gpu), ranks};
  const std::string part = gpu + ", one of " + std::to_string(ranks_a_gpu) + " equal parts";
  return {part, part, ranks};
}

}  // namespace slimpack::trainer
