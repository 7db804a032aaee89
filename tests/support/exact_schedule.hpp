// SPDX-License-Identifier: Apache-2.0
// The shortest of all schedules of given MicroPacks, by branch and bound over their orders.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/plan/cp_shard.hpp"
#include "slimpack/plan/plan.hpp"
#include "support/exact_problem.hpp"

namespace slimpack::test {

inline constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max() / 4;

/// What a search has found.
struct ExactSchedule {
  bool proven = true;              ///< false where the nodes did not suffice
  bool found = false;              ///< a schedule shorter than the limit
  std::int64_t makespan = 0;       ///< of the shortest, if found
  std::vector<std::size_t> order;  ///< of all ops; starts rise along it
  std::int64_t nodes = 0;
};

namespace detail {

/// Depth first over all semi-active schedules, their units in the order of their starts. Of states
/// with the same units done and the same orders on the channels, one that is nowhere earlier than
/// another leads to nothing better.
class ExactSearch {
 public:
  static constexpr std::size_t kMostOps = 64;
  static constexpr std::size_t kMostDevices = 8;
  static constexpr std::size_t kMostChannels = 24;

  ExactSearch(const ExactProblem& problem, std::int64_t limit, std::int64_t most_nodes)
      : problem_(problem), ops_(problem.ops), limit_(limit), most_nodes_(most_nodes) {
    require(ops_.size() <= kMostOps, "exact_schedule: there must be at most 64 units",
            static_cast<std::int64_t>(ops_.size()));
    require(problem.devices <= kMostDevices, "exact_schedule: there must be at most 8 devices",
            static_cast<std::int64_t>(problem.devices));
    successors_.resize(ops_.size());
    State root;
    for (std::size_t op = 0; op < ops_.size(); ++op) {
      for (const ExactOp::After& after : ops_[op].after) {
        successors_[after.op].push_back({op, after.lag});
        needs_[op] |= bit(after.op);
      }
      if (ops_[op].channel) {
        for (std::size_t other = 0; other < ops_.size(); ++other) {
          if (other != op && ops_[other].channel == ops_[op].channel) rivals_[op] |= bit(other);
        }
      }
      for (const std::size_t device : ops_[op].devices) root.load[device] += ops_[op].duration;
    }
    require(problem.channels <= kMostChannels, "exact_schedule: there must be at most 24 channels",
            static_cast<std::int64_t>(problem.channels));
    for (const std::uint64_t rivals : rivals_) {
      require(std::popcount(rivals) < kMostQueued,
              "exact_schedule: a group must have at most 10 packs a pass",
              std::popcount(rivals) + 1);
    }
    find_tails();
    tight_ = needs_memory();
    root_ = std::move(root);
  }

  [[nodiscard]] ExactSchedule run() {
    if (problem_.least >= limit_) return best_;
    descend(root_);
    return best_;
  }

 private:
  static constexpr int kQueuedBits = 6, kMostQueued = 10;
  static constexpr std::uint64_t kQueuedMask = (std::uint64_t{1} << kQueuedBits) - 1;

  struct State {
    std::uint64_t done = 0;
    std::int64_t now = 0, end = 0;
    std::array<std::int64_t, kMostOps> ready{};
    std::array<std::int64_t, kMostDevices> free{}, load{}, held{};
    // By channel: packs sent and not yet consumed, each as its number + 1 in six bits, first
    // lowest.
    std::array<std::uint64_t, kMostChannels> queue{};
  };

  [[nodiscard]] static constexpr std::uint64_t bit(std::size_t op) {
    return std::uint64_t{1} << op;
  }

  void find_tails() {
    std::vector<std::size_t> left(ops_.size());
    for (std::size_t op = 0; op < ops_.size(); ++op) {
      left[op] = ops_[op].after.size();
      tail_[op] = ops_[op].tail;
      if (left[op] == 0) sorted_.push_back(op);
    }
    for (std::size_t seen = 0; seen < sorted_.size(); ++seen) {
      for (const ExactOp::After& next : successors_[sorted_[seen]]) {
        if (--left[next.op] == 0) sorted_.push_back(next.op);
      }
    }
    require(sorted_.size() == ops_.size(), "exact_schedule: units wait for each other");
    for (std::size_t i = sorted_.size(); i > 0; --i) {
      const std::size_t op = sorted_[i - 1];
      for (const ExactOp::After& next : successors_[op]) {
        tail_[op] = std::max(tail_[op], next.lag + ops_[next.op].duration + tail_[next.op]);
      }
    }
  }

