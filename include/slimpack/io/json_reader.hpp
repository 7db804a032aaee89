// SPDX-License-Identifier: Apache-2.0
// A checked view of a JSON document: every error names file, key path, rule and what was found.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/io/bytes.hpp"
#include "slimpack/plan/names.hpp"

namespace slimpack {

/// Parses one JSON document. Throws InvalidInput with line and column, or where it is nested more
/// than 64 deep. O(bytes).
[[nodiscard]] nlohmann::json parse_json(std::string_view text, const std::string& name);

/// One value of a JSON document, and the path of keys to it. Borrows the document and the file's
/// name.
///
///     const nlohmann::json document = parse_json(text, "cluster.json");
///     const JsonReader root(document, "cluster.json");
///     const std::int64_t devices = root.at("devices_per_node").integer(1, 1024);
///
/// What does not fit throws InvalidInput "FILE: PATH: RULE, found VALUE".
class JsonReader {
 public:
  /// The document itself, at the empty path; `file` names it in messages.
  JsonReader(const nlohmann::json& value, std::string_view file) : value_(&value), file_(file) {}

  /// Throws InvalidInput "FILE: PATH: RULE".
  [[noreturn]] void fail(std::string_view rule) const {
    throw InvalidInput(place() + std::string(rule));
  }
  /// Throws InvalidInput "FILE: PATH: RULE, found VALUE".
  [[noreturn]] void refuse(std::string_view rule) const {
    throw InvalidInput(place() + std::string(rule) + ", found " + found());
  }
  /// Refuses this value with `rule` unless `condition` holds.
  void check(bool condition, std::string_view rule) const {
    if (!condition) refuse(rule);
  }

  /// The file's name, as messages have it.
  [[nodiscard]] std::string_view file() const noexcept { return file_; }
  /// Whether the value is null.
  [[nodiscard]] bool is_null() const noexcept { return value_->is_null(); }
  /// Whether the value is an object.
  [[nodiscard]] bool is_object() const noexcept { return value_->is_object(); }
  /// Whether the value is true or false.
  [[nodiscard]] bool is_boolean() const noexcept { return value_->is_boolean(); }
  /// Whether the value is a number, whole or not.
  [[nodiscard]] bool is_number() const noexcept { return value_->is_number(); }
  /// Whether the value is a string.
  [[nodiscard]] bool is_string() const noexcept { return value_->is_string(); }

  /// A key of an object, if it is there.
  [[nodiscard]] std::optional<JsonReader> find(std::string_view key) const {
    check(value_->is_object(), "must be an object");
    const auto member = value_->find(key);
    if (member == value_->end()) return std::nullopt;
    JsonReader reader(*member, file_);
    const std::string before = path();
    reader.keys_ = std::make_shared<const std::string>((before.empty() ? "" : before + ".") +
                                                       std::string(key));
    return reader;
  }
  /// A key of an object, if it is there and not null.
  [[nodiscard]] std::optional<JsonReader> find_value(std::string_view key) const {
    auto member = find(key);
    if (member && member->is_null()) member.reset();
    return member;
  }
  /// A key that must be there.
  [[nodiscard]] JsonReader at(std::string_view key) const {
    auto member = find(key);
    if (!member) fail("the key '" + std::string(key) + "' is missing");
    return *std::move(member);
  }

  /// All keys of an object, sorted.
  [[nodiscard]] std::vector<std::string> keys() const {
    check(value_->is_object(), "must be an object");
    std::vector<std::string> keys;
    for (const auto& member : value_->items()) keys.push_back(member.key());
    return keys;
  }

  /// Number of elements of an array.
  [[nodiscard]] std::size_t size() const {
    check(value_->is_array(), "must be an array");
    return value_->size();
  }
  /// Element of an array that has more than `position` elements.
  [[nodiscard]] JsonReader item(std::size_t position) const {
    JsonReader reader((*value_)[position], file_);
    if (depth_ < positions_.size()) {
      reader.keys_ = keys_;
      reader.positions_ = positions_;
      reader.depth_ = depth_;
    } else {
      reader.keys_ = std::make_shared<const std::string>(path());
    }
    reader.positions_[reader.depth_++] = position;
    return reader;
  }

  /// An integer in [low, high]; a float such as 85.5e9 counts where it is whole and exact.
  [[nodiscard]] std::int64_t integer(std::int64_t low, std::int64_t high) const {
    const std::optional<std::int64_t> value = whole();
    if (!value || *value < low || *value > high) {
      refuse("must be an integer in " + std::to_string(low) + " .. " + std::to_string(high));
    }
    return *value;
  }
  /// The same in 32 bits.
  [[nodiscard]] std::int32_t integer32(std::int32_t low, std::int32_t high) const {
    return static_cast<std::int32_t>(integer(low, high));
  }

  /// A number in [low, high].
  [[nodiscard]] double real(double low, double high) const {
    const bool number = value_->is_number();
    const double value = number ? value_->get<double>() : 0;
    if (!number || !(value >= low && value <= high)) {
      refuse("must be a number in " + nlohmann::json(low).dump() + " .. " +
             nlohmann::json(high).dump());
    }
    return value;
  }

