// SPDX-License-Identifier: Apache-2.0
// Rules 1 and 2: slices partition their samples, MicroPacks hold what they may.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/plan/names.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/validate/detail/findings.hpp"

namespace slimpack::validation {

/// A slice of a known sample, and the MicroPack that holds it.
struct Cut {
  Tokens begin, end;
  PackId pack{};
};

/// The slices of one pass by sample, in order of rising `begin`.
using Cuts = std::vector<std::vector<Cut>>;

/// Tokens of a sample that share their MicroPacks of two passes, one of which needs the other:
/// forward and backward, or, in the same places, backward and weight.
struct Piece {
  Tokens begin, end;
  PackId forward{}, backward{};
};

[[nodiscard]] inline Cuts cuts_of(const Plan& plan, Pass pass) {
  Cuts cuts(plan.samples.size());
  for (std::size_t id = 0; id < plan.micropacks.size(); ++id) {
    if (plan.micropacks[id].pass != pass) continue;
    for (const Slice& slice : plan.micropacks[id].slices) {
      if (index(slice.sample) >= cuts.size()) continue;
      cuts[index(slice.sample)].push_back({slice.begin, slice.end, static_cast<PackId>(id)});
    }
  }
  for (auto& of_sample : cuts) {
    std::stable_sort(of_sample.begin(), of_sample.end(),
                     [](const Cut& a, const Cut& b) { return a.begin < b.begin; });
  }
  return cuts;
}

/// The common refinement of a sample's two partitions. Slices that overlap (rule 1 is broken then)
/// give way to those before them, so that the result stays linear.
[[nodiscard]] inline std::vector<Piece> pieces_of(const std::vector<Cut>& forward,
                                                  const std::vector<Cut>& backward) {
  std::vector<Piece> pieces;
  std::size_t f = 0, b = 0;
  Tokens position;
  while (f < forward.size() && b < backward.size()) {
    const Tokens begin = std::max({position, forward[f].begin, backward[b].begin});
    const Tokens end = std::min(forward[f].end, backward[b].end);
    if (begin < end) pieces.push_back({begin, end, forward[f].pack, backward[b].pack});
    position = std::max(position, end);
    if (forward[f].end <= backward[b].end) {
      ++f;
    } else {
      ++b;
    }
  }
  return pieces;
}

/// Rule 1 for one pass of one sample; which tokens weight slices hold, `check_weight_cuts` asks.
inline void check_cuts(const Plan& plan, std::size_t sample, const std::vector<Cut>& cuts,
                       Pass pass, Findings& found) {
  const std::string kind(to_string(pass));
  const bool whole = pass != Pass::weight;
  const Tokens length = plan.samples[sample];
  const std::int64_t granularity = plan.parallel.granularity.value;
  const Where where = Where{}.sample(sample);
  Tokens covered;
  Tokens checked;  // the boundary checked last: two slices share an inner one
  const auto boundary = [&](Tokens position, PackId pack) {
    if (position <= Tokens{0} || position >= length || position == checked || granularity < 1)
      return;
    checked = position;
    if (position.value % granularity == 0) return;
    found.add(1, "boundary off the granularity", where.pack(pack), [&] {
      return kind + " boundary " + std::to_string(position.value) +
             " is not a multiple of granularity " + std::to_string(granularity);
    });
  };
  for (const Cut& cut : cuts) {
    const Where here = where.pack(cut.pack);
    if (cut.end <= cut.begin) {
      found.add(1, "empty slice", here,
                [&] { return kind + " slice " + range_name(cut.begin, cut.end) + " is empty"; });
      continue;
    }
    if (cut.begin < Tokens{0} || cut.end > length) {
      found.add(1, "slice outside its sample", here, [&] {
        return kind + " slice " + range_name(cut.begin, cut.end) + " is not inside " +
               range_name({}, length);
      });
    }
    if (cut.begin > covered && whole) {
      found.add(1, "tokens in no slice", here, [&] {
        return kind + " slices leave out tokens " + range_name(covered, cut.begin);
      });
    } else if (cut.begin < covered && cut.begin >= Tokens{0}) {
      found.add(1, "tokens in several slices", here, [&] {
        return kind + " slices hold tokens " + range_name(cut.begin, std::min(covered, cut.end)) +
               " more than once";
      });
    }
    boundary(cut.begin, cut.pack);
    boundary(cut.end, cut.pack);
    covered = std::max(covered, cut.end);
  }
  if (covered < length && whole) {
    found.add(1, "tokens in no slice", where,
              [&] { return kind + " slices leave out tokens " + range_name(covered, length); });
  }
}

/// Tokens [begin, end) of a sample.
struct Stretch {
  Tokens begin, end;
};

/// Sorted slices for which `keep` holds, those that touch as one stretch.
template <class Keep>
[[nodiscard]] std::vector<Stretch> joined(const std::vector<Cut>& cuts, const Keep& keep) {
  std::vector<Stretch> stretches;
  for (const Cut& cut : cuts) {
    if (cut.end <= cut.begin || !keep(cut)) continue;
    if (stretches.empty() || stretches.back().end < cut.begin) {
      stretches.push_back({cut.begin, cut.end});
    } else {
      stretches.back().end = std::max(stretches.back().end, cut.end);
    }
  }
  return stretches;
}

/// Calls visit(begin, end) for the tokens of `all` that are not in `some`, both as `joined` makes
/// them. Linear.
template <class Visit>
void for_each_outside(const std::vector<Stretch>& all, const std::vector<Stretch>& some,
                      const Visit& visit) {
  std::size_t next = 0;
  for (const Stretch& stretch : all) {
    Tokens position = stretch.begin;
    while (next < some.size() && some[next].end <= position) ++next;
    for (std::size_t i = next; i < some.size() && some[i].begin < stretch.end; ++i) {
      if (position < some[i].begin) visit(position, some[i].begin);
      position = std::max(position, some[i].end);
    }
    if (position < stretch.end) visit(position, stretch.end);
  }
}

/// Rule 1 for the weight slices of one sample: they hold what its backward slices leave apart.
inline void check_weight_cuts(const Plan& plan, std::size_t sample,
                              const std::vector<Cut>& backward, const std::vector<Cut>& weight,
                              Findings& found) {
  check_cuts(plan, sample, weight, Pass::weight, found);
  const auto apart = joined(backward, [&](const Cut& cut) {
    return plan.micropacks[index(cut.pack)].weights == WeightGradients::apart;
  });
  const auto held = joined(weight, [](const Cut&) { return true; });
  const Where where = Where{}.sample(sample);
  for_each_outside(apart, held, [&](Tokens begin, Tokens end) {
    found.add(1, "tokens in no weight slice", where, [&] {
      return "weight slices leave out tokens " + range_name(begin, end) +
             ", which backward leaves apart";
    });
  });
  for_each_outside(held, apart, [&](Tokens begin, Tokens end) {
    found.add(1, "weights that are not apart", where, [&] {
      return "weight slices hold tokens " + range_name(begin, end) +
             ", which backward does not leave apart";
    });
  });
}

/// Adds every violation of rule 1. O(n) in slices that `cuts_of` has sorted.
inline void check_partition(const Plan& plan, const Cuts& forward, const Cuts& backward,
                            const Cuts& weight, Findings& found) {
  for (std::size_t sample = 0; sample < plan.samples.size(); ++sample) {
    check_cuts(plan, sample, forward[sample], Pass::forward, found);
    check_cuts(plan, sample, backward[sample], Pass::backward, found);
    check_weight_cuts(plan, sample, backward[sample], weight[sample], found);
  }
  for (std::size_t group = 0; group < plan.groups.size(); ++group) {
    const std::size_t ranks = plan.groups[group].size();
    if (static_cast<std::int64_t>(ranks) <= plan.parallel.max_cp) continue;
    found.add(1, "group above merge", {}, [&] {
      return "groups[" + std::to_string(group) + "] has " + std::to_string(ranks) +
             " ranks, merge is " + std::to_string(plan.parallel.max_cp);
    });
  }
}

/// Adds every violation of rule 2. O(n log n) in the slices of a pack.
inline void check_contents(const Plan& plan, Findings& found) {
  for (std::size_t id = 0; id < plan.micropacks.size(); ++id) {
    const MicroPack& pack = plan.micropacks[id];
    std::vector<SampleId> samples;
    for (const Slice& slice : pack.slices) samples.push_back(slice.sample);
    std::sort(samples.begin(), samples.end());
    for (std::size_t i = 0; i < samples.size(); ++i) {
      const std::size_t sample = index(samples[i]);
      const Where where = Where{}.sample(sample).pack(id);
      if (i > 0 && samples[i] == samples[i - 1]) {
        found.add(2, "several slices of a sample", where,
                  "the MicroPack holds more than one slice of the sample");
      } else if (sample < plan.sample_group.size() && plan.sample_group[sample] != pack.group) {
        found.add(2, "sample of another group", where, [&] {
          return "the MicroPack is of group " + std::to_string(index(pack.group)) +
                 ", the sample of group " + std::to_string(index(plan.sample_group[sample]));
        });
      }
    }
  }
}

}  // namespace slimpack::validation
