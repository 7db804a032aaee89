// SPDX-License-Identifier: Apache-2.0
// What list scheduling works on: parts of a plan that share no MicroPack, and its choices.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/union_find.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/cost/links.hpp"
#include "slimpack/cost/slice_index.hpp"
#include "slimpack/plan/cp_shard.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/schedule/detail/list_sequence.hpp"

namespace slimpack::schedule {

/// Settings of `list_schedule`. Every value that is allowed gives a valid schedule.
struct ListOptions {
  /// Sharded head: the stages of a rank run H together when so many packs wait for it; until then
  /// the last stage prefers F. More packs cost fewer collectives and keep more tokens in flight.
  /// Head on the last stage and several chunks: by so many packs the last stage may run F ahead of
  /// what its next B needs. >= 1.
  std::int32_t head_batch = 8;
  /// F goes before a ready B while at most so many F units wait at the next stage, >= -1.
  std::int32_t forward_queue = 1;
  /// Head on the last stage: H runs right behind the F that it reads, whatever else is ready.
  bool head_at_once = false;
  /// Most packs of a rank that pass chunk after chunk together; 0: 3/2 of the stages, rounded up.
  /// Where ranks share no packs and no samples end them, none has fewer packs than there are stages
  /// but where messages in flight ask for it.
  /// Messages in flight bound it: at most 2 max_in_flight pp - 1, and 2 max_in_flight for each
  /// group among ranks that share packs.
  std::int32_t chunk_block = 0;
  /// Such blocks go on until a sample of several packs has ended, as far as messages in flight let
  /// them. B of a sample then awaits the F of its own packs alone, and not those of half a block
  /// behind them, which keep memory until their turn.
  bool sample_blocks = false;
  /// Such blocks of a rank that shares no packs are equal but for one pack, where samples do not
  /// end them; else as many as can be are full.
  bool even_blocks = false;
  /// Head on the last stage and several chunks: B that is ready goes before F there, as in
  /// interleaved 1F1B; else F may run ahead as `head_batch` says.
  bool backward_first = false;
  /// `chunk_block`, or its default for so many stages.
  [[nodiscard]] constexpr std::int32_t block(std::int32_t stages) const noexcept {
    return chunk_block > 0 ? chunk_block : (3 * stages + 1) / 2;
  }
  friend bool operator==(const ListOptions&, const ListOptions&) = default;
};

/// The ranks of a plan in parts that share no MicroPack, so that each is scheduled by itself, and
/// the order of work in each part. Reads everything of a plan but its schedule and prediction.
///
///     const ScheduleParts parts(plan);
///     for (std::size_t part = 0; part < parts.size(); ++part) schedule(parts.ranks(part));
class ScheduleParts {
 public:
  /// Packs run in the order in which the plan lists them, so far as the slices of a sample allow;
  /// else the lowest listed pack that may come next. Throws InvalidInput if packs name samples or
  /// groups that do not exist, slices do not partition their samples or no order is possible.
  /// O(slices) where the order is as listed, else O(n log n).
  explicit ScheduleParts(const Plan& plan) {
    require(plan.parallel.dp >= 1 && plan.parallel.pp >= 1 && plan.parallel.chunks >= 1,
            "list_schedule: dp, pp and chunks must be >= 1");
    require(plan.max_in_flight >= 1, "list_schedule: window must be >= 1", plan.max_in_flight);
    require(plan.stages.size() == static_cast<std::size_t>(virtual_stages_of(plan).size()),
            "list_schedule: there must be one stage for each virtual stage",
            static_cast<std::int64_t>(plan.stages.size()));
    for (std::size_t i = 0; i < plan.stages.size(); ++i) {
      const auto virtual_stage = static_cast<std::int32_t>(i);
      require(plan.stages[i].pp == virtual_stages_of(plan).stage(virtual_stage) &&
                  plan.stages[i].chunk == virtual_stages_of(plan).chunk(virtual_stage),
              "list_schedule: stages must be in the order of virtual stages, at virtual stage",
              virtual_stage);
    }
    for (const std::vector<std::int32_t>& group : plan.groups) {
      for (std::size_t i = 0; i < group.size(); ++i) {
        require(group[i] >= 0 && group[i] < plan.parallel.dp,
                "list_schedule: a group names a rank that does not exist", group[i]);
        require(i == 0 || group[i - 1] < group[i],
                "list_schedule: the ranks of a group must ascend", group[i]);
      }
    }
    join_ranks(plan, {detail::queue_order(plan, Pass::forward),
                      detail::queue_order(plan, Pass::backward), detail::weight_packs(plan)});
    find_last_backward(plan);
    stages_ = static_cast<std::size_t>(plan.parallel.pp);
    one_port_ = slimpack::one_port(plan);
  }

