// SPDX-License-Identifier: Apache-2.0
// Phase 2: the queue of each group is cut into packs of equal time, for each pass by itself.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "slimpack/core/int128.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/planners/slimpack/assignment.hpp"
#include "slimpack/planners/slimpack/exchange.hpp"
#include "slimpack/planners/slimpack/fill_tiles.hpp"
#include "slimpack/planners/slimpack/fit_modes.hpp"
#include "slimpack/planners/slimpack/problem.hpp"
#include "slimpack/planners/slimpack/queue_segments.hpp"
#include "slimpack/planners/slimpack/settings.hpp"
#include "slimpack/planners/slimpack/slice_costs.hpp"
#include "slimpack/planners/slimpack/split_packs.hpp"
#include "slimpack/planners/slimpack/spread_samples.hpp"
#include "slimpack/planners/slimpack/symmetric.hpp"
#include "slimpack/planners/slimpack/weights.hpp"
#include "slimpack/schedule/cut.hpp"

namespace slimpack::planners {

namespace detail {

/// How many packs a segment of `work` is cut into, where the fullest rank with work `most` has
/// `full` packs: in proportion, to the nearest, at least one.
[[nodiscard]] inline std::int64_t segment_units(Int128 work, Int128 most, std::int64_t full) {
  if (most == 0) return 1;
  return std::max<std::int64_t>(1,
                                static_cast<std::int64_t>((2 * work * full + most) / (2 * most)));
}

/// Builds one plan. Settings are one for all rank components, or one each.
class PackBuilder {
 public:
  PackBuilder(const SlimpackProblem& problem, const RankAssignment& assigned,
              std::span<const SlimpackSettings> settings, std::optional<std::size_t> component)
      : problem_(problem),
        assigned_(assigned),
        settings_(settings),
        component_(component),
        plan_(problem.outline(settings.front())) {
    plan_.groups = assigned.assignment.groups;
    plan_.parallel.max_cp = problem.request().max_cp.value_or(assigned.widest);
    if (!problem.options().merging) plan_.parallel.max_cp = 1;
  }

  [[nodiscard]] Plan build() {
    segments_ = segments();
    for (const QueueSegment& segment : segments_) {
      const auto& group = plan_.groups[index(segment.group)];
      if (costs_.contains(group.size())) continue;
      costs_[group.size()] = problem_.costs(plan_, group, PackSize::large);
    }
    measure();
    symmetric_.resize(segments_.size());
    std::int64_t packs = 0;
    for (std::size_t i = 0; i < segments_.size(); ++i) {
      packs += rules_of(i, Pass::forward).units + rules_of(i, Pass::backward).units;
    }
    plan_.micropacks.reserve(static_cast<std::size_t>(packs));
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      for (std::size_t i = 0; i < segments_.size(); ++i) cut(i, pass);
    }
    const bool shares = std::ranges::any_of(
        segments_, [&](const auto& part) { return plan_.groups[index(part.group)].size() > 1; });
    const bool spreads = settings_.front().spread && shares;
    const schedule::SliceCost alone = spreads ? cost_alone() : schedule::SliceCost{};
    const auto settle = [&](Plan& plan) {
      if (spreads) spread_samples(plan, alone);
      if (settings_.front().fit_modes) fit_modes(plan);
    };
    const auto finish = [&](Plan& plan) {
      if (settings_.front().fit_modes && !problem_.request().max_units) {
        split_packs(plan, settle);
      } else {
        settle(plan);
      }
    };
    Plan filled;
    const bool fills = plan_.parallel.pp == 1 && fill_tiles(filled = plan_);
    finish(plan_);
    if (fills) {
      finish(filled);
      if (slowest_rank(filled, PricedPlan(filled)) < slowest_rank(plan_, PricedPlan(plan_))) {
        plan_ = std::move(filled);
      }
    }
    add_weight_packs(plan_, [this](GroupId group) { return settings_of(group).weights; });
    return std::move(plan_);
  }

