// SPDX-License-Identifier: Apache-2.0
#include "slimpack/planners/search/setting_search.hpp"

#include <doctest/doctest.h>
#include <array>
#include <atomic>
#include <functional>
#include <mutex>
#include <set>
#include <stdexcept>
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
  mutable std::mutex mutex{};
  mutable std::multiset<planners::SettingPoint> asked{};

  [[nodiscard]] bool exists(const planners::SettingPoint& point) const { return there(point); }
  [[nodiscard]] planners::CandidateScore operator()(const planners::SettingPoint& point) const {
    {
      const std::lock_guard lock(mutex);
      asked.insert(point);
    }
    return score(point);
  }
};
static_assert(planners::CandidateEvaluator<Landscape> && !planners::CandidateEvaluator<int>);

planners::CandidateScore noise(const planners::SettingPoint& point, std::uint64_t seed) {
  std::uint64_t state = seed;
  for (const std::size_t value : point) state = Random(state ^ (value + 1)).bits();
  Random random(state);
  return {random.chance(1, 3) ? random.between(1, 50) : 0, {random.between(1, 40)}};
}

}  // namespace

TEST_CASE("search_settings: a space within the budget is tried whole, ties to the first point") {
  const std::array<std::size_t, 3> sizes{3, 2, 4};
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    CAPTURE(seed);
    Landscape landscape{[&](const planners::SettingPoint& point) { return noise(point, seed); }};
    const planners::SearchResult found = planners::search_settings(sizes, {24, 1, {}}, landscape);
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
      const planners::SearchResult alone = planners::search_settings(sizes, {budget, 1, {}}, one);
      const planners::SearchResult together =
          planners::search_settings(sizes, {budget, 4, {}}, four);
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
  CHECK(planners::search_settings(sizes, {16, 1, {}}, landscape).best == target);
}

TEST_CASE("search_settings: a feasible candidate beats a faster one that does not fit") {
  const std::array<std::size_t, 1> sizes{3};
  Landscape landscape{[](const planners::SettingPoint& point) {
    return std::array<planners::CandidateScore, 3>{{{1, {1}}, {0, {9}}, {5, {0}}}}[point[0]];
  }};
  CHECK(planners::search_settings(sizes, {3, 1, {}}, landscape).best == planners::SettingPoint{1});
}

TEST_CASE("search_settings: points that do not exist are passed over") {
  const std::array<std::size_t, 2> sizes{3, 3};
  Landscape landscape{[](const planners::SettingPoint& point) {
                        return planners::CandidateScore{
                            0, {-static_cast<std::int64_t>(point[0] + point[1])}};
                      },
                      [](const planners::SettingPoint& point) { return point[0] + point[1] != 4; }};
  const planners::SearchResult found = planners::search_settings(sizes, {100, 1, {}}, landscape);
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
  const planners::SearchResult found =
      planners::search_settings(sizes, {7, 3, progress}, landscape);
  CHECK(found.best == planners::SettingPoint{0, 0});
  CHECK(heard == std::vector<std::int64_t>{1, 2, 3, 4, 5, 6, 7});
}

TEST_CASE("search_settings: what an evaluation throws comes out, the first point's first") {
  const std::array<std::size_t, 1> sizes{4};
  Landscape landscape{[](const planners::SettingPoint& point) -> planners::CandidateScore {
    if (point[0] >= 2) throw std::runtime_error("point " + std::to_string(point[0]));
    return {};
  }};
  CHECK_THROWS_WITH_AS(static_cast<void>(planners::search_settings(sizes, {4, 2, {}}, landscape)),
                       "point 2", std::runtime_error);
}

TEST_CASE("search_settings: nonsense is refused") {
  Landscape landscape{[](const planners::SettingPoint&) { return planners::CandidateScore{}; }};
  const std::array<std::size_t, 1> one{1};
  const std::array<std::size_t, 1> none{0};
  CHECK_THROWS_WITH_AS(static_cast<void>(planners::search_settings({}, {1, 1, {}}, landscape)),
                       "search_settings: there must be a setting", InvalidInput);
  CHECK_THROWS_WITH_AS(static_cast<void>(planners::search_settings(none, {1, 1, {}}, landscape)),
                       "search_settings: every setting must have a value", InvalidInput);
  CHECK_THROWS_WITH_AS(static_cast<void>(planners::search_settings(one, {0, 1, {}}, landscape)),
                       "search_settings: budget must be >= 1, got 0", InvalidInput);
  CHECK_THROWS_WITH_AS(static_cast<void>(planners::search_settings(one, {1, 0, {}}, landscape)),
                       "search_settings: threads must be >= 1, got 0", InvalidInput);
  landscape.there = [](const planners::SettingPoint&) { return false; };
  CHECK_THROWS_WITH_AS(static_cast<void>(planners::search_settings(one, {1, 1, {}}, landscape)),
                       "search_settings: the first value of every setting must make a candidate",
                       InvalidInput);
}
