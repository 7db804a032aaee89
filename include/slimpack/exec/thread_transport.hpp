// SPDX-License-Identifier: Apache-2.0
// A transport between threads of one process, one thread a device.
#pragma once

#include <algorithm>
#include <concepts>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/exec/transport.hpp"

namespace slimpack::exec {

/// What the threads share. It outlives all its transports and serves one step.
/// If every device that has not left is blocked and none can go on, all calls throw: the finder
/// Deadlock with what each awaits, the others Aborted.
class ThreadHub {
 public:
  /// Throws InvalidInput unless devices >= 1 and window >= 1.
  ThreadHub(std::size_t devices, std::int32_t window)
      : window_(static_cast<std::size_t>(std::max(window, 0))),
        running_(devices),
        blocked_(devices),
        places_(devices) {
    require(devices >= 1, "ThreadHub: devices must be >= 1");
    require(window >= 1, "ThreadHub: window must be >= 1", window);
  }

  /// A device's thread has ended its step. Where only blocked ones are left, they throw Aborted and
  /// `aborted` has the list.
  void leave() {
    const std::lock_guard lock(mutex_);
    --running_;
    changed_.notify_all();
    if (stuck()) abort_locked(blocked_list());
  }

  void abort(const std::string& sentence) {
    const std::lock_guard lock(mutex_);
    abort_locked(sentence);
  }

  /// The sentence of the first abort or deadlock, if there was one.
  [[nodiscard]] std::optional<std::string> aborted() const {
    const std::lock_guard lock(mutex_);
    return aborted_;
  }

  /// What is left after a step: a message or meeting that not all sides ended; empty if none.
  [[nodiscard]] std::string leftover() const {
    const std::lock_guard lock(mutex_);
    for (const auto& [channel, state] : channels_) {
      if (!state.sends.empty() || !state.receives.empty()) {
        return "an unfinished message on " + describe(channel);
      }
    }
    if (!meetings_.empty()) return "a meeting that not all members ended";
    if (!sums_.empty()) return "a sum that not all members awaited";
    return {};
  }

 private:
  friend class ThreadTransport;

  struct ChannelState {
    std::map<std::size_t, std::span<const std::byte>> sends;
    std::map<std::size_t, std::span<std::byte>> receives;
    std::size_t sent = 0, posted = 0, ended = 0, awaited = 0;
  };
  struct Contribution {
    std::span<const std::byte> from;
    std::span<std::byte> into;
    std::size_t first = 0, last = 0;  ///< elements that a member of all_gather brings
  };
  using Contributions = std::span<const Contribution>;
  struct MeetingState {
    std::vector<Contribution> contributions;
    std::size_t arrived = 0, departed = 0;
    bool done = false;
  };
  /// Members and either their how-manieth meeting it is or a tag.
  using MeetingKey = std::pair<std::vector<std::size_t>, std::int64_t>;
  struct Blocked {
    std::function<bool()> ready;
    std::function<std::string()> awaited;
  };

  void abort_locked(const std::string& sentence) {
    if (!aborted_) aborted_ = sentence;
    changed_.notify_all();
  }

  [[nodiscard]] bool stuck() const {
    std::size_t waiting = 0;
    for (const auto& blocked : blocked_) {
      if (!blocked) continue;
      if (blocked->ready()) return false;
      ++waiting;
    }
    return running_ > 0 && waiting == running_ && !aborted_;
  }

  [[nodiscard]] std::string blocked_list() const {
    std::string text = "execution cannot end:";
    for (std::size_t device = 0; device < blocked_.size(); ++device) {
      if (!blocked_[device]) continue;
      text += (text.back() == ':' ? " " : "; ") + places_[device] + " awaits " +
              blocked_[device]->awaited();
    }
    return text;
  }

  void check_aborted() const {
    if (aborted_) throw Aborted(*aborted_);
  }

  template <std::predicate Ready, std::invocable Awaited>
  void wait(std::unique_lock<std::mutex>& lock, std::size_t device, Ready ready, Awaited awaited) {
    check_aborted();
    if (ready()) return;
    blocked_[device] = Blocked{ready, awaited};
    if (stuck()) {
      const std::string list = blocked_list();
      abort_locked(list);
      blocked_[device].reset();
      throw Deadlock(list);
    }
    changed_.wait(lock, [&] { return aborted_.has_value() || ready(); });
    blocked_[device].reset();
    check_aborted();
  }

  void transfer(const Channel& channel, ChannelState& state) {
    for (;;) {
      const auto send = state.sends.find(state.ended);
      const auto receive = state.receives.find(state.ended);
      if (send == state.sends.end() || receive == state.receives.end()) return;
      require(send->second.size() == receive->second.size(),
              "transport: both sides must post as many bytes on " + describe(channel),
              static_cast<std::int64_t>(receive->second.size()));
      std::copy(send->second.begin(), send->second.end(), receive->second.begin());
      state.sends.erase(send);
      state.receives.erase(receive);
      ++state.ended;
      changed_.notify_all();
    }
  }

