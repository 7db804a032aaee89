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
/// Every reader gives at least one document, every
/// length > 0, and a sum that fits in 63 bits.
struct LengthSet {
  std::vector<Tokens> documents;
  std::string name = {};  ///< of the file, for messages
  friend bool operator==(const LengthSet&, const LengthSet&) = default;
};

/// The largest length, and the largest sum of lengths.
inline constexpr std::int64_t kLongestLength = std::numeric_limits<std::int64_t>::max();

/// Appends a checked length (> 0). False where the sum would no longer fit.
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
