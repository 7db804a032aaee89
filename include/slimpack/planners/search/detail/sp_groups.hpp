// SPDX-License-Identifier: Apache-2.0
// Samples of a micro-batch to groups of ranks of different sizes, as FlexSP has them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/cost/cost_model.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/planners/search/detail/lengths.hpp"

namespace slimpack::planners {

/// What a sample takes on groups of 1, 2, 4 .. ranks, in any unit, each >= 1.
using SpTimes = std::vector<std::int64_t>;

/// The load of a pack of so many of a sample: rows are filled up to tiles once a pack.
[[nodiscard]] constexpr PackLoad many(PackLoad load, std::int64_t count) noexcept {
  for (Tokens* const tokens :
       {&load.tokens, &load.kv_received, &load.q_received, &load.kv_sent, &load.heads_sent}) {
    *tokens = *tokens * count;
  }
  for (const AttentionAmount& amount : kAttentionAmounts) {
    load.*amount.all *= count;
    load.*amount.alone *= count;
  }
  load.segments *= count;
  return load;
}

/// What H adds to the time of a rank of one stage for so many of its tokens; nothing on several
/// stages, of which one alone may have it.
template <CostModel Model>
[[nodiscard]] Nanos head_time(const Plan& plan, const Model& model, Tokens tokens) {
  if (plan.parallel.pp > 1) return {};
  HeadLoad head;
  head.tokens = tokens;
  head.vocab = plan.model.vocab;
  head.tensor_parallel = plan.parallel.tp;
  head.tile = plan.memory.head_tile;
  head.tensor_link = plan.cluster.inside;
  return model.head(head);
}

/// One micro-batch to divide into groups of ranks, whose sizes are powers of two and sum to at most
/// `ranks`.
struct SpProblem {
  std::span<const Tokens> lengths;  ///< of the samples, each >= 1
  std::span<const SpTimes> times;   ///< one a sample; as many times each as sizes are allowed
  std::int32_t ranks = 1;           ///< data-parallel ranks, >= 1
  Tokens capacity;                  ///< most tokens of a group for each of its ranks
};

/// A group of 1 << degree ranks and positions of its samples.
struct SpGroup {
  std::size_t degree = 0;
  std::vector<std::size_t> samples;
  friend bool operator==(const SpGroup&, const SpGroup&) = default;
};

/// Positions of samples, longest first, in at most `count` runs of which the largest has as few
/// tokens as there can be: FlexSP's micro-batches. Equal samples keep their order; a run takes as
/// many as fit. Throws InvalidInput if count < 1 or a length is < 1. O(n log n).
[[nodiscard]] inline std::vector<std::vector<std::size_t>> cut_sorted(
    std::span<const Tokens> lengths, std::int64_t count);

/// Divides a micro-batch into groups so that the slowest group takes nearly the least time
/// possible; FlexSP gives this problem to a MILP solver. Up to 16 ranks all sets of sizes are
/// tried. With more ranks the search starts at the set that bisection of the time finds, and goes
/// on by splitting, joining, doubling and adding groups. Samples go, longest first, to the group
/// that is then done first; moves and swaps take work from the slowest. Of equally good sizes the
/// larger are taken. Groups come largest first, then in order of their first sample. Where tokens
/// do not fit, the capacity is doubled until they do. Throws InvalidInput if ranks or capacity are
/// < 1, or times are missing, < 1 or of more degrees than ranks allow. O(n^2 groups) at worst.
[[nodiscard]] inline std::vector<SpGroup> solve_sp_groups(const SpProblem& problem);

namespace detail {

/// One set of group sizes and what is in each.
struct SpPlan {
  std::vector<SpGroup> groups;
  std::vector<std::int64_t> load;
  std::vector<Tokens> tokens;
  std::int64_t slowest = std::numeric_limits<std::int64_t>::max();  ///< where samples do not fit
};

class SpSolver {
 public:
  explicit SpSolver(const SpProblem& problem)
      : problem_(problem), capacity_(problem.capacity), order_(longest_first(problem.lengths)) {}

