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

/// The items of a pass on one device: where all about them is.
struct ListRow {
  const RankPass* pass = nullptr;
  std::uint32_t items = 0;
  std::uint32_t to = 0, from = 0;      ///< devices that its messages go to, and come from
  const std::int64_t* time = nullptr;  ///< by item, as all that follow
  const std::int64_t* transfer = nullptr;
  std::int64_t* arrival = nullptr;
  std::int64_t* there = nullptr;          ///< the same of the receiver
  const std::uint32_t* others = nullptr;  ///< items of the other pass that must have begun before
  const std::uint32_t* heads = nullptr;   ///< H that must have begun; none where none is awaited
  /// The item of the receiver behind which the message can go, the one that posts a receive here
  /// when it ends, and the receiver's item; none where nothing is sent or received, and where the
  /// receiver's item is the same.
  const std::uint32_t *awaits = nullptr, *posts = nullptr, *consumer = nullptr;
};

/// W of one device: where all about them is.
struct ListWeights {
  std::uint32_t items = 0;
  const std::uint32_t* after = nullptr;  ///< by item, as all that follow
  const std::uint32_t* due = nullptr;
  const std::int64_t* time = nullptr;
};

/// H of one rank.
struct ListHead {
  std::uint32_t reached = 0;   ///< packs whose last F has ended on the last stage
  std::uint32_t done = 0;      ///< packs whose H has begun
  std::uint32_t idle = 0;      ///< stages that run nothing
  bool called = false;         ///< the stages run H together as soon as all are idle
  std::int64_t readiness = 0;  ///< when that is, as far as it is known
};

/// What a device has to do, and what it is doing.
struct ListDevice {
  enum class Doing : std::uint8_t { nothing, forward, backward, head, weight };
  std::uint32_t rank = 0, stage = 0;  ///< position of its rank in the part; its stage
  Doing doing = Doing::nothing;
  bool one_port = false;    ///< its messages forward and back take turns
  std::uint8_t wanted = 0;  ///< waits for the other ranks of an item: 1 forward, 2 backward
  std::array<std::uint32_t, 2> begun{};  ///< items, by pass
  std::uint32_t weights = 0;             ///< W that have begun
  std::int32_t reductions = 0;           ///< R that are in its order
  std::int64_t ends = 0;                 ///< of the unit that runs or ran last
  struct Link {
    std::int64_t free = 0;    ///< from when on ...
    std::int64_t before = 0;  ///< ... and before the last message
    std::int64_t used = -1;   ///< the instant from which the last message could go
    std::uint32_t item = 0;   ///< of that message, and its pass
    std::uint8_t side = 0;
    bool fresh = false;    ///< its unit had just ended
    bool several = false;  ///< others could go from that instant on too
  };
  std::array<Link, 2> link;    ///< of each direction
  std::array<ListRow, 2> row;  ///< by pass
  ListWeights weight;
  ListHead* head = nullptr;            ///< of its rank
  std::uint32_t* gradients = nullptr;  ///< by chunk: B and W that have not begun
  Unit* order = nullptr;               ///< its units; none where none are asked for
  std::uint32_t units = 0;             ///< how many it will have
  std::uint32_t written = 0;           ///< of them
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
class ListPlaces : protected ListLine {
 public:
  ListPlaces(const Plan& plan, std::vector<ListRank>& ranks, const ScheduleParts& parts,
             const ListOptions& options, ListState& state, std::vector<DeviceSchedule>& schedule)
      : ListLine(plan),
        plan_(plan),
        ranks_(ranks),
        parts_(parts),
        options_(options),
        schedule_(schedule),
        state_(state),
        alone_(ranks.size() == 1),
        shard_(plan.parallel.head == LmHead::shard && stages_ > 1) {}

 protected:
  using Doing = ListDevice::Doing;

  [[nodiscard]] std::int64_t now() const noexcept { return state_.loop.now(); }
  [[nodiscard]] ListDevice& at(std::uint32_t device) const noexcept { return devices_[device]; }
  [[nodiscard]] static std::uint32_t ended(const ListDevice& on, std::size_t side) noexcept {
    const Doing doing = side == 0 ? Doing::forward : Doing::backward;
    return on.begun[side] - (on.doing == doing ? 1U : 0U);
  }
  [[nodiscard]] static std::int64_t duration(const ListDevice& on, std::size_t side) noexcept {
    return on.row[side].time[on.begun[side]];
  }

