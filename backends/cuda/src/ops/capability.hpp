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
/// Multiprocessors that a kernel launched by this thread runs on: those of the current partition,
/// or of the device. Throws CudaError.
[[nodiscard]] int current_multiprocessors();
/// Makes a partition of so many current to this thread, or with 0 the whole device.
void set_partition_size(int multiprocessors);

}  // namespace slimpack::cuda::detail
