// SPDX-License-Identifier: Apache-2.0
// The cluster that cores of one machine make for planners, and what it is measured to be.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/plan/cluster.hpp"
#include "slimpack/plan/measured_on.hpp"
#include "slimpack/runtime/thread_system.hpp"
#include "slimpack_cpu/profile.hpp"

namespace slimpack::cpu {

/// The name of the cluster that this machine's cores make for planners.
inline constexpr const char* kCpuCluster = "cpu";

/// This machine's processor as /proc/cpuinfo calls it, and how many of its hardware threads this
/// process may run on: "NAME, N threads". Where the system does not tell, NAME is "a processor".
[[nodiscard]] inline std::string processor_name() {
  std::string name = "a processor";
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("model name")) continue;
    const std::size_t begin = line.find_first_not_of(" \t", line.find(':') + 1);
    if (begin == std::string::npos) continue;
    name = line.substr(begin, line.find_last_not_of(" \t") + 1 - begin);
    break;
  }
  const std::size_t allowed = runtime::allowed_cores().size();
  const std::size_t threads = allowed > 0 ? allowed : std::thread::hardware_concurrency();
  return name + ", " + std::to_string(threads) + (threads == 1 ? " thread" : " threads");
}

/// What a profile of `ranks` ranks on this machine's cores is measured on.
[[nodiscard]] inline MeasuredDevice measured_device(std::size_t ranks) {
  return {processor_name(), kCpuCluster, static_cast<std::int64_t>(ranks)};
}

/// `devices` equal cores of one machine with `memory` bytes each. The rates are constants of a
/// server core with AVX-512 in fp32 (bench_cpu), so that every rank of every run plans alike with
/// no measurement; where a cost has been fitted, they serve only what no profile measures: work
/// repeated under `light` recomputation, gathers of saved tensors and MFU. Attention fills no
/// tiles. Throws InvalidInput unless devices >= 1 and memory > 0.
[[nodiscard]] inline Cluster cpu_cluster(std::int64_t devices, Bytes memory) {
  require(devices >= 1, "cpu_cluster: devices must be >= 1", devices);
  require(memory > Bytes{}, "cpu_cluster: memory must be > 0", memory.value);
  Cluster cluster;
  cluster.name = kCpuCluster;
  cluster.devices_per_node = devices;
  cluster.memory = memory;
  cluster.peak_flops = 160e9;
  cluster.matrix_flops = 150e9;
  cluster.attention_forward_flops = 95e9;
  cluster.attention_backward_flops = 115e9;
  cluster.memory_bytes_per_s = 12e9;
  cluster.inside = cluster.between = {4e9, 30e-6};
  cluster.kernel_s = 5e-6;
  cluster.segment_s = 15e-6;
  cluster.tile_tokens = 1;
  return cluster;
}

/// Options of a profile that is as long as a command line lets a user wait: `ranks` threads, each
/// on a core of its own where there are as many.
[[nodiscard]] inline ProfileOptions profile_options(std::size_t ranks, Tokens context) {
  ProfileOptions options;
  options.ranks = ranks;
  options.context = context;
  const std::vector<std::size_t> cores = runtime::allowed_cores();
  if (cores.size() >= ranks) {
    options.cores.assign(cores.begin(), cores.begin() + static_cast<std::ptrdiff_t>(ranks));
  }
  return options;
}

/// The same for a rough profile of a small model in under three seconds.
[[nodiscard]] inline ProfileOptions quick_profile_options(std::size_t ranks, Tokens context) {
  ProfileOptions options = profile_options(ranks, context);
  options.quick = true;
  options.rounds = 3;
  options.budget = std::chrono::milliseconds(2000);
  return options;
}

}  // namespace slimpack::cpu
