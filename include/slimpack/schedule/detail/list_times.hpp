// SPDX-License-Identifier: Apache-2.0
// When units begin by the orders that list scheduling writes, and what devices then hold.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/cost/memory_model.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/schedule/detail/list_rank.hpp"
#include "slimpack/schedule/detail/list_state.hpp"
#include "slimpack/schedule/order_times.hpp"

namespace slimpack::schedule::detail {

/// The times of the orders of a part while a list run finds them. A list run may keep a device
/// waiting for what suits it better; the orders do not: a unit begins as soon as the one before has
/// ended and what it awaits is there. The run begins everything in an order in which it can run. So
/// each unit and each message gets its time by the orders when the run begins it. The times are
/// exact as long as messages that share a link go over it in the same turn.
class ListTimes : ListLine {
 public:
  struct Memory;

  /// `ranks` are laid out and have their times; `state` is that of the run. `memory` is used until
  /// `close`.
  ListTimes(const Plan& plan, const std::vector<ListRank>& ranks, const ListState& state,
            Memory& memory)
      : ListLine(plan),
        plan_(plan),
        ranks_(ranks),
        state_(state),
        memory_(memory),
        chunks_(static_cast<std::size_t>(plan.parallel.chunks)),
        turn_(turn_of(plan, ranks)) {
    devices_.swap(memory.devices);
    cells_.swap(memory.cells);
    devices_.resize(ranks.size() * stages_);
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
      for (std::size_t side = 0; side < 2; ++side) {
        auto& bytes = bytes_.emplace_back();
        bytes.reserve(rank.pass[side].size());
        for (std::size_t item = 0; item < rank.pass[side].size(); ++item) {
          bytes.push_back(side == 0 ? forward_bytes(rank, item) : backward_bytes(rank, item));
        }
      }
      const std::array<std::size_t, 2> each{cells_of(rank, 0), cells_of(rank, 1)};
      const std::array<std::size_t, 2> first{cells, cells + each[0] * stages_};
      cells = first[1] + each[1] * stages_;
      for (std::uint32_t stage = 0; stage < stages_; ++stage) {
        Device& device = devices_[i * stages_ + stage];
        device.begin_anew(static_bytes(plan, static_cast<std::int32_t>(stage)).total() +
                          posted(rank, stage));
        device.rank = static_cast<std::uint32_t>(i);
        device.stage = stage;
        for (std::size_t side = 0; side < 2; ++side) {
          device.own[side] = first[side] + each[side] * stage;
          device.there[side] = first[side] + each[side] * next(side, stage);
        }
      }
    }
    cells_.assign(cells, {});
  }

