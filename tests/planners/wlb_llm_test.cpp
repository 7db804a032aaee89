// SPDX-License-Identifier: Apache-2.0
#include "slimpack/planners/published/wlb_llm.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "planners/candidate_laws.hpp"
#include "planners/outcome.hpp"
#include "planners/requests.hpp"
#include "slimpack/core/random.hpp"
#include "slimpack/validate/validate.hpp"

using namespace slimpack;

namespace {

using Lengths = std::vector<std::int64_t>;

std::vector<Tokens> tokens(const Lengths& lengths) {
  std::vector<Tokens> result;
  for (const std::int64_t length : lengths) result.push_back({length});
  return result;
}
std::vector<Int128> squares(const Lengths& lengths) {
  std::vector<Int128> works;
  for (const std::int64_t length : lengths) works.push_back(Int128{length} * length);
  return works;
}

/// Steps of these lengths; documents are numbered through, the last token of each has no target.
std::vector<planners::PlanRequest> steps_of(const std::vector<Lengths>& steps) {
  std::vector<planners::PlanRequest> requests;
  std::int64_t document = 0, documents = 0;
  for (const Lengths& lengths : steps) documents += static_cast<std::int64_t>(lengths.size());
  for (const Lengths& lengths : steps) {
    requests.push_back(test::request_of(lengths));
    Batch& batch = requests.back().batch;
    batch.step = static_cast<std::int64_t>(requests.size()) - 1;
    batch.target_tokens -= static_cast<std::int64_t>(lengths.size());
    for (Origin& origin : batch.origin) origin.document = document++;
    requests.back().sources = {{"lengths", documents, ""}};
  }
  return requests;
}

std::vector<Lengths> delayed(const std::vector<Lengths>& steps, const Lengths& levels,
                             const std::vector<std::int64_t>& packs) {
  std::vector<Lengths> result;
  const auto given = planners::detail::samples_with_targets(steps_of(steps));
  for (const auto& samples : planners::detail::delay_outliers(given, tokens(levels), packs)) {
    result.emplace_back();
    for (const auto& sample : samples) result.back().push_back(sample.length.value);
  }
  return result;
}

}  // namespace

TEST_CASE("pack_by_work: longest first to the least work, by hand") {
  const Lengths lengths{3, 9, 4, 4, 4, 4, 3, 1};
  const auto pack = [&](std::int64_t count, std::int64_t most) {
    return planners::detail::pack_by_work(tokens(lengths), squares(lengths), count, Tokens{most});
  };
  // 81 against 4 x 16 + 9, and the last 3 and 1 there: 64 + 9 = 73, + 9 = 82, 1 to the 81.
  CHECK(pack(2, 100) == schedule::Bins{{1, 7}, {0, 2, 3, 4, 5, 6}});
  // A pack may hold 17 tokens: the 3s go to the first, with fewer tokens, the 1 still fits.
  CHECK(pack(2, 17) == schedule::Bins{{0, 1, 6}, {2, 3, 4, 5, 7}});
  // Nothing fits into 5 tokens: fewest tokens all the same.
  CHECK(pack(2, 5) == schedule::Bins{{1, 5, 6}, {0, 2, 3, 4, 7}});
  CHECK(pack(100, 100).size() == lengths.size());
  CHECK_THROWS_AS(static_cast<void>(pack(0, 100)), InvalidInput);
}

TEST_CASE("shard_loads: documents and sequences on two ranks, by hand") {
  const std::vector<Tokens> documents = tokens({8, 4});
  const auto by_document =
      planners::detail::shard_loads(documents, 2, planners::detail::Sharding::document, {});
  REQUIRE(by_document.size() == 2);
  // Rank 0: [0, 2) and [6, 8) of the first, [0, 1) and [3, 4) of the second.
  CHECK(by_document[0].tokens == Tokens{6});
  CHECK(by_document[0].pairs2 == 4 + 64 - 36 + 1 + 16 - 9);
  CHECK(by_document[0].segments == 4);
  // Rank 1: [2, 6) and [1, 3).
  CHECK(by_document[1].tokens == Tokens{6});
  CHECK(by_document[1].pairs2 == 36 - 4 + 9 - 1);
  CHECK(by_document[1].segments == 2);
  CHECK(by_document[1].kv_received == Tokens{6});
  // The sequence of 12: rank 0 has [0, 3) and [9, 12), rank 1 [3, 9).
  const auto by_sequence =
      planners::detail::shard_loads(documents, 2, planners::detail::Sharding::sequence, {});
  CHECK(by_sequence[0].tokens == Tokens{6});
  CHECK(by_sequence[0].pairs2 == 9 + 16 - 1);
  CHECK(by_sequence[0].segments == 2);
  CHECK(by_sequence[1].tokens == Tokens{6});
  CHECK(by_sequence[1].pairs2 == 64 - 9 + 1);
  CHECK(by_sequence[1].segments == 2);
}

