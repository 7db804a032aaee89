// SPDX-License-Identifier: Apache-2.0
// A plan with a price on every unit, transfer and collective.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/simulation_hook.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/cost/any_model.hpp"
#include "slimpack/cost/cost_model.hpp"
#include "slimpack/cost/link_shares.hpp"
#include "slimpack/cost/links.hpp"
#include "slimpack/cost/load.hpp"
#include "slimpack/cost/memory_model.hpp"
#include "slimpack/cost/stage_load.hpp"
#include "slimpack/cost/unit_times.hpp"
#include "slimpack/cost/weight_traffic.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/plan/structure.hpp"
#include "slimpack/plan/virtual_stages.hpp"

namespace slimpack {

/// `share` of a time, rounded down.
[[nodiscard]] constexpr Nanos part_of(Nanos time, double share) noexcept {
  return {static_cast<std::int64_t>(static_cast<double>(time.value) * share)};
}

/// Elements whose gradients R of (pp, chunk) reduces: the chunk's layers, in chunk 0 also
/// embedding, final norm and head. A tied table is counted on every stage that holds a part.
/// O(stages).
[[nodiscard]] constexpr std::int64_t reduced_weights(const Plan& plan, std::int32_t pp,
                                                     std::int32_t chunk) noexcept {
  const std::int64_t layers = chunk_layers(plan, pp, chunk) * plan.model.layer_weights();
  if (chunk != 0) return layers;
  const DeviceWeights weights = device_weights(plan, pp);
  return layers + weights.embedding + weights.final_norm + weights.head;
}

/// The stages that reduce together in R of chunk 0 because they hold a tied table, whole or in
/// part; empty where none has to. Ascending. O(pp).
[[nodiscard]] inline std::vector<std::int32_t> tied_stages(const Plan& plan) {
  std::vector<std::int32_t> stages;
  if (!plan.model.tied || plan.parallel.pp == 1) return stages;
  for (std::int32_t pp = 0; pp < plan.parallel.pp; ++pp) {
    if (pp == 0 || head_rows(plan, pp) > 0) stages.push_back(pp);
  }
  return stages;
}

/// Bytes that the optimizer reads and writes on one device: state twice, gradients and weights.
/// O(stages).
[[nodiscard]] constexpr Bytes optimizer_bytes(const Plan& plan, std::int32_t pp) noexcept {
  const std::int64_t each =
      2 * state_bytes(plan.model) + plan.memory.gradient_bytes + plan.model.bytes_per_element;
  const bool sharded = plan.memory.optimizer == OptimizerState::sharded;
  const std::int64_t parts = plan.parallel.tp * (sharded ? plan.parallel.dp : 1);
  return Bytes{(device_weights(plan, pp).total() * each + parts - 1) / parts};
}

/// R of each stage of each chunk, chunk by chunk, beside what the units of `shares` send; nothing
/// where ranks share weights. O(stages x ranks).
template <CostModel Model>
[[nodiscard]] std::vector<Nanos> reduce_times(const Plan& plan, const Links& links,
                                              const std::optional<LinkShares>& shares,
                                              const Model& model) {
  const std::int64_t tp = plan.parallel.tp;
  const auto part = [&](std::int64_t bytes) { return Bytes{(bytes + tp - 1) / tp}; };
  const auto chunks = static_cast<std::size_t>(plan.parallel.chunks);
  const auto stages = static_cast<std::size_t>(plan.parallel.pp);
  std::vector<Nanos> reduce(chunks * stages);
  for (std::int32_t pp = 0; pp < plan.parallel.pp; ++pp) {
    const Link& link = links.all_ranks(pp);
    std::vector<Nanos> times;
    for (std::int32_t chunk = 0; chunk < plan.parallel.chunks; ++chunk) {
      const Bytes bytes = part(reduced_weights(plan, pp, chunk) * plan.memory.gradient_bytes);
      times.push_back(model.reduce(bytes, plan.parallel.dp, link));
    }
    if (shares) times = shares->beside_units(times, pp, link);
    if (plan.memory.weights == WeightState::sharded) times.assign(chunks, Nanos{});
    for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
      reduce[chunk * stages + static_cast<std::size_t>(pp)] = times[chunk];
    }
  }
  const std::vector<std::int32_t> tied = tied_stages(plan);
  if (!tied.empty()) {
    const Bytes table = part(plan.model.vocab * plan.model.hidden * plan.memory.gradient_bytes);
    Link link = links.rank(0);
    for (std::int32_t dp = 0; dp < plan.parallel.dp; ++dp) link = slower(link, links.rank(dp));
    Nanos slowest;
    for (const std::int32_t pp : tied) {
      slowest = std::max(slowest, reduce[static_cast<std::size_t>(pp)]);
    }
    slowest += model.reduce(table, static_cast<std::int64_t>(tied.size()), link);
    for (const std::int32_t pp : tied) reduce[static_cast<std::size_t>(pp)] = slowest;
  }
  return reduce;
}

