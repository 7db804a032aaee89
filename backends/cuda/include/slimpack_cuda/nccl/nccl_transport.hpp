// SPDX-License-Identifier: Apache-2.0
// A transport between processes with a GPU each, over NCCL, in the order of devices' streams.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/runtime/process_groups.hpp"
#include "slimpack/runtime/program.hpp"
#include "slimpack/runtime/transport.hpp"
#include "slimpack_cuda/bf16.hpp"
#include "slimpack_cuda/device.hpp"
#include "slimpack_cuda/nccl/api.hpp"
#include "slimpack_cuda/nccl/communicators.hpp"
#include "slimpack_cuda/nccl/control.hpp"
#include "slimpack_cuda/nccl/order.hpp"

namespace slimpack::cuda::nccl {

/// Elements [first, last) of each member.
using Parts = std::vector<std::pair<std::size_t, std::size_t>>;

/// Elements [first, last) of `size` that each of `members` holds, where the own ones are given:
/// equal parts of which the last may be short or empty, or size * i / members to size * (i + 1) /
/// members. Throws InvalidInput where they are neither.
[[nodiscard]] inline Parts parts_of(std::size_t members, std::size_t self, std::size_t size,
                                    std::size_t first, std::size_t last) {
  require(first <= last && last <= size, "transport: all_gather past the end",
          static_cast<std::int64_t>(last));
  Parts parts;
  if (first == size * self / members && last == size * (self + 1) / members) {
    for (std::size_t i = 0; i < members; ++i) {
      parts.emplace_back(size * i / members, size * (i + 1) / members);
    }
    return parts;
  }
  const bool empty = first == size;
  const std::size_t part = empty ? (size + members - 1) / members : self == 0 ? last : first / self;
  require(first == std::min(size, part * self) && last == std::min(size, part * (self + 1)) &&
              part * members >= size,
          "transport: all_gather must be of equal parts, not so the one that begins at",
          static_cast<std::int64_t>(first));
  for (std::size_t i = 0; i < members; ++i) {
    parts.emplace_back(std::min(size, part * i), std::min(size, part * (i + 1)));
  }
  return parts;
}

/// Elements of each member in a piece.
[[nodiscard]] inline Parts parts_in(const runtime::ShardPiece& piece, std::size_t members) {
  Parts parts;
  for (std::size_t member = 0; member < members; ++member) parts.push_back(piece.of(member));
  return parts;
}

/// One rank's end. It lives over all steps of a run and is used by one thread; rank and
/// device (`device_number`) are the same number. Every call means "in the order of the device's
/// compute stream": the host waits for nothing but NCCL's own beginnings, and for the device in
/// `await_device` alone. Each communicator has a stream of its own; the compute stream waits for
/// what a process group does there at once, for what has a beginning and an end when that is ended.
/// What is issued, and when, follows from the plan (StepOrder), so that neither hosts nor devices
/// can wait in a circle; NCCL adds up in its own order. Where another rank has failed, calls throw
/// Aborted with the first cause, and all communicators are gone.
class NcclTransport {
 public:
  /// `compute` is the stream on which the device of the steps computes.
  NcclTransport(NcclApi& api, Control& control, StreamView compute, const NcclOptions& options = {})
      : control_(control),
        compute_(compute),
        bucket_(options.bucket),
        communicators_(api, control, options) {}

  /// All ranks begin the step of one plan.
  void begin_step(const Plan& plan, const runtime::Program& program) {
    std::vector<runtime::Channel> channels;
    for (const runtime::ChannelWork& work : program.channels) channels.push_back(work.channel);
    begin_step(order_of(plan, program), std::move(channels), communicators_of(plan), plan.parallel,
               plan.max_in_flight);
  }

