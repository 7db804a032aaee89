// SPDX-License-Identifier: Apache-2.0
// A transport between processes over MPI, one rank a device, with the bits of the one of threads.
#pragma once

#include <mpi.h>

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/runtime/transport.hpp"
#include "slimpack_mpi/engine.hpp"
#include "slimpack_mpi/flight.hpp"
#include "slimpack_mpi/session.hpp"
#include "slimpack_mpi/sum.hpp"
#include "slimpack_processes/monitor.hpp"

namespace slimpack::mpi {

/// One rank's end. It lives over all steps of a session and is used by one thread; rank and number
/// of the device (`device_number`) are the same. Where another rank has failed, was killed or
/// stopped, calls throw Aborted with the first cause; the rank must then end (`mpi::run`), for
/// messages may be under way into memory that is gone.
class MpiTransport {
 public:
  explicit MpiTransport(Session& session, const TransportOptions& options = {})
      : comm_(session.comm()), engine_(session, options, [this] { return advance(); }) {
    int* bound = nullptr;
    int known = 0;
    MPI_Comm_get_attr(comm_, MPI_TAG_UB, static_cast<void*>(&bound), &known);
    tag_end_ = known != 0 ? std::uint64_t{static_cast<unsigned>(*bound)} : 32767U;
  }

  [[nodiscard]] Session& session() noexcept { return engine_.session(); }
  /// The engine, for what all ranks do together, inside or outside of a step.
  [[nodiscard]] Engine& engine() noexcept { return engine_; }

  /// Begins a step of a plan with so many stages a data-parallel rank and so many tensor-parallel
  /// devices a stage. Throws InvalidInput unless all are >= 1.
  void begin_step(std::int32_t stages, std::int32_t max_in_flight,
                  std::int32_t tensor_parallel = 1) {
    require(max_in_flight >= 1, "MpiTransport: window must be >= 1", max_in_flight);
    require(stages >= 1, "MpiTransport: stages must be >= 1", stages);
    require(tensor_parallel >= 1, "MpiTransport: tensor-parallel devices must be >= 1",
            tensor_parallel);
    engine_.locked([&] {
      stages_ = static_cast<std::size_t>(stages);
      parts_ = static_cast<std::size_t>(tensor_parallel);
      max_in_flight_ = static_cast<std::size_t>(max_in_flight);
      channels_.clear();
      sums_.clear();
    });
    session().monitor().doing(processes::Doing::computing);
  }

  /// Ends the step: from here on the rank may do what it likes, and others wait for it without
  /// limit. Throws ExecutionError if a message or sum is left.
  void end_step(const std::string& place) {
    const std::string left = engine_.locked([&] { return leftover(); });
    if (!left.empty()) {
      throw runtime::ExecutionError("the step must end drained, but holds " + left);
    }
    session().monitor().announce(place);
    session().monitor().doing(processes::Doing::outside);
  }

  // --- runtime::Transport ---

  void post_receive(const runtime::Channel& channel, std::size_t message,
                    std::span<std::byte> into) {
    engine_.locked([&] {
      ChannelState& state = channels_[channel];
      require(message == state.posted && state.posted - state.awaited < max_in_flight_,
              "transport: receives must be posted in order and within max_in_flight on " +
                  runtime::to_string(channel),
              static_cast<std::int64_t>(message));
      ++state.posted;
      state.receives.emplace_back().receive(comm_, device(channel, channel.from), tag(channel),
                                            into);
    });
  }

  void await_receive(const runtime::Channel& channel, std::size_t message) {
    ChannelState& state = engine_.locked([&]() -> ChannelState& { return channels_[channel]; });
    engine_.wait_until(
        [&] {
          require(message == state.awaited && message < state.posted,
                  "transport: receives must be awaited in order",
                  static_cast<std::int64_t>(message));
          if (!state.receives.front().ended()) return false;
          state.receives.pop_front();
          ++state.awaited;
          return true;
        },
        [&] {
          return "message " + std::to_string(message) + " of " + runtime::to_string(channel);
        });
  }

