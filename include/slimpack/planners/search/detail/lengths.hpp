// SPDX-License-Identifier: Apache-2.0
// What planners often ask of the lengths of samples.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/schedule/longest_first.hpp"

namespace slimpack::planners {

/// The sum of all lengths.
[[nodiscard]] constexpr Tokens total_tokens(std::span<const Tokens> lengths) noexcept {
  Tokens total;
  for (const Tokens length : lengths) total += length;
  return total;
}
/// The largest of some lengths, of which there must be one.
[[nodiscard]] constexpr Tokens longest_of(std::span<const Tokens> lengths) noexcept {
  return *std::max_element(lengths.begin(), lengths.end());
}
/// Positions by falling length, equal ones by position.
[[nodiscard]] inline std::vector<std::size_t> longest_first(std::span<const Tokens> lengths) {
  const auto order = schedule::longest_first(
      lengths.size(), [&](std::uint32_t sample) { return lengths[sample].value; });
  return {order.begin(), order.end()};
}

}  // namespace slimpack::planners
