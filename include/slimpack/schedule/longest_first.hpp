// SPDX-License-Identifier: Apache-2.0
// Assigns items to ranks longest first (LPT), and rebalances the most loaded rank.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "slimpack/core/int128.hpp"
#include "slimpack/schedule/ranks.hpp"

namespace slimpack::schedule {

namespace detail {

/// An item and what it is sorted by, rising.
struct KeyedItem {
  std::uint64_t key = 0;
  std::uint32_t item = 0;
};

/// Sorts by key, equal ones as they came, 11 bits of the key at a time. O(n bits / 11).
inline void sort_by_digits(std::vector<KeyedItem>& items) {
  constexpr unsigned kBits = 11;
  constexpr std::uint64_t kMask = (std::uint64_t{1} << kBits) - 1;
  std::uint64_t used = 0;
  for (const KeyedItem& one : items) used |= one.key;
  std::vector<KeyedItem> sorted(items.size());
  for (unsigned shift = 0; shift < 64 && used >> shift != 0; shift += kBits) {
    std::array<std::size_t, kMask + 1> next{};
    for (const KeyedItem& one : items) ++next[one.key >> shift & kMask];
    std::exclusive_scan(next.begin(), next.end(), next.begin(), std::size_t{0});
    for (const KeyedItem& one : items) sorted[next[one.key >> shift & kMask]++] = one;
    items.swap(sorted);
  }
}

}  // namespace detail

/// Items 0 .. count-1 by falling time, equal ones by number. Times are in [0, 2^63). O(n log n)
/// where they are few, else linear in items and digits.
template <class Time>
[[nodiscard]] std::vector<std::uint32_t> longest_first(std::size_t count, const Time& time) {
  constexpr std::size_t kMany = 2048;
  std::vector<detail::KeyedItem> items(count);
  std::int64_t most = 0;
  for (std::size_t i = 0; i < count; ++i) {
    most = std::max<std::int64_t>(most, time(static_cast<std::uint32_t>(i)));
  }
  for (std::size_t i = 0; i < count; ++i) {
    const auto item = static_cast<std::uint32_t>(i);
    items[i] = {static_cast<std::uint64_t>(most - time(item)), item};
  }
  const auto before = [](const detail::KeyedItem& a, const detail::KeyedItem& b) {
    return a.key != b.key ? a.key < b.key : a.item < b.item;
  };
  // Callers that have sorted by length already bring times in order.
  if (!std::is_sorted(items.begin(), items.end(), before)) {
    if (count < kMany) {
      std::sort(items.begin(), items.end(), before);
    } else {
      detail::sort_by_digits(items);
    }
  }
  std::vector<std::uint32_t> order(count);
  std::transform(items.begin(), items.end(), order.begin(),
                 [](const detail::KeyedItem& one) { return one.item; });
  return order;
}

/// Numbers 0 .. n-1 below 2^32, each with a key in [0, 2^94) that may grow; the least key comes
/// first, the lowest number of equals. Growing takes O(log n).
template <class Key>
class LeastFirst {
 public:
  /// Numbers with these keys. O(n log n).
  explicit LeastFirst(const std::vector<Key>& keys) {
    heap_.reserve(keys.size());
    for (const Key& key : keys) {
      heap_.push_back(Int128{key} << kBits | static_cast<Int128>(heap_.size()));
    }
    if (!std::is_sorted(heap_.begin(), heap_.end())) std::sort(heap_.begin(), heap_.end());
  }
  /// The number with the least key; there must be one.
  [[nodiscard]] std::size_t number() const noexcept {
    return static_cast<std::uint32_t>(heap_.front());
  }
  /// Adds to that key and returns it.
  Key grow(Key by) noexcept {
    const Int128 grown = heap_.front() + (Int128{by} << kBits);
    std::size_t i = 0;
    for (std::size_t child = 1; child < heap_.size(); child = 2 * i + 1) {
      // Which child is less cannot be foreseen, so it is added, not asked for.
      if (child + 1 < heap_.size()) child += heap_[child + 1] < heap_[child] ? 1 : 0;
      if (!(heap_[child] < grown)) break;
      heap_[i] = heap_[child];
      i = child;
    }
    heap_[i] = grown;
    return static_cast<Key>(grown >> kBits);
  }

