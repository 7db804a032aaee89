// SPDX-License-Identifier: Apache-2.0
// Cross-entropy of logits that lie in shards of the vocabulary, without a stored softmax.
#pragma once

#include <cstdint>
#include <limits>

#include "slimpack_cuda/bf16.hpp"
#include "slimpack_cuda/device.hpp"

/// Pass 1 makes one LogitSum a row of each shard; combined over all shards they give the losses,
/// and with them pass 2 turns logits into gradients. A shard may be cut further, by rows and by
/// columns. `targets` hold one entry of the whole vocabulary a row, or kNoTarget. Launchers check
/// shapes and sizes (InvalidInput), return on empty work, launch and check the launch (CudaError);
/// they neither allocate nor synchronize. Two runs give the same bits.
namespace slimpack::cuda {

/// A row that does not count in the loss.
inline constexpr std::int32_t kNoTarget = -1;

/// Columns [0, size) of each row are rows [first, first + size) of the vocabulary. Row r begins at
/// r * stride; columns past size are neither used nor written.
struct LogitShape {
  std::int64_t rows = 0;
  std::int64_t first = 0, size = 0;
  std::int64_t stride = 0;  ///< a multiple of 8, >= size
};

/// A summary of the logits of one row: the largest, the sum of exp(logit - maximum), and the
/// target's where it is among them, else zero. The default is the summary of no logits.
struct LogitSum {
  float maximum = -std::numeric_limits<float>::infinity();
  float sum = 0;
  float target = 0;
};

/// Pass 1. `sums` are overwritten; a shard without columns gives the default.
void logit_sums(DeviceSpan<LogitSum> sums, DeviceSpan<const Bf16> logits,
                DeviceSpan<const std::int32_t> targets, LogitShape shape, StreamView stream);

/// Takes `more`, of other columns of the same rows, into `sums`. Ranks that must agree bit by bit
/// combine in the same order.
void merge_logit_sums(DeviceSpan<LogitSum> sums, DeviceSpan<const LogitSum> more,
                      StreamView stream);

/// losses = maximum + log(sum) - target, zero for rows without target.
void cross_entropy_losses(DeviceSpan<float> losses, DeviceSpan<const LogitSum> sums,
                          DeviceSpan<const std::int32_t> targets, StreamView stream);

/// Pass 2, given sums over the whole vocabulary: logits become scale * (softmax - one at the
/// target), zero in rows without target whatever they held.
void logit_gradients(DeviceSpan<Bf16> logits, DeviceSpan<const LogitSum> sums,
                     DeviceSpan<const std::int32_t> targets, LogitShape shape, float scale,
                     StreamView stream);

}  // namespace slimpack::cuda
