// SPDX-License-Identifier: Apache-2.0
// Units and identifiers as types, so that swapped arguments do not compile.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace slimpack {

/// A signed 64-bit amount of one unit. Sums, differences and comparisons stay inside the unit;
/// scaling takes a plain integer; the ratio of two amounts is a plain integer.
template <class Unit>
struct Quantity {
  std::int64_t value = 0;  ///< the amount in this unit

  friend constexpr auto operator<=>(const Quantity&, const Quantity&) = default;
  /// Adds an amount of the same unit. Overflow is undefined, as of plain integers.
  constexpr Quantity& operator+=(Quantity other) noexcept {
    value += other.value;
    return *this;
  }
  /// Subtracts an amount of the same unit; the result may be negative.
  constexpr Quantity& operator-=(Quantity other) noexcept {
    value -= other.value;
    return *this;
  }
  /// The sum of two amounts.
  friend constexpr Quantity operator+(Quantity a, Quantity b) noexcept { return a += b; }
  /// Their difference, which may be negative.
  friend constexpr Quantity operator-(Quantity a, Quantity b) noexcept { return a -= b; }
  /// The amount with the other sign.
  friend constexpr Quantity operator-(Quantity a) noexcept { return {-a.value}; }
  /// `factor` times the amount.
  friend constexpr Quantity operator*(Quantity a, std::int64_t factor) noexcept {
    return {a.value * factor};
  }
  /// `factor` times the amount.
  friend constexpr Quantity operator*(std::int64_t factor, Quantity a) noexcept {
    return {a.value * factor};
  }
  /// How often `b` goes into `a`, rounded towards zero.
  friend constexpr std::int64_t operator/(Quantity a, Quantity b) noexcept {
    return a.value / b.value;
  }
  /// The largest amount.
  [[nodiscard]] static constexpr Quantity max() noexcept {
    return {std::numeric_limits<std::int64_t>::max()};
  }
};

/// Simulated time in nanoseconds.
using Nanos = Quantity<struct NanosUnit>;
/// Token counts and token positions inside a sample.
using Tokens = Quantity<struct TokensUnit>;
/// Sizes in bytes.
using Bytes = Quantity<struct BytesUnit>;

/// Seconds as a floating value, for printing and files only; never fed back into a plan.
[[nodiscard]] constexpr double seconds(Nanos time) noexcept {
  return static_cast<double>(time.value) * 1e-9;
}

/// Index of a sample in `Plan::samples`.
enum class SampleId : std::uint32_t {};
/// Index of a MicroPack in `Plan::micropacks` (its `id`).
enum class PackId : std::uint32_t {};
/// Index of a group of data-parallel ranks in `Plan::groups`.
enum class GroupId : std::uint32_t {};

/// The plain index behind an identifier, to subscript a vector with.
template <class Id>
  requires std::is_enum_v<Id>
[[nodiscard]] constexpr std::size_t index(Id id) noexcept {
  return static_cast<std::size_t>(id);
}

}  // namespace slimpack