  void queue_send(const runtime::Channel& channel, std::size_t message,
                  std::span<const std::byte> from) {
    engine_.locked([&] {
      ChannelState& state = channels_[channel];
      end_sends(state);
      require(message == state.sent && state.sent - state.ended < max_in_flight_,
              "transport: sends must be queued in order and within max_in_flight on " +
                  runtime::to_string(channel),
              static_cast<std::int64_t>(message));
      ++state.sent;
      state.sends.emplace_back().send(comm_, device(channel, channel.to), tag(channel), from);
    });
  }

  [[nodiscard]] bool send_ended(const runtime::Channel& channel, std::size_t message) {
    return engine_.locked([&] {
      ChannelState& state = channels_[channel];
      end_sends(state);
      return state.ended > message;
    });
  }

  void await_send(const runtime::Channel& channel, std::size_t message) {
    ChannelState& state = engine_.locked([&]() -> ChannelState& { return channels_[channel]; });
    engine_.wait_until(
        [&] {
          end_sends(state);
          return state.ended > message;
        },
        [&] {
          return "the end of message " + std::to_string(message) + " of " +
                 runtime::to_string(channel);
        });
  }

  void ring(const runtime::ProcessGroup& process_group, std::size_t hop,
            std::span<const std::byte> from, std::span<std::byte> into) {
    const std::size_t members = process_group.members.size();
    if (members == 1) {
      std::copy(from.begin(), from.end(), into.begin());
      return;
    }
    run_collective(process_group, [&](Flight& flight, int tag) {
      flight.receive(comm_, process_group.members[process_group.before(hop)], tag, into);
      flight.send(comm_, process_group.members[process_group.next(hop)], tag, from);
    });
  }

  void all_to_all(const runtime::ProcessGroup& process_group,
                  std::span<const std::span<const std::byte>> from,
                  std::span<const std::span<std::byte>> into) {
    runtime::check_all_to_all(process_group, from.size(), into.size());
    const std::size_t self = process_group.self;
    require(from[self].size() == into[self].size(),
            "transport: members of all_to_all must agree on bytes",
            static_cast<std::int64_t>(into[self].size()));
    std::copy(from[self].begin(), from[self].end(), into[self].begin());
    run_collective(process_group, [&](Flight& flight, int tag) {
      for_each_other(process_group, [&](std::size_t member, std::size_t rank) {
        flight.receive(comm_, rank, tag, into[member]);
        flight.send(comm_, rank, tag, from[member]);
      });
    });
  }

  template <std::floating_point Element>
  void broadcast(const runtime::ProcessGroup& process_group, std::size_t root,
                 std::span<Element> values) {
    const auto bytes = std::as_writable_bytes(values);
    run_collective(process_group, [&](Flight& flight, int tag) {
      if (process_group.self != root) {
        flight.receive(comm_, process_group.members[root], tag, bytes);
        return;
      }
      for (std::size_t member = 0; member < process_group.members.size(); ++member) {
        if (member != root) flight.send(comm_, process_group.members[member], tag, bytes);
      }
    });
  }

  template <std::floating_point Element>
  void all_reduce(const runtime::ProcessGroup& process_group, std::span<Element> values,
                  runtime::Reduction reduction) {
    Sum sum = engine_.locked([&] {
      return Sum(comm_, tag(Kind::process_group, process_group.members, 0), process_group, values,
                 reduction, std::exchange(spare_, {}));
    });
    engine_.wait_until([&] { return sum.ended(); },
                       [&] { return "a collective with" + others(process_group); });
    spare_ = sum.take_staging();
  }

  template <std::floating_point Element>
  void all_gather(const runtime::ProcessGroup& process_group, std::span<Element> values,
                  std::size_t first, std::size_t last) {
    const std::vector<Range> ranges =
        ranges_of(process_group, {first, last}, values.size(), "all_gather");
    run_collective(process_group, [&](Flight& flight, int tag) {
      const auto own = std::as_bytes(values.subspan(first, last - first));
      for_each_other(process_group, [&](std::size_t member, std::size_t rank) {
        flight.receive(comm_, rank, tag, std::as_writable_bytes(part(values, ranges[member])));
        flight.send(comm_, rank, tag, own);
      });
    });
  }

