// SPDX-License-Identifier: Apache-2.0
// What the units of a plan hold and send, in tables: for execution without a DAG.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/cost/links.hpp"
#include "slimpack/cost/memory_model.hpp"
#include "slimpack/plan/cp_shard.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/plan/virtual_stages.hpp"
#include "slimpack/sim/detail/pack_needs.hpp"

namespace slimpack::sim {

/// What execution without a DAG looks up. A row is a pack on one rank of its group. A cell is a row
/// on one virtual stage: an F, a B or a W. A message has a number among all messages; those of a
/// channel follow each other in the order in which they are sent. Bytes are those of the DAG
/// (docs/equations.md, "Memory").
///
///     const MemoryModel memory(plan);
///     const ScheduleTables tables(plan, memory);
///     const PlanFigures figures = plan_figures(tables, PricedPlan(plan));
///
/// The plan must outlive the tables, have orders for all devices and keep rules 1 to 5: a device's
/// order names only units of its own packs, each once.
class ScheduleTables {
 public:
  /// The number of no message.
  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

  /// Where F, B, W or H of a device stands in the tables.
  struct Place {
    std::size_t row = 0;             ///< of the pack
    std::size_t cell = 0;            ///< F, B and W
    std::int32_t virtual_stage = 0;  ///< F, B and W
    std::uint32_t receives = kNone;  ///< the message that it consumes
    std::uint32_t sends = kNone;     ///< the message that it sends
  };
  /// Bytes of a pack on one rank.
  struct Row {
    PackId pack{};               ///< the pack
    std::uint32_t rank = 0;      ///< position in the pack's group
    std::int64_t hidden = 0;     ///< a boundary tensor
    std::int64_t workspace = 0;  ///< of F, B or W
    std::int64_t held = 0;       ///< a layer: activations, keys and values; W: what B has left
    std::int64_t begun = 0;      ///< a layer, B: gradients of samples that it begins
    std::int64_t made = 0;       ///< a layer, B: for W, of which it leaves ...
    std::int64_t left = 0;       ///< ... a layer, B: so much, what it has kept included
    std::int64_t ended = 0;      ///< a layer, B: gradients of samples that it ends
    std::int64_t head_rows = 0;  ///< that H has in work at a time
  };
  /// One direction of data that leaves a device for one group.
  struct Channel {
    std::uint32_t first = 0;  ///< of its messages
    std::uint32_t count = 0;  ///< of its messages
    std::uint32_t from = 0;   ///< the sending device
    std::uint32_t to = 0;     ///< the receiving device
    std::uint32_t way = 0;    ///< 1: to the stage before, where that is not the next one too
    std::uint32_t link = 0;   ///< 2 x device, one more for the way back unless both take turns
    bool forward = true;      ///< whether its messages are of F
  };

  /// `memory` is that of the plan. O(slices log slices + units).
  ScheduleTables(const Plan& plan, const MemoryModel& memory)
      : plan_(plan), virtual_stages_(virtual_stages_of(plan)), needs_(plan) {
    for (std::int32_t i = 0; i < virtual_stages_.size(); ++i) {
      layers_.push_back(plan.stages[static_cast<std::size_t>(i)].layers());
    }
    for (std::int32_t pp = 0; pp < virtual_stages_.pp; ++pp) {
      head_row_.push_back(
          head_row_bytes(plan, pp, element_bytes_of(plan.model, plan.memory.gradient_bytes)));
      always_.push_back(static_bytes(plan, pp).total().value);
    }
    add_rows(memory);
    add_messages();
  }

