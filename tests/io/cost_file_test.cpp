// SPDX-License-Identifier: Apache-2.0
// Cost files: what they were measured on, and which models, clusters and devices may use them.
#include "slimpack/io/cost_file.hpp"

#include <doctest/doctest.h>

#include <string>

#include "slimpack/cost/presets.hpp"

using namespace slimpack;

namespace {

CostFile measured_file() {
  FittedCost cost;
  cost.head = FittedTerms{1e-5, 0, 2e-7, 0, 0, 0};
  return {cost, {measured_shape(*model_preset("tiny")), MeasuredDevice{"NVIDIA H200", "h200", 2}}};
}

}  // namespace

TEST_CASE("cost file: keys of its origin are read back, and a plan's reader passes over them") {
  const CostFile file = measured_file();
  const std::string text = cost_file_to_json(file);
  CHECK(text ==
        "{\"kind\": \"fitted\",\n"
        "    \"head\": {\"unit\": 1e-05, \"layer\": 0, \"token\": 2e-07, \"pair\": 0, \"segment\": "
        "0, \"byte\": 0},\n"
        "    \"shape\": {\"model\": \"tiny\", \"hidden\": 128, \"heads\": 4, \"kv_heads\": 2, "
        "\"head_dim\": 32, \"ffn\": 384, \"vocab\": 257, \"bytes_per_element\": 2},\n"
        "    \"device\": {\"name\": \"NVIDIA H200\", \"cluster\": \"h200\", \"ranks\": 2}}\n");
  CHECK(cost_file_from_json(text, "cost.json") == file);
  CHECK(cost_from_json(text, "cost.json") == file.cost);
  CHECK(cost_file_to_json({file.cost, {}}) == cost_to_json(file.cost));
}

TEST_CASE("cost file: a wrong origin is named with its key") {
  const auto refuses = [](const std::string& rest, const char* message) {
    CHECK_THROWS_WITH_AS(
        static_cast<void>(cost_file_from_json(R"({"kind": "fitted", )" + rest + "}", "c.json")),
        message, InvalidInput);
  };
  refuses(R"("shape": {"hidden": 128})", "c.json: shape: the key 'heads' is missing");
  refuses(R"("shape": {"hidden": 0})",
          "c.json: shape.hidden: must be an integer in 1 .. 1099511627776, found 0");
  refuses(R"("device": {"name": "x", "cluster": "x"})",
          "c.json: device: the key 'ranks' is missing");
  refuses(R"("devise": {})", "c.json: the key 'devise' is not known; did you mean 'device'?");
  refuses(R"("device": {"nam": "x"})",
          "c.json: device: the key 'nam' is not known; did you mean 'name'?");
  refuses(R"("shape": {"hiden": 128})",
          "c.json: shape: the key 'hiden' is not known; did you mean 'hidden'?");
  refuses(R"("device": "x")", "c.json: device: must be an object, found 'x'");
}

TEST_CASE("cost file: another shape is refused by the first size that differs") {
  const CostFile file = measured_file();
  ModelShape model = *model_preset("tiny");
  model.name = "deeper";
  model.layers = 99;
  model.rope_theta = 5e5;
  CHECK_NOTHROW(require_measured_for(file, "c.json", model));
  for (const MeasuredSize& size : kMeasuredSizes) {
    ModelShape other = model;
    other.*size.model *= 2;
    CHECK_THROWS_AS(require_measured_for(file, "c.json", other), InvalidInput);
    CHECK_NOTHROW(require_measured_for({file.cost, {}}, "c.json", other));
  }
  CHECK_THROWS_WITH_AS(
      require_measured_for(file, "c.json", *model_preset("llama3-8b")),
      "c.json: shape.hidden: the costs were measured for model 'tiny' with hidden 128, but model "
      "'llama3-8b' has 4096; mini_trainer --profile and slimpack calibrate make one that fits",
      InvalidInput);
}

TEST_CASE("cost file: another cluster or device is refused by name") {
  const CostFile file = measured_file();
  Cluster cluster = *cluster_preset("h200");
  CHECK_NOTHROW(require_measured_on(file, "c.json", cluster));
  for (const char* name : {"h200 (changed)", "NVIDIA H200"}) {
    cluster.name = name;
    CHECK_NOTHROW(require_measured_on(file, "c.json", cluster));
  }
  CHECK_NOTHROW(require_measured_on({file.cost, {}}, "c.json", *cluster_preset("h100")));
  CHECK_THROWS_WITH_AS(
      require_measured_on(file, "c.json", *cluster_preset("h100")),
      "c.json: device: the costs were measured on 'NVIDIA H200' (cluster 'h200'), not on 'h100'; "
      "mini_trainer --profile and slimpack calibrate make one that fits",
      InvalidInput);
  CHECK_NOTHROW(require_measured_on(file, "c.json", MeasuredDevice{"NVIDIA H200", "x", 8}));
  CHECK_THROWS_WITH_AS(
      require_measured_on(file, "c.json", MeasuredDevice{"NVIDIA H20", "h200", 2}),
      "c.json: device: the costs were measured on 'NVIDIA H200' (cluster 'h200'), not on 'NVIDIA "
      "H20'; mini_trainer --profile and slimpack calibrate make one that fits",
      InvalidInput);
}

TEST_CASE("cost file: measured costs without an origin are warned of") {
  CostFile file = measured_file();
  CHECK(unknown_origin(file, "c.json").empty());
  file.measured.shape.reset();
  CHECK(unknown_origin(file, "c.json") ==
        "c.json: does not tell the model (key 'shape') that it was measured on, so it is taken for "
        "any");
  file.measured.device.reset();
  CHECK(unknown_origin(file, "c.json") ==
        "c.json: does not tell the model and device (keys 'shape' and 'device') that it was "
        "measured on, so it is taken for any");
  CHECK(unknown_origin({AnalyticCost{}, {}}, "c.json").empty());
}
