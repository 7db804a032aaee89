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

/// One unit on one device, in time from the step's begin on. A reduction may be several of them,
/// one a bucket.
struct TracedUnit {
  std::int32_t dp = 0;                  ///< data-parallel rank of the device
  std::int32_t pp = 0;                  ///< stage of the device
  Unit unit;                            ///< what ran, as in the plan's schedule
  std::optional<std::uint32_t> bucket;  ///< of a reduction, where its buckets are told apart
  std::optional<Tokens> tokens;         ///< of the MicroPack; F, B, H
  bool in_cp_group = false;             ///< the MicroPack's group has several ranks
  Nanos begin;                          ///< since the step's begin
  Nanos end;                            ///< since the step's begin, >= `begin`
  friend bool operator==(const TracedUnit&, const TracedUnit&) = default;
};

/// When all units of one step ran.
struct StepTrace {
  std::string planner;            ///< of the step's plan; empty where a file does not say
  std::int64_t step = 0;          ///< `Plan::step_index`; 0 where a file does not say
  Nanos iteration;                ///< end of the step, no earlier than that of any unit
  std::vector<TracedUnit> units;  ///< in any order
  friend bool operator==(const StepTrace&, const StepTrace&) = default;
};

}  // namespace slimpack
