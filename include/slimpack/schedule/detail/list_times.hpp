// SPDX-License-Identifier: Apache-2.0
// What devices do, hold and reduce while list scheduling finds their orders.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/cost/memory_model.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/schedule/detail/list_rank.hpp"
#include "slimpack/schedule/device_memory.hpp"
#include "slimpack/schedule/event_loop.hpp"
#include "slimpack/schedule/order_times.hpp"

namespace slimpack::schedule::detail {

/// What a list run makes of the devices of a part. Its times are those of the orders as long as it
/// begins every unit as soon as the one before has ended and what it awaits is there, and messages
/// that share a link go in the order of their units where they could go at the same instant.
class ListTimes : ListLine {
 public:
  /// `ranks` are laid out and have their times.
  ListTimes(const Plan& plan, const std::vector<ListRank>& ranks)
      : ListLine(plan),
        plan_(plan),
        ranks_(ranks),
        chunks_(static_cast<std::size_t>(plan.parallel.chunks)) {
    for (std::int32_t pp = 0; pp < plan.parallel.pp; ++pp) {
      for (std::int32_t chunk = 0; chunk < plan.parallel.chunks; ++chunk) {
        layers_.push_back(chunk_layers(plan, pp, chunk));
      }
      head_row_.push_back(
          head_row_bytes(plan, pp, element_bytes_of(plan.model, plan.memory.gradient_bytes)));
    }
    devices_.reserve(ranks.size() * stages_);
    for (const ListRank& rank : ranks) {
      for (std::uint32_t stage = 0; stage < stages_; ++stage) {
        devices_.emplace_back(static_bytes(plan, static_cast<std::int32_t>(stage)).total() +
                              posted(rank, stage));
      }
    }
  }

  /// F or B of an item begins.
  void begin(std::uint32_t rank, std::uint32_t stage, std::size_t side, std::uint32_t item,
             std::int64_t start) {
    const ListRank& of = ranks_[rank];
    const RankPass& pass = of.pass[side];
    const std::int32_t chunk = pass.chunk[item];
    const std::int64_t layers = layers_of(stage, chunk), hidden = pass.message[item];
    const std::int64_t workspace = of.workspace[side][item];
    // A buffer that is sent goes by itself when the message arrives.
    std::int64_t taken = workspace;
    std::int64_t left = posted_behind(pass, side, stage, item) - workspace;
    if (side == 0) {
      taken += layers * of.held[item] + hidden;
      if (stage != entry(side) || pass.enters[item] == 0) left -= hidden;
    } else {
      taken += layers * (of.opens[item] + of.made[item]);
      if (stage != exit(side) || pass.leaves[item] == 0) taken += hidden;
      left -= layers * (of.freed[item] + of.closes[item] + of.made[item] - of.left[item]) + hidden;
    }
    Device& device = devices_[rank * stages_ + stage];
    end_last(device);
    run(device, start, of.time[side][row(pass, stage) + item], taken, left);
    device.gradients = side == 0 ? -1 : chunk;
  }
  /// W begins.
  void begin_weight(std::uint32_t rank, std::uint32_t stage, std::uint32_t item,
                    std::int64_t start) {
    const RankWeights& weights = ranks_[rank].weights;
    const std::int64_t workspace = weights.workspace[item];
    const std::int64_t held = layers_of(stage, weights.chunk[item]) * weights.freed[item];
    Device& device = devices_[rank * stages_ + stage];
    end_last(device);
    run(device, start, weights.time[stage * weights.size() + item], workspace, -workspace - held);
    device.gradients = weights.chunk[item];
  }
  /// H of packs [first, end) begin on a stage, one behind the other.
  void begin_heads(std::uint32_t rank, std::uint32_t stage, std::uint32_t first, std::uint32_t end,
                   std::int64_t start) {
    const ListRank& of = ranks_[rank];
    Device& device = devices_[rank * stages_ + stage];
    end_last(device);
    for (std::uint32_t pack = first; pack < end; ++pack) {
      const std::int64_t hidden = of.pass[0].message[of.head_item[pack]];
      const std::int64_t bytes =
          head_row_[stage] * of.head_rows[pack] + (stage == last_ ? hidden : 0);
      // What is sent meanwhile is known only later.
      device.changes.push_back({start, bytes});
      start += of.head_time[pack];
      device.changes.push_back({start, -bytes});
      device.worked += of.head_time[pack];
      device.start = start - of.head_time[pack];
    }
    device.end = start;
    device.gradients = -1;
  }
  /// R of a chunk comes behind what a device has begun.
  void reduce(std::uint32_t rank, std::uint32_t stage, std::int32_t chunk) {
    Device& device = devices_[rank * stages_ + stage];
    device.reductions.push_back({chunk, device.start, device.end, device.gradients == chunk});
  }
  /// A message of so many bytes that a stage sends has its time of arrival, in place of `before`,
  /// unless that is kNever.
  void arrives(std::uint32_t rank, std::uint32_t stage, std::int64_t bytes, std::int64_t time,
               std::int64_t before) {
    DeviceMemory& memory = devices_[rank * stages_ + stage].memory;
    if (before != kNever) memory.take_back(before, bytes);
    if (!memory.free(time, bytes)) doubt();
  }
  /// These are perhaps not the times of the orders.
  void doubt() noexcept { exact_ = false; }

