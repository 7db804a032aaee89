// SPDX-License-Identifier: Apache-2.0
#include "slimpack/planners/published/flexsp.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "planners/candidate_laws.hpp"
#include "planners/outcome.hpp"
#include "planners/requests.hpp"
#include "slimpack/cost/links.hpp"
#include "slimpack/cost/weight_traffic.hpp"
#include "slimpack/sim/simulate_plan.hpp"
#include "slimpack/validate/validate.hpp"

using namespace slimpack;

namespace {

std::int64_t slowest_group(const planners::SpProblem& problem,
                           const std::vector<planners::SpGroup>& groups) {
  std::int64_t most = 0;
  for (const planners::SpGroup& group : groups) {
    std::int64_t time = 0;
    for (const std::size_t sample : group.samples) time += problem.times[sample][group.degree];
    most = std::max(most, time);
  }
  return most;
}

/// The least time of all groups and contents there are.
std::int64_t least_by_exhaustion(const planners::SpProblem& problem) {
  std::int64_t best = std::numeric_limits<std::int64_t>::max();
  std::vector<std::size_t> sizes;
  std::vector<std::int64_t> load;
  std::vector<std::int64_t> tokens;
  const auto place = [&](const auto& self, std::size_t sample) -> void {
    if (sample == problem.lengths.size()) {
      best = std::min(best, *std::max_element(load.begin(), load.end()));
      return;
    }
    for (std::size_t group = 0; group < sizes.size(); ++group) {
      const std::int64_t length = problem.lengths[sample].value;
      if (tokens[group] + length > (problem.capacity.value << sizes[group])) continue;
      load[group] += problem.times[sample][sizes[group]];
      tokens[group] += length;
      self(self, sample + 1);
      load[group] -= problem.times[sample][sizes[group]];
      tokens[group] -= length;
    }
  };
  const auto extend = [&](const auto& self, std::size_t most, std::int64_t left) -> void {
    if (!sizes.empty()) {
      load.assign(sizes.size(), 0);
      tokens.assign(sizes.size(), 0);
      place(place, 0);
    }
    for (std::size_t degree = 0; degree <= most; ++degree) {
      if ((std::int64_t{1} << degree) > left) break;
      sizes.push_back(degree);
      self(self, degree, left - (std::int64_t{1} << degree));
      sizes.pop_back();
    }
  };
  extend(extend, problem.times.front().size() - 1, problem.ranks);
  return best;
}

}  // namespace

TEST_CASE("flexsp: micro-batches have as few tokens at the most as there can be, by hand") {
  using Runs = std::vector<std::vector<std::size_t>>;
  const std::vector<Tokens> lengths = test::tokens_of({3, 5, 1, 4, 2});
  CHECK(planners::cut_sorted(lengths, 1) == Runs{{1, 3, 0, 4, 2}});
  CHECK(planners::cut_sorted(lengths, 2) == Runs{{1, 3}, {0, 4, 2}});
  CHECK(planners::cut_sorted(lengths, 3) == Runs{{1}, {3}, {0, 4, 2}});
  CHECK(planners::cut_sorted(lengths, 9) ==
        Runs{{1}, {3}, {0, 4}, {2}});  // the longest sets the most
  CHECK_THROWS_AS(static_cast<void>(planners::cut_sorted(lengths, 0)), InvalidInput);
}

TEST_CASE("flexsp: groups of one micro-batch, by hand") {
  const std::vector<Tokens> lengths = test::tokens_of({100, 20, 20});
  // All on four ranks take 120 + 40 + 40 = 200; the long one on two, the others alone, 210.
  std::vector<planners::SpTimes> times{{400, 210, 120}, {100, 60, 40}, {100, 60, 40}};
  CHECK(planners::solve_sp_groups({lengths, times, 4, Tokens{1000}}) ==
        std::vector<planners::SpGroup>{{2, {0, 1, 2}}});
  // Where splitting the short ones gains little, 120 + 85 + 85 is too much: 210 on two ranks; of
  // the short ones' 100 | 100 and 90 + 90 beside it, which are equally good, the larger group.
  times = {{400, 210, 120}, {100, 90, 85}, {100, 90, 85}};
  CHECK(planners::solve_sp_groups({lengths, times, 4, Tokens{1000}}) ==
        std::vector<planners::SpGroup>{{1, {0}}, {1, {1, 2}}});
  // With 35 tokens a rank the long sample needs four; then there is no other rank.
  CHECK(planners::solve_sp_groups({lengths, times, 4, Tokens{35}}) ==
        std::vector<planners::SpGroup>{{2, {0, 1, 2}}});
  // What fits nowhere is assigned as if ranks held twice as much.
  CHECK(planners::solve_sp_groups({lengths, times, 4, Tokens{20}}) ==
        std::vector<planners::SpGroup>{{2, {0, 1, 2}}});
  CHECK(planners::solve_sp_groups({{}, {}, 4, Tokens{20}}).empty());
  CHECK_THROWS_AS(static_cast<void>(planners::solve_sp_groups({lengths, times, 2, Tokens{20}})),
                  InvalidInput);
  times[1][2] = 0;
  CHECK_THROWS_AS(static_cast<void>(planners::solve_sp_groups({lengths, times, 4, Tokens{20}})),
                  InvalidInput);
}

