// SPDX-License-Identifier: Apache-2.0
#include "slimpack/runtime/process_groups.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "slimpack/runtime/program.hpp"
#include "support/random_plan.hpp"

using namespace slimpack;

namespace {

Plan plan_of(std::uint64_t seed) {
  test::RandomPlanOptions options;
  options.max_tp = 3;
  return test::random_plan(seed, options);
}

/// Of a device, by its number.
std::vector<runtime::Bucket> buckets_of(const Plan& plan, std::size_t device) {
  const auto parts = static_cast<std::size_t>(plan.parallel.tp);
  const DeviceSchedule& place = plan.schedule[device / parts];
  const auto tp = static_cast<std::int32_t>(device % parts);
  return runtime::buckets_of(plan.model, plan.stages, {plan.parallel, place.dp, place.pp, tp},
                             runtime::layout_of(plan, place.pp, tp));
}

}  // namespace

TEST_CASE("buckets_of: they make up a device's gradients, layers one by one") {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    CAPTURE(seed);
    const Plan plan = plan_of(seed);
    for (std::size_t device = 0; device < device_count(plan); ++device) {
      const auto parts = static_cast<std::size_t>(plan.parallel.tp);
      const DeviceSchedule& place = plan.schedule[device / parts];
      std::vector<int> covered(
          runtime::layout_of(plan, place.pp, static_cast<std::int32_t>(device % parts)).size());
      std::set<std::pair<std::vector<std::size_t>, std::int64_t>> names;
      std::int64_t layers = 0, held = 0;
      for (const runtime::Bucket& bucket : buckets_of(plan, device)) {
        for (std::size_t i = bucket.begin; i < bucket.begin + bucket.size; ++i) ++covered.at(i);
        CHECK(names.emplace(bucket.process_group.members, bucket.tag).second);
        layers += bucket.layer ? 1 : 0;
      }
      for (const Stage& stage : plan.stages) held += stage.pp == place.pp ? stage.layers() : 0;
      CHECK(layers == held);
      CHECK(std::ranges::all_of(covered, [](int times) { return times == 1; }));
    }
  }
}

TEST_CASE("buckets_of: devices that share a sum have as many elements of it") {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    CAPTURE(seed);
    const Plan plan = plan_of(seed);
    std::map<std::pair<std::vector<std::size_t>, std::int64_t>, std::vector<std::size_t>> sizes;
    for (std::size_t device = 0; device < device_count(plan); ++device) {
      for (const runtime::Bucket& bucket : buckets_of(plan, device)) {
        CHECK(bucket.process_group.members[bucket.process_group.self] == device);
        sizes[{bucket.process_group.members, bucket.tag}].push_back(bucket.size);
      }
    }
    for (const auto& [name, all] : sizes) {
      CHECK(all == std::vector<std::size_t>(name.first.size(), all.front()));
    }
  }
}

TEST_CASE("make_program: a B releases where only R come between it and its chunk's R") {
  std::size_t releasing = 0, later = 0;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    CAPTURE(seed);
    const Plan plan = test::random_plan(seed);
    for (const runtime::DeviceProgram& device : runtime::make_program(plan).devices) {
      for (std::size_t i = 0; i < device.units.size(); ++i) {
        const runtime::UnitWork& work = device.units[i];
        if (work.unit.kind != UnitKind::reduce) {
          CHECK((!work.releases || work.unit.kind == UnitKind::backward));
          continue;
        }
        std::size_t before = i;
        while (before > 0 && device.units[before - 1].unit.kind == UnitKind::reduce) --before;
        const bool found = before > 0 && device.units[before - 1].releases;
        const bool last = before > 0 && device.units[before - 1].unit.kind == UnitKind::backward &&
                          device.units[before - 1].unit.chunk == work.unit.chunk;
        if (last) CHECK(found);
        (last ? releasing : later) += 1;
      }
    }
  }
  CHECK(releasing > 50);
  CHECK(later > 5);
}

TEST_CASE("BucketQueue: every bucket goes once, layers where they are passed, the rest with R") {
  runtime::BucketQueue queue({{0, 4, {}, 5, 1, 3}, {4, 4, {}, 6, 1, 2}, {8, 2, {}, 1, 1, {}}});
  for (int step = 0; step < 2; ++step) {
    std::vector<std::int64_t> gone;
    const auto go = [&](const runtime::Bucket& bucket) { gone.push_back(bucket.tag); };
    queue.begin_step();
    queue.pass(3, go);
    queue.pass(3, go);
    queue.reduce(0, go);
    CHECK(gone == std::vector<std::int64_t>{5});
    queue.reduce(1, go);
    CHECK(gone == std::vector<std::int64_t>{5, 6, 1});
  }
}