  /// The same for any order of a plan of such degrees. `channels` are those that turns of the order
  /// count in. Throws InvalidInput also unless max_in_flight >= 1.
  void begin_step(StepOrder order, std::vector<runtime::Channel> channels,
                  std::span<const CommunicatorKey> communicators, const Parallel& parallel,
                  std::int32_t max_in_flight) {
    const auto parts = static_cast<std::size_t>(parallel.tp);
    require(max_in_flight >= 1, "NcclTransport: window must be >= 1", max_in_flight);
    require(control_.rank() < order.devices.size() * parts,
            "NcclTransport: ranks must be devices of the plan",
            static_cast<std::int64_t>(control_.rank()));
    // Tensor-parallel devices have one order, each with devices and channels of its own part.
    const std::size_t part = control_.rank() % parts;
    for (StepSum& sum : order.sums) {
      for (std::size_t& member : sum.members) member = member * parts + part;
    }
    for (runtime::Channel& channel : channels) channel.tp = static_cast<std::int32_t>(part);
    communicators_.make(communicators);
    turns_ = std::move(order.devices[control_.rank() / parts]);
    step_sums_ = std::move(order.sums);
    names_ = std::move(channels);
    parallel_ = parallel;
    max_in_flight_ = static_cast<std::size_t>(max_in_flight);
    next_ = unit_ = 0;
    channels_.clear();
    sums_.clear();
    control_.inside(true);
  }

  /// Ends the step: from here on the rank may do what it likes, and others wait for it without
  /// limit. Throws ExecutionError if a message or sum is left.
  void end_step(const std::string& place) {
    for (const auto& [channel, state] : channels_) {
      if (!state.sends.empty() || !state.receives.empty()) {
        throw runtime::ExecutionError(
            "the step must end drained, but holds an unfinished message on " +
            runtime::to_string(channel));
      }
    }
    if (!sums_.empty()) {
      throw runtime::ExecutionError(
          "the step must end drained, but holds a sum that was not awaited");
    }
    control_.announce(place);
    control_.inside(false);
  }

  /// What is before unit `unit` of the device's order, or before the first sum that the unit
  /// queues, is issued now.
  void begin_unit(std::size_t unit) {
    unit_ = unit;
    issue();
  }

  /// The host waits until the event has been reached; throws where it cannot be any more.
  void await_device(const Event& event) { communicators_.await(event); }

  // --- runtime::Transport ---

  void post_receive(const runtime::Channel& channel, std::size_t message,
                    std::span<std::byte> into) {
    ChannelState& state = channels_[channel];
    require(message == state.posted && state.posted - state.awaited < max_in_flight_,
            "transport: receives must be posted in order and within max_in_flight on " +
                runtime::to_string(channel),
            static_cast<std::int64_t>(message));
    ++state.posted;
    state.receives.push_back(transfer(into.data(), into.size()));
  }

  void await_receive(const runtime::Channel& channel, std::size_t message) {
    ChannelState& state = channels_[channel];
    require(message == state.awaited && message < state.posted,
            "transport: receives must be awaited in order", static_cast<std::int64_t>(message));
    Transfer& receive = state.receives.front();
    if (!receive.issued)
      throw runtime::ExecutionError(early("message", message) + runtime::to_string(channel));
    receive.event.make_wait(compute_);
    ++state.awaited;
    retire(state.receives);
  }

  void queue_send(const runtime::Channel& channel, std::size_t message,
                  std::span<const std::byte> from) {
    ChannelState& state = channels_[channel];
    collect(state);
    require(message == state.sent && state.sent - state.ended < max_in_flight_,
            "transport: sends must be queued in order and within max_in_flight on " +
                runtime::to_string(channel),
            static_cast<std::int64_t>(message));
    ++state.sent;
    state.sends.push_back(transfer(const_cast<std::byte*>(from.data()), from.size()));  // NOLINT
  }

  [[nodiscard]] bool send_ended(const runtime::Channel& channel, std::size_t message) {
    ChannelState& state = channels_[channel];
    collect(state);
    return state.ended > message;
  }

