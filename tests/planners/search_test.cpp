// SPDX-License-Identifier: Apache-2.0
#include "slimpack/planners/search/setting_search.hpp"

#include <doctest/doctest.h>
#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "slimpack/core/random.hpp"

using namespace slimpack;

namespace {

/// A table of scores; counts what is evaluated.
struct Landscape {
  std::function<planners::CandidateScore(const planners::SettingPoint&)> score;
  std::function<bool(const planners::SettingPoint&)> there = [](const planners::SettingPoint&) {
    return true;
  };
  std::function<std::int64_t(const planners::SettingPoint&)> cost =
      [](const planners::SettingPoint&) { return 1; };
  mutable std::mutex mutex{};
  mutable std::multiset<planners::SettingPoint> asked{};

  [[nodiscard]] bool exists(const planners::SettingPoint& point) const { return there(point); }
  [[nodiscard]] std::int64_t devices(const planners::SettingPoint& point) const {
    return cost(point);
  }
  [[nodiscard]] planners::CandidateScore operator()(const planners::SettingPoint& point) const {
    {
      const std::lock_guard lock(mutex);
      asked.insert(point);
    }
    return score(point);
  }
};
static_assert(planners::CandidateEvaluator<Landscape> && !planners::CandidateEvaluator<int>);

/// The same scores, except that what takes longer than the limit has the score of one that exceeds
/// something.
struct LimitedLandscape {
  const Landscape& landscape;
  mutable std::atomic<std::int64_t> limits{0}, cut{0};

  [[nodiscard]] bool exists(const planners::SettingPoint& point) const {
    return landscape.exists(point);
  }
  [[nodiscard]] std::int64_t devices(const planners::SettingPoint& point) const {
    return landscape.devices(point);
  }
  [[nodiscard]] planners::CandidateScore operator()(const planners::SettingPoint& point) const {
    return landscape(point);
  }
  [[nodiscard]] planners::CandidateScore operator()(const planners::SettingPoint& point,
                                                    std::optional<Nanos> limit) const {
    const planners::CandidateScore score = landscape(point);
    if (limit) ++limits;
    if (!limit || score.time <= *limit) return score;
    ++cut;
    return {1, {}};
  }
};
static_assert(planners::LimitedEvaluator<LimitedLandscape> &&
              !planners::LimitedEvaluator<Landscape>);

planners::CandidateScore noise(const planners::SettingPoint& point, std::uint64_t seed) {
  std::uint64_t state = seed;
  for (const std::size_t value : point) state = Random(state ^ (value + 1)).bits();
  Random random(state);
  return {random.chance(1, 3) ? random.between(1, 50) : 0, {random.between(1, 40)}};
}

struct Found {
  planners::SettingPoint best;
  planners::CandidateScore score;
  std::int64_t evaluations = 0;
};

/// The best of a search from the first point, its budget in points.
template <class Progress = std::nullptr_t>
Found search(std::span<const std::size_t> sizes, std::int64_t budget, std::int32_t threads,
             const Landscape& landscape, const Progress& progress = nullptr) {
  planners::SearchSpace space;
  space.sizes.assign(sizes.begin(), sizes.end());
  space.starts = {planners::SettingPoint(sizes.size())};
  planners::SimulationCounter counter(budget, 1, threads, progress);
  const planners::SearchResult result = planners::search_settings(space, {&counter}, landscape);
  return {result.ranked.front().second, result.ranked.front().first, counter.evaluations()};
}

}  // namespace

TEST_CASE("search_settings: an evaluator that knows limits changes no answer") {
  std::int64_t limits = 0, cut = 0;
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    std::vector<std::size_t> sizes;
    for (std::int64_t i = random.between(1, 5); i > 0; --i) {
      sizes.push_back(static_cast<std::size_t>(random.between(1, 5)));
    }
    const Landscape landscape{
        [&](const planners::SettingPoint& point) { return noise(point, seed); }};
    const LimitedLandscape limited{landscape};
    planners::SearchSpace space;
    space.sizes = sizes;
    space.ordered.assign(sizes.size(), random.chance(1, 2));
    if (random.chance(1, 2)) space.memory = random.below(sizes.size());
    for (std::int64_t i = random.between(1, 4); i > 0; --i) {
      space.starts.emplace_back();
      for (const std::size_t size : sizes) space.starts.back().push_back(random.below(size));
    }
    const std::int64_t budget = random.between(1, 200);
    const std::int32_t threads = seed % 2 == 0 ? 1 : 2;
    const auto best = [&](const auto& evaluate) {
      planners::SimulationCounter counter(budget, 1, threads);
      planners::SearchLimits within{&counter};
      if (seed % 3 == 0) within.patience = 20;
      const auto ranked = planners::search_settings(space, within, evaluate).ranked;
      return std::pair{ranked.front(), counter.evaluations()};
    };
    CHECK(best(limited) == best(landscape));
    limits += limited.limits;
    cut += limited.cut;
  }
  CHECK(limits > 5000);
  CHECK(cut > 3000);
}

