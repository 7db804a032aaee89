// SPDX-License-Identifier: Apache-2.0
// Points of a space, far apart from one another.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <span>

#include "slimpack/planners/search/settings.hpp"

namespace slimpack::planners::detail {

/// Points of a space in an order in which neighbours are far apart: every k-th by turns. Each once.
class ScatteredPoints {
 public:
  /// Of settings with so many values each.
  explicit ScatteredPoints(std::span<const std::size_t> sizes) : sizes_(sizes) {
    for (const std::size_t size : sizes) {
      // Nobody tries so many points; what lies beyond is left out.
      if (count_ < (std::uint64_t{1} << 40)) count_ *= size;
    }
    step_ = std::max<std::uint64_t>(1, count_ / 1000 * 618 + count_ % 1000 * 618 / 1000);
    while (std::gcd(step_, count_) != 1) ++step_;
  }

  /// The next point; absent where all have been given.
  [[nodiscard]] std::optional<SettingPoint> next() {
    if (given_ == count_) return std::nullopt;
    ++given_;
    SettingPoint point(sizes_.size());
    std::uint64_t rest = place_;
    for (std::size_t i = 0; i < point.size(); ++i) {
      point[i] = rest % sizes_[i];
      rest /= sizes_[i];
    }
    place_ = (place_ + step_) % count_;
    return point;
  }

 private:
  std::span<const std::size_t> sizes_;
  std::uint64_t count_ = 1, step_ = 1, place_ = 0, given_ = 0;
};

}  // namespace slimpack::planners::detail