 private:
  /// What a slice costs on one rank, in both passes.
  [[nodiscard]] schedule::SliceCost cost_alone() const {
    const PassCosts alone = problem_.costs(plan_, {0}, PackSize::large);
    schedule::SliceCost both = alone.forward;
    const schedule::SliceCost& back =
        alone.backward[static_cast<std::size_t>(settings_.front().mode.most)];
    both.per_slice += back.per_slice;
    both.per_token += back.per_token;
    both.per_pair2 += back.per_pair2;
    return both;
  }
  [[nodiscard]] std::size_t component_of(GroupId group) const {
    return assigned_.component_of[static_cast<std::size_t>(plan_.groups[index(group)].front())];
  }
  [[nodiscard]] const SlimpackSettings& settings_of(GroupId group) const {
    return settings_[settings_.size() == 1 ? 0 : component_of(group)];
  }
  [[nodiscard]] const PassCosts& costs_of(GroupId group) const {
    return costs_.at(plan_.groups[index(group)].size());
  }

  /// Gives the plan its samples and returns the queues of its groups.
  [[nodiscard]] std::vector<QueueSegment> segments() {
    std::vector<QueueOrder> orders;
    for (std::size_t group = 0; group < plan_.groups.size(); ++group) {
      orders.push_back(settings_of(static_cast<GroupId>(group)).order);
    }
    if (!component_) {
      take_all_samples();
      return queue_segments(plan_.groups, assigned_.members, orders, plan_.parallel.pp == 1);
    }
    std::vector<std::vector<schedule::QueuedSample>> members =
        assigned_.sampled[*component_].members;
    for (std::size_t group = 0; group < members.size(); ++group) {
      for (schedule::QueuedSample& sample : members[group]) {
        sample.id = static_cast<SampleId>(plan_.samples.size());
        plan_.samples.push_back(sample.length);
        plan_.sample_group.push_back(static_cast<GroupId>(group));
      }
    }
    return queue_segments(plan_.groups, members, orders, plan_.parallel.pp == 1);
  }
  void take_all_samples() {
    const PlanRequest& request = problem_.request();
    plan_.samples = request.batch.samples;
    plan_.origin = request.batch.origin;
    plan_.sources = request.sources;
    plan_.sample_group.resize(plan_.samples.size());
    for (std::size_t i = 0; i < plan_.samples.size(); ++i) {
      plan_.sample_group[problem_.order()[i]] = assigned_.assignment.sample_group[i];
    }
  }

  /// Finds the work of each segment and of each component's fullest rank, in both passes.
  void measure() {
    // Packs of stages that wait for each other take equal times; caches hold equal tokens, of which
    // ranks that share a pack have a part each.
    const bool by_tokens = plan_.parallel.pp == 1 && problem_.spills();
    std::int64_t mean = 0;  // tokens of a rank
    if (by_tokens) {
      mean = total_tokens(problem_.request().batch.samples).value / plan_.parallel.dp;
      if (component_) mean = assigned_.sampled[*component_].part_of(mean);
    }
    for (std::size_t pass = 0; pass < 2; ++pass) {
      work_[pass].resize(segments_.size());
      most_[pass].resize(assigned_.components.size());
      std::vector<Int128> rank_work(static_cast<std::size_t>(plan_.parallel.dp));
      for (std::size_t i = 0; i < segments_.size(); ++i) {
        const GroupId group = segments_[i].group;
        const PassCosts& cost = costs_of(group);
        const std::size_t ranks = plan_.groups[index(group)].size();
        const schedule::SliceCosts costs =
            pass == 0 ? schedule::SliceCosts(cost.forward) : cost.back(settings_of(group).mode);
        // Samples of one length come one behind the other.
        Tokens length{-1};
        Int128 each = 0;
        for (const schedule::QueuedSample& sample : segments_[i].samples) {
          if (sample.length != length) {
            length = sample.length;
            each = by_tokens ? Int128{length.value} * kCostScale / ranks
                             : costs.of(length).slice({}, length);
          }
          work_[pass][i] += each;
        }
        Int128& most = most_[pass][component_of(group)];
        if (by_tokens) {
          most = Int128{mean} * kCostScale;
          continue;
        }
        for (const std::int32_t rank : plan_.groups[index(group)]) {
          Int128& sum = rank_work[static_cast<std::size_t>(rank)];
          sum += work_[pass][i];
          most = std::max(most, sum);
        }
      }
    }
  }