TEST_CASE("search_settings: a space within the budget is tried whole, ties to the first point") {
  const std::array<std::size_t, 3> sizes{3, 2, 4};
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    CAPTURE(seed);
    Landscape landscape{[&](const planners::SettingPoint& point) { return noise(point, seed); }};
    const Found found = search(sizes, 24, 1, landscape);
    CHECK(found.evaluations == 24);
    CHECK(std::set<planners::SettingPoint>(landscape.asked.begin(), landscape.asked.end()).size() ==
          24);
    planners::SettingPoint best;
    planners::CandidateScore score;
    for (std::size_t a = 0; a < 3; ++a) {
      for (std::size_t b = 0; b < 2; ++b) {
        for (std::size_t c = 0; c < 4; ++c) {
          const planners::SettingPoint point{a, b, c};
          const planners::CandidateScore here = noise(point, seed);
          if (best.empty() || here < score) {
            best = point;
            score = here;
          }
        }
      }
    }
    CHECK(found.best == best);
    CHECK(found.score == score);
  }
}

TEST_CASE("search_settings: the budget holds, no point is tried twice, threads change nothing") {
  const std::array<std::size_t, 4> sizes{4, 5, 3, 6};
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    for (const std::int64_t budget : {1, 2, 8, 32, 128}) {
      CAPTURE(budget);
      Landscape one{[&](const planners::SettingPoint& point) { return noise(point, seed); }};
      Landscape four{[&](const planners::SettingPoint& point) { return noise(point, seed); }};
      const Found alone = search(sizes, budget, 1, one);
      const Found together = search(sizes, budget, 4, four);
      CHECK(alone.evaluations == budget);
      CHECK(one.asked.size() == static_cast<std::size_t>(budget));
      CHECK(std::set<planners::SettingPoint>(one.asked.begin(), one.asked.end()).size() ==
            one.asked.size());
      CHECK(one.asked == four.asked);
      CHECK(alone.best == together.best);
      CHECK(alone.score == together.score);
      CHECK(noise(alone.best, seed) == alone.score);
    }
  }
}

TEST_CASE("search_settings: one setting at a time finds the best of a sum") {
  const std::array<std::size_t, 5> sizes{4, 4, 4, 4, 4};
  const planners::SettingPoint target{3, 1, 2, 0, 3};
  Landscape landscape{[&](const planners::SettingPoint& point) {
    std::int64_t off = 0;
    for (std::size_t i = 0; i < point.size(); ++i) off += point[i] == target[i] ? 0 : 1;
    return planners::CandidateScore{0, {off}};
  }};
  CHECK(search(sizes, 16, 1, landscape).best == target);
}

TEST_CASE("search_settings: a feasible candidate beats a faster one that does not fit") {
  const std::array<std::size_t, 1> sizes{3};
  Landscape landscape{[](const planners::SettingPoint& point) {
    return std::array<planners::CandidateScore, 3>{{{1, {1}}, {0, {9}}, {5, {0}}}}[point[0]];
  }};
  CHECK(search(sizes, 3, 1, landscape).best == planners::SettingPoint{1});
}

TEST_CASE("search_settings: points that do not exist are passed over") {
  const std::array<std::size_t, 2> sizes{3, 3};
  const auto sum = [](const planners::SettingPoint& point) {
    return static_cast<std::int64_t>(point[0] + point[1]);
  };
  Landscape landscape{[&](const planners::SettingPoint& point) {
    return planners::CandidateScore{0, {-sum(point)}};
  }};
  landscape.there = [&](const planners::SettingPoint& point) { return sum(point) != 4; };
  const Found found = search(sizes, 100, 1, landscape);
  CHECK(found.best == planners::SettingPoint{1, 2});
  CHECK(found.evaluations == 8);
  CHECK(!landscape.asked.contains({2, 2}));
}

TEST_CASE("search_settings: progress counts up to what is evaluated") {
  const std::array<std::size_t, 2> sizes{3, 3};
  std::vector<std::int64_t> heard;
  Landscape landscape{[](const planners::SettingPoint&) { return planners::CandidateScore{}; }};
  const auto progress = [&](std::int64_t done, std::int64_t most) {
    CHECK(most == 7);
    heard.push_back(done);
  };
  const Found found = search(sizes, 7, 3, landscape, progress);
  CHECK(found.best == planners::SettingPoint{0, 0});
  CHECK(heard == std::vector<std::int64_t>{1, 2, 3, 4, 5, 6, 7});
}