  /// F or B of an item begins.
  void begin(const ListDevice& on, std::uint32_t number, std::size_t side, std::uint32_t item) {
    Device& device = devices_[number];
    const ListRow& row = on.row[side];
    const RankPass& pass = *row.pass;
    const std::int32_t chunk = pass.chunk[item];
    const std::int64_t layers = layers_of(device.stage, chunk), hidden = pass.message[item];
    const ItemBytes& bytes = bytes_[2 * on.rank + side][item];
    std::int64_t taken = bytes.taken + layers * bytes.taken_layer;
    std::int64_t left = bytes.left + layers * bytes.left_layer;
    if (side == 0) {
      if (on.stage == entry(side) && pass.enters[item] != 0) left += hidden;
    } else if (on.stage == exit(side) && pass.leaves[item] != 0) {
      taken -= hidden;
    }
    if (row.posts != nullptr && row.posts[item] != kNoItem) left += pass.message[row.posts[item]];
    run(device, ready(device, row, side, item), row.time[item], taken, left);
    cells_[device.own[side] + (item & turn_)].ended = device.end;
    device.gradients = side == 0 ? -1 : chunk;
  }
  /// F or B of an item of a context-parallel group is the next unit that all these devices run.
  void meet(std::span<const std::uint32_t> devices, std::size_t side) {
    std::int64_t start = 0;
    for (const std::uint32_t number : devices) {
      const ListDevice& on = state_.devices[number];
      start = std::max(start, ready(devices_[number], on.row[side], side, on.begun[side]));
    }
    for (const std::uint32_t number : devices) devices_[number].from = start;
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
  void transfer(const ListDevice& on, std::uint32_t sender, std::size_t side, std::uint32_t item,
                bool overtakes) {
    Device& device = devices_[sender];
    const ListRow& row = on.row[side];
    Message message;
    message.item = item;
    message.side = static_cast<std::uint32_t>(side);
    message.made = message.possible = cells_[device.own[side] + (item & turn_)].ended;
    if (row.awaits[item] != kNoItem) {
      message.possible =
          std::max(message.possible, cells_[device.there[side] + (row.awaits[item] & turn_)].ended);
    }
    if (row.transfer[item] == 0 && (on.one_port || ranks_.size() > 1)) doubt();
    std::vector<Message>& sent = device.sent[on.one_port ? 0 : side];
    if (overtakes && sent.empty()) doubt();  // units that take no time
    if (!overtakes || sent.empty()) {
      serve(on, device, sent, message);
      return;
    }
    const Message last = sent.back();
    sent.pop_back();
    serve(on, device, sent, message);
    serve(on, device, sent, last);
  }
  /// These are perhaps not the times of the orders.
  void doubt() noexcept { exact_ = false; }

  /// Adds what has been found to the times of all devices.
  void close(OrderTimes& times) {
    times.exact = times.exact && exact_;
    times.devices.resize(plan_.schedule.size());
    for (Device& device : devices_) {
      count(device, kNever);
      times.devices[device_index(plan_, ranks_[device.rank].dp,
                                 static_cast<std::int32_t>(device.stage))] = {
          device.worked, device.end, Bytes{device.most}, std::move(device.reductions)};
    }
    devices_.swap(memory_.devices);
    cells_.swap(memory_.cells);
  }

 private:
  /// Of an item of a pass on a stage: when its message is there, and when it ends.
  struct Cell {
    std::int64_t arrival = 0, ended = 0;
  };
  struct Change {
    std::int64_t time, bytes;
  };
  /// Of an item of a pass: its unit ends at `made`, it can go from `possible` on and is there at
  /// `arrival`.
  struct Message {
    std::int64_t possible = 0, made = 0, arrival = 0;
    std::uint32_t item = 0, side = 0;
  };
  /// What an item allocates at its start and leaves at its end, and more of it for each layer.
  /// A buffer that is sent goes by itself when the message arrives.
  struct ItemBytes {
    std::int64_t taken = 0, taken_layer = 0, left = 0, left_layer = 0;
  };
  struct Device {
    std::uint32_t rank = 0, stage = 0;
    std::int32_t gradients = -1;                  ///< the chunk of the last unit, if that is B or W
    std::array<std::size_t, 2> own{}, there{};    ///< cells of its items and of their receiver
    std::int64_t start = 0, end = 0, worked = 0;  ///< of the last unit; of all
    std::int64_t from = 0;                        ///< before that the next unit does not begin
    std::array<std::vector<Message>, 2> sent;     ///< on the link of each direction
    /// Bytes that come and go as time goes on, `changed` of them, and what they and the messages
    /// before add up to; what is sent goes by itself.
    std::vector<Change> changes;
    std::size_t changed = 0, room = kRoom;
    std::int64_t level = 0, most = 0;
    std::vector<DeviceTimes::Reduction> reductions;

    /// Bytes that come or go, not before those of the last call; there is room for them.
    void change(std::int64_t time, std::int64_t bytes) {
      Change& last = changes[changed - 1];
      if (last.time == time) {
        last.bytes += bytes;
      } else {
        changes[changed++] = {time, bytes};
      }
    }
    /// Forgets all but the memory that it has. It holds `always` before its first unit.
    void begin_anew(Bytes always) {
      Device fresh;
      fresh.changes.swap(changes);
      fresh.changes.resize(std::max(fresh.changes.size(), kRoom + kChanges));
      fresh.changes[fresh.changed++] = {0, always.value};
      fresh.sent.swap(sent);
      for (std::vector<Message>& way : fresh.sent) way.clear();
      *this = std::move(fresh);
    }
  };
  static constexpr std::size_t kChanges = 2;  // of a unit at most
  static constexpr std::size_t kRoom = 126;   // changes and units that stay in the nearest cache

  /// Items of a pass have their cells in turn, in as many as this has bits set, and one. A rank
  /// that shares no packs has one channel to each neighbour: an item begins when the message of
  /// `max_in_flight` items before is there, and that goes when the receiver has run as many before
  /// it. So nothing is asked of what is twice as far back. Chunks and groups have a cell each.
  [[nodiscard]] static std::uint32_t turn_of(const Plan& plan, const std::vector<ListRank>& ranks) {
    if (ranks.size() > 1 || plan.parallel.chunks > 1) return kNoItem;
    const auto most = static_cast<std::uint32_t>(ranks[0].pass[0].size() + ranks[0].pass[1].size());
    const auto in_flight = static_cast<std::uint32_t>(plan.max_in_flight);
    return std::bit_ceil(4 * std::min(most, in_flight)) - 1;
  }
  [[nodiscard]] std::size_t cells_of(const ListRank& rank, std::size_t side) const noexcept {
    return std::min(rank.pass[side].size(), std::size_t{turn_} + 1);
  }
  /// Of an item that receives and sends.
  [[nodiscard]] static ItemBytes forward_bytes(const ListRank& rank, std::size_t item) {
    const std::int64_t workspace = rank.workspace[0][item], hidden = rank.pass[0].message[item];
    return {workspace + hidden, rank.held[item], -workspace - hidden, 0};
  }
  [[nodiscard]] static ItemBytes backward_bytes(const ListRank& rank, std::size_t item) {
    const std::int64_t workspace = rank.workspace[1][item], hidden = rank.pass[1].message[item];
    return {workspace + hidden, rank.opens[item] + rank.made[item], -workspace - hidden,
            rank.left[item] - rank.freed[item] - rank.closes[item] - rank.made[item]};
  }
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
  [[nodiscard]] std::int64_t ready(const Device& device, const ListRow& row, std::size_t side,
                                   std::uint32_t item) const {
    std::int64_t start = std::max(device.end, device.from);
    start = std::max(start, cells_[device.own[side] + (item & turn_)].arrival);
    if (row.awaits == nullptr || row.awaits[item] == kNoItem) return start;
    return std::max(start, cells_[device.there[side] + (row.awaits[item] & turn_)].arrival);
  }
  void run(Device& device, std::int64_t start, std::int64_t time, std::int64_t taken,
           std::int64_t left) {
    device.start = start;
    device.end = start + time;
    device.worked += time;
    device.change(device.start, taken);
    device.change(device.end, left);
    if (device.changed > device.room) settle(device);
  }

  /// Counts what is known of the bytes of a device, so that its memory is that of what is in
  /// flight: all before the end of the unit that has begun last on any device. A message without a
  /// time waits for the end of such a unit or of one behind it, and only one whose units have ended
  /// since anything began may still be overtaken.
  [[gnu::noinline]] void settle(Device& device) {
    std::int64_t horizon = kNever;
    for (const Device& other : devices_) horizon = std::min(horizon, other.end);
    count(device, horizon);
    device.room = std::max(kRoom, 2 * device.changed);
    device.changes.resize(std::max(device.changes.size(), device.room + kChanges));
  }
  /// Counts the bytes of a device at all instants before `horizon`, at each of which all that comes
  /// and goes counts together, and forgets them.
  void count(Device& device, std::int64_t horizon) {
    const auto number = static_cast<std::size_t>(&device - devices_.data());
    const ListDevice& on = state_.devices[number];
    std::array<std::size_t, 2> gone{};  // messages that have arrived
    std::array<std::int64_t, 2> next{next_arrival(device.sent[0], 0),
                                     next_arrival(device.sent[1], 0)};
    std::size_t i = 0;
    for (; i < device.changed && device.changes[i].time < horizon; ++i) {
      const std::int64_t now = device.changes[i].time;
      device.level += device.changes[i].bytes;
      for (std::size_t way = 0; std::min(next[0], next[1]) <= now && way < 2; ++way) {
        for (; next[way] <= now; next[way] = next_arrival(device.sent[way], ++gone[way])) {
          device.level -= bytes(on, device.sent[way][gone[way]]);
        }
      }
      device.most = std::max(device.most, device.level);
    }
    const auto forget = [](auto& all, std::size_t size, std::size_t counted) {
      std::copy(all.begin() + static_cast<std::ptrdiff_t>(counted),
                all.begin() + static_cast<std::ptrdiff_t>(size), all.begin());
      return size - counted;
    };
    device.changed = forget(device.changes, device.changed, i);
    for (std::size_t way = 0; way < 2; ++way) {
      std::vector<Message>& sent = device.sent[way];
      sent.resize(forget(sent, sent.size(), gone[way]));
    }
  }
  [[nodiscard]] static std::int64_t next_arrival(const std::vector<Message>& sent,
                                                 std::size_t gone) {
    return gone < sent.size() ? sent[gone].arrival : kNever;
  }

  [[nodiscard]] std::int64_t& arrival(const ListDevice& on, const Device& device,
                                      const Message& message) {
    const std::uint32_t* consumer = on.row[message.side].consumer;
    const std::uint32_t item = consumer == nullptr ? message.item : consumer[message.item];
    return cells_[device.there[message.side] + (item & turn_)].arrival;
  }
  [[nodiscard]] static std::int64_t bytes(const ListDevice& on, const Message& message) {
    return on.row[message.side].pass->message[message.item];
  }
  /// Whether two messages go over one channel, on which they keep their order.
  [[nodiscard]] bool one_channel(const ListDevice& on, const Message& a, const Message& b) const {
    const RankPass& pass = *on.row[a.side].pass;
    return a.side == b.side &&
           plan_.micropacks[pass.pack[a.item]].group == plan_.micropacks[pass.pack[b.item]].group;
  }
  /// A message goes as soon as it can, behind those that its link has sent. Of two that can at the
  /// same instant that of the earlier unit goes first.
  void serve(const ListDevice& on, Device& device, std::vector<Message>& sent, Message message) {
    std::int64_t start = message.possible;
    if (!sent.empty()) {
      const Message& last = sent.back();
      if ((message.possible < last.possible ||
           (message.possible == last.possible && message.made <= last.made)) &&
          !one_channel(on, message, last)) {
        doubt();
      }
      start = std::max(start, last.arrival);
    }
    message.arrival = start + on.row[message.side].transfer[message.item];
    arrival(on, device, message) = message.arrival;
    sent.push_back(message);
  }

  const Plan& plan_;
  const std::vector<ListRank>& ranks_;
  const ListState& state_;
  Memory& memory_;
  std::size_t chunks_;
  std::uint32_t turn_;
  std::vector<std::int64_t> layers_;           // by stage and chunk
  std::vector<std::int64_t> head_row_;         // bytes of H by stage
  std::vector<Device> devices_;                // by rank and stage
  std::vector<std::vector<ItemBytes>> bytes_;  // by rank and pass
  std::vector<Cell> cells_;
  bool exact_ = true;

 public:
  /// Memory of an object that the next one uses again.
  struct Memory {
    std::vector<Device> devices;
    std::vector<Cell> cells;
  };
};

}  // namespace slimpack::schedule::detail
