// SPDX-License-Identifier: Apache-2.0
// When units begin by the orders that list scheduling writes, and what devices then hold.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/cost/memory_model.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/schedule/detail/list_rank.hpp"
#include "slimpack/schedule/detail/list_state.hpp"
#include "slimpack/schedule/device_memory.hpp"
#include "slimpack/schedule/order_times.hpp"

namespace slimpack::schedule::detail {

/// The times of the orders of a part while a list run finds them. A list run may keep a device
/// waiting for what suits it better; the orders do not: a unit begins as soon as the one before has
/// ended and what it awaits is there. The run begins everything in an order in which it can run. So
/// each unit and each message gets its time by the orders when the run begins it. The times are
/// exact as long as messages that share a link go over it in the same turn.
class ListTimes : ListLine {
 public:
  /// `ranks` are laid out and have their times; `state` is that of the run.
  ListTimes(const Plan& plan, const std::vector<ListRank>& ranks, const ListState& state)
      : ListLine(plan),
        plan_(plan),
        ranks_(ranks),
        state_(state),
        chunks_(static_cast<std::size_t>(plan.parallel.chunks)) {
    for (std::int32_t pp = 0; pp < plan.parallel.pp; ++pp) {
      for (std::int32_t chunk = 0; chunk < plan.parallel.chunks; ++chunk) {
        layers_.push_back(chunk_layers(plan, pp, chunk));
      }
      head_row_.push_back(
          head_row_bytes(plan, pp, element_bytes_of(plan.model, plan.memory.gradient_bytes)));
    }
    std::size_t cells = 0;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      const ListRank& rank = ranks[i];
      const std::array<std::size_t, 2> first{cells, cells + rank.pass[0].size() * stages_};
      cells = first[1] + rank.pass[1].size() * stages_;
      for (std::uint32_t stage = 0; stage < stages_; ++stage) {
        Device& device = devices_.emplace_back(
            static_bytes(plan, static_cast<std::int32_t>(stage)).total() + posted(rank, stage));
        device.rank = static_cast<std::uint32_t>(i);
        device.stage = stage;
        for (std::size_t side = 0; side < 2; ++side) {
          device.own[side] = first[side] + row(rank.pass[side], stage);
          device.there[side] = first[side] + row(rank.pass[side], next(side, stage));
        }
        device.changes.reserve(2 *
                               (rank.pass[0].size() + rank.pass[1].size() + rank.weights.size()));
      }
    }
    cells_.resize(cells);
  }

