// SPDX-License-Identifier: Apache-2.0
// InfiniPipe's plan: chunks of equal time from split and packed samples, recomputed as memory asks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/cost/memory_model.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/planners/planner.hpp"
#include "slimpack/planners/published/detail/chunk_groups.hpp"
#include "slimpack/planners/published/detail/infinipipe_chunks.hpp"
#include "slimpack/planners/published/detail/infinipipe_memory.hpp"
#include "slimpack/planners/published/detail/sample_prices.hpp"
#include "slimpack/planners/search/detail/choices.hpp"
#include "slimpack/planners/search/detail/choose.hpp"
#include "slimpack/planners/search/detail/lengths.hpp"
#include "slimpack/planners/search/layout.hpp"
#include "slimpack/planners/search/settings.hpp"
#include "slimpack/planners/search/worst_memory.hpp"
#include "slimpack/schedule/orders.hpp"

namespace slimpack::planners {

/// One candidate of InfiniPipe.
struct InfinipipeSettings : StepSettings {
  std::optional<Recompute> recompute;  ///< of all chunks; absent: chunk by chunk as memory asks
  std::int32_t slices = 1;             ///< of the longest sample
  /// Samples of at most so many chunks run in a pipeline of their own behind the others; 0: none.
  std::int32_t apart = 0;
  schedule::ChunkLead lead = schedule::ChunkLead::steady;  ///< how far F runs ahead of B
  std::int32_t ranks = 1;          ///< that run each chunk together; divides dp
  std::optional<Tokens> cp_block;  ///< tokens of a CP block; absent: the request's

  /// Whether several ranks run each chunk.
  [[nodiscard]] static bool in_cp_group(const InfinipipeSettings& settings) noexcept {
    return settings.ranks > 1;
  }
};

namespace detail {

/// The candidates of `Infinipipe`.
class InfinipipeCandidates : public CandidateBase<InfinipipeSettings> {
 public:
  InfinipipeCandidates(const PlanRequest& request, std::string_view planner)
      : CandidateBase(request, planner) {
    std::vector<std::optional<Recompute>> modes{request.recompute};
    if (!request.recompute && !request.as_published) {
      modes.insert(modes.end(), {Recompute::full, Recompute::layer, Recompute::light});
    }
    std::vector<std::int32_t> slices;
    for (const std::int32_t count : {2 * request.pp, request.pp, 4 * request.pp, 8 * request.pp,
                                     std::max(1, request.pp / 2), 16 * request.pp, 1}) {
      if (std::find(slices.begin(), slices.end(), count) == slices.end()) slices.push_back(count);
    }
    const auto ranks = context_parallel_choices(request);
    const std::size_t recompute = space_.add(
        "recompute", &InfinipipeSettings::recompute, modes, {}, [](std::optional<Recompute> mode) {
          return mode ? slimpack::to_string(*mode) : "adaptive";
        });
    const std::size_t count = space_.add("slices", &InfinipipeSettings::slices, slices);
    space_.add("lead", &InfinipipeSettings::lead,
               request.as_published
                   ? std::vector{schedule::ChunkLead::steady}
                   : std::vector{schedule::ChunkLead::steady, schedule::ChunkLead::just_in_time});
    space_.add("apart", &InfinipipeSettings::apart, {0, 1, 2, 4, 8});
    const std::size_t context_parallel =
        space_.add("context_parallel", &InfinipipeSettings::ranks, ranks);
    space_.add("share_tokens", &InfinipipeSettings::cp_block, block_choices(request, ranks.back()),
               {.applies = InfinipipeSettings::in_cp_group, .first_only = true}, block_text);
    add_step_settings(space_, request);
    space_.start({});  // InfiniPipe's adaptive recomputation
    space_.start({{recompute, 1}});
    space_.start({{context_parallel, 1}});
    space_.start({{count, 1}});
  }

  /// The plan of one candidate, without a prediction.
  [[nodiscard]] Plan build(const InfinipipeSettings& settings) const {
    Plan plan = step_frame(request_, planner_, settings);
    group_neighbours(plan, settings.ranks, settings.cp_block);
    const StagePrices prices(plan);
    std::vector<GroupPacks> packs(plan.groups.size());
    std::vector<schedule::StageOrders> orders;
    std::vector<std::vector<ChunkCosts>> costs(plan.groups.size());
    const auto chunked = chunk_all(plan, prices, settings);
    for (std::size_t i = 0; i < chunked.size(); ++i) {
      std::vector<std::int32_t> chunks;
      for (const ChunkGroup& group : chunked[i]) {
        chunks.push_back(static_cast<std::int32_t>(group.chunks.size()));
        for (const auto& chunk : group.chunks) {
          if (!settings.recompute) costs[i].push_back(cost_of(plan, prices, chunk));
          add_pack(plan, static_cast<GroupId>(i), chunk,
                   settings.recompute.value_or(Recompute::none), packs[i]);
        }
      }
      orders.push_back(order_of(chunks, settings));
      add_orders(plan, static_cast<GroupId>(i), packs[i], orders.back(), settings.head_batch);
    }
    if (!settings.recompute) fit(plan, packs, orders, costs);
    return plan;
  }

