// SPDX-License-Identifier: Apache-2.0
// Plans one training step and says where its time goes, with the library alone:
//   quickstart [LENGTHS]    a text file with one document length a line
#include <cstddef>
#include <cstdio>
#include <string>
#include <utility>
#include <variant>

#include "slimpack/io/text_lengths.hpp"
#include "slimpack/slimpack.hpp"

namespace {

using namespace slimpack;  // NOLINT(google-build-using-namespace): an example, kept short

/// Many short documents and a few long ones, where no file is given.
LengthSet made_up_lengths() {
  Random random(1);
  LengthSet set{{}, "made-up lengths"};
  for (int document = 0; document < 300; ++document) {
    const bool is_long = random.chance(1, 30);
    set.documents.push_back(
        Tokens{is_long ? random.between(16384, 65536) : random.between(64, 4096)});
  }
  return set;
}

int run(const LengthSet& lengths) {
  planners::PlanRequest request;
  request.context = Tokens{65536};
  BatchOptions batch;
  batch.context = request.context;
  batch.overlong = Overlong::split;
  batch.batch_tokens = Tokens{1'000'000};
  request.batch = draw_batch(lengths, batch, 0);
  request.sources = {{lengths.name, static_cast<std::int64_t>(lengths.documents.size()), {}}};
  request.model = model_preset("llama-7b").value();
  request.cluster = cluster_preset("h100").value();
  request.dp = 2;
  request.pp = 4;

  // The whole planner first, then each time without one of its ideas. planners/registry.hpp has the
  // published planners too.
  for (const planners::SlimpackVariant& variant : planners::kSlimpackVariants) {
    planners::PlanOutcome outcome = planners::plan_slimpack(request, variant.name, variant.options);
    if (const auto* none = std::get_if<Infeasible>(&outcome.result)) {
      std::printf("%s: infeasible: %s\n", std::string(variant.name).c_str(),
                  none->constraint.c_str());
      continue;
    }
    const Plan plan = planners::take_plan(std::move(outcome.result)).value();
    if (const Validation checked = validate(plan); !checked.valid()) {
      std::printf("%s: %s\n", plan.planner.c_str(), checked.violations.front().message.c_str());
      return 1;
    }
    const sim::PlanSimulation simulation = sim::simulate_plan(plan, PricedPlan(plan));
    std::printf("%-21s %.3f s a step, %.1f %% of it ideal work\n", plan.planner.c_str(),
                seconds(plan.prediction.iteration),
                100 * seconds(plan.prediction.ideal) / seconds(plan.prediction.iteration));
    for (std::size_t device = 0; device < simulation.dag.devices.size(); ++device) {
      std::printf("  rank %d stage %d: busy %.3f s, at most %.1f GB\n",
                  simulation.dag.devices[device].dp, simulation.dag.devices[device].pp,
                  seconds(simulation.timeline.busy[device]),
                  static_cast<double>(simulation.timeline.peak[device].bytes.value) * 1e-9);
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc > 1 ? read_text_lengths(argv[1]) : made_up_lengths());
  } catch (const InvalidInput& error) {
    std::fprintf(stderr, "quickstart: %s\n", error.what());
    return 2;
  }
}
