// SPDX-License-Identifier: Apache-2.0
// What a framework needs to plan a step: lengths in, a plan by slimpack's own planner out,
// simulated and validated. Published planners and their registry, JSON and readers of files have
// headers of their own.
#pragma once

#include "slimpack/core/error.hpp"
#include "slimpack/cost/presets.hpp"
#include "slimpack/data/lengths.hpp"
#include "slimpack/data/sample.hpp"
#include "slimpack/data/statistics.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/plan/plan_hash.hpp"
#include "slimpack/planners/planner.hpp"
#include "slimpack/planners/search/bound.hpp"
#include "slimpack/planners/slimpack/slimpack.hpp"
#include "slimpack/sim/simulate_plan.hpp"
#include "slimpack/validate/validate.hpp"