/// The prices of all units, transfers and collectives of a plan, in nanoseconds; satisfies
/// UnitTimes.
///
///     const PricedPlan prices(plan);                   // by the plan's own cost
///     const Nanos f = prices.compute(PackId{3}, 0);    // F of MicroPack 3 on virtual stage 0
///     const Nanos r = prices.reduce(1, 0);             // R of chunk 0 on stage 1
///     const auto step = sim::simulate_plan(plan, prices);
///
/// Everything is priced when it is made: linear in packs times ranks times kinds of stages (stages
/// with equal layers and links are one kind). Every answer is O(1). It keeps nothing of the plan.
class PricedPlan {
 public:
  /// Prices by the plan's own `cost`. Throws InvalidInput where plan, cost or cluster is out of
  /// range.
  explicit PricedPlan(const Plan& plan) {
    std::visit([&](const auto& model) { price(plan, model); }, make_model(plan));
  }
  /// Prices by `model`. Throws InvalidInput where the plan is out of range.
  template <CostModel Model>
  PricedPlan(const Plan& plan, const Model& model) {
    price(plan, model);
  }

  /// F or B of a pack on one virtual stage: the slowest of the group's ranks, whose ring ends
  /// together; where ranks share weights the slowest of all ranks, with what these send
  /// (`weight_traffic`). Where what travels comes home (B, and F with queries that travel), each
  /// has the attention of the rank that has most. W of a weight pack: the slowest of them too.
  [[nodiscard]] Nanos compute(PackId pack, std::int32_t virtual_stage) const noexcept {
    const std::size_t kind =
        kind_[group_[index(pack)] * virtual_stages_ + static_cast<std::size_t>(virtual_stage)];
    return compute_[first_compute_[index(pack)] + kind];
  }
  /// W of a weight pack on one virtual stage of one rank of its group.
  [[nodiscard]] Nanos weight(PackId pack, std::int32_t virtual_stage,
                             std::size_t rank) const noexcept {
    const std::size_t kind =
        kind_[group_[index(pack)] * virtual_stages_ + static_cast<std::size_t>(virtual_stage)];
    return compute_[first_compute_[index(pack)] + kinds_[group_[index(pack)]] * (rank + 1) + kind];
  }
  /// H of a forward pack for one rank of its group; the same on all stages that share it.
  [[nodiscard]] Nanos head(PackId pack, std::size_t rank, std::int32_t) const noexcept {
    return ranked_[first_rank_[index(pack)] + rank].head;
  }
  /// The transfer that leaves a virtual stage on one rank; zero behind the last one, and where the
  /// next one is on the same device.
  [[nodiscard]] Nanos transfer(PackId pack, std::int32_t virtual_stage,
                               std::size_t rank) const noexcept {
    const Ranked& ranked = ranked_[first_rank_[index(pack)] + rank];
    const std::int32_t border = ranked.forward ? virtual_stage : virtual_stage - 1;
    if (border < 0 || border + 1 >= static_cast<std::int32_t>(virtual_stages_)) return {};
    switch (border_[ranked.dp * virtual_stages_ + static_cast<std::size_t>(border)]) {
      case Border::inside:
        return ranked.inside;
      case Border::between:
        return ranked.between;
      default:
        return {};
    }
  }
  /// Whether units take as long on a virtual stage as on the one before, messages that leave it
  /// included, for all packs and ranks. False may be said of some that do.
  [[nodiscard]] bool as_before(std::int32_t virtual_stage) const noexcept {
    return as_before_[static_cast<std::size_t>(virtual_stage)] != 0;
  }
  /// R of one chunk of one stage, all its traffic. With tied embeddings R of chunk 0 adds the
  /// reduction over the stages that hold the table, and lasts equally long on all of them.
  [[nodiscard]] Nanos reduce(std::int32_t pp, std::int32_t chunk) const noexcept {
    return reduce_[static_cast<std::size_t>(chunk) * stages_ + static_cast<std::size_t>(pp)];
  }
  /// O of one device, with the compute that its R took from the units beside them; the same on all
  /// ranks of a stage.
  [[nodiscard]] Nanos optimizer(std::int32_t, std::int32_t pp) const noexcept {
    return optimizer_[static_cast<std::size_t>(pp)];
  }

