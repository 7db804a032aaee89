// SPDX-License-Identifier: Apache-2.0
// Bytes that a plan keeps on a device, per token and per unit (docs/equations.md, "Memory").
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "slimpack/core/units.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/plan/share.hpp"

namespace slimpack {

/// Bytes per token of one layer. Tensor-parallel devices hold a `tp`-th of each.
struct LayerBytes {
  std::array<std::int64_t, kRecomputeModes> kept{};        ///< without keys and values
  std::array<std::int64_t, kRecomputeModes> recomputed{};  ///< `none`'s bytes less `kept`
  std::int64_t kv = 0;                                     ///< keys and values
  std::int64_t kv_gradient = 0;                            ///< their accumulated gradients
  std::int64_t boundary = 0;  ///< hidden state that passes between stages
};

/// What the backward of one token and layer needs, by recomputation mode. The sets are those of
/// `recompute` in plan.json; `none` keeps layer input, norm output, q, attention output,
/// log-sum-exp, mid residual, second norm output, gate, up, product and both inverse RMS.
[[nodiscard]] constexpr LayerBytes layer_bytes(const ModelShape& model) noexcept {
  const std::int64_t element = model.bytes_per_element;
  const std::int64_t statistic = model.statistic_bytes();
  const std::int64_t hidden = model.hidden * element;
  const std::int64_t query = model.query_width() * element;
  const std::int64_t ffn = model.ffn * element;
  const std::int64_t log_sum = model.heads * statistic;
  LayerBytes bytes;
  bytes.kept = {4 * hidden + 2 * query + log_sum + 3 * ffn + 2 * statistic,
                2 * hidden + 2 * query + log_sum + 2 * ffn,  //
                hidden + query + log_sum,                    //
                hidden};
  for (std::size_t mode = 0; mode < bytes.kept.size(); ++mode) {
    bytes.recomputed[mode] = bytes.kept[0] - bytes.kept[mode];
  }
  bytes.kv = 2 * model.key_width() * element;
  bytes.boundary = hidden;
  return bytes;
}

}  // namespace slimpack
