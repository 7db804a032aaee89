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
__global__ void __launch_bounds__(256) store_keys_kernel(MoveKeys<Bf16, Bf16> work) {
  move_keys_of_row<true>(work);
}
__global__ void __launch_bounds__(256) load_gradients_kernel(MoveKeys<Bf16, float> work) {
  move_keys_of_row<false>(work);
}

/// Checks what all launchers of this file want of parts and whole rows; gives a head's columns.
template <class Whole, class Part>
std::int64_t check_columns(DeviceSpan<Whole> whole, DeviceSpan<Part> parts,
                           const ColumnShape& shape) {
  detail::require_shape(shape.rows, shape.cols, "columns: rows and cols must be >= 0");
  require(shape.members >= 1 && shape.heads >= 1 && shape.cols > 0 &&
              shape.cols % (shape.members * shape.heads) == 0,
          "columns: members must divide cols", shape.members);
  require(shape.first >= 0 && shape.count >= 1 && shape.first + shape.count <= shape.heads,
          "columns: heads that move must be among a member's", shape.first);
  require(shape.cols <= std::int64_t{1} << 30U, "columns: cols must be at most 2^30", shape.cols);
  const std::int64_t rows = shape.rows * (shape.cols / shape.members / shape.heads);
  require(shape.count == 1 || shape.head_stride >= rows,
          "columns: the parts of heads must not overlap", shape.head_stride);
  const std::int64_t member = (shape.count - 1) * shape.head_stride + rows;
  require(shape.members == 1 || shape.stride >= rows,
          "columns: the parts of members must not overlap", shape.stride);
  require(whole.size % shape.cols == 0, "columns: whole is not whole rows", whole.size);
  require(shape.rows == 0 || parts.size >= (shape.members - 1) * shape.stride + member,
          "columns: parts is too short for all members", parts.size);
  return shape.cols / shape.members / shape.heads;
}
void check_table(DeviceSpan<const std::int32_t> table, std::int64_t whole_rows, std::int64_t rows) {
  require(table.size == rows || table.size == 0, "columns: the table is not as long as rows",
          table.size);
  require(table.size > 0 || whole_rows >= rows, "columns: whole has too few rows", whole_rows);
}

template <bool kSplit, class Word>
void launch_move(void* to, const void* from, DeviceSpan<const std::int32_t> table,
                 const ColumnShape& shape, std::int64_t in_word, StreamView stream) {
  const std::int64_t member = shape.cols / shape.members / in_word, head = member / shape.heads;
  const std::int64_t moved = shape.members * shape.count * head;
  detail::start(move_kernel<kSplit, Word>, columns_launch(shape.rows, moved), stream,
                {static_cast<Word*>(to), static_cast<const Word*>(from), table.data,
                 shape.cols / in_word, member, head, shape.first * head, shape.count,
                 shape.stride / in_word, shape.head_stride / in_word, moved});
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
  const auto together =
      std::bit_cast<std::uintptr_t>(to.data) | std::bit_cast<std::uintptr_t>(from.data) |
      static_cast<std::uintptr_t>(part * kSize) |
      static_cast<std::uintptr_t>(shape.members == 1 ? 0 : shape.stride * kSize) |
      static_cast<std::uintptr_t>(shape.count == 1 ? 0 : shape.head_stride * kSize);
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
  require(part % 8 == 0 && (shape.members == 1 || shape.stride % 8 == 0) &&
              (shape.count == 1 || shape.head_stride % 8 == 0),
          "add_columns: a head's columns and the strides must be multiples of 8", part);
  detail::require_aligned(whole, "add_columns: whole is not aligned to 16 bytes");
  detail::require_aligned(parts, "add_columns: parts is not aligned to 16 bytes");
  if (shape.rows == 0) return;
  const std::int64_t moved = shape.members * shape.count * part;
  detail::start(add_kernel, add_columns_launch(shape.rows, moved), stream,
                {whole.data, parts.data, shape.cols, part * shape.heads, part, shape.first * part,
                 shape.count, shape.stride, shape.head_stride, moved});
}

namespace {

void check_keys(std::int64_t message, DeviceSpan<const KeyRow> table, const KeyRowShape& shape) {
  detail::require_shape(shape.rows, shape.head_dim, "keys: rows and head_dim must be >= 0");
  require(shape.head_dim > 0 && shape.head_dim % 8 == 0,
          "keys: head_dim must be a positive multiple of 8", shape.head_dim);
  require(shape.first >= 0 && shape.count >= 1 && shape.first + shape.count <= shape.heads,
          "keys: heads that move must be among those of the memory", shape.first);
  require(shape.layer >= 0, "keys: layer must be >= 0", shape.layer);
  const std::int64_t rows = shape.rows * shape.head_dim;
  require(shape.head_stride >= 0 && shape.head_stride % 8 == 0 && shape.value >= 0 &&
              shape.value % 8 == 0,
          "keys: the strides of a message must be multiples of 8", shape.head_stride);
  require(shape.rows == 0 || message >= (shape.count - 1) * shape.head_stride + shape.value + rows,
          "keys: the message is too short for all heads", message);
  detail::require_size(table, shape.rows, "keys: the table is not as long as rows");
}
template <class To, class From>
MoveKeys<To, From> keys_to_move(DeviceSpan<To> to, DeviceSpan<const From> from,
                                DeviceSpan<const KeyRow> table, const KeyRowShape& shape) {
  detail::require_aligned(to, "keys: to is not aligned to 16 bytes");
  detail::require_aligned(from, "keys: from is not aligned to 16 bytes");
  return {to.data,     from.data,   table.data,        shape.head_dim, shape.heads,
          shape.first, shape.count, shape.head_stride, shape.value,    shape.layer};
}

}  // namespace

void store_keys(DeviceSpan<Bf16> memory, DeviceSpan<const Bf16> message,
                DeviceSpan<const KeyRow> table, KeyRowShape shape, StreamView stream) {
  check_keys(message.size, table, shape);
  const auto work = keys_to_move(memory, message, table, shape);
  if (shape.rows == 0) return;
  detail::start(store_keys_kernel, add_columns_launch(shape.rows, 2 * shape.count * shape.head_dim),
                stream, work);
}

void load_key_gradients(DeviceSpan<Bf16> message, DeviceSpan<const float> memory,
                        DeviceSpan<const KeyRow> table, KeyRowShape shape, StreamView stream) {
  check_keys(message.size, table, shape);
  const auto work = keys_to_move(message, memory, table, shape);
  if (shape.rows == 0) return;
  detail::start(load_gradients_kernel,
                add_columns_launch(shape.rows, 2 * shape.count * shape.head_dim), stream, work);
}

}  // namespace slimpack::cuda
