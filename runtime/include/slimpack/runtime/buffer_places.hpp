// SPDX-License-Identifier: Apache-2.0
// Where buffers lie in a block of memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/runtime/transport.hpp"

namespace slimpack::runtime {

/// Places in a block of memory that buffers are cut from: each at a multiple of the alignment, in
/// the smallest gap that holds it, ties go to the lowest place; gaps that come to touch become one.
/// Equal calls give equal places. O(gaps) a call.
class BufferPlaces {
 public:
  /// Throws InvalidInput unless capacity >= 0 and alignment > 0.
  BufferPlaces(Bytes capacity, std::size_t alignment) : alignment_(alignment) {
    require(alignment > 0, "BufferPlaces: alignment must be > 0");
    require(capacity >= Bytes{}, "BufferPlaces: capacity must be >= 0", capacity.value);
    capacity_ = rounded(static_cast<std::size_t>(capacity.value));
    gaps_.reserve(256);
    if (capacity_ > 0) gaps_.push_back({0, capacity_});
  }

  /// Throws ExecutionError naming what is needed and what there is if no gap is large enough.
  [[nodiscard]] std::size_t take(std::size_t bytes) {
    const std::size_t size = rounded(bytes);
    if (size == 0) return 0;
    auto best = gaps_.end();
    for (auto gap = gaps_.begin(); gap != gaps_.end(); ++gap) {
      if (gap->size >= size && (best == gaps_.end() || gap->size < best->size)) best = gap;
    }
    if (best == gaps_.end()) throw ExecutionError(no_room(bytes));
    const std::size_t i = best->begin;
    best->begin += size;
    best->size -= size;
    if (best->size == 0) gaps_.erase(best);
    held_ += size;
    reached_ = std::max(reached_, i + size);
    return i;
  }

  /// Gives back a place that `take` gave for as many bytes.
  void give_back(std::size_t i, std::size_t bytes) noexcept {
    const std::size_t size = rounded(bytes);
    if (size == 0) return;
    const auto next =
        std::lower_bound(gaps_.begin(), gaps_.end(), i,
                         [](const Gap& gap, std::size_t begin) { return gap.begin < begin; });
    held_ -= size;
    const bool joins_next = next != gaps_.end() && i + size == next->begin;
    const auto last = next == gaps_.begin() ? gaps_.end() : next - 1;
    if (last != gaps_.end() && last->begin + last->size == i) {
      last->size += size;
      if (joins_next) {
        last->size += next->size;
        gaps_.erase(next);
      }
    } else if (joins_next) {
      next->begin = i;
      next->size += size;
    } else {
      gaps_.insert(next, {i, size});
    }
  }

  /// Size of the block, rounded up to the alignment.
  [[nodiscard]] Bytes capacity() const noexcept { return bytes_of(capacity_); }
  /// Bytes that are taken now.
  [[nodiscard]] Bytes held() const noexcept { return bytes_of(held_); }
  /// The end of the highest buffer that there ever was: a capacity with which all of them fit.
  [[nodiscard]] Bytes reached() const noexcept { return bytes_of(reached_); }

 private:
  struct Gap {
    std::size_t begin = 0, size = 0;
  };

  [[nodiscard]] std::size_t rounded(std::size_t bytes) const noexcept {
    return (bytes + alignment_ - 1) / alignment_ * alignment_;
  }
  static Bytes bytes_of(std::size_t size) noexcept {
    return Bytes{static_cast<std::int64_t>(size)};
  }

  [[nodiscard]] std::string no_room(std::size_t bytes) const {
    std::size_t largest = 0;
    for (const Gap& gap : gaps_) largest = std::max(largest, gap.size);
    return "the arena of " + std::to_string(capacity_) + " bytes has no room for " +
           std::to_string(bytes) + ": available are " + std::to_string(capacity_ - held_) +
           " bytes in " + std::to_string(gaps_.size()) + " gaps, the largest of " +
           std::to_string(largest);
  }

  std::size_t alignment_, capacity_ = 0, held_ = 0, reached_ = 0;
  std::vector<Gap> gaps_;  ///< by place, never touching
};

}  // namespace slimpack::runtime
