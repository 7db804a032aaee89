// SPDX-License-Identifier: Apache-2.0
// Bound, optimum and the slimpack planner on instances that can be searched through.
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <variant>
#include <vector>

#include "planners/requests.hpp"
#include "slimpack/planners/registry.hpp"
#include "slimpack/planners/search/bound.hpp"
#include "slimpack/planners/search/layout.hpp"
#include "slimpack/sim/simulate_plan.hpp"
#include "slimpack/validate/validate.hpp"
#include "support/exact_milp.hpp"
#include "support/exact_plan.hpp"
#include "support/exact_schedule.hpp"
#include "support/joined_plan.hpp"
#include "support/skip.hpp"

namespace slimpack {
namespace {

#ifdef SLIMPACK_FEW_DRAWS
constexpr std::uint64_t kPlanDraws = 360, kOrderDraws = 90, kMilpDraws = 12, kWeightDraws = 90;
#elif defined(SLIMPACK_ALL_DRAWS)
constexpr std::uint64_t kPlanDraws = 2160, kOrderDraws = 720, kMilpDraws = 48, kWeightDraws = 1080;
#else
constexpr std::uint64_t kPlanDraws = 720, kOrderDraws = 240, kMilpDraws = 24, kWeightDraws = 360;
#endif

enum class Ranks : std::uint8_t { one, two, in_cp_group };

/// A step that leaves open what the exact search tries, and nothing else: layers as stages, a place
/// of the head, one chunk.
struct ExactDraw {
  planners::PlanRequest request;
  Ranks ranks = Ranks::one;
};

/// A step of at most `most_grains` times the granularity, in at most `most_samples` samples.
ExactDraw draw_step(std::uint64_t seed, std::int32_t pp, LmHead head, Ranks ranks,
                    std::int64_t most_grains, std::size_t most_samples) {
  Random random(seed * 7919 + 1);
  const std::int64_t granularity = 1024 * random.between(1, 4);
  std::vector<std::int64_t> lengths;
  for (std::int64_t left = most_grains; left > 0 && lengths.size() < most_samples;) {
    const std::int64_t grains = random.between(1, left);
    lengths.push_back(granularity * (grains - 1) + random.between(1, granularity));
    left -= grains;
    if (random.chance(1, 6)) break;
  }
  ExactDraw draw{test::request_of(lengths, pp), ranks};
  planners::PlanRequest& request = draw.request;
  request.pp = pp;
  request.dp = ranks == Ranks::one ? 1 : 2;
  request.max_cp = ranks == Ranks::in_cp_group ? 2 : 1;
  request.head = head;
  request.chunks = 1;
  request.weights = WeightGradients::with;
  request.granularity = {granularity};
  request.model = {"layers", pp, 4096, 32, 8, 128, 11008, 16'000, false, 1e4, 1e-5, 2};
  request.context = {1 << 17};
  request.effort = planners::Effort::normal;
  request.recompute = Recompute::none;
  request.weight_state = WeightState::replicated;  // the exact searches know no others
  constexpr std::array<double, 3> kOverheads{0, 1, 8};
  const double overhead = kOverheads[static_cast<std::size_t>(random.between(0, 2))];
  request.cluster.kernel_s *= overhead;
  request.cluster.segment_s *= overhead;
  request.cluster.small.shared_links = false;  // the exact searches have no links that are shared
  return draw;
}

/// Leaves devices a part of the memory that `plan` needs for samples, and recomputation open.
void tighten(planners::PlanRequest& request, const Plan& plan, std::int64_t percent) {
  Bytes most;
  for (const DevicePrediction& device : plan.prediction.devices) {
    const Bytes always = static_bytes(plan, device.pp).total();
    const Bytes samples = device.peak - always;
    most = std::max(most, always + Bytes{samples.value / 100 * percent});
  }
  request.memory.capacity = most + plan.memory.reserved;
  request.recompute.reset();
}

/// Quotients of one kind of draw.
struct Quotients {
  std::vector<double> values;

  [[nodiscard]] std::string text() {
    std::sort(values.begin(), values.end());
    double sum = 0;
    for (const double value : values) sum += value;
    const std::size_t count = values.size();
    std::array<char, 64> line{};
    std::snprintf(line.data(), line.size(), "mean %.3f, p95 %.3f, max %.3f",
                  sum / static_cast<double>(count), values[(count * 95 + 99) / 100 - 1],
                  values.back());
    return line.data();
  }
};

/// How far plans are from the optimum and the optimum from the bound, by kind of draw.
struct ExactTable {
  struct Row {
    Quotients plan, bound;
  };
  std::map<std::string, Row> rows;

  void add(std::span<const std::string> kinds, Nanos bound, Nanos optimum, Nanos plan) {
    for (const std::string& kind : kinds) {
      Row& row = rows[kind];
      row.plan.values.push_back(seconds(plan) / seconds(optimum));
      row.bound.values.push_back(seconds(optimum) / seconds(bound));
    }
  }
  void print() {
    for (auto& [kind, row] : rows) {
      MESSAGE(kind, ": ", row.plan.values.size(), " draws; slimpack / optimum ", row.plan.text(),
              "; optimum / bound ", row.bound.text());
    }
  }
};

std::string stages_text(std::int32_t pp) {
  return std::to_string(pp) + (pp == 1 ? " stage" : " stages");
}
constexpr std::array<const char*, 3> kRanksText{"one rank", "two ranks", "two ranks, merging"};

/// An exact plan keeps rules 0 to 6, and the simulator agrees with its time. Rule 7 counts more
/// than the exact search does.
void check_exact_plan(const Plan& plan, std::int64_t makespan) {
  CHECK(sim::simulate_plan(plan).timeline.makespan == Nanos{makespan});
  Plan roomy = plan;
  roomy.memory.capacity = Bytes{std::int64_t{1} << 50U};
  CHECK(validate(roomy).valid());
}

/// Whether the shortest plan by the exact search's rules, as far as it holds all samples, keeps all
/// seven rules where a message waits for the one before it.
bool surely_possible(Plan frame, const test::ExactLimits& limits) {
  const std::size_t samples = frame.samples.size();
  const test::ExactOptimum exact = test::exact_plan(std::move(frame), limits);
  if (!exact.plan || exact.plan->samples.size() != samples) return false;
  Plan plan = *exact.plan;
  plan.max_in_flight = 1;
  return validate(plan).valid();
}

TEST_CASE("exact_plan: between the bound and the slimpack planner") {
  ExactTable table;
  int infeasible = 0, missed = 0, unproven = 0, recomputed = 0, forced = 0, in_cp_group = 0;
  std::int64_t pairs = 0, searched = 0;
  for (std::uint64_t seed = 0; seed < kPlanDraws; ++seed) {
    CAPTURE(seed);
    const auto pp = static_cast<std::int32_t>(1 + seed % 3);
    const LmHead head = seed / 3 % 2 == 0 ? LmHead::last : LmHead::shard;
    const auto ranks = static_cast<Ranks>(seed / 6 % 3);
    const bool tight = seed / 18 % 2 == 1;
    const std::int64_t grains = tight ? 3 : ranks == Ranks::two ? 5 : 4;
    ExactDraw draw = draw_step(seed, pp, head, ranks, grains, ranks == Ranks::in_cp_group ? 3 : 4);
    planners::PlanOutcome outcome = planners::find_planner("slimpack").plan(draw.request);
    REQUIRE(std::holds_alternative<Plan>(outcome.result));
    std::vector<Recompute> modes{Recompute::none};
    Plan frame = std::get<Plan>(outcome.result);
    if (tight) {
      tighten(draw.request, frame, Random(seed).between(60, 120));
      frame.memory.capacity = draw.request.memory.capacity.value();
      outcome = planners::find_planner("slimpack").plan(draw.request);
      modes = {Recompute::none, Recompute::light, Recompute::layer, Recompute::full};
    }
    test::ExactLimits limits;
    limits.modes = modes;
    limits.most_nodes = 40'000;
    const Plan* plan = std::get_if<Plan>(&outcome.result);
    if (plan == nullptr) {
      ++infeasible;
      missed += surely_possible(std::move(frame), limits) ? 1 : 0;
      continue;
    }
    const Nanos time = plan->prediction.iteration;
    const planners::LowerBound bound = planners::iteration_bound(*plan);
    CHECK(bound.value <= time);
    limits.limit = time.value + 1;
    const test::ExactOptimum exact = test::exact_plan(*plan, limits);
    pairs += exact.pairs;
    searched += exact.searched;
    if (!exact.proven) {
      ++unproven;
      continue;
    }
    // The search knows nothing of the planner's plan but its time: it has to find one as short.
    REQUIRE(exact.plan);
    CHECK(bound.value <= Nanos{exact.makespan});
    CHECK(Nanos{exact.makespan} <= time);
    check_exact_plan(*exact.plan, exact.makespan);
    forced += bound.term.ends_with("+memory") ? 1 : 0;
    bool more = false, shared = false;
    for (const MicroPack& pack : exact.plan->micropacks) {
      more = more || pack.recompute != Recompute::none;
      shared = shared || exact.plan->groups[index(pack.group)].size() > 1;
    }
    recomputed += more ? 1 : 0;
    in_cp_group += shared ? 1 : 0;
    const std::array<std::string, 5> kinds{
        "all", stages_text(pp), kRanksText[static_cast<std::size_t>(ranks)],
        head == LmHead::last ? "head on the last stage" : "head sharded",
        tight ? "memory tight" : "memory ample"};
    table.add(kinds, bound.value, Nanos{exact.makespan}, time);
  }
  MESSAGE(kPlanDraws, " draws, ", infeasible, " without a plan, ", missed,
          " of them with one that is valid, ", unproven,
          " without a proven optimum; of the optima ", in_cp_group, " merge, ", recomputed,
          " recompute; the bound counts memory in ", forced, "; ", pairs, " pairs of pack sets, ",
          searched, " searched through");
  table.print();
  CHECK(unproven * 10 < static_cast<int>(kPlanDraws));
  CHECK(in_cp_group > 0);
  CHECK(recomputed > 0);
}

// What W can bring at most: the shortest plans with and without it, three slices in each pass.
TEST_CASE("exact_plan: no plan with weights apart is below the bound") {
  std::map<std::string, Quotients> gain, above;
  int unproven = 0, helped = 0;
  std::int64_t searched = 0;
  for (std::uint64_t seed = 0; seed < kWeightDraws; ++seed) {
    CAPTURE(seed);
    const auto pp = static_cast<std::int32_t>(1 + seed % 3);
    const LmHead head = seed / 3 % 2 == 0 ? LmHead::last : LmHead::shard;
    const auto ranks = static_cast<Ranks>(seed / 6 % 3);
    const ExactDraw draw = draw_step(seed + 30'000, pp, head, ranks, 3, 3);
    const planners::PlanOutcome outcome = planners::find_planner("slimpack").plan(draw.request);
    REQUIRE(std::holds_alternative<Plan>(outcome.result));
    const Plan& plan = std::get<Plan>(outcome.result);
    const std::array<Recompute, 1> none{Recompute::none};
    test::ExactLimits limits;
    limits.modes = none;
    limits.most_nodes = 200'000;
    const test::ExactOptimum with = test::exact_plan(plan, limits);
    limits.weights = true;
    limits.limit = with.makespan + 1;
    const test::ExactOptimum apart = test::exact_plan(plan, limits);
    searched += apart.searched;
    if (!with.proven || !apart.proven) {
      ++unproven;
      continue;
    }
    REQUIRE(apart.plan);
    const Nanos bound = planners::iteration_bound(plan).value;
    CHECK(bound <= Nanos{apart.makespan});
    CHECK(apart.makespan <= with.makespan);
    check_exact_plan(*apart.plan, apart.makespan);
    helped += apart.makespan < with.makespan ? 1 : 0;
    const std::array<std::string, 4> kinds{
        "all", stages_text(pp), kRanksText[static_cast<std::size_t>(ranks)],
        head == LmHead::last ? "head on the last stage" : "head sharded"};
    for (const std::string& kind : kinds) {
      gain[kind].values.push_back(static_cast<double>(with.makespan) /
                                  static_cast<double>(apart.makespan));
      above[kind].values.push_back(static_cast<double>(apart.makespan) /
                                   static_cast<double>(bound.value));
    }
  }
  MESSAGE("weights apart: ", kWeightDraws, " draws, ", unproven, " without a proven optimum, ",
          helped, " shorter with W; ", searched, " pairs searched through");
  for (auto& [kind, row] : gain) {
    MESSAGE(kind, ": ", row.values.size(), " draws; without W / with W ", row.text(),
            "; optimum / bound ", above[kind].text());
  }
  CHECK(helped > 0);
  CHECK(unproven * 5 < static_cast<int>(kWeightDraws));
}

// Steps of up to ten slices, both passes together: the packs are the planner's, their orders are
// all tried.
TEST_CASE("exact_schedule: no order of the planner's packs is shorter than the optimum") {
  ExactTable table;
  int planned = 0, unproven = 0;
  for (std::uint64_t seed = 0; seed < kOrderDraws; ++seed) {
    CAPTURE(seed);
    const auto pp = static_cast<std::int32_t>(1 + seed % 3);
    const LmHead head = seed / 3 % 2 == 0 ? LmHead::last : LmHead::shard;
    const Ranks ranks = seed / 6 % 2 == 0 ? Ranks::one : Ranks::in_cp_group;
    const ExactDraw draw = draw_step(seed + 10'000, pp, head, ranks, 5, 5);
    const planners::PlanOutcome outcome = planners::find_planner("slimpack").plan(draw.request);
    REQUIRE(std::holds_alternative<Plan>(outcome.result));
    const Plan& plan = std::get<Plan>(outcome.result);
    std::array<std::size_t, 2> slices{};
    for (const MicroPack& pack : plan.micropacks) {
      slices[static_cast<std::size_t>(pack.pass)] += pack.slices.size();
    }
    const PricedPlan times(plan);
    const test::ExactProblem problem(plan, times);
    if (std::max(slices[0], slices[1]) > 5 || problem.ops.size() > 64) continue;
    ++planned;
    const Nanos time = plan.prediction.iteration;
    const test::ExactSchedule exact = test::exact_schedule(problem, time.value + 1, 40'000);
    if (!exact.proven) {
      ++unproven;
      continue;
    }
    REQUIRE(exact.found);
    const Nanos bound = planners::iteration_bound(plan).value;
    CHECK(bound <= Nanos{exact.makespan});
    Plan best = plan;
    best.max_in_flight = test::kExactWindow;
    best.schedule = test::exact_orders(plan, problem, exact);
    check_exact_plan(best, exact.makespan);
    const std::array<std::string, 3> kinds{"all", stages_text(pp),
                                           kRanksText[static_cast<std::size_t>(ranks)]};
    table.add(kinds, bound, Nanos{exact.makespan}, time);
  }
  MESSAGE("packs given: ", planned, " draws, ", unproven, " without a proven optimum");
  table.print();
  CHECK(planned * 10 > 9 * static_cast<int>(kOrderDraws));
  CHECK(unproven * 3 < planned);
}

/// Prices in tenths of a millisecond: integers that a solver's floats hold exactly.
struct CoarseTimes {
  PricedPlan fine;

  [[nodiscard]] static Nanos coarse(Nanos time) { return {time.value / 100'000}; }
  [[nodiscard]] Nanos compute(PackId pack, std::int32_t line) const {
    return coarse(fine.compute(pack, line));
  }
  [[nodiscard]] Nanos head(PackId pack, std::size_t rank, std::int32_t pp) const {
    return coarse(fine.head(pack, rank, pp));
  }
  [[nodiscard]] Nanos transfer(PackId pack, std::int32_t line, std::size_t rank) const {
    return coarse(fine.transfer(pack, line, rank));
  }
  [[nodiscard]] Nanos reduce(std::int32_t pp, std::int32_t chunk) const {
    return coarse(fine.reduce(pp, chunk));
  }
  [[nodiscard]] Nanos optimizer(std::int32_t dp, std::int32_t pp) const {
    return coarse(fine.optimizer(dp, pp));
  }
};
static_assert(UnitTimes<CoarseTimes>);

TEST_CASE("exact_schedule: a mixed integer program agrees" * doctest::test_suite("needs-glpsol")) {
  if (!test::has_milp_solver()) {
    test::skip("glpsol", "glpsol (Debian: glpk-utils) is not installed");
    return;
  }
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("slimpack-milp-" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  std::uint64_t solved = 0, in_cp_group = 0, with_weights = 0;
  std::size_t most = 0;
  for (std::uint64_t seed = 0; solved < kMilpDraws && seed < 20 * kMilpDraws; ++seed) {
    CAPTURE(seed);
    const auto pp = static_cast<std::int32_t>(2 + seed % 2);
    const LmHead head = seed / 2 % 2 == 0 ? LmHead::last : LmHead::shard;
    const Ranks ranks = seed / 4 % 2 == 0 ? Ranks::one : Ranks::in_cp_group;
    const ExactDraw draw = draw_step(seed + 20'000, pp, head, ranks, 3, 3);
    const planners::PlanOutcome outcome = planners::find_planner("slimpack").plan(draw.request);
    REQUIRE(std::holds_alternative<Plan>(outcome.result));
    const bool apart = seed / 8 % 2 == 1;
    const Plan& whole = std::get<Plan>(outcome.result);
    const Plan plan = apart ? test::split(test::joined(whole)) : whole;
    const CoarseTimes times{PricedPlan(plan)};
    const test::ExactProblem problem(plan, times);
    if (problem.ops.size() < 9 || problem.ops.size() > 30) continue;
    const test::ExactSchedule exact = test::exact_schedule(problem);
    REQUIRE(exact.found);
    const std::int64_t known = sim::simulate_plan(plan, times).timeline.makespan.value;
    const auto least = test::solve_milp(problem, known, folder, 10);
    if (!least) continue;  // out of time
    CHECK(*least == exact.makespan);
    ++solved;
    in_cp_group += plan.groups.size() > 2 ? 1U : 0U;
    with_weights += apart ? 1U : 0U;
    most = std::max(most, problem.ops.size());
  }
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  MESSAGE("mixed integer program: ", solved, " optima of up to ", most, " units, ", in_cp_group,
          " with merged packs, ", with_weights, " with weights apart");
  CHECK(solved == kMilpDraws);
  CHECK(with_weights > 0);
}

/// Times of two samples of one slice on two stages; H takes 1, all else nothing.
struct FlowTimes {
  std::array<std::array<std::int64_t, 2>, 4> time{};  ///< by pack, by stage
  [[nodiscard]] Nanos compute(PackId pack, std::int32_t line) const {
    return {time[index(pack)][static_cast<std::size_t>(line)]};
  }
  [[nodiscard]] Nanos head(PackId, std::size_t, std::int32_t) const { return {1}; }
  [[nodiscard]] Nanos transfer(PackId, std::int32_t, std::size_t) const { return {}; }
  [[nodiscard]] Nanos reduce(std::int32_t, std::int32_t) const { return {}; }
  [[nodiscard]] Nanos optimizer(std::int32_t, std::int32_t) const { return {}; }
};
static_assert(UnitTimes<FlowTimes>);

Plan flow_plan() {
  const planners::PlanRequest request = draw_step(0, 2, LmHead::last, Ranks::one, 2, 2).request;
  Plan plan = planners::plan_frame(request, "flow");
  plan.samples = {{100}, {100}};
  plan.sample_group = {GroupId{}, GroupId{}};
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    for (const std::uint32_t sample : {0U, 1U}) {
      plan.micropacks.push_back(
          {pass, GroupId{}, {{SampleId{sample}, {0}, {100}}}, {}, Recompute::none});
    }
  }
  return plan;
}

// Sample 0 first keeps stage 1 at work from 1 on: F 1-5, H 5-6; its B, before F of the other, 6-10;
// F 10-12, H 12-13, B 13-17, and its B on stage 0 to 19. Sample 1 first leaves stage 1 idle
// until 6.
TEST_CASE("exact_schedule: the order that feeds the second stage soonest") {
  const Plan plan = flow_plan();
  const FlowTimes times{{{{1, 4}, {6, 2}, {2, 4}, {2, 4}}}};
  test::ExactProblem problem(plan, times);
  const test::ExactSchedule exact = test::exact_schedule(problem);
  CHECK(exact.proven);
  CHECK(exact.makespan == 19);
  CHECK(!test::exact_schedule(problem, 19).found);
  CHECK(test::exact_schedule(problem, 19).proven);
  CHECK(!test::exact_schedule(problem, test::kNoLimit, 3).proven);

  // Each sample weighs 1 from its F to its B.
  for (test::ExactOp& op : problem.ops) {
    const std::int64_t weight = op.unit.kind == UnitKind::forward    ? 1
                                : op.unit.kind == UnitKind::backward ? -1
                                                                     : 0;
    op.memory[0] = {std::max<std::int64_t>(weight, 0), weight};
  }
  const auto least = [&](std::int64_t first, std::int64_t second) {
    problem.room = {first, second};
    return test::exact_schedule(problem);
  };
  CHECK(least(2, 1).makespan == 19);
  // One sample after the other: 1 + 4 + 1 + 4 + 2 and 6 + 2 + 1 + 4 + 2.
  CHECK(least(1, 1).makespan == 27);
  CHECK(!least(0, 1).found);
  CHECK(least(0, 1).proven);
}

// Two samples of twice the granularity. In forward: none cut, joined or not (joined in two orders),
// one cut, both cut; slices of one sample never share a pack, and packs that need each other are
// left out.
TEST_CASE("exact_plan: every set of packs once") {
  Plan plan = flow_plan();
  const std::array<Recompute, 1> none{Recompute::none};
  const auto count = [&](Pass pass, std::span<const Recompute> modes) {
    return test::detail::PackSets(plan, GroupId{}, pass, modes).all().size();
  };
  plan.parallel.granularity = {50};
  plan.samples = {{100}, {0}};
  plan.sample_group[1] = GroupId{1};
  CHECK(count(Pass::forward, none) == 2);
  const std::array<Recompute, 2> two{Recompute::none, Recompute::full};
  CHECK(count(Pass::backward, two) == 2 + 4);
  plan.samples = {{100}, {100}};
  plan.sample_group[1] = GroupId{};
  // Neither cut: 2. One of two cut: apart, or the whole one with either half: 3 each. Both cut, 2
  // by 2 slices: apart 1, one pair 4, two pairs 1 (the crossed two need each other).
  CHECK(count(Pass::backward, none) == 2 + 3 + 3 + 6);
  // A forward pack of two slices counts twice.
  CHECK(count(Pass::forward, none) == 3 + 5 + 5 + 1 + 8 + 4);
  // Weights of a run across two backward slices may be cut or not, of both samples as in backward
  // but for the crossed two, which W may have too.
  const auto weights = [&](std::vector<Slice> slices) {
    test::detail::PackSet backward{
        {Pass::backward, GroupId{}, std::move(slices), {}, Recompute::none}};
    backward.front().weights = WeightGradients::apart;
    return test::detail::PackSets(plan, GroupId{}, backward).all().size();
  };
  CHECK(weights({}) == 1);
  CHECK(weights({{SampleId{0}, {0}, {50}}, {SampleId{0}, {50}, {100}}}) == 2);
  CHECK(weights({{SampleId{0}, {0}, {100}}, {SampleId{1}, {0}, {100}}}) == 2 + 3 + 3 + 7);
}

TEST_CASE("exact search: what it does not cover is refused") {
  const auto refuses = [](const auto& change, const char* message) {
    Plan plan = flow_plan();
    change(plan);
    CHECK_THROWS_WITH_AS(test::ExactProblem(plan, FlowTimes{}), message, InvalidInput);
  };
  refuses([](Plan& plan) { plan.parallel.chunks = 2; }, "ExactProblem: chunks must be 1, got 2");
  refuses([](Plan& plan) { plan.model.tied = true; }, "ExactProblem: embeddings must not be tied");
  refuses([](Plan& plan) { plan.stages[1].end_layer += 1; },
          "ExactProblem: a stage must have one layer, got 2");
  Plan plan = flow_plan();
  plan.parallel.dp = 3;
  CHECK_THROWS_WITH_AS(static_cast<void>(test::exact_plan(plan, {})),
                       "exact_plan: dp must be <= 2, got 3", InvalidInput);
}

}  // namespace
}  // namespace slimpack
