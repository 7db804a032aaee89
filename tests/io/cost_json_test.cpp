// SPDX-License-Identifier: Apache-2.0
#include "slimpack/io/cost_json.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "slimpack/core/random.hpp"

namespace cost_json_test {

using namespace slimpack;

namespace {

CostSpec parse(const std::string& text) {
  return cost_from_json(text, "cost.json");
}

void refused(const std::string& text, const char* message) {
  CHECK_THROWS_WITH_AS(parse(text), message, InvalidInput);
}

FittedTerms random_terms(Random& random) {
  const auto draw = [&random] {
    return random.chance(1, 4)
               ? 0.0
               : std::ldexp(random.unit(), static_cast<int>(random.between(-60, 8)));
  };
  FittedTerms terms{draw(), draw(), draw(), draw(), draw(), draw()};
  terms.spill_token = draw();
  terms.spill_from = static_cast<double>(random.between(0, 9000));
  terms.own_pair = draw();
  return terms;
}

CostSpec random_cost(std::uint64_t seed) {
  Random random(seed);
  switch (random.below(3)) {
    case 0:
      return AnalyticCost{};
    case 1: {
      FittedCost cost;
      for (auto* terms :
           {&cost.layer_forward, &cost.layer_backward, &cost.layer_apart, &cost.layer_weight,
            &cost.embedding_forward, &cost.embedding_backward, &cost.head, &cost.optimizer,
            &cost.p2p, &cost.reduce, &cost.exchange, &cost.tensor, &cost.context_forward,
            &cost.context_backward, &cost.light}) {
        if (random.chance(3, 4)) *terms = random_terms(random);
      }
      return cost;
    }
    default: {
      TableCost cost;
      Tokens tokens, context{-1};
      for (std::int64_t rows = random.between(1, 5); rows > 0; --rows) {
        cost.tokens.push_back(tokens += Tokens{random.between(1, 9000)});
      }
      for (std::int64_t columns = random.between(1, 5); columns > 0; --columns) {
        cost.context.push_back(context += Tokens{random.between(1, 9000)});
      }
      for (auto* grid : {&cost.forward_s, &cost.backward_s}) {
        for (std::size_t row = 0; row < cost.tokens.size(); ++row) {
          double value = 0;
          for (std::size_t column = 0; column < cost.context.size(); ++column) {
            grid->push_back(value += random.unit() * 1e-3);
          }
        }
      }
      return cost;
    }
  }
}

}  // namespace

TEST_CASE("costs: each kind goes out and comes back the same") {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    const CostSpec cost = random_cost(seed);
    CHECK(cost_from_json(cost_to_json(cost), "cost.json") == cost);
  }
  CHECK(cost_to_json(AnalyticCost{}) == "{\"kind\": \"analytic\"}\n");
  CHECK(parse(R"({"kind": "fitted"})") == CostSpec(FittedCost{}));
}

