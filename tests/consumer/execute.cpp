// SPDX-License-Identifier: Apache-2.0
// Plans a step of a tiny model, executes it on threads and compares it with the step of whole
// samples.
#include <iostream>
#include <slimpack/slimpack.hpp>
#include <slimpack_cpu/check_plan.hpp>
int main() {
  slimpack::planners::PlanRequest request;
  request.batch = slimpack::draw_batch({{{90}, {30}, {40}, {12}}, "my documents"}, {}, 0);
  request.sources = {{"my documents", 4, {}}};
  request.model = slimpack::model_preset("tiny").value();
  request.cluster = slimpack::cluster_preset("h100").value();
  request.context = {128};
  request.pp = 2;
  auto outcome = slimpack::planners::plan_slimpack(request);
  const auto plan = slimpack::planners::take_plan(std::move(outcome.result)).value();
  const auto data = slimpack::cpu::step_data(plan, slimpack::cpu::random_tokens(plan, 1));
  const auto check = slimpack::cpu::check_plan(plan, data, 1);
  std::cout << (check.worst() < 1e-10 ? "the same step\n" : "another step\n");
}
