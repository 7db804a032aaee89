// SPDX-License-Identifier: Apache-2.0
// The largest differencing method: items to parts of nearly equal sums.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "slimpack/core/int128.hpp"

namespace slimpack::schedule::detail {

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

  [[nodiscard]] std::vector<std::vector<std::size_t>> run(bool equal_sizes) {
    std::vector<std::size_t> lightest_first(work_.size());
    std::iota(lightest_first.begin(), lightest_first.end(), std::size_t{0});
    std::stable_sort(lightest_first.begin(), lightest_first.end(),
                     [&](std::size_t a, std::size_t b) { return work_[a] < work_[b]; });
    const std::size_t width = equal_sizes ? parts_ : 1;
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
    std::vector<std::vector<std::size_t>> parts(parts_);
    if (!waiting_.empty()) {
      const State last = pop();
      for (std::size_t part = 0; part < last.size(); ++part) {
        std::size_t item = last[part].first;
        for (std::size_t of = 0; of < last[part].count; ++of, item = next_[item]) {
          parts[part].push_back(item);
        }
        std::sort(parts[part].begin(), parts[part].end());
      }
    }
    return parts;
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

}  // namespace slimpack::schedule::detail
