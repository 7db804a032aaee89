// SPDX-License-Identifier: Apache-2.0
// Rows on their way between the order of a pack, in which stages send, and that of its blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <type_traits>

#include "slimpack/runtime/backend.hpp"
#include "slimpack_cuda/embedding.hpp"
#include "slimpack_cuda/rank/block_rows.hpp"
#include "slimpack_cuda/rank/pack_tables.hpp"
#include "slimpack_cuda/rows.hpp"

namespace slimpack::cuda {

/// Queues a copy of all elements. Throws std::logic_error unless both are as large.
template <class Element>
void copy(DeviceSpan<Element> to, std::type_identity_t<DeviceSpan<const Element>> from,
          StreamView stream) {
  if (to.size != from.size) throw std::logic_error("a copy must be as large as what is copied");
  if (to.size == 0) return;
  copy_on_device(to.data, from.data, static_cast<std::size_t>(to.size) * sizeof(Element), stream);
}

/// What the boundary of a unit needs.
struct Boundary {
  const runtime::PackCall& call;
  std::span<const BlockRows> blocks;
  const PackTables& tables;
  const TableRing& ring;
  std::int64_t hidden = 0;
  StreamView stream;

  /// Copies token embeddings or what was received to the rows of the blocks; `into(block number)`
  /// is where they belong. `table` is empty but on the first virtual stage.
  template <class Into>
  void enter(DeviceSpan<const Bf16> table, std::int64_t vocab, Into into) const {
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const BlockRows& block = blocks[i];
      const DeviceSpan<Bf16> to = into(i);
      const DeviceSpan<const Bf16> from = elements<Bf16>(call.input);
      if (table.size > 0) {
        embedding_forward(to, table, ring.span(tables.tokens).subspan(block.first, block.rows),
                          vocab, hidden, stream);
      } else if (tables.in_order) {
        copy(to, rows_at(from, block, hidden), stream);
      } else {
        gather_rows(to, from, ring.span(tables.rows).subspan(block.first, block.rows),
                    {block.rows, hidden}, stream);
      }
    }
  }

  /// The gradient of the last layer's output, by rows of the blocks.
  void load_gradient(DeviceSpan<Bf16> gradient, bool last_line) const {
    if (last_line) {
      for (std::size_t i = 0; i < blocks.size(); ++i) {
        copy(rows_at(gradient, blocks[i], hidden), elements<Bf16>(call.blocks[i].hidden_gradient),
             stream);
      }
    } else if (tables.in_order) {
      copy(gradient, elements<Bf16>(call.input), stream);
    } else {
      gather_rows(gradient, elements<Bf16>(call.input), ring.span(tables.rows),
                  {call.rows.value, hidden}, stream);
    }
  }

  /// Whether rows of the blocks may be written to the call's output itself.
  [[nodiscard]] bool leaves_directly() const noexcept { return tables.in_order; }
  /// The call's output from rows of the blocks.
  void leave(DeviceSpan<const Bf16> from) const {
    const DeviceSpan<Bf16> to = elements<Bf16>(call.output);
    if (from.data == to.data) return;
    if (tables.in_order) {
      copy(to, from, stream);
    } else {
      scatter_rows(to, from, ring.span(tables.rows), {call.rows.value, hidden}, stream);
    }
  }
};

}  // namespace slimpack::cuda