TEST_CASE("costs: wrong values are named with their key") {
  refused("{}", "cost.json: the key 'kind' is missing");
  refused(R"({"kind": "guess"})",
          "cost.json: kind: must be one of 'analytic', 'fitted', 'table', found 'guess'");
  refused(R"({"kind": 1})",
          "cost.json: kind: must be one of 'analytic', 'fitted', 'table', found 1");
  refused(
      R"({"kind": "fitted", "head": {"unit": 1, "layer": 0, "token": 0, "pair": 0, "segment": 0}})",
      "cost.json: head: the key 'byte' is missing");
  refused(R"({"kind": "fitted", "p2p": {"unit": -1e-9}})",
          "cost.json: p2p.unit: must be a number in 0.0 .. 1000000000.0, found -1e-09");
  refused(R"({"kind": "fitted", "p2p": null})", "cost.json: p2p: must be an object, found null");

  const auto table = [](const std::string& tokens, const std::string& context,
                        const std::string& forward, const std::string& backward) {
    return R"({"kind": "table", "tokens": )" + tokens + R"(, "context": )" + context +
           R"(, "forward_s": )" + forward + R"(, "backward_s": )" + backward + "}";
  };
  CHECK(std::get<TableCost>(parse(table("[1, 2]", "[0]", "[1, 2]", "[2, 1.5]"))).backward_s[1] ==
        1.5);
  refused(table("[]", "[0]", "[]", "[]"),
          "cost.json: tokens: must have at least one value, found an array of 0");
  refused(table("[0]", "[0]", "[1]", "[1]"),
          "cost.json: tokens[0]: must be an integer in 1 .. 1099511627776, found 0");
  refused(table("[1, 1]", "[0]", "[1, 1]", "[1, 1]"),
          "cost.json: tokens[1]: must be greater than the value before, found 1");
  refused(table("[1]", "[5, 4]", "[1, 1]", "[1, 1]"),
          "cost.json: context[1]: must be greater than the value before, found 4");
  refused(table("[1, 2]", "[0, 1]", "[1, 2, 3]", "[1, 2, 3, 4]"),
          "cost.json: forward_s: must have 2 rows of 2 values, found an array of 3");
  refused(table("[1, 2]", "[0, 1]", "[1, 2, 3, 2]", "[1, 2, 3, 4]"),
          "cost.json: forward_s[3]: must not be less than the value before it in its row, found 2");
  refused(table("[1, 2]", "[0, 1]", "[1, 2, 0, 2]", "[1, 2, -3, 4]"),
          "cost.json: backward_s[2]: must be a number in 0.0 .. 1000000000.0, found -3");
  refused(table("[1]", "[0]", "1", "[1]"), "cost.json: forward_s: must be an array, found 1");
}

TEST_CASE("costs: an unknown key of a file is refused with the nearest one that is known") {
  const std::string terms =
      R"({"unit": 0, "layer": 0, "token": 1e-6, "pair": 0, "segment": 0, "byte": 0})";
  refused(R"({"kind": "fitted", "layer_fwd": )" + terms + "}",
          "cost.json: the key 'layer_fwd' is not known; did you mean 'layer_forward'?");
  refused(R"({"kind": "fitted", "head": {"unit": 0, "layer": 0, "token": 1e-6, "pair": 0,
              "segment": 0, "byte": 0, "tokens": 3}})",
          "cost.json: head: the key 'tokens' is not known; did you mean 'token'?");
  refused(R"({"kind": "analytic", "head": )" + terms + "}",
          "cost.json: the key 'head' is not known; the keys are kind, shape, device");
  refused(R"({"kind": "table", "tokens": [1], "context": [0], "forward_s": [1], "backward_s": [1],
              "contexts": [0]})",
          "cost.json: the key 'contexts' is not known; did you mean 'context'?");
  refused(R"({"kind": "fitted", "head": {"unit": 0, "layer": 0, "token": 1e-6, "pair": 0,
              "segment": 0, "byte": 0, "spill_from": -1}})",
          "cost.json: head.spill_from: must be a number in 0.0 .. 1000000000.0, found -1");
  // What calibration adds on the origin is no misspelling; a plan.json may have any further key.
  CHECK(parse(R"({"kind": "fitted", "shape": {"hidden": 8}, "device": {"name": "x"}})") ==
        CostSpec(FittedCost{}));
  const nlohmann::json object = nlohmann::json::parse(R"({"kind": "fitted", "other": 1})");
  CHECK(detail::read_cost(JsonReader(object, "plan.json")) == CostSpec(FittedCost{}));
}

TEST_CASE("costs: a number that JSON cannot hold is not written") {
  FittedCost cost;
  cost.head = FittedTerms{};
  cost.head->unit = std::numeric_limits<double>::infinity();
  CHECK_THROWS_WITH_AS(static_cast<void>(cost_to_json(cost)), "JSON holds finite numbers only",
                       InvalidInput);
}

}  // namespace cost_json_test
