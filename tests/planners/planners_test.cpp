// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "planners/outcome.hpp"
#include "planners/requests.hpp"
#include "slimpack/cost/price.hpp"
#include "slimpack/planners/check_request.hpp"
#include "slimpack/planners/registry.hpp"
#include "slimpack/planners/search/bound.hpp"
#include "slimpack/planners/search/detail/evaluate.hpp"
#include "slimpack/planners/search/detail/packed_sequences.hpp"
#include "slimpack/planners/search/layout.hpp"
#include "slimpack/planners/search/worst_memory.hpp"
#include "slimpack/schedule/orders.hpp"
#include "slimpack/sim/build_dag.hpp"
#include "slimpack/validate/validate.hpp"

using namespace slimpack;

namespace {

const auto interleaved_order = [](const schedule::Pipeline& pipeline,
                                  std::span<const std::int32_t> slices) {
  return schedule::interleaved(pipeline, static_cast<std::int32_t>(slices.size()));
};
const auto slimpipe_slices = [](const schedule::Pipeline& pipeline,
                                std::span<const std::int32_t> slices) {
  return schedule::slimpipe(pipeline, slices);
};

/// The plan, or where ranks of a system share weights as no plan's do, what they would be whole.
Plan with_whole_weights(Plan plan) {
  if (plan.planner != "flexsp" || plan.memory.weights == WeightState::replicated) return plan;
  std::vector<Bytes> more;
  for (std::int32_t pp = 0; pp < plan.parallel.pp; ++pp)
    more.push_back(-static_bytes(plan, pp).total());
  plan.memory.weights = WeightState::replicated;
  for (std::int32_t pp = 0; pp < plan.parallel.pp; ++pp) {
    more[static_cast<std::size_t>(pp)] += static_bytes(plan, pp).total();
  }
  plan.memory.capacity += std::max(Bytes{}, std::ranges::max(more));
  for (DevicePrediction& device : plan.prediction.devices) {
    device.peak += more[static_cast<std::size_t>(device.pp)];
  }
  return plan;
}

/// Passes the validator, with the same worst memory, and carries a prediction that fits together.
void check_plan(const Plan& made) {
  const Plan plan = with_whole_weights(made);
  const Validation validation = validate(plan);
  for (const Violation& violation : validation.violations) FAIL_CHECK(violation.message);
  const std::vector<Bytes> worst = planners::worst_memory(plan);
  REQUIRE(validation.worst_case_peak.size() == worst.size());
  for (std::size_t i = 0; i < worst.size(); ++i) {
    // Tensor-parallel parts are rounded up entry by entry here, all together there.
    if (plan.parallel.tp == 1) {
      CHECK(validation.worst_case_peak[i].value == worst[i].value);
    } else {
      CHECK(validation.worst_case_peak[i] <= worst[i]);
      CHECK(worst[i].value - validation.worst_case_peak[i].value < 1000);
    }
  }
  const auto devices = static_cast<std::size_t>(plan.parallel.dp * plan.parallel.pp);
  REQUIRE(plan.schedule.size() == devices);
  REQUIRE(plan.prediction.devices.size() == devices);
  for (std::size_t i = 0; i < devices; ++i) {
    const DevicePrediction& device = plan.prediction.devices[i];
    CHECK(device.dp == plan.schedule[i].dp);
    CHECK(device.pp == plan.schedule[i].pp);
    CHECK(device.peak <= worst[i]);
    CHECK(worst[i] <= plan.memory.capacity - plan.memory.reserved);
    CHECK(device.busy <= plan.prediction.iteration);
  }
  CHECK(plan.prediction.ideal > Nanos{});
  CHECK(plan.prediction.ideal < plan.prediction.iteration);
  CHECK(plan.prediction.lower_bound > Nanos{});
  CHECK(plan.prediction.lower_bound <= plan.prediction.iteration);
}

/// What PyTorch's pipeline runtime executes: H right behind the F that it reads on the last stage
/// and nowhere else, each weight pack one backward pack, layers where every step has them.
void check_for_torch(const Plan& plan) {
  CHECK(plan.parallel.head == LmHead::last);
  CHECK(plan.stages ==
        planners::spread_layers(plan.model.layers, virtual_stages_of(plan), 0, true));
  for (const DeviceSchedule& device : plan.schedule) {
    const bool last = device.pp + 1 == plan.parallel.pp;
    bool due = false;
    PackId pack{};
    for (const Unit& unit : device.order) {
      CHECK((unit.kind == UnitKind::head) == due);
      if (due) CHECK(unit.pack == pack);
      due = last && unit.kind == UnitKind::forward && unit.chunk + 1 == plan.parallel.chunks;
      pack = unit.pack;
    }
  }
  std::set<std::vector<Slice>> apart;
  std::size_t weights = 0;
  for (const MicroPack& one : plan.micropacks) {
    if (one.weights == WeightGradients::apart) apart.insert(one.slices);
  }
  for (const MicroPack& one : plan.micropacks) {
    if (one.pass != Pass::weight) continue;
    CHECK(apart.contains(one.slices));
    ++weights;
  }
  CHECK(weights == apart.size());
}

void check_infeasible(const planners::PlanOutcome& outcome, const std::string& constraint,
                      std::int64_t needed, std::int64_t available) {
  REQUIRE(std::holds_alternative<Infeasible>(outcome.result));
  const auto& why = std::get<Infeasible>(outcome.result);
  CHECK(why.constraint == constraint);
  CHECK(why.needed == needed);
  CHECK(why.available == available);
}

}  // namespace

