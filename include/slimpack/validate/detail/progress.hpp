// SPDX-License-Identifier: Apache-2.0
// Rule 6, the part that needs execution: whether the plan ends, whatever its times are.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/validate/detail/channel.hpp"
#include "slimpack/validate/detail/findings.hpp"
#include "slimpack/validate/detail/frame.hpp"

namespace slimpack::validation {

/// What a device that cannot go on waits for: a device and a reason.
struct Wait {
  Position device = kNowhere;
  std::string reason;
};

/// Executes a plan without times. Nothing here can be taken back by going on elsewhere, so one
/// order of events stands for all: what can end ends, and what is stuck is stuck always.
class Progress {
 public:
  Progress(const Plan& plan, const Frame& frame, const Channels& channels)
      : plan_(plan), frame_(frame), channels_(channels) {
    const std::size_t devices = plan.schedule.size();
    done_.assign(devices, 0);
    arrived_.assign(devices, false);
    queued_.assign(devices, false);
    missing_.resize(devices);
    for (std::size_t i = 0; i < devices; ++i) missing_[i].assign(frame.position[i].size(), 0);
    sent_.assign(channels.mixed_up.size(), 0);
    consumed_.assign(channels.mixed_up.size(), 0);
    turns_.resize(devices);
    reduced_.assign(devices, 0);
    offered_.assign(devices, 0);
    reduce_missing_.assign(frame.pp * frame.chunks, 0);
    prepare_reduce();
  }

  /// Runs until nothing moves; true if everything has ended. O(units x ranks of a group).
  [[nodiscard]] bool run() {
    for (const Position on : frame_.device) {
      if (on != kNowhere) wake(on);
    }
    while (!awake_.empty()) {
      const Position on = awake_.back();
      awake_.pop_back();
      queued_[on] = false;
      while (advance(on)) {
      }
    }
    return std::all_of(frame_.device.begin(), frame_.device.end(),
                       [&](Position on) { return on == kNowhere || ended(on); });
  }

  [[nodiscard]] bool ended(Position on) const {
    return done_[on] == plan_.schedule[on].order.size();
  }
  [[nodiscard]] std::size_t done(Position on) const { return done_[on]; }

  /// What a device that has not ended waits for.
  [[nodiscard]] Wait wait_of(Position on) const {
    const std::size_t i = done_[on];
    if (unit(on, i).kind == UnitKind::optimizer) return reduce_wait(on);
    if (auto wait = waits(on, i)) return *wait;
    Wait wait;
    for_each_collective(on, i, [&](Position other) {
      if (other == on || arrived_here(on, i, other)) return true;
      wait = {other, "a collective with " + standing(other)};
      return false;
    });
    return wait;
  }

 private:
  struct Step {
    const Membership* member = nullptr;
    std::size_t rank = 0, stage = 0, chunk = 0;
  };

  const Unit& unit(Position on, std::size_t i) const { return plan_.schedule[on].order[i]; }

  Step step(Position on, std::size_t i) const {
    Step step;
    const DeviceSchedule& device = plan_.schedule[on];
    step.rank = static_cast<std::size_t>(device.dp);
    step.stage = static_cast<std::size_t>(device.pp);
    step.chunk = unit(on, i).kind == UnitKind::head ? frame_.chunks
                                                    : static_cast<std::size_t>(unit(on, i).chunk);
    step.member = frame_.find(step.rank, index(plan_.micropacks[index(unit(on, i).pack)].group));
    return step;
  }

  /// "dp 0, pp 1, which is at unit 3, F of MicroPack 2, chunk 0".
  std::string standing(Position on) const {
    const DeviceSchedule& device = plan_.schedule[on];
    const std::string name = device_name(device.dp, device.pp);
    if (ended(on)) return name + ", which has ended";
    return name + ", which is at unit " + std::to_string(done_[on]) + ", " +
           to_string(unit(on, done_[on]));
  }

