// SPDX-License-Identifier: Apache-2.0
#include "slimpack/planners/published/infinipipe.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "planners/candidate_laws.hpp"
#include "planners/requests.hpp"
#include "slimpack/planners/search/worst_memory.hpp"

using namespace slimpack;
using planners::detail::ChunkCosts;
using planners::detail::ChunkGroup;
using planners::detail::SliceMesh;
using planners::detail::StageRoomBytes;

namespace {

const auto linear_time = [](Tokens begin, Tokens end) { return end.value - begin.value; };
const auto square_time = [](Tokens begin, Tokens end) {
  return end.value * end.value - begin.value * begin.value;
};

std::vector<std::int64_t> ends_of(const planners::detail::SliceMesh& mesh) {
  std::vector<std::int64_t> ends;
  for (const Tokens end : mesh.ends) ends.push_back(end.value);
  return ends;
}

Slice slice_of(std::uint32_t sample, std::int64_t begin, std::int64_t end) {
  return {static_cast<SampleId>(sample), {begin}, {end}};
}

/// The level of one stage never exceeds its room.
bool modes_fit(const std::vector<planners::detail::ChunkCosts>& chunks,
               const std::vector<planners::detail::StageRoomBytes>& stages,
               const schedule::StageOrders& orders, const std::vector<std::size_t>& mode) {
  for (std::size_t stage = 0; stage < orders.size(); ++stage) {
    std::int64_t level = 0;
    for (const schedule::PipelineOp& step : orders[stage]) {
      const auto i = static_cast<std::size_t>(step.item);
      const planners::detail::ChunkCosts& chunk = chunks[i];
      const std::int64_t kept = stages[stage].layers * chunk.kept[mode[i]];
      if (step.kind == UnitKind::forward) {
        level += kept;
        if (level + chunk.forward_workspace[mode[i]] > stages[stage].room) return false;
      } else {
        if (level + chunk.backward_workspace[mode[i]] > stages[stage].room) return false;
        level -= kept;
      }
    }
  }
  return true;
}

}  // namespace

TEST_CASE("infinipipe: the mesh has slices of equal time") {
  CHECK(ends_of(planners::detail::slice_mesh({1000}, 4, {1}, linear_time)) ==
        std::vector<std::int64_t>{250, 500, 750, 1000});
  CHECK(ends_of(planners::detail::slice_mesh({1000}, 4, {1}, square_time)) ==
        std::vector<std::int64_t>{500, 707, 866, 1000});
  const planners::detail::SliceMesh coarse =
      planners::detail::slice_mesh({1000}, 4, {128}, square_time);
  CHECK(ends_of(coarse) == std::vector<std::int64_t>{384, 640, 768, 1000});
  CHECK(coarse.tokens == Tokens{384});
  CHECK(coarse.time == 1000 * 1000 - 768 * 768);
  CHECK(ends_of(planners::detail::slice_mesh({100}, 9, {128}, square_time)) ==
        std::vector<std::int64_t>{100});
  CHECK_THROWS_WITH_AS(static_cast<void>(planners::detail::slice_mesh({100}, 0, {1}, square_time)),
                       "slice_mesh: count must be >= 1, got 0", InvalidInput);
}

TEST_CASE("infinipipe: tails and short samples share chunks, by hand") {
  const std::vector<Tokens> samples{{300}, {250}, {60}, {50}, {40}, {30}};
  const std::vector<std::size_t> which{0, 1, 2, 3, 4, 5};
  const planners::detail::SliceMesh mesh = planners::detail::slice_mesh({300}, 3, {1}, linear_time);
  const auto groups = planners::detail::chunk_sequences(which, samples, mesh, linear_time);
  REQUIRE(groups.size() == 4);
  using Chunks = std::vector<std::vector<Slice>>;
  CHECK(groups[0].chunks ==
        Chunks{{slice_of(0, 0, 100)}, {slice_of(0, 100, 200)}, {slice_of(0, 200, 300)}});
  CHECK(groups[1].chunks == Chunks{{slice_of(1, 0, 100)},
                                   {slice_of(1, 100, 200)},
                                   {slice_of(1, 200, 250), slice_of(3, 0, 50)}});
  CHECK(groups[2].chunks == Chunks{{slice_of(2, 0, 60), slice_of(4, 0, 40)}});
  CHECK(groups[3].chunks == Chunks{{slice_of(5, 0, 30)}});
}