  void await_send(const runtime::Channel& channel, std::size_t message) {
    ChannelState& state = channels_[channel];
    while (state.ended <= message && !state.sends.empty()) {
      Transfer& send = state.sends.front();
      if (!send.issued)
        throw runtime::ExecutionError(early("message", message) + runtime::to_string(channel));
      send.event.make_wait(compute_);
      ++state.ended;
      retire(state.sends);
    }
  }

  void ring(const runtime::ProcessGroup& process_group, std::size_t hop,
            std::span<const std::byte> from, std::span<std::byte> into) {
    begin_ring(process_group, hop, from, into);
    end_ring();
  }
  /// The beginning of `ring`, behind what the compute stream has done so far. Until end_ring nobody
  /// writes to `from` or touches `into`.
  void begin_ring(const runtime::ProcessGroup& process_group, std::size_t hop,
                  std::span<const std::byte> from, std::span<std::byte> into) {
    const std::size_t members = process_group.members.size();
    if (members == 1) {
      if (!into.empty()) copy_on_device(into.data(), from.data(), into.size(), compute_);
      return;
    }
    if (from.empty() && into.empty()) return;
    const Member& member =
        communicators_.at({CommunicatorKey::Use::process_group, process_group.members});
    beside(member, rings_, [&](StreamView stream) {
      communicators_.issue(member, [&](NcclApi& api) {
        api.group_begin();
        if (!from.empty()) {
          api.send(member.comm, from.data(), from.size(), process_group.next(hop), stream);
        }
        if (!into.empty()) {
          api.receive(member.comm, into.data(), into.size(), process_group.before(hop), stream);
        }
        api.group_end();
      });
    });
  }
  void end_ring() { join(rings_); }

  void all_to_all(const runtime::ProcessGroup& process_group,
                  std::span<const std::span<const std::byte>> from,
                  std::span<const std::span<std::byte>> into) {
    require(exchanges_.empty(), "transport: an all_to_all is under way");
    begin_all_to_all(process_group, from, into);
    end_all_to_all();
  }
  /// The beginning of `all_to_all`, behind what the compute stream has done so far: until its end
  /// nobody writes to what is given or touches what is filled. Others may begin before it ends,
  /// which they do in the order in which they began.
  void begin_all_to_all(const runtime::ProcessGroup& process_group,
                        std::span<const std::span<const std::byte>> from,
                        std::span<const std::span<std::byte>> into) {
    runtime::check_all_to_all(process_group, from.size(), into.size());
    std::vector<Event>& end = exchanges_.emplace_back();
    const auto some = [](const auto& part) { return !part.empty(); };
    const std::size_t self = process_group.self;
    require(from[self].size() == into[self].size(),
            "transport: members of all_to_all must agree on bytes",
            static_cast<std::int64_t>(into[self].size()));
    const auto copy_own = [&](StreamView stream) {
      if (into[self].empty()) return;
      copy_on_device(into[self].data(), from[self].data(), into[self].size(), stream);
    };
    if (process_group.members.size() == 1) return copy_own(compute_);
    if (std::ranges::none_of(from, some) && std::ranges::none_of(into, some)) return;
    const Member& member =
        communicators_.at({CommunicatorKey::Use::process_group, process_group.members});
    beside(member, end, [&](StreamView stream) {
      copy_own(stream);
      communicators_.issue(member, [&](NcclApi& api) {
        api.group_begin();
        for (std::size_t peer = 0; peer < from.size(); ++peer) {
          if (peer == self) continue;
          if (some(from[peer])) {
            api.send(member.comm, from[peer].data(), from[peer].size(), peer, stream);
          }
          if (some(into[peer])) {
            api.receive(member.comm, into[peer].data(), into[peer].size(), peer, stream);
          }
        }
        api.group_end();
      });
    });
  }
  /// From here on the compute stream is behind the first all_to_all under way.
  void end_all_to_all() {
    require(!exchanges_.empty(), "transport: no all_to_all is under way");
    join(exchanges_.front());
    exchanges_.pop_front();
  }

