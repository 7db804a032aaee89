// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "planners/outcome.hpp"
#include "planners/requests.hpp"
#include "slimpack/cost/price.hpp"
#include "slimpack/planners/search/detail/evaluate.hpp"
#include "slimpack/planners/slimpack/candidates.hpp"
#include "slimpack/planners/slimpack/packs.hpp"
#include "slimpack/planners/slimpack/problem.hpp"
#include "slimpack/planners/slimpack/rank_balance.hpp"
#include "slimpack/planners/slimpack/refine.hpp"
#include "slimpack/planners/slimpack/space.hpp"
#include "slimpack/validate/validate.hpp"
#include "support/draws.hpp"

using namespace slimpack;

namespace {

struct Strata {
  std::int64_t plans = 0, infeasible = 0, in_cp_group = 0, chunked = 0, tight = 0, tiny = 0,
               list = 0, lockstep = 0, sharded = 0, recomputed = 0, apart = 0, narrow = 0,
               short_blocks = 0, rounds = 0, shared_weights = 0;
};

planners::PlanRequest random_request(Random& random, Strata& counts) {
  const std::int64_t context = random.chance(1, 2) ? 1024 : 4096;
  const bool tiny = random.chance(1, 4);
  std::vector<std::int64_t> lengths =
      test::random_lengths(random, tiny ? random.between(1, 2) : random.between(1, 8), context);
  if (random.chance(1, 8)) lengths.assign(static_cast<std::size_t>(random.between(1, 5)), 1);
  counts.tiny += tiny ? 1 : 0;
  planners::PlanRequest request = test::request_of(lengths, 4);
  request.context = Tokens{context};
  request.dp = static_cast<std::int32_t>(random.between(1, 4));
  request.pp = static_cast<std::int32_t>(random.between(1, 3));
  if (random.chance(1, 6)) request.tp = 2;
  if (random.chance(1, 4)) request.chunks = request.pp == 3 ? 1 : 2;
  if (random.chance(1, 5)) request.head = random.chance(1, 2) ? LmHead::last : LmHead::shard;
  if (random.chance(1, 6)) request.recompute = static_cast<Recompute>(random.between(0, 3));
  if (random.chance(1, 6)) {
    request.weights = random.chance(1, 2) ? WeightGradients::with : WeightGradients::apart;
  }
  if (random.chance(1, 6)) request.max_units = random.between(1, 6);
  if (random.chance(1, 6)) request.max_cp = static_cast<std::int32_t>(random.between(1, 4));
  if (random.chance(1, 4)) request.granularity = Tokens{random.between(1, 200)};
  request.cluster.devices_per_node = random.chance(1, 2) ? 2 : 8;
  if (random.chance(1, 2)) {
    ++counts.tight;
    request.memory.reserved = Bytes{0};
    request.memory.capacity = Bytes{random.between(100, 700) * 1'000'000};
  }
  // Packs as other systems have them are far from the first starts.
  if (random.chance(1, 40)) request.budget = 400;
  return request;
}

void check_plan(const planners::PlanRequest& request, const planners::PlanOutcome& outcome,
                std::string_view name, Strata& counts) {
  CHECK(outcome.simulated_devices <=
        planners::evaluations(request) * planners::all_devices(request));
  CHECK(!outcome.settings.empty());
  if (const auto* why = std::get_if<Infeasible>(&outcome.result)) {
    ++counts.infeasible;
    CHECK(!why->constraint.empty());
    CHECK(why->needed > why->available);
    return;
  }
  const Plan& plan = std::get<Plan>(outcome.result);
  ++counts.plans;
  CHECK(outcome.evaluations >= 1);
  const Validation validation = validate(plan);
  for (const Violation& violation : validation.violations) FAIL_CHECK(violation.message);
  CHECK(plan.planner == name);
  CHECK(plan.samples == request.batch.samples);
  CHECK(plan.origin == request.batch.origin);
  const Bytes available = plan.memory.capacity - plan.memory.reserved;
  for (const Bytes& peak : validation.worst_case_peak) CHECK(peak <= available);
  CHECK(plan.prediction.lower_bound > Nanos{});
  CHECK(plan.prediction.lower_bound <= plan.prediction.iteration);
  CHECK(plan.prediction.ideal < plan.prediction.iteration);
  if (request.max_units) CHECK(planners::most_units(plan) <= *request.max_units);
  if (request.chunks) CHECK(plan.parallel.chunks == *request.chunks);
  if (request.head) CHECK(plan.parallel.head == *request.head);
  bool recomputed = false, apart = false;
  for (const MicroPack& pack : plan.micropacks) {
    if (pack.pass != Pass::backward) continue;
    if (request.recompute) CHECK(pack.recompute == *request.recompute);
    if (request.weights) CHECK(pack.weights == *request.weights);
    apart = apart || pack.weights == WeightGradients::apart;
    recomputed = recomputed || pack.recompute != Recompute::none;
  }
  if (request.max_cp) CHECK(plan.parallel.max_cp <= *request.max_cp);
  bool in_cp_group = false;
  for (const auto& group : plan.groups) {
    CHECK(static_cast<std::int32_t>(group.size()) <= plan.parallel.max_cp);
    in_cp_group = in_cp_group || group.size() > 1;
  }
  counts.in_cp_group += in_cp_group ? 1 : 0;
  counts.recomputed += recomputed ? 1 : 0;
  counts.apart += apart ? 1 : 0;
  counts.chunked += plan.parallel.chunks > 1 ? 1 : 0;
  counts.sharded += plan.parallel.head == LmHead::shard ? 1 : 0;
  const auto is = [&](const std::string& setting, std::string_view value) {
    const auto found = outcome.settings.find(setting);
    return found != outcome.settings.end() && found->second == value;
  };
  const bool nested = !is("groups", "disjoint");
  counts.narrow += !nested || is("narrowest_group", "1") ? 0 : 1;
  counts.short_blocks += is("short_blocks", "yes") ? 1 : 0;
  const planners::RankBalance balance = planners::rank_balance(plan);
  CHECK(balance.least <= balance.fullest);
  CHECK(balance.mean <= balance.fullest);
  CHECK(balance.least > 0);
  counts.shared_weights += plan.memory.weights == WeightState::sharded ? 1 : 0;
  if (request.weight_state) CHECK(plan.memory.weights == *request.weight_state);
  if (outcome.settings.contains("rounds")) {
    ++counts.rounds;
    return;
  }
  (outcome.settings.at("schedule") == "list" ? counts.list : counts.lockstep) += 1;
}

}  // namespace

