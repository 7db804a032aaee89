// SPDX-License-Identifier: Apache-2.0
// The example of docs/slimpack_planner.md: assigns samples to ranks, then cuts a rank's queue into
// packs. Its output is examples/worked_example.txt, which the page quotes.
#include <cstdint>
#include <cstdio>
#include <vector>

#include "slimpack/schedule/assign.hpp"
#include "slimpack/schedule/cut.hpp"

namespace {

using namespace slimpack;            // NOLINT(google-build-using-namespace): an example, kept short
using namespace slimpack::schedule;  // NOLINT(google-build-using-namespace)

/// A token stands for 1K tokens here. The first n of a sample take 8 n + n^2 forward and
/// 16 n + 3 n^2 backward.
constexpr SliceCost kForward{0, 8, 1};
constexpr SliceCost kBackward{0, 16, 3};

/// One sample of 32 tokens and sixteen of 4.
std::vector<QueuedSample> queue_of_samples() {
  std::vector<QueuedSample> queue{{SampleId{0}, Tokens{32}}};
  for (std::uint32_t id = 1; id <= 16; ++id) {
    queue.push_back({static_cast<SampleId>(id), Tokens{4}});
  }
  return queue;
}

std::int64_t work(const SliceCost& cost, Tokens begin, Tokens end) {
  return static_cast<std::int64_t>(cost.slice(begin, end));
}

void print_assignment(const std::vector<QueuedSample>& queue, std::int32_t max_cp) {
  std::vector<SampleNeed> needs;
  for (const QueuedSample& sample : queue) {
    needs.push_back({work(kForward, {}, sample.length) + work(kBackward, {}, sample.length), {}});
  }
  AssignRules rules;
  rules.ranks = 2;
  rules.max_cp = max_cp;
  const Assignment assignment = assign_samples(needs, rules);
  std::printf("max_cp %d: loads of the ranks", max_cp);
  for (const std::int64_t load : assignment.load)
    std::printf(" %lld", static_cast<long long>(load));
  std::printf("; sample 0 in a group of %zu\n",
              assignment.groups[index(assignment.sample_group.front())].size());
}

void print_packs(const std::vector<QueuedSample>& queue, Pass pass, const SliceCost& cost) {
  CutRules rules;
  rules.units = 4;
  rules.granularity = Tokens{1};
  const PackCuts cuts = cut_packs(queue, pass, cost, rules);
  for (std::size_t i = 0; i < cuts.packs(); ++i) {
    std::int64_t forward = 0;
    std::int64_t backward = 0;
    std::printf("%s %zu:", pass == Pass::forward ? "F" : "B", i);
    for (const Slice& slice : cuts.pack(i)) {
      forward += work(kForward, slice.begin, slice.end);
      backward += work(kBackward, slice.begin, slice.end);
      std::printf(" %u", static_cast<unsigned>(slice.sample));
      if (slice.length() != queue[index(slice.sample)].length) {
        std::printf("[%lld,%lld)", static_cast<long long>(slice.begin.value),
                    static_cast<long long>(slice.end.value));
      }
    }
    std::printf("\n     forward %lld, backward %lld\n", static_cast<long long>(forward),
                static_cast<long long>(backward));
  }
}

}  // namespace

int main() {
  const std::vector<QueuedSample> queue = queue_of_samples();
  print_assignment(queue, 1);
  print_assignment(queue, 2);
  print_packs(queue, Pass::forward, kForward);
  print_packs(queue, Pass::backward, kBackward);
}
