// SPDX-License-Identifier: Apache-2.0
// Elements of stored tensors: their types, and conversions between them and float or double.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include "slimpack/core/error.hpp"
#include "slimpack/io/bytes.hpp"
#include "slimpack/plan/names.hpp"

namespace slimpack::runtime {

/// Floating-point types that weights are stored in.
enum class ElementType : std::uint8_t { f64, f32, f16, bf16 };

}  // namespace slimpack::runtime

namespace slimpack {
/// As safetensors headers name them.
template <>
inline constexpr std::array<std::string_view, 4> kWords<runtime::ElementType>{"F64", "F32", "F16",
                                                                              "BF16"};
}  // namespace slimpack

namespace slimpack::runtime {

using slimpack::from_string;
using slimpack::to_string;

/// Bytes of an element.
[[nodiscard]] constexpr std::int64_t element_bytes(ElementType type) noexcept {
  return type == ElementType::f64 ? 8 : type == ElementType::f32 ? 4 : 2;
}

/// What tensors are read into and written from.
template <class Value>
concept StoredValue = std::same_as<Value, float> || std::same_as<Value, double>;

static_assert(StoredValue<float> && !StoredValue<int>);

namespace detail {

/// The number that 16 bits of IEEE binary16 stand for; exact.
[[nodiscard]] inline float half_to_float(std::uint16_t bits) noexcept {
  const std::uint32_t sign = (bits & 0x8000U) << 16U;
  const std::uint32_t exponent = (bits >> 10U) & 0x1fU;
  const std::uint32_t fraction = bits & 0x3ffU;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000U | (fraction << 13U));
  if (exponent == 0) {
    const float size = static_cast<float>(fraction) * 0x1p-24F;
    return sign != 0 ? -size : size;
  }
  return std::bit_cast<float>(sign | ((exponent + 112U) << 23U) | (fraction << 13U));
}

/// Round to nearest, ties to even; what is not a number stays none.
[[nodiscard]] inline std::uint16_t float_to_bfloat(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value)) return static_cast<std::uint16_t>((bits >> 16U) | 0x40U);
  return static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16U) & 1U)) >> 16U);
}

/// Whether elements of `type` are the machine's own `Value`, byte by byte.
template <StoredValue Value>
[[nodiscard]] constexpr bool is_native(ElementType type) noexcept {
  return std::endian::native == std::endian::little &&
         type == (std::same_as<Value, float> ? ElementType::f32 : ElementType::f64);
}

[[nodiscard]] inline double load_element(std::span<const std::byte> bytes, ElementType type,
                                         std::size_t offset) noexcept {
  switch (type) {
    case ElementType::f64:
      return std::bit_cast<double>(load_little<std::uint64_t>(bytes, offset));
    case ElementType::f32:
      return std::bit_cast<float>(load_little<std::uint32_t>(bytes, offset));
    case ElementType::f16:
      return half_to_float(load_little<std::uint16_t>(bytes, offset));
    case ElementType::bf16:
      break;
  }
  return std::bit_cast<float>(std::uint32_t{load_little<std::uint16_t>(bytes, offset)} << 16U);
}

/// The bits of a value in `type`, in the low bytes.
template <StoredValue Value>
[[nodiscard]] std::uint64_t element_bits(Value value, ElementType type) noexcept {
  if (type == ElementType::f64) return std::bit_cast<std::uint64_t>(static_cast<double>(value));
  const auto single = static_cast<float>(value);
  if (type == ElementType::f32) return std::bit_cast<std::uint32_t>(single);
  return float_to_bfloat(single);
}

}  // namespace detail

/// Reads values.size() elements of `type` from bytes of that size; wider ones are rounded to
/// nearest, all others are exact, and float from F32 and double from F64 keep every bit. O(values).
template <StoredValue Value>
void load_elements(std::span<Value> values, std::span<const std::byte> bytes, ElementType type) {
  const auto width = static_cast<std::size_t>(element_bytes(type));
  require(bytes.size() == values.size() * width, "load_elements: bytes are not those of the values",
          static_cast<std::int64_t>(bytes.size()));
  if (detail::is_native<Value>(type)) {
    if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
    return;
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<Value>(detail::load_element(bytes, type, i * width));
  }
}

/// Writes values as elements of `type` into bytes of that size: F64, F32 or BF16, rounded to
/// nearest, ties to even (doubles by way of float). Throws InvalidInput for F16. O(values).
template <StoredValue Value>
void store_elements(std::span<std::byte> bytes, std::span<const Value> values, ElementType type) {
  const auto width = static_cast<std::size_t>(element_bytes(type));
  require(type != ElementType::f16, "weights are written as F64, F32 or BF16, not as F16");
  require(bytes.size() == values.size() * width,
          "store_elements: bytes are not those of the values",
          static_cast<std::int64_t>(bytes.size()));
  if (detail::is_native<Value>(type)) {
    if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
    return;
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint64_t bits = detail::element_bits(values[i], type);
    for (std::size_t byte = 0; byte < width; ++byte, bits >>= 8U) {
      bytes[i * width + byte] = static_cast<std::byte>(bits & 0xffU);
    }
  }
}

}  // namespace slimpack::runtime
