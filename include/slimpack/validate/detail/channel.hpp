// SPDX-License-Identifier: Apache-2.0
// Rule 6, the part that is order alone: what a channel carries, and the turns of R.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/validate/detail/findings.hpp"
#include "slimpack/validate/detail/frame.hpp"

namespace slimpack::validation {

/// One end of a message: the unit at the other end, and the direction the data flow in.
struct Peer {
  std::size_t stage = 0;
  std::size_t chunk = 0;
  bool gradients = false;
};

/// Where the input of F or B at (stage, chunk) comes from; absent for F on the first virtual stage,
/// B on the last, and W. With one stage it is the device itself.
[[nodiscard]] inline std::optional<Peer> source_of(const Frame& frame, UnitKind kind,
                                                   std::size_t stage, std::size_t chunk) {
  if (kind == UnitKind::weight) return std::nullopt;
  if (kind == UnitKind::forward) {
    if (stage > 0) return Peer{stage - 1, chunk, false};
    if (chunk > 0) return Peer{frame.pp - 1, chunk - 1, false};
    return std::nullopt;
  }
  if (stage + 1 < frame.pp) return Peer{stage + 1, chunk, true};
  if (chunk + 1 < frame.chunks) return Peer{0, chunk + 1, true};
  return std::nullopt;
}

/// Where the output of F or B at (stage, chunk) goes.
[[nodiscard]] inline std::optional<Peer> target_of(const Frame& frame, UnitKind kind,
                                                   std::size_t stage, std::size_t chunk) {
  if (kind == UnitKind::weight) return std::nullopt;
  if (kind == UnitKind::forward) {
    if (stage + 1 < frame.pp) return Peer{stage + 1, chunk, false};
    if (chunk + 1 < frame.chunks) return Peer{0, chunk + 1, false};
    return std::nullopt;
  }
  if (stage > 0) return Peer{stage - 1, chunk, true};
  if (chunk > 0) return Peer{frame.pp - 1, chunk - 1, true};
  return std::nullopt;
}

/// All channels of a plan: by rank, its groups, direction, sending stage.
struct Channels {
  std::vector<std::size_t> first;  ///< by rank
  std::vector<bool> mixed_up;      ///< the two ends disagree: messages are matched by unit only