TEST_CASE("registry: names are unique, known ones are found, others refused with the list") {
  std::set<std::string> names;
  for (const planners::PlannerInfo& planner : planners::registry()) {
    CHECK(!planner.description.empty());
    CHECK(planner.description.find('\n') == std::string_view::npos);
    CHECK(&planners::find_planner(planner.name) == &planner);
    names.insert(std::string(planner.name));
  }
  CHECK(names.size() == planners::registry().size());
  CHECK(names.contains("megatron"));
  std::string listed;
  for (const planners::PlannerInfo& planner : planners::registry()) {
    listed += (listed.empty() ? "" : ", ") + std::string(planner.name);
  }
  for (const planners::PlannerInfo& planner : planners::published_forms()) {
    listed += ", " + std::string(planner.name);
  }
  const std::string refusal = "planner must be one of " + listed + ", got 'megatrom'";
  CHECK_THROWS_WITH_AS(static_cast<void>(planners::find_planner("megatrom")), refusal.c_str(),
                       InvalidInput);
}

TEST_CASE("plan_step: where fast finds no plan, and no budget is given, it goes on with normal") {
  planners::PlannerInfo info;
  info.plan = [](const planners::PlanRequest& request) {
    planners::PlanOutcome outcome;
    outcome.result = Infeasible{"at this effort", 2, 1};
    if (request.effort == planners::Effort::normal) outcome.result = Plan{};
    outcome.evaluations = request.effort == planners::Effort::fast ? 4 : 700;
    outcome.simulated_devices = 2 * outcome.evaluations;
    outcome.cpu_seconds = 0.5;
    return outcome;
  };
  planners::PlanRequest request = test::request_of({100});
  const planners::PlanOutcome both = planners::plan_step(info, request);
  CHECK(std::holds_alternative<Plan>(both.result));
  CHECK(both.evaluations == 704);
  CHECK(both.simulated_devices == 1408);
  CHECK(both.cpu_seconds == 1.0);
  request.budget = 4;
  CHECK(std::holds_alternative<Infeasible>(planners::plan_step(info, request).result));
  request.budget.reset();
  request.effort = planners::Effort::thorough;
  const planners::PlanOutcome once = planners::plan_step(info, request);
  CHECK(std::holds_alternative<Infeasible>(once.result));
  CHECK(once.evaluations == 700);
}

TEST_CASE("published forms: one a system, within its publication") {
  const auto all = planners::registry();
  const auto forms = planners::published_forms();
  REQUIRE(forms.size() + planners::kSlimpackVariants.size() == all.size());
  std::int64_t planned = 0;
  for (std::size_t i = 0; i < forms.size(); ++i) {
    const planners::PlannerInfo& form = forms[i];
    CAPTURE(form.name);
    CHECK(form.name ==
          std::string(all[planners::kSlimpackVariants.size() + i].name) + "-published");
    CHECK(&planners::find_planner(form.name) == &form);
    CHECK((form.rebatch == nullptr) ==
          (all[planners::kSlimpackVariants.size() + i].rebatch == nullptr));
    CHECK(form.simulated_only == all[planners::kSlimpackVariants.size() + i].simulated_only);
    for (const std::int32_t pp : {1, 4}) {
      Random random(17);
      planners::PlanRequest request = test::request_of(test::random_lengths(random, 24, 512), 16);
      request.context = {1024};
      request.dp = 4;
      request.pp = pp;
      request.effort = planners::Effort::normal;
      const planners::PlanOutcome outcome = form.plan(request);
      if (const auto* none = std::get_if<Infeasible>(&outcome.result)) {
        CHECK(pp == 4);
        CHECK(none->constraint.find("stages, one in ") == 0);
        continue;
      }
      ++planned;
      const Plan& plan = plan_of(outcome);
      check_plan(plan);
      CHECK(plan.planner == form.name);
      CHECK(outcome.settings.at("devices") == "ranks-together");
      CHECK(!outcome.settings.contains("recompute_long"));
      if (form.name.find("slimpipe") != 0) CHECK(plan.parallel.head == LmHead::last);
      if (outcome.settings.contains("pack_tokens")) {
        CHECK(outcome.settings.at("pack_tokens") == "1024");
      }
      if (form.name.find("megatron") == 0) CHECK(outcome.settings.at("packing") == "in-order");
    }
  }
  CHECK(planned >= 25);
}

