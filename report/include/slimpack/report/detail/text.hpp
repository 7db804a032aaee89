// SPDX-License-Identifier: Apache-2.0
// Text as report writers need it: buffered output, exact decimals, readable amounts, escaped names.
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>
#include <system_error>

#include "slimpack/core/units.hpp"

namespace slimpack::report::detail {

/// Collects text and hands it to a stream in large pieces. Numbers are written by std::to_chars, so
/// no locale and no stream flag changes them.
class TextWriter {
 public:
  explicit TextWriter(std::ostream& out) : out_(&out) { text_.reserve(kPiece + 4096); }
  TextWriter(const TextWriter&) = delete;
  TextWriter& operator=(const TextWriter&) = delete;
  ~TextWriter() { flush(); }

  void flush() {
    out_->write(text_.data(), static_cast<std::streamsize>(text_.size()));
    text_.clear();
  }
  TextWriter& operator<<(std::string_view text) {
    text_.append(text);
    if (text_.size() >= kPiece) flush();
    return *this;
  }
  TextWriter& operator<<(const char* text) { return *this << std::string_view(text); }
  TextWriter& operator<<(char text) {
    text_.push_back(text);
    return *this;
  }
  template <std::integral Integer>
    requires(!std::same_as<Integer, char> && !std::same_as<Integer, bool>)
  TextWriter& operator<<(Integer value) {
    std::array<char, 24> digits;
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
    return *this << std::string_view(digits.data(), static_cast<std::size_t>(end - digits.data()));
  }

 private:
  static constexpr std::size_t kPiece = std::size_t{1} << 16U;
  std::ostream* out_;
  std::string text_;
};

/// An integer amount of 10^-decimals, all decimals written: decimal(1234, 2) is "12.34".
[[nodiscard]] inline std::string decimal(std::int64_t value, int decimals) {
  const bool negative = value < 0;
  const auto magnitude = negative ? ~static_cast<std::uint64_t>(value) + 1U  // also for INT64_MIN
                                  : static_cast<std::uint64_t>(value);
  std::string digits = std::to_string(magnitude);
  const auto places = static_cast<std::size_t>(decimals);
  if (digits.size() <= places) digits.insert(0, places + 1 - digits.size(), '0');
  if (places > 0) digits.insert(digits.size() - places, 1, '.');
  return negative ? "-" + digits : digits;
}

/// The same without zeros at the end of the fraction: "1.5", "2", for coordinates.
[[nodiscard]] inline std::string short_decimal(std::int64_t value, int decimals) {
  std::string text = decimal(value, decimals);
  if (decimals == 0) return text;
  while (text.back() == '0') text.pop_back();
  if (text.back() == '.') text.pop_back();
  return text == "-0" ? "0" : text;
}

/// Seconds with nine decimals.
[[nodiscard]] inline std::string seconds_text(Nanos time) {
  return decimal(time.value, 9);
}
/// Microseconds with three decimals.
[[nodiscard]] inline std::string micros_text(Nanos time) {
  return decimal(time.value, 3);
}

/// The shortest decimal that reads back as the same double; "0" for what is not finite.
[[nodiscard]] inline std::string shortest(double value) {
  if (!(value - value == 0.0)) return "0";
  std::array<char, 32> digits;
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
  return {digits.data(), end};
}

/// A double with fixed decimals, for tables and labels.
[[nodiscard]] inline std::string fixed(double value, int decimals) {
  if (!(value - value == 0.0)) return "-";
  std::array<char, 400> digits;
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value,
                                 std::chars_format::fixed, decimals);
  return end.ec == std::errc{} ? std::string(digits.data(), end.ptr) : std::string("-");
}

/// A fraction as a percentage with one decimal: "93.1 %".
[[nodiscard]] inline std::string percent(double fraction) {
  return fixed(fraction * 100, 1) + " %";
}