  [[nodiscard]] std::size_t id(const Frame& frame, std::size_t rank, std::size_t member,
                               bool gradients, std::size_t sender) const {
    return ((first[rank] + member) * 2 + (gradients ? 1 : 0)) * frame.pp + sender;
  }
};

[[nodiscard]] inline Channels channels_of(const Frame& frame) {
  Channels channels;
  std::size_t members = 0;
  for (const auto& membership : frame.membership) {
    channels.first.push_back(members);
    members += membership.size();
  }
  channels.mixed_up.assign(members * 2 * frame.pp, false);
  return channels;
}

/// A unit of a pack on a device that does what it should, with its membership.
[[nodiscard]] inline const Membership* member_of(const Plan& plan, const Frame& frame, Position on,
                                                 std::size_t i) {
  const DeviceSchedule& device = plan.schedule[on];
  const Unit& unit = device.order[i];
  if (unit.kind == UnitKind::reduce || unit.kind == UnitKind::optimizer) return nullptr;
  if (index(unit.pack) >= plan.micropacks.size()) return nullptr;
  const Membership* member = frame.find(static_cast<std::size_t>(device.dp),
                                        index(plan.micropacks[index(unit.pack)].group));
  if (member == nullptr) return nullptr;
  const std::size_t chunk =
      unit.kind == UnitKind::head ? frame.chunks : static_cast<std::size_t>(unit.chunk);
  if (chunk > frame.chunks || (unit.kind != UnitKind::head && chunk == frame.chunks)) {
    return nullptr;
  }
  return frame.at(on, *member, unit.pack, chunk) == i ? member : nullptr;
}

/// Compares what is sent with what is consumed on every channel of one rank.
inline void check_rank_channels(const Plan& plan, const Frame& frame, std::size_t rank,
                                Channels& channels, Findings& found) {
  struct Message {
    PackId pack{};
    std::size_t chunk = 0;  ///< of the receiver
    std::size_t unit = 0;   ///< position at the receiver
  };
  const std::size_t members = frame.membership[rank].size();
  std::vector<std::vector<Message>> sent(members * 2 * frame.pp), consumed(members * 2 * frame.pp);
  for (std::size_t stage = 0; stage < frame.pp; ++stage) {
    const Position on = frame.device_of(rank, stage);
    if (on == kNowhere) continue;
    const auto& order = plan.schedule[on].order;
    for (std::size_t k = 0; k < order.size(); ++k) {
      const Unit& unit = order[k];
      if (unit.kind != UnitKind::forward && unit.kind != UnitKind::backward) continue;
      const Membership* member = member_of(plan, frame, on, k);
      if (member == nullptr) continue;
      const auto place = static_cast<std::size_t>(member - frame.membership[rank].data());
      const auto chunk = static_cast<std::size_t>(unit.chunk);
      const auto other = [&](const Peer& peer) {
        return frame.at(frame.device_of(rank, peer.stage), *member, unit.pack, peer.chunk);
      };
      if (const auto to = target_of(frame, unit.kind, stage, chunk); to && other(*to) != kNowhere) {
        const std::size_t channel = (place * 2 + (to->gradients ? 1 : 0)) * frame.pp + stage;
        sent[channel].push_back({unit.pack, to->chunk, other(*to)});
      }
      if (const auto from = source_of(frame, unit.kind, stage, chunk);
          from && other(*from) != kNowhere) {
        const std::size_t channel =
            (place * 2 + (from->gradients ? 1 : 0)) * frame.pp + from->stage;
        consumed[channel].push_back({unit.pack, chunk, k});
      }
    }
  }
  for (std::size_t channel = 0; channel < sent.size(); ++channel) {
    for (std::size_t i = 0; i < sent[channel].size(); ++i) {
      const Message& out = sent[channel][i];
      const Message& in = consumed[channel][i];
      if (out.pack == in.pack && out.chunk == in.chunk) continue;
      const std::size_t sender = channel % frame.pp;
      const bool gradients = channel / frame.pp % 2 == 1;
      const std::size_t receiver =
          gradients ? (sender + frame.pp - 1) % frame.pp : (sender + 1) % frame.pp;
      const auto dp = static_cast<std::int32_t>(rank);
      const std::size_t member = channel / frame.pp / 2;
      channels.mixed_up[channels.id(frame, rank, member, gradients, sender)] = true;
      const char* kind = "channel order";
      found.add(
          6, kind,
          Where{}.device(dp, static_cast<std::int32_t>(receiver)).unit(in.unit).pack(in.pack), [&] {
            const UnitKind unit = gradients ? UnitKind::backward : UnitKind::forward;
            return "the channel of group " + std::to_string(frame.membership[rank][member].group) +
                   " from " + device_name(dp, static_cast<std::int32_t>(sender)) +
                   " brings as message " + std::to_string(i) + " the input of " +
                   to_string({unit, out.pack, static_cast<std::int32_t>(out.chunk)}) + ", but " +
                   to_string({unit, in.pack, static_cast<std::int32_t>(in.chunk)}) +
                   " is there to consume it";
          });
      break;
    }
  }
}

/// R of a stage takes turns on its links: all ranks queue them in one order.
inline void check_reduce_turns(const Plan& plan, const Frame& frame, Findings& found) {
  const auto turns = [&](Position on) {
    std::vector<std::int32_t> chunks;
    for (std::size_t k = 0; k < plan.schedule[on].order.size(); ++k) {
      const Unit& unit = plan.schedule[on].order[k];
      if (unit.kind == UnitKind::reduce && !frame.faulty[on][k]) chunks.push_back(unit.chunk);
    }
    return chunks;
  };
  for (std::size_t stage = 0; stage < frame.pp; ++stage) {
    std::optional<std::vector<std::int32_t>> expected;
    for (std::size_t rank = 0; rank < frame.dp; ++rank) {
      const Position on = frame.device_of(rank, stage);
      if (on == kNowhere) continue;
      const auto chunks = turns(on);
      if (chunks.size() != frame.chunks) continue;
      if (!expected) expected = chunks;
      for (std::size_t i = 0; i < chunks.size(); ++i) {
        if (chunks[i] == (*expected)[i]) continue;
        const auto k = frame.reduce[on][static_cast<std::size_t>(chunks[i])];
        const DeviceSchedule& device = plan.schedule[on];
        found.add(6, "order of R", Where{}.device(device.dp, device.pp).unit(k), [&] {
          return "R of chunk " + std::to_string(chunks[i]) + " comes where other ranks have R of " +
                 "chunk " + std::to_string((*expected)[i]);
        });
        break;
      }
    }
  }
}

/// Adds every violation of the order of channels and of R; tells which channels cannot be counted.
/// O(units log groups of a rank).
[[nodiscard]] inline Channels check_channels(const Plan& plan, const Frame& frame,
                                             Findings& found) {
  Channels channels = channels_of(frame);
  if (frame.pp > 1) {
    for (std::size_t rank = 0; rank < frame.dp; ++rank) {
      check_rank_channels(plan, frame, rank, channels, found);
    }
  }
  check_reduce_turns(plan, frame, found);
  return channels;
}

}  // namespace slimpack::validation