 private:
  static constexpr unsigned kBits = 32;
  std::vector<Int128> heap_;  // keys, and below them their numbers
};

/// The items of each rank.
using ItemsByRank = std::vector<std::vector<std::uint32_t>>;

/// Assigns `items`, which are in order of falling time, each to the least loaded rank, the lowest
/// of equals (LPT). Adds their times to `load`, which has an entry a rank. O(items log ranks).
template <class Time>
[[nodiscard]] ItemsByRank assign_lpt(std::span<const std::uint32_t> items,
                                     std::vector<std::int64_t>& load, const Time& time) {
  ItemsByRank assigned(load.size());
  for (auto& own : assigned) own.reserve(items.size() / load.size() + 1);
  LeastFirst<std::int64_t> least(load);
  for (const std::uint32_t item : items) {
    const std::size_t rank = least.number();
    assigned[rank].push_back(item);
    load[rank] = least.grow(time(item));
  }
  return assigned;
}

namespace detail {

/// An item of the fullest rank that goes to `to`, in exchange for one of its items if any.
struct RebalanceMove {
  std::size_t to = 0;
  std::uint32_t given = 0;
  std::optional<std::uint32_t> taken;
  std::int64_t left = 0;  ///< the larger of the two loads afterwards
};

/// The best move or swap between two ranks whose items fall in time; absent if nothing helps.
template <class Time>
[[nodiscard]] std::optional<RebalanceMove> best_move(const std::vector<std::uint32_t>& full,
                                                     const std::vector<std::uint32_t>& other,
                                                     std::int64_t full_load,
                                                     std::int64_t other_load, std::size_t to,
                                                     const Time& time) {
  std::optional<RebalanceMove> best;
  const auto offer = [&](std::uint32_t given, std::optional<std::uint32_t> taken) {
    const std::int64_t moved = time(given) - (taken ? time(*taken) : 0);
    const std::int64_t left = std::max(full_load - moved, other_load + moved);
    if (left < full_load && (!best || left < best->left))
      best = RebalanceMove{to, given, taken, left};
  };
  const std::int64_t half = (full_load - other_load) / 2;
  std::size_t i = 0;  // of the first item of `other` with at most the time that balances
  for (const std::uint32_t given : full) {
    offer(given, std::nullopt);
    while (i < other.size() && time(other[i]) > time(given) - half) ++i;
    if (i < other.size()) offer(given, other[i]);
    if (i > 0) offer(given, other[i - 1]);
  }
  return best;
}

}  // namespace detail

/// Moves and swaps items between the most loaded rank and any other while its load falls, until it
/// is within a five-thousandth of the mean. The items of a rank stay in order of falling time. At
/// most 16 + 4 ranks steps of O(items) each.
template <class Time>
void rebalance(ItemsByRank& assigned, std::vector<std::int64_t>& load, const Time& time) {
  constexpr std::int64_t kCloseEnough = 5000;
  Int128 total = 0;
  for (const std::int64_t one : load) total += one;
  const auto ranks = static_cast<std::int64_t>(load.size());
  const auto insert = [&](std::vector<std::uint32_t>& own, std::uint32_t item) {
    own.insert(std::upper_bound(own.begin(), own.end(), item,
                                [&](std::uint32_t a, std::uint32_t b) {
                                  return std::pair{-time(a), a} < std::pair{-time(b), b};
                                }),
               item);
  };
  for (std::int64_t step = 0; step < 16 + 4 * ranks; ++step) {
    const auto full =
        static_cast<std::size_t>(std::max_element(load.begin(), load.end()) - load.begin());
    if ((Int128{load[full]} * ranks - total) * kCloseEnough <= total) return;
    std::optional<detail::RebalanceMove> best;
    for (std::size_t rank = 0; rank < load.size(); ++rank) {
      if (rank == full) continue;
      const auto found =
          detail::best_move(assigned[full], assigned[rank], load[full], load[rank], rank, time);
      if (found && (!best || found->left < best->left)) best = found;
    }
    if (!best) return;
    std::erase(assigned[full], best->given);
    insert(assigned[best->to], best->given);
    std::int64_t moved = time(best->given);
    if (best->taken) {
      std::erase(assigned[best->to], *best->taken);
      insert(assigned[full], *best->taken);
      moved -= time(*best->taken);
    }
    load[full] -= moved;
    load[best->to] += moved;
  }
}

}  // namespace slimpack::schedule
