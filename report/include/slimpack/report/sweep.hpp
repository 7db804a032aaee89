// SPDX-License-Identifier: Apache-2.0
// Comparisons of planners at every point of a grid of options.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/report/compare.hpp"

namespace slimpack::report {

/// An option and the values it takes, as they were written.
struct SweepAxis {
  std::string key;
  std::vector<std::string> values;
};

/// What all planners made of one point. Where no plan can be asked for there, as with more stages
/// than layers, every result says so.
struct SweepPoint {
  std::vector<std::string> values;  ///< one of each axis
  Comparison comparison;
};

/// The points of all axes, the last axis running fastest.
struct Sweep {
  std::vector<SweepAxis> axes;
  std::vector<SweepPoint> points;
};

/// Most points of a sweep.
inline constexpr std::int64_t kMostSweepPoints = 100'000;

/// Every combination of values, the last axis running fastest. One point without a value where
/// there is no axis. Throws InvalidInput if an axis has no value or there are more than
/// `kMostSweepPoints` points.
[[nodiscard]] inline std::vector<std::vector<std::string>> sweep_points(
    const std::vector<SweepAxis>& axes) {
  std::vector<std::vector<std::string>> points{{}};
  for (const SweepAxis& axis : axes) {
    require(!axis.values.empty(), "sweep: an axis must have a value", axis.key);
    const auto most = static_cast<std::size_t>(kMostSweepPoints);
    require(points.size() <= most / axis.values.size(),
            "sweep: there must be at most " + std::to_string(kMostSweepPoints) + " points");
    std::vector<std::vector<std::string>> longer;
    for (const auto& point : points) {
      for (const std::string& value : axis.values) {
        longer.push_back(point);
        longer.back().push_back(value);
      }
    }
    points = std::move(longer);
  }
  return points;
}

}  // namespace slimpack::report