  /// The chunks of each group of ranks, longest sequences first. Samples are assigned by time; all
  /// are cut along the mesh of the step's longest.
  [[nodiscard]] std::vector<std::vector<ChunkGroup>> chunk_all(
      const Plan& frame, const StagePrices& prices, const InfinipipeSettings& settings) const {
    const Recompute mode = settings.recompute.value_or(Recompute::none);
    const std::vector<Tokens>& samples = request_.batch.samples;
    const SampleTimes whole = prices.whole(samples, mode);
    const std::size_t stage = prices.stages() - 1;
    const auto time = [&](Tokens begin, Tokens end) {
      const std::int64_t all = prices.both_passes(prices.load(begin, end), mode, stage);
      return std::max<std::int64_t>(1, all - whole.unit);
    };
    const SliceMesh mesh =
        slice_mesh(longest_of(samples), settings.slices, request_.granularity, time);
    std::vector<schedule::SampleNeed> needs;
    for (const std::int64_t each : whole.time) needs.push_back({each, {}});
    schedule::AssignRules rules;
    rules.ranks = static_cast<std::int32_t>(frame.groups.size());
    const schedule::Assignment assigned = schedule::assign_samples(needs, rules);
    std::vector<std::vector<std::size_t>> own(frame.groups.size());
    for (std::size_t i = 0; i < samples.size(); ++i) {
      own[index(assigned.sample_group[i])].push_back(i);
    }
    std::vector<std::vector<ChunkGroup>> chunked;
    for (const auto& which : own) {
      auto& groups = chunked.emplace_back(chunk_sequences(which, samples, mesh, time));
      price_groups(groups, prices, mode);
      std::stable_sort(groups.begin(), groups.end(), [](const auto& a, const auto& b) {
        if (a.chunks.size() != b.chunks.size()) return a.chunks.size() > b.chunks.size();
        return a.time > b.time;
      });
    }
    return chunked;
  }

 private:
  /// One pipeline behind the other, the second of the samples of few chunks.
  [[nodiscard]] schedule::StageOrders order_of(std::span<const std::int32_t> chunks,
                                               const InfinipipeSettings& settings) const {
    const auto apart = std::find_if(chunks.begin(), chunks.end(),
                                    [&](std::int32_t count) { return count <= settings.apart; });
    const auto first = static_cast<std::size_t>(apart - chunks.begin());
    std::int32_t before = 0;
    for (std::size_t i = 0; i < first; ++i) before += chunks[i];
    schedule::StageOrders orders =
        schedule::chunked_one_f_one_b(request_.pp, chunks.first(first), settings.lead);
    const schedule::StageOrders behind =
        schedule::chunked_one_f_one_b(request_.pp, chunks.subspan(first), settings.lead);
    for (std::size_t stage = 0; stage < orders.size(); ++stage) {
      for (schedule::PipelineOp step : behind[stage]) {
        step.item += before;
        orders[stage].push_back(step);
      }
    }
    return orders;
  }

  /// Bytes of the rank with the largest part, nearly: `fit` finds the rest by counting exactly.
  [[nodiscard]] static ChunkCosts cost_of(const Plan& plan, const StagePrices& prices,
                                          std::span<const Slice> chunk) {
    const LayerBytes layer = layer_bytes(plan.model, plan.memory.gradient_bytes, plan.parallel.tp);
    const auto ranks = static_cast<std::int64_t>(plan.groups.front().size());
    const auto part = [&](Tokens tokens) { return (tokens.value + ranks - 1) / ranks; };
    const std::int64_t page = plan.memory.page_tokens.value;
    const auto paged = [&](Tokens end) { return (part(end) + page - 1) / page * page * layer.kv; };
    ChunkCosts costs;
    Tokens tokens;
    std::int64_t whole_pages = 0, whole = 0;  // of samples that are not cut: bytes, own tokens
    for (const Slice& slice : chunk) {
      const Tokens length = plan.samples[index(slice.sample)];
      tokens += slice.length();
      if (slice.length() == length) {
        whole_pages += paged(length);
        whole += part(length);
        continue;
      }
      costs.pages += paged(slice.end) - paged(slice.begin);
      if (slice.end == length) costs.opens += layer.kv_gradient * part(length);
      if (slice.begin == Tokens{}) costs.closes += layer.kv_gradient * part(length) + paged(length);
    }
    const PackLoad load = chunk_load(prices, chunk);
    const std::int64_t own = part(tokens);
    costs.message = layer.boundary * own;
    for (std::size_t mode = 0; mode < kRecomputeModes; ++mode) {
      costs.time[mode] =
          prices.both_passes(load, static_cast<Recompute>(mode), prices.stages() - 1);
      costs.kept[mode] = layer.kept[mode] * own;
      costs.forward_workspace[mode] = layer.forward_workspace[mode] * own;
      costs.backward_workspace[mode] = layer.backward_workspace[mode] * own;
      if (static_cast<Recompute>(mode) == Recompute::full) {
        costs.backward_workspace[mode] += layer.kv * whole;
      } else {
        costs.kept[mode] += whole_pages;
      }
    }
    return costs;
  }

