// SPDX-License-Identifier: Apache-2.0
// Devices, the units of their schedules, the transfers that leave them, and collectives.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/cost/links.hpp"
#include "slimpack/cost/memory_model.hpp"
#include "slimpack/cost/unit_times.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/plan/virtual_stages.hpp"
#include "slimpack/sim/dag.hpp"
#include "slimpack/sim/detail/plan_draft.hpp"

namespace slimpack::sim::detail {

template <UnitTimes Times>
class PlanUnits {
 public:
  PlanUnits(PlanDraft& draft, const Times& times) : draft_(draft), times_(times) {}

  /// Throws InvalidInput where a unit is missing or there twice, or a time is negative.
  void add() {
    one_port_ = one_port(draft_.plan);
    add_devices();
    add_units();
    require_all_units();
    add_collectives();
  }

 private:
  void add_devices() {
    for (const DeviceSchedule& schedule : draft_.plan.schedule) {
      const ResourceId compute =
          draft_.out.add_resource({ResourceKind::compute, schedule.dp, schedule.pp, 0, false});
      const StaticBytes bytes = static_bytes(draft_.plan, schedule.pp);
      MemoryByKind always{};
      always[static_cast<std::size_t>(MemoryKind::weights)] = bytes.weights;
      always[static_cast<std::size_t>(MemoryKind::gradients)] = bytes.gradients;
      always[static_cast<std::size_t>(MemoryKind::optimizer)] = bytes.optimizer;
      draft_.out.add_device({schedule.dp, schedule.pp, compute, always});
    }
  }

  void add_units() {
    open_channel_.assign(draft_.plan.groups.size() * 2, {});
    for (const DeviceSchedule& schedule : draft_.plan.schedule) {
      previous_ = kNoNode;
      const std::size_t device = device_index(draft_.plan, schedule.dp, schedule.pp);
      link_[0] = link_[1] = kNoResource;
      for (std::size_t place = 0; place < schedule.order.size(); ++place) {
        draft_.placed.push_back(previous_);
        const Unit& unit = schedule.order[place];
        if (unit.kind != UnitKind::reduce) add_unit(schedule, device, place, unit);
      }
      draft_.place_offset.push_back(draft_.placed.size());
    }
  }

  void add_unit(const DeviceSchedule& schedule, std::size_t device, std::size_t place,
                const Unit& unit) {
    NodeLabel label;
    label.kind = node_kind(unit.kind);
    label.dp = schedule.dp;
    label.pp = schedule.pp;
    label.unit = static_cast<std::uint32_t>(place);
    if (unit.kind != UnitKind::optimizer) label.pack = unit.pack;
    const bool on_virtual_stage = runs_layers(unit.kind);
    if (on_virtual_stage) label.chunk = unit.chunk;
    const std::size_t rank =
        unit.kind == UnitKind::optimizer ? 0 : draft_.rank_of(unit.pack, schedule.dp);
    const NodeId node =
        draft_.add_node(unit_time(schedule, unit, rank),
                        ResourceId{static_cast<std::uint32_t>(device)}, label, previous_);
    previous_ = node;
    draft_.placed.back() = node;
    if (unit.kind == UnitKind::optimizer) return;
    NodeId& known = on_virtual_stage
                        ? draft_.unit_node(unit.pack, rank,
                                           draft_.virtual_stages.index(schedule.pp, unit.chunk))
                        : draft_.head_node(unit.pack, rank, schedule.pp);
    require_built(known == kNoNode, [&] { return unit_place(schedule, unit) + " is there twice"; });
    known = node;
    if (on_virtual_stage && unit.kind != UnitKind::weight)
      add_transfer(schedule, unit, rank, label);
  }

  [[nodiscard]] Nanos unit_time(const DeviceSchedule& schedule, const Unit& unit,
                                std::size_t rank) const {
    Nanos time;
    if (unit.kind == UnitKind::optimizer) {
      time = times_.optimizer(schedule.dp, schedule.pp);
    } else if (unit.kind == UnitKind::head) {
      time = times_.head(unit.pack, rank, schedule.pp);
    } else if (unit.kind == UnitKind::weight) {
      time = weight_time(times_, unit.pack, draft_.virtual_stages.index(schedule.pp, unit.chunk),
                         rank);
    } else {
      time = times_.compute(unit.pack, draft_.virtual_stages.index(schedule.pp, unit.chunk));
    }
    require_time(time, [&] { return unit_place(schedule, unit); });
    return time;
  }
  void add_transfer(const DeviceSchedule& schedule, const Unit& unit, std::size_t rank,
                    const NodeLabel& sender) {
    const Pass pass = draft_.plan.micropacks[index(unit.pack)].pass;
    const std::int32_t i = draft_.virtual_stages.index(schedule.pp, unit.chunk);
    const std::int32_t to = PlanDraft::consumer_stage(pass, i);
    if (draft_.plan.parallel.pp == 1 || !draft_.exists(to)) return;
    const ChannelId channel =
        open_channel(schedule, unit.pack, pass, rank, draft_.virtual_stages.stage(to));
    NodeLabel label = sender;
    label.kind = NodeKind::transfer;
    label.channel = channel;
    label.message = draft_.out.add_message(channel);
    const Nanos time = times_.transfer(unit.pack, i, rank);
    require_time(time, [&] { return "the transfer after " + unit_place(schedule, unit); });
    draft_.messages.push_back(
        draft_.add_node(time, draft_.out.channels()[index(channel)].link, label));
  }

