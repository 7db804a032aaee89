// SPDX-License-Identifier: Apache-2.0
// Flexible context parallelism: groups of any number of ranks, chosen for each micro-batch.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "slimpack/core/int128.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/cost/any_model.hpp"
#include "slimpack/cost/load.hpp"
#include "slimpack/cost/memory_model.hpp"
#include "slimpack/cost/price.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/planners/planner.hpp"
#include "slimpack/planners/published/detail/fcp_groups.hpp"
#include "slimpack/planners/published/detail/shared_batches.hpp"
#include "slimpack/planners/search/detail/choices.hpp"
#include "slimpack/planners/search/detail/choose.hpp"
#include "slimpack/planners/search/detail/lengths.hpp"
#include "slimpack/planners/search/detail/recompute_by_length.hpp"
#include "slimpack/planners/search/detail/token_capacity.hpp"
#include "slimpack/planners/search/layout.hpp"
#include "slimpack/planners/search/settings.hpp"

namespace slimpack::planners {

/// One candidate of `Fcp`.
struct FcpSettings : detail::SharedSettings {
  std::int64_t room = 4;      ///< quarters of what memory holds that groups may fill
  std::int64_t quarters = 4;  ///< quarters of the fewest micro-batches that hold all groups
  /// Micro-batches over which ranks with even parts of the tokens would have them all; 0: as few as
  /// memory allows.
  std::int64_t rounds = 0;
  std::int64_t slack = 12;  ///< eighths of such a part that a rank of a group may hold
};

namespace detail {

/// What whole samples take on groups of any number of neighbouring ranks, forward and backward on
/// the stage with most layers, keys and values passed in a ring.
class RingGroupTimes {
 public:
  /// The frame needs everything but groups of samples, packs and schedule.
  RingGroupTimes(const Plan& frame, Tokens tile, std::int64_t ranks_of_node)
      : model_(make_model(frame)), tile_(tile), node_(ranks_of_node), cluster_(frame.cluster) {
    stage_.layers = most_layers(frame.stages, frame.parallel.pp);
    stage_.tensor_parallel = frame.parallel.tp;
    stage_.tensor_link = frame.cluster.inside;
  }

  /// The sum of some samples, as if on one rank.
  [[nodiscard]] PackLoad whole(std::span<const Tokens> lengths,
                               std::span<const std::size_t> samples) const {
    PackLoad load;
    for (const std::size_t sample : samples) {
      add_slice(load, {SampleId{}, Tokens{}, lengths[sample]}, RingMode::pass_kv, CpShard{}, tile_);
    }
    return load;
  }
  /// Its time on so many ranks that share it evenly.
  [[nodiscard]] std::int64_t on(const PackLoad& load, std::int64_t ranks, Recompute mode) const {
    const auto part = [&](std::int64_t amount) { return (amount + ranks - 1) / ranks; };
    PackLoad own = load;
    own.tokens.value = part(load.tokens.value);
    own.pairs2 = part(load.pairs2);
    own.filled_pairs2 = part(load.filled_pairs2);
    own.own_pairs2 = part(load.own_pairs2);
    own.ranks = ranks;
    own.kv_received = load.tokens - own.tokens;
    StageLoad stage = stage_;
    stage.exchange_link = ranks <= node_ ? cluster_.inside : cluster_.between;
    if (ranks > node_ && ranks % node_ == 0 && node_ > 1) stage.exchange_hops = ranks / node_ - 1;
    PackLoad back = own;
    back.runs = 1;
    return std::visit(
        [&](const auto& model) {
          return (model.forward(own, stage) + model.backward(back, stage, mode)).value;
        },
        model_);
  }

