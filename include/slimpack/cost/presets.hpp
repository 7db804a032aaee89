// SPDX-License-Identifier: Apache-2.0
// The models and clusters that are compiled in.
#pragma once

#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/plan/cluster.hpp"
#include "slimpack/plan/model.hpp"

namespace slimpack {

/// Llama-style shapes in bf16 with an RMSNorm epsilon of 1e-5. `tiny` reads bytes and an
/// end-of-document token; `llama-150b` is a shape of about 150B weights of no published model.
[[nodiscard]] inline std::vector<ModelShape> model_presets() {
  // name, layers, hidden, heads, kv heads, head dim, ffn, vocab, tied, rope theta, eps, bytes
  return {
      {"llama-7b", 32, 4096, 32, 32, 128, 11008, 32000, false, 1e4, 1e-5, 2},
      {"llama-13b", 40, 5120, 40, 40, 128, 13824, 32000, false, 1e4, 1e-5, 2},
      {"llama-34b", 48, 8192, 64, 8, 128, 22016, 32000, false, 1e6, 1e-5, 2},
      {"llama-70b", 80, 8192, 64, 8, 128, 28672, 32000, false, 1e4, 1e-5, 2},
      {"llama-150b", 96, 12288, 96, 8, 128, 32768, 32000, false, 1e4, 1e-5, 2},
      {"llama3-8b", 32, 4096, 32, 8, 128, 14336, 128256, false, 5e5, 1e-5, 2},
      {"llama3-70b", 80, 8192, 64, 8, 128, 28672, 128256, false, 5e5, 1e-5, 2},
      {"llama3-405b", 126, 16384, 128, 8, 128, 53248, 128256, false, 5e5, 1e-5, 2},
      {"llama-1b", 16, 2048, 32, 8, 64, 8192, 128256, true, 5e5, 1e-5, 2},
      {"tiny", 4, 128, 4, 2, 32, 384, 257, false, 1e4, 1e-5, 2},
  };
}

namespace detail {
[[nodiscard]] inline Cluster preset_cluster(std::string_view name, Bytes memory, Bytes reserved) {
  Cluster cluster;
  cluster.name = name;
  cluster.devices_per_node = 8;
  cluster.memory = memory;
  cluster.reserved = reserved;
  cluster.kernel_s = 4e-6;
  cluster.segment_s = 0.5e-6;
  cluster.tile_tokens = 128;
  cluster.forward_kernels = 10;
  cluster.backward_kernels = 20;
  cluster.head_kernels = 10;
  cluster.embedding_kernels = 2;
  cluster.small.matrix_tile_rows = 128;
  cluster.small.weight_traffic = 1;
  cluster.small.accumulator_traffic = 1;
  cluster.small.prefix_traffic = 1;
  cluster.small.memory_overlap = 0.75;
  cluster.small.tp_overlap = 0.5;
  cluster.small.collective_compute = 0.15;
  cluster.small.shared_links = true;
  return cluster;
}
}  // namespace detail

/// Nodes of 8 devices, rates from public measurements rounded to the careful side.
[[nodiscard]] inline std::vector<Cluster> cluster_presets() {
  Cluster a100 = detail::preset_cluster("a100", Bytes{85'100'000'000}, Bytes{5'000'000'000});
  a100.peak_flops = 312e12;
  a100.matrix_flops = 250e12;
  a100.attention_forward_flops = 190e12;
  a100.attention_backward_flops = 160e12;
  a100.memory_bytes_per_s = 1.7e12;
  a100.inside = {240e9, 6e-6};
  a100.between = {22e9, 1e-5};
  a100.small.head_dims = {{64, 0.88, 0.9}, {128, 1, 1}};

  Cluster h100 = detail::preset_cluster("h100", Bytes{85'500'000'000}, Bytes{6'000'000'000});
  h100.peak_flops = 989e12;
  h100.matrix_flops = 620e12;
  h100.attention_forward_flops = 500e12;
  h100.attention_backward_flops = 400e12;
  h100.memory_bytes_per_s = 2.9e12;
  h100.inside = {360e9, 6e-6};
  h100.between = {45e9, 1e-5};
  h100.small.head_dims = {{64, 0.77, 0.84}, {128, 1, 1}};

  Cluster h200 = detail::preset_cluster("h200", Bytes{150'700'000'000}, Bytes{7'000'000'000});
  h200.peak_flops = 989e12;
  h200.matrix_flops = 650e12;
  h200.attention_forward_flops = 550e12;
  h200.attention_backward_flops = 440e12;
  h200.memory_bytes_per_s = 4.2e12;
  h200.inside = {360e9, 6e-6};
  h200.between = {45e9, 1e-5};
  h200.small.head_dims = {{64, 0.77, 0.84}, {128, 1, 1}};
  return {std::move(a100), std::move(h100), std::move(h200)};
}

/// The preset of that name, if there is one.
[[nodiscard]] inline std::optional<ModelShape> model_preset(std::string_view name) {
  for (ModelShape& model : model_presets()) {
    if (model.name == name) return std::move(model);
  }
  return std::nullopt;
}

/// The preset of that name, if there is one.
[[nodiscard]] inline std::optional<Cluster> cluster_preset(std::string_view name) {
  for (Cluster& cluster : cluster_presets()) {
    if (cluster.name == name) return std::move(cluster);
  }
  return std::nullopt;
}

}  // namespace slimpack
