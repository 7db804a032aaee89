// SPDX-License-Identifier: Apache-2.0
// A device's buffers, each from the heap or all from one arena of a fixed size.
#pragma once

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <algorithm>
#include <cstddef>
#include <memory>
#include <new>
#include <span>
#include <utility>

#include "slimpack/core/units.hpp"
#include "slimpack/runtime/buffer_places.hpp"

namespace slimpack::cpu {

/// Buffers begin at multiples of this, and take up a multiple of it in an arena.
inline constexpr std::size_t kBufferAlignment = 64;

namespace detail {

template <std::size_t Alignment>
struct ReleaseAligned {
  void operator()(std::byte* data) const noexcept {
    ::operator delete(data, std::align_val_t{Alignment});
  }
};
template <std::size_t Alignment>
using AlignedBytes = std::unique_ptr<std::byte, ReleaseAligned<Alignment>>;

template <std::size_t Alignment = kBufferAlignment>
[[nodiscard]] AlignedBytes<Alignment> aligned_bytes(std::size_t size) {
  return AlignedBytes<Alignment>(
      static_cast<std::byte*>(::operator new(size, std::align_val_t{Alignment})));
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

/// One block of memory with its places. A page that no buffer ever reached is not touched, unless
/// by `touch`.
class BufferArena {
 public:
  /// A block of at least `capacity` bytes, none of them touched.
  explicit BufferArena(Bytes capacity)
      : places_(capacity, kBufferAlignment),
        data_(detail::large_pages(static_cast<std::size_t>(places_.capacity().value))) {}

  /// A place for so many bytes; throws ExecutionError where there is none.
  [[nodiscard]] std::byte* take(std::size_t bytes) { return data_.get() + places_.take(bytes); }
  /// Gives a place back; `bytes` as it was taken for.
  void give_back(const std::byte* from, std::size_t bytes) noexcept {
    places_.give_back(static_cast<std::size_t>(from - data_.get()), bytes);
  }
  /// Makes the system find and clear the pages of the first so many bytes now, which takes a second
  /// a gigabyte in some machines, and not when a buffer first reaches them. No buffer may be held.
  void touch(Bytes bytes) noexcept {
    constexpr std::size_t kPage = 4096;
    const auto end = static_cast<std::size_t>(std::min(bytes, capacity()).value);
    for (; touched_ < end; touched_ += kPage) data_.get()[touched_] = std::byte{0};
  }
  /// Size of the block.
  [[nodiscard]] Bytes capacity() const noexcept { return places_.capacity(); }
  /// Bytes that are taken now.
  [[nodiscard]] Bytes held() const noexcept { return places_.held(); }
  /// The end of the highest buffer that there ever was.
  [[nodiscard]] Bytes reached() const noexcept { return places_.reached(); }

 private:
  runtime::BufferPlaces places_;
  detail::AlignedBytes<detail::kLargePage> data_;
  std::size_t touched_ = 0;
};

/// Memory of one use, given back where it came from. An arena must outlive its buffers.
class Buffer {
 public:
  /// Memory of any content from the heap.
  explicit Buffer(Bytes bytes)
      : size_(static_cast<std::size_t>(bytes.value)),
        own_(detail::aligned_bytes(size_)),
        data_(own_.get()) {}
  /// Memory of any content from an arena. Throws ExecutionError where the arena has no room.
  Buffer(BufferArena& arena, Bytes bytes)
      : size_(static_cast<std::size_t>(bytes.value)), arena_(&arena), data_(arena.take(size_)) {}
  /// Takes over the memory; `other` is left empty.
  Buffer(Buffer&& other) noexcept
      : size_(std::exchange(other.size_, 0)),
        arena_(std::exchange(other.arena_, nullptr)),
        own_(std::move(other.own_)),
        data_(std::exchange(other.data_, nullptr)) {}
  /// Swaps the memory of both.
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

  /// The memory.
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
  /// An arena of its own, as large as the other's, if that has one.
  ArenaOwner(const ArenaOwner& other) {
    if (other.arena_) arena_ = std::make_unique<BufferArena>(other.arena_->capacity());
  }
  /// Replaces the arena by one as large as the other's. No buffer of it may be held.
  ArenaOwner& operator=(const ArenaOwner& other) {
    if (this != &other) *this = ArenaOwner(other);
    return *this;
  }
  /// Takes over the other's arena.
  ArenaOwner(ArenaOwner&&) noexcept = default;
  /// Takes over the other's arena. No buffer of the one before may be held.
  ArenaOwner& operator=(ArenaOwner&&) noexcept = default;
  ~ArenaOwner() = default;

  /// Makes an arena of at least `capacity` bytes, unless there is one. No buffer may be held. An
  /// arena that must grow does so by a half or more: what no buffer reaches costs nothing, while
  /// the pages of a new block are cleared again.
  void reserve(Bytes capacity) {
    if (arena_) {
      const Bytes before = arena_->capacity();
      if (before >= capacity) return;
      capacity = std::max(capacity, Bytes{before.value + before.value / 2});
      arena_.reset();
    }
    arena_ = std::make_unique<BufferArena>(capacity);
  }
  /// The arena, or null.
  [[nodiscard]] BufferArena* get() noexcept { return arena_.get(); }
  /// The arena, or null.
  [[nodiscard]] const BufferArena* get() const noexcept { return arena_.get(); }

 private:
  std::unique_ptr<BufferArena> arena_;
};

}  // namespace slimpack::cpu
