// SPDX-License-Identifier: Apache-2.0
// In what order a device issues what it does with others, so that no device can wait for ever.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/plan/virtual_stages.hpp"
#include "slimpack/runtime/parameters.hpp"
#include "slimpack/runtime/process_groups.hpp"
#include "slimpack/runtime/program.hpp"

namespace slimpack::cuda::nccl {

/// What a communicator is known by: its members, and what they use it for: messages of one
/// direction from the first member to the second, collectives of a process group, or
/// sums and gathers beside all else.
struct CommunicatorKey {
  enum class Use : std::uint8_t { down, up, process_group, sum };
  Use use = Use::process_group;
  std::vector<std::size_t> members;  ///< numbers of devices (`device_number`)
  friend auto operator<=>(const CommunicatorKey&, const CommunicatorKey&) = default;
};

/// Something that a device issues when it is its turn. A unit's turn is where it ends; `pass` is
/// the point within a unit at which the device queues a sum.
struct Turn {
  enum class Kind : std::uint8_t { unit, pass, send, receive, sum };
  Kind kind = Kind::unit;
  std::size_t number = 0;   ///< of the unit in the device's order, or of the message
  std::size_t channel = 0;  ///< in `Program::channels`
  std::size_t sum = 0;      ///< in `StepOrder::sums`
  friend bool operator==(const Turn&, const Turn&) = default;
};

/// A sum over devices, as queue_sum names it.
struct StepSum {
  std::vector<std::size_t> members;
  std::int64_t tag = 0;
  friend auto operator<=>(const StepSum&, const StepSum&) = default;
};

/// One order of all units, messages and sums of a step in which each is possible once those before
/// it are done; `devices` has each device's own part of it. A device that issues its work in that
/// order, compute and communication alike, cannot wait in a circle, even if nothing of what it
/// issues runs at the same time as anything else: the first of all that is not yet done has all
/// that it needs, and both its ends are next in their devices' queues. Units of a context-parallel
/// group, and of a sharded head, are one for all their devices, and so are the parts between which
/// they pass layers: where not all of them release, sums of layers are issued behind the unit.
/// Tensor-parallel devices of a rank and stage are one here: they run every unit in step, so each
/// of them has this order, and messages and sums with the devices of its own part.
struct StepOrder {
  std::vector<std::vector<Turn>> devices;  ///< as in `Plan::schedule`
  std::vector<StepSum> sums;               ///< members are positions in `Plan::schedule`
};

namespace detail {

/// Runs the plan with times that are right in proportion, so that nothing is issued long before or
/// behind its time. Messages and sums take none.
class OrderRun {
 public:
  OrderRun(const Plan& plan, const runtime::Program& program)
      : plan_(plan),
        program_(program),
        parallel_(alone(plan.parallel)),
        devices_(program.devices.size()),
        channels_(program.channels.size()) {
    for (std::size_t place = 0; place < channels_.size(); ++place) {
      const std::size_t max_in_flight = static_cast<std::size_t>(plan.max_in_flight);
      channels_[place].posted.assign(
          std::min(max_in_flight, program.channels[place].messages.size()), 0);
    }
    std::vector<runtime::ParameterLayout> layouts;
    for (std::int32_t pp = 0; pp < plan.parallel.pp; ++pp) {
      layouts.push_back(runtime::layout_of(plan, pp));
    }
    for (std::size_t place = 0; place < devices_.size(); ++place) {
      const runtime::DeviceProgram& own = program.devices[place];
      // Shared weights have no sums beside units.
      if (plan.memory.weights == WeightState::sharded) continue;
      devices_[place].buckets = runtime::BucketQueue(
          runtime::buckets_of(plan.model, plan.stages, {parallel_, own.dp, own.pp},
                              layouts[static_cast<std::size_t>(own.pp)]));
      devices_[place].buckets.begin_step();
    }
  }

