// SPDX-License-Identifier: Apache-2.0
// A device that computes nothing and calls its transport as one that does.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "slimpack/plan/cp_shard.hpp"
#include "slimpack/plan/head_pieces.hpp"
#include "slimpack/plan/memory.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/runtime/backend.hpp"
#include "slimpack/runtime/memory_events.hpp"
#include "slimpack/runtime/parameters.hpp"
#include "slimpack/runtime/process_groups.hpp"
#include "slimpack/runtime/transport.hpp"
#include "slimpack_cuda/rank/head.hpp"
#include "slimpack_cuda/rank/pack_tables.hpp"
#include "slimpack_cuda/rank/row_groups.hpp"
#include "slimpack_cuda/rank/shared_units.hpp"
#include "slimpack_cuda/rank/weights.hpp"
#include "slimpack_cuda/rank_device.hpp"

namespace slimpack::test {

/// Spans of it have sizes, and addresses that nobody follows.
class LinkDevice {
 public:
  struct Buffer {
    std::size_t bytes = 0;
  };

  LinkDevice(const Plan& plan, std::size_t device)
      : plan_(plan),
        process_groups_(cuda::place_of(plan, device)),
        layout_(runtime::layout_of(plan, process_groups_.pp, process_groups_.tp)),
        buckets_(cuda::buckets_of(plan, process_groups_, layout_)) {
    if (cuda::shares_weights(plan)) units_ = cuda::weight_units(layout_);
  }

  [[nodiscard]] ElementBytes element_bytes() const noexcept { return {2, 4, 4}; }
  [[nodiscard]] StaticBytes static_bytes() const noexcept { return {}; }
  [[nodiscard]] Buffer allocate(Bytes bytes) const noexcept {
    return {static_cast<std::size_t>(bytes.value)};
  }
  [[nodiscard]] std::span<std::byte> bytes(const Buffer& buffer) const noexcept {
    return some<std::byte>(buffer.bytes);
  }
  void clear(Buffer&) noexcept {}
  void begin_step(const Plan&, const runtime::StepData&) { buckets_.begin_step(); }

