// SPDX-License-Identifier: Apache-2.0
#include "slimpack/report/trace.hpp"

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <ostream>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "json_parts.hpp"
#include "memory_levels.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/plan/step_trace.hpp"
#include "slimpack/sim/bottlenecks.hpp"
#include "slimpack/sim/dag.hpp"
#include "slimpack/sim/simulate_plan.hpp"
#include "slimpack/sim/timeline.hpp"
#include "trace_events.hpp"
#include "trace_units.hpp"

namespace slimpack::report {

using namespace detail;  // NOLINT(google-build-using-namespace): of this library

namespace {

/// With one data-parallel rank nothing is reduced and R takes no time.
[[nodiscard]] bool takes_reduction(const sim::Dag& dag, std::size_t node) noexcept {
  return dag.label[node].kind == sim::NodeKind::reduce && dag.duration[node] > Nanos{};
}

/// Calls `visit(unit)` for what a node is in a trace: a unit; a bucket of gradients in each rank;
/// nothing for transfers and for nodes without a time of their own.
template <class Visit>
  requires std::invocable<Visit&, const TracedUnit&>
void for_each_traced(const Plan& plan, const sim::PlanSimulation& simulation, std::size_t node,
                     Visit&& visit) {
  const sim::NodeLabel& label = simulation.dag.label[node];
  const Nanos begin = simulation.timeline.start[node];
  const Nanos end = simulation.timeline.end[node];
  if (sim::is_compute(label.kind)) {
    Unit unit{sim::unit_kind(label.kind), {}, 0};
    if (names_pack(unit.kind)) unit.pack = label.pack;
    if (runs_layers(unit.kind)) unit.chunk = label.chunk;
    visit(traced_unit(plan, label.dp, label.pp, unit, begin, end));
  } else if (takes_reduction(simulation.dag, node)) {
    for (std::int32_t dp = 0; dp < plan.parallel.dp; ++dp) {
      TracedUnit traced =
          traced_unit(plan, dp, label.pp, {UnitKind::reduce, {}, label.chunk}, begin, end);
      traced.bucket = label.bucket;
      visit(traced);
    }
  }
}

class PlanTrace {
 public:
  PlanTrace(std::ostream& out, const Plan& plan, const sim::PlanSimulation& simulation,
            const TraceOptions& options)
      : plan_(plan),
        simulation_(simulation),
        dag_(simulation.dag),
        timeline_(simulation.timeline),
        options_(options),
        trace_(out, plan) {}

  void write() {
    name_all();
    for (std::size_t i = 0; i < dag_.size(); ++i) {
      for_each_traced(plan_, simulation_, i,
                      [&](const TracedUnit& traced) { trace_.unit(traced); });
      if (dag_.label[i].kind == sim::NodeKind::transfer) write_transfer(i, dag_.label[i]);
    }
    if (options_.gaps) write_gaps();
    if (options_.memory) write_memory();
    trace_.finish(timeline_.makespan);
  }

 private:
  void name_all() {
    trace_.name_ranks();
    std::vector<bool> reducing(static_cast<std::size_t>(plan_.parallel.pp), false);
    for (std::size_t i = 0; i < dag_.size(); ++i) {
      if (takes_reduction(dag_, i)) reducing[static_cast<std::size_t>(dag_.label[i].pp)] = true;
    }
    for (const sim::DagDevice& device : dag_.devices) {
      trace_.name_device(device.dp, device.pp, options_.gaps,
                         reducing[static_cast<std::size_t>(device.pp)]);
    }
    std::set<std::tuple<std::int32_t, std::int32_t, std::int32_t>> named;
    for (const sim::Channel& channel : dag_.channels) {
      if (!named.emplace(channel.dp, channel.from_pp, channel.to_pp).second) continue;
      const std::string from = std::to_string(channel.from_pp);
      const std::string to = std::to_string(channel.to_pp);
      trace_.events().thread(channel.dp,
                             trace_.thread(channel.from_pp, TraceStream::send, channel.to_pp),
                             "stage " + from + " send to " + to);
      trace_.events().thread(channel.dp,
                             trace_.thread(channel.to_pp, TraceStream::receive, channel.from_pp),
                             "stage " + to + " receive from " + from);
    }
  }