  [[nodiscard]] std::vector<SpGroup> run() {
    if (order_.empty()) return {};
    SpPlan best;
    for (; best.groups.empty(); capacity_ = capacity_ * 2) {
      best = problem_.ranks <= kAllSizes ? try_all() : climb();
      if (best.slowest == std::numeric_limits<std::int64_t>::max()) best.groups.clear();
      if (!best.groups.empty()) break;
    }
    relieve(best);
    std::vector<SpGroup> groups;
    for (SpGroup& group : best.groups) {
      if (group.samples.empty()) continue;
      std::sort(group.samples.begin(), group.samples.end());
      groups.push_back(std::move(group));
    }
    std::stable_sort(groups.begin(), groups.end(), [](const SpGroup& a, const SpGroup& b) {
      return a.degree != b.degree ? a.degree > b.degree : a.samples.front() < b.samples.front();
    });
    return groups;
  }

 private:
  static constexpr std::int32_t kAllSizes = 16;
  static constexpr int kSteps = 12;
  using Sizes = std::vector<std::size_t>;  // degrees of groups, falling

  [[nodiscard]] std::size_t degrees() const { return problem_.times.front().size(); }
  [[nodiscard]] bool fits(Tokens tokens, std::size_t degree) const noexcept {
    return tokens.value <= (capacity_.value << degree);
  }

  /// Samples, longest first, to the group that is done first with it; equal ones to the first.
  [[nodiscard]] SpPlan fill(const Sizes& sizes) const {
    SpPlan plan;
    for (const std::size_t degree : sizes) plan.groups.push_back({degree, {}});
    plan.load.resize(sizes.size());
    plan.tokens.resize(sizes.size());
    for (const std::size_t sample : order_) {
      const SpTimes& times = problem_.times[sample];
      std::size_t to = sizes.size();
      std::int64_t done = std::numeric_limits<std::int64_t>::max();
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        const std::int64_t then = plan.load[i] + times[sizes[i]];
        if (then < done && fits(plan.tokens[i] + problem_.lengths[sample], sizes[i])) {
          done = then;
          to = i;
        }
      }
      if (to == sizes.size()) return plan;  // slowest stays at its maximum
      plan.groups[to].samples.push_back(sample);
      plan.load[to] = done;
      plan.tokens[to] += problem_.lengths[sample];
    }
    plan.slowest = *std::max_element(plan.load.begin(), plan.load.end());
    return plan;
  }

  void keep(SpPlan& best, const Sizes& sizes) const {
    SpPlan plan = fill(sizes);
    if (plan.slowest < best.slowest) best = std::move(plan);
  }

  /// Every set of sizes that has no more ranks than there are.
  [[nodiscard]] SpPlan try_all() const {
    SpPlan best;
    Sizes sizes;
    const auto extend = [&](const auto& self, std::size_t most, std::int32_t left) -> void {
      if (!sizes.empty()) keep(best, sizes);
      if (sizes.size() == order_.size()) return;
      for (std::size_t degree = most + 1; degree-- > 0;) {
        const std::int32_t ranks = std::int32_t{1} << degree;
        if (ranks > left) continue;
        sizes.push_back(degree);
        self(self, degree, left - ranks);
        sizes.pop_back();
      }
    };
    extend(extend, degrees() - 1, problem_.ranks);
    return best;
  }

  /// Sizes with which all samples are done by `time`, each on as few ranks as it then needs, or
  /// none where that takes too many.
  [[nodiscard]] Sizes sizes_for(std::int64_t time) const {
    SpPlan plan;
    std::int64_t used = 0;
    for (const std::size_t sample : order_) {
      const SpTimes& times = problem_.times[sample];
      const Tokens length = problem_.lengths[sample];
      std::size_t least = 0;
      while (least < degrees() && (!fits(length, least) || times[least] > time)) ++least;
      if (least == degrees()) return {};
      std::size_t to = plan.groups.size();
      std::pair<std::size_t, std::int64_t> tightest{};
      for (std::size_t i = 0; i < plan.groups.size(); ++i) {
        const std::size_t degree = plan.groups[i].degree;
        const std::int64_t left = time - plan.load[i] - times[degree];
        if (degree < least || left < 0 || !fits(plan.tokens[i] + length, degree)) continue;
        const std::pair<std::size_t, std::int64_t> here{degree, left};
        if (to == plan.groups.size() || here < tightest) {
          to = i;
          tightest = here;
        }
      }
      if (to == plan.groups.size()) {
        used += std::int64_t{1} << least;
        if (used > problem_.ranks) return {};
        plan.groups.push_back({least, {}});
        plan.load.push_back(0);
        plan.tokens.emplace_back();
      }
      plan.load[to] += times[plan.groups[to].degree];
      plan.tokens[to] += length;
    }
    Sizes sizes;
    for (const SpGroup& group : plan.groups) sizes.push_back(group.degree);
    std::sort(sizes.rbegin(), sizes.rend());
    return sizes;
  }

