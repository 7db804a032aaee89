// SPDX-License-Identifier: Apache-2.0
// List scheduling: valid orders for whatever plan, within memory or not at all, and few idle
// devices.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "slimpack/core/random.hpp"
#include "slimpack/cost/memory_model.hpp"
#include "slimpack/cost/price.hpp"
#include "slimpack/schedule/detail/chunk_blocks.hpp"
#include "slimpack/schedule/list_schedule.hpp"
#include "slimpack/sim/simulate_plan.hpp"
#include "slimpack/validate/validate.hpp"
#include "support/draws.hpp"
#include "support/random_plan.hpp"

using namespace slimpack;

namespace {

/// Times of a pass and stage, the same for all packs.
struct HandTimes {
  const Plan* plan = nullptr;
  std::int64_t forward = 1, backward = 2, head_time = 0, link = 0, weight = 1;
  [[nodiscard]] Nanos compute(PackId pack, std::int32_t) const {
    const MicroPack& facts = plan->micropacks[index(pack)];
    if (facts.pass == Pass::weight) return {weight};
    if (facts.weights == WeightGradients::apart) return {backward - weight};
    return {facts.pass == Pass::forward ? forward : backward};
  }
  [[nodiscard]] Nanos head(PackId, std::size_t, std::int32_t) const { return {head_time}; }
  [[nodiscard]] Nanos transfer(PackId, std::int32_t, std::size_t) const { return {link}; }
  [[nodiscard]] Nanos reduce(std::int32_t, std::int32_t) const { return {}; }
  [[nodiscard]] Nanos optimizer(std::int32_t, std::int32_t) const { return {}; }
};

/// A plan's own prices without reductions and optimizer, which the list's times leave out.
struct ComputeTimes {
  const PricedPlan* priced = nullptr;
  [[nodiscard]] Nanos compute(PackId pack, std::int32_t line) const {
    return priced->compute(pack, line);
  }
  [[nodiscard]] Nanos head(PackId pack, std::size_t rank, std::int32_t pp) const {
    return priced->head(pack, rank, pp);
  }
  [[nodiscard]] Nanos transfer(PackId pack, std::int32_t line, std::size_t rank) const {
    return priced->transfer(pack, line, rank);
  }
  [[nodiscard]] Nanos reduce(std::int32_t, std::int32_t) const { return {}; }
  [[nodiscard]] Nanos optimizer(std::int32_t, std::int32_t) const { return {}; }
};

/// `count` samples of 64 tokens, each one forward and one backward pack, on `dp` x `pp` devices.
/// Sample i belongs to rank i mod dp, or to all ranks together if `merged` (dp 2 or more).
Plan even_plan(std::int32_t dp, std::int32_t pp, std::int32_t chunks, LmHead head,
               std::int64_t count, std::int64_t in_cp_group = 0) {
  Plan plan;
  plan.model = {"hand", std::int64_t{pp} * chunks, 32, 4, 2, 8, 48, 64, false, 1e4, 1e-5, 2};
  plan.memory.capacity = Bytes{1'000'000'000};
  plan.memory.page_tokens = {16};
  plan.memory.cp_block_tokens = {8};
  plan.parallel.dp = dp;
  plan.parallel.pp = pp;
  plan.parallel.chunks = chunks;
  plan.parallel.head = head;
  plan.parallel.granularity = {1};
  plan.parallel.max_cp = dp;
  plan.cluster.devices_per_node = 8;
  for (std::int32_t rank = 0; rank < dp; ++rank) {
    plan.groups.push_back({rank});
    for (std::int32_t stage = 0; stage < pp; ++stage) {
      plan.placement.push_back({rank, stage, 0, std::int64_t{rank} * pp + stage});
    }
  }
  std::vector<std::int32_t> all;
  for (std::int32_t rank = 0; rank < dp; ++rank) all.push_back(rank);
  if (in_cp_group > 0) plan.groups.push_back(all);
  for (std::int32_t line = 0; line < pp * chunks; ++line) {
    plan.stages.push_back({line % pp, line / pp, line, line + 1, line == 0});
  }
  plan.sources.push_back({"hand", count, ""});
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    for (std::int64_t i = 0; i < count; ++i) {
      const auto sample = static_cast<std::uint32_t>(i);
      const GroupId group{i < in_cp_group ? static_cast<std::uint32_t>(dp)
                                          : sample % static_cast<std::uint32_t>(dp)};
      if (pass == Pass::forward) {
        plan.samples.push_back({64});
        plan.sample_group.push_back(group);
        plan.origin.push_back({0, i, {}});
        plan.target_tokens += 63;
      }
      MicroPack pack;
      pack.pass = pass;
      pack.group = group;
      pack.slices = {{SampleId{sample}, {0}, {64}}};
      if (i < in_cp_group) pack.exchange = {RingMode::pass_kv};
      plan.micropacks.push_back(pack);
    }
  }
  return plan;
}

/// Each backward pack leaves its weights to a weight pack of the same slices.
void leave_apart(Plan& plan) {
  const std::size_t count = plan.micropacks.size();
  for (std::size_t i = 0; i < count; ++i) {
    MicroPack pack = plan.micropacks[i];
    if (pack.pass == Pass::forward) continue;
    plan.micropacks[i].weights = WeightGradients::apart;
    pack.pass = Pass::weight;
    pack.exchange.clear();
    plan.micropacks.push_back(pack);
  }
}

std::string text_of(const Plan& plan) {
  std::string text;
  const auto packs = plan.samples.size();
  for (const DeviceSchedule& device : plan.schedule) {
    for (const Unit& unit : device.order) {
      text += unit.kind == UnitKind::forward    ? 'F'
              : unit.kind == UnitKind::backward ? 'B'
              : unit.kind == UnitKind::head     ? 'H'
              : unit.kind == UnitKind::weight   ? 'W'
              : unit.kind == UnitKind::reduce   ? 'R'
                                                : 'O';
      if (unit.kind == UnitKind::optimizer) continue;
      if (unit.kind != UnitKind::reduce) text += std::to_string(index(unit.pack) % packs);
      if (plan.parallel.chunks > 1 && unit.kind != UnitKind::head) {
        text += static_cast<char>('a' + unit.chunk);
      }
      text += ' ';
    }
    text += '\n';
  }
  return text;
}

std::string first_messages(const Validation& validation) {
  std::string text;
  for (std::size_t i = 0; i < validation.violations.size() && i < 5; ++i) {
    text += validation.violations[i].message + "\n";
  }
  return text;
}

/// Whether H is right behind the F that it reads, wherever the last stage runs it.
bool heads_follow(const Plan& plan) {
  for (const DeviceSchedule& device : plan.schedule) {
    for (std::size_t i = 0; i < device.order.size(); ++i) {
      if (device.order[i].kind != UnitKind::head) continue;
      if (i == 0 || device.order[i - 1].kind != UnitKind::forward ||
          device.order[i - 1].pack != device.order[i].pack ||
          device.order[i - 1].chunk + 1 != plan.parallel.chunks) {
        return false;
      }
    }
  }
  return true;
}

/// Schedules a plan that must be feasible, checks it, and returns the list's end.
template <UnitTimes Times>
Nanos fill(Plan& plan, const Times& times, const schedule::ListOptions& options = {}) {
  schedule::ListWorkspace workspace;
  auto result = schedule::list_schedule(plan, times, MemoryModel(plan), options, workspace);
  REQUIRE(std::holds_alternative<std::vector<DeviceSchedule>>(result));
  plan.schedule = std::get<std::vector<DeviceSchedule>>(std::move(result));
  const Validation validation = validate(plan);
  INFO(first_messages(validation));
  REQUIRE(validation.valid());
  if (options.head_at_once && plan.parallel.head == LmHead::last) CHECK(heads_follow(plan));
  return workspace.end;
}

test::RandomPlanOptions options_of(std::uint64_t seed) {
  test::RandomPlanOptions options;
  if (seed % 4 == 1) options.cp_groups = true;
  if (seed % 8 == 2) {
    options.max_tp = 3;
    options.vary_bytes = true;
  }
  if (seed % 16 == 3) options.large_model = true;
  if (seed % 16 == 4) {
    options.max_in_flight = 1;
    options.chunks = 3;
  }
  if (seed % 16 == 5) {
    options.min_samples = 12;
    options.max_samples = 40;
    options.max_in_flight = 1;
  }
  if (seed % 16 == 12) options.head = LmHead::shard;
  options.weights = seed % 5 < 2;
  return options;
}

schedule::ListOptions settings_of(std::uint64_t seed) {
  Random random(seed);
  schedule::ListOptions options;
  options.head_batch = static_cast<std::int32_t>(random.between(1, 8));
  options.forward_queue = static_cast<std::int32_t>(random.between(-1, 3));
  options.chunk_block = static_cast<std::int32_t>(random.between(0, 12));
  options.head_at_once = random.chance(1, 3);
  options.sample_blocks = random.chance(1, 3);
  options.even_blocks = random.chance(1, 2);
  options.backward_first = random.chance(1, 3);
  return options;
}

/// Sample after sample in pieces, in both passes, so that how many are in flight is a choice.
void cut_sample_by_sample(Plan& plan, std::uint64_t seed) {
  Random random(seed);
  std::vector<MicroPack> forward, backward;
  for (std::size_t i = 0; i < plan.samples.size(); ++i) {
    const std::size_t begun = backward.size();
    for (Tokens from; from < plan.samples[i];) {
      const Tokens length = plan.parallel.granularity * random.between(1, 6);
      MicroPack pack;
      pack.group = plan.sample_group[i];
      pack.slices = {{SampleId{static_cast<std::uint32_t>(i)}, from,
                      std::min(from + length, plan.samples[i])}};
      from = pack.slices[0].end;
      if (plan.groups[index(pack.group)].size() > 1) pack.exchange = {RingMode::pass_kv};
      forward.push_back(pack);
      pack.pass = Pass::backward;
      pack.recompute = static_cast<Recompute>(random.below(kRecomputeModes));
      backward.push_back(pack);
    }
    std::reverse(backward.begin() + static_cast<std::ptrdiff_t>(begun), backward.end());
  }
  plan.micropacks = std::move(forward);
  plan.micropacks.insert(plan.micropacks.end(), backward.begin(), backward.end());
}

std::int64_t available(const Plan& plan) {
  return (plan.memory.capacity - plan.memory.reserved).value;
}

}  // namespace

