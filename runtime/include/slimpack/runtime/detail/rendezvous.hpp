// SPDX-License-Identifier: Apache-2.0
// What the threads of one step share: channels, process groups, sums, and who waits for what.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <concepts>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/runtime/detail/mover.hpp"
#include "slimpack/runtime/transport.hpp"

namespace slimpack::runtime {

/// Tells the processor that this thread only looks again.
inline void relax() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// What a device is seen to do from outside.
struct DeviceState {
  bool left = false;     ///< its step has ended
  bool waiting = false;  ///< for another device, in a call of its transport
  std::string place;
};

template <Mover Move>
class BasicThreadTransport;

/// What the threads of one step share. It outlives all its transports and serves one step; making
/// one costs microseconds. Bytes are moved and summed outside its lock, by the side that comes
/// last, with that side's mover. A message or collective has *ended* here when it has been told to
/// the mover; its mark says when it really has. If every device that has not left is blocked and
/// none can go on, all calls throw: the finder Deadlock with what each awaits, the others Aborted.
template <Mover Move>
class BasicRendezvous {
 public:
  /// Throws InvalidInput unless devices >= 1 and max_in_flight >= 1.
  BasicRendezvous(std::size_t devices, std::int32_t max_in_flight)
      : max_in_flight_(static_cast<std::size_t>(std::max(max_in_flight, 1))),
        spins_(devices <= std::thread::hardware_concurrency()),
        running_(devices),
        devices_(devices) {
    require(devices >= 1, "Rendezvous: devices must be >= 1");
    require(max_in_flight >= 1, "Rendezvous: max_in_flight must be >= 1", max_in_flight);
  }

  /// A device's thread has ended its step. Where only blocked ones are left, they throw Aborted and
  /// `aborted` has the list.
  void leave(std::size_t device) {
    std::unique_lock lock(mutex_);
    devices_[device].left = true;
    --running_;
    if (stuck()) abort_locked(blocked_list());
  }

  /// Returns when nobody moves bytes any more, so that the caller's memory may go.
  void abort(const std::string& sentence) {
    std::unique_lock lock(mutex_);
    abort_locked(sentence);
    still_.wait(lock, [&] { return moving_ == 0; });
  }

  /// The sentence of the first abort or deadlock, if there was one.
  [[nodiscard]] std::optional<std::string> aborted() const {
    const std::lock_guard lock(mutex_);
    return aborted_;
  }

  /// What is left after a step: a message or collective that not all sides ended; empty if none.
  [[nodiscard]] std::string leftover() const {
    const std::lock_guard lock(mutex_);
    for (const auto& [channel, state] : channels_) {
      if (state.sent != state.ended || state.posted != state.ended) {
        return "an unfinished message on " + to_string(channel);
      }
    }
    for (const auto& [members, group] : groups_) {
      if (group.collective.arrived > 0) return "a collective that not all members ended";
      if (!group.sums.empty()) return "a sum that not all members awaited";
    }
    return {};
  }

  [[nodiscard]] std::vector<DeviceState> states() const {
    const std::lock_guard lock(mutex_);
    std::vector<DeviceState> states;
    for (const Device& device : devices_) {
      states.push_back({device.left, device.wait != nullptr, device.place});
    }
    return states;
  }

 private:
  friend class BasicThreadTransport<Move>;
  using Mark = typename Move::Mark;

  /// Message i lies at i modulo `max_in_flight`, its mark until message i + max_in_flight is moved.
  struct Message {
    std::span<const std::byte> from;
    std::span<std::byte> into;
    Mark sent, posted, moved;
  };
  struct ChannelState {
    std::vector<Message> messages;
    Mark moved;  ///< the last message
    std::size_t sent = 0, posted = 0, ended = 0, awaited = 0;
    bool moving = false;
  };
  /// What members bring. `ended` counts how often all have come and the work was done: a member
  /// may come again before the others have seen that.
  struct Gathering {
    std::vector<Contribution> contributions;
    std::vector<Mark> brought;  ///< by member
    Mark done;
    std::size_t arrived = 0, ended = 0, departed = 0;
  };
  /// What the members of a process group have under way.
  struct GroupState {
    Gathering collective;
    std::map<std::int64_t, Gathering> sums;  ///< by tag
  };
  /// What a device is blocked by: a message or a gathering that ends.
  struct Wait {
    const ChannelState* channel = nullptr;
    const Channel* name = nullptr;
    const Gathering* gathering = nullptr;
    const ProcessGroup* process_group = nullptr;
    std::optional<std::int64_t> tag;
    std::size_t number = 0;
    [[nodiscard]] bool over() const {
      return (channel != nullptr ? channel->ended : gathering->ended) > number;
    }
  };
  struct Device {
    std::condition_variable wake;
    std::atomic<bool> awake{true};  ///< false from the beginning of a wait to its end
    const Wait* wait = nullptr;
    std::string place;
    bool left = false;
  };
  using Lock = std::unique_lock<std::mutex>;

  void abort_locked(const std::string& sentence) {
    if (aborted_) return;
    aborted_ = sentence;
    for (Device& device : devices_) rouse(device);
  }
  static void rouse(Device& device) {
    device.awake.store(true, std::memory_order_release);
    device.wake.notify_one();
  }

  [[nodiscard]] bool stuck() const {
    return running_ > 0 && waiting_ == running_ && !aborted_.has_value();
  }

  [[nodiscard]] std::string others(const ProcessGroup& process_group) const {
    std::string text;
    for (std::size_t member = 0; member < process_group.members.size(); ++member) {
      if (member != process_group.self)
        text += " [" + devices_[process_group.members[member]].place + "]";
    }
    return text;
  }

