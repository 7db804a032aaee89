// SPDX-License-Identifier: Apache-2.0
// Random plans of every kind with their summaries and Chakra traces: chakra_plans FOLDER FIRST
// COUNT writes FOLDER/SEED/plan.json, simulation.json and traces/.
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string>

#include "slimpack/io/file.hpp"
#include "slimpack/io/plan_json.hpp"
#include "slimpack/report/chakra.hpp"
#include "slimpack/report/summary.hpp"
#include "slimpack/sim/simulate_plan.hpp"
#include "support/random_heads_plan.hpp"
#include "support/random_plan.hpp"

int main(int count, char** arguments) {
  using namespace slimpack;
  if (count != 4) return 2;
  const std::uint64_t first = std::strtoull(arguments[2], nullptr, 10);
  const std::uint64_t last = first + std::strtoull(arguments[3], nullptr, 10);
  for (std::uint64_t seed = first; seed < last; ++seed) {
    test::RandomPlanOptions options;
    options.max_tp = 4;
    options.weights = options.vary_bytes = options.large_model = true;
    const Plan plan =
        seed % 3 == 2 ? test::random_heads_plan(seed, options) : test::random_plan(seed, options);
    const sim::PlanSimulation simulation = sim::simulate_plan(plan);
    const std::string folder = arguments[1] + ("/" + std::to_string(seed));
    std::filesystem::create_directories(folder + "/traces");
    write_file(folder + "/plan.json", plan_to_json(plan));
    std::ostringstream summary;
    report::write_summary_json(summary, plan, simulation, report::summarize(plan, simulation, {}));
    write_file(folder + "/simulation.json", summary.str());
    report::write_chakra(plan, simulation, [&](const std::string& name, const std::string& bytes) {
      write_file(folder + "/traces/" + name, bytes);
    });
  }
  return 0;
}