TEST_CASE("infinipipe: where no bucket has time left the limit rises") {
  // Slices of 99 and 42 tokens; the tail has all the time there is, so short samples find none in
  // its bucket, and no tokens in that of sample 1 once it has 98.
  const std::vector<Tokens> samples{{141}, {95}, {3}, {3}, {3}};
  const std::vector<std::size_t> which{0, 1, 2, 3, 4};
  const planners::detail::SliceMesh mesh = planners::detail::slice_mesh({141}, 2, {1}, square_time);
  REQUIRE(ends_of(mesh) == std::vector<std::int64_t>{99, 141});
  const auto groups = planners::detail::chunk_sequences(which, samples, mesh, square_time);
  // Sample 1 fits in no bucket's tokens; 9025 + 9 fit in its time of 10080, four tokens are left.
  REQUIRE(groups.size() == 2);
  CHECK(groups[1].chunks.front() == std::vector<Slice>{slice_of(1, 0, 95), slice_of(2, 0, 3)});
  CHECK(groups[0].chunks.back() ==
        std::vector<Slice>{slice_of(0, 99, 141), slice_of(3, 0, 3), slice_of(4, 0, 3)});
}

TEST_CASE("infinipipe: chunks to recompute, by hand") {
  planners::detail::ChunkCosts chunk;
  chunk.kept = {10, 8, 4, 2};
  chunk.time = {100, 105, 120, 150};
  const std::vector<planners::detail::ChunkCosts> chunks(2, chunk);
  const std::vector<std::int32_t> one{2};
  const schedule::StageOrders orders =
      schedule::chunked_one_f_one_b(1, one, schedule::ChunkLead::steady);
  const auto modes = [&](std::int64_t room) {
    const std::vector<planners::detail::StageRoomBytes> stages{{1, room, true}};
    return planners::detail::choose_checkpoints(chunks, stages, orders);
  };
  using Modes = std::vector<Recompute>;
  CHECK(modes(20) == Modes{Recompute::none, Recompute::none});
  CHECK(modes(18) == Modes{Recompute::light, Recompute::none});
  CHECK(modes(16) == Modes{Recompute::light, Recompute::light});
  CHECK(modes(15) == Modes{Recompute::layer, Recompute::light});
  CHECK(modes(8) == Modes{Recompute::layer, Recompute::layer});
  CHECK(modes(4) == Modes{Recompute::full, Recompute::full});
  CHECK(modes(1) == Modes{Recompute::full, Recompute::full});
}

TEST_CASE("infinipipe: chosen modes fit wherever some do, and add little more time than the best") {
  std::int64_t compared = 0, chosen_sum = 0, best_sum = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    std::vector<planners::detail::ChunkCosts> chunks;
    for (std::int64_t count = random.between(1, 6); count > 0; --count) {
      const std::int64_t tokens = random.between(4, 12);
      planners::detail::ChunkCosts chunk;
      chunk.kept = {10 * tokens, 7 * tokens, 4 * tokens, 2 * tokens};
      chunk.time = {1000, 1000 + 5 * tokens, 1000 + 30 * tokens, 1000 + 50 * tokens};
      chunk.forward_workspace = chunk.backward_workspace = {tokens, tokens, tokens, tokens};
      chunks.push_back(chunk);
    }
    std::vector<std::int32_t> groups;
    for (auto left = static_cast<std::int32_t>(chunks.size()); left > 0;) {
      groups.push_back(static_cast<std::int32_t>(random.between(1, left)));
      left -= groups.back();
    }
    const auto stages = static_cast<std::int32_t>(random.between(1, 3));
    const schedule::StageOrders orders =
        schedule::chunked_one_f_one_b(stages, groups, schedule::ChunkLead::just_in_time);
    std::vector<planners::detail::StageRoomBytes> rooms;
    for (std::int32_t stage = 0; stage < stages; ++stage) {
      rooms.push_back({1, random.between(30, 300), stage + 1 == stages});
    }
    const auto modes = planners::detail::choose_checkpoints(chunks, rooms, orders);
    std::vector<std::size_t> chosen;
    std::int64_t time = 0;
    for (std::size_t i = 0; i < modes.size(); ++i) {
      chosen.push_back(static_cast<std::size_t>(modes[i]));
      time += chunks[i].time[chosen.back()] - 1000;
    }
    std::int64_t best = std::numeric_limits<std::int64_t>::max();
    for (std::uint32_t code = 0; code < 1U << (2 * chunks.size()); ++code) {
      std::vector<std::size_t> mode;
      std::int64_t added = 0;
      for (std::size_t i = 0; i < chunks.size(); ++i) {
        mode.push_back(code >> (2 * i) & 3U);
        added += chunks[i].time[mode.back()] - 1000;
      }
      if (added < best && modes_fit(chunks, rooms, orders, mode)) best = added;
    }
    const bool possible = best < std::numeric_limits<std::int64_t>::max();
    CHECK(modes_fit(chunks, rooms, orders, chosen) == possible);
    if (!possible) continue;
    CHECK(time >= best);
    ++compared;
    chosen_sum += time;
    best_sum += best;
  }
  MESSAGE(compared, " cases, added time chosen ", chosen_sum, ", best ", best_sum);
  CHECK(compared > 100);
  CHECK(chosen_sum * 100 <= best_sum * 125);
}

