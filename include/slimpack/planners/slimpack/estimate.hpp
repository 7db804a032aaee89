// SPDX-License-Identifier: Apache-2.0
// Time and memory of settings in closed form: what a search of few candidates begins with.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "slimpack/core/int128.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/cost/cost_model.hpp"
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

/// What a rank's units cost beyond the work of their tokens, by their number.
class UnitCosts {
 public:
  /// The problem must outlive it. O(samples).
  explicit UnitCosts(const SlimpackProblem& problem)
      : UnitCosts(problem, fixed(problem, stage_of(problem))) {}
  /// With what a unit costs by itself.
  UnitCosts(const SlimpackProblem& problem, Nanos each)
      : problem_(problem),
        stage_(stage_of(problem)),
        tokens_{total_tokens(problem.request().batch.samples).value / problem.request().dp},
        each_(each) {}

  /// What a unit costs by itself: F, B and H of a pack of one token.
  [[nodiscard]] Nanos each() const noexcept { return each_; }
  /// The costs of so many units, with equal packs.
  [[nodiscard]] Nanos all(std::int64_t units) const {
    const Tokens pack{(tokens_.value + units - 1) / units};
    return (each_ + spilled(problem_.model(), pack, stage_, false) +
            spilled(problem_.model(), pack, stage_, true)) *
           units;
  }

 private:
  [[nodiscard]] static StageLoad stage_of(const SlimpackProblem& problem) {
    StageLoad stage;
    stage.layers = most_layers(problem.frame().stages, problem.request().pp);
    stage.tensor_parallel = problem.request().tp;
    stage.tensor_link = problem.request().cluster.inside;
    return stage;
  }
  [[nodiscard]] static Nanos fixed(const SlimpackProblem& problem, const StageLoad& stage) {
    PackLoad one;
    one.tokens = {1};
    HeadLoad head;
    head.tokens = {1};
    head.vocab = 1;
    head.shards = problem.request().pp;
    head.tensor_parallel = problem.request().tp;
    head.link = head.tensor_link = problem.request().cluster.inside;
    return std::visit(
        [&](const auto& model) {
          return model.forward(one, stage) + model.backward(one, stage, Recompute::none) +
                 model.head(head);
        },
        problem.model());
  }

