// SPDX-License-Identifier: Apache-2.0
// trace.json of a simulated plan: what every device and link did, gaps by cause, memory by kind.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/dag/dag.hpp"
#include "slimpack/dag/names.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/report/detail/memory_levels.hpp"
#include "slimpack/report/trace_events.hpp"
#include "slimpack/sim/gaps.hpp"
#include "slimpack/sim/memory.hpp"
#include "slimpack/sim/simulate_plan.hpp"

namespace slimpack {

/// What a trace holds beside units, transfers and reductions.
struct TraceOptions {
  bool gaps = true;    ///< a thread a stage with the causes of idle time
  bool memory = true;  ///< a counter a stage with bytes by kind
};

/// "1:[0,4096) 7:[128,512) and 3 more": slices by sample.
[[nodiscard]] inline std::string describe_slices(const MicroPack& pack, std::size_t most = 8) {
  std::string text;
  for (std::size_t at = 0; at < pack.slices.size() && at < most; ++at) {
    const Slice& slice = pack.slices[at];
    if (at > 0) text += ' ';
    text += std::to_string(index(slice.sample)) + ":[" + std::to_string(slice.begin.value) + "," +
            std::to_string(slice.end.value) + ")";
  }
  if (pack.slices.size() > most) {
    text += " and " + std::to_string(pack.slices.size() - most) + " more";
  }
  return text;
}

namespace detail {

class PlanTrace {
 public:
  PlanTrace(std::ostream& out, const Plan& plan, const PlanSimulation& simulation,
            const TraceOptions& options)
      : plan_(plan),
        dag_(simulation.dag),
        timeline_(simulation.timeline),
        options_(options),
        trace_(out) {}

  void write() {
    name_all();
    for (std::size_t at = 0; at < dag_.size(); ++at) write_node(at);
    if (options_.gaps) write_gaps();
    if (options_.memory) write_memory();
    const std::vector<TraceArgument> about{{"planner", plan_.planner},
                                           {"step", plan_.step_index},
                                           {"model", plan_.model.name},
                                           {"cluster", plan_.cluster.name},
                                           {"iteration_ns", timeline_.makespan.value}};
    trace_.finish(about);
  }

 private:
  [[nodiscard]] std::int64_t thread(std::int32_t pp, TraceStream stream,
                                    std::int32_t peer = 0) const noexcept {
    return trace_thread(plan_.parallel.pp, pp, stream, peer);
  }
  /// With one data-parallel rank nothing is reduced and R takes no time.
  [[nodiscard]] bool is_reduction(std::size_t node) const noexcept {
    return dag_.label[node].kind == NodeKind::reduce && dag_.duration[node] > Nanos{};
  }

  void name_all() {
    for (std::int32_t dp = 0; dp < plan_.parallel.dp; ++dp) {
      trace_.process(dp, "dp " + std::to_string(dp));
    }
    std::vector<bool> reducing(static_cast<std::size_t>(plan_.parallel.pp), false);
    for (std::size_t at = 0; at < dag_.size(); ++at) {
      if (is_reduction(at)) reducing[static_cast<std::size_t>(dag_.label[at].pp)] = true;
    }
    for (const DagDevice& device : dag_.devices) {
      const std::string stage = "stage " + std::to_string(device.pp);
      trace_.thread(device.dp, thread(device.pp, TraceStream::compute), stage + " compute");
      if (options_.gaps) {
        trace_.thread(device.dp, thread(device.pp, TraceStream::gap), stage + " gaps");
      }
      if (reducing[static_cast<std::size_t>(device.pp)]) {
        trace_.thread(device.dp, thread(device.pp, TraceStream::reduce), stage + " reduce");
      }
    }
    for (const Resource& resource : dag_.resources) {
      if (resource.kind != ResourceKind::link) continue;
      const std::string from = std::to_string(resource.pp);
      const std::string to = std::to_string(resource.to_pp);
      trace_.thread(resource.dp, thread(resource.pp, TraceStream::send, resource.to_pp),
                    "stage " + from + " send to " + to);
      trace_.thread(resource.dp, thread(resource.to_pp, TraceStream::receive, resource.pp),
                    "stage " + to + " receive from " + from);
    }
  }

  void write_node(std::size_t at) {
    const NodeLabel& label = dag_.label[at];
    if (is_compute(label.kind)) {
      write_unit(at, label);
    } else if (label.kind == NodeKind::transfer) {
      write_transfer(at, label);
    } else if (is_reduction(at)) {
      const std::vector<TraceArgument> arguments{
          {"unit", "R"}, {"stage", label.pp}, {"chunk", label.chunk}, {"bucket", label.bucket}};
      const std::string name =
          "R chunk " + std::to_string(label.chunk) + " bucket " + std::to_string(label.bucket);
      for (std::int32_t dp = 0; dp < plan_.parallel.dp; ++dp) {
        trace_.span(dp, thread(label.pp, TraceStream::reduce), name, "reduce", timeline_.start[at],
                    timeline_.end[at], arguments);
      }
    }
  }

