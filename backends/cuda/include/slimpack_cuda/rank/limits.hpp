// SPDX-License-Identifier: Apache-2.0
// Which models and plans the CUDA backend executes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "slimpack/plan/memory.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/plan/virtual_stages.hpp"
#include "slimpack/runtime/memory_events.hpp"
#include "slimpack_cuda/norm.hpp"
#include "slimpack_cuda/rank/head.hpp"
#include "slimpack_cuda/rank/memory.hpp"

namespace slimpack::cuda {

/// The rows of the vocabulary that stage `pp` projects onto; none where it has no head.
[[nodiscard]] constexpr VocabularyPart vocabulary_part(const ModelShape& model,
                                                       const Parallel& parallel,
                                                       std::int32_t pp) noexcept {
  if (parallel.head == LmHead::last) return {0, pp + 1 == parallel.pp ? model.vocab : 0};
  const VocabularyShard shard = vocabulary_shard(model.vocab, pp, parallel.pp);
  return {shard.first, shard.size()};
}

/// Why a model cannot be computed with what docs/equations.md grants a unit, one sentence; nothing
/// where it can.
[[nodiscard]] inline std::optional<std::string> why_not_model(const ModelShape& model) {
  const auto wrong = [](const char* rule, std::int64_t value) {
    return std::string("RankDevice: ") + rule + ", got " + std::to_string(value);
  };
  const auto whole = [](std::int64_t value, std::int64_t of) {
    return value > 0 && value % of == 0;
  };
  if (!whole(model.hidden, 8) || model.hidden > kLargestNormCols) {
    return wrong("hidden must be a multiple of 8 from 8 to 16384", model.hidden);
  }
  if (!whole(model.ffn, 8)) return wrong("ffn must be a positive multiple of 8", model.ffn);
  if (!whole(model.head_dim, 16) || model.head_dim > 512) {
    return wrong("head_dim must be a multiple of 16 from 16 to 512", model.head_dim);
  }
  if (!whole(model.heads, 4)) return wrong("heads must be a positive multiple of 4", model.heads);
  if (model.kv_heads < 1 || model.heads % model.kv_heads != 0) {
    return wrong("kv_heads must divide heads", model.kv_heads);
  }
  if (model.key_width() < model.heads) {
    return wrong("kv_heads * head_dim must be >= heads", model.key_width());
  }
  if (model.query_width() > 2 * model.hidden) {
    return wrong("heads * head_dim must be at most 2 * hidden", model.query_width());
  }
  if (3 * model.ffn < 2 * model.key_width()) {
    return wrong("3 * ffn must be >= 2 * kv_heads * head_dim", 3 * model.ffn);
  }
  if (model.vocab < 1) return wrong("vocab must be >= 1", model.vocab);
  return std::nullopt;
}

/// The same of a plan's steps.
[[nodiscard]] inline std::optional<std::string> why_not_plan(const Plan& plan) {
  const ModelShape& model = plan.model;
  for (const auto& group : plan.groups) {
    if (group.size() == 1 || 3 * model.ffn >= 2 * model.query_width()) continue;
    return "RankDevice: context-parallel groups need 3 * ffn >= 2 * heads * head_dim, got " +
           std::to_string(3 * model.ffn);
  }
  return std::nullopt;
}

/// The same of a plan's model and partition.
[[nodiscard]] inline std::optional<std::string> why_not_rank(const Plan& plan) {
  if (auto why = why_not_model(plan.model)) return why;
  const std::int64_t stages = plan.parallel.head == LmHead::shard ? plan.parallel.pp : 1;
  for (std::int32_t pp = 0; pp < plan.parallel.pp; ++pp) {
    const VocabularyPart part = vocabulary_part(plan.model, plan.parallel, pp);
    const bool heads = plan.parallel.head == LmHead::shard || pp + 1 == plan.parallel.pp;
    if (!heads || head_row_bytes(plan.model, part, stages) <=
                      head_token_bytes(plan.model, part.size, kRankElements)) {
      continue;
    }
    return "RankDevice: the part of the vocabulary on stage " + std::to_string(pp) +
           " is too small to be split over " + std::to_string(stages) + " stages, it has " +
           std::to_string(part.size) + " rows";
  }
  return why_not_plan(plan);
}

}  // namespace slimpack::cuda
