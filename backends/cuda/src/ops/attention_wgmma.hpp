// SPDX-License-Identifier: Apache-2.0
// Launchers of the Hopper path of slimpack_cuda/attention.hpp. Parameters are those of the public
// functions, which have checked shapes and sizes and know that there is work.
#pragma once

#include <optional>
#include <string>

#include "slimpack_cuda/attention.hpp"

namespace slimpack::cuda::detail {

/// Head dimensions 64 and 128, pages of multiples of 64 keys, compute capability 9.0.
[[nodiscard]] std::optional<std::string> why_not_wgmma(const AttentionShape& shape, int major,
                                                       int minor);
[[nodiscard]] AttentionTiles attention_tiles_wgmma(int head_dim);

void attention_forward_wgmma(DeviceSpan<Bf16> output, DeviceSpan<float> log_sum,
                             DeviceSpan<const Bf16> query, DeviceSpan<const Bf16> key,
                             DeviceSpan<const Bf16> value, const AttentionWork& work,
                             const AttentionShape& shape, StreamView stream);

void attention_backward_wgmma(DeviceSpan<Bf16> dquery, DeviceSpan<float> dkey,
                              DeviceSpan<float> dvalue, DeviceSpan<const Bf16> query,
                              DeviceSpan<const Bf16> key, DeviceSpan<const Bf16> value,
                              DeviceSpan<const float> log_sum, DeviceSpan<const float> delta,
                              DeviceSpan<const Bf16> doutput, const AttentionWork& work,
                              const AttentionShape& shape, StreamView stream);

void attention_backward_partial_wgmma(DeviceSpan<float> dquery, DeviceSpan<float> dkey,
                                      DeviceSpan<float> dvalue, DeviceSpan<const Bf16> query,
                                      DeviceSpan<const Bf16> key, DeviceSpan<const Bf16> value,
                                      DeviceSpan<const float> log_sum,
                                      DeviceSpan<const float> delta, DeviceSpan<const Bf16> doutput,
                                      const AttentionWork& work, const AttentionShape& shape,
                                      StreamView stream);

}  // namespace slimpack::cuda::detail
