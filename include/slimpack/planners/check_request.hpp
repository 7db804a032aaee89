// SPDX-License-Identifier: Apache-2.0
// Refuses requests that make no sense, before any work.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/planners/planner.hpp"

namespace slimpack::planners {

/// Longest context that is planned: attention work of longer samples would
/// leave 64 bits.
inline constexpr Tokens kLongestPlanned{std::int64_t{1} << 30U};
/// Most devices that are planned for.
inline constexpr std::int64_t kMostDevices = std::int64_t{1} << 20U;

namespace detail {

inline void check_model(const ModelShape& model) {
  const auto positive = [](std::string_view name, std::int64_t value) {
    require(value >= 1, "model: " + std::string(name) + " must be >= 1", value);
  };
  positive("layers", model.layers);
  positive("hidden", model.hidden);
  positive("heads", model.heads);
  positive("kv_heads", model.kv_heads);
  positive("head_dim", model.head_dim);
  positive("ffn", model.ffn);
  positive("vocab", model.vocab);
  positive("bytes_per_element", model.bytes_per_element);
  require(model.heads % model.kv_heads == 0, "model: heads must be a multiple of kv_heads",
          model.heads);
}

inline void check_cluster(const Cluster& cluster) {
  require(cluster.devices_per_node >= 1, "cluster: devices_per_node must be >= 1",
          cluster.devices_per_node);
  const auto positive = [](std::string_view name, double value) {
    require(value > 0, "cluster: " + std::string(name) + " must be > 0", std::to_string(value));
  };
  positive("matrix_flops", cluster.matrix_flops);
  positive("attention_forward_flops", cluster.attention_forward_flops);
  positive("attention_backward_flops", cluster.attention_backward_flops);
  positive("memory_bytes_per_s", cluster.memory_bytes_per_s);
  positive("inside.bytes_per_s", cluster.inside.bytes_per_s);
  positive("between.bytes_per_s", cluster.between.bytes_per_s);
}

inline void check_degrees(const PlanRequest& request) {
  const auto degree = [](std::string_view name, std::int64_t value) {
    require(value >= 1, std::string(name) + " must be >= 1", value);
    require(value <= kMostDevices,
            std::string(name) + " must be <= " + std::to_string(kMostDevices), value);
  };
  degree("dp", request.dp);
  degree("pp", request.pp);
  degree("tp", request.tp);
  const std::int64_t stages = std::int64_t{request.dp} * request.pp;
  require(stages <= kMostDevices && stages * request.tp <= kMostDevices,
          "dp x pp x tp must be <= " + std::to_string(kMostDevices) + " devices", stages);
  const auto divisible = [&](std::string_view name, std::int64_t value) {
    require(value % request.tp == 0,
            "tp must divide the model's " + std::string(name) + " (" + std::to_string(value) + ")",
            request.tp);
  };
  divisible("heads", request.model.heads);
  divisible("kv_heads", request.model.kv_heads);
  divisible("ffn", request.model.ffn);
  if (request.chunks) require(*request.chunks >= 1, "chunks must be >= 1", *request.chunks);
  const std::int64_t places = std::int64_t{request.pp} * request.chunks.value_or(1);
  require(places <= request.model.layers,
          "pp x chunks must be <= the model's layers (" + std::to_string(request.model.layers) +
              "), since no stage may be empty",
          places);
  if (!request.fewer_last_layers) return;
  const std::int32_t fewer_last_layers = *request.fewer_last_layers;
  require(fewer_last_layers >= 0 && fewer_last_layers <= kMostFewerLastLayers &&
              (request.pp > 1 || fewer_last_layers == 0),
          "fewer layers on the last stage must be 0 .. " + std::to_string(kMostFewerLastLayers) +
              ", and 0 with one stage",
          fewer_last_layers);
  require(request.head != LmHead::shard || fewer_last_layers == 0,
          "fewer layers on the last stage must be 0 where the head is sharded", fewer_last_layers);
  require((request.model.layers + fewer_last_layers) / places > fewer_last_layers,
          "fewer layers on the last stage must leave the last virtual stage a layer",
          fewer_last_layers);
}

/// Refuses what PyTorch's pipeline runtime does not execute.
inline void check_runtime(const PlanRequest& request) {
  if (request.runtime == Runtime::any) return;
  require(request.tp == 1, "tp must be 1 with runtime torch", request.tp);
  require(request.head == LmHead::last, "head must be last with runtime torch");
  require(request.fewer_last_layers == 0,
          "fewer layers on the last stage must be 0 with runtime torch");
}

/// Whether ranks may share weights in plans of the request: on one stage, where all of them may
/// share samples too, and B computes the gradients of weights.
[[nodiscard]] inline bool can_shard_weights(const PlanRequest& request) {
  return request.pp == 1 && request.dp > 1 && request.chunks.value_or(1) == 1 &&
         request.optimizer == OptimizerState::sharded &&
         request.weights != WeightGradients::apart && request.runtime == Runtime::any &&
         request.max_cp.value_or(request.dp) >= request.dp;
}

inline void check_batch(const PlanRequest& request) {
  const Batch& batch = request.batch;
  require(!batch.samples.empty(), "batch: there must be at least one sample");
  require(batch.samples.size() < (std::size_t{1} << 31U), "batch: there must be < 2^31 samples",
          static_cast<std::int64_t>(batch.samples.size()));
  require(batch.origin.size() == batch.samples.size(),
          "batch: there must be one origin a sample (" + std::to_string(batch.samples.size()) + ")",
          static_cast<std::int64_t>(batch.origin.size()));
  Tokens total;
  for (std::size_t sample = 0; sample < batch.samples.size(); ++sample) {
    // There may be millions of samples: the message is made only where it is
    // needed.
    const auto check = [&](bool condition, const auto& rule, std::int64_t value) {
      if (!condition) require(false, "batch: sample " + std::to_string(sample) + rule(), value);
    };
    const Tokens length = batch.samples[sample];
    check(length.value >= 1, [] { return std::string(" must be >= 1 tokens"); }, length.value);
    check(
        length <= request.context,
        [&] { return " must be <= the context (" + std::to_string(request.context.value) + ")"; },
        length.value);
    const Origin& origin = batch.origin[sample];
    const std::size_t sources = request.sources.size();
    check(
        origin.source >= 0 && static_cast<std::size_t>(origin.source) < sources,
        [&] { return " must come from one of the " + std::to_string(sources) + " sources"; },
        origin.source);
    const std::int64_t documents =
        request.sources[static_cast<std::size_t>(origin.source)].documents;
    check(
        origin.document >= 0 && origin.document < documents,
        [&] {
          return " must come from one of its source's " + std::to_string(documents) + " documents";
        },
        origin.document);
    check(
        origin.first.value >= 0, [] { return std::string(" must begin at a token >= 0"); },
        origin.first.value);
    total += length;
  }
  require(batch.target_tokens >= 1, "batch: target tokens must be >= 1", batch.target_tokens);
  require(
      batch.target_tokens <= total.value,
      "batch: target tokens must be <= the samples' tokens (" + std::to_string(total.value) + ")",
      batch.target_tokens);
}

inline void check_memory(const MemoryOverrides& memory) {
  const auto at_least = [](std::string_view name, std::int64_t least, std::int64_t value) {
    require(value >= least, "memory: " + std::string(name) + " must be >= " + std::to_string(least),
            value);
  };
  if (memory.capacity) at_least("capacity", 1, memory.capacity->value);
  if (memory.reserved) at_least("reserved", 0, memory.reserved->value);
  if (memory.gradient_bytes) at_least("gradient_bytes", 1, *memory.gradient_bytes);
  if (memory.page_tokens) at_least("page_tokens", 1, memory.page_tokens->value);
  if (memory.cp_block_tokens) at_least("share_tokens", 1, memory.cp_block_tokens->value);
  if (memory.head_tile) at_least("head_tile", 1, memory.head_tile->value);
}

}  // namespace detail

/// Throws InvalidInput for the first rule that the request breaks: degrees, chunks, granularity,
/// bounds, budget and threads >= 1; tp divides heads, kv_heads and ffn; at least one layer for each
/// of the pp x chunks virtual stages, on the last one also with `fewer_last_layers`; what
/// `runtime` asks for; at least one sample, none longer than the context, all from known documents;
/// at least one target; sizes and rates > 0; weights apart only where the planner `splits` B, and
/// sharded only where it `shards` them and the request allows it. O(samples).
inline void check_request(const PlanRequest& request, bool splits = false, bool shards = false) {
  detail::check_model(request.model);
  detail::check_cluster(request.cluster);
  detail::check_degrees(request);
  detail::check_runtime(request);
  require(splits || request.weights != WeightGradients::apart,
          "weights must not be apart with a planner that computes them in B");
  if (request.weight_state == WeightState::sharded) {
    require(shards, "weight state must not be sharded with a planner that keeps weights whole");
    require(detail::can_shard_weights(request),
            "weight state must be sharded only with pp 1, chunks 1, several ranks that all may "
            "share a sample, sharded optimizer state, weights computed in B, and any runtime");
  }
  require(request.granularity.value >= 1, "granularity must be >= 1", request.granularity.value);
  if (request.max_units)
    require(*request.max_units >= 1, "max-units must be >= 1", *request.max_units);
  if (request.max_cp) require(*request.max_cp >= 1, "merge must be >= 1", *request.max_cp);
  require(request.threads >= 1, "threads must be >= 1", request.threads);
  if (request.budget) require(*request.budget >= 1, "budget must be >= 1", *request.budget);
  require(request.context.value >= 1, "context must be >= 1", request.context.value);
  require(request.context <= kLongestPlanned,
          "context must be <= " + std::to_string(kLongestPlanned.value), request.context.value);
  detail::check_memory(request.memory);
  detail::check_batch(request);
}

}  // namespace slimpack::planners