  [[nodiscard]] StepOrder run() {
    for (std::size_t device = 0; device < devices_.size(); ++device) wake(device);
    while (!awake_.empty()) {
      const std::size_t device = awake_.front();
      awake_.pop_front();
      devices_[device].awake = false;
      while (advance(device)) {
      }
    }
    for (std::size_t device = 0; device < devices_.size(); ++device) {
      const auto& units = program_.devices[device].units;
      if (units.empty()) continue;
      const std::size_t next = std::min(devices_[device].next, units.size() - 1);
      if (devices_[device].next == units.size() && devices_[device].sums == 0) continue;
      throw Deadlock("execution cannot end: device (dp " +
                     std::to_string(program_.devices[device].dp) + ", pp " +
                     std::to_string(program_.devices[device].pp) + ") waits for ever at unit " +
                     std::to_string(next) + ", " + to_string(units[next].unit));
    }
    std::stable_sort(events_.begin(), events_.end(),
                     [](const Event& a, const Event& b) { return a.time < b.time; });
    // O has collectives, of the stages and then of the ranks, so it comes behind all else.
    for (std::size_t device = 0; device < devices_.size(); ++device) {
      const auto& units = program_.devices[device].units;
      if (units.empty() || units.back().unit.kind != UnitKind::optimizer) continue;
      events_.push_back({0, {{device, {Turn::Kind::unit, units.size() - 1, 0, 0}}}});
    }
    StepOrder order;
    order.devices.resize(devices_.size());
    for (const Event& event : events_) {
      for (const auto& [device, turn] : event.turns) order.devices[device].push_back(turn);
    }
    order.sums = std::move(known_sums_);
    return order;
  }

 private:
  using Time = std::int64_t;
  /// The degrees without tensor parallelism: devices are numbered as in `Plan::schedule`.
  [[nodiscard]] static Parallel alone(Parallel parallel) {
    parallel.tp = 1;
    return parallel;
  }
  struct Event {
    Time time = 0;
    std::vector<std::pair<std::size_t, Turn>> turns;
  };
  struct Device {
    std::size_t next = 0;
    Time clock = 0;
    bool awake = false, waits = false;  ///< `waits`: it has come to a process group
    std::size_t sums = 0;               ///< that it has queued and that have not ended
    runtime::BucketQueue buckets;
  };
  struct Channel {
    std::vector<Time> sent, posted, ended;
  };
  using ProcessGroupKey = std::tuple<UnitKind, PackId, std::int32_t, std::int32_t>;
  struct Gathering {
    std::vector<std::size_t> come;
    Time time = 0;
  };
  struct OpenSum {
    std::size_t number = 0, come = 0;  ///< in StepOrder::sums; members that have queued it
    Time time = 0;
  };

  void wake(std::size_t device) {
    if (std::exchange(devices_[device].awake, true)) return;
    awake_.push_back(device);
  }

  /// Whether the device's next unit has begun, which is then done.
  bool advance(std::size_t place) {
    Device& device = devices_[place];
    const runtime::DeviceProgram& own = program_.devices[place];
    if (device.waits || device.next == own.units.size()) return false;
    const runtime::UnitWork& work = own.units[device.next];
    if (work.unit.kind == UnitKind::optimizer) {
      require(device.next + 1 == own.units.size(), "execution: O must be the last unit of device",
              static_cast<std::int64_t>(place));
      ++device.next;
      return false;
    }
    const auto max_in_flight = static_cast<std::size_t>(plan_.max_in_flight);
    Time start = device.clock;
    const auto await = [&](const runtime::MessageRef& message, std::size_t back) {
      const auto& ended = channels_[message.channel].ended;
      if (message.index < back) return true;
      if (ended.size() <= message.index - back) return false;
      start = std::max(start, ended[message.index - back]);
      return true;
    };
    if (work.send && !await(*work.send, max_in_flight)) return false;
    if (work.receive && !await(*work.receive, 0)) return false;
    const std::vector<std::size_t> members = members_of(place, work);
    if (members.size() == 1) {
      finish(members, start, start + cost(place, work));
      return true;
    }
    const UnitKind kind = work.unit.kind;
    Gathering& gathering = gatherings_[{kind, work.unit.pack, work.unit.chunk,
                                        kind == UnitKind::head ? own.dp : own.pp}];
    gathering.come.push_back(place);
    gathering.time = std::max(gathering.time, start);
    device.waits = true;
    if (gathering.come.size() < members.size()) return false;
    Time longest = 0;
    for (const std::size_t member : members) {
      devices_[member].waits = false;
      longest =
          std::max(longest, cost(member, program_.devices[member].units[devices_[member].next]));
    }
    finish(members, gathering.time, gathering.time + longest);
    for (const std::size_t member : members) wake(member);
    return true;
  }