  /// The number of parts.
  [[nodiscard]] std::size_t size() const noexcept { return ranks_.size(); }
  /// The data-parallel ranks of a part, ascending; parts are in the order of their lowest rank.
  [[nodiscard]] const std::vector<std::int32_t>& ranks(std::size_t part) const noexcept {
    return ranks_[part];
  }
  /// The packs of one pass of a part, in the order in which they run; weight packs as listed.
  [[nodiscard]] const std::vector<std::uint32_t>& packs(std::size_t part,
                                                        Pass pass) const noexcept {
    return packs_[part][static_cast<std::size_t>(pass)];
  }
  /// The position of a pack in `packs` of its part and pass.
  [[nodiscard]] std::uint32_t position(std::uint32_t pack) const noexcept {
    return position_[pack];
  }
  /// The position in `packs` of the forward pack that ends a sample.
  [[nodiscard]] std::uint32_t last_forward(SampleId sample) const noexcept {
    return last_forward_[index(sample)];
  }
  /// The position in `packs` of the last backward pack that leaves tokens to a weight pack.
  [[nodiscard]] std::uint32_t last_backward(std::uint32_t weight_pack) const noexcept {
    return last_backward_[weight_pack];
  }
  /// Whether the messages that (dp, pp) sends forward and back take turns.
  [[nodiscard]] bool one_port(std::int32_t dp, std::int32_t pp) const {
    return one_port_[static_cast<std::size_t>(dp) * stages_ + static_cast<std::size_t>(pp)];
  }
  /// The position of a rank in `ranks` of its part.
  [[nodiscard]] std::uint32_t place(std::int32_t dp) const noexcept {
    return place_[static_cast<std::size_t>(dp)];
  }

 private:
  void join_ranks(const Plan& plan, const std::array<std::vector<std::uint32_t>, 3>& order) {
    const auto ranks = static_cast<std::size_t>(plan.parallel.dp);
    UnionFind sets(ranks);
    std::vector<bool> used(plan.groups.size(), false);
    for (const MicroPack& pack : plan.micropacks) used[index(pack.group)] = true;
    for (std::size_t group = 0; group < plan.groups.size(); ++group) {
      for (std::size_t i = 1; used[group] && i < plan.groups[group].size(); ++i) {
        sets.join(static_cast<std::size_t>(plan.groups[group][0]),
                  static_cast<std::size_t>(plan.groups[group][i]));
      }
    }
    const std::vector<std::size_t> part = sets.numbered();
    place_.resize(ranks);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      if (part[rank] == ranks_.size()) ranks_.emplace_back();
      place_[rank] = static_cast<std::uint32_t>(ranks_[part[rank]].size());
      ranks_[part[rank]].push_back(static_cast<std::int32_t>(rank));
    }
    packs_.resize(ranks_.size());
    position_.resize(plan.micropacks.size());
    for (std::size_t pass = 0; pass < order.size(); ++pass) {
      for (const std::uint32_t pack : order[pass]) {
        const auto& group = plan.groups[index(plan.micropacks[pack].group)];
        auto& line = packs_[part[static_cast<std::size_t>(group.front())]][pass];
        position_[pack] = static_cast<std::uint32_t>(line.size());
        line.push_back(pack);
      }
    }
    last_forward_.resize(plan.samples.size());
    for (const std::uint32_t pack : order[0]) {
      for (const Slice& slice : plan.micropacks[pack].slices) {
        last_forward_[index(slice.sample)] = position_[pack];
      }
    }
  }

  /// Weight slices must name tokens that backward packs of their group leave apart.
  void find_last_backward(const Plan& plan) {
    last_backward_.assign(plan.micropacks.size(), 0);
    std::int64_t apart = 0;
    bool weights = false;
    for (const MicroPack& pack : plan.micropacks) {
      weights = weights || pack.pass == Pass::weight;
      if (pack.pass != Pass::backward || pack.weights == WeightGradients::with) continue;
      for (const Slice& slice : pack.slices) apart += slice.length().value;
    }
    if (weights) {
      const SliceIndex backward(plan, Pass::backward);
      for (std::size_t id = 0; id < plan.micropacks.size(); ++id) {
        const MicroPack& pack = plan.micropacks[id];
        if (pack.pass != Pass::weight) continue;
        for (const Slice& slice : pack.slices) {
          backward.for_each_overlap(
              slice.sample, slice.begin, slice.end, [&](const IndexedSlice& found) {
                const MicroPack& left = plan.micropacks[index(found.pack)];
                require(
                    left.weights == WeightGradients::apart && left.group == pack.group,
                    "list_schedule: a backward MicroPack of its group must leave its weights to "
                    "weight MicroPack",
                    static_cast<std::int64_t>(id));
                last_backward_[id] = std::max(last_backward_[id], position_[index(found.pack)]);
              });
          apart -= slice.length().value;
        }
      }
    }
    require(apart == 0, "list_schedule: weight MicroPacks must hold all tokens that are apart");
  }

  std::vector<std::vector<std::int32_t>> ranks_;                  // by part
  std::vector<std::uint32_t> place_;                              // by rank
  std::vector<std::array<std::vector<std::uint32_t>, 3>> packs_;  // by part and pass
  std::vector<std::uint32_t> position_;                           // by pack
  std::vector<std::uint32_t> last_forward_;                       // by sample
  std::vector<std::uint32_t> last_backward_;                      // by weight pack
  std::size_t stages_ = 0;
  std::vector<bool> one_port_;  // by device
};

}  // namespace slimpack::schedule
