// SPDX-License-Identifier: Apache-2.0
// What a micro-batch takes on a group that splits heads by all-to-all (Ulysses), from any cost
// model.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <span>
#include <utility>

#include "slimpack/core/units.hpp"
#include "slimpack/cost/cost_model.hpp"
#include "slimpack/cost/links.hpp"
#include "slimpack/cost/load.hpp"
#include "slimpack/cost/memory_model.hpp"
#include "slimpack/cost/stage_load.hpp"
#include "slimpack/plan/cp_shard.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/plan/virtual_stages.hpp"
#include "slimpack/planners/published/detail/unit_parts.hpp"
#include "slimpack/planners/search/detail/sp_groups.hpp"

namespace slimpack::planners::detail {

/// Bytes that pass from one partition to the other per token, layer and tensor-parallel device: by
/// tokens outside attention, by heads in it. Keys and values are repeated where there are fewer of
/// their heads than ranks.
struct HeadSplitBytes {
  std::int64_t query = 0, key_value = 0;
};
[[nodiscard]] inline HeadSplitBytes head_split_bytes(const Plan& plan,
                                                     std::int64_t ranks) noexcept {
  const ModelShape& model = plan.model;
  const std::int64_t tp = plan.parallel.tp, element = model.bytes_per_element;
  const std::int64_t kv_heads = std::max(model.kv_heads / tp, ranks);
  return {model.query_width() / tp * element, 2 * kv_heads * model.head_dim * element};
}

/// The same summed over what one pass moves: into attention and out of it.
struct HeadSplitPass {
  std::int64_t in = 0, out = 0;
};
[[nodiscard]] inline HeadSplitPass head_split_pass(const HeadSplitBytes& bytes, Pass pass,
                                                   Recompute recompute) noexcept {
  HeadSplitPass moved{bytes.query + bytes.key_value, bytes.query};
  if (pass == Pass::forward) return moved;
  // Gradients go the other way; queries made again, and attention run again, move once more.
  std::swap(moved.in, moved.out);
  if (recompute == Recompute::layer || recompute == Recompute::full) moved.in += bytes.query;
  if (recompute == Recompute::full) moved.out += bytes.query;
  return moved;
}

/// Prices units of groups of ranks by a cost model.
template <CostModel Model>
class HeadSplitTimes {
 public:
  /// Keeps both; they must outlive it. Throws as `Links` does.
  HeadSplitTimes(const Plan& plan, const Model& model) : plan_(plan), model_(model), links_(plan) {
    for (const Placement& place : plan.placement) {
      if (place.tp == 0) node_[{place.dp, place.pp}] = place.device / plan.cluster.devices_per_node;
    }
  }

  /// The load of whole samples on one of `ranks`: a part of the tokens, and a part of the heads of
  /// all pairs and segments.
  [[nodiscard]] PackLoad load(std::span<const Slice> slices, std::int64_t ranks, Pass pass) const {
    PackLoad load;
    for (const Slice& slice : slices) {
      add_slice(load, slice, RingMode::pass_kv, CpShard{}, Tokens{plan_.cluster.tile_tokens});
    }
    const auto part = [&](std::int64_t amount) { return (amount + ranks - 1) / ranks; };
    load.tokens.value = part(load.tokens.value);
    for (const AttentionAmount& amount : kAttentionAmounts) {
      load.*amount.all = part(load.*amount.all);
    }
    load.runs = pass == Pass::backward ? 1 : 0;
    return load;
  }

  /// F or B of a pack on one virtual stage. Its all-to-alls wait for the message that it sends
  /// where that takes the slowest of their links.
  [[nodiscard]] Nanos unit(const MicroPack& pack, const PackLoad& load, std::int32_t line) const {
    const auto& group = plan_.groups[index(pack.group)];
    const std::int32_t pp = virtual_stages_of(plan_).stage(line);
    const StageLoad stage = stage_load(plan_, links_, group, line);
    const Nanos compute = pack.pass == Pass::forward ? model_.forward(load, stage)
                                                     : model_.backward(load, stage, pack.recompute);
    if (group.size() == 1) return compute;
    return compute + exchange(pack, load.tokens, pp) * stage.layers +
           own_message(model_, plan_, load.tokens, stage, pack.pass, stage.exchange_link);
  }

