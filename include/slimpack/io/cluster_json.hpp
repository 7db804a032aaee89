// SPDX-License-Identifier: Apache-2.0
// Clusters as JSON: the `cluster` object of plan.json, and files that change a preset.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/io/json_reader.hpp"
#include "slimpack/io/json_writer.hpp"
#include "slimpack/io/known_keys.hpp"
#include "slimpack/plan/cluster.hpp"

namespace slimpack {

/// A cluster from the JSON text of a file. With a key `base` naming one of `bases` (the presets,
/// say), keys that are not given keep its values; without, all but those with a default must be
/// there (docs/schemas.md). An unknown key is refused, and so is a value that no device has, which
/// is most often one in another unit. Throws InvalidInput naming file, key, rule and value.
[[nodiscard]] Cluster cluster_from_json(std::string_view text, const std::string& name,
                                        std::span<const Cluster> bases = {});

/// Every key of a cluster, readable without a base.
[[nodiscard]] std::string cluster_to_json(const Cluster& cluster);

namespace detail {

/// What a value of a cluster file counts, and which values a device or a link can have.
struct ClusterQuantity {
  std::string_view unit;
  double low = 0, high = 0;  ///< plausible values; 0 is one too where `or_zero` says so
  std::string_view example;  ///< a figure as data sheets have it, and as the file has it
  bool or_zero = false;
};
inline constexpr ClusterQuantity kDeviceMemory{"bytes", 1e8, 1e14, "80 GB are 80e9"};
inline constexpr ClusterQuantity kReservedMemory{"bytes", 1e6, 1e14, "6 GB are 6e9", true};
inline constexpr ClusterQuantity kFlops{"FLOP/s", 1e9, 1e18, "989 TFLOP/s are 989e12"};
inline constexpr ClusterQuantity kMemoryRate{"bytes/s", 1e9, 1e15, "2.9 TB/s are 2.9e12"};
inline constexpr ClusterQuantity kLinkRate{"bytes/s", 1e7, 1e14, "400 Gb/s are 50e9"};
inline constexpr ClusterQuantity kLatency{"seconds", 0, 0.1, "6 microseconds are 6e-6"};
inline constexpr ClusterQuantity kOverhead{"seconds", 0, 0.01, "4 microseconds are 4e-6"};

/// Files are written by people, who misspell keys and mistake units. The cluster of a plan.json was
/// checked when it was made, and may have keys of another writer.
enum class ClusterSource : std::uint8_t { file, plan };

/// "1e9" of 1e9, "0.1" of 0.1.
[[nodiscard]] inline std::string short_number(double value) {
  JsonWriter out;
  std::string text = out.number(value).take();
  if (const auto plus = text.find("e+"); plus != std::string::npos) {
    text.erase(plus + 1, text[plus + 2] == '0' ? 2 : 1);
  }
  return text;
}

/// Refuses what the quantity cannot be.
inline void check_plausible(const JsonReader& value, const ClusterQuantity& quantity) {
  const double found = value.is_number() ? value.real(-1e308, 1e308) : -1;
  const bool plausible = found >= quantity.low && found <= quantity.high;
  if (plausible || (quantity.or_zero && found == 0)) return;
  value.refuse("must be a number of " + std::string(quantity.unit) + " in " +
               short_number(quantity.low) + " .. " + short_number(quantity.high) +
               (quantity.or_zero ? ", or 0" : "") + " (" + std::string(quantity.example) + ")");
}

/// Reads the keys that are there into what they change; misses those that must be.
class ClusterFields {
 public:
  ClusterFields(const JsonReader& object, bool has_base, ClusterSource source)
      : object_(object), has_base_(has_base), source_(source) {}

  void required(std::string_view key, double& field, const ClusterQuantity& quantity) const {
    const auto value = find(key);
    if (!value) return;
    if (source_ == ClusterSource::file) check_plausible(*value, quantity);
    const bool is_time = quantity.unit == "seconds";
    field = is_time ? value->real(0, 1e6) : value->real(1, 1e30);
  }
  void required(std::string_view key, Bytes& field, const ClusterQuantity& quantity) const {
    const auto value = find(key);
    if (!value) return;
    if (source_ == ClusterSource::file) check_plausible(*value, quantity);
    field.value = value->integer(0, std::int64_t{1} << 60U);
  }
  void required(std::string_view key, Link& link) const {
    const auto value = find(key);
    if (!value) return;
    static constexpr std::array<std::string_view, 2> kKeys{"bytes_per_s", "latency_s"};
    if (source_ == ClusterSource::file) check_known_keys(*value, kKeys);
    const ClusterFields fields(*value, has_base_, source_);
    fields.required("bytes_per_s", link.bytes_per_s, kLinkRate);
    fields.required("latency_s", link.latency_s, kLatency);
  }
  void defaulted(std::string_view key, std::int64_t& field, std::int64_t low,
                 std::int64_t high) const {
    if (const auto value = object_.find(key)) field = value->integer(low, high);
  }
  void defaulted(std::string_view key, double& field, double high) const {
    if (const auto value = object_.find(key)) field = value->real(0, high);
  }

