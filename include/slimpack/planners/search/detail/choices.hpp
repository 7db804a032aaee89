// SPDX-License-Identifier: Apache-2.0
// The values that planners try for settings which most of them have.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/planners/planner.hpp"
#include "slimpack/planners/search/detail/lengths.hpp"
#include "slimpack/planners/search/layout.hpp"
#include "slimpack/planners/search/settings.hpp"

namespace slimpack::planners {

/// Recomputation modes to try: the one asked for, or all from the fastest to the leanest.
[[nodiscard]] inline std::vector<Recompute> recompute_choices(const PlanRequest& request) {
  if (request.recompute) return {*request.recompute};
  return {Recompute::none, Recompute::light, Recompute::layer, Recompute::full};
}

/// Whether each virtual stage keeps a layer with so many chunks and this place of the head.
[[nodiscard]] constexpr bool leaves_layers(const PlanRequest& request, std::int32_t chunks,
                                           const LmHeadPlacement& head) noexcept {
  return (request.model.layers + head.fewer_last_layers) / (std::int64_t{request.pp} * chunks) >
         head.fewer_last_layers;
}

/// Places of the head to try: the one asked for, or both; on the last of several stages also with
/// one or two layers fewer there, where some chunk count allows it.
[[nodiscard]] inline std::vector<LmHeadPlacement> head_choices(const PlanRequest& request,
                                                               std::span<const std::int32_t> chunks,
                                                               bool may_shard) {
  std::vector<LmHeadPlacement> places;
  const std::int32_t most = request.pp > 1 ? kMostFewerLastLayers : 0;
  for (std::int32_t fewer = 0; request.head != LmHead::shard && fewer <= most; ++fewer) {
    const LmHeadPlacement place{LmHead::last, fewer};
    if (request.fewer_last_layers.value_or(fewer) != fewer) continue;
    if (std::any_of(chunks.begin(), chunks.end(),
                    [&](std::int32_t count) { return leaves_layers(request, count, place); })) {
      places.push_back(place);
    }
  }
  if (request.head == LmHead::shard || (!request.head && may_shard && request.pp > 1 &&
                                        request.fewer_last_layers.value_or(0) == 0)) {
    places.push_back({LmHead::shard, 0});
  }
  return places;
}

/// Chunk counts to try: the one asked for, or those from `least` up to 8 that give every stage and
/// chunk the same number of layers; where there is none, those that leave none empty; else one.
[[nodiscard]] inline std::vector<std::int32_t> chunk_choices(const PlanRequest& request,
                                                             std::int32_t least) {
  if (request.chunks) return {*request.chunks};
  constexpr std::int32_t kMostChunks = 8;
  std::vector<std::int32_t> even, possible;
  for (std::int32_t chunks = least; chunks <= kMostChunks; ++chunks) {
    const std::int64_t stages = std::int64_t{request.pp} * chunks;
    if (stages > request.model.layers) break;
    possible.push_back(chunks);
    if (request.model.layers % stages == 0) even.push_back(chunks);
  }
  if (!even.empty()) return even;
  return possible.empty() ? std::vector<std::int32_t>{1} : possible;
}

/// Which devices to try next to each other: data-parallel ranks, as Megatron-LM has them, and
/// stages where that is another placement and the request is not for the published form.
[[nodiscard]] inline std::vector<DeviceOrder> device_choices(const PlanRequest& request) {
  const std::int64_t devices = std::int64_t{request.dp} * request.pp * request.tp;
  if (request.as_published || request.dp == 1 || request.pp == 1 ||
      devices <= request.cluster.devices_per_node) {
    return {DeviceOrder::ranks};
  }
  return {DeviceOrder::ranks, DeviceOrder::stages};
}

/// Lengths of packs to try: the longest sample, the context, and powers of two times the longest
/// sample in between, from the longest down; the context alone in the published form. No sample is
/// cut, and none is longer than the context.
[[nodiscard]] inline std::vector<Tokens> pack_length_choices(const PlanRequest& request) {
  const Tokens longest = longest_of(request.batch.samples);
  if (longest == request.context || request.as_published) return {request.context};
  std::vector<Tokens> lengths{longest, request.context};
  std::vector<Tokens> between;
  for (Tokens length = longest * 2; length < request.context; length = length * 2) {
    between.insert(between.begin(), length);
  }
  lengths.insert(lengths.end(), between.begin(), between.end());
  return lengths;
}

/// Context-parallel degrees to try: powers of two that divide `dp`, up to the request's bound.
[[nodiscard]] inline std::vector<std::int32_t> context_parallel_choices(
    const PlanRequest& request) {
  const std::int32_t most = std::min(request.dp, request.max_cp.value_or(request.dp));
  std::vector<std::int32_t> choices{1};
  while (choices.back() <= most / 2 && request.dp % (2 * choices.back()) == 0) {
    choices.push_back(2 * choices.back());
  }
  return choices;
}

/// The text of a CP block's length.
inline constexpr auto block_text = [](std::optional<Tokens> block) {
  return block ? std::to_string(block->value) : std::string("default");
};

/// Lengths of CP blocks to try for groups of up to `ranks` ranks: the request's, or some lengths
/// and that which cuts the longest sample into twice as many blocks as ranks. Absent: the default.
[[nodiscard]] inline std::vector<std::optional<Tokens>> block_choices(const PlanRequest& request,
                                                                      std::int32_t ranks) {
  if (ranks == 1 || request.memory.cp_block_tokens) return {request.memory.cp_block_tokens};
  std::vector<std::optional<Tokens>> blocks{Tokens{128}, Tokens{512}, Tokens{2048}, Tokens{32}};
  const std::int64_t parts = 2 * std::int64_t{ranks};
  const Tokens chunk{(longest_of(request.batch.samples).value + parts - 1) / parts};
  if (std::find(blocks.begin(), blocks.end(), chunk) == blocks.end()) blocks.push_back(chunk);
  return blocks;
}

/// Adds what any system may decide of a step: place of the head, packs whose H run back to back,
/// placement of devices. `published`: where the system has its head, which is tried first; in the
/// published form there is nothing else as far as the request allows it, and there are no batches
/// of H. Nor are there with several chunks a stage.
template <std::derived_from<StepSettings> Type>
void add_step_settings(SettingSpace<Type>& space, const PlanRequest& request,
                       std::span<const std::int32_t> chunks, LmHead published = LmHead::last) {
  const bool may_shard = !request.as_published || published == LmHead::shard;
  std::vector<LmHeadPlacement> heads = head_choices(request, chunks, may_shard);
  if (published == LmHead::shard && !heads.empty() && heads.back().head == LmHead::shard) {
    std::rotate(heads.begin(), heads.end() - 1, heads.end());
    if (request.as_published) heads.resize(1);
  }
  space.add("head", &StepSettings::head, heads);
  std::vector<std::int32_t> batches{1};
  if (!request.as_published && request.pp > 1 && request.head != LmHead::last) {
    batches = {1, 2, 4, 8};
  }
  space.add("head_batch", &StepSettings::head_batch, batches,
            {.applies =
                 [](const Type& settings) {
                   if constexpr (requires { settings.chunks; }) {
                     if (settings.chunks > 1) return false;
                   }
                   return settings.head.head == LmHead::shard;
                 },
             .first_only = true});
  space.add("devices", &StepSettings::devices, device_choices(request));
}
/// The same for one chunk a stage.
template <std::derived_from<StepSettings> Type>
void add_step_settings(SettingSpace<Type>& space, const PlanRequest& request) {
  const std::int32_t one_chunk = 1;
  add_step_settings(space, request, {&one_chunk, 1});
}

}  // namespace slimpack::planners
