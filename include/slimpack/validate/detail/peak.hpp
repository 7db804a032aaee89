// SPDX-License-Identifier: Apache-2.0
// Rule 7: the most bytes a device may come to hold, whatever the times are.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/validate/detail/channel.hpp"
#include "slimpack/validate/detail/findings.hpp"
#include "slimpack/validate/detail/frame.hpp"
#include "slimpack/validate/detail/memory.hpp"
#include "slimpack/validate/detail/size.hpp"

namespace slimpack::validation {

/// Walks one device's order and counts what it holds. All of it follows the order but the ends of
/// transfers: a send buffer is freed only where its end is certain, that is, when the unit that
/// queues the send `max_in_flight` later starts, or when the device has heard from the receiver
/// after it consumed the message.
class MemoryWalk {
 public:
  MemoryWalk(const Plan& plan, const Frame& frame, const Parts& parts,
             const std::vector<PackPart>& rank_parts, Position on)
      : plan_(plan),
        frame_(frame),
        parts_(parts),
        rank_parts_(rank_parts),
        on_(on),
        rank_(static_cast<std::size_t>(plan.schedule[on].dp)),
        stage_(static_cast<std::size_t>(plan.schedule[on].pp)),
        max_in_flight_(static_cast<std::size_t>(plan.max_in_flight)),
        fixed_(fixed_bytes(plan, plan.schedule[on].pp)) {
    neighbour_[kBefore] = (stage_ + frame.pp - 1) % frame.pp;
    neighbour_[kAfter] = (stage_ + 1) % frame.pp;
    const std::size_t members = frame.membership[rank_].size();
    inbox_.resize(2 * members);
    outbox_.resize(2 * members);
  }

  /// O(units log units).
  void run() {
    const auto& order = plan_.schedule[on_].order;
    level_ = fixed_;
    for (const Unit& unit : order) {
      if (!computes(unit)) continue;
      if (const auto from = remote_source(unit)) {
        inbox_[box(unit, *from)].bytes.push_back(output(part(unit)));
      }
    }
    for (Inbox& inbox : inbox_) {
      for (std::size_t i = 0; i < max_in_flight_; ++i) post(inbox);
    }
    note(0);
    for (std::size_t k = 0; k < order.size(); ++k) {
      const Unit& unit = order[k];
      if (unit.kind == UnitKind::head) {
        run_head(unit, k);
      } else if (computes(unit)) {
        run_pack(unit, k);
      } else if (unit.kind == UnitKind::weight) {
        run_weight(unit, k);
      }
    }
  }

  [[nodiscard]] Size peak() const noexcept { return peak_; }
  [[nodiscard]] std::size_t peak_unit() const noexcept { return peak_unit_; }
  [[nodiscard]] Size fixed() const noexcept { return fixed_; }

 private:
  enum Side : std::uint8_t { kBefore, kAfter };
  struct Inbox {
    std::vector<Size> bytes;  ///< of the receives, in order
    std::size_t posted = 0;
  };
  struct Send {
    Size bytes;
    bool held = true;
  };
  struct Unfinished {
    Position consumer;  ///< position of the consuming unit at the receiver
    std::size_t box, send;
    bool operator<(const Unfinished& other) const { return consumer > other.consumer; }
  };

  static bool computes(const Unit& unit) {
    return unit.kind == UnitKind::forward || unit.kind == UnitKind::backward;
  }
  const Membership& member(PackId pack) const {
    return *frame_.find(rank_, index(plan_.micropacks[index(pack)].group));
  }
  const PackPart& part(const Unit& unit) const {
    return rank_parts_[member(unit.pack).first + frame_.slot[index(unit.pack)]];
  }
  Size output(const PackPart& pack) const { return parts_.hidden(pack); }
  std::size_t box(const Unit& unit, const Peer& peer) const {
    const auto place =
        static_cast<std::size_t>(&member(unit.pack) - frame_.membership[rank_].data());
    return 2 * place + (peer.gradients ? 1 : 0);
  }
  std::optional<Peer> remote_source(const Unit& unit) const {
    if (frame_.pp == 1) return std::nullopt;
    return source_of(frame_, unit.kind, stage_, static_cast<std::size_t>(unit.chunk));
  }
  std::optional<Peer> remote_target(const Unit& unit) const {
    if (frame_.pp == 1) return std::nullopt;
    return target_of(frame_, unit.kind, stage_, static_cast<std::size_t>(unit.chunk));
  }
  Position position(const Unit& unit, std::size_t stage, std::size_t chunk) const {
    return frame_.at(frame_.device_of(rank_, stage), member(unit.pack), unit.pack, chunk);
  }
  /// With two stages both neighbours are one device, and what is heard from it is one story.
  std::size_t side_of(std::size_t stage) const {
    return stage == neighbour_[kBefore] ? kBefore : kAfter;
  }

  void note(std::size_t unit) {
    if (level_ > peak_) {
      peak_ = level_;
      peak_unit_ = unit;
    }
  }
  void post(Inbox& inbox) {
    if (inbox.posted < inbox.bytes.size()) level_ += inbox.bytes[inbox.posted++];
  }
  void release(std::size_t outbox, std::size_t send) {
    Send& sent = outbox_[outbox][send];
    if (sent.held) level_ -= sent.bytes;
    sent.held = false;
  }

  /// The device at `stage` is known to have ended its first `units` units.
  void hear(std::size_t stage, Position units) {
    auto& unfinished = unfinished_[side_of(stage)];
    while (!unfinished.empty() && unfinished.top().consumer < units) {
      release(unfinished.top().box, unfinished.top().send);
      unfinished.pop();
    }
  }

