// SPDX-License-Identifier: Apache-2.0
// Deals items to parts of nearly equal sums by the largest differencing method.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/int128.hpp"
#include "slimpack/schedule/ranks.hpp"

namespace slimpack::schedule {

/// Whether parts have as many items as they get, or all the same number.
enum class PartSizes : std::uint8_t { free, equal };

namespace detail {

/// Items that will be in one part: a chain through KarmarkarKarp's `next_`.
struct DifferencedSet {
  Int128 sum = 0;
  std::size_t count = 0, first = 0, last = 0;
  /// Larger sums come first, then more items, then the later first item.
  [[nodiscard]] bool before(const DifferencedSet& other) const noexcept {
    return std::tie(sum, count, first) > std::tie(other.sum, other.count, other.first);
  }
};

/// The method on states: each is at most `parts` sets, largest first; those that are empty are left
/// out.
class KarmarkarKarp {
 public:
  KarmarkarKarp(std::span<const Int128> work, std::size_t parts)
      : work_(work), parts_(parts), next_(work.size()) {}

  [[nodiscard]] ShardLayout run(PartSizes sizes) {
    std::vector<std::size_t> lightest_first(work_.size());
    std::iota(lightest_first.begin(), lightest_first.end(), std::size_t{0});
    std::stable_sort(lightest_first.begin(), lightest_first.end(),
                     [&](std::size_t a, std::size_t b) { return work_[a] < work_[b]; });
    const std::size_t width = sizes == PartSizes::equal ? parts_ : 1;
    for (std::size_t i = 0; i < lightest_first.size(); i += width) {
      State state;
      for (std::size_t of = i; of < i + width; ++of) {
        const std::size_t item = lightest_first[of];
        state.push_back({work_[item], 1, item, item});
      }
      push(std::move(state));
    }
    while (waiting_.size() > 1) {
      State state = pop();
      push(joined(std::move(state), pop()));
    }
    ShardLayout deal(parts_);
    if (!waiting_.empty()) {
      const State last = pop();
      for (std::size_t part = 0; part < last.size(); ++part) {
        std::size_t item = last[part].first;
        for (std::size_t of = 0; of < last[part].count; ++of, item = next_[item]) {
          deal[part].push_back(item);
        }
        std::sort(deal[part].begin(), deal[part].end());
      }
    }
    return deal;
  }

 private:
  using State = std::vector<DifferencedSet>;
  struct Waiting {
    Int128 spread;
    std::size_t state;
  };

  /// The state of largest spread leaves first, of equal ones that with the largest first set.
  struct Later {
    const std::vector<State>& states;
    [[nodiscard]] bool operator()(const Waiting& a, const Waiting& b) const noexcept {
      if (a.spread != b.spread) return a.spread < b.spread;
      return states[b.state].front().before(states[a.state].front());
    }
  };

  void push(State&& state) {
    std::sort(state.begin(), state.end(), [](const auto& a, const auto& b) { return a.before(b); });
    const Int128 least = state.size() == parts_ ? state.back().sum : Int128{0};
    const Int128 spread = state.front().sum - least;
    states_.push_back(std::move(state));
    waiting_.push_back({spread, states_.size() - 1});
    std::push_heap(waiting_.begin(), waiting_.end(), Later{states_});
  }
  State pop() {
    std::pop_heap(waiting_.begin(), waiting_.end(), Later{states_});
    State state = std::move(states_[waiting_.back().state]);
    waiting_.pop_back();
    return state;
  }
  /// Largest sets to smallest ones.
  State joined(State&& a, State&& b) {
    const std::size_t filled = a.size();
    for (std::size_t i = 0; i < b.size(); ++i) {
      const std::size_t to = parts_ - 1 - i;
      if (to >= filled) {
        a.push_back(b[i]);
        continue;
      }
      DifferencedSet& set = a[to];
      next_[set.last] = b[i].first;
      set.sum += b[i].sum;
      set.count += b[i].count;
      set.last = b[i].last;
    }
    return std::move(a);
  }

  std::span<const Int128> work_;
  std::size_t parts_;
  std::vector<std::size_t> next_;  // of an item in its set
  std::vector<State> states_;
  std::vector<Waiting> waiting_;  // a heap
};

}  // namespace detail

/// Deals items to `parts` so that their sums of work are nearly equal (Karmarkar and Karp, 1982, in
/// the form for several parts): each item begins as a state of one set, with `PartSizes::equal`
/// each `parts` neighbours in ascending order of work as one of `parts` sets; the two states whose
/// largest and smallest sets differ most are joined, largest sets to smallest, until one is left.
/// Parts are ordered from the largest sum to the smallest, their items ascending. Ties as in verl's
/// `karmarkar_karp`: of states with equal spread that with the larger first set goes first, and of
/// sets with equal sums that with more items, then with the later first item is the larger. With
/// fewer items than parts the last parts are empty. Throws InvalidInput if parts < 1, a work is
/// < 1, or parts are to be equal and do not divide the items. O(n parts log(n parts)).
[[nodiscard]] inline ShardLayout assign_karmarkar_karp(std::span<const Int128> work,
                                                       std::size_t parts, PartSizes sizes) {
  require(parts >= 1, "deal_karmarkar_karp: parts must be >= 1");
  require(sizes == PartSizes::free || work.size() % parts == 0,
          "deal_karmarkar_karp: equal parts must divide the items",
          static_cast<std::int64_t>(work.size()));
  for (const Int128 each : work) {
    require(each > 0, "deal_karmarkar_karp: a work must be >= 1", static_cast<std::int64_t>(each));
  }
  return detail::KarmarkarKarp(work, parts).run(sizes);
}

}  // namespace slimpack::schedule
