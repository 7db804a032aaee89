// SPDX-License-Identifier: Apache-2.0
// A plan from plan.json, key by key, so that whatever uses it may index without looking.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/io/cluster_json.hpp"
#include "slimpack/io/cost_json.hpp"
#include "slimpack/io/detail/plan_format.hpp"
#include "slimpack/io/json_reader.hpp"
#include "slimpack/io/model_json.hpp"
#include "slimpack/plan/names.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/plan/virtual_stages.hpp"

namespace slimpack::detail {

inline constexpr std::int64_t kMostTokens = std::int64_t{1} << 40U;
inline constexpr std::int64_t kLongestSample = std::int64_t{1} << 30U;
inline constexpr std::int32_t kMostDevices = 1 << 20;
inline constexpr std::int64_t kMostBytes = std::int64_t{1} << 60U;
inline constexpr std::int64_t kAnyCount = std::numeric_limits<std::int64_t>::max();

/// Last index of a list of `size`, for messages and ranges; -1, which no index reaches, if empty.
[[nodiscard]] inline std::int64_t last_of(std::size_t size) {
  return static_cast<std::int64_t>(size) - 1;
}

/// An array of exactly `size` elements.
inline void check_size(const JsonReader& array, std::size_t size, std::string_view what) {
  array.check(array.size() == size,
              "must have " + std::to_string(size) + " elements, " + std::string(what));
}

[[nodiscard]] inline MemorySpec read_memory(const JsonReader& object, std::int32_t version) {
  MemorySpec memory;
  memory.capacity.value = object.at("capacity").integer(0, kMostBytes);
  memory.reserved.value = object.at("reserved").integer(0, kMostBytes);
  memory.optimizer = object.at("optimizer").choice<OptimizerState>();
  memory.gradient_bytes = read_element_bytes(object.at("gradient_bytes"), 16);
  memory.page_tokens.value = object.at("page_tokens").integer(1, kLongestSample);
  memory.cp_block_tokens.value = object.at("share_tokens").integer(1, kLongestSample);
  if (const auto tile = object.find("head_tile")) {
    memory.head_tile.value = tile->integer(1, kLongestSample);
  }
  if (const auto weights = object.find("weights")) {
    weights->check(version >= 3, "is known from version 3 of plans on");
    memory.weights = weights->choice<WeightState>();
  }
  return memory;
}

[[nodiscard]] inline Parallel read_parallel(const JsonReader& object) {
  Parallel parallel;
  parallel.dp = object.at("dp").integer32(1, kMostDevices);
  parallel.pp = object.at("pp").integer32(1, kMostDevices);
  parallel.tp = object.at("tp").integer32(1, kMostDevices);
  parallel.chunks = object.at("chunks").integer32(1, kMostDevices);
  parallel.head = object.at("head").choice<LmHead>();
  parallel.granularity.value = object.at("granularity").integer(1, kLongestSample);
  parallel.max_cp = object.at("merge").integer32(1, kMostDevices);
  // Each product stays below 2^60.
  const std::int64_t devices = std::int64_t{parallel.dp} * parallel.pp;
  const std::int64_t places = std::int64_t{parallel.pp} * parallel.chunks;
  if (devices > kMostDevices || devices * parallel.tp > kMostDevices || places > kMostDevices) {
    object.fail("dp x pp x tp and pp x chunks must be at most " + std::to_string(kMostDevices));
  }
  return parallel;
}

inline void read_sources(const JsonReader& array, Plan& plan) {
  for (std::size_t i = 0; i < array.size(); ++i) {
    const JsonReader object = array.item(i);
    const auto sha256 = object.find("sha256");
    plan.sources.push_back({object.at("path").text(), object.at("documents").integer(0, kAnyCount),
                            sha256 ? sha256->text() : std::string()});
  }
}

inline void read_samples(const JsonReader& root, Plan& plan) {
  const JsonReader samples = root.at("samples");
  samples.check(samples.size() > 0, "must have at least one sample");
  std::int64_t total = 0;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    plan.samples.push_back(Tokens{samples.item(i).integer(1, kLongestSample)});
    total += plan.samples.back().value;
    if (total > kMostTokens) {
      samples.fail("must hold at most " + std::to_string(kMostTokens) + " tokens in all");
    }
  }
  const JsonReader step = root.at("step");
  plan.step_index = step.at("index").integer(0, kAnyCount);
  plan.target_tokens = step.at("target_tokens").integer(0, total);

