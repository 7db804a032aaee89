// SPDX-License-Identifier: Apache-2.0
// --profile on GPUs: what cost coefficients are fitted to (docs/costs.md), by the devices' timers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "cuda_ranks.hpp"
#include "options.hpp"
#include "slimpack/cost/profile.hpp"
#include "slimpack/plan/model.hpp"

namespace slimpack::trainer {

/// Rows of all ranks loaded at the same time, and how much longer they take for it.
struct CudaProfile {
  std::vector<ProfileRow> rows;
  double loaded_over_alone = 1;  ///< sum of units' times with all ranks over those of one alone
};

/// Measures layers, embedding, head and optimizer of a model of this shape as units of small plans
/// that go through the executor, and messages, sums and exchanges between ranks. First the first
/// rank runs alone, then all do; each row holds the mean over rounds and ranks with all loaded.
/// Where `tensor_parallel` devices, a divisor of the ranks, split layers, their collectives are
/// measured in units of them.
/// `before_each` is told the round and the plan that run next, both from 0; the first round counts
/// for nothing. Throws InvalidInput where the model cannot be executed, CudaError where a device
/// fails.
[[nodiscard]] CudaProfile measure_cuda_profile(
    const ModelShape& model, Tokens context, CudaThreadRanks& ranks,
    std::size_t tensor_parallel = 1,
    std::function<void(std::int64_t, std::size_t)> before_each = [](std::int64_t, std::size_t) {});

/// The exit status.
[[nodiscard]] int profile_on_cuda(const Options& options, CudaThreadRanks& ranks);

}  // namespace slimpack::trainer
