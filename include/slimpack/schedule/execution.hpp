// SPDX-License-Identifier: Apache-2.0
// Runs pipeline orders in abstract time: whether they are free of deadlock, and when units begin.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/plan/virtual_stages.hpp"
#include "slimpack/schedule/event_loop.hpp"
#include "slimpack/schedule/pipeline.hpp"

namespace slimpack::schedule {

/// Durations of units in `execute_abstractly`, in any unit of time, >= 0. H, R and O take no time.
struct StepTimes {
  std::int64_t forward = 1;   ///< of every F
  std::int64_t backward = 2;  ///< of every B
};

namespace detail {

/// A channel of a pipeline: activations or gradients that one stage sends to its neighbour.
struct AbstractChannel {
  std::vector<PipelineOp> senders;  ///< the units that have sent a message, in order
  std::size_t consumed = 0;         ///< messages whose consumer has ended
  /// Messages that have arrived: their unit has ended and their receive is posted.
  [[nodiscard]] std::size_t arrived(std::size_t max_in_flight) const noexcept {
    return std::min(senders.size(), consumed + max_in_flight);
  }
};

/// The policy of fixed orders: a stage begins its next unit as soon as its input has arrived, and
/// the message `max_in_flight` before the one that it sends.
class AbstractExecution {
 public:
  AbstractExecution(const Pipeline& pipeline, const StageOrders& orders, std::int32_t max_in_flight,
                    const StepTimes& times)
      : virtual_stages_{pipeline.stages, pipeline.chunks},
        orders_(orders),
        max_in_flight_(static_cast<std::size_t>(max_in_flight)),
        times_(times),
        begin_(orders.size()),
        busy_(orders.size(), 0),
        channels_(2 * orders.size()) {
    std::int32_t items = 0;
    for (const auto& order : orders) {
      for (const PipelineOp& op : order) items = std::max(items, op.item + 1);
    }
    items_ = static_cast<std::size_t>(items);
    ended_.resize(2 * static_cast<std::size_t>(virtual_stages_.size()) * items_, 0);
  }

  std::vector<std::vector<std::int64_t>> run() {
    loop_.reset(orders_.size());
    loop_.run(*this);
    std::string blocked;
    for (std::size_t stage = 0; stage < orders_.size(); ++stage) {
      if (begin_[stage].size() == orders_[stage].size()) continue;
      const PipelineOp& op = orders_[stage][begin_[stage].size()];
      blocked += (blocked.empty() ? "stage " : "; stage ") + std::to_string(stage) + " at " +
                 (op.kind == UnitKind::backward ? "B " : "F ") + std::to_string(op.item) +
                 " of chunk " + std::to_string(op.chunk);
    }
    if (!blocked.empty()) throw Deadlock("these units wait for each other: " + blocked);
    return std::move(begin_);
  }

  // --- for the event loop ---

  [[nodiscard]] bool busy(std::uint32_t stage) const noexcept { return busy_[stage] != 0; }
  [[nodiscard]] static bool settle() noexcept { return false; }
  [[nodiscard]] static bool unblock() noexcept { return false; }

  void finish(std::uint32_t stage) {
    const PipelineOp& op = orders_[stage][begin_[stage].size() - 1];
    const std::int32_t place = place_of(stage, op);
    busy_[stage] = 0;
    ended(op.kind, place, op.item) = 1;
    if (AbstractChannel* from = receives(op, place)) {
      ++from->consumed;
      loop_.ask(static_cast<std::uint32_t>(virtual_stages_.stage(source(op, place))));
    }
    if (AbstractChannel* into = sends(op, place)) {
      into->senders.push_back(op);
      loop_.ask(static_cast<std::uint32_t>(virtual_stages_.stage(target(op, place))));
    }
  }

  void decide(std::uint32_t stage) {
    const std::vector<PipelineOp>& order = orders_[stage];
    std::vector<std::int64_t>& begin = begin_[stage];
    while (begin.size() < order.size() && !takes_time(order[begin.size()])) {
      begin.push_back(loop_.now());
    }
    if (begin.size() == order.size() || !may_begin(stage, order[begin.size()])) return;
    const bool is_forward = order[begin.size()].kind == UnitKind::forward;
    begin.push_back(loop_.now());
    busy_[stage] = 1;
    loop_.set(stage, loop_.now() + (is_forward ? times_.forward : times_.backward));
  }

