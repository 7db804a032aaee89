// SPDX-License-Identifier: Apache-2.0
// InfiniPipe's adaptive checkpointing: which chunks are recomputed so that memory suffices.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/int128.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/cost/memory_model.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/schedule/pipeline.hpp"
#include "slimpack/schedule/ranks.hpp"

namespace slimpack::planners::detail {

/// What a chunk costs a rank, in each mode of recomputation where it matters.
struct ChunkCosts {
  std::array<std::int64_t, kRecomputeModes> time{};  ///< of B
  /// Bytes on one layer from F to B, with keys and values of samples that are not cut.
  std::array<std::int64_t, kRecomputeModes> kept{};
  std::array<std::int64_t, kRecomputeModes> forward_workspace{}, backward_workspace{};
  std::int64_t pages = 0;   ///< of samples that are cut: keys and values on one layer, from F on
  std::int64_t opens = 0;   ///< bytes on one layer from the start of B on: gradients of samples
  std::int64_t closes = 0;  ///< that end here; of samples that begin here, with keys and values
  std::int64_t message = 0;
};

/// What a stage has for chunks.
struct StageRoomBytes {
  std::int64_t layers = 1;
  std::int64_t room = 0;  ///< bytes besides what it always holds
  bool last = false;      ///< keeps the last layer's output from F to B
};

/// A mode for each chunk, none leaner than needed: walks the orders of the stages, and where a unit
/// exceeds the room, chunks in flight are recomputed, each time that chunk and mode which free most
/// bytes for the time they add (equal ones: the earlier chunk, the less lean mode), until it fits
/// or all are at their leanest. A mode is that of all stages. The publication solves an integer
/// program for numbers of layers, one variable a diagonal of chunks and stages.
/// O(units x stages + changes x chunks in flight).
[[nodiscard]] inline std::vector<Recompute> choose_checkpoints(
    std::span<const ChunkCosts> chunks, std::span<const StageRoomBytes> stages,
    const schedule::StageOrders& orders) {
  std::vector<std::size_t> mode(chunks.size());
  std::vector<std::size_t> flying;  // in forward order
  for (std::size_t stage = 0; stage < orders.size(); ++stage) {
    const StageRoomBytes& here = stages[stage];
    flying.clear();
    std::int64_t level = 0;
    const auto relieve = [&](std::int64_t excess) {
      while (excess > 0) {
        std::size_t best = chunks.size(), best_mode = 0;
        std::int64_t freed = 0, added = 0;
        for (const std::size_t i : flying) {
          for (std::size_t to = mode[i] + 1; to < kRecomputeModes; ++to) {
            const std::int64_t bytes = here.layers * (chunks[i].kept[mode[i]] - chunks[i].kept[to]);
            const std::int64_t time =
                std::max<std::int64_t>(1, chunks[i].time[to] - chunks[i].time[mode[i]]);
            if (bytes <= 0) continue;
            if (best < chunks.size() && Int128{bytes} * added <= Int128{freed} * time) continue;
            best = i;
            best_mode = to;
            freed = bytes;
            added = time;
          }
        }
        if (best == chunks.size()) return;
        mode[best] = best_mode;
        level -= freed;
        excess -= freed;
      }
    };
    for (const schedule::PipelineOp& step : orders[stage]) {
      const auto i = static_cast<std::size_t>(step.item);
      const ChunkCosts& chunk = chunks[i];
      const bool forward = step.kind == UnitKind::forward;
      if (forward) {
        flying.push_back(i);
        level += here.layers * (chunk.kept[mode[i]] + chunk.pages);
        if (here.last) level += chunk.message;
      } else {
        level += here.layers * chunk.opens;
      }
      const auto workspace = [&] {
        return (forward ? chunk.forward_workspace : chunk.backward_workspace)[mode[i]];
      };
      relieve(level + workspace() - here.room);
      relieve(level + workspace() - here.room);  // a leaner mode may need more workspace
      if (forward) continue;
      std::erase(flying, i);
      level -= here.layers * (chunk.kept[mode[i]] + chunk.closes);
      if (here.last) level -= chunk.message;
    }
  }
  std::vector<Recompute> modes;
  for (const std::size_t one : mode) modes.push_back(static_cast<Recompute>(one));
  return modes;
}

}  // namespace slimpack::planners::detail
