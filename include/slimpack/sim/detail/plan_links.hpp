// SPDX-License-Identifier: Apache-2.0
// What units await of each other, the messages in flight of channels, and the memory of units.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/cost/memory_model.hpp"
#include "slimpack/plan/cp_shard.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/sim/dag.hpp"
#include "slimpack/sim/detail/plan_draft.hpp"

namespace slimpack::sim::detail {

class PlanLinks {
 public:
  explicit PlanLinks(PlanDraft& draft) : draft_(draft) {}

  void add() {
    add_head_edges();
    add_messages();
    if (draft_.plan.parallel.pp == 1) add_handovers();
    add_unit_memory();
  }

 private:
  void add_head_edges() {
    const std::int32_t last = draft_.plan.parallel.pp - 1;
    const std::int32_t end = draft_.virtual_stages.size() - 1;
    for (std::size_t i = 0; i < draft_.plan.micropacks.size(); ++i) {
      const PackId pack{static_cast<std::uint32_t>(i)};
      for (std::size_t rank = 0; rank < draft_.needs.ranks(pack); ++rank) {
        if (draft_.plan.micropacks[i].pass == Pass::forward) {
          draft_.out.add_edge(draft_.unit_node(pack, rank, end),
                              draft_.entry(draft_.head_node(pack, rank, last)));
          continue;
        }
        if (draft_.plan.micropacks[i].pass == Pass::weight) {
          add_weight_edges(pack, rank);
          continue;
        }
        for (const PackId head : draft_.needs.heads(pack)) {
          draft_.out.add_edge(draft_.head_node(head, rank, last),
                              draft_.entry(draft_.unit_node(pack, rank, end)));
        }
      }
    }
  }

  /// W follows the B of all its tokens.
  void add_weight_edges(PackId pack, std::size_t rank) {
    for (std::int32_t place = 0; place < draft_.virtual_stages.size(); ++place) {
      for (const PackId back : draft_.needs.backwards(pack)) {
        draft_.out.add_edge(draft_.unit_node(back, rank, place),
                            draft_.entry(draft_.unit_node(pack, rank, place)));
      }
    }
  }

  /// Channels: order of messages, sends and receives in flight, and their buffers.
  void add_messages() {
    const std::vector<Channel>& channels = draft_.out.channels();
    std::vector<std::size_t> offset(channels.size() + 1, 0);
    for (std::size_t i = 0; i < channels.size(); ++i) {
      offset[i + 1] = offset[i] + channels[i].messages;
    }
    std::vector<NodeId> ordered(draft_.messages.size());
    for (const NodeId node : draft_.messages) {
      const NodeLabel label = draft_.out.label(node);
      ordered[offset[index(label.channel)] + label.message] = node;
    }
    for (std::size_t i = 0; i < channels.size(); ++i) {
      add_channel_edges(channels[i],
                        std::span(ordered).subspan(offset[i], offset[i + 1] - offset[i]));
    }
  }

  void add_channel_edges(const Channel& channel, std::span<const NodeId> messages) {
    const auto max_in_flight = static_cast<std::size_t>(draft_.plan.max_in_flight);
    const auto rank = static_cast<std::size_t>(channel.rank);
    const DeviceId sender = draft_.device(channel.dp, channel.from_pp);
    const DeviceId receiver = draft_.device(channel.dp, channel.to_pp);
    std::vector<NodeId> consumers;
    consumers.reserve(messages.size());
    for (std::size_t i = 0; i < messages.size(); ++i) {
      const NodeId message = messages[i];
      const NodeLabel label = draft_.out.label(message);
      const std::int32_t from = draft_.virtual_stages.index(label.pp, label.chunk);
      const NodeId unit = draft_.unit_node(label.pack, rank, from);
      const NodeId consumer =
          draft_.unit_node(label.pack, rank, PlanDraft::consumer_stage(channel.pass, from));
      consumers.push_back(consumer);
      draft_.out.add_edge(unit, message);
      draft_.out.add_edge(message, draft_.entry(consumer));
      const Bytes bytes = draft_.memory.boundary(label.pack, rank);
      draft_.out.add_memory(unit, Moment::start, {sender, MemoryKind::send, bytes});
      draft_.out.add_memory(message, Moment::end, {sender, MemoryKind::send, -bytes});
      const MemoryEvent posted{receiver, MemoryKind::receive, bytes};
      if (i < max_in_flight) {
        draft_.out.add_initial_memory(posted);
      } else {
        draft_.out.add_edge(messages[i - max_in_flight], draft_.entry(unit));
        draft_.out.add_edge(consumers[i - max_in_flight], message);
        draft_.out.add_memory(consumers[i - max_in_flight], Moment::end, posted);
      }
      draft_.out.add_memory(consumer, Moment::end, {receiver, MemoryKind::receive, -bytes});
    }
  }