  /// Adds a member's contribution; the last to come does the work for all.
  template <std::invocable<Contributions> Work>
  void arrive(const Meeting& meeting, MeetingState& state, const Contribution& contribution,
              Work work) {
    state.contributions.resize(meeting.members.size());
    state.contributions[meeting.self] = contribution;
    if (++state.arrived < meeting.members.size()) return;
    work(Contributions(state.contributions));
    state.done = true;
    changed_.notify_all();
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t window_;
  std::size_t running_;
  std::map<Channel, ChannelState> channels_;
  std::map<MeetingKey, std::shared_ptr<MeetingState>> meetings_, sums_;
  std::vector<std::optional<Blocked>> blocked_;
  std::vector<std::string> places_;
  std::optional<std::string> aborted_;
};

/// One device's end of a hub.
class ThreadTransport {
 public:
  /// Throws InvalidInput unless the hub has such a device.
  ThreadTransport(ThreadHub& hub, std::size_t device) : hub_(&hub), device_(device) {
    require(device < hub.places_.size(), "ThreadTransport: device must be one of the hub",
            static_cast<std::int64_t>(device));
  }

  void post_receive(const Channel& channel, std::size_t message, std::span<std::byte> into) {
    const std::lock_guard lock(hub_->mutex_);
    hub_->check_aborted();
    auto& state = hub_->channels_[channel];
    require(
        message == state.posted && state.posted - state.awaited < hub_->window_,
        "transport: receives must be posted in order and within the window on " + describe(channel),
        static_cast<std::int64_t>(message));
    ++state.posted;
    state.receives.emplace(message, into);
    hub_->transfer(channel, state);
  }

  void await_receive(const Channel& channel, std::size_t message) {
    std::unique_lock lock(hub_->mutex_);
    auto& state = hub_->channels_[channel];
    await_transfer(lock, channel, message);
    require(message == state.awaited, "transport: receives must be awaited in order",
            static_cast<std::int64_t>(message));
    ++state.awaited;
  }

  void queue_send(const Channel& channel, std::size_t message, std::span<const std::byte> from) {
    const std::lock_guard lock(hub_->mutex_);
    hub_->check_aborted();
    auto& state = hub_->channels_[channel];
    require(
        message == state.sent && state.sent - state.ended < hub_->window_,
        "transport: sends must be queued in order and within the window on " + describe(channel),
        static_cast<std::int64_t>(message));
    ++state.sent;
    state.sends.emplace(message, from);
    hub_->transfer(channel, state);
  }

  [[nodiscard]] bool send_ended(const Channel& channel, std::size_t message) {
    const std::lock_guard lock(hub_->mutex_);
    hub_->check_aborted();
    return hub_->channels_[channel].ended > message;
  }

  void await_send(const Channel& channel, std::size_t message) {
    std::unique_lock lock(hub_->mutex_);
    await_transfer(lock, channel, message);
  }

  void ring(const Meeting& meeting, std::span<const std::byte> from, std::span<std::byte> into) {
    meet(meeting, {from, into}, [](ThreadHub::Contributions all) {
      for (std::size_t member = 0; member < all.size(); ++member) {
        const auto& next = all[(member + 1) % all.size()];
        require(all[member].from.size() == next.into.size(),
                "transport: ring members must agree on bytes",
                static_cast<std::int64_t>(next.into.size()));
      }
      for (std::size_t member = 0; member < all.size(); ++member) {
        const auto& source = all[member].from;
        std::copy(source.begin(), source.end(), all[(member + 1) % all.size()].into.begin());
      }
    });
  }

  template <std::floating_point Element>
  void broadcast(const Meeting& meeting, std::size_t root, std::span<Element> values) {
    meet(meeting, whole(values), [root](ThreadHub::Contributions all) {
      check_equal_sizes(all);
      for (std::size_t member = 0; member < all.size(); ++member) {
        if (member != root) copy(all[root].from, all[member].into);
      }
    });
  }

  template <std::floating_point Element>
  void all_reduce(const Meeting& meeting, std::span<Element> values, Reduction reduction) {
    meet(meeting, whole(values),
         [reduction](ThreadHub::Contributions all) { reduce<Element>(all, reduction); });
  }