  /// The plan of the tables.
  [[nodiscard]] const Plan& plan() const noexcept { return plan_; }
  /// Its virtual stages.
  [[nodiscard]] const VirtualStages& virtual_stages() const noexcept { return virtual_stages_; }
  /// The number of rows.
  [[nodiscard]] std::size_t rows() const noexcept { return rows_.size(); }
  /// The number of cells.
  [[nodiscard]] std::size_t cells() const noexcept {
    return rows_.size() * static_cast<std::size_t>(virtual_stages_.size());
  }
  /// The row of a pack on a data-parallel rank. O(log ranks of the group).
  [[nodiscard]] std::size_t row(PackId pack, std::int32_t dp) const noexcept {
    if (needs_.ranks(pack) == 1) return needs_.row(pack, 0);
    return needs_.row(pack, place_in_group(plan_, plan_.micropacks[index(pack)].group, dp));
  }
  /// How many ranks have a row of a pack.
  [[nodiscard]] std::size_t ranks(PackId pack) const noexcept { return needs_.ranks(pack); }
  /// A row by its number.
  [[nodiscard]] const Row& operator[](std::size_t row) const noexcept { return rows_[row]; }
  /// The cell of a row on a virtual stage.
  [[nodiscard]] std::size_t cell(std::size_t row, std::int32_t virtual_stage) const noexcept {
    return row * static_cast<std::size_t>(virtual_stages_.size()) +
           static_cast<std::size_t>(virtual_stage);
  }
  /// The forward packs whose H the B of a pack awaits on the last virtual stage.
  [[nodiscard]] std::span<const PackId> heads(PackId backward) const noexcept {
    return needs_.heads(backward);
  }

  /// The backward packs whose B the W of a weight pack awaits.
  [[nodiscard]] std::span<const PackId> backwards(PackId weight) const noexcept {
    return needs_.backwards(weight);
  }

  /// All channels, by sending device.
  [[nodiscard]] std::span<const Channel> channels() const noexcept { return channels_; }
  /// The channel of a message.
  [[nodiscard]] std::uint32_t channel(std::uint32_t message) const noexcept {
    return channel_[message];
  }
  /// The cell that consumes a message.
  [[nodiscard]] std::size_t consumer(std::uint32_t message) const noexcept {
    return message_cell_[message];
  }
  /// The cell that sends a message.
  [[nodiscard]] std::size_t sender(std::uint32_t message) const noexcept {
    const std::size_t to = message_cell_[message];
    return channels_[channel_[message]].forward ? to - 1 : to + 1;
  }
  /// The message `max_in_flight` before this one on its channel, kNone if there is none.
  [[nodiscard]] std::uint32_t before(std::uint32_t message) const noexcept {
    const auto max_in_flight = static_cast<std::uint32_t>(plan_.max_in_flight);
    const Channel& channel = channels_[channel_[message]];
    return message - channel.first < max_in_flight ? kNone : message - max_in_flight;
  }
  /// The size of a message.
  [[nodiscard]] Bytes bytes(std::uint32_t message) const noexcept {
    return Bytes{
        rows_[message_cell_[message] / static_cast<std::size_t>(virtual_stages_.size())].hidden};
  }

  /// The place of F, B, W or H of device (dp, pp).
  [[nodiscard]] Place place(const Unit& unit, std::int32_t dp, std::int32_t pp) const noexcept {
    Place place;
    place.row = row(unit.pack, dp);
    if (unit.kind == UnitKind::head) return place;
    place.virtual_stage = virtual_stages_.index(pp, unit.chunk);
    place.cell = cell(place.row, place.virtual_stage);
    if (virtual_stages_.pp == 1 || unit.kind == UnitKind::weight) return place;
    place.receives = message_of_[place.cell];
    const std::int32_t next =
        unit.kind == UnitKind::forward ? place.virtual_stage + 1 : place.virtual_stage - 1;
    if (next >= 0 && next < virtual_stages_.size())
      place.sends = message_of_[cell(place.row, next)];
    return place;
  }

