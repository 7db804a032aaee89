// SPDX-License-Identifier: Apache-2.0
// A plan's processes, threads and units in a trace, the same whatever their times come from.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/plan/step_trace.hpp"
#include "slimpack/sim/dag.hpp"
#include "trace_events.hpp"

namespace slimpack::report::detail {

/// "1:[0,4096) 7:[128,512) and 3 more": slices by sample.
[[nodiscard]] std::string describe_slices(const MicroPack& pack, std::size_t most = 8);

[[nodiscard]] Tokens tokens_of(const MicroPack& pack);

[[nodiscard]] const std::vector<std::int32_t>& ranks_of(const Plan& plan, PackId pack);

/// A unit of a plan as it appears in a trace of that plan.
[[nodiscard]] TracedUnit traced_unit(const Plan& plan, std::int32_t dp, std::int32_t pp,
                                     const Unit& unit, Nanos begin, Nanos end);

/// Writes what traces of a plan have in common.
class PlanTraceWriter {
 public:
  PlanTraceWriter(std::ostream& out, const Plan& plan) : plan_(plan), events_(out) {}

  [[nodiscard]] TraceWriter& events() noexcept { return events_; }
  [[nodiscard]] std::int64_t thread(std::int32_t pp, TraceStream stream,
                                    std::int32_t peer = 0) const noexcept {
    return trace_thread(plan_.parallel.pp, pp, stream, peer);
  }

  void name_ranks() {
    for (std::int32_t dp = 0; dp < plan_.parallel.dp; ++dp) {
      events_.process(dp, "dp " + std::to_string(dp));
    }
  }
  void name_device(std::int32_t dp, std::int32_t pp, bool gaps, bool reduces) {
    const std::string stage = "stage " + std::to_string(pp);
    events_.thread(dp, thread(pp, TraceStream::compute), stage + " compute");
    if (gaps) events_.thread(dp, thread(pp, TraceStream::gap), stage + " gaps");
    if (reduces) events_.thread(dp, thread(pp, TraceStream::reduce), stage + " reduce");
  }

  /// A unit of any kind: F, B, H and O on the compute thread, R on its own.
  void unit(const TracedUnit& traced) {
    const Unit& unit = traced.unit;
    if (unit.kind == UnitKind::reduce) {
      std::vector<TraceArgument> arguments{
          {"unit", "R"}, {"stage", traced.pp}, {"chunk", unit.chunk}};
      std::string name = sim::unit_name(unit);
      if (traced.bucket) {
        arguments.push_back({"bucket", *traced.bucket});
        name += " bucket " + std::to_string(*traced.bucket);
      }
      events_.span(traced.dp, thread(traced.pp, TraceStream::reduce), name, "reduce", traced.begin,
                   traced.end, arguments);
      return;
    }
    constexpr std::array<std::string_view, 6> kLetters{"F", "B", "H", "R", "O", "W"};
    constexpr std::array<std::string_view, 6> kCategories{"forward", "backward",  "head",
                                                          "reduce",  "optimizer", "weight"};
    const auto kind = static_cast<std::size_t>(unit.kind);
    std::vector<TraceArgument> arguments{
        {"unit", std::string(kLetters[kind])}, {"dp", traced.dp}, {"stage", traced.pp}};
    if (runs_layers(unit.kind)) {
      arguments.push_back({"chunk", unit.chunk});
    }
    if (names_pack(unit.kind)) add_pack(arguments, unit.pack);
    events_.span(traced.dp, thread(traced.pp, TraceStream::compute), sim::unit_name(unit),
                 kCategories[kind], traced.begin, traced.end, arguments);
  }

  void gap(std::int32_t dp, std::int32_t pp, std::string_view cause, Nanos begin, Nanos end) {
    events_.span(dp, thread(pp, TraceStream::gap), cause, "gap", begin, end);
  }

  /// Ends the document. `times` says where they come from, empty for simulated ones.
  void finish(Nanos iteration, std::string_view times = {}) {
    std::vector<TraceArgument> about{{"planner", plan_.planner},
                                     {"step", plan_.step_index},
                                     {"model", plan_.model.name},
                                     {"cluster", plan_.cluster.name},
                                     {"iteration_ns", iteration.value}};
    if (!times.empty()) about.push_back({"times", std::string(times)});
    events_.finish(about);
  }

 private:
  void add_pack(std::vector<TraceArgument>& arguments, PackId id) const {
    const MicroPack& pack = plan_.micropacks[index(id)];
    arguments.push_back({"pack", static_cast<std::int64_t>(index(id))});
    arguments.push_back({"tokens", tokens_of(pack).value});
    arguments.push_back({"samples", static_cast<std::int64_t>(pack.slices.size())});
    arguments.push_back({"slices", describe_slices(pack)});
    const std::vector<std::int32_t>& ranks = ranks_of(plan_, id);
    if (ranks.size() > 1) {
      std::string in_cp_group;
      for (const std::int32_t rank : ranks)
        in_cp_group += (in_cp_group.empty() ? "" : " ") + std::to_string(rank);
      arguments.push_back({"merged_ranks", in_cp_group});
    }
  }

  const Plan& plan_;
  TraceWriter events_;
};

}  // namespace slimpack::report::detail
