// SPDX-License-Identifier: Apache-2.0
// DynaPipe's plan: micro-batches by dynamic programming, an adaptive order, recomputation chosen.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "slimpack/core/int128.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/cost/memory_model.hpp"
#include "slimpack/cost/price.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/planners/planner.hpp"
#include "slimpack/planners/published/detail/dynapipe_batches.hpp"
#include "slimpack/planners/published/detail/dynapipe_order.hpp"
#include "slimpack/planners/published/detail/sample_prices.hpp"
#include "slimpack/planners/search/detail/choices.hpp"
#include "slimpack/planners/search/detail/choose.hpp"
#include "slimpack/planners/search/detail/lengths.hpp"
#include "slimpack/planners/search/detail/recompute_by_length.hpp"
#include "slimpack/planners/search/layout.hpp"
#include "slimpack/planners/search/settings.hpp"
#include "slimpack/schedule/orders.hpp"
#include "slimpack/schedule/ranks.hpp"

namespace slimpack::planners {

/// DynaPipe's orders: cyclic within the memory limit, cyclic as if there were none, 1F1B.
enum class DynapipeOrder : std::uint8_t { limited, cyclic, one_forward };

}  // namespace slimpack::planners

template <>
inline constexpr std::array<std::string_view, 3>
    slimpack::kWords<slimpack::planners::DynapipeOrder>{"cyclic-limited", "cyclic", "1f1b"};

namespace slimpack::planners {

/// One candidate of `Dynapipe`.
struct DynapipeSettings : StepSettings {
  ModeChoice recompute;                          ///< of micro-batches, by their tokens
  DynapipeOrder order = DynapipeOrder::limited;  ///< of each stage's units
  std::int32_t in_flight = 1;  ///< a micro-batch may take 1/in_flight of a stage's free memory
};

namespace detail {

/// Room of a replica's stages for micro-batches in flight, as `cyclic_order` asks.
class ReplicaRoom {
 public:
  /// `packs` and their plan, complete but for orders; `place[i]` is the pack of item i.
  ReplicaRoom(const Plan& plan, const GroupPacks& packs, std::span<const std::size_t> place)
      : room_(static_cast<std::size_t>(plan.parallel.pp)), layers_(room_.size()) {
    const LayerBytes layer = layer_bytes(plan.model, plan.memory.gradient_bytes, plan.parallel.tp);
    Tokens most;
    for (const std::size_t i : place) {
      const MicroPack& pack = plan.micropacks[index(packs.backward[i])];
      const auto mode = static_cast<std::size_t>(pack.recompute);
      Item item;
      Tokens tokens;
      for (const Slice& slice : pack.slices) {
        tokens += slice.length();
        item.held += in_flight_bytes(layer, plan.memory, slice.length(), pack.recompute);
      }
      item.message = layer.boundary * tokens.value;
      item.workspace =
          std::max(layer.forward_workspace[mode], layer.uncut_workspace(pack.recompute)) *
          tokens.value;
      most = std::max(most, tokens);
      items_.push_back(item);
    }
    const Bytes available = plan.memory.capacity - plan.memory.reserved;
    for (std::size_t stage = 0; stage < room_.size(); ++stage) {
      const auto pp = static_cast<std::int32_t>(stage);
      layers_[stage] = chunk_layers(plan, pp, 0);
      // Two channels with each neighbour, each with `max_in_flight` buffers.
      const std::int64_t neighbours = (stage > 0 ? 1 : 0) + (stage + 1 < room_.size() ? 1 : 0);
      const std::int64_t buffers =
          2 * neighbours * plan.max_in_flight * layer.boundary * most.value;
      room_[stage] = (available - static_bytes(plan, pp).total()).value - buffers;
      room_[stage] -= head_workspace(plan, pp, most).value;
    }
  }

  [[nodiscard]] bool operator()(std::int32_t stage, std::int32_t oldest, std::int32_t next) const {
    const auto i = static_cast<std::size_t>(stage);
    std::int64_t held = 0, busiest = 0;
    for (std::int32_t which = oldest; which <= next; ++which) {
      const Item& item = items_[static_cast<std::size_t>(which)];
      held += layers_[i] * item.held + (i + 1 == room_.size() ? item.message : 0);
      busiest = std::max(busiest, item.workspace);
    }
    return held + busiest <= room_[i];
  }