  [[nodiscard]] std::vector<std::size_t> members_of(std::size_t place,
                                                    const runtime::UnitWork& work) const {
    const runtime::DeviceProgram& own = program_.devices[place];
    std::vector<std::size_t> members;
    if (work.unit.kind == UnitKind::forward || work.unit.kind == UnitKind::backward) {
      for (const std::int32_t dp :
           plan_.groups[index(plan_.micropacks[index(work.unit.pack)].group)]) {
        members.push_back(device_index(plan_, dp, own.pp));
      }
    } else if (work.unit.kind == UnitKind::head && plan_.parallel.head == LmHead::shard) {
      members = runtime::StageProcessGroups{parallel_, own.dp, own.pp}.stages().members;
    } else {
      members = {place};
    }
    return members;
  }

  /// The next unit of each of them runs from `start` to `time`.
  void finish(const std::vector<std::size_t>& members, Time start, Time time) {
    const auto releases = [&](std::size_t member) {
      return program_.devices[member].units[devices_[member].next].releases;
    };
    const bool together = std::ranges::all_of(members, releases);
    if (together) pass_layers(members, start, time);
    Event event{time, {}};
    for (const std::size_t member : members) {
      event.turns.push_back({member, {Turn::Kind::unit, devices_[member].next, 0, 0}});
    }
    events_.push_back(std::move(event));
    for (const std::size_t member : members) {
      const runtime::UnitWork& work = program_.devices[member].units[devices_[member].next++];
      devices_[member].clock = time;
      const auto sum = [&](const runtime::Bucket& bucket) { arrive(member, bucket, time); };
      if (work.releases && !together) {
        const Stage& stage = plan_.stages[static_cast<std::size_t>(work.virtual_stage)];
        for (std::int64_t layer = stage.end_layer; layer-- > stage.first_layer;) {
          devices_[member].buckets.pass(layer, sum);
        }
      }
      if (work.unit.kind == UnitKind::reduce) {
        devices_[member].buckets.reduce(work.unit.chunk, sum);
      }
      if (work.send) {
        channels_[work.send->channel].sent.push_back(time);
        transfer(work.send->channel);
      }
      if (work.receive) {
        Channel& channel = channels_[work.receive->channel];
        if (channel.posted.size() < program_.channels[work.receive->channel].messages.size()) {
          channel.posted.push_back(time);
        }
        transfer(work.receive->channel);
      }
    }
  }

  void transfer(std::size_t place) {
    Channel& channel = channels_[place];
    const runtime::Channel& name = program_.channels[place].channel;
    const std::size_t from = device_index(plan_, name.dp, name.from);
    const std::size_t to = device_index(plan_, name.dp, name.to);
    while (channel.ended.size() < std::min(channel.sent.size(), channel.posted.size())) {
      const std::size_t message = channel.ended.size();
      Time time = std::max(channel.sent[message], channel.posted[message]);
      if (message > 0) time = std::max(time, channel.ended.back());
      channel.ended.push_back(time);
      events_.push_back({time,
                         {{from, {Turn::Kind::send, message, place, 0}},
                          {to, {Turn::Kind::receive, message, place, 0}}}});
      wake(from);
      wake(to);
    }
  }