  /// Visits the devices of a unit's collective, in order of stage or rank, until `visit` says
  /// false: those that have the unit and do not break a rule in it.
  template <class Visit>
  void for_each_collective(Position on, std::size_t i, Visit&& visit) const {
    const Unit& here = unit(on, i);
    const Step s = step(on, i);
    const auto goes_on = [&](Position other, std::size_t rank) {
      const Membership* member = frame_.find(rank, s.member->group);
      const Position place = frame_.at(other, *member, here.pack, s.chunk);
      return place == kNowhere || frame_.faulty[other][place] || visit(other);
    };
    if (here.kind == UnitKind::head) {
      const bool sharded = plan_.parallel.head == LmHead::shard;
      for (std::size_t stage = sharded ? 0 : s.stage; stage < frame_.pp; ++stage) {
        if (!goes_on(frame_.device_of(s.rank, stage), s.rank)) return;
      }
      return;
    }
    if (here.kind == UnitKind::weight) {  // each rank its own tokens
      goes_on(on, s.rank);
      return;
    }
    for (const std::int32_t rank : plan_.groups[s.member->group]) {
      const auto dp = static_cast<std::size_t>(rank);
      if (!goes_on(frame_.device_of(dp, s.stage), dp)) return;
    }
  }

  bool arrived_here(Position on, std::size_t i, Position other) const {
    const Step s = step(on, i);
    const auto rank = static_cast<std::size_t>(plan_.schedule[other].dp);
    const Membership* member = frame_.find(rank, s.member->group);
    return arrived_[other] && frame_.at(other, *member, unit(on, i).pack, s.chunk) == done_[other];
  }

  /// Whether input, sends in flight or reductions hold a unit back, collectives apart.
  std::optional<Wait> waits(Position on, std::size_t k) const {
    const Unit& here = unit(on, k);
    if (frame_.faulty[on][k] || here.kind == UnitKind::reduce) return std::nullopt;
    if (here.kind == UnitKind::optimizer) {
      if (reduced_[on] == turns_[on].size()) return std::nullopt;
      return Wait{};
    }
    const Step s = step(on, k);
    const auto not_done = [&](std::size_t stage, UnitKind kind,
                              std::size_t chunk) -> std::optional<Wait> {
      const Position other = frame_.device_of(s.rank, stage);
      const Position place = frame_.at(other, *s.member, here.pack, chunk);
      if (place == kNowhere || place < done_[other]) return std::nullopt;
      return Wait{other, to_string({kind, here.pack, static_cast<std::int32_t>(chunk)}) + " of " +
                             standing(other)};
    };
    if (here.kind == UnitKind::head) {
      return not_done(frame_.pp - 1, UnitKind::forward, frame_.chunks - 1);
    }
    if (const auto from = source_of(frame_, here.kind, s.stage, s.chunk)) {
      if (auto wait = not_done(from->stage, here.kind, from->chunk)) return wait;
    }
    if (const auto channel = outgoing(on, k); channel && !channels_.mixed_up[*channel]) {
      // Send i may start when transfer i - w has ended (w: max_in_flight), which needs receive i -
      // w posted, that is, receive i - 2w consumed.
      const auto max_in_flight = static_cast<std::int64_t>(plan_.max_in_flight);
      if (sent_[*channel] >= consumed_[*channel] + 2 * max_in_flight) {
        const auto to = target_of(frame_, here.kind, s.stage, s.chunk);
        const Position other = frame_.device_of(s.rank, to->stage);
        return Wait{other, "an end of one of " + std::to_string(max_in_flight) +
                               " unfinished sends of group " + std::to_string(s.member->group) +
                               " to " + standing(other)};
      }
    }
    return std::nullopt;
  }

