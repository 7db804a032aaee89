// SPDX-License-Identifier: Apache-2.0
// The samples that a candidate is timed on: few stand for many.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "slimpack/core/int128.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/schedule/assign.hpp"
#include "slimpack/schedule/cut.hpp"

namespace slimpack::planners {

/// Candidates are timed on no more than about so many samples a group.
inline constexpr std::size_t kSampledSamples = 512;
/// The longest samples of a group decide what fits: so many are always there.
inline constexpr std::size_t kSampledLongest = 64;

/// The samples of a rank component that candidates are timed on: the longest of each group and
/// every k-th of the others, with k so that about `kSampledSamples` are left; all where there are
/// few.
struct SampledWorkload {
  std::vector<std::vector<schedule::QueuedSample>> members;  ///< by group, longest first
  std::int64_t part = 1;                                     ///< work of these samples
  std::int64_t whole = 1;  ///< work of all samples of the component

  /// The part of `all` that these samples stand for, at least 1.
  [[nodiscard]] std::int64_t part_of(std::int64_t all) const noexcept {
    return std::max<std::int64_t>(1, static_cast<std::int64_t>(Int128{all} * part / whole));
  }
  /// How long the other samples take where these take `time`.
  [[nodiscard]] Nanos left_out(Nanos time) const noexcept {
    return Nanos{static_cast<std::int64_t>(Int128{time.value} * (whole - part) / part)};
  }
};

/// Chooses the samples that each component's candidates are timed on. `members` are the samples of
/// each group, longest first; `needs` those of all samples, longest first; `component_of` names
/// each rank's component. O(samples).
[[nodiscard]] inline std::vector<SampledWorkload> sample_workload(
    const schedule::Assignment& assignment,
    std::span<const std::vector<schedule::QueuedSample>> members,
    std::span<const schedule::SampleNeed> needs, std::span<const std::size_t> component_of,
    std::size_t components) {
  std::vector<SampledWorkload> sampled(components);
  for (SampledWorkload& of : sampled) {
    of.members.resize(members.size());
    of.part = of.whole = 0;
  }
  std::vector<std::size_t> seen(members.size());
  for (std::size_t i = 0; i < needs.size(); ++i) {
    const std::size_t group = index(assignment.sample_group[i]);
    const std::vector<schedule::QueuedSample>& all = members[group];
    SampledWorkload& of =
        sampled[component_of[static_cast<std::size_t>(assignment.groups[group].front())]];
    const std::size_t place = seen[group]++;
    const std::size_t step = std::max<std::size_t>(1, all.size() / kSampledSamples);
    of.whole += needs[i].time;
    if (place >= kSampledLongest && place % step != 0) continue;
    of.part += needs[i].time;
    of.members[group].push_back(all[place]);
  }
  for (SampledWorkload& of : sampled) {
    if (of.whole == 0) of.part = of.whole = 1;
  }
  return sampled;
}

}  // namespace slimpack::planners
