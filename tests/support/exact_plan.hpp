// SPDX-License-Identifier: Apache-2.0
// The shortest of all plans of a tiny step: ranks, cuts, packs, modes and orders, all of them
// tried.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/cost/any_model.hpp"
#include "slimpack/cost/price.hpp"
#include "slimpack/plan/plan.hpp"
#include "support/exact_problem.hpp"
#include "support/exact_schedule.hpp"

namespace slimpack::test {

/// What is tried, and how far.
struct ExactLimits {
  std::int64_t limit = kNoLimit;        ///< plans that are not shorter do not count
  std::span<const Recompute> modes;     ///< of backward packs
  bool weights = false;                 ///< backward packs may leave weights apart
  std::size_t most_pairs = 40'000;      ///< of a forward and a backward set of packs
  std::int64_t most_nodes = 2'000'000;  ///< in all orders of one way to give samples to ranks
};

/// What was found of all plans with the samples, stages, head, granularity and `merge` of a frame.
struct ExactOptimum {
  bool proven = true;  ///< false where the limits did not suffice
  std::optional<Plan> plan;
  std::int64_t makespan = 0;
  std::int64_t pairs = 0, searched = 0, nodes = 0;
};

namespace detail {

using PackSet = std::vector<MicroPack>;

/// Whether the packs can be put into an order by rule 4.
[[nodiscard]] inline bool can_be_ordered(const PackSet& packs, std::size_t samples, bool forward) {
  // A slice goes when its neighbour has gone.
  std::vector<Tokens> position(samples, forward ? Tokens{0} : Tokens::max());
  std::vector<bool> gone(packs.size());
  for (std::size_t left = packs.size(); left > 0;) {
    bool moved = false;
    for (std::size_t pack = 0; pack < packs.size(); ++pack) {
      if (gone[pack]) continue;
      const auto& slices = packs[pack].slices;
      const bool ready = std::all_of(slices.begin(), slices.end(), [&](const Slice& slice) {
        return std::none_of(packs.begin(), packs.end(), [&](const MicroPack& other) {
          const auto which = static_cast<std::size_t>(&other - packs.data());
          return !gone[which] && which != pack &&
                 std::any_of(other.slices.begin(), other.slices.end(), [&](const Slice& before) {
                   return before.sample == slice.sample &&
                          (forward ? before.begin < slice.begin : before.begin > slice.begin);
                 });
        });
      });
      if (!ready) continue;
      gone[pack] = moved = true;
      --left;
    }
    if (!moved) return false;
  }
  return true;
}

/// All sets of packs of one group's samples in one pass. Forward packs are tried with their slices
/// in every order, because backward packs gather from them. Weight packs are cut and joined freely.
class PackSets {
 public:
  PackSets(const Plan& frame, GroupId group, Pass pass, std::span<const Recompute> modes,
           bool weights = false)
      : frame_(frame), group_(group), pass_(pass), modes_(modes), weights_(weights) {
    for (std::size_t sample = 0; sample < frame.samples.size(); ++sample) {
      if (frame.sample_group[sample] != group) continue;
      runs_.push_back({static_cast<SampleId>(sample), Tokens{0}, frame.samples[sample]});
    }
  }
  /// Of weight packs for all tokens that `backward`, packs of one group, leave apart.
  PackSets(const Plan& frame, GroupId group, const PackSet& backward)
      : frame_(frame), group_(group), pass_(Pass::weight) {
    for (const MicroPack& pack : backward) {
      if (pack.weights != WeightGradients::apart) continue;
      runs_.insert(runs_.end(), pack.slices.begin(), pack.slices.end());
    }
    std::sort(runs_.begin(), runs_.end(), [](const Slice& a, const Slice& b) {
      return std::pair(a.sample, a.begin) < std::pair(b.sample, b.begin);
    });
    for (std::size_t i = 1; i < runs_.size();) {
      if (runs_[i].sample == runs_[i - 1].sample && runs_[i].begin == runs_[i - 1].end) {
        runs_[i - 1].end = runs_[i].end;
        runs_.erase(runs_.begin() + static_cast<std::ptrdiff_t>(i));
      } else {
        ++i;
      }
    }
  }

