// SPDX-License-Identifier: Apache-2.0
// When each unit of a step ran: what a trace says beside its pictures, simulated or measured.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/plan/plan.hpp"

namespace slimpack {

/// One unit on one device, from the step's begin on. A reduction may be several, one a bucket.
struct TracedUnit {
  std::int32_t dp = 0, pp = 0;
  Unit unit;
  std::optional<std::uint32_t> bucket;  ///< of a reduction, where its buckets are told apart
  std::optional<Tokens> tokens;         ///< of the MicroPack; F, B, H
  bool in_cp_group = false;             ///< the MicroPack's group has several ranks
  Nanos begin, end;
  friend bool operator==(const TracedUnit&, const TracedUnit&) = default;
};

/// A step's units in any order. The step ends at `iteration`, no earlier than any unit.
struct StepTrace {
  std::string planner;
  std::int64_t step = 0;
  Nanos iteration;
  std::vector<TracedUnit> units;
  friend bool operator==(const StepTrace&, const StepTrace&) = default;
};

}  // namespace slimpack
