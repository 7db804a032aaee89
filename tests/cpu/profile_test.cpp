// SPDX-License-Identifier: Apache-2.0
// Profiles of the CPU backend: which rows there are, that they can be written, read and fitted.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <sstream>
#include <vector>

#include "slimpack/cost/fit.hpp"
#include "slimpack/cost/load.hpp"
#include "slimpack/cost/profile.hpp"
#include "slimpack_cpu/profile_cluster.hpp"

using namespace slimpack;

namespace {

ModelShape profiled_shape() {
  return {"small", 3, 16, 2, 1, 8, 24, 33, false, 1e4, 1e-5, 4};
}

cpu::ProfileOptions small_profile(std::size_t ranks) {
  cpu::ProfileOptions options;
  options.ranks = ranks;
  options.context = Tokens{256};
  options.rounds = 2;
  return options;
}

std::size_t rows_of(const std::vector<ProfileRow>& rows, ProfileKind kind) {
  std::size_t count = 0;
  for (const ProfileRow& row : rows) count += row.kind == kind ? 1 : 0;
  return count;
}

}  // namespace

TEST_CASE("profile: every plan that is timed is valid and spans prefixes, segments and layers") {
  for (const std::int64_t context : {1, 128, 256, 8192}) {
    CAPTURE(context);
    std::set<std::int64_t> layers, prefixes, segments;
    for (const cpu::ProfilePlan& made : cpu::profile_plans(profiled_shape(), Tokens{context})) {
      CHECK(made.plan.model.layers == made.layers);
      layers.insert(made.layers);
      CHECK_NOTHROW((void)runtime::make_program(made.plan));
      for (const MicroPack& pack : made.plan.micropacks) {
        segments.insert(static_cast<std::int64_t>(pack.slices.size()));
        for (const Slice& slice : pack.slices) prefixes.insert(slice.begin.value);
      }
    }
    CHECK(layers == std::set<std::int64_t>{1, 2, 3});
    CHECK(prefixes.size() >= 8);
    CHECK(segments.size() >= 5);
  }
}

TEST_CASE("profile: measured rows can be written, read to equal rows, and fitted") {
  for (const std::size_t ranks : {1U, 2U, 3U}) {
    CAPTURE(ranks);
    const cpu::MeasuredProfile measured =
        cpu::measure_profile<cpu::FastMath>(profiled_shape(), small_profile(ranks));
    CHECK(measured.core_share > 0);
    CHECK(measured.core_share <= 1);
    const std::vector<ProfileRow>& rows = measured.rows;
    for (const ProfileKind kind : {ProfileKind::layer, ProfileKind::apart, ProfileKind::weight,
                                   ProfileKind::embedding, ProfileKind::head}) {
      CHECK(rows_of(rows, kind) >= 10);
    }
    CHECK(rows_of(rows, ProfileKind::optimizer) == 3);
    for (const ProfileKind kind :
         {ProfileKind::p2p, ProfileKind::reduce, ProfileKind::exchange, ProfileKind::tensor}) {
      CHECK(rows_of(rows, kind) == (ranks > 1 ? 5U : 0U));
    }
    const bool by_heads = divides_heads(profiled_shape(), 1, static_cast<std::int64_t>(ranks));
    CHECK(rows_of(rows, ProfileKind::context) == (ranks == 1 ? 0U : by_heads ? 32U : 16U));
    std::ostringstream text;
    const Profile profile{{measured_shape(profiled_shape()), cpu::measured_device(ranks)}, rows};
    write_profile(text, profile);
    CHECK(parse_profile(text.str(), "profile.csv") == profile);
    const FittedCost cost = fit_cost(rows).cost;
    // Beside other work any one coefficient may come out as 0, not all of a kind.
    for (const auto& terms : {cost.layer_forward, cost.layer_backward, cost.layer_apart,
                              cost.layer_weight, cost.head}) {
      REQUIRE(terms);
      CHECK(terms->unit + terms->layer + terms->token + terms->pair + terms->segment +
                terms->weight_byte + terms->accumulator_byte >
            0);
    }
    CHECK(cost.p2p.has_value() == (ranks > 1));
    CHECK(cost.tensor.has_value() == (ranks > 1));
    CHECK(cost.context_forward.has_value() == (ranks > 1));
    CHECK(cost.context_backward.has_value() == (ranks > 1));
  }
}

TEST_CASE("profile: ranks of a group have equal parts of its packs") {
  for (const std::int32_t ranks : {2, 3, 4}) {
    for (const std::int64_t context : {1, 256, 1000}) {
      CAPTURE(ranks);
      CAPTURE(context);
      const auto plans = cpu::group_plans(profiled_shape(), Tokens{context}, ranks);
      CHECK(plans.size() == (divides_heads(profiled_shape(), 1, ranks) ? 2 : 1));
      for (const cpu::ProfilePlan& made : plans) {
        CHECK_NOTHROW((void)runtime::make_program(made.plan));
        for_each_pack_load(made.plan, [&](PackId id, std::span<const PackLoad> loads) {
          Tokens tokens;
          for (const Slice& slice : made.plan.micropacks[index(id)].slices) {
            tokens += slice.length();
          }
          for (const PackLoad& load : loads) {
            CHECK(load.tokens.value * ranks == tokens.value);
            CHECK(load.pairs2 == loads.front().pairs2);
            CHECK(load.kv_received == loads.front().kv_received);
          }
        });
      }
    }
  }
}

