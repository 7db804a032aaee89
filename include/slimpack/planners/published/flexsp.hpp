// SPDX-License-Identifier: Apache-2.0
// FlexSP's plan: every micro-batch on groups of ranks of different sizes that split its heads.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "slimpack/core/int128.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/cost/any_model.hpp"
#include "slimpack/cost/links.hpp"
#include "slimpack/cost/memory_model.hpp"
#include "slimpack/cost/price.hpp"
#include "slimpack/cost/unit_time_overrides.hpp"
#include "slimpack/cost/weight_traffic.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/planners/planner.hpp"
#include "slimpack/planners/published/detail/flexsp_times.hpp"
#include "slimpack/planners/published/detail/shared_batches.hpp"
#include "slimpack/planners/search/detail/choices.hpp"
#include "slimpack/planners/search/detail/choose.hpp"
#include "slimpack/planners/search/detail/lengths.hpp"
#include "slimpack/planners/search/detail/sp_groups.hpp"
#include "slimpack/planners/search/detail/token_capacity.hpp"
#include "slimpack/planners/search/layout.hpp"
#include "slimpack/planners/search/settings.hpp"

namespace slimpack::planners {

/// How many micro-batches FlexSP makes: the larger of both numbers, at least as many as hold all
/// tokens and at most one a sample.
struct FlexSpCount {
  std::int64_t quarters = 4;  ///< so many quarters of the fewest that hold all tokens
  std::int64_t stages = 0;    ///< so many times the number of stages
};

/// One candidate of `FlexSp`.
struct FlexSpSettings : detail::SharedSettings {
  FlexSpCount count;      ///< of micro-batches
  std::int64_t room = 4;  ///< quarters of what memory holds that groups may fill
  /// Weights and gradients are sharded over all ranks too, as published.
  bool shard_weights = false;
  std::int64_t pack = 64;  ///< samples of a kind that are priced together
};

namespace detail {

/// The candidates of `FlexSp`.
class FlexSpCandidates : public CandidateBase<FlexSpSettings> {
 public:
  FlexSpCandidates(const PlanRequest& request, std::string_view planner)
      : CandidateBase(request, planner) {
    const std::int64_t heads = request.model.heads / request.tp;
    const std::int32_t most = largest_group(request);
    for (std::int64_t ranks = 1; ranks <= most && heads % ranks == 0; ranks *= 2) ++degrees_;
    std::vector<FlexSpCount> counts{{4, 0}, {5, 0}, {6, 0}, {8, 0}, {12, 0}, {16, 0}, {32, 0}};
    if (request.pp > 1) counts = {{0, 4}, {4, 0}, {0, 2}, {0, 8}, {8, 0}, {16, 0}, {0, 16}};
    space_.add("recompute", &FlexSpSettings::recompute, mode_choices(request),
               {.ordered = true, .memory = true});
    std::vector<bool> sharding{false};
    if (request.dp > 1 && request.optimizer == OptimizerState::sharded &&
        request.weight_state != WeightState::replicated) {
      sharding = request.as_published ? std::vector{true} : std::vector{true, false};
    }
    space_.add("shard_weights", &FlexSpSettings::shard_weights, sharding);
    const std::size_t count = space_.add("", &FlexSpSettings::count, counts);
    const std::size_t room = space_.add("", &FlexSpSettings::room, {4, 3, 2, 5});
    const std::size_t pack = space_.add("", &FlexSpSettings::pack, {64, 1, 0});
    add_step_settings(space_, request);
    space_.add("", &FlexSpSettings::cp_block, {request.memory.cp_block_tokens.value_or(kBlock)});
    // Weights sharded, the fewest micro-batches, groups as full as memory allows.
    space_.start({});
    space_.start({{count, 1}});
    space_.start({{room, 1}});
    space_.start({{pack, 1}});
    space_.start({{pack, 2}});
  }

