// SPDX-License-Identifier: Apache-2.0
// Option values: whole numbers with unit suffixes, and the words of enumerations.
#pragma once

#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "slimpack/core/error.hpp"
#include "slimpack/plan/names.hpp"

namespace slimpack::app {

/// A positive whole number, optionally followed by K, M, G (powers of ten) or Ki, Mi, Gi (of two);
/// a decimal point or an exponent is allowed where the product is whole ("85.5e9", "1.5M").
/// Throws InvalidInput naming `option`.
[[nodiscard]] inline std::int64_t parse_size(std::string_view option, const std::string& text) {
  const auto fail = [&] {
    throw InvalidInput(std::string(option) + ": '" + text +
                       "' is not a whole number > 0 (K, M, G, Ki, Mi, Gi may follow it)");
  };
  double mantissa = 0;
  const char* const last = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), last, mantissa);
  if (error != std::errc{}) fail();
  double unit = 0;
  for (const auto& [suffix, factor] : {std::pair<std::string_view, double>{"", 1.0},
                                       {"K", 1e3},
                                       {"M", 1e6},
                                       {"G", 1e9},
                                       {"Ki", 0x1p10},
                                       {"Mi", 0x1p20},
                                       {"Gi", 0x1p30}}) {
    if (std::string_view(rest, static_cast<std::size_t>(last - rest)) == suffix) unit = factor;
  }
  const double value = mantissa * unit;
  if (!(value >= 1.0 && value <= 9e18) || value != std::floor(value)) fail();
  return static_cast<std::int64_t>(value);
}

/// parse_size, and no more than a 32-bit count.
[[nodiscard]] inline std::int32_t parse_count(std::string_view option, const std::string& text) {
  const std::int64_t value = parse_size(option, text);
  require(value <= std::numeric_limits<std::int32_t>::max(),
          std::string(option) + ": must be at most 2147483647", value);
  return static_cast<std::int32_t>(value);
}

/// The value that `text` is a word of. Throws InvalidInput naming `option` and listing the words,
/// after `also`, a word that the caller takes itself.
template <NamedEnumeration Enumeration>
[[nodiscard]] Enumeration parse_word(std::string_view option, std::string_view text,
                                     std::string_view also = {}) {
  if (const auto value = from_string<Enumeration>(text)) return *value;
  std::string allowed(also);
  for (const std::string_view word : kWords<Enumeration>) {
    allowed.append(allowed.empty() ? "" : ", ").append(word);
  }
  throw InvalidInput(std::string(option) + ": '" + std::string(text) + "' is not one of " +
                     allowed);
}

}  // namespace slimpack::app
