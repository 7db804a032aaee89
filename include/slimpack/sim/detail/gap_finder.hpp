// SPDX-License-Identifier: Apache-2.0
// Walks each device's schedule and names the cause of every idle interval.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/sim/dag.hpp"
#include "slimpack/sim/timeline.hpp"

namespace slimpack::sim::detail {

class GapFinder {
 public:
  GapFinder(const Dag& dag, const Timeline& timeline, Bytes limit)
      : dag_(dag),
        timeline_(timeline),
        limit_(limit),
        before_(predecessors(dag)),
        in_collective_(dag.size(), false),
        changes_(timed_changes(dag, timeline.start, timeline.end)),
        stream_of_(dag.channels.size() + kOwnStreams) {
    for (const NodeId node : dag.collectives.node) in_collective_[index(node)] = true;
    find_work();
  }

  [[nodiscard]] std::vector<Gap> find() {
    for (std::size_t i = 0; i < dag_.devices.size(); ++i) {
      device_ = DeviceId{static_cast<std::uint32_t>(i)};
      walk_device();
    }
    return std::move(gaps_);
  }

 private:
  /// Units of which only the next in the schedule could go first: those that consume from one
  /// channel, or of one kind without a channel.
  struct Stream {
    std::vector<std::size_t> places;  // rising, in nodes_[device]
    std::size_t next = 0;
  };
  static constexpr std::size_t kOwnStreams = 4;  // F, B, H, W; chunks of one stage come in order

  static bool is_work(NodeKind kind) noexcept {
    return is_compute(kind) && kind != NodeKind::optimizer;
  }

  void find_work() {
    std::vector<std::size_t> device_of(dag_.resources.size(), dag_.devices.size());
    std::int32_t ranks = 0;
    for (std::size_t i = 0; i < dag_.devices.size(); ++i) {
      device_of[index(dag_.devices[i].compute)] = i;
      ranks = std::max(ranks, dag_.devices[i].dp + 1);
    }
    nodes_.resize(dag_.devices.size());
    rank_end_.resize(static_cast<std::size_t>(ranks));
    for (std::size_t i = 0; i < dag_.size(); ++i) {
      if (dag_.resource[i] == kNoResource) continue;
      const std::size_t device = device_of[index(dag_.resource[i])];
      if (device == dag_.devices.size()) continue;
      nodes_[device].push_back(NodeId{static_cast<std::uint32_t>(i)});
      if (!is_work(dag_.label[i].kind)) continue;
      Nanos& end = rank_end_[static_cast<std::size_t>(dag_.devices[device].dp)];
      end = std::max(end, timeline_.end[i]);
      all_end_ = std::max(all_end_, timeline_.end[i]);
    }
  }

  void walk_device() {
    const std::vector<NodeId>& nodes = nodes_[index(device_)];
    find_streams(nodes);
    next_change_ = 0;
    level_ = total(dag_.devices[index(device_)].always);
    Nanos last_work;
    bool worked = false;
    for (const NodeId node : nodes) {
      if (is_work(dag_.label[index(node)].kind)) last_work = timeline_.end[index(node)];
    }
    Nanos free;
    for (std::size_t place = 0; place < nodes.size(); ++place) {
      const std::size_t node = index(nodes[place]);
      const bool work = is_work(dag_.label[node].kind);
      const Nanos start = timeline_.start[node];
      if (free < start) {
        if (work && !worked) {
          add(free, start, GapCause::fill);
        } else if (work) {
          add_inner(free, start, place);
        } else {
          add_outer(free, start);
        }
      }
      worked = worked || work;
      free = timeline_.end[node];
    }
    add_outer(free, timeline_.makespan);
  }

  void add(Nanos begin, Nanos end, GapCause cause, std::optional<NodeId> instead = {}) {
    if (begin >= end) return;
    if (!gaps_.empty() && gaps_.back().device == device_ && gaps_.back().end == begin &&
        gaps_.back().cause == cause && gaps_.back().instead == instead) {
      gaps_.back().end = end;
      return;
    }
    gaps_.push_back({device_, begin, end, cause, instead});
  }

  /// After the device's last work.
  void add_outer(Nanos begin, Nanos end) {
    const auto rank = static_cast<std::size_t>(dag_.devices[index(device_)].dp);
    const Nanos drained = std::clamp(rank_end_[rank], begin, std::max(begin, end));
    const Nanos balanced = std::clamp(all_end_, drained, std::max(drained, end));
    add(begin, drained, GapCause::drain);
    add(drained, balanced, GapCause::imbalance);
    add(balanced, end, GapCause::reduce);
  }

  // --- between units ---

  /// The gap before the unit at `place`.
  void add_inner(Nanos begin, Nanos end, std::size_t place) {
    Nanos blocked = end;  // from here on another unit was ready
    Nanos fitting = end;  // from here on one that was ready would have fitted
    std::optional<NodeId> ready_unit, fitting_unit;
    advance_level(begin);
    for (Stream& stream : streams_) {
      while (stream.next < stream.places.size() && stream.places[stream.next] < place)
        ++stream.next;
      if (stream.next == stream.places.size() || stream.places[stream.next] == place) continue;
      const NodeId unit = nodes_[index(device_)][stream.places[stream.next]];
      const std::optional<Nanos> ready = ready_at(unit);
      if (!ready || *ready >= end) continue;
      const Nanos from = std::max(begin, *ready);
      const Nanos fits = fits_from(unit, from, end);
      if (from < blocked) {
        blocked = from;
        ready_unit = unit;
      }
      if (fits < fitting) {
        fitting = fits;
        fitting_unit = unit;
      }
    }
    add_waiting(begin, std::min(blocked, fitting), end, nodes_[index(device_)][place]);
    add(blocked, fitting, GapCause::memory, ready_unit);
    add(fitting, end, GapCause::order, fitting_unit);
  }