  const SlimpackProblem& problem_;
  StageLoad stage_;
  Tokens tokens_;  ///< of a rank on average
  Nanos each_;
};

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

  /// Which ranks share samples, and what memory is left to the packs around these.
  struct Sharing {
    std::int32_t ranks = 1;  ///< that share the longest samples
    bool as_needed = false;  ///< of these no more than a sample's time and bytes ask for
    bool loose = false;      ///< half a block of packs more around a long sample
  };

  /// The problem must outlive it. O(samples).
  SettingEstimate(const SlimpackProblem& problem, const UnitCosts& unit_costs)
      : problem_(problem),
        costs_(problem.costs(problem.frame(), {0})),
        unit_costs_(unit_costs),
        layer_(layer_bytes(problem.frame().model, problem.frame().memory.gradient_bytes,
                           problem.frame().parallel.tp)),
        layers_(most_layers(problem.frame().stages, problem.frame().parallel.pp)),
        free_(SlimpackProblem::free_bytes(problem.frame())) {
    for (const Tokens length : problem.request().batch.samples) {
      tokens_ += length;
      pairs2_ += Int128{length.value} * length.value;
    }
    for (const schedule::SampleNeed& need : problem_.needs()) all_time_ += need.time;
  }

  /// Whether the longest sample takes longer than all of a rank on average.
  [[nodiscard]] bool outsized() const {
    return Int128{problem_.needs().front().time} * problem_.request().dp > all_time_;
  }

  /// Whether leaving the gradients of weights to packs of their own should save so much more in
  /// fill and drain than it costs on all packs of a rank that it is worth half as many units again.
  /// False where the cost has no price of it.
  [[nodiscard]] bool apart_pays(const Choice& choice, std::span<const ModeChoice> modes,
                                std::span<const std::int64_t> units, std::int32_t chunks) const {
    const Recompute most = modes[choice.mode].most;
    const std::int64_t packs = problem_.request().dp * units[choice.units];
    StageLoad stage;
    stage.layers = std::max<std::int64_t>(1, layers_ / chunks);
    stage.tensor_parallel = problem_.request().tp;
    stage.tensor_link = problem_.request().cluster.inside;
    PackLoad load;
    load.tokens = {tokens_.value / packs + 1};
    load.segments = static_cast<std::int64_t>(problem_.order().size()) / packs + 1;
    load.runs = 1;
    return std::visit(
        [&]<class Model>(const Model& model) {
          if constexpr (SplitCostModel<Model>) {
            const Nanos weight = model.weight(load, stage);
            const Nanos more = model.backward_apart(load, stage, most) + weight -
                               model.backward(load, stage, most);
            // At either end W of each other stage may fill a wait.
            const Nanos saved = weight * (2 * (problem_.request().pp - 1));
            const Int128 net = (saved - more * (units[choice.units] * chunks)).value;
            return net * kCostScale * kWorthUnits > choice.time;
          } else {
            return false;
          }
        },
        problem_.model());
  }

  /// The mode and the number of packs with the shortest time that should fit into memory with so
  /// many chunks, long samples shared; equal ones go to the earlier mode, then to fewer packs.
  /// Absent where none fits.
  /// O(modes (samples that their limits make leaner + units)).
  [[nodiscard]] std::optional<Choice> best(std::span<const ModeChoice> modes,
                                           std::span<const std::int64_t> units, std::int32_t chunks,
                                           const Sharing& sharing) const {
    std::optional<Choice> best;
    for (std::size_t mode = 0; mode < modes.size(); ++mode) {
      // Those who keep all of some samples and little of others wait for memory most of the time.
      if (modes[mode].most == Recompute::none && modes[mode].lean != Recompute::none) continue;
      // Those by pack or token are for what turns out to lack a little.
      if (modes[mode].lean_permille > 0) continue;
      const Int128 work = std::max(rank_work(modes[mode]), longest_work(modes[mode], sharing));
      const std::vector<Longest> longest = longest_of_modes(modes[mode], sharing);
      for (std::size_t i = 0; i < units.size(); ++i) {
        if (!fits(modes[mode], longest, units[i], chunks, sharing)) continue;
        const Int128 time = work + (problem_.request().pp - 1) * work / (units[i] * chunks) +
                            Int128{unit_costs_.all(units[i]).value} * kCostScale;
        if (best && best->time <= time) continue;
        best = Choice{mode, i, time};
      }
    }
    return best;
  }

 private:
  static constexpr std::int64_t kWorthUnits = 200;  // what saves less of a step is not worth units

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

  /// Work of each rank that shares the longest sample, that sample alone.
  [[nodiscard]] Int128 longest_work(const ModeChoice& mode, const Sharing& sharing) const {
    const Tokens length = problem_.lengths().front();
    const Recompute own = mode.of(length);
    const Int128 each = Int128{layers_} * resident_bytes(layer_, own);
    const std::int32_t ranks = sharing.as_needed ? needed(0, each, sharing.ranks) : sharing.ranks;
    return (Int128{costs_.forward.slice({}, length)} +
            costs_.backward[static_cast<std::size_t>(own)].slice({}, length)) /
           ranks;
  }

  /// The longest sample of a mode, and what each of its tokens keeps on a device of the fullest
  /// stage.
  struct Longest {
    Tokens length;
    Int128 each = 0;
  };
  [[nodiscard]] std::vector<Longest> longest_of_modes(const ModeChoice& mode,
                                                      const Sharing& sharing) const {
    std::vector<Longest> longest;
    std::optional<Recompute> before;
    for (std::size_t i = 0; i < problem_.lengths().size(); ++i) {
      const Tokens length = problem_.lengths()[i];
      const Recompute own = mode.of(length);
      const Int128 each = Int128{layers_} * resident_bytes(layer_, own);
      const std::int32_t ranks = sharing.as_needed ? needed(i, each, sharing.ranks) : sharing.ranks;
      const Tokens part{length.value / ranks};
      if (own != before) {
        longest.push_back({part, each});
      } else {
        longest.back().length = std::max(longest.back().length, part);
      }
      before = own;
      // All others are shorter, and no sample is shared.
      if (own == mode.most && (!sharing.as_needed || ranks == 1)) break;
    }
    return longest;
  }
  /// The least power of two, at most `widest`, of ranks whose parts of a sample take no longer than
  /// a rank on average and fit into memory.
  [[nodiscard]] std::int32_t needed(std::size_t sample, Int128 each, std::int32_t widest) const {
    const Int128 time = Int128{problem_.needs()[sample].time} * problem_.request().dp;
    const Int128 bytes = problem_.lengths()[sample].value * each;
    std::int32_t ranks = 1;
    while (ranks < widest && (time > ranks * all_time_ || bytes > ranks * Int128{free_.value})) {
      ranks *= 2;
    }
    return std::min(ranks, widest);
  }

  /// Beside what one pack works with: two blocks of packs, which keep stages busy although packs
  /// differ, or the longest sample of each mode with the packs around it, which keep about as much
  /// a token: one at either end, and with chunks a block, for all packs of a block are forward
  /// before the first is backward; half of it where few packs may wait for memory and no rank for
  /// another.
  [[nodiscard]] bool fits(const ModeChoice& mode, std::span<const Longest> longest,
                          std::int64_t units, std::int32_t chunks, const Sharing& sharing) const {
    const PlanRequest& request = problem_.request();
    const auto most = static_cast<std::size_t>(mode.most);
    const std::int64_t block = schedule::ListOptions{}.block(request.pp);
    const Int128 pack = tokens_.value / (request.dp * units) + 1;
    const Int128 kept = pack * (layers_ * (layer_.kept[most] + layer_.kv) + 2 * layer_.boundary);
    const Int128 work = pack * (layer_.backward_workspace[most] + 4 * layer_.boundary);
    Int128 held = 2 * block * kept;
    const bool many = units >= detail::kManyFulls * request.pp;
    const std::int64_t halves = (many || sharing.as_needed ? 2 : 1) + (sharing.loose ? 1 : 0);
    const std::int64_t around = (chunks == 1 ? 0 : halves * block / 2) + 2;
    for (const Longest& one : longest) {
      held = std::max(held, (one.length.value + around * pack) * one.each);
    }
    return held + work <= free_.value;
  }

  const SlimpackProblem& problem_;
  PassCosts costs_;
  UnitCosts unit_costs_;
  LayerBytes layer_;
  std::int64_t layers_;
  Bytes free_;
  Tokens tokens_;
  Int128 pairs2_ = 0;    // sum of squares of lengths
  Int128 all_time_ = 0;  // of all samples, in the unit of their needs
};

}  // namespace slimpack::planners