  /// Cuts a segment into the packs of one pass.
  void cut(std::size_t i, Pass pass) {
    const QueueSegment& segment = segments_[i];
    const PassCosts& cost = costs_of(segment.group);
    const schedule::CutRules rules = rules_of(i, pass);
    const schedule::SliceCosts back = cost.back(settings_of(segment.group).mode);
    if (!settings_of(segment.group).same_packs) {
      const schedule::SliceCosts slice =
          measure_of(i, pass == Pass::forward ? schedule::SliceCosts(cost.forward) : back);
      const std::vector<std::int64_t> weights = weights_of(i, pass, rules);
      const schedule::PackCuts cuts =
          schedule::cut_packs(segment.samples, pass, slice, rules, weights);
      add_packs(segment.group, pass, cuts.packs(),
                [&](std::size_t pack) { return cuts.pack(pack); });
      return;
    }
    if (pass == Pass::forward) {
      schedule::SliceCosts both = back;
      for (schedule::SliceCost& each : both.costs) {
        each.per_slice += cost.forward.per_slice;
        each.per_token += cost.forward.per_token;
        each.per_pair2 += cost.forward.per_pair2;
      }
      const schedule::SliceCosts measure = measure_of(i, both);
      const SlimpackSettings& settings = settings_of(segment.group);
      const bool in_blocks =
          settings.sample_blocks && settings.short_blocks && !settings.whole_samples &&
          (settings.group_blocks || plan_.groups[index(segment.group)].size() == 1);
      symmetric_[i] = in_blocks ? pack_in_blocks(segment.samples, measure, rules.units,
                                                 plan_.parallel.pp, rules)
                                : pack_symmetrically(segment.samples, measure, rules.units, rules);
    }
    const SymmetricPacks& packs = symmetric_[i];
    add_packs(segment.group, pass, packs.forward.packs(), [&](std::size_t pack) {
      return packs.forward.pack(pass == Pass::forward ? pack : packs.backward[pack]);
    });
  }

  /// By what packs of a segment are cut: time, or tokens at the segment's mean time of a token, or
  /// half of either.
  [[nodiscard]] schedule::SliceCosts measure_of(std::size_t i,
                                                const schedule::SliceCosts& time) const {
    const PackBalance balance = settings_of(segments_[i].group).balance;
    if (balance == PackBalance::time) return time;
    Int128 work = 0;
    std::int64_t tokens = 0;
    for (const schedule::QueuedSample& sample : segments_[i].samples) {
      work += time.of(sample.length).slice({}, sample.length);
      tokens += sample.length.value;
    }
    const auto mean = std::max<std::int64_t>(1, static_cast<std::int64_t>(work / tokens));
    if (balance == PackBalance::tokens) return schedule::SliceCost{0, mean, 0};
    schedule::SliceCosts half = time;
    for (schedule::SliceCost& each : half.costs) {
      each.per_slice /= 2;
      each.per_token = (each.per_token + mean + 1) / 2;
      each.per_pair2 /= 2;
      each.early_token /= 2;
      each.early_pair2 /= 2;
    }
    return half;
  }

  [[nodiscard]] schedule::CutRules rules_of(std::size_t i, Pass pass) const {
    const PlanRequest& request = problem_.request();
    const QueueSegment& segment = segments_[i];
    const SlimpackSettings& wanted = settings_of(segment.group);
    const auto width = static_cast<std::int64_t>(plan_.groups[index(segment.group)].size());
    schedule::CutRules rules;
    rules.granularity = plan_.parallel.granularity;
    if (width > 1) {
      // All ranks own equal parts of a slice that begins and ends at multiples of ranks x block.
      rules.granularity = {
          std::lcm(rules.granularity.value, plan_.memory.cp_block_tokens.value * width)};
    }
    rules.whole = wanted.whole_samples ? Tokens::max() : Tokens{};
    // Ramps are alike at both ends of both passes, so that stages have equal work at any time.
    if (segment.first) rules.front = wanted.ramp;
    if (segment.last) rules.back = wanted.ramp;
    const bool counts_backward = !wanted.same_packs && pass == Pass::backward;
    const auto counted = static_cast<std::size_t>(counts_backward);
    std::int64_t full = counts_backward ? wanted.backward_units() : wanted.forward_units();
    if (component_) full = assigned_.sampled[*component_].part_of(full);
    rules.units =
        segment_units(work_[counted][i], most_[counted][component_of(segment.group)], full);
    if (wanted.short_blocks && wanted.chunks > 1) {
      // A block of fewer packs than stages leaves some of them idle.
      const std::int64_t stages = plan_.parallel.pp;
      rules.units = std::max<std::int64_t>(1, (rules.units + stages / 2) / stages) * stages;
    }
    if (request.max_units) {
      rules.front = rules.back = {};
      rules.units = std::max<std::int64_t>(
          1, std::min(rules.units, *request.max_units / (segment.slot == 1 ? 1 : 2)));
    }
    return rules;
  }