TEST_CASE(
    "published forms: what a system does as published is where its strengthened form begins") {
  const auto all = planners::registry();
  const auto forms = planners::published_forms();
  std::int64_t compared = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    planners::PlanRequest request = test::request_of(
        test::random_lengths(random, random.between(1, 24), 512), random.between(8, 16));
    // Packs of the strengthened form begin at the longest sample, those of the published one at the
    // context.
    request.context = *std::max_element(request.batch.samples.begin(), request.batch.samples.end());
    request.dp = static_cast<std::int32_t>(random.between(1, 6));
    request.pp = random.chance(1, 2) ? 1 : static_cast<std::int32_t>(random.between(2, 4));
    if (random.chance(1, 4)) request.recompute = Recompute::full;
    if (random.chance(1, 4)) request.memory.capacity = Bytes{300'000'000};
    request.budget = 1;  // the first candidate alone
    for (std::size_t i = 0; i < forms.size(); ++i) {
      CAPTURE(forms[i].name);
      const planners::PlanOutcome held = forms[i].plan(request);
      const planners::PlanOutcome begun = all[planners::kSlimpackVariants.size() + i].plan(request);
      if (held.evaluations == 0) continue;  // stages that it does not have as published
      ++compared;
      CHECK(held.evaluations == 1);
      CHECK(begun.evaluations == 1);
      CHECK(held.settings == begun.settings);
      const Plan* first = planners::plan_in(held.result);
      const Plan* second = planners::plan_in(begun.result);
      REQUIRE((first == nullptr) == (second == nullptr));
      if (first == nullptr) continue;
      Plan same = *first;
      same.planner = second->planner;
      CHECK((same == *second));
    }
  }
  CHECK(compared > 400);
}

TEST_CASE("megatron: two stages, by hand") {
  planners::PlanRequest request = test::request_of({600, 600, 300, 1024});
  request.pp = 2;
  CHECK(
      test::plan_text(planners::build_packed(request, "megatron", {}, one_forward)) ==
      "0F[0:0-600] 1B[0:0-600] 2F[1:0-600 2:0-300] 3B[1:0-600 2:0-300] 4F[3:0-1024] 5B[3:0-1024]\n"
      "0.0: F0.0 F2.0 B1.0 F4.0 B3.0 B5.0 R0 O\n"
      "0.1: F0.0 H0 B1.0 F2.0 H2 B3.0 F4.0 H4 B5.0 R0 O\n");
  planners::PackedSettings settings;
  settings.packing = planners::Packing::best_fit;
  CHECK(
      test::plan_text(planners::build_packed(request, "megatron", settings, one_forward)) ==
      "0F[3:0-1024] 1B[3:0-1024] 2F[0:0-600 2:0-300] 3B[0:0-600 2:0-300] 4F[1:0-600] 5B[1:0-600]\n"
      "0.0: F0.0 F2.0 B1.0 F4.0 B3.0 B5.0 R0 O\n"
      "0.1: F0.0 H0 B1.0 F2.0 H2 B3.0 F4.0 H4 B5.0 R0 O\n");
}

TEST_CASE("megatron: four stages, two ranks, three micro-batches, by hand") {
  planners::PlanRequest request = test::request_of({1024, 1024, 1000});
  request.pp = 4;
  request.dp = 2;
  CHECK(test::plan_text(planners::build_packed(request, "megatron", {}, one_forward)) ==
        "0F[0:0-1024] 1B[0:0-1024] 2F[2:0-1000] 3B[2:0-1000] 4F[1:0-1024] 5B[1:0-1024]\n"
        "0.0: F0.0 F2.0 B1.0 B3.0 R0 O\n"
        "0.1: F0.0 F2.0 B1.0 B3.0 R0 O\n"
        "0.2: F0.0 F2.0 B1.0 B3.0 R0 O\n"
        "0.3: F0.0 H0 B1.0 F2.0 H2 B3.0 R0 O\n"
        "1.0: F4.0 B5.0 R0 O\n"
        "1.1: F4.0 B5.0 R0 O\n"
        "1.2: F4.0 B5.0 R0 O\n"
        "1.3: F4.0 H4 B5.0 R0 O\n");
}

