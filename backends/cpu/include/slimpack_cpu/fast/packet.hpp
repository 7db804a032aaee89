// SPDX-License-Identifier: Apache-2.0
// Runs of floats as wide as the machine's vector registers, over Eigen's packets.
#pragma once

#include <Eigen/Core>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>

// Vector types carry attributes that a template argument does not: all such uses are in this file.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wignored-attributes"

namespace slimpack::cpu::fast {

/// As many floats as a register of the machine holds, by Eigen.
using Packet = Eigen::internal::packet_traits<float>::type;
/// Floats in a packet: 16, 8 or 4, as the compiler was told about the machine.
inline constexpr std::int64_t kLanes = Eigen::internal::packet_traits<float>::size;
/// Bytes at whose multiples buffers of packets begin.
inline constexpr std::size_t kAlignment = 64;

/// The packet at `from`, which need not be aligned.
inline Packet load(const float* from) {
  return Eigen::internal::ploadu<Packet>(from);
}
/// Writes a packet to `into`, which need not be aligned.
inline void store(float* into, const Packet& packet) {
  Eigen::internal::pstoreu(into, packet);
}
/// A packet of equal floats.
inline Packet all(float value) {
  return Eigen::internal::pset1<Packet>(value);
}
/// a + b, float by float.
inline Packet sum(const Packet& a, const Packet& b) {
  return Eigen::internal::padd(a, b);
}
/// a - b, float by float.
inline Packet difference(const Packet& a, const Packet& b) {
  return Eigen::internal::psub(a, b);
}
/// a * b, float by float.
inline Packet product(const Packet& a, const Packet& b) {
  return Eigen::internal::pmul(a, b);
}
/// a / b, float by float.
inline Packet quotient(const Packet& a, const Packet& b) {
  return Eigen::internal::pdiv(a, b);
}
/// a * b + c
inline Packet multiply_add(const Packet& a, const Packet& b, const Packet& c) {
  return Eigen::internal::pmadd(a, b, c);
}
/// The larger of a and b, float by float.
inline Packet larger(const Packet& a, const Packet& b) {
  return Eigen::internal::pmax(a, b);
}
/// The square roots of a.
inline Packet root(const Packet& a) {
  return Eigen::internal::psqrt(a);
}
/// The sum of the floats of a.
inline float sum_of(const Packet& a) {
  return Eigen::internal::predux(a);
}
/// The largest float of a.
inline float largest_of(const Packet& a) {
  return Eigen::internal::predux_max(a);
}

/// The logarithm of e to base 2.
inline constexpr float kLog2E = 1.4426950408889634F;
/// The natural logarithm of 2.
inline constexpr float kLn2 = 0.6931471805599453F;

/// 2^x to 2 ulp; 0 up to -127, between 0 and 2^-125 up to -126, 2^127 above 127; NaN stays NaN.
/// With n the nearest integer it is 2^n * 2^(x - n), the second factor by interpolation at
/// Chebyshev's points of [-1/2, 1/2].
inline Packet exp2(const Packet& x) {
  namespace simd = Eigen::internal;
  using Integers = simd::unpacket_traits<Packet>::integer_packet;
  // The first argument comes through where it is no number. 2^-127 loses all its bits below.
  const Packet clamped = simd::pmin(simd::pmax(x, all(-127.0F)), all(127.0F));
  const Packet magic = all(12582912.0F);  // 1.5 * 2^23: the sum's last bits are the integer
  const Packet shifted = sum(clamped, magic);
  const Packet f = difference(clamped, difference(shifted, magic));
  Packet value = all(0.00015453163359779865F);
  value = multiply_add(value, f, all(0.0013390863314270973F));
  value = multiply_add(value, f, all(0.009618083015084267F));
  value = multiply_add(value, f, all(0.055503569543361664F));
  value = multiply_add(value, f, all(0.24022650718688965F));
  value = multiply_add(value, f, all(0.6931471824645996F));
  value = multiply_add(value, f, all(1.0F));
  const Integers power = simd::plogical_shift_left<23>(simd::preinterpret<Integers>(shifted));
  return simd::preinterpret<Packet>(simd::padd(simd::preinterpret<Integers>(value), power));
}

/// Loads and stores whole packets.
struct Whole {
  /// kLanes floats from `from` on.
  static Packet load(const float* from) { return fast::load(from); }
  /// kLanes floats to `into` and behind.
  static void store(float* into, const Packet& packet) { fast::store(into, packet); }
};
/// Loads and stores the first `count` lanes.
struct Part {
  std::size_t count = 0;  ///< 0 .. kLanes
  /// `count` floats from `from` on, no others are read; the other lanes are zero.
  [[nodiscard]] Packet load(const float* from) const {
    alignas(kAlignment) float lanes[kLanes] = {};
    std::memcpy(lanes, from, count * sizeof(float));
    return fast::load(lanes);
  }
  /// `count` floats to `into` and behind, no others are written.
  void store(float* into, const Packet& packet) const {
    alignas(kAlignment) float lanes[kLanes];
    fast::store(lanes, packet);
    std::memcpy(into, lanes, count * sizeof(float));
  }
};

/// Calls body(first element, Whole or Part) for `count` elements from front to back.
template <class Body>
  requires std::invocable<Body&, std::int64_t, Whole> && std::invocable<Body&, std::int64_t, Part>
inline void for_packets(std::int64_t count, Body body) {
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) body(i, Whole{});
  if (i < count) body(i, Part{static_cast<std::size_t>(count - i)});
}

/// into[col * into_stride + row] = from[row * from_stride + col] of a square of kLanes rows.
inline void transpose_square(float* into, std::int64_t into_stride, const float* from,
                             std::int64_t from_stride) {
  Eigen::internal::PacketBlock<Packet, static_cast<int>(kLanes)> block;
  for (std::int64_t row = 0; row < kLanes; ++row) {
    block.packet[row] = load(from + row * from_stride);
  }
  Eigen::internal::ptranspose(block);
  for (std::int64_t col = 0; col < kLanes; ++col) {
    store(into + col * into_stride, block.packet[col]);
  }
}

}  // namespace slimpack::cpu::fast

#pragma GCC diagnostic pop