  [[nodiscard]] std::vector<PackSet> all() {
    cut(0);
    return std::move(sets_);
  }

 private:
  void cut(std::size_t run) {
    if (run == runs_.size()) {
      PackSet packs;
      join(packs, 0);
      return;
    }
    const Slice whole = runs_[run];
    const Tokens granularity = frame_.parallel.granularity;
    const std::int64_t places = (whole.length().value - 1) / granularity.value;  // inner boundaries
    for (std::uint32_t cuts = 0; cuts < std::uint32_t{1} << places; ++cuts) {
      const std::size_t before = slices_.size();
      Tokens begin = whole.begin;
      for (std::int64_t place = 1; place <= places; ++place) {
        if ((cuts >> (place - 1) & 1U) == 0) continue;
        const Tokens end = whole.begin + granularity * place;
        slices_.push_back({whole.sample, begin, end});
        begin = end;
      }
      slices_.push_back({whole.sample, begin, whole.end});
      cut(run + 1);
      slices_.resize(before);
    }
  }

  void join(PackSet& packs, std::size_t i) {
    if (i == slices_.size()) {
      if (pass_ == Pass::weight ||
          can_be_ordered(packs, frame_.samples.size(), pass_ == Pass::forward))
        choose(packs, 0);
      return;
    }
    const Slice slice = slices_[i];
    for (std::size_t pack = 0; pack < packs.size(); ++pack) {
      const std::vector<Slice> slices = packs[pack].slices;
      if (std::any_of(slices.begin(), slices.end(),
                      [&](const Slice& other) { return other.sample == slice.sample; })) {
        continue;
      }
      const std::size_t last = slices.size();
      for (std::size_t place = pass_ == Pass::forward ? 0 : last; place <= last; ++place) {
        packs[pack].slices.insert(packs[pack].slices.begin() + static_cast<std::ptrdiff_t>(place),
                                  slice);
        join(packs, i + 1);
        packs[pack].slices = slices;
      }
    }
    packs.push_back({pass_, group_, {slice}, {}, Recompute::none});
    join(packs, i + 1);
    packs.pop_back();
  }

  /// Modes of backward packs, and where their gradients of weights are computed.
  void choose(PackSet& packs, std::size_t i) {
    if (i == packs.size() || pass_ != Pass::backward) {
      sets_.push_back(packs);
      return;
    }
    for (const Recompute mode : modes_) {
      packs[i].recompute = mode;
      packs[i].weights = WeightGradients::with;
      choose(packs, i + 1);
      if (!weights_) continue;
      packs[i].weights = WeightGradients::apart;
      choose(packs, i + 1);
    }
  }

  const Plan& frame_;
  GroupId group_;
  Pass pass_;
  std::span<const Recompute> modes_;
  bool weights_ = false;
  std::vector<Slice> runs_;  // of samples, to be cut
  std::vector<Slice> slices_;
  std::vector<PackSet> sets_;
};

/// What a set of packs of one pass asks of each device, nothing gathered: its time, and how long
/// before its first unit begins (forward) or after its last one ends (backward).
struct SetLoad {
  std::array<std::int64_t, ExactSearch::kMostDevices> time{}, outside{};
};

/// All plans of a frame whose samples have their groups.
class ExactPlans {
 public:
  ExactPlans(Plan frame, const AnyModel& model, const ExactLimits& limits)
      : frame_(std::move(frame)), model_(model), limits_(limits) {
    best_.makespan = limits.limit;
  }

  [[nodiscard]] ExactOptimum run() {
    for (const std::vector<bool>& by_heads : choices_by_heads()) {
      by_heads_ = by_heads;
      run_chosen();
    }
    return best_;
  }