TEST_CASE("megatron-interleaved: two stages, two chunks, three micro-batches, by hand") {
  planners::PlanRequest request = test::request_of({1024, 1024, 1000});
  request.pp = 2;
  planners::PackedSettings settings;
  settings.chunks = 2;
  CHECK(test::plan_text(
            planners::build_packed(request, "megatron-interleaved", settings, interleaved_order)) ==
        "0F[0:0-1024] 1B[0:0-1024] 2F[1:0-1024] 3B[1:0-1024] 4F[2:0-1000] 5B[2:0-1000]\n"
        "0.0: F0.0 F2.0 F4.0 F0.1 F2.1 F4.1 B1.1 B3.1 B5.1 R1 B1.0 B3.0 B5.0 R0 O\n"
        "0.1: F0.0 F2.0 F4.0 F0.1 H0 B1.1 F2.1 H2 B3.1 F4.1 H4 B5.1 R1 B1.0 B3.0 B5.0 R0 O\n");
}

TEST_CASE("slimpipe-order: two stages, two slices in the longest sequence, by hand") {
  planners::PlanRequest request = test::request_of({1024, 512});
  request.pp = 2;
  planners::PackedSettings settings;
  settings.slices = 2;
  CHECK(test::plan_text(
            planners::build_packed(request, "slimpipe-order", settings, slimpipe_slices)) ==
        "0F[0:0-512] 1B[0:0-512] 2F[0:512-1024] 3B[0:512-1024] 4F[1:0-512] 5B[1:0-512]\n"
        "0.0: F0.0 F2.0 F4.0 B3.0 B1.0 B5.0 R0 O\n"
        "0.1: F0.0 H0 F2.0 H2 B3.0 F4.0 H4 B1.0 B5.0 R0 O\n");
}

TEST_CASE("slimpipe-order: three stages, sharded head, uneven granules, by hand") {
  planners::PlanRequest request = test::request_of({900, 124}, 9);
  request.pp = 3;
  planners::PackedSettings settings;
  settings.slices = 3;
  settings.head.head = LmHead::shard;
  CHECK(test::plan_text(
            planners::build_packed(request, "slimpipe-order", settings, slimpipe_slices)) ==
        "0F[0:0-384] 1B[0:0-384] 2F[0:384-640] 3B[0:384-640] 4F[0:640-900 1:0-124] "
        "5B[0:640-900 1:0-124]\n"
        "0.0: F0.0 F2.0 F4.0 H0 H2 H4 B5.0 B3.0 B1.0 R0 O\n"
        "0.1: F0.0 F2.0 H0 F4.0 H2 H4 B5.0 B3.0 B1.0 R0 O\n"
        "0.2: F0.0 H0 F2.0 H2 F4.0 H4 B5.0 B3.0 B1.0 R0 O\n");
}

TEST_CASE("megatron: a sharded head, H of two packs back to back, by hand") {
  planners::PlanRequest request = test::request_of({1024, 1024, 1000, 1000}, 9);
  request.pp = 2;
  planners::PackedSettings settings;
  settings.head.head = LmHead::shard;
  const auto orders = [&](std::int32_t batch) {
    settings.head_batch = batch;
    Plan plan = planners::build_packed(request, "megatron", settings, one_forward);
    CHECK(planners::predict(plan, request) == std::nullopt);
    for (const Violation& violation : validate(plan).violations) FAIL_CHECK(violation.message);
    const std::string text = test::plan_text(plan);
    return text.substr(text.find('\n') + 1);
  };
  CHECK(orders(1) ==
        "0.0: F0.0 F2.0 H0 B1.0 H2 F4.0 B3.0 H4 F6.0 B5.0 H6 B7.0 R0 O\n"
        "0.1: F0.0 H0 B1.0 F2.0 H2 B3.0 F4.0 H4 B5.0 F6.0 H6 B7.0 R0 O\n");
  CHECK(orders(2) ==
        "0.0: F0.0 F2.0 F4.0 H0 H2 B1.0 F6.0 B3.0 H4 H6 B5.0 B7.0 R0 O\n"
        "0.1: F0.0 F2.0 H0 H2 B1.0 F4.0 B3.0 F6.0 H4 H6 B5.0 B7.0 R0 O\n");
}

TEST_CASE("planners: stages together and recomputation by length, where both are choices") {
  planners::PlanRequest request = test::request_of({900, 100, 90, 80, 70, 60}, 8);
  request.dp = 4;
  request.pp = 4;
  CHECK(planners::device_choices(request).size() == 2);
  planners::PackedSettings settings;
  settings.devices = planners::DeviceOrder::stages;
  settings.recompute = planners::ModeChoice(Recompute::none, Recompute::layer);
  settings.recompute.limit = {Tokens{80}, Tokens{500}, Tokens{}, Tokens{}};
  settings.pack_length = Tokens{900};
  const Plan plan = planners::build_packed(request, "megatron", settings, one_forward);
  for (const Placement& place : plan.placement) CHECK(place.device == place.dp * 4 + place.pp);
  for (const MicroPack& pack : plan.micropacks) {
    if (pack.pass == Pass::forward) continue;
    Tokens tokens;
    for (const Slice& slice : pack.slices) tokens += slice.length();
    CHECK(pack.recompute == (tokens.value <= 80    ? Recompute::none
                             : tokens.value <= 500 ? Recompute::light
                                                   : Recompute::layer));
  }
  request.as_published = true;
  CHECK(planners::device_choices(request) == std::vector{planners::DeviceOrder::ranks});
  CHECK(planners::pack_length_choices(request) == test::tokens_of({1024}));
  CHECK(planners::mode_choices(request).size() == 4);
}

