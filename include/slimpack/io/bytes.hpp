// SPDX-License-Identifier: Apache-2.0
// Little-endian loads from unaligned bytes, and how readers quote and locate what they refuse.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "slimpack/core/error.hpp"

namespace slimpack {

/// The integer stored least significant byte first at `offset`, whatever the machine's own order
/// and alignment. The caller has checked that offset + sizeof(Integer) <= bytes.size().
template <std::integral Integer>
[[nodiscard]] Integer load_little(std::span<const std::byte> bytes, std::size_t offset) noexcept {
  using Word = std::make_unsigned_t<Integer>;
  std::uint64_t word = 0;
  for (std::size_t i = 0; i < sizeof(Integer); ++i) {
    word |= std::to_integer<std::uint64_t>(bytes[offset + i]) << (8 * i);
  }
  return static_cast<Integer>(static_cast<Word>(word));
}

/// `text` for a message: printable ASCII as it is, other bytes as `\xNN`, cut after 40.
[[nodiscard]] inline std::string in_quotes(std::string_view text) {
  constexpr std::string_view kHex = "0123456789abcdef";
  constexpr std::size_t kLongest = 40;
  std::string out = "'";
  for (const char character : text.substr(0, kLongest)) {
    const auto byte = static_cast<unsigned char>(character);
    if (byte >= 0x20 && byte < 0x7f) {
      out += character;
    } else {
      out += "\\x";
      out += kHex[byte / 16U];
      out += kHex[byte % 16U];
    }
  }
  return out + (text.size() > kLongest ? "...'" : "'");
}

/// Throws InvalidInput "NAME: byte OFFSET: RULE, found FOUND".
[[noreturn]] inline void refuse_byte(std::string_view name, std::size_t offset,
                                     std::string_view rule, std::string_view found) {
  throw InvalidInput(std::string(name) + ": byte " + std::to_string(offset) + ": " +
                     std::string(rule) + ", found " + std::string(found));
}

/// Throws InvalidInput "NAME:LINE: RULE, found FOUND".
[[noreturn]] inline void refuse_line(std::string_view name, std::size_t line, std::string_view rule,
                                     std::string_view found) {
  throw InvalidInput(std::string(name) + ":" + std::to_string(line) + ": " + std::string(rule) +
                     ", found " + std::string(found));
}

}  // namespace slimpack