  /// Whether some order could exceed a device's room.
  [[nodiscard]] bool needs_memory() const {
    for (std::size_t device = 0; device < problem_.devices; ++device) {
      std::int64_t kept = 0, most = 0;
      for (const ExactOp& op : ops_) {
        for (std::size_t i = 0; i < op.devices.size(); ++i) {
          if (op.devices[i] != device) continue;
          kept += std::max<std::int64_t>(0, op.memory[i].change);
          most = std::max(most, op.memory[i].during);
        }
      }
      if (kept + most > problem_.room[device]) return true;
    }
    return false;
  }

  [[nodiscard]] std::int64_t earliest(const State& state, std::size_t op) const {
    std::int64_t start = state.ready[op];
    for (const std::size_t device : ops_[op].devices) {
      start = std::max(start, state.free[device]);
    }
    return start;
  }

  [[nodiscard]] bool may_start(const State& state, std::size_t op) const {
    if ((state.done & bit(op)) != 0 || (needs_[op] & ~state.done) != 0) return false;
    const ExactOp& facts = ops_[op];
    if (facts.receives && (state.queue[*facts.channel] & kQueuedMask) != facts.pack + 1) {
      return false;
    }
    for (std::size_t i = 0; tight_ && i < facts.devices.size(); ++i) {
      const std::size_t device = facts.devices[i];
      if (state.held[device] + facts.memory[i].during > problem_.room[device]) return false;
    }
    return true;
  }

  /// No completion of this state ends before.
  [[nodiscard]] std::int64_t bound(const State& state) const {
    std::int64_t bound = state.end;
    std::array<std::int64_t, kMostOps> head = state.ready;
    std::array<std::int64_t, kMostDevices> first{}, last{};
    first.fill(kNoLimit);
    last.fill(kNoLimit);
    for (const std::size_t op : sorted_) {
      if ((state.done & bit(op)) != 0) continue;
      std::int64_t start = std::max(head[op], state.now);
      for (const std::size_t device : ops_[op].devices) start = std::max(start, state.free[device]);
      const std::int64_t finish = start + ops_[op].duration;
      bound = std::max(bound, finish + tail_[op]);
      for (const ExactOp::After& next : successors_[op]) {
        head[next.op] = std::max(head[next.op], finish + next.lag);
      }
      for (const std::size_t device : ops_[op].devices) {
        first[device] = std::min(first[device], start);
        last[device] = std::min(last[device], tail_[op]);
      }
    }
    for (std::size_t device = 0; device < problem_.devices; ++device) {
      if (first[device] < kNoLimit) {
        bound = std::max(bound, first[device] + state.load[device] + last[device]);
      }
    }
    return bound;
  }

  /// Whether a known state is nowhere later; else keeps this one.
  [[nodiscard]] bool dominated(const State& state) {
    std::string key(reinterpret_cast<const char*>(&state.done), sizeof state.done);
    key.append(reinterpret_cast<const char*>(state.queue.data()),
               problem_.channels * sizeof state.queue[0]);
    std::vector<std::int64_t> times{state.now, state.end};
    times.insert(times.end(), state.free.begin(),
                 state.free.begin() + static_cast<std::ptrdiff_t>(problem_.devices));
    for (std::size_t op = 0; op < ops_.size(); ++op) {
      if ((state.done & bit(op)) == 0 && (needs_[op] & state.done) != 0) {
        times.push_back(state.ready[op]);
      }
    }
    auto& known = seen_[key];
    const auto no_later = [](const std::vector<std::int64_t>& a,
                             const std::vector<std::int64_t>& b) {
      return std::equal(a.begin(), a.end(), b.begin(),
                        [](std::int64_t x, std::int64_t y) { return x <= y; });
    };
    for (const auto& other : known) {
      if (no_later(other, times)) return true;
    }
    std::erase_if(known, [&](const auto& other) { return no_later(times, other); });
    known.push_back(std::move(times));
    return false;
  }

