// SPDX-License-Identifier: Apache-2.0
#include "slimpack/schedule/cut.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "slimpack/core/random.hpp"

using namespace slimpack;

namespace {

std::vector<schedule::QueuedSample> line_of_lengths(const std::vector<std::int64_t>& lengths) {
  std::vector<schedule::QueuedSample> line;
  for (const std::int64_t length : lengths) {
    line.push_back({static_cast<SampleId>(line.size()), Tokens{length}});
  }
  return line;
}

std::vector<std::vector<Slice>> packs_of(const schedule::PackCuts& line) {
  std::vector<std::vector<Slice>> packs;
  for (std::size_t i = 0; i < line.packs(); ++i) {
    const auto pack = line.pack(i);
    packs.emplace_back(pack.begin(), pack.end());
  }
  return packs;
}

Slice slice(std::uint32_t sample, std::int64_t begin, std::int64_t end) {
  return {SampleId{sample}, Tokens{begin}, Tokens{end}};
}

}  // namespace

TEST_CASE("cut_packs: hand-solved forward and backward") {
  const auto line = line_of_lengths({40, 5, 15});
  schedule::CutRules rules;
  rules.units = 3;
  rules.granularity = Tokens{10};
  using Packs = std::vector<std::vector<Slice>>;
  CHECK(packs_of(schedule::cut_packs(line, Pass::forward, {}, rules)) ==
        Packs{{slice(0, 0, 20)}, {slice(0, 20, 40)}, {slice(1, 0, 5), slice(2, 0, 15)}});
  CHECK(packs_of(schedule::cut_packs(line, Pass::backward, {}, rules)) ==
        Packs{{slice(0, 20, 40)}, {slice(0, 0, 20)}, {slice(1, 0, 5), slice(2, 0, 15)}});
  // Half of the pairs lies behind 1/sqrt 2 of the sample.
  rules.units = 2;
  CHECK(packs_of(schedule::cut_packs(line_of_lengths({100}), Pass::forward,
                                     schedule::SliceCost{0, 1, 1000}, rules)) ==
        Packs{{slice(0, 0, 70)}, {slice(0, 70, 100)}});
  CHECK(packs_of(schedule::cut_packs(line_of_lengths({100}), Pass::backward,
                                     schedule::SliceCost{0, 1, 1000}, rules)) ==
        Packs{{slice(0, 70, 100)}, {slice(0, 0, 70)}});
  rules.whole = Tokens{100};
  CHECK(schedule::cut_packs(line_of_lengths({100}), Pass::forward, {}, rules).packs() == 1);
  CHECK(schedule::cut_packs({}, Pass::forward, {}, rules).packs() == 0);
}

TEST_CASE("pack_weights: ramps grow to full packs and keep the sum") {
  CHECK(schedule::pack_weights(3, {}, {}) == std::vector<std::int64_t>{65536, 65536, 65536});
  const auto weights = schedule::pack_weights(10, {250, 1000}, {500, 1000});
  CHECK(weights.front() == 16384);
  CHECK(weights[1] == 32768);
  CHECK(weights.back() == 32768);
  CHECK(std::max_element(weights.begin(), weights.end())[0] == 65536);
}