  /// Seconds with nanosecond precision, at most 2^23 s (97 days): the nearest nanosecond, and
  /// exactly the one that was written with nine decimals.
  [[nodiscard]] Nanos time() const {
    const double value = real(0, 8388608.0);
    const auto near = static_cast<std::int64_t>(std::llround(value * 1e9));
    for (const std::int64_t candidate : {near, near - 1, near + 1}) {
      // A correctly rounded quotient is what parsing the nine decimals gives; below 2^23 s doubles
      // lie closer than nanoseconds, so it is no other nanosecond's.
      if (candidate >= 0 && static_cast<double>(candidate) / 1e9 == value) {
        return {candidate};
      }
    }
    return {near};
  }

  /// True or false.
  [[nodiscard]] bool boolean() const {
    check(value_->is_boolean(), "must be true or false");
    return value_->get<bool>();
  }
  /// A string, which lives as long as the document.
  [[nodiscard]] const std::string& text() const {
    check(value_->is_string(), "must be a string");
    return value_->get_ref<const std::string&>();
  }

  /// The value that belongs to one of a few words.
  template <class Choice, std::size_t kCount>
  [[nodiscard]] Choice choice(
      const std::array<std::pair<std::string_view, Choice>, kCount>& choices) const {
    if (value_->is_string()) {
      for (const auto& [word, meaning] : choices) {
        if (text() == word) return meaning;
      }
    }
    std::string allowed;
    for (const auto& [word, meaning] : choices) {
      allowed += (allowed.empty() ? "'" : ", '") + std::string(word) + "'";
    }
    refuse("must be one of " + allowed);
  }

  /// The value of an enumeration, by its word.
  template <NamedEnumeration Enumeration>
  [[nodiscard]] Enumeration choice() const {
    std::array<std::pair<std::string_view, Enumeration>, kWords<Enumeration>.size()> choices;
    for (std::size_t i = 0; i < choices.size(); ++i) {
      choices[i] = {kWords<Enumeration>[i], static_cast<Enumeration>(i)};
    }
    return choice(choices);
  }

 private:
  [[nodiscard]] std::string place() const {
    const std::string way = path();
    return std::string(file_) + ": " + (way.empty() ? "" : way + ": ");
  }

  /// The path from the document to this value, such as `schedule[3].order[17][1]`.
  [[nodiscard]] std::string path() const {
    std::string way = keys_ ? *keys_ : std::string();
    for (std::size_t i = 0; i < depth_; ++i) {
      way += "[" + std::to_string(positions_[i]) + "]";
    }
    return way;
  }

  [[nodiscard]] std::optional<std::int64_t> whole() const {
    if (value_->is_number_unsigned()) {
      const auto value = value_->get<std::uint64_t>();
      if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
        return std::nullopt;
      }
      return static_cast<std::int64_t>(value);
    }
    if (value_->is_number_integer()) return value_->get<std::int64_t>();
    if (!value_->is_number_float()) return std::nullopt;
    const double value = value_->get<double>();
    if (!(std::abs(value) <= 0x1p53) || std::trunc(value) != value) return std::nullopt;
    return static_cast<std::int64_t>(value);
  }

  [[nodiscard]] std::string found() const {
    if (value_->is_array()) return "an array of " + std::to_string(value_->size());
    if (value_->is_object()) return "an object";
    if (value_->is_string()) return in_quotes(value_->get_ref<const std::string&>());
    return value_->dump();
  }

  const nlohmann::json* value_;
  std::string_view file_;
  // Schedules are long: elements of an array share the text of the path to it.
  std::shared_ptr<const std::string> keys_;
  std::array<std::size_t, 3> positions_{};
  std::size_t depth_ = 0;
};

namespace detail {

/// Throws where brackets outside strings are nested more than `most` deep.
inline void limit_depth(std::string_view text, const std::string& name, std::size_t most) {
  std::size_t depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char character = text[i];
    if (in_string) {
      if (character == '\\') ++i;
      if (character == '"') in_string = false;
    } else if (character == '"') {
      in_string = true;
    } else if (character == '[' || character == '{') {
      if (++depth > most) {
        throw InvalidInput(name + ": byte " + std::to_string(i) + ": JSON may be nested at most " +
                           std::to_string(most) + " deep");
      }
    } else if ((character == ']' || character == '}') && depth > 0) {
      --depth;
    }
  }
}

}  // namespace detail

inline nlohmann::json parse_json(std::string_view text, const std::string& name) {
  constexpr std::size_t kDeepest = 64;
  constexpr std::size_t kLongestMessage = 200;
  detail::limit_depth(text, name, kDeepest);
  try {
    return nlohmann::json::parse(text.begin(), text.end());
  } catch (const nlohmann::json::exception& error) {
    std::string_view what = error.what();
    // The library's own label in brackets says nothing to a user.
    if (const auto label = what.find("] "); label != std::string_view::npos) {
      what.remove_prefix(label + 2);
    }
    throw InvalidInput(name + ": not valid JSON: " + std::string(what.substr(0, kLongestMessage)));
  }
}

}  // namespace slimpack