 private:
  struct Item {
    std::int64_t held = 0;  // on one layer
    std::int64_t message = 0, workspace = 0;
  };
  std::vector<std::int64_t> room_, layers_;
  std::vector<Item> items_;
};
static_assert(schedule::StageRoom<ReplicaRoom>);

/// The candidates of `Dynapipe`.
class DynapipeCandidates : public CandidateBase<DynapipeSettings> {
 public:
  DynapipeCandidates(const PlanRequest& request, std::string_view planner)
      : CandidateBase(request, planner), longest_first_(longest_first(request.batch.samples)) {
    std::vector<std::int32_t> in_flight;
    for (const std::int32_t count :
         {request.pp, 2 * request.pp, std::max(1, request.pp / 2), 4 * request.pp, 1}) {
      if (std::find(in_flight.begin(), in_flight.end(), count) == in_flight.end()) {
        in_flight.push_back(count);
      }
    }
    using enum DynapipeOrder;
    space_.add("recompute", &DynapipeSettings::recompute, mode_choices(request),
               {.ordered = true, .memory = true});
    const std::size_t order = space_.add(
        "order", &DynapipeSettings::order,
        request.as_published ? std::vector{limited} : std::vector{limited, cyclic, one_forward});
    const std::size_t memory_share =
        space_.add("memory_share", &DynapipeSettings::in_flight, in_flight, {},
                   [](std::int32_t parts) { return "1/" + std::to_string(parts); });
    add_step_settings(space_, request);
    space_.start({});  // DynaPipe's cyclic order within the memory limit
    space_.start({{memory_share, 1}});
    space_.start({{order, 2}});
  }

  /// The plan of one candidate, without a prediction.
  [[nodiscard]] Plan build(const DynapipeSettings& settings) const {
    Plan plan = step_frame(request_, planner_, settings);
    const Batches batches = cut(plan, settings);
    std::vector<GroupPacks> packs(static_cast<std::size_t>(request_.dp));
    const schedule::ShardLayout replicas =
        schedule::assign_karmarkar_karp(batches.time, packs.size(), schedule::PartSizes::free);
    for (std::size_t rank = 0; rank < replicas.size(); ++rank) {
      for (const std::size_t batch : replicas[rank]) {
        std::vector<Slice> slices;
        Tokens tokens;
        for (std::size_t i = batch == 0 ? 0 : batches.ends[batch - 1]; i < batches.ends[batch];
             ++i) {
          const std::size_t sample = longest_first_[i];
          slices.push_back({static_cast<SampleId>(sample), Tokens{}, plan.samples[sample]});
          tokens += plan.samples[sample];
        }
        add_pack(plan, static_cast<GroupId>(rank), std::move(slices), settings.recompute.of(tokens),
                 packs[rank]);
      }
    }
    const PricedPlan prices(plan);
    for (std::size_t rank = 0; rank < packs.size(); ++rank) {
      add_best_order(plan, static_cast<GroupId>(rank), packs[rank], prices, settings);
    }
    return plan;
  }

  static void describe(const DynapipeSettings&, const Plan& plan, SettingTexts& texts) {
    texts["micro_batches"] = std::to_string(plan.micropacks.size() / 2);
  }

 private:
  /// Runs of the samples, longest first, and what each takes on the slowest stage.
  struct Batches {
    std::vector<std::size_t> ends;
    std::vector<Int128> time;
  };

  [[nodiscard]] Batches cut(const Plan& frame, const DynapipeSettings& settings) const {
    std::vector<Tokens> lengths;
    for (const std::size_t sample : longest_first_) lengths.push_back(frame.samples[sample]);
    const SampleTimes times = StagePrices(frame).whole(lengths, settings.recompute.most);
    const LayerBytes layer =
        layer_bytes(frame.model, frame.memory.gradient_bytes, frame.parallel.tp);
    // The stage that has least room for what one layer keeps.
    std::int64_t layers = 1, free = 0;
    for (std::int32_t pp = 0; pp < request_.pp; ++pp) {
      const std::int64_t here = chunk_layers(frame, pp, 0);
      const Bytes room =
          frame.memory.capacity - frame.memory.reserved - static_bytes(frame, pp).total();
      if (pp > 0 && Int128{room.value} * layers >= Int128{free} * here) continue;
      layers = here;
      free = std::max<std::int64_t>(0, room.value);
    }
    std::vector<BatchItem> items;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      items.push_back({times.time[i], layers * in_flight_bytes(layer, frame.memory, lengths[i],
                                                               settings.recompute.of(lengths[i]))});
    }
    const BatchRules rules{times.unit, free / settings.in_flight, request_.pp, request_.dp};
    Batches batches{BatchCut(items, rules).ends(), {}};
    std::size_t i = 0;
    for (const std::size_t end : batches.ends) {
      batches.time.emplace_back(times.unit);
      for (; i < end; ++i) batches.time.back() += items[i].time;
    }
    return batches;
  }