TEST_CASE("cut_packs: laws over many draws") {
  std::int64_t cut = 0, ramped = 0, whole = 0, fewer = 0;
  for (std::uint64_t seed = 0; seed < 10000; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    std::vector<std::int64_t> lengths;
    const std::int64_t count = random.between(1, 12);
    for (std::int64_t i = 0; i < count; ++i) {
      lengths.push_back(random.between(1, random.chance(1, 4) ? 5000 : 300));
    }
    const auto samples = line_of_lengths(lengths);
    schedule::SliceCost cost{random.between(0, 500), random.between(1, 1000), random.between(0, 3)};
    if (random.chance(1, 3)) {
      cost.early = Tokens{random.between(1, 6000)};
      cost.early_token = random.between(0, 1000);
      cost.early_pair2 = random.between(0, 3);
    }
    schedule::SliceCosts costs(cost);
    if (random.chance(1, 3)) {
      costs.limits = {Tokens{random.between(1, 1000)}};
      costs.costs.push_back(
          {random.between(0, 500), random.between(1, 1000), random.between(0, 3)});
    }
    schedule::CutRules rules;
    rules.units = random.between(1, 60);
    rules.granularity = Tokens{random.chance(1, 3) ? 1 : random.between(1, 300)};
    if (random.chance(1, 3)) rules.whole = Tokens{random.between(0, 1000)};
    if (random.chance(1, 3)) rules.front = {random.between(1, 1000), random.between(1, 500)};
    if (random.chance(1, 3)) rules.back = {random.between(1, 1000), random.between(1, 500)};
    const Pass pass = random.chance(1, 2) ? Pass::forward : Pass::backward;
    const schedule::PackCuts line = schedule::cut_packs(samples, pass, costs, rules);
    const auto weights = schedule::pack_weights(rules.units, rules.front, rules.back);
    CHECK(line.packs() <= weights.size());
    CHECK(line.packs() >= 1);

    std::vector<std::int64_t> position(samples.size());
    if (pass == Pass::backward) position = lengths;
    std::size_t open = 0;  // samples come one after the other
    Int128 total = 0, largest = 0;
    for (const schedule::QueuedSample& sample : samples)
      total += costs.of(sample.length).slice({}, sample.length);
    for (std::size_t number = 0; number < line.packs(); ++number) {
      Int128 work = 0;
      CHECK(!line.pack(number).empty());
      std::set<std::size_t> seen;
      for (const Slice& part : line.pack(number)) {
        const std::size_t sample = index(part.sample);
        CHECK(seen.insert(sample).second);
        CHECK(sample >= open);
        open = sample;
        CHECK(part.begin < part.end);
        std::int64_t& next = position[sample];
        CHECK(next == (pass == Pass::forward ? part.begin : part.end).value);
        next = (pass == Pass::forward ? part.end : part.begin).value;
        CHECK((part.begin.value == 0 || part.begin.value % rules.granularity.value == 0));
        CHECK((part.end.value == lengths[sample] || part.end.value % rules.granularity.value == 0));
        if (Tokens{lengths[sample]} <= rules.whole) {
          CHECK(part.length().value == lengths[sample]);
          ++whole;
        } else if (part.length().value < lengths[sample]) {
          ++cut;
        }
        const schedule::SliceCost& own = costs.of(Tokens{lengths[sample]});
        work += own.upto(part.end) - own.upto(part.begin);
      }
      largest = std::max(largest, work);
    }
    for (std::size_t sample = 0; sample < samples.size(); ++sample) {
      CHECK(position[sample] == (pass == Pass::forward ? lengths[sample] : 0));
    }
    // No pack exceeds a full one by more than what lies between places where a cut may be.
    Int128 uncut = 0;
    for (const std::int64_t length : lengths) {
      const std::int64_t piece =
          Tokens{length} <= rules.whole ? length : std::min(length, rules.granularity.value);
      const schedule::SliceCost& own = costs.of(Tokens{length});
      // The last piece has most pairs; of those that cost more the last ones do.
      const std::int64_t last = std::min(own.early.value, length - 1) / piece * piece;
      for (const std::int64_t begin : {std::max<std::int64_t>(0, last - piece), last,
                                       std::max<std::int64_t>(0, length - piece)}) {
        const Tokens end{std::min(begin + piece, length)};
        uncut = std::max(uncut, own.slice(Tokens{begin}, end));
      }
    }
    const Int128 full = total * 65536 / Int128{[&] {
                          std::int64_t sum = 0;
                          for (const std::int64_t weight : weights) sum += weight;
                          return sum;
                        }()};
    CHECK(largest <= full + uncut + 1);
    ramped += rules.front == schedule::Ramp{} && rules.back == schedule::Ramp{} ? 0 : 1;
    fewer += line.packs() < weights.size() ? 1 : 0;
  }
  MESSAGE("slices of cut samples ", cut, ", whole ", whole, ", ramped lines ", ramped,
          ", with fewer packs than asked for ", fewer);
  CHECK(ramped > 3000);
  CHECK(fewer > 500);
}

TEST_CASE("cut_packs: refuses what makes no sense") {
  const auto line = line_of_lengths({10});
  const auto refuse = [&](const schedule::CutRules& rules, const char* why) {
    CHECK_THROWS_WITH_AS(static_cast<void>(schedule::cut_packs(line, Pass::forward, {}, rules)),
                         why, InvalidInput);
  };
  schedule::CutRules rules;
  rules.units = 0;
  refuse(rules, "cut_packs: units must be >= 1, got 0");
  rules = {};
  rules.units = std::int64_t{1} << 25U;
  refuse(rules, "cut_packs: units must be <= 2^24, got 33554432");
  rules = {};
  rules.granularity = {};
  refuse(rules, "cut_packs: granularity must be >= 1, got 0");
  rules = {};
  rules.front = {0, 1};
  refuse(rules, "cut_packs: the first of a ramp must be 1 .. 1000 thousandths, got 0");
  rules.front = {1, 0};
  refuse(rules, "cut_packs: the growth of a ramp must be >= 1, got 0");
  CHECK_THROWS_WITH_AS(
      static_cast<void>(schedule::cut_packs(line, Pass::forward, schedule::SliceCost{0, 0, 0}, {})),
      "cut_packs: costs must be >= 0, per token >= 1", InvalidInput);
  CHECK_THROWS_WITH_AS(
      static_cast<void>(schedule::cut_packs(line_of_lengths({0}), Pass::forward, {}, {})),
      "cut_packs: a sample must have >= 1 tokens, got 0", InvalidInput);
}