  [[nodiscard]] BuiltStep build(const FlexSpSettings& settings) const {
    const std::vector<SharedBatch> batches = batches_of(settings);
    Plan plan = share_batches(request_, planner_, settings, batches);
    if (settings.shard_weights) {
      plan.version = kPlanVersion;
      plan.memory.weights = WeightState::sharded;
    }
    Bytes exchanged;
    std::vector<Nanos> compute, reduce;
    const PricedPlan prices(plan);
    std::visit(
        [&](const auto& model) {
          const Links links(plan);
          const auto [units, alone] = price(plan, links, model, exchanged);
          compute = units;
          if (settings.shard_weights)
            in_rounds(plan, batches, prices, links, model, alone, compute);
          reduce = reduce_beside(plan, prices, links, model, compute);
        },
        make_model(plan));
    UnitTimeOverrides times(plan, prices, std::move(compute), std::move(reduce));
    schedule_shared(plan, batches, times, MemoryModel(plan), settings.head_batch, request_.runtime);
    const bool groups = plan.parallel.max_cp > 1;
    if (!groups && !settings.shard_weights) return plan;
    return SimulationOnlyPlan{std::move(plan), std::move(times),
                              groups
                                  ? "exchange by heads that leaves queries with the heads until B"
                                  : "weights sharded over ranks",
                              exchanged};
  }
  void describe(const FlexSpSettings& settings, const Plan& plan, SettingTexts& texts) const {
    texts["micro_batches"] = std::to_string(count(settings));
    texts["tokens_per_rank"] = std::to_string(capacity(settings).value);
    texts["largest_group"] = std::to_string(plan.parallel.max_cp);
  }

  /// Micro-batches of groups, in order; the groups of one lie on neighbouring ranks, largest first.
  [[nodiscard]] std::vector<SharedBatch> batches_of(const FlexSpSettings& settings) const {
    const std::span<const Tokens> samples = request_.batch.samples;
    const std::vector<SpTimes> times = sample_times(settings.recompute.most, settings.pack);
    std::vector<SharedBatch> batches;
    std::int32_t round = 0;
    for (const auto& run : cut_sorted(samples, count(settings))) {
      std::vector<Tokens> lengths;
      std::vector<SpTimes> own;
      for (const std::size_t sample : run) {
        lengths.push_back(samples[sample]);
        own.push_back(times[sample]);
      }
      std::int32_t first = 0;
      for (const SpGroup& group :
           solve_sp_groups({lengths, own, request_.dp, capacity(settings)})) {
        SharedBatch batch{first, std::int32_t{1} << group.degree, {}, round};
        for (const std::size_t i : group.samples) batch.samples.push_back(run[i]);
        first += batch.ranks;
        batches.push_back(std::move(batch));
      }
      ++round;
    }
    return batches;
  }

 private:
  /// Small blocks, for heads are split when tokens are spread evenly.
  static constexpr Tokens kBlock{32};

  [[nodiscard]] Tokens capacity(const FlexSpSettings& settings) const {
    return {std::max<std::int64_t>(
        1, token_capacity(request_, settings.recompute.lean,
                          settings.shard_weights ? WeightState::sharded : WeightState::replicated)
                   .value /
               4 * settings.room)};
  }
  [[nodiscard]] std::int64_t count(const FlexSpSettings& settings) const {
    const std::vector<Tokens>& samples = request_.batch.samples;
    const Int128 room = Int128{capacity(settings).value} * request_.dp;
    const Int128 fewest = (total_tokens(samples).value + room - 1) / room;
    const FlexSpCount& wish = settings.count;
    const Int128 most =
        std::max({fewest, (fewest * wish.quarters + 3) / 4, Int128{wish.stages} * request_.pp});
    return static_cast<std::int64_t>(
        std::min<Int128>(most, static_cast<std::int64_t>(samples.size())));
  }

  [[nodiscard]] std::vector<SpTimes> sample_times(Recompute recompute, std::int64_t pack) const {
    const Plan frame = plan_frame(request_, planner_);
    std::vector<SpTimes> times;
    std::visit(
        [&](const auto& model) {
          const HeadSplitTimes prices(frame, model);
          for (const Tokens length : request_.batch.samples) {
            auto& each = times.emplace_back();
            for (std::size_t degree = 0; degree < degrees_; ++degree) {
              each.push_back(prices.sample(length, std::int64_t{1} << degree, recompute, pack));
            }
          }
        },
        make_model(frame));
    return times;
  }

