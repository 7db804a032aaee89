// SPDX-License-Identifier: Apache-2.0
// Where a simulated part stands: events, devices, heads, and when the next item may begin.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/schedule/detail/list_rank.hpp"
#include "slimpack/schedule/event_loop.hpp"
#include "slimpack/schedule/schedule_parts.hpp"

namespace slimpack::schedule {

/// The unit that is the last of all ranks to add to the gradients of a stage and chunk.
struct LastGradients {
  Nanos end;   ///< when it ends; 0 where there is none
  Nanos took;  ///< how long it runs
};

}  // namespace slimpack::schedule

namespace slimpack::schedule::detail {

/// The stages are called to a collective while the last stage still has so many B to run before it.
inline constexpr std::size_t kCollectiveNotice = 1;
/// A unit may end after the start of a collective by its own time over this.
inline constexpr std::int64_t kCollectiveSlack = 10;
/// W may keep the next item waiting for its own time over this.
inline constexpr std::int64_t kWeightSlack = 3;

/// What a device is doing.
struct ListDevice {
  enum class Doing : std::uint8_t { nothing, forward, backward, head, weight };
  std::uint32_t rank = 0, stage = 0;  ///< position of its rank in the part; its stage
  Doing doing = Doing::nothing;
  bool one_port = false;    ///< its messages forward and back take turns
  std::uint8_t wanted = 0;  ///< waits for the other ranks of an item: 1 forward, 2 backward
  std::array<std::uint32_t, 2> begun{};  ///< items, by pass
  std::uint32_t weights = 0;             ///< W that have begun
  std::int32_t reductions = 0;           ///< R that are in its order
  std::int64_t ends = 0;                 ///< of the unit that runs
  std::array<std::int64_t, 2> link{};    ///< when the link of each direction is free
};

/// H of one rank.
struct ListHead {
  std::uint32_t reached = 0;   ///< packs whose last F has ended on the last stage
  std::uint32_t done = 0;      ///< packs whose H has begun
  std::uint32_t idle = 0;      ///< stages that run nothing
  bool called = false;         ///< the stages run H together as soon as all are idle
  std::int64_t readiness = 0;  ///< when that is, as far as it is known
};

/// Memory of a run that later runs use again.
struct ListState {
  std::vector<LastGradients> last;  ///< by stage and chunk
  EventLoop loop;
  std::vector<ListDevice> devices;
  std::vector<ListHead> heads;
  std::vector<std::uint32_t> gradients;  ///< by device and chunk: B and W that have not begun
};

/// What a run over a part reads and keeps, and when its next units are ready.
class ListPlaces {
 public:
  ListPlaces(const Plan& plan, std::vector<ListRank>& ranks, const ScheduleParts& parts,
             const ListOptions& options, ListState& state, std::vector<DeviceSchedule>& schedule)
      : plan_(plan),
        ranks_(ranks),
        parts_(parts),
        options_(options),
        schedule_(schedule),
        state_(state),
        stages_(static_cast<std::uint32_t>(plan.parallel.pp)),
        last_(stages_ - 1),
        shard_(plan.parallel.head == LmHead::shard && stages_ > 1),
        weights_(std::any_of(ranks.begin(), ranks.end(),
                             [](const ListRank& rank) { return !rank.weights.empty(); })) {}

 protected:
  using Doing = ListDevice::Doing;

  [[nodiscard]] std::int64_t now() const noexcept { return state_.loop.now(); }
  [[nodiscard]] std::uint32_t rank_of(std::uint32_t device) const noexcept {
    return state_.devices[device].rank;
  }
  [[nodiscard]] std::uint32_t stage_of(std::uint32_t device) const noexcept {
    return state_.devices[device].stage;
  }
  /// The stage where a pass leaves the pipeline, and the one where it enters.
  [[nodiscard]] std::uint32_t exit(std::size_t pass) const noexcept {
    return pass == 0 ? last_ : 0;
  }
  [[nodiscard]] std::uint32_t entry(std::size_t pass) const noexcept {
    return pass == 0 ? 0 : last_;
  }
  [[nodiscard]] std::uint32_t next(std::size_t pass, std::uint32_t stage) const noexcept {
    if (stage == exit(pass)) return entry(pass);
    return pass == 0 ? stage + 1 : stage - 1;
  }
  [[nodiscard]] std::uint32_t previous(std::size_t pass, std::uint32_t stage) const noexcept {
    if (stage == entry(pass)) return exit(pass);
    return pass == 0 ? stage - 1 : stage + 1;
  }
  [[nodiscard]] static std::size_t row(const RankPass& pass, std::uint32_t stage) noexcept {
    return static_cast<std::size_t>(stage) * pass.size();
  }
  [[nodiscard]] bool sends(const RankPass& pass, std::size_t side, std::uint32_t stage,
                           std::uint32_t item) const noexcept {
    return stages_ > 1 && (stage != exit(side) || pass.leaves[item] == 0);
  }
  [[nodiscard]] bool receives(const RankPass& pass, std::size_t side, std::uint32_t stage,
                              std::uint32_t item) const noexcept {
    return stages_ > 1 && (stage != entry(side) || pass.enters[item] == 0);
  }
  [[nodiscard]] std::uint32_t ended(std::uint32_t device, std::size_t side) const noexcept {
    const ListDevice& state = state_.devices[device];
    const Doing doing = side == 0 ? Doing::forward : Doing::backward;
    return state.begun[side] - (state.doing == doing ? 1U : 0U);
  }
  [[nodiscard]] std::int64_t duration(std::uint32_t device, std::size_t side) const noexcept {
    const ListRank& rank = ranks_[rank_of(device)];
    return rank
        .time[side][row(rank.pass[side], stage_of(device)) + state_.devices[device].begun[side]];
  }

