// SPDX-License-Identifier: Apache-2.0
// One simulated plan as the data that an HTML page draws.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "describe.hpp"
#include "figures.hpp"
#include "memory_levels.hpp"
#include "packed_bytes.hpp"
#include "page_rows.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/io/json_writer.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/report/metrics.hpp"
#include "slimpack/report/summary.hpp"
#include "slimpack/sim/bottlenecks.hpp"
#include "slimpack/sim/dag.hpp"
#include "slimpack/sim/simulate_plan.hpp"
#include "slimpack/sim/timeline.hpp"

namespace slimpack::report::detail {

/// Everything about a plan that the page needs, packed; page/decode.js reads it.
class PagePlan {
 public:
  /// Memory curves are as fine as so many steps of the limit.
  static constexpr std::int64_t kMemorySteps = 4096;
  /// Memory curves are as exact in time as so many steps of the span.
  static constexpr std::int64_t kTimeSteps = 1 << 20;

  PagePlan(const Plan& plan, const sim::PlanSimulation& simulation)
      : plan_(plan),
        simulation_(simulation),
        gaps_(sim::find_gaps(simulation.dag, simulation.timeline, memory_limit(plan))),
        rows_(plan, simulation, gaps_),
        stages_(static_cast<std::size_t>(plan.parallel.pp)) {
    for (std::size_t rank = 0; rank < static_cast<std::size_t>(plan.parallel.dp); ++rank) {
      entries_ += rows_.entries(rank);
    }
  }
  PagePlan(const PagePlan&) = delete;  // its rows refer to its gaps
  PagePlan& operator=(const PagePlan&) = delete;
  ~PagePlan() = default;

  /// Units and gaps of all ranks.
  [[nodiscard]] std::size_t entries() const noexcept { return entries_; }
  [[nodiscard]] const Plan& plan() const noexcept { return plan_; }
  [[nodiscard]] const sim::PlanSimulation& simulation() const noexcept { return simulation_; }

  /// Writes the object, with the timelines of `ranks` and about `points` of each memory curve.
  void write(JsonWriter& json, std::span<const std::size_t> ranks, std::size_t points) {
    const Parallel& parallel = plan_.parallel;
    json.begin_object();
    json.member("planner", plan_.planner);
    json.member("setting", describe_parallel(parallel));
    json.member("step", plan_.step_index);
    json.member("dp", parallel.dp);
    json.member("pp", parallel.pp);
    json.member("chunks", parallel.chunks);
    json.member("span", simulation_.timeline.makespan.value);
    json.member("limit", memory_limit(plan_).value);
    json.member("quantum", quantum());
    json.member("tick", tick());
    json.member("entries", entries_);
    json.key("groups");
    json.begin_array(JsonLayout::flat);
    for (const auto& group : plan_.groups) {
      json.begin_array(JsonLayout::flat);
      for (const std::int32_t rank : group) json.number(rank);
      json.end_array();
    }
    json.end_array();
    json.member("samples", samples().text());
    json.member("packs", packs().text());
    write_times(json);
    json.member("rank_work", rank_work().text());
    json.member("peaks", peaks().text());
    json.member("reductions", reductions().text());
    write_path(json);
    write_ranks(json, ranks, points);
    json.end_object();
  }

 private:
  [[nodiscard]] std::int64_t quantum() const {
    return std::max<std::int64_t>(1, memory_limit(plan_).value / kMemorySteps);
  }

  [[nodiscard]] std::int64_t tick() const {
    return std::max<std::int64_t>(1, simulation_.timeline.makespan.value / kTimeSteps);
  }

  [[nodiscard]] PackedBytes samples() const {
    PackedBytes bytes;
    bytes.add_size(plan_.samples.size());
    for (const Tokens length : plan_.samples) bytes.add_signed(length.value);
    return bytes;
  }

