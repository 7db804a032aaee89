// SPDX-License-Identifier: Apache-2.0
#include "slimpack/planners/slimpack/sampled_workload.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <variant>
#include <vector>

#include "planners/outcome.hpp"
#include "planners/requests.hpp"
#include "slimpack/validate/validate.hpp"

using namespace slimpack;

namespace {

/// One rank a group, lengths falling, the work of a sample its length.
struct FallingLines {
  schedule::Assignment assignment;
  std::vector<std::vector<schedule::QueuedSample>> members;
  std::vector<schedule::SampleNeed> needs;
  std::vector<std::size_t> components;

  explicit FallingLines(const std::vector<std::size_t>& counts) {
    std::size_t most = 0;
    for (std::size_t group = 0; group < counts.size(); ++group) {
      assignment.groups.push_back({static_cast<std::int32_t>(group)});
      components.push_back(group);
      most = std::max(most, counts[group]);
    }
    members.resize(counts.size());
    for (std::size_t round = 0; round < most; ++round) {
      for (std::size_t group = 0; group < counts.size(); ++group) {
        if (round >= counts[group]) continue;
        const auto length = static_cast<std::int64_t>(most - round);
        members[group].push_back({static_cast<SampleId>(needs.size()), Tokens{length}});
        needs.push_back({length, Bytes{}});
        assignment.sample_group.push_back(static_cast<GroupId>(group));
      }
    }
  }
};

}  // namespace

TEST_CASE("judge: few samples are all there, of many the longest and every so-manieth") {
  const FallingLines line(
      {10, 2 * planners::kSampledSamples - 1, 8 * planners::kSampledSamples, 0});
  const auto sampled =
      planners::sample_workload(line.assignment, line.members, line.needs, line.components, 4);
  REQUIRE(sampled.size() == 4);
  for (const std::size_t small : {0U, 1U, 3U}) {
    CHECK(sampled[small].members[small].size() == line.members[small].size());
    CHECK(sampled[small].part == sampled[small].whole);
    CHECK(sampled[small].left_out(Nanos{1000}) == Nanos{0});
    CHECK(sampled[small].part_of(17) == 17);
  }
  const planners::SampledWorkload& part = sampled[2];
  const std::vector<schedule::QueuedSample>& taken = part.members[2];
  CHECK(taken.size() ==
        planners::kSampledSamples + planners::kSampledLongest - planners::kSampledLongest / 8);
  std::int64_t work = 0, all = 0;
  for (const schedule::QueuedSample& sample : taken) work += sample.length.value;
  for (const schedule::QueuedSample& sample : line.members[2]) all += sample.length.value;
  CHECK(part.part == work);
  CHECK(part.whole == all);
  for (std::size_t i = 0; i < planners::kSampledLongest; ++i) {
    CHECK(taken[i].id == line.members[2][i].id);
  }
  for (std::size_t i = 1; i < taken.size(); ++i) {
    CHECK(taken[i].length < taken[i - 1].length);
  }
  CHECK(part.left_out(Nanos{work}).value == all - work);
  CHECK(part.part_of(all) == work);
  CHECK(part.part_of(1) == 1);
}

TEST_CASE("slimpack: a step of many samples is planned whole, near the bound") {
  Random random(5);
  std::vector<std::int64_t> lengths(12'000);
  for (std::int64_t& length : lengths) length = random.between(16, 900);
  planners::PlanRequest request = test::request_of(lengths, 8);
  request.context = Tokens{1024};
  request.dp = 2;
  request.pp = 2;
  request.effort = planners::Effort::normal;
  request.cluster.kernel_s = request.cluster.segment_s = 0;
  const planners::PlanOutcome outcome = plan_by("slimpack", request);
  const Plan& plan = plan_of(outcome);
  CHECK(validate(plan).valid());
  CHECK(plan.samples.size() == lengths.size());
  CHECK(outcome.simulated_devices <=
        planners::evaluations(request) * planners::all_devices(request));
  CHECK(plan.prediction.iteration.value <= plan.prediction.lower_bound.value / 100 * 115);
}