TEST_CASE("slimpack: laws over many small draws") {
  constexpr std::uint64_t kDraws = test::draws(10000U);
  Strata counts;
  for (std::uint64_t seed = 0; seed < kDraws; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const planners::PlanRequest request = random_request(random, counts);
    check_plan(request, plan_by("slimpack", request), "slimpack", counts);
  }
  MESSAGE("plans ", counts.plans, ", infeasible ", counts.infeasible, ", merged ",
          counts.in_cp_group, ", several chunks ", counts.chunked, ", tight memory ", counts.tight,
          ", tiny ", counts.tiny, ", lockstep ", counts.lockstep, ", list ", counts.list,
          ", sharded head ", counts.sharded, ", recomputed ", counts.recomputed, ", weights apart ",
          counts.apart, ", all samples shared ", counts.narrow, ", short blocks ",
          counts.short_blocks, ", rounds ", counts.rounds, ", of them with shared weights ",
          counts.shared_weights);
  CHECK(counts.rounds >= counts.shared_weights);
  CHECK(counts.shared_weights > 0);
  CHECK(counts.narrow > 0);
  CHECK(counts.short_blocks > 0);
  CHECK(counts.plans > static_cast<std::int64_t>(kDraws) / 2);
  CHECK(counts.infeasible > 0);
  CHECK(counts.in_cp_group > 0);
  CHECK(counts.chunked > 0);
  CHECK(counts.lockstep > 0);
  CHECK(counts.list > 0);
  CHECK(counts.apart > 0);
}

