// SPDX-License-Identifier: Apache-2.0
// How WLB-LLM shares a micro-batch among the ranks of a context-parallel group.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/cost/any_model.hpp"
#include "slimpack/cost/communication.hpp"
#include "slimpack/cost/cost_model.hpp"
#include "slimpack/cost/links.hpp"
#include "slimpack/cost/load.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/planners/published/detail/unit_parts.hpp"

namespace slimpack::planners::detail {

/// What a group of ranks divides: each document by itself, or the sequence of all documents one
/// behind the other. It is cut into twice as many equal chunks as there are ranks; rank i has the
/// i-th chunk from either end.
enum class Sharding : std::uint8_t { document, sequence };

/// Where chunk `i` of `ranks` x 2 begins.
[[nodiscard]] constexpr Tokens chunk_begin(Tokens length, std::int64_t i,
                                           std::int64_t ranks) noexcept {
  return {length.value * i / (2 * ranks)};
}

/// Adds queries [first, last) of a document whose keys are all there.
inline void add_queries(PackLoad& load, Tokens first, Tokens last, Tokens tile) {
  if (first >= last) return;
  load.tokens += last - first;
  load.keys += last.value;
  add_run(load, first, last, square(last) - square(first), tile,
          [](Tokens position) { return position; });
}

/// Adds a document shared by `ranks` ranks: `rank`'s two chunks of it.
inline void add_document(PackLoad& load, Tokens length, std::int64_t rank, std::int64_t ranks,
                         Tokens tile) {
  const std::int64_t other = 2 * ranks - 1 - rank;
  const Tokens first = chunk_begin(length, rank, ranks),
               last = chunk_begin(length, other + 1, ranks);
  if (other == rank + 1) {  // the two are one run
    add_queries(load, first, last, tile);
  } else {
    add_queries(load, first, chunk_begin(length, rank + 1, ranks), tile);
    add_queries(load, chunk_begin(length, other, ranks), last, tile);
  }
}

/// The load of each of `ranks` ranks that compute `documents` together. A rank gathers the keys and
/// values of all tokens that it does not hold. O(documents x ranks).
[[nodiscard]] inline std::vector<PackLoad> shard_loads(std::span<const Tokens> documents,
                                                       std::int64_t ranks, Sharding sharding,
                                                       Tokens tile) {
  Tokens total;
  for (const Tokens length : documents) total += length;
  std::vector<PackLoad> loads(static_cast<std::size_t>(ranks));
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    PackLoad& load = loads[static_cast<std::size_t>(rank)];
    load.ranks = ranks;
    if (sharding == Sharding::document) {
      for (const Tokens length : documents) add_document(load, length, rank, ranks, tile);
    } else {
      const std::int64_t other = 2 * ranks - 1 - rank;
      const auto add = [&](Tokens begin, Tokens end) {  // of the sequence
        Tokens start;
        for (const Tokens length : documents) {
          add_queries(load, std::max(begin, start) - start,
                      std::max(std::min(end, start + length), start) - start, tile);
          start += length;
        }
      };
      const Tokens first = chunk_begin(total, rank, ranks);
      const Tokens last = chunk_begin(total, other + 1, ranks);
      if (other == rank + 1) {
        add(first, last);
      } else {
        add(first, chunk_begin(total, rank + 1, ranks));
        add(chunk_begin(total, other, ranks), last);
      }
    }
    load.kv_received = ranks > 1 ? total - load.tokens : Tokens{};
  }
  return loads;
}

/// Times of all F and B of a plan of whole documents, each micro-batch divided in the way that its
/// prediction favours.
struct ShardedTimes {
  std::vector<Nanos> times;                       ///< by pack and virtual stage
  Bytes exchange;                                 ///< that the ranks of groups receive
  std::int64_t by_document = 0, by_sequence = 0;  ///< forward packs divided that way
};

/// Predicts both ways for each micro-batch and takes the faster one.
class WlbPricing {
 public:
  WlbPricing(const Plan& plan, AnyModel model)
      : plan_(plan), model_(std::move(model)), links_(plan) {}

  [[nodiscard]] ShardedTimes run() const {
    return std::visit([&](const auto& model) { return price(model); }, model_);
  }

 private:
  /// The slowest rank of a group.
  template <CostModel Model>
  [[nodiscard]] static Nanos slowest(const Model& model, std::span<const PackLoad> loads,
                                     const StageLoad& stage, const MicroPack& pack) {
    Nanos most;
    for (PackLoad load : loads) {
      if (pack.pass == Pass::backward) load.runs = 1;  // the packs of both passes are the same
      most = std::max(most, unit_price(model, load, stage, pack.pass, pack.recompute));
    }
    return most;
  }

  template <CostModel Model>
  [[nodiscard]] ShardedTimes price(const Model& model) const {
    std::vector<StageKinds> kinds;
    for (std::size_t group = 0; group < plan_.groups.size(); ++group) {
      kinds.push_back(stage_kinds(plan_, links_, static_cast<GroupId>(group)));
    }
    ShardedTimes result;
    const Tokens tile{plan_.cluster.tile_tokens};
    for (std::size_t i = 0; i < plan_.micropacks.size(); i += 2) {
      const MicroPack& forward = plan_.micropacks[i];
      const MicroPack& backward = plan_.micropacks[i + 1];
      const StageKinds& stages = kinds[index(forward.group)];
      const auto ranks = static_cast<std::int64_t>(plan_.groups[index(forward.group)].size());
      std::vector<Tokens> documents;
      for (const Slice& slice : forward.slices) documents.push_back(slice.length());
      std::vector<PackLoad> loads = shard_loads(documents, ranks, Sharding::document, tile);
      const auto both = [&](const std::vector<PackLoad>& some) {
        const StageLoad& stage = stages.loads.back();
        return slowest(model, some, stage, forward) + slowest(model, some, stage, backward);
      };
      bool sequence = false;
      if (ranks > 1 && documents.size() > 1) {
        std::vector<PackLoad> other = shard_loads(documents, ranks, Sharding::sequence, tile);
        sequence = both(other) < both(loads);
        if (sequence) loads = std::move(other);
      }
      ++(sequence ? result.by_sequence : result.by_document);
      for (const MicroPack* pack : {&forward, &backward}) {
        std::vector<Nanos> by_kind;
        for (const StageLoad& stage : stages.loads) {
          by_kind.push_back(slowest(model, loads, stage, *pack));
        }
        for (const std::size_t kind : stages.kind) result.times.push_back(by_kind[kind]);
        const std::int64_t each = plan_.model.layers * exchange_bytes(plan_, *pack).kv;
        for (const PackLoad& load : loads) result.exchange += Bytes{load.kv_received.value * each};
      }
    }
    return result;
  }

  const Plan& plan_;
  AnyModel model_;
  Links links_;
};

}  // namespace slimpack::planners::detail