  /// One stage: the tensor passes between chunks in place.
  void add_handovers() {
    for (std::size_t i = 0; i < draft_.plan.micropacks.size(); ++i) {
      const PackId pack{static_cast<std::uint32_t>(i)};
      const MicroPack& facts = draft_.plan.micropacks[i];
      if (facts.pass == Pass::weight) continue;
      for (std::size_t rank = 0; rank < draft_.needs.ranks(pack); ++rank) {
        const DeviceId on = draft_.device(draft_.plan.groups[index(facts.group)][rank], 0);
        const Bytes bytes = draft_.memory.boundary(pack, rank);
        for (std::int32_t place = 0; place < draft_.virtual_stages.size(); ++place) {
          const std::int32_t next = PlanDraft::consumer_stage(facts.pass, place);
          if (!draft_.exists(next)) continue;
          const NodeId maker = draft_.unit_node(pack, rank, place);
          const NodeId consumer = draft_.unit_node(pack, rank, next);
          draft_.out.add_edge(maker, draft_.entry(consumer));
          draft_.out.add_memory(maker, Moment::start, {on, MemoryKind::receive, bytes});
          draft_.out.add_memory(consumer, Moment::end, {on, MemoryKind::receive, -bytes});
        }
      }
    }
  }

  void add_unit_memory() {
    for (std::size_t i = 0; i < draft_.plan.schedule.size(); ++i) {
      const DeviceSchedule& schedule = draft_.plan.schedule[i];
      for (std::size_t place = 0; place < schedule.order.size(); ++place) {
        const Unit& unit = schedule.order[place];
        if (unit.kind == UnitKind::reduce || unit.kind == UnitKind::optimizer) continue;
        add_memory(schedule, unit, draft_.node_at(i, place),
                   DeviceId{static_cast<std::uint32_t>(i)});
      }
    }
  }

  void add_memory(const DeviceSchedule& schedule, const Unit& unit, NodeId node, DeviceId on) {
    const std::size_t rank = draft_.rank_of(unit.pack, schedule.dp);
    const Bytes hidden = draft_.memory.boundary(unit.pack, rank);
    const Bytes workspace = draft_.memory.workspace(unit, schedule.pp, rank);
    const auto add = [&](Moment moment, MemoryKind kind, Bytes bytes) {
      draft_.out.add_memory(node, moment, {on, kind, bytes});
    };
    add(Moment::start, MemoryKind::workspace, workspace);
    add(Moment::end, MemoryKind::workspace, -workspace);
    if (unit.kind == UnitKind::head) {
      if (schedule.pp != draft_.plan.parallel.pp - 1) return;
      add(Moment::end, MemoryKind::last_output, -hidden);
      add(Moment::start, MemoryKind::hidden_gradients, hidden);
      return;
    }
    const std::int32_t i = draft_.virtual_stages.index(schedule.pp, unit.chunk);
    const std::int64_t layers = draft_.layers(i);
    const Bytes left = draft_.memory.left_apart(unit.pack, rank, layers);
    if (unit.kind == UnitKind::weight) {
      add(Moment::end, MemoryKind::kept, -left);
      return;
    }
    const Bytes kept = draft_.memory.kept(unit.pack, rank, layers);
    const Bytes pages = draft_.memory.keys_values(unit.pack, rank, layers);
    const bool last = i == draft_.virtual_stages.size() - 1;
    if (unit.kind == UnitKind::forward) {
      add(Moment::start, MemoryKind::kept, kept);
      add(Moment::start, MemoryKind::keys_values, pages);
      if (last) add(Moment::start, MemoryKind::last_output, hidden);
      return;
    }
    add(Moment::start, MemoryKind::kv_gradients,
        draft_.memory.begun_gradients(unit.pack, rank, layers));
    add(Moment::end, MemoryKind::kv_gradients,
        -draft_.memory.ended_gradients(unit.pack, rank, layers));
    const Bytes made = draft_.memory.made_apart(unit.pack, rank, layers);
    add(Moment::start, MemoryKind::kept, made);
    add(Moment::end, MemoryKind::kept, left - made - kept);
    add(Moment::end, MemoryKind::keys_values, -pages);
    if (last) add(Moment::end, MemoryKind::hidden_gradients, -hidden);
  }

  PlanDraft& draft_;
};

}  // namespace slimpack::sim::detail