 private:
  static bool takes_time(const PipelineOp& op) noexcept {
    return op.kind == UnitKind::forward || op.kind == UnitKind::backward;
  }
  [[nodiscard]] std::int32_t place_of(std::uint32_t stage, const PipelineOp& op) const noexcept {
    return virtual_stages_.index(static_cast<std::int32_t>(stage), op.chunk);
  }
  /// The virtual stages that a unit receives from and sends to; out of range where there is none.
  static std::int32_t source(const PipelineOp& op, std::int32_t place) noexcept {
    return op.kind == UnitKind::forward ? place - 1 : place + 1;
  }
  static std::int32_t target(const PipelineOp& op, std::int32_t place) noexcept {
    return op.kind == UnitKind::forward ? place + 1 : place - 1;
  }
  [[nodiscard]] bool exists(std::int32_t place) const noexcept {
    return place >= 0 && place < virtual_stages_.size();
  }

  /// Whether F or B of an item has ended on a virtual stage.
  std::uint8_t& ended(UnitKind kind, std::int32_t place, std::int32_t item) {
    const std::size_t pass = kind == UnitKind::backward ? 1 : 0;
    return ended_[(pass * static_cast<std::size_t>(virtual_stages_.size()) +
                   static_cast<std::size_t>(place)) *
                      items_ +
                  static_cast<std::size_t>(item)];
  }

  /// The channel that leaves a stage for one pass; null where stages hand over in place.
  AbstractChannel* channel(UnitKind kind, std::int32_t sender) {
    if (virtual_stages_.pp == 1 || !exists(sender)) return nullptr;
    const auto stage = static_cast<std::size_t>(virtual_stages_.stage(sender));
    return &channels_[2 * stage + (kind == UnitKind::backward ? 1 : 0)];
  }
  AbstractChannel* receives(const PipelineOp& op, std::int32_t place) {
    return channel(op.kind, source(op, place));
  }
  AbstractChannel* sends(const PipelineOp& op, std::int32_t place) {
    return exists(target(op, place)) ? channel(op.kind, place) : nullptr;
  }

  bool may_begin(std::uint32_t stage, const PipelineOp& op) {
    const std::int32_t place = place_of(stage, op);
    const std::int32_t from = source(op, place);
    if (op.kind == UnitKind::backward && !exists(from) &&
        ended(UnitKind::forward, place, op.item) == 0) {
      return false;
    }
    if (AbstractChannel* link = receives(op, place)) {
      if (link->arrived(max_in_flight_) <= link->consumed) return false;
      require_next(stage, op, link->senders[link->consumed],
                   {op.kind, op.item, virtual_stages_.chunk(from)});
    } else if (exists(from) && ended(op.kind, from, op.item) == 0) {
      return false;
    }
    AbstractChannel* into = sends(op, place);
    return into == nullptr || into->senders.size() < into->arrived(max_in_flight_) + max_in_flight_;
  }

  static void require_next(std::uint32_t stage, const PipelineOp& op, const PipelineOp& sent,
                           const PipelineOp& expected) {
    if (sent == expected) return;
    throw Deadlock("stage " + std::to_string(stage) + " consumes item " + std::to_string(op.item) +
                   " of chunk " + std::to_string(op.chunk) + " in another order than it is sent");
  }

  VirtualStages virtual_stages_;
  const StageOrders& orders_;
  std::size_t max_in_flight_;
  StepTimes times_;
  std::size_t items_ = 0;
  EventLoop loop_;
  std::vector<std::vector<std::int64_t>> begin_;  // by stage and place in its order
  std::vector<std::uint8_t> busy_;                // by stage
  std::vector<AbstractChannel> channels_;
  std::vector<std::uint8_t> ended_;
};

}  // namespace detail

/// When each unit begins, by stage and place in its order. F and B take `times`, transfers take no
/// time; a channel has at most `max_in_flight` unfinished sends and as many posted receives. H, R
/// and O take no time and wait for nothing. Throws Deadlock, naming each blocked stage, if the
/// orders never end, or naming the unit if a channel is consumed in another order than it is sent.
/// Throws InvalidInput if a size is < 1 or there is not one order a stage. O(units log stages).
[[nodiscard]] inline std::vector<std::vector<std::int64_t>> execute_abstractly(
    const Pipeline& pipeline, const StageOrders& orders, std::int32_t max_in_flight,
    const StepTimes& times = {}) {
  check_pipeline(pipeline);
  require(max_in_flight >= 1, "execute_abstractly: max_in_flight must be >= 1", max_in_flight);
  require(orders.size() == static_cast<std::size_t>(pipeline.stages),
          "execute_abstractly: there must be one order a stage",
          static_cast<std::int64_t>(orders.size()));
  return detail::AbstractExecution(pipeline, orders, max_in_flight, times).run();
}

}  // namespace slimpack::schedule