TEST_CASE("planners: plans of every degree are valid, complete and the same on any threads") {
  std::uint64_t seed = 0;
  for (const std::int32_t dp : {1, 2, 4}) {
    for (const std::int32_t pp : {1, 2, 4, 8}) {
      for (const std::int32_t tp : {1, 2, 4}) {
        CAPTURE(dp);
        CAPTURE(pp);
        CAPTURE(tp);
        Random random(++seed);
        planners::PlanRequest request = test::request_of(
            test::random_lengths(random, random.between(1, 40), 1024), random.between(8, 24));
        request.dp = dp;
        request.pp = pp;
        request.tp = tp;
        request.model.tied = random.chance(1, 3);
        request.granularity = {random.chance(1, 2) ? 128 : random.between(1, 200)};
        for (const planners::PlannerInfo& planner : planners::registry()) {
          CAPTURE(planner.name);
          request.threads = 1;
          const planners::PlanOutcome outcome = planner.plan(request);
          const Plan& plan = plan_of(outcome);
          check_plan(plan);
          CHECK(plan.planner == planner.name);
          CHECK(plan.samples == request.batch.samples);
          CHECK(plan.origin == request.batch.origin);
          CHECK(plan.target_tokens == request.batch.target_tokens);
          CHECK(plan.parallel.granularity == request.granularity);
          CHECK(outcome.simulated_devices <=
                planners::evaluations(request) * planners::all_devices(request));
          CHECK(outcome.settings.contains("recompute"));
          if (tp != 2) continue;
          request.threads = 3;
          const planners::PlanOutcome again = planner.plan(request);
          CHECK((*planners::plan_in(again.result) == plan));
          CHECK(again.settings == outcome.settings);
        }
      }
    }
  }
}

TEST_CASE("planners: plans for torch are executed by it as they are, in little memory too") {
  std::int64_t apart = 0, shared = 0;
  for (std::uint64_t seed = 0; seed < 16; ++seed) {
    CAPTURE(seed);
    Random random(seed + 500);
    planners::PlanRequest request =
        test::request_of(test::random_lengths(random, random.between(4, 40), 1024), 8);
    request.dp = std::int32_t{1} << random.between(0, 2);
    request.pp = std::int32_t{1} << random.between(0, 2);
    if (seed % 4 < 2) request.chunks = static_cast<std::int32_t>(random.between(1, 2));
    if (seed % 4 == 3) request.weights = WeightGradients::apart;
    request.runtime = planners::Runtime::torch;
    request.head = LmHead::last;
    request.fewer_last_layers = 0;
    Bytes most;
    for (const bool tight : {false, true}) {
      if (tight) request.memory.capacity = request.cluster.reserved + most;
      for (const planners::PlannerInfo& planner : planners::registry()) {
        CAPTURE(planner.name);
        if (request.weights == WeightGradients::apart && planner.name != "slimpack") continue;
        const planners::PlanOutcome outcome = planner.plan(request);
        const Plan* const plan = planners::plan_in(outcome.result);
        if (plan == nullptr) {
          CHECK((tight || request.chunks == 2));
          continue;
        }
        // A system that shards weights may say a plan that a device cannot hold.
        if (planner.sharding_stages <= 1) check_plan(*plan);
        check_for_torch(*plan);
        for (const MicroPack& pack : plan->micropacks) {
          apart += pack.pass == Pass::weight ? 1 : 0;
          shared += plan->groups[index(pack.group)].size() > 1 ? 1 : 0;
        }
        if (tight || planner.name != "slimpack") continue;
        for (const Bytes peak : planners::worst_memory(*plan)) most = std::max(most, peak);
        most = Bytes{most.value / 10 * 9};
      }
    }
  }
  CHECK(apart > 50);
  CHECK(shared > 50);
}