  /// Calls `visit` for the devices that run the next item of a pass of a device together with it.
  template <class Visit>
  void for_each_partner(const ListDevice& on, std::size_t side, Visit&& visit) const {
    const std::uint32_t pack = on.row[side].pass->pack[on.begun[side]];
    for (const std::int32_t dp : plan_.groups[index(plan_.micropacks[pack].group)]) {
      visit(parts_.place(dp) * stages_ + on.stage);
    }
  }

  /// Whether the B have ended that the next W of a device awaits.
  [[nodiscard]] static bool weight_ready(const ListDevice& on) noexcept {
    return on.weights < on.weight.items && on.weight.after[on.weights] <= ended(on, 1);
  }
  /// Whether it has to run before all else.
  [[nodiscard]] static bool weight_due(const ListDevice& on) noexcept {
    return on.weights < on.weight.items && on.weight.due[on.weights] <= ended(on, 1);
  }
  [[nodiscard]] static std::int64_t weight_duration(const ListDevice& on) noexcept {
    return on.weight.time[on.weights];
  }

  /// Where the items of a pass are on a stage of a rank.
  [[nodiscard]] ListRow row_of(std::uint32_t i, std::uint32_t stage, std::size_t side) {
    ListRank& rank = ranks_[i];
    const RankPass& pass = rank.pass[side];
    const std::size_t here = row(pass, stage);
    ListRow of;
    of.pass = &pass;
    of.items = static_cast<std::uint32_t>(pass.size());
    of.to = i * stages_ + next(side, stage);
    of.from = i * stages_ + previous(side, stage);
    of.time = rank.time[side].row(stage);
    of.transfer = rank.transfer[side].row(stage);
    of.arrival = rank.arrival[side].data() + here;
    of.there = rank.arrival[side].data() + row(pass, next(side, stage));
    of.others = (side == 0 ? rank.least : rank.gate).data() + here;
    if (side == 1 && stage == last_) of.heads = rank.heads.data();
    if (stages_ == 1) return of;
    const bool turns = plan_.parallel.chunks > 1;
    if (stage != exit(side)) {
      of.awaits = pass.before.data();
    } else if (turns) {
      of.awaits = pass.awaits_turn.data();
      of.consumer = pass.next_chunk.data();
    }
    if (stage != entry(side)) {
      of.posts = pass.after.data();
    } else if (turns) {
      of.posts = pass.posts_turn.data();
    }
    return of;
  }

  /// Where W of a stage are.
  [[nodiscard]] static ListWeights weights_of(const RankWeights& weights, std::uint32_t stage) {
    const std::size_t here = std::size_t{stage} * weights.size();
    return {static_cast<std::uint32_t>(weights.size()), weights.after.data(),
            weights.due.data() + here, weights.time.data() + here};
  }

  /// When the next item of a pass may begin on a device on which no W is due, as far as that is
  /// known: now or before, at a later time, or kNever while it waits for something that has not
  /// happened.
  [[nodiscard]] std::int64_t ready(const ListDevice& on, std::size_t side) const {
    const ListRow& of = on.row[side];
    const std::uint32_t item = on.begun[side];
    if (item == of.items) return kNever;
    const std::int64_t time = of.arrival[item];
    if (time == kNever || on.begun[1 - side] < of.others[item]) return kNever;
    if (of.heads != nullptr && on.head->done < of.heads[item] && of.pass->enters[item] != 0) {
      return kNever;
    }
    if (of.awaits == nullptr || of.awaits[item] == kNoItem) return time;
    return std::max(time, of.there[of.awaits[item]]);
  }

  /// Whether the unit of an item has begun before that of the last message on a link, where orders
  /// are asked for: both have ended not long ago.
  [[nodiscard]] static bool began_sooner(const ListDevice& on, std::size_t side, std::uint32_t item,
                                         const ListDevice::Link& link) {
    const auto is = [&](const Unit& unit, std::size_t of_side, std::uint32_t of_item) {
      const RankPass& pass = *on.row[of_side].pass;
      return unit.kind == (of_side == 0 ? UnitKind::forward : UnitKind::backward) &&
             index(unit.pack) == pass.pack[of_item] && unit.chunk == pass.chunk[of_item];
    };
    for (std::uint32_t i = on.order == nullptr ? 0 : on.written; i > 0; --i) {
      const Unit& unit = on.order[i - 1];
      if (is(unit, link.side, link.item)) return true;
      if (is(unit, side, item)) return false;
    }
    return false;
  }

