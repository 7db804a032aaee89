// SPDX-License-Identifier: Apache-2.0
// What is measured: one operation on one shape by one path, as data that other programs can read,
// and how it is started on a device.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "slimpack_cuda/device.hpp"
#include "slimpack_cuda/gemm.hpp"

namespace slimpack::bench {

/// What cases are started with.
struct Machine {
  cuda::DeviceProperties properties;
  std::int64_t cache_bytes = 0;  ///< of the level-2 cache
  cuda::StreamView stream;
  cuda::Gemm* gemm = nullptr;
};

/// `count` documents of `rows` new tokens, each after `prefix` tokens that it also sees.
struct Documents {
  std::int64_t prefix = 0, rows = 0, count = 1;
};

/// Queues one run on input set number `set`.
using Launch = std::function<void(std::int64_t set)>;

struct Case {
  std::string operation;  ///< such as "attention.forward"; other programs find their own by it
  std::string name;       ///< of the shape, unique within the operation
  std::string path;       ///< what computes it; a case may come once by each path
  std::vector<std::pair<std::string, std::int64_t>> shape;
  std::vector<Documents> documents;    ///< of attention
  double flop = 0;                     ///< that the mathematics needs, 0 where bytes count
  double bytes = 0;                    ///< that have to be read and written at least
  double set_bytes = 0;                ///< in memory for one input set
  std::optional<std::string> why_not;  ///< it cannot run on this device
  /// Allocates and fills `sets` input sets, random numbers and never zeros. What it returns owns
  /// them.
  std::function<Launch(const Machine& machine, std::int64_t sets)> prepare;
};

/// The rates that all others are compared with: a copy within the device, and 8192^3.
inline constexpr const char* kCopyOperation = "copy";
inline constexpr const char* kPeakOperation = "gemm.forward";
inline constexpr const char* kPeakName = "8192^3";

[[nodiscard]] std::vector<Case> gemm_cases();
/// For a device of this compute capability.
[[nodiscard]] std::vector<Case> attention_cases(int major, int minor);
[[nodiscard]] std::vector<Case> row_cases();

/// A case that is bound by memory: `make` gives the launch of one set, numbered by its argument.
template <class Make>
[[nodiscard]] Case row_case(std::string operation, std::int64_t rows, std::int64_t columns,
                            double bytes, Make make) {
  Case row;
  row.operation = std::move(operation);
  row.name = std::to_string(rows) + " x " + std::to_string(columns);
  row.path = "slimpack";
  row.shape = {{"rows", rows}, {"columns", columns}};
  row.bytes = bytes;
  row.set_bytes = bytes;
  row.prepare = [make](const Machine& machine, std::int64_t sets) -> Launch {
    std::vector<std::function<void()>> launches;
    for (std::int64_t set = 0; set < sets; ++set) launches.push_back(make(machine, set));
    return [launches](std::int64_t set) { launches[static_cast<std::size_t>(set)](); };
  };
  return row;
}

/// std::function copies what it holds: buffers are shared.
template <class Element>
[[nodiscard]] std::shared_ptr<cuda::DeviceBuffer<Element>> shared(
    cuda::DeviceBuffer<Element> buffer) {
  return std::make_shared<cuda::DeviceBuffer<Element>>(std::move(buffer));
}

}  // namespace slimpack::bench
