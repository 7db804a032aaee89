// SPDX-License-Identifier: Apache-2.0
#include "slimpack_cuda/rows.hpp"

#include "kernels/rows.cuh"
#include "ops/checks.hpp"
#include "ops/launch.hpp"
#include "slimpack_cuda/embedding.hpp"

namespace slimpack::cuda {
namespace {

using namespace kernels;

template <RowMove kMove>
__global__ void __launch_bounds__(256) move_kernel(MoveRows work) {
  move_row<kMove>(work);
}
__global__ void __launch_bounds__(256) largest_kernel(LargestByRow work) {
  largest_of_rows(work);
}
__global__ void __launch_bounds__(256) embedding_backward_kernel(EmbeddingBackward work) {
  embedding_backward_tokens(work);
}

template <RowMove kMove, class Element>
void move_rows(DeviceSpan<Element> to, DeviceSpan<const Element> from,
               DeviceSpan<const std::int32_t> table, RowShape shape, StreamView stream) {
  constexpr auto kInWord = static_cast<std::int64_t>(16 / sizeof(Element));
  detail::require_shape(shape.rows, shape.cols, "move_rows: rows and cols must be >= 0");
  require(shape.cols > 0 && shape.cols % kInWord == 0,
          "move_rows: a row must be a positive multiple of 16 bytes", shape.cols);
  const std::int64_t moved = kMove == RowMove::gather ? to.size : from.size;
  const std::int64_t other = kMove == RowMove::gather ? from.size : to.size;
  require(moved == shape.rows * shape.cols, "move_rows: what is moved is not rows * cols", moved);
  require(other % shape.cols == 0, "move_rows: what the table names is not whole rows", other);
  detail::require_size(table, shape.rows, "move_rows: the table is not as long as rows");
  detail::require_aligned(to, "move_rows: to is not aligned to 16 bytes");
  detail::require_aligned(from, "move_rows: from is not aligned to 16 bytes");
  if (shape.rows == 0) return;
  const std::int64_t words = shape.cols / kInWord;
  const Launch launch = move_rows_launch(shape.rows, words);
  detail::start(move_kernel<kMove>, launch, stream, {to.data, from.data, table.data, words});
}

}  // namespace

void gather_rows(DeviceSpan<Bf16> to, DeviceSpan<const Bf16> from,
                 DeviceSpan<const std::int32_t> table, RowShape shape, StreamView stream) {
  move_rows<RowMove::gather>(to, from, table, shape, stream);
}
void gather_rows(DeviceSpan<float> to, DeviceSpan<const float> from,
                 DeviceSpan<const std::int32_t> table, RowShape shape, StreamView stream) {
  move_rows<RowMove::gather>(to, from, table, shape, stream);
}
void scatter_rows(DeviceSpan<Bf16> to, DeviceSpan<const Bf16> from,
                  DeviceSpan<const std::int32_t> table, RowShape shape, StreamView stream) {
  move_rows<RowMove::scatter>(to, from, table, shape, stream);
}
void scatter_rows(DeviceSpan<float> to, DeviceSpan<const float> from,
                  DeviceSpan<const std::int32_t> table, RowShape shape, StreamView stream) {
  move_rows<RowMove::scatter>(to, from, table, shape, stream);
}
void scatter_add_rows(DeviceSpan<float> to, DeviceSpan<const float> from,
                      DeviceSpan<const std::int32_t> table, RowShape shape, StreamView stream) {
  move_rows<RowMove::add>(to, from, table, shape, stream);
}

void largest_by_row(DeviceSpan<float> largest, DeviceSpan<const Bf16> rows, RowShape shape,
                    StreamView stream) {
  detail::require_shape(shape.rows, shape.cols, "largest_by_row: rows and cols must be >= 0");
  require(shape.cols % 8 == 0, "largest_by_row: cols must be a multiple of 8", shape.cols);
  detail::require_size(rows, shape.rows * shape.cols, "largest_by_row: rows is not rows * cols");
  detail::require_size(largest, shape.rows, "largest_by_row: largest is not as long as rows");
  detail::require_aligned(rows, "largest_by_row: rows is not aligned to 16 bytes");
  if (shape.rows == 0) return;
  detail::start(largest_kernel, largest_by_row_launch(shape.rows), stream,
                {largest.data, rows.data, shape.rows, shape.cols / 8});
}

void embedding_forward(DeviceSpan<Bf16> out, DeviceSpan<const Bf16> table,
                       DeviceSpan<const std::int32_t> tokens, std::int64_t vocab,
                       std::int64_t hidden, StreamView stream) {
  detail::require_shape(vocab, hidden, "embedding_forward: vocab and hidden must be >= 0");
  detail::require_size(table, vocab * hidden, "embedding_forward: table is not vocab * hidden");
  gather_rows(out, table, tokens, {tokens.size, hidden}, stream);
}

void embedding_backward(DeviceSpan<float> dtable, DeviceSpan<const Bf16> dout,
                        const DeviceTokenRows& order, std::int64_t vocab, std::int64_t hidden,
                        StreamView stream) {
  detail::require_shape(vocab, hidden, "embedding_backward: vocab and hidden must be >= 0");
  require(hidden > 0 && hidden % 8 == 0,
          "embedding_backward: hidden must be a positive multiple of 8", hidden);
  detail::require_shape(order.rows.size, hidden, "embedding_backward: rows must be >= 0");
  detail::require_size(dtable, vocab * hidden, "embedding_backward: dtable is not vocab * hidden");
  require(dout.size % hidden == 0 && dout.size >= order.rows.size * hidden,
          "embedding_backward: dout is not whole rows, as many as are summed", dout.size);
  require(order.tokens.size <= order.rows.size,
          "embedding_backward: there are more distinct tokens than rows", order.tokens.size);
  detail::require_size(order.begin, order.tokens.size + 1,
                       "embedding_backward: begin is not one longer than tokens");
  detail::require_aligned(dtable, "embedding_backward: dtable is not aligned to 16 bytes");
  detail::require_aligned(dout, "embedding_backward: dout is not aligned to 16 bytes");
  if (order.tokens.size == 0) return;
  const auto [launch, parts] = embedding_backward_launch(order.tokens.size, hidden);
  detail::start(embedding_backward_kernel, launch, stream,
                {dtable.data, dout.data, order.tokens.data, order.begin.data, order.rows.data,
                 hidden, static_cast<std::int32_t>(order.tokens.size), parts});
}

}  // namespace slimpack::cuda
