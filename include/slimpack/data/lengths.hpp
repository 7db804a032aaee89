// SPDX-License-Identifier: Apache-2.0
// The token counts of the documents of one file.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"

namespace slimpack {

/// The lengths of the documents of one file, in its order.
///
///     const LengthSet web{{Tokens{812}, Tokens{40960}}, "web.lengths"};
///     const LengthSet read = read_lengths("web.lengths");   // io/read_lengths.hpp
///
/// Every reader gives at least one document, lengths > 0, and a sum that fits in 63 bits.
struct LengthSet {
  std::vector<Tokens> documents;  ///< length of each document, in the file's order
  std::string name = {};          ///< of the file, for messages
  friend bool operator==(const LengthSet&, const LengthSet&) = default;
};

/// The largest length, and the largest sum of lengths.
inline constexpr std::int64_t kLongestLength = std::numeric_limits<std::int64_t>::max();

/// Appends a length that is known to be > 0 and adds it to `total`. False, and nothing is done,
/// where the total would no longer fit in 63 bits.
[[nodiscard]] inline bool append_length(LengthSet& set, std::int64_t length, std::int64_t& total) {
  if (length > kLongestLength - total) return false;
  total += length;
  set.documents.push_back(Tokens{length});
  return true;
}

/// Throws InvalidInput for a file without a length.
inline void require_some(const LengthSet& set) {
  require(!set.documents.empty(), set.name + ": holds no length");
}

}  // namespace slimpack