  template <class Element>
    requires std::is_trivially_copyable_v<Element>
  void broadcast(const runtime::ProcessGroup& process_group, std::size_t root,
                 std::span<Element> values) {
    if (process_group.members.size() == 1 || values.empty()) return;
    const Member& member =
        communicators_.at({CommunicatorKey::Use::process_group, process_group.members});
    at_once(member, [&](StreamView stream) {
      communicators_.issue(member, [&](NcclApi& api) {
        api.broadcast(member.comm, values.data(), values.size_bytes(), root, stream);
      });
    });
  }

  template <std::floating_point Element>
  void all_reduce(const runtime::ProcessGroup& process_group, std::span<Element> values,
                  runtime::Reduction reduction) {
    if (process_group.members.size() == 1 || values.empty()) return;
    const Member& member =
        communicators_.at({CommunicatorKey::Use::process_group, process_group.members});
    at_once(member, [&](StreamView stream) {
      communicators_.issue(member, [&](NcclApi& api) {
        api.all_reduce(member.comm, values.data(), values.size(), number<Element>(), reduction,
                       stream);
      });
    });
  }

  /// Parts must be those of `parts_of`.
  template <class Element>
    requires std::floating_point<Element> || std::same_as<Element, Bf16>
  void reduce_scatter(const runtime::ProcessGroup& process_group, std::span<Element> values,
                      std::size_t first, std::size_t last) {
    begin_reduce_scatter(process_group, values, first, last);
    end_collective();
  }
  /// The beginning of `reduce_scatter`, behind what the compute stream has done so far. Until
  /// end_collective nobody touches `values`.
  template <class Element>
    requires std::floating_point<Element> || std::same_as<Element, Bf16>
  void begin_reduce_scatter(const runtime::ProcessGroup& process_group, std::span<Element> values,
                            std::size_t first, std::size_t last) {
    const std::size_t members = process_group.members.size();
    const auto parts = parts_of(members, process_group.self, values.size(), first, last);
    if (members == 1 || values.empty()) return;
    const Member& member =
        communicators_.at({CommunicatorKey::Use::process_group, process_group.members});
    beside(member, collectives_, [&](StreamView stream) {
      scatter(member, reinterpret_cast<std::byte*>(values.data()), number<Element>(), parts,
              stream);
    });
  }

  /// Parts must be those of `parts_of`.
  template <class Element>
    requires std::is_trivially_copyable_v<Element>
  void all_gather(const runtime::ProcessGroup& process_group, std::span<Element> values,
                  std::size_t first, std::size_t last) {
    begin_all_gather(process_group, values, first, last);
    end_collective();
  }
  /// The beginning of `all_gather`, as begin_reduce_scatter is of reduce_scatter.
  template <class Element>
    requires std::is_trivially_copyable_v<Element>
  void begin_all_gather(const runtime::ProcessGroup& process_group, std::span<Element> values,
                        std::size_t first, std::size_t last) {
    const std::size_t members = process_group.members.size();
    const auto parts = parts_of(members, process_group.self, values.size(), first, last);
    if (members == 1 || values.empty()) return;
    const Member& member =
        communicators_.at({CommunicatorKey::Use::process_group, process_group.members});
    beside(member, collectives_, [&](StreamView stream) { gather(member, values, parts, stream); });
  }
  void end_collective() { join(collectives_); }

