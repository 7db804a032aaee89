// SPDX-License-Identifier: Apache-2.0
// Integer picoseconds, in which terms of prices are summed.
#pragma once

#include <algorithm>
#include <cstdint>

#include "slimpack/core/units.hpp"

namespace slimpack {

/// Integer picoseconds: terms are rounded to them one by one and then summed without error, so
/// that no compiler's contraction or reordering changes a price.
using Picos = std::int64_t;

/// Where one term stops growing, 80 hours: sums of a dozen stay inside 64 bits.
inline constexpr Picos kMostPicos = std::int64_t{1} << 58;

/// The nearest integer, halves upwards, of 0 <= value < 2^63: as std::llround, without a call.
[[nodiscard]] constexpr Picos rounded(double value) noexcept {
  const auto whole = static_cast<Picos>(value);
  // The difference is exact: below 2^53 by its size, above it there is none. Whether it is a half
  // cannot be foreseen, so it is added, not asked for.
  return whole + static_cast<Picos>(value - static_cast<double>(whole) >= 0.5);
}

/// `amount` at `each` picoseconds, to the nearest. One product, no sum.
[[nodiscard]] inline Picos picos(std::int64_t amount, double each) noexcept {
  if (amount <= 0) return 0;
  const double exact = static_cast<double>(amount) * each;
  return exact < static_cast<double>(kMostPicos) ? rounded(exact) : kMostPicos;
}

/// The same for an amount that counts `times` over.
[[nodiscard]] inline Picos picos(std::int64_t amount, std::int64_t times, double each) noexcept {
  if (amount <= 0 || times <= 0) return 0;
  const double exact = static_cast<double>(amount) * static_cast<double>(times) * each;
  return exact < static_cast<double>(kMostPicos) ? rounded(exact) : kMostPicos;
}

/// Picoseconds for `count` things where a device does `rate` of them in a second.
[[nodiscard]] inline double picos_each(double count, double rate) noexcept {
  return count * 1e12 / rate;
}

/// The one rounding of a price: up to the next nanosecond.
[[nodiscard]] constexpr Nanos to_nanos(Picos time) noexcept {
  return {(time + 999) / 1000};
}

/// Two activities of which the shorter hides behind the longer but for one of `steps` parts.
[[nodiscard]] constexpr Picos overlapped(Picos a, Picos b, std::int64_t steps) noexcept {
  return std::max(a, b) + (std::min(a, b) + steps - 1) / steps;
}

/// Attention beside the hops of a ring.
struct RingTime {
  Picos time = 0;    ///< that both take
  Picos hidden = 0;  ///< of the shorter of both, which the longer hides
};
/// Of `ranks` - 1 hops `far` take `outside` in all, the others `inside`. Hops of a kind and the
/// attention beside them take as long as the longer of both; of what hides a `ranks`-th does not.
[[nodiscard]] constexpr RingTime ring_time(Picos attention, Picos inside, Picos outside,
                                           std::int64_t ranks, std::int64_t far) noexcept {
  const Picos beside_inside = attention / ranks * (ranks - 1 - far);
  const Picos beside_outside = attention - beside_inside;
  const Picos hidden = std::min(beside_inside, inside) + std::min(beside_outside, outside);
  return {std::max(beside_inside, inside) + std::max(beside_outside, outside) +
              (hidden + ranks - 1) / ranks,
          hidden};
}

/// `a` filled up to a multiple of `tile`; as it is where `tile` is 0.
[[nodiscard]] constexpr std::int64_t filled(std::int64_t a, std::int64_t tile) noexcept {
  return tile > 0 ? (a + tile - 1) / tile * tile : a;
}

}  // namespace slimpack