  [[nodiscard]] std::string blocked_list() const {
    std::string text = "execution cannot end:";
    for (const Device& device : devices_) {
      if (device.wait == nullptr) continue;
      const Wait& wait = *device.wait;
      text += (text.back() == ':' ? " " : "; ") + device.place + " awaits ";
      if (wait.channel != nullptr) {
        text += "message " + std::to_string(wait.number) + " of " + to_string(*wait.name);
      } else {
        text += (wait.tag ? "sum " + std::to_string(*wait.tag) : std::string("a collective")) +
                " with" + others(*wait.process_group);
      }
    }
    return text;
  }

  /// Leaves only when nobody reads or writes the device's memory any more.
  void check_aborted(Lock& lock) {
    if (!aborted_) return;
    still_.wait(lock, [&] { return moving_ == 0; });
    throw Aborted(*aborted_);
  }

  /// Wakes whoever waited for what has just ended.
  void wake() {
    for (Device& device : devices_) {
      if (device.wait == nullptr || !device.wait->over()) continue;
      device.wait = nullptr;
      --waiting_;
      rouse(device);
    }
  }

  /// Looks for a moment whether the device is awake, without the lock: a thread that sleeps on a
  /// core of its own takes longer to wake up than most waits last. It does not yield, which hands
  /// the core to whatever else would run there, if only at the idle policy.
  void spin(Lock& lock, const Device& device) const {
    constexpr std::chrono::microseconds kLongest{200};
    if (!spins_) return;
    lock.unlock();
    const auto end = std::chrono::steady_clock::now() + kLongest;
    while (!device.awake.load(std::memory_order_acquire) &&
           std::chrono::steady_clock::now() < end) {
      relax();
    }
    lock.lock();
  }

  void wait_for(Lock& lock, std::size_t device, const Wait& wait) {
    check_aborted(lock);
    if (wait.over()) return;
    Device& self = devices_[device];
    self.wait = &wait;
    self.awake.store(false, std::memory_order_relaxed);
    ++waiting_;
    const bool last = stuck();
    const std::string list = last ? blocked_list() : std::string();
    if (last) {
      abort_locked(list);
    } else {
      spin(lock, self);
      self.wake.wait(lock, [&] { return self.wait == nullptr || aborted_.has_value(); });
    }
    if (self.wait != nullptr) {
      self.wait = nullptr;
      --waiting_;
    }
    if (last) throw Deadlock(list);
    check_aborted(lock);
  }

  /// Does `work` without the lock; abortion waits for it.
  template <std::invocable Work>
  void move(Lock& lock, Work work) {
    ++moving_;
    lock.unlock();
    std::exception_ptr thrown;
    try {
      work();
    } catch (...) {
      thrown = std::current_exception();
    }
    lock.lock();
    if (--moving_ == 0 && aborted_) still_.notify_all();
    if (thrown) std::rethrow_exception(thrown);
  }

  [[nodiscard]] ChannelState& state_of(const Channel& channel) {
    ChannelState& state = channels_[channel];
    if (state.messages.empty()) state.messages.resize(max_in_flight_);
    return state;
  }

  /// Moves all messages that both sides have posted, unless another thread is about it.
  void transfer(Lock& lock, const Channel& channel, ChannelState& state, Move& mover) {
    const Lane lane = lane_of(channel.direction);
    while (!state.moving && state.ended < std::min(state.sent, state.posted)) {
      Message& message = state.messages[state.ended % max_in_flight_];
      require(message.from.size() == message.into.size(),
              "transport: both sides must post as many bytes on " + to_string(channel),
              static_cast<std::int64_t>(message.into.size()));
      state.moving = true;
      Mark moved;
      move(lock, [&] {
        mover.after(lane, message.sent);
        mover.after(lane, message.posted);
        mover.after(lane, state.moved);
        mover.copy(lane, message.from, message.into);
        moved = mover.finish(lane);
      });
      state.moving = false;
      message.moved = state.moved = std::move(moved);
      ++state.ended;
      wake();
      check_aborted(lock);
    }
  }

  /// Adds a member's contribution; the last to come checks and does the work for all, work(lane,
  /// all), with its mover.
  template <std::invocable<Contributions> Check, std::invocable<Lane, Contributions> Work>
  void arrive(Lock& lock, const ProcessGroup& process_group, Gathering& gathering,
              const Contribution& contribution, Move& mover, Lane lane, Check check, Work work) {
    gathering.contributions.resize(process_group.members.size());
    gathering.brought.resize(process_group.members.size());
    gathering.contributions[process_group.self] = contribution;
    gathering.brought[process_group.self] = mover.note();
    if (++gathering.arrived < process_group.members.size()) return;
    const Contributions all(gathering.contributions);
    check(all);
    move(lock, [&] {
      for (const Mark& mark : gathering.brought) mover.after(lane, mark);
      work(lane, all);
      gathering.done = mover.finish(lane);
    });
    gathering.arrived = 0;
    ++gathering.ended;
    wake();
    check_aborted(lock);
  }

  mutable std::mutex mutex_;
  std::condition_variable still_;
  std::size_t max_in_flight_;
  bool spins_;  ///< every device has a core to wait on
  std::size_t running_, waiting_ = 0, moving_ = 0;
  std::map<Channel, ChannelState> channels_;
  std::map<std::vector<std::size_t>, GroupState> groups_;
  std::vector<Device> devices_;
  std::optional<std::string> aborted_;
};

/// The rendezvous of devices whose memory is the host's.
using Rendezvous = BasicRendezvous<HostMover>;

}  // namespace slimpack::runtime
