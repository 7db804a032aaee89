// SPDX-License-Identifier: Apache-2.0
// Bytes as numbers, and a unit's workspace handed out from front to back.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>

#include "slimpack/plan/memory.hpp"
#include "slimpack_cpu/mathematics.hpp"

namespace slimpack::cpu {

/// The same bytes as numbers to write. Buffers of the backend are aligned for them.
template <std::floating_point Number = double>
[[nodiscard]] OutOf<Number> numbers(std::span<std::byte> bytes) {
  return {reinterpret_cast<Number*>(bytes.data()), bytes.size() / sizeof(Number)};
}
/// The same bytes as numbers to read.
template <std::floating_point Number = double>
[[nodiscard]] InOf<Number> numbers(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const Number*>(bytes.data()), bytes.size() / sizeof(Number)};
}

/// Sizes of what is stored: everything in numbers of one type.
template <std::floating_point Number>
[[nodiscard]] constexpr ElementBytes element_bytes_of() noexcept {
  constexpr auto kSize = static_cast<std::int64_t>(sizeof(Number));
  return {kSize, kSize, kSize};
}

/// Memory handed out from front to back. Running out means that a unit uses more than
/// docs/equations.md grants it: a fault of this backend.
template <std::floating_point Number>
class Workspace {
 public:
  /// What is handed out.
  using Out = OutOf<Number>;
  /// Hands out `all`.
  explicit Workspace(Out all) : all_(all) {}

  /// A matrix of any content. Throws std::logic_error where too little is left.
  [[nodiscard]] Out take(std::int64_t rows, std::int64_t cols) {
    const auto size = static_cast<std::size_t>(rows * cols);
    if (size > all_.size() - used_) throw std::logic_error("the unit's workspace is too small");
    used_ += size;
    return all_.subspan(used_ - size, size);
  }
  /// A matrix of zeros. Throws as `take`.
  [[nodiscard]] Out take_zeros(std::int64_t rows, std::int64_t cols) {
    const Out taken = take(rows, cols);
    std::ranges::fill(taken, Number{0});
    return taken;
  }
  /// How much is handed out, for `rewind`.
  [[nodiscard]] std::size_t mark() const noexcept { return used_; }
  /// Takes back all that was handed out after a mark.
  void rewind(std::size_t mark) noexcept { used_ = mark; }

 private:
  Out all_;
  std::size_t used_ = 0;
};

}  // namespace slimpack::cpu
