// SPDX-License-Identifier: Apache-2.0
// Parts of JSON documents that several reports have.
#pragma once

#include <array>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/io/json_writer.hpp"
#include "slimpack/report/compare.hpp"
#include "slimpack/sim/bottlenecks.hpp"

namespace slimpack::report::detail {

void write_lengths(JsonWriter& json, const ComparedTask& task);

void write_steps(JsonWriter& json, const std::vector<ComparedStep>& steps);

void write_task(JsonWriter& json, const Comparison& comparison);

/// From the step on: whether there is a plan or why not, the settings and the figures.
void write_outcome(JsonWriter& json, const ComparedPlan& entry);

void write_results(JsonWriter& json, const Comparison& comparison,
                   const std::vector<PlannerSummary>& summaries);

void write_gaps(JsonWriter& json, const std::array<Nanos, sim::kGapCauses>& gaps);

}  // namespace slimpack::report::detail
