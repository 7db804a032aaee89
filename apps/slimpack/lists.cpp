// SPDX-License-Identifier: Apache-2.0
// slimpack --list-planners and --list-presets.
#include <fmt/format.h>

#include <iostream>

#include "command.hpp"
#include "slimpack/cost/presets.hpp"
#include "slimpack/planners/registry.hpp"

namespace slimpack::app {

void list_planners() {
  for (const planners::PlannerInfo& planner : planners::registry()) {
    std::cout << fmt::format("{:<24}{}\n", planner.name, planner.description);
  }
}

void list_presets() {
  std::cout << fmt::format("{:<14}{:>7}{:>8}{:>7}{:>10}{:>10}{:>7}{:>8}{:>6}{:>12}\n", "model",
                           "layers", "hidden", "heads", "kv heads", "head dim", "ffn", "vocab",
                           "tied", "rope theta");
  for (const ModelShape& model : model_presets()) {
    std::cout << fmt::format("{:<14}{:>7}{:>8}{:>7}{:>10}{:>10}{:>7}{:>8}{:>6}{:>12}\n", model.name,
                             model.layers, model.hidden, model.heads, model.kv_heads,
                             model.head_dim, model.ffn, model.vocab, model.tied ? "yes" : "no",
                             model.rope_theta);
  }
  const std::vector<Cluster> clusters = cluster_presets();
  const auto row = [&](const char* name, auto&& value) {
    std::cout << fmt::format("{:<46}", name);
    for (const Cluster& cluster : clusters) std::cout << fmt::format("{:>14}", value(cluster));
    std::cout << '\n';
  };
  std::cout << '\n';
  row("cluster", [](const Cluster& c) { return c.name; });
  row("devices of a node", [](const Cluster& c) { return c.devices_per_node; });
  row("memory, bytes", [](const Cluster& c) { return c.memory.value; });
  row("reserved, bytes", [](const Cluster& c) { return c.reserved.value; });
  row("peak, FLOP/s (for MFU)", [](const Cluster& c) { return c.peak_flops; });
  row("matrix, FLOP/s", [](const Cluster& c) { return c.matrix_flops; });
  row("attention forward, FLOP/s", [](const Cluster& c) { return c.attention_forward_flops; });
  row("attention backward, FLOP/s", [](const Cluster& c) { return c.attention_backward_flops; });
  row("memory, bytes/s", [](const Cluster& c) { return c.memory_bytes_per_s; });
  row("link inside a node, bytes/s", [](const Cluster& c) { return c.inside.bytes_per_s; });
  row("link inside a node, latency in s", [](const Cluster& c) { return c.inside.latency_s; });
  row("link between nodes, bytes/s", [](const Cluster& c) { return c.between.bytes_per_s; });
  row("link between nodes, latency in s", [](const Cluster& c) { return c.between.latency_s; });
  row("kernel beyond its work, s", [](const Cluster& c) { return c.kernel_s; });
  row("segment and layer in attention, s", [](const Cluster& c) { return c.segment_s; });
  row("query tile, tokens", [](const Cluster& c) { return c.tile_tokens; });
  row("kernels of a layer, forward", [](const Cluster& c) { return c.forward_kernels; });
  row("kernels of a layer, backward", [](const Cluster& c) { return c.backward_kernels; });
  row("kernels of the head", [](const Cluster& c) { return c.head_kernels; });
  row("kernels of the embedding", [](const Cluster& c) { return c.embedding_kernels; });
}

}  // namespace slimpack::app
