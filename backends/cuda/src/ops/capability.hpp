// SPDX-License-Identifier: Apache-2.0
// What launchers ask of the current device.
#pragma once

namespace slimpack::cuda::detail {

/// Compute capability.
struct Capability {
  int major = 0, minor = 0;
};
/// The compute capability of the current device; CUDA is asked once for each device. Throws
/// CudaError.
[[nodiscard]] Capability current_capability();

}  // namespace slimpack::cuda::detail