TEST_CASE("infinipipe: every candidate over random batches and degrees is a valid plan") {
  std::int64_t in_cp_group = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    Random random(seed + 40);
    planners::PlanRequest request = test::random_step(random, 40, 8, 6);
    request.tp = random.chance(1, 2) ? 1 : 2;
    request.granularity = {random.between(1, 200)};
    const planners::detail::InfinipipeCandidates candidates(request, "infinipipe");
    test::check_candidates(candidates, request, random, 4, "recompute", [&](const Plan& plan) {
      in_cp_group += plan.groups.front().size() > 1 ? 1 : 0;
    });
  }
  CHECK(in_cp_group > 10);
}

TEST_CASE(
    "infinipipe: adaptive modes fit where memory is short, and are hardly ever slower than one for "
    "all") {
  std::int64_t tried = 0, fitted = 0;
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    planners::PlanRequest request =
        test::request_of(test::random_lengths(random, random.between(5, 60), 16384));
    request.context = {16384};
    request.pp = static_cast<std::int32_t>(random.between(1, 4));
    request.dp = static_cast<std::int32_t>(random.between(1, 2));
    request.memory.reserved = Bytes{0};
    const planners::detail::InfinipipeCandidates ample(request, "infinipipe");
    planners::InfinipipeSettings settings;
    settings.slices = 2 * request.pp;
    const auto worst = [&](Recompute mode) {
      settings.recompute = mode;
      const auto bytes = planners::worst_memory(ample.build(settings));
      return *std::max_element(bytes.begin(), bytes.end());
    };
    const Bytes most = worst(Recompute::none), least = worst(Recompute::full);
    for (const std::int64_t percent : {10, 40, 80}) {
      request.memory.capacity = Bytes{least.value + (most - least).value * percent / 100};
      const planners::detail::InfinipipeCandidates tight(request, "infinipipe");
      settings.recompute = {};
      Plan plan = tight.build(settings);
      ++tried;
      if (planners::predict(plan, request)) continue;
      ++fitted;
      settings.recompute = Recompute::full;
      Plan full = tight.build(settings);
      CHECK(planners::predict(full, request) == std::nullopt);
      // Modes are chosen by the work they repeat; what that does to the order may cost a little.
      CHECK(plan.prediction.iteration.value <= full.prediction.iteration.value * 1001 / 1000);
    }
  }
  MESSAGE(fitted, " of ", tried, " fit");
  CHECK(fitted == tried);
}

TEST_CASE("infinipipe: a request's mode, merge and blocks are kept, chunks refused") {
  planners::PlanRequest request = test::request_of({1000, 900, 300, 20, 30});
  request.pp = 2;
  request.dp = 4;
  request.recompute = Recompute::layer;
  request.max_cp = 2;
  request.memory.cp_block_tokens = Tokens{64};
  const planners::PlanOutcome outcome = planners::Infinipipe{}.plan(request);
  const Plan& plan = *planners::plan_in(outcome.result);
  CHECK(plan.memory.cp_block_tokens == Tokens{64});
  CHECK(plan.groups.front().size() <= 2);
  for (const MicroPack& pack : plan.micropacks) {
    CHECK(pack.recompute == (pack.pass == Pass::backward ? Recompute::layer : Recompute::none));
  }
  request.chunks = 2;
  auto why = std::get<Infeasible>(planners::Infinipipe{}.plan(request).result);
  CHECK(why.constraint == "chunks of a stage, one in infinipipe's order");
  request.chunks.reset();
  request.head = LmHead::shard;
  CHECK(planners::plan_in(planners::Infinipipe{}.plan(request).result)->parallel.head ==
        LmHead::shard);
  request.as_published = true;
  why = std::get<Infeasible>(planners::Infinipipe{}.plan(request).result);
  CHECK(why.constraint == "stages with a part of the head, one in infinipipe's order as published");
}
