// SPDX-License-Identifier: Apache-2.0
// Completes pipeline orders of F and B with H, R and O.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/schedule/execution.hpp"
#include "slimpack/schedule/pipeline.hpp"

namespace slimpack::schedule {

namespace detail {

inline bool ends_forward(const PipelineOp& step, const Pipeline& pipeline) noexcept {
  return step.kind == UnitKind::forward && step.chunk == pipeline.chunks - 1;
}

/// H of every item on the last stage once `batch` of them wait, or before the first B of one that
/// waits, and on the other stages before the first unit that begins no earlier. Sorted by their
/// begin, the units of all stages then keep every dependency, so there is no deadlock.
inline StageOrders with_sharded_heads(const Pipeline& pipeline, const StageOrders& orders,
                                      std::int32_t max_in_flight, std::int32_t batch) {
  const StepTimes times;
  const auto begin = execute_abstractly(pipeline, orders, max_in_flight, times);
  std::vector<std::pair<std::int64_t, PipelineOp>> heads;
  std::vector<std::int32_t> waiting;
  std::int64_t ended = 0;  // when the last stage has run what came before
  const auto run_waiting = [&] {
    for (const std::int32_t item : waiting) heads.push_back({ended, {UnitKind::head, item, 0}});
    waiting.clear();
  };
  for (std::size_t i = 0; i < orders.back().size(); ++i) {
    const PipelineOp& step = orders.back()[i];
    const bool back = step.kind == UnitKind::backward;
    if (back && std::find(waiting.begin(), waiting.end(), step.item) != waiting.end()) {
      run_waiting();
    }
    ended = begin.back()[i] + (back ? times.backward : times.forward);
    if (ends_forward(step, pipeline)) waiting.push_back(step.item);
    if (static_cast<std::int32_t>(waiting.size()) >= batch) run_waiting();
  }
  run_waiting();
  StageOrders completed(orders.size());
  for (std::size_t stage = 0; stage < orders.size(); ++stage) {
    std::size_t next = 0;
    for (std::size_t i = 0; i < orders[stage].size(); ++i) {
      for (; next < heads.size() && heads[next].first <= begin[stage][i]; ++next) {
        completed[stage].push_back(heads[next].second);
      }
      completed[stage].push_back(orders[stage][i]);
    }
    for (; next < heads.size(); ++next) completed[stage].push_back(heads[next].second);
  }
  return completed;
}

}  // namespace detail

/// Adds H: on the last stage right behind each item's last F. Where the head is sharded, H is added
/// on every stage, where it falls in time when every F takes one unit of time and every B two;
/// those of up to `batch` items run back to back where no B of the last stage needs one sooner.
/// Orders that are free of deadlock stay so, with this `max_in_flight` and any larger one. Throws
/// Deadlock if they are not free of it, InvalidInput if a size is < 1. O(units (log stages +
/// batch)).
[[nodiscard]] inline StageOrders with_heads(const Pipeline& pipeline, const StageOrders& orders,
                                            LmHead head, std::int32_t max_in_flight = 2,
                                            std::int32_t batch = 1) {
  check_pipeline(pipeline);
  require(batch >= 1, "with_heads: batch must be >= 1", batch);
  if (head == LmHead::shard) {
    return detail::with_sharded_heads(pipeline, orders, max_in_flight, batch);
  }
  StageOrders result = orders;
  result.back().clear();
  for (const PipelineOp& step : orders.back()) {
    result.back().push_back(step);
    if (detail::ends_forward(step, pipeline)) {
      result.back().push_back({UnitKind::head, step.item, 0});
    }
  }
  return result;
}

/// The same units with `ahead` more F of its stage before each B, as far as there are any.
/// O(units).
[[nodiscard]] inline StageOrders run_ahead(const StageOrders& orders, std::size_t ahead) {
  if (ahead == 0) return orders;
  StageOrders result;
  for (const auto& order : orders) {
    std::vector<PipelineOp> forward;
    for (const PipelineOp& step : order) {
      if (step.kind == UnitKind::forward) forward.push_back(step);
    }
    auto& moved = result.emplace_back();
    std::size_t before = 0, placed = 0;  // F of the given order so far, and of the new one
    for (const PipelineOp& step : order) {
      if (step.kind == UnitKind::forward) {
        ++before;
        continue;
      }
      for (; placed < std::min(before + ahead, forward.size()); ++placed) {
        moved.push_back(forward[placed]);
      }
      moved.push_back(step);
    }
    moved.insert(moved.end(), forward.begin() + static_cast<std::ptrdiff_t>(placed), forward.end());
  }
  return result;
}

/// Adds R of a chunk right behind its last B on each stage, R of chunks without a B (from the last
/// chunk to the first) and O at the end. Throws InvalidInput if a size is < 1. O(units).
[[nodiscard]] inline StageOrders with_updates(const Pipeline& pipeline, const StageOrders& orders) {
  check_pipeline(pipeline);
  StageOrders result;
  for (const auto& order : orders) {
    std::vector<std::size_t> left(static_cast<std::size_t>(pipeline.chunks));
    for (const PipelineOp& step : order) {
      if (step.kind == UnitKind::backward) ++left[static_cast<std::size_t>(step.chunk)];
    }
    std::vector<PipelineOp> finished;
    finished.reserve(order.size() + left.size() + 1);
    const std::vector<std::size_t> count = left;
    for (const PipelineOp& step : order) {
      finished.push_back(step);
      if (step.kind == UnitKind::backward && --left[static_cast<std::size_t>(step.chunk)] == 0) {
        finished.push_back({UnitKind::reduce, 0, step.chunk});
      }
    }
    for (std::int32_t chunk = pipeline.chunks - 1; chunk >= 0; --chunk) {
      if (count[static_cast<std::size_t>(chunk)] == 0) {
        finished.push_back({UnitKind::reduce, 0, chunk});
      }
    }
    finished.push_back({UnitKind::optimizer, 0, 0});
    result.push_back(std::move(finished));
  }
  return result;
}

/// Names the packs: item i is forward pack `forward[i]` and backward pack `backward[i]`. Throws
/// InvalidInput if an item has no pack. O(units).
[[nodiscard]] inline std::vector<Unit> name_units(std::span<const PipelineOp> order,
                                                  std::span<const PackId> forward,
                                                  std::span<const PackId> backward) {
  std::vector<Unit> units;
  units.reserve(order.size());
  for (const PipelineOp& step : order) {
    Unit unit{step.kind, PackId{}, step.chunk};
    if (step.kind == UnitKind::forward || step.kind == UnitKind::backward ||
        step.kind == UnitKind::head) {
      const auto packs = step.kind == UnitKind::backward ? backward : forward;
      require(step.item >= 0 && static_cast<std::size_t>(step.item) < packs.size(),
              "name_units: an item must have a pack", step.item);
      unit.pack = packs[static_cast<std::size_t>(step.item)];
    }
    units.push_back(unit);
  }
  return units;
}

}  // namespace slimpack::schedule
