// SPDX-License-Identifier: Apache-2.0
// The event loop of everything that executes schedules without a DAG: time, events and who decides.
#pragma once

#include <algorithm>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

namespace slimpack::schedule {

/// The time of an event that is not known to come, in nanoseconds.
inline constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

/// The earliest of one event a device, ties to the lowest device: a tree of least times with eight
/// children a node. Setting a time or finding the earliest device takes O(log devices), the time of
/// the earliest one O(1).
class NextEvent {
 public:
  /// Forgets everything; no device has an event.
  void reset(std::size_t devices) {
    first_.clear();
    std::size_t size = 0, nodes = devices;
    do {
      nodes = (nodes + kChildren - 1) / kChildren;
      first_.push_back(size);
      size += nodes * kChildren;
    } while (nodes > 1);
    times_.assign(size, kNever);
    least_ = kNever;
  }
  /// Replaces the time of a device's event; kNever removes the event.
  void set(std::uint32_t device, std::int64_t time) noexcept {
    std::size_t i = device;
    for (std::size_t level = 0; level < first_.size(); ++level) {
      const std::int64_t before = std::exchange(times_[first_[level] + i], time);
      i /= kChildren;
      std::int64_t& least = level + 1 < first_.size() ? times_[first_[level + 1] + i] : least_;
      if (time >= least) {
        if (before != least) return;
        time = least_of(first_[level] + i * kChildren);
        if (time == least) return;
      }
      if (level + 1 == first_.size()) least_ = time;
    }
  }
  /// The device with the earliest event, if there is one.
  [[nodiscard]] std::uint32_t device() const noexcept {
    std::size_t i = 0;
    for (std::size_t level = first_.size(); level-- > 0;) {
      const std::int64_t* child = times_.data() + first_[level] + i * kChildren;
      // All are compared: where the first one is cannot be foreseen.
      unsigned earliest = 0;
      for (std::size_t of = 0; of < kChildren; ++of) {
        earliest |= static_cast<unsigned>(child[of] == least_) << of;
      }
      i = i * kChildren + static_cast<std::size_t>(std::countr_zero(earliest));
    }
    return static_cast<std::uint32_t>(i);
  }
  /// The earliest time, kNever if there is no event.
  [[nodiscard]] std::int64_t time() const noexcept { return least_; }
  /// The time of one device's event.
  [[nodiscard]] std::int64_t time(std::uint32_t device) const noexcept { return times_[device]; }

 private:
  static constexpr std::size_t kChildren = 8;

  [[nodiscard]] std::int64_t least_of(std::size_t first) const noexcept {
    const std::int64_t* child = times_.data() + first;
    const std::int64_t a = std::min(child[0], child[1]), b = std::min(child[2], child[3]);
    const std::int64_t c = std::min(child[4], child[5]), d = std::min(child[6], child[7]);
    return std::min(std::min(a, b), std::min(c, d));
  }

  std::vector<std::size_t> first_;   // of each level in times_; level 0 are the devices
  std::vector<std::int64_t> times_;  // each level filled up to whole nodes
  std::int64_t least_ = kNever;
};

/// Numbers, of which the highest leaves first. Adding takes O(1), taking O(1) for up to 64 numbers.
class HighestFirst {
 public:
  /// Forgets everything; numbers will be below `count`.
  void reset(std::size_t count) {
    words_.assign(count / kBits + 1, 0);
    top_ = 0;
  }
  /// Adds a number unless it is there.
  void add(std::uint32_t number) noexcept {
    words_[number / kBits] |= std::uint64_t{1} << number % kBits;
    top_ = std::max(top_, std::size_t{number} / kBits);
  }
  /// Whether there is none. Finds the next one.
  [[nodiscard]] bool empty() noexcept {
    while (words_[top_] == 0 && top_ > 0) --top_;
    return words_[top_] == 0;
  }
  /// Takes the highest; `empty` has just said that there is one.
  [[nodiscard]] std::uint32_t take() noexcept {
    const auto bit = static_cast<std::size_t>(std::bit_width(words_[top_]) - 1);
    words_[top_] &= ~(std::uint64_t{1} << bit);
    return static_cast<std::uint32_t>(top_ * kBits + bit);
  }

 private:
  static constexpr std::size_t kBits = 64;
  std::vector<std::uint64_t> words_{0};
  std::size_t top_ = 0;  // no word behind it holds a number
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