  [[nodiscard]] Sizes bisect() const {
    std::int64_t high = 0;
    for (const std::size_t sample : order_) high += problem_.times[sample].front();
    Sizes best = sizes_for(high);
    std::int64_t low = 0;
    while (!best.empty() && high - low > 1 + high / 1024) {
      const std::int64_t middle = low + (high - low) / 2;
      Sizes sizes = sizes_for(middle);
      if (sizes.empty()) {
        low = middle;
      } else {
        high = middle;
        best = std::move(sizes);
      }
    }
    return best;
  }

  /// Sets of sizes one step away: a group split, doubled or added, two joined.
  [[nodiscard]] std::vector<Sizes> neighbours(const Sizes& sizes) const {
    std::int64_t spare = problem_.ranks;
    std::vector<std::int64_t> count(degrees());
    for (const std::size_t degree : sizes) {
      spare -= std::int64_t{1} << degree;
      ++count[degree];
    }
    std::vector<Sizes> result;
    const auto add = [&](std::vector<std::int64_t> changed) {
      Sizes next;
      for (std::size_t degree = changed.size(); degree-- > 0;) {
        next.insert(next.end(), static_cast<std::size_t>(changed[degree]), degree);
      }
      if (!next.empty()) result.push_back(std::move(next));
    };
    for (std::size_t degree = 0; degree < count.size(); ++degree) {
      const std::int64_t ranks = std::int64_t{1} << degree;
      auto changed = count;
      if (spare >= ranks) {
        ++changed[degree];
        add(changed);
        changed = count;
      }
      const bool doubles = degree + 1 < count.size();
      if (doubles && count[degree] > 0 && spare >= ranks) {
        --changed[degree];
        ++changed[degree + 1];
        add(changed);
        changed = count;
      }
      if (doubles && count[degree] > 1) {
        changed[degree] -= 2;
        ++changed[degree + 1];
        add(changed);
        changed = count;
      }
      if (degree > 0 && count[degree] > 0) {
        --changed[degree];
        changed[degree - 1] += 2;
        add(changed);
      }
    }
    return result;
  }

  [[nodiscard]] SpPlan climb() const {
    Sizes sizes = bisect();
    if (sizes.empty()) {  // tokens fit no better than on groups as large as there may be
      sizes.assign(static_cast<std::size_t>(problem_.ranks >> (degrees() - 1)), degrees() - 1);
    }
    SpPlan best = fill(sizes);
    for (int step = 0; step < kSteps; ++step) {
      bool better = false;
      for (const Sizes& next : neighbours(sizes)) {
        SpPlan plan = fill(next);
        if (plan.slowest >= best.slowest) continue;
        best = std::move(plan);
        better = true;
      }
      if (!better) break;
      sizes.clear();
      for (const SpGroup& group : best.groups) sizes.push_back(group.degree);
    }
    return best;
  }

  /// The exchange of a sample of the slowest group for one of another, or for none, that helps
  /// most.
  struct Change {
    std::int64_t slower = 0;  // of the two groups afterwards
    std::size_t group = 0, mine = 0, theirs = 0;
    bool swap = false;
  };

  void relieve(SpPlan& plan) const {
    for (std::size_t turn = 0; turn < 2 * order_.size(); ++turn) {
      const auto top = static_cast<std::size_t>(
          std::max_element(plan.load.begin(), plan.load.end()) - plan.load.begin());
      Change best{plan.load[top], 0, 0, 0, false};
      for (std::size_t group = 0; group < plan.groups.size(); ++group) {
        if (group != top) look(plan, top, group, best);
      }
      if (best.slower == plan.load[top]) return;
      apply(plan, top, best);
    }
  }