TEST_CASE("flexsp: groups are near the best there are") {
  std::int64_t found = 0, best = 0, hit = 0, cases = 0;
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    CAPTURE(seed);
    Random random(seed + 1000);
    const std::size_t degrees = random.chance(1, 2) ? 3 : 2;
    const auto ranks =
        static_cast<std::int32_t>(degrees == 3 ? random.between(4, 6) : random.between(2, 4));
    std::vector<Tokens> lengths;
    std::vector<planners::SpTimes> times;
    for (std::int64_t i = random.between(1, 6); i > 0; --i) {
      const std::int64_t length =
          random.chance(1, 4) ? random.between(50, 200) : random.between(1, 60);
      lengths.push_back({length});
      const std::int64_t work = length * (100 + length);
      planners::SpTimes each{work};
      for (std::int64_t parts = 2; each.size() < degrees; parts *= 2) {
        each.push_back(work / parts + length * random.between(1, 20) + 1);
      }
      times.push_back(each);
    }
    const planners::SpProblem problem{lengths, times, ranks,
                                      Tokens{random.chance(1, 2) ? 100'000 : 250}};
    const auto groups = planners::solve_sp_groups(problem);
    std::vector<int> seen(lengths.size());
    std::int64_t used = 0;
    for (const planners::SpGroup& group : groups) {
      used += std::int64_t{1} << group.degree;
      for (const std::size_t sample : group.samples) ++seen[sample];
    }
    CHECK(used <= ranks);
    CHECK(std::all_of(seen.begin(), seen.end(), [](int times_seen) { return times_seen == 1; }));
    const std::int64_t least = least_by_exhaustion(problem);
    if (least == std::numeric_limits<std::int64_t>::max()) continue;
    CHECK(slowest_group(problem, groups) >= least);
    found += slowest_group(problem, groups);
    best += least;
    hit += slowest_group(problem, groups) == least ? 1 : 0;
    ++cases;
  }
  MESSAGE("groups of ", cases, " micro-batches: ", hit, " best, time over best ",
          static_cast<double>(found) / static_cast<double>(best));
  CHECK(found * 100 <= best * 101);
}

TEST_CASE("flexsp: with many ranks no worse than equal groups, and near the mean") {
  Random random(3);
  std::vector<Tokens> lengths;
  std::vector<planners::SpTimes> times;
  std::int64_t total = 0;
  for (int i = 0; i < 300; ++i) {
    const std::int64_t length =
        random.chance(1, 30) ? random.between(3000, 20'000) : random.between(10, 900);
    lengths.push_back({length});
    const std::int64_t work = length * (4000 + length);
    total += work;
    planners::SpTimes each{work};
    for (std::int64_t parts = 2; parts <= 64; parts *= 2)
      each.push_back(work / parts + length * 50);
    times.push_back(each);
  }
  const planners::SpProblem problem{lengths, times, 64, Tokens{100'000}};
  const std::int64_t time = slowest_group(problem, planners::solve_sp_groups(problem));
  CHECK(time >= total / 64);
  CHECK(time * 100 <= total / 64 * 108);
}

TEST_CASE("flexsp: bytes of heads that change hands, by hand") {
  planners::PlanRequest request = test::request_of({1000, 500});
  request.dp = 2;
  const Plan plan = planners::plan_frame(request, "flexsp");
  // 8 query heads, 4 of keys, 64 wide, 2 bytes.
  const planners::detail::HeadSplitBytes two = planners::detail::head_split_bytes(plan, 2);
  CHECK(two.query == 1024);
  CHECK(two.key_value == 1024);
  CHECK(planners::detail::head_split_bytes(plan, 8).key_value == 2048);  // each head on two ranks
  using planners::detail::head_split_pass;
  CHECK(planners::detail::head_split_pass(two, Pass::forward, Recompute::full).in == 2048);
  CHECK(planners::detail::head_split_pass(two, Pass::forward, Recompute::full).out == 1024);
  CHECK(planners::detail::head_split_pass(two, Pass::backward, Recompute::none).in == 1024);
  CHECK(planners::detail::head_split_pass(two, Pass::backward, Recompute::light).out == 2048);
  CHECK(planners::detail::head_split_pass(two, Pass::backward, Recompute::layer).in == 2048);
  CHECK(planners::detail::head_split_pass(two, Pass::backward, Recompute::layer).out == 2048);
  CHECK(planners::detail::head_split_pass(two, Pass::backward, Recompute::full).out == 3072);
}

TEST_CASE("flexsp: times of a shared micro-batch, by hand") {
  planners::PlanRequest request = test::request_of({1000, 500});
  request.dp = 2;
  using planners::detail::SharedBatch;
  const std::vector<planners::detail::SharedBatch> batches{{0, 2, {0, 1}}};
  const Plan plan = planners::detail::share_batches(request, "flexsp", {}, batches);
  const AnalyticModel model(plan.model, plan.cluster, plan.memory);
  const planners::detail::HeadSplitTimes times(plan, model);
  const PackLoad load = times.load(plan.micropacks[0].slices, 2, Pass::forward);
  CHECK(load.tokens == Tokens{750});
  CHECK(load.pairs2 == (1'000'000 + 250'000) / 2);
  CHECK(load.segments == 2);
  // 750 tokens: queries, keys and values in, outputs out, half of each to the other rank.
  const Nanos exchange = model.transfer(Bytes{750 * 2048 / 2}, plan.cluster.inside) +
                         model.transfer(Bytes{750 * 1024 / 2}, plan.cluster.inside);
  CHECK(times.exchange(plan.micropacks[0], load.tokens, 0) == exchange);
  StageLoad stage;
  stage.layers = 8;
  stage.embedding = true;
  stage.tensor_link = stage.exchange_link = plan.cluster.inside;
  CHECK(times.unit(plan.micropacks[0], load, 0) == model.forward(load, stage) + exchange * 8);
  CHECK(times.sent(plan.micropacks[0], load.tokens) == Bytes{750 * 3072 * 8});
}

TEST_CASE("flexsp: on shared links an exchange waits for the message of its unit") {
  planners::PlanRequest request = test::request_of({1000, 500});
  request.dp = request.pp = 2;
  const std::vector<planners::detail::SharedBatch> batches{{0, 2, {0, 1}}};
  Plan plan = planners::detail::share_batches(request, "flexsp", {}, batches);
  const AnalyticModel model(plan.model, plan.cluster, plan.memory);
  const MicroPack forward = plan.micropacks[0];
  const auto unit = [&](bool shared, std::int32_t stage) {
    plan.cluster.small.shared_links = shared;
    const planners::detail::HeadSplitTimes times(plan, model);
    return times.unit(forward, times.load(forward.slices, 2, Pass::forward), stage);
  };
  const std::int64_t bytes = 750 * plan.model.hidden * plan.model.bytes_per_element;
  CHECK(unit(true, 0) - unit(false, 0) == model.transfer(Bytes{bytes}, plan.cluster.inside) -
                                              model.transfer(Bytes{}, plan.cluster.inside));
  CHECK(unit(true, 1) == unit(false, 1));  // the last stage sends nothing forward
}

TEST_CASE("flexsp: groups over two nodes send to both at a time") {
  planners::PlanRequest request = test::request_of({1000});
  request.dp = 4;
  request.cluster.devices_per_node = 2;
  const std::vector<planners::detail::SharedBatch> batches{{0, 4, {0}}};
  const Plan plan = planners::detail::share_batches(request, "flexsp", {}, batches);
  const AnalyticModel model(plan.model, plan.cluster, plan.memory);
  const planners::detail::HeadSplitTimes times(plan, model);
  const Nanos between = model.transfer(Bytes{250 * 2048 / 2}, plan.cluster.between) +
                        model.transfer(Bytes{250 * 1024 / 2}, plan.cluster.between);
  CHECK(times.exchange(plan.micropacks[0], Tokens{250}, 0) == between);
}

TEST_CASE("flexsp: every candidate over random batches and degrees is a valid plan") {
  std::int64_t shared = 0, sharded = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    Random random(seed + 800);
    planners::PlanRequest request = test::request_of(
        test::random_lengths(random, random.between(1, 40), 1024), random.between(8, 24));
    request.dp = static_cast<std::int32_t>(random.between(1, 20));
    request.pp = static_cast<std::int32_t>(random.between(1, 5));
    if (random.chance(1, 3)) request.max_cp = static_cast<std::int32_t>(random.between(1, 4));
    const planners::detail::FlexSpCandidates candidates(request, "flexsp");
    for (int draw = 0; draw < 4; ++draw) {
      const planners::SettingPoint point = test::random_point(candidates.space(), random);
      const planners::FlexSpSettings settings = candidates.space().at(point);
      planners::BuiltStep built = candidates.build(settings);
      CHECK(planners::predict(built, request) == std::nullopt);
      const Plan& plan = planners::plan_in(built);
      // What a plan's ranks may do with weights they share is less.
      Plan whole = plan;
      whole.memory.weights = WeightState::replicated;
      whole.memory.capacity += static_bytes(whole, 0).total();
      for (const Violation& violation : validate(whole).violations) FAIL_CHECK(violation.message);
      CHECK(plan.parallel.max_cp <= std::min(8, request.max_cp.value_or(request.dp)));
      CHECK(std::holds_alternative<Plan>(built) ==
            (plan.parallel.max_cp == 1 && !settings.shard_weights));
      if (std::holds_alternative<Plan>(built)) continue;
      const auto& step = std::get<planners::SimulationOnlyPlan>(built);
      CHECK(sim::simulate_plan(step.plan, step.times).timeline.makespan ==
            step.plan.prediction.iteration);
      CHECK(!step.unsupported_feature.empty());
      CHECK((plan.memory.weights == WeightState::sharded) == settings.shard_weights);
      shared += plan.parallel.max_cp > 1 ? 1 : 0;
      sharded += settings.shard_weights ? 1 : 0;
      if (settings.shard_weights) continue;
      const PricedPlan priced(step.plan);
      bool same = true;
      for (std::size_t i = 0; i < step.plan.micropacks.size(); ++i) {
        if (step.plan.groups[index(step.plan.micropacks[i].group)].size() > 1) continue;
        const auto pack = static_cast<PackId>(i);
        for (std::int32_t line = 0; line < request.pp; ++line) {
          same = same && step.times.compute(pack, line) == priced.compute(pack, line);
        }
      }
      CHECK(same);
    }
  }
  CHECK(shared > 20);
  CHECK(sharded > 20);
}

TEST_CASE("flexsp: bytes and times of sharded weights, by hand") {
  planners::PlanRequest request = test::request_of({1000});
  request.dp = 4;
  Plan plan = planners::plan_frame(request, "flexsp");
  plan.memory.weights = WeightState::sharded;
  const AnalyticModel model(plan.model, plan.cluster, plan.memory);
  const WeightTraffic traffic = weight_traffic(plan, Links(plan), model, 0);
  const DeviceWeights weights = device_weights(plan, 0);
  // A layer of this model has 2.4 M weights, the table 2.1 M: of every number a quarter is held,
  // and of two layers weights (2 bytes each) and gradients (4 bytes each) whole.
  const std::int64_t layer = plan.model.layer_weights();
  REQUIRE(layer > plan.model.vocab * plan.model.hidden);
  REQUIRE(weights.total() % 4 == 0);
  CHECK(static_bytes(plan, 0).weights == Bytes{weights.total() / 4 * 2 + layer * 2 * 2});
  CHECK(static_bytes(plan, 0).gradients == Bytes{weights.total() / 4 * 4 + layer * 2 * 4});
  // Eight layers, embedding and head are gathered one after another.
  CHECK(traffic.layers == 10);
  const auto each = [&](std::int64_t bytes) {
    return model.reduce(Bytes{(weights.total() * bytes + 9) / 10}, 4, plan.cluster.inside) * 10;
  };
  CHECK(traffic.gather == each(2));
  CHECK(traffic.scatter == each(4));
  CHECK(with_traffic(Nanos{100}, Nanos{60}, 10) == Nanos{106});
  CHECK(with_traffic(Nanos{60}, Nanos{100}, 10) == Nanos{106});
  CHECK(with_traffic(Nanos{60}, Nanos{100}, 10, 0.5) == Nanos{136});
}

TEST_CASE("flexsp: weights that no device holds alone fit where they are sharded") {
  planners::PlanRequest request = test::request_of({1000, 900, 800, 700, 300, 200, 100, 50});
  request.dp = 4;
  request.memory.reserved = Bytes{0};
  const Plan frame = planners::plan_frame(request, "flexsp");
  const planners::detail::FlexSpCandidates candidates(request, "flexsp");
  planners::FlexSpSettings settings =
      candidates.space().at(planners::SettingPoint(candidates.space().sizes().size()));
  settings.recompute = Recompute::full;
  settings.shard_weights = true;
  planners::BuiltStep step = candidates.build(settings);
  REQUIRE(planners::predict(step, request) == std::nullopt);
  const auto peak = [](const Plan& plan) {
    Bytes most;
    for (const auto& device : plan.prediction.devices) most = std::max(most, device.peak);
    return most;
  };
  const Bytes held = peak(planners::plan_in(step));
  CHECK(held < static_bytes(frame, 0).total());
  Bytes worst;
  for (const Bytes bytes : planners::worst_memory(planners::plan_in(step))) {
    worst = std::max(worst, bytes);
  }
  request.memory.capacity = worst;
  CHECK(planners::predict(step, request) == std::nullopt);
  planners::plan_in(step).memory.capacity = *request.memory.capacity;
  CHECK(planners::predict(step, request) == std::nullopt);
  planners::plan_in(step).memory.capacity = *request.memory.capacity - Bytes{1};
  CHECK(planners::predict(step, request).has_value());
  request.recompute = Recompute::full;
  CHECK(std::holds_alternative<Infeasible>(plan_by("hybrid-cp", request).result));
  CHECK(!std::holds_alternative<Infeasible>(plan_by("flexsp", request).result));
}

TEST_CASE("flexsp: with sharded weights the groups of a round take as long as its slowest") {
  planners::PlanRequest request = test::request_of({1000, 900, 800, 700, 300, 200, 100, 50});
  request.dp = 4;
  const planners::detail::FlexSpCandidates candidates(request, "flexsp");
  planners::FlexSpSettings settings;
  settings.shard_weights = true;
  settings.cp_block = Tokens{32};
  settings.count = {16, 0};
  planners::BuiltStep built = candidates.build(settings);
  const auto& step = std::get<planners::SimulationOnlyPlan>(built);
  const PricedPlan prices(step.plan);
  const auto batches = candidates.batches_of(settings);
  for (std::size_t i = 1; i < batches.size(); ++i) {
    const auto both = [&](std::size_t batch) {
      Nanos head;
      for (std::int32_t rank = 0; rank < batches[batch].ranks; ++rank) {
        head = std::max(
            head, prices.head(static_cast<PackId>(2 * batch), static_cast<std::size_t>(rank), 0));
      }
      return step.times.compute(static_cast<PackId>(2 * batch), 0) + head +
             step.times.compute(static_cast<PackId>(2 * batch + 1), 0);
    };
    if (batches[i].round == batches[i - 1].round) CHECK(both(i) == both(i - 1));
  }
  CHECK(batches.back().round > 0);
}

TEST_CASE("flexsp: chunks are refused, a sharded head as published") {
  planners::PlanRequest request = test::request_of({1000, 900});
  request.pp = 2;
  request.chunks = 2;
  CHECK(std::get<Infeasible>(plan_by("flexsp", request).result).constraint ==
        "chunks of a stage, one in flexsp's order");
  request.chunks.reset();
  request.head = LmHead::shard;
  CHECK(planners::plan_in(plan_by("flexsp", request).result)->parallel.head == LmHead::shard);
  request.as_published = true;
  CHECK(std::get<Infeasible>(plan_by("flexsp", request).result).constraint ==
        "stages, one in flexsp's order as published");
}
