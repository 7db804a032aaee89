// SPDX-License-Identifier: Apache-2.0
// Sums and maxima over the members of a process group.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/launch.hpp"
#include "kernels/vectors.cuh"
#include "simt/simt.hpp"
#include "slimpack_cuda/members.hpp"

namespace slimpack::cuda::kernels {

template <class Number>
struct Members {
  std::array<Number*, kMostMembers> values{};
  unsigned count = 0;
  unsigned first_taker = 0, end_taker = 0;  ///< those that get the result
  std::int64_t size = 0;
};

inline constexpr unsigned kMemberThreads = 256, kMemberNumbers = 4;

[[nodiscard]] inline Launch members_launch(std::int64_t size) {
  constexpr std::int64_t kBlock = std::int64_t{kMemberThreads} * kMemberNumbers;
  return {checked_blocks(divide_up(size, kBlock)), kMemberThreads, 0};
}

/// What numbers of a type are combined in, and how they are read and written.
template <class Number>
struct MemberNumber {
  using Sum = Number;
  SLIMPACK_DEVICE static Sum read(const Number* from) { return *from; }
  SLIMPACK_DEVICE static void write(Number* to, Sum value) { *to = value; }
};
template <>
struct MemberNumber<Bf16> {
  using Sum = float;
  SLIMPACK_DEVICE static Sum read(const Bf16* from) { return load_one(from); }
  SLIMPACK_DEVICE static void write(Bf16* to, Sum value) { store_one(to, value); }
};

/// Members need not be aligned alike: neighbouring threads move neighbouring numbers, one by one.
template <bool kLargest, class Number>
SLIMPACK_DEVICE void combine_members(const Members<Number>& work) {
  const std::int64_t first =
      static_cast<std::int64_t>(simt::block_index()) * kMemberThreads * kMemberNumbers +
      simt::thread_index();
  using Of = MemberNumber<Number>;
  std::array<typename Of::Sum, kMemberNumbers> results{};
  for (unsigned member = 0; member < work.count; ++member) {
    const Number* const values = work.values[member];
    SLIMPACK_UNROLL
    for (unsigned i = 0; i < kMemberNumbers; ++i) {
      const std::int64_t k = first + i * kMemberThreads;
      if (k >= work.size) continue;
      const typename Of::Sum value = Of::read(values + k);
      if (member == 0) {
        results[i] = value;
      } else if constexpr (kLargest) {
        results[i] = results[i] < value ? value : results[i];
      } else {
        results[i] += value;
      }
    }
  }
  for (unsigned member = work.first_taker; member < work.end_taker; ++member) {
    Number* const values = work.values[member];
    SLIMPACK_UNROLL
    for (unsigned i = 0; i < kMemberNumbers; ++i) {
      const std::int64_t k = first + i * kMemberThreads;
      if (k < work.size) Of::write(values + k, results[i]);
    }
  }
}

}  // namespace slimpack::cuda::kernels