  /// Tries the orders of micro-batches of one replica on times of its own.
  static void add_best_order(Plan& plan, GroupId group, const GroupPacks& packs,
                             const PricedPlan& prices, const DynapipeSettings& settings) {
    const DynapipeOrder kind = settings.order;
    const ReplicaTimes times = replica_times(plan, packs, prices);
    const auto stages = static_cast<std::int32_t>(times.stages);
    const auto items = static_cast<std::int32_t>(times.items);
    std::vector<std::int64_t> both(times.items);
    for (std::size_t i = 0; i < both.size(); ++i) both[i] = times.forward[i] + times.backward[i];
    std::vector<std::size_t> best;
    schedule::StageOrders best_orders;
    std::int64_t least = -1;
    schedule::StageOrders orders =
        kind == DynapipeOrder::one_forward
            ? schedule::one_f_one_b(stages, items)
            : schedule::cyclic_order(stages, items, schedule::kAmpleRoom, plan.max_in_flight);
    for (const std::vector<std::size_t>& place : cluster_orders(both)) {
      if (kind == DynapipeOrder::limited) {
        orders = schedule::cyclic_order(stages, items, ReplicaRoom(plan, packs, place),
                                        plan.max_in_flight);
      }
      const std::int64_t end = items == 0 ? 0 : orders_end(times, orders, place);
      if (least >= 0 && end >= least) continue;
      least = end;
      best = place;
      best_orders = orders;
    }
    GroupPacks placed;
    for (const std::size_t i : best) {
      placed.forward.push_back(packs.forward[i]);
      placed.backward.push_back(packs.backward[i]);
    }
    add_orders(plan, group, placed, best_orders, settings.head_batch);
  }

  [[nodiscard]] static ReplicaTimes replica_times(const Plan& plan, const GroupPacks& packs,
                                                  const PricedPlan& prices) {
    ReplicaTimes times;
    times.stages = static_cast<std::size_t>(plan.parallel.pp);
    times.items = packs.forward.size();
    for (std::int32_t pp = 0; pp < plan.parallel.pp; ++pp) {
      for (std::size_t i = 0; i < times.items; ++i) {
        const PackId forward = packs.forward[i], backward = packs.backward[i];
        times.forward.push_back(prices.compute(forward, pp).value);
        times.backward.push_back(prices.compute(backward, pp).value);
        times.activations.push_back(prices.transfer(forward, pp, 0).value);
        times.gradients.push_back(prices.transfer(backward, pp, 0).value);
      }
    }
    for (const PackId pack : packs.forward) {
      times.head.push_back(prices.head(pack, 0, plan.parallel.pp - 1).value);
    }
    return times;
  }

  std::vector<std::size_t> longest_first_;
};
static_assert(PlanCandidates<DynapipeCandidates>);

}  // namespace detail

/// Micro-batches of whole samples, as DynaPipe makes them (Jiang et al., "DynaPipe: Optimizing
/// Multi-task Training through Dynamic Pipelines", EuroSys 2024, arXiv 2311.10418; repository
/// awslabs/optimizing-multitask-training-through-dynamic-pipelines). Samples are sorted by length
/// and cut into runs that minimise (pp - 1) max + sum / dp of the runs' times under a limit on
/// their activations (`detail::BatchCut`); Karmarkar-Karp balances the replicas; each replica's
/// micro-batches are clustered by time, and of all permutations of the clusters the one is taken
/// that ends first by times of the planner's own; they run in the memory-aware cyclic order.
///
/// Searched: recomputation, which is one mode for the step as published, by the tokens of a
/// micro-batch else; the cyclic order with and without its memory limit, and 1F1B; the part of a
/// stage's free memory that a micro-batch may take (published: 1/pp, or a fraction set by hand);
/// place of the head and devices (`StepSettings`).
///
/// Deviations: samples of a micro-batch lie one behind the other with attention of variable length,
/// no padding is counted or computed; the optimum of the dynamic program is exact, where published
/// maxima are tried 5 units apart; a sample whose activations alone exceed the limit is a
/// micro-batch of its own, where the publication goes on to the next recomputation; `light` and
/// `layer` stand beside its `selective`; inside a cluster the order of lengths is kept, where the
/// publication shuffles; in equal-time clusters k-means starts from quantiles. All but the last are
/// in its favour. Assumption: decoders only, where its repository has no interleaved order.
///
/// Infeasible where more than one chunk is asked for; as published, a sharded head too.
struct Dynapipe {
  static constexpr std::string_view name = "dynapipe";  ///< in lists and as `Plan::planner`
  /// The line about it in lists of planners.
  static constexpr std::string_view description =
      "DynaPipe: micro-batches of whole samples by dynamic programming, adaptive order";
  /// Where it deviates against the system.
  static constexpr std::string_view against =
      "clusters of micro-batches of equal times start from quantiles";

  /// Plans one step: the fastest candidate that fits, within the budget of the request. Throws
  /// InvalidInput as `check_request` does.
  [[nodiscard]] PlanOutcome plan(const PlanRequest& request) const {
    return choose_within<detail::DynapipeCandidates>({}, request, name);
  }
};
static_assert(Planner<Dynapipe>);

}  // namespace slimpack::planners
