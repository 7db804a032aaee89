// SPDX-License-Identifier: Apache-2.0
// The picture of one simulated plan: what every device did, waited for and held.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "describe.hpp"
#include "figures.hpp"
#include "lane_path.hpp"
#include "memory_levels.hpp"
#include "picture.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/report/metrics.hpp"
#include "slimpack/sim/bottlenecks.hpp"
#include "slimpack/sim/dag.hpp"
#include "slimpack/sim/simulate_plan.hpp"
#include "slimpack/sim/timeline.hpp"
#include "text.hpp"

namespace slimpack::report::detail {

class PlanPicture {
 public:
  /// Lanes beyond this many are left out, whole data-parallel ranks where possible.
  static constexpr std::size_t kMostLanes = 256;

  PlanPicture(const Plan& plan, const sim::PlanSimulation& simulation)
      : plan_(plan),
        dag_(simulation.dag),
        timeline_(simulation.timeline),
        gaps_(sim::find_gaps(dag_, timeline_, memory_limit(plan))),
        metrics_(metrics_of(plan, simulation, gaps_)),
        changes_(sim::timed_changes(dag_, timeline_.start, timeline_.end)) {
    collect();
  }

  [[nodiscard]] Picture picture() const {
    Picture picture;
    picture.title =
        clipped(one_line(plan_.planner), 40) + ", step " + std::to_string(plan_.step_index) + ": " +
        time_text(metrics_.iteration) +
        (metrics_.ideal > Nanos{} ? ", efficiency " + percent(metrics_.efficiency) : "");
    picture.lines = {lines_of_plan(), lines_of_figures()};
    picture.span = std::max(timeline_.makespan, Nanos{1});
    picture.limit = memory_limit(plan_);
    picture.with_reductions = reduces_;
    add_legend(picture);
    std::size_t lanes = dag_.devices.size();
    if (lanes > kMostLanes) {
      const auto stages = static_cast<std::size_t>(plan_.parallel.pp);
      lanes = stages > kMostLanes ? kMostLanes : kMostLanes / stages * stages;
      picture.footnote = "The first " + std::to_string(lanes) + " of " +
                         std::to_string(dag_.devices.size()) +
                         " devices are drawn; figures are of all.";
    }
    for (std::size_t i = 0; i < lanes; ++i) picture.lanes.push_back(lane(i));
    return picture;
  }

  /// The lane of a device. It refers to this object, which must live until it is drawn.
  [[nodiscard]] Lane lane(std::size_t i) const {
    const sim::DagDevice& device = dag_.devices[i];
    Lane lane;
    if (plan_.parallel.pp == 1) {
      lane.name = "rank " + std::to_string(device.dp);
    } else {
      lane.name = "stage " + std::to_string(device.pp);
      if (device.pp == 0) lane.header = "data-parallel rank " + std::to_string(device.dp);
    }
    lane.upper_note = "busy " + percent(ratio(static_cast<double>(timeline_.busy[i].value),
                                              static_cast<double>(timeline_.makespan.value)));
    lane.lower_note = bytes_text(timeline_.peak[i].bytes);
    lane.always = sim::total(device.always);
    lane.stretches = [this, i] { return stretches(i); };
    lane.reductions = [this, i] { return reductions(i); };
    lane.memory = [this, i] { return memory(i); };
    return lane;
  }

  [[nodiscard]] const Metrics& metrics() const noexcept { return metrics_; }

 private:
  /// Nodes of each device's compute and of each stage's reductions by start.
  void collect() {
    compute_.resize(dag_.devices.size());
    reductions_.resize(static_cast<std::size_t>(plan_.parallel.pp));
    std::vector<std::size_t> device_of(dag_.resources.size(), 0);
    for (std::size_t i = 0; i < dag_.devices.size(); ++i) {
      device_of[index(dag_.devices[i].compute)] = i;
    }
    for (std::size_t i = 0; i < dag_.size(); ++i) {
      const sim::NodeLabel& label = dag_.label[i];
      const sim::NodeId node{static_cast<std::uint32_t>(i)};
      if (sim::is_compute(label.kind)) {
        compute_[device_of[index(dag_.resource[i])]].push_back(node);
        const auto paint = static_cast<std::size_t>(paint_of(label.kind));
        spent_[paint] += dag_.duration[i];
        if (in_cp_group(label)) merged_ = true;
      } else if (label.kind == sim::NodeKind::reduce && dag_.duration[i] > Nanos{}) {
        reductions_[static_cast<std::size_t>(label.pp)].push_back(node);
        reduces_ = true;
      }
    }
    const auto by_start = [&](sim::NodeId a, sim::NodeId b) {
      return timeline_.start[index(a)] < timeline_.start[index(b)];
    };
    for (auto& nodes : compute_) std::stable_sort(nodes.begin(), nodes.end(), by_start);
    for (auto& nodes : reductions_) std::stable_sort(nodes.begin(), nodes.end(), by_start);
    std::size_t gap = 0;
    for (std::size_t i = 0; i < dag_.devices.size(); ++i) {
      first_gap_.push_back(gap);
      while (gap < gaps_.gaps.size() && index(gaps_.gaps[gap].device) == i) ++gap;
    }
    first_gap_.push_back(gap);
  }

  [[nodiscard]] static Paint paint_of(sim::NodeKind kind) noexcept {
    return kind == sim::NodeKind::weight ? Paint::weight : static_cast<Paint>(kind);
  }

