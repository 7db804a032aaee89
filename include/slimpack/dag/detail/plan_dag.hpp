// SPDX-License-Identifier: Apache-2.0
// The steps by which a plan becomes a DAG.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/cost/memory_model.hpp"
#include "slimpack/cost/unit_times.hpp"
#include "slimpack/dag/builder.hpp"
#include "slimpack/dag/dag.hpp"
#include "slimpack/dag/detail/pack_share.hpp"
#include "slimpack/dag/detail/plan_check.hpp"
#include "slimpack/dag/names.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/plan/share.hpp"

namespace slimpack::detail {

inline constexpr NodeId kNoNode{~std::uint32_t{0}};

[[nodiscard]] constexpr NodeKind node_kind(UnitKind kind) noexcept {
  switch (kind) {
    case UnitKind::forward:
      return NodeKind::forward;
    case UnitKind::backward:
      return NodeKind::backward;
    case UnitKind::head:
      return NodeKind::head;
    case UnitKind::reduce:
      return NodeKind::reduce;
    case UnitKind::optimizer:
      break;
  }
  return NodeKind::optimizer;
}

template <UnitTimes Times>
class PlanDag {
 public:
  PlanDag(const Plan& plan, const Times& times)
      : plan_((require_structure(plan), plan)),
        times_(times),
        line_(line_of(plan)),
        memory_(plan),
        shares_(plan, memory_) {}

  [[nodiscard]] Dag build() {
    add_devices();
    add_units();
    require_all_units();
    add_meetings();
    plan_releases();
    add_head_edges();
    add_messages();
    if (plan_.parallel.pp == 1) add_handovers();
    add_reductions();
    add_unit_memory();
    return std::move(out_).finish();
  }

 private:
  // --- devices, units and their transfers ---

  void add_devices() {
    for (const DeviceSchedule& schedule : plan_.schedule) {
      const ResourceId compute =
          out_.add_resource({ResourceKind::compute, schedule.dp, schedule.pp, 0, false});
      const StaticBytes bytes = static_bytes(plan_, schedule.pp);
      MemoryByKind always{};
      always[static_cast<std::size_t>(MemoryKind::weights)] = bytes.weights;
      always[static_cast<std::size_t>(MemoryKind::gradients)] = bytes.gradients;
      always[static_cast<std::size_t>(MemoryKind::optimizer)] = bytes.optimizer;
      out_.add_device({schedule.dp, schedule.pp, compute, always});
    }
  }

