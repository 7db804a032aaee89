// SPDX-License-Identifier: Apache-2.0
// A transport between threads of one process, one thread a device.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/exec/reduction.hpp"
#include "slimpack/exec/thread_hub.hpp"
#include "slimpack/exec/transport.hpp"

namespace slimpack::exec {

/// One device's end of a hub. Its calls are made by one thread at a time.
class ThreadTransport {
 public:
  /// Throws InvalidInput unless the hub has such a device.
  ThreadTransport(ThreadHub& hub, std::size_t device) : hub_(&hub), device_(device) {
    require(device < hub.seats_.size(), "ThreadTransport: device must be one of the hub",
            static_cast<std::int64_t>(device));
  }

  void post_receive(const Channel& channel, std::size_t message, std::span<std::byte> into) {
    ThreadHub::Lock lock(hub_->mutex_);
    hub_->check_aborted(lock);
    auto& state = hub_->state_of(channel);
    require(
        message == state.posted && state.posted - state.awaited < hub_->window_,
        "transport: receives must be posted in order and within the window on " + describe(channel),
        static_cast<std::int64_t>(message));
    state.receives[message % hub_->window_] = into;
    ++state.posted;
    hub_->transfer(lock, channel, state);
  }

  void await_receive(const Channel& channel, std::size_t message) {
    ThreadHub::Lock lock(hub_->mutex_);
    auto& state = hub_->state_of(channel);
    await_transfer(lock, channel, state, message);
    require(message == state.awaited, "transport: receives must be awaited in order",
            static_cast<std::int64_t>(message));
    ++state.awaited;
  }

  void queue_send(const Channel& channel, std::size_t message, std::span<const std::byte> from) {
    ThreadHub::Lock lock(hub_->mutex_);
    hub_->check_aborted(lock);
    auto& state = hub_->state_of(channel);
    require(
        message == state.sent && state.sent - state.ended < hub_->window_,
        "transport: sends must be queued in order and within the window on " + describe(channel),
        static_cast<std::int64_t>(message));
    state.sends[message % hub_->window_] = from;
    ++state.sent;
    hub_->transfer(lock, channel, state);
  }

  [[nodiscard]] bool send_ended(const Channel& channel, std::size_t message) {
    ThreadHub::Lock lock(hub_->mutex_);
    hub_->check_aborted(lock);
    return hub_->state_of(channel).ended > message;
  }

  void await_send(const Channel& channel, std::size_t message) {
    ThreadHub::Lock lock(hub_->mutex_);
    await_transfer(lock, channel, hub_->state_of(channel), message);
  }

  void ring(const Meeting& meeting, std::span<const std::byte> from, std::span<std::byte> into) {
    const auto check = [](ThreadHub::Contributions all) {
      for (std::size_t member = 0; member < all.size(); ++member) {
        const auto& next = all[(member + 1) % all.size()];
        require(all[member].from.size() == next.into.size(),
                "transport: ring members must agree on bytes",
                static_cast<std::int64_t>(next.into.size()));
      }
    };
    meet(meeting, {from, into}, check, [](ThreadHub::Contributions all) {
      for (std::size_t member = 0; member < all.size(); ++member) {
        copy(all[member].from, all[(member + 1) % all.size()].into);
      }
    });
  }

  template <std::floating_point Element>
  void broadcast(const Meeting& meeting, std::size_t root, std::span<Element> values) {
    meet(meeting, whole(values), check_equal_sizes, [root](ThreadHub::Contributions all) {
      for (std::size_t member = 0; member < all.size(); ++member) {
        if (member != root) copy(all[root].from, all[member].into);
      }
    });
  }

