// SPDX-License-Identifier: Apache-2.0
#include "slimpack/report/sweep.hpp"

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"

namespace slimpack::report {

using namespace detail;  // NOLINT(google-build-using-namespace): of this library

std::vector<std::vector<std::string>> sweep_points(const std::vector<SweepAxis>& axes) {
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