  const JsonReader origins = root.at("origin");
  check_size(origins, plan.samples.size(), "one for each sample");
  for (std::size_t i = 0; i < plan.samples.size(); ++i) {
    const JsonReader origin = origins.item(i);
    check_size(origin, 3, "source, document and first token");
    Origin read;
    read.source = origin.item(0).integer(0, last_of(plan.sources.size()));
    const std::int64_t documents = plan.sources[static_cast<std::size_t>(read.source)].documents;
    read.document = origin.item(1).integer(0, documents - 1);
    read.first.value = origin.item(2).integer(0, kAnyCount - kLongestSample);
    plan.origin.push_back(read);
  }
}

inline void read_placement(const JsonReader& array, Plan& plan) {
  const Parallel& parallel = plan.parallel;
  const auto count =
      static_cast<std::size_t>(std::int64_t{parallel.dp} * parallel.pp * parallel.tp);
  check_size(array, count, "one for each dp, pp and tp");
  std::vector<bool> placed(count);
  std::vector<std::int64_t> devices;
  for (std::size_t i = 0; i < count; ++i) {
    const JsonReader item = array.item(i);
    check_size(item, 4, "dp, pp, tp and device");
    Placement place;
    place.dp = item.item(0).integer32(0, parallel.dp - 1);
    place.pp = item.item(1).integer32(0, parallel.pp - 1);
    place.tp = item.item(2).integer32(0, parallel.tp - 1);
    place.device = item.item(3).integer(0, kMostTokens);
    const auto position = static_cast<std::size_t>(
        (std::int64_t{place.dp} * parallel.pp + place.pp) * parallel.tp + place.tp);
    if (placed[position]) item.fail("this dp, pp and tp has a device already");
    placed[position] = true;
    devices.push_back(place.device);
    plan.placement.push_back(place);
  }
  std::sort(devices.begin(), devices.end());
  const auto twice = std::adjacent_find(devices.begin(), devices.end());
  if (twice != devices.end()) {
    array.fail("a device may have one place only, but device " + std::to_string(*twice) +
               " has two");
  }
}

inline void read_stages(const JsonReader& array, Plan& plan) {
  const VirtualStages virtual_stages = virtual_stages_of(plan);
  const auto count = static_cast<std::size_t>(virtual_stages.size());
  check_size(array, count, "one for each stage and chunk");
  std::vector<bool> seen(count);
  plan.stages.resize(count);
  for (std::size_t i = 0; i < count; ++i) {
    const JsonReader object = array.item(i);
    Stage stage;
    stage.pp = object.at("pp").integer32(0, virtual_stages.pp - 1);
    stage.chunk = object.at("chunk").integer32(0, virtual_stages.chunks - 1);
    const JsonReader layers = object.at("layers");
    check_size(layers, 2, "the first layer and the end");
    stage.first_layer = layers.item(0).integer(0, plan.model.layers);
    stage.end_layer = layers.item(1).integer(stage.first_layer, plan.model.layers);
    const auto embedding = object.find("embedding");
    stage.embedding = embedding && embedding->boolean();
    const auto position = static_cast<std::size_t>(virtual_stages.index(stage.pp, stage.chunk));
    if (seen[position]) object.fail("this stage and chunk has layers already");
    if (stage.embedding != (position == 0)) {
      object.fail("embedding must be true for stage 0, chunk 0, and for no other");
    }
    seen[position] = true;
    plan.stages[position] = stage;
  }
  std::int64_t next = 0;
  for (const Stage& stage : plan.stages) {
    if (stage.first_layer != next) {
      array.fail("layers must follow one another along the virtual stages: stage " +
                 std::to_string(stage.pp) + ", chunk " + std::to_string(stage.chunk) +
                 " must begin at layer " + std::to_string(next) + ", found " +
                 std::to_string(stage.first_layer));
    }
    next = stage.end_layer;
  }
  if (next != plan.model.layers) {
    array.fail("the stages must hold all " + std::to_string(plan.model.layers) + " layers, found " +
               std::to_string(next));
  }
}

inline void read_groups(const JsonReader& root, Plan& plan) {
  const JsonReader groups = root.at("groups");
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const JsonReader ranks = groups.item(i);
    ranks.check(ranks.size() > 0, "must have at least one rank");
    std::vector<std::int32_t> group;
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      const JsonReader value = ranks.item(rank);
      group.push_back(value.integer32(0, plan.parallel.dp - 1));
      value.check(rank == 0 || group[rank - 1] < group[rank],
                  "must be greater than the rank before");
    }
    plan.groups.push_back(std::move(group));
  }
  const JsonReader of_samples = root.at("sample_group");
  check_size(of_samples, plan.samples.size(), "one for each sample");
  for (std::size_t i = 0; i < plan.samples.size(); ++i) {
    const std::int64_t group = of_samples.item(i).integer(0, last_of(plan.groups.size()));
    plan.sample_group.push_back(static_cast<GroupId>(group));
  }
  const auto firsts = root.find("sample_first");
  if (!firsts) return;
  firsts->check(plan.version >= 3, "is known from version 3 of plans on");
  check_size(*firsts, plan.samples.size(), "one for each sample");
  for (std::size_t i = 0; i < plan.samples.size(); ++i) {
    const std::size_t ranks = plan.groups[index(plan.sample_group[i])].size();
    plan.sample_first.push_back(firsts->item(i).integer32(0, static_cast<std::int32_t>(ranks) - 1));
  }
}

