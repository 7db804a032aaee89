// SPDX-License-Identifier: Apache-2.0
#include "slimpack/runtime/element_type.hpp"

#include <doctest/doctest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "slimpack/core/random.hpp"

namespace element_type_test {

using namespace slimpack;

namespace {

template <class To, class From>
std::vector<To> through(const std::vector<From>& values, runtime::ElementType type) {
  std::vector<std::byte> bytes(values.size() *
                               static_cast<std::size_t>(runtime::element_bytes(type)));
  runtime::store_elements(std::span(bytes), std::span<const From>(values), type);
  std::vector<To> read(values.size());
  runtime::load_elements(std::span(read), bytes, type);
  return read;
}

float half(std::uint16_t bits) {
  const std::array<std::byte, 2> bytes{std::byte(bits & 0xffU), std::byte(bits >> 8U)};
  std::array<float, 1> value{};
  runtime::load_elements(std::span<float>(value), bytes, runtime::ElementType::f16);
  return value[0];
}

float bfloat(float value) {
  return through<float>(std::vector<float>{value}, runtime::ElementType::bf16)[0];
}

}  // namespace

TEST_CASE("element types: every half is sign, exponent and fraction as the format says") {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const double sign = (bits >> 15U) != 0 ? -1.0 : 1.0;
    const int exponent = static_cast<int>((bits >> 10U) & 31U);
    const double fraction = static_cast<double>(bits & 1023U) / 1024.0;
    const float value = half(static_cast<std::uint16_t>(bits));
    if (exponent == 31) {
      CHECK((fraction == 0 ? std::isinf(value) : std::isnan(value)));
    } else {
      const double size =
          exponent == 0 ? std::ldexp(fraction, -14) : std::ldexp(1.0 + fraction, exponent - 15);
      CHECK(static_cast<double>(value) == sign * size);
    }
    if (!std::isnan(value)) CHECK(std::signbit(value) == (sign < 0));
  }
}

TEST_CASE("element types: bf16 is the nearest, ties to even, infinities and NaN kept") {
  CHECK(bfloat(1.0F) == 1.0F);
  CHECK(bfloat(1.00390625F) == 1.0F);        // half way between 1 and the next, even below
  CHECK(bfloat(1.01171875F) == 1.015625F);   // half way, even above
  CHECK(bfloat(1.00390637F) == 1.0078125F);  // above half way
  CHECK(bfloat(-0.0F) == 0.0F);
  CHECK(std::signbit(bfloat(-0.0F)));
  CHECK(std::isinf(bfloat(std::numeric_limits<float>::infinity())));
  CHECK(std::isinf(bfloat(std::numeric_limits<float>::max())));
  CHECK(std::isnan(bfloat(std::bit_cast<float>(0x7f800001U))));
  CHECK(std::isnan(bfloat(std::bit_cast<float>(0xffffffffU))));
  Random random(1);
  for (int draw = 0; draw < 2000; ++draw) {
    const auto value = static_cast<float>(random.normal());
    const float near = bfloat(value);
    const float gap = std::ldexp(1.0F, std::ilogb(value) - 7);
    CHECK(std::abs(near - value) <= gap / 2);
    CHECK(bfloat(near) == near);
  }
}

TEST_CASE("element types: float through F32 and double through F64 keep every bit") {
  Random random(2);
  std::vector<float> floats;
  std::vector<double> doubles;
  for (int draw = 0; draw < 1000; ++draw) {
    floats.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(random.bits())));
    doubles.push_back(std::bit_cast<double>(random.bits()));
  }
  const auto same_float = through<float>(floats, runtime::ElementType::f32);
  const auto same_double = through<double>(doubles, runtime::ElementType::f64);
  for (std::size_t i = 0; i < floats.size(); ++i) {
    CHECK(std::bit_cast<std::uint32_t>(same_float[i]) == std::bit_cast<std::uint32_t>(floats[i]));
    CHECK(std::bit_cast<std::uint64_t>(same_double[i]) == std::bit_cast<std::uint64_t>(doubles[i]));
  }
}

TEST_CASE("element types: wider values are rounded, narrower ones are exact") {
  const std::vector<double> values{1.0 / 3, -1e30, 0.1, 65504.0};
  for (const double value : values) {
    const std::vector<double> one{value};
    CHECK(through<double>(one, runtime::ElementType::f32)[0] ==
          static_cast<double>(static_cast<float>(value)));
    CHECK(through<float>(one, runtime::ElementType::f64)[0] == static_cast<float>(value));
    const std::vector<float> narrow{static_cast<float>(value)};
    CHECK(through<double>(narrow, runtime::ElementType::f32)[0] == static_cast<double>(narrow[0]));
    CHECK(through<double>(narrow, runtime::ElementType::f64)[0] == static_cast<double>(narrow[0]));
    CHECK(through<double>(one, runtime::ElementType::bf16)[0] ==
          static_cast<double>(bfloat(narrow[0])));
  }
  std::vector<std::byte> bytes(2);
  const std::vector<float> one{1};
  CHECK_THROWS_WITH_AS(runtime::store_elements(std::span(bytes), std::span<const float>(one),
                                               runtime::ElementType::f16),
                       "weights are written as F64, F32 or BF16, not as F16", InvalidInput);
  CHECK_THROWS_WITH_AS(runtime::store_elements(std::span(bytes), std::span<const float>(one),
                                               runtime::ElementType::f32),
                       "store_elements: bytes are not those of the values, got 2", InvalidInput);
}

}  // namespace element_type_test