  /// What the start of a unit adds to its device's bytes, its send buffer included.
  [[nodiscard]] Bytes at_start(const Unit& unit, const Place& place,
                               std::int32_t pp) const noexcept {
    const Row& row = rows_[place.row];
    const bool last_stage = pp + 1 == virtual_stages_.pp;
    if (unit.kind == UnitKind::head) {
      return Bytes{head_row_[static_cast<std::size_t>(pp)] * row.head_rows +
                   (last_stage ? row.hidden : 0)};
    }
    if (unit.kind == UnitKind::weight) return Bytes{row.workspace};
    const bool forward = unit.kind == UnitKind::forward;
    const std::int64_t layers = layers_[static_cast<std::size_t>(place.virtual_stage)];
    std::int64_t sum = row.workspace + layers * (forward ? row.held : row.begun + row.made);
    if (forward && place.virtual_stage + 1 == virtual_stages_.size()) sum += row.hidden;
    if (goes_on(forward, place.virtual_stage)) sum += row.hidden;
    return Bytes{sum};
  }
  /// What the end of a unit adds, the receive that it posts again included; but for the sends that
  /// end by themselves.
  [[nodiscard]] Bytes at_end(const Unit& unit, const Place& place, std::int32_t pp) const noexcept {
    const Row& row = rows_[place.row];
    const bool last_stage = pp + 1 == virtual_stages_.pp;
    if (unit.kind == UnitKind::head) {
      return Bytes{-head_row_[static_cast<std::size_t>(pp)] * row.head_rows -
                   (last_stage ? row.hidden : 0)};
    }
    const std::int64_t layers = layers_[static_cast<std::size_t>(place.virtual_stage)];
    if (unit.kind == UnitKind::weight) return Bytes{-row.workspace - layers * row.held};
    const bool forward = unit.kind == UnitKind::forward;
    std::int64_t sum = -row.workspace;
    if (!forward) {
      sum -= layers * (row.held + row.ended + row.made - row.left);
      if (place.virtual_stage + 1 == virtual_stages_.size()) sum -= row.hidden;
    }
    if (forward ? place.virtual_stage > 0 : place.virtual_stage + 1 < virtual_stages_.size())
      sum -= row.hidden;
    if (place.receives != kNone) {
      const Channel& channel = channels_[channel_[place.receives]];
      const std::uint32_t next = place.receives + static_cast<std::uint32_t>(plan_.max_in_flight);
      if (next - channel.first < channel.count) sum += bytes(next).value;
    }
    return Bytes{sum};
  }
  /// What each device holds before its first unit: state, and the receives that are posted.
  [[nodiscard]] std::vector<Bytes> at_first() const {
    std::vector<Bytes> first;
    for (const DeviceSchedule& device : plan_.schedule) {
      first.push_back(Bytes{always_[static_cast<std::size_t>(device.pp)]});
    }
    for (const Channel& channel : channels_) {
      const auto max_in_flight = static_cast<std::uint32_t>(plan_.max_in_flight);
      for (std::uint32_t i = 0; i < std::min(max_in_flight, channel.count); ++i) {
        first[channel.to] += bytes(channel.first + i);
      }
    }
    return first;
  }

 private:
  [[nodiscard]] bool goes_on(bool forward, std::int32_t virtual_stage) const noexcept {
    return forward ? virtual_stage + 1 < virtual_stages_.size() : virtual_stage > 0;
  }

  void add_rows(const MemoryModel& memory) {
    rows_.reserve(needs_.rows());
    for (std::size_t i = 0; i < plan_.micropacks.size(); ++i) {
      const auto pack = static_cast<PackId>(i);
      for (std::size_t rank = 0; rank < needs_.ranks(pack); ++rank) {
        Row row;
        row.pack = pack;
        row.rank = static_cast<std::uint32_t>(rank);
        row.hidden = memory.boundary(pack, rank).value;
        row.workspace = memory.pack_workspace(pack, rank).value;
        row.head_rows =
            head_tile_rows(plan_, memory.own_tokens(pack, rank), memory.own_share(pack, rank));
        rows_.push_back(row);
        if (plan_.micropacks[i].pass == Pass::weight) {
          rows_.back().held = memory.left_apart(pack, rank, 1).value;
          continue;
        }
        row.held = (memory.kept(pack, rank, 1) + memory.keys_values(pack, rank, 1)).value;
        row.made = memory.made_apart(pack, rank, 1).value;
        row.left = memory.left_apart(pack, rank, 1).value;
        row.begun = memory.begun_gradients(pack, rank, 1).value;
        row.ended = memory.ended_gradients(pack, rank, 1).value;
        rows_.back() = row;
      }
    }
  }

