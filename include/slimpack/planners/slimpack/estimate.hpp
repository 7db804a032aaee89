// SPDX-License-Identifier: Apache-2.0
// Time and memory of settings in closed form: what a search of few candidates begins with.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "slimpack/core/int128.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/cost/memory_model.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/planners/search/detail/recompute_by_length.hpp"
#include "slimpack/planners/slimpack/problem.hpp"
#include "slimpack/planners/slimpack/settings.hpp"
#include "slimpack/schedule/schedule_parts.hpp"

namespace slimpack::planners {

namespace detail {

/// With so many times the packs that fill a pipeline, fill and drain no longer count.
inline constexpr std::int64_t kManyFulls = 100;

}  // namespace detail

/// Ranks settings of which no rank shares samples, before any candidate is built: recomputation,
/// chunks and number of packs. A guess, not a bound: it sees neither waits nor the packs
/// themselves.
class SettingEstimate {
 public:
  /// A mode and a number of packs, by index.
  struct Choice {
    std::size_t mode = 0;   ///< of the modes given
    std::size_t units = 0;  ///< of the numbers of packs given
    Int128 time = 0;        ///< of the step, in nanoseconds over 2^20
  };

  /// `overhead` is what a unit costs by itself. The problem must outlive it. O(samples).
  SettingEstimate(const SlimpackProblem& problem, Nanos overhead)
      : problem_(problem),
        costs_(problem.costs(problem.frame(), {0})),
        overhead_(overhead),
        layer_(layer_bytes(problem.frame().model, problem.frame().memory.gradient_bytes,
                           problem.frame().parallel.tp)),
        layers_(most_layers(problem.frame().stages, problem.frame().parallel.pp)),
        free_(SlimpackProblem::free_bytes(problem.frame())) {
    for (const Tokens length : problem.request().batch.samples) {
      tokens_ += length;
      pairs2_ += Int128{length.value} * length.value;
    }
  }

  /// Whether the longest sample takes longer than all of a rank on average.
  [[nodiscard]] bool outsized() const {
    Int128 sum = 0;
    for (const schedule::SampleNeed& need : problem_.needs()) sum += need.time;
    return Int128{problem_.needs().front().time} * problem_.request().dp > sum;
  }

  /// The mode and the number of packs with the shortest time that should fit into memory with so
  /// many chunks, the longest samples on `ranks` ranks; equal ones go to the earlier mode, then to
  /// fewer packs. Absent where none fits.
  /// O(modes (samples that their limits make leaner + units)).
  [[nodiscard]] std::optional<Choice> best(std::span<const ModeChoice> modes,
                                           std::span<const std::int64_t> units, std::int32_t chunks,
                                           std::int32_t ranks) const {
    std::optional<Choice> best;
    for (std::size_t mode = 0; mode < modes.size(); ++mode) {
      // Those who keep all of some samples and little of others wait for memory most of the time.
      if (modes[mode].most == Recompute::none && modes[mode].lean != Recompute::none) continue;
      // Those by pack or token are for what turns out to lack a little.
      if (modes[mode].lean_permille > 0) continue;
      const Int128 work = rank_work(modes[mode]);
      const std::vector<Longest> longest = longest_of_modes(modes[mode], ranks);
      for (std::size_t i = 0; i < units.size(); ++i) {
        if (!fits(modes[mode], longest, units[i], chunks)) continue;
        const Int128 time = work + (problem_.request().pp - 1) * work / (units[i] * chunks) +
                            Int128{overhead_.value} * kCostScale * units[i];
        if (best && best->time <= time) continue;
        best = Choice{mode, i, time};
      }
    }
    return best;
  }

 private:
  /// Mean work of a rank, in nanoseconds over 2^20.
  [[nodiscard]] Int128 rank_work(const ModeChoice& mode) const {
    const auto back = [&](Recompute of) { return costs_.backward[static_cast<std::size_t>(of)]; };
    const auto all = [&](const schedule::SliceCost& cost) {
      return Int128{cost.per_slice} * static_cast<std::int64_t>(problem_.order().size()) +
             Int128{cost.per_token} * tokens_.value + pairs2_ * cost.per_pair2;
    };
    Int128 sum = all(costs_.forward) + all(back(mode.most));
    for (const Tokens length : problem_.lengths()) {
      const Recompute own = mode.of(length);
      if (own == mode.most) break;  // the samples come longest first
      sum += back(own).slice({}, length) - back(mode.most).slice({}, length);
    }
    return sum / problem_.request().dp;
  }

  /// The longest sample of a mode, and what each of its tokens keeps on a device of the fullest
  /// stage.
  struct Longest {
    Tokens length;
    Int128 each = 0;
  };
  [[nodiscard]] std::vector<Longest> longest_of_modes(const ModeChoice& mode,
                                                      std::int32_t ranks) const {
    std::vector<Longest> longest;
    std::optional<Recompute> before;
    for (const Tokens length : problem_.lengths()) {
      const Recompute own = mode.of(length);
      if (own != before) {
        longest.push_back({{length.value / ranks}, Int128{layers_} * resident_bytes(layer_, own)});
      }
      before = own;
      if (own == mode.most) break;  // all others are shorter
    }
    return longest;
  }

  /// Beside what one pack works with: two blocks of packs, which keep stages busy although packs
  /// differ, or the longest sample of each mode with the packs around it, which keep about as much
  /// a token: one at either end, and with chunks a block, for all packs of a block are forward
  /// before the first is backward; half of it where few packs may wait for memory.
  [[nodiscard]] bool fits(const ModeChoice& mode, std::span<const Longest> longest,
                          std::int64_t units, std::int32_t chunks) const {
    const PlanRequest& request = problem_.request();
    const auto most = static_cast<std::size_t>(mode.most);
    const std::int64_t block = schedule::ListOptions{}.block(request.pp);
    const Int128 pack = tokens_.value / (request.dp * units) + 1;
    const Int128 kept = pack * (layers_ * (layer_.kept[most] + layer_.kv) + 2 * layer_.boundary);
    const Int128 work = pack * (layer_.backward_workspace[most] + 4 * layer_.boundary);
    Int128 held = 2 * block * kept;
    const bool many = units >= detail::kManyFulls * request.pp;
    const std::int64_t around = (chunks == 1 ? 0 : many ? block : block / 2) + 2;
    for (const Longest& one : longest) {
      held = std::max(held, (one.length.value + around * pack) * one.each);
    }
    return held + work <= free_.value;
  }

  const SlimpackProblem& problem_;
  PassCosts costs_;
  Nanos overhead_;
  LayerBytes layer_;
  std::int64_t layers_;
  Bytes free_;
  Tokens tokens_;
  Int128 pairs2_ = 0;  // sum of squares of lengths
};

}  // namespace slimpack::planners