  void add_units() {
    const auto lines = static_cast<std::size_t>(line_.size());
    const auto stages = static_cast<std::size_t>(plan_.parallel.pp);
    unit_node_.assign(shares_.rows() * lines, kNoNode);
    head_node_.assign(shares_.rows() * stages, kNoNode);
    open_channel_.assign(plan_.groups.size() * 2, {});
    unit_offset_.assign(1, 0);
    for (const DeviceSchedule& schedule : plan_.schedule) {
      previous_ = kNoNode;
      const std::size_t device = device_index(plan_, schedule.dp, schedule.pp);
      link_[0] = link_[1] = kNoResource;
      for (std::size_t place = 0; place < schedule.order.size(); ++place) {
        node_at_.push_back(previous_);
        const Unit& unit = schedule.order[place];
        if (unit.kind != UnitKind::reduce) add_unit(schedule, device, place, unit);
      }
      unit_offset_.push_back(node_at_.size());
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
    const bool on_line = unit.kind == UnitKind::forward || unit.kind == UnitKind::backward;
    if (on_line) label.chunk = unit.chunk;
    const std::size_t rank = unit.kind == UnitKind::optimizer ? 0 : rank_of(unit.pack, schedule.dp);
    const NodeId node = out_.add_node(unit_time(schedule, unit, rank),
                                      ResourceId{static_cast<std::uint32_t>(device)}, label);
    before_.push_back(previous_);
    entry_.push_back(node);
    previous_ = node;
    node_at_.back() = node;
    if (unit.kind == UnitKind::optimizer) return;
    NodeId& known = on_line ? unit_node(unit.pack, rank, line_.at(schedule.pp, unit.chunk))
                            : head_node(unit.pack, rank, schedule.pp);
    require_built(known == kNoNode, [&] { return unit_place(schedule, unit) + " is there twice"; });
    known = node;
    if (on_line) add_transfer(schedule, unit, rank, label);
  }

  [[nodiscard]] Nanos unit_time(const DeviceSchedule& schedule, const Unit& unit,
                                std::size_t rank) const {
    Nanos time;
    if (unit.kind == UnitKind::optimizer) {
      time = times_.optimizer(schedule.dp, schedule.pp);
    } else if (unit.kind == UnitKind::head) {
      time = times_.head(unit.pack, rank, schedule.pp);
    } else {
      time = times_.compute(unit.pack, line_.at(schedule.pp, unit.chunk));
    }
    require_time(time, [&] { return unit_place(schedule, unit); });
    return time;
  }
  template <class Text>
  static void require_time(Nanos time, const Text& text) {
    require_built(time >= Nanos{}, [&] {
      return "the time of " + text() + " must be >= 0 ns, got " + std::to_string(time.value);
    });
  }
  [[nodiscard]] static std::string unit_place(const DeviceSchedule& schedule, const Unit& unit) {
    return device_name(schedule.dp, schedule.pp) + " " + unit_name(unit);
  }

  /// The line index at which a unit's output is consumed, or none.
  [[nodiscard]] std::int32_t consumer_line(Pass pass, std::int32_t at) const noexcept {
    return pass == Pass::forward ? at + 1 : at - 1;
  }
  [[nodiscard]] bool on_the_line(std::int32_t at) const noexcept {
    return at >= 0 && at < line_.size();
  }

  void add_transfer(const DeviceSchedule& schedule, const Unit& unit, std::size_t rank,
                    const NodeLabel& sender) {
    const Pass pass = plan_.micropacks[index(unit.pack)].pass;
    const std::int32_t at = line_.at(schedule.pp, unit.chunk);
    const std::int32_t to = consumer_line(pass, at);
    if (plan_.parallel.pp == 1 || !on_the_line(to)) return;
    const ChannelId channel = open_channel(schedule, unit.pack, pass, rank, line_.stage(to));
    Channel& facts = out_.draft().channels[index(channel)];
    NodeLabel label = sender;
    label.kind = NodeKind::transfer;
    label.channel = channel;
    label.message = facts.messages++;
    const Nanos time = times_.transfer(unit.pack, at, rank);
    require_time(time, [&] { return "the transfer after " + unit_place(schedule, unit); });
    messages_.push_back(out_.add_node(time, facts.link, label));
    before_.push_back(kNoNode);
    entry_.push_back(messages_.back());
  }

  /// The channel of a group and pass that leaves a device; two channels to the same stage share
  /// the link.
  [[nodiscard]] ChannelId open_channel(const DeviceSchedule& schedule, PackId pack, Pass pass,
                                       std::size_t rank, std::int32_t to_pp) {
    const GroupId group = plan_.micropacks[index(pack)].group;
    OpenChannel& open = open_channel_[2 * index(group) + static_cast<std::size_t>(pass)];
    const std::size_t device = device_index(plan_, schedule.dp, schedule.pp) + 1;
    if (open.device == device) return open.channel;
    const std::size_t direction =
        pass == Pass::backward && plan_.parallel.pp > 2 ? std::size_t{1} : std::size_t{0};
    if (link_[direction] == kNoResource) {
      link_[direction] =
          out_.add_resource({ResourceKind::link, schedule.dp, schedule.pp, to_pp, false});
    } else {
      out_.draft().resources[index(link_[direction])].first_come = true;
    }
    open.device = device;
    open.channel = out_.add_channel({group, static_cast<std::int32_t>(rank), schedule.dp, pass,
                                     schedule.pp, to_pp, link_[direction], 0});
    return open.channel;
  }

  [[nodiscard]] std::size_t rank_of(PackId pack, std::int32_t dp) const {
    const std::vector<std::int32_t>& ranks =
        plan_.groups[index(plan_.micropacks[index(pack)].group)];
    return static_cast<std::size_t>(std::lower_bound(ranks.begin(), ranks.end(), dp) -
                                    ranks.begin());
  }
  [[nodiscard]] NodeId& unit_node(PackId pack, std::size_t rank, std::int32_t at) noexcept {
    return unit_node_[shares_.row(pack, rank) * static_cast<std::size_t>(line_.size()) +
                      static_cast<std::size_t>(at)];
  }
  [[nodiscard]] NodeId& head_node(PackId pack, std::size_t rank, std::int32_t pp) noexcept {
    return head_node_[shares_.row(pack, rank) * static_cast<std::size_t>(plan_.parallel.pp) +
                      static_cast<std::size_t>(pp)];
  }
  [[nodiscard]] std::int32_t first_head_stage() const noexcept {
    return plan_.parallel.head == Head::shard ? 0 : plan_.parallel.pp - 1;
  }

  void require_all_units() {
    for (std::size_t at = 0; at < plan_.micropacks.size(); ++at) {
      const PackId pack{static_cast<std::uint32_t>(at)};
      const MicroPack& facts = plan_.micropacks[at];
      const UnitKind kind = facts.pass == Pass::forward ? UnitKind::forward : UnitKind::backward;
      for (std::size_t rank = 0; rank < shares_.ranks(pack); ++rank) {
        const std::int32_t dp = plan_.groups[index(facts.group)][rank];
        for (std::int32_t place = 0; place < line_.size(); ++place) {
          require_built(unit_node(pack, rank, place) != kNoNode, [&] {
            return device_name(dp, line_.stage(place)) + " never runs " +
                   unit_name({kind, pack, line_.chunk(place)});
          });
        }
        if (facts.pass == Pass::backward) continue;
        for (std::int32_t pp = first_head_stage(); pp < plan_.parallel.pp; ++pp) {
          require_built(head_node(pack, rank, pp) != kNoNode, [&] {
            return device_name(dp, pp) + " never runs " + unit_name({UnitKind::head, pack, 0});
          });
        }
      }
    }
  }

  // --- meetings ---

  void add_meetings() {
    std::vector<NodeId> nodes;
    for (std::size_t at = 0; at < plan_.micropacks.size(); ++at) {
      const PackId pack{static_cast<std::uint32_t>(at)};
      for (std::int32_t place = 0; shares_.ranks(pack) > 1 && place < line_.size(); ++place) {
        nodes.clear();
        for (std::size_t rank = 0; rank < shares_.ranks(pack); ++rank) {
          nodes.push_back(unit_node(pack, rank, place));
        }
        meet(nodes);
      }
      if (plan_.micropacks[at].pass == Pass::backward || plan_.parallel.pp == 1) continue;
      if (plan_.parallel.head != Head::shard) continue;
      for (std::size_t rank = 0; rank < shares_.ranks(pack); ++rank) {
        nodes.clear();
        for (std::int32_t pp = 0; pp < plan_.parallel.pp; ++pp) {
          nodes.push_back(head_node(pack, rank, pp));
        }
        meet(nodes);
      }
    }
  }

  /// All units start when the last of their devices arrives and take as long as the slowest.
  void meet(std::span<const NodeId> nodes) {
    const NodeId join = add_join(nodes.front());
    Nanos longest;
    for (const NodeId node : nodes) {
      longest = std::max(longest, out_.draft().duration[index(node)]);
      enter_by(join, node);
    }
    for (const NodeId node : nodes) out_.draft().duration[index(node)] = longest;
    out_.add_meeting(nodes);
  }
  [[nodiscard]] NodeId add_join(NodeId first) {
    NodeLabel label = out_.draft().label[index(first)];
    label.kind = NodeKind::join;
    return add_free_node(Nanos{}, label);
  }
  [[nodiscard]] NodeId add_free_node(Nanos time, const NodeLabel& label,
                                     ResourceId resource = kNoResource) {
    const NodeId node = out_.add_node(time, resource, label);
    before_.push_back(kNoNode);
    entry_.push_back(node);
    return node;
  }
  void enter_by(NodeId join, NodeId node) {
    entry_[index(node)] = join;
    if (before_[index(node)] != kNoNode) out_.add_edge(before_[index(node)], join);
    out_.add_edge(join, node);
  }
  /// The node whose start is the unit's start: all that the unit awaits is awaited there.
  [[nodiscard]] NodeId entry(NodeId node) const noexcept { return entry_[index(node)]; }

  // --- dependencies between units ---

  void add_head_edges() {
    const std::int32_t last = plan_.parallel.pp - 1;
    const std::int32_t end = line_.size() - 1;
    for (std::size_t at = 0; at < plan_.micropacks.size(); ++at) {
      const PackId pack{static_cast<std::uint32_t>(at)};
      for (std::size_t rank = 0; rank < shares_.ranks(pack); ++rank) {
        if (plan_.micropacks[at].pass == Pass::forward) {
          out_.add_edge(unit_node(pack, rank, end), entry(head_node(pack, rank, last)));
          continue;
        }
        for (const PackId head : shares_.heads(pack)) {
          out_.add_edge(head_node(head, rank, last), entry(unit_node(pack, rank, end)));
        }
      }
    }
  }

  /// Channels: order of messages, windows of sends and receives, and their buffers.
  void add_messages() {
    const std::vector<Channel>& channels = out_.draft().channels;
    std::vector<std::size_t> offset(channels.size() + 1, 0);
    for (std::size_t at = 0; at < channels.size(); ++at) {
      offset[at + 1] = offset[at] + channels[at].messages;
    }
    std::vector<NodeId> ordered(messages_.size());
    for (const NodeId node : messages_) {
      const NodeLabel& label = out_.draft().label[index(node)];
      ordered[offset[index(label.channel)] + label.message] = node;
    }
    for (std::size_t at = 0; at < channels.size(); ++at) {
      add_channel_edges(channels[at],
                        std::span(ordered).subspan(offset[at], offset[at + 1] - offset[at]));
    }
  }

  void add_channel_edges(const Channel& channel, std::span<const NodeId> messages) {
    const auto window = static_cast<std::size_t>(plan_.window);
    const auto rank = static_cast<std::size_t>(channel.rank);
    const DeviceId sender = device(channel.dp, channel.from_pp);
    const DeviceId receiver = device(channel.dp, channel.to_pp);
    std::vector<NodeId> consumers;
    consumers.reserve(messages.size());
    for (std::size_t at = 0; at < messages.size(); ++at) {
      const NodeId message = messages[at];
      const NodeLabel label = out_.draft().label[index(message)];
      const std::int32_t from = line_.at(label.pp, label.chunk);
      const NodeId unit = unit_node(label.pack, rank, from);
      const NodeId consumer = unit_node(label.pack, rank, consumer_line(channel.pass, from));
      consumers.push_back(consumer);
      out_.add_edge(unit, message);
      out_.add_edge(message, entry(consumer));
      const Bytes bytes = memory_.boundary(label.pack, rank);
      out_.add_memory(unit, Moment::start, {sender, MemoryKind::send, bytes});
      out_.add_memory(message, Moment::end, {sender, MemoryKind::send, -bytes});
      const MemoryEvent posted{receiver, MemoryKind::receive, bytes};
      if (at < window) {
        out_.add_initial_memory(posted);
      } else {
        out_.add_edge(messages[at - window], entry(unit));
        out_.add_edge(consumers[at - window], message);
        out_.add_memory(consumers[at - window], Moment::end, posted);
      }
      out_.add_memory(consumer, Moment::end, {receiver, MemoryKind::receive, -bytes});
    }
  }

  /// One stage: the tensor passes between chunks in place.
  void add_handovers() {
    for (std::size_t at = 0; at < plan_.micropacks.size(); ++at) {
      const PackId pack{static_cast<std::uint32_t>(at)};
      const MicroPack& facts = plan_.micropacks[at];
      for (std::size_t rank = 0; rank < shares_.ranks(pack); ++rank) {
        const DeviceId on = device(plan_.groups[index(facts.group)][rank], 0);
        const Bytes bytes = memory_.boundary(pack, rank);
        for (std::int32_t place = 0; place < line_.size(); ++place) {
          const std::int32_t next = consumer_line(facts.pass, place);
          if (!on_the_line(next)) continue;
          const NodeId maker = unit_node(pack, rank, place);
          const NodeId consumer = unit_node(pack, rank, next);
          out_.add_edge(maker, entry(consumer));
          out_.add_memory(maker, Moment::start, {on, MemoryKind::receive, bytes});
          out_.add_memory(consumer, Moment::end, {on, MemoryKind::receive, -bytes});
        }
      }
    }
  }

  // --- reduction of gradients ---

  /// Where a device's R of a chunk is queued, and the B that releases its buckets one by one.
  struct Release {
    NodeId after = kNoNode;  // the compute unit before R
    bool bucketed = false;   // that unit is the chunk's last B
    bool present = false;
    std::uint32_t place = 0;
  };

  /// Finds each R's release and gives a start of its own to each B that releases by parts.
  void plan_releases() {
    const auto chunks = static_cast<std::size_t>(plan_.parallel.chunks);
    releases_.assign(plan_.schedule.size() * chunks, {});
    std::vector<NodeId> last_backward(chunks);
    for (std::size_t at = 0; at < plan_.schedule.size(); ++at) {
      const DeviceSchedule& schedule = plan_.schedule[at];
      std::fill(last_backward.begin(), last_backward.end(), kNoNode);
      for (std::size_t place = 0; place < schedule.order.size(); ++place) {
        const Unit& unit = schedule.order[place];
        if (unit.kind != UnitKind::backward) continue;
        last_backward[static_cast<std::size_t>(unit.chunk)] = node_at_[unit_offset_[at] + place];
      }
      for (std::size_t place = 0; place < schedule.order.size(); ++place) {
        const Unit& unit = schedule.order[place];
        if (unit.kind != UnitKind::reduce) continue;
        const auto chunk = static_cast<std::size_t>(unit.chunk);
        Release& release = releases_[at * chunks + chunk];
        require_built(!release.present,
                      [&] { return unit_place(schedule, unit) + " is there twice"; });
        release.present = true;
        release.place = static_cast<std::uint32_t>(place);
        release.after = node_at_[unit_offset_[at] + place];
        release.bucketed =
            release.after != kNoNode && release.after == last_backward[chunk] &&
            plan_.stages[static_cast<std::size_t>(line_.at(schedule.pp, unit.chunk))].layers() > 1;
        if (release.bucketed && entry(release.after) == release.after) {
          enter_by(add_join(release.after), release.after);
        }
      }
    }
  }

  void add_reductions() {
    find_table_stages();
    std::vector<NodeId> table_buckets;
    for (std::int32_t pp = 0; pp < plan_.parallel.pp; ++pp) {
      const ResourceId link = out_.add_resource({ResourceKind::reduce, 0, pp, 0, false});
      std::vector<std::vector<NodeId>> buckets(static_cast<std::size_t>(plan_.parallel.chunks));
      last_bucket_ = kNoNode;
      for (const Unit& unit : plan_.schedule[device_index(plan_, 0, pp)].order) {
        if (unit.kind != UnitKind::reduce) continue;
        std::vector<NodeId>& row = buckets[static_cast<std::size_t>(unit.chunk)];
        row = add_buckets(pp, unit.chunk, link);
        if (holds_table(pp) && unit.chunk == 0) table_buckets.push_back(row.back());
      }
      for (std::int32_t dp = 0; dp < plan_.parallel.dp; ++dp) follow_order(dp, pp, buckets);
    }
    if (table_buckets.size() > 1) meet_buckets(table_buckets);
  }

  /// With tied embeddings the stages that hold the table, a copy or a shard, reduce it together:
  /// the last bucket of their chunk 0 is a meeting.
  void find_table_stages() {
    std::int32_t stages = 0;
    for (std::int32_t pp = 0; pp < plan_.parallel.pp; ++pp) {
      if (pp == 0 || head_rows(plan_, pp) > 0) ++stages;
    }
    if (!plan_.model.tied || stages < 2) return;
    NodeLabel label;
    label.kind = NodeKind::join;
    label.unit = release(0, 0, 0).place;
    table_join_ = add_free_node(Nanos{}, label);
  }
  [[nodiscard]] bool holds_table(std::int32_t pp) const noexcept {
    return table_join_ != kNoNode && (pp == 0 || head_rows(plan_, pp) > 0);
  }
  void meet_buckets(std::span<const NodeId> buckets) {
    Nanos longest;
    for (const NodeId bucket : buckets) {
      longest = std::max(longest, out_.draft().duration[index(bucket)]);
    }
    for (const NodeId bucket : buckets) out_.draft().duration[index(bucket)] = longest;
    out_.add_meeting(buckets);
  }

  /// Adds a bucket after the others of its stage.
  [[nodiscard]] NodeId add_bucket(Nanos time, const NodeLabel& label, ResourceId link,
                                  bool with_table) {
    const NodeId bucket = add_free_node(time, label, link);
    before_[index(bucket)] = last_bucket_;
    if (with_table) enter_by(table_join_, bucket);
    last_bucket_ = bucket;
    return bucket;
  }

  [[nodiscard]] Release& release(std::int32_t dp, std::int32_t pp, std::int32_t chunk) noexcept {
    return releases_[device_index(plan_, dp, pp) * static_cast<std::size_t>(plan_.parallel.chunks) +
                     static_cast<std::size_t>(chunk)];
  }

  [[nodiscard]] std::vector<NodeId> add_buckets(std::int32_t pp, std::int32_t chunk,
                                                ResourceId link) {
    const Stage& stage = plan_.stages[static_cast<std::size_t>(line_.at(pp, chunk))];
    bool bucketed = false;
    for (std::int32_t dp = 0; dp < plan_.parallel.dp; ++dp) {
      require_built(release(dp, pp, chunk).present, [&] {
        return device_name(dp, pp) + " never runs " + unit_name({UnitKind::reduce, {}, chunk});
      });
      bucketed = bucketed || release(dp, pp, chunk).bucketed;
    }
    const Nanos time = times_.reduce(pp, chunk);
    require_time(time, [&] {
      return "pp " + std::to_string(pp) + " " + unit_name({UnitKind::reduce, {}, chunk});
    });
    NodeLabel label;
    label.kind = NodeKind::reduce;
    label.pp = pp;
    label.chunk = chunk;
    label.unit = release(0, pp, chunk).place;
    const std::int64_t count = bucketed ? stage.layers() : 1;
    const std::int64_t layer = std::max<std::int64_t>(plan_.model.layer_weights(), 1);
    const std::int64_t all = layer * stage.layers() + (chunk == 0 ? ends_weights(pp) : 0);
    std::vector<NodeId> buckets;
    std::int64_t before = 0;
    for (std::int64_t bucket = 0; bucket < count; ++bucket) {
      // Cumulated shares, so that the buckets sum to the whole.
      const std::int64_t until =
          bucket + 1 == count ? time.value : share_of_time(time, layer * (bucket + 1), all);
      label.bucket = static_cast<std::uint32_t>(bucket);
      const bool with_table = chunk == 0 && bucket + 1 == count && holds_table(pp);
      buckets.push_back(add_bucket(Nanos{until - before}, label, link, with_table));
      before = until;
    }
    for (std::int32_t dp = 0; dp < plan_.parallel.dp; ++dp) add_release(dp, pp, chunk, buckets);
    return buckets;
  }

  [[nodiscard]] static std::int64_t share_of_time(Nanos time, std::int64_t part,
                                                  std::int64_t whole) noexcept {
    __extension__ using Product = __int128;
    return static_cast<std::int64_t>(static_cast<Product>(time.value) * part / whole);
  }
  /// Weights outside of layers, reduced with chunk 0.
  [[nodiscard]] std::int64_t ends_weights(std::int32_t pp) const noexcept {
    const DeviceWeights weights = device_weights(plan_, pp);
    return weights.embedding + weights.final_norm + weights.head;
  }

  void add_release(std::int32_t dp, std::int32_t pp, std::int32_t chunk,
                   std::span<const NodeId> buckets) {
    const Release& from = release(dp, pp, chunk);
    if (from.after == kNoNode) return;
    if (!from.bucketed) {
      out_.add_edge(from.after, entry(buckets.front()));
      return;
    }
    const auto count = static_cast<std::uint32_t>(buckets.size());
    for (std::uint32_t bucket = 0; bucket + 1 < count; ++bucket) {
      NodeLabel label = out_.draft().label[index(from.after)];
      label.kind = NodeKind::release;
      label.bucket = bucket;
      const Nanos whole = out_.draft().duration[index(from.after)];
      const NodeId part = add_free_node(Nanos{share_of_time(whole, bucket + 1, count)}, label);
      out_.add_part({part, from.after, bucket + 1, count});
      out_.add_edge(entry(from.after), part);
      out_.add_edge(part, entry(buckets[bucket]));
    }
    out_.add_edge(from.after, entry(buckets.back()));
  }

  /// The order of R in one device's schedule, and O after all of them.
  void follow_order(std::int32_t dp, std::int32_t pp,
                    const std::vector<std::vector<NodeId>>& buckets) {
    const std::size_t at = device_index(plan_, dp, pp);
    NodeId last = kNoNode;
    for (const Unit& unit : plan_.schedule[at].order) {
      if (unit.kind != UnitKind::reduce) continue;
      const std::vector<NodeId>& row = buckets[static_cast<std::size_t>(unit.chunk)];
      if (last != kNoNode && row.front() < last) out_.add_edge(last, entry(row.front()));
      last = row.back();
    }
    for (std::size_t place = 0; place < plan_.schedule[at].order.size(); ++place) {
      if (plan_.schedule[at].order[place].kind != UnitKind::optimizer) continue;
      for (const std::vector<NodeId>& row : buckets) {
        if (!row.empty()) out_.add_edge(row.back(), node_at_[unit_offset_[at] + place]);
      }
    }
  }

  // --- memory of units ---

  void add_unit_memory() {
    for (std::size_t at = 0; at < plan_.schedule.size(); ++at) {
      const DeviceSchedule& schedule = plan_.schedule[at];
      for (std::size_t place = 0; place < schedule.order.size(); ++place) {
        const Unit& unit = schedule.order[place];
        if (unit.kind == UnitKind::reduce || unit.kind == UnitKind::optimizer) continue;
        add_memory(schedule, unit, node_at_[unit_offset_[at] + place],
                   DeviceId{static_cast<std::uint32_t>(at)});
      }
    }
  }

  void add_memory(const DeviceSchedule& schedule, const Unit& unit, NodeId node, DeviceId on) {
    const std::size_t rank = rank_of(unit.pack, schedule.dp);
    const PackShare& share = shares_(unit.pack, rank);
    const Bytes hidden = memory_.boundary(unit.pack, rank);
    const Bytes workspace = memory_.workspace(unit, schedule.pp, rank);
    const auto add = [&](Moment moment, MemoryKind kind, Bytes bytes) {
      out_.add_memory(node, moment, {on, kind, bytes});
    };
    add(Moment::start, MemoryKind::workspace, workspace);
    add(Moment::end, MemoryKind::workspace, -workspace);
    if (unit.kind == UnitKind::head) {
      if (schedule.pp != plan_.parallel.pp - 1) return;
      add(Moment::end, MemoryKind::last_output, -hidden);
      add(Moment::start, MemoryKind::hidden_gradients, hidden);
      return;
    }
    const std::int32_t at = line_.at(schedule.pp, unit.chunk);
    const std::int64_t layers = plan_.stages[static_cast<std::size_t>(at)].layers();
    const Bytes kept = memory_.kept(unit.pack, rank, layers);
    const Bytes pages = memory_.page_bytes(share.pages, layers);
    const bool last = at == line_.size() - 1;
    if (unit.kind == UnitKind::forward) {
      add(Moment::start, MemoryKind::kept, kept);
      add(Moment::start, MemoryKind::keys_values, pages);
      if (last) add(Moment::start, MemoryKind::last_output, hidden);
      return;
    }
    const std::int64_t gradient = layers * memory_.layer().kv_gradient;
    add(Moment::start, MemoryKind::kv_gradients, Bytes{gradient * share.begun.value});
    add(Moment::end, MemoryKind::kv_gradients, Bytes{-gradient * share.ended.value});
    add(Moment::end, MemoryKind::kept, -kept);
    add(Moment::end, MemoryKind::keys_values, -pages);
    if (last) add(Moment::end, MemoryKind::hidden_gradients, -hidden);
  }

  [[nodiscard]] DeviceId device(std::int32_t dp, std::int32_t pp) const noexcept {
    return DeviceId{static_cast<std::uint32_t>(device_index(plan_, dp, pp))};
  }

  struct OpenChannel {
    std::size_t device = 0;  // one more than its index
    ChannelId channel{};
  };

  const Plan& plan_;
  const Times& times_;
  Line line_;
  MemoryModel memory_;
  PackShares shares_;
  DagBuilder out_;
  std::vector<NodeId> unit_node_;  // row (pack, rank), column line index
  std::vector<NodeId> head_node_;  // row (pack, rank), column stage
  std::vector<NodeId> node_at_;    // by device and place; of R the unit before it
  std::vector<std::size_t> unit_offset_;
  std::vector<NodeId> before_;  // by node: the unit before it on its device
  std::vector<NodeId> entry_;   // by node
  std::vector<NodeId> messages_;
  std::vector<OpenChannel> open_channel_;  // by group and pass, of the device at hand
  std::array<ResourceId, 2> link_{};       // of the device at hand
  NodeId previous_ = kNoNode;
  std::vector<Release> releases_;  // row device, column chunk
  NodeId last_bucket_ = kNoNode;   // of the stage at hand
  NodeId table_join_ = kNoNode;    // start of the meeting that reduces a tied table
};

}  // namespace slimpack::detail
