// SPDX-License-Identifier: Apache-2.0
// Writes one JSON document piece by piece, with commas placed and numbers that read back exactly.
#pragma once

#include <array>
#include <charconv>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"

namespace slimpack {

/// Bytes of the UTF-8 character that begins `text`; 0 where there is none (RFC 3629: no overlong
/// form, no surrogate, at most U+10FFFF).
[[nodiscard]] inline std::size_t utf8_length(std::string_view text) noexcept {
  if (text.empty()) return 0;
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

/// `text` as the inside of a JSON string. Bytes that are not UTF-8 become U+FFFD, so that the
/// result is valid whatever comes in. O(text).
[[nodiscard]] inline std::string json_escaped(std::string_view text) {
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string out;
  while (!text.empty()) {
    const char character = text.front();
    const auto byte = static_cast<unsigned char>(character);
    const std::size_t size = utf8_length(text);
    if (size == 0) {
      out += "\\ufffd";
    } else if (character == '"' || character == '\\') {
      out += '\\';
      out += character;
    } else if (byte < 0x20 || byte == 0x7f) {
      out += "\\u00";
      out += kHex[byte / 16U];
      out += kHex[byte % 16U];
    } else {
      out += text.substr(0, size);
    }
    text.remove_prefix(size == 0 ? 1 : size);
  }
  return out;
}

/// How the members of an object or array are laid out.
enum class JsonLayout : std::uint8_t {
  lines,  ///< each on a line of its own, indented by one space a level
  flat    ///< on one line, up to `JsonWriter::line`; holds for all that is inside
};

/// What `JsonWriter::member` takes.
template <class Value>
concept JsonValue = std::integral<Value> || std::convertible_to<Value, std::string_view> ||
                    std::same_as<Value, double> || std::same_as<Value, Nanos> ||
                    std::same_as<Value, Bytes> || std::same_as<Value, Tokens>;

/// One JSON document, written in order. It collects in memory (`take`), or hands its text to a
/// stream in large pieces (`finish`), so that large documents need no memory.
///
///     JsonWriter json(out);
///     json.begin_object();
///     json.member("planner", plan.planner).member("iteration_s", time);
///     json.key("ranks").begin_array(JsonLayout::flat);
///     for (const int rank : ranks) json.number(rank);
///     json.end_array().end_object().finish();
///
/// The caller opens and closes in order and gives a key before each member of an object. Numbers
/// are written without a locale: the same values give the same bytes everywhere.
class JsonWriter {
 public:
  /// Collects the text until `take`.
  JsonWriter() = default;
  /// Writes to `out`, which must outlive this object; complete only after `finish`.
  explicit JsonWriter(std::ostream& out) : out_(&out) {}
  JsonWriter(const JsonWriter&) = delete;
  JsonWriter& operator=(const JsonWriter&) = delete;
  ~JsonWriter() = default;

  /// Opens an object; close it with `end_object`.
  JsonWriter& begin_object(JsonLayout layout = JsonLayout::lines) { return open('{', layout); }
  /// Closes the object that was opened last.
  JsonWriter& end_object() { return close('}'); }
  /// Opens an array; close it with `end_array`.
  JsonWriter& begin_array(JsonLayout layout = JsonLayout::lines) { return open('[', layout); }
  /// Closes the array that was opened last.
  JsonWriter& end_array() { return close(']'); }

  /// The key of the member that comes next.
  JsonWriter& key(std::string_view name) {
    text(name);
    text_ += ": ";
    keyed_ = true;
    return *this;
  }
  /// Begins a line with `indent` spaces before the next member or closing bracket.
  JsonWriter& line(std::size_t indent) {
    indent_ = indent;
    return *this;
  }

  /// A string.
  JsonWriter& text(std::string_view value) {
    separate();
    text_ += '"';
    text_ += json_escaped(value);
    text_ += '"';
    return *this;
  }
  /// The shortest decimals that read back as the same value. Throws InvalidInput if not finite.
  JsonWriter& number(double value) {
    require(std::isfinite(value), "JSON holds finite numbers only");
    std::array<char, 32> digits;
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
    return raw({digits.data(), static_cast<std::size_t>(end - digits.data())});
  }
  /// A whole number in decimal digits.
  template <std::integral Integer>
    requires(!std::same_as<Integer, bool> && !std::same_as<Integer, char>)
  JsonWriter& number(Integer value) {
    std::array<char, 24> digits;
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
    return raw({digits.data(), static_cast<std::size_t>(end - digits.data())});
  }
  /// `true` or `false`.
  JsonWriter& boolean(bool value) { return raw(value ? "true" : "false"); }
  /// `null`.
  JsonWriter& null() { return raw("null"); }
  /// Seconds with nine decimals, exact to the nanosecond.
  JsonWriter& time(Nanos value) {
    const bool negative = value < Nanos{};
    const auto magnitude = negative ? ~static_cast<std::uint64_t>(value.value) + 1U
                                    : static_cast<std::uint64_t>(value.value);
    const std::string decimals = std::to_string(kSecond + magnitude % kSecond).substr(1);
    return raw((negative ? "-" : "") + std::to_string(magnitude / kSecond) + "." + decimals);
  }
  /// Seconds with as few decimals as are exact, at least one. Throws InvalidInput outside of
  /// 0 .. 8388608 s, where reading them as a double would round.
  JsonWriter& short_time(Nanos value) {
    require(value >= Nanos{} && value.value <= 8388608 * static_cast<std::int64_t>(kSecond),
            "a time in a file must be in 0 .. 8388608 s, in nanoseconds", value.value);
    const auto nanos = static_cast<std::uint64_t>(value.value);
    std::string decimals = std::to_string(kSecond + nanos % kSecond).substr(1);
    while (decimals.size() > 1 && decimals.back() == '0') decimals.pop_back();
    return raw(std::to_string(nanos / kSecond) + "." + decimals);
  }
  /// Text that is JSON already.
  JsonWriter& raw(std::string_view json) {
    separate();
    text_ += json;
    return *this;
  }

  /// A key and a string.
  JsonWriter& member(std::string_view name, std::string_view value) {
    return key(name).text(value);
  }
  /// A key and a string, which would otherwise become a bool.
  JsonWriter& member(std::string_view name, const char* value) { return key(name).text(value); }
  /// A key and a number, as `number` writes it. Throws InvalidInput if it is not finite.
  JsonWriter& member(std::string_view name, double value) { return key(name).number(value); }
  /// A key and `true` or `false`.
  JsonWriter& member(std::string_view name, bool value) { return key(name).boolean(value); }
  /// A key and seconds, as `time` writes them.
  JsonWriter& member(std::string_view name, Nanos value) { return key(name).time(value); }
  /// A key and a whole number of bytes.
  JsonWriter& member(std::string_view name, Bytes value) { return key(name).number(value.value); }
  /// A key and a whole number of tokens.
  JsonWriter& member(std::string_view name, Tokens value) { return key(name).number(value.value); }
  /// A key and a whole number.
  template <std::integral Integer>
    requires(!std::same_as<Integer, bool> && !std::same_as<Integer, char>)
  JsonWriter& member(std::string_view name, Integer value) {
    return key(name).number(value);
  }
  /// A key and its value; null where the value is absent.
  template <JsonValue Value>
  JsonWriter& member(std::string_view name, const std::optional<Value>& value) {
    return value ? member(name, *value) : key(name).null();
  }

  /// Ends the document with a line feed and hands all of it to the stream.
  void finish() {
    SLIMPACK_ASSERT(levels_.empty() && !keyed_ && out_ != nullptr);
    text_ += '\n';
    flush();
  }
  /// What was written, without a line feed at its end. Only where there is no stream.
  [[nodiscard]] std::string take() {
    SLIMPACK_ASSERT(levels_.empty() && !keyed_ && out_ == nullptr);
    return std::move(text_);
  }

 private:
  struct Level {
    bool flat = false;
    bool empty = true;
  };
  static constexpr std::uint64_t kSecond = 1'000'000'000;
  static constexpr std::size_t kPiece = std::size_t{1} << 16U;

  void begin_line(std::size_t indent) {
    text_ += '\n';
    text_.append(indent, ' ');
    indent_.reset();
  }
  /// What stands between the value before and the next one.
  void separate() {
    if (out_ != nullptr && text_.size() >= kPiece) flush();
    if (keyed_) {
      keyed_ = false;
      return;
    }
    if (levels_.empty()) return;
    Level& level = levels_.back();
    if (!level.empty) text_ += ',';
    if (indent_) {
      begin_line(*indent_);
    } else if (!level.flat) {
      begin_line(levels_.size());
    } else if (!level.empty) {
      text_ += ' ';
    }
    level.empty = false;
  }
  JsonWriter& open(char bracket, JsonLayout layout) {
    separate();
    text_ += bracket;
    levels_.push_back({layout == JsonLayout::flat || (!levels_.empty() && levels_.back().flat)});
    return *this;
  }
  JsonWriter& close(char bracket) {
    SLIMPACK_ASSERT(!levels_.empty() && !keyed_);
    const Level level = levels_.back();
    levels_.pop_back();
    if (indent_) {
      begin_line(*indent_);
    } else if (!level.flat && !level.empty) {
      begin_line(levels_.size());
    }
    text_ += bracket;
    return *this;
  }
  void flush() {
    out_->write(text_.data(), static_cast<std::streamsize>(text_.size()));
    text_.clear();
  }

  std::ostream* out_ = nullptr;
  std::string text_;
  std::vector<Level> levels_;
  std::optional<std::size_t> indent_;  // of the line that was asked for
  bool keyed_ = false;
};

}  // namespace slimpack
