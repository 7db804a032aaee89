// SPDX-License-Identifier: Apache-2.0
#include "slimpack/planners/detail/slimpack_judged.hpp"

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
  Assignment assignment;
  std::vector<std::vector<LineSample>> members;
  std::vector<SampleNeed> needs;
  std::vector<std::size_t> islands;

  explicit FallingLines(const std::vector<std::size_t>& counts) {
    std::size_t most = 0;
    for (std::size_t group = 0; group < counts.size(); ++group) {
      assignment.groups.push_back({static_cast<std::int32_t>(group)});
      islands.push_back(group);
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
  const FallingLines line({10, 2 * detail::kJudgedSamples - 1, 8 * detail::kJudgedSamples, 0});
  const auto judged = detail::judge(line.assignment, line.members, line.needs, line.islands, 4);
  REQUIRE(judged.size() == 4);
  for (const std::size_t small : {0U, 1U, 3U}) {
    CHECK(judged[small].members[small].size() == line.members[small].size());
    CHECK(judged[small].part == judged[small].whole);
    CHECK(judged[small].left_out(Nanos{1000}) == Nanos{0});
    CHECK(judged[small].part_of(17) == 17);
  }
  const detail::Judged& part = judged[2];
  const std::vector<LineSample>& taken = part.members[2];
  CHECK(taken.size() ==
        detail::kJudgedSamples + detail::kJudgedLongest - detail::kJudgedLongest / 8);
  std::int64_t work = 0, all = 0;
  for (const LineSample& sample : taken) work += sample.length.value;
  for (const LineSample& sample : line.members[2]) all += sample.length.value;
  CHECK(part.part == work);
  CHECK(part.whole == all);
  for (std::size_t at = 0; at < detail::kJudgedLongest; ++at) {
    CHECK(taken[at].id == line.members[2][at].id);
  }
  for (std::size_t at = 1; at < taken.size(); ++at) {
    CHECK(taken[at].length < taken[at - 1].length);
  }
  CHECK(part.left_out(Nanos{work}).value == all - work);
  CHECK(part.part_of(all) == work);
  CHECK(part.part_of(1) == 1);
}

TEST_CASE("slimpack: a step of many samples is planned whole, near the bound") {
  Random random(5);
  std::vector<std::int64_t> lengths(12'000);
  for (std::int64_t& length : lengths) length = random.between(16, 900);
  PlanRequest request = test::request_of(lengths, 8);
  request.context = Tokens{1024};
  request.dp = 2;
  request.pp = 2;
  request.effort = Effort::normal;
  request.cluster.kernel_s = request.cluster.segment_s = 0;
  const PlanOutcome outcome = plan_by("slimpack", request);
  const Plan& plan = plan_of(outcome);
  CHECK(validate(plan).valid());
  CHECK(plan.samples.size() == lengths.size());
  CHECK(outcome.evaluations <= evaluations(request));
  CHECK(plan.prediction.iteration.value <= plan.prediction.lower_bound.value / 100 * 115);
}