  template <class Link>
  void forward(const runtime::PackCall& call, Link& link) {
    const Stage& stage = plan_.stages[static_cast<std::size_t>(call.virtual_stage)];
    if (stage.embedding) begin_gather(layout_.embedding.front(), link);
    link.end_gathers();
    begin_gather(stage, stage.first_layer, link);
    if (stage.embedding) in_step(call, "s", true, link);
    for (std::int64_t layer = stage.first_layer; layer < stage.end_layer; ++layer) {
      link.end_gathers();
      begin_gather(stage, layer + 1, link);
      in_step(call, "g", true, link);
      exchange(call, Pass::forward, link);
      in_step(call, "sgs", true, link);
    }
  }
  template <class Link>
  void backward(const runtime::PackCall& call, Link& link) {
    const Stage& stage = plan_.stages[static_cast<std::size_t>(call.virtual_stage)];
    const bool with = call.weights == WeightGradients::with;
    begin_gather(stage, stage.end_layer - 1, link);
    for (std::int64_t layer = stage.end_layer; layer-- > stage.first_layer;) {
      link.end_gathers();
      begin_gather(stage, layer - 1, link);
      if (call.recompute == Recompute::full) exchange(call, Pass::forward, link);
      const std::size_t ahead = give_ahead(call, link);
      in_step(call, with ? "ggsg" : "gsg", !with, link);
      exchange(call, Pass::backward, link, ahead);
      in_step(call, with ? "gs" : "s", !with, link);
      sum(layout_.layer[static_cast<std::size_t>(layer)], link);
      if (call.releases) buckets_.pass(layer, queue_on(link));
    }
    if (!stage.embedding) return;
    in_step(call, "g", !with, link);
    sum(layout_.embedding.front(), link);
  }
  template <class Link>
  void weight(const runtime::PackCall& call, Link& link) {
    const Stage& stage = plan_.stages[static_cast<std::size_t>(call.virtual_stage)];
    for (std::int64_t layer = stage.end_layer; layer-- > stage.first_layer;) {
      in_step(call, "gggg", false, link);
      if (call.releases) buckets_.pass(layer, queue_on(link));
    }
  }
  template <class Link>
  void head(const runtime::HeadCall& call, Link& link) {
    begin_gather(layout_.head.front(), link);
    link.end_gathers();
    const std::size_t members = call.stages.members.size(), devices = call.tensor.members.size();
    const std::int64_t most = cuda::most_gathered(plan_.memory.head_tile, call.own.devices);
    std::vector<cuda::BlockRows> blocks(call.blocks.size());
    std::int64_t first = 0;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      blocks[i].first = first;
      first += call.blocks[i].rows.value;
    }
    for (const cuda::HeadTile& tile :
         cuda::head_rows(call.pieces, blocks, call.own, call.rows, most).tiles) {
      const auto rows = static_cast<std::size_t>(tile.rows);
      const auto hidden = static_cast<std::size_t>(tile.padded * plan_.model.hidden);
      const std::size_t self = call.stages.self, part = call.tensor.self;
      if (members > 1) link.broadcast(call.stages, members - 1, some<std::uint16_t>(hidden));
      if (devices > 1) {
        link.all_gather(call.tensor, some<cuda::Bf16>(devices * hidden), part * hidden,
                        (part + 1) * hidden);
        link.all_gather(call.tensor, some<float>(3 * rows * devices), 3 * rows * part,
                        3 * rows * (part + 1));
      }
      if (members > 1) {
        link.all_gather(call.stages, some<float>(3 * rows * members), 3 * rows * self,
                        3 * rows * (self + 1));
      }
      if (devices > 1) {
        link.reduce_scatter(call.tensor, some<cuda::Bf16>(devices * hidden), part * hidden,
                            (part + 1) * hidden);
      }
      if (members == 1) continue;
      link.all_reduce(call.stages,
                      some<float>(static_cast<std::size_t>(tile.own * plan_.model.hidden)),
                      runtime::Reduction::sum);
    }
    sum(layout_.head.front(), link);
  }
  template <class Link>
  void reduce(std::int32_t chunk, Link& link) {
    buckets_.reduce(chunk, queue_on(link));
  }
  template <class Link>
  void optimize(Link& link) {
    for (const runtime::Bucket& bucket : buckets_.all())
      link.await_sum(bucket.process_group, bucket.tag);
    link.all_reduce(process_groups_.tensor(), some<double>(1), runtime::Reduction::sum);
    link.all_reduce(process_groups_.stages(), some<double>(1), runtime::Reduction::sum);
    if (!sharded()) return;
    link.all_reduce(process_groups_.ranks(), some<double>(1), runtime::Reduction::sum);
    for (const runtime::Bucket& bucket : buckets_.all()) {
      link.gather_parts(process_groups_.ranks(), some<std::uint16_t>(bucket.size),
                        shard_layout(bucket));
    }
  }

 private:
  template <class Element>
  [[nodiscard]] static std::span<Element> some(std::size_t size) {
    return {reinterpret_cast<Element*>(std::uintptr_t{1} << 40U), size};
  }

  /// The unit of shared weights that a tensor is in, in equal parts; none where each rank has all.
  [[nodiscard]] std::optional<runtime::ShardPiece> unit_of(std::size_t tensor) const {
    const std::size_t element = layout_.tensors[tensor].offset;
    for (const cuda::WeightUnit& unit : units_) {
      if (unit.begin <= element && element < unit.end) return unit.piece(ranks());
    }
    return std::nullopt;
  }
  [[nodiscard]] std::size_t ranks() const { return static_cast<std::size_t>(plan_.parallel.dp); }
  template <class Link>
  void begin_gather(std::size_t tensor, Link& link) const {
    if (const auto unit = unit_of(tensor)) {
      const std::size_t size = unit->part * ranks();
      link.begin_gather(process_groups_.ranks(), some<std::uint16_t>(size),
                        runtime::ShardLayout{size, ranks(), size});
    }
  }
  template <class Link>
  void begin_gather(const Stage& stage, std::int64_t layer, Link& link) const {
    if (layer < stage.first_layer || layer >= stage.end_layer) return;
    begin_gather(layout_.layer[static_cast<std::size_t>(layer)], link);
  }
  template <class Link>
  void sum(std::size_t tensor, Link& link) const {
    if (const auto unit = unit_of(tensor)) {
      const std::size_t part = unit->part, self = process_groups_.ranks().self;
      link.reduce_scatter(process_groups_.ranks(), some<float>(part * ranks()), part * self,
                          part * (self + 1));
    }
  }

