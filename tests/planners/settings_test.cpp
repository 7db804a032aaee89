// SPDX-License-Identifier: Apache-2.0
#include "slimpack/planners/search/settings.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

using namespace slimpack;

namespace {

struct Base {
  std::int32_t ranks = 1;
};
struct Pair {
  int left = 0, right = 0;
  void describe(planners::SettingTexts& texts) const {
    texts["left"] = std::to_string(left);
    texts["right"] = std::to_string(right);
  }
};
struct Settings : Base {
  Recompute recompute = Recompute::none;
  Tokens block{64};
  bool ends = false;
  Pair pair;
};

planners::SettingSpace<Settings> sample_space() {
  planners::SettingSpace<Settings> space;
  CHECK(space.add("ranks", &Base::ranks, {1, 2, 4}, {.ordered = true, .shared = true}) == 0);
  space.add("recompute", &Settings::recompute, {Recompute::full, Recompute::none});
  space.add(
      "block", &Settings::block, {{32}, {128}},
      {.applies = [](const Settings& settings) { return settings.ranks > 1; }, .first_only = true});
  space.add("ends", &Settings::ends, {true, false}, {}, [](bool on) { return on ? "on" : "off"; });
  CHECK(space.add("", &Settings::pair, {{1, 2}}) == 4);
  return space;
}

}  // namespace

TEST_CASE("settings: sizes, traits, candidates and texts follow from the records") {
  const planners::SettingSpace<Settings> space = sample_space();
  using Traits = planners::SettingTraits<Settings>;
  CHECK(space.sizes() == std::vector<std::size_t>{3, 2, 2, 2, 1});
  CHECK(space.flags(&Traits::ordered) == std::vector<bool>{true, false, false, false, false});
  CHECK(space.flags(&Traits::shared) == std::vector<bool>{true, false, false, false, false});
  const Settings settings = space.at({2, 1, 1, 1, 0});
  CHECK(settings.ranks == 4);
  CHECK(settings.recompute == Recompute::none);
  CHECK(settings.block == Tokens{128});
  CHECK(!settings.ends);
  CHECK(space.describe(settings) == planners::SettingTexts{{"block", "128"},
                                                           {"ends", "off"},
                                                           {"left", "1"},
                                                           {"ranks", "4"},
                                                           {"recompute", "none"},
                                                           {"right", "2"}});
  CHECK(!space.describe(space.at({0, 0, 0, 0, 0})).contains("block"));
}

TEST_CASE("settings: where one does not apply, only its first value makes a candidate") {
  planners::SettingSpace<Settings> space = sample_space();
  CHECK(space.exists({0, 0, 0, 0, 0}));
  CHECK(!space.exists({0, 0, 1, 0, 0}));
  CHECK(space.exists({1, 0, 1, 0, 0}));
  space.require_that([](const Settings& settings) { return settings.ranks < 4; });
  CHECK(space.exists({1, 0, 1, 0, 0}));
  CHECK(!space.exists({2, 0, 1, 0, 0}));
}

TEST_CASE("settings: searches begin at the points given, each once, else at the first values") {
  planners::SettingSpace<Settings> space = sample_space();
  CHECK(space.starts() == std::vector<planners::SettingPoint>{{0, 0, 0, 0, 0}});
  space.start({});
  space.start({{0, 99}, {1, 1}});
  space.start({{0, 2}, {1, 1}});
  space.start_at({1, 0, 0, 1, 0});
  CHECK(space.starts() ==
        std::vector<planners::SettingPoint>{{0, 0, 0, 0, 0}, {2, 1, 0, 0, 0}, {1, 0, 0, 1, 0}});
  CHECK(space.first_starts() == 3);
  CHECK(space.enough().starts == 0);
  space.enough(Nanos{7});
  CHECK(space.enough().starts == 3);
  CHECK(space.enough().time == Nanos{7});
  space.fall_back();
  space.start_at({1, 1, 0, 0, 0});
  CHECK(space.enough().starts == 3);
  CHECK(space.starts().size() == 4);
  CHECK(space.first_starts() == 3);
}

TEST_CASE("settings: one point stands for all of a candidate") {
  planners::SettingSpace<Settings> space;
  space.add("ranks", &Settings::ranks, {1, 2, 4});
  space.add("block", &Settings::block, {Tokens{64}, Tokens{128}, Tokens{256}},
            {.applies = [](const Settings& settings) { return settings.ranks > 1; }, .neutral = 1});
  CHECK(space.canonical({0, 2}) == planners::SettingPoint{0, 1});
  CHECK(space.canonical({0, 1}) == planners::SettingPoint{0, 1});
  CHECK(space.canonical({1, 2}) == planners::SettingPoint{1, 2});
  CHECK(space.exists({0, 2}));
}
