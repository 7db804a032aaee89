// SPDX-License-Identifier: Apache-2.0
// What a rank holds on its device beside what a plan counts: workspaces of operators, and tables.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "slimpack/plan/plan.hpp"
#include "slimpack/runtime/parameters.hpp"
#include "slimpack/runtime/process_groups.hpp"
#include "slimpack/runtime/program.hpp"
#include "slimpack/runtime/transport.hpp"
#include "slimpack_cuda/attention.hpp"
#include "slimpack_cuda/gemm.hpp"
#include "slimpack_cuda/norm.hpp"
#include "slimpack_cuda/optimizer.hpp"
#include "slimpack_cuda/rank/pack_tables.hpp"
#include "slimpack_cuda/rank/row_groups.hpp"
#include "slimpack_cuda/rank/weights.hpp"

namespace slimpack::cuda {

/// Numbers that the backward norm wants for any number of rows.
[[nodiscard]] inline std::int64_t norm_workspace(const ModelShape& model) {
  return rms_norm_backward_workspace({std::int64_t{1} << 24U, model.hidden});
}

namespace detail {

inline constexpr std::int64_t kTableRounding = 16;

/// Most bytes of attention's tables: so many segments, queries and keys of so many samples.
[[nodiscard]] inline std::int64_t attention_table_bytes(std::int64_t layers, std::int64_t segments,
                                                        std::int64_t rows, std::int64_t keys,
                                                        std::int64_t samples, std::int64_t page) {
  const auto size = [](std::size_t bytes) { return static_cast<std::int64_t>(bytes); };
  constexpr std::int64_t kTile = 64;  // no path has smaller ones
  return layers * (segments * size(sizeof(AttentionSegment)) + kTableRounding) +
         (keys / page + samples) * size(sizeof(KeyPage)) +
         (rows / kTile + segments) * size(sizeof(QueryTile)) +
         (keys / kTile + samples) * size(sizeof(KeyTile)) + 3 * kTableRounding;
}

/// Most bytes of the tables of a slice by heads, of which a rank attends with `heads` heads of
/// keys: rows of its own tokens in each layer and of their keys, places of all ranks' keys or sums,
/// and attention's, which has each head apart; or attention's of all heads on the rank that has
/// them.
[[nodiscard]] inline std::int64_t by_heads_table_bytes(const runtime::Segment& segment,
                                                       bool travels, std::int64_t layers,
                                                       std::int64_t heads, std::int64_t page) {
  const CpShard& shard = segment.shard;
  const std::int64_t rows = segment.rows.value, end = segment.slice.end.value;
  if (!travels) {
    return attention_table_bytes(layers, static_cast<std::int64_t>(segment.pieces.size()), rows,
                                 end, 1, page);
  }
  const std::int64_t all = segment.slice.length().value;
  const std::int64_t runs = segment.slice.length() / shard.block + shard.ranks + 2;
  return (3 * layers + 3) * (4 * rows + kTableRounding) +
         all * static_cast<std::int64_t>(sizeof(KeyRow)) + shard.ranks * kTableRounding +
         kHeadPieces * (layers + 3) * kTableRounding +
         attention_table_bytes(layers, heads * runs, heads * all, heads * end, heads, page);
}

/// Most bytes of the tables of a unit on `layers` layers.
[[nodiscard]] inline std::int64_t table_bytes(const Plan& plan, const runtime::Program& program,
                                              const runtime::UnitWork& work, std::int64_t layers) {
  const MicroPack& pack = plan.micropacks[index(work.unit.pack)];
  const std::int64_t page =
      attention_page(plan.memory.page_tokens, cp_shard_of(plan, pack.slices.front().sample, 0));
  const runtime::PackWork& part = program.packs[index(work.unit.pack)][work.rank];
  const std::int64_t rows = part.rows.value;
  std::int64_t pieces = 0, keys = 0, ring = 0, by_heads = 0;
  for (const runtime::Segment& segment : part.segments) {
    const CpShard& shard = segment.shard;
    pieces += static_cast<std::int64_t>(segment.pieces.size());
    keys += shard.before(segment.slice.end).value;
    if (shard.ranks == 1) continue;
    if (segment.exchange == RingMode::by_heads) {
      const KeptKeys& kept = program.keys[index(segment.slice.sample)];
      by_heads += by_heads_table_bytes(segment, kept.by_heads, layers,
                                       plan.model.kv_heads / plan.parallel.tp / kept.parts, page);
      continue;
    }
    const Tokens all = largest_owned(shard.ranks, shard.block, Tokens{0}, segment.slice.end);
    const Tokens some =
        largest_owned(shard.ranks, shard.block, segment.slice.begin, segment.slice.end);
    const std::int64_t runs = std::max(static_cast<std::int64_t>(segment.pieces.size()),
                                       segment.slice.length() / shard.block + std::int64_t{2});
    ring += 2 * shard.ranks *
                attention_table_bytes(layers, runs, std::max(some, segment.rows).value, all.value,
                                      1, page) +
            all.value * 4 + kTableRounding;
  }
  // The pack's rows, tokens or targets, and the three tables of tokens' rows. Keys that are made
  // again have a rotary table too, and attention's tables are up to three. With tensor parallelism
  // places of rows, targets of as many rows of each device, and tokens group by group.
  const std::int64_t devices = plan.parallel.tp;
  const std::int64_t groups =
      rows / most_gathered(plan.memory.head_tile, devices) + 1 + kPieces * devices;
  const std::int64_t several =
      devices == 1 ? 0
                   : 4 * (rows + devices * part.share.value) + groups * (4 + 4 * kTableRounding);
  return several + 4 * (6 * rows + 2) + 6 * kTableRounding + 2 * (layers + 3) * kTableRounding +
         (layers + 1) * (rows * static_cast<std::int64_t>(sizeof(RopeRow)) + kTableRounding) +
         attention_table_bytes(layers, pieces, rows, keys,
                               static_cast<std::int64_t>(part.segments.size()), page) +
         ring + by_heads;
}

}  // namespace detail

/// Most bytes of the tables of a unit of a device (`device_number`).
[[nodiscard]] inline std::int64_t table_bytes(const Plan& plan, const runtime::Program& program,
                                              std::size_t device) {
  std::int64_t most = 0;
  for (const runtime::UnitWork& work : program.of_device(device).units) {
    const bool head = work.unit.kind == UnitKind::head;
    const bool weight = work.unit.kind == UnitKind::weight;
    const bool tables =
        head || work.unit.kind == UnitKind::forward || work.unit.kind == UnitKind::backward;
    if (!tables && !(weight && plan.parallel.tp > 1)) continue;
    const std::int64_t layers =
        head || weight ? 0 : plan.stages[static_cast<std::size_t>(work.virtual_stage)].layers();
    most = std::max(most, detail::table_bytes(plan, program, work, layers));
  }
  return most;
}

/// Sums of squares that a rank makes of the gradients that it counts.
[[nodiscard]] inline std::int64_t norm_sums(std::span<const OwnedRange> ranges) {
  std::int64_t sums = 0;
  for (const OwnedRange& range : ranges) {
    sums += square_sums_count(static_cast<std::int64_t>(range.size()));
  }
  return sums;
}

/// Bytes of device memory that a rank holds beside weights, gradients, optimizer state and arena:
/// a part of `cluster.reserved`. CUDA's own context and libraries come on top.
[[nodiscard]] inline Bytes fixed_bytes(const Plan& plan, const runtime::Program& program,
                                       std::size_t device,
                                       std::int64_t gemm_workspace = kGemmWorkspaceBytes) {
  // Each allocation takes up a multiple of 256 bytes; there are fewer than 16.
  constexpr std::int64_t kRounding = 16 * 256;
  const ModelShape& model = plan.model;
  const runtime::StageProcessGroups place = place_of(plan, device);
  const runtime::ParameterLayout layout = runtime::layout_of(plan, place.pp, place.tp);
  const auto ranges = owned_ranges(plan, buckets_of(plan, place, layout), layout, place.dp,
                                   runtime::ShardLayout::kMost);
  const std::int64_t sums = norm_sums(counted_ranges(ranges, layout, place));
  const auto whole = static_cast<std::int64_t>(RankWeights::kWhole);
  const std::int64_t gradient_units = shares_weights(plan) ? 2 : 1;
  return Bytes{kRounding + gemm_workspace + norm_workspace(model) * 4 +
               table_bytes(plan, program, device) +
               whole * model.hidden * (2 + 4 * gradient_units) + model.head_dim / 2 * 8 +
               (sums + 1) * 8 + static_cast<std::int64_t>(sizeof(Clipping))};
}

}  // namespace slimpack::cuda
