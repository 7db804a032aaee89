// SPDX-License-Identifier: Apache-2.0
// Prints every planner's plans of real and of drawn lengths: plans THREADS FOLDER DRAWS, where
// FOLDER has the length files. Built by any compiler, with and without optimisation, fused
// multiply-add and the host's vector instructions, and run with any number of threads, it must
// print the same.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "planners/requests.hpp"
#include "slimpack/core/random.hpp"
#include "slimpack/cost/presets.hpp"
#include "slimpack/data/sample.hpp"
#include "slimpack/io/plan_json.hpp"
#include "slimpack/io/text_lengths.hpp"
#include "slimpack/plan/plan_hash.hpp"
#include "slimpack/planners/registry.hpp"

namespace {

using namespace slimpack;

/// FNV-1a.
std::uint64_t hash_of(std::string_view bytes) {
  std::uint64_t state = 0xcbf29ce484222325U;
  for (const char byte : bytes) {
    state ^= static_cast<unsigned char>(byte);
    state *= 0x100000001b3U;
  }
  return state;
}

void print_plans(const std::string& name, const planners::PlanRequest& request) {
  for (const planners::PlannerInfo& planner : planners::registry()) {
    const planners::PlanOutcome outcome = planner.plan(request);
    std::string line = name + ' ' + std::string(planner.name);
    for (const auto& [setting, text] : outcome.settings) line += ' ' + setting + '=' + text;
    if (const Plan* plan = planners::plan_in(outcome.result)) {
      const std::string json = plan_to_json(*plan);
      line += ": plan_hash " + to_string(plan_hash(*plan)) + ", " + std::to_string(json.size()) +
              " bytes of plan.json with hash " + std::to_string(hash_of(json)) + ", iteration " +
              std::to_string(plan->prediction.iteration.value) + " ns";
    } else {
      const auto& none = std::get<Infeasible>(outcome.result);
      line += ": " + none.constraint + ", needed " + std::to_string(none.needed) + ", available " +
              std::to_string(none.available);
    }
    std::puts(line.c_str());
  }
}

struct RealStep {
  std::string_view set;
  std::int64_t context;
  std::int32_t dp, pp, tp;
  std::int64_t memory_gb;
};

void print_real(const RealStep& real, const std::string& folder, std::int32_t threads) {
  const LengthSet set = read_text_lengths(folder + '/' + std::string(real.set) + ".lengths");
  BatchOptions options;
  options.context = {real.context};
  options.overlong = Overlong::split;
  options.batch_tokens = Tokens{300'000};
  planners::PlanRequest request;
  request.batch = BatchStream(std::span(&set, 1), options).next();
  request.sources = {{std::string(real.set), static_cast<std::int64_t>(set.documents.size()), ""}};
  request.model = model_preset("llama-7b").value();
  request.cluster = cluster_preset("h100").value();
  request.memory.capacity = Bytes{real.memory_gb * 1'000'000'000};
  request.context = options.context;
  request.dp = real.dp;
  request.pp = real.pp;
  request.tp = real.tp;
  request.effort = planners::Effort::fast;
  request.threads = threads;
  print_plans(std::string(real.set), request);
}

void print_drawn(std::uint64_t seed, std::int32_t threads) {
  Random random(seed);
  // One draw a statement: in which order arguments are evaluated is the compiler's choice.
  const std::int64_t context = std::int64_t{1024} << random.between(0, 5);
  const std::int64_t count = random.between(1, 60);
  const std::vector<std::int64_t> lengths = test::random_lengths(random, count, context);
  planners::PlanRequest request = test::request_of(lengths, random.between(8, 16));
  request.context = {context};
  request.dp = static_cast<std::int32_t>(random.between(1, 4));
  request.pp = static_cast<std::int32_t>(random.between(1, 4));
  request.cluster.devices_per_node = random.between(1, 8);
  if (random.chance(1, 2)) request.granularity = {random.between(1, 64)};
  if (random.chance(1, 2)) {  // tight, or too little
    request.memory.capacity = Bytes{random.between(2, 8) * 100'000'000};
    request.memory.reserved = Bytes{};
  }
  if (random.chance(1, 2)) request.effort = planners::Effort::normal;
  request.threads = threads;
  print_plans("draw " + std::to_string(seed), request);
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 4) {
    std::fputs("usage: plans THREADS FOLDER DRAWS\n", stderr);
    return 2;
  }
  const std::int32_t threads = std::atoi(arguments[1]);
  for (const RealStep& real :
       {RealStep{"longsft_mix", 131072, 4, 8, 1, 80}, RealStep{"longsft_mix", 131072, 4, 8, 1, 28},
        RealStep{"wikipedia_en", 8192, 2, 4, 1, 80}, RealStep{"books", 262144, 2, 2, 4, 80},
        RealStep{"webpages", 32768, 3, 8, 2, 80}}) {
    print_real(real, arguments[2], threads);
  }
  const std::uint64_t draws = std::strtoull(arguments[3], nullptr, 10);
  for (std::uint64_t seed = 0; seed < draws; ++seed) print_drawn(seed, threads);
  return 0;
}
