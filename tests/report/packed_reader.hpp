// SPDX-License-Identifier: Apache-2.0
// Reads back what detail/packed_bytes.hpp wrote, as the page's script does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace slimpack::test {

class PackedReader {
 public:
  explicit PackedReader(std::string_view base64) {
    constexpr std::string_view kDigits =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    if (base64.size() % 4 != 0) throw std::runtime_error("base64: not a multiple of four");
    unsigned bits = 0;
    int held = 0;
    for (const char digit : base64.substr(0, base64.find('='))) {
      const std::size_t value = kDigits.find(digit);
      if (value == std::string_view::npos) throw std::runtime_error("base64: a stray character");
      bits = bits << 6U | static_cast<unsigned>(value);
      held += 6;
      if (held < 8) continue;
      held -= 8;
      bytes_ += static_cast<char>(static_cast<unsigned char>(bits >> held & 0xFFU));
    }
  }

  [[nodiscard]] std::uint64_t number() {
    std::uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      if (at_ == bytes_.size() || shift > 63) throw std::runtime_error("packed bytes: cut short");
      const auto byte = static_cast<unsigned char>(bytes_[at_++]);
      value |= static_cast<std::uint64_t>(byte & 0x7FU) << shift;
      if (byte < 0x80U) return value;
    }
  }
  [[nodiscard]] std::int64_t whole() {
    const std::uint64_t bits = number();
    return static_cast<std::int64_t>(bits & 1U ? ~(bits >> 1U) : bits >> 1U);
  }
  [[nodiscard]] bool done() const noexcept { return at_ == bytes_.size(); }

 private:
  std::string bytes_;
  std::size_t at_ = 0;
};

}  // namespace slimpack::test
