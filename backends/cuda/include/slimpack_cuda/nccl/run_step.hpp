// SPDX-License-Identifier: Apache-2.0
// One training step of a plan with a process and a GPU for each device.
#pragma once

#include <cstddef>
#include <cstdint>

#include "slimpack/core/error.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/runtime/executor.hpp"
#include "slimpack/runtime/program.hpp"
#include "slimpack/runtime/run_step.hpp"
#include "slimpack_cuda/nccl/nccl_transport.hpp"
#include "slimpack_processes/session.hpp"
#include "slimpack_processes/together.hpp"

namespace slimpack::cuda::nccl {

/// Runs one step on this rank's device, with all other ranks; device and rank are one number. Every
/// rank gets the same result: losses of all devices are summed on rank 0 in the order of samples
/// and tokens. Throws as runtime::run_step, and Aborted with the first cause if another rank has
/// failed, was killed or stopped. Does not compare plans (processes::check_same_plan).
template <class Device>
  requires runtime::Backend<Device, NcclTransport>
[[nodiscard]] runtime::StepResult run_step(NcclTransport& link, processes::Session& session,
                                           const Plan& plan, const runtime::Program& program,
                                           const runtime::StepData& data, Device& backend,
                                           const runtime::MemoryObserver& observer = {}) {
  runtime::check_data(plan, data);
  require(session.size() == program.device_count(),
          "run_step: ranks must be one a device of the plan",
          static_cast<std::int64_t>(session.size()));
  link.begin_step(plan, program);
  runtime::DeviceRun<Device, NcclTransport> run(plan, program, data, session.rank(), backend, link,
                                                observer);
  const runtime::DeviceResult mine = run.run();
  link.end_step(processes::device_of(plan, session.rank()) + ", between steps");
  return processes::collect(session, plan, mine);
}

}  // namespace slimpack::cuda::nccl