  /// Sizes of the packs of a segment in one pass: those that recompute more than others have fewer
  /// tokens, so that all take about the same time.
  [[nodiscard]] std::vector<std::int64_t> weights_of(std::size_t i, Pass pass,
                                                     const schedule::CutRules& rules) const {
    std::vector<std::int64_t> weights =
        schedule::pack_weights(rules.units, rules.front, rules.back);
    const QueueSegment& segment = segments_[i];
    const SlimpackSettings& settings = settings_of(segment.group);
    const ModeChoice& mode = settings.mode;
    if (pass == Pass::forward || mode.lean_permille == 0 || mode.early.value > 0 ||
        settings.balance == PackBalance::tokens) {
      return weights;
    }
    const PassCosts& cost = costs_of(segment.group);
    const auto work = [&](Recompute recompute) {
      Int128 sum = 0;
      for (const schedule::QueuedSample& sample : segment.samples) {
        sum += cost.backward[static_cast<std::size_t>(recompute)].slice({}, sample.length);
      }
      return sum;
    };
    const Int128 usual = work(mode.most), more = work(mode.lean);
    for (std::size_t pack = 0; pack < weights.size(); ++pack) {
      if (!mode.leaner(pack)) continue;
      weights[pack] = std::max<std::int64_t>(
          1, static_cast<std::int64_t>(Int128{weights[pack]} * usual / more));
    }
    return weights;
  }

  /// `slices(i)` are those of pack i.
  template <class Slices>
  void add_packs(GroupId group, Pass pass, std::size_t packs, const Slices& slices) {
    const ModeChoice& mode = settings_of(group).mode;
    const bool in_cp_group = plan_.groups[index(group)].size() > 1;
    // Lengths of samples lie far apart in memory: they are only looked up where modes differ.
    const bool by_length = mode.most != mode.lean || mode.first != mode.most;
    for (std::size_t i = 0; i < packs; ++i) {
      const std::span<const Slice> own = slices(i);
      MicroPack& pack = plan_.micropacks.emplace_back();
      pack.pass = pass;
      pack.group = group;
      pack.slices.assign(own.begin(), own.end());
      if (pass == Pass::backward) pack.recompute = mode.leaner(i) ? mode.lean : mode.most;
      for (const Slice& slice : pack.slices) {
        if (pass == Pass::backward && by_length) {
          const Recompute usual = mode.of(plan_.samples[index(slice.sample)]);
          const bool early = usual == mode.lean && slice.begin + slice.end < 2 * mode.early;
          pack.recompute = std::max(pack.recompute, early ? mode.first : usual);
        }
        if (in_cp_group) {
          pack.exchange.push_back(
              problem_.request().runtime == Runtime::torch
                  ? RingMode::pass_kv
                  : cheaper_exchange(slice, pass, plan_.model, plan_.memory.gradient_bytes));
        }
      }
    }
  }

  const SlimpackProblem& problem_;
  const RankAssignment& assigned_;
  std::span<const SlimpackSettings> settings_;
  std::optional<std::size_t> component_;
  Plan plan_;
  std::vector<QueueSegment> segments_;
  std::vector<SymmetricPacks> symmetric_;           // by segment, where both passes have the same
  std::map<std::size_t, PassCosts> costs_;          // by ranks of a group
  std::array<std::vector<Int128>, 2> work_, most_;  // by pass, then segment, component
};

}  // namespace detail

/// The plan of these settings without schedule and prediction. If `component` is given, it holds
/// only the samples that stand for this rank component (SampledWorkload), numbered anew. `settings`
/// are one for all rank components or one each; all agree in head, chunks and device order.
[[nodiscard]] inline Plan build_packs(const SlimpackProblem& problem,
                                      const RankAssignment& assigned,
                                      std::span<const SlimpackSettings> settings,
                                      std::optional<std::size_t> component) {
  return detail::PackBuilder(problem, assigned, settings, component).build();
}

}  // namespace slimpack::planners