  /// Every member gets its part of all others, and adds them up in the order of members.
  template <std::floating_point Element>
  void reduce_scatter(const runtime::ProcessGroup& process_group, std::span<Element> values,
                      std::size_t first, std::size_t last) {
    const std::vector<Range> ranges =
        ranges_of(process_group, {first, last}, values.size(), "reduce_scatter");
    const std::size_t size = last - first;
    std::vector<Element> parts(process_group.members.size() * size);
    const auto brought = [&](std::size_t member) {
      return std::span(parts).subspan(member * size, size);
    };
    const std::span<Element> own = values.subspan(first, size);
    std::copy(own.begin(), own.end(), brought(process_group.self).begin());
    run_collective(process_group, [&](Flight& flight, int tag) {
      for_each_other(process_group, [&](std::size_t member, std::size_t rank) {
        flight.receive(comm_, rank, tag, std::as_writable_bytes(brought(member)));
        flight.send(comm_, rank, tag, std::as_bytes(part(values, ranges[member])));
      });
    });
    for (std::size_t member = 1; member < process_group.members.size(); ++member) {
      runtime::combine(brought(0), std::span<const Element>(brought(member)),
                       runtime::Reduction::sum);
    }
    std::copy(brought(0).begin(), brought(0).end(), own.begin());
  }

  template <std::floating_point Element>
  void queue_sum(const runtime::ProcessGroup& process_group, std::int64_t tag_number,
                 std::span<Element> values) {
    const SumKey key{process_group.members, tag_number};
    const int wire = tag(Kind::sum, process_group.members, tag_number);
    engine_.locked([&] {
      require(!sums_.contains(key), "transport: a sum must be awaited before it is queued again",
              tag_number);
      for (const auto& [other, sum] : sums_) {
        require(tag(Kind::sum, other.first, other.second) != wire,
                "transport: two sums under way must not have one number on the wire", wire);
      }
      sums_.emplace(
          key, Sum(comm_, wire, process_group, values, runtime::Reduction::sum, take_staging()));
    });
  }

  void await_sum(const runtime::ProcessGroup& process_group, std::int64_t tag_number) {
    const auto found =
        engine_.locked([&] { return sums_.find({process_group.members, tag_number}); });
    require(found != sums_.end(), "transport: a sum must be queued before it is awaited",
            tag_number);
    engine_.wait_until(
        [&] {
          if (!found->second.ended()) return false;
          if (stagings_.size() < kStagings) stagings_.push_back(found->second.take_staging());
          sums_.erase(found);
          return true;
        },
        [&] { return "sum " + std::to_string(tag_number) + " with" + others(process_group); });
  }

  /// Throws Aborted too: a rank that has nothing to do with the others ends at its next unit.
  void announce(const std::string& place) {
    engine_.locked([&] { static_cast<void>(advance()); });
    session().monitor().announce(place);
  }

  void abort(const std::string& sentence) { engine_.abort(sentence); }

 private:
  enum class Kind : std::uint8_t { channel, process_group, sum, control };
  static_assert(static_cast<int>(Kind::control) == Engine::kControl);
  static constexpr std::size_t kStagings = 16;
  struct ChannelState {
    std::deque<Flight> sends, receives;
    std::size_t sent = 0, posted = 0, ended = 0, awaited = 0;
  };
  using SumKey = std::pair<std::vector<std::size_t>, std::int64_t>;

  [[nodiscard]] std::size_t device(const runtime::Channel& channel, std::int32_t stage) const {
    return (static_cast<std::size_t>(channel.dp) * stages_ + static_cast<std::size_t>(stage)) *
               parts_ +
           static_cast<std::size_t>(channel.tp);
  }

  /// Messages of one pair of ranks with one tag stay in order. What must not be confused has
  /// different tags: channels exactly; process groups block, so that their order is that of all
  /// members unless they wait for each other for ever; of sums `queue_sum` makes sure.
  [[nodiscard]] int tag(const runtime::Channel& channel) const {
    const std::uint64_t number = std::uint64_t{index(channel.group)} * 2 +
                                 (channel.direction == runtime::Direction::up ? 1 : 0);
    require(number < tag_end_ / 4, "MpiTransport: MPI has no tag for group",
            static_cast<std::int64_t>(index(channel.group)));
    return static_cast<int>(number * 4);
  }
  [[nodiscard]] int tag(Kind kind, const std::vector<std::size_t>& members,
                        std::int64_t number) const {
    std::uint64_t hash = 0xcbf29ce484222325U;  // FNV-1a over numbers, mixed at the end
    const auto add = [&](std::uint64_t value) { hash = (hash ^ value) * 0x100000001b3U; };
    for (const std::size_t member : members) add(member);
    add(static_cast<std::uint64_t>(number));
    hash ^= hash >> 32U;
    return static_cast<int>(hash % (tag_end_ / 4) * 4 + static_cast<std::uint64_t>(kind));
  }

