// SPDX-License-Identifier: Apache-2.0
// Which data-parallel ranks have to be scheduled together, and what each of them has to run.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/schedule/detail/list_sequence.hpp"
#include "slimpack/schedule/list_options.hpp"

namespace slimpack::schedule {

/// The ranks of a plan in parts that share no MicroPack, so that each is scheduled by itself, and
/// the order of work in each part. Reads everything of a plan but its schedule and prediction.
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
            "list_schedule: there must be one stage for each place of the line",
            static_cast<std::int64_t>(plan.stages.size()));
    for (std::size_t i = 0; i < plan.stages.size(); ++i) {
      const auto place = static_cast<std::int32_t>(i);
      require(plan.stages[i].pp == virtual_stages_of(plan).stage(place) &&
                  plan.stages[i].chunk == virtual_stages_of(plan).chunk(place),
              "list_schedule: stages must be in line order, at place", place);
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
                      detail::queue_order(plan, Pass::backward)});
  }

  [[nodiscard]] std::size_t size() const noexcept { return ranks_.size(); }
  /// The data-parallel ranks of a part, ascending; parts are in the order of their lowest rank.
  [[nodiscard]] const std::vector<std::int32_t>& ranks(std::size_t part) const noexcept {
    return ranks_[part];
  }
  /// The packs of one pass of a part, in the order in which they run.
  [[nodiscard]] const std::vector<std::uint32_t>& packs(std::size_t part,
                                                        Pass pass) const noexcept {
    return packs_[part][static_cast<std::size_t>(pass)];
  }
  /// Place of a pack in `packs` of its part and pass.
  [[nodiscard]] std::uint32_t line_place(std::uint32_t pack) const noexcept {
    return line_place_[pack];
  }
  /// Line place of the forward pack that ends a sample.
  [[nodiscard]] std::uint32_t last_forward(SampleId sample) const noexcept {
    return last_forward_[index(sample)];
  }
  /// Place of a rank in its part.
  [[nodiscard]] std::uint32_t place(std::int32_t dp) const noexcept {
    return place_[static_cast<std::size_t>(dp)];
  }

 private:
  void join_ranks(const Plan& plan, const std::array<std::vector<std::uint32_t>, 2>& order) {
    const auto ranks = static_cast<std::size_t>(plan.parallel.dp);
    std::vector<std::size_t> root(ranks);
    std::iota(root.begin(), root.end(), std::size_t{0});
    const auto find = [&](std::size_t rank) {
      while (root[rank] != rank) rank = root[rank] = root[root[rank]];
      return rank;
    };
    std::vector<bool> used(plan.groups.size(), false);
    for (const MicroPack& pack : plan.micropacks) used[index(pack.group)] = true;
    for (std::size_t group = 0; group < plan.groups.size(); ++group) {
      for (std::size_t i = 1; used[group] && i < plan.groups[group].size(); ++i) {
        const std::size_t a = find(static_cast<std::size_t>(plan.groups[group][0]));
        const std::size_t b = find(static_cast<std::size_t>(plan.groups[group][i]));
        root[std::max(a, b)] = std::min(a, b);
      }
    }
    std::vector<std::size_t> part(ranks);
    place_.resize(ranks);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const std::size_t first = find(rank);
      if (first == rank) {
        part[rank] = ranks_.size();
        ranks_.emplace_back();
      } else {
        part[rank] = part[first];
      }
      place_[rank] = static_cast<std::uint32_t>(ranks_[part[rank]].size());
      ranks_[part[rank]].push_back(static_cast<std::int32_t>(rank));
    }
    packs_.resize(ranks_.size());
    line_place_.resize(plan.micropacks.size());
    for (std::size_t pass = 0; pass < order.size(); ++pass) {
      for (const std::uint32_t pack : order[pass]) {
        const auto& group = plan.groups[index(plan.micropacks[pack].group)];
        auto& line = packs_[part[static_cast<std::size_t>(group.front())]][pass];
        line_place_[pack] = static_cast<std::uint32_t>(line.size());
        line.push_back(pack);
      }
    }
    last_forward_.resize(plan.samples.size());
    for (const std::uint32_t pack : order[0]) {
      for (const Slice& slice : plan.micropacks[pack].slices) {
        last_forward_[index(slice.sample)] = line_place_[pack];
      }
    }
  }

  std::vector<std::vector<std::int32_t>> ranks_;                  // by part
  std::vector<std::uint32_t> place_;                              // by rank
  std::vector<std::array<std::vector<std::uint32_t>, 2>> packs_;  // by part and pass
  std::vector<std::uint32_t> line_place_;                         // by pack
  std::vector<std::uint32_t> last_forward_;                       // by sample
};

