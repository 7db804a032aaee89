// SPDX-License-Identifier: Apache-2.0
// What planners of packed sequences have in common: settings, building, choosing.
#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/int128.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/plan/names.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/plan/virtual_stages.hpp"
#include "slimpack/planners/planner.hpp"
#include "slimpack/planners/search/layout.hpp"
#include "slimpack/schedule/bins.hpp"
#include "slimpack/schedule/cut.hpp"
#include "slimpack/schedule/finish.hpp"
#include "slimpack/schedule/pipeline.hpp"
#include "slimpack/schedule/ranks.hpp"

namespace slimpack::planners {

/// How samples become sequences no longer than the context.
enum class Packing : std::uint8_t { in_order, best_fit };
/// How sequences become data-parallel ranks' shares, equal in number.
enum class AssignmentRule : std::uint8_t { in_turn, balanced };

/// Where the head is, and how many layers fewer than the others the last stage holds.
struct LmHeadPlacement {
  LmHead head = LmHead::last;
  std::int32_t fewer_last_layers = 0;
  friend bool operator==(const LmHeadPlacement&, const LmHeadPlacement&) = default;
};

/// One candidate of a planner of packed sequences.
struct PackedSettings {
  Recompute recompute = Recompute::none;
  std::int32_t slices = 1;  ///< of the longest sequence
  std::int32_t chunks = 1;
  LmHeadPlacement head;
  Packing packing = Packing::in_order;
  AssignmentRule assignment_rule = AssignmentRule::in_turn;
  std::int32_t ranks = 1;       ///< that run each sequence together; divides dp
  std::optional<Tokens> share;  ///< blocks in which they share it, else the request's
};

/// The values that each setting may take, in the order in which ties are broken.
struct PackedSpace {
  std::vector<Recompute> recompute;
  std::vector<std::int32_t> slices{1};
  std::vector<std::int32_t> chunks{1};
  std::vector<LmHeadPlacement> head{{}};
  std::vector<Packing> packing{Packing::in_order, Packing::best_fit};
  std::vector<AssignmentRule> assignment_rule{AssignmentRule::in_turn, AssignmentRule::balanced};
  std::vector<std::int32_t> ranks{1};
  std::vector<std::optional<Tokens>> share{std::nullopt};

