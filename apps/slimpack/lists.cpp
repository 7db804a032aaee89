// SPDX-License-Identifier: Apache-2.0
// slimpack --list-planners and --list-presets.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "command.hpp"
#include "slimpack/cost/presets.hpp"
#include "slimpack/io/cluster_json.hpp"
#include "slimpack/io/model_json.hpp"
#include "slimpack/planners/registry.hpp"

namespace slimpack::app {
namespace {

using Json = nlohmann::ordered_json;
using Row = std::vector<std::string>;

/// Prints rows of equally many columns, the first to the left, the others to the right, each as
/// wide as its longest text and two blanks apart.
void print_table(const std::vector<Row>& rows) {
  std::vector<std::size_t> widths(rows.front().size());
  for (const Row& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const Row& row : rows) {
    std::string line = fmt::format("{:<{}}", row[0], widths[0]);
    for (std::size_t i = 1; i < row.size(); ++i) line += fmt::format("  {:>{}}", row[i], widths[i]);
    std::cout << line << '\n';
  }
}

[[nodiscard]] std::string figure(double value) {
  return fmt::format("{:g}", value);
}
[[nodiscard]] std::string figure(std::int64_t value) {
  return std::to_string(value);
}
[[nodiscard]] std::string figure(const std::string& value) {
  return value;
}

[[nodiscard]] std::vector<Row> model_rows() {
  std::vector<Row> rows{{"model", "layers", "hidden", "heads", "kv heads", "head dim", "ffn",
                         "vocab", "tied", "rope theta"}};
  for (const ModelShape& model : model_presets()) {
    rows.push_back({model.name, figure(model.layers), figure(model.hidden), figure(model.heads),
                    figure(model.kv_heads), figure(model.head_dim), figure(model.ffn),
                    figure(model.vocab), model.tied ? "yes" : "no", figure(model.rope_theta)});
  }
  return rows;
}

[[nodiscard]] std::vector<Row> cluster_rows() {
  const std::vector<Cluster> clusters = cluster_presets();
  std::vector<Row> rows;
  const auto add = [&](const char* name, auto&& value) {
    Row& row = rows.emplace_back(Row{name});
    for (const Cluster& cluster : clusters) row.push_back(figure(value(cluster)));
  };
  add("cluster", [](const Cluster& c) { return c.name; });
  add("devices of a node", [](const Cluster& c) { return c.devices_per_node; });
  add("memory, bytes", [](const Cluster& c) { return c.memory.value; });
  add("reserved, bytes", [](const Cluster& c) { return c.reserved.value; });
  add("peak, FLOP/s (for MFU)", [](const Cluster& c) { return c.peak_flops; });
  add("matrix, FLOP/s", [](const Cluster& c) { return c.matrix_flops; });
  add("attention forward, FLOP/s", [](const Cluster& c) { return c.attention_forward_flops; });
  add("attention backward, FLOP/s", [](const Cluster& c) { return c.attention_backward_flops; });
  add("memory, bytes/s", [](const Cluster& c) { return c.memory_bytes_per_s; });
  add("link inside a node, bytes/s", [](const Cluster& c) { return c.inside.bytes_per_s; });
  add("link inside a node, latency in s", [](const Cluster& c) { return c.inside.latency_s; });
  add("link between nodes, bytes/s", [](const Cluster& c) { return c.between.bytes_per_s; });
  add("link between nodes, latency in s", [](const Cluster& c) { return c.between.latency_s; });
  add("kernel beyond its work, s", [](const Cluster& c) { return c.kernel_s; });
  add("segment and layer in attention, s", [](const Cluster& c) { return c.segment_s; });
  add("query tile, tokens", [](const Cluster& c) { return c.tile_tokens; });
  add("kernels of a layer, forward", [](const Cluster& c) { return c.forward_kernels; });
  add("kernels of a layer, backward", [](const Cluster& c) { return c.backward_kernels; });
  add("kernels of the head", [](const Cluster& c) { return c.head_kernels; });
  add("kernels of the embedding", [](const Cluster& c) { return c.embedding_kernels; });
  add("tile of matrix products, rows", [](const Cluster& c) { return c.small.matrix_tile_rows; });
  add("reads of weights a unit", [](const Cluster& c) { return c.small.weight_traffic; });
  add("passes over accumulators a B", [](const Cluster& c) { return c.small.accumulator_traffic; });
  add("reads of a prefix a slice", [](const Cluster& c) { return c.small.prefix_traffic; });
  add("memory traffic hidden, share", [](const Cluster& c) { return c.small.memory_overlap; });
  add("tensor-parallel traffic hidden, share", [](const Cluster& c) { return c.small.tp_overlap; });
  add("compute that a collective takes, share",
      [](const Cluster& c) { return c.small.collective_compute; });
  add("links shared by all that is sent",
      [](const Cluster& c) { return std::string(c.small.shared_links ? "yes" : "no"); });
  add("attention at head dimensions", [](const Cluster& c) {
    std::string text;
    for (const HeadDimRate& rate : c.small.head_dims) {
      text += fmt::format("{}{}: {:g}, {:g}", text.empty() ? "" : "; ", rate.head_dim, rate.forward,
                          rate.backward);
    }
    return text;
  });
  return rows;
}

std::string published_name(const planners::PlannerInfo& planner) {
  return std::string(planner.name) + "-published";
}
bool has_published_form(const planners::PlannerInfo& planner) {
  return std::ranges::any_of(planners::published_forms(), [&](const planners::PlannerInfo& form) {
    return form.name == published_name(planner);
  });
}

}  // namespace

void list_planners(bool json) {
  Json list = Json::array();
  for (const planners::PlannerInfo& planner : planners::registry()) {
    if (json) {
      Json entry{{"name", planner.name}, {"description", planner.description}};
      if (!planner.simulated_only.empty()) entry["simulated_only"] = planner.simulated_only;
      if (has_published_form(planner)) entry["published"] = published_name(planner);
      if (!planner.against.empty()) entry["against"] = planner.against;
      list.push_back(std::move(entry));
      continue;
    }
    std::cout << fmt::format("{:<24}{}", planner.name, planner.description);
    if (!planner.simulated_only.empty()) {
      std::cout << fmt::format(" [{}: simulated only, no plan.json]", planner.simulated_only);
    }
    if (has_published_form(planner)) {
      std::cout << fmt::format(" [as published: {}]", published_name(planner));
    }
    std::cout << '\n';
  }
  if (json) {
    std::cout << Json{{"format", "slimpack-planners"}, {"version", 1}, {"planners", list}}.dump(2)
              << '\n';
  }
}

void list_presets(bool json) {
  if (!json) {
    print_table(model_rows());
    std::cout << '\n';
    print_table(cluster_rows());
    return;
  }
  Json presets{{"format", "slimpack-presets"}, {"version", 1}};
  for (const ModelShape& model : model_presets()) {
    presets["models"][model.name] = Json::parse(model_to_json(model));
  }
  for (const Cluster& cluster : cluster_presets()) {
    presets["clusters"][cluster.name] = Json::parse(cluster_to_json(cluster));
  }
  std::cout << presets.dump(2) << '\n';
}

}  // namespace slimpack::app
