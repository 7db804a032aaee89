// SPDX-License-Identifier: Apache-2.0
// What a device's run of a step ends with: losses and bytes, or a failure.
#pragma once

#include <stdexcept>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/plan/memory.hpp"
#include "slimpack/runtime/memory.hpp"

namespace slimpack::runtime {

/// A device failed; `what()` names device, unit and cause.
class ExecutionError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Losses of tokens [begin, begin + values.size()) of a sample.
struct TokenLosses {
  SampleId sample{};
  Tokens begin;
  std::vector<double> values;
};

/// What a device brings home.
struct DeviceResult {
  std::vector<TokenLosses> losses;  ///< on devices of the last stage
  StaticBytes held;
  Bytes peak;  ///< the most bytes held at one time, held ones included, in the device's own order
};

}  // namespace slimpack::runtime
