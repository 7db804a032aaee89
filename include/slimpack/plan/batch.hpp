// SPDX-License-Identifier: Apache-2.0
// The samples of one training step, before anything is planned.
#pragma once

#include <cstdint>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/plan/plan.hpp"

namespace slimpack {

/// The samples of one step.
struct Batch {
  std::int64_t step = 0;        ///< number of the step in its run, from 0
  std::vector<Tokens> samples;  ///< lengths, each > 0
  std::vector<Origin> origin;   ///< one a sample: where it comes from
  /// Tokens that have a target: with lengths alone, every token but the last of its document.
  std::int64_t target_tokens = 0;
  friend bool operator==(const Batch&, const Batch&) = default;
};

}  // namespace slimpack