 private:
  enum class Border : std::uint8_t { none, inside, between };
  struct Ranked {
    Nanos head, inside, between;
    std::uint32_t dp = 0;
    bool forward = true;
  };

  template <CostModel Model>
  void price(const Plan& plan, const Model& model);
  /// Groups and data-parallel ranks that have packs: most candidates of a search have those of one
  /// rank alone.
  struct Used {
    std::vector<bool> groups, ranks;
  };
  [[nodiscard]] static Used find_used(const Plan& plan);
  void find_borders(const Plan& plan, const Links& links, const Used& used);
  [[nodiscard]] std::vector<std::vector<StageLoad>> find_kinds(const Plan& plan, const Links& links,
                                                               const Used& used);
  void compare_stages();  // after both
  template <CostModel Model>
  void price_stages(const Plan& plan, const Links& links, const std::optional<LinkShares>& shares,
                    const Model& model);
  template <CostModel Model>
  void add_weight_traffic(const Plan& plan, const Links& links,
                          const std::optional<LinkShares>& shares, std::span<const Nanos> alone,
                          const Model& model);

  std::size_t virtual_stages_ = 1, stages_ = 1;
  std::vector<std::size_t> group_;          // of a pack
  std::vector<std::size_t> kind_;           // of a virtual stage, by group
  std::vector<std::size_t> kinds_;          // how many there are, by group
  std::vector<std::size_t> first_compute_;  // of a pack in compute_, then by kind; behind those of
                                            // a weight pack the same of each rank
  std::vector<Nanos> compute_;
  std::vector<std::size_t> first_rank_;  // of a pack in ranked_
  std::vector<Ranked> ranked_;
  std::vector<Border> border_;           // behind a virtual stage, by rank
  std::vector<std::uint8_t> as_before_;  // of a virtual stage
  std::vector<Nanos> reduce_, optimizer_;
};

inline PricedPlan::Used PricedPlan::find_used(const Plan& plan) {
  Used used{std::vector<bool>(plan.groups.size()),
            std::vector<bool>(static_cast<std::size_t>(plan.parallel.dp))};
  for (const MicroPack& pack : plan.micropacks) {
    if (index(pack.group) < used.groups.size()) used.groups[index(pack.group)] = true;
  }
  for (std::size_t group = 0; group < plan.groups.size(); ++group) {
    for (const std::int32_t dp : plan.groups[group]) {
      require(dp >= 0 && dp < plan.parallel.dp, "groups: data-parallel rank does not exist", dp);
      if (used.groups[group]) used.ranks[static_cast<std::size_t>(dp)] = true;
    }
  }
  return used;
}

inline void PricedPlan::find_borders(const Plan& plan, const Links& links, const Used& used) {
  const VirtualStages virtual_stages = virtual_stages_of(plan);
  for (std::int32_t dp = 0; dp < plan.parallel.dp; ++dp) {
    const bool sends = virtual_stages.pp > 1 && used.ranks[static_cast<std::size_t>(dp)];
    for (std::int32_t i = 0; i < virtual_stages.size(); ++i) {
      Border border = Border::none;
      if (sends && i + 1 < virtual_stages.size()) {
        const Link& link = links.stages(dp, virtual_stages.stage(i), virtual_stages.stage(i + 1));
        border = link == plan.cluster.inside ? Border::inside : Border::between;
      }
      border_.push_back(border);
    }
  }
}

