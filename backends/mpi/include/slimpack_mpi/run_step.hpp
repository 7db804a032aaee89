// SPDX-License-Identifier: Apache-2.0
// One training step of a plan with a process for each device.
#pragma once

#include <cstddef>
#include <cstdint>

#include "slimpack/core/error.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/runtime/executor.hpp"
#include "slimpack/runtime/program.hpp"
#include "slimpack/runtime/run_step.hpp"
#include "slimpack_mpi/mpi_transport.hpp"
#include "slimpack_processes/together.hpp"

namespace slimpack::mpi {

/// As processes::check_same_plan, which all ranks call together.
inline void check_same_plan(MpiTransport& link, const Plan& plan) {
  processes::check_same_plan(link.engine(), plan);
}

/// Runs one step on this rank's backend, with all other ranks; device and rank are one number.
/// Every rank gets the same result, with the bits of runtime::run_step: losses of all devices are
/// summed on rank 0 in the order of samples and tokens. Throws as that one, and Aborted with the
/// first cause if another rank has failed, was killed or stopped. Does not compare plans
/// (`check_same_plan`). The device's calls go `through` what has the transport behind it:
/// runtime::AnyTransport.
template <class Link, class Device>
  requires runtime::Backend<Device, Link>
[[nodiscard]] runtime::StepResult run_step_through(Link& through, MpiTransport& link,
                                                   const Plan& plan,
                                                   const runtime::Program& program,
                                                   const runtime::StepData& data, Device& backend,
                                                   const runtime::MemoryObserver& observer = {}) {
  runtime::check_data(plan, data);
  const std::size_t rank = link.session().rank();
  require(link.session().size() == program.device_count(),
          "run_step: ranks must be one a device of the plan",
          static_cast<std::int64_t>(link.session().size()));
  link.begin_step(plan.parallel.pp, plan.max_in_flight, plan.parallel.tp);
  runtime::DeviceRun<Device, Link> run(plan, program, data, rank, backend, through, observer);
  const runtime::DeviceResult mine = run.run();
  link.end_step(processes::device_of(plan, rank) + ", between steps");
  return processes::collect(link.engine(), plan, mine);
}

/// The same on the transport itself.
template <class Device>
  requires runtime::Backend<Device, MpiTransport>
[[nodiscard]] runtime::StepResult run_step(MpiTransport& link, const Plan& plan,
                                           const runtime::Program& program,
                                           const runtime::StepData& data, Device& backend,
                                           const runtime::MemoryObserver& observer = {}) {
  return run_step_through(link, link, plan, program, data, backend, observer);
}

}  // namespace slimpack::mpi
