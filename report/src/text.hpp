// SPDX-License-Identifier: Apache-2.0
// Text as report writers need it: buffered output, exact decimals, readable amounts, escaped names.
#pragma once

#include <array>
#include <charconv>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>

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
[[nodiscard]] std::string decimal(std::int64_t value, int decimals);

/// The same without zeros at the end of the fraction: "1.5", "2", for coordinates.
[[nodiscard]] std::string short_decimal(std::int64_t value, int decimals);

/// Seconds with nine decimals.
[[nodiscard]] std::string seconds_text(Nanos time);

/// Microseconds with three decimals.
[[nodiscard]] std::string micros_text(Nanos time);

/// The shortest decimal that reads back as the same double; "0" for what is not finite.
[[nodiscard]] std::string shortest(double value);

/// A double with fixed decimals, for tables and labels.
[[nodiscard]] std::string fixed(double value, int decimals);

/// A fraction as a percentage with one decimal: "93.1 %".
[[nodiscard]] std::string percent(double fraction);

/// Four digits of value x 10^exponent (exponent a multiple of 3, from -9 on) with the prefix that
/// fits, in powers of ten: scaled(12340, -9, "s") is "12.34 us". Rounded half up; what is below
/// 1000 of its own unit is written whole.
[[nodiscard]] std::string scaled(std::int64_t value, int exponent, std::string_view unit);

/// Without a prefix above the second: "9928.1 s".
[[nodiscard]] std::string time_text(Nanos time);

[[nodiscard]] std::string bytes_text(Bytes bytes);

[[nodiscard]] std::string count_text(std::int64_t count);

/// A count that may have a fraction: "0.4", "152.8 K".
[[nodiscard]] std::string rate_text(double rate);

/// `text` as XML character data or attribute value; what XML 1.0 does not allow becomes U+FFFD.
[[nodiscard]] std::string xml_escaped(std::string_view text);

/// At most `most` characters of a name, the last an ellipsis where it was longer.
[[nodiscard]] std::string clipped(std::string_view text, std::size_t most);

/// `text` on one line of a file where `#` lines are comments.
[[nodiscard]] std::string one_line(std::string_view text);

}  // namespace slimpack::report::detail
