// SPDX-License-Identifier: Apache-2.0
// How fast attention is with heads of other sizes than those that a cluster was rated with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "slimpack/plan/cluster.hpp"

namespace slimpack {

/// The rates of attention at `head_dim` over those of the cluster, forward and backward:
/// interpolated between the neighbours that are given, constant beyond them.
[[nodiscard]] inline HeadDimRate rate_of_head_dim(const std::vector<HeadDimRate>& rates,
                                                  std::int64_t head_dim) {
  if (rates.empty()) return {head_dim, 1, 1};
  if (head_dim <= rates.front().head_dim) return rates.front();
  for (std::size_t i = 1; i < rates.size(); ++i) {
    const HeadDimRate &low = rates[i - 1], &high = rates[i];
    if (head_dim > high.head_dim) continue;
    const auto span = static_cast<double>(high.head_dim - low.head_dim);
    const auto part = static_cast<double>(head_dim - low.head_dim);
    const auto between = [&](double a, double b) {
      const double rise = (b - a) * part;
      return a + rise / span;
    };
    return {head_dim, between(low.forward, high.forward), between(low.backward, high.backward)};
  }
  return rates.back();
}

}  // namespace slimpack
