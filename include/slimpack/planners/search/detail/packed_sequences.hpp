// SPDX-License-Identifier: Apache-2.0
// What planners of packed sequences have in common: settings, building, candidates.
#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "slimpack/core/int128.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/plan/names.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/planners/planner.hpp"
#include "slimpack/planners/search/detail/choices.hpp"
#include "slimpack/planners/search/detail/choose.hpp"
#include "slimpack/planners/search/detail/recompute_by_length.hpp"
#include "slimpack/planners/search/layout.hpp"
#include "slimpack/planners/search/settings.hpp"
#include "slimpack/schedule/bins.hpp"
#include "slimpack/schedule/cut.hpp"
#include "slimpack/schedule/finish.hpp"
#include "slimpack/schedule/orders.hpp"
#include "slimpack/schedule/pipeline.hpp"
#include "slimpack/schedule/ranks.hpp"

namespace slimpack {
namespace planners {

/// How samples become sequences no longer than the length of a pack.
enum class Packing : std::uint8_t { in_order, best_fit };
/// How sequences are assigned to data-parallel ranks, to each the same number.
enum class AssignmentRule : std::uint8_t { in_turn, balanced };

}  // namespace planners

template <>
inline constexpr std::array<std::string_view, 2> kWords<planners::Packing>{"in-order",
                                                                           "best-fit-decreasing"};
template <>
inline constexpr std::array<std::string_view, 2> kWords<planners::AssignmentRule>{"in-turn",
                                                                                  "balanced"};
}  // namespace slimpack

namespace slimpack::planners {

/// One candidate of a planner of packed sequences.
struct PackedSettings : StepSettings {
  ModeChoice recompute;                 ///< of sequences, by the tokens that a rank has of each
  std::int32_t slices = 1;              ///< of the longest sequence
  std::int32_t chunks = 1;              ///< virtual stages of a device
  Packing packing = Packing::in_order;  ///< of samples into sequences
  std::optional<Tokens> pack_length;    ///< most tokens of a sequence; absent: the context
  AssignmentRule assignment_rule = AssignmentRule::in_turn;  ///< of sequences to ranks
  std::int32_t ranks = 1;          ///< that run each sequence together; divides dp
  std::optional<Tokens> cp_block;  ///< tokens of a CP block; absent: the request's

