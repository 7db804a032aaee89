// SPDX-License-Identifier: Apache-2.0
#include "slimpack/report/svg.hpp"

#include <ostream>

#include "picture.hpp"
#include "plan_picture.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/sim/simulate_plan.hpp"

namespace slimpack::report {

using namespace detail;  // NOLINT(google-build-using-namespace): of this library

void write_svg(std::ostream& out, const Plan& plan, const sim::PlanSimulation& simulation) {
  const PlanPicture drawn(plan, simulation);
  const Picture picture = drawn.picture();
  write_picture(out, picture);
}

}  // namespace slimpack::report