  template <std::floating_point Element>
  void all_reduce(const Meeting& meeting, std::span<Element> values, Reduction reduction) {
    meet(meeting, whole(values), check_equal_sizes,
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
    meet(meeting, contribution, check_equal_sizes, [](ThreadHub::Contributions all) {
      for (const auto& source : all) {
        const std::size_t bytes = source.last - source.first;
        for (const auto& target : all) {
          if (&source == &target) continue;
          copy(source.from.subspan(source.first, bytes), target.into.subspan(source.first, bytes));
        }
      }
    });
  }

  template <std::floating_point Element>
  void queue_sum(const Meeting& meeting, std::int64_t tag, std::span<Element> values) {
    ThreadHub::Lock lock(hub_->mutex_);
    hub_->check_aborted(lock);
    hub_->arrive(lock, meeting, hub_->circles_[meeting.members].sums[tag], whole(values),
                 check_equal_sizes,
                 [](ThreadHub::Contributions all) { reduce<Element>(all, Reduction::sum); });
  }

  void await_sum(const Meeting& meeting, std::int64_t tag) {
    ThreadHub::Lock lock(hub_->mutex_);
    auto& sums = hub_->circles_[meeting.members].sums;
    const auto found = sums.find(tag);
    require(found != sums.end(), "transport: a sum must be queued before it is awaited", tag);
    ThreadHub::Wait wait;
    wait.gathering = &found->second;
    wait.meeting = &meeting;
    wait.tag = tag;
    block(lock, wait);
    if (++found->second.departed == meeting.members.size()) sums.erase(found);
  }

  /// Throws Aborted too: a device that has nothing to do with the others ends at its next unit.
  void at(const std::string& place) {
    ThreadHub::Lock lock(hub_->mutex_);
    hub_->check_aborted(lock);
    hub_->seats_[device_].place = place;
  }

  void abort(const std::string& sentence) { hub_->abort(sentence); }

  /// How long calls have been blocked so far.
  [[nodiscard]] std::chrono::nanoseconds waited() const noexcept { return waited_; }

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

  /// By blocks that stay in the first cache.
  template <std::floating_point Element>
  static void reduce(ThreadHub::Contributions all, Reduction reduction) {
    std::array<Element, 1024> sum, other;
    const std::size_t bytes = all.front().from.size();
    for (std::size_t at = 0; at < bytes; at += sizeof(sum)) {
      const std::size_t size = std::min(sizeof(sum), bytes - at);
      const std::size_t count = size / sizeof(Element);
      std::memcpy(sum.data(), all.front().from.data() + at, size);
      for (const auto& one : all.subspan(1)) {
        std::memcpy(other.data(), one.from.data() + at, size);
        combine(std::span(sum).first(count), std::span<const Element>(other).first(count),
                reduction);
      }
      for (const auto& one : all) std::memcpy(one.into.data() + at, sum.data(), size);
    }
  }

  void block(ThreadHub::Lock& lock, const ThreadHub::Wait& wait) {
    if (wait.over()) return hub_->check_aborted(lock);
    const auto begin = std::chrono::steady_clock::now();
    hub_->wait_for(lock, device_, wait);
    waited_ += std::chrono::steady_clock::now() - begin;
  }

  void await_transfer(ThreadHub::Lock& lock, const Channel& channel,
                      const ThreadHub::ChannelState& state, std::size_t message) {
    ThreadHub::Wait wait;
    wait.channel = &state;
    wait.name = &channel;
    wait.number = message;
    block(lock, wait);
  }

  template <std::invocable<ThreadHub::Contributions> Check,
            std::invocable<ThreadHub::Contributions> Work>
  void meet(const Meeting& meeting, const ThreadHub::Contribution& contribution, Check check,
            Work work) {
    ThreadHub::Lock lock(hub_->mutex_);
    hub_->check_aborted(lock);
    auto& gathering = hub_->circles_[meeting.members].meeting;
    ThreadHub::Wait wait;
    wait.gathering = &gathering;
    wait.meeting = &meeting;
    wait.number = gathering.ended;
    hub_->arrive(lock, meeting, gathering, contribution, check, work);
    block(lock, wait);
  }

  ThreadHub* hub_;
  std::size_t device_;
  std::chrono::nanoseconds waited_{};
};

static_assert(Transport<ThreadTransport, double> && Transport<ThreadTransport, float> &&
              !Transport<ThreadHub, double>);

}  // namespace slimpack::exec
