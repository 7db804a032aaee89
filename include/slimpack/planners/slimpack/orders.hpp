// SPDX-License-Identifier: Apache-2.0
// The order of each device: by list scheduling under the memory limit, or in lockstep.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/parallel_for.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/cost/memory_model.hpp"
#include "slimpack/cost/price.hpp"
#include "slimpack/planners/planner.hpp"
#include "slimpack/planners/slimpack/assignment.hpp"
#include "slimpack/planners/slimpack/lockstep.hpp"
#include "slimpack/planners/slimpack/settings.hpp"
#include "slimpack/planners/slimpack/step_end.hpp"
#include "slimpack/schedule/list_schedule.hpp"
#include "slimpack/schedule/order_times.hpp"
#include "slimpack/schedule/schedule_parts.hpp"

namespace slimpack::planners {

/// What came of ordering the devices of a plan.
struct OrderOutcome {
  Nanos end;       ///< when the last unit but R and O ends, where that was asked for
  Nanos step_end;  ///< the same of the last O
  std::optional<Infeasible> infeasible;  ///< what the orders lack; absent: nothing
};

/// Orders the devices of candidates. Thread-safe.
class DeviceOrders {
 public:
  /// For plans that `runtime` executes.
  explicit DeviceOrders(Runtime runtime) noexcept : runtime_(runtime) {}

  /// Gives a plan of packs its schedule, or, if `timed`, only finds when it would end. Settings are
  /// one for all rank components, or one each. `order_times`, if given, gets the times of the
  /// schedule, which are exact only where all of it comes from list scheduling.
  [[nodiscard]] OrderOutcome add(Plan& plan, const RankAssignment& assigned,
                                 std::span<const SlimpackSettings> settings,
                                 const PricedPlan& times, const MemoryModel& memory, bool timed,
                                 schedule::OrderTimes* order_times = nullptr) const {
    const schedule::ScheduleParts parts(plan);
    if (!timed) plan.schedule = schedule::empty_schedule(plan);
    std::unique_ptr<schedule::ListWorkspace> workspace = take();
    const auto settings_of = [&](std::size_t part) -> const SlimpackSettings& {
      const auto rank = static_cast<std::size_t>(parts.ranks(part).front());
      return settings[settings.size() == 1 ? 0 : assigned.component_of[rank]];
    };
    // No part is scheduled where another one lacks memory: first all are laid out. A candidate has
    // one part that is not empty.
    std::vector<schedule::ListPart> laid_out(timed ? 0 : parts.size());
    OrderOutcome all;
    for (std::size_t part = 0; part < parts.size(); ++part) {
      // A part without packs neither ends later than others nor lacks more.
      if (timed && parts.packs(part, Pass::forward).empty() && !plan.micropacks.empty()) continue;
      const SlimpackSettings& own = settings_of(part);
      OrderOutcome one;
      if (own.rule == OrderRule::lockstep) {
        one = lockstep(plan, parts, part, own, times, memory, timed);
        if (order_times != nullptr) order_times->exact = false;
      } else if (timed) {
        schedule::ListOutcome listed = schedule::list_schedule_part(
            plan, parts, part, times, memory, list_options(own, plan.parallel.pp), *workspace,
            plan.schedule);
        one = {listed.end, {}, std::move(listed.infeasible)};
        if (!one.infeasible) one.step_end = step_end(plan, times, workspace->state.last);
      } else {
        schedule::lay_out_part(plan, parts, part, memory, list_options(own, plan.parallel.pp),
                               laid_out[part]);
        one.infeasible = std::move(laid_out[part].lacks);
      }
      all.end = std::max(all.end, one.end);
      all.step_end = std::max(all.step_end, one.step_end);
      if (one.infeasible && (!all.infeasible || all.infeasible->needed < one.infeasible->needed)) {
        all.infeasible = std::move(one.infeasible);
      }
    }
    for (std::size_t part = 0; part < laid_out.size() && !all.infeasible; ++part) {
      const SlimpackSettings& own = settings_of(part);
      if (own.rule == OrderRule::lockstep) continue;
      all.end =
          std::max(all.end, schedule::list_laid_out_part(plan, parts, laid_out[part], times,
                                                         list_options(own, plan.parallel.pp),
                                                         *workspace, plan.schedule, order_times));
      laid_out[part].ranks.clear();
    }
    give_back(std::move(workspace));
    return all;
  }

 private:
  [[nodiscard]] schedule::ListOptions list_options(const SlimpackSettings& settings,
                                                   std::int32_t stages) const {
    schedule::ListOptions options;
    options.head_batch = settings.head_batch;
    options.forward_queue = settings.forward_queue;
    options.head_at_once = runtime_ == Runtime::torch;
    if (settings.short_blocks) options.chunk_block = stages;
    options.sample_blocks = settings.sample_blocks;
    options.even_blocks = settings.even_blocks;
    options.backward_first = settings.backward_first;
    return options;
  }
  [[nodiscard]] static OrderOutcome lockstep(Plan& plan, const schedule::ScheduleParts& parts,
                                             std::size_t part, const SlimpackSettings& settings,
                                             const PricedPlan& times, const MemoryModel& memory,
                                             bool timed) {
    const bool shard = settings.head.head == LmHead::shard;
    Lockstep lockstep(plan, parts, part, memory, shard ? settings.head_batch : 1);
    if (lockstep.lacks() > 0) {
      const Bytes available = plan.memory.capacity - plan.memory.reserved;
      return {{},
              {},
              Infeasible{"bytes of memory on data-parallel rank " +
                             std::to_string(lockstep.lacking_rank()),
                         available.value + lockstep.lacks(), available.value}};
    }
    if (!lockstep.run())
      return {{}, {}, Infeasible{"slots of context-parallel packs that fit together", 1, 0}};
    if (!timed) {
      lockstep.write(plan.schedule);
      return {};
    }
    const std::vector<schedule::LastGradients> last = lockstep.last_gradients(times);
    Nanos end;
    for (const schedule::LastGradients& stage : last) end = std::max(end, stage.end);
    return {end, step_end(plan, times, last), std::nullopt};
  }

  /// Workspaces are used by one candidate after the other, as many as there are threads.
  [[nodiscard]] std::unique_ptr<schedule::ListWorkspace> take() const {
    const Lock lock(mutex_);
    if (free_.empty()) return std::make_unique<schedule::ListWorkspace>();
    std::unique_ptr<schedule::ListWorkspace> taken = std::move(free_.back());
    free_.pop_back();
    return taken;
  }
  void give_back(std::unique_ptr<schedule::ListWorkspace> workspace) const {
    const Lock lock(mutex_);
    free_.push_back(std::move(workspace));
  }

  Runtime runtime_;
  mutable Mutex mutex_;
  mutable std::vector<std::unique_ptr<schedule::ListWorkspace>> free_;
};

}  // namespace slimpack::planners
