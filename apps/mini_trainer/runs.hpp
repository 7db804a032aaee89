// SPDX-License-Identifier: Apache-2.0
// What `mini_trainer` does with checked options, by backend: each gives the exit status.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "options.hpp"
#include "slimpack/core/error.hpp"
#include "slimpack/plan/plan.hpp"

namespace slimpack::trainer {

/// The same program on the cores of CPUs, or on GPUs. `argc` and `argv` are main's. Throw what
/// goes wrong.
[[nodiscard]] int run_on_cpu(const Options& options, int argc, char** argv);
[[nodiscard]] int run_on_cuda(const Options& options, int argc, char** argv);

/// The same program on GPUs with a process each, which a launcher has started.
[[nodiscard]] int train_with_nccl(const Options& options);

/// The plan of --plan, if there is one. Throws InvalidInput where it cannot be executed.
[[nodiscard]] std::optional<Plan> plan_of(const Options& options);

/// Ranks that are threads: those of the plan or of the degrees, else `most`.
[[nodiscard]] std::size_t rank_count(const Options& options, const std::optional<Plan>& plan,
                                     std::size_t most);

}  // namespace slimpack::trainer
