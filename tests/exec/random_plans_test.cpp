// SPDX-License-Identifier: Apache-2.0
// Random valid plans, executed, against the unsliced oracle.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "slimpack_cpu/check_plan.hpp"
#include "support/draws.hpp"
#include "support/random_plan.hpp"

using namespace slimpack;

namespace {

/// Count and largest difference by feature.
class FeatureTable {
 public:
  void add(const Plan& plan, const cpu::PlanCheck& check) {
    const test::Features found = test::features_of(plan);
    const auto count = [&](const std::string& name, std::int64_t has) {
      if (has == 0) return;
      Row& row = rows_[name];
      ++row.plans;
      row.gradients = cpu::detail::worse(
          row.gradients, cpu::detail::worse(check.loss_difference, check.gradient_difference));
      row.weights = cpu::detail::worse(row.weights, check.weight_difference);
    };
    count("all", 1);
    count("merged, kv exchange", found.merged_kv);
    count("merged, q exchange", found.merged_q);
    count("ranks in several groups", found.shared_ranks);
    count("chunks", found.chunks);
    count("chunks on one stage", found.chunks != 0 && plan.parallel.pp == 1 ? 1 : 0);
    count("sharded head", found.sharded_head);
    count("tied", found.tied);
    count("tied, sharded head", found.tied * found.sharded_head);
    count("grouped queries", found.grouped_queries);
    count("differing cuts", found.differing_cuts);
    count("recompute none", found.recompute[0]);
    count("recompute light", found.recompute[1]);
    count("recompute layer", found.recompute[2]);
    count("recompute full", found.recompute[3]);
    count("recompute mixed in a sample", found.mixed_recompute);
    count("uneven stages", found.uneven_stages);
    count("stages without layers", found.empty_stages);
    count("idle ranks", found.idle_ranks);
    count("window 1", found.window[0]);
    count("sharded optimizer", plan.memory.optimizer == OptimizerState::sharded ? 1 : 0);
  }
  void print() const {
    std::printf("  %-30s plans  largest relative difference of loss, gradients | weights\n",
                "feature");
    for (const auto& [name, row] : rows_) {
      std::printf("  %-30s %5lld  %.1e | %.1e\n", name.c_str(), static_cast<long long>(row.plans),
                  row.gradients, row.weights);
    }
  }
  [[nodiscard]] std::int64_t plans(const std::string& name) const {
    const auto found = rows_.find(name);
    return found == rows_.end() ? 0 : found->second.plans;
  }

 private:
  struct Row {
    std::int64_t plans = 0;
    double gradients = 0;  ///< and loss
    double weights = 0;    ///< AdamW divides by gradients, so that tiny ones show
  };
  std::map<std::string, Row> rows_;
};

}  // namespace

TEST_CASE("execution: random plans give the loss, gradients and weights of the unsliced oracle") {
  FeatureTable table;
  const auto check = [&](std::uint64_t seed, const test::RandomPlanOptions& options) {
    CAPTURE(seed);
    const Plan plan = test::random_plan(seed, options);
    const auto found = cpu::check_plan(plan, cpu::random_tokens(plan, seed), seed);
    CAPTURE(found.worst_tensor);
    CHECK(found.loss_difference <= 1e-10);
    CHECK(found.gradient_difference <= 1e-10);
    CHECK(found.weight_difference <= 1e-10);
    table.add(plan, found);
  };
  for (std::uint64_t seed = 0; seed < slimpack::test::draws(300U); ++seed) check(seed, {});
  for (std::uint64_t seed = 300; seed < 340; ++seed) {
    test::RandomPlanOptions options;
    options.merged = true;
    options.exchange = seed % 2 == 0 ? Exchange::kv : Exchange::q;
    options.recompute = static_cast<Recompute>(seed / 2 % kRecomputeModes);
    check(seed, options);
  }
  for (std::uint64_t seed = 340; seed < 360; ++seed) {
    test::RandomPlanOptions options;
    options.pp = seed % 2 == 0 ? 1 : 4;
    options.chunks = 3;
    options.head = Head::shard;
    options.tied = true;
    options.window = 1;
    check(seed, options);
  }
  table.print();
  for (const char* name :
       {"merged, kv exchange", "merged, q exchange", "ranks in several groups", "chunks",
        "chunks on one stage", "sharded head", "tied", "tied, sharded head", "differing cuts",
        "recompute none", "recompute light", "recompute layer", "recompute full", "uneven stages",
        "stages without layers", "idle ranks", "window 1"}) {
    CAPTURE(name);
    CHECK(table.plans(name) >= slimpack::test::draws(10));
  }
}
