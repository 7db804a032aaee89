// SPDX-License-Identifier: Apache-2.0
// Operators that memory bounds, in bytes that they have to move.
#include <memory>
#include <vector>

#include "cases.hpp"
#include "fill.hpp"
#include "slimpack_cuda/attention.hpp"

namespace slimpack::bench {
namespace {

using cuda::Bf16;
using cuda::DeviceBuffer;

constexpr cuda::AttentionShape kShape{32, 8, 128, 128};

/// Two partial results of attention become one.
Case merge_case(std::int64_t rows) {
  const std::int64_t columns = std::int64_t{kShape.heads} * kShape.head_dim;
  const auto outputs = static_cast<double>(rows * columns);
  const auto sums = static_cast<double>(rows * kShape.heads);
  return row_case(
      "attention.merge", rows, columns, 3 * 2 * outputs + 3 * 4 * sums,
      [rows, columns](const Machine& machine, std::int64_t set) {
        const auto seed = static_cast<std::uint64_t>(set) * 16;
        const auto output = shared(random_buffer<Bf16>(rows * columns, 1, seed, machine.stream));
        const auto more = shared(random_buffer<Bf16>(rows * columns, 1, seed + 1, machine.stream));
        const auto sum =
            shared(random_buffer<float>(rows * kShape.heads, 1, seed + 2, machine.stream));
        const auto more_sum =
            shared(random_buffer<float>(rows * kShape.heads, 1, seed + 3, machine.stream));
        return [=] {
          cuda::attention_merge(output->span(), sum->span(), more->span(), more_sum->span(), rows,
                                kShape, machine.stream);
        };
      });
}

}  // namespace

std::vector<Case> row_cases() {
  return {merge_case(16384)};
}

}  // namespace slimpack::bench