  void write_transfer(std::size_t i, const sim::NodeLabel& label) {
    const sim::Channel& channel = dag_.channels[index(label.channel)];
    const bool down = channel.pass == Pass::forward;
    const std::string name =
        sim::unit_name({down ? UnitKind::forward : UnitKind::backward, label.pack, label.chunk});
    const std::vector<TraceArgument> arguments{
        {"unit", down ? "F" : "B"},  {"pack", static_cast<std::int64_t>(index(label.pack))},
        {"chunk", label.chunk},      {"from_stage", channel.from_pp},
        {"to_stage", channel.to_pp}, {"group", static_cast<std::int64_t>(index(channel.group))},
        {"message", label.message}};
    const std::string_view category = down ? "activations" : "gradients";
    for (const std::int64_t thread :
         {trace_.thread(channel.from_pp, TraceStream::send, channel.to_pp),
          trace_.thread(channel.to_pp, TraceStream::receive, channel.from_pp)}) {
      trace_.events().span(channel.dp, thread, name, category, timeline_.start[i], timeline_.end[i],
                           arguments);
    }
  }

  void write_gaps() {
    const sim::Gaps gaps =
        sim::find_gaps(dag_, timeline_, plan_.memory.capacity - plan_.memory.reserved);
    for (const sim::Gap& gap : gaps.gaps) {
      const sim::DagDevice& device = dag_.devices[index(gap.device)];
      trace_.gap(device.dp, device.pp, sim::to_string(gap.cause), gap.begin, gap.end);
    }
  }

  /// One counter a kind and one for the sum, each written where it changes and at the step's end,
  /// so that viewers draw its last step. Kinds that are never there are left out.
  void write_memory() {
    const auto changes = sim::timed_changes(dag_, timeline_.start, timeline_.end);
    for (std::size_t i = 0; i < dag_.devices.size(); ++i) {
      const sim::DagDevice& device = dag_.devices[i];
      const std::string stage = "stage " + std::to_string(device.pp) + " memory: ";
      std::array<bool, sim::kMemoryKinds> used{};
      for (std::size_t kind = 0; kind < used.size(); ++kind)
        used[kind] = device.always[kind] != Bytes{};
      for (const sim::TimedChange& change : changes[i])
        used[static_cast<std::size_t>(change.kind)] = true;
      std::optional<sim::MemoryByKind> seen;
      const auto write = [&](Nanos now, const sim::MemoryByKind& held, bool all) {
        for (std::size_t kind = 0; kind < held.size(); ++kind) {
          if (!used[kind] || (!all && seen && (*seen)[kind] == held[kind])) continue;
          write_bytes(device.dp,
                      stage + std::string(sim::to_string(static_cast<sim::MemoryKind>(kind))), now,
                      held[kind]);
        }
        if (all || !seen || sim::total(*seen) != sim::total(held)) {
          write_bytes(device.dp, stage + "total", now, sim::total(held));
        }
        seen = held;
      };
      Nanos last;
      for_each_level(device.always, changes[i], [&](Nanos now, const sim::MemoryByKind& held) {
        write(now, held, false);
        last = now;
      });
      if (last < timeline_.makespan) write(timeline_.makespan, sim::MemoryByKind(*seen), true);
    }
  }
  void write_bytes(std::int32_t dp, const std::string& name, Nanos time, Bytes bytes) {
    const TraceArgument value{"bytes", bytes.value};
    trace_.events().counter(dp, name, time, {&value, 1});
  }

  const Plan& plan_;
  const sim::PlanSimulation& simulation_;
  const sim::Dag& dag_;
  const sim::Timeline& timeline_;
  TraceOptions options_;
  PlanTraceWriter trace_;
};

}  // namespace

void write_trace(std::ostream& out, const Plan& plan, const sim::PlanSimulation& simulation,
                 const TraceOptions& options) {
  PlanTrace(out, plan, simulation, options).write();
}

StepTrace simulated_trace(const Plan& plan, const sim::PlanSimulation& simulation) {
  StepTrace trace{plan.planner, plan.step_index, simulation.timeline.makespan, {}};
  for (std::size_t i = 0; i < simulation.dag.size(); ++i) {
    for_each_traced(plan, simulation, i,
                    [&](const TracedUnit& traced) { trace.units.push_back(traced); });
  }
  return trace;
}

}  // namespace slimpack::report
