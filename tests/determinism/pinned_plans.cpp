// SPDX-License-Identifier: Apache-2.0
// Prints the hash, predicted time and bound of 64 plans: pinned_plans EXAMPLES EVALUATION, two
// folders of length files. The output is compared with pinned_plans.txt: a refactoring must not
// change a plan.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "slimpack/core/random.hpp"
#include "slimpack/cost/presets.hpp"
#include "slimpack/data/sample.hpp"
#include "slimpack/io/text_lengths.hpp"
#include "slimpack/plan/plan_hash.hpp"
#include "slimpack/planners/registry.hpp"

namespace {

using namespace slimpack;

struct Degrees {
  std::int32_t dp, pp, tp;
};

template <class Value, std::size_t count>
Value draw(Random& random, const std::array<Value, count>& values) {
  return values[static_cast<std::size_t>(random.between(0, static_cast<std::int64_t>(count) - 1))];
}

struct Setting {
  std::string set;
  planners::PlanRequest request;
};

/// Everything about the request is drawn by its number, one draw a statement.
Setting draw_setting(std::uint64_t number, const std::array<std::string, 2>& folders) {
  constexpr std::array<std::string_view, 7> kSets{
      "books", "longsft_mix", "webpages", "wikipedia_en", "code", "encyclopedia", "web"};
  constexpr std::array<std::string_view, 4> kModels{"llama-7b", "llama3-8b", "llama-13b",
                                                    "llama-1b"};
  constexpr std::array<std::string_view, 2> kClusters{"h100", "a100"};
  constexpr std::array<Degrees, 8> kDegrees{
      {{1, 4, 1}, {2, 4, 1}, {4, 2, 1}, {8, 1, 1}, {4, 4, 2}, {8, 2, 1}, {2, 8, 1}, {16, 2, 1}}};
  constexpr std::array<std::int64_t, 4> kContexts{8192, 32768, 65536, 131072};
  constexpr std::array<std::int64_t, 3> kTokens{4'000, 16'000, 40'000};
  Random random(number);
  Setting setting;
  setting.set = draw(random, kSets);
  const bool evaluation =
      setting.set == "code" || setting.set == "encyclopedia" || setting.set == "web";
  LengthSet set =
      read_text_lengths((evaluation ? folders[1] : folders[0]) + '/' + setting.set + ".lengths");
  planners::PlanRequest& request = setting.request;
  request.model = model_preset(draw(random, kModels)).value();
  request.cluster = cluster_preset(draw(random, kClusters)).value();
  const Degrees degrees = draw(random, kDegrees);
  request.dp = degrees.dp;
  request.pp = degrees.pp;
  request.tp = degrees.tp;
  request.context = {draw(random, kContexts)};
  const std::int64_t tokens = draw(random, kTokens);
  BatchOptions options;
  options.context = request.context;
  options.overlong = Overlong::split;
  options.batch_tokens = Tokens{tokens * degrees.dp * degrees.pp * degrees.tp};
  options.seed = number;
  request.batch = BatchStream(std::span(&set, 1), options).next();
  request.sources = {{setting.set, static_cast<std::int64_t>(set.documents.size()), ""}};
  request.effort = planners::Effort::fast;
  if (random.chance(1, 3)) request.effort = planners::Effort::normal;
  if (random.chance(1, 4)) request.max_cp = 2;
  if (random.chance(1, 4)) request.chunks = 1;
  if (random.chance(1, 4)) request.head = LmHead::last;
  if (random.chance(1, 4)) request.recompute = Recompute::full;
  request.threads = 2;
  return setting;
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 3) {
    std::fputs("usage: pinned_plans EXAMPLES EVALUATION\n", stderr);
    return 2;
  }
  const std::array<std::string, 2> folders{arguments[1], arguments[2]};
  constexpr std::uint64_t kPlans = 64;
  const auto all = planners::registry();
  for (std::uint64_t number = 0; number < kPlans; ++number) {
    // Three rounds of all planners; the others are slimpack's.
    const planners::PlannerInfo& planner = all[number < 3 * all.size() ? number % all.size() : 0];
    const Setting setting = draw_setting(number, folders);
    const planners::PlanRequest& request = setting.request;
    const planners::PlanOutcome outcome = planner.plan(request);
    std::string line = std::to_string(number) + ' ' + std::string(planner.name) + ' ' +
                       setting.set + ' ' + request.model.name + ' ' + std::to_string(request.dp) +
                       'x' + std::to_string(request.pp) + 'x' + std::to_string(request.tp) + ' ' +
                       std::to_string(request.context.value) + ": ";
    if (const Plan* plan = planners::plan_in(outcome.result)) {
      line += to_string(plan_hash(*plan)) + ' ' + std::to_string(plan->prediction.iteration.value) +
              " ns, bound " + std::to_string(plan->prediction.lower_bound.value) + " ns";
    } else {
      const auto& none = std::get<Infeasible>(outcome.result);
      line += none.constraint + ", needed " + std::to_string(none.needed);
    }
    std::puts(line.c_str());
  }
  return 0;
}
