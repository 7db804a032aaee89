// SPDX-License-Identifier: Apache-2.0
// What slices and samples cost, as exact integers by which cuts and assignments are decided.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <variant>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/cost/any_model.hpp"
#include "slimpack/cost/memory_model.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/planners/planner.hpp"
#include "slimpack/planners/search/detail/recompute_by_length.hpp"
#include "slimpack/planners/search/layout.hpp"
#include "slimpack/schedule/assign.hpp"
#include "slimpack/schedule/cut.hpp"

namespace slimpack::planners {

/// Times are in nanoseconds over 2^20, so that the price of a token or a pair is a whole number.
inline constexpr std::int64_t kCostScale = std::int64_t{1} << 20U;

/// What slices of a group of ranks cost on the rank that has most to do.
struct PassCosts {
  schedule::SliceCost forward;                                ///< of F
  std::array<schedule::SliceCost, kRecomputeModes> backward;  ///< of B, by recomputation mode
  /// Of F and B of a pack by themselves, nothing recomputed, in nanoseconds over 2^20.
  std::int64_t pack = 0;

  /// Of B as `mode` has it, by the length of samples.
  [[nodiscard]] schedule::SliceCosts back(const ModeChoice& mode) const {
    schedule::SliceCosts costs(backward[static_cast<std::size_t>(mode.most)]);
    if (mode.lean_permille == 0 || mode.early.value > 0) {
      for (auto next = static_cast<std::size_t>(mode.most);
           next < static_cast<std::size_t>(mode.lean); ++next) {
        costs.limits.push_back(mode.limit[next]);
        costs.costs.push_back(backward[next + 1]);
      }
    }
    if (mode.early.value > 0) {
      schedule::SliceCost& cost = costs.costs.back();
      const schedule::SliceCost& first = backward[static_cast<std::size_t>(mode.first)];
      cost.early = mode.early;
      cost.early_token = std::max<std::int64_t>(0, first.per_token - cost.per_token);
      cost.early_pair2 = std::max<std::int64_t>(0, first.per_pair2 - cost.per_pair2);
    }
    return costs;
  }
};

/// What F of so many tokens, or B, takes because its rows do not stay in caches, where the model
/// says so.
[[nodiscard]] inline Nanos spilled(const AnyModel& any, Tokens tokens, const StageLoad& stage,
                                   bool back) {
  return std::visit(
      [&]<class Model>(const Model& model) {
        if constexpr (requires { model.spilled(tokens, stage, back); }) {
          return model.spilled(tokens, stage, back);
        } else {
          return Nanos{};
        }
      },
      any);
}

/// Of which packs prices are: where large ones take longer a token, for their rows leave the
/// caches.
enum class PackSize : std::uint8_t { cached, large };

/// Asks a cost model what a token, a pair and a slice add to a pack of many.
class CostProbe {
 public:
  /// Probes `model`, which must outlive it, for a group of `ranks` ranks on one stage that exchange
  /// queries in a ring, or `by_heads`.
  CostProbe(const AnyModel& model, const StageLoad& stage, std::int64_t ranks,
            PackSize size = PackSize::large, bool by_heads = false)
      : model_(model), stage_(stage), ranks_(ranks), size_(size), by_heads_(by_heads) {}

  /// What tokens, pairs and slices cost in F and in B of each mode.
  [[nodiscard]] PassCosts passes() const {
    PassCosts costs;
    costs.forward = slice_cost(false, Recompute::none);
    for (std::size_t mode = 0; mode < kRecomputeModes; ++mode) {
      costs.backward[mode] = slice_cost(true, static_cast<Recompute>(mode));
    }
    costs.pack = (fixed(false, Recompute::none) + fixed(true, Recompute::none)) * kCostScale;
    return costs;
  }

  /// Nanoseconds over 2^20 of a token in H.
  [[nodiscard]] std::int64_t head_token(HeadLoad load) const {
    const auto price = [&](std::int64_t tokens) {
      load.tokens = {tokens};
      return std::visit([&](const auto& model) { return model.head(load).value; }, model_);
    };
    return std::max<std::int64_t>(0, price(2 * kTokens) - price(kTokens)) * (kCostScale / kTokens);
  }

 private:
  static constexpr std::int64_t kTokens = std::int64_t{1} << 16U;
  static constexpr std::int64_t kPairs2 = std::int64_t{1} << 34U;
  static constexpr std::int64_t kSlices = 1024;

  /// The price of a pack whose ranks together have so many tokens and pairs.
  [[nodiscard]] std::int64_t price(bool back, Recompute mode, std::int64_t pairs2,
                                   std::int64_t segments) const {
    PackLoad load;
    load.ranks = ranks_;
    load.tokens = {kTokens / ranks_};
    load.pairs2 = load.filled_pairs2 = pairs2 / ranks_;
    load.segments = segments;
    load.runs = back ? 1 : 0;
    if (by_heads_) {
      load.heads_sent = load.tokens;
      load.alone_pairs2 = load.alone_filled_pairs2 = load.pairs2;
    } else if (ranks_ > 1) {
      load.q_received = {kTokens - kTokens / ranks_};
    }
    const Nanos beyond =
        size_ == PackSize::cached ? spilled(model_, load.tokens, stage_, back) : Nanos{};
    return std::visit(
               [&](const auto& model) {
                 return back ? model.backward(load, stage_, mode).value
                             : model.forward(load, stage_).value;
               },
               model_) -
           beyond.value;
  }
  [[nodiscard]] std::int64_t fixed(bool back, Recompute mode) const {
    PackLoad load;
    load.ranks = ranks_;
    load.tokens = {1};
    load.runs = back ? 1 : 0;
    return std::visit(
        [&](const auto& model) {
          return back ? model.backward(load, stage_, mode).value
                      : model.forward(load, stage_).value;
        },
        model_);
  }
  [[nodiscard]] schedule::SliceCost slice_cost(bool back, Recompute mode) const {
    const std::int64_t base = price(back, mode, kPairs2, 1);
    const std::int64_t pairs = std::max<std::int64_t>(0, price(back, mode, 2 * kPairs2, 1) - base);
    const std::int64_t slices =
        std::max<std::int64_t>(0, price(back, mode, kPairs2, 1 + kSlices) - base);
    const std::int64_t tokens = base - pairs - fixed(back, mode);
    return {slices * (kCostScale / kSlices),
            std::max<std::int64_t>(1, tokens * (kCostScale / kTokens)),
            pairs / (kPairs2 / kCostScale)};
  }

  const AnyModel& model_;
  StageLoad stage_;
  std::int64_t ranks_;
  PackSize size_;
  bool by_heads_;
};

}  // namespace slimpack::planners