 private:
  /// All choices of samples to exchange by heads, none at first.
  [[nodiscard]] std::vector<std::vector<bool>> choices_by_heads() const {
    std::vector<std::vector<bool>> all{std::vector<bool>(frame_.samples.size())};
    if (frame_.version < 3) return all;
    for (std::size_t sample = 0; sample < frame_.samples.size(); ++sample) {
      const auto ranks =
          static_cast<std::int64_t>(frame_.groups[index(frame_.sample_group[sample])].size());
      const bool whole = frame_.samples[sample] <= frame_.memory.cp_block_tokens;
      if (ranks == 1 || whole) continue;
      if (!divides_heads(frame_.model, frame_.parallel.tp, ranks)) continue;
      const std::size_t count = all.size();
      for (std::size_t i = 0; i < count; ++i) {
        all.push_back(all[i]);
        all.back()[sample] = true;
      }
    }
    return all;
  }

  void run_chosen() {
    const auto forward = sets_of(Pass::forward), backward = sets_of(Pass::backward);
    if (forward.size() * backward.size() > limits_.most_pairs) {
      best_.proven = false;
      return;
    }
    std::vector<SetLoad> before, behind;
    for (const PackSet& set : forward) before.push_back(load_of(set));
    for (const PackSet& set : backward) behind.push_back(load_of(set));
    struct Pair {
      std::int64_t bound;
      std::size_t forward, backward;
      auto operator<=>(const Pair&) const = default;
    };
    std::vector<Pair> pairs;
    for (std::size_t f = 0; f < forward.size(); ++f) {
      for (std::size_t b = 0; b < backward.size(); ++b) {
        std::int64_t bound = 0;
        for (std::size_t device = 0; device < ExactSearch::kMostDevices; ++device) {
          bound = std::max(bound, before[f].time[device] + before[f].outside[device] +
                                      behind[b].time[device] + behind[b].outside[device]);
        }
        ++best_.pairs;
        if (bound < best_.makespan) pairs.push_back({bound, f, b});
      }
    }
    std::sort(pairs.begin(), pairs.end());
    for (const Pair& pair : pairs) {
      if (pair.bound >= best_.makespan || !best_.proven) break;
      try_pair(forward[pair.forward], backward[pair.backward]);
    }
  }

  /// The sets of all groups together, packs of several ranks with the exchanges that make them
  /// shortest.
  [[nodiscard]] std::vector<PackSet> sets_of(Pass pass) const {
    std::vector<PackSet> all{{}};
    for (std::size_t group = 0; group < frame_.groups.size(); ++group) {
      std::vector<PackSet> sets =
          PackSets(frame_, static_cast<GroupId>(group), pass, limits_.modes, limits_.weights).all();
      if (frame_.groups[group].size() > 1) {
        for (PackSet& set : sets) choose_exchange(set);
      }
      if (pass == Pass::backward) sets = with_weights(sets, static_cast<GroupId>(group));
      std::vector<PackSet> product;
      for (const PackSet& left : all) {
        for (const PackSet& right : sets) {
          product.push_back(left);
          product.back().insert(product.back().end(), right.begin(), right.end());
        }
      }
      all = std::move(product);
    }
    return all;
  }

  /// Each set with every set of weight packs that it asks for.
  [[nodiscard]] std::vector<PackSet> with_weights(const std::vector<PackSet>& sets,
                                                  GroupId group) const {
    std::vector<PackSet> all;
    for (const PackSet& set : sets) {
      for (const PackSet& weights : PackSets(frame_, group, set).all()) {
        all.push_back(set);
        all.back().insert(all.back().end(), weights.begin(), weights.end());
      }
    }
    return all;
  }

