// SPDX-License-Identifier: Apache-2.0
// What the emulated devices are and when their work happens. Only slimpack_cuda_emulated has it.
#pragma once

#include <cstdint>

namespace slimpack::cuda {

/// When the work of a stream runs.
enum class EmulatedTiming : std::uint8_t {
  /// When it is queued; background copies within kernels too.
  at_once,
  /// When the host synchronizes or asks, and then no more of it than has to have run: finds waits
  /// that are missing, and memory that is used again too early. The first question whether a point
  /// has been reached is answered with what was so before it.
  late,
};

/// What the emulated devices are, and when their work runs.
struct Emulation {
  EmulatedTiming timing = EmulatedTiming::at_once;
  int devices = 1;
  int major = 8, minor = 0;  ///< compute capability; 9.0 has the path wgmma of attention
  int multiprocessors = 132;
  std::int64_t memory = std::int64_t{16} << 30U;  ///< of each device, bytes
};

/// The settings of the whole process.
[[nodiscard]] Emulation emulation();
/// Waits until all work has ended, then changes the settings.
void set_emulation(const Emulation& next);

/// Changes it as long as this lives.
class ScopedEmulation {
 public:
  explicit ScopedEmulation(const Emulation& next) : before_(emulation()) { set_emulation(next); }
  ScopedEmulation(const ScopedEmulation&) = delete;
  ScopedEmulation& operator=(const ScopedEmulation&) = delete;
  ~ScopedEmulation() { set_emulation(before_); }

 private:
  Emulation before_;
};

}  // namespace slimpack::cuda
