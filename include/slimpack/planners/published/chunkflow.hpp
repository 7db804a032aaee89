// SPDX-License-Identifier: Apache-2.0
// ChunkFlow's plan: chunks of one size, of which the last K of a sequence keep their activations.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/planners/planner.hpp"
#include "slimpack/planners/published/detail/chunk_groups.hpp"
#include "slimpack/planners/published/detail/sample_prices.hpp"
#include "slimpack/planners/search/detail/choices.hpp"
#include "slimpack/planners/search/detail/choose.hpp"
#include "slimpack/planners/search/detail/lengths.hpp"
#include "slimpack/planners/search/layout.hpp"
#include "slimpack/planners/search/settings.hpp"
#include "slimpack/schedule/bins.hpp"
#include "slimpack/schedule/orders.hpp"

namespace slimpack::planners {

/// What the chunks of a sequence keep from F to B.
struct Retention {
  Recompute kept = Recompute::none;    ///< of the last `chunks` chunks
  std::optional<std::int32_t> chunks;  ///< the publication's K; absent: all chunks
  Recompute early = Recompute::full;   ///< of the chunks before those
  friend bool operator==(const Retention&, const Retention&) = default;

  /// The texts "recompute" and "kept_chunks", and "early_chunks" where K is given.
  void describe(SettingTexts& texts) const {
    texts["recompute"] = to_string(kept);
    texts["kept_chunks"] = chunks ? std::to_string(*chunks) : "all";
    if (chunks) texts["early_chunks"] = to_string(early);
  }
};

/// How short samples become chunks.
enum class Consolidation : std::uint8_t {
  best_fit,  ///< best fit decreasing
  level,     ///< the fewest chunks that hold all, longest first, each to the emptiest chunk
};

}  // namespace slimpack::planners

template <>
inline constexpr std::array<std::string_view, 2>
    slimpack::kWords<slimpack::planners::Consolidation>{"best-fit-decreasing", "level"};

namespace slimpack::planners {

/// One candidate of `Chunkflow`.
struct ChunkflowSettings : StepSettings {
  Retention retention;                                               ///< what chunks keep
  Tokens chunk{8192};                                                ///< most tokens of a chunk
  schedule::ChunkLead lead = schedule::ChunkLead::just_in_time;      ///< how far F runs ahead
  detail::GroupOrder order = detail::GroupOrder::most_chunks_first;  ///< of a rank's sequences
  Consolidation consolidation = Consolidation::best_fit;             ///< of short samples
};

namespace detail {

/// Packs items into the fewest bins that this rule fills without overflow: longest first, each item
/// to the emptiest bin (the lowest of equals). Where no fewer bins than
/// those of best fit decreasing will do, these are the answer. Items of a bin rise. Throws
/// InvalidInput as `pack_best_fit_decreasing`. O(n log n) a try; tries at most as many bins as best
/// fit decreasing takes.
[[nodiscard]] inline schedule::Bins pack_level(std::span<const Tokens> items, Tokens capacity) {
  schedule::Bins fallback = schedule::pack_best_fit_decreasing(items, capacity);
  Tokens total;
  for (const Tokens item : items) total += item;
  const std::int64_t least = (total.value + capacity.value - 1) / capacity.value;
  const std::vector<std::uint32_t> order =
      schedule::longest_first(items.size(), [&](std::uint32_t item) { return items[item].value; });
  for (auto bins = static_cast<std::size_t>(least); bins < fallback.size(); ++bins) {
    std::vector<std::int64_t> load(bins);
    const schedule::ItemsByRank hands =
        schedule::assign_lpt(order, load, [&](std::uint32_t item) { return items[item].value; });
    if (*std::max_element(load.begin(), load.end()) > capacity.value) continue;
    schedule::Bins assigned;
    for (const auto& hand : hands) {
      assigned.emplace_back(hand.begin(), hand.end());
      std::sort(assigned.back().begin(), assigned.back().end());
    }
    return assigned;
  }
  return fallback;
}

/// The candidates of `Chunkflow`.
class ChunkflowCandidates : public CandidateBase<ChunkflowSettings> {
 public:
  ChunkflowCandidates(const PlanRequest& request, std::string_view planner)
      : CandidateBase(request, planner) {
    const std::size_t retention =
        space_.add("", &ChunkflowSettings::retention, retention_choices());
    const std::size_t size = space_.add("chunk_size", &ChunkflowSettings::chunk, size_choices());
    const std::size_t lead = space_.add(
        "lead", &ChunkflowSettings::lead,
        request.as_published
            ? std::vector{schedule::ChunkLead::steady}
            : std::vector{schedule::ChunkLead::just_in_time, schedule::ChunkLead::steady});
    space_.add("group_order", &ChunkflowSettings::order,
               {GroupOrder::most_chunks_first, GroupOrder::as_given});
    space_.add("consolidation", &ChunkflowSettings::consolidation,
               request.as_published ? std::vector{Consolidation::best_fit}
                                    : std::vector{Consolidation::best_fit, Consolidation::level});
    add_step_settings(space_, request);
    // As published the last chunk of a sample keeps all; then every chunk keeps all or nothing, or
    // chunks are larger.
    space_.start({{retention, 4}, {lead, 1}});
    space_.start({});
    space_.start({{retention, 3}});
    space_.start({{retention, 1}, {size, 1}});
  }