 private:
  [[nodiscard]] std::optional<JsonReader> find(std::string_view key) const {
    return has_base_ ? object_.find(key) : object_.at(key);
  }

  const JsonReader& object_;
  bool has_base_;
  ClusterSource source_;
};

/// A share, or how often traffic passes, by the key that files give it.
struct SmallPriceMember {
  std::string_view key;
  double SmallUnitPrices::* value;
  double high;
};
inline constexpr std::array<SmallPriceMember, 6> kSmallPrices{{
    {"weight_traffic", &SmallUnitPrices::weight_traffic, 16},
    {"accumulator_traffic", &SmallUnitPrices::accumulator_traffic, 16},
    {"prefix_traffic", &SmallUnitPrices::prefix_traffic, 16},
    {"memory_overlap", &SmallUnitPrices::memory_overlap, 1},
    {"tp_overlap", &SmallUnitPrices::tp_overlap, 1},
    {"collective_compute", &SmallUnitPrices::collective_compute, 1},
}};

/// Rows of head dimension and the two factors, the dimensions ascending.
[[nodiscard]] inline std::vector<HeadDimRate> read_head_dims(const JsonReader& array) {
  std::vector<HeadDimRate> rates;
  for (std::size_t i = 0; i < array.size(); ++i) {
    const JsonReader row = array.item(i);
    row.check(row.size() == 3, "must be [head dimension, forward, backward]");
    rates.push_back({row.item(0).integer(1, 1 << 20), row.item(1).real(1e-3, 1e3),
                     row.item(2).real(1e-3, 1e3)});
    row.check(i == 0 || rates[i - 1].head_dim < rates[i].head_dim,
              "must have a greater head dimension than the row before");
  }
  return rates;
}

inline void read_small_prices(const JsonReader& object, const ClusterFields& fields,
                              SmallUnitPrices& small) {
  fields.defaulted("matrix_tile_rows", small.matrix_tile_rows, 0, std::int64_t{1} << 16U);
  for (const SmallPriceMember& price : kSmallPrices) {
    fields.defaulted(price.key, small.*price.value, price.high);
  }
  if (const auto shared = object.find("shared_links")) small.shared_links = shared->boolean();
  if (const auto graphs = object.find("run_graphs")) small.run_graphs = graphs->boolean();
  if (const auto rates = object.find("attention_head_dims")) {
    small.head_dims = read_head_dims(*rates);
  }
}

/// Overwrites `cluster` with what the object says.
inline void read_cluster_fields(const JsonReader& object, bool has_base, ClusterSource source,
                                Cluster& cluster) {
  const ClusterFields fields(object, has_base, source);
  if (const auto name = object.find("name")) cluster.name = name->text();
  fields.defaulted("devices_per_node", cluster.devices_per_node, 1, std::int64_t{1} << 20U);
  fields.required("memory", cluster.memory, kDeviceMemory);
  fields.required("reserved", cluster.reserved, kReservedMemory);
  fields.required("peak_flops", cluster.peak_flops, kFlops);
  fields.required("matrix_flops", cluster.matrix_flops, kFlops);
  fields.required("attention_forward_flops", cluster.attention_forward_flops, kFlops);
  fields.required("attention_backward_flops", cluster.attention_backward_flops, kFlops);
  fields.required("memory_bytes_per_s", cluster.memory_bytes_per_s, kMemoryRate);
  fields.required("inside", cluster.inside);
  fields.required("between", cluster.between);
  fields.required("kernel_s", cluster.kernel_s, kOverhead);
  fields.required("segment_s", cluster.segment_s, kOverhead);
  fields.defaulted("tile_tokens", cluster.tile_tokens, 1, std::int64_t{1} << 16U);
  fields.defaulted("forward_kernels", cluster.forward_kernels, 0, 1'000'000);
  fields.defaulted("backward_kernels", cluster.backward_kernels, 0, 1'000'000);
  fields.defaulted("head_kernels", cluster.head_kernels, 0, 1'000'000);
  fields.defaulted("embedding_kernels", cluster.embedding_kernels, 0, 1'000'000);
  read_small_prices(object, fields, cluster.small);
  if (cluster.reserved > cluster.memory) {
    object.fail("reserved must be <= memory, found " + std::to_string(cluster.reserved.value) +
                " of " + std::to_string(cluster.memory.value));
  }
}

/// The preset that a file starts from; absent where it names none, or where there are none.
[[nodiscard]] inline std::optional<Cluster> read_base(const JsonReader& object,
                                                      std::span<const Cluster> bases) {
  const auto base = object.find("base");
  if (!base || bases.empty()) return std::nullopt;
  std::string known;
  for (const Cluster& candidate : bases) {
    if (candidate.name == base->text()) return candidate;
    known += (known.empty() ? "'" : ", '") + candidate.name + "'";
  }
  base->refuse("must be one of " + known);
}

/// The `cluster` object of plan.json; other keys are ignored.
[[nodiscard]] inline Cluster read_cluster(const JsonReader& object) {
  Cluster cluster;
  cluster.name = "custom";
  read_cluster_fields(object, false, ClusterSource::plan, cluster);
  return cluster;
}

/// The object of a cluster file.
[[nodiscard]] inline Cluster read_cluster_file(const JsonReader& object,
                                               std::span<const Cluster> bases) {
  static constexpr std::array<std::string_view, 29> kKeys{"base",
                                                          "name",
                                                          "devices_per_node",
                                                          "memory",
                                                          "reserved",
                                                          "peak_flops",
                                                          "matrix_flops",
                                                          "attention_forward_flops",
                                                          "attention_backward_flops",
                                                          "memory_bytes_per_s",
                                                          "inside",
                                                          "between",
                                                          "kernel_s",
                                                          "segment_s",
                                                          "tile_tokens",
                                                          "forward_kernels",
                                                          "backward_kernels",
                                                          "head_kernels",
                                                          "embedding_kernels",
                                                          "matrix_tile_rows",
                                                          "weight_traffic",
                                                          "accumulator_traffic",
                                                          "prefix_traffic",
                                                          "memory_overlap",
                                                          "tp_overlap",
                                                          "collective_compute",
                                                          "shared_links",
                                                          "run_graphs",
                                                          "attention_head_dims"};
  check_known_keys(object, kKeys);
  std::optional<Cluster> base = read_base(object, bases);
  const bool has_base = base.has_value();
  Cluster cluster = has_base ? *std::move(base) : Cluster{};
  cluster.name = has_base ? cluster.name + " (changed)" : "custom";
  read_cluster_fields(object, has_base, ClusterSource::file, cluster);
  return cluster;
}

inline void write_link(JsonWriter& out, const Link& link) {
  out.begin_object().key("bytes_per_s").number(link.bytes_per_s);
  out.key("latency_s").number(link.latency_s).end_object();
}

/// Nothing where no price is set, so that what version 1 of plan.json can say is written as there.
inline void write_small_prices(JsonWriter& out, const SmallUnitPrices& small) {
  if (small == SmallUnitPrices{}) return;
  out.key("matrix_tile_rows").number(small.matrix_tile_rows);
  for (const SmallPriceMember& price : kSmallPrices) {
    out.key(price.key).number(small.*price.value);
  }
  // Plans that were made before links were shared are written as they were read.
  if (small.shared_links) out.key("shared_links").boolean(true);
  if (small.run_graphs) out.key("run_graphs").boolean(true);
  out.key("attention_head_dims").begin_array();
  for (const HeadDimRate& rate : small.head_dims) {
    out.begin_array().number(rate.head_dim).number(rate.forward).number(rate.backward).end_array();
  }
  out.end_array();
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
  out.key("embedding_kernels").number(cluster.embedding_kernels);
  write_small_prices(out, cluster.small);
  out.end_object();
}

}  // namespace detail

inline Cluster cluster_from_json(std::string_view text, const std::string& name,
                                 std::span<const Cluster> bases) {
  const nlohmann::json document = parse_json(text, name);
  return detail::read_cluster_file(JsonReader(document, name), bases);
}

inline std::string cluster_to_json(const Cluster& cluster) {
  JsonWriter out;
  detail::write_cluster(out, cluster);
  return out.take() + "\n";
}

}  // namespace slimpack