  template <class Element>
    requires std::is_trivially_copyable_v<Element>
  void gather_parts(const runtime::ProcessGroup& process_group, std::span<Element> values,
                    const runtime::ShardLayout& shard_layout) {
    begin_gather(process_group, values, shard_layout);
    end_gathers();
  }
  /// The beginning of `gather_parts`, behind what the compute stream has done so far. Until
  /// end_gathers nobody touches `values`. It goes where sums do: rings and collectives of the same
  /// members that come next need not wait for it.
  template <class Element>
    requires std::is_trivially_copyable_v<Element>
  void begin_gather(const runtime::ProcessGroup& process_group, std::span<Element> values,
                    const runtime::ShardLayout& shard_layout) {
    runtime::check_shard_layout(process_group, values.size(), shard_layout);
    if (shard_layout.members == 1) return;
    const Member& member = communicators_.at({CommunicatorKey::Use::sum, process_group.members});
    beside(member, gathers_, [&](StreamView stream) {
      for (const runtime::ShardPiece& piece : shard_layout.pieces()) {
        gather(member, values, parts_in(piece, shard_layout.members), stream);
      }
    });
  }
  void end_gathers() { join(gathers_); }

  template <std::floating_point Element>
  void queue_scatter(const runtime::ProcessGroup& process_group, std::int64_t tag,
                     std::span<Element> values, const runtime::ShardLayout& shard_layout) {
    runtime::check_shard_layout(process_group, values.size(), shard_layout);
    queue(process_group, tag, values, shard_layout);
  }

  template <std::floating_point Element>
  void queue_sum(const runtime::ProcessGroup& process_group, std::int64_t tag,
                 std::span<Element> values) {
    queue(process_group, tag, values, std::nullopt);
  }

  void await_sum(const runtime::ProcessGroup& process_group, std::int64_t tag) {
    const auto found = sums_.find({process_group.members, tag});
    require(found != sums_.end(), "transport: a sum must be queued before it is awaited", tag);
    Sum& sum = found->second;
    if (process_group.members.size() > 1) {
      if (!sum.issued) throw runtime::ExecutionError(early("sum", static_cast<std::size_t>(tag)));
      sum.event.make_wait(compute_);
    }
    spare_.push_back(std::move(sum.event));
    sums_.erase(found);
  }

  /// Throws Aborted too: a rank that has nothing to do with the others ends at its next unit.
  void announce(const std::string& place) {
    communicators_.check();
    control_.announce(place);
  }

  void abort(const std::string& sentence) {
    control_.abort(sentence);
    give_up();
  }

  /// Ends all communicators now, without the others.
  void give_up() noexcept { communicators_.abort_all(); }

 private:
  /// `event` is on the compute stream until the transfer is issued: what is sent is there, or the
  /// place for it is free. From then on it is the transfer's end.
  struct Transfer {
    std::byte* data = nullptr;
    std::size_t bytes = 0;
    Event event;
    bool issued = false;
  };
  struct ChannelState {
    std::deque<Transfer> sends, receives;
    std::size_t sent = 0, ended = 0, posted = 0, awaited = 0;
  };
  struct Sum {
    std::byte* values = nullptr;
    std::size_t count = 0, element = 1;
    Number number = Number::f32;
    std::optional<runtime::ShardLayout> shard_layout;  ///< where members get their parts alone
    Event event;                                       ///< as of a transfer
    bool issued = false;
  };

  template <class Element>
  [[nodiscard]] static constexpr Number number() {
    if constexpr (std::same_as<Element, Bf16>) return Number::bf16;
    static_assert(std::same_as<Element, Bf16> || sizeof(Element) == 4 || sizeof(Element) == 8);
    return sizeof(Element) == 4 ? Number::f32 : Number::f64;
  }
  [[nodiscard]] static std::string early(const char* what, std::size_t number) {
    return std::string("transport: ") + what + " " + std::to_string(number) +
           " is awaited before its turn in the plan, ";
  }

