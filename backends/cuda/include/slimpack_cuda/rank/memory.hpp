// SPDX-License-Identifier: Apache-2.0
// The arena that a rank's buffers are cut from on its device, and matrices cut from a buffer.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/plan/memory.hpp"
#include "slimpack/plan/model.hpp"
#include "slimpack/runtime/memory_events.hpp"
#include "slimpack_cuda/bf16.hpp"
#include "slimpack_cuda/device.hpp"

namespace slimpack::cuda {

/// What a rank stores: bf16, statistics and accumulated gradients in fp32.
inline constexpr ElementBytes kRankElements{2, 4, 4};

/// Bytes that a matrix begins at a multiple of.
inline constexpr std::size_t kMatrixAlignment = 16;

/// Of the buffers of a rank that has `part` of a model (`runtime::part_of`): rows of queries, of
/// keys and of keys' fp32 gradients begin at multiples of their size from the arena's base on, so
/// that attention's tables can number them.
[[nodiscard]] constexpr std::size_t rank_alignment(const ModelShape& part) noexcept {
  const std::int64_t rows = std::lcm(2 * part.query_width(), 4 * part.key_width());
  return static_cast<std::size_t>(std::lcm(rows, std::int64_t{256}));
}

/// Bytes that a unit may use behind each of its buffers: log-sum-exps of a row are no multiple of
/// kMatrixAlignment with every number of heads, and what comes behind them begins at one.
[[nodiscard]] constexpr std::size_t bytes_behind(const ModelShape& part) noexcept {
  return part.heads % 4 == 0 ? 0 : 4 * kMatrixAlignment;
}

/// Throws std::logic_error unless the value fits the tables.
[[nodiscard]] inline std::int32_t to_table(std::int64_t value) {
  if (value < 0 || value > std::numeric_limits<std::int32_t>::max()) {
    throw std::logic_error("a row's number does not fit the tables: " + std::to_string(value));
  }
  return static_cast<std::int32_t>(value);
}

/// The same memory as elements. Buffers are aligned for them.
template <class Element>
[[nodiscard]] DeviceSpan<Element> elements(std::span<std::byte> bytes) noexcept {
  return {reinterpret_cast<Element*>(bytes.data()),
          static_cast<std::int64_t>(bytes.size() / sizeof(Element))};
}
template <class Element>
[[nodiscard]] DeviceSpan<const Element> elements(std::span<const std::byte> bytes) noexcept {
  return {reinterpret_cast<const Element*>(bytes.data()),
          static_cast<std::int64_t>(bytes.size() / sizeof(Element))};
}
/// Device memory as transports take it.
template <class Element>
[[nodiscard]] std::span<Element> host_span(DeviceSpan<Element> span) noexcept {
  return {span.data, static_cast<std::size_t>(span.size)};
}

/// One block of device memory. Buffers that are given back may be in use by work that is queued:
/// whoever gets the place next uses it on the same stream, hence later.
class DeviceArena {
 public:
  /// Throws CudaError where the device has too little memory, InvalidInput where rows of
  /// `smallest_row` bytes could not be numbered.
  DeviceArena(Bytes capacity, std::int64_t smallest_row) {
    const std::int64_t size = capacity.value;
    require(size / smallest_row <= std::numeric_limits<std::int32_t>::max(),
            "the arena must not have more rows than tables can number", size);
    if (const std::int64_t there = free_memory(); there < size) {
      throw CudaError("the arena needs " + std::to_string(size) + " bytes, the device has " +
                      std::to_string(there) + " left");
    }
    memory_ = DeviceBuffer<std::byte>(size);
  }

  [[nodiscard]] Bytes capacity() const noexcept { return Bytes{memory_.size()}; }
  /// What begins at a place of runtime::buffer_layout.
  [[nodiscard]] std::span<std::byte> bytes(std::size_t place, Bytes size) const noexcept {
    return {base() + place, static_cast<std::size_t>(size.value)};
  }

  /// The whole arena as rows of `width` elements, counted from its base.
  template <class Element>
  [[nodiscard]] DeviceSpan<Element> rows(std::int64_t width) const noexcept {
    const std::int64_t row = width * static_cast<std::int64_t>(sizeof(Element));
    return {reinterpret_cast<Element*>(base()), memory_.size() / row * width};
  }
  /// Bytes of the arena from the first row of so many bytes on that begins among them.
  [[nodiscard]] std::span<std::byte> from_row(std::span<std::byte> bytes, std::int64_t row) const {
    const std::int64_t over = (bytes.data() - base()) % row;
    const auto skipped = static_cast<std::size_t>(over == 0 ? 0 : row - over);
    return bytes.subspan(std::min(skipped, bytes.size()));
  }
  /// Elements from the arena's base to `data`.
  template <class Element>
  [[nodiscard]] std::int64_t offset_of(const Element* data) const {
    return row_of(data, 1);
  }
  /// The number of the row that begins at `data`.
  template <class Element>
  [[nodiscard]] std::int64_t row_of(const Element* data, std::int64_t width) const {
    const std::int64_t bytes = reinterpret_cast<const std::byte*>(data) - base();
    const std::int64_t row = width * static_cast<std::int64_t>(sizeof(Element));
    if (bytes % row != 0) throw std::logic_error("a matrix must begin at one of its rows");
    return bytes / row;
  }

 private:
  [[nodiscard]] std::byte* base() const noexcept { return memory_.span().data; }

  DeviceBuffer<std::byte> memory_;
};

/// Memory of one use: a place of the arena.
struct ArenaBuffer {
  std::span<std::byte> bytes;
};

/// Matrices from front to back of a buffer. Running out means that a unit uses more than
/// docs/equations.md grants it: a fault of this backend.
class Carver {
 public:
  /// `behind` bytes (bytes_behind) may be used past the end.
  explicit Carver(std::span<std::byte> all, std::size_t behind = 0)
      : rest_(all.data(), all.empty() ? 0 : all.size() + behind) {}

  /// What is taken next begins at a multiple of kMatrixAlignment.
  void align() {
    const auto over = std::bit_cast<std::uintptr_t>(rest_.data()) % kMatrixAlignment;
    if (over != 0)
      static_cast<void>(take_bytes(static_cast<std::int64_t>(kMatrixAlignment - over)));
  }

  template <class Element>
  [[nodiscard]] DeviceSpan<Element> take(std::int64_t rows, std::int64_t cols) {
    return elements<Element>(take_bytes(rows * cols * static_cast<std::int64_t>(sizeof(Element))));
  }
  [[nodiscard]] std::span<std::byte> take_bytes(std::int64_t bytes) {
    const auto size = static_cast<std::size_t>(bytes);
    if (size > rest_.size()) throw std::logic_error("the unit's workspace is too small");
    const auto taken = rest_.first(size);
    rest_ = rest_.subspan(size);
    return taken;
  }
  [[nodiscard]] std::span<std::byte> rest() const noexcept { return rest_; }

 private:
  std::span<std::byte> rest_;
};

}  // namespace slimpack::cuda