  template <class Link>
  [[nodiscard]] auto queue_on(Link& link) const {
    return [&](const runtime::Bucket& bucket) {
      if (plan_.parallel.tp > 1) {  // gains of norms
        link.all_reduce(process_groups_.tensor(),
                        some<float>(static_cast<std::size_t>(plan_.model.hidden)),
                        runtime::Reduction::sum);
      }
      if (sharded() && bucket.process_group.members.size() == shard_layout(bucket).members) {
        link.queue_scatter(bucket.process_group, bucket.tag, some<float>(bucket.size),
                           shard_layout(bucket));
      } else {
        link.queue_sum(bucket.process_group, bucket.tag, some<float>(bucket.size));
      }
    };
  }

  [[nodiscard]] bool sharded() const {
    return plan_.memory.optimizer == OptimizerState::sharded && plan_.parallel.dp > 1;
  }
  [[nodiscard]] runtime::ShardLayout shard_layout(const runtime::Bucket& bucket) const {
    return {bucket.size, static_cast<std::size_t>(plan_.parallel.dp), 1000};
  }

  /// Collectives of the tensor-parallel devices, gathers (g) and sums (s), each of all groups of
  /// the unit's rows, with the beginning of the next before products.
  template <class Link>
  void in_step(const runtime::PackCall& call, std::string_view kinds, bool in_pieces,
               Link& link) const {
    if (plan_.parallel.tp == 1) return;
    std::vector<runtime::PieceMemory> pieces = cuda::pieces_of(call);
    std::int64_t next = 0;
    const auto owners =
        cuda::owners_of(pieces, call.own, call.rows, [&](const runtime::PieceMemory& piece) {
          return std::exchange(next, next + piece.piece.length().value);
        });
    const std::int64_t devices = call.own.devices;
    const Tokens tile = plan_.memory.head_tile;
    const cuda::RowGroups groups = cuda::row_groups(
        owners, call.own,
        in_pieces ? cuda::most_of_piece(cuda::largest_share(owners, devices), tile, devices,
                                        cuda::RankOptions{}.smallest_piece)
                  : cuda::most_gathered(tile, devices));
    for (const char kind : kinds) {
      for (const cuda::RowGroup& group : groups.groups) {
        const auto part = static_cast<std::size_t>(group.padded * plan_.model.hidden);
        const auto rows = some<cuda::Bf16>(part * call.tensor.members.size());
        const std::size_t first = part * call.tensor.self;
        if (kind == 'g') {
          link.begin_all_gather(call.tensor, rows, first, first + part);
        } else {
          link.begin_reduce_scatter(call.tensor, rows, first, first + part);
        }
        link.end_collective();
      }
    }
  }

