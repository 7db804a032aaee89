// SPDX-License-Identifier: Apache-2.0
// Which devices of a plan reduce together: ranks of a stage, stages of a rank, holders of a table.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/plan/virtual_stages.hpp"
#include "slimpack/runtime/parameters.hpp"
#include "slimpack/runtime/transport.hpp"

namespace slimpack::runtime {

/// Rows of the tied table that a device reduces with other stages, as elements of its memory.
struct TablePart {
  std::size_t begin = 0, size = 0;
  ProcessGroup process_group;
  std::int64_t tag = 0;
};

/// The process groups of the device (dp, pp).
struct StageProcessGroups {
  Parallel parallel;
  std::int32_t dp = 0, pp = 0;

  [[nodiscard]] std::size_t device_at(std::int32_t rank, std::int32_t stage) const {
    return static_cast<std::size_t>(rank) * static_cast<std::size_t>(parallel.pp) +
           static_cast<std::size_t>(stage);
  }

  /// The data-parallel ranks of the stage.
  [[nodiscard]] ProcessGroup ranks() const {
    ProcessGroup process_group{{}, static_cast<std::size_t>(dp)};
    for (std::int32_t rank = 0; rank < parallel.dp; ++rank) {
      process_group.members.push_back(device_at(rank, pp));
    }
    return process_group;
  }

  /// The stages of the rank.
  [[nodiscard]] ProcessGroup stages() const {
    ProcessGroup process_group{{}, static_cast<std::size_t>(pp)};
    for (std::int32_t stage = 0; stage < parallel.pp; ++stage) {
      process_group.members.push_back(device_at(dp, stage));
    }
    return process_group;
  }

  /// What the device holds of a tied table; nothing if it holds none.
  [[nodiscard]] std::vector<TablePart> table_parts(const ModelShape& model,
                                                   const ParameterLayout& layout) const {
    if (layout.table == 0) return {};
    const std::int32_t last = parallel.pp - 1;
    if (parallel.head == LmHead::last) return {table_part(model, last, {0, model.vocab})};
    std::vector<TablePart> parts;
    for (std::int32_t other = pp; other <= (pp == 0 ? last : pp); ++other) {
      parts.push_back(table_part(model, other, vocabulary_shard(model.vocab, other, parallel.pp)));
    }
    return parts;
  }

 private:
  /// The ranks of stage 0 and of stage `other`, for the rows of the table that both hold.
  [[nodiscard]] TablePart table_part(const ModelShape& model, std::int32_t other,
                                     VocabularyShard rows) const {
    const auto cols = static_cast<std::size_t>(model.hidden);
    TablePart part;
    part.begin = pp == 0 ? static_cast<std::size_t>(rows.first) * cols : 0;
    part.size = static_cast<std::size_t>(rows.size()) * cols;
    part.tag = parallel.chunks + other;
    for (std::int32_t rank = 0; rank < parallel.dp; ++rank) {
      for (std::int32_t stage = 0; stage <= other; stage += std::max(other, 1)) {
        if (rank == dp && stage == pp) part.process_group.self = part.process_group.members.size();
        part.process_group.members.push_back(device_at(rank, stage));
      }
    }
    return part;
  }
};

}  // namespace slimpack::runtime
