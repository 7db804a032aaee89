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
    if (call.virtual_stage == 0 && tensor.several()) return embed(table, groups, tensor, into);
    const DeviceSpan<const Bf16> from = elements<Bf16>(call.input);
    for (std::size_t g = 0; g < groups.size(); ++g) {
      for (std::size_t i = 0; i < groups[g].blocks.size(); ++i) {
        const BlockRows& block = groups[g].blocks[i];
        const DeviceSpan<Bf16> to = into(g, i);
        if (call.virtual_stage == 0) {
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
    const auto add = [&](const TokenRowsPart& order, DeviceSpan<const Bf16> rows) {
      embedding_backward(table, rows, order.on(ring), table.size / hidden, hidden, stream);
    };
    if (!tensor.several()) {
      if (!groups.empty()) add(tables.token_rows, gradient);
      return;
    }
    tensor.gather_each(
        groups.size(), [&](std::size_t g) -> const RowGroup& { return groups[g].rows; },
        [&](std::size_t g, DeviceSpan<Bf16> place) {
          copy(place, rows_at(gradient, groups[g].rows.first_own, groups[g].rows.own, hidden),
               stream);
        },
        [&](std::size_t g, DeviceSpan<const Bf16> rows) {
          add(tables.embedded[g].token_rows, rows);
        });
  }

 private:
  /// Each tensor-parallel device has some of the tokens' embeddings.
  template <class Link, class Into>
  void embed(DeviceSpan<const Bf16> table, std::span<const BlockGroup> groups,
             TensorUnit<Link>& tensor, Into into) const {
    DeviceSpan<Bf16> found;
    tensor.sum_placed_each(
        groups.size(), [&](std::size_t g) -> const RowGroup& { return groups[g].rows; },
        [&](std::size_t g, DeviceSpan<Bf16> rows) {
          const EmbeddedGroup& embedded = tables.embedded[g];
          found = rows.subspan(0, embedded.tokens.size * hidden);
          embedding_forward(found, table, ring.span(embedded.tokens), table.size / hidden, hidden,
                            stream);
        },
        [&](std::size_t g, DeviceSpan<Bf16> rows) {
          const EmbeddedGroup& embedded = tables.embedded[g];
          fill_zeros(rows, stream);
          scatter_rows(rows, found, ring.span(embedded.places), {embedded.tokens.size, hidden},
                       stream);
        },
        [&](std::size_t g, DeviceSpan<const Bf16> sums) {
          for (std::size_t i = 0; i < groups[g].blocks.size(); ++i) {
            const BlockRows& block = groups[g].blocks[i];
            copy(into(g, i),
                 rows_at(sums, block.first_own - groups[g].rows.first_own, block.own, hidden),
                 stream);
          }
        });
  }
};

}  // namespace slimpack::cuda
