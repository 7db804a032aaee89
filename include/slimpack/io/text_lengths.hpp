// SPDX-License-Identifier: Apache-2.0
// Document lengths from text, one a line; .idx, .npy and JSON lines have headers of their own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/data/lengths.hpp"
#include "slimpack/io/bytes.hpp"
#include "slimpack/io/file_bytes.hpp"

namespace slimpack {

/// One positive decimal integer a line; blanks around it are ignored, blank lines and lines whose
/// first visible character is `#` are skipped. `name` stands for the file in messages.
/// Throws InvalidInput naming line, rule and text found. O(bytes).
[[nodiscard]] LengthSet parse_text_lengths(std::string_view text, const std::string& name);

/// The same for a file; `-` is standard input.
[[nodiscard]] LengthSet read_text_lengths(const std::string& path);

/// A line without the blanks, tabs and carriage returns at its ends; empty where it has nothing
/// else.
[[nodiscard]] inline std::string_view trimmed(std::string_view line) noexcept {
  constexpr std::string_view kBlanks = " \t\r";
  const std::size_t first = line.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return line.substr(first, line.find_last_not_of(kBlanks) - first + 1);
}

/// Calls `read(content, number)` for each line that is not blank, trimmed, numbered from 1.
/// O(bytes).
template <class Read>
void for_each_line(std::string_view text, const Read& read) {
  for (std::size_t line = 1; !text.empty(); ++line) {
    const std::size_t end = text.find('\n');
    const std::string_view content = trimmed(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (!content.empty()) read(content, line);
  }
}

namespace detail {

/// The value of a line of digits. Throws InvalidInput.
[[nodiscard]] inline std::int64_t parse_length(std::string_view digits, const std::string& name,
                                               std::size_t line) {
  std::int64_t value = 0;
  for (const char character : digits) {
    const int digit = character - '0';
    if (digit < 0 || digit > 9) {
      refuse_line(name, line, "a length must be a positive integer", in_quotes(digits));
    }
    if (value > (kLongestLength - digit) / 10) {
      refuse_line(name, line, "a length must fit in 63 bits", in_quotes(digits));
    }
    value = 10 * value + digit;
  }
  if (value == 0) refuse_line(name, line, "a length must be a positive integer", in_quotes(digits));
  return value;
}

}  // namespace detail

inline LengthSet parse_text_lengths(std::string_view text, const std::string& name) {
  LengthSet set{{}, name};
  std::int64_t total = 0;
  for_each_line(text, [&](std::string_view content, std::size_t line) {
    if (content.front() == '#') return;
    const std::int64_t length = detail::parse_length(content, name, line);
    if (!append_length(set, length, total)) {
      refuse_line(name, line, "the sum of all lengths must fit in 63 bits",
                  in_quotes(content) + " after " + std::to_string(total));
    }
  });
  require_some(set);
  return set;
}

inline LengthSet read_text_lengths(const std::string& path) {
  const FileBytes file = FileBytes::open(path);
  return parse_text_lengths(file.text(), path == "-" ? "standard input" : path);
}

}  // namespace slimpack
