// SPDX-License-Identifier: Apache-2.0
// Rows on their way between the order of a pack, in which stages send, and that of its blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "slimpack/runtime/backend.hpp"
#include "slimpack_cuda/elements.hpp"
#include "slimpack_cuda/embedding.hpp"
#include "slimpack_cuda/rank/block_rows.hpp"
#include "slimpack_cuda/rank/pack_tables.hpp"
#include "slimpack_cuda/rank/row_groups.hpp"
#include "slimpack_cuda/rank/tensor_unit.hpp"
#include "slimpack_cuda/rows.hpp"

namespace slimpack::cuda {

/// What the boundary of a unit needs. Rows are own rows.
struct Boundary {
  const runtime::PackCall& call;
  std::span<const BlockRows> blocks;
  const PackTables& tables;
  const TableRing& ring;
  std::int64_t hidden = 0;
  StreamView stream;

  /// Copies token embeddings or what was received to the rows of the blocks; `into(group, block)`
  /// is where they belong, by their numbers. `table` has the rows of the embedding that are here,
  /// and is empty but on the first virtual stage.
  template <class Link, class Into>
  void enter(DeviceSpan<const Bf16> table, std::span<const BlockGroup> groups,
             TensorUnit<Link>& tensor, Into into) const {
    for (std::size_t g = 0; g < groups.size(); ++g) {
      const BlockGroup& group = groups[g];
      DeviceSpan<const Bf16> embedded;
      if (call.virtual_stage == 0 && tensor.several()) {
        embedded = embed(table, tables.embedded[g], group.rows, tensor);
      }
      for (std::size_t i = 0; i < group.blocks.size(); ++i) {
        const BlockRows& block = group.blocks[i];
        const DeviceSpan<Bf16> to = into(g, i);
        const DeviceSpan<const Bf16> from = elements<Bf16>(call.input);
        if (embedded.data != nullptr) {
          copy(to, rows_at(embedded, block.first_own - group.rows.first_own, block.own, hidden),
               stream);
        } else if (call.virtual_stage == 0) {
          embedding_forward(to, table, ring.span(tables.tokens).subspan(block.first, block.rows),
                            table.size / hidden, hidden, stream);
        } else if (tables.in_order) {
          copy(to, own_rows_at(from, block, hidden), stream);
        } else {
          gather_rows(to, from, ring.span(tables.rows).subspan(block.first_own, block.own),
                      {block.own, hidden}, stream);
        }
      }
    }
  }

  /// The gradient of the last layer's output, by rows of the blocks.
  void load_gradient(DeviceSpan<Bf16> gradient, bool last_line) const {
    if (last_line) {
      for (std::size_t i = 0; i < blocks.size(); ++i) {
        copy(own_rows_at(gradient, blocks[i], hidden),
             elements<Bf16>(call.blocks[i].hidden_gradient).subspan(0, blocks[i].own * hidden),
             stream);
      }
    } else if (tables.in_order) {
      copy(gradient, elements<Bf16>(call.input).subspan(0, gradient.size), stream);
    } else {
      gather_rows(gradient, elements<Bf16>(call.input), ring.span(tables.rows),
                  {own_rows(blocks), hidden}, stream);
    }
  }

  /// Where the call's output belongs.
  [[nodiscard]] DeviceSpan<Bf16> output() const {
    return elements<Bf16>(call.output).subspan(0, own_rows(blocks) * hidden);
  }
  /// Whether rows of the blocks may be written to the call's output itself.
  [[nodiscard]] bool leaves_directly() const noexcept { return tables.in_order; }
  /// The call's output from rows of the blocks.
  void leave(DeviceSpan<const Bf16> from) const {
    const DeviceSpan<Bf16> to = output();
    if (from.data == to.data) return;
    if (tables.in_order) {
      copy(to, from, stream);
    } else {
      scatter_rows(to, from, ring.span(tables.rows), {own_rows(blocks), hidden}, stream);
    }
  }

  /// Adds the gradients of the stage's input to those of the embedding.
  template <class Link>
  void embedding_gradient(DeviceSpan<float> table, DeviceSpan<const Bf16> gradient,
                          std::span<const BlockGroup> groups, TensorUnit<Link>& tensor) const {
    for (std::size_t g = 0; g < groups.size(); ++g) {
      const TokenRowsPart& order =
          tensor.several() ? tables.embedded[g].token_rows : tables.token_rows;
      embedding_backward(table, tensor.gather(groups[g].rows, gradient), order.on(ring),
                         table.size / hidden, hidden, stream);
    }
  }

 private:
  /// The embeddings of the device's rows of a group: each device has some of their tokens.
  template <class Link>
  [[nodiscard]] DeviceSpan<const Bf16> embed(DeviceSpan<const Bf16> table,
                                             const EmbeddedGroup& embedded, const RowGroup& group,
                                             TensorUnit<Link>& tensor) const {
    return tensor.sum_by_device(group, [&](DeviceSpan<Bf16> rows) {
      const std::int64_t here = embedded.tokens.size;
      const DeviceSpan<Bf16> found = tensor.by_token(group).subspan(0, here * hidden);
      embedding_forward(found, table, ring.span(embedded.tokens), table.size / hidden, hidden,
                        stream);
      fill_zeros(rows, stream);
      scatter_rows(rows, found, ring.span(embedded.places), {here, hidden}, stream);
    });
  }
};

}  // namespace slimpack::cuda
