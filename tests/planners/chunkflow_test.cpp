// SPDX-License-Identifier: Apache-2.0
#include "slimpack/planners/published/chunkflow.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "planners/candidate_laws.hpp"
#include "planners/requests.hpp"
#include "slimpack/planners/search/worst_memory.hpp"
#include "slimpack/validate/validate.hpp"

using namespace slimpack;
using planners::detail::GroupOrder;

TEST_CASE("chunkflow: two stages, a long sample and short ones, by hand") {
  planners::PlanRequest request = test::request_of({1000, 200, 312, 300});
  request.pp = 2;
  planners::ChunkflowSettings settings;
  settings.chunk = {512};
  settings.lead = schedule::ChunkLead::just_in_time;
  settings.retention = {Recompute::none, 1, Recompute::full};
  const planners::detail::ChunkflowCandidates candidates(request, "chunkflow");
  const Plan plan = candidates.build(settings);
  CHECK(test::plan_text(plan) ==
        "0F[0:0-512] 1B[0:0-512] 2F[0:512-1000] 3B[0:512-1000] 4F[1:0-200 2:0-312] "
        "5B[1:0-200 2:0-312] 6F[3:0-300] 7B[3:0-300]\n"
        "0.0: F0.0 F2.0 F4.0 B3.0 B1.0 F6.0 B5.0 B7.0 R0 O\n"
        "0.1: F0.0 H0 F2.0 H2 B3.0 B1.0 F4.0 H4 B5.0 F6.0 H6 B7.0 R0 O\n");
  const auto mode = [&](std::size_t pack) { return plan.micropacks[pack].recompute; };
  CHECK(mode(1) == Recompute::full);
  CHECK(mode(3) == Recompute::none);
  CHECK(mode(5) == Recompute::none);
  for (const Violation& violation : validate(plan).violations) FAIL_CHECK(violation.message);
  settings.lead = schedule::ChunkLead::steady;
  const std::string text = test::plan_text(candidates.build(settings));
  CHECK(text.find("0.0: F0.0 F2.0 F4.0 B3.0 F6.0 B1.0 B5.0 B7.0 R0 O\n") != std::string::npos);
}

TEST_CASE("chunkflow: short samples fill the fewest chunks, evenly where they are level") {
  const std::vector<Tokens> items{{5}, {5}, {4}, {4}, {3}, {3}};
  CHECK(schedule::pack_best_fit_decreasing(items, {12}) == schedule::Bins{{0, 1}, {2, 3, 4}, {5}});
  CHECK(planners::detail::pack_level(items, {12}) == schedule::Bins{{0, 2, 4}, {1, 3, 5}});
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    std::vector<Tokens> some;
    for (std::int64_t count = random.between(1, 40); count > 0; --count) {
      some.push_back({random.between(1, 60)});
    }
    const schedule::Bins bins = planners::detail::pack_level(some, {60});
    CHECK(bins.size() <= schedule::pack_best_fit_decreasing(some, {60}).size());
    std::set<std::size_t> seen;
    for (const auto& bin : bins) {
      CHECK(!bin.empty());
      std::int64_t sum = 0;
      for (const std::size_t item : bin) {
        CHECK(seen.insert(item).second);
        sum += some[item].value;
      }
      CHECK(sum <= 60);
    }
    CHECK(seen.size() == some.size());
  }
}

TEST_CASE(
    "chunkflow: chunks are no longer than their size, and only the last of a sample shorter") {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const planners::PlanRequest request =
        test::request_of(test::random_lengths(random, random.between(1, 50), 1024));
    const planners::detail::ChunkflowCandidates candidates(request, "chunkflow");
    planners::ChunkflowSettings settings;
    settings.chunk = {std::int64_t{128} << random.between(0, 3)};
    settings.consolidation =
        random.chance(1, 2) ? planners::Consolidation::level : planners::Consolidation::best_fit;
    std::vector<std::int64_t> covered(request.batch.samples.size());
    for (const planners::detail::ChunkGroup& group : candidates.cut(settings)) {
      for (std::size_t i = 0; i < group.chunks.size(); ++i) {
        std::int64_t sum = 0;
        for (const Slice& slice : group.chunks[i]) {
          CHECK(slice.begin.value == covered[index(slice.sample)]);
          covered[index(slice.sample)] = slice.end.value;
          sum += slice.length().value;
        }
        CHECK(sum <= settings.chunk.value);
        if (i + 1 < group.chunks.size()) CHECK(sum == settings.chunk.value);
      }
    }
    for (std::size_t i = 0; i < covered.size(); ++i) {
      CHECK(covered[i] == request.batch.samples[i].value);
    }
  }
}

TEST_CASE("chunkflow: every candidate over random batches and degrees is a valid plan") {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    Random random(seed + 900);
    planners::PlanRequest request = test::random_step(random, 40, 5, 6);
    request.tp = random.chance(1, 2) ? 1 : 2;
    request.granularity = {random.between(1, 200)};
    const planners::detail::ChunkflowCandidates candidates(request, "chunkflow");
    test::check_candidates(candidates, request, random, 4, "recompute", [](const Plan&) {});
  }
}

TEST_CASE("chunkflow: memory follows the chunks that are kept, not the sample") {
  planners::PlanRequest request = test::request_of({262'144});
  request.context = {262'144};
  request.pp = 4;
  const planners::detail::ChunkflowCandidates candidates(request, "chunkflow");
  planners::ChunkflowSettings settings;
  settings.chunk = {8192};
  std::vector<std::int64_t> bytes;
  for (const std::int32_t kept : {1, 2, 4, 8}) {
    settings.retention = {Recompute::none, kept, Recompute::full};
    bytes.push_back(planners::worst_memory(candidates.build(settings)).front().value);
  }
  settings.retention = {Recompute::none, {}, Recompute::none};
  bytes.push_back(planners::worst_memory(candidates.build(settings)).front().value);
  CHECK(std::is_sorted(bytes.begin(), bytes.end()));
  const LayerBytes layer = layer_bytes(request.model);
  const std::int64_t chunk = 2 * 8192 * (layer.kept[0] - layer.kept[3]);
  CHECK(bytes[1] - bytes[0] == chunk);
  CHECK(bytes[3] - bytes[2] == 4 * chunk);
  CHECK(bytes[4] - bytes[3] == 24 * chunk);
}

TEST_CASE(
    "chunkflow: a request's mode is that of all chunks; chunks are refused, a sharded head as "
    "published") {
  planners::PlanRequest request = test::request_of({1000, 900, 300});
  request.pp = 2;
  request.recompute = Recompute::layer;
  const planners::PlanOutcome outcome = planners::Chunkflow{}.plan(request);
  for (const MicroPack& pack : planners::plan_in(outcome.result)->micropacks) {
    CHECK(pack.recompute == (pack.pass == Pass::backward ? Recompute::layer : Recompute::none));
  }
  CHECK(outcome.settings.at("kept_chunks") == "all");
  request.chunks = 2;
  auto why = std::get<Infeasible>(planners::Chunkflow{}.plan(request).result);
  CHECK(why.constraint == "chunks of a stage, one in chunkflow's order");
  request.chunks.reset();
  request.head = LmHead::shard;
  CHECK(planners::plan_in(planners::Chunkflow{}.plan(request).result)->parallel.head ==
        LmHead::shard);
  request.as_published = true;
  why = std::get<Infeasible>(planners::Chunkflow{}.plan(request).result);
  CHECK(why.constraint == "stages with a part of the head, one in chunkflow's order as published");
}