namespace detail {

/// One rank of a part: what it runs, what each backward item needs, bytes and times.
struct ListRank {
  std::int32_t dp = 0;
  std::array<RankPass, 2> pass;
  /// Forward items that have ended before a backward item must be able to run: the safe order of
  /// the part runs them all first. Never falls along the line.
  std::vector<std::uint32_t> reserve;
  /// Packs whose H a backward item awaits on the last stage, and the forward items up to there.
  std::vector<std::uint32_t> heads, heads_item;
  std::vector<std::uint32_t> head_item;  ///< by pack: its item of the last chunk

  // Bytes of items, per layer of the item's chunk.
  std::vector<std::int64_t> held;                         ///< F allocates
  std::vector<std::int64_t> freed, opens, closes;         ///< B frees; of gradients
  std::array<std::vector<std::int64_t>, 2> workspace;     ///< by pass
  std::vector<std::int64_t> head_bytes, head_last_bytes;  ///< scratch of H: any stage, last stage

  // Rows of one entry an item for each stage.
  std::vector<std::uint32_t> least;  ///< F: backward items that must have ended before
  std::vector<std::uint32_t> gate;   ///< B: forward items that must have ended before
  std::array<std::vector<std::int64_t>, 2> time, transfer, arrival;
  std::vector<std::int64_t> head_time;  ///< by pack
};

/// Blocks of packs that pass chunk after chunk: at most `most` packs of a rank, `most_group` of a
/// merged group. Packs of one block keep their order. By place in `packs`.
[[nodiscard]] inline std::vector<std::uint32_t> chunk_blocks(
    const Plan& plan, const std::vector<std::uint32_t>& packs, std::uint32_t most,
    std::uint32_t most_group) {
  struct Open {
    std::uint32_t block = 0, count = 0;
  };
  std::vector<Open> rank(static_cast<std::size_t>(plan.parallel.dp)), group(plan.groups.size());
  std::vector<std::uint32_t> blocks;
  blocks.reserve(packs.size());
  for (const std::uint32_t pack : packs) {
    const std::size_t id = index(plan.micropacks[pack].group);
    std::uint32_t block = 0;
    for (const std::int32_t dp : plan.groups[id]) {
      block = std::max(block, rank[static_cast<std::size_t>(dp)].block);
    }
    const auto full = [&](const Open& open, std::uint32_t bound) {
      return open.block == block && open.count >= bound;
    };
    bool next = full(group[id], most_group);
    for (const std::int32_t dp : plan.groups[id]) {
      next = next || full(rank[static_cast<std::size_t>(dp)], most);
    }
    if (next) ++block;
    const auto enter = [&](Open& open) {
      if (open.block != block) open = {block, 0};
      ++open.count;
    };
    enter(group[id]);
    for (const std::int32_t dp : plan.groups[id]) enter(rank[static_cast<std::size_t>(dp)]);
    blocks.push_back(block);
  }
  return blocks;
}

/// What the backward items of each rank await. `blocks` is empty for one chunk; a block of packs
/// then stands for what is one pack here.
inline void find_needs(std::vector<ListRank>& ranks, const Plan& plan, const ScheduleParts& parts,
                       std::size_t part, const std::array<std::vector<std::uint32_t>, 2>& blocks) {
  const auto& backward = parts.packs(part, Pass::backward);
  const bool blocked = !blocks[0].empty();
  std::vector<std::uint32_t> own(backward.size(), 0), reserve(backward.size(), 0);
  std::vector<std::uint32_t> reached(ranks.size(), 0);
  for (std::size_t i = 0; i < backward.size(); ++i) {
    const MicroPack& pack = plan.micropacks[backward[i]];
    for (const Slice& slice : pack.slices) {
      own[i] = std::max(own[i], parts.last_forward(slice.sample));
    }
    // On each rank of the group everything earlier in the line has to be through as well.
    reserve[i] = blocked ? blocks[0][own[i]] : own[i];
    for (const std::int32_t dp : plan.groups[index(pack.group)]) {
      reserve[i] = std::max(reserve[i], reached[parts.place(dp)]);
    }
    for (const std::int32_t dp : plan.groups[index(pack.group)]) {
      reached[parts.place(dp)] = reserve[i];
    }
  }
  if (blocked) {
    std::vector<std::uint32_t> of_block;
    for (std::size_t i = 0; i < backward.size(); ++i) {
      of_block.resize(std::max<std::size_t>(of_block.size(), blocks[1][i] + 1), 0);
      of_block[blocks[1][i]] = std::max(of_block[blocks[1][i]], reserve[i]);
    }
    for (std::size_t block = 1; block < of_block.size(); ++block) {
      of_block[block] = std::max(of_block[block], of_block[block - 1]);
    }
    for (std::size_t i = 0; i < backward.size(); ++i) reserve[i] = of_block[blocks[1][i]];
  }
  for (ListRank& rank : ranks) {
    const RankPass& f = rank.pass[0];
    const RankPass& b = rank.pass[1];
    std::uint32_t items = 0, heads = 0;
    const auto key = [&](std::size_t item) {
      const std::uint32_t place = parts.line_place(f.pack[item]);
      return blocked ? blocks[0][place] : place;
    };
    for (std::size_t item = 0; item < f.size(); ++item) {
      if (f.leaves[item] != 0) rank.head_item.push_back(static_cast<std::uint32_t>(item));
    }
    for (std::size_t item = 0; item < b.size(); ++item) {
      const std::uint32_t place = parts.line_place(b.pack[item]);
      while (items < f.size() && key(items) <= reserve[place]) ++items;
      while (heads < rank.head_item.size() &&
             parts.line_place(f.pack[rank.head_item[heads]]) <= own[place]) {
        ++heads;
      }
      rank.reserve.push_back(items);
      rank.heads.push_back(heads);
      rank.heads_item.push_back(rank.head_item[heads - 1] + 1);
    }
  }
}

/// Lays out the items of all ranks of a part and what backward items need.
inline void lay_out(std::vector<ListRank>& ranks, const Plan& plan, const ScheduleParts& parts,
                    std::size_t part, const ListOptions& options) {
  const std::int32_t chunks = plan.parallel.chunks;
  ranks.resize(parts.ranks(part).size());
  std::vector<std::vector<std::uint32_t>> scratch(plan.groups.size());
  std::array<std::vector<std::uint32_t>, 2> blocks;
  for (std::size_t pass = 0; chunks > 1 && pass < 2; ++pass) {
    const std::int64_t max_in_flight = plan.max_in_flight;
    const std::int64_t wanted = options.block(plan.parallel.pp);
    // On one stage nothing waits for a window.
    const std::int64_t room =
        plan.parallel.pp == 1 ? wanted : 2 * max_in_flight * plan.parallel.pp - 1;
    const auto most = static_cast<std::uint32_t>(std::min(wanted, room));
    const auto most_group =
        static_cast<std::uint32_t>(ranks.size() == 1 || plan.parallel.pp == 1
                                       ? most
                                       : std::min<std::int64_t>(most, 2 * max_in_flight));
    blocks[pass] = chunk_blocks(plan, parts.packs(part, static_cast<Pass>(pass)), most, most_group);
  }
  for (std::size_t place = 0; place < ranks.size(); ++place) {
    ListRank& rank = ranks[place];
    rank.dp = parts.ranks(part)[place];
    rank.reserve.clear();
    rank.heads.clear();
    rank.heads_item.clear();
    rank.head_item.clear();
    for (RankPass& pass : rank.pass) pass.clear();
  }

  // Items of a rank in the order (block, chunk, place in the part's line).
  for (std::size_t side = 0; side < 2; ++side) {
    const auto& packs = parts.packs(part, static_cast<Pass>(side));
    const auto add = [&](std::size_t i, std::int32_t chunk) {
      const auto& group = plan.groups[index(plan.micropacks[packs[i]].group)];
      for (std::size_t place = 0; place < group.size(); ++place) {
        RankPass& pass = ranks[parts.place(group[place])].pass[side];
        pass.pack.push_back(packs[i]);
        pass.chunk.push_back(chunk);
        pass.place.push_back(static_cast<std::uint32_t>(place));
        pass.in_cp_group.push_back(group.size() > 1 ? 1 : 0);
      }
    };
    if (chunks == 1) {
      for (std::size_t i = 0; i < packs.size(); ++i) add(i, 0);
      continue;
    }
    std::vector<std::size_t> order(packs.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return blocks[side][a] < blocks[side][b];
    });
    for (std::size_t first = 0; first < order.size();) {
      std::size_t last = first;
      while (last < order.size() && blocks[side][order[last]] == blocks[side][order[first]]) ++last;
      for (std::int32_t turn = 0; turn < chunks; ++turn) {
        for (std::size_t i = first; i < last; ++i) {
          add(order[i], side == 0 ? turn : chunks - 1 - turn);
        }
      }
      first = last;
    }
  }
  for (ListRank& rank : ranks) {
    link_items(rank.pass[0], plan, 0, chunks - 1, scratch);
    link_items(rank.pass[1], plan, chunks - 1, 0, scratch);
  }
  find_needs(ranks, plan, parts, part, blocks);
}

}  // namespace detail
}  // namespace slimpack::schedule
