// SPDX-License-Identifier: Apache-2.0
// Random data for tests of CUDA operators, and comparison with fp64 references.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "slimpack_cuda/bf16.hpp"

namespace slimpack::test {

using cuda::Bf16;

/// A size in a test: a small one on the emulator, where a large one takes too long.
constexpr std::int32_t sized([[maybe_unused]] std::int32_t on_device,
                             [[maybe_unused]] std::int32_t emulated) {
#if defined(SLIMPACK_EMULATED)
  return emulated;
#else
  return on_device;
#endif
}

inline double as_double(Bf16 value) {
  return static_cast<double>(cuda::to_float(value));
}
inline double as_double(float value) {
  return static_cast<double>(value);
}
inline double as_double(double value) {
  return value;
}

template <class Element>
std::vector<double> as_doubles(const std::vector<Element>& values) {
  std::vector<double> result;
  result.reserve(values.size());
  for (const Element value : values) result.push_back(as_double(value));
  return result;
}

/// Uniform in [-scale, scale).
inline std::vector<float> random_floats(std::int64_t count, std::uint32_t seed, float scale = 1) {
  std::mt19937 bits(seed);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) {
    value = scale * (static_cast<float>(bits() >> 8U) * 0x1p-23F - 1.0F);
  }
  return values;
}
inline std::vector<Bf16> random_bf16(std::int64_t count, std::uint32_t seed, float scale = 1) {
  std::vector<Bf16> values;
  for (const float value : random_floats(count, seed, scale)) {
    values.push_back(cuda::to_bf16(value));
  }
  return values;
}

/// Numbers that an operator must not read, and that what follows an output must keep.
template <class Element>
std::vector<Element> poisoned(std::int64_t count) {
  std::vector<Element> values(static_cast<std::size_t>(count));
  std::memset(static_cast<void*>(values.data()), 0xff, values.size() * sizeof(Element));
  return values;
}
template <class Element>
bool is_poisoned(std::span<const Element> values) {
  const auto bytes = std::as_bytes(values);
  return std::ranges::all_of(bytes, [](std::byte byte) { return byte == std::byte{0xff}; });
}

template <class Element>
bool same_bits(const std::vector<Element>& a, const std::vector<Element>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(Element)) == 0);
}

/// Where and how much values leave |value - expected| <= absolute + relative * |expected|; empty
/// where they do not. A NaN leaves it unless one is expected.
template <class Element>
std::string difference(const std::vector<Element>& values, const std::vector<double>& expected,
                       double absolute, double relative) {
  if (values.size() < expected.size()) return "too few values";
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double value = as_double(values[i]);
    if (std::isnan(value) && std::isnan(expected[i])) continue;
    if (value == expected[i]) continue;  // infinities
    if (!(std::abs(value - expected[i]) <= absolute + relative * std::abs(expected[i]))) {
      return "at " + std::to_string(i) + ": " + std::to_string(value) + ", expected " +
             std::to_string(expected[i]) + ", off by " + std::to_string(value - expected[i]);
    }
  }
  return "";
}

/// Half a unit in the last of 8 bits, and as much again for what was computed before rounding.
inline constexpr double kBf16Rounding = 0x1p-8;

}  // namespace slimpack::test
