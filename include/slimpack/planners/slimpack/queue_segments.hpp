// SPDX-License-Identifier: Apache-2.0
// The queue of every group: its samples in order, before or after those that ranks share.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/planners/slimpack/settings.hpp"
#include "slimpack/schedule/cut.hpp"

namespace slimpack::planners {

/// A segment of one group's queue, cut by itself because its ranks run other groups' samples before
/// or after it.
struct QueueSegment {
  GroupId group{};  ///< whose queue it is a part of
  /// 0: samples ahead of those shared with other ranks; 1: shared ones, or all of a rank that
  /// shares none; 2: samples behind shared ones.
  std::int32_t slot = 1;
  bool first = false;                           ///< no segment precedes it on one of its ranks
  bool last = false;                            ///< no segment follows it on one of its ranks
  std::vector<schedule::QueuedSample> samples;  ///< in the order in which they are cut
};

/// A rank's own samples in the order of its queue, parted where samples shared with other ranks go.
struct SplitQueue {
  std::vector<schedule::QueuedSample> before;  ///< run ahead of shared samples
  std::vector<schedule::QueuedSample> after;   ///< run behind shared samples
};

/// Orders samples that come longest first: all behind shared ones as they come, all ahead of them
/// the other way round, or by turns at either end, the shortest outside. O(samples).
[[nodiscard]] inline SplitQueue split_queue(std::span<const schedule::QueuedSample> longest_first,
                                            QueueOrder order) {
  SplitQueue split;
  switch (order) {
    case QueueOrder::long_first:
      split.after.assign(longest_first.begin(), longest_first.end());
      break;
    case QueueOrder::short_first:
      split.before.assign(longest_first.rbegin(), longest_first.rend());
      break;
    case QueueOrder::pyramid:
      for (std::size_t i = longest_first.size(); i > 0; --i) {
        const schedule::QueuedSample& sample = longest_first[i - 1];
        if ((longest_first.size() - i) % 2 == 0) {
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

/// The segments of all groups in the order of their packs: by slot, wider groups first, then by
/// number. `members[g]` are the samples of group g, longest first; `orders[g]` is the order in
/// which they are cut. On one stage short ones first means that of groups, too, and narrower groups
/// first: nothing but R follows the last B, and R runs beside what all ranks compute until then.
[[nodiscard]] inline std::vector<QueueSegment> queue_segments(
    std::span<const std::vector<std::int32_t>> groups,
    std::span<const std::vector<schedule::QueuedSample>> members,
    std::span<const QueueOrder> orders, bool one_stage) {
  std::int32_t ranks = 0;
  for (const auto& group : groups) ranks = std::max(ranks, group.back() + 1);
  std::vector<bool> in_cp_group(static_cast<std::size_t>(ranks));
  for (std::size_t group = 0; group < groups.size(); ++group) {
    if (groups[group].size() == 1 || members[group].empty()) continue;
    for (const std::int32_t rank : groups[group])
      in_cp_group[static_cast<std::size_t>(rank)] = true;
  }
  std::vector<QueueSegment> parts;
  const auto add = [&](std::size_t group, std::int32_t slot,
                       std::vector<schedule::QueuedSample> samples) {
    if (samples.empty()) return;
    parts.push_back({static_cast<GroupId>(group), slot, false, false, std::move(samples)});
  };
  for (std::size_t group = 0; group < groups.size(); ++group) {
    if (groups[group].size() > 1) {
      std::vector<schedule::QueuedSample> samples = members[group];
      if (one_stage && orders[group] == QueueOrder::short_first) std::ranges::reverse(samples);
      add(group, 1, std::move(samples));
      continue;
    }
    SplitQueue split = split_queue(members[group], orders[group]);
    if (in_cp_group[static_cast<std::size_t>(groups[group].front())]) {
      add(group, 0, std::move(split.before));
      add(group, 2, std::move(split.after));
    } else {
      if (split.before.empty()) split.before.swap(split.after);
      split.before.insert(split.before.end(), split.after.begin(), split.after.end());
      add(group, 1, std::move(split.before));
    }
  }
  const auto place = [&](const QueueSegment& part) {
    const auto width = static_cast<std::int64_t>(groups[index(part.group)].size());
    const bool narrow_first = one_stage && orders[index(part.group)] == QueueOrder::short_first;
    return std::pair(part.slot, narrow_first ? width : -width);
  };
  std::stable_sort(parts.begin(), parts.end(), [&](const QueueSegment& a, const QueueSegment& b) {
    return place(a) < place(b);
  });
  std::vector<QueueSegment*> last(static_cast<std::size_t>(ranks), nullptr);
  for (QueueSegment& part : parts) {
    for (const std::int32_t rank : groups[index(part.group)]) {
      QueueSegment*& before = last[static_cast<std::size_t>(rank)];
      if (before == nullptr) part.first = true;
      before = &part;
    }
  }
  for (QueueSegment* part : last) {
    if (part != nullptr) part->last = true;
  }
  return parts;
}

}  // namespace slimpack::planners
