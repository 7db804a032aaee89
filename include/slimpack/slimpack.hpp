// SPDX-License-Identifier: Apache-2.0
// All of slimpack that needs only the standard library; slimpack/io/ and slimpack/cost/fit.hpp are
// included apart.
#pragma once

#include "slimpack/core/error.hpp"
#include "slimpack/core/random.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/cost/cost_model.hpp"
#include "slimpack/cost/memory_model.hpp"
#include "slimpack/cost/unit_times.hpp"
#include "slimpack/plan/batch.hpp"
#include "slimpack/plan/cluster.hpp"
#include "slimpack/plan/cost_spec.hpp"
#include "slimpack/plan/model.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/plan/share.hpp"
