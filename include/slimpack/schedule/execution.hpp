// SPDX-License-Identifier: Apache-2.0
// Runs pipeline orders in abstract time: are they free of deadlock, and when does what begin?
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/plan/virtual_stages.hpp"
#include "slimpack/schedule/order.hpp"

namespace slimpack::schedule {

/// Durations of the abstract execution; every other kind of step takes no time.
struct StepTimes {
  std::int64_t forward = 1;
  std::int64_t backward = 2;
};

namespace detail {

/// The channels of a pipeline: activations and gradients from each stage to its neighbour.
struct AbstractChannel {
  std::vector<std::int64_t> queued;    ///< end of the unit that sends message i
  std::vector<PipelineOp> sender;      ///< that unit
  std::vector<std::int64_t> received;  ///< end of transfer i, as far as it is known
  std::vector<std::int64_t> consumed;  ///< end of the unit that consumes message i
};

class AbstractExecution {
 public:
  AbstractExecution(const Pipeline& pipeline, const StageOrders& orders, std::int32_t max_in_flight,
                    const StepTimes& times)
      : virtual_stages_{pipeline.stages, pipeline.chunks},
        orders_(orders),
        max_in_flight_(static_cast<std::size_t>(max_in_flight)),
        times_(times),
        begin_(orders.size()),
        free_(orders.size()),
        channels_(2 * orders.size()) {
    std::int32_t items = 0;
    for (const auto& order : orders) {
      for (const PipelineOp& step : order) items = std::max(items, step.item + 1);
    }
    items_ = static_cast<std::size_t>(items);
    ended_.resize(2 * static_cast<std::size_t>(virtual_stages_.size()) * items_);
  }

  std::vector<std::vector<std::int64_t>> run() {
    bool moved = true;
    while (moved) {
      moved = false;
      for (std::size_t stage = 0; stage < orders_.size(); ++stage) {
        while (begin_[stage].size() < orders_[stage].size() && advance(stage)) moved = true;
      }
    }
    std::string blocked;
    for (std::size_t stage = 0; stage < orders_.size(); ++stage) {
      if (begin_[stage].size() == orders_[stage].size()) continue;
      const PipelineOp& step = orders_[stage][begin_[stage].size()];
      blocked += (blocked.empty() ? "stage " : "; stage ") + std::to_string(stage) + " at " +
                 (step.kind == UnitKind::backward ? "B " : "F ") + std::to_string(step.item) +
                 " of chunk " + std::to_string(step.chunk);
    }
    if (!blocked.empty()) throw Deadlock("these units wait for each other: " + blocked);
    return std::move(begin_);
  }

 private:
  [[nodiscard]] bool channelled() const noexcept { return virtual_stages_.pp > 1; }

  std::optional<std::int64_t>& ended(UnitKind kind, std::int32_t line, std::int32_t item) {
    const std::size_t pass = kind == UnitKind::backward ? 1 : 0;
    return ended_[(pass * static_cast<std::size_t>(virtual_stages_.size()) +
                   static_cast<std::size_t>(line)) *
                      items_ +
                  static_cast<std::size_t>(item)];
  }

  AbstractChannel& channel(UnitKind kind, std::size_t sender) {
    return channels_[2 * sender + (kind == UnitKind::backward ? 1 : 0)];
  }

  /// The end of transfer i; absent as long as its send is not queued or its receive not posted.
  static std::optional<std::int64_t> transfer(AbstractChannel& link, std::size_t message,
                                              std::size_t max_in_flight) {
    while (link.received.size() <= message) {
      const std::size_t next = link.received.size();
      if (next >= link.queued.size()) return std::nullopt;
      if (next >= max_in_flight && next - max_in_flight >= link.consumed.size())
        return std::nullopt;
      std::int64_t end = link.queued[next];
      if (next >= max_in_flight) end = std::max(end, link.consumed[next - max_in_flight]);
      if (next > 0) end = std::max(end, link.received[next - 1]);
      link.received.push_back(end);
    }
    return link.received[message];
  }