TEST_CASE("search_settings: what an evaluation throws comes out, the first point's first") {
  const std::array<std::size_t, 1> sizes{4};
  Landscape landscape{[](const planners::SettingPoint& point) -> planners::CandidateScore {
    if (point[0] >= 2) throw std::runtime_error("point " + std::to_string(point[0]));
    return {};
  }};
  CHECK_THROWS_WITH_AS(static_cast<void>(search(sizes, 4, 2, landscape)), "point 2",
                       std::runtime_error);
}

TEST_CASE("search_settings: costs are paid from one budget, which leaves what is to be kept") {
  const std::vector<std::size_t> sizes{4, 3, 5};
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    Landscape landscape{[&](const planners::SettingPoint& point) { return noise(point, seed); }};
    landscape.cost = [](const planners::SettingPoint& point) {
      return static_cast<std::int64_t>(1 + 2 * point[2]);
    };
    Random random(seed);
    planners::SearchSpace space;
    space.sizes = sizes;
    space.ordered = {true, false, random.chance(1, 2)};
    if (random.chance(1, 2)) space.memory = 0;
    space.starts = {{0, 0, 0}, {1, 2, 4}, {3, 1, 1}};
    space.everywhere = random.chance(1, 2);
    planners::SimulationCounter counter(random.between(1, 30), 9, 2);
    const std::int64_t keep = random.between(0, 20);
    planners::SearchLimits limits{&counter, keep};
    if (random.chance(1, 2)) limits.fitting = random.between(1, 10);
    const planners::SearchResult found = planners::search_settings(space, limits, landscape);
    std::int64_t spent = 0, fitting = 0;
    for (const planners::SettingPoint& point : landscape.asked) {
      spent += landscape.devices(point);
      if (noise(point, seed).excess <= 0) ++fitting;
    }
    CHECK(found.ranked.size() == landscape.asked.size());
    CHECK(spent == counter.budget() - counter.left());
    CHECK((spent == 0 || counter.left() >= keep));
    CHECK(fitting == found.fitting);
    if (limits.fitting) CHECK(fitting <= *limits.fitting);
    CHECK(std::is_sorted(found.ranked.begin(), found.ranked.end()));
  }
}

TEST_CASE("search_settings: where the first start lacks memory the others begin leaner") {
  // Only the leanest two of five values fit.
  Landscape landscape{[](const planners::SettingPoint& point) {
    return planners::CandidateScore{point[0] < 3 ? 5 - static_cast<std::int64_t>(point[0]) : 0,
                                    {static_cast<std::int64_t>(10 * point[0] + point[1])}};
  }};
  planners::SearchSpace space;
  space.sizes = {5, 4};
  space.ordered = {true, false};
  space.memory = 0;
  space.starts = {{0, 2}, {0, 1}, {0, 3}};
  planners::SimulationCounter counter(5, 1, 1);
  const planners::SearchResult found = planners::search_settings(space, {&counter}, landscape);
  CHECK(landscape.asked ==
        std::multiset<planners::SettingPoint>{{0, 2}, {1, 2}, {4, 2}, {4, 1}, {4, 3}});
  CHECK(found.ranked.front().second == planners::SettingPoint{4, 1});
  planners::SimulationCounter more(12, 1, 1);
  CHECK(planners::search_settings(space, {&more}, landscape).ranked.front().second ==
        planners::SettingPoint{3, 0});
}

TEST_CASE("search_settings: a start without memory gets finer before it gets leaner") {
  // The first setting saves memory at a cost of 10, the second at a cost of 1.
  const auto search = [](std::int64_t needed, std::int64_t budget) {
    Landscape landscape{[=](const planners::SettingPoint& point) {
      const auto saved = static_cast<std::int64_t>(2 * point[0] + point[1]);
      return planners::CandidateScore{std::max<std::int64_t>(0, needed - saved),
                                      {static_cast<std::int64_t>(10 * point[0] + point[1])}};
    }};
    planners::SearchSpace space;
    space.sizes = {5, 6};
    space.ordered = {true, true};
    space.memory = 0;
    space.finer = 1;
    space.starts = {{0, 0}, {4, 5}};
    planners::SimulationCounter counter(budget, 1, 1);
    (void)planners::search_settings(space, {&counter}, landscape);
    return landscape.asked;
  };
  // After the start has room, the search climbs from there.
  CHECK(search(3, 3) == std::multiset<planners::SettingPoint>{{0, 0}, {0, 3}, {1, 3}});
  CHECK(search(5, 4) == std::multiset<planners::SettingPoint>{{0, 0}, {0, 3}, {2, 3}, {1, 3}});
}

