// SPDX-License-Identifier: Apache-2.0
#include "slimpack/planners/published/dynapipe.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "planners/candidate_laws.hpp"
#include "planners/requests.hpp"
#include "slimpack/planners/search/worst_memory.hpp"

using namespace slimpack;
using planners::detail::BatchCut;
using planners::detail::BatchItem;
using planners::detail::BatchRules;

namespace {

/// Replicas times DynaPipe's objective of a cut.
std::int64_t objective(const std::vector<planners::detail::BatchItem>& items,
                       const planners::detail::BatchRules& rules,
                       const std::vector<std::size_t>& ends) {
  std::int64_t most = 0, sum = 0;
  std::size_t i = 0;
  for (const std::size_t end : ends) {
    std::int64_t time = rules.unit;
    for (; i < end; ++i) time += items[i].time;
    most = std::max(most, time);
    sum += time;
  }
  CHECK(i == items.size());
  return (rules.stages - 1) * rules.replicas * most + sum;
}

bool allowed(const std::vector<planners::detail::BatchItem>& items,
             const planners::detail::BatchRules& rules, const std::vector<std::size_t>& ends) {
  std::size_t i = 0;
  for (const std::size_t end : ends) {
    const std::size_t size = end - i;
    std::int64_t bytes = 0;
    for (; i < end; ++i) bytes += items[i].bytes;
    if (size > 1 && bytes > rules.room) return false;
  }
  return true;
}

/// The least objective of all 2^(n-1) cuts.
std::int64_t least_objective(const std::vector<planners::detail::BatchItem>& items,
                             const planners::detail::BatchRules& rules) {
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (std::uint32_t mask = 0; mask < (1U << (items.size() - 1)); ++mask) {
    std::vector<std::size_t> ends;
    for (std::size_t i = 1; i < items.size(); ++i) {
      if ((mask >> (i - 1) & 1U) != 0) ends.push_back(i);
    }
    ends.push_back(items.size());
    if (allowed(items, rules, ends)) least = std::min(least, objective(items, rules, ends));
  }
  return least;
}

/// The publication's dynamic program over all pairs of ends, for every maximum that occurs.
std::int64_t published_objective(const std::vector<planners::detail::BatchItem>& items,
                                 const planners::detail::BatchRules& rules) {
  const std::size_t count = items.size();
  constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max() / 4;
  std::vector<std::vector<std::int64_t>> time(count, std::vector<std::int64_t>(count + 1, kNone));
  std::set<std::int64_t> maxima;
  for (std::size_t from = 0; from < count; ++from) {
    std::int64_t bytes = 0, sum = rules.unit;
    for (std::size_t to = from + 1; to <= count; ++to) {
      bytes += items[to - 1].bytes;
      sum += items[to - 1].time;
      if (to > from + 1 && bytes > rules.room) break;
      time[from][to] = sum;
      maxima.insert(sum);
    }
  }
  std::int64_t least = kNone;
  for (const std::int64_t most : maxima) {
    std::vector<std::int64_t> best(count + 1, kNone);
    best[0] = 0;
    for (std::size_t to = 1; to <= count; ++to) {
      for (std::size_t from = 0; from < to; ++from) {
        if (time[from][to] > most) continue;
        best[to] = std::min(best[to], best[from] + time[from][to]);
      }
    }
    if (best[count] == kNone) continue;
    least = std::min(least, (rules.stages - 1) * rules.replicas * most + best[count]);
  }
  return least;
}

std::vector<planners::detail::BatchItem> random_items(Random& random, std::int64_t count) {
  std::vector<planners::detail::BatchItem> items;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t size = random.chance(1, 6) ? random.between(20, 90) : random.between(1, 12);
    items.push_back({size + random.between(0, 3), size});
  }
  std::sort(items.begin(), items.end(),
            [](const planners::detail::BatchItem& a, const planners::detail::BatchItem& b) {
              return a.bytes > b.bytes;
            });
  return items;
}