  /// F or B of an item begins.
  void begin(std::uint32_t number, std::size_t side, std::uint32_t item) {
    Device& device = devices_[number];
    const ListRank& of = ranks_[device.rank];
    const RankPass& pass = of.pass[side];
    const ListRow& row = state_.rows[number][side];
    const std::int32_t chunk = pass.chunk[item];
    const std::int64_t layers = layers_of(device.stage, chunk), hidden = pass.message[item];
    const std::int64_t workspace = of.workspace[side][item];
    // A buffer that is sent goes by itself when the message arrives.
    std::int64_t taken = workspace, left = -workspace;
    if (row.posts != nullptr && row.posts[item] != kNoItem) left += pass.message[row.posts[item]];
    if (side == 0) {
      taken += layers * of.held[item] + hidden;
      if (device.stage != entry(side) || pass.enters[item] == 0) left -= hidden;
    } else {
      taken += layers * (of.opens[item] + of.made[item]);
      if (device.stage != exit(side) || pass.leaves[item] == 0) taken += hidden;
      left -= layers * (of.freed[item] + of.closes[item] + of.made[item] - of.left[item]) + hidden;
    }
    run(device, ready(number, side, item), row.time[item], taken, left);
    cells_[device.own[side] + item].ended = device.end;
    device.gradients = side == 0 ? -1 : chunk;
  }
  /// F or B of an item of a context-parallel group is the next unit that all these devices run.
  void meet(std::span<const std::uint32_t> devices, std::size_t side) {
    std::int64_t start = 0;
    for (const std::uint32_t device : devices) {
      start = std::max(start, ready(device, side, state_.devices[device].begun[side]));
    }
    for (const std::uint32_t device : devices) devices_[device].from = start;
  }
  /// W begins.
  void begin_weight(std::uint32_t number, std::uint32_t item) {
    Device& device = devices_[number];
    const RankWeights& weights = ranks_[device.rank].weights;
    const std::int64_t workspace = weights.workspace[item];
    const std::int64_t held = layers_of(device.stage, weights.chunk[item]) * weights.freed[item];
    run(device, device.end, weights.time[device.stage * weights.size() + item], workspace,
        -workspace - held);
    device.gradients = weights.chunk[item];
  }
  /// H of packs [first, end) begin on stages [stage, pp) of a rank together, one behind the other.
  void begin_heads(std::uint32_t rank, std::uint32_t stage, std::uint32_t first,
                   std::uint32_t end) {
    const ListRank& of = ranks_[rank];
    const std::span<Device> devices(&devices_[rank * stages_ + stage], stages_ - stage);
    std::int64_t start = 0;
    for (const Device& device : devices) start = std::max(start, device.end);
    for (Device& device : devices) {
      device.end = start;
      for (std::uint32_t pack = first; pack < end; ++pack) {
        const std::int64_t hidden = of.pass[0].message[of.head_item[pack]];
        const std::int64_t bytes =
            head_row_[device.stage] * of.head_rows[pack] + (device.stage == last_ ? hidden : 0);
        run(device, device.end, of.head_time[pack], bytes, -bytes);
      }
      device.gradients = -1;
    }
  }
  /// R of a chunk comes behind what a device has begun.
  void reduce(std::uint32_t number, std::int32_t chunk) {
    Device& device = devices_[number];
    device.reductions.push_back({chunk, device.start, device.end, device.gradients == chunk});
  }
  /// The message of an item goes over its sender's link, behind all others so far, or, if it
  /// `overtakes`, before the last of them.
  void transfer(std::uint32_t sender, std::size_t side, std::uint32_t item, bool overtakes) {
    Device& device = devices_[sender];
    const bool one_port = state_.devices[sender].one_port;
    Link& link = device.link[one_port ? 0 : side];
    const ListRow& row = state_.rows[sender][side];
    const std::int64_t made = cells_[device.own[side] + item].ended;
    Message message{made, made, item, side};
    if (row.awaits[item] != kNoItem) {
      message.possible =
          std::max(message.possible, cells_[device.there[side] + row.awaits[item]].ended);
    }
    if (row.transfer[item] == 0 && (one_port || ranks_.size() > 1)) doubt();
    if (!overtakes) {
      serve(sender, link, message);
      return;
    }
    const Message last = link.last;
    device.memory.take_back(arrival(sender, last), bytes(sender, last));
    link.last = link.before;
    link.free = link.free_before;
    serve(sender, link, message);
    serve(sender, link, last);
  }
  /// These are perhaps not the times of the orders.
  void doubt() noexcept { exact_ = false; }

  /// Adds what has been found to the times of all devices.
  void close(OrderTimes& times) {
    times.exact = times.exact && exact_;
    times.devices.resize(plan_.schedule.size());
    for (Device& device : devices_) {
      for (const Change& change : device.changes) device.memory.change(change.time, change.bytes);
      times.devices[device_index(plan_, ranks_[device.rank].dp,
                                 static_cast<std::int32_t>(device.stage))] = {
          device.worked, device.end, device.memory.close(), std::move(device.reductions)};
    }
  }

 private:
  /// Of an item of a pass on a stage: when its message is there, and when it ends.
  struct Cell {
    std::int64_t arrival = 0, ended = 0;
  };
  struct Change {
    std::int64_t time, bytes;
  };
  /// Of an item of a pass: it can go from `possible` on; its unit ends at `made`.
  struct Message {
    std::int64_t possible = -1, made = -1;
    std::uint32_t item = 0;
    std::size_t side = 0;
  };
  struct Link {
    std::int64_t free = 0, free_before = 0;  ///< from when on, and before the last message
    Message last, before;                    ///< the last message, and the one before it
  };
  struct Device {
    explicit Device(Bytes first) : memory(first) {}
    std::uint32_t rank = 0, stage = 0;
    std::int32_t gradients = -1;                  ///< the chunk of the last unit, if that is B or W
    std::array<std::size_t, 2> own{}, there{};    ///< cells of its items and of their receiver
    std::int64_t start = 0, end = 0, worked = 0;  ///< of the last unit; of all
    std::int64_t from = 0;                        ///< before that the next unit does not begin
    std::array<Link, 2> link;                     ///< of each direction
    DeviceMemory memory;
    std::vector<Change> changes;  ///< of bytes but for those that are sent, as time goes on
    std::vector<DeviceTimes::Reduction> reductions;
  };