  [[nodiscard]] bool in_cp_group(const sim::NodeLabel& label) const {
    if (label.kind == sim::NodeKind::optimizer) return false;
    const GroupId group = plan_.micropacks[index(label.pack)].group;
    return plan_.groups[index(group)].size() > 1;
  }

  [[nodiscard]] std::string lines_of_plan() const {
    const auto weights = std::ranges::count(plan_.micropacks, Pass::weight, &MicroPack::pass);
    const std::string apart = weights > 0 ? ", " + std::to_string(weights) + " weight" : "";
    return describe_setting(plan_) + "; " + count_text(metrics_.samples) + " samples, " +
           count_text(metrics_.tokens.value) + " tokens in " +
           std::to_string(metrics_.forward_packs) + " forward and " +
           std::to_string(metrics_.backward_packs) + " backward MicroPacks" + apart;
  }
  [[nodiscard]] std::string lines_of_figures() const {
    return rate_text(metrics_.tokens_per_s) + " tokens/s, MFU " + percent(metrics_.mfu) +
           ", idle " + percent(metrics_.bubble) + ", ranks " + fixed(metrics_.dp_imbalance, 3) +
           " of their mean at most, peak memory " + bytes_text(metrics_.peak) + " of " +
           bytes_text(memory_limit(plan_));
  }

  [[nodiscard]] std::string share(Nanos time) const {
    const auto all =
        static_cast<double>(timeline_.makespan.value) * static_cast<double>(dag_.devices.size());
    return " " + percent(ratio(static_cast<double>(time.value), all));
  }
  void add_legend(Picture& picture) const {
    constexpr std::array<std::string_view, 5> kNames{"forward", "backward", "head", "optimizer",
                                                     "weight gradients apart"};
    for (std::size_t paint = 0; paint < kNames.size(); ++paint) {
      if (spent_[paint] == Nanos{}) continue;
      picture.legend.push_back(
          {paint_class(paint, 0), 0, std::string(kNames[paint]) + share(spent_[paint])});
    }
    if (plan_.parallel.chunks > 1) {
      picture.legend.push_back({"forward", 1, "later chunks, weaker"});
    }
    if (merged_) picture.legend.push_back({"merged", 0, "context-parallel group"});
    if (reduces_) picture.legend.push_back({"reduce", 0, "reduction of gradients"});
    for (std::size_t cause = 0; cause < gaps_.sum.size(); ++cause) {
      if (gaps_.sum[cause] == Nanos{}) continue;
      picture.legend.push_back(
          {paint_class(static_cast<std::size_t>(Paint::gap), cause), 0,
           "idle: " + std::string(idle_cause(static_cast<sim::GapCause>(cause))) +
               share(gaps_.sum[cause])});
    }
    picture.legend.push_back({"always", 0, "weights, gradients, optimizer"});
    picture.legend.push_back({"held", 0, "memory held"});
    picture.legend.push_back({"limit", 0, "limit " + bytes_text(memory_limit(plan_))});
  }

  /// Units and gaps of a device, which together fill its time.
  [[nodiscard]] std::vector<Stretch> stretches(std::size_t device) const {
    const std::vector<sim::NodeId>& nodes = compute_[device];
    std::vector<Stretch> out;
    out.reserve(nodes.size() + first_gap_[device + 1] - first_gap_[device]);
    std::size_t gap = first_gap_[device];
    const auto add_gaps = [&](Nanos until) {
      for (; gap < first_gap_[device + 1] && gaps_.gaps[gap].begin < until; ++gap) {
        const sim::Gap& facts = gaps_.gaps[gap];
        out.push_back({facts.begin,
                       facts.end,
                       Paint::gap,
                       static_cast<std::uint8_t>(facts.cause),
                       false,
                       {}});
      }
    };
    for (const sim::NodeId node : nodes) {
      const sim::NodeLabel& label = dag_.label[index(node)];
      add_gaps(timeline_.start[index(node)]);
      Stretch stretch{timeline_.start[index(node)], timeline_.end[index(node)],
                      paint_of(label.kind),         0,
                      in_cp_group(label),           {}};
      if (label.kind != sim::NodeKind::optimizer)
        stretch.mark = static_cast<std::uint32_t>(label.pack);
      stretch.shade = static_cast<std::uint8_t>(
          std::min<std::int32_t>(label.chunk, static_cast<std::int32_t>(kShades) - 1));
      out.push_back(stretch);
    }
    add_gaps(Nanos::max());
    return out;
  }

  [[nodiscard]] std::vector<Stretch> reductions(std::size_t device) const {
    std::vector<Stretch> out;
    for (const sim::NodeId node : reductions_[static_cast<std::size_t>(dag_.devices[device].pp)]) {
      out.push_back(
          {timeline_.start[index(node)], timeline_.end[index(node)], Paint::reduce, 0, false, {}});
    }
    return out;
  }

  [[nodiscard]] std::vector<HeldBytes> memory(std::size_t device) const {
    std::vector<HeldBytes> curve;
    for_each_level(dag_.devices[device].always, changes_[device],
                   [&](Nanos time, const sim::MemoryByKind& held) {
                     curve.push_back({time, sim::total(held)});
                   });
    return curve;
  }

  const Plan& plan_;
  const sim::Dag& dag_;
  const sim::Timeline& timeline_;
  sim::Gaps gaps_;
  Metrics metrics_;
  std::vector<std::vector<sim::TimedChange>> changes_;
  std::vector<std::vector<sim::NodeId>> compute_, reductions_;
  std::vector<std::size_t> first_gap_;
  std::array<Nanos, 5> spent_{};
  bool merged_ = false;
  bool reduces_ = false;
};

}  // namespace slimpack::report::detail