  /// The plan of one candidate, without a prediction.
  [[nodiscard]] Plan build(const ChunkflowSettings& settings) const {
    Plan plan = step_frame(request_, planner_, settings);
    std::vector<ChunkGroup> groups = cut(settings);
    price_groups(groups, StagePrices(plan), settings.retention.kept);
    const auto assigned = assign_groups(groups, plan.groups.size(), settings.order);
    for (std::size_t rank = 0; rank < assigned.size(); ++rank) {
      const auto group = static_cast<GroupId>(rank);
      GroupPacks packs;
      std::vector<std::int32_t> chunks;
      for (const std::size_t i : assigned[rank]) {
        const auto count = static_cast<std::int32_t>(groups[i].chunks.size());
        const std::int32_t early = count - settings.retention.chunks.value_or(count);
        for (std::int32_t chunk = 0; chunk < count; ++chunk) {
          add_pack(plan, group, std::move(groups[i].chunks[static_cast<std::size_t>(chunk)]),
                   chunk < early ? settings.retention.early : settings.retention.kept, packs);
        }
        chunks.push_back(count);
      }
      add_orders(plan, group, packs,
                 schedule::chunked_one_f_one_b(request_.pp, chunks, settings.lead),
                 settings.head_batch);
    }
    return plan;
  }

  /// The chunks of the step: sequences longer than a chunk first, as they come, then packed ones.
  [[nodiscard]] std::vector<ChunkGroup> cut(const ChunkflowSettings& settings) const {
    const std::vector<Tokens>& samples = request_.batch.samples;
    std::vector<ChunkGroup> groups;
    std::vector<Tokens> lengths;
    std::vector<SampleId> shorts;
    for (std::size_t i = 0; i < samples.size(); ++i) {
      const auto sample = static_cast<SampleId>(i);
      if (samples[i] <= settings.chunk) {
        lengths.push_back(samples[i]);
        shorts.push_back(sample);
        continue;
      }
      ChunkGroup& group = groups.emplace_back();
      for (Tokens begin; begin < samples[i]; begin += settings.chunk) {
        group.chunks.push_back({{sample, begin, std::min(begin + settings.chunk, samples[i])}});
      }
    }
    if (shorts.empty()) return groups;
    const schedule::Bins bins = settings.consolidation == Consolidation::level
                                    ? pack_level(lengths, settings.chunk)
                                    : schedule::pack_best_fit_decreasing(lengths, settings.chunk);
    for (const auto& bin : bins) {
      std::vector<Slice> chunk;
      for (const std::size_t item : bin) chunk.push_back({shorts[item], Tokens{}, lengths[item]});
      groups.emplace_back().chunks.push_back(std::move(chunk));
    }
    return groups;
  }

 private:
  /// The request's mode for all chunks, or every mode and every K with a leaner mode before.
  [[nodiscard]] std::vector<Retention> retention_choices() const {
    std::vector<Retention> choices;
    for (const Recompute kept : recompute_choices(request_)) choices.push_back({kept, {}, kept});
    for (const std::int32_t chunks : {1, 2, 4, 8}) {
      if (request_.recompute) break;
      if (request_.as_published) {
        choices.push_back({Recompute::none, chunks, Recompute::full});
        continue;
      }
      for (const Recompute kept : {Recompute::none, Recompute::light, Recompute::layer}) {
        choices.push_back({kept, chunks, Recompute::full});
        if (kept != Recompute::layer) choices.push_back({kept, chunks, Recompute::layer});
      }
    }
    return choices;
  }