TEST_CASE("planners: every candidate is a valid plan") {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    CAPTURE(seed);
    Random random(seed + 77);
    planners::PlanRequest request = test::request_of(
        test::random_lengths(random, random.between(1, 40), 1024), random.between(9, 40));
    request.dp = static_cast<std::int32_t>(random.between(1, 3));
    request.pp = static_cast<std::int32_t>(random.between(1, 5));
    planners::PackedSettings settings;
    const std::vector<planners::DeviceOrder> devices = planners::device_choices(request);
    for (const planners::ModeChoice& recompute : planners::mode_choices(request)) {
      settings.recompute = recompute;
      settings.head_batch = static_cast<std::int32_t>(random.between(1, 8));
      settings.devices = devices[random.below(devices.size())];
      settings.packing =
          random.chance(1, 2) ? planners::Packing::in_order : planners::Packing::best_fit;
      settings.assignment_rule = random.chance(1, 2) ? planners::AssignmentRule::in_turn
                                                     : planners::AssignmentRule::balanced;
      for (const std::int32_t chunks : planners::chunk_choices(request, 1)) {
        settings.chunks = chunks;
        for (const planners::LmHeadPlacement& head :
             planners::head_choices(request, std::span(&chunks, 1), true)) {
          settings.head = head;
          settings.slices = static_cast<std::int32_t>(random.between(1, 20));
          std::vector<Plan> plans;
          plans.push_back(
              planners::build_packed(request, "slimpipe-order", settings, slimpipe_slices));
          settings.slices = 1;
          plans.push_back(
              planners::build_packed(request, "megatron-interleaved", settings, interleaved_order));
          if (chunks == 1) {
            plans.push_back(planners::build_packed(request, "megatron", settings, one_forward));
          }
          for (Plan& plan : plans) {
            CHECK(planners::predict(plan, request) == std::nullopt);
            plan.prediction.lower_bound = planners::iteration_bound(plan).value;
            check_plan(plan);
          }
        }
      }
    }
  }
}

TEST_CASE("planners: more effort is not slower") {
  Random random(5);
  planners::PlanRequest request = test::request_of(test::random_lengths(random, 50, 1024), 16);
  request.dp = 2;
  request.pp = 4;
  for (const planners::PlannerInfo& planner : planners::registry()) {
    CAPTURE(planner.name);
    Nanos before{std::int64_t{1} << 60};
    for (const planners::Effort effort :
         {planners::Effort::fast, planners::Effort::normal, planners::Effort::thorough}) {
      request.effort = effort;
      const planners::PlanOutcome outcome = planner.plan(request);
      CHECK(outcome.simulated_devices <=
            planners::evaluations(request) * planners::all_devices(request));
      const Nanos time = plan_of(outcome).prediction.iteration;
      CHECK(time <= before);
      before = std::min(before, time);
    }
  }
}

TEST_CASE("planners: one sample, fewer samples than ranks, fewer micro-batches than stages") {
  for (const planners::PlannerInfo& planner : planners::registry()) {
    CAPTURE(planner.name);
    for (const std::vector<std::int64_t>& lengths :
         {std::vector<std::int64_t>{2}, {1024}, {1024, 1024, 1024}, {7, 1, 1}}) {
      for (const std::int32_t pp : {1, 4, 8}) {
        planners::PlanRequest request = test::request_of(lengths, 16);
        request.dp = 4;
        request.pp = pp;
        check_plan(plan_of(planner.plan(request)));
      }
    }
  }
}

TEST_CASE("planners: thousands of samples") {
  Random random(11);
  planners::PlanRequest request = test::request_of(test::random_lengths(random, 2500, 1024), 16);
  request.dp = 4;
  request.pp = 4;
  for (const planners::PlannerInfo& planner : planners::registry()) {
    CAPTURE(planner.name);
    check_plan(plan_of(planner.plan(request)));
  }
}

TEST_CASE("planners: what a request fixes is kept") {
  Random random(3);
  planners::PlanRequest request = test::request_of(test::random_lengths(random, 20, 1024), 16);
  request.pp = 4;
  request.recompute = Recompute::layer;
  request.chunks = 2;
  request.head = LmHead::shard;
  const Plan sharded = plan_of(plan_by("slimpipe-order", request));
  CHECK(sharded.parallel.chunks == 2);
  CHECK(sharded.parallel.head == LmHead::shard);
  for (const MicroPack& pack : sharded.micropacks) {
    CHECK(pack.recompute == (pack.pass == Pass::backward ? Recompute::layer : Recompute::none));
  }
  check_infeasible(plan_by("megatron", request), "chunks of a stage, one in megatron's order", 2,
                   1);
  request.as_published = true;
  check_infeasible(
      plan_by("megatron-interleaved", request),
      "stages with a part of the head, one in megatron-interleaved's order as published", 4, 1);
  request.chunks = 1;
  check_infeasible(plan_by("megatron", request),
                   "stages with a part of the head, one in megatron's order as published", 4, 1);
  request.as_published = false;
  CHECK(plan_of(plan_by("megatron", request)).parallel.head == LmHead::shard);
  request.head = LmHead::last;
  CHECK(plan_of(plan_by("megatron-interleaved", request)).parallel.chunks == 1);
  CHECK(plan_of(plan_by("megatron", request)).parallel.head == LmHead::last);
  request.chunks.reset();
  CHECK(plan_of(plan_by("megatron-interleaved", request)).parallel.chunks > 1);
}