  [[nodiscard]] PackedBytes packs() const {
    PackedBytes bytes;
    bytes.add_size(plan_.micropacks.size());
    for (const MicroPack& pack : plan_.micropacks) {
      bytes.add(static_cast<unsigned>(pack.pass) | static_cast<unsigned>(pack.weights) << 2U |
                static_cast<unsigned>(pack.recompute) << 3U);
      bytes.add_size(index(pack.group));
      bytes.add_size(pack.slices.size());
      std::int64_t last = 0;
      for (const Slice& slice : pack.slices) {
        const auto sample = static_cast<std::int64_t>(index(slice.sample));
        bytes.add_signed(sample - last);
        bytes.add_signed(slice.begin.value);
        bytes.add_signed(slice.length().value);
        last = sample;
      }
    }
    return bytes;
  }

  void write_times(JsonWriter& json) const {
    const ComputeTimes times = compute_times(plan_, simulation_.dag);
    const auto packed = [](const std::vector<Nanos>& values) {
      PackedBytes bytes;
      bytes.add_size(values.size());
      for (const Nanos value : values) bytes.add_signed(value.value);
      return bytes.text();
    };
    json.member("forward_times", packed(times.forward));
    json.member("backward_times", packed(times.backward));
    json.member("weight_times", packed(times.weight));
  }

  /// F, B, H, O and W of each rank, all its stages.
  [[nodiscard]] PackedBytes rank_work() const {
    const sim::Dag& dag = simulation_.dag;
    std::vector<std::array<Nanos, PageRows::kFirstGap>> work(
        static_cast<std::size_t>(plan_.parallel.dp));
    for (std::size_t i = 0; i < dag.size(); ++i) {
      const sim::NodeLabel& label = dag.label[i];
      if (!sim::is_compute(label.kind)) continue;
      work[static_cast<std::size_t>(label.dp)][page_kind(label.kind)] += dag.duration[i];
    }
    PackedBytes bytes;
    for (const auto& rank : work) {
      for (const Nanos time : rank) bytes.add_signed(time.value);
    }
    return bytes;
  }

  /// For each device the time at which its peak is reached, then the bytes of each kind at that
  /// time.
  [[nodiscard]] PackedBytes peaks() const {
    PackedBytes bytes;
    for (std::size_t i = 0; i < simulation_.at_peak.size(); ++i) {
      bytes.add_signed(simulation_.timeline.peak[i].time.value);
      for (const Bytes kind : simulation_.at_peak[i]) bytes.add_signed(kind.value);
    }
    return bytes;
  }

  /// Buckets of gradients by stage, then start.
  [[nodiscard]] PackedBytes reductions() const {
    const sim::Dag& dag = simulation_.dag;
    const std::vector<Nanos>& start = simulation_.timeline.start;
    std::vector<std::size_t> nodes;
    for (std::size_t i = 0; i < dag.size(); ++i) {
      if (dag.label[i].kind == sim::NodeKind::reduce && dag.duration[i] > Nanos{})
        nodes.push_back(i);
    }
    std::stable_sort(nodes.begin(), nodes.end(), [&](std::size_t a, std::size_t b) {
      return std::pair(dag.label[a].pp, start[a]) < std::pair(dag.label[b].pp, start[b]);
    });
    PackedBytes bytes;
    bytes.add_size(nodes.size());
    for (const std::size_t i : nodes) {
      const sim::NodeLabel& label = dag.label[i];
      bytes.add(static_cast<std::uint64_t>(label.pp));
      bytes.add(static_cast<std::uint64_t>(label.chunk));
      bytes.add(label.bucket);
      bytes.add_signed(start[i].value);
      bytes.add_signed(dag.duration[i].value);
    }
    return bytes;
  }