  template <class Visit>
  void for_each_send(Visit&& visit) const {
    for (std::size_t device = 0; device < plan_.schedule.size(); ++device) {
      const DeviceSchedule& schedule = plan_.schedule[device];
      for (const Unit& unit : schedule.order) {
        const bool forward = unit.kind == UnitKind::forward;
        if (!forward && unit.kind != UnitKind::backward) continue;
        const std::int32_t virtual_stage = virtual_stages_.index(schedule.pp, unit.chunk);
        if (!goes_on(forward, virtual_stage)) continue;
        visit(static_cast<std::uint32_t>(device), unit,
              cell(row(unit.pack, schedule.dp), forward ? virtual_stage + 1 : virtual_stage - 1));
      }
    }
  }

  void add_messages() {
    if (virtual_stages_.pp == 1) return;
    message_of_.assign(cells(), kNone);
    const std::vector<bool> one = one_port(plan_);
    std::vector<std::uint32_t> open(2 * plan_.groups.size(), kNone);  // of the device at hand
    std::vector<std::uint32_t> sent;                                  // channel, in order of sends
    for_each_send([&](std::uint32_t device, const Unit& unit, std::size_t) {
      const bool forward = unit.kind == UnitKind::forward;
      std::uint32_t& channel =
          open[2 * index(plan_.micropacks[index(unit.pack)].group) + (forward ? 0 : 1)];
      if (channel == kNone || channels_[channel].from != device) {
        channel = static_cast<std::uint32_t>(channels_.size());
        const std::int32_t pp = plan_.schedule[device].pp;
        const std::int32_t to = forward ? (pp + 1) % virtual_stages_.pp
                                        : (pp + virtual_stages_.pp - 1) % virtual_stages_.pp;
        const auto there = device_index(plan_, plan_.schedule[device].dp, to);
        const std::uint32_t way = !forward && virtual_stages_.pp > 2 ? 1 : 0;
        const std::uint32_t link = 2 * device + (one[device] ? 0 : way);
        channels_.push_back({0, 0, device, static_cast<std::uint32_t>(there), way, link, forward});
      }
      ++channels_[channel].count;
      sent.push_back(channel);
    });
    std::uint32_t messages = 0;
    for (Channel& channel : channels_) {
      channel.first = messages;
      messages += std::exchange(channel.count, 0);
    }
    channel_.resize(messages);
    message_cell_.resize(messages);
    std::size_t i = 0;
    for_each_send([&](std::uint32_t, const Unit&, std::size_t consumer) {
      Channel& channel = channels_[sent[i]];
      const std::uint32_t message = channel.first + channel.count++;
      channel_[message] = sent[i++];
      message_cell_[message] = static_cast<std::uint32_t>(consumer);
      message_of_[consumer] = message;
    });
  }

  const Plan& plan_;
  VirtualStages virtual_stages_;
  detail::PackNeeds needs_;
  std::vector<std::int64_t> layers_;             // by virtual stage
  std::vector<std::int64_t> head_row_, always_;  // by stage
  std::vector<Row> rows_;
  std::vector<Channel> channels_;
  std::vector<std::uint32_t> channel_, message_cell_;  // by message
  std::vector<std::uint32_t> message_of_;              // by cell: the message it consumes
};

}  // namespace slimpack::sim
