// SPDX-License-Identifier: Apache-2.0
// The rules one after the other, each where what it needs has been found sound.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "slimpack/core/compiled.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/validate/detail/channel.hpp"
#include "slimpack/validate/detail/deadlock.hpp"
#include "slimpack/validate/detail/findings.hpp"
#include "slimpack/validate/detail/format.hpp"
#include "slimpack/validate/detail/frame.hpp"
#include "slimpack/validate/detail/order.hpp"
#include "slimpack/validate/detail/partition.hpp"
#include "slimpack/validate/detail/peak.hpp"
#include "slimpack/validate/validate.hpp"
#include "slimpack/validate/violation.hpp"

namespace slimpack {

SLIMPACK_PLANNERS_API Validation validate(const Plan& plan) {
  using namespace validation;  // NOLINT(google-build-using-namespace): all of it
  Findings found;
  Validation result;
  const Sound sound = check_format(plan, found);
  const Cuts forward = cuts_of(plan, Pass::forward);
  const Cuts backward = cuts_of(plan, Pass::backward);
  const Cuts weight = cuts_of(plan, Pass::weight);
  check_partition(plan, forward, backward, weight, found);
  check_contents(plan, found);
  if (sound.parallel && sound.stages && sound.groups) {
    if (auto frame = check_units(plan, found)) {
      std::vector<std::vector<Piece>> pieces, weight_pieces;
      pieces.reserve(plan.samples.size());
      weight_pieces.reserve(plan.samples.size());
      for (std::size_t i = 0; i < plan.samples.size(); ++i) {
        pieces.push_back(pieces_of(forward[i], backward[i]));
        weight_pieces.push_back(pieces_of(backward[i], weight[i]));
      }
      check_orders(plan, *frame, forward, backward, pieces, weight_pieces, found);
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

}  // namespace slimpack
