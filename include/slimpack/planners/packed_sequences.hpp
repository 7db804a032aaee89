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
#include "slimpack/core/units.hpp"
#include "slimpack/pack/bins.hpp"
#include "slimpack/pack/ranks.hpp"
#include "slimpack/pack/uniform.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/plan/share.hpp"
#include "slimpack/planners/layout.hpp"
#include "slimpack/planners/planner.hpp"
#include "slimpack/schedule/finish.hpp"
#include "slimpack/schedule/order.hpp"

namespace slimpack {

/// How samples become sequences no longer than the context.
enum class Packing : std::uint8_t { in_order, best_fit };
/// How sequences become data-parallel ranks' shares, equal in number.
enum class Dealing : std::uint8_t { in_turn, balanced };

/// Where the head is, and how many layers fewer than the others the last stage holds.
struct HeadPlace {
  Head head = Head::last;
  std::int32_t relief = 0;
  friend bool operator==(const HeadPlace&, const HeadPlace&) = default;
};

/// One candidate of a planner of packed sequences.
struct PackedSettings {
  Recompute recompute = Recompute::none;
  std::int32_t slices = 1;  ///< of the longest sequence
  std::int32_t chunks = 1;
  HeadPlace head;
  Packing packing = Packing::in_order;
  Dealing dealing = Dealing::in_turn;
  std::int32_t ranks = 1;       ///< that run each sequence together; divides dp
  std::optional<Tokens> share;  ///< blocks in which they share it, else the request's
};

/// The values that each setting may take, in the order in which ties are broken.
struct PackedSpace {
  std::vector<Recompute> recompute;
  std::vector<std::int32_t> slices{1};
  std::vector<std::int32_t> chunks{1};
  std::vector<HeadPlace> head{{}};
  std::vector<Packing> packing{Packing::in_order, Packing::best_fit};
  std::vector<Dealing> dealing{Dealing::in_turn, Dealing::balanced};
  std::vector<std::int32_t> ranks{1};
  std::vector<std::optional<Tokens>> share{std::nullopt};