  /// Stages have equal layers, so what is shortest on one is on all.
  void choose_exchange(PackSet& packs) const {
    std::vector<std::int64_t> least(packs.size(), kNoLimit);
    std::vector<std::vector<RingMode>> best(packs.size());
    std::size_t most = 0;
    for (const MicroPack& pack : packs) most = std::max(most, pack.slices.size());
    for (std::uint32_t choice = 0; choice < std::uint32_t{1} << most; ++choice) {
      for (MicroPack& pack : packs) {
        pack.exchange.clear();
        for (std::size_t slot = 0; slot < pack.slices.size(); ++slot) {
          const bool queries = (choice >> slot & 1U) != 0;
          const RingMode ring = queries ? RingMode::pass_q : RingMode::pass_kv;
          pack.exchange.push_back(by_heads_[index(pack.slices[slot].sample)] ? RingMode::by_heads
                                                                             : ring);
        }
      }
      const PricedPlan times = priced(packs);
      for (std::size_t pack = 0; pack < packs.size(); ++pack) {
        const std::int64_t time = times.compute(static_cast<PackId>(pack), 0).value;
        if (time >= least[pack]) continue;
        least[pack] = time;
        best[pack] = packs[pack].exchange;
      }
    }
    for (std::size_t pack = 0; pack < packs.size(); ++pack) packs[pack].exchange = best[pack];
  }

  [[nodiscard]] PricedPlan priced(const PackSet& packs) const {
    Plan plan = frame_;
    plan.micropacks = packs;
    return price(plan);
  }
  [[nodiscard]] PricedPlan price(const Plan& plan) const {
    return std::visit([&](const auto& model) { return PricedPlan(plan, model); }, model_);
  }

  [[nodiscard]] SetLoad load_of(const PackSet& packs) const {
    SetLoad load;
    load.outside.fill(kNoLimit);
    const PricedPlan times = priced(packs);
    const std::int32_t stages = frame_.parallel.pp;
    for (std::size_t i = 0; i < packs.size(); ++i) {
      const auto id = static_cast<PackId>(i);
      const bool forward = packs[i].pass == Pass::forward;
      const auto& ranks = frame_.groups[index(packs[i].group)];
      const bool apart = packs[i].pass == Pass::weight;
      std::int64_t way = 0;
      for (std::int32_t pp = 0; pp < stages; ++pp) {
        for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
          const std::size_t device = device_index(frame_, ranks[rank], pp);
          load.time[device] += (apart ? times.weight(id, pp, rank) : times.compute(id, pp)).value;
          const bool head = frame_.parallel.head == LmHead::shard || pp == stages - 1;
          if (forward && head) load.time[device] += times.head(id, rank, pp).value;
          const std::int64_t end =
              forward ? 0 : (times.reduce(pp, 0) + times.optimizer(ranks[rank], pp)).value;
          load.outside[device] = std::min(load.outside[device], way + end);
        }
        if (!apart) way += times.compute(id, pp).value;
      }
    }
    for (std::int64_t& outside : load.outside) outside = outside == kNoLimit ? 0 : outside;
    return load;
  }

  void try_pair(const PackSet& forward, const PackSet& backward) {
    Plan plan = frame_;
    plan.micropacks = forward;
    plan.micropacks.insert(plan.micropacks.end(), backward.begin(), backward.end());
    std::stable_partition(plan.micropacks.begin(), plan.micropacks.end(),
                          [](const MicroPack& pack) { return pack.pass != Pass::weight; });
    const ExactProblem problem(plan, price(plan));
    const ExactSchedule found =
        exact_schedule(problem, best_.makespan, limits_.most_nodes - best_.nodes);
    ++best_.searched;
    best_.nodes += found.nodes;
    best_.proven = best_.proven && found.proven;
    if (!found.found) return;
    best_.makespan = found.makespan;
    plan.schedule = exact_orders(plan, problem, found);
    best_.plan = std::move(plan);
  }

  Plan frame_;
  const AnyModel& model_;
  ExactLimits limits_;
  std::vector<bool> by_heads_;  // of a sample
  ExactOptimum best_;
};

}  // namespace detail

/// A max_in_flight that no channel of a tiny plan fills.
inline constexpr std::int32_t kExactWindow = 64;

