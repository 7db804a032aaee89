// SPDX-License-Identifier: Apache-2.0
// What a calibration was measured on: the shape of the model, and the device.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "slimpack/plan/model.hpp"

namespace slimpack {

/// The sizes that the time of a layer, the embedding and the head depend on. How many layers a
/// model has is none of them: costs are fitted by layer.
struct MeasuredShape {
  std::string model;  ///< its name, for messages; never compared
  std::int64_t hidden = 0, heads = 0, kv_heads = 0, head_dim = 0, ffn = 0, vocab = 0;
  std::int64_t bytes_per_element = 0;
  friend bool operator==(const MeasuredShape&, const MeasuredShape&) = default;
};

/// The device whose time was measured.
struct MeasuredDevice {
  std::string name;        ///< what the system or the driver calls it
  std::string cluster;     ///< the name of the cluster that planners know it by
  std::int64_t ranks = 1;  ///< that worked at the same time, at least 1
  friend bool operator==(const MeasuredDevice&, const MeasuredDevice&) = default;
};

/// Both, as far as a file tells them. It is no part of a plan and of no hash.
struct MeasuredOn {
  std::optional<MeasuredShape> shape;
  std::optional<MeasuredDevice> device;
  friend bool operator==(const MeasuredOn&, const MeasuredOn&) = default;
};

/// A size of a shape by the name that files give it.
struct MeasuredSize {
  std::string_view name;
  std::int64_t MeasuredShape::* measured;
  std::int64_t ModelShape::* model;
};

/// All sizes that are compared, in the order in which files have them.
inline constexpr std::array<MeasuredSize, 7> kMeasuredSizes{{
    {"hidden", &MeasuredShape::hidden, &ModelShape::hidden},
    {"heads", &MeasuredShape::heads, &ModelShape::heads},
    {"kv_heads", &MeasuredShape::kv_heads, &ModelShape::kv_heads},
    {"head_dim", &MeasuredShape::head_dim, &ModelShape::head_dim},
    {"ffn", &MeasuredShape::ffn, &ModelShape::ffn},
    {"vocab", &MeasuredShape::vocab, &ModelShape::vocab},
    {"bytes_per_element", &MeasuredShape::bytes_per_element, &ModelShape::bytes_per_element},
}};

/// The shape of a model that is measured.
[[nodiscard]] inline MeasuredShape measured_shape(const ModelShape& model) {
  MeasuredShape shape;
  shape.model = model.name;
  for (const MeasuredSize& size : kMeasuredSizes) shape.*size.measured = model.*size.model;
  return shape;
}

}  // namespace slimpack
