// SPDX-License-Identifier: Apache-2.0
// What whole samples cost on a stage, in time and bytes, as planners of micro-batches ask.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/cost/any_model.hpp"
#include "slimpack/cost/links.hpp"
#include "slimpack/cost/load.hpp"
#include "slimpack/cost/memory_model.hpp"
#include "slimpack/plan/cp_shard.hpp"
#include "slimpack/plan/plan.hpp"

namespace slimpack::planners::detail {

/// Nanoseconds that samples add to a micro-batch on the slowest stage, F, B and H together, and
/// what a micro-batch takes besides.
struct SampleTimes {
  std::int64_t unit = 0;           ///< of a micro-batch beyond its samples
  std::vector<std::int64_t> time;  ///< one a sample, >= 1
};

/// Prices on the stages of data-parallel rank 0 of a frame with one chunk a stage.
class StagePrices {
 public:
  /// The frame needs everything but groups of samples, packs and schedule.
  explicit StagePrices(const Plan& frame)
      : model_(make_model(frame)), tile_{frame.cluster.tile_tokens} {
    const Links links(frame);
    const std::int32_t last = frame.parallel.pp - 1;
    for (std::int32_t pp = 0; pp <= last; ++pp) {
      StageLoad stage;
      stage.layers = chunk_layers(frame, pp, 0);
      stage.embedding = pp == 0;
      stage.tensor_parallel = frame.parallel.tp;
      stage.tensor_link = links.tensor(0, pp);
      stage.exchange_link = frame.cluster.inside;
      stages_.push_back(stage);
    }
    head_everywhere_ = frame.parallel.head == LmHead::shard;
    head_.vocab = head_rows(frame, head_everywhere_ ? 0 : last);
    if (head_everywhere_) head_.shards = frame.parallel.pp;
    head_.tensor_parallel = frame.parallel.tp;
    head_.tile = frame.memory.head_tile;
    head_.link = links.rank(0);
    head_.tensor_link = links.tensor(0, last);
  }

  [[nodiscard]] std::size_t stages() const noexcept { return stages_.size(); }

  /// F, B and, on the last stage or, where it is sharded, on all, H of a load.
  [[nodiscard]] std::int64_t both_passes(PackLoad load, Recompute mode, std::size_t stage) const {
    load.runs = 1;
    HeadLoad head = head_;
    head.tokens = load.tokens;
    return std::visit(
        [&](const auto& model) {
          Nanos time = model.forward(load, stages_[stage]);
          time += model.backward(load, stages_[stage], mode);
          if (head_everywhere_ || stage + 1 == stages_.size()) time += model.head(head);
          return time.value;
        },
        model_);
  }

  /// The load of one slice on a rank alone.
  [[nodiscard]] PackLoad load(Tokens begin, Tokens end) const {
    PackLoad load;
    add_slice(load, {SampleId{}, begin, end}, RingMode::pass_kv, CpShard{}, tile_);
    return load;
  }

  /// Times of whole samples on the stage that has most to do. O(samples * stages).
  [[nodiscard]] SampleTimes whole(std::span<const Tokens> samples, Recompute mode) const {
    SampleTimes best;
    std::int64_t most = -1;
    const Tokens longest = *std::max_element(samples.begin(), samples.end());
    for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
      if (stage > 0 && stage + 1 < stages_.size() && stages_[stage] == stages_[stage - 1]) continue;
      SampleTimes times;
      times.unit = unit(load(Tokens{}, longest), mode, stage);
      std::int64_t total = 0;
      for (const Tokens length : samples) {
        const std::int64_t time = both_passes(load(Tokens{}, length), mode, stage) - times.unit;
        times.time.push_back(std::max<std::int64_t>(1, time));
        total += times.time.back();
      }
      if (total > most) {
        most = total;
        best = std::move(times);
      }
    }
    return best;
  }

 private:
  /// The part of a price that does not depend on the load, if the rest is proportional to it: twice
  /// the price, less that of twice the load.
  [[nodiscard]] std::int64_t unit(const PackLoad& load, Recompute mode, std::size_t stage) const {
    PackLoad twice = load;
    twice.tokens += load.tokens;
    for (const AttentionAmount& amount : kAttentionAmounts) {
      twice.*amount.all += load.*amount.all;
    }
    twice.segments += load.segments;
    const std::int64_t once = both_passes(load, mode, stage);
    return std::clamp<std::int64_t>(2 * once - both_passes(twice, mode, stage), 0, once - 1);
  }

  AnyModel model_;
  Tokens tile_;
  std::vector<StageLoad> stages_;
  HeadLoad head_;
  bool head_everywhere_ = false;
};

/// Bytes of a whole sample's activations, keys and values on one layer while it is in flight.
[[nodiscard]] inline std::int64_t in_flight_bytes(const LayerBytes& layer, const MemorySpec& memory,
                                                  Tokens length, Recompute mode) noexcept {
  const std::int64_t kept = layer.kept[static_cast<std::size_t>(mode)] * length.value;
  if (mode == Recompute::full) return kept;  // B makes keys and values again
  return kept + layer.kv * memory.page_tokens.value * pages_of(length, memory.page_tokens);
}

}  // namespace slimpack::planners::detail