inline std::vector<std::vector<StageLoad>> PricedPlan::find_kinds(const Plan& plan,
                                                                  const Links& links,
                                                                  const Used& used) {
  const VirtualStages virtual_stages = virtual_stages_of(plan);
  std::vector<std::vector<StageLoad>> kinds(plan.groups.size());
  std::vector<StageLoad> of_stage(stages_);
  for (std::size_t group = 0; group < plan.groups.size(); ++group) {
    if (!used.groups[group]) {
      kind_.resize(kind_.size() + virtual_stages_);
      kinds_.push_back(0);
      continue;
    }
    for (std::int32_t pp = 0; pp < virtual_stages.pp; ++pp) {
      of_stage[static_cast<std::size_t>(pp)] = stage_links(plan, links, plan.groups[group], pp);
    }
    for (std::int32_t i = 0; i < virtual_stages.size(); ++i) {
      const StageLoad stage =
          stage_load(plan, of_stage[static_cast<std::size_t>(virtual_stages.stage(i))], i);
      const auto found = std::find(kinds[group].begin(), kinds[group].end(), stage);
      kind_.push_back(static_cast<std::size_t>(found - kinds[group].begin()));
      if (found == kinds[group].end()) kinds[group].push_back(stage);
    }
    kinds_.push_back(kinds[group].size());
  }
  return kinds;
}

inline void PricedPlan::compare_stages() {
  const auto alike = [&](const auto& row, std::size_t a, std::size_t b) {
    for (; a < row.size(); a += virtual_stages_, b += virtual_stages_) {
      if (row[a] != row[b]) return false;
    }
    return true;
  };
  as_before_.assign(virtual_stages_, 0);
  for (std::size_t i = 2; i < virtual_stages_; ++i) {
    // Backward messages go over the border ahead of a stage.
    as_before_[i] =
        alike(kind_, i, i - 1) && alike(border_, i, i - 1) && alike(border_, i - 1, i - 2);
  }
}

namespace detail {

/// F, B or W of a pack on one rank, by its pass. A model that is not split has none that are apart.
template <CostModel Model>
[[nodiscard]] Nanos pack_price(const Model& model, const MicroPack& pack, const PackLoad& load,
                               const StageLoad& stage) noexcept {
  if (pack.pass == Pass::forward) return model.forward(load, stage);
  if constexpr (SplitCostModel<Model>) {
    if (pack.pass == Pass::weight) return model.weight(load, stage);
    if (pack.weights == WeightGradients::apart) {
      return model.backward_apart(load, stage, pack.recompute);
    }
  }
  return model.backward(load, stage, pack.recompute);
}

/// Whether what travels comes home in every layer: gradients of keys, or results of queries. Then
/// no rank goes on before the one with most attention is through.
[[nodiscard]] inline bool comes_home(const MicroPack& pack) noexcept {
  if (pack.pass != Pass::forward) return pack.pass == Pass::backward;
  return std::ranges::any_of(pack.exchange,
                             [](RingMode mode) { return mode != RingMode::pass_kv; });
}

/// The most pairs and keys that a rank of a pack's group has beside what it attends to alone, and
/// the most that one sends by heads, by the loads of all. O(ranks).
[[nodiscard]] inline PackLoad most_attention(std::span<const PackLoad> loads) noexcept {
  PackLoad most;
  for (const PackLoad& load : loads) {
    for (const AttentionAmount& amount : kAttentionAmounts) {
      most.*amount.all = std::max(most.*amount.all, load.*amount.all - load.*amount.alone);
    }
    most.heads_sent = std::max(most.heads_sent, load.heads_sent);
    if (load.heads_sent > Tokens{}) most.head_sets = load.head_sets;
  }
  return most;
}

/// `load` with the pairs and keys of `most` beside its own alone, and what `most` sends.
[[nodiscard]] inline PackLoad with_attention(PackLoad load, const PackLoad& most) noexcept {
  for (const AttentionAmount& amount : kAttentionAmounts) {
    load.*amount.all = most.*amount.all + load.*amount.alone;
  }
  load.heads_sent = most.heads_sent;
  load.head_sets = most.head_sets;
  return load;
}

/// By how much its exchange by heads prolongs F or B of a pack.
template <CostModel Model>
[[nodiscard]] Nanos exposed_heads(const Model& model, const MicroPack& pack, const PackLoad& load,
                                  const StageLoad& stage) noexcept {
  if (load.heads_sent == Tokens{}) return {};
  PackLoad without = load;
  without.heads_sent = {};
  return pack_price(model, pack, load, stage) - pack_price(model, pack, without, stage);
}

}  // namespace detail