  [[nodiscard]] static std::string others(const runtime::ProcessGroup& process_group) {
    std::string text;
    for (std::size_t member = 0; member < process_group.members.size(); ++member) {
      if (member == process_group.self) continue;
      text += (text.empty() ? " rank " : ", rank ") + std::to_string(process_group.members[member]);
    }
    return text;
  }

  static void end_sends(ChannelState& state) {
    while (!state.sends.empty() && state.sends.front().ended()) {
      state.sends.pop_front();
      ++state.ended;
    }
  }

  /// Moves on what goes on by itself; whether anything is under way.
  bool advance() {
    for (auto& [key, sum] : sums_) static_cast<void>(sum.ended());
    return !leftover().empty();
  }

  [[nodiscard]] std::string leftover() const {
    for (const auto& [channel, state] : channels_) {
      if (!state.sends.empty() || !state.receives.empty()) {
        return "an unfinished message on " + runtime::to_string(channel);
      }
    }
    return sums_.empty() ? std::string() : "a sum that not all members awaited";
  }

  template <std::invocable<Flight&, int> Begin>
  void run_collective(const runtime::ProcessGroup& process_group, Begin begin) {
    if (process_group.members.size() == 1) return;
    const int number = tag(Kind::process_group, process_group.members, 0);
    engine_.fly([&](Flight& flight) { begin(flight, number); },
                [&] { return "a collective with" + others(process_group); });
  }
  /// Elements [first, second) of values that all members have.
  using Range = std::array<std::uint64_t, 2>;
  template <class Element>
  [[nodiscard]] static std::span<Element> part(std::span<Element> values, const Range& range) {
    return values.subspan(range[0], range[1] - range[0]);
  }
  /// Calls visit(member, rank) for every other member.
  template <std::invocable<std::size_t, std::size_t> Visit>
  static void for_each_other(const runtime::ProcessGroup& process_group, Visit visit) {
    for (std::size_t member = 0; member < process_group.members.size(); ++member) {
      if (member != process_group.self) visit(member, process_group.members[member]);
    }
  }
  /// The ranges of all members of `size` elements.
  [[nodiscard]] std::vector<Range> ranges_of(const runtime::ProcessGroup& process_group,
                                             const Range& own, std::size_t size, const char* what) {
    const auto check = [&](const Range& range) {
      require(range[0] <= range[1] && range[1] <= size,
              "transport: " + std::string(what) + " past the end",
              static_cast<std::int64_t>(range[1]));
    };
    check(own);
    std::vector<Range> ranges(process_group.members.size(), own);
    run_collective(process_group, [&](Flight& flight, int tag) {
      for_each_other(process_group, [&](std::size_t member, std::size_t rank) {
        flight.receive(comm_, rank, tag, std::as_writable_bytes(std::span(ranges[member])));
        flight.send(comm_, rank, tag, std::as_bytes(std::span(own)));
      });
    });
    for (const Range& range : ranges) check(range);
    return ranges;
  }

  [[nodiscard]] std::vector<std::byte> take_staging() {
    if (stagings_.empty()) return {};
    std::vector<std::byte> staging = std::move(stagings_.back());
    stagings_.pop_back();
    return staging;
  }

  MPI_Comm comm_;
  std::uint64_t tag_end_ = 0;
  std::size_t stages_ = 1, parts_ = 1, max_in_flight_ = 1;
  std::vector<std::byte> spare_;

  // Touched with the engine's lock held.
  std::map<runtime::Channel, ChannelState> channels_;
  std::map<SumKey, Sum> sums_;
  std::vector<std::vector<std::byte>> stagings_;
  Engine engine_;  ///< its thread ends before the rest goes
};

static_assert(runtime::Transport<MpiTransport, double> && runtime::Transport<MpiTransport, float> &&
              !runtime::Transport<Session, double>);

}  // namespace slimpack::mpi