  void look(const SpPlan& plan, std::size_t top, std::size_t group, Change& best) const {
    const SpGroup& from = plan.groups[top];
    const SpGroup& to = plan.groups[group];
    for (std::size_t mine = 0; mine < from.samples.size(); ++mine) {
      const std::size_t sample = from.samples[mine];
      const SpTimes& times = problem_.times[sample];
      const Tokens length = problem_.lengths[sample];
      const auto consider = [&](std::int64_t out, std::int64_t back, Tokens other,
                                std::size_t theirs, bool swap) {
        const std::int64_t slower = std::max(plan.load[top] - times[from.degree] + back,
                                             plan.load[group] + times[to.degree] - out);
        if (slower >= best.slower) return;
        if (!fits(plan.tokens[group] + length - other, to.degree)) return;
        if (!fits(plan.tokens[top] - length + other, from.degree)) return;
        best = {slower, group, mine, theirs, swap};
      };
      consider(0, 0, Tokens{}, 0, false);
      if (from.samples.size() * to.samples.size() > kMostSwaps) continue;
      for (std::size_t theirs = 0; theirs < to.samples.size(); ++theirs) {
        const std::size_t other = to.samples[theirs];
        consider(problem_.times[other][to.degree], problem_.times[other][from.degree],
                 problem_.lengths[other], theirs, true);
      }
    }
  }

  void apply(SpPlan& plan, std::size_t top, const Change& change) const {
    const auto shift = [&](std::size_t sample, std::size_t group, std::int64_t sign) {
      plan.load[group] += sign * problem_.times[sample][plan.groups[group].degree];
      plan.tokens[group] += problem_.lengths[sample] * sign;
    };
    auto& from = plan.groups[top].samples;
    auto& to = plan.groups[change.group].samples;
    const std::size_t sample = from[change.mine];
    shift(sample, top, -1);
    shift(sample, change.group, 1);
    if (change.swap) {
      const std::size_t other = to[change.theirs];
      shift(other, change.group, -1);
      shift(other, top, 1);
      from[change.mine] = other;
      to[change.theirs] = sample;
      return;
    }
    from.erase(from.begin() + static_cast<std::ptrdiff_t>(change.mine));
    to.push_back(sample);
  }

  static constexpr std::size_t kMostSwaps = 4096;  ///< pairs of two groups that are looked at

  const SpProblem& problem_;
  Tokens capacity_;
  std::vector<std::size_t> order_;  // longest first
};

}  // namespace detail

inline std::vector<SpGroup> solve_sp_groups(const SpProblem& problem) {
  require(problem.ranks >= 1, "solve_sp_groups: ranks must be >= 1", problem.ranks);
  require(problem.capacity.value >= 1, "solve_sp_groups: capacity must be >= 1",
          problem.capacity.value);
  require(problem.times.size() == problem.lengths.size(),
          "solve_sp_groups: there must be times for every sample",
          static_cast<std::int64_t>(problem.times.size()));
  for (const SpTimes& times : problem.times) {
    require(!times.empty() && times.size() == problem.times.front().size() &&
                (problem.ranks >> (times.size() - 1)) >= 1,
            "solve_sp_groups: degrees must be powers of two up to the ranks",
            static_cast<std::int64_t>(times.size()));
    for (const std::int64_t time : times) {
      require(time >= 1, "solve_sp_groups: a time must be >= 1", time);
    }
  }
  return detail::SpSolver(problem).run();
}

inline std::vector<std::vector<std::size_t>> cut_sorted(std::span<const Tokens> lengths,
                                                        std::int64_t count) {
  require(count >= 1, "cut_sorted: count must be >= 1", count);
  const std::vector<std::size_t> order = longest_first(lengths);
  std::int64_t low = 0, high = 0;  // more than low is needed, high suffices
  for (const Tokens length : lengths) {
    require(length.value >= 1, "cut_sorted: a length must be >= 1", length.value);
    low = std::max(low, length.value - 1);
    high += length.value;
  }
  const auto cut = [&](std::int64_t most) {
    std::vector<std::vector<std::size_t>> runs;
    std::int64_t held = most;
    for (const std::size_t sample : order) {
      if (held + lengths[sample].value > most) {
        runs.emplace_back();
        held = 0;
      }
      runs.back().push_back(sample);
      held += lengths[sample].value;
    }
    return runs;
  };
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    (static_cast<std::int64_t>(cut(middle).size()) <= count ? high : low) = middle;
  }
  return cut(high);
}

}  // namespace slimpack::planners