  /// All layers of B take as long.
  void pass_layers(const std::vector<std::size_t>& members, Time start, Time time) {
    const runtime::DeviceProgram& own = program_.devices[members.front()];
    const runtime::UnitWork& work = own.units[devices_[members.front()].next];
    const Stage& stage = plan_.stages[static_cast<std::size_t>(work.virtual_stage)];
    for (std::int64_t layer = stage.end_layer; layer-- > stage.first_layer;) {
      const Time passed = start + (time - start) * (stage.end_layer - layer) / stage.layers();
      for (const std::size_t member : members) {
        devices_[member].buckets.pass(layer, [&](const runtime::Bucket& bucket) {
          if (bucket.process_group.members.size() == 1) return;
          const std::size_t number = open(bucket).number;
          events_.push_back(
              {passed, {{member, {Turn::Kind::pass, devices_[member].next, 0, number}}}});
          arrive(member, bucket, passed);
        });
      }
    }
  }

  [[nodiscard]] OpenSum& open(const runtime::Bucket& bucket) {
    const StepSum sum{bucket.process_group.members, bucket.tag};
    const auto [found, added] = sums_.try_emplace(sum, OpenSum{known_sums_.size(), 0, 0});
    if (added) known_sums_.push_back(sum);
    return found->second;
  }

  void arrive(std::size_t device, const runtime::Bucket& bucket, Time time) {
    const auto& members = bucket.process_group.members;
    if (members.size() == 1) return;
    ++devices_[device].sums;
    OpenSum& state = open(bucket);
    state.time = std::max(state.time, time);
    if (++state.come < members.size()) return;
    Event event{state.time, {}};
    for (const std::size_t member : members) {
      event.turns.push_back({member, {Turn::Kind::sum, 0, 0, state.number}});
      --devices_[member].sums;
    }
    events_.push_back(std::move(event));
  }

  /// Time of a unit, in proportion to the operations of the device's part; B has twice those of F,
  /// W those of F without attention.
  [[nodiscard]] Time cost(std::size_t place, const runtime::UnitWork& work) const {
    const ModelShape& model = plan_.model;
    const std::int64_t h = model.hidden, q = model.query_width(), k = model.key_width();
    const UnitKind kind = work.unit.kind;
    if (kind == UnitKind::reduce || kind == UnitKind::optimizer) return 0;
    const runtime::PackWork& pack = program_.packs[index(work.unit.pack)][work.rank];
    if (kind == UnitKind::head) {
      const std::int64_t shards = plan_.parallel.head == LmHead::shard ? plan_.parallel.pp : 1;
      const bool here = shards > 1 || program_.devices[place].pp + 1 == plan_.parallel.pp;
      return here ? pack.rows.value * (3 * h * (model.vocab / shards) / 1024 + 1) : 0;
    }
    const std::int64_t layers = plan_.stages[static_cast<std::size_t>(work.virtual_stage)].layers();
    const std::int64_t row = (2 * h * (q + k) + 3 * h * model.ffn) / 1024 + 1;
    Time time = 1;
    for (const runtime::Segment& segment : pack.segments) {
      const std::int64_t context =
          kind == UnitKind::weight ? 0 : (segment.slice.begin + segment.slice.end).value / 2;
      time += segment.rows.value * layers * (row + 2 * q * context / 1024);
    }
    return kind == UnitKind::backward ? 2 * time : time;
  }

