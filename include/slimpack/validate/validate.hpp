// SPDX-License-Identifier: Apache-2.0
// Checks a plan against everything that makes it valid, by formulas of its own.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "slimpack/plan/plan.hpp"
#include "slimpack/validate/detail/channel.hpp"
#include "slimpack/validate/detail/deadlock.hpp"
#include "slimpack/validate/detail/findings.hpp"
#include "slimpack/validate/detail/format.hpp"
#include "slimpack/validate/detail/frame.hpp"
#include "slimpack/validate/detail/order.hpp"
#include "slimpack/validate/detail/partition.hpp"
#include "slimpack/validate/detail/peak.hpp"
#include "slimpack/validate/violation.hpp"

namespace slimpack {
namespace validation {

[[nodiscard]] inline Validation validate_plan(const Plan& plan) {
  Findings found;
  Validation result;
  const Sound sound = check_format(plan, found);
  const Cuts forward = cuts_of(plan, Pass::forward);
  const Cuts backward = cuts_of(plan, Pass::backward);
  check_partition(plan, forward, backward, found);
  check_contents(plan, found);
  if (sound.parallel && sound.stages && sound.groups) {
    if (auto frame = check_units(plan, found)) {
      std::vector<std::vector<Piece>> pieces;
      pieces.reserve(plan.samples.size());
      for (std::size_t i = 0; i < plan.samples.size(); ++i) {
        pieces.push_back(pieces_of(forward[i], backward[i]));
      }
      check_orders(plan, *frame, forward, backward, pieces, found);
      const Channels channels = check_channels(plan, *frame, found);
      check_progress(plan, *frame, channels, found);
      if (sound.sizes && !found.any(0, 5)) {
        result.worst_case_peak = check_memory(plan, *frame, pieces, found);
      }
    }
  }
  result.violations = std::move(found).list();
  return result;
}

}  // namespace validation

/// Checks a plan.
///
///     const Validation validation = validate(plan);
///     for (const Violation& violation : validation.violations) {
///       std::cerr << violation.message << '\n';   // "rule 4, sample 1, MicroPack 3, ...: reason"
///     }
///     if (validation.valid()) use(validation.worst_case_peak);
///
/// Lists every violation of the seven rules and of the format, in order of rule, with sample,
/// MicroPack, device and unit. Shares only the data types with planner and simulator. Never throws
/// for what a plan says; of one kind of violation the first hundred are listed and the rest is
/// counted. What a broken table makes impossible to check is left out (docs/validation.md). O(n log
/// n) in slices and units times the ranks of a group.
[[nodiscard]] inline Validation validate(const Plan& plan) {
  return validation::validate_plan(plan);
}

}  // namespace slimpack
