// SPDX-License-Identifier: Apache-2.0
// Byte counts of the validator, which no file can make wrap.
#pragma once

#include <compare>
#include <cstdint>
#include <limits>

namespace slimpack::validation {

/// A count of bytes that stays at "more than can be counted" once it gets there: sizes are read
/// from a file, and no file may make them wrap.
class Size {
 public:
  constexpr Size() = default;
  constexpr Size(std::int64_t value) : value_(value) {}  // NOLINT: a number is a size
  [[nodiscard]] constexpr std::int64_t value() const noexcept { return value_; }
  [[nodiscard]] constexpr bool countable() const noexcept { return value_ != kMany; }

  friend constexpr Size operator+(Size a, Size b) noexcept {
    std::int64_t sum = 0;
    if (!a.countable() || !b.countable() || __builtin_add_overflow(a.value_, b.value_, &sum)) {
      return {kMany};
    }
    return {sum};
  }
  friend constexpr Size operator-(Size a, Size b) noexcept {
    if (!a.countable() || !b.countable()) return {kMany};
    return {a.value_ - b.value_};
  }
  friend constexpr Size operator*(Size a, Size b) noexcept {
    if (a.value_ == 0 || b.value_ == 0) return {0};
    std::int64_t product = 0;
    if (!a.countable() || !b.countable() || __builtin_mul_overflow(a.value_, b.value_, &product)) {
      return {kMany};
    }
    return {product};
  }
  /// Divided by a positive count, rounded up.
  [[nodiscard]] constexpr Size part(std::int64_t count) const noexcept {
    return countable() ? Size{value_ / count + (value_ % count > 0 ? 1 : 0)} : *this;
  }
  Size& operator+=(Size other) noexcept { return *this = *this + other; }
  Size& operator-=(Size other) noexcept { return *this = *this - other; }
  friend constexpr auto operator<=>(const Size&, const Size&) = default;

 private:
  static constexpr std::int64_t kMany = std::numeric_limits<std::int64_t>::max();
  std::int64_t value_ = 0;
};

}  // namespace slimpack::validation
