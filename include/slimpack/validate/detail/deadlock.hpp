// SPDX-License-Identifier: Apache-2.0
// Rule 6: execution ends. Where it does not, who waits for whom, in which circle, and which
// collectives cross.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/validate/detail/channel.hpp"
#include "slimpack/validate/detail/findings.hpp"
#include "slimpack/validate/detail/frame.hpp"
#include "slimpack/validate/detail/progress.hpp"

namespace slimpack::validation {

/// The collectives of two groups at one stage of a rank, in the rank's order, where `other` has
/// them too.
[[nodiscard]] inline std::vector<Unit> common_collectives(const Plan& plan, const Frame& frame,
                                                          Position on, Position other,
                                                          std::size_t first, std::size_t second) {
  std::vector<Unit> collectives;
  const auto& order = plan.schedule[on].order;
  const auto rank = static_cast<std::size_t>(plan.schedule[other].dp);
  for (std::size_t i = 0; i < order.size(); ++i) {
    const Unit& unit = order[i];
    if (unit.kind != UnitKind::forward && unit.kind != UnitKind::backward) continue;
    const Membership* member = member_of(plan, frame, on, i);
    if (member == nullptr || (member->group != first && member->group != second)) continue;
    const Membership* there = frame.find(rank, member->group);
    if (frame.at(other, *there, unit.pack, static_cast<std::size_t>(unit.chunk)) == kNowhere) {
      continue;
    }
    collectives.push_back(unit);
  }
  return collectives;
}

/// Pairs of groups (a group also with itself) that share at least two ranks.
[[nodiscard]] inline std::vector<std::pair<std::size_t, std::size_t>> sharing_groups(
    const Plan& plan, const Frame& frame) {
  std::vector<std::pair<std::size_t, std::size_t>> met;
  for (const auto& membership : frame.membership) {
    for (std::size_t a = 0; a < membership.size(); ++a) {
      const auto in_cp_group = [&](std::size_t group) {
        return plan.groups[group].size() > 1 && !frame.packs[group].empty();
      };
      if (!in_cp_group(membership[a].group)) continue;
      for (std::size_t b = a; b < membership.size(); ++b) {
        if (in_cp_group(membership[b].group))
          met.emplace_back(membership[a].group, membership[b].group);
      }
    }
  }
  std::sort(met.begin(), met.end());
  std::vector<std::pair<std::size_t, std::size_t>> sharing;
  for (std::size_t i = 1; i < met.size(); ++i) {
    if (met[i] == met[i - 1] && (sharing.empty() || sharing.back() != met[i])) {
      sharing.push_back(met[i]);
    }
  }
  return sharing;
}

/// Names collectives that two ranks execute in opposite orders. They always end in a deadlock, so
/// this is asked only where there is one.
inline void check_crossings(const Plan& plan, const Frame& frame, Findings& found) {
  for (const auto& [first, second] : sharing_groups(plan, frame)) {
    std::vector<std::int32_t> ranks;
    std::set_intersection(plan.groups[first].begin(), plan.groups[first].end(),
                          plan.groups[second].begin(), plan.groups[second].end(),
                          std::back_inserter(ranks));
    for (std::size_t stage = 0; stage < frame.pp; ++stage) {
      const Position lead = frame.device_of(static_cast<std::size_t>(ranks.front()), stage);
      if (lead == kNowhere) continue;
      for (std::size_t i = 1; i < ranks.size(); ++i) {
        const Position on = frame.device_of(static_cast<std::size_t>(ranks[i]), stage);
        if (on == kNowhere) continue;
        const auto ours = common_collectives(plan, frame, on, lead, first, second);
        const auto theirs = common_collectives(plan, frame, lead, on, first, second);
        const auto [here, there] =
            std::mismatch(ours.begin(), ours.end(), theirs.begin(), theirs.end());
        if (here == ours.end() || there == theirs.end()) continue;
        const Unit mine = *here, other = *there;
        // A group's crossing with itself is told once, not again with every other group.
        const auto group_of = [&](const Unit& unit) {
          return index(plan.micropacks[index(unit.pack)].group);
        };
        if (first != second && group_of(mine) == group_of(other)) continue;
        const Membership* member = frame.find(static_cast<std::size_t>(ranks[i]), group_of(mine));
        const Position k = frame.at(on, *member, mine.pack, static_cast<std::size_t>(mine.chunk));
        const DeviceSchedule& device = plan.schedule[on];
        found.add(6, "collectives that cross",
                  Where{}.device(device.dp, device.pp).unit(k).pack(mine.pack), [&] {
                    return to_string(mine) + " comes before " + to_string(other) +
                           ", but after it on " +
                           device_name(plan.schedule[lead].dp, plan.schedule[lead].pp) +
                           ": ranks that share groups run their collectives in one order";
                  });
      }
    }
  }
}

/// Adds every violation of rule 6 that execution shows: each device that cannot end, and one circle
/// of waiting. O(units x ranks of a group) where the plan ends.
inline void check_progress(const Plan& plan, const Frame& frame, const Channels& channels,
                           Findings& found) {
  Progress progress(plan, frame, channels);
  if (progress.run()) return;
  check_crossings(plan, frame, found);

  std::vector<Position> waits_for(plan.schedule.size(), kNowhere);
  Position some = kNowhere;
  for (const Position on : frame.device) {
    if (on == kNowhere || progress.ended(on)) continue;
    const DeviceSchedule& device = plan.schedule[on];
    const std::size_t i = progress.done(on);
    const Unit& unit = device.order[i];
    const Wait wait = progress.wait_of(on);
    waits_for[on] = wait.device;
    if (some == kNowhere) some = on;
    Where where = Where{}.device(device.dp, device.pp).unit(i);
    if (unit.kind != UnitKind::optimizer) where = where.pack(unit.pack);
    found.add(6, "deadlock", where, [&] {
      return "deadlock: " + to_string(unit) + " waits for ever for " + wait.reason;
    });
  }
  // Whoever waits waits for someone who does not end either, so following leads into a circle.
  std::vector<bool> seen(plan.schedule.size(), false);
  Position on = some;
  while (on != kNowhere && !seen[on]) {
    seen[on] = true;
    on = waits_for[on];
  }
  if (on == kNowhere) return;
  std::string circle;
  std::size_t named = 0;
  const Position begin = on;
  do {
    const DeviceSchedule& device = plan.schedule[on];
    if (++named <= 16) {
      circle += device_name(device.dp, device.pp) + " (" +
                to_string(device.order[progress.done(on)]) + ") -> ";
    }
    on = waits_for[on];
  } while (on != begin);
  if (named > 16) circle += "... -> ";
  found.add(6, "circle of waiting", {},
            "deadlock: devices wait in a circle: " + circle +
                device_name(plan.schedule[begin].dp, plan.schedule[begin].pp));
}

}  // namespace slimpack::validation
