// SPDX-License-Identifier: Apache-2.0
// Random plans whose ranks share weights, small enough to execute, valid by construction.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "slimpack/core/random.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/plan/plan.hpp"
#include "support/random_plan.hpp"

namespace slimpack::test {

/// What to draw; an empty optional is drawn at random.
struct ShardedPlanOptions {
  std::optional<std::int32_t> dp, tp;
  bool by_heads = false;  ///< as of RandomPlanOptions
};

namespace detail {

/// Draws batches of samples that run side by side: each divides all ranks into groups, every one of
/// which cuts its samples into as many packs, so that the packs of all groups make up rounds.
class RandomRounds {
 public:
  RandomRounds(Random& random, Plan& plan) : random_(random), plan_(plan) {}

  /// Adds samples, groups, MicroPacks and orders to a plan without any.
  void draw() {
    for (std::int32_t rank = 0; rank < plan_.parallel.dp; ++rank) {
      plan_.groups.push_back({rank});
      group_of_[{rank}] = static_cast<GroupId>(rank);
      plan_.schedule.push_back({rank, 0, {}});
    }
    std::vector<Batch> batches(static_cast<std::size_t>(random_.between(1, 3)));
    for (Batch& batch : batches) batch = draw_batch();
    run(batches);
    for (DeviceSchedule& device : plan_.schedule) {
      device.order.push_back({UnitKind::reduce, {}, 0});
      device.order.push_back({UnitKind::optimizer, {}, 0});
    }
  }

 private:
  using Round = std::vector<MicroPack>;  ///< one pack a group, of all ranks together
  struct Batch {
    std::vector<Round> forward, backward;
    std::size_t next_forward = 0, next_backward = 0, heads = 0;
  };

  [[nodiscard]] Batch draw_batch() {
    std::vector<std::vector<SampleId>> members;
    std::vector<GroupId> groups;
    for (const std::vector<std::int32_t>& ranks : draw_partition()) {
      const auto [found, added] = group_of_.try_emplace(ranks, GroupId{});
      if (added) {
        found->second = static_cast<GroupId>(plan_.groups.size());
        plan_.groups.push_back(ranks);
        const auto size = static_cast<std::int32_t>(ranks.size());
        plan_.parallel.max_cp = std::max(plan_.parallel.max_cp, size);
      }
      groups.push_back(found->second);
      members.push_back(draw_samples(found->second));
    }
    return {draw_rounds(Pass::forward, groups, members),
            draw_rounds(Pass::backward, groups, members)};
  }

  /// All ranks, divided.
  [[nodiscard]] std::vector<std::vector<std::int32_t>> draw_partition() {
    std::vector<std::int32_t> ranks(static_cast<std::size_t>(plan_.parallel.dp));
    std::iota(ranks.begin(), ranks.end(), 0);
    random_.shuffle(std::span(ranks));
    std::vector<std::vector<std::int32_t>> parts;
    for (const std::int32_t rank : ranks) {
      if (parts.empty() || random_.chance(1, 2)) parts.emplace_back();
      parts.back().push_back(rank);
    }
    for (auto& part : parts) std::sort(part.begin(), part.end());
    return parts;
  }

  [[nodiscard]] std::vector<SampleId> draw_samples(GroupId group) {
    std::vector<SampleId> samples;
    for (std::int64_t left = random_.between(1, 3); left > 0; --left) {
      const bool single = random_.chance(1, 8);
      samples.push_back(static_cast<SampleId>(plan_.samples.size()));
      plan_.origin.push_back({0, static_cast<std::int64_t>(plan_.samples.size()), {0}});
      plan_.samples.push_back({single ? 1 : random_.between(2, 40)});
      plan_.sample_group.push_back(group);
    }
    return samples;
  }

  /// The samples one after the other, cut where slices may end; in backward from the last on.
  [[nodiscard]] std::vector<Round> draw_rounds(Pass pass, const std::vector<GroupId>& groups,
                                               const std::vector<std::vector<SampleId>>& members) {
    std::vector<std::vector<Slice>> pieces;  // by group, the smallest
    std::size_t count = 1 + static_cast<std::size_t>(random_.below(3));
    for (const std::vector<SampleId>& samples : members) {
      std::vector<Slice>& all = pieces.emplace_back();
      for (const SampleId sample : samples) {
        const Tokens length = plan_.samples[index(sample)];
        for (Tokens begin{}; begin < length; begin += plan_.parallel.granularity) {
          all.push_back({sample, begin, std::min(length, begin + plan_.parallel.granularity)});
        }
      }
      count = std::min(count, all.size());
    }
    std::vector<Round> rounds(count);
    for (std::size_t group = 0; group < groups.size(); ++group) {
      std::size_t first = 0;
      const std::vector<Slice>& all = pieces[group];
      for (std::size_t round = 0; round < count; ++round) {
        const std::size_t most = all.size() - first - (count - round - 1);
        const std::size_t size = round + 1 == count ? most : 1 + random_.below(most);
        MicroPack pack = draw_pack(pass, groups[group], std::span(all).subspan(first, size));
        rounds[pass == Pass::forward ? round : count - 1 - round].push_back(std::move(pack));
        first += size;
      }
    }
    return rounds;
  }

