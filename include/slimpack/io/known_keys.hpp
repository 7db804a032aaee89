// SPDX-License-Identifier: Apache-2.0
// Refuses a key that an object cannot have, with the key that was probably meant.
#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "slimpack/io/bytes.hpp"
#include "slimpack/io/json_reader.hpp"

namespace slimpack {

/// How many letters have to be inserted, removed or replaced to make `b` of `a`. O(|a| |b|).
[[nodiscard]] inline std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() +
                               1);  // of the letters of `a` so far, to each prefix of `b`
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row[b.size()];
}

/// The word with the smallest edit distance to `word`; ties go to the first. Absent where even that
/// one differs in more than half of its letters.
[[nodiscard]] inline std::optional<std::string_view> nearest_word(
    std::string_view word, std::span<const std::string_view> words) {
  constexpr std::size_t kLongest = 64;  // a longer word is no misspelling
  if (word.size() > kLongest) return std::nullopt;
  std::optional<std::string_view> nearest;
  std::size_t smallest = 0;
  for (const std::string_view candidate : words) {
    const std::size_t distance = edit_distance(word, candidate);
    if (2 * distance > std::max(word.size(), candidate.size())) continue;
    if (nearest && distance >= smallest) continue;
    nearest = candidate;
    smallest = distance;
  }
  return nearest;
}

/// Checks that every key of an object is one of `known`. A misspelt key would otherwise leave its
/// standard value in force without a word. Throws InvalidInput naming file, key and the nearest
/// known key, or all of them where none is near.
inline void check_known_keys(const JsonReader& object, std::span<const std::string_view> known) {
  for (const std::string& key : object.keys()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    const std::string unknown = "the key " + in_quotes(key) + " is not known";
    if (const auto nearest = nearest_word(key, known)) {
      object.fail(unknown + "; did you mean '" + std::string(*nearest) + "'?");
    }
    std::string all;
    for (const std::string_view name : known) all.append(all.empty() ? "" : ", ").append(name);
    object.fail(unknown + "; the keys are " + all);
  }
}

}  // namespace slimpack
