// SPDX-License-Identifier: Apache-2.0
// The line of work of every group: which samples, in which order, before or after merged ones.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/pack/cut.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/planners/detail/slimpack_settings.hpp"

namespace slimpack::detail {

/// A stretch of one group's line, cut by itself because the ranks do something else before or
/// after it.
struct LinePart {
  GroupId group{};
  std::int32_t slot = 1;  ///< order among the parts of a rank: 0 before merged ones, 2 after
  bool head = false, tail = false;  ///< first, last of one of its ranks
  std::vector<LineSample> samples;
};

/// Samples that come longest first, in the order asked for: before the middle, and after it.
struct SplitLine {
  std::vector<LineSample> before, after;
};

[[nodiscard]] inline SplitLine split_line(std::span<const LineSample> longest_first,
                                          LineOrder order) {
  SplitLine split;
  switch (order) {
    case LineOrder::long_first:
      split.after.assign(longest_first.begin(), longest_first.end());
      break;
    case LineOrder::short_first:
      split.before.assign(longest_first.rbegin(), longest_first.rend());
      break;
    case LineOrder::pyramid:
      for (std::size_t at = longest_first.size(); at > 0; --at) {
        const LineSample& sample = longest_first[at - 1];
        if ((longest_first.size() - at) % 2 == 0) {
          split.before.push_back(sample);
        } else {
          split.after.push_back(sample);
        }
      }
      std::reverse(split.after.begin(), split.after.end());
      break;
  }
  return split;
}

/// The parts of all groups in the order of their packs: by slot, wider groups first, then by
/// number. `members[g]` are group g's samples, longest first, `orders[g]` what order they shall
/// have.
[[nodiscard]] inline std::vector<LinePart> line_parts(
    std::span<const std::vector<std::int32_t>> groups,
    std::span<const std::vector<LineSample>> members, std::span<const LineOrder> orders) {
  std::int32_t ranks = 0;
  for (const auto& group : groups) ranks = std::max(ranks, group.back() + 1);
  std::vector<bool> merged(static_cast<std::size_t>(ranks));
  for (std::size_t group = 0; group < groups.size(); ++group) {
    if (groups[group].size() == 1 || members[group].empty()) continue;
    for (const std::int32_t rank : groups[group]) merged[static_cast<std::size_t>(rank)] = true;
  }
  std::vector<LinePart> parts;
  const auto add = [&](std::size_t group, std::int32_t slot, std::vector<LineSample> samples) {
    if (samples.empty()) return;
    parts.push_back({static_cast<GroupId>(group), slot, false, false, std::move(samples)});
  };
  for (std::size_t group = 0; group < groups.size(); ++group) {
    if (groups[group].size() > 1) {
      add(group, 1, members[group]);
      continue;
    }
    SplitLine split = split_line(members[group], orders[group]);
    if (merged[static_cast<std::size_t>(groups[group].front())]) {
      add(group, 0, std::move(split.before));
      add(group, 2, std::move(split.after));
    } else {
      split.before.insert(split.before.end(), split.after.begin(), split.after.end());
      add(group, 1, std::move(split.before));
    }
  }
  const auto width = [&](const LinePart& part) { return groups[index(part.group)].size(); };
  std::stable_sort(parts.begin(), parts.end(), [&](const LinePart& a, const LinePart& b) {
    return a.slot != b.slot ? a.slot < b.slot : width(a) > width(b);
  });
  std::vector<LinePart*> last(static_cast<std::size_t>(ranks), nullptr);
  for (LinePart& part : parts) {
    for (const std::int32_t rank : groups[index(part.group)]) {
      LinePart*& before = last[static_cast<std::size_t>(rank)];
      if (before == nullptr) part.head = true;
      before = &part;
    }
  }
  for (LinePart* part : last) {
    if (part != nullptr) part->tail = true;
  }
  return parts;
}

}  // namespace slimpack::detail