  [[nodiscard]] std::array<std::size_t, 8> sizes() const noexcept {
    return {ranks.size(),  recompute.size(), share.size(),   slices.size(),
            chunks.size(), head.size(),      packing.size(), dealing.size()};
  }
  [[nodiscard]] PackedSettings at(std::span<const std::size_t> point) const {
    return {recompute.at(point[1]), slices.at(point[3]),  chunks.at(point[4]), head.at(point[5]),
            packing.at(point[6]),   dealing.at(point[7]), ranks.at(point[0]),  share.at(point[2])};
  }
  /// Whether no candidate before it is the same: blocks matter to several ranks alone.
  [[nodiscard]] bool first_of_its_kind(std::span<const std::size_t> point) const {
    return point[2] == 0 || ranks.at(point[0]) > 1;
  }
};

/// The pipeline order of a rank whose sequences have so many slices: F and B only.
/// Law: pure; every (item, chunk) once forward and once backward on every stage.
template <class Order>
concept SequenceOrder = requires(const Order& order, const Pipeline& pipeline,
                                 std::span<const std::int32_t> slices) {
  { order(pipeline, slices) } -> std::same_as<StageOrders>;
};

/// Recomputation modes to try: the one asked for, or all from the fastest to the leanest.
[[nodiscard]] inline std::vector<Recompute> recompute_choices(const PlanRequest& request) {
  if (request.recompute) return {*request.recompute};
  return {Recompute::none, Recompute::light, Recompute::layer, Recompute::full};
}

/// Whether every place of the line keeps a layer with so many chunks and this place of the head.
[[nodiscard]] constexpr bool leaves_layers(const PlanRequest& request, std::int32_t chunks,
                                           const HeadPlace& head) noexcept {
  return (request.model.layers + head.relief) / (std::int64_t{request.pp} * chunks) > head.relief;
}

/// Places of the head to try: the one asked for, or both; on the last of several stages also with
/// one or two layers fewer there, where some chunk count allows it.
[[nodiscard]] inline std::vector<HeadPlace> head_choices(const PlanRequest& request,
                                                         std::span<const std::int32_t> chunks,
                                                         bool may_shard) {
  std::vector<HeadPlace> places;
  if (request.head != Head::shard) {
    for (std::int32_t relief = 0; relief <= (request.pp > 1 ? kMostRelief : 0); ++relief) {
      const HeadPlace place{Head::last, relief};
      if (request.relief.value_or(relief) != relief) continue;
      if (std::any_of(chunks.begin(), chunks.end(),
                      [&](std::int32_t count) { return leaves_layers(request, count, place); })) {
        places.push_back(place);
      }
    }
  }
  if (request.head == Head::shard ||
      (!request.head && may_shard && request.pp > 1 && request.relief.value_or(0) == 0)) {
    places.push_back({Head::shard, 0});
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

[[nodiscard]] constexpr std::string_view text(Recompute recompute) noexcept {
  constexpr std::array<std::string_view, kRecomputeModes> kNames{"none", "light", "layer", "full"};
  return kNames[static_cast<std::size_t>(recompute)];
}

/// Settings as text, by name: those that the planner has a choice of.
[[nodiscard]] inline std::map<std::string, std::string> describe(const PackedSettings& settings,
                                                                 bool sliced) {
  std::map<std::string, std::string> lines;
  lines["recompute"] = text(settings.recompute);
  lines["chunks"] = std::to_string(settings.chunks);
  lines["head"] = settings.head.head == Head::last ? "last" : "shard";
  lines["last_stage_layers"] =
      settings.head.relief == 0 ? "even" : std::to_string(settings.head.relief) + "-fewer";
  lines["packing"] = settings.packing == Packing::in_order ? "in-order" : "best-fit-decreasing";
  lines["dealing"] = settings.dealing == Dealing::in_turn ? "in-turn" : "balanced";
  if (sliced) lines["slices"] = std::to_string(settings.slices);
  return lines;
}

namespace detail {

/// The sequences of a step: positions of samples, and which sequences each rank has, or each group
/// of ranks.
struct PackedRanks {
  Bins sequences;
  Deal ranks;
};

inline PackedRanks pack_ranks(const PlanRequest& request, const PackedSettings& settings) {
  const std::span<const Tokens> samples = request.batch.samples;
  PackedRanks packed;
  packed.sequences = settings.packing == Packing::in_order
                         ? pack_next_fit(samples, request.context)
                         : pack_best_fit_decreasing(samples, request.context);
  if (settings.dealing == Dealing::in_turn) {
    packed.ranks = deal_in_turn(packed.sequences.size(), request.dp / settings.ranks);
    return packed;
  }
  std::vector<Work> work(packed.sequences.size());
  for (std::size_t at = 0; at < work.size(); ++at) {
    for (const std::size_t sample : packed.sequences[at]) {
      work[at] += sample_work(request.model, samples[sample]);
    }
  }
  packed.ranks = deal_balanced(work, request.dp / settings.ranks);
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
  plan.stages = spread_layers(request.model.layers, line_of(plan), settings.head.relief,
                              settings.head.head == Head::last);
  if (settings.ranks > 1) {
    plan.parallel.merge = settings.ranks;
    if (settings.share) plan.memory.share_tokens = *settings.share;
    plan.groups = detail::neighbouring_ranks(request.dp, settings.ranks);
  }
  Tokens longest{1};
  for (const auto& sequence : packed.sequences) {
    longest = std::max(longest, detail::sequence_length(plan.samples, sequence));
  }
  const Pipeline pipeline{request.pp, settings.chunks};
  for (std::size_t at = 0; at < plan.groups.size(); ++at) {
    const auto group = static_cast<GroupId>(at);
    std::vector<PackId> forward;
    std::vector<PackId> backward;
    std::vector<std::int32_t> slices;
    for (const std::size_t which : packed.ranks[at]) {
      const auto& sequence = packed.sequences[which];
      std::vector<PackedSample> samples;
      for (const std::size_t sample : sequence) {
        plan.sample_group[sample] = group;
        samples.push_back({static_cast<SampleId>(sample), plan.samples[sample]});
      }
      const std::int64_t count = detail::slice_count(
          detail::sequence_length(plan.samples, sequence), longest, settings.slices);
      const auto packs = cut_uniformly(samples, count, request.granularity);
      for (const auto& pack : packs) {
        const std::vector<Exchange> exchange(settings.ranks > 1 ? pack.size() : 0, Exchange::kv);
        forward.push_back(static_cast<PackId>(plan.micropacks.size()));
        plan.micropacks.push_back({Pass::forward, group, pack, exchange, Recompute::none});
        backward.push_back(static_cast<PackId>(plan.micropacks.size()));
        plan.micropacks.push_back({Pass::backward, group, pack, exchange, settings.recompute});
      }
      slices.push_back(static_cast<std::int32_t>(packs.size()));
    }
    const StageOrders steps = with_updates(
        pipeline, with_heads(pipeline, order(pipeline, slices), settings.head.head, plan.window));
    for (const std::int32_t rank : plan.groups[at]) {
      for (std::int32_t stage = 0; stage < request.pp; ++stage) {
        plan.schedule.push_back(
            {rank, stage, name_units(steps[static_cast<std::size_t>(stage)], forward, backward)});
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

}  // namespace slimpack
