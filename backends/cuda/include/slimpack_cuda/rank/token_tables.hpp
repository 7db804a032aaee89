// SPDX-License-Identifier: Apache-2.0
// The tables by which a unit of the first virtual stage reads embeddings and adds to their
// gradients.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "slimpack/plan/plan.hpp"
#include "slimpack/plan/virtual_stages.hpp"
#include "slimpack/runtime/backend.hpp"
#include "slimpack_cuda/embedding.hpp"
#include "slimpack_cuda/rank/memory.hpp"
#include "slimpack_cuda/rank/row_groups.hpp"
#include "slimpack_cuda/rank/staging.hpp"
#include "slimpack_cuda/row_tables.hpp"

namespace slimpack::cuda {

/// What of a unit's tables follows from its tokens: nothing but on the first virtual stage.
struct TokenTables {
  const runtime::StepData* data = nullptr;
  VocabularyShard table;  ///< rows of the embedding that are here
};

/// TokenRows among the tables of a unit.
struct TokenRowsPart {
  TablePart<std::int32_t> tokens, begin, rows;
  [[nodiscard]] DeviceTokenRows on(const TableRing& ring) const {
    return {ring.span(tokens), ring.span(begin), ring.span(rows)};
  }
};
[[nodiscard]] inline TokenRowsPart add_token_rows(Tables& tables, const TokenRows& order) {
  return {tables.add(order.tokens), tables.add(order.begin), tables.add(order.rows)};
}

/// The tokens of a group of rows whose embeddings this one of several devices has: rows of its
/// table.
struct EmbeddedGroup {
  TablePart<std::int32_t> tokens, places;  ///< F: one an embedding, and where devices' order has it
  TokenRowsPart token_rows;                ///< B, by the group's rows
};

/// `tokens` are those of the unit's rows, `table` the rows of the embedding that are here.
[[nodiscard]] inline EmbeddedGroup embedded_group(Tables& tables, Pass pass,
                                                  std::span<const std::int32_t> tokens,
                                                  const RowGroups& groups, const RowGroup& group,
                                                  const VocabularyShard& table) {
  std::vector<std::int32_t> here, rows, places;
  for (std::int64_t row = 0; row < group.rows; ++row) {
    const auto i = static_cast<std::size_t>(group.first + row);
    if (tokens[i] < table.first || tokens[i] >= table.first + table.size()) continue;
    here.push_back(static_cast<std::int32_t>(tokens[i] - table.first));
    rows.push_back(to_table(row));
    places.push_back(groups.places[i]);
  }
  EmbeddedGroup made;
  if (pass == Pass::forward) {
    made.tokens = tables.add(here);
    made.places = tables.add(places);
  } else {
    TokenRows order = token_rows(here, table.size());
    for (std::int32_t& row : order.rows) row = rows[static_cast<std::size_t>(row)];
    made.token_rows = add_token_rows(tables, order);
  }
  return made;
}

}  // namespace slimpack::cuda