  /// F and B of each pack on each stage, and how much of that an exchange takes over the class of
  /// links that weights travel on.
  template <CostModel Model>
  [[nodiscard]] static std::pair<std::vector<Nanos>, std::vector<Nanos>> price(const Plan& plan,
                                                                               const Links& links,
                                                                               const Model& model,
                                                                               Bytes& exchanged) {
    const HeadSplitTimes prices(plan, model);
    std::vector<Nanos> compute, alone;
    for (const MicroPack& pack : plan.micropacks) {
      const auto& group = plan.groups[index(pack.group)];
      const auto ranks = static_cast<std::int64_t>(group.size());
      const PackLoad load = prices.load(pack.slices, ranks, pack.pass);
      exchanged += prices.sent(pack, load.tokens);
      for (std::int32_t line = 0; line < virtual_stages_of(plan).size(); ++line) {
        const std::int32_t pp = virtual_stages_of(plan).stage(line);
        const bool meets = plan.cluster.small.shared_links && ranks > 1 &&
                           links.ranks(group, pp) == links.all_ranks(pp);
        compute.push_back(prices.unit(pack, load, line));
        alone.push_back(meets ? prices.exchange(pack, load.tokens, pp) * chunk_layers(plan, pp, 0)
                              : Nanos{});
      }
    }
    return {std::move(compute), std::move(alone)};
  }

  /// R beside the all-to-alls of units that take `compute`.
  template <CostModel Model>
  [[nodiscard]] static std::vector<Nanos> reduce_beside(const Plan& plan, const PricedPlan& prices,
                                                        const Links& links, const Model& model,
                                                        const std::vector<Nanos>& compute) {
    if (!plan.cluster.small.shared_links || plan.parallel.dp == 1) return {};
    const HeadSplitTimes heads(plan, model);
    const UnitTimeOverrides times(plan, prices, compute);
    std::optional<LinkShares> shares(std::in_place, plan, links);
    std::vector<PackLoad> loads;
    for (std::size_t i = 0; i < plan.micropacks.size(); ++i) {
      const MicroPack& pack = plan.micropacks[i];
      const std::size_t ranks = plan.groups[index(pack.group)].size();
      PackLoad load = heads.load(pack.slices, static_cast<std::int64_t>(ranks), pack.pass);
      load.heads_sent = load.tokens;
      loads.assign(ranks, load);
      const HeadSplitPass moved = head_split_pass(
          head_split_bytes(plan, static_cast<std::int64_t>(ranks)), pack.pass, pack.recompute);
      const std::int64_t bytes = (moved.in + moved.out) * plan.parallel.tp;
      shares->add(static_cast<PackId>(i), loads, times, {0, 0, bytes});
    }
    return reduce_times(plan, links, shares, model);
  }

  /// Adds the traffic of sharded weights to F and B of a plan's rounds and lets every unit of a
  /// round last as long as its slowest, H too: all ranks gather each layer together. What is
  /// `alone` hides no traffic. O(packs x stages).
  template <CostModel Model>
  static void in_rounds(const Plan& plan, std::span<const SharedBatch> batches,
                        const PricedPlan& prices, const Links& links, const Model& model,
                        std::span<const Nanos> alone, std::vector<Nanos>& compute) {
    const auto stages = static_cast<std::size_t>(plan.parallel.pp);
    std::vector<WeightTraffic> traffic;
    for (std::int32_t pp = 0; pp < plan.parallel.pp; ++pp) {
      traffic.push_back(weight_traffic(plan, links, model, pp));
    }
    const double share = plan.cluster.small.collective_compute;
    const auto head_of = [&](std::size_t i, std::size_t stage) {
      Nanos longest;
      if (plan.parallel.head == LmHead::last && stage + 1 < stages) return longest;
      for (std::size_t rank = 0; rank < static_cast<std::size_t>(batches[i].ranks); ++rank) {
        longest = std::max(longest, prices.head(static_cast<PackId>(2 * i), rank,
                                                static_cast<std::int32_t>(stage)));
      }
      return longest;
    };
    for (std::size_t first = 0, end = 0; first < batches.size(); first = end) {
      const std::int32_t round = batches[first].round;
      while (end < batches.size() && batches[end].round == round) ++end;
      for (std::size_t stage = 0; stage < stages; ++stage) {
        Nanos forward, backward, head;
        const WeightTraffic& of_stage = traffic[stage];
        const auto with = [&](std::size_t unit, Nanos sent) {
          return with_traffic(compute[unit] - alone[unit], sent, of_stage.layers, share) +
                 alone[unit];
        };
        for (std::size_t i = first; i < end; ++i) {
          forward = std::max(forward, with(2 * i * stages + stage, of_stage.gather));
          backward = std::max(
              backward, with((2 * i + 1) * stages + stage, of_stage.gather + of_stage.scatter));
          head = std::max(head, head_of(i, stage));
        }
        for (std::size_t i = first; i < end; ++i) {
          compute[2 * i * stages + stage] = forward;
          compute[(2 * i + 1) * stages + stage] = backward + (head - head_of(i, stage));
        }
      }
    }
  }