  /// Powers of two, from near four chunks a stage and rank on, then parts of the context.
  [[nodiscard]] std::vector<Tokens> size_choices() const {
    std::vector<Tokens> sizes;
    const auto add = [&](std::int64_t tokens) {
      const std::int64_t granularity = request_.granularity.value;
      const Tokens size{(tokens + granularity - 1) / granularity * granularity};
      if (std::find(sizes.begin(), sizes.end(), size) == sizes.end()) sizes.push_back(size);
    };
    const std::int64_t context = request_.context.value;
    const std::int64_t wish =
        total_tokens(request_.batch.samples).value / (std::int64_t{4} * request_.dp * request_.pp);
    constexpr std::int64_t kLeast = 1024, kMost = 262'144;
    std::int64_t near = kLeast;
    while (near < kMost && 2 * near <= wish) near *= 2;
    for (std::int64_t times = 1; times <= kMost / kLeast; times *= 2) {
      for (const std::int64_t size : {near * times, near / times}) {
        if (size >= kLeast && size <= std::min(kMost, context)) add(size);
      }
    }
    constexpr std::size_t kFew = 4;
    for (std::int64_t parts = 1; parts <= 8 && sizes.size() < kFew; parts *= 2) {
      add((context + parts - 1) / parts);
    }
    return sizes;
  }
};
static_assert(PlanCandidates<ChunkflowCandidates>);

}  // namespace detail

/// Chunks of one size, as ChunkFlow makes them (Yuan et al., "Efficient Long Context Fine-tuning
/// with Chunk Flow", ICML 2025, arXiv 2503.02356; no public code). Samples longer than a chunk are
/// split into chunks that depend on each other, shorter ones are packed whole into as few chunks as
/// a heuristic finds; chunks run in a state-aware 1F1B: those of a sample forwards in turn, then
/// backwards in reverse, keys and values and their gradients staying in between. Of each sample the
/// last K chunks keep their activations, those before run forward once more ahead of their
/// backward.
///
/// Searched: the size of chunks (powers of two from 1K to 256K and the context), K (1, 2, 4, 8,
/// all), what the last K chunks keep, best fit decreasing or level packing, how far forward units
/// run ahead (schedule/orders.hpp), groups of most chunks first or as they come, place of the head
/// and devices (`StepSettings`). Samples and chunks are assigned to data-parallel ranks by time,
/// longest first, with moves and swaps.
///
/// Deviations. The second forward of an early chunk is recomputation inside its B, not a unit of
/// its own: steady throughput is the same, but at the end of the step the last chunks' second
/// forwards delay the stages before, by at most (pp - 1) of them; it is against the system where a
/// step ends with early chunks of a long sample, so groups of most chunks run first. Early chunks
/// keep each layer's input beside keys and values (`full`), which it drops, but never hold all
/// layers' activations at once when they run again, which it does: more bytes for a sample of many
/// chunks, fewer for a large chunk. In its favour: early chunks may keep attention's output
/// (`layer`) and skip its second forward; samples and chunks go to ranks by cost, where it counts
/// chunks; both orders of lead. A request's mode of recomputation is that of all chunks, K is then
/// all.
///
/// Infeasible where more than one chunk is asked for; as published, a sharded head too.
struct Chunkflow {
  static constexpr std::string_view name = "chunkflow";  ///< in lists and as `Plan::planner`
  /// The line about it in lists of planners.
  static constexpr std::string_view description =
      "ChunkFlow: chunks of one size, short samples packed, the last K of a sample kept";
  /// Where it deviates against the system.
  static constexpr std::string_view against =
      "early chunks run forward again inside their backward unit, up to stages - 1 forward units "
      "later at the end of a step, and keep each layer's input";

  /// Plans one step: the fastest candidate that fits, within the budget of the request. Throws
  /// InvalidInput as `check_request` does.
  [[nodiscard]] PlanOutcome plan(const PlanRequest& request) const {
    return choose_within<detail::ChunkflowCandidates>({}, request, name);
  }
};
static_assert(Planner<Chunkflow>);

}  // namespace slimpack::planners