TEST_CASE("search_settings: starts to fall back on are for where none of the first fits") {
  // Point i begins the search as start i; `fits` has those with room.
  const auto search = [](const std::set<std::size_t>& fits, std::int64_t budget) {
    Landscape landscape{[&](const planners::SettingPoint& point) {
      return planners::CandidateScore{fits.contains(point[0]) ? 0 : 5, {10}};
    }};
    planners::SearchSpace space;
    space.sizes = {9};
    space.starts = {{0}, {2}, {4}, {6}, {8}};
    space.first = 2;
    space.everywhere = false;
    planners::SimulationCounter counter(budget, 1, 1);
    (void)planners::search_settings(space, {&counter}, landscape);
    return landscape.asked;
  };
  CHECK(search({2, 6}, 2) == std::multiset<planners::SettingPoint>{{0}, {2}});
  CHECK(search({6}, 4) == std::multiset<planners::SettingPoint>{{0}, {2}, {4}, {6}});
  CHECK(search({}, 5) == std::multiset<planners::SettingPoint>{{0}, {2}, {4}, {6}, {8}});
}

TEST_CASE("search_settings: a witness is asked of what would be the best, and its score counts") {
  struct Witnessed {
    [[nodiscard]] bool exists(const planners::SettingPoint&) const { return true; }
    [[nodiscard]] std::int64_t devices(const planners::SettingPoint&) const { return 1; }
    [[nodiscard]] planners::CandidateScore operator()(const planners::SettingPoint& point) const {
      return {0, {20 - static_cast<std::int64_t>(point[0])}};
    }
    [[nodiscard]] std::vector<std::int64_t> witness_devices(
        const planners::SettingPoint& point) const {
      return point[0] == 0 ? std::vector<std::int64_t>{} : std::vector<std::int64_t>{2, 3};
    }
    [[nodiscard]] planners::CandidateScore witness(const planners::SettingPoint& point,
                                                   std::size_t number) const {
      if (number == 0) return {point[0] == 3 ? 7 : 0, {1}};
      return {0, {point[0] == 2 ? 30 : 1}};
    }
  };
  planners::SearchSpace space;
  space.sizes = {4};
  planners::SimulationCounter counter(50, 1, 1);
  space.starts = {{0}};
  const planners::SearchResult found = planners::search_settings(space, {&counter}, Witnessed{});
  // Of the four points each but the first asks its two witnesses.
  CHECK(50 - counter.left() == 4 + 3 * 5);
  CHECK(found.ranked == std::vector<planners::ScoredPoint>{
                            {{0, {19}}, {1}}, {{0, {20}}, {0}}, {{0, {30}}, {2}}, {{7, {1}}, {3}}});
}

TEST_CASE("search_settings: points of one candidate are one") {
  Landscape landscape{[](const planners::SettingPoint& point) {
    return planners::CandidateScore{0, {static_cast<std::int64_t>(9 - point[0] + point[1])}};
  }};
  planners::SearchSpace space;
  space.sizes = {3, 3};
  space.starts = {{0, 0}};
  // The second setting means nothing where the first one has its first value.
  space.canonical = [](planners::SettingPoint point) {
    if (point[0] == 0) point[1] = 0;
    return point;
  };
  planners::SimulationCounter counter(50, 1, 1);
  (void)planners::search_settings(space, {&counter}, landscape);
  CHECK(landscape.asked.size() == 7);
  CHECK(!landscape.asked.contains({0, 1}));
}

TEST_CASE("search_settings: known scores cost nothing, and fixed settings stay") {
  Landscape landscape{[](const planners::SettingPoint& point) {
    return planners::CandidateScore{0, {static_cast<std::int64_t>(20 - point[0] - point[1])}};
  }};
  planners::SearchSpace space;
  space.sizes = {4, 4};
  space.starts = {{1, 1}};
  space.fixed = {true, false};
  space.everywhere = false;
  space.known = {{{0, {18}}, {1, 1}}, {{0, {15}}, {1, 2}}};
  planners::SimulationCounter counter(50, 1, 1);
  const planners::SearchResult found = planners::search_settings(space, {&counter}, landscape);
  CHECK(!landscape.asked.contains({1, 1}));
  CHECK(!landscape.asked.contains({1, 2}));
  for (const planners::SettingPoint& point : landscape.asked) CHECK(point[0] == 1);
  CHECK(found.ranked.front().first.time == Nanos{15});
  CHECK(found.fitting == 2);
}