planners::detail::BatchRules random_rules(Random& random) {
  return {random.between(0, 25), random.between(10, 150), random.between(1, 8),
          random.between(1, 4)};
}

planners::DynapipeSettings settings_of(planners::DynapipeOrder order) {
  planners::DynapipeSettings settings;
  settings.order = order;
  return settings;
}

}  // namespace

TEST_CASE("dynapipe: micro-batches by hand") {
  const std::vector<planners::detail::BatchItem> items{{10, 10}, {6, 6}, {5, 5}, {4, 4}, {1, 1}};
  using Ends = std::vector<std::size_t>;
  // Free units: as many micro-batches as the longest sample's time gives.
  CHECK(planners::detail::BatchCut(items, {0, 100, 4, 1}).ends() == Ends{1, 2, 5});
  // Without a pipeline the fewest micro-batches that fit are best.
  CHECK(planners::detail::BatchCut(items, {2, 100, 1, 1}).ends() == Ends{5});
  CHECK(planners::detail::BatchCut(items, {2, 15, 1, 1}).ends() == Ends{1, 4, 5});
  // One stage more: a unit of 2 does not pay for a maximum of 15 in place of 10, one of 7 does.
  CHECK(planners::detail::BatchCut(items, {2, 100, 2, 1}).ends() == Ends{1, 2, 5});
  CHECK(planners::detail::BatchCut(items, {7, 100, 2, 1}).ends() == Ends{2, 5});
  // Four replicas make the pipeline dearer.
  CHECK(planners::detail::BatchCut(items, {7, 100, 2, 4}).ends() == Ends{1, 2, 5});
  // A sample beyond the limit is alone.
  CHECK(planners::detail::BatchCut(items, {7, 9, 1, 1}).ends() == Ends{1, 2, 4, 5});
}

TEST_CASE("dynapipe: micro-batches are the best of all cuts") {
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const auto items = random_items(random, random.between(1, 11));
    const planners::detail::BatchRules rules = random_rules(random);
    const auto ends = planners::detail::BatchCut(items, rules).ends();
    CHECK(allowed(items, rules, ends));
    CHECK(objective(items, rules, ends) == least_objective(items, rules));
  }
}

TEST_CASE("dynapipe: micro-batches are those of the published dynamic program") {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    Random random(seed + 1000);
    const auto items = random_items(random, random.between(20, 60));
    const planners::detail::BatchRules rules = random_rules(random);
    const auto ends = planners::detail::BatchCut(items, rules).ends();
    CHECK(allowed(items, rules, ends));
    CHECK(objective(items, rules, ends) == published_objective(items, rules));
  }
}

TEST_CASE("dynapipe: clusters of similar times, and their permutations") {
  using Clusters = std::vector<std::vector<std::size_t>>;
  const std::vector<std::int64_t> time{100, 7, 95, 8, 50, 6};
  CHECK(planners::detail::cluster_by_time(time, 3) == Clusters{{0, 2}, {4}, {3, 1, 5}});
  CHECK(planners::detail::cluster_by_time(time, 1) == Clusters{{0, 2, 4, 3, 1, 5}});
  CHECK(planners::detail::cluster_by_time(std::vector<std::int64_t>(5, 3), 3).size() == 1);
  CHECK(planners::detail::cluster_by_time(std::vector<std::int64_t>{}, 3).empty());
  const auto few = planners::detail::cluster_orders(std::vector<std::int64_t>{3, 2, 1});
  CHECK(few.size() == 6);
  CHECK(few.front() == std::vector<std::size_t>{0, 1, 2});
  CHECK(std::set<std::vector<std::size_t>>(few.begin(), few.end()).size() == 6);
  std::vector<std::int64_t> many;
  for (std::int64_t i = 0; i < 30; ++i) many.push_back(i < 10 ? 100 : i < 20 ? 50 : 10);
  CHECK(planners::detail::cluster_orders(many).size() == 6);
}