  /// Whether several ranks run each sequence.
  [[nodiscard]] static bool in_cp_group(const PackedSettings& settings) noexcept {
    return settings.ranks > 1;
  }
};

/// The sequences of a step and who runs them.
struct PackedRanks {
  schedule::Bins sequences;     ///< positions of samples in each sequence, in order
  schedule::ShardLayout ranks;  ///< positions of sequences of each group of ranks, in order
};

/// The pipeline order of a rank whose sequences have so many slices: F and B only.
/// Law: pure; every (item, chunk) once forward and once backward on every stage.
template <class Order>
concept SequenceOrder = requires(const Order& order, const schedule::Pipeline& pipeline,
                                 std::span<const std::int32_t> slices) {
  { order(pipeline, slices) } -> std::same_as<schedule::StageOrders>;
};

/// 1F1B, interleaved where stages have several chunks, of sequences of one slice.
struct OneForwardOneBackward {
  /// The order of `slices.size()` sequences on each stage.
  [[nodiscard]] schedule::StageOrders operator()(const schedule::Pipeline& pipeline,
                                                 std::span<const std::int32_t> slices) const {
    return schedule::interleaved(pipeline, static_cast<std::int32_t>(slices.size()));
  }
};

namespace detail {

/// The sequences of a step, packed and assigned as the settings say.
inline PackedRanks pack_ranks(const PlanRequest& request, const PackedSettings& settings) {
  const std::span<const Tokens> samples = request.batch.samples;
  const std::int32_t groups = request.dp / settings.ranks;
  const Tokens length = settings.pack_length.value_or(request.context);
  schedule::Bins sequences = settings.packing == Packing::in_order
                                 ? schedule::pack_next_fit(samples, length)
                                 : schedule::pack_best_fit_decreasing(samples, length);
  std::vector<Int128> work(sequences.size());
  for (std::size_t i = 0; i < work.size(); ++i) {
    for (const std::size_t sample : sequences[i]) {
      work[i] += schedule::sample_work(request.model, samples[sample]);
    }
  }
  schedule::ShardLayout ranks = settings.assignment_rule == AssignmentRule::in_turn
                                    ? schedule::assign_round_robin(sequences.size(), groups)
                                    : schedule::assign_balanced(work, groups);
  return {std::move(sequences), std::move(ranks)};
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

}  // namespace detail

/// Builds the plan of one candidate, without a prediction: each group of `settings.ranks`
/// neighbouring ranks has its sequences from `packed`, each cut into slices, whole samples where
/// there is one slice a sequence, the same packs forward and backward, in the order that `order`
/// gives. No sequence is empty. O(samples log samples + units x ranks of a group).
template <SequenceOrder Order>
[[nodiscard]] Plan build_packed(const PlanRequest& request, std::string_view planner,
                                const PackedSettings& settings, const PackedRanks& packed,
                                const Order& order) {
  Plan plan = step_frame(request, planner, settings, settings.chunks);
  group_neighbours(plan, settings.ranks, settings.cp_block);
  Tokens longest{1};
  for (const auto& sequence : packed.sequences) {
    longest = std::max(longest, detail::sequence_length(plan.samples, sequence));
  }
  const schedule::Pipeline pipeline{request.pp, settings.chunks};
  for (std::size_t i = 0; i < plan.groups.size(); ++i) {
    const auto group = static_cast<GroupId>(i);
    GroupPacks packs;
    std::vector<std::int32_t> slices;
    for (const std::size_t which : packed.ranks[i]) {
      const auto& sequence = packed.sequences[which];
      std::vector<schedule::PackedSample> samples;
      for (const std::size_t sample : sequence) {
        samples.push_back({static_cast<SampleId>(sample), plan.samples[sample]});
      }
      const Tokens length = detail::sequence_length(plan.samples, sequence);
      const std::int64_t count = detail::slice_count(length, longest, settings.slices);
      const Recompute mode =
          settings.recompute.of({(length.value + settings.ranks - 1) / settings.ranks});
      const auto cut = schedule::cut_uniformly(samples, count, request.granularity);
      for (const auto& pack : cut) add_pack(plan, group, pack, mode, packs);
      slices.push_back(static_cast<std::int32_t>(cut.size()));
    }
    add_orders(plan, group, packs, order(pipeline, slices), settings.head_batch);
  }
  return plan;
}

/// The same with sequences packed and assigned as the settings say.
template <SequenceOrder Order>
[[nodiscard]] Plan build_packed(const PlanRequest& request, std::string_view planner,
                                const PackedSettings& settings, const Order& order) {
  return build_packed(request, planner, settings, detail::pack_ranks(request, settings), order);
}

/// Adds the length of packs to a space.
template <std::derived_from<PackedSettings> Type>
void add_pack_length(SettingSpace<Type>& space, const PlanRequest& request) {
  const std::vector<Tokens> lengths = pack_length_choices(request);
  space.add("pack_tokens", &PackedSettings::pack_length, {lengths.begin(), lengths.end()}, {},
            [](std::optional<Tokens> length) { return std::to_string(length.value().value); });
}

/// What a planner of packed sequences searches besides recomputation, the head, packing, the length
/// of packs and assignment to ranks.
struct PackedChoices {
  std::vector<std::int32_t> slices = {};  ///< of the longest sequence; empty: one, not searched
  std::vector<std::int32_t> chunks{1};    ///< virtual stages of a device
  LmHead head = LmHead::last;             ///< where the system has it
  bool context_parallel = false;          ///< several ranks may run a sequence
};

/// Candidates that pack documents whole and run in one order, as Megatron-LM does.
template <SequenceOrder Order = OneForwardOneBackward,
          std::derived_from<PackedSettings> Type = PackedSettings>
class PackedCandidates : public CandidateBase<Type> {
 public:
  /// The space of a request with these choices; request and name must outlive the candidates.
  PackedCandidates(const PlanRequest& request, std::string_view planner,
                   const PackedChoices& choices)
      : CandidateBase<Type>(request, planner) {
    SettingSpace<Type>& space = this->space_;
    const auto ranks = context_parallel_choices(request);
    const bool shared = choices.context_parallel && ranks.size() > 1;
    std::size_t context_parallel = 0;
    if (shared) context_parallel = space.add("context_parallel", &PackedSettings::ranks, ranks);
    space.add("recompute", &PackedSettings::recompute, mode_choices(request),
              {.ordered = true, .memory = true});
    if (shared) {
      space.add("share_tokens", &PackedSettings::cp_block, block_choices(request, ranks.back()),
                {.applies = PackedSettings::in_cp_group, .first_only = true}, block_text);
    }
    if (!choices.slices.empty()) space.add("slices", &PackedSettings::slices, choices.slices);
    space.add("chunks", &PackedSettings::chunks, choices.chunks);
    add_step_settings(space, request, choices.chunks, choices.head);
    add_pack_length(space, request);
    std::vector<Packing> packings{Packing::in_order};
    std::vector<AssignmentRule> rules{AssignmentRule::in_turn};
    if (!request.as_published) {
      packings.push_back(Packing::best_fit);
      rules.push_back(AssignmentRule::balanced);
    }
    const std::size_t packing = space.add("packing", &PackedSettings::packing, packings);
    const std::size_t assignment = space.add("assignment", &PackedSettings::assignment_rule, rules);
    space.require_that([&request](const Type& settings) {
      return leaves_layers(request, settings.chunks, settings.head);
    });
    // The system's defaults; documents packed and assigned evenly, by all ranks of a group where
    // they may share them, then by fewer.
    space.start({});
    if (shared) {
      const std::size_t count = ranks.size();
      space.start({{context_parallel, count - 1}, {packing, 1}, {assignment, 1}});
      space.start({{context_parallel, count / 2}, {packing, 1}, {assignment, 1}});
    }
    space.start({{packing, 1}, {assignment, 1}});
  }

  /// The plan of a candidate, without a prediction.
  [[nodiscard]] Plan build(const Type& settings) const {
    return build_packed(this->request_, this->planner_, settings, Order{});
  }
};

}  // namespace slimpack::planners