  template <std::floating_point Element>
  void all_gather(const Meeting& meeting, std::span<Element> values, std::size_t first,
                  std::size_t last) {
    require(first <= last && last <= values.size(), "transport: all_gather past the end",
            static_cast<std::int64_t>(last));
    auto contribution = whole(values);
    contribution.first = first * sizeof(Element);
    contribution.last = last * sizeof(Element);
    meet(meeting, contribution, [](ThreadHub::Contributions all) {
      check_equal_sizes(all);
      for (const auto& source : all) {
        const std::size_t bytes = source.last - source.first;
        for (const auto& target : all) {
          if (&source != &target) {
            copy(source.from.subspan(source.first, bytes),
                 target.into.subspan(source.first, bytes));
          }
        }
      }
    });
  }

  template <std::floating_point Element>
  void queue_sum(const Meeting& meeting, std::int64_t tag, std::span<Element> values) {
    const std::lock_guard lock(hub_->mutex_);
    hub_->check_aborted();
    auto& state = hub_->sums_[{meeting.members, tag}];
    if (!state) state = std::make_shared<ThreadHub::MeetingState>();
    hub_->arrive(meeting, *state, whole(values),
                 [](ThreadHub::Contributions all) { reduce<Element>(all, Reduction::sum); });
  }

  void await_sum(const Meeting& meeting, std::int64_t tag) {
    std::unique_lock lock(hub_->mutex_);
    const ThreadHub::MeetingKey key{meeting.members, tag};
    const auto found = hub_->sums_.find(key);
    require(found != hub_->sums_.end(), "transport: a sum must be queued before it is awaited",
            tag);
    const auto state = found->second;
    hub_->wait(
        lock, device_, [state] { return state->done; },
        [this, meeting, tag] { return "sum " + std::to_string(tag) + " with" + places(meeting); });
    if (++state->departed == meeting.members.size()) hub_->sums_.erase(key);
  }

  void at(const std::string& place) {
    const std::lock_guard lock(hub_->mutex_);
    hub_->places_[device_] = place;
  }

  void abort(const std::string& sentence) { hub_->abort(sentence); }

 private:
  template <std::floating_point Element>
  static ThreadHub::Contribution whole(std::span<Element> values) {
    const auto bytes = std::as_writable_bytes(values);
    return {bytes, bytes};
  }

  static void copy(std::span<const std::byte> from, std::span<std::byte> into) {
    std::copy(from.begin(), from.end(), into.begin());
  }

  static void check_equal_sizes(ThreadHub::Contributions all) {
    for (const auto& one : all) {
      require(one.from.size() == all.front().from.size(), "transport: members must agree on bytes",
              static_cast<std::int64_t>(one.from.size()));
    }
  }

  template <std::floating_point Element>
  static void reduce(ThreadHub::Contributions all, Reduction reduction) {
    check_equal_sizes(all);
    const auto get = [](std::span<const std::byte> bytes, std::size_t place) {
      Element value;
      std::memcpy(&value, bytes.data() + place * sizeof(Element), sizeof(Element));
      return value;
    };
    for (std::size_t place = 0; place < all.front().from.size() / sizeof(Element); ++place) {
      Element value = get(all.front().from, place);
      for (const auto& one : all.subspan(1)) {
        const Element other = get(one.from, place);
        value = reduction == Reduction::sum ? value + other : std::max(value, other);
      }
      for (const auto& one : all) {
        std::memcpy(one.into.data() + place * sizeof(Element), &value, sizeof(Element));
      }
    }
  }

  void await_transfer(std::unique_lock<std::mutex>& lock, const Channel& channel,
                      std::size_t message) {
    const auto& state = hub_->channels_[channel];
    hub_->wait(
        lock, device_, [&state, message] { return state.ended > message; },
        [channel, message] {
          return "message " + std::to_string(message) + " of " + describe(channel);
        });
  }

  template <std::invocable<ThreadHub::Contributions> Work>
  void meet(const Meeting& meeting, const ThreadHub::Contribution& contribution, Work work) {
    std::unique_lock lock(hub_->mutex_);
    hub_->check_aborted();
    const ThreadHub::MeetingKey key{meeting.members, turns_[meeting.members]++};
    auto& slot = hub_->meetings_[key];
    if (!slot) slot = std::make_shared<ThreadHub::MeetingState>();
    const auto state = slot;
    hub_->arrive(meeting, *state, contribution, work);
    hub_->wait(
        lock, device_, [state] { return state->done; },
        [this, meeting] { return "a meeting with" + places(meeting); });
    if (++state->departed == meeting.members.size()) hub_->meetings_.erase(key);
  }

  [[nodiscard]] std::string places(const Meeting& meeting) const {
    std::string text;
    for (std::size_t member = 0; member < meeting.members.size(); ++member) {
      if (member != meeting.self) text += " [" + hub_->places_[meeting.members[member]] + "]";
    }
    return text;
  }

  ThreadHub* hub_;
  std::size_t device_;
  std::map<std::vector<std::size_t>, std::int64_t> turns_;
};

static_assert(Transport<ThreadTransport, double> && !Transport<ThreadHub, double>);

}  // namespace slimpack::exec