  /// [begin, until) of a gap that ends at `end`: what `unit` itself waited for.
  void add_waiting(Nanos begin, Nanos until, Nanos end, NodeId unit) {
    Nanos message, slot;
    for_each_need(unit, [&](NodeId need, bool own) {
      if (!own || dag_.label[index(need)].kind != NodeKind::transfer) return;
      Nanos& latest = is_sent_here(need) ? slot : message;
      latest = std::max(latest, timeline_.end[index(need)]);
    });
    Nanos own = std::max(message, slot);
    if (!in_collective_[index(unit)]) own = end;
    own = std::clamp(own, begin, until);
    add(begin, own, slot > message ? GapCause::max_in_flight : GapCause::peer);
    add(own, until, GapCause::collective);
  }

  [[nodiscard]] bool is_sent_here(NodeId transfer) const noexcept {
    const NodeLabel& label = dag_.label[index(transfer)];
    const DagDevice& device = dag_.devices[index(device_)];
    return label.dp == device.dp && label.pp == device.pp;
  }
  [[nodiscard]] bool is_own(NodeId need) const noexcept {
    const NodeLabel& label = dag_.label[index(need)];
    const DagDevice& device = dag_.devices[index(device_)];
    if (is_sent_here(need)) return true;
    return label.kind == NodeKind::transfer && label.dp == device.dp &&
           index(label.channel) < dag_.channels.size() &&
           dag_.channels[index(label.channel)].to_pp == device.pp;
  }

  /// Calls visit(need, own) for what a unit needs, through its join.
  template <class Visit>
  void for_each_need(NodeId unit, const Visit& visit) const {
    for (const NodeId need : before_[index(unit)]) {
      if (dag_.label[index(need)].kind != NodeKind::join) {
        visit(need, is_own(need));
        continue;
      }
      for (const NodeId inner : before_[index(need)]) visit(inner, is_own(inner));
    }
  }

  // --- units that could have gone first ---

  void find_streams(const std::vector<NodeId>& nodes) {
    streams_.clear();
    std::fill(stream_of_.begin(), stream_of_.end(), 0);
    for (std::size_t place = 0; place < nodes.size(); ++place) {
      const NodeKind kind = dag_.label[index(nodes[place])].kind;
      if (!is_work(kind)) continue;
      std::size_t key =
          dag_.channels.size() +
          (kind == NodeKind::weight ? kOwnStreams - 1 : static_cast<std::size_t>(kind));
      for_each_need(nodes[place], [&](NodeId need, bool own) {
        const NodeLabel& label = dag_.label[index(need)];
        if (own && label.kind == NodeKind::transfer && !is_sent_here(need)) {
          key = index(label.channel);
        }
      });
      if (stream_of_[key] == 0) {
        streams_.emplace_back();
        stream_of_[key] = streams_.size();
      }
      streams_[stream_of_[key] - 1].places.push_back(place);
    }
  }

  /// When everything but the schedule's order allowed the unit; absent where it is in a collective.
  [[nodiscard]] std::optional<Nanos> ready_at(NodeId unit) const {
    if (in_collective_[index(unit)]) return std::nullopt;
    Nanos ready;
    const ResourceId compute = dag_.devices[index(device_)].compute;
    NodeId previous = unit;
    for (const NodeId need : before_[index(unit)]) {
      if (dag_.label[index(need)].kind == NodeKind::join) return std::nullopt;
      if (dag_.resource[index(need)] == compute) previous = need;  // rows ascend
    }
    for (const NodeId need : before_[index(unit)]) {
      if (need == previous && dag_.order_only[index(unit)]) continue;
      ready = std::max(ready, timeline_.end[index(need)]);
    }
    return ready;
  }

  /// The first instant of [from, end) at which starting the unit keeps to the limit, else `end`.
  [[nodiscard]] Nanos fits_from(NodeId unit, Nanos from, Nanos end) const {
    Bytes needed;
    for (const MemoryEvent& event : dag_.memory_at(unit, Moment::start)) {
      if (event.device == device_) needed += event.bytes;
    }
    const std::vector<TimedChange>& row = changes_[index(device_)];
    Bytes level = level_;
    std::size_t i = next_change_;
    while (i < row.size() && row[i].time <= from) level += row[i++].bytes;
    if (level + needed <= limit_) return from;
    while (i < row.size() && row[i].time < end) {
      const Nanos now = row[i].time;
      while (i < row.size() && row[i].time == now) level += row[i++].bytes;
      if (level + needed <= limit_) return now;
    }
    return end;
  }
  void advance_level(Nanos to) {
    const std::vector<TimedChange>& row = changes_[index(device_)];
    while (next_change_ < row.size() && row[next_change_].time <= to)
      level_ += row[next_change_++].bytes;
  }

  const Dag& dag_;
  const Timeline& timeline_;
  Bytes limit_;
  NodeLists before_;
  std::vector<bool> in_collective_;
  std::vector<std::vector<TimedChange>> changes_;
  std::vector<std::size_t> stream_of_;  // by channel, then kind: one more than the stream
  std::vector<std::vector<NodeId>> nodes_;
  std::vector<Nanos> rank_end_;
  Nanos all_end_;
  std::vector<Gap> gaps_;

  DeviceId device_{};  // at hand
  std::vector<Stream> streams_;
  std::size_t next_change_ = 0;
  Bytes level_;
};

}  // namespace slimpack::sim::detail