/// Four digits of value x 10^exponent (exponent a multiple of 3, from -9 on) with the prefix that
/// fits, in powers of ten: scaled(12340, -9, "s") is "12.34 us". Rounded half up; what is below
/// 1000 of its own unit is written whole.
[[nodiscard]] inline std::string scaled(std::int64_t value, int exponent, std::string_view unit) {
  constexpr std::array<std::string_view, 9> kPrefixes{"n", "u", "m", "", "K", "M", "G", "T", "P"};
  const bool negative = value < 0;
  const auto magnitude =
      negative ? ~static_cast<std::uint64_t>(value) + 1U : static_cast<std::uint64_t>(value);
  auto place = static_cast<std::size_t>((exponent + 9) / 3);
  std::uint64_t rounded = magnitude;
  int decimals = 0;
  for (std::uint64_t scale = 1; rounded >= 1000 && place + 1 < kPrefixes.size();) {
    scale *= 1000;
    ++place;
    decimals = 4;
    do {
      --decimals;
      const std::uint64_t step = scale / (decimals == 3 ? 1000U : decimals == 2 ? 100U : 10U);
      rounded = magnitude / step + (magnitude % step >= step - step / 2 ? 1U : 0U);
    } while (rounded >= 10000 && decimals > 1);
    if (rounded < 10000 || scale >= 1000000000000000000U) break;
  }
  std::string text = decimal(static_cast<std::int64_t>(rounded), decimals) + ' ';
  text += kPrefixes[place];
  text += unit;
  if (text.back() == ' ') text.pop_back();
  return negative ? "-" + text : text;
}
/// Without a prefix above the second: "9928.1 s".
[[nodiscard]] inline std::string time_text(Nanos time) {
  if (time.value < 999950000000 && time.value > -999950000000) return scaled(time.value, -9, "s");
  constexpr std::int64_t kTenth = 100000000;
  const std::int64_t rest = time.value % kTenth;
  const std::int64_t up = rest >= kTenth / 2 ? 1 : rest <= -kTenth / 2 ? -1 : 0;
  return decimal(time.value / kTenth + up, 1) + " s";
}
[[nodiscard]] inline std::string bytes_text(Bytes bytes) {
  return scaled(bytes.value, 0, "B");
}
[[nodiscard]] inline std::string count_text(std::int64_t count) {
  return scaled(count, 0, "");
}

/// A count that may have a fraction: "0.4", "152.8 K".
[[nodiscard]] inline std::string rate_text(double rate) {
  if (!(rate >= 0) || rate >= 9e18) return "-";
  return rate < 1000 ? fixed(rate, 1) : count_text(std::llround(rate));
}

/// Length of the well-formed UTF-8 character at the head of `text`, 0 if there is none.
[[nodiscard]] inline std::size_t utf8_length(std::string_view text) noexcept {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const auto follows = [&](std::size_t i, unsigned low = 0x80U, unsigned high = 0xBFU) {
    return i < text.size() && byte(i) >= low && byte(i) <= high;
  };
  if (text.empty()) return 0;
  const unsigned head = byte(0);
  if (head < 0x80U) return 1;
  if (head >= 0xC2U && head <= 0xDFU) return follows(1) ? 2 : 0;
  if (head >= 0xE0U && head <= 0xEFU) {
    const unsigned low = head == 0xE0U ? 0xA0U : 0x80U;
    const unsigned high = head == 0xEDU ? 0x9FU : 0xBFU;
    return follows(1, low, high) && follows(2) ? 3 : 0;
  }
  if (head >= 0xF0U && head <= 0xF4U) {
    const unsigned low = head == 0xF0U ? 0x90U : 0x80U;
    const unsigned high = head == 0xF4U ? 0x8FU : 0xBFU;
    return follows(1, low, high) && follows(2) && follows(3) ? 4 : 0;
  }
  return 0;
}

/// U+FFFD, in place of what is not UTF-8 or not allowed in the file.
inline constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

/// `text` as the inside of a JSON string: always valid JSON, whatever bytes come in.
[[nodiscard]] inline std::string json_escaped(std::string_view text) {
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string out;
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    const auto head = static_cast<unsigned char>(text.front());
    if (length == 0) {
      out += kReplacement;
    } else if (head == '"' || head == '\\') {
      out += '\\';
      out += text.front();
    } else if (head < 0x20U || head == 0x7FU) {
      out += "\\u00";
      out += kHex[head >> 4U];
      out += kHex[head & 15U];
    } else {
      out += text.substr(0, length);
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return out;
}

/// `text` as XML character data or attribute value; what XML 1.0 does not allow becomes U+FFFD.
[[nodiscard]] inline std::string xml_escaped(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    const auto head = static_cast<unsigned char>(text.front());
    const std::string_view character = text.substr(0, length);
    if (length == 0 || (head < 0x20U && head != '\t' && head != '\n') ||
        character == "\xEF\xBF\xBE" || character == "\xEF\xBF\xBF") {
      out += kReplacement;
    } else if (head == '&') {
      out += "&amp;";
    } else if (head == '<') {
      out += "&lt;";
    } else if (head == '>') {
      out += "&gt;";
    } else if (head == '"') {
      out += "&quot;";
    } else {
      out += character;
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return out;
}

/// At most `most` characters of a name, the last an ellipsis where it was longer.
[[nodiscard]] inline std::string clipped(std::string_view text, std::size_t most) {
  std::string out;
  for (std::size_t characters = 1; !text.empty(); ++characters) {
    const std::size_t length = std::max<std::size_t>(1, utf8_length(text));
    if (characters == most && text.size() > length) return out + "\xE2\x80\xA6";
    out += text.substr(0, length);
    text.remove_prefix(length);
  }
  return out;
}

/// `text` on one line of a file where `#` lines are comments.
[[nodiscard]] inline std::string one_line(std::string_view text) {
  std::string out(text);
  for (char& character : out) {
    if (static_cast<unsigned char>(character) < 0x20U) character = ' ';
  }
  return out;
}

}  // namespace slimpack::report::detail