  /// When the next item of a pass will be there, as far as can be told: `ready_time` where that is
  /// known and still to come, else what its sender has to run at least. kNever where it waits for
  /// other ranks, for memory or for H.
  [[nodiscard]] std::int64_t expected(const ListDevice& on, std::size_t side,
                                      std::int64_t ready_time) const {
    const ListRow& of = on.row[side];
    const std::uint32_t item = on.begun[side];
    if (item == of.items || ready_time <= now()) return kNever;
    if (ready_time != kNever) return ready_time;
    if (!receives(*of.pass, side, on.stage, item)) return kNever;
    if (of.arrival[item] != kNever) return kNever;
    const std::uint32_t sent = on.stage == entry(side) ? of.pass->previous_chunk[item] : item;
    const ListDevice& sender = at(of.from);
    std::int64_t time = sender.doing == Doing::nothing ? now() : sender.ends;
    if (ended(sender, side) > sent) return kNever;  // the message waits for something else
    if (sender.begun[side] <= sent) time += duration(sender, side);
    return time + sender.row[side].transfer[sent];
  }

  /// Whether W is better than to wait: the next F or B comes later, or not much sooner, than W
  /// ends if it has run since the device became idle.
  [[nodiscard]] bool weight_fills(const ListDevice& on,
                                  const std::array<std::int64_t, 2>& ready_times) const {
    if (!weight_ready(on)) return false;
    const std::int64_t time = weight_duration(on);
    for (const std::size_t side : {std::size_t{0}, std::size_t{1}}) {
      const std::int64_t next = expected(on, side, ready_times[side]);
      if (next < on.ends + time - time / kWeightSlack) return false;
    }
    return true;
  }
  /// Whether no stage of a rank has W that has to run before all else.
  [[nodiscard]] bool none_due(std::uint32_t rank) const {
    for (std::uint32_t stage = 0; stage < stages_; ++stage) {
      if (weight_due(at(rank * stages_ + stage))) return false;
    }
    return true;
  }

  /// Whether F goes before a B that is ready as well.
  [[nodiscard]] bool forward_first(const ListDevice& on, std::uint32_t device,
                                   const std::array<std::int64_t, 2>& ready_times) const {
    if (ready_times[0] > now() || ready_times[1] > now()) return false;
    if (on.stage == last_) {
      const ListHead& head = *on.head;
      if (shard_ && head.reached - head.done < static_cast<std::uint32_t>(options_.head_batch)) {
        return true;
      }
      if (!shard_ && plan_.parallel.chunks > 1 && !options_.backward_first) {
        const std::uint32_t needed = ranks_[on.rank].heads[on.begun[1]];
        if (head.reached < needed + static_cast<std::uint32_t>(options_.head_batch)) return true;
      }
      return stages_ > 1 && feeds_next_chunk(on, device);
    }
    const std::int64_t queue = static_cast<std::int64_t>(on.begun[0]) - at(device + 1).begun[0];
    return queue <= options_.forward_queue;
  }

  /// On the last stage: the next F goes on to the first stage, where few F of later chunks wait.
  [[nodiscard]] bool feeds_next_chunk(const ListDevice& on, std::uint32_t device) const {
    const RankPass& pass = *on.row[0].pass;
    const std::uint32_t item = on.begun[0];
    if (pass.leaves[item] != 0) return false;
    const std::int64_t earlier = std::int64_t{item} - 1 - options_.forward_queue;
    if (earlier < 0 || earlier >= item || pass.leaves[static_cast<std::size_t>(earlier)] != 0) {
      return true;
    }
    return pass.next_chunk[static_cast<std::size_t>(earlier)] < at(device - last_).begun[0];
  }

  /// Whether the last stage calls the stages of its rank together for H.
  [[nodiscard]] bool time_to_call(const ListDevice& on) const {
    const ListRank& rank = ranks_[on.rank];
    const ListHead& head = *on.head;
    const std::uint32_t waiting = head.reached - head.done;
    if (waiting == 0) return false;
    // As long as B is left that needs no further H, a larger collective costs nothing.
    const std::size_t later = on.begun[1] + kCollectiveNotice;
    if (later < rank.heads.size() && rank.heads[later] <= head.done) return false;
    if (waiting >= static_cast<std::uint32_t>(options_.head_batch)) return true;
    if (head.reached == rank.head_item.size()) return true;
    return ready(on, 0) > now() && ready(on, 1) > now();
  }

  const Plan& plan_;
  std::vector<ListRank>& ranks_;
  const ScheduleParts& parts_;
  const ListOptions& options_;
  std::vector<DeviceSchedule>& schedule_;
  ListState& state_;
  ListDevice* devices_ = nullptr;  // of the state, while it runs
  bool alone_;                     // there is one rank, which then shares nothing
  bool shard_;
  std::size_t left_ = 0;  // units that have not ended; of H, that have not begun
};

}  // namespace slimpack::schedule::detail
