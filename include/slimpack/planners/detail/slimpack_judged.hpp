// SPDX-License-Identifier: Apache-2.0
// What of a step candidates are judged on: few samples stand for many.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/pack/assign.hpp"
#include "slimpack/pack/cut.hpp"
#include "slimpack/pack/ranks.hpp"
#include "slimpack/plan/plan.hpp"

namespace slimpack::detail {

/// Candidates are judged on no more than about so many samples a group.
inline constexpr std::size_t kJudgedSamples = 1024;
/// The longest samples of a group decide what fits: so many are always there.
inline constexpr std::size_t kJudgedLongest = 64;

/// What of an island's samples a candidate is judged on: the longest of each group and of the
/// others every so-manieth, at equal work all.
struct Judged {
  std::vector<std::vector<LineSample>> members;  // by group
  std::int64_t part = 1, whole = 1;              // work of these and of all samples

  /// So much of what is there for all, at least 1.
  [[nodiscard]] std::int64_t part_of(std::int64_t all) const noexcept {
    return std::max<std::int64_t>(1, static_cast<std::int64_t>(Work{all} * part / whole));
  }
  /// What goes on for `time` with these, with those that are left out.
  [[nodiscard]] Nanos left_out(Nanos time) const noexcept {
    return Nanos{static_cast<std::int64_t>(Work{time.value} * (whole - part) / part)};
  }
};

/// `members` are the samples of each group, longest first; `needs` those of all samples, longest
/// first; `island_of` names each rank's island. O(samples).
[[nodiscard]] inline std::vector<Judged> judge(const Assignment& assignment,
                                               std::span<const std::vector<LineSample>> members,
                                               std::span<const SampleNeed> needs,
                                               std::span<const std::size_t> island_of,
                                               std::size_t islands) {
  std::vector<Judged> judged(islands);
  for (Judged& of : judged) {
    of.members.resize(members.size());
    of.part = of.whole = 0;
  }
  std::vector<std::size_t> seen(members.size());
  for (std::size_t at = 0; at < needs.size(); ++at) {
    const std::size_t group = index(assignment.sample_group[at]);
    const std::vector<LineSample>& all = members[group];
    Judged& of = judged[island_of[static_cast<std::size_t>(assignment.groups[group].front())]];
    const std::size_t place = seen[group]++;
    const std::size_t step = std::max<std::size_t>(1, all.size() / kJudgedSamples);
    of.whole += needs[at].time;
    if (place >= kJudgedLongest && place % step != 0) continue;
    of.part += needs[at].time;
    of.members[group].push_back(all[place]);
  }
  for (Judged& of : judged) {
    if (of.whole == 0) of.part = of.whole = 1;
  }
  return judged;
}

}  // namespace slimpack::detail