TEST_CASE("list_schedule: random plans without orders get valid ones, and its end is right") {
  test::Features found;
  std::int64_t units = 0, equal = 0, plans = 0;
  double apart = 0;
  for (std::uint64_t seed = 0; seed < slimpack::test::draws(3000U); ++seed) {
    CAPTURE(seed);
    Plan plan = test::random_plan(seed, options_of(seed));
    found += test::features_of(plan);
    plan.schedule.clear();
    const PricedPlan priced(plan);
    const ComputeTimes times{&priced};
    const Nanos end = fill(plan, times, settings_of(seed));
    for (const DeviceSchedule& device : plan.schedule) {
      units += static_cast<std::int64_t>(device.order.size());
    }
    const Nanos simulated = sim::simulate_plan(plan, times).timeline.makespan;
    ++plans;
    if (simulated == end) ++equal;
    apart += static_cast<double>(simulated.value) / static_cast<double>(end.value) - 1.0;
    // Only the turns of equal times on a shared link may differ.
    CHECK(simulated.value <= end.value + end.value / 10);
    CHECK(simulated.value >= end.value - end.value / 10);
  }
  apart /= static_cast<double>(plans);
  MESSAGE(test::to_string(found) << ", units " << units << ", clock equal in " << equal
                                 << ", mean difference " << apart);
  CHECK(equal * 100 >= plans * 98);
  CHECK(apart < 0.001);
  CHECK(apart > -0.001);
  CHECK(found.merged_kv > slimpack::test::draws(1000));
  CHECK(found.shared_ranks > slimpack::test::draws(300));
  CHECK(found.chunks > slimpack::test::draws(1500));
  CHECK(found.sharded_head > slimpack::test::draws(1000));
  CHECK(found.differing_cuts > slimpack::test::draws(1500));
  CHECK(found.idle_ranks > slimpack::test::draws(300));
  CHECK(found.empty_stages > slimpack::test::draws(50));
  CHECK(found.max_in_flight[0] > slimpack::test::draws(500));
  CHECK(found.weights > slimpack::test::draws(300));
  CHECK(found.weights_in_groups > slimpack::test::draws(50));
}

