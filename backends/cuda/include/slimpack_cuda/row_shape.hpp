// SPDX-License-Identifier: Apache-2.0
// The size of a matrix that lies in memory row by row.
#pragma once

#include <cstdint>

namespace slimpack::cuda {

struct RowShape {
  std::int64_t rows = 0, cols = 0;
};

}  // namespace slimpack::cuda
