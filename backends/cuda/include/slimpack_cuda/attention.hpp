// SPDX-License-Identifier: Apache-2.0
// Causal attention of slices to the stored keys of their samples: forward, backward, and partial
// results over some of the keys.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "slimpack_cuda/attention_tables.hpp"
#include "slimpack_cuda/bf16.hpp"
#include "slimpack_cuda/device.hpp"

/// Matrices are row by row: queries, outputs and their gradients heads * head_dim wide, keys,
/// values and their gradients kv_heads * head_dim, log-sum-exp and delta heads. Consecutive query
/// heads share a key head. Scores are scaled by 1 / sqrt(head_dim). Which rows belong together is
/// in the tables. Launchers check shapes and sizes (InvalidInput), return on empty work, launch and
/// check the launch (CudaError); they neither allocate nor synchronize.
namespace slimpack::cuda {

struct AttentionShape {
  std::int32_t heads = 0, kv_heads = 0, head_dim = 0;
  std::int32_t page_tokens = 128;
};

/// One way of computing it.
enum class AttentionPath : std::uint8_t {
  plain,  ///< one thread a row and head, fp32: any shape, the oracle of the others
  mma,    ///< mma.sync and cp.async, sm_80 and newer
  wgmma,  ///< wgmma, TMA and specialised warps, sm_90a
};

/// How a path cuts the work, for attention_tables.
struct AttentionTiles {
  std::int32_t query = 128, key = 128;
};
[[nodiscard]] AttentionTiles attention_tiles(const AttentionShape& shape, AttentionPath path);

/// Why a path cannot compute this shape on a device of this compute capability, one sentence;
/// nothing where it can.
[[nodiscard]] std::optional<std::string> why_not(const AttentionShape& shape, AttentionPath path,
                                                 int major, int minor);
[[nodiscard]] inline bool supports(const AttentionShape& shape, AttentionPath path, int major,
                                   int minor) {
  return !why_not(shape, path, major, minor);
}
/// The fastest path that can.
[[nodiscard]] AttentionPath best_path(const AttentionShape& shape, int major, int minor);

/// attention_tables in device memory, made with the attention_tiles of the path that they are
/// given to and with the shape's page_tokens.
struct AttentionWork {
  DeviceSpan<const AttentionSegment> segments;
  DeviceSpan<const KeyPage> pages;
  DeviceSpan<const QueryTile> query_tiles;
  DeviceSpan<const KeyTile> key_tiles;
};

/// Outputs and log-sum-exps of all queries of `work` over the keys that they list. A row that sees
/// no key gets output zero and log-sum-exp minus infinity. A row's bits depend on nothing but its
/// own query and the keys it lists: not on the other rows of the launch.
void attention_forward(DeviceSpan<Bf16> output, DeviceSpan<float> log_sum,
                       DeviceSpan<const Bf16> query, DeviceSpan<const Bf16> key,
                       DeviceSpan<const Bf16> value, const AttentionWork& work,
                       const AttentionShape& shape, AttentionPath path, StreamView stream);

/// delta = per row and head the sum of output * doutput, what the backward pass needs of outputs.
/// `delta` and `doutput` by gradient_row, `output` by output_row.
void attention_delta(DeviceSpan<float> delta, DeviceSpan<const Bf16> output,
                     DeviceSpan<const Bf16> doutput, const AttentionWork& work,
                     const AttentionShape& shape, AttentionPath path, StreamView stream);

/// Gradients through the listed keys, given the log-sum-exp over all keys of each row: `dquery` is
/// overwritten; to `dkey` and `dvalue`, fp32 and one row a key of the sample (key_gradient_row,
/// value_gradient_row), it
/// adds, in a fixed order and without atomics: two runs give the same bits.
void attention_backward(DeviceSpan<Bf16> dquery, DeviceSpan<float> dkey, DeviceSpan<float> dvalue,
                        DeviceSpan<const Bf16> query, DeviceSpan<const Bf16> key,
                        DeviceSpan<const Bf16> value, DeviceSpan<const float> log_sum,
                        DeviceSpan<const float> delta, DeviceSpan<const Bf16> doutput,
                        const AttentionWork& work, const AttentionShape& shape, AttentionPath path,
                        StreamView stream);

/// The same with queries that travel round a context-parallel group: adds to `dquery` in fp32.
void attention_backward_partial(DeviceSpan<float> dquery, DeviceSpan<float> dkey,
                                DeviceSpan<float> dvalue, DeviceSpan<const Bf16> query,
                                DeviceSpan<const Bf16> key, DeviceSpan<const Bf16> value,
                                DeviceSpan<const float> log_sum, DeviceSpan<const float> delta,
                                DeviceSpan<const Bf16> doutput, const AttentionWork& work,
                                const AttentionShape& shape, AttentionPath path, StreamView stream);

/// Takes into (output, log_sum) over some keys the result (more, more_log_sum) over others. All
/// have `rows` rows; `log_sum` and `more_log_sum` of minus infinity stand for no keys.
void attention_merge(DeviceSpan<Bf16> output, DeviceSpan<float> log_sum,
                     DeviceSpan<const Bf16> more, DeviceSpan<const float> more_log_sum,
                     std::int64_t rows, const AttentionShape& shape, StreamView stream);

}  // namespace slimpack::cuda
