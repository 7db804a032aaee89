// SPDX-License-Identifier: Apache-2.0
// A transport between processes over MPI, one rank a device, with the bits of the one of threads.
#pragma once

#include <mpi.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <concepts>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/exec/device_result.hpp"
#include "slimpack/exec/transport.hpp"
#include "slimpack_mpi/flight.hpp"
#include "slimpack_mpi/session.hpp"
#include "slimpack_mpi/sum.hpp"

namespace slimpack::mpi {

struct TransportOptions {
  /// Between two looks at MPI, by a thread of its own, while the rank computes and something is on
  /// its way; zero: MPI goes on only in the transport's own calls. Nothing: zero on one machine,
  /// where receivers fetch long messages from the sender's memory without its help, and 200 us
  /// between machines.
  std::optional<std::chrono::microseconds> progress;
};
};

/// One rank's end. It lives over all steps of a session and is used by one thread; rank and
/// position in `Plan::schedule` are the same number. Where another rank has failed, was killed or
/// stopped, calls throw Aborted with the first cause; the rank must then end (`mpi::run`), for
/// messages may be under way into memory that is gone.
class MpiTransport {
 public:
  explicit MpiTransport(Session& session, TransportOptions options = {})
      : session_(session),
        monitor_(session.monitor()),
        comm_(session.comm()),
        pause_(
            options.progress.value_or(std::chrono::microseconds(session.one_machine() ? 0 : 200))) {
    int* bound = nullptr;
    int known = 0;
    MPI_Comm_get_attr(comm_, MPI_TAG_UB, static_cast<void*>(&bound), &known);
    tag_end_ = known != 0 ? std::uint64_t{static_cast<unsigned>(*bound)} : 32767U;
    if (session.serialized() && session.size() > 1 && pause_.count() > 0) {
      progress_ = std::thread([this] { keep_going(); });
    }
  }
  ~MpiTransport() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    news_.notify_all();
    if (progress_.joinable()) progress_.join();
  }
  MpiTransport(const MpiTransport&) = delete;
  MpiTransport& operator=(const MpiTransport&) = delete;

  [[nodiscard]] Session& session() noexcept { return session_; }

  /// Begins a step of devices in lines of `stages`. Throws InvalidInput unless window >= 1.
  void begin_step(std::int32_t stages, std::int32_t window) {
    require(window >= 1, "MpiTransport: window must be >= 1", window);
    require(stages >= 1, "MpiTransport: stages must be >= 1", stages);
    const std::lock_guard lock(mutex_);
    check_aborted();
    stages_ = static_cast<std::size_t>(stages);
    window_ = static_cast<std::size_t>(window);
    channels_.clear();
    sums_.clear();
    monitor_.doing(Doing::computing);
  }

  /// Ends it: from here on the rank may do what it likes, and others wait for it without limit.
  /// Throws ExecutionError if a message or sum is left.
  void end_step(const std::string& place) {
    const std::lock_guard lock(mutex_);
    check_aborted();
    for (const auto& [channel, state] : channels_) {
      if (!state.sends.empty() || !state.receives.empty()) {
        throw exec::ExecutionError(
            "the step must end drained, but holds an unfinished message on " + describe(channel));
      }
    }
    if (!sums_.empty()) {
      throw exec::ExecutionError(
          "the step must end drained, but holds a sum that not all members awaited");
    }
    monitor_.at(place);
    monitor_.doing(Doing::outside);
  }

  // --- exec::Transport ---

  void post_receive(const exec::Channel& channel, std::size_t message, std::span<std::byte> into) {
    const std::lock_guard lock(mutex_);
    check_aborted();
    ChannelState& state = channels_[channel];
    require(
        message == state.posted && state.posted - state.awaited < window_,
        "transport: receives must be posted in order and within the window on " + describe(channel),
        static_cast<std::int64_t>(message));
    ++state.posted;
    state.receives.emplace_back();
    guarded([&] {
      state.receives.back().receive(comm_, device(channel.dp, channel.from), tag(channel), into);
    });
    news();
  }

  void await_receive(const exec::Channel& channel, std::size_t message) {
    ChannelState& state = state_of(channel);
    wait_until(
        [&] {
          require(message == state.awaited && message < state.posted,
                  "transport: receives must be awaited in order",
                  static_cast<std::int64_t>(message));
          return state.receives.front().ended();
        },
        [&] { return "message " + std::to_string(message) + " of " + describe(channel); });
    state.receives.pop_front();
    ++state.awaited;
  }

  void queue_send(const exec::Channel& channel, std::size_t message,
                  std::span<const std::byte> from) {
    const std::lock_guard lock(mutex_);
    check_aborted();
    ChannelState& state = channels_[channel];
    end_sends(state);
    require(
        message == state.sent && state.sent - state.ended < window_,
        "transport: sends must be queued in order and within the window on " + describe(channel),
        static_cast<std::int64_t>(message));
    ++state.sent;
    state.sends.emplace_back();
    guarded([&] {
      state.sends.back().send(comm_, device(channel.dp, channel.to), tag(channel), from);
    });
    news();
  }

  [[nodiscard]] bool send_ended(const exec::Channel& channel, std::size_t message) {
    const std::lock_guard lock(mutex_);
    check_aborted();
    ChannelState& state = channels_[channel];
    end_sends(state);
    return state.ended > message;
  }

  void await_send(const exec::Channel& channel, std::size_t message) {
    ChannelState& state = state_of(channel);
    wait_until(
        [&] {
          end_sends(state);
          return state.ended > message;
        },
        [&] {
          return "the end of message " + std::to_string(message) + " of " + describe(channel);
        });
  }

  void ring(const exec::Meeting& meeting, std::span<const std::byte> from,
            std::span<std::byte> into) {
    const std::size_t members = meeting.members.size();
    if (members == 1) {
      std::copy(from.begin(), from.end(), into.begin());
      return;
    }
    meet(meeting, [&](Flight& flight, int tag) {
      flight.receive(comm_, meeting.members[(meeting.self + members - 1) % members], tag, into);
      flight.send(comm_, meeting.members[(meeting.self + 1) % members], tag, from);
    });
  }

  template <std::floating_point Element>
  void broadcast(const exec::Meeting& meeting, std::size_t root, std::span<Element> values) {
    const auto bytes = std::as_writable_bytes(values);
    meet(meeting, [&](Flight& flight, int tag) {
      if (meeting.self != root) {
        flight.receive(comm_, meeting.members[root], tag, bytes);
        return;
      }
      for (std::size_t member = 0; member < meeting.members.size(); ++member) {
        if (member != root) flight.send(comm_, meeting.members[member], tag, bytes);
      }
    });
  }

  template <std::floating_point Element>
  void all_reduce(const exec::Meeting& meeting, std::span<Element> values,
                  exec::Reduction reduction) {
    std::unique_lock lock(mutex_);
    check_aborted();
    Sum sum = guarded([&] {
      return Sum(comm_, tag(Kind::meeting, meeting.members, 0), meeting, values, reduction,
                 std::exchange(spare_, {}));
    });
    lock.unlock();
    wait_until([&] { return sum.ended(); }, [&] { return "a meeting with" + others(meeting); });
    spare_ = sum.take_staging();
  }

  template <std::floating_point Element>
  void all_gather(const exec::Meeting& meeting, std::span<Element> values, std::size_t first,
                  std::size_t last) {
    require(first <= last && last <= values.size(), "transport: all_gather past the end",
            static_cast<std::int64_t>(last));
    using Range = std::array<std::uint64_t, 2>;
    std::vector<Range> ranges(meeting.members.size(), Range{first, last});
    const Range own{first, last};
    meet(meeting, [&](Flight& flight, int tag) {
      exchange(flight, tag, meeting, std::as_bytes(std::span(own)), [&](std::size_t member) {
        return std::as_writable_bytes(std::span(ranges[member]));
      });
    });
    for (const Range& range : ranges) {
      require(range[0] <= range[1] && range[1] <= values.size(),
              "transport: all_gather past the end", static_cast<std::int64_t>(range[1]));
    }
    meet(meeting, [&](Flight& flight, int tag) {
      exchange(flight, tag, meeting, std::as_bytes(values.subspan(first, last - first)),
               [&](std::size_t member) {
                 const Range& range = ranges[member];
                 return std::as_writable_bytes(values.subspan(range[0], range[1] - range[0]));
               });
    });
  }

  template <std::floating_point Element>
  void queue_sum(const exec::Meeting& meeting, std::int64_t tag_number, std::span<Element> values) {
    const std::lock_guard lock(mutex_);
    check_aborted();
    const SumKey key{meeting.members, tag_number};
    const int wire = tag(Kind::sum, meeting.members, tag_number);
    require(!sums_.contains(key), "transport: a sum must be awaited before it is queued again",
            tag_number);
    for (const auto& [other, sum] : sums_) {
      require(tag(Kind::sum, other.first, other.second) != wire,
              "transport: two sums under way must not have one number on the wire", wire);
    }
    guarded([&] {
      sums_.emplace(key, Sum(comm_, wire, meeting, values, exec::Reduction::sum, take_staging()));
    });
    news();
  }

  void await_sum(const exec::Meeting& meeting, std::int64_t tag_number) {
    auto found = sums_.end();
    {
      const std::lock_guard lock(mutex_);
      found = sums_.find({meeting.members, tag_number});
      require(found != sums_.end(), "transport: a sum must be queued before it is awaited",
              tag_number);
    }
    wait_until([&] { return found->second.ended(); },
               [&] { return "sum " + std::to_string(tag_number) + " with" + others(meeting); });
    const std::lock_guard lock(mutex_);
    if (stagings_.size() < kStagings) stagings_.push_back(found->second.take_staging());
    sums_.erase(found);
  }

  /// Throws Aborted too: a rank that has nothing to do with the others ends at its next unit.
  void at(const std::string& place) {
    {
      const std::lock_guard lock(mutex_);
      check_aborted();
      guarded([&] { advance_sums(); });
    }
    monitor_.at(place);
  }

  void abort(const std::string& sentence) {
    monitor_.abort("rank " + std::to_string(session_.rank()) + ", " + sentence);
    const std::lock_guard lock(mutex_);  // nobody is inside MPI from here on
    given_up_ = true;
  }

  /// How long calls have been blocked so far.
  [[nodiscard]] std::chrono::nanoseconds waited() const noexcept { return waited_; }

  // --- all ranks together, inside or outside of a step ---

  /// Bytes of every rank, on rank 0; nothing on the others.
  [[nodiscard]] std::vector<std::vector<std::byte>> gather(std::span<const std::byte> bytes) {
    std::vector<std::vector<std::byte>> all;
    const std::uint64_t size = bytes.size();
    const auto as_bytes = std::as_bytes(std::span(&size, 1));
    if (session_.rank() != 0) {
      fly([&](Flight& flight) {
        flight.send(comm_, 0, kControl, as_bytes);
        flight.send(comm_, 0, kControl, bytes);
      });
      return all;
    }
    std::vector<std::uint64_t> sizes(session_.size(), 0);
    fly([&](Flight& flight) {
      for (std::size_t rank = 1; rank < sizes.size(); ++rank) {
        flight.receive(comm_, rank, kControl, std::as_writable_bytes(std::span(&sizes[rank], 1)));
      }
    });
    all.resize(sizes.size());
    all[0].assign(bytes.begin(), bytes.end());
    fly([&](Flight& flight) {
      for (std::size_t rank = 1; rank < sizes.size(); ++rank) {
        all[rank].resize(sizes[rank]);
        flight.receive(comm_, rank, kControl, all[rank]);
      }
    });
    return all;
  }

  /// What rank 0 gives, on all.
  [[nodiscard]] std::vector<std::byte> share(std::vector<std::byte> bytes) {
    std::uint64_t size = bytes.size();
    const auto size_bytes = std::as_writable_bytes(std::span(&size, 1));
    const auto step = [&](std::span<std::byte> part) {
      fly([&](Flight& flight) {
        if (session_.rank() != 0) return flight.receive(comm_, 0, kControl, part);
        for (std::size_t rank = 1; rank < session_.size(); ++rank) {
          flight.send(comm_, rank, kControl, part);
        }
      });
    };
    step(size_bytes);
    bytes.resize(size);
    step(bytes);
    return bytes;
  }

 private:
  enum class Kind : std::uint8_t { channel, meeting, sum, control };
  static constexpr int kControl = static_cast<int>(Kind::control);
  static constexpr std::size_t kStagings = 16;
  static constexpr int kYields = 50;  ///< looks before the first sleep
  struct ChannelState {
    std::deque<Flight> sends, receives;
    std::size_t sent = 0, posted = 0, ended = 0, awaited = 0;
  };
  using SumKey = std::pair<std::vector<std::size_t>, std::int64_t>;

  [[nodiscard]] std::size_t device(std::int32_t dp, std::int32_t stage) const {
    return static_cast<std::size_t>(dp) * stages_ + static_cast<std::size_t>(stage);
  }

  /// Messages of one pair of ranks with one tag stay in order. What must not be confused has
  /// different tags: channels exactly; meetings block, so that their order is that of all members
  /// unless they wait for each other for ever; of sums `queue_sum` makes sure.
  [[nodiscard]] int tag(const exec::Channel& channel) const {
    const std::uint64_t number = std::uint64_t{index(channel.group)} * 2 +
                                 (channel.direction == exec::Direction::up ? 1 : 0);
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

  [[nodiscard]] static std::string others(const exec::Meeting& meeting) {
    std::string text;
    for (std::size_t member = 0; member < meeting.members.size(); ++member) {
      if (member == meeting.self) continue;
      text += (text.empty() ? " rank " : ", rank ") + std::to_string(meeting.members[member]);
    }
    return text;
  }

  ChannelState& state_of(const exec::Channel& channel) {
    const std::lock_guard lock(mutex_);
    return channels_[channel];
  }

  void end_sends(ChannelState& state) {
    guarded([&] {
      while (!state.sends.empty() && state.sends.front().ended()) {
        state.sends.pop_front();
        ++state.ended;
      }
    });
  }

  void advance_sums() {
    for (auto& [key, sum] : sums_) static_cast<void>(sum.ended());
  }

  void check_aborted() {
    if (!monitor_.failed()) return;
    given_up_ = true;
    throw exec::Aborted(monitor_.cause());
  }

  /// An error of MPI is mostly the death of another rank: the monitor is given time to say whose.
  template <std::invocable Work>
  std::invoke_result_t<Work&> guarded(Work work) {
    try {
      return work();
    } catch (const MpiError& error) {
      given_up_ = true;
      for (int i = 0; i < 200 && !monitor_.failed(); ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
      check_aborted();
      throw exec::ExecutionError(std::string("MPI failed: ") + error.what());
    }
  }

  /// Looks again and again, ever more seldom, so that ranks that compute keep their cores.
  template <std::predicate Ready, std::invocable Awaited>
  void wait_until(Ready ready, Awaited awaited) {
    using Clock = std::chrono::steady_clock;
    const auto try_it = [&] {
      const std::lock_guard lock(mutex_);
      check_aborted();
      rethrow();
      return guarded([&] {
        advance_sums();  // others may wait for this rank's part of them
        return ready();
      });
    };
    if (try_it()) return;
    const Doing before = monitor_.doing();
    const auto begin = Clock::now();
    monitor_.doing(Doing::waiting);
    in_wait_.store(true, std::memory_order_relaxed);
    struct Leave {
      MpiTransport& self;
      Doing before;
      ~Leave() {
        self.in_wait_.store(false, std::memory_order_relaxed);
        self.monitor_.doing(before);
      }
    } leave{*this, before};
    bool named = false;
    for (int turn = 0; !try_it(); ++turn) {
      if (turn < kYields) {
        ::sched_yield();
        continue;
      }
      std::this_thread::sleep_for(std::chrono::microseconds(turn < kYields + 50 ? 20 : 100));
      if (named || Clock::now() - begin < std::chrono::seconds(1)) continue;
      monitor_.awaits(awaited());
      named = true;
    }
    monitor_.progressed();
    waited_ += Clock::now() - begin;
  }

  /// Begins transfers by begin(flight) and waits for them.
  template <std::invocable<Flight&> Begin>
  void fly(Begin begin) {
    Flight flight;
    {
      const std::lock_guard lock(mutex_);
      check_aborted();
      guarded([&] { begin(flight); });
    }
    wait_until([&] { return flight.ended(); }, [] { return std::string("all other ranks"); });
  }
  template <std::invocable<Flight&, int> Begin>
  void meet(const exec::Meeting& meeting, Begin begin) {
    if (meeting.members.size() == 1) return;
    const int number = tag(Kind::meeting, meeting.members, 0);
    Flight flight;
    {
      const std::lock_guard lock(mutex_);
      check_aborted();
      guarded([&] { begin(flight, number); });
    }
    wait_until([&] { return flight.ended(); }, [&] { return "a meeting with" + others(meeting); });
  }
  /// All to all: `bytes` to every other member, and from each into into(member).
  template <std::invocable<std::size_t> Into>
  void exchange(Flight& flight, int tag, const exec::Meeting& meeting,
                std::span<const std::byte> bytes, Into into) {
    for (std::size_t member = 0; member < meeting.members.size(); ++member) {
      if (member == meeting.self) continue;
      flight.receive(comm_, meeting.members[member], tag, into(member));
      flight.send(comm_, meeting.members[member], tag, bytes);
    }
  }

  [[nodiscard]] std::vector<std::byte> take_staging() {
    if (stagings_.empty()) return {};
    std::vector<std::byte> staging = std::move(stagings_.back());
    stagings_.pop_back();
    return staging;
  }

  // --- the thread that keeps messages going while the rank computes ---

  void news() {
    if (progress_.joinable()) news_.notify_one();
  }
  void rethrow() {
    if (fault_) std::rethrow_exception(std::exchange(fault_, nullptr));
  }
  [[nodiscard]] bool under_way() const {
    return !sums_.empty() || std::any_of(channels_.begin(), channels_.end(), [](const auto& one) {
      return !one.second.sends.empty() || !one.second.receives.empty();
    });
  }
  void keep_going() {
    std::unique_lock lock(mutex_);
    while (!stop_) {
      if (!under_way() || given_up_) {
        news_.wait(lock);
        continue;
      }
      news_.wait_for(lock, pause_, [&] { return stop_; });
      if (stop_ || given_up_ || in_wait_.load(std::memory_order_relaxed)) continue;
      if (monitor_.failed()) {
        given_up_ = true;
        continue;
      }
      try {
        advance_sums();
        for (int look = 0; look < 16; ++look) {
          int found = 0;
          MPI_Iprobe(MPI_ANY_SOURCE, kControl, comm_, &found, MPI_STATUS_IGNORE);
        }
      } catch (...) {
        fault_ = std::current_exception();
        given_up_ = true;
      }
    }
  }

  Session& session_;
  Monitor& monitor_;
  MPI_Comm comm_;
  std::chrono::microseconds pause_;
  std::uint64_t tag_end_ = 0;
  std::size_t stages_ = 1, window_ = 1;
  std::vector<std::byte> spare_;
  std::chrono::nanoseconds waited_{};

  std::mutex mutex_;  ///< guards MPI and what follows
  std::condition_variable news_;
  std::map<exec::Channel, ChannelState> channels_;
  std::map<SumKey, Sum> sums_;
  std::vector<std::vector<std::byte>> stagings_;
  std::exception_ptr fault_;
  bool stop_ = false, given_up_ = false;
  std::atomic<bool> in_wait_ = false;
  std::thread progress_;
};

static_assert(exec::Transport<MpiTransport, double> && exec::Transport<MpiTransport, float> &&
              !exec::Transport<Session, double>);

}  // namespace slimpack::mpi
