// SPDX-License-Identifier: Apache-2.0
#include "slimpack/io/cluster_json.hpp"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "slimpack/cost/presets.hpp"

namespace cluster_json_test {

using namespace slimpack;

namespace {

const std::string kSmall = R"({
  "memory": 24e9, "reserved": 1e9, "peak_flops": 1e14, "matrix_flops": 8e13,
  "attention_forward_flops": 6e13, "attention_backward_flops": 5e13, "memory_bytes_per_s": 9e11,
  "inside": {"bytes_per_s": 1e10, "latency_s": 1e-5},
  "between": {"bytes_per_s": 1e9, "latency_s": 2e-5}, "kernel_s": 5e-6, "segment_s": 0
})";

Cluster parse(const std::string& text) {
  return cluster_from_json(text, "c.json", cluster_presets());
}

std::string changed(const std::string& patch) {
  nlohmann::json object = nlohmann::json::parse(kSmall);
  object.merge_patch(nlohmann::json::parse(patch));
  return object.dump();
}

void refused(const std::string& text, const char* message) {
  CHECK_THROWS_WITH_AS(parse(text), message, InvalidInput);
}

}  // namespace

TEST_CASE("clusters: every preset goes out and comes back the same") {
  for (const Cluster& cluster : cluster_presets()) {
    CHECK(cluster_from_json(cluster_to_json(cluster), "c.json") == cluster);
  }
}

TEST_CASE("clusters: a file of its own, with the defaults that the schema names") {
  const Cluster cluster = parse(kSmall);
  CHECK(cluster.name == "custom");
  CHECK(cluster.memory == Bytes{24'000'000'000});
  CHECK(cluster.inside == Link{1e10, 1e-5});
  CHECK(cluster.devices_per_node == 8);
  CHECK(cluster.tile_tokens == 128);
  CHECK(cluster.backward_kernels == 20);
}

TEST_CASE("clusters: a base keeps what is not given, inside links too") {
  Cluster expected = cluster_preset("h100").value();
  expected.name = "h100 (changed)";
  CHECK(parse(R"({"base": "h100"})") == expected);
  expected.name = "ours";
  expected.memory = Bytes{40'000'000'000};
  expected.between.bytes_per_s = 25e9;
  expected.kernel_s = 0;
  CHECK(parse(R"({"base": "h100", "name": "ours", "memory": 40000000000,
                  "between": {"bytes_per_s": 25e9}, "kernel_s": 0, "note": ["ignored"]})") ==
        expected);
}

TEST_CASE("clusters: wrong values are named with their key") {
  refused(R"({"base": "h20"})", "c.json: base: must be one of 'a100', 'h100', 'h200', found 'h20'");
  refused(R"({"base": 5})", "c.json: base: must be a string, found 5");
  refused(changed(R"({"reserved": null})"), "c.json: the key 'reserved' is missing");
  refused(changed(R"({"inside": {"latency_s": null}})"),
          "c.json: inside: the key 'latency_s' is missing");
  refused(changed(R"({"memory": 1.5})"),
          "c.json: memory: must be an integer in 0 .. 1152921504606846976, found 1.5");
  refused(changed(R"({"memory": 1e30})"),
          "c.json: memory: must be an integer in 0 .. 1152921504606846976, found 1e+30");
  refused(changed(R"({"memory": 18446744073709551615})"),
          "c.json: memory: must be an integer in 0 .. 1152921504606846976, found "
          "18446744073709551615");
  refused(changed(R"({"reserved": 30e9})"),
          "c.json: reserved must be <= memory, found 30000000000 of 24000000000");
  refused(changed(R"({"matrix_flops": 0})"),
          "c.json: matrix_flops: must be a number in 1.0 .. 1e+30, found 0");
  refused(changed(R"({"kernel_s": -1e-6})"),
          "c.json: kernel_s: must be a number in 0.0 .. 1000000.0, found -1e-06");
  refused(changed(R"({"inside": 5})"), "c.json: inside: must be an object, found 5");
  refused(changed(R"({"inside": {"bytes_per_s": "fast"}})"),
          "c.json: inside.bytes_per_s: must be a number in 1.0 .. 1e+30, found 'fast'");
  refused(changed(R"({"devices_per_node": 0})"),
          "c.json: devices_per_node: must be an integer in 1 .. 1048576, found 0");
  refused(changed(R"({"tile_tokens": 100000})"),
          "c.json: tile_tokens: must be an integer in 1 .. 65536, found 100000");
  refused(changed(R"({"name": true})"), "c.json: name: must be a string, found true");
}

}  // namespace cluster_json_test