[[nodiscard]] inline MicroPack read_pack(const JsonReader& object, std::size_t id,
                                         const Plan& plan) {
  const JsonReader number = object.at("id");
  number.check(number.integer(0, kAnyCount) == static_cast<std::int64_t>(id),
               "ids must count from 0 in order, so this one must be " + std::to_string(id));
  MicroPack pack;
  pack.pass = object.at("pass").choice<Pass>();
  pack.group = static_cast<GroupId>(object.at("group").integer(0, last_of(plan.groups.size())));
  const JsonReader slices = object.at("slices");
  pack.slices.reserve(slices.size());
  for (std::size_t i = 0; i < slices.size(); ++i) {
    const JsonReader slice = slices.item(i);
    check_size(slice, 3, "sample, begin and end");
    pack.slices.push_back(
        {static_cast<SampleId>(slice.item(0).integer(0, last_of(plan.samples.size()))),
         Tokens{slice.item(1).integer(0, kLongestSample)},
         Tokens{slice.item(2).integer(0, kLongestSample)}});
  }
  const bool exchanges = plan.groups[index(pack.group)].size() > 1 && pack.pass != Pass::weight;
  if (exchanges) {
    const JsonReader exchange = object.at("exchange");
    check_size(exchange, pack.slices.size(), "one for each slice");
    for (std::size_t i = 0; i < pack.slices.size(); ++i) {
      const JsonReader mode = exchange.item(i);
      pack.exchange.push_back(mode.choice<RingMode>());
      mode.check(plan.version >= 3 || pack.exchange.back() != RingMode::by_heads,
                 "is known from version 3 of plans on");
    }
  } else if (const auto exchange = object.find("exchange"); exchange && exchange->size() > 0) {
    exchange->refuse(pack.pass == Pass::weight ? "a weight MicroPack exchanges nothing"
                                               : "a group of one rank exchanges nothing");
  }
  if (const auto recompute = object.find("recompute")) {
    if (pack.pass == Pass::weight) recompute->refuse("a weight MicroPack recomputes nothing");
    pack.recompute = recompute->choice<Recompute>();
  } else if (pack.pass == Pass::backward) {
    object.fail("the key 'recompute' is missing");
  }
  if (const auto weights = object.find("weights")) {
    pack.weights = weights->choice<WeightGradients>();
    weights->check(pack.pass == Pass::backward || pack.weights == WeightGradients::with,
                   "only backward MicroPacks may leave gradients of weights to others");
  }
  if (plan.version < 2 && (pack.pass == Pass::weight || pack.weights == WeightGradients::apart)) {
    object.fail("gradients of weights are computed apart from version 2 of plans on, not in " +
                std::to_string(plan.version));
  }
  return pack;
}

[[nodiscard]] inline Unit read_unit(const JsonReader& array, const Plan& plan) {
  array.check(array.size() > 0, "must name a unit");
  Unit unit;
  unit.kind = array.item(0).choice<UnitKind>();
  const bool has_pack = names_pack(unit.kind), has_chunk = names_chunk(unit.kind);
  const std::size_t size = 1 + (has_pack ? 1U : 0U) + (has_chunk ? 1U : 0U);
  check_size(array, size,
             has_pack && has_chunk ? "the unit, its MicroPack and its chunk"
             : has_pack            ? "the unit and its MicroPack"
             : has_chunk           ? "the unit and its chunk"
                                   : "the unit alone");
  if (has_pack) {
    unit.pack = static_cast<PackId>(array.item(1).integer(0, last_of(plan.micropacks.size())));
  }
  if (has_chunk) unit.chunk = array.item(size - 1).integer32(0, plan.parallel.chunks - 1);
  return unit;
}

inline void read_schedule(const JsonReader& array, Plan& plan) {
  const Parallel& parallel = plan.parallel;
  for (std::int32_t dp = 0; dp < parallel.dp; ++dp) {
    for (std::int32_t pp = 0; pp < parallel.pp; ++pp) plan.schedule.push_back({dp, pp, {}});
  }
  std::vector<bool> seen(plan.schedule.size());
  for (std::size_t i = 0; i < array.size(); ++i) {
    const JsonReader object = array.item(i);
    const std::int32_t dp = object.at("dp").integer32(0, parallel.dp - 1);
    const std::int32_t pp = object.at("pp").integer32(0, parallel.pp - 1);
    const std::size_t device = device_index(plan, dp, pp);
    if (seen[device]) object.fail("this device has a schedule already (rule 3)");
    seen[device] = true;
    const JsonReader order = object.at("order");
    std::vector<Unit>& units = plan.schedule[device].order;
    units.reserve(order.size());
    for (std::size_t unit = 0; unit < order.size(); ++unit) {
      units.push_back(read_unit(order.item(unit), plan));
    }
  }
}

