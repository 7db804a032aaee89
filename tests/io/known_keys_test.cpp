// SPDX-License-Identifier: Apache-2.0
#include "slimpack/io/known_keys.hpp"

#include <doctest/doctest.h>

#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "slimpack/core/random.hpp"

namespace known_keys_test {

using namespace slimpack;

namespace {

std::string random_word(Random& random) {
  std::string word;
  for (std::int64_t i = random.between(0, 8); i > 0; --i) {
    word += static_cast<char>('a' + random.between(0, 2));
  }
  return word;
}

}  // namespace

TEST_CASE("edit_distance: small cases, and the laws of a distance") {
  CHECK(edit_distance("", "") == 0);
  CHECK(edit_distance("abc", "") == 3);
  CHECK(edit_distance("bytes_per_sec", "bytes_per_s") == 2);
  CHECK(edit_distance("kitten", "sitting") == 3);
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const std::string a = random_word(random), b = random_word(random), c = random_word(random);
    CHECK((edit_distance(a, b) == 0) == (a == b));
    CHECK(edit_distance(a, b) == edit_distance(b, a));
    CHECK(edit_distance(a, c) <= edit_distance(a, b) + edit_distance(b, c));
    CHECK(edit_distance(a + c, b + c) <= edit_distance(a, b));
  }
}

TEST_CASE("nearest_word: the first of the nearest, none where half of the letters differ") {
  constexpr std::array<std::string_view, 3> kWords{"context", "content", "memory"};
  CHECK(nearest_word("contekt", kWords) == "context");
  CHECK(nearest_word("contet", kWords) == "context");
  CHECK(nearest_word("mem", kWords) == "memory");
  CHECK(!nearest_word("gpus", kWords));
  CHECK(!nearest_word("", kWords));
  CHECK(!nearest_word(std::string(100000, 'c'), kWords));
}

TEST_CASE("check_known_keys: passes what is known, quotes what is not") {
  constexpr std::array<std::string_view, 2> kKeys{"alpha", "beta"};
  const auto check = [&](const char* text) {
    const nlohmann::json object = nlohmann::json::parse(text);
    check_known_keys(JsonReader(object, "x.json"), kKeys);
  };
  CHECK_NOTHROW(check("{}"));
  CHECK_NOTHROW(check(R"({"beta": 1, "alpha": null})"));
  CHECK_THROWS_WITH_AS(check(R"({"alpa": 1})"),
                       "x.json: the key 'alpa' is not known; did you mean 'alpha'?", InvalidInput);
  CHECK_THROWS_WITH_AS(check(R"({"\u0001\u00e9": 1})"),
                       "x.json: the key '\\x01\\xc3\\xa9' is not known; the keys are alpha, beta",
                       InvalidInput);
  CHECK_THROWS_WITH_AS(check("[]"), "x.json: must be an object, found an array of 0", InvalidInput);
}

}  // namespace known_keys_test
