// SPDX-License-Identifier: Apache-2.0
// Rule 3, and the tables behind rules 4 to 7: who executes what, and where in its order.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/validate/detail/findings.hpp"

namespace slimpack::validation {

/// A position in a device's order, or an index of a device; kNowhere where there is none.
using Position = std::uint32_t;
inline constexpr Position kNowhere = std::numeric_limits<Position>::max();

/// A data-parallel rank as a part of a group. A rank's MicroPacks are numbered group after group;
/// those of this group begin at `first`.
struct Membership {
  std::size_t group = 0;
  std::size_t place = 0;  ///< among the group's ranks
  std::size_t first = 0;
};

/// What is to be executed where, and the position at which each device does it. Only the first of
/// several equal units has a position.
struct Frame {
  std::size_t dp = 0, pp = 0, chunks = 0;
  std::vector<std::vector<PackId>> packs;           ///< by group
  std::vector<std::size_t> slot;                    ///< of a MicroPack among its group's
  std::vector<std::vector<Membership>> membership;  ///< by rank, rising group
  std::vector<std::size_t> rank_packs;              ///< by rank
  std::vector<Position> device;                     ///< place in Plan::schedule by dp * pp + stage
  std::vector<std::vector<Position>> position;      ///< by device, then (MicroPack, chunk or H)
  std::vector<std::vector<Position>> reduce;        ///< by device, then chunk
  /// By device and position: the unit breaks rules 3 to 5 already. It is taken as run without
  /// waiting, so that one fault is not reported again as a deadlock.
  std::vector<std::vector<bool>> faulty;

