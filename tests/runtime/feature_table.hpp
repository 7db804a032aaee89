// SPDX-License-Identifier: Apache-2.0
// Counts executed plans by feature, with the largest difference from the oracle of each.
#pragma once

#include <cstdint>
#include <cstdio>
#include <map>
#include <string>

#include "slimpack/plan/memory.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack_cpu/check_plan.hpp"
#include "support/random_plan.hpp"

namespace slimpack::test {

/// Count and largest difference by feature.
class FeatureTable {
 public:
  void add(const Plan& plan, const cpu::PlanCheck& check) {
    const Features found = features_of(plan);
    const auto count = [&](const std::string& name, std::int64_t has) {
      if (has != 0) add(name, check);
    };
    count("all", 1);
    count("merged, kv exchange", found.merged_kv);
    count("merged, q exchange", found.merged_q);
    count("merged, by heads", found.merged_heads);
    count("rings node by node", rings_node_by_node(plan) ? 1 : 0);
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
    count("window 1", found.max_in_flight[0]);
    bool no_pages = false, no_sums = false;
    for (const KeptKeys& kept : kept_keys(plan)) {
      no_pages = no_pages || !kept.pages;
      no_sums = no_sums || !kept.gradients;
    }
    count("keys made again", no_pages ? 1 : 0);
    count("key gradients not kept", no_sums ? 1 : 0);
    count("version 1", plan.version == 1 ? 1 : 0);
    count("sharded optimizer", plan.memory.optimizer == OptimizerState::sharded ? 1 : 0);
  }
  /// Counts the plan and its differences under a name of the caller's.
  void add(const std::string& name, const cpu::PlanCheck& check) {
    Row& row = rows_[name];
    ++row.plans;
    row.gradients = cpu::detail::worse(
        row.gradients, cpu::detail::worse(check.loss_difference, check.gradient_difference));
    row.weights = cpu::detail::worse(row.weights, check.weight_difference);
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

}  // namespace slimpack::test