[[nodiscard]] inline Prediction read_prediction(const JsonReader& object, const Plan& plan) {
  Prediction prediction;
  prediction.iteration = object.at("iteration_s").time();
  prediction.ideal = object.at("ideal_s").time();
  prediction.lower_bound = object.at("lower_bound_s").time();
  const JsonReader devices = object.at("devices");
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const JsonReader device = devices.item(i);
    DevicePrediction read;
    read.dp = device.at("dp").integer32(0, plan.parallel.dp - 1);
    read.pp = device.at("pp").integer32(0, plan.parallel.pp - 1);
    read.busy = device.at("busy_s").time();
    read.peak.value = device.at("peak_bytes").integer(0, kAnyCount);
    prediction.devices.push_back(read);
  }
  return prediction;
}

/// Refuses plans whose bytes or pairs, summed over slices, would not fit in 63 bits. Doubles do:
/// the limits leave a factor of two.
inline void check_countable(const JsonReader& root, const Plan& plan) {
  const ModelShape& model = plan.model;
  const double widths = static_cast<double>(model.hidden) + static_cast<double>(model.ffn) +
                        static_cast<double>(model.heads) * static_cast<double>(model.head_dim) +
                        static_cast<double>(model.kv_heads) * static_cast<double>(model.head_dim);
  // docs/equations.md: no quantity there takes more than 8 elements of 8 bytes of each width.
  const double token_bytes = 64 * (widths + 2) * static_cast<double>(model.layers + 2);
  const double head_bytes = 64 * static_cast<double>(model.vocab);
  double tokens = 0;
  double pairs = 0;
  for (const Tokens length : plan.samples) tokens += static_cast<double>(length.value);
  for (const MicroPack& pack : plan.micropacks) {
    for (const Slice& slice : pack.slices) {
      // Rows are filled up to tiles, keys and values to pages.
      const auto tile = static_cast<double>(plan.cluster.tile_tokens);
      const double rows =
          static_cast<double>(std::max<std::int64_t>(slice.length().value, 0)) + 2 * tile;
      tokens += rows;
      pairs += rows * (2 * static_cast<double>(slice.end.value) + rows);
    }
  }
  const double page =
      static_cast<double>(plan.memory.page_tokens.value) * static_cast<double>(plan.samples.size());
  const double head =
      head_bytes * std::min(tokens, static_cast<double>(plan.memory.head_tile.value));
  if (!((tokens + page) * token_bytes + head < 0x1p62) || !(pairs < 0x1p62)) {
    root.fail("the plan's bytes and pairs of tokens must be countable in 63 bits");
  }
}

[[nodiscard]] inline Plan read_plan(const JsonReader& root) {
  const JsonReader format = root.at("format");
  format.check(format.text() == kPlanFormat, "must be '" + std::string(kPlanFormat) + "'");
  const JsonReader version = root.at("version");
  const std::int64_t number = version.integer(1, kAnyCount);
  if (number > kPlanVersion) {
    version.fail("version " + std::to_string(number) + " is newer than version " +
                 std::to_string(kPlanVersion) + ", the newest that this program reads");
  }
  Plan plan;
  plan.version = static_cast<std::int32_t>(number);
  plan.planner = root.at("planner").text();
  plan.model = read_model(root.at("model"));
  plan.cluster = read_cluster(root.at("cluster"));
  plan.cost = read_cost(root.at("cost"));
  plan.memory = read_memory(root.at("memory"), plan.version);
  plan.parallel = read_parallel(root.at("parallel"));
  read_sources(root.at("sources"), plan);
  read_samples(root, plan);
  read_placement(root.at("placement"), plan);
  read_stages(root.at("stages"), plan);
  read_groups(root, plan);
  const JsonReader packs = root.at("micropacks");
  plan.micropacks.reserve(packs.size());
  for (std::size_t id = 0; id < packs.size(); ++id) {
    plan.micropacks.push_back(read_pack(packs.item(id), id, plan));
  }
  read_schedule(root.at("schedule"), plan);
  plan.max_in_flight = root.at("window").integer32(1, kMostDevices);
  if (const auto prediction = root.find("prediction")) {
    plan.prediction = read_prediction(*prediction, plan);
  }
  check_countable(root, plan);
  return plan;
}

}  // namespace slimpack::detail