  void write_unit(std::size_t at, const NodeLabel& label) {
    std::vector<TraceArgument> arguments{
        {"unit", std::string(name_of(label.kind))}, {"dp", label.dp}, {"stage", label.pp}};
    std::string name = "O";
    if (label.kind != NodeKind::optimizer) {
      const UnitKind kind = label.kind == NodeKind::forward    ? UnitKind::forward
                            : label.kind == NodeKind::backward ? UnitKind::backward
                                                               : UnitKind::head;
      name = unit_name({kind, label.pack, label.chunk});
      if (kind != UnitKind::head) arguments.push_back({"chunk", label.chunk});
      add_pack(arguments, label.pack);
    }
    constexpr std::array<std::string_view, 4> kCategories{"forward", "backward", "head",
                                                          "optimizer"};
    trace_.span(label.dp, thread(label.pp, TraceStream::compute), name,
                kCategories[static_cast<std::size_t>(label.kind)], timeline_.start[at],
                timeline_.end[at], arguments);
  }

  void add_pack(std::vector<TraceArgument>& arguments, PackId id) const {
    const MicroPack& pack = plan_.micropacks[index(id)];
    Tokens tokens;
    for (const Slice& slice : pack.slices) tokens += slice.length();
    arguments.push_back({"pack", static_cast<std::int64_t>(index(id))});
    arguments.push_back({"tokens", tokens.value});
    arguments.push_back({"samples", static_cast<std::int64_t>(pack.slices.size())});
    arguments.push_back({"slices", describe_slices(pack)});
    const std::vector<std::int32_t>& ranks = plan_.groups[index(pack.group)];
    if (ranks.size() > 1) {
      std::string merged;
      for (const std::int32_t rank : ranks)
        merged += (merged.empty() ? "" : " ") + std::to_string(rank);
      arguments.push_back({"merged_ranks", merged});
    }
  }

  void write_transfer(std::size_t at, const NodeLabel& label) {
    const Channel& channel = dag_.channels[index(label.channel)];
    const bool down = channel.pass == Pass::forward;
    const std::string name =
        unit_name({down ? UnitKind::forward : UnitKind::backward, label.pack, label.chunk});
    const std::vector<TraceArgument> arguments{
        {"unit", down ? "F" : "B"},  {"pack", static_cast<std::int64_t>(index(label.pack))},
        {"chunk", label.chunk},      {"from_stage", channel.from_pp},
        {"to_stage", channel.to_pp}, {"group", static_cast<std::int64_t>(index(channel.group))},
        {"message", label.message}};
    const std::string_view category = down ? "activations" : "gradients";
    trace_.span(channel.dp, thread(channel.from_pp, TraceStream::send, channel.to_pp), name,
                category, timeline_.start[at], timeline_.end[at], arguments);
    trace_.span(channel.dp, thread(channel.to_pp, TraceStream::receive, channel.from_pp), name,
                category, timeline_.start[at], timeline_.end[at], arguments);
  }

  void write_gaps() {
    const Gaps gaps = find_gaps(dag_, timeline_, plan_.memory.capacity - plan_.memory.reserved);
    for (const Gap& gap : gaps.gaps) {
      const DagDevice& device = dag_.devices[index(gap.device)];
      trace_.span(device.dp, thread(device.pp, TraceStream::gap), name_of(gap.cause), "gap",
                  gap.begin, gap.end);
    }
  }

  /// One counter a kind and one for the sum, each written where it changes and at the step's end,
  /// so that viewers draw its last step. Kinds that are never there are left out.
  void write_memory() {
    const auto changes = timed_changes(dag_, timeline_.start, timeline_.end);
    for (std::size_t at = 0; at < dag_.devices.size(); ++at) {
      const DagDevice& device = dag_.devices[at];
      const std::string stage = "stage " + std::to_string(device.pp) + " memory: ";
      std::array<bool, kMemoryKinds> used{};
      for (std::size_t kind = 0; kind < used.size(); ++kind)
        used[kind] = device.always[kind] != Bytes{};
      for (const TimedChange& change : changes[at])
        used[static_cast<std::size_t>(change.kind)] = true;
      std::optional<MemoryByKind> seen;
      const auto write = [&](Nanos now, const MemoryByKind& held, bool all) {
        for (std::size_t kind = 0; kind < held.size(); ++kind) {
          if (!used[kind] || (!all && seen && (*seen)[kind] == held[kind])) continue;
          write_bytes(device.dp, stage + std::string(name_of(static_cast<MemoryKind>(kind))), now,
                      held[kind]);
        }
        if (all || !seen || total(*seen) != total(held)) {
          write_bytes(device.dp, stage + "total", now, total(held));
        }
        seen = held;
      };
      Nanos last;
      for_each_level(device.always, changes[at], [&](Nanos now, const MemoryByKind& held) {
        write(now, held, false);
        last = now;
      });
      if (last < timeline_.makespan) write(timeline_.makespan, MemoryByKind(*seen), true);
    }
  }
  void write_bytes(std::int32_t dp, const std::string& name, Nanos at, Bytes bytes) {
    const TraceArgument value{"bytes", bytes.value};
    trace_.counter(dp, name, at, {&value, 1});
  }

  const Plan& plan_;
  const Dag& dag_;
  const Timeline& timeline_;
  TraceOptions options_;
  TraceWriter trace_;
};

}  // namespace detail

/// Writes a simulated plan as Chrome trace events: one process a data-parallel rank, a thread for
/// each stage's compute, gaps, reduction and each of its links. Times are exact to the nanosecond.
/// O(nodes + events log events) beside the text.
inline void write_trace(std::ostream& out, const Plan& plan, const PlanSimulation& simulation,
                        const TraceOptions& options = {}) {
  detail::PlanTrace(out, plan, simulation, options).write();
}

}  // namespace slimpack
