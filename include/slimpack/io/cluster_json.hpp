// SPDX-License-Identifier: Apache-2.0
// Clusters as JSON: the `cluster` object of plan.json, and files that change a preset.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/io/json_reader.hpp"
#include "slimpack/io/json_writer.hpp"
#include "slimpack/plan/cluster.hpp"

namespace slimpack {

/// A cluster from JSON text. With a key `base` naming one of `bases` (the presets, say), keys that
/// are not given keep its values; without, all but those with a default must be there
/// (docs/schemas.md). Throws InvalidInput naming file, key, rule and value.
[[nodiscard]] Cluster cluster_from_json(std::string_view text, const std::string& name,
                                        std::span<const Cluster> bases = {});

/// Every key of a cluster, readable without a base.
[[nodiscard]] std::string cluster_to_json(const Cluster& cluster);

namespace detail {

/// Reads the keys that are there into what they change; misses those that must be.
class ClusterFields {
 public:
  ClusterFields(const JsonReader& object, bool has_base) : object_(object), has_base_(has_base) {}

  void required(std::string_view key, double& field, double low, double high) const {
    if (const auto value = find(key)) field = value->real(low, high);
  }
  void required(std::string_view key, Bytes& field) const {
    if (const auto value = find(key)) field.value = value->integer(0, std::int64_t{1} << 60U);
  }
  void required(std::string_view key, Link& link) const {
    const auto value = find(key);
    if (!value) return;
    const ClusterFields fields(*value, has_base_);
    fields.required("bytes_per_s", link.bytes_per_s, 1, 1e30);
    fields.required("latency_s", link.latency_s, 0, 1e6);
  }
  void defaulted(std::string_view key, std::int64_t& field, std::int64_t low,
                 std::int64_t high) const {
    if (const auto value = object_.find(key)) field = value->integer(low, high);
  }

 private:
  [[nodiscard]] std::optional<JsonReader> find(std::string_view key) const {
    return has_base_ ? object_.find(key) : object_.at(key);
  }

  const JsonReader& object_;
  bool has_base_;
};

/// Overwrites `cluster` with what the object says.
inline void read_cluster_fields(const JsonReader& object, bool has_base, Cluster& cluster) {
  const ClusterFields fields(object, has_base);
  constexpr double kFastest = 1e30;
  constexpr double kSlowest = 1e6;
  if (const auto name = object.find("name")) cluster.name = name->text();
  fields.defaulted("devices_per_node", cluster.devices_per_node, 1, std::int64_t{1} << 20U);
  fields.required("memory", cluster.memory);
  fields.required("reserved", cluster.reserved);
  fields.required("peak_flops", cluster.peak_flops, 1, kFastest);
  fields.required("matrix_flops", cluster.matrix_flops, 1, kFastest);
  fields.required("attention_forward_flops", cluster.attention_forward_flops, 1, kFastest);
  fields.required("attention_backward_flops", cluster.attention_backward_flops, 1, kFastest);
  fields.required("memory_bytes_per_s", cluster.memory_bytes_per_s, 1, kFastest);
  fields.required("inside", cluster.inside);
  fields.required("between", cluster.between);
  fields.required("kernel_s", cluster.kernel_s, 0, kSlowest);
  fields.required("segment_s", cluster.segment_s, 0, kSlowest);
  fields.defaulted("tile_tokens", cluster.tile_tokens, 1, std::int64_t{1} << 16U);
  fields.defaulted("forward_kernels", cluster.forward_kernels, 0, 1'000'000);
  fields.defaulted("backward_kernels", cluster.backward_kernels, 0, 1'000'000);
  fields.defaulted("head_kernels", cluster.head_kernels, 0, 1'000'000);
  fields.defaulted("embedding_kernels", cluster.embedding_kernels, 0, 1'000'000);
  if (cluster.reserved > cluster.memory) {
    object.fail("reserved must be <= memory, found " + std::to_string(cluster.reserved.value) +
                " of " + std::to_string(cluster.memory.value));
  }
}

[[nodiscard]] inline Cluster read_cluster(const JsonReader& object,
                                          std::span<const Cluster> bases = {}) {
  Cluster cluster;
  cluster.name = "custom";
  const auto base = object.find("base");
  const bool has_base = base && !bases.empty();
  if (has_base) {
    const Cluster* found = nullptr;
    std::string known;
    for (const Cluster& candidate : bases) {
      if (candidate.name == base->text()) found = &candidate;
      known += (known.empty() ? "'" : ", '") + candidate.name + "'";
    }
    if (found == nullptr) base->refuse("must be one of " + known);
    cluster = *found;
    cluster.name += " (changed)";
  }
  read_cluster_fields(object, has_base, cluster);
  return cluster;
}

inline void write_link(JsonWriter& out, const Link& link) {
  out.begin_object().key("bytes_per_s").number(link.bytes_per_s);
  out.key("latency_s").number(link.latency_s).end_object();
}

inline void write_cluster(JsonWriter& out, const Cluster& cluster) {
  out.begin_object(JsonLayout::flat).key("name").text(cluster.name);
  out.key("devices_per_node").number(cluster.devices_per_node);
  out.key("memory").number(cluster.memory.value);
  out.key("reserved").number(cluster.reserved.value);
  out.key("peak_flops").number(cluster.peak_flops);
  out.key("matrix_flops").number(cluster.matrix_flops);
  out.key("attention_forward_flops").number(cluster.attention_forward_flops);
  out.key("attention_backward_flops").number(cluster.attention_backward_flops);
  out.key("memory_bytes_per_s").number(cluster.memory_bytes_per_s);
  write_link(out.key("inside"), cluster.inside);
  write_link(out.key("between"), cluster.between);
  out.key("kernel_s").number(cluster.kernel_s).key("segment_s").number(cluster.segment_s);
  out.key("tile_tokens").number(cluster.tile_tokens);
  out.key("forward_kernels").number(cluster.forward_kernels);
  out.key("backward_kernels").number(cluster.backward_kernels);
  out.key("head_kernels").number(cluster.head_kernels);
  out.key("embedding_kernels").number(cluster.embedding_kernels).end_object();
}

}  // namespace detail

inline Cluster cluster_from_json(std::string_view text, const std::string& name,
                                 std::span<const Cluster> bases) {
  const nlohmann::json document = parse_json(text, name);
  return detail::read_cluster(JsonReader(document, name), bases);
}

inline std::string cluster_to_json(const Cluster& cluster) {
  JsonWriter out;
  detail::write_cluster(out, cluster);
  return out.take() + "\n";
}

}  // namespace slimpack
