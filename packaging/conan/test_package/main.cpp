// SPDX-License-Identifier: Apache-2.0
#include <iostream>
#include <slimpack/core/version.hpp>
#include <slimpack/report/summary.hpp>
#include <slimpack/slimpack.hpp>

int main() {
  slimpack::planners::PlanRequest request;
  request.batch = slimpack::draw_batch({{{900}, {30}, {4000}, {120}}, "my documents"}, {}, 0);
  request.sources = {{"my documents", 4, {}}};
  request.model = slimpack::model_preset("llama-7b").value();
  request.cluster = slimpack::cluster_preset("h100").value();
  request.pp = 2;
  auto outcome = slimpack::planners::plan_slimpack(request);
  const auto plan = slimpack::planners::take_plan(std::move(outcome.result)).value();
  const auto simulation = slimpack::sim::simulate_plan(plan);
  std::cout << "slimpack " << SLIMPACK_VERSION_TEXT << '\n';
  slimpack::report::write_summary_text(std::cout, plan, simulation,
                                       slimpack::report::summarize(plan, simulation, {}));
}
