// SPDX-License-Identifier: Apache-2.0
// A random generator and its distributions, the same bits with every compiler and library.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "slimpack/core/error.hpp"

namespace slimpack {

/// SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014).
/// The standard library's distributions differ between implementations, so these are our own.
class Random {
 public:
  /// Equal seeds give equal bits, on every platform.
  explicit constexpr Random(std::uint64_t seed) noexcept : state_(seed) {}

  /// 64 uniform bits.
  constexpr std::uint64_t bits() noexcept {
    state_ += 0x9e3779b97f4a7c15U;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27U)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31U);
  }

  /// Uniform in [0, bound), without bias (rejection). Throws InvalidInput if bound is 0.
  std::uint64_t below(std::uint64_t bound) {
    require(bound > 0, "Random::below: bound must be > 0");
    const std::uint64_t unbiased = ~std::uint64_t{0} - (~std::uint64_t{0} % bound + 1) % bound;
    std::uint64_t draw = bits();
    while (draw > unbiased) draw = bits();
    return draw % bound;
  }

  /// Uniform in [low, high], both included. Throws InvalidInput if high < low.
  std::int64_t between(std::int64_t low, std::int64_t high) {
    require(low <= high, "Random::between: low must be <= high", low);
    const auto width = static_cast<std::uint64_t>(high) - static_cast<std::uint64_t>(low);
    const std::uint64_t draw = width == ~std::uint64_t{0} ? bits() : below(width + 1);
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(low) + draw);
  }

  /// True with probability numerator / denominator. Throws InvalidInput if denominator is 0.
  bool chance(std::uint64_t numerator, std::uint64_t denominator) {
    return below(denominator) < numerator;
  }

  /// Uniform in [0, 1), 53 bits.
  double unit() noexcept { return static_cast<double>(bits() >> 11U) * 0x1p-53; }

  /// Standard normal (Box-Muller). Its last bit depends on the C library's log and cos: use it for
  /// test data and jitter, never inside a plan.
  double normal() noexcept {
    const double radius = std::sqrt(-2.0 * std::log(1.0 - unit()));
    return radius * std::cos(6.283185307179586 * unit());
  }

  /// Puts the values into a random order, each as likely as any other (Fisher-Yates). O(n).
  template <class Value>
  void shuffle(std::span<Value> values) {
    for (std::size_t left = values.size(); left > 1; --left) {
      std::swap(values[left - 1], values[static_cast<std::size_t>(below(left))]);
    }
  }

 private:
  std::uint64_t state_;
};

}  // namespace slimpack
