// SPDX-License-Identifier: Apache-2.0
// Simulated plans: figures, pictures and traces.
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "arrays.hpp"
#include "binding.hpp"
#include "slimpack/cost/price.hpp"
#include "slimpack/io/file.hpp"
#include "slimpack/plan/memory.hpp"
#include "slimpack/report/page.hpp"
#include "slimpack/report/summary.hpp"
#include "slimpack/report/svg.hpp"
#include "slimpack/report/trace.hpp"
#include "slimpack/sim/simulate_plan.hpp"
#include "slimpack/validate/validate.hpp"

namespace slimpack::python {
namespace {

struct SimulationObject {
  SharedPlan plan;
  sim::PlanSimulation simulation;
};

/// A plan with a violation other than of memory cannot be simulated in a way that means something.
[[nodiscard]] std::shared_ptr<SimulationObject> simulate(const SharedPlan& plan) {
  for (const Violation& one : validate(plan->plan).violations) {
    require(one.rule == 7, "plan: rule " + std::to_string(one.rule) + ": " + one.message);
    break;
  }
  return std::make_shared<SimulationObject>(
      SimulationObject{plan, sim::simulate_plan(plan->plan, PricedPlan(plan->plan))});
}

/// A figure of each device, [dp, pp].
template <class Value, class Get>
[[nodiscard]] NumpyArray<Value> by_device(const SimulationObject& self, const Get& get) {
  const Parallel& parallel = self.plan->plan.parallel;
  const auto stages = static_cast<std::size_t>(parallel.pp);
  std::vector<Value> values(static_cast<std::size_t>(parallel.dp) * stages);
  const std::vector<sim::DagDevice>& devices = self.simulation.dag.devices;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const auto row = static_cast<std::size_t>(devices[i].dp);
    values[row * stages + static_cast<std::size_t>(devices[i].pp)] = get(i);
  }
  return array_of(std::move(values), {static_cast<std::size_t>(parallel.dp), stages});
}

/// What `slimpack simulate --json` prints, with every step of the critical path.
[[nodiscard]] std::string summary_json(const SimulationObject& self) {
  const Plan& plan = self.plan->plan;
  report::SimulationSummary summary = report::summarize(plan, self.simulation);
  summary.path = report::summary_of(
      self.simulation.dag, sim::critical_path(self.simulation.dag, self.simulation.timeline),
      std::numeric_limits<std::size_t>::max());
  std::ostringstream text;
  report::write_summary_json(text, plan, self.simulation, summary);
  return std::move(text).str();
}

/// The text that write(stream, plan, simulation) puts out, as a function of a simulation.
template <class Write>
[[nodiscard]] auto text_of(Write write) {
  return [write](const SimulationObject& self) {
    std::ostringstream text;
    write(text, self.plan->plan, self.simulation);
    return std::move(text).str();
  };
}

}  // namespace

void bind_simulation(nb::module_& module) {
  using namespace nb::literals;  // NOLINT(google-build-using-namespace)
  using Released = nb::call_guard<nb::gil_scoped_release>;
  nb::class_<SimulationObject>(module, "SimulationObject",
                               "A simulated plan; slimpack.Simulation holds one.")
      .def_prop_ro(
          "iteration_s",
          [](const SimulationObject& self) { return seconds(self.simulation.timeline.makespan); })
      .def("busy_s",
           [](const SimulationObject& self) {
             return by_device<double>(
                 self, [&](std::size_t i) { return seconds(self.simulation.timeline.busy[i]); });
           })
      .def("peak_bytes",
           [](const SimulationObject& self) {
             return by_device<std::int64_t>(
                 self, [&](std::size_t i) { return self.simulation.timeline.peak[i].bytes.value; });
           })
      .def(
          "static_bytes",
          [](const SimulationObject& self) {
            return by_device<std::int64_t>(self, [&](std::size_t i) {
              return static_bytes(self.plan->plan, self.simulation.dag.devices[i].pp).total().value;
            });
          })
      .def("summary_json", &summary_json, Released())
      .def("svg", text_of(report::write_svg), Released())
      .def("html", text_of([](auto&... all) { report::write_html(all...); }), Released())
      .def("trace", text_of([](auto&... all) { report::write_trace(all...); }), Released());
  module.def("simulate", &simulate, "plan"_a, Released(), "Simulates a plan at its own prices.");
  module.def(
      "write_text",
      [](const std::string& path, const std::string& text) { write_file(path, text); }, "path"_a,
      "text"_a, Released(), "Writes a file, whole or not at all.");
}

}  // namespace slimpack::python