 private:
  AnyModel model_;
  Tokens tile_;
  std::int64_t node_;
  Cluster cluster_;
  StageLoad stage_;
};

/// The candidates of `Fcp`.
class FcpCandidates : public CandidateBase<FcpSettings> {
 public:
  FcpCandidates(const PlanRequest& request, std::string_view planner)
      : CandidateBase(request, planner),
        most_(std::min(request.dp, request.max_cp.value_or(request.dp))) {
    space_.add("recompute", &FcpSettings::recompute, mode_choices(request),
               {.ordered = true, .memory = true});
    const std::size_t room = space_.add("", &FcpSettings::room, {4, 2, 1, 3, 5});
    std::vector<std::int64_t> quarters{4, 5, 6, 8, 12, 16};
    if (request.pp > 1) quarters = {8, 4, 16, 6, 32, 64};
    const std::size_t count = space_.add("", &FcpSettings::quarters, quarters);
    std::vector<std::int64_t> rounds{0, 1, 2, 3, 4, 8};
    if (request.pp > 1) {
      const std::int64_t pp = request.pp;
      rounds = {0, 2 * pp, 4 * pp, pp, 8 * pp, 1};
    }
    space_.add("rounds", &FcpSettings::rounds, rounds, {}, [](std::int64_t round) {
      return round == 0 ? std::string("as-memory-allows") : std::to_string(round);
    });
    space_.add("", &FcpSettings::slack, {12, 10, 16, 9, 24},
               {.applies = [](const FcpSettings& settings) { return settings.rounds > 0; },
                .first_only = true});
    add_step_settings(space_, request);
    space_.add("share_tokens", &FcpSettings::cp_block, block_choices(request, most_), {},
               block_text);
    // Packs as full as memory allows, the fewest micro-batches that hold them.
    space_.start({});
    space_.start({{room, 1}});
    space_.start({{count, 1}});
  }

  /// The plan of a candidate, without a prediction.
  [[nodiscard]] Plan build(const FcpSettings& settings) const {
    const std::vector<SharedBatch> batches = batches_of(settings);
    Plan plan = share_batches(request_, planner_, settings, batches);
    schedule_shared(plan, batches, PricedPlan(plan), MemoryModel(plan), settings.head_batch,
                    request_.runtime);
    return plan;
  }
  /// Adds how many micro-batches of groups there are, and the largest group.
  static void describe(const FcpSettings&, const Plan& plan, SettingTexts& texts) {
    texts["groups_of_ranks"] = std::to_string(plan.micropacks.size() / 2);
    texts["largest_group"] = std::to_string(plan.parallel.max_cp);
    texts["share_tokens"] = std::to_string(plan.memory.cp_block_tokens.value);
  }

  /// Micro-batches of groups, in order; a round is one micro-batch.
  [[nodiscard]] std::vector<SharedBatch> batches_of(const FcpSettings& settings) const {
    const std::span<const Tokens> samples = request_.batch.samples;
    const Plan frame = step_frame(request_, planner_, settings);
    const std::int64_t node = std::max<std::int64_t>(
        1, request_.cluster.devices_per_node /
               (settings.devices == DeviceOrder::ranks ? request_.tp : request_.tp * request_.pp));
    const RingGroupTimes prices(frame, Tokens{request_.cluster.tile_tokens}, node);
    const Recompute mode = settings.recompute.lean;
    const std::vector<FcpGroup> groups = pack_by_memory(samples, capacity(settings));
    std::vector<PackLoad> loads;
    std::vector<Int128> work;
    std::int64_t needed = 0;
    for (const FcpGroup& group : groups) {
      loads.push_back(prices.whole(samples, group.samples));
      work.push_back(Int128{prices.on(loads.back(), group.ranks, mode)} * group.ranks);
      needed += group.ranks;
    }
    const std::int64_t fewest = (needed + request_.dp - 1) / request_.dp;
    std::vector<SharedBatch> batches;
    std::int32_t round = 0;
    for (const auto& batch :
         fill_micro_batches(groups, work, request_.dp, (fewest * settings.quarters + 3) / 4)) {
      std::vector<std::int64_t> least;
      std::vector<std::vector<std::int64_t>> times;
      for (const std::size_t group : batch) {
        least.push_back(groups[group].ranks);
        auto& own = times.emplace_back();
        for (std::int64_t ranks = least.back(); ranks <= most_; ++ranks) {
          own.push_back(prices.on(loads[group], ranks, mode));
        }
      }
      const std::vector<std::int64_t> ranks = divide_ranks(least, times, request_.dp);
      const std::vector<std::int32_t> first = place_groups(ranks, request_.dp, node);
      for (std::size_t i = 0; i < batch.size(); ++i) {
        batches.push_back(
            {first[i], static_cast<std::int32_t>(ranks[i]), groups[batch[i]].samples, round});
      }
      ++round;
    }
    return batches;
  }