TEST_CASE("dynapipe: two ranks and two stages, by hand") {
  planners::PlanRequest request = test::request_of({1000, 100, 1024, 900, 120});
  request.pp = 2;
  request.dp = 2;
  const planners::detail::DynapipeCandidates candidates(request, "dynapipe");
  const Plan plan = candidates.build(settings_of(planners::DynapipeOrder::one_forward));
  // Kernel launches cost more here than the work of 1,024 tokens: one micro-batch a rank.
  CHECK(test::plan_text(plan) ==
        "0F[2:0-1024 0:0-1000] 1B[2:0-1024 0:0-1000] 2F[3:0-900 4:0-120 1:0-100] "
        "3B[3:0-900 4:0-120 1:0-100]\n"
        "0.0: F0.0 B1.0 R0 O\n"
        "0.1: F0.0 H0 B1.0 R0 O\n"
        "1.0: F2.0 B3.0 R0 O\n"
        "1.1: F2.0 H2 B3.0 R0 O\n");
}

TEST_CASE("dynapipe: every candidate over random batches and degrees is a valid plan") {
  std::set<std::size_t> batches;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    Random random(seed + 300);
    planners::PlanRequest request = test::random_step(random, 60, 5, 6);
    request.tp = random.chance(1, 2) ? 1 : 2;
    if (random.chance(1, 2)) request.cluster.kernel_s = 0;
    const planners::detail::DynapipeCandidates candidates(request, "dynapipe");
    test::check_candidates(candidates, request, random, 4, "recompute",
                           [&](const Plan& plan) { batches.insert(plan.micropacks.size()); });
  }
  CHECK(batches.size() >= 6);
}

TEST_CASE("dynapipe: the limited order fits where the others do not") {
  Random random(4);
  std::vector<std::int64_t> lengths;
  for (int i = 0; i < 60; ++i) lengths.push_back(random.between(2000, 8000));
  planners::PlanRequest request = test::request_of(lengths);
  request.context = {8192};
  request.pp = 4;
  request.cluster.kernel_s = 0;
  const planners::detail::DynapipeCandidates candidates(request, "dynapipe");
  const auto worst = [&](planners::DynapipeOrder order) {
    const Plan plan = candidates.build(settings_of(order));
    return planners::worst_memory(plan).front();
  };
  const Bytes free = worst(planners::DynapipeOrder::cyclic);
  CHECK(worst(planners::DynapipeOrder::limited) == free);
  const Bytes least = worst(planners::DynapipeOrder::one_forward);
  CHECK(least < free);
  request.memory.reserved = Bytes{0};
  request.memory.capacity = Bytes{least.value + (free - least).value / 2};
  const planners::detail::DynapipeCandidates tight(request, "dynapipe");
  Plan plan = tight.build(settings_of(planners::DynapipeOrder::limited));
  CHECK(planners::predict(plan, request) == std::nullopt);
  Plan cyclic = tight.build(settings_of(planners::DynapipeOrder::cyclic));
  CHECK(planners::predict(cyclic, request).has_value());
}

TEST_CASE("dynapipe: chunks are refused, a sharded head as published") {
  planners::PlanRequest request = test::request_of({1000, 900});
  request.chunks = 2;
  auto why = std::get<Infeasible>(planners::Dynapipe{}.plan(request).result);
  CHECK(why.constraint == "chunks of a stage, one in dynapipe's order");
  CHECK(why.needed == 2);
  request.chunks.reset();
  request.head = LmHead::shard;
  request.pp = 2;
  CHECK(planners::plan_in(planners::Dynapipe{}.plan(request).result)->parallel.head ==
        LmHead::shard);
  request.as_published = true;
  why = std::get<Infeasible>(planners::Dynapipe{}.plan(request).result);
  CHECK(why.constraint == "stages with a part of the head, one in dynapipe's order as published");
}
