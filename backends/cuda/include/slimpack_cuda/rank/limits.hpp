// SPDX-License-Identifier: Apache-2.0
// Which models and plans the CUDA backend executes.
#pragma once

#include <algorithm>
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

/// The rows of the vocabulary that device `tp` of stage `pp` projects onto; none where it has no
/// head.
[[nodiscard]] constexpr VocabularyPart vocabulary_part(const ModelShape& model,
                                                       const Parallel& parallel, std::int32_t pp,
                                                       std::int32_t tp) noexcept {
  const VocabularyShard shard = head_shard(model.vocab, parallel, pp, tp);
  return {shard.first, shard.size()};
}

/// Why a model cannot be computed by so many tensor-parallel devices with what docs/equations.md
/// grants a unit, one sentence; nothing where it can. They must divide heads, kv_heads and ffn.
[[nodiscard]] inline std::optional<std::string> why_not_model(const ModelShape& model,
                                                              std::int64_t devices = 1) {
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
  if (!whole(model.ffn, 8 * devices)) {
    return wrong("ffn must be a multiple of 8 on each tensor-parallel device", model.ffn / devices);
  }
  if (!whole(model.head_dim, 16) || model.head_dim > 512) {
    return wrong("head_dim must be a multiple of 16 from 16 to 512", model.head_dim);
  }
  if (model.heads < 1) return wrong("heads must be >= 1", model.heads);
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
  if (devices > 1 && model.ffn < model.key_width()) {
    return wrong("tensor parallelism needs ffn >= kv_heads * head_dim", model.ffn);
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
  for (const MicroPack& pack : plan.micropacks) {
    const auto ranks = static_cast<std::int64_t>(plan.groups[index(pack.group)].size());
    if (divides_heads(model, plan.parallel.tp, ranks) ||
        std::ranges::count(pack.exchange, RingMode::by_heads) == 0) {
      continue;
    }
    return "RankDevice: an exchange by heads needs ranks that divide the " +
           std::to_string(model.kv_heads / plan.parallel.tp) +
           " heads of keys of a device, or are a multiple of them that divides its " +
           std::to_string(model.heads / plan.parallel.tp) + " heads of queries, got " +
           std::to_string(ranks);
  }
  return std::nullopt;
}

/// The same of a plan's model and partition.
[[nodiscard]] inline std::optional<std::string> why_not_rank(const Plan& plan) {
  const Parallel& parallel = plan.parallel;
  if (auto why = why_not_model(plan.model, parallel.tp)) return why;
  const std::int64_t stages = parallel.head == LmHead::shard ? parallel.pp : 1;
  for (std::int32_t pp = 0; pp < parallel.pp; ++pp) {
    const bool heads = parallel.head == LmHead::shard || pp + 1 == parallel.pp;
    for (std::int32_t tp = 0; heads && tp < parallel.tp; ++tp) {
      const VocabularyPart part = vocabulary_part(plan.model, parallel, pp, tp);
      if (head_bytes_used(plan.model, part, stages, parallel.tp) <=
          head_row_bytes(plan, pp, kRankElements)) {
        continue;
      }
      return "RankDevice: the part of the vocabulary on stage " + std::to_string(pp) +
             " is too small to be split over " + std::to_string(stages * parallel.tp) +
             " devices, it has " + std::to_string(part.size) + " rows";
    }
  }
  return why_not_plan(plan);
}

}  // namespace slimpack::cuda