  /// Whether the B have ended that the next W of a device awaits.
  [[nodiscard]] bool weight_ready(std::uint32_t device) const noexcept {
    if (!weights_) return false;
    const RankWeights& weights = ranks_[rank_of(device)].weights;
    const std::uint32_t next = state_.devices[device].weights;
    return next < weights.size() && weights.after[next] <= ended(device, 1);
  }
  /// Whether it has to run before all else.
  [[nodiscard]] bool weight_due(std::uint32_t device) const noexcept {
    if (!weights_) return false;
    const RankWeights& weights = ranks_[rank_of(device)].weights;
    const std::uint32_t next = state_.devices[device].weights;
    return next < weights.size() &&
           weights.due[std::size_t{stage_of(device)} * weights.size() + next] <= ended(device, 1);
  }
  [[nodiscard]] std::int64_t weight_duration(std::uint32_t device) const noexcept {
    const RankWeights& weights = ranks_[rank_of(device)].weights;
    return weights
        .time[std::size_t{stage_of(device)} * weights.size() + state_.devices[device].weights];
  }

  /// When the next item of a pass may begin on a device, as far as that is known: now or before, at
  /// a later time, or kNever while it waits for something that has not happened.
  [[nodiscard]] std::int64_t ready(std::uint32_t device, std::size_t side) const {
    const ListRank& rank = ranks_[rank_of(device)];
    const RankPass& pass = rank.pass[side];
    const ListDevice& state = state_.devices[device];
    const std::uint32_t item = state.begun[side];
    if (item == pass.size() || weight_due(device)) return kNever;
    const std::uint32_t stage = stage_of(device);
    const std::size_t first = row(pass, stage);
    std::int64_t time = rank.arrival[side][first + item];
    if (time == kNever) return kNever;
    if (side == 0) {
      if (state.begun[1] < rank.least[first + item]) return kNever;
    } else {
      if (state.begun[0] < rank.gate[first + item]) return kNever;
      if (stage == last_ && pass.enters[item] != 0 &&
          state_.heads[rank_of(device)].done < rank.heads[item]) {
        return kNever;
      }
    }
    if (sends(pass, side, stage, item)) {
      const bool turn = stage == exit(side);
      const std::uint32_t earlier = (turn ? pass.before_turn : pass.before)[item];
      if (earlier != kNoItem) {
        const std::uint32_t consumer = turn ? pass.next_chunk[earlier] : earlier;
        time = std::max(time, rank.arrival[side][row(pass, next(side, stage)) + consumer]);
      }
    }
    return time;
  }

  /// When the next item of a pass will be there, as far as can be told: `ready_time` where that is
  /// known and still to come, else what its sender has to run at least. kNever where it waits for
  /// other ranks, for memory or for H.
  [[nodiscard]] std::int64_t expected(std::uint32_t device, std::size_t side,
                                      std::int64_t ready_time) const {
    const ListRank& rank = ranks_[rank_of(device)];
    const RankPass& pass = rank.pass[side];
    const std::uint32_t item = state_.devices[device].begun[side], stage = stage_of(device);
    if (item == pass.size() || ready_time <= now()) return kNever;
    if (ready_time != kNever) return ready_time;
    if (!receives(pass, side, stage, item)) return kNever;
    if (rank.arrival[side][row(pass, stage) + item] != kNever) return kNever;
    const std::uint32_t sent = stage == entry(side) ? pass.previous_chunk[item] : item;
    const std::uint32_t from = device - stage + previous(side, stage);
    const ListDevice& sender = state_.devices[from];
    std::int64_t time = sender.doing == Doing::nothing ? now() : sender.ends;
    if (ended(from, side) > sent) return kNever;  // the message waits for something else
    if (sender.begun[side] <= sent) time += duration(from, side);
    return time + rank.transfer[side][row(pass, stage_of(from)) + sent];
  }

  /// Whether W is better than to wait: the next F or B comes later, or not much sooner, than W
  /// ends.
  [[nodiscard]] bool weight_fills(std::uint32_t device,
                                  const std::array<std::int64_t, 2>& ready_times) const {
    if (!weight_ready(device)) return false;
    const std::int64_t time = weight_duration(device);
    for (const std::size_t side : {std::size_t{0}, std::size_t{1}}) {
      const std::int64_t next = expected(device, side, ready_times[side]);
      if (next < now() + time - time / kWeightSlack) return false;
    }
    return true;
  }
  /// Whether no stage of a rank has W that has to run before all else.
  [[nodiscard]] bool none_due(std::uint32_t rank) const {
    for (std::uint32_t stage = 0; stage < stages_; ++stage) {
      if (weight_due(rank * stages_ + stage)) return false;
    }
    return true;
  }

  const Plan& plan_;
  std::vector<ListRank>& ranks_;
  const ScheduleParts& parts_;
  const ListOptions& options_;
  std::vector<DeviceSchedule>& schedule_;
  ListState& state_;
  std::uint32_t stages_, last_;
  bool shard_;
  bool weights_;          // whether some rank has W
  std::size_t left_ = 0;  // units that have not ended; of H, that have not begun
};

}  // namespace slimpack::schedule::detail