  void queue_send(const Unit& unit, const Peer& to, Size bytes) {
    const std::size_t place = box(unit, to);
    auto& sends = outbox_[place];
    if (sends.size() >= max_in_flight_) release(place, sends.size() - max_in_flight_);
    unfinished_[side_of(to.stage)].push({position(unit, to.stage, to.chunk), place, sends.size()});
    sends.push_back({bytes, true});
    level_ += bytes;
  }

  void run_head(const Unit& unit, std::size_t i) {
    const PackPart& pack = part(unit);
    const bool last = stage_ + 1 == frame_.pp;
    if (plan_.parallel.head == LmHead::shard) {
      for (const std::size_t stage : neighbour_) {
        if (stage != stage_) hear(stage, position(unit, stage, frame_.chunks));
      }
    }
    const Size work = head_work(plan_, static_cast<std::int64_t>(stage_), pack);
    if (last) level_ += output(pack);  // hidden gradients
    level_ += work;
    note(i);
    level_ -= work;
    if (last) level_ -= output(pack);  // the last layer's output
  }

  /// W gathers the rows of one layer at a time.
  void run_weight(const Unit& unit, std::size_t i) {
    const PackPart& pack = part(unit);
    const auto chunk = static_cast<std::size_t>(unit.chunk);
    level_ += pack.work;
    note(i);
    level_ -= pack.work;
    level_ -= Size{plan_.stages[chunk * frame_.pp + stage_].layers()} * pack.left;
  }

  void run_pack(const Unit& unit, std::size_t i) {
    const PackPart& pack = part(unit);
    const bool forward = unit.kind == UnitKind::forward;
    const auto chunk = static_cast<std::size_t>(unit.chunk);
    const bool end_of_line = stage_ + 1 == frame_.pp && chunk + 1 == frame_.chunks;
    const Size layers = plan_.stages[chunk * frame_.pp + stage_].layers();
    const Size hidden = output(pack);
    const Size work = pack.work + parts_.exchange(unit.pack);
    const auto from = remote_source(unit);
    const auto to = remote_target(unit);

    if (from) hear(from->stage, position(unit, from->stage, from->chunk) + 1);
    if (to) queue_send(unit, *to, hidden);
    // Between chunks of a pipeline of one stage the tensor stays where it is.
    const bool hands_over = frame_.pp == 1 && (forward ? chunk + 1 < frame_.chunks : chunk > 0);
    const bool takes_over = frame_.pp == 1 && (forward ? chunk > 0 : chunk + 1 < frame_.chunks);
    if (hands_over) level_ += hidden;
    if (forward) {
      level_ += layers * pack.kept;
      level_ += layers * pack.pages;
      if (end_of_line) level_ += hidden;  // the last layer's output
    } else {
      level_ += layers * pack.opens;
      level_ += layers * pack.made;
    }
    level_ += work;
    note(i);

    level_ -= work;
    if (!forward) {
      level_ -= layers * (pack.kept + pack.made);
      level_ += layers * pack.left;
      level_ -= layers * pack.closed_pages;
      level_ -= layers * pack.closes;
      if (end_of_line) level_ -= hidden;  // hidden gradients
    }
    if (takes_over || from) level_ -= hidden;
    if (from) {
      post(inbox_[box(unit, *from)]);
      note(i);
    }
  }

  const Plan& plan_;
  const Frame& frame_;
  const Parts& parts_;
  const std::vector<PackPart>& rank_parts_;
  Position on_;
  std::size_t rank_, stage_, max_in_flight_;
  std::array<std::size_t, 2> neighbour_{};
  Size fixed_, level_, peak_;
  std::size_t peak_unit_ = 0;
  std::vector<Inbox> inbox_;               ///< by membership and direction
  std::vector<std::vector<Send>> outbox_;  ///< by membership and direction
  std::array<std::priority_queue<Unfinished>, 2> unfinished_;
};

/// Adds every violation of rule 7 and returns the peaks, one a schedule. Needs a plan without
/// violations of rules 0 to 5. O(units log units + slices x ranks of a group).
[[nodiscard]] inline std::vector<Bytes> check_memory(const Plan& plan, const Frame& frame,
                                                     const std::vector<std::vector<Piece>>& pieces,
                                                     Findings& found) {
  std::vector<Bytes> peaks(plan.schedule.size());
  const Parts parts(plan, pieces);
  const Size room = Size{plan.memory.capacity.value} - Size{plan.memory.reserved.value};
  for (std::size_t rank = 0; rank < frame.dp; ++rank) {
    const auto rank_parts = parts.of_rank(frame, rank);
    for (std::size_t stage = 0; stage < frame.pp; ++stage) {
      const Position on = frame.device_of(rank, stage);
      MemoryWalk walk(plan, frame, parts, rank_parts, on);
      walk.run();
      const Size peak = walk.peak();
      peaks[on] = Bytes{peak.value()};
      if (peak <= room) continue;
      const DeviceSchedule& device = plan.schedule[on];
      const std::size_t i = walk.peak_unit();
      found.add(7, "memory", Where{}.device(device.dp, device.pp).unit(i), [&] {
        const auto count = [](Size size) {
          return size.countable() ? std::to_string(size.value()) : std::string("more than 2^63");
        };
        return "memory may reach " + count(peak) + " bytes in " + to_string(device.order[i]) +
               ", of which weights, gradients and optimizer state are " + count(walk.fixed()) +
               "; capacity - reserved is " + count(room);
      });
    }
  }
  return peaks;
}

}  // namespace slimpack::validation