TEST_CASE("shard_loads: both keep tokens and pairs; documents share pairs evenly") {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const Lengths lengths = test::random_lengths(random, random.between(1, 12), 3000);
    const std::int64_t ranks = random.between(1, 8);
    Tokens total;
    std::int64_t pairs2 = 0;
    for (const std::int64_t length : lengths) {
      total += Tokens{length};
      pairs2 += length * length;
    }
    for (const auto sharding :
         {planners::detail::Sharding::document, planners::detail::Sharding::sequence}) {
      PackLoad sum;
      std::int64_t most = 0;
      for (const PackLoad& load :
           planners::detail::shard_loads(tokens(lengths), ranks, sharding, {128})) {
        sum.tokens += load.tokens;
        sum.pairs2 += load.pairs2;
        most = std::max(most, load.pairs2);
        CHECK(load.filled_pairs2 >= load.pairs2);
      }
      CHECK(sum.tokens == total);
      CHECK(sum.pairs2 == pairs2);
      if (sharding == planners::detail::Sharding::document) {
        CHECK(most - pairs2 / ranks <= 2 * total.value + pairs2 / 100 + 1);
      }
    }
  }
}

TEST_CASE("delay_outliers: which document goes in which step, by hand") {
  const std::vector<Lengths> steps{{10, 500, 20}, {600, 30, 300}, {700, 40}, {50, 800}};
  // Two micro-batches a step: 500 and 600 meet in step 1; 700 waits for the last.
  CHECK(delayed(steps, {400}, {2, 2, 2, 2}) ==
        std::vector<Lengths>{{10, 20}, {30, 300, 500, 600}, {40}, {50, 800, 700}});
  // Levels of their own: 300 has no second.
  CHECK(delayed(steps, {200, 400}, {2, 2, 2, 2}) ==
        std::vector<Lengths>{{10, 20}, {30, 500, 600}, {40}, {50, 800, 300, 700}});
  CHECK(delayed(steps, {200, 650}, {3, 3, 3, 3}) ==
        std::vector<Lengths>{{10, 20}, {30, 500, 600, 300}, {40}, {50, 800, 700}});
  CHECK(delayed(steps, {}, {2, 2, 2, 2}) == steps);
  // One a step: nothing waits.
  CHECK(delayed(steps, {400}, {1, 1, 1, 1}) ==
        std::vector<Lengths>{{10, 20, 500}, {30, 300, 600}, {40, 700}, {50, 800}});
  // A step keeps what it needs for a target.
  CHECK(delayed({{500, 600}, {1, 700}, {9}}, {400}, {4, 4, 4}) ==
        std::vector<Lengths>{{500}, {1, 600}, {9, 700}});
}

TEST_CASE("samples_with_targets: the lack of a batch is laid on ends of documents") {
  std::vector<planners::PlanRequest> steps = steps_of({{100, 1024, 1024}, {1024, 30}});
  const auto targets = [&] {
    std::vector<Lengths> result;
    for (const auto& samples : planners::detail::samples_with_targets(steps)) {
      result.emplace_back();
      for (const auto& sample : samples) {
        result.back().push_back(sample.length.value - sample.targets);
      }
    }
    return result;
  };
  CHECK(targets() == std::vector<Lengths>{{1, 1, 1}, {1, 1}});
  // The second sample goes on in the next step, with the same document.
  steps[1].batch.origin[0] = steps[0].batch.origin[1];
  steps[1].batch.origin[0].first = Tokens{1024};
  steps[0].batch.target_tokens += 1;
  CHECK(targets() == std::vector<Lengths>{{1, 0, 1}, {1, 1}});
  steps[0].batch.target_tokens = 2148;
  CHECK(targets() == std::vector<Lengths>{{0, 0, 0}, {1, 1}});
  steps[1].batch.target_tokens = 1;
  CHECK(targets()[1] == Lengths{1024, 29});
}