  /// Adds what has been found to the times of all devices.
  void close(OrderTimes& times) {
    times.exact = times.exact && exact_;
    times.devices.resize(plan_.schedule.size());
    for (std::size_t i = 0; i < devices_.size(); ++i) {
      const auto pp = static_cast<std::int32_t>(i % stages_);
      Device& device = devices_[i];
      end_last(device);
      times.devices[device_index(plan_, ranks_[i / stages_].dp, pp)] = {
          device.worked, device.end, device.memory.close(), std::move(device.reductions)};
    }
  }

 private:
  struct Change {
    std::int64_t time, bytes;
  };
  struct Device {
    explicit Device(Bytes first) : memory(first) {}
    std::int64_t start = 0, end = 0, worked = 0;  ///< of the unit that was begun last; of all
    std::int32_t gradients = -1;                  ///< its chunk, if it is B or W
    DeviceMemory memory;
    std::int64_t left = 0;        ///< bytes that come or go at `end`
    std::vector<Change> changes;  ///< before that, where several H were begun
    std::vector<DeviceTimes::Reduction> reductions;
  };

  [[nodiscard]] std::int64_t layers_of(std::uint32_t stage, std::int32_t chunk) const noexcept {
    return layers_[stage * chunks_ + static_cast<std::size_t>(chunk)];
  }
  /// The receive that an item posts at its end.
  [[nodiscard]] std::int64_t posted_behind(const RankPass& pass, std::size_t side,
                                           std::uint32_t stage, std::uint32_t item) const noexcept {
    if (!receives(pass, side, stage, item)) return 0;
    const bool turn = stage == entry(side);
    const std::uint32_t later =
        (turn ? pass.after_turn : pass.after)[turn ? pass.previous_chunk[item] : item];
    return later == kNoItem ? 0 : pass.message[later];
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

  static void run(Device& device, std::int64_t start, std::int64_t time, std::int64_t taken,
                  std::int64_t left) {
    device.start = start;
    device.end = start + time;
    device.worked += time;
    device.memory.change(start, taken);
    device.left = left;
  }
  /// All that has been begun on a device has ended.
  static void end_last(Device& device) {
    for (const Change& change : device.changes) device.memory.change(change.time, change.bytes);
    device.changes.clear();
    device.memory.change(device.end, std::exchange(device.left, 0));
  }

  const Plan& plan_;
  const std::vector<ListRank>& ranks_;
  std::size_t chunks_;
  std::vector<std::int64_t> layers_;    // by stage and chunk
  std::vector<std::int64_t> head_row_;  // bytes of H by stage
  std::vector<Device> devices_;         // by rank and stage
  bool exact_ = true;
};

}  // namespace slimpack::schedule::detail