template <CostModel Model>
void PricedPlan::price(const Plan& plan, const Model& model) {
  SLIMPACK_ON_SIMULATION(prices, 1);
  if constexpr (!SplitCostModel<Model>) require_weights_with(plan, "prices of whole B alone");
  require(plan.parallel.chunks > 0, "parallel.chunks must be > 0", plan.parallel.chunks);
  const Links links(plan);
  virtual_stages_ = static_cast<std::size_t>(virtual_stages_of(plan).size());
  stages_ = static_cast<std::size_t>(plan.parallel.pp);
  const Used used = find_used(plan);
  find_borders(plan, links, used);
  const std::vector<std::vector<StageLoad>> kinds = find_kinds(plan, links, used);
  compare_stages();

  HeadLoad head;
  head.tensor_parallel = plan.parallel.tp;
  head.tile = plan.memory.head_tile;
  if (plan.parallel.head == LmHead::shard) head.shards = plan.parallel.pp;
  for (std::int32_t pp = 0; pp < plan.parallel.pp; ++pp) {
    head.vocab = std::max(head.vocab, head_rows(plan, pp));
  }
  std::vector<Link> head_link(used.ranks.size()), head_tensor_link(used.ranks.size());
  for (std::int32_t dp = 0; dp < plan.parallel.dp; ++dp) {
    const auto rank = static_cast<std::size_t>(dp);
    if (!used.ranks[rank]) continue;
    head_link[rank] = links.rank(dp);
    Link tensor = links.tensor(dp, plan.parallel.pp - 1);
    for (std::int32_t pp = 0; head.shards > 1 && pp < plan.parallel.pp; ++pp) {
      tensor = slower(tensor, links.tensor(dp, pp));
    }
    head_tensor_link[rank] = tensor;
  }

  const std::int64_t hidden = layer_bytes(plan.model, 0, plan.parallel.tp).boundary;
  const std::size_t packs = plan.micropacks.size();
  group_.reserve(packs);
  first_compute_.reserve(packs);
  first_rank_.reserve(packs);
  ranked_.reserve(packs);
  std::size_t most_kinds = 0;
  for (const auto& of_group : kinds) most_kinds = std::max(most_kinds, of_group.size());
  compute_.reserve(packs * most_kinds);
  const bool inside = std::ranges::find(border_, Border::inside) != border_.end();
  const bool between = std::ranges::find(border_, Border::between) != border_.end();
  PackLoad most, waiting, slowest;  // of packs whose ranks wait for each other
  std::optional<LinkShares> shares;
  if (plan.cluster.small.shared_links && plan.parallel.dp > 1) shares.emplace(plan, links);
  const bool in_rounds = plan.memory.weights == WeightState::sharded && plan.parallel.pp == 1;
  const Link* gathered = in_rounds && shares ? &links.all_ranks(0) : nullptr;
  std::vector<Nanos> alone(in_rounds ? packs : 0);
  for_each_pack_load(plan, [&](PackId id, std::span<const PackLoad> loads) {
    const MicroPack& pack = plan.micropacks[index(id)];
    const bool forward = pack.pass == Pass::forward;
    group_.push_back(index(pack.group));
    first_compute_.push_back(compute_.size());
    const std::vector<StageLoad>& stages = kinds[index(pack.group)];
    const std::size_t first = compute_.size();
    compute_.resize(first + stages.size());
    const bool waits = loads.size() > 1 && detail::comes_home(pack);
    if (waits) most = detail::most_attention(loads);
    for (const PackLoad& own : loads) {
      if (waits) waiting = detail::with_attention(own, most);
      const PackLoad& load = waits ? waiting : own;
      for (std::size_t kind = 0; kind < stages.size(); ++kind) {
        const Nanos time = detail::pack_price(model, pack, load, stages[kind]);
        if (kind == 0 && time > compute_[first]) slowest = load;
        compute_[first + kind] = std::max(compute_[first + kind], time);
        if (pack.pass == Pass::weight) compute_.push_back(time);
      }
    }
    first_rank_.push_back(ranked_.size());
    for (std::size_t rank = 0; rank < loads.size(); ++rank) {
      const Tokens own = loads[rank].tokens;
      const auto dp = static_cast<std::size_t>(plan.groups[index(pack.group)][rank]);
      Ranked ranked{{}, {}, {}, static_cast<std::uint32_t>(dp), forward};
      if (forward) {
        head.tokens = own;
        head.link = head_link[dp];
        head.tensor_link = head_tensor_link[dp];
        ranked.head = model.head(head);
      }
      if (pack.pass == Pass::weight) {  // it sends nothing
        ranked_.push_back(ranked);
        continue;
      }
      const Bytes message{own.value * hidden};
      if (inside) ranked.inside = model.transfer(message, plan.cluster.inside);
      if (between) ranked.between = model.transfer(message, plan.cluster.between);
      ranked_.push_back(ranked);
    }
    if (gathered != nullptr && waits && stages[0].exchange_link == *gathered) {
      alone[index(id)] = detail::exposed_heads(model, pack, slowest, stages[0]);
    }
    if (shares) shares->add(id, loads, *this, in_rounds ? alone[index(id)] : Nanos{});
  });
  price_stages(plan, links, shares, model);
  if (in_rounds) add_weight_traffic(plan, links, shares, alone, model);
}