  std::size_t degrees_ = 0;  ///< groups of 1, 2, 4 .. ranks
};

}  // namespace detail

/// FlexSP (Wang et al., "FlexSP: Accelerating Large Language Model Training via Flexible Sequence
/// Parallelism", ASPLOS 2025, arXiv 2412.01523; github.com/PKU-DAIR/Hetu-Galvatron, branch flexsp):
/// samples, longest first, are cut into micro-batches so that the largest has as few tokens as
/// there can be; in each, samples are assigned to groups of 1, 2, 4 .. ranks, sizes and contents
/// chosen so that the slowest group takes least, no group exceeding its ranks' token capacity. A
/// group runs its samples as one packed sequence with Ulysses' sequence parallelism: tokens are
/// spread evenly, attention has a part of the heads for all tokens, queries, keys, values and
/// outputs pass between the two by all-to-all, in both passes, unhidden as published. Degrees
/// divide the heads of a tensor-parallel device; keys and values are repeated where they have fewer
/// heads.
///
/// Weights, gradients and optimizer state are sharded over all ranks (ZeRO-3, by
/// `sharded_weights`): less memory, and the weights gathered for F and B of each micro-batch, the
/// gradients scattered behind each B, hidden behind computing but for one layer's part. All ranks
/// gather together, so every unit of a micro-batch's groups lasts as long as the slowest.
///
/// Searched: recomputation; number of micro-batches, from the fewest that hold all tokens; token
/// capacity, around what memory holds; whether samples are priced in packs or alone, with the head
/// or without; place of the head; and whether weights are sharded at all: otherwise optimizer state
/// alone is, and ranks wait for each other where they share a group.
///
/// The published solver sorts samples into buckets by length and gives each micro-batch to a MILP
/// solver with a time limit. Here every sample is assigned by itself, and the problem is solved by
/// a deterministic search (`solve_sp_groups`; its gap is measured against exhaustion in
/// tests/planners/flexsp_test.cpp).
///
/// A SimulationOnlyPlan wherever weights are sharded or a group has several ranks. A plan's
/// exchange by heads is not FlexSP's: it keeps queries by their owners, and blocks of each sample
/// on each rank; nor does a plan with sharded weights leave a rank without work in a round. Times
/// of F and B are those of Ulysses on any cost model; R is priced beside the all-to-alls of these
/// units; bytes in memory, of H and of transfers are those of the plan's blocks of 32 tokens, less
/// what is sharded. Deviations in its favour: an all-to-all sends to its own node and to others at
/// the same time; queries, keys and values kept for the backward pass stay split by heads; a rank
/// without a group does not wait for its round; several stages, which FlexSP does not have, run in
/// a common order that a simulation finds under the memory limit (detail/shared_batches.hpp); as
/// published there is one stage.
///
/// Infeasible where more than one chunk is asked for; as published, several stages too.
struct FlexSp {
  static constexpr std::string_view name = "flexsp";  ///< in lists and as `Plan::planner`
  /// The line about it in lists of planners.
  static constexpr std::string_view description =
      "FlexSP: micro-batches on groups of ranks of different sizes, heads split by all-to-all";
  /// When its answer is a SimulationOnlyPlan.
  static constexpr std::string_view simulated_only =
      "with weights sharded over ranks, or groups of several ranks";
  /// Devices need not hold all weights of their stage.
  static constexpr std::int32_t sharding_stages = std::numeric_limits<std::int32_t>::max();

  /// Plans one step: the fastest candidate that fits, within the budget of the request. Throws
  /// InvalidInput as `check_request` does.
  [[nodiscard]] PlanOutcome plan(const PlanRequest& request) const {
    return choose_within<detail::FlexSpCandidates>({.published_one_stage = true}, request, name);
  }
};
static_assert(Planner<FlexSp>);

}  // namespace slimpack::planners