TEST_CASE("search_settings: kicks find what takes three settings at once, within the budget") {
  // Shorter by a tenth with three settings; with one or two of them, or any other, longer.
  const auto score = [](const planners::SettingPoint& point) {
    const std::array<std::int64_t, 4> times{1000, 1004, 1002, 890};
    const int right = (point[1] == 2) + (point[4] == 1) + (point[6] == 2);
    const auto moved =
        std::count_if(point.begin(), point.end(), [](std::size_t value) { return value != 0; });
    return planners::CandidateScore{
        0, {times[static_cast<std::size_t>(right)] + 10 * (moved - right)}};
  };
  for (const std::int32_t threads : {1, 4}) {
    Landscape landscape{score};
    planners::SearchSpace space;
    space.sizes.assign(8, 3);
    space.starts = {planners::SettingPoint(8)};
    space.everywhere = false;
    planners::SimulationCounter counter(2000, 1, threads);
    const planners::SearchResult climbed = planners::search_settings(space, {&counter}, landscape);
    CHECK(climbed.ranked.front().second == planners::SettingPoint(8));
    space.known = climbed.ranked;
    space.kicks = true;
    planners::SimulationCounter little(1, 1, threads), more(1500, 1, threads);
    const planners::SearchResult few = planners::search_settings(space, {&little}, landscape);
    CHECK(few.ranked.size() <= climbed.ranked.size() + 1);
    Landscape kicked{score};
    const planners::SearchResult found = planners::search_settings(space, {&more}, kicked);
    CHECK(found.ranked.front().second == planners::SettingPoint{0, 2, 0, 0, 1, 0, 2, 0});
    CHECK(found.ranked.front().first.time == Nanos{890});
    CHECK(more.evaluations() <= 1500);
    CHECK(static_cast<std::int64_t>(kicked.asked.size()) == more.evaluations());
    for (const auto& [known, point] : climbed.ranked) CHECK(kicked.asked.count(point) == 0);
    CHECK(std::set<planners::SettingPoint>(kicked.asked.begin(), kicked.asked.end()).size() ==
          kicked.asked.size());
    // What is fixed stays, and so nothing better is found.
    space.fixed.assign(8, false);
    space.fixed[4] = true;
    planners::SimulationCounter again(1500, 1, threads);
    CHECK(planners::search_settings(space, {&again}, landscape).ranked.front().second ==
          planners::SettingPoint(8));
  }
}

TEST_CASE("search: scattered points are all points, each once, neighbours far apart") {
  for (const std::vector<std::size_t>& sizes :
       {std::vector<std::size_t>{1}, {2}, {3, 4}, {7, 2, 5, 3}, {1, 1, 9}}) {
    planners::detail::ScatteredPoints scattered(sizes);
    std::set<planners::SettingPoint> seen;
    std::size_t count = 1;
    for (const std::size_t size : sizes) count *= size;
    for (std::size_t i = 0; i < count; ++i) {
      const auto point = scattered.next();
      REQUIRE(point.has_value());
      for (std::size_t setting = 0; setting < sizes.size(); ++setting) {
        CHECK((*point)[setting] < sizes[setting]);
      }
      CHECK(seen.insert(*point).second);
    }
    CHECK(!scattered.next());
  }
}

TEST_CASE("search_settings: nonsense is refused") {
  Landscape landscape{[](const planners::SettingPoint&) { return planners::CandidateScore{}; }};
  planners::SimulationCounter counter(1, 1, 1);
  const auto refused = [&](const planners::SearchSpace& space, const char* why) {
    CHECK_THROWS_WITH_AS(static_cast<void>(planners::search_settings(space, {&counter}, landscape)),
                         why, InvalidInput);
  };
  planners::SearchSpace space;
  refused(space, "search_settings: there must be a setting");
  space.sizes = {0};
  refused(space, "search_settings: every setting must have a value");
  space.sizes = {1};
  space.starts = {{0, 0}};
  refused(space, "search_settings: a start must have every setting");
  space.starts = {{0}};
  landscape.there = [](const planners::SettingPoint&) { return false; };
  refused(space, "search_settings: a start must make a candidate");
  CHECK_THROWS_WITH_AS(planners::SimulationCounter(0, 1, 1), "search: budget must be >= 1, got 0",
                       InvalidInput);
  CHECK_THROWS_WITH_AS(planners::SimulationCounter(1, 1, 0), "search: threads must be >= 1, got 0",
                       InvalidInput);
}
