// SPDX-License-Identifier: Apache-2.0
// One-dimensional NumPy arrays of integers, as bytes to be written to a `.npy` file.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>

namespace slimpack {

/// Integers that NumPy arrays are written with: int32 and int64.
template <class Integer>
concept NpyInteger = std::same_as<Integer, std::int32_t> || std::same_as<Integer, std::int64_t>;

static_assert(NpyInteger<std::int64_t> && !NpyInteger<float>);

/// The bytes of a `.npy` file, format 1.0, little endian; `numpy.load` reads it. O(values).
template <NpyInteger Integer>
[[nodiscard]] std::string npy_bytes(std::span<const Integer> values) {
  std::string header = "{'descr': '<i" + std::to_string(sizeof(Integer)) +
                       "', 'fortran_order': False, 'shape': (" + std::to_string(values.size()) +
                       ",), }";
  constexpr std::size_t kStart = 10;
  constexpr std::size_t kAlignment = 64;  // of the data, as the format asks for
  while ((kStart + header.size() + 1) % kAlignment != 0) header += ' ';
  header += '\n';

  std::string bytes = "\x93NUMPY";
  bytes += '\x01';
  bytes += '\x00';
  bytes += static_cast<char>(header.size() % 256);
  bytes += static_cast<char>(header.size() / 256);
  bytes += header;
  bytes.reserve(bytes.size() + values.size() * sizeof(Integer));
  for (const Integer value : values) {
    auto word = static_cast<std::make_unsigned_t<Integer>>(value);
    for (std::size_t k = 0; k < sizeof(Integer); ++k) {
      bytes += static_cast<char>(static_cast<unsigned char>(word & 0xffU));
      word = static_cast<std::make_unsigned_t<Integer>>(word >> 8U);
    }
  }
  return bytes;
}

}  // namespace slimpack
