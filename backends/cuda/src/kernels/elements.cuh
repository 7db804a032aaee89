// SPDX-License-Identifier: Apache-2.0
// Sums, conversions and copies element by element.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/launch.hpp"
#include "kernels/vectors.cuh"
#include "slimpack_cuda/elements.hpp"

namespace slimpack::cuda::kernels {

template <StoredNumber To, StoredNumber From>
struct Elements {
  To* to;
  const To* addend;  ///< may be `to`; of bf16 sums alone, all others add to what is at `to`
  const From* from;
  std::int64_t size;
};

inline constexpr unsigned kElementThreads = 256, kElementGroups = 4;

/// Elements that a thread moves at a time: 16 bytes of the wider type.
template <StoredNumber To, StoredNumber From>
inline constexpr std::size_t kElementGroup =
    std::is_same_v<To, Bf16> && std::is_same_v<From, Bf16> ? 8 : 4;

template <StoredNumber To, StoredNumber From>
[[nodiscard]] Launch elements_launch(std::int64_t size) {
  constexpr auto kBlock =
      static_cast<std::int64_t>(kElementThreads * kElementGroups * kElementGroup<To, From>);
  return {checked_blocks(divide_up(size, kBlock)), kElementThreads, 0};
}

/// to = from, or the sum of the addend and `from` if `kAdd`.
template <bool kAdd, StoredNumber To, StoredNumber From>
SLIMPACK_DEVICE void write_elements(const Elements<To, From>& work) {
  constexpr std::size_t kGroup = kElementGroup<To, From>;
  const std::int64_t groups = work.size / static_cast<std::int64_t>(kGroup);
  const std::int64_t first =
      static_cast<std::int64_t>(simt::block_index()) * kElementThreads * kElementGroups +
      simt::thread_index();
  const To* addend = work.to;  // an address less, and more threads have the registers they need
  if constexpr (std::is_same_v<To, Bf16>) addend = work.addend;
  std::array<Floats<kGroup>, kElementGroups> values{}, sums{};
  SLIMPACK_UNROLL
  for (unsigned i = 0; i < kElementGroups; ++i) {
    const std::int64_t group = first + i * kElementThreads;
    if (group >= groups) continue;
    const std::int64_t k = group * static_cast<std::int64_t>(kGroup);
    values[i] = load<kGroup>(work.from + k);
    if constexpr (kAdd) sums[i] = load<kGroup>(addend + k);
  }
  SLIMPACK_UNROLL
  for (unsigned i = 0; i < kElementGroups; ++i) {
    const std::int64_t group = first + i * kElementThreads;
    if (group >= groups) continue;
    if constexpr (kAdd) {
      SLIMPACK_UNROLL
      for (std::size_t n = 0; n < kGroup; ++n) values[i][n] += sums[i][n];
    }
    store<kGroup>(work.to + group * static_cast<std::int64_t>(kGroup), values[i]);
  }
  // The last elements are no whole group.
  const std::int64_t rest = groups * static_cast<std::int64_t>(kGroup) + simt::thread_index();
  if (simt::block_index() + 1 == simt::grid_blocks() && rest < work.size) {
    const float value = load_one(work.from + rest);
    store_one(work.to + rest, kAdd ? load_one(addend + rest) + value : value);
  }
}

/// Copies of one launch, each of a multiple of 16 bytes: as many as parameters of a kernel have
/// room for.
struct CopyList {
  static constexpr unsigned kMost = 128;
  std::array<MemoryCopy, kMost> copies{};
  /// Blocks before each copy's own; behind the last copy the number of all.
  std::array<std::uint32_t, kMost> begin{};
};
inline constexpr unsigned kCopyGroups = 8;  ///< of 16 bytes, a thread
inline constexpr std::int64_t kCopyBytes = std::int64_t{kElementThreads} * kCopyGroups * 16;

/// kElementThreads threads; a block copies kCopyBytes, or what is left of a copy.
SLIMPACK_DEVICE void copy_listed(const CopyList& list) {
  const unsigned block = simt::block_index();
  unsigned which = 0;  // the last copy that begins at this block or before it
  SLIMPACK_UNROLL
  for (unsigned step = CopyList::kMost / 2; step > 0; step /= 2) {
    if (list.begin[which + step] <= block) which += step;
  }
  const MemoryCopy& copy = list.copies[which];
  const auto* const from = static_cast<const std::byte*>(copy.from);
  auto* const to = static_cast<std::byte*>(copy.to);
  const std::int64_t first = (block - list.begin[which]) * kCopyBytes + simt::thread_index() * 16;
  std::array<std::array<std::uint32_t, 4>, kCopyGroups> words{};
  SLIMPACK_UNROLL
  for (unsigned i = 0; i < kCopyGroups; ++i) {
    const std::int64_t at = first + i * kElementThreads * 16;
    if (at < copy.bytes) words[i] = simt::load_16(from + at);
  }
  SLIMPACK_UNROLL
  for (unsigned i = 0; i < kCopyGroups; ++i) {
    const std::int64_t at = first + i * kElementThreads * 16;
    if (at < copy.bytes) simt::store_16(to + at, words[i]);
  }
}

}  // namespace slimpack::cuda::kernels