  /// The channel that a unit sends on, where both ends of the message exist.
  std::optional<std::size_t> outgoing(Position on, std::size_t i) const {
    const Step s = step(on, i);
    const auto to = target_of(frame_, unit(on, i).kind, s.stage, s.chunk);
    if (!to || frame_.pp == 1 || !reaches(s, unit(on, i).pack, *to)) return std::nullopt;
    return channels_.id(frame_, s.rank, place_of(s), to->gradients, s.stage);
  }
  std::optional<std::size_t> incoming(Position on, std::size_t i) const {
    const Step s = step(on, i);
    const auto from = source_of(frame_, unit(on, i).kind, s.stage, s.chunk);
    if (!from || frame_.pp == 1 || !reaches(s, unit(on, i).pack, *from)) return std::nullopt;
    return channels_.id(frame_, s.rank, place_of(s), from->gradients, from->stage);
  }
  bool reaches(const Step& s, PackId pack, const Peer& peer) const {
    return frame_.at(frame_.device_of(s.rank, peer.stage), *s.member, pack, peer.chunk) != kNowhere;
  }
  std::size_t place_of(const Step& s) const {
    return static_cast<std::size_t>(s.member - frame_.membership[s.rank].data());
  }

  void wake(Position on) {
    if (on == kNowhere || queued_[on]) return;
    queued_[on] = true;
    awake_.push_back(on);
  }

  /// Executes the next unit of a device if it can be.
  bool advance(Position on) {
    if (ended(on) || arrived_[on]) return false;
    const std::size_t i = done_[on];
    if (waits(on, i)) return false;
    const UnitKind kind = unit(on, i).kind;
    if (kind == UnitKind::reduce || kind == UnitKind::optimizer) {
      ++done_[on];
      if (kind == UnitKind::reduce && !frame_.faulty[on][i]) offer_reduce(on);
      return true;
    }
    if (member_of(plan_, frame_, on, i) == nullptr) {
      ++done_[on];
      return true;
    }
    if (frame_.faulty[on][i]) {
      end(on, i);
      return true;
    }
    // The count of those who have yet to come is kept at the first device of the collective.
    Position first = kNowhere;
    for_each_collective(on, i, [&](Position other) {
      first = other;
      return false;
    });
    const Step s = step(on, i);
    const Membership* member =
        frame_.find(static_cast<std::size_t>(plan_.schedule[first].dp), s.member->group);
    std::size_t& missing = missing_[first][frame_.entry(*member, unit(on, i).pack, s.chunk)];
    if (missing == 0) {
      for_each_collective(on, i, [&](Position) {
        ++missing;
        return true;
      });
    }
    arrived_[on] = true;
    if (--missing > 0) return false;
    std::vector<Position> all;
    for_each_collective(on, i, [&](Position other) {
      all.push_back(other);
      return true;
    });
    for (const Position other : all) end(other, done_[other]);
    for (const Position other : all) wake(other);
    return true;
  }

  /// Ends a unit of a device: counts its messages, wakes whom it concerns.
  void end(Position on, std::size_t i) {
    arrived_[on] = false;
    ++done_[on];
    const UnitKind kind = unit(on, i).kind;
    const Step s = step(on, i);
    if (kind == UnitKind::head) return;
    if (const auto channel = incoming(on, i)) {
      ++consumed_[*channel];
      wake(frame_.device_of(s.rank, source_of(frame_, kind, s.stage, s.chunk)->stage));
    }
    if (const auto channel = outgoing(on, i)) {
      ++sent_[*channel];
      wake(frame_.device_of(s.rank, target_of(frame_, kind, s.stage, s.chunk)->stage));
    }
    // A head elsewhere may wait for this F on the last stage.
    if (kind == UnitKind::forward && s.stage + 1 == frame_.pp && s.chunk + 1 == frame_.chunks &&
        plan_.parallel.head == LmHead::shard) {
      for (std::size_t stage = 0; stage < frame_.pp; ++stage) {
        wake(frame_.device_of(s.rank, stage));
      }
    }
  }

