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

TEST_CASE(
    "clusters: prices of small units go out and come back, and are left out where there is none") {
  Cluster cluster = parse(kSmall);
  CHECK(cluster.small == SmallUnitPrices{});
  CHECK(cluster_to_json(cluster).find("tp_overlap") == std::string::npos);
  cluster.small = {64, 1.5,   2,    0.5,  0.25,
                   1,  0.125, true, true, {{64, 0.5, 0.75}, {256, 1.5, 1.25}}};
  CHECK(cluster_from_json(cluster_to_json(cluster), "c.json") == cluster);
  refused(changed(R"({"tp_overlap": 1.5})"),
          "c.json: tp_overlap: must be a number in 0.0 .. 1.0, found 1.5");
  refused(changed(R"({"attention_head_dims": [[64, 1]]})"),
          "c.json: attention_head_dims[0]: must be [head dimension, forward, backward], found an "
          "array of 2");
  refused(changed(R"({"attention_head_dims": [[64, 1, 1], [64, 1, 1]]})"),
          "c.json: attention_head_dims[1]: must have a greater head dimension than the row before, "
          "found an array of 3");
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
                  "between": {"bytes_per_s": 25e9}, "kernel_s": 0})") == expected);
}

TEST_CASE("clusters: links are shared in presets, and elsewhere where a file says so") {
  CHECK(cluster_preset("h100").value().small.shared_links);
  CHECK_FALSE(parse(kSmall).small.shared_links);
  CHECK(parse(changed(R"({"shared_links": true})")).small.shared_links);
  const Cluster apart = parse(R"({"base": "h100", "shared_links": false})");
  CHECK_FALSE(apart.small.shared_links);
  // A cluster that does not share links is written as before there was the key.
  CHECK(cluster_to_json(apart).find("shared_links") == std::string::npos);
  CHECK_FALSE(apart.small.run_graphs);
  const Cluster graphs = parse(R"({"base": "h100", "run_graphs": true})");
  CHECK(graphs.small.run_graphs);
  CHECK(parse(cluster_to_json(graphs)).small == graphs.small);
  CHECK(parse(cluster_to_json(apart)) == apart);
}

TEST_CASE("clusters: wrong values are named with their key") {
  refused(R"({"base": "h20"})", "c.json: base: must be one of 'a100', 'h100', 'h200', found 'h20'");
  refused(R"({"base": 5})", "c.json: base: must be a string, found 5");
  refused(changed(R"({"reserved": null})"), "c.json: the key 'reserved' is missing");
  refused(changed(R"({"inside": {"latency_s": null}})"),
          "c.json: inside: the key 'latency_s' is missing");
  refused(changed(R"({"memory": 85.5e9, "reserved": 1000000.5})"),
          "c.json: reserved: must be an integer in 0 .. 1152921504606846976, found 1000000.5");
  refused(changed(R"({"reserved": 30e9})"),
          "c.json: reserved must be <= memory, found 30000000000 of 24000000000");
  refused(changed(R"({"inside": 5})"), "c.json: inside: must be an object, found 5");
  refused(changed(R"({"devices_per_node": 0})"),
          "c.json: devices_per_node: must be an integer in 1 .. 1048576, found 0");
  refused(changed(R"({"tile_tokens": 100000})"),
          "c.json: tile_tokens: must be an integer in 1 .. 65536, found 100000");
  refused(changed(R"({"name": true})"), "c.json: name: must be a string, found true");
  refused(changed(R"({"shared_links": 1})"),
          "c.json: shared_links: must be true or false, found 1");
}

