// SPDX-License-Identifier: Apache-2.0
// What a set of document lengths looks like: percentiles, the weight of its tail, a histogram.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/int128.hpp"
#include "slimpack/core/units.hpp"

namespace slimpack {

/// Documents above this length count as long.
inline constexpr Tokens kLongDocument{32768};

/// Documents of [low, 2 low) tokens.
struct LengthBin {
  Tokens low;                  ///< least length of the bin, a power of two
  std::int64_t documents = 0;  ///< how many documents it has; may be 0 inside a histogram
  Tokens tokens;               ///< sum of their lengths
  friend bool operator==(const LengthBin&, const LengthBin&) = default;
};

/// What a set of document lengths looks like; `length_statistics` makes it.
struct LengthStatistics {
  std::int64_t documents = 0;        ///< how many lengths there are
  Tokens total;                      ///< sum of all lengths
  Tokens min;                        ///< the shortest
  Tokens max;                        ///< the longest
  Tokens median;                     ///< 50th percentile by nearest rank, as of `percentile`
  Tokens p90;                        ///< 90th percentile by nearest rank
  Tokens p99;                        ///< 99th percentile by nearest rank
  std::int64_t long_documents = 0;   ///< documents longer than kLongDocument
  double long_token_share = 0;       ///< their part of all tokens, 0 .. 1
  double long_pair_share = 0;        ///< their part of all (query, key) pairs, 0 .. 1
  std::vector<LengthBin> histogram;  ///< powers of two, from the shortest's to the longest's
};

/// The least length that at least `percent` percent of the sorted lengths do not exceed.
/// Throws InvalidInput if `sorted` is empty or percent is not in 1 .. 100.
[[nodiscard]] inline Tokens percentile(std::span<const Tokens> sorted, std::int64_t percent) {
  require(!sorted.empty(), "percentile: there must be a length");
  require(percent >= 1 && percent <= 100, "percentile: percent must be in 1 .. 100", percent);
  const auto count = static_cast<std::uint64_t>(sorted.size());
  const auto part = static_cast<std::uint64_t>(percent);
  // ceil(count * part / 100) without overflow.
  const std::uint64_t rank = count / 100 * part + (count % 100 * part + 99) / 100;
  return sorted[static_cast<std::size_t>(rank - 1)];
}

/// Describes a set of lengths whose sum fits in 63 bits, as that of every reader does. Throws
/// InvalidInput if there is no length or one is not > 0. O(n log n).
[[nodiscard]] inline LengthStatistics length_statistics(std::span<const Tokens> lengths) {
  require(!lengths.empty(), "length_statistics: there must be a length");
  std::vector<Tokens> sorted(lengths.begin(), lengths.end());
  std::sort(sorted.begin(), sorted.end());
  require(sorted.front() > Tokens{}, "length_statistics: lengths must be > 0",
          sorted.front().value);

  LengthStatistics result;
  result.documents = static_cast<std::int64_t>(sorted.size());
  result.min = sorted.front();
  result.max = sorted.back();
  result.median = percentile(sorted, 50);
  result.p90 = percentile(sorted, 90);
  result.p99 = percentile(sorted, 99);

  const auto bin_of = [](Tokens length) {
    return std::bit_width(static_cast<std::uint64_t>(length.value)) - 1;
  };
  const auto first_bin = bin_of(result.min);
  for (auto bin = first_bin; bin <= bin_of(result.max); ++bin) {
    result.histogram.push_back({Tokens{std::int64_t{1} << bin}, 0, {}});
  }
  Tokens long_tokens;
  UInt128 pairs = 0, long_pairs = 0;
  for (const Tokens length : sorted) {
    const auto wide = static_cast<UInt128>(length.value);
    const UInt128 own = wide * (wide + 1) / 2;
    result.total += length;
    pairs += own;
    LengthBin& bin = result.histogram[static_cast<std::size_t>(bin_of(length) - first_bin)];
    ++bin.documents;
    bin.tokens += length;
    if (length > kLongDocument) {
      ++result.long_documents;
      long_tokens += length;
      long_pairs += own;
    }
  }
  result.long_token_share =
      static_cast<double>(long_tokens.value) / static_cast<double>(result.total.value);
  result.long_pair_share = static_cast<double>(long_pairs) / static_cast<double>(pairs);
  return result;
}

}  // namespace slimpack