TEST_CASE("slimpack: every ablation keeps the laws and its own promise") {
  for (const std::string_view name : {"slimpack-symmetric", "slimpack-samples", "slimpack-unmerged",
                                      "slimpack-lasthead", "slimpack-fused"}) {
    CAPTURE(name);
    Strata counts;
    for (std::uint64_t seed = 0; seed < 150; ++seed) {
      CAPTURE(seed);
      Random random(seed);
      planners::PlanRequest request = random_request(random, counts);
      request.head.reset();
      if (name == "slimpack-fused") request.weights.reset();
      const planners::PlanOutcome outcome = plan_by(name, request);
      check_plan(request, outcome, name, counts);
      const Plan* plan = std::get_if<Plan>(&outcome.result);
      if (plan == nullptr) continue;
      if (name == "slimpack-lasthead") CHECK(plan->parallel.head == LmHead::last);
      if (name == "slimpack-unmerged") CHECK(plan->groups.size() == std::size_t(request.dp));
      if (name == "slimpack-samples") {
        for (const MicroPack& pack : plan->micropacks) {
          for (const Slice& slice : pack.slices) {
            CHECK(slice.length() == plan->samples[index(slice.sample)]);
          }
        }
      }
      if (name == "slimpack-fused") {
        for (const MicroPack& pack : plan->micropacks) {
          CHECK(pack.pass != Pass::weight);
          CHECK(pack.weights == WeightGradients::with);
        }
      }
      if (name == "slimpack-symmetric") {
        std::vector<std::vector<Slice>> forward, backward;
        for (const MicroPack& pack : plan->micropacks) {
          if (pack.pass == Pass::weight) continue;
          std::vector<Slice> slices = pack.slices;
          std::sort(slices.begin(), slices.end());
          (pack.pass == Pass::forward ? forward : backward).push_back(std::move(slices));
        }
        std::sort(forward.begin(), forward.end());
        std::sort(backward.begin(), backward.end());
        CHECK(forward == backward);
      }
    }
    CHECK(counts.plans > 50);
  }
}

TEST_CASE("slimpack: any point of its space makes a valid plan or lacks memory") {
  std::int64_t plans = 0, lacking = 0, by_tokens = 0, short_blocks = 0, sample_blocks = 0,
               backward_first = 0, between = 0;
  for (std::uint64_t seed = 0; seed < test::draws(2000U); ++seed) {
    CAPTURE(seed);
    Random random(seed);
    Strata unused;
    const planners::PlanRequest request = random_request(random, unused);
    const planners::SlimpackProblem problem(request, "slimpack", {});
    const planners::SlimpackScores scores(problem);
    const planners::SlimpackSpace space =
        planners::slimpack_space(problem, {}, planners::Effort::normal);
    const planners::SlimpackCandidates candidates(scores, space);
    for (int each = 0; each < 4; ++each) {
      planners::SettingPoint point;
      for (const std::size_t size : space.sizes()) point.push_back(random.below(size));
      point = space.canonical(std::move(point));
      if (!candidates.exists(point)) continue;
      const planners::SlimpackSettings settings = candidates.at(point);
      const auto [plan, lacks] = candidates.plan(*candidates.assign(settings), {&settings, 1});
      if (lacks) {
        ++lacking;
        continue;
      }
      ++plans;
      const Validation validation = validate(plan);
      for (const Violation& violation : validation.violations) FAIL_CHECK(violation.message);
      by_tokens += settings.balance == planners::PackBalance::tokens ? 1 : 0;
      short_blocks += settings.chunks > 1 && settings.short_blocks ? 1 : 0;
      sample_blocks += settings.chunks > 1 && settings.sample_blocks ? 1 : 0;
      backward_first += settings.chunks > 1 && settings.backward_first ? 1 : 0;
      between += settings.forward_units() != settings.units ? 1 : 0;
    }
  }
  MESSAGE("plans ", plans, ", lacking ", lacking, ", packs by tokens ", by_tokens,
          ", short blocks ", short_blocks, ", blocks of samples ", sample_blocks, ", B first ",
          backward_first, ", packs between two numbers ", between);
  for (const std::int64_t count :
       {lacking, by_tokens, short_blocks, sample_blocks, backward_first, between}) {
    CHECK(count > 0);
  }
}