TEST_CASE("clusters: a value in another unit is refused with key, unit, range and an example") {
  const std::string bytes = "must be a number of bytes in 1e8 .. 1e14 (80 GB are 80e9), found ";
  refused(changed(R"({"memory": 80})"), ("c.json: memory: " + bytes + "80").c_str());
  refused(changed(R"({"memory": 1.5})"), ("c.json: memory: " + bytes + "1.5").c_str());
  refused(changed(R"({"memory": 1e30})"), ("c.json: memory: " + bytes + "1e+30").c_str());
  refused(changed(R"({"memory": 18446744073709551615})"),
          ("c.json: memory: " + bytes + "18446744073709551615").c_str());
  refused(
      changed(R"({"reserved": 6})"),
      "c.json: reserved: must be a number of bytes in 1e6 .. 1e14, or 0 (6 GB are 6e9), found 6");
  CHECK(parse(changed(R"({"reserved": 0})")).reserved == Bytes{});

  const std::string flops =
      "must be a number of FLOP/s in 1e9 .. 1e18 (989 TFLOP/s are 989e12), found ";
  for (const char* key :
       {"peak_flops", "matrix_flops", "attention_forward_flops", "attention_backward_flops"}) {
    const std::string place = std::string("c.json: ") + key + ": ";
    refused(changed("{\"" + std::string(key) + "\": 989}"), (place + flops + "989").c_str());
    refused(changed("{\"" + std::string(key) + "\": 0}"), (place + flops + "0").c_str());
    refused(changed("{\"" + std::string(key) + "\": 1e30}"), (place + flops + "1e+30").c_str());
    CHECK_NOTHROW(parse(changed("{\"" + std::string(key) + "\": 1e9}")));
  }
  refused(changed(R"({"memory_bytes_per_s": 2900})"),
          "c.json: memory_bytes_per_s: must be a number of bytes/s in 1e9 .. 1e15 (2.9 TB/s are "
          "2.9e12), found 2900");
  refused(changed(R"({"between": {"bytes_per_s": 400}})"),
          "c.json: between.bytes_per_s: must be a number of bytes/s in 1e7 .. 1e14 (400 Gb/s are "
          "50e9), found 400");
  refused(R"({"base": "h100", "between": {"bytes_per_s": 400}})",
          "c.json: between.bytes_per_s: must be a number of bytes/s in 1e7 .. 1e14 (400 Gb/s are "
          "50e9), found 400");
  refused(changed(R"({"inside": {"bytes_per_s": "fast"}})"),
          "c.json: inside.bytes_per_s: must be a number of bytes/s in 1e7 .. 1e14 (400 Gb/s are "
          "50e9), found 'fast'");
  refused(changed(R"({"inside": {"latency_s": 6}})"),
          "c.json: inside.latency_s: must be a number of seconds in 0 .. 0.1 (6 microseconds are "
          "6e-6), found 6");
  refused(changed(R"({"kernel_s": -1e-6})"),
          "c.json: kernel_s: must be a number of seconds in 0 .. 0.01 (4 microseconds are 4e-6), "
          "found -1e-06");
  refused(changed(R"({"segment_s": 0.5})"),
          "c.json: segment_s: must be a number of seconds in 0 .. 0.01 (4 microseconds are 4e-6), "
          "found 0.5");
}

TEST_CASE("clusters: an unknown key is refused with the nearest one that is known") {
  refused(R"({"base": "h100", "between": {"bytes_per_sec": 25e9}})",
          "c.json: between: the key 'bytes_per_sec' is not known; did you mean 'bytes_per_s'?");
  refused(R"({"base": "h100", "gpus_per_node": 4})",
          "c.json: the key 'gpus_per_node' is not known; did you mean 'devices_per_node'?");
  refused(R"({"base": "h100", "inside": {"gbps": 400}})",
          "c.json: inside: the key 'gbps' is not known; the keys are bytes_per_s, latency_s");
  refused(R"({"base": "h100", "nodes": 4})",
          "c.json: the key 'nodes' is not known; the keys are base, name, devices_per_node, "
          "memory, reserved, peak_flops, matrix_flops, attention_forward_flops, "
          "attention_backward_flops, memory_bytes_per_s, inside, between, kernel_s, segment_s, "
          "tile_tokens, forward_kernels, backward_kernels, head_kernels, embedding_kernels, "
          "matrix_tile_rows, weight_traffic, accumulator_traffic, prefix_traffic, memory_overlap, "
          "tp_overlap, collective_compute, shared_links, run_graphs, attention_head_dims");
  refused(changed(R"({"matrix_flop": 8e13})"),
          "c.json: the key 'matrix_flop' is not known; did you mean 'matrix_flops'?");
}

TEST_CASE("clusters: a plan.json may hold odd values and the keys of other writers") {
  const nlohmann::json object = nlohmann::json::parse(
      changed(R"({"memory": 80, "reserved": 6, "matrix_flops": 5, "kernel_s": 2, "nodes": 4,
                  "inside": {"gbps": 400, "bytes_per_s": 7}})"));
  const Cluster cluster = detail::read_cluster(JsonReader(object, "plan.json"));
  CHECK(cluster.memory == Bytes{80});
  CHECK(cluster.inside.bytes_per_s == 7);
  CHECK(cluster.kernel_s == 2);
}

}  // namespace cluster_json_test