  [[nodiscard]] std::int64_t layers_of(std::uint32_t stage, std::int32_t chunk) const noexcept {
    return layers_[stage * chunks_ + static_cast<std::size_t>(chunk)];
  }
  /// The receives that are posted on a stage before anything runs.
  [[nodiscard]] Bytes posted(const ListRank& rank, std::uint32_t stage) const noexcept {
    Bytes sum;
    for (std::size_t side = 0; side < 2; ++side) {
      const RankPass& pass = rank.pass[side];
      const bool turn = stage == entry(side);
      for (std::uint32_t item = 0; item < pass.size(); ++item) {
        if (!receives(pass, side, stage, item)) continue;
        const std::uint32_t sent = turn ? pass.previous_chunk[item] : item;
        if ((turn ? pass.before_turn : pass.before)[sent] == kNoItem) {
          sum += Bytes{pass.message[item]};
        }
      }
    }
    return sum;
  }

  /// When the next item of a pass of a device begins.
  [[nodiscard]] std::int64_t ready(std::uint32_t number, std::size_t side,
                                   std::uint32_t item) const {
    const Device& device = devices_[number];
    const std::uint32_t* awaits = state_.rows[number][side].awaits;
    const std::int64_t start =
        std::max({device.end, device.from, cells_[device.own[side] + item].arrival});
    if (awaits == nullptr || awaits[item] == kNoItem) return start;
    return std::max(start, cells_[device.there[side] + awaits[item]].arrival);
  }
  static void run(Device& device, std::int64_t start, std::int64_t time, std::int64_t taken,
                  std::int64_t left) {
    device.start = start;
    device.end = start + time;
    device.worked += time;
    device.changes.push_back({device.start, taken});
    device.changes.push_back({device.end, left});
  }

  [[nodiscard]] std::int64_t& arrival(std::uint32_t sender, const Message& message) {
    const std::uint32_t* consumer = state_.rows[sender][message.side].consumer;
    const std::uint32_t item = consumer == nullptr ? message.item : consumer[message.item];
    return cells_[devices_[sender].there[message.side] + item].arrival;
  }
  [[nodiscard]] std::int64_t bytes(std::uint32_t sender, const Message& message) const {
    return ranks_[devices_[sender].rank].pass[message.side].message[message.item];
  }
  /// Whether two messages go over one channel, on which they keep their order.
  [[nodiscard]] bool one_channel(std::uint32_t sender, const Message& a, const Message& b) const {
    const RankPass& pass = ranks_[devices_[sender].rank].pass[a.side];
    return a.side == b.side &&
           plan_.micropacks[pass.pack[a.item]].group == plan_.micropacks[pass.pack[b.item]].group;
  }
  /// A message goes as soon as it can. Of two that can at the same instant that of the earlier unit
  /// goes first.
  void serve(std::uint32_t sender, Link& link, const Message& message) {
    if (std::tie(message.possible, message.made) <= std::tie(link.last.possible, link.last.made) &&
        !one_channel(sender, message, link.last)) {
      doubt();
    }
    link.before = std::exchange(link.last, message);
    link.free_before = link.free;
    link.free = std::max(link.free, message.possible) +
                state_.rows[sender][message.side].transfer[message.item];
    arrival(sender, message) = link.free;
    devices_[sender].memory.free(link.free, bytes(sender, message));
  }

  const Plan& plan_;
  const std::vector<ListRank>& ranks_;
  const ListState& state_;
  std::size_t chunks_;
  std::vector<std::int64_t> layers_;    // by stage and chunk
  std::vector<std::int64_t> head_row_;  // bytes of H by stage
  std::vector<Device> devices_;         // by rank and stage
  std::vector<Cell> cells_;
  bool exact_ = true;
};

}  // namespace slimpack::schedule::detail