 private:
  /// Tokens that a rank of a group holds, at least so many that the widest group holds any sample.
  [[nodiscard]] Tokens capacity(const FcpSettings& settings) const {
    const std::span<const Tokens> samples = request_.batch.samples;
    std::int64_t held = token_capacity(request_, settings.recompute.lean).value / 4 * settings.room;
    if (settings.rounds > 0) {
      const std::int64_t parts = 8 * settings.rounds * request_.dp;
      const Int128 part = Int128{total_tokens(samples).value} * settings.slack / parts;
      held = std::clamp<std::int64_t>(static_cast<std::int64_t>(part), 1,
                                      std::max<std::int64_t>(held, 1));
    }
    const std::int64_t longest = longest_of(samples).value;
    return {std::max(held, (longest + most_ - 1) / most_)};
  }

  std::int32_t most_;  ///< ranks of a group
};
static_assert(PlanCandidates<FcpCandidates>);

}  // namespace detail

/// Flexible context parallelism (Niu et al., "Efficient Scaling of LLM Training with Flexible
/// Context Parallelism", arXiv 2602.21788; its first version names it dynamic hybrid parallelism).
/// Communication groups are formed anew for each micro-batch, of any number of ranks, not of powers
/// of two alone. In two steps: samples are packed best fit decreasing by memory, each pack with the
/// fewest ranks that hold it (`pack_by_memory`); dynamic programming then gives ranks to packs so
/// that the slowest of a micro-batch takes least (`divide_ranks` finds the same optimum). A group
/// runs its pack as Megatron-LM's context parallelism does: documents in one sequence, keys and
/// values passed in a ring (all slices are `kv`), which a plan says in full.
///
/// Searched: recomputation; what a pack may hold, as parts of memory or of a rank's even part of
/// the tokens; number of micro-batches, from the fewest that hold all packs; CP blocks, as by
/// `MegatronCp`; placement and head.
///
/// Written from the publication's abstract and from descriptions of it by others; its code, which
/// it says is at github.com/ivanniu/FCP, was not to be had. Where these are silent, the choice is
/// ours: which packs share a micro-batch (most work first, to the micro-batch with least); on which
/// neighbouring ranks a group lies (inside a node where it fits); prediction is the cost model
/// itself (in its favour). Deviations: ranks wait for each other where they share a group, not all
/// of them after every micro-batch (in its favour); groups cost nothing to form (in its favour; the
/// system keeps those it has formed); several stages run in a common order that a simulation finds
/// under the memory limit (detail/shared_batches.hpp). One length of CP blocks for all documents
/// (published/megatron.hpp).
///
/// Infeasible where more than one chunk is asked for.
struct Fcp {
  static constexpr std::string_view name = "fcp";  ///< in lists and as `Plan::planner`
  /// The line about it in lists of planners.
  static constexpr std::string_view description =
      "FCP: micro-batches on context-parallel groups of any number of ranks";
  /// Where it deviates against the system.
  static constexpr std::string_view against =
      "one length of context-parallel blocks for all documents, of those searched";

  /// Plans one step: the fastest candidate that fits, within the budget of the request. Throws
  /// InvalidInput as `check_request` does.
  [[nodiscard]] PlanOutcome plan(const PlanRequest& request) const {
    return choose_within<detail::FcpCandidates>({}, request, name);
  }
};
static_assert(Planner<Fcp>);

}  // namespace slimpack::planners