TEST_CASE("list_schedule: memory as tight as it can be still gives valid orders") {
  std::int64_t tried = 0, tighter = 0;
  double spare = 0, most_spare = 0;
  for (std::uint64_t seed = 0; seed < slimpack::test::draws(600U); ++seed) {
    CAPTURE(seed);
    test::RandomPlanOptions draw = options_of(seed);
    draw.min_tokens = 100;
    draw.max_tokens = 600;
    draw.max_granularity = 64;
    draw.min_samples = 8;
    draw.max_samples = 30;
    Plan plan = test::random_plan(seed, draw);
    if (seed % 2 == 1) cut_sample_by_sample(plan, seed);
    plan.schedule.clear();
    const PricedPlan times(plan);
    const MemoryModel memory(plan);
    const schedule::ListOptions options = settings_of(seed);
    static_cast<void>(fill(plan, times, options));
    const std::vector<Bytes> generous = validate(plan).worst_case_peak;
    const std::int64_t high = std::max_element(generous.begin(), generous.end())->value;
    plan.memory.capacity = plan.memory.reserved;
    const auto refused = schedule::list_schedule(plan, times, memory, options);
    REQUIRE(std::holds_alternative<Infeasible>(refused));
    const std::int64_t needed = std::get<Infeasible>(refused).needed;
    CHECK(std::get<Infeasible>(refused).available == 0);
    CHECK(std::get<Infeasible>(refused).constraint.starts_with("bytes of memory on device dp "));
    if (needed < high) ++tighter;
    for (std::int64_t step = 0; step <= 6; ++step) {
      CAPTURE(step);
      const std::int64_t room = needed + std::max<std::int64_t>(high - needed, 0) * step / 6;
      plan.memory.capacity = Bytes{room} + plan.memory.reserved;
      static_cast<void>(fill(plan, times, options));
      ++tried;
      if (step > 0) continue;
      const std::vector<Bytes> peaks = validate(plan).worst_case_peak;
      const std::int64_t peak = std::max_element(peaks.begin(), peaks.end())->value;
      const double more = static_cast<double>(needed) / static_cast<double>(peak) - 1.0;
      spare += more;
      most_spare = std::max(most_spare, more);
    }
    plan.memory.capacity = Bytes{needed - 1} + plan.memory.reserved;
    const auto lacking = schedule::list_schedule(plan, times, memory, options);
    REQUIRE(std::holds_alternative<Infeasible>(lacking));
    CHECK(std::get<Infeasible>(lacking).needed == needed);
    CHECK(std::get<Infeasible>(lacking).available == available(plan));
  }
  MESSAGE(tried << " capacities; " << tighter << " of 600 plans take less than with ample memory"
                << "; asked for over used, mean " << spare / 600 << ", most " << most_spare);
  CHECK(tighter > slimpack::test::draws(200));
  CHECK(spare / 600 < 0.03);
}

