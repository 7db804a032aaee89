// SPDX-License-Identifier: Apache-2.0
// All planners, compiled once: the target slimpack::planners.
#include "slimpack/planners/all_planners.hpp"
#include "slimpack/planners/slimpack/plan_slimpack.hpp"