  /// The steps that take time; each starts when the one before it ends.
  void write_path(JsonWriter& json) const {
    const sim::Dag& dag = simulation_.dag;
    const std::vector<sim::PathStep> path = sim::critical_path(dag, simulation_.timeline);
    const PathSummary summary = summary_of(dag, path, path.size());
    json.key("path_time");
    json.begin_array(JsonLayout::flat);
    for (const Nanos time : summary.time) json.number(time.value);
    json.end_array();
    PackedBytes bytes;
    bytes.add_size(summary.shown.size());
    std::int64_t dp = 0, pp = 0, pack = 0;
    for (const sim::PathStep& step : summary.shown) {
      const sim::NodeLabel& label = dag.label[index(step.node)];
      bytes.add(page_kind(label.kind) | static_cast<unsigned>(step.reason) << 4U);
      bytes.add_signed(label.dp - dp);
      bytes.add_signed(label.pp - pp);
      bytes.add_signed(static_cast<std::int64_t>(index(label.pack)) - pack);
      bytes.add(static_cast<std::uint64_t>(label.chunk));
      const bool transfer = label.kind == sim::NodeKind::transfer;
      bytes.add(transfer ? static_cast<std::uint64_t>(dag.channels[index(label.channel)].to_pp)
                         : label.bucket);
      bytes.add_signed(simulation_.timeline.start[index(step.node)].value);
      bytes.add_signed(dag.duration[index(step.node)].value);
      dp = label.dp;
      pp = label.pp;
      pack = static_cast<std::int64_t>(index(label.pack));
    }
    json.member("path", bytes.text());
  }

  void write_ranks(JsonWriter& json, std::span<const std::size_t> ranks, std::size_t points) {
    const auto changes =
        sim::timed_changes(simulation_.dag, simulation_.timeline.start, simulation_.timeline.end);
    json.key("ranks");
    json.begin_array();
    for (const std::size_t rank : ranks) {
      json.begin_object();
      json.member("dp", rank);
      json.member("rows", rows_.rank(rank).text());
      PackedBytes memory;
      for (std::size_t i = rank * stages_; i < (rank + 1) * stages_; ++i) {
        add_curve(memory, i, changes[i], points);
      }
      json.member("memory", memory.text());
      json.end_object();
    }
    json.end_array();
  }

  /// A device's memory as steps, in quanta rounded up. Where there are more than about `points` the
  /// most within each of `points` equal spans of time stands for what happens in it.
  void add_curve(PackedBytes& bytes, std::size_t device, std::span<const sim::TimedChange> changes,
                 std::size_t points) const {
    std::vector<std::pair<std::int64_t, std::int64_t>> curve;
    const std::int64_t step = quantum();
    for_each_level(simulation_.dag.devices[device].always, changes,
                   [&](Nanos time, const sim::MemoryByKind& held) {
                     const std::int64_t level = (sim::total(held).value + step - 1) / step;
                     if (!curve.empty() && curve.back().second == level) return;
                     curve.emplace_back(time.value, level);
                   });
    if (curve.size() > points + points / 4) curve = envelope(curve, points);
    bytes.add_size(curve.size());
    std::pair<std::int64_t, std::int64_t> last{0, 0};
    for (auto& point : curve) {
      point.first /= tick();
      bytes.add_signed(point.first - last.first);
      bytes.add_signed(point.second - last.second);
      last = point;
    }
  }

  [[nodiscard]] std::vector<std::pair<std::int64_t, std::int64_t>> envelope(
      const std::vector<std::pair<std::int64_t, std::int64_t>>& curve, std::size_t points) const {
    std::vector<std::pair<std::int64_t, std::int64_t>> most;
    const auto count = static_cast<std::int64_t>(points);
    const std::int64_t width =
        std::max<std::int64_t>(1, (simulation_.timeline.makespan.value + count - 1) / count);
    std::int64_t held = 0;  // when the span at hand begins
    for (std::size_t i = 0; i < curve.size();) {
      const std::int64_t span = curve[i].first / width;
      std::int64_t level = curve[i].first == span * width ? 0 : held;
      for (; i < curve.size() && curve[i].first / width == span; ++i) {
        level = std::max(level, curve[i].second);
        held = curve[i].second;
      }
      most.emplace_back(span * width, level);
      // Until the next change the level is what the span ended with.
      if (held != level && (i == curve.size() || curve[i].first / width > span + 1)) {
        most.emplace_back((span + 1) * width, held);
      }
    }
    return most;
  }

  const Plan& plan_;
  const sim::PlanSimulation& simulation_;
  sim::Gaps gaps_;
  PageRows rows_;
  std::size_t stages_;
  std::size_t entries_ = 0;
};

}  // namespace slimpack::report::detail
