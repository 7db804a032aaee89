// SPDX-License-Identifier: Apache-2.0
// What ranks that share weights gather at one time, and which part of all each of them owns.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "slimpack/runtime/parameters.hpp"

namespace slimpack::runtime {

/// Elements [begin, end) of a device's weights, and of its gradients alike.
struct ElementRange {
  std::size_t begin = 0;  ///< first element
  std::size_t end = 0;    ///< the one behind the last
  /// Number of elements.
  [[nodiscard]] constexpr std::size_t size() const noexcept { return end - begin; }
  /// The elements that `other` has too; where there are none, an empty range within `other`.
  [[nodiscard]] constexpr ElementRange within(const ElementRange& other) const noexcept {
    return {std::clamp(begin, other.begin, other.end), std::clamp(end, other.begin, other.end)};
  }
  /// The same elements counted from `first` on, which must not be behind the begin.
  [[nodiscard]] constexpr ElementRange from(std::size_t first) const noexcept {
    return {begin - first, end - first};
  }
};

/// Elements of `size` that each of `ranks` owns at most.
[[nodiscard]] constexpr std::size_t elements_of_rank(std::size_t size, std::size_t ranks) noexcept {
  return (size + ranks - 1) / ranks;
}
/// The elements that rank `rank` owns: fewer or none where the end comes before its part is full.
[[nodiscard]] constexpr ElementRange part_of_rank(std::size_t size, std::size_t ranks,
                                                  std::size_t rank) noexcept {
  const std::size_t part = elements_of_rank(size, ranks);
  return {std::min(size, part * rank), std::min(size, part * (rank + 1))};
}

/// The elements of what a device holds of a tensor.
[[nodiscard]] inline ElementRange elements_of(const HeldTensor& tensor) noexcept {
  return {tensor.offset, tensor.offset + tensor.size()};
}

/// A layer that the device holds, by its number in the model.
[[nodiscard]] inline ElementRange layer_unit(const ParameterLayout& layout, std::int64_t layer) {
  const std::size_t first = layout.layer[static_cast<std::size_t>(layer)];
  const std::size_t last = first + static_cast<std::size_t>(LayerTensor::down);
  return {layout.tensors[first].offset, elements_of(layout.tensors[last]).end};
}
/// The embedding of a device that has it.
[[nodiscard]] inline ElementRange embedding_unit(const ParameterLayout& layout) {
  return elements_of(layout.tensors[layout.embedding.front()]);
}
/// The rows of the vocabulary projection of a device that has some, with the final norm where it is
/// there: it lies right behind them.
[[nodiscard]] inline ElementRange head_unit(const ParameterLayout& layout) {
  ElementRange unit = elements_of(layout.tensors[layout.head.front()]);
  if (!layout.final_norm.empty()) {
    unit.end = elements_of(layout.tensors[layout.final_norm.front()]).end;
  }
  return unit;
}
/// Elements of the largest unit of a device that holds a whole model.
[[nodiscard]] inline std::size_t largest_unit(const ParameterLayout& layout) {
  std::size_t largest = std::max(embedding_unit(layout).size(), head_unit(layout).size());
  for (std::size_t layer = 0; layer < layout.layer.size(); ++layer) {
    largest = std::max(largest, layer_unit(layout, static_cast<std::int64_t>(layer)).size());
  }
  return largest;
}

}  // namespace slimpack::runtime
