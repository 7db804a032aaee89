// SPDX-License-Identifier: Apache-2.0
// The text of plan.json.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/io/cluster_json.hpp"
#include "slimpack/io/cost_json.hpp"
#include "slimpack/io/detail/plan_format.hpp"
#include "slimpack/io/json_writer.hpp"
#include "slimpack/io/model_json.hpp"
#include "slimpack/plan/names.hpp"
#include "slimpack/plan/plan.hpp"

namespace slimpack::detail {

inline void write_memory(JsonWriter& out, const MemorySpec& memory) {
  out.begin_object().key("capacity").number(memory.capacity.value);
  out.key("reserved").number(memory.reserved.value);
  out.key("optimizer").text(to_string(memory.optimizer));
  if (memory.weights == WeightState::sharded) out.key("weights").text(to_string(memory.weights));
  out.key("gradient_bytes").number(memory.gradient_bytes);
  out.key("page_tokens").number(memory.page_tokens.value);
  out.key("share_tokens").number(memory.cp_block_tokens.value);
  out.key("head_tile").number(memory.head_tile.value).end_object();
}

inline void write_parallel(JsonWriter& out, const Parallel& parallel) {
  out.begin_object().key("dp").number(parallel.dp).key("pp").number(parallel.pp);
  out.key("tp").number(parallel.tp).key("chunks").number(parallel.chunks);
  out.key("head").text(to_string(parallel.head));
  out.key("granularity").number(parallel.granularity.value);
  out.key("merge").number(parallel.max_cp).end_object();
}

inline void write_samples(JsonWriter& out, const Plan& plan) {
  out.line(2).key("sources").begin_array();
  for (const Source& source : plan.sources) {
    out.begin_object().key("path").text(source.path).key("documents").number(source.documents);
    out.key("sha256").text(source.sha256).end_object();
  }
  out.end_array().line(2).key("origin").begin_array();
  for (const Origin& origin : plan.origin) {
    out.begin_array().number(origin.source).number(origin.document);
    out.number(origin.first.value).end_array();
  }
  out.end_array().line(2).key("samples").begin_array();
  for (const Tokens length : plan.samples) out.number(length.value);
  out.end_array();
}

inline void write_places(JsonWriter& out, const Plan& plan) {
  out.line(2).key("placement").begin_array();
  for (const Placement& place : plan.placement) {
    out.begin_array().number(place.dp).number(place.pp).number(place.tp);
    out.number(place.device).end_array();
  }
  out.end_array().line(2).key("stages").begin_array();
  for (const Stage& stage : plan.stages) {
    out.line(4).begin_object().key("pp").number(stage.pp).key("chunk").number(stage.chunk);
    out.key("layers").begin_array().number(stage.first_layer).number(stage.end_layer).end_array();
    if (stage.embedding) out.key("embedding").boolean(true);
    out.end_object();
  }
  out.line(2).end_array();
}

inline void write_groups(JsonWriter& out, const Plan& plan) {
  out.line(2).key("groups").begin_array();
  for (const auto& group : plan.groups) {
    out.begin_array();
    for (const std::int32_t rank : group) out.number(rank);
    out.end_array();
  }
  out.end_array().line(2).key("sample_group").begin_array();
  for (const GroupId group : plan.sample_group) {
    out.number(static_cast<std::int64_t>(index(group)));
  }
  out.end_array();
  if (plan.sample_first.empty()) return;
  out.line(2).key("sample_first").begin_array();
  for (const std::int32_t first : plan.sample_first) out.number(first);
  out.end_array();
}

inline void write_pack(JsonWriter& out, const MicroPack& pack, std::size_t id) {
  out.line(4).begin_object().key("id").number(static_cast<std::int64_t>(id));
  out.key("pass").text(to_string(pack.pass));
  out.key("group").number(static_cast<std::int64_t>(index(pack.group)));
  out.key("slices").begin_array();
  for (const Slice& slice : pack.slices) {
    out.begin_array().number(static_cast<std::int64_t>(index(slice.sample)));
    out.number(slice.begin.value).number(slice.end.value).end_array();
  }
  out.end_array();
  if (!pack.exchange.empty()) {
    out.key("exchange").begin_array();
    for (const RingMode exchange : pack.exchange) out.text(to_string(exchange));
    out.end_array();
  }
  if (pack.pass == Pass::backward || pack.recompute != Recompute::none) {
    out.key("recompute").text(to_string(pack.recompute));
  }
  if (pack.weights != WeightGradients::with) out.key("weights").text(to_string(pack.weights));
  out.end_object();
}

/// A unit as plan.json has it, without blanks: schedules are long.
[[nodiscard]] inline std::string unit_text(const Unit& unit) {
  std::string text = "[\"";
  text += to_string(unit.kind);
  text += '"';
  if (names_pack(unit.kind)) text += ',' + std::to_string(index(unit.pack));
  if (names_chunk(unit.kind)) text += ',' + std::to_string(unit.chunk);
  return text + ']';
}

inline void write_schedule(JsonWriter& out, const DeviceSchedule& device) {
  out.line(4).begin_object().key("dp").number(device.dp).key("pp").number(device.pp);
  std::string order = "[";
  for (const Unit& unit : device.order) {
    if (order.size() > 1) order += ',';
    order += unit_text(unit);
  }
  out.key("order").raw(order + ']').end_object();
}

/// Writes a time under `key` of the object at `place`, which a refusal names.
inline void write_time(JsonWriter& out, const std::string& place, std::string_view key,
                       Nanos value) {
  try {
    out.key(key).short_time(value);
  } catch (const InvalidInput& error) {
    throw InvalidInput(place + "." + std::string(key) + ": " + error.what());
  }
}

inline void write_prediction(JsonWriter& out, const Prediction& prediction) {
  const std::string place = "prediction";
  out.begin_object();
  write_time(out, place, "iteration_s", prediction.iteration);
  write_time(out, place, "ideal_s", prediction.ideal);
  write_time(out, place, "lower_bound_s", prediction.lower_bound);
  out.key("devices").begin_array();
  for (std::size_t i = 0; i < prediction.devices.size(); ++i) {
    const DevicePrediction& device = prediction.devices[i];
    out.line(4).begin_object().key("dp").number(device.dp).key("pp").number(device.pp);
    write_time(out, place + ".devices[" + std::to_string(i) + "]", "busy_s", device.busy);
    out.key("peak_bytes").number(device.peak.value).end_object();
  }
  out.end_array().end_object();
}

[[nodiscard]] inline std::string write_plan(const Plan& plan) {
  JsonWriter out;
  out.begin_object(JsonLayout::flat)
      .line(2)
      .key("format")
      .text(kPlanFormat)
      .key("version")
      .number(plan.version);
  out.key("planner").text(plan.planner);
  out.line(2).key("step").begin_object().key("index").number(plan.step_index);
  out.key("target_tokens").number(plan.target_tokens).end_object();
  write_samples(out, plan);
  write_model(out.line(2).key("model"), plan.model);
  write_cluster(out.line(2).key("cluster"), plan.cluster);
  write_cost(out.line(2).key("cost"), plan.cost);
  write_memory(out.line(2).key("memory"), plan.memory);
  write_parallel(out.line(2).key("parallel"), plan.parallel);
  write_places(out, plan);
  write_groups(out, plan);
  out.line(2).key("micropacks").begin_array();
  for (std::size_t id = 0; id < plan.micropacks.size(); ++id) {
    write_pack(out, plan.micropacks[id], id);
  }
  out.line(2).end_array().line(2).key("schedule").begin_array();
  for (const DeviceSchedule& device : plan.schedule) write_schedule(out, device);
  out.line(2).end_array().line(2).key("window").number(plan.max_in_flight);
  write_prediction(out.line(2).key("prediction"), plan.prediction);
  out.line(0).end_object();
  return out.take() + "\n";
}

}  // namespace slimpack::detail
