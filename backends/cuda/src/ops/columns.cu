// SPDX-License-Identifier: Apache-2.0
#include "slimpack_cuda/columns.hpp"

#include <bit>
#include <cstdint>

#include "kernels/columns.cuh"
#include "ops/checks.hpp"
#include "ops/launch.hpp"

namespace slimpack::cuda {
namespace {

using namespace kernels;

template <bool kSplit, class Word>
__global__ void __launch_bounds__(256) move_kernel(MoveColumns<Word> work) {
  move_columns<kSplit>(work);
}
__global__ void __launch_bounds__(256) add_kernel(AddColumns work) {
  add_columns_of_row(work);
}
__global__ void __launch_bounds__(256) gather_kernel(GatherConverted work) {
  gather_converted_row(work);
}

/// Checks what all launchers of this file want of parts and whole rows; gives a member's columns.
template <class Whole, class Part>
std::int64_t check_columns(DeviceSpan<Whole> whole, DeviceSpan<Part> parts,
                           const ColumnShape& shape) {
  detail::require_shape(shape.rows, shape.cols, "columns: rows and cols must be >= 0");
  require(shape.members >= 1 && shape.cols > 0 && shape.cols % shape.members == 0,
          "columns: members must divide cols", shape.members);
  require(shape.cols <= std::int64_t{1} << 30U, "columns: cols must be at most 2^30", shape.cols);
  const std::int64_t part = shape.cols / shape.members;
  require(shape.members == 1 || shape.stride >= shape.rows * part,
          "columns: the parts of members must not overlap", shape.stride);
  require(whole.size % shape.cols == 0, "columns: whole is not whole rows", whole.size);
  require(shape.rows == 0 || parts.size >= (shape.members - 1) * shape.stride + shape.rows * part,
          "columns: parts is too short for all members", parts.size);
  return part;
}
void check_table(DeviceSpan<const std::int32_t> table, std::int64_t whole_rows, std::int64_t rows) {
  require(table.size == rows || table.size == 0, "columns: the table is not as long as rows",
          table.size);
  require(table.size > 0 || whole_rows >= rows, "columns: whole has too few rows", whole_rows);
}

template <bool kSplit, class Word>
void launch_move(void* to, const void* from, DeviceSpan<const std::int32_t> table,
                 const ColumnShape& shape, std::int64_t in_word, StreamView stream) {
  const std::int64_t words = shape.cols / in_word;
  detail::start(move_kernel<kSplit, Word>, columns_launch(shape.rows, words), stream,
                {static_cast<Word*>(to), static_cast<const Word*>(from), table.data, words,
                 words / shape.members, shape.stride / in_word});
}

template <bool kSplit, class Element>
void move(DeviceSpan<Element> to, DeviceSpan<const Element> from,
          DeviceSpan<const std::int32_t> table, const ColumnShape& shape, StreamView stream) {
  constexpr auto kSize = static_cast<std::int64_t>(sizeof(Element));
  std::int64_t part = 0, whole = 0;
  if constexpr (kSplit) {
    part = check_columns(from, to, shape);
    whole = from.size;
  } else {
    part = check_columns(to, from, shape);
    whole = to.size;
  }
  check_table(table, whole / shape.cols, shape.rows);
  const auto together = std::bit_cast<std::uintptr_t>(to.data) |
                        std::bit_cast<std::uintptr_t>(from.data) |
                        static_cast<std::uintptr_t>(part * kSize) |
                        static_cast<std::uintptr_t>(shape.members == 1 ? 0 : shape.stride * kSize);
  if (shape.rows == 0) return;
  if (together % 16 == 0) {
    launch_move<kSplit, Words>(to.data, from.data, table, shape, 16 / kSize, stream);
  } else {
    launch_move<kSplit, Element>(to.data, from.data, table, shape, 1, stream);
  }
}

}  // namespace

void split_columns(DeviceSpan<Bf16> parts, DeviceSpan<const Bf16> whole,
                   DeviceSpan<const std::int32_t> table, ColumnShape shape, StreamView stream) {
  move<true>(parts, whole, table, shape, stream);
}
void split_columns(DeviceSpan<float> parts, DeviceSpan<const float> whole,
                   DeviceSpan<const std::int32_t> table, ColumnShape shape, StreamView stream) {
  move<true>(parts, whole, table, shape, stream);
}
void join_columns(DeviceSpan<Bf16> whole, DeviceSpan<const Bf16> parts,
                  DeviceSpan<const std::int32_t> table, ColumnShape shape, StreamView stream) {
  move<false>(whole, parts, table, shape, stream);
}
void join_columns(DeviceSpan<float> whole, DeviceSpan<const float> parts,
                  DeviceSpan<const std::int32_t> table, ColumnShape shape, StreamView stream) {
  move<false>(whole, parts, table, shape, stream);
}

void add_columns(DeviceSpan<float> whole, DeviceSpan<const Bf16> parts, ColumnShape shape,
                 StreamView stream) {
  const std::int64_t part = check_columns(whole, parts, shape);
  check_table({}, whole.size / shape.cols, shape.rows);
  require(part % 8 == 0 && (shape.members == 1 || shape.stride % 8 == 0),
          "add_columns: a member's columns and the stride must be multiples of 8", part);
  detail::require_aligned(whole, "add_columns: whole is not aligned to 16 bytes");
  detail::require_aligned(parts, "add_columns: parts is not aligned to 16 bytes");
  if (shape.rows == 0) return;
  detail::start(add_kernel, add_columns_launch(shape.rows, shape.cols), stream,
                {whole.data, parts.data, shape.cols, part, shape.stride});
}

void gather_converted(DeviceSpan<Bf16> to, DeviceSpan<const float> from,
                      DeviceSpan<const std::int32_t> table, RowShape shape, StreamView stream) {
  detail::require_shape(shape.rows, shape.cols, "gather_converted: rows and cols must be >= 0");
  require(shape.cols > 0 && shape.cols % 8 == 0,
          "gather_converted: cols must be a positive multiple of 8", shape.cols);
  detail::require_size(to, shape.rows * shape.cols, "gather_converted: to is not rows * cols");
  require(from.size % shape.cols == 0, "gather_converted: from is not whole rows", from.size);
  detail::require_size(table, shape.rows, "gather_converted: the table is not as long as rows");
  detail::require_aligned(to, "gather_converted: to is not aligned to 16 bytes");
  detail::require_aligned(from, "gather_converted: from is not aligned to 16 bytes");
  if (shape.rows == 0) return;
  detail::start(gather_kernel, add_columns_launch(shape.rows, shape.cols), stream,
                {to.data, from.data, table.data, shape.cols});
}

}  // namespace slimpack::cuda