  bool advance(std::size_t stage) {
    const PipelineOp step = orders_[stage][begin_[stage].size()];
    std::int64_t start = free_[stage];
    if (step.kind != UnitKind::forward && step.kind != UnitKind::backward) {
      begin_[stage].push_back(start);
      return true;
    }
    const bool is_forward = step.kind == UnitKind::forward;
    const std::int32_t line = virtual_stages_.index(static_cast<std::int32_t>(stage), step.chunk);
    const std::int32_t last = virtual_stages_.size() - 1;
    if (!is_forward && line == last) {
      const auto done = ended(UnitKind::forward, line, step.item);
      if (!done) return false;
      start = std::max(start, *done);
    }
    const bool receives = is_forward ? line > 0 : line < last;
    AbstractChannel* from = nullptr;
    if (receives) {
      const std::int32_t source = is_forward ? line - 1 : line + 1;
      if (channelled()) {
        from = &channel(step.kind, static_cast<std::size_t>(virtual_stages_.stage(source)));
        const auto arrived = transfer(*from, from->consumed.size(), max_in_flight_);
        if (!arrived) return false;
        const PipelineOp expected{step.kind, step.item, virtual_stages_.chunk(source)};
        if (from->sender[from->consumed.size()] != expected) {
          throw Deadlock("stage " + std::to_string(stage) + " consumes item " +
                         std::to_string(step.item) + " of chunk " + std::to_string(step.chunk) +
                         " in another order than it is sent");
        }
        start = std::max(start, *arrived);
      } else {
        const auto done = ended(step.kind, source, step.item);
        if (!done) return false;
        start = std::max(start, *done);
      }
    }
    const bool sends = channelled() && (is_forward ? line < last : line > 0);
    AbstractChannel* into = sends ? &channel(step.kind, stage) : nullptr;
    if (into != nullptr && into->queued.size() >= max_in_flight_) {
      const auto left = transfer(*into, into->queued.size() - max_in_flight_, max_in_flight_);
      if (!left) return false;
      start = std::max(start, *left);
    }
    const std::int64_t end = start + (is_forward ? times_.forward : times_.backward);
    begin_[stage].push_back(start);
    free_[stage] = end;
    ended(step.kind, line, step.item) = end;
    if (from != nullptr) from->consumed.push_back(end);
    if (into != nullptr) {
      into->queued.push_back(end);
      into->sender.push_back(step);
    }
    return true;
  }

  VirtualStages virtual_stages_;
  const StageOrders& orders_;
  std::size_t max_in_flight_;
  StepTimes times_;
  std::size_t items_ = 0;
  std::vector<std::vector<std::int64_t>> begin_;
  std::vector<std::int64_t> free_;
  std::vector<AbstractChannel> channels_;
  std::vector<std::optional<std::int64_t>> ended_;
};

}  // namespace detail

/// When each step begins if F and B take `times`, transfers take no time, and channels are
/// rendezvous with `window` unfinished sends and posted receives. H, R and O take no time and wait
/// for nothing. Throws Deadlock, naming each blocked stage, if the orders never end or a channel is
/// consumed in another order than it is sent; InvalidInput if a size is < 1 or there is not one
/// order a stage. O(steps * stages) at worst.
[[nodiscard]] inline std::vector<std::vector<std::int64_t>> execute_abstractly(
    const Pipeline& pipeline, const StageOrders& orders, std::int32_t max_in_flight,
    const StepTimes& times = {}) {
  check_pipeline(pipeline);
  require(max_in_flight >= 1, "execute_abstractly: window must be >= 1", max_in_flight);
  require(orders.size() == static_cast<std::size_t>(pipeline.stages),
          "execute_abstractly: there must be one order a stage",
          static_cast<std::int64_t>(orders.size()));
  return detail::AbstractExecution(pipeline, orders, max_in_flight, times).run();
}

}  // namespace slimpack::schedule
