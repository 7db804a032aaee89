// SPDX-License-Identifier: Apache-2.0
// Plans in words, for titles and tables.
#pragma once

#include <string>

#include "slimpack/plan/plan.hpp"
#include "slimpack/report/detail/text.hpp"

namespace slimpack::report::detail {

/// "dp 4 x pp 8, 2 chunks, head shard".
[[nodiscard]] inline std::string describe_parallel(const Parallel& parallel) {
  std::string text = "dp " + std::to_string(parallel.dp) + " x pp " + std::to_string(parallel.pp);
  if (parallel.tp > 1) text += " x tp " + std::to_string(parallel.tp);
  if (parallel.chunks > 1) text += ", " + std::to_string(parallel.chunks) + " chunks";
  return text + (parallel.head == LmHead::shard ? ", head sharded" : ", head last");
}

/// "llama-7b on h100, dp 4 x pp 8, head last".
[[nodiscard]] inline std::string describe_setting(const Plan& plan) {
  return clipped(one_line(plan.model.name), 40) + " on " +
         clipped(one_line(plan.cluster.name), 40) + ", " + describe_parallel(plan.parallel);
}

}  // namespace slimpack::report::detail