  /// A pack of pieces, joined where they follow each other.
  [[nodiscard]] MicroPack draw_pack(Pass pass, GroupId group, std::span<const Slice> pieces) {
    MicroPack pack;
    pack.pass = pass;
    pack.group = group;
    for (const Slice& piece : pieces) {
      if (!pack.slices.empty() && pack.slices.back().sample == piece.sample) {
        pack.slices.back().end = piece.end;
      } else {
        pack.slices.push_back(piece);
      }
    }
    if (plan_.groups[index(group)].size() > 1) {
      for (std::size_t i = 0; i < pack.slices.size(); ++i) {
        pack.exchange.push_back(random_.chance(1, 2) ? RingMode::pass_kv : RingMode::pass_q);
      }
    }
    if (pass == Pass::backward) {
      pack.recompute = static_cast<Recompute>(random_.below(kRecomputeModes));
    }
    return pack;
  }

  /// Runs the rounds of all batches in one random order that is legal; packs get their numbers in
  /// it.
  void run(std::vector<Batch>& batches) {
    std::vector<std::pair<Batch*, std::vector<PackId>>> headless;  // rounds between F and H
    std::size_t heads = 0;
    for (;;) {
      std::vector<std::pair<UnitKind, Batch*>> possible;
      if (heads < headless.size()) possible.emplace_back(UnitKind::head, nullptr);
      for (Batch& batch : batches) {
        if (batch.next_forward < batch.forward.size()) {
          possible.emplace_back(UnitKind::forward, &batch);
        } else if (batch.heads == batch.forward.size() &&
                   batch.next_backward < batch.backward.size()) {
          possible.emplace_back(UnitKind::backward, &batch);
        }
      }
      if (possible.empty()) return;
      const auto [kind, batch] = possible[random_.below(possible.size())];
      if (kind == UnitKind::head) {  // in the order of F
        for (const PackId pack : headless[heads].second) add_unit(kind, pack);
        ++headless[heads++].first->heads;
        continue;
      }
      const bool forward = kind == UnitKind::forward;
      const Round& round =
          forward ? batch->forward[batch->next_forward++] : batch->backward[batch->next_backward++];
      std::vector<PackId> packs;
      for (const MicroPack& pack : round) {
        packs.push_back(static_cast<PackId>(plan_.micropacks.size()));
        plan_.micropacks.push_back(pack);
        add_unit(kind, packs.back());
      }
      if (forward) headless.emplace_back(batch, std::move(packs));
    }
  }
  void add_unit(UnitKind kind, PackId pack) {
    for (const std::int32_t rank : plan_.groups[index(plan_.micropacks[index(pack)].group)]) {
      plan_.schedule[static_cast<std::size_t>(rank)].order.push_back({kind, pack, 0});
    }
  }

  Random& random_;
  Plan& plan_;
  std::map<std::vector<std::int32_t>, GroupId> group_of_;
};

}  // namespace detail

/// A valid plan of version 3 whose ranks share weights. The same seed and options give the same
/// plan, up to the last bit of the cluster's rates.
[[nodiscard]] inline Plan random_sharded_plan(std::uint64_t seed,
                                              const ShardedPlanOptions& options = {}) {
  Random random(seed * 0x9e3779b97f4a7c15U + 0x5aa4dU);
  const RandomPlanOptions sizes;
  Plan plan;
  plan.version = 3;
  plan.planner = "random";
  plan.step_index = static_cast<std::int64_t>(seed % 1000);
  plan.parallel.dp = options.dp.value_or(static_cast<std::int32_t>(random.between(2, 4)));
  plan.parallel.tp = options.tp.value_or(random.chance(1, 3) ? 2 : 1);
  plan.parallel.head = random.chance(1, 2) ? LmHead::shard : LmHead::last;
  plan.parallel.granularity = {random.between(1, sizes.max_granularity)};
  plan.model = detail::random_model(random, sizes, 1);
  detail::make_divisible(plan.model, plan.parallel.tp);
  plan.memory.capacity = sizes.capacity;
  plan.memory.optimizer = OptimizerState::sharded;
  plan.memory.weights = WeightState::sharded;
  plan.memory.gradient_bytes = sizes.gradient_bytes;
  plan.memory.page_tokens = {random.between(sizes.min_page, sizes.max_page)};
  plan.memory.cp_block_tokens = {random.between(sizes.min_share, sizes.max_share)};
  plan.memory.head_tile = {random.between(1, sizes.max_head_tile)};
  detail::random_stages(random, plan);
  detail::random_cluster(random, plan, sizes);
  detail::RandomRounds(random, plan).draw();
  for (const Tokens length : plan.samples) plan.target_tokens += length.value - 1;
  plan.target_tokens = std::max<std::int64_t>(1, plan.target_tokens);
  plan.sources.push_back({"random.lengths", static_cast<std::int64_t>(plan.samples.size()), ""});
  detail::random_firsts(seed, plan);
  if (options.by_heads) detail::random_by_heads(seed, plan, false);
  for (std::int32_t dp = 0; dp < plan.parallel.dp; ++dp) {
    plan.prediction.devices.push_back({dp, 0, {}, {}});
  }
  return plan;
}

}  // namespace slimpack::test
