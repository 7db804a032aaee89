// SPDX-License-Identifier: Apache-2.0
#include "text.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>

#include "slimpack/core/units.hpp"
#include "slimpack/io/json_writer.hpp"

namespace slimpack::report::detail {

namespace {

/// U+FFFD, in place of what is not UTF-8 or not allowed in the file.
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

}  // namespace

std::string decimal(std::int64_t value, int decimals) {
  const bool negative = value < 0;
  const auto magnitude = negative ? ~static_cast<std::uint64_t>(value) + 1U  // also for INT64_MIN
                                  : static_cast<std::uint64_t>(value);
  std::string digits = std::to_string(magnitude);
  const auto places = static_cast<std::size_t>(decimals);
  if (digits.size() <= places) digits.insert(0, places + 1 - digits.size(), '0');
  if (places > 0) digits.insert(digits.size() - places, 1, '.');
  return negative ? "-" + digits : digits;
}

std::string short_decimal(std::int64_t value, int decimals) {
  std::string text = decimal(value, decimals);
  if (decimals == 0) return text;
  while (text.back() == '0') text.pop_back();
  if (text.back() == '.') text.pop_back();
  return text == "-0" ? "0" : text;
}

std::string seconds_text(Nanos time) {
  return decimal(time.value, 9);
}

std::string micros_text(Nanos time) {
  return decimal(time.value, 3);
}

std::string shortest(double value) {
  if (!std::isfinite(value)) return "0";
  std::array<char, 32> digits;
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
  return {digits.data(), end};
}

std::string fixed(double value, int decimals) {
  if (!std::isfinite(value)) return "-";
  std::array<char, 400> digits;
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value,
                                 std::chars_format::fixed, decimals);
  return end.ec == std::errc{} ? std::string(digits.data(), end.ptr) : std::string("-");
}

std::string percent(double fraction) {
  return fixed(fraction * 100, 1) + " %";
}

std::string scaled(std::int64_t value, int exponent, std::string_view unit) {
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

std::string time_text(Nanos time) {
  if (time.value < 999950000000 && time.value > -999950000000) return scaled(time.value, -9, "s");
  constexpr std::int64_t kTenth = 100000000;
  const std::int64_t rest = time.value % kTenth;
  const std::int64_t up = rest >= kTenth / 2 ? 1 : rest <= -kTenth / 2 ? -1 : 0;
  return decimal(time.value / kTenth + up, 1) + " s";
}

std::string bytes_text(Bytes bytes) {
  return scaled(bytes.value, 0, "B");
}

std::string count_text(std::int64_t count) {
  return scaled(count, 0, "");
}

std::string rate_text(double rate) {
  if (!(rate >= 0) || rate >= 9e18) return "-";
  return rate < 1000 ? fixed(rate, 1) : count_text(std::llround(rate));
}

std::string xml_escaped(std::string_view text) {
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

std::string clipped(std::string_view text, std::size_t most) {
  std::string out;
  for (std::size_t characters = 1; !text.empty(); ++characters) {
    const std::size_t length = std::max<std::size_t>(1, utf8_length(text));
    if (characters == most && text.size() > length) return out + "\xE2\x80\xA6";
    out += text.substr(0, length);
    text.remove_prefix(length);
  }
  return out;
}

std::string one_line(std::string_view text) {
  std::string out(text);
  for (char& character : out) {
    if (static_cast<unsigned char>(character) < 0x20U) character = ' ';
  }
  return out;
}

}  // namespace slimpack::report::detail