TEST_CASE("list_schedule: two stages, by hand") {
  Plan plan = even_plan(1, 2, 1, LmHead::last, 2);
  const HandTimes times{&plan};
  const Nanos end = fill(plan, times);
  CHECK(text_of(plan) ==
        "F0 F1 B0 B1 R O\n"
        "F0 H0 B0 F1 H1 B1 R O\n");
  CHECK(end == Nanos{9});
}

// F, B and W of one each: with W apart three stages wait 2 (F + B - W), not 2 (F + B + W).
TEST_CASE("list_schedule: W fills the waits of the drain, by hand") {
  Plan plan = even_plan(1, 3, 1, LmHead::last, 5);
  const HandTimes times{&plan};
  CHECK(fill(plan, times) == Nanos{21});
  leave_apart(plan);
  const Nanos end = fill(plan, times);
  CHECK(text_of(plan) ==
        "F0 F1 F2 F3 F4 B0 W0 B1 B2 W1 W2 B3 W3 B4 W4 R O\n"
        "F0 F1 F2 F3 B0 F4 B1 B2 W0 W1 B3 W2 W3 B4 W4 R O\n"
        "F0 H0 B0 F1 H1 B1 F2 H2 B2 W0 F3 H3 B3 W1 F4 H4 B4 W2 W3 W4 R O\n");
  CHECK(end == Nanos{17});
}

// Without `head_at_once` the last stage runs a B that is ready before an H.
TEST_CASE("list_schedule: H waits for B, or runs at once, as is asked for") {
  std::int64_t waits = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    Plan plan = test::random_plan(seed, options_of(seed));
    if (plan.parallel.head == LmHead::shard) continue;
    plan.schedule.clear();
    const PricedPlan times(plan);
    schedule::ListOptions options = settings_of(seed);
    options.head_at_once = false;
    static_cast<void>(fill(plan, times, options));
    waits += heads_follow(plan) ? 0 : 1;
    options.head_at_once = true;
    static_cast<void>(fill(plan, times, options));
  }
  CHECK(waits > 10);
}

TEST_CASE("list_schedule: a capacity for one pack at a time runs them one after another") {
  Plan plan = even_plan(1, 2, 1, LmHead::last, 3);
  const HandTimes times{&plan};
  plan.memory.capacity = plan.memory.reserved;
  const auto refused = schedule::list_schedule(plan, times, MemoryModel(plan));
  plan.memory.capacity = Bytes{std::get<Infeasible>(refused).needed};
  CHECK(std::get<Infeasible>(refused).constraint == "bytes of memory on device dp 0, pp 1");
  const Nanos end = fill(plan, times);
  CHECK(text_of(plan) ==
        "F0 B0 F1 B1 F2 B2 R O\n"
        "F0 H0 B0 F1 H1 B1 F2 H2 B2 R O\n");
  CHECK(end == Nanos{18});
}

TEST_CASE("list_schedule: the stages run the H of several packs together") {
  Plan plan = even_plan(1, 2, 1, LmHead::shard, 4);
  HandTimes times{&plan};
  times.head_time = 1;
  schedule::ListOptions options;
  options.head_batch = 2;
  const Nanos end = fill(plan, times, options);
  CHECK(text_of(plan) ==
        "F0 F1 F2 H0 H1 F3 B0 H2 H3 B1 B2 B3 R O\n"
        "F0 F1 H0 H1 F2 F3 B0 B1 H2 H3 B2 B3 R O\n");
  CHECK(end == Nanos{19});
}

