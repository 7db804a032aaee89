// SPDX-License-Identifier: Apache-2.0
// Device orders by simulation: each device runs what helps most and fits, and the order is kept.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/simulation_hook.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/cost/memory_model.hpp"
#include "slimpack/cost/unit_times.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/plan/virtual_stages.hpp"
#include "slimpack/schedule/detail/list_memory.hpp"
#include "slimpack/schedule/detail/list_rank.hpp"
#include "slimpack/schedule/detail/list_run.hpp"
#include "slimpack/schedule/detail/list_times.hpp"
#include "slimpack/schedule/order_times.hpp"
#include "slimpack/schedule/schedule_parts.hpp"

namespace slimpack::schedule {

/// Memory that scheduling a part needs besides its input. Using one workspace again and again saves
/// allocations; it never changes a result. Two threads must not use one workspace at a time.
struct ListWorkspace {
  std::vector<detail::ListRank> ranks;  ///< of the part that was scheduled last
  detail::ListState state;              ///< of that run
  detail::ListTimes::Memory times;      ///< of its orders' times
  Nanos end;  ///< the last `list_schedule`: when its last F, B, W or H ends in its own simulation
};

/// The result of scheduling one part.
struct ListOutcome {
  Nanos end;                             ///< of the last F, B, W or H in the list's own simulation
  std::optional<Infeasible> infeasible;  ///< set if memory does not suffice; there are no orders
};

namespace detail {

template <UnitTimes Times>
void fill_times(ListRank& rank, const Plan& plan, const Times& times) {
  const VirtualStages virtual_stages = virtual_stages_of(plan);
  const std::int32_t stages = plan.parallel.pp;
  const auto as_before = [&](std::int32_t pp) {
    if constexpr (ComparedTimes<Times>) {
      bool same = true;
      for (std::int32_t chunk = 0; chunk < plan.parallel.chunks; ++chunk) {
        same = same && times.as_before(virtual_stages.index(pp, chunk));
      }
      return same;
    } else {
      return false;
    }
  };
  for (std::size_t side = 0; side < 2; ++side) {
    const RankPass& pass = rank.pass[side];
    rank.time[side].fill(stages, pass.size(), as_before, [&](std::int32_t pp, std::size_t item) {
      return times
          .compute(static_cast<PackId>(pass.pack[item]), virtual_stages.index(pp, pass.chunk[item]))
          .value;
    });
    const auto transfer = [&](std::int32_t pp, std::size_t item) {
      if (stages == 1) return std::int64_t{0};
      return times
          .transfer(static_cast<PackId>(pass.pack[item]),
                    virtual_stages.index(pp, pass.chunk[item]), pass.place[item])
          .value;
    };
    rank.transfer[side].fill(stages, pass.size(), as_before, transfer);
  }
  RankWeights& weights = rank.weights;
  weights.time.clear();
  for (std::int32_t pp = 0; pp < stages; ++pp) {
    if (pp > 0 && as_before(pp)) {
      const std::size_t row = weights.time.size() - weights.size();
      weights.time.resize(row + 2 * weights.size());
      std::copy_n(weights.time.data() + row, weights.size(),
                  weights.time.data() + row + weights.size());
      continue;
    }
    for (std::size_t item = 0; item < weights.size(); ++item) {
      weights.time.push_back(weight_time(times, static_cast<PackId>(weights.pack[item]),
                                         virtual_stages.index(pp, weights.chunk[item]),
                                         weights.place[item])
                                 .value);
    }
  }
  rank.head_time.clear();
  const bool shard = plan.parallel.head == LmHead::shard;
  for (const std::uint32_t item : rank.head_item) {
    const auto pack = static_cast<PackId>(rank.pass[0].pack[item]);
    std::int64_t slowest = 0;
    for (std::int32_t pp = shard ? 0 : stages - 1; pp < stages; ++pp) {
      slowest = std::max(slowest, times.head(pack, rank.pass[0].place[item], pp).value);
    }
    rank.head_time.push_back(slowest);
  }
}

inline void check_options(const ListOptions& options) {
  require(options.head_batch >= 1, "list_schedule: head_batch must be >= 1", options.head_batch);
  require(options.forward_queue >= -1, "list_schedule: forward_queue must be >= -1",
          options.forward_queue);
  require(options.chunk_block >= 0, "list_schedule: chunk_block must be >= 0", options.chunk_block);
}

}  // namespace detail

/// One entry a device of the plan, in order, without units.
[[nodiscard]] inline std::vector<DeviceSchedule> empty_schedule(const Plan& plan) {
  std::vector<DeviceSchedule> schedule;
  for (std::int32_t dp = 0; dp < plan.parallel.dp; ++dp) {
    for (std::int32_t pp = 0; pp < plan.parallel.pp; ++pp) schedule.push_back({dp, pp, {}});
  }
  return schedule;
}

/// One part of a plan, laid out before it is scheduled.
struct ListPart {
  std::vector<detail::ListRank>
      ranks;                        ///< the items of its ranks, and which of them have room when
  std::optional<Infeasible> lacks;  ///< set if memory does not suffice; absent: nothing
};

/// Lays out one part of a plan in place of what `laid_out` held, whose memory is used again. Throws
/// as `list_schedule` does. O(slices + items log items) at worst.
inline void lay_out_part(const Plan& plan, const ScheduleParts& parts, std::size_t part,
                         const MemoryModel& memory, const ListOptions& options,
                         ListPart& laid_out) {
  detail::check_options(options);
  require(part < parts.size(), "list_schedule_part: part does not exist",
          static_cast<std::int64_t>(part));
  const auto stages = static_cast<std::size_t>(plan.parallel.pp);
  if (!parts.packs(part, Pass::forward).empty()) {
    SLIMPACK_ON_SIMULATION(orders, parts.ranks(part).size() * stages);
  }
  detail::lay_out(laid_out.ranks, plan, parts, part, options);
  const std::int64_t available = (plan.memory.capacity - plan.memory.reserved).value;
  detail::ListMemory room;
  laid_out.lacks.reset();
  std::int64_t worst = available;
  for (detail::ListRank& rank : laid_out.ranks) {
    detail::fill_bytes(rank, memory);
    rank.least.resize(rank.pass[0].size() * stages);
    rank.gate.resize(rank.pass[1].size() * stages);
    rank.weights.due.resize(rank.weights.size() * stages);
    for (std::int32_t pp = 0; pp < plan.parallel.pp; ++pp) {
      const std::int64_t needed = room.fill(rank, plan, pp, available);
      if (needed <= worst) continue;
      worst = needed;
      laid_out.lacks = Infeasible{
          "bytes of memory on device dp " + std::to_string(rank.dp) + ", pp " + std::to_string(pp),
          needed, available};
    }
  }
}

/// Schedules a part that `lay_out_part` has laid out with the same plan and options, and that lacks
/// nothing, as `list_schedule_part` does. The part goes into the workspace; what that held before
/// comes back in `laid_out`, to be used again. Returns when the last F, B, W or H ends. Where there
/// are orders, `order_times` gets the times of the part's devices by them, and is no longer exact
/// where it was and these are not.
template <UnitTimes Times>
[[nodiscard]] Nanos list_laid_out_part(const Plan& plan, const ScheduleParts& parts,
                                       ListPart& laid_out, const Times& times,
                                       const ListOptions& options, ListWorkspace& workspace,
                                       std::vector<DeviceSchedule>& schedule,
                                       OrderTimes* order_times = nullptr) {
  SLIMPACK_ASSERT(!laid_out.lacks);
  const std::size_t devices =
      static_cast<std::size_t>(plan.parallel.dp) * static_cast<std::size_t>(plan.parallel.pp);
  require(schedule.empty() || schedule.size() == devices,
          "list_schedule_part: there must be one schedule a device",
          static_cast<std::int64_t>(schedule.size()));
  // Rows of times are the largest part of a rank: the next one fills those of the one before.
  for (std::size_t i = 0; i < std::min(laid_out.ranks.size(), workspace.ranks.size()); ++i) {
    laid_out.ranks[i].time.swap(workspace.ranks[i].time);
    laid_out.ranks[i].transfer.swap(workspace.ranks[i].transfer);
    laid_out.ranks[i].arrival.swap(workspace.ranks[i].arrival);
  }
  laid_out.ranks.swap(workspace.ranks);
  for (detail::ListRank& rank : workspace.ranks) detail::fill_times(rank, plan, times);
  detail::ListRun run(plan, workspace.ranks, parts, options, workspace.state, schedule);
  if (order_times == nullptr) return run.run();
  detail::ListTimes order(plan, workspace.ranks, workspace.state, workspace.times);
  run.tell(order);
  const Nanos end = run.run();
  order.close(*order_times);
  return end;
}

/// Schedules one part of a plan and writes the orders of its devices into `schedule`, which has an
/// entry for each device of the plan (`empty_schedule`), or none: then only the end is found. Parts
/// may be scheduled by different threads, each with a workspace of its own. Throws as
/// `list_schedule` does.
template <UnitTimes Times>
[[nodiscard]] ListOutcome list_schedule_part(const Plan& plan, const ScheduleParts& parts,
                                             std::size_t part, const Times& times,
                                             const MemoryModel& memory, const ListOptions& options,
                                             ListWorkspace& workspace,
                                             std::vector<DeviceSchedule>& schedule) {
  ListPart laid_out{std::move(workspace.ranks), {}};
  workspace.ranks.clear();
  lay_out_part(plan, parts, part, memory, options, laid_out);
  if (laid_out.lacks) {
    workspace.ranks.swap(laid_out.ranks);
    return {{}, std::move(laid_out.lacks)};
  }
  return {list_laid_out_part(plan, parts, laid_out, times, options, workspace, schedule), {}};
}

/// The orders of all devices of a plan that is complete but for its schedule, or the memory that it
/// lacks. All ranks run in simulated time, with transfers, posted receives, messages in flight and
/// collectives. What a device begins is appended to its order. So the order has been executed once
/// and cannot deadlock. Packs run in the order of `ScheduleParts`; with several chunks, blocks of
/// packs pass chunk after chunk.
///
/// A free device runs B if it can, but F first while the next stage has no F to run. F runs only
/// where memory then suffices for every B until the next F is needed, whatever the times are. H
/// runs behind F on the last stage, once it is F's turn again or nothing else can run, or at once
/// (`ListOptions`). Where the head is sharded, the stages of a rank run the H of
/// several packs in one collective (`ListOptions`). R follows the last B or W of its chunk. W runs
/// where a device would otherwise wait about as long, behind the last B, and before all else where
/// what B leaves to it exceeds what fills the drain or what there is memory for.
///
///     auto result = list_schedule(plan, PricedPlan(plan), MemoryModel(plan));
///     if (const auto* lacking = std::get_if<Infeasible>(&result)) return *lacking;
///     plan.schedule = std::get<std::vector<DeviceSchedule>>(std::move(result));
///
/// Infeasible, with the device that lacks most, if the order that runs each F as late as it can
/// exceeds capacity - reserved. A channel's `max_in_flight` send buffers count in full. Equal times
/// go to the later stage, then to B. Throws InvalidInput if the plan breaks rule 1, no order obeys
/// rule 4, or an option is out of range. About O(slices + units log devices).
template <UnitTimes Times>
[[nodiscard]] std::variant<std::vector<DeviceSchedule>, Infeasible> list_schedule(
    const Plan& skeleton, const Times& times, const MemoryModel& memory, const ListOptions& options,
    ListWorkspace& workspace) {
  detail::check_options(options);
  const ScheduleParts parts(skeleton);
  std::vector<DeviceSchedule> schedule = empty_schedule(skeleton);
  std::optional<Infeasible> worst;
  workspace.end = Nanos{};
  for (std::size_t part = 0; part < parts.size(); ++part) {
    ListOutcome outcome =
        list_schedule_part(skeleton, parts, part, times, memory, options, workspace, schedule);
    workspace.end = std::max(workspace.end, outcome.end);
    if (outcome.infeasible && (!worst || worst->needed < outcome.infeasible->needed)) {
      worst = std::move(outcome.infeasible);
    }
  }
  if (worst) return *std::move(worst);
  return schedule;
}
/// The same with a workspace of its own.
template <UnitTimes Times>
[[nodiscard]] std::variant<std::vector<DeviceSchedule>, Infeasible> list_schedule(
    const Plan& skeleton, const Times& times, const MemoryModel& memory,
    const ListOptions& options = {}) {
  ListWorkspace workspace;
  return list_schedule(skeleton, times, memory, options, workspace);
}

}  // namespace slimpack::schedule
