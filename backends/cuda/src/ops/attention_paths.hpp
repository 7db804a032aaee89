// SPDX-License-Identifier: Apache-2.0
// The one place where a path of attention that is not in attention.cu is joined to it.
#pragma once

#include <optional>
#include <string>

#include "slimpack/core/error.hpp"
#include "slimpack_cuda/attention.hpp"

/// The path wgmma. Parameters are those of the public functions without `path`; shapes and sizes
/// have been checked, and there is work.
namespace slimpack::cuda::detail {

inline std::optional<std::string> why_not_wgmma(const AttentionShape& /*shape*/, int /*major*/,
                                                int /*minor*/) {
  return "attention: the path wgmma is not built in";
}

inline AttentionTiles attention_tiles_wgmma(const AttentionShape& /*shape*/) {
  return {};
}

[[noreturn]] inline void refuse_wgmma() {
  throw InvalidInput("attention: the path wgmma is not built in");
}

inline void attention_forward_wgmma(DeviceSpan<Bf16>, DeviceSpan<float>, DeviceSpan<const Bf16>,
                                    DeviceSpan<const Bf16>, DeviceSpan<const Bf16>,
                                    const AttentionWork&, const AttentionShape&, StreamView) {
  refuse_wgmma();
}
inline void attention_backward_wgmma(DeviceSpan<Bf16>, DeviceSpan<float>, DeviceSpan<float>,
                                     DeviceSpan<const Bf16>, DeviceSpan<const Bf16>,
                                     DeviceSpan<const Bf16>, DeviceSpan<const float>,
                                     DeviceSpan<const float>, DeviceSpan<const Bf16>,
                                     const AttentionWork&, const AttentionShape&, StreamView) {
  refuse_wgmma();
}
inline void attention_backward_partial_wgmma(DeviceSpan<float>, DeviceSpan<float>,
                                             DeviceSpan<float>, DeviceSpan<const Bf16>,
                                             DeviceSpan<const Bf16>, DeviceSpan<const Bf16>,
                                             DeviceSpan<const float>, DeviceSpan<const float>,
                                             DeviceSpan<const Bf16>, const AttentionWork&,
                                             const AttentionShape&, StreamView) {
  refuse_wgmma();
}

}  // namespace slimpack::cuda::detail
