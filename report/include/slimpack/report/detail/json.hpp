// SPDX-License-Identifier: Apache-2.0
// A JSON document written as it is told, value by value, without being held in memory.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string_view>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/report/detail/text.hpp"

namespace slimpack::report::detail {

/// Commas, quotes and indentation of one JSON document. The caller opens and closes in order and
/// gives a key before each member; `flat` writes what it holds on one line.
class JsonWriter {
 public:
  explicit JsonWriter(std::ostream& out) : text_(out) {}

  void begin_object(bool flat = false) { open('{', flat); }
  void end_object() { close('}'); }
  void begin_array(bool flat = false) { open('[', flat); }
  void end_array() { close(']'); }

  void key(std::string_view name) {
    separate();
    text_ << '"' << json_escaped(name) << "\": ";
    keyed_ = true;
  }
  void text(std::string_view value) {
    separate();
    text_ << '"' << json_escaped(value) << '"';
  }
  void number(double value) {
    separate();
    text_ << shortest(value);
  }
  template <std::integral Integer>
    requires(!std::same_as<Integer, bool> && !std::same_as<Integer, char>)
  void number(Integer value) {
    separate();
    text_ << value;
  }
  void boolean(bool value) {
    separate();
    text_ << (value ? "true" : "false");
  }
  void null() {
    separate();
    text_ << "null";
  }
  /// Seconds with nine decimals.
  void time(Nanos value) {
    separate();
    text_ << seconds_text(value);
  }

  void member(std::string_view name, std::string_view value) { key(name), text(value); }
  void member(std::string_view name, const char* value) { key(name), text(value); }
  void member(std::string_view name, double value) { key(name), number(value); }
  void member(std::string_view name, bool value) { key(name), boolean(value); }
  void member(std::string_view name, Nanos value) { key(name), time(value); }
  void member(std::string_view name, Bytes value) { key(name), number(value.value); }
  void member(std::string_view name, Tokens value) { key(name), number(value.value); }
  template <std::integral Integer>
    requires(!std::same_as<Integer, bool> && !std::same_as<Integer, char>)
  void member(std::string_view name, Integer value) {
    key(name), number(value);
  }

  /// Ends the document with a line feed.
  void finish() {
    SLIMPACK_ASSERT(open_.empty() && !keyed_);
    text_ << '\n';
    text_.flush();
  }

 private:
  struct Level {
    bool flat = false;
    bool empty = true;
  };

  void separate() {
    if (keyed_) {
      keyed_ = false;
      return;
    }
    if (open_.empty()) return;
    Level& level = open_.back();
    if (!level.empty) text_ << (level.flat ? ", " : ",");
    level.empty = false;
    if (!level.flat) line();
  }
  void line() {
    text_ << '\n';
    for (std::size_t depth = 0; depth < open_.size(); ++depth) text_ << ' ';
  }
  void open(char bracket, bool flat) {
    separate();
    text_ << bracket;
    open_.push_back({flat || (!open_.empty() && open_.back().flat), true});
  }
  void close(char bracket) {
    SLIMPACK_ASSERT(!open_.empty() && !keyed_);
    const Level level = open_.back();
    open_.pop_back();
    if (!level.empty && !level.flat) line();
    text_ << bracket;
  }

  TextWriter text_;
  std::vector<Level> open_;
  bool keyed_ = false;
};

}  // namespace slimpack::report::detail