TEST_CASE("planners: a head sharded over one stage, and layers that no chunk count divides") {
  planners::PlanRequest request = test::request_of({1000, 24, 500}, 7);
  request.head = LmHead::shard;
  const Plan alone = plan_of(plan_by("slimpipe-order", request));
  check_plan(alone);
  CHECK(alone.parallel.head == LmHead::shard);
  request.head.reset();
  request.pp = 3;
  const Plan uneven = plan_of(plan_by("megatron-interleaved", request));
  check_plan(uneven);
  CHECK(uneven.parallel.chunks == 2);
  request.pp = 5;
  const Plan single = plan_of(plan_by("megatron-interleaved", request));
  check_plan(single);
  CHECK(single.parallel.chunks == 1);
}

TEST_CASE("planners: memory that does not suffice is told to the byte") {
  planners::PlanRequest request = test::request_of({1000});
  request.recompute = Recompute::none;
  request.memory.reserved = Bytes{1000};
  request.memory.capacity = Bytes{1001};
  const planners::PlanOutcome outcome = plan_by("megatron", request);
  REQUIRE(std::holds_alternative<Infeasible>(outcome.result));
  const auto why = std::get<Infeasible>(outcome.result);
  CHECK(why.constraint == "bytes of memory on device dp 0, pp 0");
  CHECK(why.available == 1);
  CHECK(outcome.settings.at("recompute") == "none");
  request.memory.capacity = Bytes{1000 + why.needed};
  check_plan(plan_of(plan_by("megatron", request)));
  request.memory.capacity = Bytes{1000 + why.needed - 1};
  check_infeasible(plan_by("megatron", request), why.constraint, why.needed, why.needed - 1);
  // Free to recompute, the same capacity suffices.
  request.recompute.reset();
  const planners::PlanOutcome recomputed = plan_by("megatron", request);
  check_plan(plan_of(recomputed));
  CHECK(recomputed.settings.at("recompute") == "light");
}

TEST_CASE("planners: a bound on units holds or is infeasible") {
  planners::PlanRequest request = test::request_of({1024, 1024, 1024});
  request.pp = 2;
  request.max_units = 2;
  check_infeasible(plan_by("megatron", request), "MicroPacks of a pass and rank", 3, 2);
  request.max_units = 3;
  check_plan(plan_of(plan_by("megatron", request)));
  request = test::request_of({1024});
  request.pp = 2;
  request.effort = planners::Effort::normal;
  request.max_units = 4;
  const planners::PlanOutcome outcome = plan_by("slimpipe-order", request);
  CHECK(planners::most_units(plan_of(outcome)) <= 4);
}

TEST_CASE(
    "slimpipe-order: slices are equal but for the granularity, and share a sequence's documents") {
  planners::PlanRequest request = test::request_of({1024, 500, 300, 200});
  planners::PackedSettings settings;
  settings.slices = 4;
  const Plan plan = planners::build_packed(request, "slimpipe-order", settings, slimpipe_slices);
  REQUIRE(plan.micropacks.size() == 16);
  for (const MicroPack& pack : plan.micropacks) {
    Tokens tokens;
    for (const Slice& slice : pack.slices) tokens += slice.length();
    CHECK(std::abs(tokens.value - 256) <= 128);
  }
}