  /// Of one layer. `ahead`: pieces by heads that are on their way.
  template <class Link>
  void exchange(const runtime::PackCall& call, Pass pass, Link& link, std::size_t ahead = 0) {
    const auto ranks = static_cast<std::int64_t>(call.ring.members.size());
    if (ranks == 1) return;
    if (std::ranges::any_of(call.segments, cuda::travels_by_heads)) {
      exchange_by_heads(call, ahead, link);
    }
    for (const runtime::SegmentMemory& segment : call.segments) {
      if (segment.exchange == RingMode::by_heads) continue;
      const bool keys = segment.exchange == RingMode::pass_kv;
      const std::int64_t width = keys ? 4 * plan_.model.key_width() : 6 * plan_.model.query_width();
      const auto part = [&](std::int64_t owner) {
        const CpShard shard = segment.shard.of(owner);
        const Tokens rows =
            shard.between(keys ? Tokens{0} : segment.slice.begin, segment.slice.end);
        return some<std::byte>(static_cast<std::size_t>(rows.value * width));
      };
      const std::int64_t steps = keys && pass == Pass::forward ? ranks - 1 : ranks;
      for (std::int64_t step = 0; step < steps; ++step) {
        const auto owner = [&](std::int64_t hops) {
          return call.ring.order().owner(segment.shard.rank, hops);
        };
        link.ring(call.ring, static_cast<std::size_t>(step), part(owner(step)),
                  part(owner(step + 1)));
      }
    }
  }

  /// Pieces of what travels by heads in a call.
  [[nodiscard]] std::size_t pieces_of(const runtime::PackCall& call) const {
    const auto ranks = static_cast<std::int64_t>(call.ring.members.size());
    const HeadSets sets = head_sets_of(plan_, plan_.micropacks[index(call.pack)]);
    return static_cast<std::size_t>(
        head_pieces(plan_.model, plan_.parallel.tp, ranks) *
        std::ranges::count_if(sets.tokens, [](std::uint16_t part) { return part > 0; }));
  }
  /// Queries of B, and how many pieces of them: they go before it comes to attention.
  template <class Link>
  [[nodiscard]] std::size_t give_ahead(const runtime::PackCall& call, Link& link) const {
    if (call.recompute == Recompute::full) return 0;
    const std::size_t pieces = pieces_of(call);
    for (std::size_t piece = 0; piece < pieces; ++piece) begin_by_heads(call, link);
    return pieces;
  }
  /// Pieces there and home, as those who attend to one while others travel; `ahead` have come
  /// before.
  template <class Link>
  void exchange_by_heads(const runtime::PackCall& call, std::size_t ahead, Link& link) const {
    const std::size_t pieces = pieces_of(call);
    for (std::size_t piece = 0; piece < ahead; ++piece) link.end_all_to_all();
    begin_by_heads(call, link);
    for (std::size_t piece = 0; piece < pieces; ++piece) {
      if (piece >= 2) link.end_all_to_all();
      link.end_all_to_all();
      if (piece + 1 < pieces) begin_by_heads(call, link);
      begin_by_heads(call, link);
    }
    for (std::size_t left = std::min<std::size_t>(2, pieces); left-- > 0;) link.end_all_to_all();
  }
  /// Bytes for all other ranks, and from them: the own part would be copied.
  template <class Link>
  void begin_by_heads(const runtime::PackCall& call, Link& link) const {
    const std::size_t ranks = call.ring.members.size();
    const auto part = [&](std::size_t owner) {
      std::int64_t bytes = 0;
      for (const runtime::SegmentMemory& segment : call.segments) {
        if (!cuda::travels_by_heads(segment)) continue;
        const CpShard shard = segment.shard.of(static_cast<std::int64_t>(owner));
        bytes += shard.between(segment.slice.begin, segment.slice.end).value *
                 (plan_.model.query_width() + plan_.model.key_width());
      }
      return static_cast<std::size_t>(bytes);
    };
    std::vector<std::span<const std::byte>> from(ranks);
    std::vector<std::span<std::byte>> into(ranks);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      if (rank == call.ring.self) continue;
      from[rank] = some<std::byte>(part(call.ring.self));
      into[rank] = some<std::byte>(part(rank));
    }
    link.begin_all_to_all(call.ring, from, into);
  }

  const Plan& plan_;
  runtime::StageProcessGroups process_groups_;
  runtime::ParameterLayout layout_;
  runtime::BucketQueue buckets_;
  std::vector<cuda::WeightUnit> units_;  ///< of shared weights
};

}  // namespace slimpack::test