  /// The channel of a group and pass that leaves a device; two channels to the same stage, or
  /// through the same port, use one resource.
  [[nodiscard]] ChannelId open_channel(const DeviceSchedule& schedule, PackId pack, Pass pass,
                                       std::size_t rank, std::int32_t to_pp) {
    const GroupId group = draft_.plan.micropacks[index(pack)].group;
    OpenChannel& open = open_channel_[2 * index(group) + static_cast<std::size_t>(pass)];
    const std::size_t device = device_index(draft_.plan, schedule.dp, schedule.pp) + 1;
    if (open.device == device) return open.channel;
    const bool one = one_port_[device - 1];
    const std::size_t direction = pass == Pass::backward && !one ? std::size_t{1} : std::size_t{0};
    if (link_[direction] == kNoResource) {
      const bool port = one && draft_.plan.parallel.pp > 2;
      link_[direction] =
          draft_.out.add_resource({port ? ResourceKind::port : ResourceKind::link, schedule.dp,
                                   schedule.pp, port ? 0 : to_pp, false});
    } else {
      draft_.out.serve_first_come(link_[direction]);
    }
    open.device = device;
    open.channel = draft_.out.add_channel({group, static_cast<std::int32_t>(rank), schedule.dp,
                                           pass, schedule.pp, to_pp, link_[direction], 0});
    return open.channel;
  }

  [[nodiscard]] std::int32_t first_head_stage() const noexcept {
    return draft_.plan.parallel.head == LmHead::shard ? 0 : draft_.plan.parallel.pp - 1;
  }

  void require_all_units() {
    for (std::size_t i = 0; i < draft_.plan.micropacks.size(); ++i) {
      const PackId pack{static_cast<std::uint32_t>(i)};
      const MicroPack& facts = draft_.plan.micropacks[i];
      const UnitKind kind = unit_of(facts.pass);
      for (std::size_t rank = 0; rank < draft_.needs.ranks(pack); ++rank) {
        const std::int32_t dp = draft_.plan.groups[index(facts.group)][rank];
        for (std::int32_t place = 0; place < draft_.virtual_stages.size(); ++place) {
          require_built(draft_.unit_node(pack, rank, place) != kNoNode, [&] {
            return device_name(dp, draft_.virtual_stages.stage(place)) + " never runs " +
                   unit_name({kind, pack, draft_.virtual_stages.chunk(place)});
          });
        }
        if (facts.pass != Pass::forward) continue;
        for (std::int32_t pp = first_head_stage(); pp < draft_.plan.parallel.pp; ++pp) {
          require_built(draft_.head_node(pack, rank, pp) != kNoNode, [&] {
            return device_name(dp, pp) + " never runs " + unit_name({UnitKind::head, pack, 0});
          });
        }
      }
    }
  }

  // --- collectives ---

  void add_collectives() {
    std::vector<NodeId> nodes;
    for (std::size_t i = 0; i < draft_.plan.micropacks.size(); ++i) {
      const PackId pack{static_cast<std::uint32_t>(i)};
      if (draft_.plan.micropacks[i].pass == Pass::weight) continue;  // ranks run it alone
      for (std::int32_t place = 0;
           draft_.needs.ranks(pack) > 1 && place < draft_.virtual_stages.size(); ++place) {
        nodes.clear();
        for (std::size_t rank = 0; rank < draft_.needs.ranks(pack); ++rank) {
          nodes.push_back(draft_.unit_node(pack, rank, place));
        }
        start_together(nodes);
      }
      if (draft_.plan.micropacks[i].pass == Pass::backward || draft_.plan.parallel.pp == 1)
        continue;
      if (draft_.plan.parallel.head != LmHead::shard) continue;
      for (std::size_t rank = 0; rank < draft_.needs.ranks(pack); ++rank) {
        nodes.clear();
        for (std::int32_t pp = 0; pp < draft_.plan.parallel.pp; ++pp) {
          nodes.push_back(draft_.head_node(pack, rank, pp));
        }
        start_together(nodes);
      }
    }
  }

  /// All units start when the last of their devices arrives.
  void start_together(std::span<const NodeId> nodes) {
    const NodeId join = draft_.add_join(nodes.front());
    for (const NodeId node : nodes) draft_.enter_by(join, node);
    draft_.end_together(nodes);
  }

  struct OpenChannel {
    std::size_t device = 0;  // one more than its index
    ChannelId channel{};
  };

  PlanDraft& draft_;
  const Times& times_;
  std::vector<OpenChannel> open_channel_;  // by group and pass, of the device at hand
  std::array<ResourceId, 2> link_{};       // of the device at hand
  std::vector<bool> one_port_;             // by device: both directions take turns
  NodeId previous_ = kNoNode;
};

}  // namespace slimpack::sim::detail
