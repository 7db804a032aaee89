// SPDX-License-Identifier: Apache-2.0
// Which tokens' rows each of the tensor-parallel devices of a stage holds.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "slimpack/core/units.hpp"

namespace slimpack {

/// Hidden states, norms and residuals are split by rows over the tensor-parallel devices of a
/// stage: position x of sample s belongs to device (x + s) mod devices, in every unit alike, so
/// that short samples do not all load the first device. One device holds all rows.
struct TensorRows {
  std::int64_t device = 0;   ///< tensor-parallel part, in [0, devices)
  std::int64_t devices = 1;  ///< tensor-parallel devices of the stage, at least 1

  /// The device that holds a row. O(1).
  [[nodiscard]] constexpr std::int64_t owner(SampleId sample, Tokens position) const noexcept {
    return (position.value + static_cast<std::int64_t>(index(sample))) % devices;
  }
  /// Rows of this device among `rows` that follow each other, the first of which `first` holds.
  /// O(1).
  [[nodiscard]] constexpr std::int64_t among(std::int64_t first, std::int64_t rows) const noexcept {
    return (rows + devices - 1 - (device + devices - first) % devices) / devices;
  }
  /// Rows of this device among positions [begin, end) of a sample. O(1).
  [[nodiscard]] constexpr Tokens between(SampleId sample, Tokens begin, Tokens end) const noexcept {
    return {among(owner(sample, begin), (end - begin).value)};
  }
};

/// Counts the rows of each tensor-parallel device, for the largest share.
class TensorShares {
 public:
  /// Of `devices` devices, at least 1.
  explicit TensorShares(std::int64_t devices) : more_(static_cast<std::size_t>(devices)) {}
  /// Counts positions [begin, end) of a sample. O(devices).
  void add(SampleId sample, Tokens begin, Tokens end) {
    const auto devices = static_cast<std::int64_t>(more_.size());
    const std::int64_t rows = (end - begin).value, rest = rows % devices;
    each_ += Tokens{rows / devices};
    auto device = static_cast<std::size_t>(TensorRows{0, devices}.owner(sample, begin));
    for (std::int64_t i = 0; i < rest; ++i) {
      more_[device] += Tokens{1};
      if (++device == more_.size()) device = 0;
    }
  }
  /// Rows of the device that has most.
  [[nodiscard]] Tokens largest() const {
    return each_ + *std::max_element(more_.begin(), more_.end());
  }

 private:
  Tokens each_;               // that every device has
  std::vector<Tokens> more_;  // of each besides
};

}  // namespace slimpack
