// SPDX-License-Identifier: Apache-2.0
#include "slimpack/io/plan_json.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "slimpack/core/random.hpp"
#include "slimpack/cost/presets.hpp"
#include "slimpack/io/file.hpp"
#include "support/directory.hpp"
#include "support/draws.hpp"
#include "support/random_plan.hpp"
#include "support/temporary.hpp"

namespace plan_json_test {

using namespace slimpack;

namespace {

/// The step of docs/equations.md in small: two ranks, a sample of both and one of each alone.
Plan small_plan() {
  Plan plan;
  plan.version = 1;
  plan.planner = "slimpack";
  plan.step_index = 3;
  plan.target_tokens = 19449;
  plan.sources = {{"a.lengths", 130034, "00ff"}, {"-", 20, ""}};
  plan.origin = {{0, 17, Tokens{0}}, {0, 4, Tokens{131072}}, {1, 9, Tokens{0}}};
  plan.samples = {Tokens{18231}, Tokens{977}, Tokens{244}};
  plan.model = model_preset("llama-7b").value();
  plan.cluster = cluster_preset("h100").value();
  plan.memory.capacity = Bytes{85'500'000'000};
  plan.memory.reserved = Bytes{6'000'000'000};
  plan.parallel = {2, 1, 1, 1, LmHead::shard, Tokens{128}, 2};
  plan.placement = {{0, 0, 0, 0}, {1, 0, 0, 1}};
  plan.stages = {{0, 0, 0, 32, true}};
  plan.groups = {{0}, {1}, {0, 1}};
  plan.sample_group = {GroupId{2}, GroupId{0}, GroupId{1}};
  const auto slice = [](std::uint32_t sample, std::int64_t begin, std::int64_t end) {
    return std::vector<Slice>{{SampleId{sample}, Tokens{begin}, Tokens{end}}};
  };
  plan.micropacks = {
      {Pass::forward, GroupId{2}, slice(0, 0, 18231), {RingMode::pass_q}, Recompute::none},
      {Pass::backward, GroupId{2}, slice(0, 9216, 18231), {RingMode::pass_kv}, Recompute::light},
      {Pass::backward, GroupId{2}, slice(0, 0, 9216), {RingMode::pass_kv}, Recompute::none},
      {Pass::forward, GroupId{0}, slice(1, 0, 977), {}, Recompute::none},
      {Pass::backward, GroupId{0}, slice(1, 0, 977), {}, Recompute::none},
      {Pass::forward, GroupId{1}, slice(2, 0, 244), {}, Recompute::none},
      {Pass::backward, GroupId{1}, slice(2, 0, 244), {}, Recompute::full}};
  const auto order = [](std::uint32_t forward, std::uint32_t backward) {
    return std::vector<Unit>{
        {UnitKind::forward, PackId{0}, 0},         {UnitKind::head, PackId{0}, 0},
        {UnitKind::forward, PackId{forward}, 0},   {UnitKind::head, PackId{forward}, 0},
        {UnitKind::backward, PackId{1}, 0},        {UnitKind::backward, PackId{2}, 0},
        {UnitKind::backward, PackId{backward}, 0}, {UnitKind::reduce, PackId{0}, 0},
        {UnitKind::optimizer, PackId{0}, 0}};
  };
  plan.schedule = {{0, 0, order(3, 4)}, {1, 0, order(5, 6)}};
  plan.prediction = {Nanos{1'200'000'001},
                     Nanos{1'100'000'000},
                     Nanos{1'120'000'000},
                     {{0, 0, Nanos{1'100'000'000}, Bytes{61203283968}}}};
  return plan;
}

Plan parse(const std::string& text) {
  return plan_from_json(text, "plan.json");
}

/// The small plan's text with the value at a JSON pointer replaced.
std::string with(const char* pointer, const char* value) {
  nlohmann::json document = nlohmann::json::parse(plan_to_json(small_plan()));
  document[nlohmann::json::json_pointer(pointer)] = nlohmann::json::parse(value);
  return document.dump();
}

std::string without(const char* object, const char* key) {
  nlohmann::json document = nlohmann::json::parse(plan_to_json(small_plan()));
  document[nlohmann::json::json_pointer(object)].erase(key);
  return document.dump();
}

void refused(const char* pointer, const char* value, const char* message) {
  CAPTURE(pointer);
  CHECK_THROWS_WITH_AS(parse(with(pointer, value)), message, InvalidInput);
}

}  // namespace

TEST_CASE("plan.json: a small plan's whole text") {
  const std::string text = plan_to_json(small_plan());
  CHECK(text == read_file(test::directory() + "/io/small_plan.json"));
  CHECK(parse(text) == small_plan());
  CHECK(plan_to_json(parse(text)) == text);
}

TEST_CASE("plan.json: random plans of every kind go out and come back the same") {
  test::RandomPlanOptions options;
  options.max_tp = 2;
  for (std::uint64_t seed = 0; seed < test::draws(300U); ++seed) {
    CAPTURE(seed);
    options.vary_bytes = seed % 2 == 1;
    Plan plan = test::random_plan(seed, options);
    Random random(seed);
    plan.prediction.iteration.value = random.between(0, std::int64_t{1} << random.between(0, 52));
    plan.prediction.ideal.value = random.between(0, std::int64_t{1} << random.between(0, 52));
    plan.prediction.lower_bound.value = random.between(0, 8388608'000'000'000);
    const std::string text = plan_to_json(plan);
    CHECK((parse(text) == plan));
    CHECK(plan_to_json(parse(text)) == text);
  }
}

TEST_CASE("plan.json: nanoseconds are exact") {
  Plan plan = small_plan();
  Random random(5);
  for (int draw = 0; draw < test::draws(3000); ++draw) {
    const std::int64_t time =
        draw == 0
            ? 8388608'000'000'000
            : random.between(0, std::int64_t{1} << random.between(0, 53)) % 8388608'000'000'001;
    plan.prediction.iteration.value = time;
    CHECK(parse(plan_to_json(plan)).prediction.iteration.value == time);
  }
  // Another program's decimals: the nearest nanosecond.
  CHECK(parse(with("/prediction/ideal_s", "1.23456789061")).prediction.ideal == Nanos{1234567891});
  CHECK(parse(with("/prediction/ideal_s", "1")).prediction.ideal == Nanos{1'000'000'000});
  CHECK(parse(with("/prediction/ideal_s", "1.5e-7")).prediction.ideal == Nanos{150});
  plan.prediction.iteration.value = 8388608'000'000'001;
  CHECK_THROWS_WITH_AS(static_cast<void>(plan_to_json(plan)),
                       "prediction.iteration_s: a time in a file must be in 0 .. 8388608 s, in "
                       "nanoseconds, got 8388608000000001",
                       InvalidInput);
  plan.prediction.iteration.value = -1;
  CHECK_THROWS_WITH_AS(static_cast<void>(plan_to_json(plan)),
                       "prediction.iteration_s: a time in a file must be in 0 .. 8388608 s, in "
                       "nanoseconds, got -1",
                       InvalidInput);
  plan.prediction.iteration.value = 0;
  plan.prediction.devices.at(0).busy.value = -5;
  CHECK_THROWS_WITH_AS(static_cast<void>(plan_to_json(plan)),
                       "prediction.devices[0].busy_s: a time in a file must be in 0 .. 8388608 s, "
                       "in nanoseconds, got -5",
                       InvalidInput);
}

TEST_CASE("plan.json: stages and schedules are put in order, unknown keys ignored") {
  test::RandomPlanOptions options;
  options.dp = 2;
  options.pp = 3;
  options.chunks = 2;
  const Plan plan = test::random_plan(1, options);
  nlohmann::json document = nlohmann::json::parse(plan_to_json(plan));
  std::reverse(document["stages"].begin(), document["stages"].end());
  std::reverse(document["schedule"].begin(), document["schedule"].end());
  document["note"] = {{"anything", {1, 2, 3}}};
  document["micropacks"][0]["color"] = "red";
  document["cluster"]["base"] = "h100";
  CHECK((parse(document.dump()) == plan));
}

TEST_CASE("plan.json: keys that may be left out") {
  CHECK(parse(without("", "prediction")).prediction == Prediction{});
  CHECK(parse(without("/memory", "head_tile")).memory.head_tile == Tokens{1024});
  CHECK(parse(without("/sources/0", "sha256")).sources[0].sha256.empty());
  Plan plan = small_plan();
  plan.schedule[1].order.clear();
  nlohmann::json document = nlohmann::json::parse(plan_to_json(small_plan()));
  document["schedule"].erase(1);
  CHECK((parse(document.dump()) == plan));  // the validator then misses its units
}

TEST_CASE("plan.json: a plan may be read that breaks a validity rule") {
  CHECK(parse(with("/micropacks/3/slices/0/2", "5000")).micropacks[3].slices[0].end ==
        Tokens{5000});
  CHECK(parse(with("/micropacks/3/slices/0/1", "977")).micropacks[3].slices[0].length() ==
        Tokens{0});
  CHECK(parse(with("/schedule/0/order", "[]")).schedule[0].order.empty());
  CHECK(parse(with("/parallel/merge", "1")).parallel.max_cp == 1);
}

TEST_CASE("plan.json: format and version") {
  CHECK(parse(plan_to_json(small_plan())).version == 1);
  Plan plan = small_plan();
  plan.version = 2;
  CHECK((parse(with("/version", "2")) == plan));
  CHECK((parse(plan_to_json(plan)) == plan));
  refused("/format", "\"other\"", "plan.json: format: must be 'slimpack-plan', found 'other'");
  refused(
      "/version", "4",
      "plan.json: version: version 4 is newer than version 3, the newest that this program reads");
  refused("/version", "0",
          "plan.json: version: must be an integer in 1 .. 9223372036854775807, found 0");
  CHECK_THROWS_WITH_AS(parse("{}"), "plan.json: the key 'format' is missing", InvalidInput);
  CHECK_THROWS_WITH_AS(parse("[]"), "plan.json: must be an object, found an array of 0",
                       InvalidInput);
  CHECK_THROWS_WITH_AS(parse(""),
                       "plan.json: not valid JSON: parse error at line 1, column 1: syntax error "
                       "while parsing value - unexpected end of input; expected '[', '{', or a "
                       "literal",
                       InvalidInput);
}

TEST_CASE("plan.json: an exchange by heads") {
  Plan plan = small_plan();
  plan.version = 3;
  plan.sample_first = {1, 0, 0};
  plan.micropacks[0].exchange = {RingMode::by_heads};
  plan.micropacks[2].exchange = {RingMode::by_heads};
  const std::string text = plan_to_json(plan);
  nlohmann::json document = nlohmann::json::parse(text);
  CHECK(document["micropacks"][0]["exchange"] == nlohmann::json::array({"heads"}));
  CHECK(document["micropacks"][1]["exchange"] == nlohmann::json::array({"kv"}));
  CHECK((parse(text) == plan));
  CHECK(plan_to_json(parse(text)) == text);
  document["version"] = 2;
  document.erase("sample_first");
  CHECK_THROWS_WITH_AS(static_cast<void>(parse(document.dump())),
                       "plan.json: micropacks[0].exchange[0]: is known from version 3 of plans on, "
                       "found 'heads'",
                       InvalidInput);
}

TEST_CASE("plan.json: gradients of weights apart") {
  const auto apart = [](const auto& change) {
    nlohmann::json document = nlohmann::json::parse(plan_to_json(small_plan()));
    document["version"] = 2;
    nlohmann::json& packs = document["micropacks"];
    packs[1]["weights"] = "apart";
    packs.push_back({{"id", packs.size()},
                     {"pass", "weight"},
                     {"group", packs[1]["group"]},
                     {"slices", packs[1]["slices"]}});
    document["schedule"][0]["order"].insert(document["schedule"][0]["order"].begin(),
                                            nlohmann::json::array({"W", packs.size() - 1, 0}));
    change(document);
    return document.dump();
  };
  const auto unchanged = [](nlohmann::json&) {};
  const Plan plan = parse(apart(unchanged));
  CHECK(plan.micropacks[1].weights == WeightGradients::apart);
  CHECK(plan.micropacks.back().pass == Pass::weight);
  CHECK(plan.micropacks.back().exchange.empty());
  CHECK(plan.micropacks.back().weights == WeightGradients::with);
  const auto id = static_cast<std::uint32_t>(plan.micropacks.size() - 1);
  CHECK(plan.schedule[0].order[0] == Unit{UnitKind::weight, PackId{id}, 0});
  const std::string text = plan_to_json(plan);
  CHECK(text.find("[\"W\"," + std::to_string(id) + ",0]") != std::string::npos);
  CHECK((parse(text) == plan));
  CHECK(plan_to_json(parse(text)) == text);
  CHECK(plan_to_json(small_plan()).find("weights") == std::string::npos);
  const auto refuses = [&](const auto& change, const std::string& message) {
    CAPTURE(message);
    CHECK_THROWS_WITH_AS(static_cast<void>(parse(apart(change))), message.c_str(), InvalidInput);
  };
  refuses([](nlohmann::json& d) { d["version"] = 1; },
          "plan.json: micropacks[1]: gradients of weights are computed apart from version 2 of "
          "plans on, not in 1");
  refuses([](nlohmann::json& d) { d["micropacks"][1]["weights"] = "later"; },
          "plan.json: micropacks[1].weights: must be one of 'with', 'apart', found 'later'");
  refuses([](nlohmann::json& d) { d["micropacks"][0]["weights"] = "apart"; },
          "plan.json: micropacks[0].weights: only backward MicroPacks may leave gradients of "
          "weights to others, found 'apart'");
  refuses([&](nlohmann::json& d) { d["micropacks"][id]["recompute"] = "none"; },
          "plan.json: micropacks[" + std::to_string(id) +
              "].recompute: a weight MicroPack recomputes nothing, found 'none'");
  refuses([&](nlohmann::json& d) { d["micropacks"][id]["exchange"] = {"kv"}; },
          "plan.json: micropacks[" + std::to_string(id) +
              "].exchange: a weight MicroPack exchanges nothing, found an array of 1");
  const nlohmann::json unit = nlohmann::json::array({"W", 1});
  refuses([&](nlohmann::json& d) { d["schedule"][0]["order"][0] = unit; },
          "plan.json: schedule[0].order[0]: must have 3 elements, the unit, its MicroPack and its "
          "chunk, found an array of 2");
}

TEST_CASE("plan.json: from version 3 on samples may begin on any rank of their groups") {
  Plan plan = small_plan();
  plan.version = 3;
  plan.sample_first = {1, 0, 0};
  const std::string text = plan_to_json(plan);
  CHECK(text.find("\"sample_first\": [1, 0, 0]") != std::string::npos);
  CHECK((parse(text) == plan));
  CHECK(plan_to_json(small_plan()).find("sample_first") == std::string::npos);
  const auto refuses = [&](const auto& change, const char* message) {
    nlohmann::json document = nlohmann::json::parse(text);
    change(document);
    CHECK_THROWS_WITH_AS(static_cast<void>(parse(document.dump())), message, InvalidInput);
  };
  refuses([](nlohmann::json& d) { d["version"] = 2; },
          "plan.json: sample_first: is known from version 3 of plans on, found an array of 3");
  refuses([](nlohmann::json& d) { d["sample_first"][0] = 2; },
          "plan.json: sample_first[0]: must be an integer in 0 .. 1, found 2");
  refuses(
      [](nlohmann::json& d) { d["sample_first"] = {1}; },
      "plan.json: sample_first: must have 3 elements, one for each sample, found an array of 1");
}

TEST_CASE("plan.json: every key that is missing is named") {
  const std::vector<std::pair<const char*, const char*>> keys{{"", "planner"},
                                                              {"", "step"},
                                                              {"", "sources"},
                                                              {"", "origin"},
                                                              {"", "samples"},
                                                              {"", "model"},
                                                              {"", "cluster"},
                                                              {"", "cost"},
                                                              {"", "memory"},
                                                              {"", "parallel"},
                                                              {"", "placement"},
                                                              {"", "stages"},
                                                              {"", "groups"},
                                                              {"", "sample_group"},
                                                              {"", "micropacks"},
                                                              {"", "schedule"},
                                                              {"", "window"},
                                                              {"/step", "index"},
                                                              {"/step", "target_tokens"},
                                                              {"/memory", "capacity"},
                                                              {"/memory", "optimizer"},
                                                              {"/memory", "page_tokens"},
                                                              {"/memory", "share_tokens"},
                                                              {"/memory", "gradient_bytes"},
                                                              {"/parallel", "dp"},
                                                              {"/parallel", "head"},
                                                              {"/parallel", "granularity"},
                                                              {"/parallel", "merge"},
                                                              {"/sources/0", "path"},
                                                              {"/sources/0", "documents"},
                                                              {"/stages/0", "layers"},
                                                              {"/micropacks/1", "id"},
                                                              {"/micropacks/1", "pass"},
                                                              {"/micropacks/1", "group"},
                                                              {"/micropacks/1", "slices"},
                                                              {"/micropacks/1", "exchange"},
                                                              {"/micropacks/1", "recompute"},
                                                              {"/schedule/1", "order"},
                                                              {"/schedule/1", "dp"},
                                                              {"/prediction", "iteration_s"},
                                                              {"/prediction", "devices"},
                                                              {"/prediction/devices/0", "busy_s"},
                                                              {"/cluster", "matrix_flops"},
                                                              {"/model", "layers"},
                                                              {"/cost", "kind"}};
  for (const auto& pair : keys) {
    const char* const object = pair.first;
    const char* const key = pair.second;
    CAPTURE(object);
    CAPTURE(key);
    const std::string rule = "the key '" + std::string(key) + "' is missing";
    try {
      static_cast<void>(parse(without(object, key)));
      CHECK_MESSAGE(false, "was read");
    } catch (const InvalidInput& error) {
      CHECK(std::string(error.what()).ends_with(rule));
    }
  }
}

TEST_CASE("plan.json: indices out of range are named with their place") {
  refused("/origin/1/0", "2", "plan.json: origin[1][0]: must be an integer in 0 .. 1, found 2");
  refused("/origin/2/1", "20", "plan.json: origin[2][1]: must be an integer in 0 .. 19, found 20");
  refused("/origin/2/2", "-1",
          "plan.json: origin[2][2]: must be an integer in 0 .. 9223372035781033983, found -1");
  refused("/sample_group/0", "3",
          "plan.json: sample_group[0]: must be an integer in 0 .. 2, found 3");
  refused("/groups/2/1", "2", "plan.json: groups[2][1]: must be an integer in 0 .. 1, found 2");
  refused("/groups/2/1", "0",
          "plan.json: groups[2][1]: must be greater than the rank before, found 0");
  refused("/groups/1", "[]",
          "plan.json: groups[1]: must have at least one rank, found an array of 0");
  refused("/micropacks/2/group", "3",
          "plan.json: micropacks[2].group: must be an integer in 0 .. 2, found 3");
  refused("/micropacks/2/slices/0/0", "3",
          "plan.json: micropacks[2].slices[0][0]: must be an integer in 0 .. 2, found 3");
  refused("/micropacks/2/slices/0/1", "-1",
          "plan.json: micropacks[2].slices[0][1]: must be an integer in 0 .. 1073741824, found -1");
  refused("/micropacks/2/slices/0/2", "1073741825",
          "plan.json: micropacks[2].slices[0][2]: must be an integer in 0 .. 1073741824, found "
          "1073741825");
  refused(
      "/micropacks/2/id", "3",
      "plan.json: micropacks[2].id: ids must count from 0 in order, so this one must be 2, found "
      "3");
  refused("/schedule/0/order/0/1", "7",
          "plan.json: schedule[0].order[0][1]: must be an integer in 0 .. 6, found 7");
  refused("/schedule/0/order/0/2", "1",
          "plan.json: schedule[0].order[0][2]: must be an integer in 0 .. 0, found 1");
  refused("/schedule/0/order/7/1", "1",
          "plan.json: schedule[0].order[7][1]: must be an integer in 0 .. 0, found 1");
  refused(
      "/schedule/0/order/0/0", "\"X\"",
      "plan.json: schedule[0].order[0][0]: must be one of 'F', 'B', 'H', 'R', 'O', 'W', found 'X'");
  refused("/schedule/1/dp", "2",
          "plan.json: schedule[1].dp: must be an integer in 0 .. 1, found 2");
  refused("/schedule/1/dp", "0",
          "plan.json: schedule[1]: this device has a schedule already (rule 3)");
  refused("/placement/1/0", "2",
          "plan.json: placement[1][0]: must be an integer in 0 .. 1, found 2");
  refused("/placement/1/0", "0",
          "plan.json: placement[1]: this dp, pp and tp has a device already");
  refused("/placement/1/3", "0",
          "plan.json: placement: a device may have one place only, but device 0 has two");
  refused("/stages/0/pp", "1", "plan.json: stages[0].pp: must be an integer in 0 .. 0, found 1");
  refused("/stages/0/chunk", "1",
          "plan.json: stages[0].chunk: must be an integer in 0 .. 0, found 1");
  refused("/stages/0/layers", "[0, 33]",
          "plan.json: stages[0].layers[1]: must be an integer in 0 .. 32, found 33");
  refused("/stages/0/layers", "[1, 32]",
          "plan.json: stages: layers must follow one another along the virtual stages: stage 0, "
          "chunk 0 must "
          "begin at layer 0, found 1");
  refused("/stages/0/layers", "[0, 31]",
          "plan.json: stages: the stages must hold all 32 layers, found 31");
  refused("/stages/0/embedding", "false",
          "plan.json: stages[0]: embedding must be true for stage 0, chunk 0, and for no other");
  refused("/prediction/devices/0/pp", "1",
          "plan.json: prediction.devices[0].pp: must be an integer in 0 .. 0, found 1");
}

TEST_CASE("plan.json: sizes that do not belong together are named") {
  refused("/origin", "[[0, 0, 0]]",
          "plan.json: origin: must have 3 elements, one for each sample, found an array of 1");
  refused("/origin/0", "[0, 0]",
          "plan.json: origin[0]: must have 3 elements, source, document and first token, found an "
          "array of 2");
  refused(
      "/sample_group", "[0, 1]",
      "plan.json: sample_group: must have 3 elements, one for each sample, found an array of 2");
  refused("/samples", "[]",
          "plan.json: samples: must have at least one sample, found an array of 0");
  refused(
      "/placement", "[]",
      "plan.json: placement: must have 2 elements, one for each dp, pp and tp, found an array of "
      "0");
  refused(
      "/placement/0", "[0]",
      "plan.json: placement[0]: must have 4 elements, dp, pp, tp and device, found an array of 1");
  refused(
      "/stages", "[]",
      "plan.json: stages: must have 1 elements, one for each stage and chunk, found an array of "
      "0");
  refused(
      "/stages/0/layers", "[0]",
      "plan.json: stages[0].layers: must have 2 elements, the first layer and the end, found an "
      "array of 1");
  refused("/micropacks/0/exchange", "[]",
          "plan.json: micropacks[0].exchange: must have 1 elements, one for each slice, found an "
          "array of 0");
  refused(
      "/micropacks/3/exchange", "[\"q\"]",
      "plan.json: micropacks[3].exchange: a group of one rank exchanges nothing, found an array "
      "of 1");
  refused(
      "/micropacks/0/slices/0", "[0, 5]",
      "plan.json: micropacks[0].slices[0]: must have 3 elements, sample, begin and end, found an "
      "array of 2");
  refused("/schedule/0/order/0", "[]",
          "plan.json: schedule[0].order[0]: must name a unit, found an array of 0");
  refused("/schedule/0/order/0", "[\"F\", 0]",
          "plan.json: schedule[0].order[0]: must have 3 elements, the unit, its MicroPack and its "
          "chunk, found an array of 2");
  refused(
      "/schedule/0/order/1", "[\"H\", 0, 0]",
      "plan.json: schedule[0].order[1]: must have 2 elements, the unit and its MicroPack, found "
      "an array of 3");
  refused("/schedule/0/order/7", "[\"R\"]",
          "plan.json: schedule[0].order[7]: must have 2 elements, the unit and its chunk, found an "
          "array of 1");
  refused(
      "/schedule/0/order/8", "[\"O\", 0]",
      "plan.json: schedule[0].order[8]: must have 1 elements, the unit alone, found an array of "
      "2");
}

TEST_CASE("plan.json: wrong types, words and amounts are named") {
  refused("/samples/1", "0",
          "plan.json: samples[1]: must be an integer in 1 .. 1073741824, found 0");
  refused("/samples/1", "\"x\"",
          "plan.json: samples[1]: must be an integer in 1 .. 1073741824, found 'x'");
  refused("/samples", "{}", "plan.json: samples: must be an array, found an object");
  refused("/step", "[]", "plan.json: step: must be an object, found an array of 0");
  refused("/step/target_tokens", "19453",
          "plan.json: step.target_tokens: must be an integer in 0 .. 19452, found 19453");
  refused("/micropacks/0/pass", "\"sideways\"",
          "plan.json: micropacks[0].pass: must be one of 'forward', 'backward', 'weight', found "
          "'sideways'");
  refused("/micropacks/0/exchange/0", "\"v\"",
          "plan.json: micropacks[0].exchange[0]: must be one of 'kv', 'q', 'heads', found "
          "'v'");
  refused("/micropacks/1/recompute", "\"some\"",
          "plan.json: micropacks[1].recompute: must be one of 'none', 'light', 'layer', 'full', "
          "found 'some'");
  refused("/parallel/head", "\"first\"",
          "plan.json: parallel.head: must be one of 'last', 'shard', found 'first'");
  refused("/memory/optimizer", "null",
          "plan.json: memory.optimizer: must be one of 'sharded', 'replicated', found null");
  refused("/memory/gradient_bytes", "5",
          "plan.json: memory.gradient_bytes: must be a power of two, found 5");
  for (const char* key : {"/memory/page_tokens", "/memory/share_tokens", "/memory/head_tile",
                          "/parallel/granularity"}) {
    CAPTURE(key);
    CHECK_THROWS_AS(parse(with(key, "0")), InvalidInput);
  }
  refused("/window", "0", "plan.json: window: must be an integer in 1 .. 1048576, found 0");
  refused("/parallel/dp", "2000000",
          "plan.json: parallel.dp: must be an integer in 1 .. 1048576, found 2000000");
  refused("/parallel/pp", "1048576",
          "plan.json: parallel: dp x pp x tp and pp x chunks must be at most 1048576");
  refused("/parallel/chunks", "1.5",
          "plan.json: parallel.chunks: must be an integer in 1 .. 1048576, found 1.5");
  refused("/prediction/ideal_s", "-1",
          "plan.json: prediction.ideal_s: must be a number in 0.0 .. 8388608.0, found -1");
  refused("/prediction/ideal_s", "1e7",
          "plan.json: prediction.ideal_s: must be a number in 0.0 .. 8388608.0, found 10000000.0");
  refused("/cluster/devices_per_node", "0",
          "plan.json: cluster.devices_per_node: must be an integer in 1 .. 1048576, found 0");
  refused("/cost/kind", "\"x\"",
          "plan.json: cost.kind: must be one of 'analytic', 'fitted', 'table', found 'x'");
}

TEST_CASE("plan.json: counts beyond 63 bits are refused") {
  nlohmann::json document = nlohmann::json::parse(plan_to_json(small_plan()));
  document["samples"] = {1073741824, 977, 244};
  document["micropacks"][0]["slices"] = {{0, 0, 1073741824},
                                         {0, 0, 1073741824},
                                         {0, 0, 1073741824},
                                         {0, 0, 1073741824},
                                         {0, 0, 1073741824}};
  document["micropacks"][0]["exchange"] = {"q", "q", "q", "q", "q"};
  const char* message =
      "plan.json: the plan's bytes and pairs of tokens must be countable in 63 bits";
  CHECK_THROWS_WITH_AS(parse(document.dump()), message, InvalidInput);
  refused("/model/heads", "536870912", message);
  refused("/model/vocab", "9007199254740992",
          "plan.json: model.vocab: must be an integer in 1 .. 2147483648, found 9007199254740992");
  document = nlohmann::json::parse(plan_to_json(small_plan()));
  document["samples"] = std::vector<std::int64_t>(1025, 1073741824);
  CHECK_THROWS_WITH_AS(parse(document.dump()),
                       "plan.json: samples: must hold at most 1099511627776 tokens in all",
                       InvalidInput);
}

TEST_CASE("plan.json: deep nesting and damaged text are refused, not followed") {
  std::string text = plan_to_json(small_plan());
  const std::string deep = std::string(500000, '[') + std::string(500000, ']');
  text.insert(1, "\"x\": " + deep + ",");
  CHECK_THROWS_WITH_AS(parse(text), "plan.json: byte 69: JSON may be nested at most 64 deep",
                       InvalidInput);
  const std::string whole = plan_to_json(small_plan());
  for (std::size_t size = 0; size + 2 < whole.size(); size += 7) {
    CHECK_THROWS_AS(parse(whole.substr(0, size)), InvalidInput);
  }
}

TEST_CASE("plan.json: strings of any bytes make valid JSON") {
  Plan plan = small_plan();
  plan.planner =
      std::string("quote \" back \\ nul \0 del \x7f", 25) + " \xe2\x82\xac \xf0\x9f\x98\x80";
  CHECK(parse(plan_to_json(plan)).planner == plan.planner);
  for (const char* bad :
       {"\xff", "\xc3", "\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x82"}) {
    plan.planner = std::string("a") + bad + "z";
    const std::string read = parse(plan_to_json(plan)).planner;
    CHECK(read.starts_with("a\xef\xbf\xbd"));
    CHECK(read.ends_with("z"));
  }
}

TEST_CASE("plan.json: from a file") {
  const test::TemporaryFolder folder;
  const std::string path = folder.file("plan.json");
  write_file(path, plan_to_json(small_plan()));
  CHECK((read_plan_file(path) == small_plan()));
  write_file(path, "{}");
  CHECK_THROWS_WITH_AS(static_cast<void>(read_plan_file(path)),
                       (path + ": the key 'format' is missing").c_str(), InvalidInput);
}

}  // namespace plan_json_test
