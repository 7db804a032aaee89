// SPDX-License-Identifier: Apache-2.0
// How large the parts are that a device is split into.
#pragma once

#include <algorithm>

#include "slimpack/core/error.hpp"

namespace slimpack::cuda::detail {

/// Multiprocessors of each of `count` partitions of a device of `all`: at least `asked` and
/// `least`, in multiples of `granularity`; for `asked` = 0 as many as there are. Throws
/// InvalidInput where the device has too few.
[[nodiscard]] inline int partition_size(int count, int asked, int all, int least, int granularity) {
  require(count >= 1, "split_device: count must be >= 1", count);
  require(asked >= 0, "split_device: multiprocessors must be >= 0", asked);
  const auto multiple = [&](int size) { return size / granularity * granularity; };
  const int each = asked == 0 ? multiple(all / count) : multiple(asked + granularity - 1);
  const int size = std::max(each, multiple(least + granularity - 1));
  require(size <= all / count,
          "split_device: the device has too few multiprocessors for so many partitions", all);
  return size;
}

}  // namespace slimpack::cuda::detail