  [[nodiscard]] std::array<std::size_t, 8> sizes() const noexcept {
    return {ranks.size(),  recompute.size(), share.size(),   slices.size(),
            chunks.size(), head.size(),      packing.size(), assignment_rule.size()};
  }
  [[nodiscard]] PackedSettings at(std::span<const std::size_t> point) const {
    return {recompute.at(point[1]), slices.at(point[3]),  chunks.at(point[4]),
            head.at(point[5]),      packing.at(point[6]), assignment_rule.at(point[7]),
            ranks.at(point[0]),     share.at(point[2])};
  }
  /// Whether no candidate before it is the same: blocks matter to several ranks alone.
  [[nodiscard]] bool first_of_its_kind(std::span<const std::size_t> point) const {
    return point[2] == 0 || ranks.at(point[0]) > 1;
  }
};

/// The pipeline order of a rank whose sequences have so many slices: F and B only.
/// Law: pure; every (item, chunk) once forward and once backward on every stage.
template <class Order>
concept SequenceOrder = requires(const Order& order, const schedule::Pipeline& pipeline,
                                 std::span<const std::int32_t> slices) {
  { order(pipeline, slices) } -> std::same_as<schedule::StageOrders>;
};

/// Recomputation modes to try: the one asked for, or all from the fastest to the leanest.
[[nodiscard]] inline std::vector<Recompute> recompute_choices(const PlanRequest& request) {
  if (request.recompute) return {*request.recompute};
  return {Recompute::none, Recompute::light, Recompute::layer, Recompute::full};
}

/// Whether every place of the line keeps a layer with so many chunks and this place of the head.
[[nodiscard]] constexpr bool leaves_layers(const PlanRequest& request, std::int32_t chunks,
                                           const LmHeadPlacement& head) noexcept {
  return (request.model.layers + head.fewer_last_layers) / (std::int64_t{request.pp} * chunks) >
         head.fewer_last_layers;
}

/// Places of the head to try: the one asked for, or both; on the last of several stages also with
/// one or two layers fewer there, where some chunk count allows it.
[[nodiscard]] inline std::vector<LmHeadPlacement> head_choices(const PlanRequest& request,
                                                               std::span<const std::int32_t> chunks,
                                                               bool may_shard) {
  std::vector<LmHeadPlacement> places;
  if (request.head != LmHead::shard) {
    for (std::int32_t fewer_last_layers = 0;
         fewer_last_layers <= (request.pp > 1 ? kMostFewerLastLayers : 0); ++fewer_last_layers) {
      const LmHeadPlacement place{LmHead::last, fewer_last_layers};
      if (request.fewer_last_layers.value_or(fewer_last_layers) != fewer_last_layers) continue;
      if (std::any_of(chunks.begin(), chunks.end(),
                      [&](std::int32_t count) { return leaves_layers(request, count, place); })) {
        places.push_back(place);
      }
    }
  }
  if (request.head == LmHead::shard || (!request.head && may_shard && request.pp > 1 &&
                                        request.fewer_last_layers.value_or(0) == 0)) {
    places.push_back({LmHead::shard, 0});
  }
  return places;
}

/// Chunk counts to try: the one asked for, or those from `least` up to 8 that give every stage and
/// chunk the same number of layers; where there is none, those that leave none empty; else one.
[[nodiscard]] inline std::vector<std::int32_t> chunk_choices(const PlanRequest& request,
                                                             std::int32_t least) {
  if (request.chunks) return {*request.chunks};
  constexpr std::int32_t kMostChunks = 8;
  std::vector<std::int32_t> even;
  std::vector<std::int32_t> possible;
  for (std::int32_t chunks = least; chunks <= kMostChunks; ++chunks) {
    const std::int64_t places = std::int64_t{request.pp} * chunks;
    if (places > request.model.layers) break;
    possible.push_back(chunks);
    if (request.model.layers % places == 0) even.push_back(chunks);
  }
  if (!even.empty()) return even;
  if (!possible.empty()) return possible;
  return {1};
}

/// Settings as text, by name: those that the planner has a choice of.
[[nodiscard]] inline std::map<std::string, std::string> describe(const PackedSettings& settings,
                                                                 bool sliced) {
  std::map<std::string, std::string> lines;
  lines["recompute"] = to_string(settings.recompute);
  lines["chunks"] = std::to_string(settings.chunks);
  lines["head"] = settings.head.head == LmHead::last ? "last" : "shard";
  lines["last_stage_layers"] = settings.head.fewer_last_layers == 0
                                   ? "even"
                                   : std::to_string(settings.head.fewer_last_layers) + "-fewer";
  lines["packing"] = settings.packing == Packing::in_order ? "in-order" : "best-fit-decreasing";
  lines["dealing"] = settings.assignment_rule == AssignmentRule::in_turn ? "in-turn" : "balanced";
  if (sliced) lines["slices"] = std::to_string(settings.slices);
  return lines;
}

namespace detail {

/// The sequences of a step: positions of samples, and which sequences each rank has, or each group
/// of ranks.
struct PackedRanks {
  schedule::Bins sequences;
  schedule::ShardLayout ranks;
};

inline PackedRanks pack_ranks(const PlanRequest& request, const PackedSettings& settings) {
  const std::span<const Tokens> samples = request.batch.samples;
  PackedRanks packed;
  packed.sequences = settings.packing == Packing::in_order
                         ? schedule::pack_next_fit(samples, request.context)
                         : schedule::pack_best_fit_decreasing(samples, request.context);
  if (settings.assignment_rule == AssignmentRule::in_turn) {
    packed.ranks =
        schedule::assign_round_robin(packed.sequences.size(), request.dp / settings.ranks);
    return packed;
  }
  std::vector<Int128> work(packed.sequences.size());
  for (std::size_t i = 0; i < work.size(); ++i) {
    for (const std::size_t sample : packed.sequences[i]) {
      work[i] += schedule::sample_work(request.model, samples[sample]);
    }
  }
  packed.ranks = schedule::assign_balanced(work, request.dp / settings.ranks);
  return packed;
}

inline Tokens sequence_length(std::span<const Tokens> samples,
                              const std::vector<std::size_t>& sequence) {
  Tokens total;
  for (const std::size_t sample : sequence) total += samples[sample];
  return total;
}

/// Slices of a sequence: in proportion to its length, `most` for the longest.
inline std::int64_t slice_count(Tokens length, Tokens longest, std::int64_t most) {
  return std::max<std::int64_t>(1, (length.value * most + longest.value - 1) / longest.value);
}

/// Ranks 0 .. dp-1 in groups of so many.
inline std::vector<std::vector<std::int32_t>> neighbouring_ranks(std::int32_t dp,
                                                                 std::int32_t ranks) {
  std::vector<std::vector<std::int32_t>> groups(static_cast<std::size_t>(dp / ranks));
  for (std::int32_t rank = 0; rank < dp; ++rank) {
    groups[static_cast<std::size_t>(rank / ranks)].push_back(rank);
  }
  return groups;
}

}  // namespace detail

/// Builds the plan of one candidate, without a prediction: sequences are dealt to ranks, or groups
/// of `settings.ranks` neighbouring ones, as `packed` says, each cut into slices, whole samples
/// where there is one slice a sequence, the same packs forward and backward, in the order that
/// `order` gives. No sequence is empty. O(samples log samples + units x ranks of a group).
template <SequenceOrder Order>
[[nodiscard]] Plan build_packed(const PlanRequest& request, std::string_view planner,
                                const PackedSettings& settings, const detail::PackedRanks& packed,
                                const Order& order) {
  Plan plan = plan_frame(request, planner);
  plan.parallel.chunks = settings.chunks;
  plan.parallel.head = settings.head.head;
  plan.stages = spread_layers(request.model.layers, virtual_stages_of(plan),
                              settings.head.fewer_last_layers, settings.head.head == LmHead::last);
  if (settings.ranks > 1) {
    plan.parallel.max_cp = settings.ranks;
    if (settings.share) plan.memory.cp_block_tokens = *settings.share;
    plan.groups = detail::neighbouring_ranks(request.dp, settings.ranks);
  }
  Tokens longest{1};
  for (const auto& sequence : packed.sequences) {
    longest = std::max(longest, detail::sequence_length(plan.samples, sequence));
  }
  const schedule::Pipeline pipeline{request.pp, settings.chunks};
  for (std::size_t i = 0; i < plan.groups.size(); ++i) {
    const auto group = static_cast<GroupId>(i);
    std::vector<PackId> forward;
    std::vector<PackId> backward;
    std::vector<std::int32_t> slices;
    for (const std::size_t which : packed.ranks[i]) {
      const auto& sequence = packed.sequences[which];
      std::vector<schedule::PackedSample> samples;
      for (const std::size_t sample : sequence) {
        plan.sample_group[sample] = group;
        samples.push_back({static_cast<SampleId>(sample), plan.samples[sample]});
      }
      const std::int64_t count = detail::slice_count(
          detail::sequence_length(plan.samples, sequence), longest, settings.slices);
      const auto packs = schedule::cut_uniformly(samples, count, request.granularity);
      for (const auto& pack : packs) {
        const std::vector<RingMode> exchange(settings.ranks > 1 ? pack.size() : 0,
                                             RingMode::pass_kv);
        forward.push_back(static_cast<PackId>(plan.micropacks.size()));
        plan.micropacks.push_back({Pass::forward, group, pack, exchange, Recompute::none});
        backward.push_back(static_cast<PackId>(plan.micropacks.size()));
        plan.micropacks.push_back({Pass::backward, group, pack, exchange, settings.recompute});
      }
      slices.push_back(static_cast<std::int32_t>(packs.size()));
    }
    const schedule::StageOrders steps = schedule::with_updates(
        pipeline, schedule::with_heads(pipeline, order(pipeline, slices), settings.head.head,
                                       plan.max_in_flight));
    for (const std::int32_t rank : plan.groups[i]) {
      for (std::int32_t stage = 0; stage < request.pp; ++stage) {
        plan.schedule.push_back(
            {rank, stage,
             schedule::name_units(steps[static_cast<std::size_t>(stage)], forward, backward)});
      }
    }
  }
  return plan;
}

/// The same with sequences packed and dealt as the settings say.
template <SequenceOrder Order>
[[nodiscard]] Plan build_packed(const PlanRequest& request, std::string_view planner,
                                const PackedSettings& settings, const Order& order) {
  return build_packed(request, planner, settings, detail::pack_ranks(request, settings), order);
}

}  // namespace slimpack::planners