  const Plan& plan_;
  const runtime::Program& program_;
  Parallel parallel_;
  std::vector<Device> devices_;
  std::vector<Channel> channels_;
  std::deque<std::size_t> awake_;
  std::map<ProcessGroupKey, Gathering> gatherings_;
  std::map<StepSum, OpenSum> sums_;
  std::vector<StepSum> known_sums_;
  std::vector<Event> events_;
};

}  // namespace detail

/// The order of a plan, the same on all ranks that have the plan. Throws Deadlock naming a unit
/// where the plan's units wait for each other for ever. O(n log n) in units and messages, times the
/// ranks of a group.
[[nodiscard]] inline StepOrder order_of(const Plan& plan, const runtime::Program& program) {
  return detail::OrderRun(plan, program).run();
}

/// The communicators of a plan, in an order that all ranks agree on: those of its degrees first, so
/// that later steps of a run add context-parallel groups at most. O(devices + groups x stages x
/// tp).
[[nodiscard]] inline std::vector<CommunicatorKey> communicators_of(const Plan& plan) {
  const Parallel& parallel = plan.parallel;
  std::vector<CommunicatorKey> communicators;
  std::set<CommunicatorKey> known;
  const auto add = [&](CommunicatorKey::Use use, std::vector<std::size_t> members) {
    CommunicatorKey key{use, std::move(members)};
    if (key.members.size() > 1 && known.insert(key).second) communicators.push_back(key);
  };
  const auto for_each_part = [&](std::int32_t dp, std::int32_t pp, const auto& visit) {
    for (std::int32_t tp = 0; tp < parallel.tp; ++tp) {
      visit(runtime::StageProcessGroups{parallel, dp, pp, tp});
    }
  };
  for (std::int32_t dp = 0; dp < parallel.dp; ++dp) {
    for (std::int32_t pp = 0; pp < parallel.pp; ++pp) {
      const std::int32_t next = (pp + 1) % parallel.pp;
      for_each_part(dp, pp, [&](const runtime::StageProcessGroups& process_groups) {
        add(CommunicatorKey::Use::process_group, process_groups.tensor().members);
        if (parallel.pp == 1 || (next == 0 && parallel.chunks == 1)) return;
        const std::size_t here = process_groups.device_at(dp, pp);
        const std::size_t there = process_groups.device_at(dp, next);
        add(CommunicatorKey::Use::down, {here, there});
        add(CommunicatorKey::Use::up, {there, here});
      });
    }
    for_each_part(dp, 0, [&](const runtime::StageProcessGroups& process_groups) {
      add(CommunicatorKey::Use::process_group, process_groups.stages().members);
    });
  }
  for (std::int32_t pp = 0; pp < parallel.pp; ++pp) {
    for_each_part(0, pp, [&](const runtime::StageProcessGroups& process_groups) {
      add(CommunicatorKey::Use::process_group, process_groups.ranks().members);
      add(CommunicatorKey::Use::sum, process_groups.ranks().members);
      const auto layout = runtime::layout_of(plan, pp, process_groups.tp);
      for (const runtime::TablePart& part : process_groups.table_parts(plan.model, layout)) {
        add(CommunicatorKey::Use::sum, part.process_group.members);
      }
    });
  }
  for (const auto& ranks : plan.groups) {
    for (std::int32_t pp = 0; pp < parallel.pp; ++pp) {
      for_each_part(0, pp, [&](const runtime::StageProcessGroups& process_groups) {
        add(CommunicatorKey::Use::process_group, process_groups.of_ranks(ranks, 0).members);
      });
    }
  }
  return communicators;
}

/// How many communicators a rank may be a member of, in plans whose context-parallel groups have
/// sizes that divide one another: messages to both neighbours in both directions and, with chunks,
/// from the last stage to the first; collectives and sums over ranks, the stages, a tied table, the
/// tensor-parallel devices, and a group of each size.
[[nodiscard]] constexpr std::int64_t most_communicators(std::int32_t dp, std::int32_t pp,
                                                        std::int32_t tp) noexcept {
  const auto ranks = static_cast<std::uint32_t>(dp);
  return (pp > 1 ? 8 : 0) + (dp > 1 ? 2 : 0) + (tp > 1 ? 1 : 0) + std::bit_width(ranks) - 1;
}

}  // namespace slimpack::cuda::nccl
