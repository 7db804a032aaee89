// SPDX-License-Identifier: Apache-2.0
// Planning, comparing and tuning, as the command line does them.
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <sstream>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "binding.hpp"
#include "compare.hpp"
#include "interruptible.hpp"
#include "request.hpp"
#include "slimpack/planners/registry.hpp"
#include "slimpack/report/compare_report.hpp"
#include "tune.hpp"

namespace slimpack::python {
namespace {

/// What a search gives: a plan or JSON, and lines about the input.
template <class Made>
using Found = nb::typed<nb::tuple, Made, std::vector<std::string>>;

/// Throws NoFeasiblePlan where there is none.
[[nodiscard]] PlanObject plan_of(planners::PlanOutcome outcome) {
  if (auto* none = std::get_if<Infeasible>(&outcome.result)) {
    throw NoFeasiblePlan(std::move(*none));
  }
  return {*planners::take_plan(std::move(outcome.result)), std::move(outcome.settings)};
}

[[nodiscard]] Found<SharedPlan> plan(const nb::object& lengths, const Words& words,
                                     const std::string& planner, const nb::object& report) {
  Arguments arguments;
  const planners::PlannerInfo& info = planners::find_planner(planner);
  arguments.set_options(words);
  arguments.set_lengths(lengths);
  SharedPlan made = run_interruptibly(report, [&](const ProgressCall& progress) -> SharedPlan {
    planners::PlanRequest request = std::move(arguments.maker.make(arguments.options, 1).front());
    app::check_request_for(info, request);
    request.progress = progress;
    return std::make_shared<PlanObject>(plan_of(planners::plan_step(info, request)));
  });
  return nb::make_tuple(std::move(made), std::move(arguments.notes));
}

[[nodiscard]] Found<std::string> compare(const nb::object& lengths, const Words& words,
                                         const std::vector<std::string>& planners,
                                         const std::string& steps, const std::string& baseline,
                                         const nb::object& report) {
  Arguments arguments;
  arguments.set_options(words);
  arguments.set_lengths(lengths);
  std::string json = run_interruptibly(report, [&](const ProgressCall& progress) {
    const app::CompareTask task{arguments.options, planners, steps, baseline};
    const app::CheckedComparison checked = app::check_comparison(task, arguments.maker);
    std::ostringstream text;
    report::write_comparison_json(text,
                                  app::compare_planners(task, checked, false, progress).comparison);
    return std::move(text).str();
  });
  return nb::make_tuple(std::move(json), std::move(arguments.notes));
}

[[nodiscard]] Found<std::string> tune(const nb::object& lengths, const Words& words,
                                      const std::vector<std::string>& planners,
                                      const std::string& gpus, const std::string& steps,
                                      const std::string& finalists, const nb::object& report) {
  Arguments arguments;
  arguments.options = app::any_degrees();
  arguments.set_options(words);
  arguments.set_lengths(lengths);
  std::string json = run_interruptibly(report, [&](const ProgressCall& progress) {
    const app::TuneTask task{arguments.options, planners, gpus, steps, finalists};
    std::ostringstream text;
    report::write_tuning_json(
        text, app::tune_planners(app::check_tuning(task, arguments.maker), progress));
    return std::move(text).str();
  });
  return nb::make_tuple(std::move(json), std::move(arguments.notes));
}

}  // namespace

void bind_search(nb::module_& module) {
  using namespace nb::literals;  // NOLINT(google-build-using-namespace)
  module.def("plan", &plan, "lengths"_a, "words"_a, "planner"_a, "report"_a.none(),
             "Plans one step: the plan, and lines about the input.");
  module.def("compare", &compare, "lengths"_a, "words"_a, "planners"_a, "steps"_a, "baseline"_a,
             "report"_a.none(),
             "Plans steps with several planners: JSON, and lines about the input.");
  module.def("tune", &tune, "lengths"_a, "words"_a, "planners"_a, "gpus"_a, "steps"_a,
             "finalists"_a, "report"_a.none(),
             "Searches the degrees of so many devices: JSON, and lines about the input.");
  module.def(
      "defaults", [] { return default_words(app::CommonOptions{}); },
      "The command line's default of each option, as words.");
}

}  // namespace slimpack::python
