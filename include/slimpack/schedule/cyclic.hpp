// SPDX-License-Identifier: Apache-2.0
// The cyclic order: in each cycle a stage runs one backward and one forward unit, as memory allows.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/schedule/order.hpp"

namespace slimpack::schedule {

/// Laws: pure; whether stage `stage` has room for the forward unit of item `next` while items
/// `oldest` .. next - 1 wait there for their backward units. It is asked only while there are some:
/// an item always has room for itself.
template <class Room>
concept StageRoom = std::predicate<const Room&, std::int32_t, std::int32_t, std::int32_t>;

/// Room without end.
inline constexpr auto kAmpleRoom = [](std::int32_t, std::int32_t, std::int32_t) noexcept {
  return true;
};

/// F and B of `items` micro-batches on a pipeline of one chunk (DynaPipe, arXiv 2311.10418: the
/// memory-aware cyclic schedule). In every cycle each stage runs the oldest backward unit and the
/// oldest forward unit whose inputs were there when the cycle began, backward first; forward only
/// if `room` lets it, and while fewer than `window` units wait at the next stage. With ample room
/// stage r has up to 2(p-1-r) + 1 items in flight, about twice those of one_f_one_b: units may be
/// unequal without a neighbour waiting. Free of deadlock with this window and any wider one. Throws
/// InvalidInput if a size is < 1 or items < 0. O(stages * (items + stages) / room).
template <StageRoom Room>
[[nodiscard]] StageOrders cyclic_order(std::int32_t stages, std::int32_t items, const Room& room,
                                       std::int32_t max_in_flight = 2) {
  check_pipeline({stages, 1});
  require(items >= 0, "cyclic_order: items must be >= 0", items);
  require(max_in_flight >= 1, "cyclic_order: window must be >= 1", max_in_flight);
  const auto count = static_cast<std::size_t>(stages);
  std::vector<std::int32_t> forward(count), backward(count);  // units run
  StageOrders orders(count);
  for (auto& order : orders) order.reserve(2 * static_cast<std::size_t>(items));
  while (backward.front() < items) {
    const std::vector<std::int32_t> forward_before = forward, backward_before = backward;
    for (std::size_t stage = 0; stage < count; ++stage) {
      const bool last = stage + 1 == count;
      const std::int32_t gradients = last ? forward_before[stage] : backward_before[stage + 1];
      if (backward[stage] < gradients) {
        orders[stage].push_back({UnitKind::backward, backward[stage]++, 0});
      }
      const std::int32_t inputs = stage == 0 ? items : forward_before[stage - 1];
      const std::int32_t next = forward[stage];
      if (next >= inputs || (!last && next - forward_before[stage + 1] >= max_in_flight)) continue;
      if (backward[stage] < next && !room(static_cast<std::int32_t>(stage), backward[stage], next))
        continue;
      orders[stage].push_back({UnitKind::forward, forward[stage]++, 0});
    }
    SLIMPACK_ASSERT(forward != forward_before || backward != backward_before);
  }
  return orders;
}

}  // namespace slimpack::schedule