  /// Whether R of chunk 0 joins the stages that hold the embedding table or a part of it.
  bool tied_stage(std::size_t stage) const {
    return plan_.model.tied &&
           (plan_.parallel.head == LmHead::shard || stage == 0 || stage + 1 == frame_.pp);
  }
  /// Where the collective of an R is counted: that of tied tables at stage 0.
  std::size_t reduce_slot(std::size_t stage, std::size_t chunk) const {
    return (chunk == 0 && tied_stage(stage) ? 0 : stage) * frame_.chunks + chunk;
  }
  template <class Visit>
  void for_each_reducer(std::size_t stage, std::size_t chunk, Visit&& visit) const {
    const bool tied = chunk == 0 && tied_stage(stage);
    for (std::size_t rank = 0; rank < frame_.dp; ++rank) {
      for (std::size_t other = 0; other < frame_.pp; ++other) {
        const Position on = frame_.device_of(rank, other);
        if ((tied ? tied_stage(other) : other == stage) && on != kNowhere &&
            frame_.reduce[on][chunk] != kNowhere) {
          visit(on);
        }
      }
    }
  }

  void prepare_reduce() {
    for (const Position on : frame_.device) {
      if (on == kNowhere) continue;
      const auto& order = plan_.schedule[on].order;
      for (std::size_t i = 0; i < order.size(); ++i) {
        if (order[i].kind != UnitKind::reduce || frame_.faulty[on][i]) continue;
        const auto chunk = static_cast<std::size_t>(order[i].chunk);
        turns_[on].push_back(chunk);
        ++reduce_missing_[reduce_slot(static_cast<std::size_t>(plan_.schedule[on].pp), chunk)];
      }
    }
  }

  /// The device's next R, if it is queued and first in turn, joins its collective.
  void offer_reduce(Position first) {
    std::vector<Position> offers{first};
    while (!offers.empty()) {
      const Position on = offers.back();
      offers.pop_back();
      if (reduced_[on] == turns_[on].size()) {
        wake(on);
        continue;
      }
      const std::size_t chunk = turns_[on][reduced_[on]];
      // Queued, and not counted already for an earlier call with the same turn.
      if (frame_.reduce[on][chunk] >= done_[on] || offered_[on] == reduced_[on] + 1) continue;
      offered_[on] = reduced_[on] + 1;
      const auto stage = static_cast<std::size_t>(plan_.schedule[on].pp);
      if (--reduce_missing_[reduce_slot(stage, chunk)] > 0) continue;
      for_each_reducer(stage, chunk, [&](Position other) {
        ++reduced_[other];
        offers.push_back(other);
      });
    }
  }
  Wait reduce_wait(Position on) const {
    const std::size_t chunk = turns_[on][reduced_[on]];
    Wait wait;
    for_each_reducer(static_cast<std::size_t>(plan_.schedule[on].pp), chunk, [&](Position other) {
      const bool there = reduced_[other] < turns_[other].size() &&
                         turns_[other][reduced_[other]] == chunk &&
                         frame_.reduce[other][chunk] < done_[other];
      if (there || wait.device != kNowhere) return;
      wait = {other,
              "R of chunk " + std::to_string(chunk) + ", not yet in turn at " + standing(other)};
    });
    return wait;
  }

  const Plan& plan_;
  const Frame& frame_;
  const Channels& channels_;
  std::vector<std::size_t> done_;                  ///< units a device has ended
  std::vector<bool> arrived_;                      ///< it waits in a collective
  std::vector<bool> queued_;                       ///< it is in awake_
  std::vector<std::vector<std::size_t>> missing_;  ///< of a collective, kept at its first device
  std::vector<std::int64_t> sent_, consumed_;      ///< by channel
  std::vector<std::vector<std::size_t>> turns_;    ///< a device's R by chunk, in order
  std::vector<std::size_t> reduced_, offered_;     ///< R that have ended; turn offered, plus one
  std::vector<std::size_t> reduce_missing_;        ///< by stage and chunk
  std::vector<Position> awake_;
};

}  // namespace slimpack::validation