TEST_CASE(
    "slimpack: samples move from components that end late, and stay where that gains nothing") {
  std::int64_t choices = 0, changed = 0, plans = 0;
  for (std::uint64_t seed = 0; seed < test::draws(2000U); ++seed) {
    CAPTURE(seed);
    Random random(seed);
    Strata unused;
    const planners::PlanRequest request = random_request(random, unused);
    if (request.dp == 1) continue;
    const planners::SlimpackProblem problem(request, "slimpack", {});
    const planners::SlimpackScores scores(problem);
    const planners::SlimpackSpace space =
        planners::slimpack_space(problem, {}, planners::Effort::normal);
    const planners::SlimpackCandidates candidates(scores, space);
    const planners::SettingPoint point = space.canonical(space.starts().front());
    if (!candidates.exists(point)) continue;
    const planners::SlimpackRefiner refiner(
        candidates, planners::search_space(space),
        space.flags(&planners::SettingTraits<planners::SlimpackSettings>::shared));
    planners::SimulationCounter counter(request, 0.0);
    const planners::SearchLimits limits{&counter};
    const planners::SearchResult found{{{candidates(point), point}}, 1};
    planners::SlimpackChoice choice = refiner.choices(found, 1, limits).front();
    if (choice.scores.empty() || choice.expected().excess > 0) continue;
    ++choices;
    const planners::SlimpackChoice before = choice;
    const bool moved = refiner.even_out(choice, limits);
    CHECK(moved == (choice.expected() < before.expected()));
    CHECK(moved == (choice.assigned != before.assigned));
    CHECK(choice.scores.size() == choice.assigned->components.size());
    CHECK(counter.left() >= 0);
    if (!moved) continue;
    ++changed;
    std::vector<planners::SlimpackSettings> settings;
    for (const planners::SettingPoint& each : choice.points)
      settings.push_back(candidates.at(each));
    const auto [plan, lacks] = candidates.plan(*choice.assigned, settings);
    if (lacks) continue;
    ++plans;
    CHECK(validate(plan).violations.empty());
  }
  MESSAGE("choices ", choices, ", changed ", changed, ", valid plans of them ", plans);
  CHECK(changed > 0);
  CHECK(plans > 0);
}

TEST_CASE("slimpack: more effort never ends with a slower plan") {
  constexpr std::uint64_t kDraws = test::draws(1500U);
  std::int64_t faster = 0, same = 0, own = 0;
  for (std::uint64_t seed = 0; seed < kDraws; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    Strata counts;
    planners::PlanRequest request = random_request(random, counts);
    std::optional<Nanos> before;
    for (const planners::Effort effort :
         {planners::Effort::fast, planners::Effort::normal, planners::Effort::thorough}) {
      // Thorough searches of so small steps are costly and alike.
      if (effort == planners::Effort::thorough && seed % 16 != 0) break;
      request.effort = effort;
      const planners::PlanOutcome outcome = plan_by("slimpack", request);
      CHECK(outcome.simulated_devices <=
            planners::evaluations(request) * planners::all_devices(request));
      const Plan* plan = std::get_if<Plan>(&outcome.result);
      if (before) REQUIRE(plan != nullptr);
      if (plan == nullptr) continue;
      const auto packs = outcome.settings.find("same_packs");
      if (packs != outcome.settings.end()) (packs->second == "yes" ? same : own) += 1;
      if (before) {
        CHECK(plan->prediction.iteration <= *before);
        faster += plan->prediction.iteration < *before ? 1 : 0;
      }
      before = plan->prediction.iteration;
    }
  }
  MESSAGE("faster with more effort: ", faster, ", the same packs in both passes: ", same);
  CHECK(faster > 0);
  CHECK(same > 0);
  CHECK(own > 0);
}