template <CostModel Model>
void PricedPlan::add_weight_traffic(const Plan& plan, const Links& links,
                                    const std::optional<LinkShares>& shares,
                                    std::span<const Nanos> alone, const Model& model) {
  const WeightTraffic traffic = weight_traffic(plan, links, model, 0);
  std::vector<Nanos> sent{traffic.gather, traffic.gather + traffic.scatter};
  if (shares) sent = shares->beside_units(sent, 0, links.all_ranks(0));
  // Stages are one, and so are kinds of them.
  detail::run_in_rounds(
      plan, traffic.layers, sent, alone,
      [&](std::size_t pack) -> Nanos& { return compute_[first_compute_[pack]]; },
      [&](std::size_t pack, std::size_t rank) { return ranked_[first_rank_[pack] + rank].head; });
}

template <CostModel Model>
void PricedPlan::price_stages(const Plan& plan, const Links& links,
                              const std::optional<LinkShares>& shares, const Model& model) {
  const std::int64_t tp = plan.parallel.tp;
  const auto part = [&](std::int64_t bytes) { return Bytes{(bytes + tp - 1) / tp}; };
  // Where ranks share weights, B has summed gradients, and the next F gathers what O updates.
  const bool shared = plan.memory.weights == WeightState::sharded;
  const bool sharded = !shared && plan.memory.optimizer == OptimizerState::sharded;
  reduce_ = reduce_times(plan, links, shares, model);
  for (std::int32_t pp = 0; pp < plan.parallel.pp; ++pp) {
    const Bytes gathered =
        sharded ? part(device_weights(plan, pp).total() * plan.model.bytes_per_element) : Bytes{};
    Nanos reduced;
    for (std::int32_t chunk = 0; chunk < plan.parallel.chunks; ++chunk)
      reduced += reduce(pp, chunk);
    optimizer_.push_back(model.optimizer(optimizer_bytes(plan, pp), gathered, plan.parallel.dp,
                                         links.all_ranks(pp)) +
                         part_of(reduced, plan.cluster.small.collective_compute));
  }
}

static_assert(RankedWeightTimes<PricedPlan> && ComparedTimes<PricedPlan>);

#ifdef SLIMPACK_COMPILED_PLANNERS
extern template void PricedPlan::price(const Plan&, const AnalyticModel&);
extern template void PricedPlan::price(const Plan&, const FittedModel&);
extern template void PricedPlan::price(const Plan&, const TableModel&);
#endif

}  // namespace slimpack