TEST_CASE("profile: ranks that split layers have rows of their collectives in units") {
  ModelShape shape = profiled_shape();
  shape.kv_heads = 2;
  CHECK(cpu::split_plan(shape, Tokens{256}, 2).plan.placement.size() == 2);
  for (const std::size_t ranks : {2U, 4U}) {
    CAPTURE(ranks);
    cpu::ProfileOptions options = small_profile(ranks);
    options.tensor_parallel = 2;
    const auto rows = cpu::measure_profile<cpu::FastMath>(shape, options).rows;
    // One for F and one for B of each pack.
    std::vector<std::int64_t> tokens;
    for (const ProfileRow& row : rows) {
      if (row.kind != ProfileKind::tensor) continue;
      CHECK(row.ranks == 2);
      CHECK(row.seconds > 0);
      CHECK(row.layers == 2);
      CHECK(row.bytes.value * 2 == row.tokens.value * shape.hidden * 4);
      tokens.push_back(row.tokens.value);
    }
    CHECK(tokens ==
          std::vector<std::int64_t>{128, 128, 256, 128, 64, 16, 16, 64, 128, 256, 128, 128});
    CHECK(fit_cost(rows).cost.tensor.has_value());
  }
}

TEST_CASE("profile: pairs, segments and bytes are those of the units") {
  const auto rows = cpu::measure_profile<cpu::PlainMath>(profiled_shape(),
                                                         [] {
                                                           cpu::ProfileOptions options =
                                                               small_profile(1);
                                                           options.quick = true;
                                                           options.rounds = 1;
                                                           return options;
                                                         }())
                        .rows;
  // The first sample of 128 tokens is cut in four: pairs 32 (prefix + 16).
  std::vector<double> pairs;
  for (const ProfileRow& row : rows) {
    if (row.kind == ProfileKind::layer && row.pass == Pass::forward && row.layers == 1) {
      pairs.push_back(row.pairs);
    }
  }
  REQUIRE(pairs.size() == 6);
  CHECK(pairs[0] == 32 * 16);
  CHECK(pairs[1] == 32 * 48);
  CHECK(pairs[3] == 32 * 112);
  CHECK(pairs[5] == 16 * 4 * 2);
  for (const ProfileRow& row : rows) {
    if (row.kind != ProfileKind::optimizer) continue;
    // One layer: 16 x (2 x 16 + 2 x 8) + 3 x 16 x 24 + 2 x 16, two tables and the final norm, of
    // 8 bytes, touched six times in fp64: weight and gradient once, two moments read and written.
    const std::int64_t layer = 16 * 48 + 3 * 16 * 24 + 32, rest = 2 * 33 * 16 + 16;
    const bool known =
        row.bytes.value == 48 * (layer + rest) || row.bytes.value == 48 * (2 * layer + rest);
    CHECK(known);
  }
}

TEST_CASE("profile: options out of range are refused") {
  cpu::ProfileOptions options = small_profile(0);
  CHECK_THROWS_AS((void)cpu::measure_profile<cpu::FastMath>(profiled_shape(), options),
                  InvalidInput);
  options.ranks = 1;
  options.rounds = 0;
  CHECK_THROWS_WITH_AS((void)cpu::measure_profile<cpu::FastMath>(profiled_shape(), options),
                       "measure_profile: rounds must be >= 1, got 0", InvalidInput);
  options.rounds = 1;
  options.tensor_parallel = 2;
  CHECK_THROWS_WITH_AS((void)cpu::measure_profile<cpu::FastMath>(profiled_shape(), options),
                       "measure_profile: tensor_parallel must divide ranks, got 2", InvalidInput);
  options.tensor_parallel = 1;
  options.context = Tokens{0};
  CHECK_THROWS_WITH_AS((void)cpu::measure_profile<cpu::FastMath>(profiled_shape(), options),
                       "measure_profile: context must be >= 1, got 0", InvalidInput);
  CHECK_THROWS_WITH_AS((void)cpu::cpu_cluster(0, Bytes{1}),
                       "cpu_cluster: devices must be >= 1, got 0", InvalidInput);
  CHECK_THROWS_WITH_AS((void)cpu::cpu_cluster(1, Bytes{0}),
                       "cpu_cluster: memory must be > 0, got 0", InvalidInput);
}

TEST_CASE("profile: the device that is measured has the processor's name and the ranks") {
  const MeasuredDevice device = cpu::measured_device(3);
  CHECK(device == cpu::measured_device(3));
  CHECK(device.ranks == 3);
  CHECK(device.cluster == cpu::cpu_cluster(1, Bytes{1}).name);
  CHECK(device.name.find(" thread") != std::string::npos);
  CHECK(device.name.find('\n') == std::string::npos);
}

TEST_CASE("profile: the cluster of cores is the same wherever it is made") {
  const Cluster cluster = cpu::cpu_cluster(4, Bytes{1'000'000});
  CHECK(cluster == cpu::cpu_cluster(4, Bytes{1'000'000}));
  CHECK(cluster.devices_per_node == 4);
  CHECK(cluster.memory == Bytes{1'000'000});
  CHECK(cluster.link(0, 3) == cluster.inside);
}