  /// The all-to-alls of one layer: each rank keeps its own part, parts of its node's ranks and of
  /// others' travel at the same time.
  [[nodiscard]] Nanos exchange(const MicroPack& pack, Tokens own, std::int32_t pp) const {
    const auto& group = plan_.groups[index(pack.group)];
    const auto ranks = static_cast<std::int64_t>(group.size());
    if (ranks == 1) return {};
    std::int64_t fewest = ranks;  // ranks of the group on one node, counted where they are fewest
    for (const std::int32_t dp : group) {
      const std::int64_t here = node_.at({dp, pp});
      fewest = std::min<std::int64_t>(
          fewest, std::count_if(group.begin(), group.end(),
                                [&](std::int32_t other) { return node_.at({other, pp}) == here; }));
    }
    const HeadSplitPass moved =
        head_split_pass(head_split_bytes(plan_, ranks), pack.pass, pack.recompute);
    return all_to_all(own.value * moved.in, ranks, fewest) +
           all_to_all(own.value * moved.out, ranks, fewest);
  }

  /// What a sample adds to forward, backward and head of a group of neighbouring ranks, on the
  /// stage with most layers, beyond what any unit takes, in a pack of `pack` such samples; 0: of
  /// one, without the head. At least 1.
  [[nodiscard]] std::int64_t sample(Tokens length, std::int64_t ranks, Recompute recompute,
                                    std::int64_t pack) const {
    const std::int64_t count = std::max<std::int64_t>(pack, 1);
    StageLoad stage;
    for (const Stage& each : plan_.stages) stage.layers = std::max(stage.layers, each.layers());
    stage.tensor_parallel = plan_.parallel.tp;
    stage.tensor_link = stage.exchange_link = plan_.cluster.inside;
    const auto both = [&](const PackLoad& load) {
      return model_.forward(load, stage) + model_.backward(load, stage, recompute) +
             (pack > 0 ? head_time(plan_, model_, load.tokens) : Nanos{});
    };
    const Slice whole{SampleId{}, Tokens{}, length};
    const PackLoad own = load(std::span(&whole, 1), ranks, Pass::forward);
    PackLoad least;
    least.tokens = Tokens{1};
    Nanos time = both(many(own, count)) - both(least);
    if (ranks > 1) {
      const std::int64_t inside =
          std::clamp<std::int64_t>(plan_.cluster.devices_per_node / plan_.parallel.tp, 1, ranks);
      const HeadSplitBytes bytes = head_split_bytes(plan_, ranks);
      for (const Pass pass : {Pass::forward, Pass::backward}) {
        const HeadSplitPass moved = head_split_pass(bytes, pass, recompute);
        const std::int64_t all = count * own.tokens.value * (moved.in + moved.out);
        time += (all_to_all(all, ranks, inside) - all_to_all(0, ranks, inside)) * stage.layers;
      }
    }
    return std::max<std::int64_t>(time.value / count, 1);
  }

  /// Bytes that all devices send for a pack on all layers.
  [[nodiscard]] Bytes sent(const MicroPack& pack, Tokens own) const noexcept {
    const auto ranks = static_cast<std::int64_t>(plan_.groups[index(pack.group)].size());
    const HeadSplitPass moved =
        head_split_pass(head_split_bytes(plan_, ranks), pack.pass, pack.recompute);
    return Bytes{own.value * (moved.in + moved.out) * (ranks - 1) * plan_.parallel.tp *
                 plan_.model.layers};
  }

 private:
  [[nodiscard]] Nanos all_to_all(std::int64_t bytes, std::int64_t ranks,
                                 std::int64_t inside) const {
    const auto part = [&](std::int64_t peers) {
      return Bytes{(bytes * peers + ranks - 1) / ranks};
    };
    Nanos time;
    if (inside > 1) time = model_.transfer(part(inside - 1), plan_.cluster.inside);
    if (inside < ranks) {
      time = std::max(time, model_.transfer(part(ranks - inside), plan_.cluster.between));
    }
    return time;
  }

  const Plan& plan_;
  const Model& model_;
  Links links_;
  std::map<std::pair<std::int32_t, std::int32_t>, std::int64_t> node_;  // of (dp, pp)
};

}  // namespace slimpack::planners::detail