TEST_CASE("list_schedule: blocks of packs pass chunk after chunk") {
  Plan plan = even_plan(1, 2, 2, LmHead::last, 4);
  const HandTimes times{&plan};
  schedule::ListOptions options;
  options.chunk_block = 2;
  const Nanos end = fill(plan, times, options);
  CHECK(text_of(plan) ==
        "F0a F1a F0b F1b F2a F3a F2b F3b B0b B1b B0a B1a B2b B3b Rb B2a B3a Ra O\n"
        "F0a F1a F0b H0 F1b H1 F2a F3a F2b H2 F3b B0b B1b B0a B1a B2b H3 B3b Rb B2a B3a Ra O\n");
  CHECK(end.value == 27);
  // B0 as soon as it can run on the last stage; with equal packs that gains nothing.
  options.backward_first = true;
  const Nanos same = fill(plan, times, options);
  CHECK(text_of(plan) ==
        "F0a F1a F0b F1b F2a F3a B0b F2b F3b B1b B0a B1a B2b B3b Rb B2a B3a Ra O\n"
        "F0a F1a F0b H0 B0b F1b H1 F2a F3a B1b B0a B1a F2b H2 B2b F3b H3 B3b Rb B2a B3a Ra O\n");
  CHECK(same.value == 27);
}

TEST_CASE("list_schedule: no block of a rank alone has fewer packs than there are stages") {
  struct Case {
    std::int32_t stages;
    std::int32_t block;  // ListOptions::chunk_block
    std::size_t packs;
    std::vector<std::int64_t> full, even;  // sizes
  };
  for (const Case& one :
       {Case{2, 0, 1, {1}, {1}}, Case{2, 0, 3, {3}, {3}}, Case{2, 0, 4, {2, 2}, {2, 2}},
        Case{2, 0, 5, {3, 2}, {3, 2}}, Case{2, 0, 7, {3, 2, 2}, {3, 2, 2}},
        Case{2, 2, 7, {2, 2, 3}, {3, 2, 2}}, Case{4, 0, 6, {6}, {6}}, Case{4, 0, 7, {7}, {7}},
        Case{4, 0, 8, {4, 4}, {4, 4}}, Case{4, 0, 13, {6, 7}, {5, 4, 4}},
        Case{4, 0, 16, {6, 6, 4}, {6, 5, 5}}, Case{4, 4, 15, {4, 4, 7}, {5, 5, 5}},
        // Fifteen are what messages in flight allow.
        Case{4, 15, 15, {15}, {15}}, Case{4, 20, 16, {8, 8}, {8, 8}},
        Case{4, 20, 19, {15, 4}, {10, 9}}}) {
    CAPTURE(one.stages);
    CAPTURE(one.packs);
    const Plan plan = even_plan(1, one.stages, 2, LmHead::last, 1);
    for (const bool even : {false, true}) {
      CAPTURE(even);
      schedule::ListOptions options;
      options.chunk_block = one.block;
      options.even_blocks = even;
      const std::vector<std::uint32_t> blocks =
          schedule::detail::blocks_of_rank(plan, options, one.packs);
      REQUIRE(blocks.size() == one.packs);
      CHECK(std::is_sorted(blocks.begin(), blocks.end()));
      std::vector<std::int64_t> sizes(blocks.back() + 1);
      for (const std::uint32_t block : blocks) ++sizes[block];
      CHECK(sizes == (even ? one.even : one.full));
    }
  }
}

