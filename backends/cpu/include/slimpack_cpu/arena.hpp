// SPDX-License-Identifier: Apache-2.0
// A device's buffers, each from the heap or all from one arena of a fixed size.
#pragma once

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/exec/device_result.hpp"

namespace slimpack::cpu {

/// Buffers begin at multiples of this, and take up a multiple of it in an arena.
inline constexpr std::size_t kBufferAlignment = 64;

namespace detail {

template <std::size_t Alignment>
struct ReleaseAligned {
  void operator()(std::byte* data) const noexcept {
    ::operator delete (data, std::align_val_t{Alignment});
  }
};
template <std::size_t Alignment>
using AlignedBytes = std::unique_ptr<std::byte, ReleaseAligned<Alignment>>;

template <std::size_t Alignment = kBufferAlignment>
[[nodiscard]] AlignedBytes<Alignment> aligned_bytes(std::size_t size) {
  return AlignedBytes<Alignment>(
      static_cast<std::byte*>(::operator new (size, std::align_val_t{Alignment})));
}

/// Large pages where the system has them: with small ones a tenth of a step is spent on page faults
/// and look-ups.
inline constexpr std::size_t kLargePage = std::size_t{1} << 21U;
[[nodiscard]] inline AlignedBytes<kLargePage> large_pages(std::size_t size) {
  const std::size_t whole = (size + kLargePage - 1) / kLargePage * kLargePage;
  AlignedBytes<kLargePage> bytes = aligned_bytes<kLargePage>(whole);
#ifdef MADV_HUGEPAGE
  // Only advice: where it is refused the block serves as it is.
  static_cast<void>(::madvise(bytes.get(), whole, MADV_HUGEPAGE));
#endif
  return bytes;
}

}  // namespace detail

/// Places in a block of memory that buffers are cut from: each in the smallest gap that holds it,
/// ties go to the lowest place; gaps that come to touch become one. Equal calls give equal places.
/// O(gaps) a call.
class BufferPlaces {
 public:
  /// Throws InvalidInput unless capacity >= 0.
  explicit BufferPlaces(Bytes capacity) {
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
    if (best == gaps_.end()) throw exec::ExecutionError(no_room(bytes));
    const std::size_t at = best->begin;
    best->begin += size;
    best->size -= size;
    if (best->size == 0) gaps_.erase(best);
    held_ += size;
    reached_ = std::max(reached_, at + size);
    return at;
  }

  /// Of what `take` gave, with as many bytes.
  void give_back(std::size_t at, std::size_t bytes) noexcept {
    const std::size_t size = rounded(bytes);
    if (size == 0) return;
    const auto next =
        std::lower_bound(gaps_.begin(), gaps_.end(), at,
                         [](const Gap& gap, std::size_t begin) { return gap.begin < begin; });
    held_ -= size;
    const bool joins_next = next != gaps_.end() && at + size == next->begin;
    const auto last = next == gaps_.begin() ? gaps_.end() : next - 1;
    if (last != gaps_.end() && last->begin + last->size == at) {
      last->size += size;
      if (joins_next) {
        last->size += next->size;
        gaps_.erase(next);
      }
    } else if (joins_next) {
      next->begin = at;
      next->size += size;
    } else {
      gaps_.insert(next, {at, size});
    }
  }

  [[nodiscard]] Bytes capacity() const noexcept { return bytes_of(capacity_); }
  [[nodiscard]] Bytes held() const noexcept { return bytes_of(held_); }
  /// The end of the highest buffer that there ever was: a capacity with which all of them fit.
  [[nodiscard]] Bytes reached() const noexcept { return bytes_of(reached_); }

 private:
  struct Gap {
    std::size_t begin = 0, size = 0;
  };

  static std::size_t rounded(std::size_t bytes) noexcept {
    return (bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
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

  std::size_t capacity_ = 0, held_ = 0, reached_ = 0;
  std::vector<Gap> gaps_;  ///< by place, never touching
};

/// One block of memory with its places. A page that no buffer ever reached is not touched.
class BufferArena {
 public:
  explicit BufferArena(Bytes capacity)
      : places_(capacity),
        data_(detail::large_pages(static_cast<std::size_t>(places_.capacity().value))) {}

  [[nodiscard]] std::byte* take(std::size_t bytes) { return data_.get() + places_.take(bytes); }
  void give_back(const std::byte* from, std::size_t bytes) noexcept {
    places_.give_back(static_cast<std::size_t>(from - data_.get()), bytes);
  }
  [[nodiscard]] Bytes capacity() const noexcept { return places_.capacity(); }
  [[nodiscard]] Bytes held() const noexcept { return places_.held(); }
  [[nodiscard]] Bytes reached() const noexcept { return places_.reached(); }

 private:
  BufferPlaces places_;
  detail::AlignedBytes<detail::kLargePage> data_;
};

/// Memory of one use, given back where it came from. An arena must outlive its buffers.
class Buffer {
 public:
  /// From the heap.
  explicit Buffer(Bytes bytes)
      : size_(static_cast<std::size_t>(bytes.value)),
        own_(detail::aligned_bytes(size_)),
        data_(own_.get()) {}
  Buffer(BufferArena& arena, Bytes bytes)
      : size_(static_cast<std::size_t>(bytes.value)), arena_(&arena), data_(arena.take(size_)) {}
  Buffer(Buffer&& other) noexcept
      : size_(std::exchange(other.size_, 0)),
        arena_(std::exchange(other.arena_, nullptr)),
        own_(std::move(other.own_)),
        data_(std::exchange(other.data_, nullptr)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(size_, other.size_);
    std::swap(arena_, other.arena_);
    std::swap(own_, other.own_);
    std::swap(data_, other.data_);
    return *this;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() {
    if (arena_ != nullptr) arena_->give_back(data_, size_);
  }

  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return {data_, size_}; }

 private:
  std::size_t size_ = 0;
  BufferArena* arena_ = nullptr;
  detail::AlignedBytes<kBufferAlignment> own_;
  std::byte* data_ = nullptr;
};

/// A device's arena, if it has one. A copy of the device gets one of its own, as large.
class ArenaOwner {
 public:
  ArenaOwner() = default;
  ArenaOwner(const ArenaOwner& other) {
    if (other.arena_) arena_ = std::make_unique<BufferArena>(other.arena_->capacity());
  }
  ArenaOwner& operator=(const ArenaOwner& other) {
    if (this != &other) *this = ArenaOwner(other);
    return *this;
  }
  ArenaOwner(ArenaOwner&&) noexcept = default;
  ArenaOwner& operator=(ArenaOwner&&) noexcept = default;
  ~ArenaOwner() = default;

  void reserve(Bytes capacity) {
    if (arena_ && arena_->capacity() >= capacity) return;
    arena_ = std::make_unique<BufferArena>(capacity);
  }
  [[nodiscard]] BufferArena* get() noexcept { return arena_.get(); }
  [[nodiscard]] const BufferArena* get() const noexcept { return arena_.get(); }

 private:
  std::unique_ptr<BufferArena> arena_;
};

}  // namespace slimpack::cpu