  void descend(const State& state) {
    if (++best_.nodes > most_nodes_) {
      best_.proven = false;
      return;
    }
    if (order_.size() == ops_.size()) {
      limit_ = best_.makespan = std::max(state.end, problem_.least);
      best_.found = true;
      best_.order = order_;
      return;
    }
    if (bound(state) >= limit_ || dominated(state)) return;
    struct Choice {
      std::int64_t start, urgency;
      std::size_t op;
      auto operator<=>(const Choice&) const = default;
    };
    std::vector<Choice> choices;
    // A unit that can end before any other begins, and whose order nobody minds, is not put off.
    std::int64_t idle_until = kNoLimit;
    for (std::size_t op = 0; op < ops_.size(); ++op) {
      if (!may_start(state, op)) continue;
      const std::int64_t start = earliest(state, op);
      if (start >= state.now) choices.push_back({start, -tail_[op], op});
      const bool decides = ops_[op].channel && !ops_[op].receives;
      if (!tight_ && (!decides || (rivals_[op] & ~state.done) == 0)) {
        idle_until = std::min(idle_until, start + ops_[op].duration);
      }
    }
    std::sort(choices.begin(), choices.end());
    for (const Choice& choice : choices) {
      if (choice.start >= idle_until && ops_[choice.op].duration > 0) continue;
      descend(after(state, choice.op, choice.start));
      order_.pop_back();
      if (!best_.proven) return;
    }
  }

  [[nodiscard]] State after(const State& state, std::size_t op, std::int64_t start) {
    const ExactOp& facts = ops_[op];
    State next = state;
    const std::int64_t finish = start + facts.duration;
    next.done |= bit(op);
    next.now = start;
    next.end = std::max(next.end, finish + facts.tail);
    order_.push_back(op);
    for (std::size_t i = 0; i < facts.devices.size(); ++i) {
      const std::size_t device = facts.devices[i];
      next.free[device] = finish;
      next.load[device] -= facts.duration;
      next.held[device] += facts.memory[i].change;
    }
    for (const ExactOp::After& later : successors_[op]) {
      const ExactOp& other = ops_[later.op];
      next.ready[later.op] = std::max(next.ready[later.op], finish + later.lag);
      if (other.receives && other.pack == facts.pack && other.unit.kind == facts.unit.kind) {
        std::uint64_t& queue = next.queue[*other.channel];
        int place = 0;
        while (queue >> place != 0) place += kQueuedBits;
        queue |= std::uint64_t{facts.pack + 1} << place;
      }
    }
    if (facts.receives) next.queue[*facts.channel] >>= kQueuedBits;
    return next;
  }

  const ExactProblem& problem_;
  const std::vector<ExactOp>& ops_;
  std::int64_t limit_, most_nodes_;
  bool tight_ = false;
  std::vector<std::vector<ExactOp::After>> successors_;  // `op` is the later one
  std::array<std::uint64_t, kMostOps> needs_{}, rivals_{};
  std::array<std::int64_t, kMostOps> tail_{};  // from the op's end to the step's
  std::vector<std::size_t> sorted_;            // each op behind what it waits for
  std::vector<std::size_t> order_;
  std::unordered_map<std::string, std::vector<std::vector<std::int64_t>>> seen_;
  State root_;
  ExactSchedule best_;
};

}  // namespace detail

/// The shortest schedule of all that are shorter than `limit`. At most 64 units on 8 devices.
[[nodiscard]] inline ExactSchedule exact_schedule(const ExactProblem& problem,
                                                  std::int64_t limit = kNoLimit,
                                                  std::int64_t most_nodes = kNoLimit) {
  return detail::ExactSearch(problem, limit, most_nodes).run();
}

/// The device orders of a schedule, R and O added.
[[nodiscard]] inline std::vector<DeviceSchedule> exact_orders(const Plan& plan,
                                                              const ExactProblem& problem,
                                                              const ExactSchedule& schedule) {
  std::vector<DeviceSchedule> devices;
  for (std::int32_t dp = 0; dp < plan.parallel.dp; ++dp) {
    for (std::int32_t pp = 0; pp < plan.parallel.pp; ++pp) devices.push_back({dp, pp, {}});
  }
  for (const std::size_t op : schedule.order) {
    for (const std::size_t device : problem.ops[op].devices) {
      devices[device].order.push_back(problem.ops[op].unit);
    }
  }
  for (DeviceSchedule& device : devices) {
    device.order.push_back({UnitKind::reduce, {}, 0});
    device.order.push_back({UnitKind::optimizer, {}, 0});
  }
  return devices;
}

}  // namespace slimpack::test