TEST_CASE("list_schedule: blocks go on until a sample of several packs has ended") {
  // Sample 0 in three packs, the others, shorter ones, in one each.
  Plan plan = even_plan(1, 2, 2, LmHead::last, 4);
  plan.samples = {{64}, {16}, {16}, {16}};
  plan.target_tokens = 63 + 15 + 15 + 15;
  std::vector<MicroPack> packs;
  for (const MicroPack& pack : plan.micropacks) {
    if (pack.slices[0].sample != SampleId{0}) {
      packs.push_back(pack);
      packs.back().slices[0].end = Tokens{16};
      continue;
    }
    for (const std::int64_t third : {0, 1, 2}) {
      const std::int64_t begin = pack.pass == Pass::forward ? third : 2 - third;
      packs.push_back(pack);
      packs.back().slices = {{SampleId{0}, {16 * begin}, {begin == 2 ? 64 : 16 * begin + 16}}};
    }
  }
  plan.micropacks = packs;
  const schedule::ScheduleParts parts(plan);
  const auto& forward = parts.packs(0, Pass::forward);
  const auto& backward = parts.packs(0, Pass::backward);
  schedule::ListOptions options;
  options.chunk_block = 2;
  using namespace schedule::detail;
  using Blocks = std::vector<std::uint32_t>;
  const std::vector<bool> never(6);
  CHECK(chunk_blocks(plan, forward, block_size(plan, options, false), never) ==
        Blocks{0, 0, 1, 1, 2, 2});
  options.sample_blocks = true;
  const BlockSize size = block_size(plan, options, false);
  const Blocks blocks = chunk_blocks(plan, forward, size, ends_samples(plan, parts, forward));
  CHECK(blocks == Blocks{0, 0, 0, 1, 1, 2});
  CHECK(chunk_blocks(plan, backward, size, ends_needs(plan, parts, backward, blocks)) ==
        Blocks{0, 0, 0, 1, 1, 2});
  // Seven packs are what messages in flight allow.
  CHECK(size.most == 7);

  // B of the sample needs no more than its own F: as much memory less as the fourth pack keeps.
  const auto needed = [&] {
    plan.memory.capacity = Bytes{1};
    const auto result = schedule::list_schedule(plan, HandTimes{&plan}, MemoryModel(plan), options);
    plan.memory.capacity = Bytes{1'000'000'000};
    return std::get<Infeasible>(result).needed;
  };
  const std::int64_t with = needed();
  static_cast<void>(fill(plan, HandTimes{&plan}, options));
  options.sample_blocks = false;
  CHECK(with < needed());
}

TEST_CASE("list_schedule: packs of a context-parallel group run on their ranks together") {
  Plan plan = even_plan(2, 2, 1, LmHead::last, 4, 2);
  const HandTimes times{&plan};
  const Nanos end = fill(plan, times);
  CHECK(text_of(plan) ==
        "F0 F1 F2 B0 B1 B2 R O\n"
        "F0 H0 B0 F1 H1 B1 F2 H2 B2 R O\n"
        "F0 F1 F3 B0 B1 B3 R O\n"
        "F0 H0 B0 F1 H1 B1 F3 H3 B3 R O\n");
  CHECK(end == Nanos{12});
}

TEST_CASE("list_schedule: equal units and stages leave fill and drain alone idle") {
  for (const std::int64_t units : {128, 256, 512}) {
    for (const std::int64_t backward : {1000, 2000, 2460}) {
      CAPTURE(units);
      CAPTURE(backward);
      Plan plan = even_plan(1, 8, 1, LmHead::last, units);
      HandTimes times{&plan};
      times.forward = 1000;
      times.backward = backward;
      const Nanos end = fill(plan, times);
      const auto work = static_cast<double>(units * (1000 + backward));
      const double ideal = 1.0 + 7.0 / static_cast<double>(units);
      CHECK(static_cast<double>(end.value) / work < 1.01 * ideal);
      CHECK(sim::simulate_plan(plan, times).timeline.makespan == end);
    }
  }
}

TEST_CASE("list_schedule: chunks shorten fill and drain") {
  Plan plan = even_plan(1, 8, 4, LmHead::last, 128);
  HandTimes times{&plan};
  times.forward = 250;
  times.backward = 500;
  const Nanos end = fill(plan, times);
  CHECK(static_cast<double>(end.value) / (128.0 * 4 * 750) < 1.03);
}

TEST_CASE("list_schedule: meetings over a sharded head cost little") {
  for (const std::int32_t batch : {1, 4, 16}) {
    CAPTURE(batch);
    Plan plan = even_plan(1, 8, 1, LmHead::shard, 256);
    HandTimes times{&plan};
    times.forward = 1000;
    times.backward = 2000;
    times.head_time = 80;
    schedule::ListOptions options;
    options.head_batch = batch;
    const Nanos end = fill(plan, times, options);
    const double ratio = static_cast<double>(end.value) / (256.0 * 3080);
    MESSAGE("head_batch " << batch << ": time over work " << ratio);
    CHECK(ratio < 1.03);
  }
}

TEST_CASE("list_schedule: packs run in the order in which the plan lists them") {
  Plan plan = even_plan(1, 3, 1, LmHead::last, 6);
  std::swap(plan.micropacks[1], plan.micropacks[4]);
  std::swap(plan.micropacks[6], plan.micropacks[9]);
  const HandTimes times{&plan};
  static_cast<void>(fill(plan, times));
  for (const DeviceSchedule& device : plan.schedule) {
    std::vector<std::size_t> forward, backward;
    for (const Unit& unit : device.order) {
      if (unit.kind == UnitKind::forward) forward.push_back(index(unit.pack));
      if (unit.kind == UnitKind::backward) backward.push_back(index(unit.pack));
    }
    CHECK(std::is_sorted(forward.begin(), forward.end()));
    CHECK(std::is_sorted(backward.begin(), backward.end()));
  }
}

TEST_CASE("ScheduleParts: a listing against the order of slices is put right") {
  Plan plan = even_plan(1, 2, 1, LmHead::last, 2);
  // Sample 0 in two forward packs, the later half listed first.
  plan.micropacks[0].slices = {{SampleId{0}, {32}, {64}}};
  MicroPack first = plan.micropacks[0];
  first.slices = {{SampleId{0}, {0}, {32}}};
  plan.micropacks.insert(plan.micropacks.begin() + 2, first);
  const schedule::ScheduleParts parts(plan);
  CHECK(parts.packs(0, Pass::forward) == std::vector<std::uint32_t>{1, 2, 0});
  CHECK(parts.packs(0, Pass::backward) == std::vector<std::uint32_t>{3, 4});
  const HandTimes times{&plan};
  static_cast<void>(fill(plan, times));
}

TEST_CASE("ScheduleParts: only ranks that share packs are scheduled together") {
  Plan plan = even_plan(4, 2, 1, LmHead::last, 8);
  plan.groups.push_back({1, 3});
  plan.groups.push_back({0, 2});  // without packs
  plan.sample_group[3] = GroupId{4};
  for (const std::size_t pack : {std::size_t{3}, std::size_t{11}}) {
    plan.micropacks[pack].group = GroupId{4};
    plan.micropacks[pack].exchange = {RingMode::pass_q};
  }
  const schedule::ScheduleParts parts(plan);
  REQUIRE(parts.size() == 3);
  CHECK(parts.ranks(0) == std::vector<std::int32_t>{0});
  CHECK(parts.ranks(1) == std::vector<std::int32_t>{1, 3});
  CHECK(parts.ranks(2) == std::vector<std::int32_t>{2});
  CHECK(parts.place(3) == 1);
}

TEST_CASE("list_schedule: parts, threads and used workspaces change nothing") {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    Plan plan = test::random_plan(seed, options_of(seed));
    plan.schedule.clear();
    const PricedPlan times(plan);
    const MemoryModel memory(plan);
    const schedule::ListOptions options = settings_of(seed);
    const auto once = schedule::list_schedule(plan, times, memory, options);
    schedule::ListWorkspace used;
    const Plan other = test::random_plan(seed + 1, options_of(seed + 1));
    static_cast<void>(
        schedule::list_schedule(other, PricedPlan(other), MemoryModel(other), options, used));
    CHECK(std::get<0>(schedule::list_schedule(plan, times, memory, options, used)) ==
          std::get<0>(once));
    const schedule::ScheduleParts parts(plan);
    std::vector<DeviceSchedule> schedule = schedule::empty_schedule(plan);
    std::vector<std::thread> threads;
    std::vector<schedule::ListWorkspace> workspaces(2);
    for (std::size_t thread = 0; thread < 2; ++thread) {
      threads.emplace_back([&, thread] {
        for (std::size_t part = thread; part < parts.size(); part += 2) {
          static_cast<void>(schedule::list_schedule_part(plan, parts, part, times, memory, options,
                                                         workspaces[thread], schedule));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(schedule == std::get<0>(once));
  }
}

TEST_CASE("list_schedule: parts that are laid out before any is scheduled get the same orders") {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    Plan plan = test::random_plan(seed, options_of(seed));
    plan.schedule.clear();
    if (seed % 4 == 3) plan.memory.capacity = plan.memory.reserved + Bytes{1};
    const PricedPlan times(plan);
    const MemoryModel memory(plan);
    const schedule::ListOptions options = settings_of(seed);
    const schedule::ScheduleParts parts(plan);
    std::vector<schedule::ListPart> laid_out(parts.size());
    std::int64_t needed = 0;
    for (std::size_t part = 0; part < parts.size(); ++part) {
      schedule::lay_out_part(plan, parts, part, memory, options, laid_out[part]);
      if (laid_out[part].lacks) needed = std::max(needed, laid_out[part].lacks->needed);
    }
    schedule::ListWorkspace workspace, own;
    const auto expected = schedule::list_schedule(plan, times, memory, options, own);
    if (const auto* lacks = std::get_if<Infeasible>(&expected)) {
      CHECK(needed == lacks->needed);
      continue;
    }
    CHECK(needed == 0);
    std::vector<DeviceSchedule> schedule = schedule::empty_schedule(plan);
    Nanos end;
    for (schedule::ListPart& part : laid_out) {
      end = std::max(end, schedule::list_laid_out_part(plan, parts, part, times, options, workspace,
                                                       schedule));
    }
    CHECK(end == own.end);
    CHECK(schedule == std::get<0>(expected));
  }
}

TEST_CASE("list_schedule: what it refuses") {
  const Plan plan = even_plan(1, 2, 1, LmHead::last, 2);
  const HandTimes times{&plan};
  const MemoryModel memory(plan);
  const auto with = [&](auto&& change) {
    schedule::ListOptions options;
    change(options);
    static_cast<void>(schedule::list_schedule(plan, times, memory, options));
  };
  CHECK_THROWS_WITH_AS(with([](schedule::ListOptions& o) { o.head_batch = 0; }),
                       "list_schedule: head_batch must be >= 1, got 0", InvalidInput);
  CHECK_THROWS_WITH_AS(with([](schedule::ListOptions& o) { o.forward_queue = -2; }),
                       "list_schedule: forward_queue must be >= -1, got -2", InvalidInput);
  CHECK_THROWS_WITH_AS(with([](schedule::ListOptions& o) { o.chunk_block = -1; }),
                       "list_schedule: chunk_block must be >= 0, got -1", InvalidInput);
  const auto broken = [&](auto&& change) {
    Plan other = plan;
    change(other);
    static_cast<void>(schedule::ScheduleParts(other));
  };
  CHECK_THROWS_WITH_AS(broken([](Plan& p) { p.parallel.dp = 0; }),
                       "list_schedule: dp, pp and chunks must be >= 1", InvalidInput);
  CHECK_THROWS_WITH_AS(broken([](Plan& p) { p.max_in_flight = 0; }),
                       "list_schedule: window must be >= 1, got 0", InvalidInput);
  CHECK_THROWS_WITH_AS(broken([](Plan& p) { p.stages.pop_back(); }),
                       "list_schedule: there must be one stage for each virtual stage, got 1",
                       InvalidInput);
  CHECK_THROWS_WITH_AS(
      broken([](Plan& p) { std::swap(p.stages[0], p.stages[1]); }),
      "list_schedule: stages must be in the order of virtual stages, at virtual stage, got 0",
      InvalidInput);
  CHECK_THROWS_WITH_AS(broken([](Plan& p) { p.groups[0] = {1}; }),
                       "list_schedule: a group names a rank that does not exist, got 1",
                       InvalidInput);
  const std::vector<std::int32_t> twice{0, 0};
  CHECK_THROWS_WITH_AS(broken([&](Plan& p) { p.groups[0] = twice; }),
                       "list_schedule: the ranks of a group must ascend, got 0", InvalidInput);
  CHECK_THROWS_WITH_AS(broken([](Plan& p) { p.micropacks[0].slices.clear(); }),
                       "list_schedule: a MicroPack must have a slice, but not number, got 0",
                       InvalidInput);
  CHECK_THROWS_WITH_AS(broken([](Plan& p) { p.micropacks[0].slices[0].sample = SampleId{7}; }),
                       "slice: sample does not exist, got 7", InvalidInput);
  CHECK_THROWS_WITH_AS(broken([](Plan& p) { p.micropacks[0].slices[0].end = Tokens{63}; }),
                       "list_schedule: the slices of a pass must partition sample, got 0",
                       InvalidInput);
  CHECK_THROWS_WITH_AS(broken([](Plan& p) { p.micropacks[0].slices[0].begin = Tokens{1}; }),
                       "list_schedule: slices of a pass must not overlap or leave gaps",
                       InvalidInput);
  CHECK_THROWS_WITH_AS(broken([](Plan& p) {
                         leave_apart(p);
                         p.micropacks.pop_back();
                       }),
                       "list_schedule: weight MicroPacks must hold all tokens that are apart",
                       InvalidInput);
  CHECK_THROWS_WITH_AS(broken([](Plan& p) {
                         leave_apart(p);
                         p.micropacks[2].weights = WeightGradients::with;
                       }),
                       "list_schedule: a backward MicroPack of its group must leave its weights to "
                       "weight MicroPack, got 4",
                       InvalidInput);
  const auto halves = [](Plan& p, std::size_t one, std::size_t two) {
    p.micropacks[one].slices = {{SampleId{0}, {0}, {32}}, {SampleId{1}, {32}, {64}}};
    p.micropacks[two].slices = {{SampleId{0}, {32}, {64}}, {SampleId{1}, {0}, {32}}};
  };
  CHECK_THROWS_WITH_AS(broken([&](Plan& p) { halves(p, 0, 1); }),
                       "list_schedule: forward MicroPacks hold slices that wait for each other",
                       InvalidInput);
  CHECK_THROWS_WITH_AS(broken([&](Plan& p) { halves(p, 2, 3); }),
                       "list_schedule: backward MicroPacks hold slices that wait for each other",
                       InvalidInput);
  schedule::ListWorkspace workspace;
  std::vector<DeviceSchedule> schedule = schedule::empty_schedule(plan);
  const schedule::ScheduleParts parts(plan);
  CHECK_THROWS_WITH_AS(static_cast<void>(schedule::list_schedule_part(plan, parts, 1, times, memory,
                                                                      {}, workspace, schedule)),
                       "list_schedule_part: part does not exist, got 1", InvalidInput);
  schedule.pop_back();
  CHECK_THROWS_WITH_AS(static_cast<void>(schedule::list_schedule_part(plan, parts, 0, times, memory,
                                                                      {}, workspace, schedule)),
                       "list_schedule_part: there must be one schedule a device, got 1",
                       InvalidInput);
}
