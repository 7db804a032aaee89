// SPDX-License-Identifier: Apache-2.0
// Document lengths from JSON lines: a length, a token array, or a text, one object a line.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/io/file_bytes.hpp"
#include "slimpack/io/text_lengths.hpp"
#include "slimpack/plan/names.hpp"

namespace slimpack {

/// The keys of a line that tell a document's length; of those that are there the first counts.
enum class LengthKey : std::uint8_t { length, tokens, input_ids, text };
template <>
inline constexpr std::array<std::string_view, 4> kWords<LengthKey>{"length", "tokens", "input_ids",
                                                                   "text"};

/// How many documents have their length from each LengthKey, in its order.
using LengthKeyCounts = std::array<std::int64_t, kWords<LengthKey>.size()>;

/// Each line is an object; its length is the value of the integer key `length`, else the size of
/// the array `tokens` or else `input_ids`, else the UTF-8 bytes of `text`. Other keys are ignored,
/// blank lines skipped. `counts`, if given, becomes the number of documents of each key.
/// Throws InvalidInput naming line, rule and what was found. O(bytes).
[[nodiscard]] LengthSet parse_jsonl_lengths(std::string_view text, const std::string& name,
                                            LengthKeyCounts* counts = nullptr);

/// The same for a file, mapped into memory.
[[nodiscard]] inline LengthSet read_jsonl_lengths(const std::string& path,
                                                  LengthKeyCounts* counts = nullptr) {
  const FileBytes file = FileBytes::open(path);
  return parse_jsonl_lengths(file.text(), path, counts);
}

namespace detail {

/// Receives one line's JSON as events: token arrays are counted, never stored.
class JsonLineEvents {
 public:
  JsonLineEvents(const std::string& name, std::size_t line) : name_(name), line_(line) {}

  /// The key that the length is from. Throws InvalidInput where the object has none of them.
  [[nodiscard]] LengthKey key_of_length() const {
    if (length_) return LengthKey::length;
    if (tokens_) return LengthKey::tokens;
    if (input_ids_) return LengthKey::input_ids;
    if (text_) return LengthKey::text;
    throw InvalidInput(place() + "the object must have a key length, tokens, input_ids or text");
  }
  /// The length, from that key. Throws InvalidInput where it is not positive.
  [[nodiscard]] std::int64_t length(LengthKey key) const {
    const std::array values{length_, tokens_, input_ids_, text_};
    const std::int64_t found = values[static_cast<std::size_t>(key)].value_or(0);
    if (found < 1) refuse("the length must be positive", std::to_string(found));
    return found;
  }

  // The events, named as nlohmann::json asks for them.
  bool null() { return scalar("null"); }
  bool boolean(bool value) { return scalar(value ? "true" : "false"); }
  bool number_integer(std::int64_t value) { return integer(value, std::to_string(value)); }
  bool number_unsigned(std::uint64_t value) {
    if (value > static_cast<std::uint64_t>(kLongestLength)) {
      if (depth_ == 1 && key_ == "length") {
        refuse("length must fit in 63 bits", std::to_string(value));
      }
      return integer(kLongestLength, std::to_string(value));
    }
    return integer(static_cast<std::int64_t>(value), std::to_string(value));
  }
  bool number_float(double /*value*/, const std::string& digits) { return scalar(digits); }
  bool string(const std::string& value) {
    if (depth_ == 1 && key_ == "text") {
      text_ = static_cast<std::int64_t>(value.size());
      return true;
    }
    return scalar("a string");
  }
  bool binary(const nlohmann::json::binary_t& /*value*/) { return scalar("binary"); }
  bool start_object(std::size_t /*elements*/) { return open("an object", true); }
  bool end_object() { return close(); }
  bool start_array(std::size_t /*elements*/) { return open("an array", false); }
  bool end_array() { return close(); }
  bool key(const std::string& value) {
    if (depth_ != 1) return true;
    key_ = value;
    if ((key_ == "length" && length_) || (key_ == "tokens" && tokens_) ||
        (key_ == "input_ids" && input_ids_) || (key_ == "text" && text_)) {
      refuse("a key may be given once", in_quotes(key_));
    }
    return true;
  }
  bool parse_error(std::size_t position, const std::string& /*token*/,
                   const nlohmann::json::exception& error) {
    const std::string_view what = error.what();
    const bool range = what.find("out_of_range") != std::string_view::npos;
    refuse("each line must be one JSON object",
           range ? std::string("a number that no double holds")
                 : "a fault at byte " + std::to_string(position) + " of the line");
  }

 private:
  [[nodiscard]] std::string place() const { return name_ + ":" + std::to_string(line_) + ": "; }
  [[noreturn]] void refuse(std::string_view rule, std::string_view found) const {
    refuse_line(name_, line_, rule, found);
  }

  /// The size of the token array that is open, if one is.
  [[nodiscard]] std::optional<std::int64_t>* open_tokens() {
    if (depth_ < 2 || !in_tokens_) return nullptr;
    return key_ == "tokens" ? &tokens_ : &input_ids_;
  }

  bool integer(std::int64_t value, const std::string& found) {
    if (auto* tokens = open_tokens()) {
      ++**tokens;
      return true;
    }
    if (depth_ == 1 && key_ == "length") {
      length_ = value;
      return true;
    }
    return scalar(found);
  }

  /// Any value that none of the four keys may have.
  bool scalar(std::string_view found) {
    if (depth_ == 0) refuse("each line must be one JSON object", found);
    if (in_tokens_) refuse(key_ + " must be an array of integers", found);
    if (depth_ == 1) {
      if (key_ == "length") refuse("length must be an integer", found);
      if (key_ == "tokens" || key_ == "input_ids") {
        refuse(key_ + " must be an array of integers", found);
      }
      if (key_ == "text") refuse("text must be a string", found);
    }
    return true;
  }

  bool open(std::string_view what, bool object) {
    if (depth_ == 0 && object) {
      ++depth_;
      return true;
    }
    const bool tokens = depth_ == 1 && !object && (key_ == "tokens" || key_ == "input_ids");
    if (tokens) {
      in_tokens_ = true;
      (key_ == "tokens" ? tokens_ : input_ids_) = 0;
    } else {
      scalar(what);
    }
    ++depth_;
    return true;
  }

  bool close() {
    --depth_;
    if (depth_ == 1) in_tokens_ = false;
    return true;
  }

  const std::string& name_;
  std::size_t line_;
  std::size_t depth_ = 0;
  bool in_tokens_ = false;
  std::string key_;  ///< last key of the outermost object
  std::optional<std::int64_t> length_, tokens_, input_ids_, text_;
};

}  // namespace detail

inline LengthSet parse_jsonl_lengths(std::string_view text, const std::string& name,
                                     LengthKeyCounts* counts) {
  LengthSet set{{}, name};
  LengthKeyCounts used{};
  std::int64_t total = 0;
  for_each_line(text, [&](std::string_view content, std::size_t line) {
    detail::JsonLineEvents events(name, line);
    nlohmann::json::sax_parse(content.begin(), content.end(), &events);
    const LengthKey key = events.key_of_length();
    const std::int64_t length = events.length(key);
    ++used[static_cast<std::size_t>(key)];
    if (!append_length(set, length, total)) {
      refuse_line(name, line, "the sum of all lengths must fit in 63 bits",
                  std::to_string(length) + " after " + std::to_string(total));
    }
  });
  require_some(set);
  if (counts != nullptr) *counts = used;
  return set;
}

}  // namespace slimpack
