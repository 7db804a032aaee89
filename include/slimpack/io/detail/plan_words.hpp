// SPDX-License-Identifier: Apache-2.0
// The words of plan.json and what they stand for.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>
#include <utility>

#include "slimpack/core/error.hpp"
#include "slimpack/plan/plan.hpp"

namespace slimpack::detail {

inline constexpr std::string_view kPlanFormat = "slimpack-plan";
inline constexpr int kPlanVersion = 1;

template <class Meaning, std::size_t kCount>
using Words = std::array<std::pair<std::string_view, Meaning>, kCount>;

inline constexpr Words<Pass, 2> kPassWords{
    {{"forward", Pass::forward}, {"backward", Pass::backward}}};
inline constexpr Words<Exchange, 2> kExchangeWords{{{"kv", Exchange::kv}, {"q", Exchange::q}}};
inline constexpr Words<Recompute, 4> kRecomputeWords{{{"none", Recompute::none},
                                                      {"light", Recompute::light},
                                                      {"layer", Recompute::layer},
                                                      {"full", Recompute::full}}};
inline constexpr Words<Head, 2> kHeadWords{{{"last", Head::last}, {"shard", Head::shard}}};
inline constexpr Words<OptimizerState, 2> kOptimizerWords{
    {{"sharded", OptimizerState::sharded}, {"replicated", OptimizerState::replicated}}};
inline constexpr Words<UnitKind, 5> kUnitWords{{{"F", UnitKind::forward},
                                                {"B", UnitKind::backward},
                                                {"H", UnitKind::head},
                                                {"R", UnitKind::reduce},
                                                {"O", UnitKind::optimizer}}};

template <class Meaning, std::size_t kCount>
[[nodiscard]] std::string_view word_of(const Words<Meaning, kCount>& words, Meaning meaning) {
  for (const auto& [word, candidate] : words) {
    if (candidate == meaning) return word;
  }
  throw InvalidInput("a plan holds an enumerator that has no word in plan.json");
}

}  // namespace slimpack::detail
