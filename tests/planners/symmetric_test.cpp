// SPDX-License-Identifier: Apache-2.0
#include "slimpack/planners/slimpack/symmetric.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "slimpack/core/random.hpp"

using namespace slimpack;

TEST_CASE("pack_in_blocks: every sample lies in one block, which no rank leaves before it ends") {
  std::int64_t several = 0, draws = 0;
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    std::vector<std::int64_t> lengths;
    for (std::int64_t i = random.between(1, 60); i > 0; --i) {
      lengths.push_back(random.between(1, random.chance(1, 4) ? 8000 : 600));
    }
    std::sort(lengths.rbegin(), lengths.rend());
    std::vector<schedule::QueuedSample> samples;
    std::int64_t tokens = 0;
    for (const std::int64_t length : lengths) {
      samples.push_back({static_cast<SampleId>(samples.size()), Tokens{length}});
      tokens += length;
    }
    schedule::CutRules rules;
    rules.granularity = Tokens{random.between(1, 128)};
    const std::int64_t stages = random.between(2, 8), units = random.between(1, 64);
    const schedule::SliceCost cost{random.between(0, 100), random.between(1, 50),
                                   random.between(0, 3)};
    const planners::SymmetricPacks packs =
        planners::pack_in_blocks(samples, cost, units, stages, rules);

    // Backward order has every pack once, and gives away the blocks: it falls inside one.
    std::vector<std::size_t> sorted = packs.backward;
    std::sort(sorted.begin(), sorted.end());
    for (std::size_t i = 0; i < sorted.size(); ++i) CHECK(sorted[i] == i);
    REQUIRE(sorted.size() == packs.forward.packs());
    std::map<SampleId, Tokens> done;
    std::size_t begin = 0;
    while (begin < packs.backward.size()) {
      const std::size_t end = packs.backward[begin] + 1;
      CHECK(static_cast<std::int64_t>(end - begin) <= stages);
      std::set<SampleId> here;
      std::int64_t in_block = 0;
      for (std::size_t i = begin; i < end; ++i) {
        CHECK(packs.backward[begin + end - 1 - i] == i);
        CHECK_FALSE(packs.forward.pack(i).empty());
        for (const Slice& slice : packs.forward.pack(i)) {
          CHECK(slice.begin == done[slice.sample]);
          done[slice.sample] = slice.end;
          here.insert(slice.sample);
          in_block += (slice.end - slice.begin).value;
        }
      }
      for (const SampleId sample : here) CHECK(done[sample] == samples[index(sample)].length);
      const std::int64_t blocks = std::max<std::int64_t>(1, units / stages);
      CHECK(in_block <= std::max(lengths.front(), (tokens + blocks - 1) / blocks));
      begin = end;
      several += end < packs.backward.size() ? 1 : 0;
    }
    CHECK(done.size() == samples.size());
    ++draws;
  }
  MESSAGE("blocks behind which others follow ", several, " in ", draws, " draws");
  CHECK(several > draws);
}