  /// Chooses the modes of all chunks, then counts exactly and corrects the room for what was
  /// counted too little or too much; `full` for all where corrections do not end.
  static void fit(Plan& plan, const std::vector<GroupPacks>& packs,
                  const std::vector<schedule::StageOrders>& orders,
                  const std::vector<std::vector<ChunkCosts>>& costs) {
    const Bytes available = plan.memory.capacity - plan.memory.reserved;
    constexpr int kCorrections = 6;
    std::vector<std::vector<std::int64_t>> correction(
        packs.size(), std::vector<std::int64_t>(static_cast<std::size_t>(plan.parallel.pp)));
    for (int round = 0; round < kCorrections; ++round) {
      for (std::size_t i = 0; i < packs.size(); ++i) {
        std::vector<StageRoomBytes> stages;
        for (std::int32_t pp = 0; pp < plan.parallel.pp; ++pp) {
          const Bytes room = available - static_bytes(plan, pp).total();
          stages.push_back({chunk_layers(plan, pp, 0),
                            room.value - correction[i][static_cast<std::size_t>(pp)],
                            pp + 1 == plan.parallel.pp});
        }
        const auto modes = choose_checkpoints(costs[i], stages, orders[i]);
        for (std::size_t item = 0; item < modes.size(); ++item) {
          plan.micropacks[index(packs[i].backward[item])].recompute = modes[item];
        }
      }
      const std::vector<Bytes> worst = worst_memory(plan);
      bool fits = true;
      for (std::size_t device = 0; device < worst.size(); ++device) {
        const std::size_t group = device / correction.front().size() / plan.groups.front().size();
        std::int64_t& here = correction[group][device % correction.front().size()];
        const std::int64_t excess = (worst[device] - available).value;
        if (excess <= 0) continue;
        here += excess + excess / 2;  // modes change in steps: an exact correction may creep
        fits = false;
      }
      if (fits) return;
    }
    for (MicroPack& pack : plan.micropacks) {
      if (pack.pass == Pass::backward) pack.recompute = Recompute::full;
    }
  }
};
static_assert(PlanCandidates<InfinipipeCandidates>);

}  // namespace detail

/// Elastic pipeline parallelism, as InfiniPipe plans it (Wang et al., "Data-Centric Elastic
/// Pipeline Parallelism for Efficient Long-Context LLM Training", arXiv 2509.21275). The longest
/// sample is cut into slices of equal time, others along the same mesh; tails and short samples are
/// packed into chunks of about the same time and at most as many tokens (its algorithm 1,
/// `detail::chunk_sequences`); chunks run in 1F1B, samples of most chunks first; chunks are
/// recomputed one by one as memory asks (its algorithm 2, `detail::choose_checkpoints`).
///
/// Searched: slices of the longest sample, samples of few chunks in a pipeline of their own,
/// sequence-parallel ranks (powers of two that divide dp, none above `max_cp`) and CP blocks, the
/// lead of forward units, place of the head and devices (`StepSettings`), and one mode for all
/// chunks in place of the chosen ones.
///
/// Deviations. A plan has one mode a chunk for all stages, where the system sets a number of layers
/// for each chunk and stage: those of one diagonal together, since a stage that recomputes holds
/// the others up; the stages that have memory to spare recompute here too, which is against it
/// where they would be the slowest. Modes are found greedily, not by its integer program; `light`
/// and `layer`, cheaper for their bytes than recomputing whole layers, are in its favour. A second
/// pipeline need not wait for the first to drain, forward units may run ahead just in time, and
/// where to part the pipelines is found by simulation instead of its estimate: in its favour.
/// Sequence parallelism exchanges keys and values, hidden behind attention, where the system
/// exchanges heads, unhidden: in its favour where attention is long, against it where it is too
/// short to hide them, for in large groups heads are fewer bytes. Tensor parallelism comes with the
/// request.
///
/// Infeasible where more than one chunk is asked for; as published, a sharded head too.
struct Infinipipe {
  static constexpr std::string_view name = "infinipipe";  ///< in lists and as `Plan::planner`
  /// The line about it in lists of planners.
  static constexpr std::string_view description =
      "InfiniPipe: chunks of equal time, split and packed, recomputed as memory asks";
  /// Where it deviates against the system.
  static constexpr std::string_view against =
      "a chunk is recomputed alike on all stages, by modes found greedily; "
      "groups of ranks exchange keys and values instead of heads";

  /// Plans one step: the fastest candidate that fits, within the budget of the request. Throws
  /// InvalidInput as `check_request` does.
  [[nodiscard]] PlanOutcome plan(const PlanRequest& request) const {
    return choose_within<detail::InfinipipeCandidates>({}, request, name);
  }
};
static_assert(Planner<Infinipipe>);

}  // namespace slimpack::planners