TEST_CASE("planners: nonsense is refused") {
  const planners::PlanRequest good = test::request_of({5, 6});
  const auto refuses = [&](const std::string& message, const auto& spoil) {
    for (const planners::PlannerInfo& planner : planners::registry()) {
      planners::PlanRequest request = good;
      spoil(request);
      CHECK_THROWS_WITH_AS(static_cast<void>(planner.plan(request)), message.c_str(), InvalidInput);
    }
  };
  CHECK_NOTHROW(planners::check_request(good));
  refuses("dp must be >= 1, got 0", [](planners::PlanRequest& r) { r.dp = 0; });
  refuses("pp must be >= 1, got -2", [](planners::PlanRequest& r) { r.pp = -2; });
  refuses("tp must be >= 1, got 0", [](planners::PlanRequest& r) { r.tp = 0; });
  refuses("dp must be <= 1048576, got 1048577", [](planners::PlanRequest& r) { r.dp = 1048577; });
  refuses("dp x pp x tp must be <= 1048576 devices, got 1048576", [](planners::PlanRequest& r) {
    r.dp = 524288;
    r.pp = 2;
    r.tp = 2;
  });
  refuses("tp must divide the model's heads (8), got 3",
          [](planners::PlanRequest& r) { r.tp = 3; });
  refuses("tp must divide the model's kv_heads (4), got 8",
          [](planners::PlanRequest& r) { r.tp = 8; });
  refuses("tp must divide the model's ffn (1023), got 2", [](planners::PlanRequest& r) {
    r.tp = 2;
    r.model.ffn = 1023;
  });
  refuses("pp x chunks must be <= the model's layers (8), since no stage may be empty, got 9",
          [](planners::PlanRequest& r) { r.pp = 9; });
  refuses("pp x chunks must be <= the model's layers (8), since no stage may be empty, got 12",
          [](planners::PlanRequest& r) {
            r.pp = 4;
            r.chunks = 3;
          });
  const auto for_torch = [](planners::PlanRequest& r) {
    r.runtime = planners::Runtime::torch;
    r.head = LmHead::last;
    r.fewer_last_layers = 0;
  };
  refuses("tp must be 1 with runtime torch, got 2", [&](planners::PlanRequest& r) {
    for_torch(r);
    r.tp = 2;
  });
  refuses("head must be last with runtime torch", [&](planners::PlanRequest& r) {
    for_torch(r);
    r.head.reset();
  });
  refuses("fewer layers on the last stage must be 0 with runtime torch",
          [&](planners::PlanRequest& r) {
            for_torch(r);
            r.fewer_last_layers.reset();
          });
  refuses("chunks must be >= 1, got 0", [](planners::PlanRequest& r) { r.chunks = 0; });
  refuses("granularity must be >= 1, got 0", [](planners::PlanRequest& r) { r.granularity = {0}; });
  refuses("max-units must be >= 1, got 0", [](planners::PlanRequest& r) { r.max_units = 0; });
  refuses("merge must be >= 1, got 0", [](planners::PlanRequest& r) { r.max_cp = 0; });
  refuses("threads must be >= 1, got 0", [](planners::PlanRequest& r) { r.threads = 0; });
  refuses("context must be >= 1, got 0", [](planners::PlanRequest& r) { r.context = {0}; });
  refuses("context must be <= 1073741824, got 1073741825",
          [](planners::PlanRequest& r) { r.context = {1073741825}; });
  refuses("batch: there must be at least one sample", [](planners::PlanRequest& r) {
    r.batch.samples.clear();
    r.batch.origin.clear();
  });
  refuses("batch: there must be one origin a sample (2), got 1",
          [](planners::PlanRequest& r) { r.batch.origin.pop_back(); });
  refuses("batch: sample 1 must be >= 1 tokens, got 0",
          [](planners::PlanRequest& r) { r.batch.samples[1] = {0}; });
  refuses("batch: sample 1 must be <= the context (5), got 6",
          [](planners::PlanRequest& r) { r.context = {5}; });
  refuses("batch: sample 0 must come from one of the 1 sources, got 1",
          [](planners::PlanRequest& r) { r.batch.origin[0].source = 1; });
  refuses("batch: sample 1 must come from one of its source's 2 documents, got 2",
          [](planners::PlanRequest& r) { r.batch.origin[1].document = 2; });
  refuses("batch: sample 1 must begin at a token >= 0, got -1",
          [](planners::PlanRequest& r) { r.batch.origin[1].first = {-1}; });
  refuses("batch: target tokens must be >= 1, got 0",
          [](planners::PlanRequest& r) { r.batch.target_tokens = 0; });
  refuses("batch: target tokens must be <= the samples' tokens (11), got 12",
          [](planners::PlanRequest& r) { r.batch.target_tokens = 12; });
  refuses("model: layers must be >= 1, got 0",
          [](planners::PlanRequest& r) { r.model.layers = 0; });
  refuses("model: vocab must be >= 1, got -1",
          [](planners::PlanRequest& r) { r.model.vocab = -1; });
  refuses("model: heads must be a multiple of kv_heads, got 8",
          [](planners::PlanRequest& r) { r.model.kv_heads = 3; });
  refuses("cluster: devices_per_node must be >= 1, got 0",
          [](planners::PlanRequest& r) { r.cluster.devices_per_node = 0; });
  refuses("cluster: matrix_flops must be > 0, got '0.000000'",
          [](planners::PlanRequest& r) { r.cluster.matrix_flops = 0; });
  refuses("memory: capacity must be >= 1, got 0",
          [](planners::PlanRequest& r) { r.memory.capacity = Bytes{0}; });
  refuses("memory: reserved must be >= 0, got -1",
          [](planners::PlanRequest& r) { r.memory.reserved = Bytes{-1}; });
  refuses("memory: page_tokens must be >= 1, got 0",
          [](planners::PlanRequest& r) { r.memory.page_tokens = Tokens{0}; });
}
