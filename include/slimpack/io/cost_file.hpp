// SPDX-License-Identifier: Apache-2.0
// The file that calibration writes: a cost model, and what it was measured on.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/io/cost_json.hpp"
#include "slimpack/io/json_reader.hpp"
#include "slimpack/io/json_writer.hpp"
#include "slimpack/io/known_keys.hpp"
#include "slimpack/plan/cluster.hpp"
#include "slimpack/plan/cost_spec.hpp"
#include "slimpack/plan/measured_on.hpp"
#include "slimpack/plan/model.hpp"

namespace slimpack {

/// A cost model with its origin. A plan holds the cost model alone.
struct CostFile {
  CostSpec cost;        ///< the cost model itself
  MeasuredOn measured;  ///< model and device; empty for a cost model that nobody measured
  friend bool operator==(const CostFile&, const CostFile&) = default;
};

/// Reads `cost.json`: the keys of `cost_from_json`, and `shape` and `device` where they are there;
/// an unknown key is refused. `name` is the file's name for messages. Throws InvalidInput naming
/// file, key, rule and value.
[[nodiscard]] CostFile cost_file_from_json(std::string_view text, const std::string& name);

/// Writes what `cost_file_from_json` reads back to an equal value.
[[nodiscard]] std::string cost_file_to_json(const CostFile& file);

/// Refuses a cost model that was measured for another shape than the model's. Throws InvalidInput
/// naming the file, the first size that differs and both values. A file without a shape passes.
void require_measured_for(const CostFile& file, const std::string& name, const ModelShape& model);

/// Refuses a cost model that was measured on a device of another kind than the cluster's: the
/// cluster must have the name that the file gives, `(changed)` or not, or that of the device.
/// Throws InvalidInput naming the file and both names. A file without a device passes.
void require_measured_on(const CostFile& file, const std::string& name, const Cluster& cluster);

/// Refuses a cost model that was measured on another device than this one, told by its name. Throws
/// InvalidInput naming the file and both devices. A file without a device passes.
void require_measured_on(const CostFile& file, const std::string& name,
                         const MeasuredDevice& device);

/// The warning that belongs to a measured cost model whose file does not tell its shape or its
/// device; empty where there is nothing to warn of, as for an analytic model.
[[nodiscard]] std::string unknown_origin(const CostFile& file, const std::string& name);

namespace detail {

inline constexpr std::string_view kProfileAgain =
    "; mini_trainer --profile and slimpack calibrate make one that fits";

[[nodiscard]] inline MeasuredShape read_measured_shape(const JsonReader& object) {
  constexpr std::int64_t kLargestSize = std::int64_t{1} << 40U;
  std::vector<std::string_view> known{"model"};
  for (const MeasuredSize& size : kMeasuredSizes) known.push_back(size.name);
  check_known_keys(object, known);
  MeasuredShape shape;
  if (const auto model = object.find("model")) shape.model = model->text();
  for (const MeasuredSize& size : kMeasuredSizes) {
    shape.*size.measured = object.at(size.name).integer(1, kLargestSize);
  }
  return shape;
}

[[nodiscard]] inline MeasuredDevice read_measured_device(const JsonReader& object) {
  static constexpr std::array<std::string_view, 3> kKeys{"name", "cluster", "ranks"};
  check_known_keys(object, kKeys);
  MeasuredDevice device;
  device.name = object.at("name").text();
  device.cluster = object.at("cluster").text();
  device.ranks = object.at("ranks").integer(1, std::int64_t{1} << 30U);
  return device;
}

inline void write_measured_on(JsonWriter& out, const MeasuredOn& measured) {
  if (measured.shape) {
    out.line(4).key("shape").begin_object().member("model", measured.shape->model);
    for (const MeasuredSize& size : kMeasuredSizes) {
      out.member(size.name, (*measured.shape).*size.measured);
    }
    out.end_object();
  }
  if (measured.device) {
    out.line(4).key("device").begin_object().member("name", measured.device->name);
    out.member("cluster", measured.device->cluster).member("ranks", measured.device->ranks);
    out.end_object();
  }
}

[[noreturn]] inline void refuse_device(const std::string& name, const MeasuredDevice& measured,
                                       const std::string& here) {
  throw InvalidInput(name + ": device: the costs were measured on " + in_quotes(measured.name) +
                     " (cluster " + in_quotes(measured.cluster) + "), not on " + in_quotes(here) +
                     std::string(kProfileAgain));
}

}  // namespace detail

inline CostFile cost_file_from_json(std::string_view text, const std::string& name) {
  const nlohmann::json document = parse_json(text, name);
  const JsonReader object(document, name);
  CostFile file{detail::read_cost(object), {}};
  detail::check_cost_keys(object, file.cost);
  if (const auto shape = object.find("shape")) {
    file.measured.shape = detail::read_measured_shape(*shape);
  }
  if (const auto device = object.find("device")) {
    file.measured.device = detail::read_measured_device(*device);
  }
  return file;
}

inline std::string cost_file_to_json(const CostFile& file) {
  JsonWriter out;
  out.begin_object(JsonLayout::flat);
  std::visit([&out](const auto& kind) { detail::write_cost_keys(out, kind); }, file.cost);
  detail::write_measured_on(out, file.measured);
  out.end_object();
  return out.take() + "\n";
}

inline void require_measured_for(const CostFile& file, const std::string& name,
                                 const ModelShape& model) {
  if (!file.measured.shape) return;
  const MeasuredShape& shape = *file.measured.shape;
  for (const MeasuredSize& size : kMeasuredSizes) {
    if (shape.*size.measured == model.*size.model) continue;
    const std::string key(size.name);
    throw InvalidInput(name + ": shape." + key + ": the costs were measured for model " +
                       in_quotes(shape.model) + " with " + key + " " +
                       std::to_string(shape.*size.measured) + ", but model " +
                       in_quotes(model.name) + " has " + std::to_string(model.*size.model) +
                       std::string(detail::kProfileAgain));
  }
}

inline void require_measured_on(const CostFile& file, const std::string& name,
                                const Cluster& cluster) {
  if (!file.measured.device) return;
  const MeasuredDevice& device = *file.measured.device;
  const std::string& asked = cluster.name;
  if (asked == device.name || asked == device.cluster || asked == device.cluster + " (changed)") {
    return;
  }
  detail::refuse_device(name, device, asked);
}

inline void require_measured_on(const CostFile& file, const std::string& name,
                                const MeasuredDevice& device) {
  if (!file.measured.device || file.measured.device->name == device.name) return;
  detail::refuse_device(name, *file.measured.device, device.name);
}

inline std::string unknown_origin(const CostFile& file, const std::string& name) {
  if (std::holds_alternative<AnalyticCost>(file.cost)) return {};
  const bool shape = file.measured.shape.has_value(), device = file.measured.device.has_value();
  if (shape && device) return {};
  return name + ": does not tell the " +
         (shape    ? "device (key 'device')"
          : device ? "model (key 'shape')"
                   : "model and device (keys 'shape' and 'device')") +
         " that it was measured on, so it is taken for any";
}

}  // namespace slimpack