  /// What a process group does beside the compute stream: behind what that has done so far.
  template <std::invocable<StreamView> Work>
  void beside(const Member& member, std::vector<Event>& ends, Work work) {
    const StreamView stream = member.stream->view();
    Event event = take_event();
    event.record(compute_);
    event.make_wait(stream);
    work(stream);
    event.record(stream);
    ends.push_back(std::move(event));
  }
  template <std::invocable<StreamView> Work>
  void at_once(const Member& member, Work work) {
    std::vector<Event> end;
    beside(member, end, work);
    join(end);
  }
  /// From here on the compute stream is behind all that ended there.
  void join(std::vector<Event>& ends) {
    for (Event& event : ends) {
      event.make_wait(compute_);
      spare_.push_back(std::move(event));
    }
    ends.clear();
  }

  /// Each member brings its own part, in the order of members.
  template <class Element>
  void gather(const Member& member, std::span<Element> values, const Parts& parts,
              StreamView stream) {
    const std::size_t begin = parts.front().first, part = parts.front().second - begin;
    const auto at = [&](std::size_t place) { return values.data() + place; };
    communicators_.issue(member, [&](NcclApi& api) {
      if (part * parts.size() == parts.back().second - begin) {
        return api.all_gather(member.comm, at(begin), part * sizeof(Element), stream);
      }
      api.group_begin();
      for (std::size_t root = 0; root < parts.size(); ++root) {
        const auto [first, last] = parts[root];
        if (first == last) continue;
        api.broadcast(member.comm, at(first), (last - first) * sizeof(Element), root, stream);
      }
      api.group_end();
    });
  }

  template <std::floating_point Element>
  void queue(const runtime::ProcessGroup& process_group, std::int64_t tag,
             std::span<Element> values, std::optional<runtime::ShardLayout> shard_layout) {
    const StepSum key{process_group.members, tag};
    require(!sums_.contains(key), "transport: a sum must be awaited before it is queued again",
            tag);
    Sum& sum = sums_[key];
    sum.values = reinterpret_cast<std::byte*>(values.data());
    sum.count = values.size();
    sum.element = sizeof(Element);
    sum.number = number<Element>();
    sum.shard_layout = shard_layout;
    sum.event = take_event();
    sum.event.record(compute_);
    issue();
  }

  [[nodiscard]] Event take_event() {
    if (spare_.empty()) return Event();
    Event event = std::move(spare_.back());
    spare_.pop_back();
    return event;
  }
  [[nodiscard]] Transfer transfer(std::byte* data, std::size_t bytes) {
    Transfer made{data, bytes, take_event(), false};
    made.event.record(compute_);
    return made;
  }
  void retire(std::deque<Transfer>& transfers) {
    spare_.push_back(std::move(transfers.front().event));
    transfers.pop_front();
  }
  void collect(ChannelState& state) {
    while (!state.sends.empty() && state.sends.front().issued &&
           state.sends.front().event.reached()) {
      ++state.ended;
      retire(state.sends);
    }
  }

  [[nodiscard]] Member& link_of(const runtime::Channel& channel) {
    const auto device = [&](std::int32_t stage) {
      return runtime::StageProcessGroups{parallel_, channel.dp, stage, channel.tp}.device_at(
          channel.dp, stage);
    };
    const bool down = channel.direction == runtime::Direction::down;
    return communicators_.at({down ? CommunicatorKey::Use::down : CommunicatorKey::Use::up,
                              {device(channel.from), device(channel.to)}});
  }

  /// Up to the end of the unit that runs, or to a sum that it has not queued yet.
  void issue() {
    for (; next_ < turns_.size(); ++next_) {
      const Turn& turn = turns_[next_];
      const bool unit = turn.kind == Turn::Kind::unit, pass = turn.kind == Turn::Kind::pass;
      if (unit && turn.number >= unit_) break;
      if (pass && turn.number >= unit_ && !sums_.contains(step_sums_[turn.sum])) break;
      if (turn.kind == Turn::Kind::sum) {
        issue_sum(step_sums_[turn.sum]);
      } else if (!unit && !pass) {
        issue_message(turn);
      }
    }
  }