TEST_CASE("wlb-llm: over steps samples and targets are kept, none comes early, all by the last") {
  std::int64_t moved = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    Random random(seed + 5);
    std::vector<Lengths> lengths;
    for (std::int64_t step = 0; step < random.between(1, 6); ++step) {
      lengths.push_back(test::random_lengths(random, random.between(1, 30), 1024));
      lengths.back().front() = std::max<std::int64_t>(2, lengths.back().front());
    }
    if (lengths.empty()) continue;
    std::vector<planners::PlanRequest> steps = steps_of(lengths);
    for (planners::PlanRequest& request : steps) {
      request.dp = static_cast<std::int32_t>(1 + seed % 4);
      request.pp = static_cast<std::int32_t>(1 + seed % 3);
    }
    const std::vector<planners::PlanRequest> after = planners::WlbLlm{}.rebatch(steps);
    REQUIRE(after.size() == steps.size());
    std::map<std::pair<std::int64_t, std::int64_t>, std::size_t> place;  // document, length
    std::int64_t targets = 0;
    for (std::size_t step = 0; step < after.size(); ++step) {
      const Batch& batch = after[step].batch;
      REQUIRE(!batch.samples.empty());
      CHECK(batch.target_tokens > 0);
      CHECK(batch.step == steps[step].batch.step);
      targets += batch.target_tokens;
      std::int64_t own = 0;
      for (std::size_t i = 0; i < batch.samples.size(); ++i) {
        own += batch.samples[i].value - 1;
        CHECK(place.insert({{batch.origin[i].document, batch.samples[i].value}, step}).second);
      }
      CHECK(batch.target_tokens == own);
      CHECK(after[step].dp == steps[step].dp);
    }
    std::size_t samples = 0;
    for (std::size_t step = 0; step < steps.size(); ++step) {
      const Batch& batch = steps[step].batch;
      targets -= batch.target_tokens;
      samples += batch.samples.size();
      for (std::size_t i = 0; i < batch.samples.size(); ++i) {
        const auto found = place.find({batch.origin[i].document, batch.samples[i].value});
        REQUIRE(found != place.end());
        CHECK(found->second >= step);
        moved += found->second > step ? 1 : 0;
      }
    }
    CHECK(samples == place.size());
    CHECK(targets == 0);
    CHECK(planners::WlbLlm{}.rebatch(steps).back().batch == after.back().batch);
  }
  CHECK(moved > 0);
}

TEST_CASE("wlb-llm: candidates with context parallelism are valid and never below the work") {
  planners::PlanRequest request =
      test::request_of({1024, 900, 800, 7, 5, 60, 200, 300, 1000, 1, 128, 77});
  request.dp = 4;
  request.pp = 2;
  const planners::detail::WlbCandidates candidates(request, "wlb-llm");
  std::int64_t seen = 0;
  for (std::uint64_t seed = 0; seed < 160; ++seed) {
    Random random(seed);
    const planners::SettingPoint point = test::random_point(candidates.space(), random);
    if (!candidates.space().exists(point)) continue;
    planners::BuiltStep built = candidates.build(candidates.space().at(point));
    CHECK(planners::predict(built, request) == std::nullopt);
    const Plan& plan = planners::plan_in(built);
    for (const Violation& violation : validate(plan).violations) FAIL_CHECK(violation.message);
    CHECK(plan.prediction.iteration > plan.prediction.ideal);
    const bool shared = plan.groups.front().size() > 1;
    CHECK(std::holds_alternative<Plan>(built) == !shared);
    if (!shared) continue;
    const auto& step = std::get<planners::SimulationOnlyPlan>(built);
    CHECK(!step.unsupported_feature.empty());
    CHECK(step.exchange.has_value());
    ++seen;
  }
  CHECK(seen > 20);
}

TEST_CASE("wlb-llm: long documents alone are shared by document, many short ones by sequence") {
  const auto sharded = [](const Lengths& lengths) {
    planners::PlanRequest request = test::request_of(lengths);
    request.context = {65536};
    request.dp = 4;
    const planners::detail::WlbCandidates candidates(request, "wlb-llm");
    const planners::SettingPoint first(candidates.space().sizes().size());
    planners::WlbSettings settings = candidates.space().at(first);
    settings.pack_length = request.context;
    planners::BuiltStep step = candidates.build(settings);
    planners::SettingTexts texts;
    planners::detail::WlbCandidates::describe(settings, planners::plan_in(step), texts);
    return std::pair(texts.at("sharded_by_document"), texts.at("sharded_by_sequence"));
  };
  CHECK(sharded({65536}) == std::pair<std::string, std::string>{"1", "0"});
  CHECK(sharded({40000, 9000, 9000}) == std::pair<std::string, std::string>{"1", "0"});
  CHECK(sharded(Lengths(256, 200)) == std::pair<std::string, std::string>{"0", "1"});
}

TEST_CASE("wlb-llm: a sharded head is refused as published, a bound on groups kept") {
  planners::PlanRequest request = test::request_of({1000, 900, 800, 700});
  request.dp = 4;
  request.pp = 2;
  request.max_cp = 1;
  CHECK(std::holds_alternative<Plan>(plan_by("wlb-llm", request).result));
  request.head = LmHead::shard;
  CHECK(planners::plan_in(plan_by("wlb-llm", request).result)->parallel.head == LmHead::shard);
  request.as_published = true;
  const auto why = std::get<Infeasible>(plan_by("wlb-llm", request).result);
  CHECK(why.constraint == "stages with a part of the head, one in wlb-llm's order as published");
}
