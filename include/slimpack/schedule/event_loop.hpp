// SPDX-License-Identifier: Apache-2.0
// The event loop of everything that executes schedules without a DAG: time, events and who decides.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

namespace slimpack::schedule {

/// The time of an event that is not known to come, in nanoseconds: 36 years. Below three more bits
/// of a number, so that `NextEvent` keeps it as it keeps any time.
inline constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max() >> 3U;

/// The earliest of one event a device, ties to the lowest device: a tree of least times with eight
/// children a node. Times are at most kNever. Setting a time takes O(log devices), the
/// time of the earliest one O(1), and its device O(log devices).
class NextEvent {
 public:
  /// Forgets everything; no device has an event.
  void reset(std::size_t devices) {
    deep_ = devices > kChildren;
    for (std::size_t i = 0; i < few_.size(); ++i) few_[i] = key(kNever, i);
    top_ = key(kNever, 0);
    if (!deep_) return;
    first_.clear();
    std::size_t nodes = 0, count = devices;
    do {
      first_.push_back(nodes);
      count = (count + kChildren - 1) / kChildren;
      nodes += count;
    } while (count > 1);
    keys_.resize(nodes * kChildren);
    for (std::size_t i = 0; i < keys_.size(); ++i) keys_[i] = key(kNever, i);
    least_.assign(nodes, key(kNever, 0));
  }
  /// Replaces the time of a device's event; kNever removes the event.
  void set(std::uint32_t device, std::int64_t time) noexcept {
    const std::int64_t now = key(time, device);
    if (deep_) {
      keys_[device] = now;
      raise(device);
      return;
    }
    const std::int64_t before = std::exchange(few_[device], now);
    top_ = before == top_ ? least_of(few_.data()) : std::min(top_, now);
  }
  /// The device with the earliest event, if there is one.
  [[nodiscard]] std::uint32_t device() const noexcept {
    std::size_t i = child(top_);
    if (!deep_) return static_cast<std::uint32_t>(i);
    for (std::size_t level = first_.size() - 1; level-- > 0;) {
      i = i * kChildren + child(least_[first_[level] + i]);
    }
    return static_cast<std::uint32_t>(i);
  }
  /// The earliest time, kNever if there is no event.
  [[nodiscard]] std::int64_t time() const noexcept { return time_of(top_); }
  /// The time of one device's event.
  [[nodiscard]] std::int64_t time(std::uint32_t device) const noexcept {
    return time_of(deep_ ? keys_[device] : few_[device]);
  }

 private:
  static constexpr unsigned kBits = 3;
  static constexpr std::size_t kChildren = 1U << kBits;

  /// A time, and below it which child of its node has it: the least key is the first of the
  /// earliest.
  [[nodiscard]] static std::int64_t key(std::int64_t time, std::size_t i) noexcept {
    return time << kBits | static_cast<std::int64_t>(i % kChildren);
  }
  [[nodiscard]] static std::int64_t time_of(std::int64_t key) noexcept { return key >> kBits; }
  [[nodiscard]] static std::size_t child(std::int64_t key) noexcept {
    return static_cast<std::size_t>(key) % kChildren;
  }
  [[nodiscard]] static std::int64_t least_of(const std::int64_t* keys) noexcept {
    const std::int64_t a = std::min(keys[0], keys[1]), b = std::min(keys[2], keys[3]);
    const std::int64_t c = std::min(keys[4], keys[5]), d = std::min(keys[6], keys[7]);
    return std::min(std::min(a, b), std::min(c, d));
  }
  /// Finds the least keys above a device's new one.
  void raise(std::uint32_t device) noexcept {
    std::size_t i = device;
    for (std::size_t level = 0;; ++level) {
      i /= kChildren;
      const std::size_t node = first_[level] + i;
      const std::int64_t before = std::exchange(least_[node], least_of(&keys_[node * kChildren]));
      if (level + 1 == first_.size()) {
        top_ = least_[node];
        return;
      }
      if (least_[node] == before) return;
      keys_[first_[level + 1] * kChildren + i] = key(time_of(least_[node]), i);
    }
  }

  bool deep_ = false;                          // there are several nodes, else none
  std::array<std::int64_t, kChildren> few_{};  // keys of the devices, where one node has all
  std::vector<std::size_t> first_;   // node of each level; level 0 has the devices as children
  std::vector<std::int64_t> keys_;   // of the children of each node
  std::vector<std::int64_t> least_;  // of each node
  std::int64_t top_ = 0;             // of the last node
};

/// Numbers, of which the highest leaves first. Adding and taking one takes O(1) for up to 64
/// numbers; for more, taking takes O(numbers / 64).
class HighestFirst {
 public:
  /// Forgets everything; numbers will be below `count`.
  void reset(std::size_t count) {
    low_ = 0;
    high_.assign((count + kBits - 1) / kBits, 0);
    top_ = 0;
  }
  /// Adds a number unless it is there.
  void add(std::uint32_t number) noexcept {
    if (number < kBits) {
      low_ |= std::uint64_t{1} << number;
      return;
    }
    high_[number / kBits] |= std::uint64_t{1} << number % kBits;
    top_ = std::max(top_, std::size_t{number} / kBits);
  }
  /// Whether there is none. Finds the next one.
  [[nodiscard]] bool empty() noexcept {
    while (top_ > 0 && high_[top_] == 0) --top_;
    return top_ == 0 && low_ == 0;
  }
  /// Takes the highest; `empty` has just said that there is one.
  [[nodiscard]] std::uint32_t take() noexcept {
    if (top_ == 0) return take(low_);
    return static_cast<std::uint32_t>(top_ * kBits) + take(high_[top_]);
  }

 private:
  static constexpr std::size_t kBits = 64;

  [[nodiscard]] static std::uint32_t take(std::uint64_t& word) noexcept {
    const auto bit = static_cast<std::uint32_t>(std::bit_width(word) - 1);
    word ^= std::uint64_t{1} << bit;
    return bit;
  }

  std::uint64_t low_ = 0;            // numbers below 64
  std::vector<std::uint64_t> high_;  // all others; the first is not used
  std::size_t top_ = 0;              // no word behind it holds a number
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
    clear(devices);
    for (std::size_t device = 0; device < devices; ++device) {
      ask(static_cast<std::uint32_t>(device));
    }
  }

  /// Goes back to time 0, at which no device decides before `restart`.
  void clear(std::size_t devices) {
    events_.reset(devices);
    asked_.reset(devices);
    now_ = 0;
  }
  /// Goes back to time 0, at which these devices decide; all others stay as they are. No event may
  /// be left.
  void restart(std::span<const std::uint32_t> devices) {
    now_ = 0;
    for (const std::uint32_t device : devices) ask(device);
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
  void ask(std::uint32_t device) noexcept { asked_.add(device); }

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
      const std::uint32_t device = asked_.take();
      if (!policy.busy(device)) policy.decide(device);
    }
  }

  NextEvent events_;
  HighestFirst asked_;
  std::int64_t now_ = 0;
};

}  // namespace slimpack::schedule
