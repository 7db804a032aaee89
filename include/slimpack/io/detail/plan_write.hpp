// SPDX-License-Identifier: Apache-2.0
// The text of plan.json.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "slimpack/core/units.hpp"
#include "slimpack/io/cluster_json.hpp"
#include "slimpack/io/cost_json.hpp"
#include "slimpack/io/detail/plan_format.hpp"
#include "slimpack/io/json_text.hpp"
#include "slimpack/io/model_json.hpp"
#include "slimpack/plan/names.hpp"
#include "slimpack/plan/plan.hpp"

namespace slimpack::detail {

inline void write_memory(JsonText& out, const MemorySpec& memory) {
  out.open('{').key("capacity").integer(memory.capacity.value);
  out.key("reserved").integer(memory.reserved.value);
  out.key("optimizer").text(to_string(memory.optimizer));
  out.key("gradient_bytes").integer(memory.gradient_bytes);
  out.key("page_tokens").integer(memory.page_tokens.value);
  out.key("share_tokens").integer(memory.cp_block_tokens.value);
  out.key("head_tile").integer(memory.head_tile.value).close('}');
}

inline void write_parallel(JsonText& out, const Parallel& parallel) {
  out.open('{').key("dp").integer(parallel.dp).key("pp").integer(parallel.pp);
  out.key("tp").integer(parallel.tp).key("chunks").integer(parallel.chunks);
  out.key("head").text(to_string(parallel.head));
  out.key("granularity").integer(parallel.granularity.value);
  out.key("merge").integer(parallel.max_cp).close('}');
}

inline void write_samples(JsonText& out, const Plan& plan) {
  out.line(2).key("sources").open('[');
  for (const Source& source : plan.sources) {
    out.open('{').key("path").text(source.path).key("documents").integer(source.documents);
    out.key("sha256").text(source.sha256).close('}');
  }
  out.close(']').line(2).key("origin").open('[');
  for (const Origin& origin : plan.origin) {
    out.open('[').integer(origin.source).integer(origin.document);
    out.integer(origin.first.value).close(']');
  }
  out.close(']').line(2).key("samples").open('[');
  for (const Tokens length : plan.samples) out.integer(length.value);
  out.close(']');
}

inline void write_places(JsonText& out, const Plan& plan) {
  out.line(2).key("placement").open('[');
  for (const Placement& place : plan.placement) {
    out.open('[').integer(place.dp).integer(place.pp).integer(place.tp);
    out.integer(place.device).close(']');
  }
  out.close(']').line(2).key("stages").open('[');
  for (const Stage& stage : plan.stages) {
    out.line(4).open('{').key("pp").integer(stage.pp).key("chunk").integer(stage.chunk);
    out.key("layers").open('[').integer(stage.first_layer).integer(stage.end_layer).close(']');
    if (stage.embedding) out.key("embedding").boolean(true);
    out.close('}');
  }
  out.close_line(']', 2);
}

inline void write_groups(JsonText& out, const Plan& plan) {
  out.line(2).key("groups").open('[');
  for (const auto& group : plan.groups) {
    out.open('[');
    for (const std::int32_t rank : group) out.integer(rank);
    out.close(']');
  }
  out.close(']').line(2).key("sample_group").open('[');
  for (const GroupId group : plan.sample_group) {
    out.integer(static_cast<std::int64_t>(index(group)));
  }
  out.close(']');
}

inline void write_pack(JsonText& out, const MicroPack& pack, std::size_t id) {
  out.line(4).open('{').key("id").integer(static_cast<std::int64_t>(id));
  out.key("pass").text(to_string(pack.pass));
  out.key("group").integer(static_cast<std::int64_t>(index(pack.group)));
  out.key("slices").open('[');
  for (const Slice& slice : pack.slices) {
    out.open('[').integer(static_cast<std::int64_t>(index(slice.sample)));
    out.integer(slice.begin.value).integer(slice.end.value).close(']');
  }
  out.close(']');
  if (!pack.exchange.empty()) {
    out.key("exchange").open('[');
    for (const RingMode exchange : pack.exchange) out.text(to_string(exchange));
    out.close(']');
  }
  if (pack.pass == Pass::backward || pack.recompute != Recompute::none) {
    out.key("recompute").text(to_string(pack.recompute));
  }
  out.close('}');
}

/// A unit as plan.json has it, without blanks: schedules are long.
[[nodiscard]] inline std::string unit_text(const Unit& unit) {
  std::string text = "[\"";
  text += to_string(unit.kind);
  text += '"';
  const bool has_pack = unit.kind == UnitKind::forward || unit.kind == UnitKind::backward ||
                        unit.kind == UnitKind::head;
  const bool has_chunk = unit.kind == UnitKind::forward || unit.kind == UnitKind::backward ||
                         unit.kind == UnitKind::reduce;
  if (has_pack) text += ',' + std::to_string(index(unit.pack));
  if (has_chunk) text += ',' + std::to_string(unit.chunk);
  return text + ']';
}

inline void write_schedule(JsonText& out, const DeviceSchedule& device) {
  out.line(4).open('{').key("dp").integer(device.dp).key("pp").integer(device.pp);
  std::string order = "[";
  for (const Unit& unit : device.order) {
    if (order.size() > 1) order += ',';
    order += unit_text(unit);
  }
  out.key("order").word(order + ']').close('}');
}

inline void write_prediction(JsonText& out, const Prediction& prediction) {
  out.open('{').key("iteration_s").time(prediction.iteration);
  out.key("ideal_s").time(prediction.ideal).key("lower_bound_s").time(prediction.lower_bound);
  out.key("devices").open('[');
  for (const DevicePrediction& device : prediction.devices) {
    out.line(4).open('{').key("dp").integer(device.dp).key("pp").integer(device.pp);
    out.key("busy_s").time(device.busy).key("peak_bytes").integer(device.peak.value).close('}');
  }
  out.close(']').close('}');
}

[[nodiscard]] inline std::string write_plan(const Plan& plan) {
  JsonText out;
  out.open('{').line(2).key("format").text(kPlanFormat).key("version").integer(kPlanVersion);
  out.key("planner").text(plan.planner);
  out.line(2).key("step").open('{').key("index").integer(plan.step_index);
  out.key("target_tokens").integer(plan.target_tokens).close('}');
  write_samples(out, plan);
  write_model(out.line(2).key("model"), plan.model);
  write_cluster(out.line(2).key("cluster"), plan.cluster);
  write_cost(out.line(2).key("cost"), plan.cost);
  write_memory(out.line(2).key("memory"), plan.memory);
  write_parallel(out.line(2).key("parallel"), plan.parallel);
  write_places(out, plan);
  write_groups(out, plan);
  out.line(2).key("micropacks").open('[');
  for (std::size_t id = 0; id < plan.micropacks.size(); ++id) {
    write_pack(out, plan.micropacks[id], id);
  }
  out.close_line(']', 2).line(2).key("schedule").open('[');
  for (const DeviceSchedule& device : plan.schedule) write_schedule(out, device);
  out.close_line(']', 2).line(2).key("window").integer(plan.max_in_flight);
  write_prediction(out.line(2).key("prediction"), plan.prediction);
  out.close_line('}', 0);
  return out.take() + "\n";
}

}  // namespace slimpack::detail