  /// Issues a message on its communicator's own stream, behind what the compute stream had done
  /// when it was posted. A message of no bytes is not sent.
  void issue_message(const Turn& turn) {
    const runtime::Channel& name = names_[turn.channel];
    ChannelState& state = channels_[name];
    const bool sends = turn.kind == Turn::Kind::send;
    if (turn.number >= (sends ? state.sent : state.posted)) {
      throw runtime::ExecutionError(early("message", turn.number) + runtime::to_string(name));
    }
    Transfer& one = sends ? state.sends[turn.number - state.ended]
                          : state.receives[turn.number - state.awaited];
    const Member& link = link_of(name);
    const StreamView stream = link.stream->view();
    one.event.make_wait(stream);
    if (one.bytes > 0) {
      communicators_.issue(link, [&](NcclApi& api) {
        if (sends) return api.send(link.comm, one.data, one.bytes, 1, stream);
        api.receive(link.comm, one.data, one.bytes, 0, stream);
      });
    }
    one.event.record(stream);
    one.issued = true;
  }

  /// Issues a sum in buckets, so that nothing else has to wait for the whole of it. A sum that
  /// nobody queued is left out: in an evaluation there are no gradients.
  void issue_sum(const StepSum& key) {
    const auto found = sums_.find(key);
    if (found == sums_.end()) return;
    Sum& sum = found->second;
    const Member& member = communicators_.at({CommunicatorKey::Use::sum, key.members});
    sum.event.make_wait(member.stream->view());
    if (sum.shard_layout) {
      for (const runtime::ShardPiece& piece : sum.shard_layout->pieces()) {
        scatter(member, sum.values, sum.number, parts_in(piece, sum.shard_layout->members),
                member.stream->view());
      }
    } else {
      const std::size_t most = std::max<std::size_t>(1, bucket_ / sum.element);
      for (std::size_t i = 0; i < sum.count; i += most) {
        communicators_.issue(member, [&](NcclApi& api) {
          api.all_reduce(member.comm, sum.values + i * sum.element, std::min(most, sum.count - i),
                         sum.number, runtime::Reduction::sum, member.stream->view());
        });
      }
    }
    sum.event.record(member.stream->view());
    sum.issued = true;
  }

  /// Each member gets the sums of its own part, in the order of members.
  void scatter(const Member& member, std::byte* values, Number number, const Parts& parts,
               StreamView stream) {
    const std::size_t begin = parts.front().first, part = parts.front().second - begin;
    const auto at = [&](std::size_t place) { return values + place * bytes_of(number); };
    communicators_.issue(member, [&](NcclApi& api) {
      if (part * parts.size() == parts.back().second - begin) {
        return api.reduce_scatter(member.comm, at(begin), part, number, stream);
      }
      api.group_begin();
      for (std::size_t root = 0; root < parts.size(); ++root) {
        const auto [first, last] = parts[root];
        if (first == last) continue;
        api.reduce(member.comm, at(first), last - first, number, root, stream);
      }
      api.group_end();
    });
  }

  Control& control_;
  StreamView compute_;
  std::size_t bucket_;
  std::vector<Event> spare_, rings_, gathers_, collectives_;
  std::deque<std::vector<Event>> exchanges_;  ///< under way, in the order of their beginnings
  Communicators communicators_;

  // Of the step.
  std::vector<Turn> turns_;
  std::vector<StepSum> step_sums_;
  std::vector<runtime::Channel> names_;
  Parallel parallel_;
  std::size_t max_in_flight_ = 1, next_ = 0, unit_ = 0;
  std::map<runtime::Channel, ChannelState> channels_;
  std::map<StepSum, Sum> sums_;
};

static_assert(runtime::Transport<NcclTransport, double> &&
              runtime::ScatterTransport<NcclTransport, float> &&
              !runtime::Transport<Control, double>);

}  // namespace slimpack::cuda::nccl
