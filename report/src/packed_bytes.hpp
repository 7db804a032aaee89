// SPDX-License-Identifier: Apache-2.0
// Whole numbers in few bytes, as text that a page can carry.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace slimpack::report::detail {

/// Numbers one after the other, seven bits a byte, the lowest first, the top bit set in all bytes
/// of a number but its last; signed ones with the sign in the lowest bit.
class PackedBytes {
 public:
  void add(std::uint64_t value) {
    for (; value >= 0x80U; value >>= 7U) put(static_cast<unsigned>(value & 0x7FU) | 0x80U);
    put(static_cast<unsigned>(value));
  }
  void add_signed(std::int64_t value) {
    const auto bits = static_cast<std::uint64_t>(value);
    add(value < 0 ? ~(bits << 1U) : bits << 1U);
  }
  void add_size(std::size_t size) { add(static_cast<std::uint64_t>(size)); }

  [[nodiscard]] std::size_t size() const noexcept { return bytes_.size(); }

  /// Base64 with padding.
  [[nodiscard]] std::string text() const {
    constexpr std::string_view kDigits =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::string out;
    out.reserve((bytes_.size() + 2) / 3 * 4);
    for (std::size_t i = 0; i < bytes_.size(); i += 3) {
      const std::size_t left = bytes_.size() - i;
      const unsigned bits =
          byte(i) << 16U | (left > 1 ? byte(i + 1) << 8U : 0U) | (left > 2 ? byte(i + 2) : 0U);
      out += kDigits[bits >> 18U];
      out += kDigits[bits >> 12U & 63U];
      out += left > 1 ? kDigits[bits >> 6U & 63U] : '=';
      out += left > 2 ? kDigits[bits & 63U] : '=';
    }
    return out;
  }

 private:
  void put(unsigned value) { bytes_ += static_cast<char>(static_cast<unsigned char>(value)); }
  [[nodiscard]] unsigned byte(std::size_t i) const noexcept {
    return static_cast<unsigned char>(bytes_[i]);
  }
  std::string bytes_;
};

}  // namespace slimpack::report::detail