  [[nodiscard]] Position device_of(std::size_t rank, std::size_t stage) const {
    return device[rank * pp + stage];
  }
  [[nodiscard]] const Membership* find(std::size_t rank, std::size_t group) const {
    const auto& all = membership[rank];
    const auto at =
        std::lower_bound(all.begin(), all.end(), group,
                         [](const Membership& m, std::size_t g) { return m.group < g; });
    return at != all.end() && at->group == group ? &*at : nullptr;
  }
  /// Where F, B or W of a MicroPack's slot is in the table of a device.
  [[nodiscard]] std::size_t entry(const Membership& member, PackId pack, std::size_t chunk) const {
    return (member.first + slot[index(pack)]) * (chunks + 1) + chunk;
  }
  /// Position of F, B or W (chunk < chunks) or H (chunk == chunks) on a device of the member's
  /// rank.
  [[nodiscard]] Position at(Position on, const Membership& member, PackId pack,
                            std::size_t chunk) const {
    return on == kNowhere ? kNowhere : position[on][entry(member, pack, chunk)];
  }
};

[[nodiscard]] inline bool joins_head(const Plan& plan, std::int32_t pp) {
  return plan.parallel.head == LmHead::shard || pp + 1 == plan.parallel.pp;
}

/// The schedules by device: each (dp, pp) once. False where so many are missing that the rest
/// cannot be checked.
[[nodiscard]] inline bool index_devices(const Plan& plan, Findings& found, Frame& frame) {
  const auto wanted =
      static_cast<std::uint64_t>(plan.parallel.dp) * static_cast<std::uint64_t>(plan.parallel.pp);
  const std::uint64_t listed = plan.schedule.size();
  if (wanted > 2 * listed + 1024) {
    found.add(3, "device without a schedule", {}, [&] {
      return std::to_string(listed) + " schedules for " + std::to_string(wanted) +
             " devices; rules 3 to 7 are not checked further";
    });
    return false;
  }
  frame.device.assign(static_cast<std::size_t>(wanted), kNowhere);
  for (std::size_t i = 0; i < plan.schedule.size(); ++i) {
    const DeviceSchedule& device = plan.schedule[i];
    const Where where = Where{}.device(device.dp, device.pp);
    if (device.dp < 0 || device.dp >= plan.parallel.dp || device.pp < 0 ||
        device.pp >= plan.parallel.pp) {
      found.add(3, "schedule of no device", where, "a schedule of a device that does not exist");
      continue;
    }
    Position& k = frame.device[static_cast<std::size_t>(device.dp) * frame.pp +
                               static_cast<std::size_t>(device.pp)];
    if (k != kNowhere) {
      found.add(3, "device with two schedules", where, "the device has more than one schedule");
      continue;
    }
    k = static_cast<Position>(i);
    if (i > 0 && (plan.schedule[i - 1].dp > device.dp ||
                  (plan.schedule[i - 1].dp == device.dp && plan.schedule[i - 1].pp > device.pp))) {
      found.add(0, "order of schedules", where, "schedules must be ordered by dp, then pp");
    }
  }
  for (std::size_t i = 0; i < frame.device.size(); ++i) {
    if (frame.device[i] != kNowhere) continue;
    found.add(3, "device without a schedule",
              Where{}.device(static_cast<std::int32_t>(i / frame.pp),
                             static_cast<std::int32_t>(i % frame.pp)),
              "the device has no schedule");
  }
  return true;
}

/// Enters one unit of a device. Why it does not belong there, if it does not.
[[nodiscard]] inline std::string enter(const Plan& plan, Frame& frame, Position on, std::size_t i) {
  const DeviceSchedule& device = plan.schedule[on];
  const Unit& unit = device.order[i];
  const auto take = [&](Position& place) -> std::string {
    if (place != kNowhere) return "comes a second time";
    place = static_cast<Position>(i);
    return {};
  };
  if (unit.kind == UnitKind::optimizer) {
    return i + 1 == device.order.size() ? std::string{} : "is not last";
  }
  if (unit.kind != UnitKind::head &&
      (unit.chunk < 0 || static_cast<std::size_t>(unit.chunk) >= frame.chunks)) {
    return "is of a chunk that does not exist";
  }
  if (unit.kind == UnitKind::reduce) {
    return take(frame.reduce[on][static_cast<std::size_t>(unit.chunk)]);
  }
  if (index(unit.pack) >= plan.micropacks.size()) return "is of a MicroPack that does not exist";
  const MicroPack& pack = plan.micropacks[index(unit.pack)];
  if (pack.pass != pass_of(unit.kind)) return "is of a MicroPack of another pass";
  if (index(pack.group) >= plan.groups.size()) return "is of a MicroPack without a group";
  const Membership* member = frame.find(static_cast<std::size_t>(device.dp), index(pack.group));
  if (member == nullptr) return "is of a group that the rank is not in";
  std::size_t chunk = static_cast<std::size_t>(unit.chunk);
  if (unit.kind == UnitKind::head) {
    if (!joins_head(plan, device.pp)) return "is on a stage without a part of the head";
    chunk = frame.chunks;
  }
  return take(frame.position[on][frame.entry(*member, unit.pack, chunk)]);
}

/// Reports the units that a device lacks.
inline void check_missing(const Plan& plan, const Frame& frame, Position on, Findings& found) {
  const DeviceSchedule& device = plan.schedule[on];
  const Where where = Where{}.device(device.dp, device.pp);
  const auto lacks = [&](const Where& place, UnitKind kind, PackId pack, std::size_t chunk) {
    found.add(3, "unit missing", place, [&] {
      return to_string({kind, pack, static_cast<std::int32_t>(chunk)}) + " is missing";
    });
  };
  for (const Membership& member : frame.membership[static_cast<std::size_t>(device.dp)]) {
    for (const PackId pack : frame.packs[member.group]) {
      const Pass pass = plan.micropacks[index(pack)].pass;
      for (std::size_t chunk = 0; chunk < frame.chunks; ++chunk) {
        if (frame.at(on, member, pack, chunk) != kNowhere) continue;
        lacks(where.pack(pack), unit_of(pass), pack, chunk);
      }
      if (pass == Pass::forward && joins_head(plan, device.pp) &&
          frame.at(on, member, pack, frame.chunks) == kNowhere) {
        lacks(where.pack(pack), UnitKind::head, pack, 0);
      }
    }
  }
  for (std::size_t chunk = 0; chunk < frame.chunks; ++chunk) {
    if (frame.reduce[on][chunk] == kNowhere) lacks(where, UnitKind::reduce, {}, chunk);
  }
  if (device.order.empty() || device.order.back().kind != UnitKind::optimizer) {
    found.add(3, "unit missing", where, "O is missing at the end");
  }
}

/// Adds every violation of rule 3 and returns the tables, or nothing where too little is there to
/// go on. Needs sound parallel, stages and groups. O(units log groups of a rank).
[[nodiscard]] inline std::optional<Frame> check_units(const Plan& plan, Findings& found) {
  Frame frame;
  frame.dp = static_cast<std::size_t>(plan.parallel.dp);
  frame.pp = static_cast<std::size_t>(plan.parallel.pp);
  frame.chunks = static_cast<std::size_t>(plan.parallel.chunks);
  if (!index_devices(plan, found, frame)) return std::nullopt;

  frame.packs.resize(plan.groups.size());
  frame.slot.assign(plan.micropacks.size(), 0);
  for (std::size_t id = 0; id < plan.micropacks.size(); ++id) {
    if (index(plan.micropacks[id].group) >= plan.groups.size()) continue;
    auto& packs = frame.packs[index(plan.micropacks[id].group)];
    frame.slot[id] = packs.size();
    packs.push_back(static_cast<PackId>(id));
  }
  frame.membership.resize(frame.dp);
  frame.rank_packs.assign(frame.dp, 0);
  for (std::size_t group = 0; group < plan.groups.size(); ++group) {
    for (std::size_t place = 0; place < plan.groups[group].size(); ++place) {
      const auto rank = static_cast<std::size_t>(plan.groups[group][place]);
      frame.membership[rank].push_back({group, place, frame.rank_packs[rank]});
      frame.rank_packs[rank] += frame.packs[group].size();
    }
  }
  double expected = static_cast<double>(plan.schedule.size()) * static_cast<double>(frame.chunks);
  std::size_t present = 0;
  for (const std::size_t packs : frame.rank_packs) {
    expected += static_cast<double>(packs) * static_cast<double>(frame.chunks + 1) *
                static_cast<double>(frame.pp);
  }
  for (const DeviceSchedule& device : plan.schedule) present += device.order.size();
  // A broken file of a few bytes must not ask for tables of gigabytes.
  if (expected > 4.0 * static_cast<double>(present) + 1e6) {
    found.add(3, "unit missing", {}, [&] {
      return std::to_string(present) +
             " units are far fewer than groups and MicroPacks ask for; rules 3 to 7 are not "
             "checked further";
    });
    return std::nullopt;
  }

  frame.position.resize(plan.schedule.size());
  frame.reduce.resize(plan.schedule.size());
  frame.faulty.resize(plan.schedule.size());
  for (const Position on : frame.device) {
    if (on == kNowhere) continue;
    const DeviceSchedule& device = plan.schedule[on];
    const auto rank = static_cast<std::size_t>(device.dp);
    frame.position[on].assign(frame.rank_packs[rank] * (frame.chunks + 1), kNowhere);
    frame.reduce[on].assign(frame.chunks, kNowhere);
    frame.faulty[on].assign(device.order.size(), false);
    for (std::size_t i = 0; i < device.order.size(); ++i) {
      const std::string wrong = enter(plan, frame, on, i);
      if (wrong.empty()) continue;
      frame.faulty[on][i] = true;
      Where where = Where{}.device(device.dp, device.pp).unit(i);
      const Unit& unit = device.order[i];
      const bool of_pack = unit.kind != UnitKind::reduce && unit.kind != UnitKind::optimizer;
      if (of_pack) where = where.pack(unit.pack);
      found.add(3, "unit out of place", where, [&] { return to_string(unit) + " " + wrong; });
    }
    check_missing(plan, frame, on, found);
  }
  return frame;
}

}  // namespace slimpack::validation
