// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "slimpack/core/random.hpp"
#include "slimpack_cuda/bf16.hpp"

namespace bf16_test {

using namespace slimpack;
using namespace slimpack::cuda;

TEST_CASE("to_bf16: every bf16 survives the way through float") {
  for (std::uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const Bf16 value{static_cast<std::uint16_t>(bits)};
    if (std::isnan(to_float(value))) {
      CHECK(to_bf16(to_float(value)) == Bf16{0x7fff});
    } else {
      CHECK(to_bf16(to_float(value)) == value);
    }
  }
}

TEST_CASE("to_bf16: the nearest number, of two the even one") {
  CHECK(to_bf16(1.0F + 1.0F / 256).bits == 0x3f80);  // between 1 and 1 + 1/128
  CHECK(to_bf16(1.0F + 3.0F / 256).bits == 0x3f82);
  CHECK(to_bf16(std::nextafter(1.0F + 1.0F / 256, 2.0F)).bits == 0x3f81);
  CHECK(to_bf16(std::numeric_limits<float>::max()) ==
        to_bf16(std::numeric_limits<float>::infinity()));
  CHECK(to_bf16(-0.0F).bits == 0x8000);
  Random random(3);
  for (int draw = 0; draw < 10'000; ++draw) {
    const auto bits = static_cast<std::uint32_t>(random.between(0, 0x7f00'0000));
    const auto value = std::bit_cast<float>(bits);
    const float below = std::bit_cast<float>(bits & 0xffff'0000U);
    const float above = std::bit_cast<float>((bits & 0xffff'0000U) + 0x1'0000U);
    const float near = to_float(to_bf16(value));
    CHECK((near == below || near == above));
    CHECK(std::abs(near - value) <= std::min(value - below, above - value));
  }
}

}  // namespace bf16_test
