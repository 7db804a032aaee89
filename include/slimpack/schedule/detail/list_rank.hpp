// SPDX-License-Identifier: Apache-2.0
// What each rank of a part has to run, and what its backward units need.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "slimpack/plan/plan.hpp"
#include "slimpack/schedule/detail/chunk_blocks.hpp"
#include "slimpack/schedule/detail/list_sequence.hpp"
#include "slimpack/schedule/detail/list_weights.hpp"
#include "slimpack/schedule/schedule_parts.hpp"

namespace slimpack::schedule::detail {

/// A row of one number an item for each stage. Stages that have the numbers of the stage before
/// share its row: a list run then reads less memory.
class StageRows {
 public:
  /// The number of each stage and item is `value(pp, item)`. Where `as_before(pp)` all of a stage
  /// are known to be those of the stage before.
  template <class AsBefore, class Value>
  void fill(std::int32_t stages, std::size_t items, const AsBefore& as_before, const Value& value) {
    values_.resize(static_cast<std::size_t>(stages) * items);
    first_.clear();
    for (std::int32_t pp = 0; pp < stages; ++pp) {
      const std::size_t here = static_cast<std::size_t>(pp) * items;
      const std::size_t before = pp == 0 ? here : first_.back();
      bool same = pp > 0;
      const std::size_t unknown = same && as_before(pp) ? 0 : items;
      for (std::size_t item = 0; item < unknown; ++item) {
        const std::int64_t number = value(pp, item);
        if (same && number == values_[before + item]) continue;
        if (same) std::copy_n(&values_[before], item, &values_[here]);
        same = false;
        values_[here + item] = number;
      }
      first_.push_back(same ? before : here);
    }
  }
  /// The numbers of a stage.
  [[nodiscard]] const std::int64_t* row(std::uint32_t stage) const noexcept {
    return values_.data() + first_[stage];
  }

 private:
  std::vector<std::int64_t> values_;
  std::vector<std::size_t> first_;  // of each stage
};

/// One rank of a part: what it runs, what each backward item needs, bytes and times.
struct ListRank {
  std::int32_t dp = 0;
  std::array<RankPass, 2> pass;
  RankWeights weights;
  /// Forward items that have ended before a backward item must be able to run: the safe order of
  /// the part runs them all first. Never falls from item to item.
  std::vector<std::uint32_t> reserve;
  /// Packs whose H a backward item awaits on the last stage, and the forward items up to there.
  std::vector<std::uint32_t> heads, heads_item;
  std::vector<std::uint32_t> head_item;  ///< by pack: its item of the last chunk
  std::vector<std::int64_t> head_rows;   ///< by pack: rows that H has in work at a time

  // Bytes of items, per layer of the item's chunk.
  std::vector<std::int64_t> held;                      ///< F allocates
  std::vector<std::int64_t> freed, opens, closes;      ///< B frees; of gradients
  std::vector<std::int64_t> made, left;                ///< B makes for W, and leaves
  std::array<std::vector<std::int64_t>, 2> workspace;  ///< by pass

  // Rows of one entry an item for each stage.
  std::vector<std::uint32_t> least;  ///< F: backward items that must have ended before
  std::vector<std::uint32_t> gate;   ///< B: forward items that must have ended before
  std::array<std::vector<std::int64_t>, 2> arrival;
  std::array<StageRows, 2> time, transfer;
  std::vector<std::int64_t> head_time;  ///< by pack
};

/// Where passes enter and leave the pipeline of a rank, and what goes between stages.
class ListLine {
 public:
  explicit ListLine(const Plan& plan)
      : stages_(static_cast<std::uint32_t>(plan.parallel.pp)), last_(stages_ - 1) {}

 protected:
  /// The stage where a pass leaves the pipeline, and the one where it enters.
  [[nodiscard]] std::uint32_t exit(std::size_t pass) const noexcept {
    return pass == 0 ? last_ : 0;
  }
  [[nodiscard]] std::uint32_t entry(std::size_t pass) const noexcept {
    return pass == 0 ? 0 : last_;
  }
  [[nodiscard]] std::uint32_t next(std::size_t pass, std::uint32_t stage) const noexcept {
    if (stage == exit(pass)) return entry(pass);
    return pass == 0 ? stage + 1 : stage - 1;
  }
  [[nodiscard]] std::uint32_t previous(std::size_t pass, std::uint32_t stage) const noexcept {
    if (stage == entry(pass)) return exit(pass);
    return pass == 0 ? stage - 1 : stage + 1;
  }
  [[nodiscard]] static std::size_t row(const RankPass& pass, std::uint32_t stage) noexcept {
    return static_cast<std::size_t>(stage) * pass.size();
  }
  [[nodiscard]] bool sends(const RankPass& pass, std::size_t side, std::uint32_t stage,
                           std::uint32_t item) const noexcept {
    return stages_ > 1 && (stage != exit(side) || pass.leaves[item] == 0);
  }
  [[nodiscard]] bool receives(const RankPass& pass, std::size_t side, std::uint32_t stage,
                              std::uint32_t item) const noexcept {
    return stages_ > 1 && (stage != entry(side) || pass.enters[item] == 0);
  }

  std::uint32_t stages_, last_;
};

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
    // On each rank of the group all earlier packs have to be through as well.
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
      const std::uint32_t place = parts.position(f.pack[item]);
      return blocked ? blocks[0][place] : place;
    };
    for (std::size_t item = 0; item < f.size(); ++item) {
      if (f.leaves[item] != 0) rank.head_item.push_back(static_cast<std::uint32_t>(item));
    }
    for (std::size_t item = 0; item < b.size(); ++item) {
      const std::uint32_t place = parts.position(b.pack[item]);
      while (items < f.size() && key(items) <= reserve[place]) ++items;
      while (heads < rank.head_item.size() &&
             parts.position(f.pack[rank.head_item[heads]]) <= own[place]) {
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
    const auto& packs = parts.packs(part, static_cast<Pass>(pass));
    if (ranks.size() == 1 && !options.sample_blocks && plan.parallel.pp > 1) {
      blocks[pass] = blocks_of_rank(plan, options, packs.size());
      continue;
    }
    std::vector<bool> ends(packs.size());
    if (options.sample_blocks) {
      ends =
          pass == 0 ? ends_samples(plan, parts, packs) : ends_needs(plan, parts, packs, blocks[0]);
    }
    blocks[pass] = chunk_blocks(plan, packs, block_size(plan, options, ranks.size() > 1), ends);
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

  // Items of a rank in the order (block, chunk, position in the part's packs).
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
    lay_out_weights(rank.weights, rank.pass[1], rank.dp, plan, parts, part);
  }
  find_needs(ranks, plan, parts, part, blocks);
}

}  // namespace slimpack::schedule::detail
