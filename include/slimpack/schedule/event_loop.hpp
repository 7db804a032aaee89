// SPDX-License-Identifier: Apache-2.0
// The event loop of everything that executes schedules without a DAG: time, events and who decides.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace slimpack::schedule {

/// The time of an event that is not known to come, in nanoseconds.
inline constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

/// The earliest of one event a device, ties to the lowest device: a tree of winners. Setting a time
/// takes O(log devices), reading the earliest one O(1).
class NextEvent {
 public:
  /// Forgets everything; no device has an event.
  void reset(std::size_t devices) {
    leaves_ = 1;
    while (leaves_ < devices) leaves_ *= 2;
    times_.assign(leaves_, kNever);
    winner_.resize(2 * leaves_);
    for (std::size_t leaf = 0; leaf < leaves_; ++leaf) {
      winner_[leaves_ + leaf] = static_cast<std::uint32_t>(leaf);
    }
    for (std::size_t node = leaves_; node-- > 1;) winner_[node] = winner_[2 * node];
    if (leaves_ == 1) winner_[1] = 0;
  }
  /// Replaces the time of a device's event; kNever removes the event.
  void set(std::uint32_t device, std::int64_t time) noexcept {
    times_[device] = time;
    for (std::size_t node = (leaves_ + device) / 2; node > 0; node /= 2) {
      const std::uint32_t left = winner_[2 * node], right = winner_[2 * node + 1];
      winner_[node] = times_[right] < times_[left] ? right : left;
    }
  }
  /// The device with the earliest event.
  [[nodiscard]] std::uint32_t device() const noexcept { return winner_[1]; }
  /// The earliest time, kNever if there is no event.
  [[nodiscard]] std::int64_t time() const noexcept { return times_[winner_[1]]; }
  /// The time of one device's event.
  [[nodiscard]] std::int64_t time(std::uint32_t device) const noexcept { return times_[device]; }

 private:
  std::size_t leaves_ = 1;
  std::vector<std::int64_t> times_;
  std::vector<std::uint32_t> winner_;  // node 1 is the root; leaves from leaves_
};

/// What devices do in an EventLoop: fixed orders, a rule that chooses, or anything else.
/// Laws: `busy` returns whether something runs on a device. `finish` is called when that ends, and
/// makes the device idle. `decide` is called for an idle device, and may begin something on it.
/// `settle` is called when nothing is left to happen at an instant, and returns whether it changed
/// anything. `unblock` is called when no event is left, and returns whether the run goes on.
template <class Policy>
concept EventPolicy = requires(Policy& policy, std::uint32_t device) {
  { policy.busy(device) } -> std::same_as<bool>;
  policy.finish(device);
  policy.decide(device);
  { policy.settle() } -> std::same_as<bool>;
  { policy.unblock() } -> std::same_as<bool>;
};

/// Simulated time, one event for each device, and the devices that are to decide what they do next.
///
///     EventLoop loop;
///     loop.reset(stages);                               // every device decides at time 0
///     loop.run(policy);                                 // calls the policy until nothing is left
///     // within the policy:
///     loop.set(device, loop.now() + duration);          // what it began ends then: `finish`
///     loop.set(device, arrival);                        // idle: it decides again then
///     loop.ask(other);                                  // something changed: it decides at once
///
/// All that ends at one instant ends before any device decides. Devices decide from the highest
/// number to the lowest. A run takes O((events + decisions) log devices).
class EventLoop {
 public:
  /// Goes back to time 0, at which every device decides.
  void reset(std::size_t devices) {
    events_.reset(devices);
    asked_.clear();
    is_asked_.assign(devices, 0);
    now_ = 0;
    for (std::size_t device = 0; device < devices; ++device) {
      ask(static_cast<std::uint32_t>(device));
    }
  }

  /// The simulated time, in nanoseconds.
  [[nodiscard]] std::int64_t now() const noexcept { return now_; }
  /// The time of a device's event.
  [[nodiscard]] std::int64_t time(std::uint32_t device) const noexcept {
    return events_.time(device);
  }
  /// Gives a device its only event, `now()` or later; kNever takes it away.
  void set(std::uint32_t device, std::int64_t time) noexcept { events_.set(device, time); }
  /// Lets a device decide at this instant, unless it is busy by then.
  void ask(std::uint32_t device) {
    if (is_asked_[device] != 0) return;
    is_asked_[device] = 1;
    asked_.push_back(device);
    std::push_heap(asked_.begin(), asked_.end());
  }

  /// Runs until there is no event and `unblock` has nothing left to do.
  template <EventPolicy Policy>
  void run(Policy& policy) {
    for (;;) {
      decide_all(policy);
      if (events_.time() != now_) {
        if (policy.settle()) continue;
        if (events_.time() == kNever) {
          if (!policy.unblock()) return;
          continue;
        }
        now_ = events_.time();
      }
      while (events_.time() == now_) {
        const std::uint32_t device = events_.device();
        events_.set(device, kNever);
        if (policy.busy(device)) policy.finish(device);
        ask(device);
      }
    }
  }

 private:
  template <EventPolicy Policy>
  void decide_all(Policy& policy) {
    while (!asked_.empty()) {
      std::pop_heap(asked_.begin(), asked_.end());
      const std::uint32_t device = asked_.back();
      asked_.pop_back();
      is_asked_[device] = 0;
      if (!policy.busy(device)) policy.decide(device);
    }
  }

  NextEvent events_;
  std::vector<std::uint32_t> asked_;  // a heap, the highest device first
  std::vector<std::uint8_t> is_asked_;
  std::int64_t now_ = 0;
};

}  // namespace slimpack::schedule
