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

/// The sizes that the time of a layer, the embedding and the head depend on, each as in
/// `ModelShape`. The number of layers is not among them: costs are fitted by layer.
struct MeasuredShape {
  std::string model;                   ///< its name, for messages; never compared
  std::int64_t hidden = 0;             ///< width of the hidden state
  std::int64_t heads = 0;              ///< query heads
  std::int64_t kv_heads = 0;           ///< key heads
  std::int64_t head_dim = 0;           ///< width of a head
  std::int64_t ffn = 0;                ///< width between the matrices of SwiGLU
  std::int64_t vocab = 0;              ///< rows of the embedding
  std::int64_t bytes_per_element = 0;  ///< of weights and activations
  friend bool operator==(const MeasuredShape&, const MeasuredShape&) = default;
};

/// The device whose time was measured.
struct MeasuredDevice {
  std::string name;        ///< what the system or the driver calls it
  std::string cluster;     ///< the name of the cluster that planners know it by
  std::int64_t ranks = 1;  ///< ranks that worked at the same time, at least 1
  friend bool operator==(const MeasuredDevice&, const MeasuredDevice&) = default;
};

/// Shape and device of a measurement, as far as a file tells them. Neither plans nor hashes hold
/// it.
struct MeasuredOn {
  std::optional<MeasuredShape> shape;    ///< absent where the file has no shape
  std::optional<MeasuredDevice> device;  ///< absent where the file has no device
  friend bool operator==(const MeasuredOn&, const MeasuredOn&) = default;
};

/// A size of a shape by the name that files give it.
struct MeasuredSize {
  std::string_view name;                   ///< key of files
  std::int64_t MeasuredShape::* measured;  ///< the size of a measured shape
  std::int64_t ModelShape::* model;        ///< the same size of a model
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

/// The sizes of a model that is measured, and its name.
[[nodiscard]] inline MeasuredShape measured_shape(const ModelShape& model) {
  MeasuredShape shape;
  shape.model = model.name;
  for (const MeasuredSize& size : kMeasuredSizes) shape.*size.measured = model.*size.model;
  return shape;
}

}  // namespace slimpack
