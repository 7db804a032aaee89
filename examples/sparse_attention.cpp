// SPDX-License-Identifier: Apache-2.0
// A cost model of one's own: attention in which a query sees the last `window` tokens alone. It is
// planned with through a table and simulated as it is, beside plans made for dense attention:
//   sparse_attention [TOKENS]
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "slimpack/cost/tabulate.hpp"
#include "slimpack/planners/registry.hpp"
#include "slimpack/planners/search/layout.hpp"
#include "slimpack/slimpack.hpp"

namespace {

using namespace slimpack;  // NOLINT(google-build-using-namespace): an example, kept short

/// The analytic model, asked for the pairs that a sliding window leaves. A load tells tokens, pairs
/// and segments: each segment is taken for one of equal length whose queries see from c - s/2 to c
/// + s/2 keys, c being the mean; a pack of one slice is exact.
class WindowModel {
 public:
  WindowModel(const AnalyticModel& dense, Tokens window) : dense_(dense), window_(window.value) {}

  [[nodiscard]] Nanos forward(const PackLoad& load, const StageLoad& stage) const noexcept {
    return dense_.forward(seen(load), stage);
  }
  [[nodiscard]] Nanos backward(const PackLoad& load, const StageLoad& stage,
                               Recompute recompute) const noexcept {
    return dense_.backward(seen(load), stage, recompute);
  }
  [[nodiscard]] Nanos head(const HeadLoad& load) const noexcept { return dense_.head(load); }
  [[nodiscard]] Nanos transfer(Bytes bytes, const Link& link) const noexcept {
    return dense_.transfer(bytes, link);
  }
  [[nodiscard]] Nanos reduce(Bytes bytes, std::int64_t ranks, const Link& link) const noexcept {
    return dense_.reduce(bytes, ranks, link);
  }
  [[nodiscard]] Nanos optimizer(Bytes touched, Bytes gathered, std::int64_t ranks,
                                const Link& link) const noexcept {
    return dense_.optimizer(touched, gathered, ranks, link);
  }

  /// The pairs that remain: 2 n (c - what queries beyond the sliding window lose in the mean).
  [[nodiscard]] PackLoad seen(PackLoad load) const noexcept {
    const std::int64_t tokens = load.tokens.value;
    if (tokens == 0 || load.pairs2 == 0) return load;
    // The mean of x - w over those x in [low, low + span] that exceed it: (high - w)^2 -
    // (low - w)^2, over 2 span. All numbers are doubled, as pairs2 is.
    const std::int64_t mean2 = load.pairs2 / tokens;  // 2 c
    const std::int64_t segments = load.segments > 0 ? load.segments : 1;
    const std::int64_t span = std::max<std::int64_t>(1, std::min(tokens / segments, mean2));
    const auto beyond2 = [&](std::int64_t keys2) {
      return std::max<std::int64_t>(0, keys2 - 2 * window_);
    };
    const std::int64_t high2 = beyond2(mean2 + span), low2 = beyond2(mean2 - span);
    const Int128 all = Int128{4} * span * mean2;
    const Int128 left = std::max<Int128>(0, all - Int128{high2 - low2} * (high2 + low2));
    load.pairs2 = static_cast<std::int64_t>(load.pairs2 * left / all);
    load.filled_pairs2 = static_cast<std::int64_t>(load.filled_pairs2 * left / all);
    return load;
  }

 private:
  AnalyticModel dense_;
  std::int64_t window_;
};
static_assert(CostModel<WindowModel>);

planners::PlanRequest make_request() {
  Random random(1);
  LengthSet set{{}, "made-up lengths"};
  for (int document = 0; document < 400; ++document) {
    const bool is_long = random.chance(1, 12);
    set.documents.push_back(
        Tokens{is_long ? random.between(16384, 65536) : random.between(64, 4096)});
  }
  planners::PlanRequest request;
  request.context = Tokens{65536};
  BatchOptions batch;
  batch.context = request.context;
  batch.batch_tokens = Tokens{1'000'000};
  request.batch = draw_batch(set, batch, 0);
  request.sources = {{set.name, static_cast<std::int64_t>(set.documents.size()), {}}};
  request.model = model_preset("llama-7b").value();
  request.cluster = cluster_preset("h100").value();
  request.dp = 2;
  request.pp = 8;
  request.effort = planners::Effort::fast;
  request.weights = WeightGradients::with;  // a table has no prices of W
  return request;
}

int run(Tokens window) {
  planners::PlanRequest request = make_request();
  const MemorySpec memory = planners::memory_of(request);
  const AnalyticModel dense(request.model, request.cluster, memory);
  const WindowModel sparse(dense, window);

  const TableCost table =
      tabulate(sparse, table_grid(Tokens{128}, Tokens{65536}, request.context, 4));
  const TableError error =
      table_error(sparse, table, TableModel(table, request.model, request.cluster, memory));
  std::printf(
      "window of %lld tokens, table of %zu x %zu points: off by %.2f %% in the mean, %.1f %% "
      "at most\n",
      static_cast<long long>(window.value), table.tokens.size(), table.context.size(),
      100 * error.mean, 100 * error.worst);

  std::printf("%-16s %-22s %12s %12s\n", "planner", "planned for", "dense run", "sparse run");
  for (const std::string_view name : {"megatron", "infinipipe", "slimpack"}) {
    for (const bool planned_sparse : {false, true}) {
      request.cost = planned_sparse ? CostSpec(table) : CostSpec(AnalyticCost{});
      const planners::PlanOutcome outcome = planners::find_planner(name).plan(request);
      const Plan* plan = planners::plan_in(outcome.result);
      if (plan == nullptr) {
        std::printf("%-16s infeasible\n", std::string(name).c_str());
        continue;
      }
      if (const Validation checked = validate(*plan); !checked.valid()) {
        std::printf("%s: %s\n", plan->planner.c_str(), checked.violations.front().message.c_str());
        return 1;
      }
      const auto seconds_with = [&](const auto& model) {
        return seconds(sim::simulate_plan(*plan, PricedPlan(*plan, model)).timeline.makespan);
      };
      std::printf("%-16s %-22s %10.3f s %10.3f s\n", plan->planner.c_str(),
                  planned_sparse ? "sparse attention" : "dense attention", seconds_with(dense),
                  seconds_with(sparse));
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::int64_t window = argc > 1 ? std::strtoll(argv[1], nullptr, 10) : 4096;
    require(window >= 1, "sparse_attention: the window must be >= 1 tokens", window);
    return run(Tokens{window});
  } catch (const InvalidInput& error) {
    std::fprintf(stderr, "sparse_attention: %s\n", error.what());
    return 2;
  }
}