TEST_CASE(
    "slimpack: many samples are those of a rank, and on eight stages a normal search is short") {
  planners::PlanRequest request;
  const auto many = [&](std::size_t samples, std::int32_t dp) {
    request.batch.samples.assign(samples, Tokens{1});
    request.dp = dp;
    return planners::has_many_samples(request);
  };
  CHECK_FALSE(many(16'384, 1));
  CHECK(many(16'385, 8));
  CHECK_FALSE(many(32'768, 16));
  CHECK(many(32'769, 16));
  CHECK_FALSE(many(65'536, 64));
  CHECK(many(65'537, 64));

  for (const std::uint64_t seed : {1, 2, 3}) {
    CAPTURE(seed);
    Random random(seed);
    std::vector<std::int64_t> lengths{65'536};
    while (lengths.size() < 16'500) lengths.push_back(random.between(1, 4000));
    request = test::request_of(lengths);
    request.model = model_preset("llama-7b").value();
    request.context = {65'536};
    request.dp = 8;
    request.pp = 8;
    request.effort = planners::Effort::fast;
    const planners::PlanOutcome fast = plan_by("slimpack", request);
    request.effort = planners::Effort::normal;
    const planners::PlanOutcome normal = plan_by("slimpack", request);
    REQUIRE(std::holds_alternative<Plan>(fast.result));
    REQUIRE(std::holds_alternative<Plan>(normal.result));
    CHECK(std::get<Plan>(normal.result).prediction.iteration <=
          std::get<Plan>(fast.result).prediction.iteration);
    CHECK(normal.evaluations > fast.evaluations);
    CHECK(normal.evaluations < planners::evaluations(planners::Effort::normal, 16'500) / 4);
  }
}

TEST_CASE("slimpack: the widest and the narrowest group are searched") {
  std::int64_t widest = 0, narrowest = 0, disjoint = 0, even = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    planners::PlanRequest request = test::request_of(test::random_lengths(random, 12, 4096), 4);
    request.context = Tokens{4096};
    request.dp = 8;
    request.pp = 2;
    request.effort = planners::Effort::normal;
    const planners::PlanOutcome outcome = plan_by("slimpack", request);
    const Plan& plan = std::get<Plan>(outcome.result);
    const bool shared = plan.groups.size() > 8;
    const bool by_length = outcome.settings.contains("widest_group");
    const bool any_size = outcome.settings.at("groups") == "disjoint";
    const bool all = !any_size && outcome.settings.at("narrowest_group") != "1";
    CHECK((by_length || all) == shared);
    if (by_length && outcome.settings.at("widest_group") != "8") ++widest;
    if (all && outcome.settings.at("narrowest_group") != "8") ++narrowest;
    if (any_size) ++disjoint;
    if (outcome.settings.at("groups") == "even") ++even;
  }
  CHECK(widest > 0);
  CHECK(narrowest > 0);
  CHECK(disjoint > 0);
  CHECK(even > 0);
}

TEST_CASE("slimpack: more samples than packs share packs") {
  planners::PlanRequest request = test::request_of(std::vector<std::int64_t>(40, 4096));
  request.model = model_preset("llama-7b").value();
  request.context = {4096};
  request.pp = 4;
  request.chunks = 1;
  request.max_units = 24;
  for (const planners::Effort effort : {planners::Effort::fast, planners::Effort::normal}) {
    request.effort = effort;
    CHECK(std::holds_alternative<Plan>(plan_by("slimpack", request).result));
  }
}

TEST_CASE("slimpack: threads never change the answer") {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    Strata counts;
    planners::PlanRequest request = random_request(random, counts);
    const planners::PlanOutcome one = plan_by("slimpack", request);
    request.threads = 3;
    const planners::PlanOutcome three = plan_by("slimpack", request);
    CHECK(one.settings == three.settings);
    CHECK(one.evaluations == three.evaluations);
    REQUIRE(one.result.index() == three.result.index());
    if (const Plan* plan = std::get_if<Plan>(&one.result)) {
      CHECK(*plan == std::get<Plan>(three.result));
    }
  }
}

TEST_CASE("slimpack: a memory too small for any plan is told with bytes") {
  planners::PlanRequest request = test::request_of({1024, 700, 3});
  request.dp = 2;
  request.pp = 2;
  request.memory.reserved = Bytes{0};
  request.memory.capacity = Bytes{50'000'000};
  const planners::PlanOutcome outcome = plan_by("slimpack", request);
  REQUIRE(std::holds_alternative<Infeasible>(outcome.result));
  const auto& why = std::get<Infeasible>(outcome.result);
  CHECK(why.constraint.starts_with("bytes of memory on "));
  CHECK(why.needed > 50'000'000);
  CHECK(why.available == 50'000'000);
}

TEST_CASE("slimpack: as many packs as asked keep less, evenly spread") {
  Random random(5);
  for (int draw = 0; draw < 100; ++draw) {
    const std::int64_t permille = random.between(0, 999);
    const planners::ModeChoice mode(Recompute::light, Recompute::full, permille);
    CAPTURE(permille);
    const auto begin = static_cast<std::size_t>(random.between(0, 2000));
    std::int64_t leaner = 0;
    for (std::size_t count = 1; count <= 1000; ++count) {
      leaner += mode.leaner(begin + count - 1) ? 1 : 0;
      const std::int64_t even = static_cast<std::int64_t>(count) * permille;
      REQUIRE(leaner * 1000 > even - 1000);
      REQUIRE(leaner * 1000 < even + 1000);
    }
    CHECK(leaner == permille);
  }
}

TEST_CASE("slimpack: packs of one long sample that recompute more are smaller, not later") {
  planners::PlanRequest request = test::request_of({262'144}, 8);
  request.context = Tokens{262'144};
  request.pp = 4;
  const planners::SlimpackProblem problem(request, "slimpack", {});
  planners::SlimpackSettings settings;
  settings.units = 16;
  // By pack: as many packs are leaner. By token: those of the first tokens.
  constexpr std::array<std::array<std::int64_t, 2>, 5> kCases{
      {{250, 0}, {500, 0}, {750, 0}, {250, 65'536}, {500, 131'072}}};
  for (const auto& each : kCases) {
    const std::int64_t permille = each[0], early = each[1];
    CAPTURE(permille);
    CAPTURE(early);
    settings.mode = planners::ModeChoice(Recompute::light, Recompute::full, permille);
    if (early > 0) {
      settings.mode.lean = Recompute::light;
      settings.mode.first = Recompute::full;
      settings.mode.early = Tokens{early};
    }
    const planners::RankAssignment assigned = planners::assign_ranks(problem, settings);
    const Plan plan = planners::build_packs(problem, assigned, {&settings, 1}, std::nullopt);
    const PricedPlan times(plan);
    std::int64_t packs = 0, leaner = 0, lean_tokens = 0;
    Nanos shortest = Nanos::max(), longest;
    for (std::size_t i = 0; i < plan.micropacks.size(); ++i) {
      if (plan.micropacks[i].pass != Pass::backward) continue;
      ++packs;
      const Slice& slice = plan.micropacks[i].slices.front();
      if (plan.micropacks[i].recompute == Recompute::full) {
        ++leaner;
        lean_tokens += slice.length().value;
        if (early > 0) CHECK(slice.begin.value < early);
      }
      const Nanos time = times.compute(static_cast<PackId>(i), 0);
      shortest = std::min(shortest, time);
      longest = std::max(longest, time);
    }
    CHECK(packs == 16);
    if (early == 0) {
      CHECK(leaner == 16 * permille / 1000);
    } else {
      CHECK(std::abs(lean_tokens - early) < 262'144 / 16);
    }
    // One pack may have tokens of both kinds.
    CHECK(longest.value * 10 < shortest.value * (early == 0 ? 11 : 13));
  }
}

TEST_CASE("slimpack: packs of samples that recompute more by length have fewer tokens") {
  planners::PlanRequest request = test::request_of(std::vector<std::int64_t>(64, 4096), 8);
  request.batch.samples.push_back({131'072});
  request.batch.origin.push_back({0, 64, {}});
  request.context = Tokens{131'072};
  const planners::SlimpackProblem problem(request, "slimpack", {});
  planners::SlimpackSettings settings;
  settings.units = 16;
  settings.mode = planners::ModeChoice(Recompute::none, Recompute::layer);
  settings.mode.limit = {Tokens{8192}, Tokens{8192}, Tokens::max(), Tokens::max()};
  const planners::RankAssignment assigned = planners::assign_ranks(problem, settings);
  const Plan plan = planners::build_packs(problem, assigned, {&settings, 1}, std::nullopt);
  const PricedPlan times(plan);
  std::vector<Nanos> taken;
  bool lean = false, usual = false;
  for (std::size_t i = 0; i < plan.micropacks.size(); ++i) {
    const MicroPack& pack = plan.micropacks[i];
    if (pack.pass != Pass::backward) continue;
    lean = lean || pack.recompute == Recompute::layer;
    usual = usual || pack.recompute == Recompute::none;
    taken.push_back(times.compute(static_cast<PackId>(i), 0));
  }
  CHECK(lean);
  CHECK(usual);
  const auto [least, most] = std::minmax_element(taken.begin(), taken.end());
  CHECK(most->value * 10 < least->value * 12);
}
