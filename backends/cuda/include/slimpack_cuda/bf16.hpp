// SPDX-License-Identifier: Apache-2.0
// The 16-bit number that activations and weights are stored in.
#pragma once

#include <bit>
#include <cstdint>

namespace slimpack::cuda {

/// The upper half of an IEEE single: 8 bits of exponent, 7 of mantissa. Storage only; layout and
/// alignment are those of __nv_bfloat16.
struct Bf16 {
  std::uint16_t bits = 0;
  friend constexpr bool operator==(Bf16, Bf16) noexcept = default;
};

/// Exact.
[[nodiscard]] constexpr float to_float(Bf16 value) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16U);
}

/// The nearest number, of two the even one, as `cvt.rn.bf16.f32` does. Every NaN becomes the quiet
/// one that the instruction gives.
[[nodiscard]] constexpr Bf16 to_bf16(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fff'ffffU) > 0x7f80'0000U) return {0x7fff};
  const std::uint32_t odd = (bits >> 16U) & 1U;
  return {static_cast<std::uint16_t>((bits + 0x7fffU + odd) >> 16U)};
}

}  // namespace slimpack::cuda
