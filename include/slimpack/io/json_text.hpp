// SPDX-License-Identifier: Apache-2.0
// Writes JSON text piece by piece, with commas placed and numbers that read back exactly.
#pragma once

#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"

namespace slimpack {

/// Bytes of the UTF-8 sequence that begins `text`, 0 where it is none (RFC 3629: no overlong form,
/// no surrogate, at most U+10FFFF).
[[nodiscard]] inline std::size_t utf8_sequence(std::string_view text) noexcept {
  const auto byte = [text](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return 1;
  const std::size_t size = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < size) return 0;
  for (std::size_t i = 1; i < size; ++i) {
    if (byte(i) < 0x80 || byte(i) > 0xbf) return 0;
  }
  const unsigned second = byte(1);
  const bool bad = (lead == 0xe0 && second < 0xa0) || (lead == 0xed && second > 0x9f) ||
                   (lead == 0xf0 && second < 0x90) || (lead == 0xf4 && second > 0x8f);
  return bad ? 0 : size;
}

/// Appends to one string; a comma goes before every key and value but the first of its bracket.
class JsonText {
 public:
  JsonText& open(char bracket) {
    separate();
    text_ += bracket;
    comma_ = false;
    return *this;
  }
  JsonText& close(char bracket) {
    text_ += bracket;
    comma_ = true;
    return *this;
  }
  /// A closing bracket on a line of its own.
  JsonText& close_line(char bracket, std::size_t indent) {
    text_ += '\n';
    text_.append(indent, ' ');
    return close(bracket);
  }
  JsonText& key(std::string_view name) {
    text(name);
    text_ += ": ";
    comma_ = false;
    return *this;
  }
  /// A line break before what comes next.
  JsonText& line(std::size_t indent) {
    text_ += comma_ ? ",\n" : "\n";
    text_.append(indent, ' ');
    comma_ = false;
    return *this;
  }

  JsonText& integer(std::int64_t value) {
    separate();
    text_ += std::to_string(value);
    comma_ = true;
    return *this;
  }
  JsonText& boolean(bool value) { return word(value ? "true" : "false"); }

  /// The shortest decimals that read back as the same value. Throws InvalidInput if not finite.
  JsonText& real(double value) {
    require(std::isfinite(value), "JSON holds finite numbers only");
    std::array<char, 32> digits{};
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
    return word(std::string_view(digits.data(), static_cast<std::size_t>(end - digits.data())));
  }

  /// Seconds, exact to the nanosecond. Throws InvalidInput outside 0 .. 8388608 s, where reading
  /// would round.
  JsonText& time(Nanos value) {
    constexpr std::int64_t kSecond = 1'000'000'000;
    require(value.value >= 0 && value.value <= 8388608 * kSecond,
            "a time in a file must be in 0 .. 8388608 s, in nanoseconds", value.value);
    std::string decimals = std::to_string(kSecond + value.value % kSecond).substr(1);
    while (decimals.size() > 1 && decimals.back() == '0') decimals.pop_back();
    return word(std::to_string(value.value / kSecond) + "." + decimals);
  }

  /// A string; bytes that are not UTF-8 become U+FFFD.
  JsonText& text(std::string_view value) {
    constexpr std::string_view kHex = "0123456789abcdef";
    separate();
    text_ += '"';
    while (!value.empty()) {
      const char character = value.front();
      const auto byte = static_cast<unsigned char>(character);
      const std::size_t size = utf8_sequence(value);
      if (size == 0) {
        text_ += "\\ufffd";
      } else if (character == '"' || character == '\\') {
        text_ += '\\';
        text_ += character;
      } else if (byte < 0x20 || byte == 0x7f) {
        text_ += "\\u00";
        text_ += kHex[byte / 16U];
        text_ += kHex[byte % 16U];
      } else {
        text_ += value.substr(0, size);
      }
      value.remove_prefix(size == 0 ? 1 : size);
    }
    text_ += '"';
    comma_ = true;
    return *this;
  }

  /// Text that is JSON already.
  JsonText& word(std::string_view value) {
    separate();
    text_ += value;
    comma_ = true;
    return *this;
  }

  [[nodiscard]] std::string take() { return std::move(text_); }

 private:
  void separate() {
    if (comma_) text_ += ", ";
  }

  std::string text_;
  bool comma_ = false;
};

}  // namespace slimpack
