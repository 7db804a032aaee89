// SPDX-License-Identifier: Apache-2.0
// What the program says on standard error about its input, so that a mistake shows before a plan.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "slimpack/core/units.hpp"
#include "slimpack/data/lengths.hpp"
#include "slimpack/plan/cluster.hpp"
#include "slimpack/plan/model.hpp"
#include "slimpack/planners/planner.hpp"

namespace slimpack::app {

/// Takes one line for the user, without its end.
using Tell = std::function<void(const std::string& line)>;
/// Writes the line on standard error.
void tell_on_standard_error(const std::string& line);

/// The lengths in a file. Of JSON lines it is told which key they are from, and that the UTF-8
/// bytes of `text` are counted as tokens, unless `tell` is empty. Throws InvalidInput.
[[nodiscard]] LengthSet load_lengths(const std::string& path,
                                     const Tell& tell = tell_on_standard_error);

/// "llama3-8b: 32 layers, 32/8 heads, 8.03 B parameters; 32 devices on 4 nodes of h100".
[[nodiscard]] std::string shape_text(const ModelShape& model, const Cluster& cluster,
                                     std::int64_t devices);

/// Says `shape_text` of a request that is planned on `devices` devices.
void tell_shape(const planners::PlanRequest& request, std::int64_t devices);

/// The memory of a device, and what of it is not for a plan.
struct MemoryLimit {
  Bytes capacity, reserved;
};
/// The limit of a request: its own figures, else those of its cluster.
[[nodiscard]] MemoryLimit memory_limit(const planners::PlanRequest& request);

/// "79.46 of 79.50 GB; give --memory 76G to plan with headroom" where `peak` is within 1 % of the
/// limit, else empty. The capacity that it names is a tenth less, in whole GB from 10 GB on.
[[nodiscard]] std::string headroom_hint(Bytes peak, const MemoryLimit& limit);

}  // namespace slimpack::app