/// The shortest plan by ExactProblem's rules. The plan that is given back holds the samples of one
/// rank only where ranks share none, those of the later rank. `frame` is a plan with samples,
/// stages, groups and placement; which group a sample has, packs and orders are tried. At most two
/// ranks, on one node, so that they are alike.
[[nodiscard]] inline ExactOptimum exact_plan(Plan frame, const ExactLimits& limits) {
  require(frame.parallel.dp <= 2, "exact_plan: dp must be <= 2", frame.parallel.dp);
  const bool pair = frame.parallel.dp == 2, max_cp = pair && frame.parallel.max_cp > 1;
  frame.groups = {{0}};
  if (pair) frame.groups.push_back({1});
  if (max_cp) frame.groups.push_back({0, 1});
  frame.micropacks.clear();
  frame.schedule.clear();
  frame.max_in_flight = kExactWindow;
  const AnyModel model = make_model(frame);
  const auto samples = static_cast<std::uint32_t>(frame.samples.size());
  const auto every = (std::uint32_t{1} << samples) - 1;

  ExactOptimum best;
  best.makespan = limits.limit;
  const auto spend = [&](const ExactOptimum& found) {
    best.proven = best.proven && found.proven;
    best.pairs += found.pairs;
    best.searched += found.searched;
    best.nodes += found.nodes;
  };
  // Ranks without a common sample only meet in R, which the later one begins; so each set of
  // samples has one shortest time on a rank, whatever the other does.
  std::map<std::uint32_t, ExactOptimum> alone;
  const auto on_one_rank = [&](std::uint32_t set) -> const ExactOptimum& {
    const auto known = alone.find(set);
    if (known != alone.end()) return known->second;
    Plan part = frame;
    part.samples.clear();
    part.sample_first.clear();
    part.origin.clear();
    part.target_tokens = 0;
    for (std::uint32_t sample = 0; sample < samples; ++sample) {
      if ((set >> sample & 1U) == 0) continue;
      part.samples.push_back(frame.samples[sample]);
      part.origin.push_back(frame.origin[sample]);
      part.target_tokens += frame.samples[sample].value;
    }
    part.sample_group.assign(part.samples.size(), GroupId{});
    ExactOptimum found = detail::ExactPlans(part, model, limits).run();
    spend(found);
    return alone.emplace(set, std::move(found)).first->second;
  };
  for (std::uint32_t left = 0; left <= every; ++left) {
    const std::uint32_t right = every & ~left;
    if (pair ? left < right : left != every) continue;
    const ExactOptimum& one = on_one_rank(left);
    if (!one.plan) continue;
    const ExactOptimum& two = right == 0 ? one : on_one_rank(right);
    if (!two.plan) continue;
    const std::int64_t makespan = std::max(one.makespan, two.makespan);
    if (makespan >= best.makespan) continue;
    best.makespan = makespan;
    best.plan = one.makespan == makespan ? one.plan : two.plan;
  }
  // Of two assignments that differ by the names of the ranks, one is tried.
  for (std::uint32_t shared = 1; max_cp && shared <= every; ++shared) {
    const std::uint32_t rest = every & ~shared;
    for (std::uint32_t left = rest;; left = (left - 1) & rest) {
      if (left >= (rest & ~left)) {
        Plan part = frame;
        part.sample_group.clear();
        for (std::uint32_t sample = 0; sample < samples; ++sample) {
          const bool both = (shared >> sample & 1U) != 0;
          part.sample_group.push_back(static_cast<GroupId>(both                         ? 2
                                                           : (left >> sample & 1U) != 0 ? 0
                                                                                        : 1));
        }
        ExactLimits rest_limits = limits;
        rest_limits.limit = best.makespan;
        ExactOptimum found = detail::ExactPlans(part, model, rest_limits).run();
        spend(found);
        if (found.plan) {
          best.makespan = found.makespan;
          best.plan = std::move(found.plan);
        }
      }
      if (left == 0) break;
    }
  }
  return best;
}

}  // namespace slimpack::test
