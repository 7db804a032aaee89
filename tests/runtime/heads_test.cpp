// SPDX-License-Identifier: Apache-2.0
// Samples that the ranks of a group exchange by heads, executed, against the unsliced oracle.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "runtime/feature_table.hpp"
#include "runtime/rounding.hpp"
#include "runtime/tiny_plan.hpp"
#include "slimpack/cost/communication.hpp"
#include "slimpack/plan/cp_shard.hpp"
#include "slimpack/plan/memory.hpp"
#include "slimpack/runtime/device_threads.hpp"
#include "slimpack/runtime/program.hpp"
#include "slimpack/runtime/run_step.hpp"
#include "slimpack/runtime/thread_transport.hpp"
#include "slimpack/validate/validate.hpp"
#include "slimpack_cpu/check_plan.hpp"
#include "support/draws.hpp"
#include "support/executed_memory.hpp"
#include "support/random_plan.hpp"
#include "support/random_sharded_plan.hpp"

using namespace slimpack;

namespace {

/// Plans with samples by heads: all of them where that may be in every other one, with any others
/// in the rest; groups of two to four ranks, in one plan of three with tensor parallelism.
Plan plan_by_heads(std::uint64_t seed) {
  test::RandomPlanOptions options;
  if (seed % 4 == 3) {
    options = test::on_nodes(4, 1);
    options.min_merge = 4;
  }
  options.version = 3;
  options.cp_groups = true;
  options.by_heads = true;
  options.weights = true;
  if (seed % 2 == 0) options.exchange = RingMode::by_heads;
  if (seed % 3 == 2) options.tp = 2;
  if (seed % 3 == 1) options.uncut = seed % 2 == 0;
  options.recompute = static_cast<Recompute>(seed / 2 % kRecomputeModes);
  return test::random_plan(seed, options);
}

/// A transport that counts calls and what goes to other devices.
struct HeadsTraffic {
  std::atomic<std::int64_t> hops{0}, exchanges{0}, bytes{0};
};
class HeadsLink : public runtime::ThreadTransport {
 public:
  HeadsLink(runtime::Rendezvous& rendezvous, std::size_t device, HeadsTraffic& traffic)
      : runtime::ThreadTransport(rendezvous, device), traffic_(&traffic) {}

  void ring(const runtime::ProcessGroup& process_group, std::size_t hop,
            std::span<const std::byte> from, std::span<std::byte> into) {
    ++traffic_->hops;
    runtime::ThreadTransport::ring(process_group, hop, from, into);
  }
  void all_to_all(const runtime::ProcessGroup& process_group,
                  std::span<const std::span<const std::byte>> from,
                  std::span<const std::span<std::byte>> into) {
    ++traffic_->exchanges;
    for (std::size_t member = 0; member < from.size(); ++member) {
      if (member == process_group.self) continue;
      traffic_->bytes += static_cast<std::int64_t>(from[member].size());
    }
    runtime::ThreadTransport::all_to_all(process_group, from, into);
  }

 private:
  HeadsTraffic* traffic_;
};

/// Runs one step and counts.
void count_heads_step(const Plan& plan, std::uint64_t seed, HeadsTraffic& traffic) {
  const runtime::Program program = runtime::make_program(plan);
  auto devices = cpu::make_devices(plan, seed);
  runtime::DeviceThreads device_threads(devices.size());
  (void)runtime::run_step_with<HeadsLink>(
      device_threads, plan, program, cpu::step_data(plan, cpu::random_tokens(plan, seed)),
      std::span(devices), [&](runtime::Rendezvous& rendezvous, std::size_t device) {
        return HeadsLink(rendezvous, device, traffic);
      });
}

/// What the samples of a plan are exchanged by heads with, each once a plan.
void add_heads_exchanges(test::FeatureTable& table, const Plan& plan, const cpu::PlanCheck& found) {
  std::set<std::string> names;
  const std::vector<KeptKeys> kept = kept_keys(plan);
  for (const MicroPack& pack : plan.micropacks) {
    const bool ring = std::ranges::any_of(pack.exchange,
                                          [](RingMode mode) { return mode != RingMode::by_heads; });
    for (std::size_t i = 0; i < pack.exchange.size(); ++i) {
      if (pack.exchange[i] != RingMode::by_heads) continue;
      const Slice& slice = pack.slices[i];
      const CpShard shard = cp_shard_of(plan, slice.sample, 0);
      const KeptKeys& keys = kept[index(slice.sample)];
      if (!keys.by_heads) {
        names.emplace("by heads, undivided");
        continue;
      }
      CHECK(keys.parts == std::min(shard.ranks, plan.model.kv_heads / plan.parallel.tp));
      names.emplace("by heads of " + std::to_string(shard.ranks) + " ranks");
      if (ring) names.emplace("by heads and round a ring in a pack");
      if (shard.first > 0) names.emplace("by heads from a later rank");
      const bool whole = slice.length() == plan.samples[index(slice.sample)];
      names.emplace(whole ? "by heads, whole samples" : "by heads, cut samples");
      if (slice.begin > Tokens{}) names.emplace("by heads behind a prefix");
      if (slice.end <= shard.block) names.emplace("by heads, a slice of one block");
      for (std::int64_t rank = 0; rank < shard.ranks; ++rank) {
        if (shard.of(rank).between(slice.begin, slice.end) > Tokens{}) continue;
        names.emplace("by heads, a rank without rows");
      }
      if (pack.weights == WeightGradients::apart) names.emplace("by heads, weights apart");
      if (plan.model.kv_heads < plan.model.heads) names.emplace("by heads, grouped queries");
      if (plan.model.kv_heads == plan.model.heads) names.emplace("by heads, as many keys");
      if (keys.parts < shard.ranks) names.emplace("by heads, keys on several ranks");
      if (keys.parts == 1) names.emplace("by heads, one head of keys");
      if (plan.parallel.tp > 1) names.emplace("by heads, tensor parallelism");
      if (pack.pass == Pass::forward) {
        names.emplace(keys.pages ? "by heads, keys kept" : "by heads, keys made again");
        continue;
      }
      names.emplace(keys.gradients ? "by heads, gradients kept" : "by heads, gradients not kept");
      if (keys.gradients && slice.begin == Tokens{} &&
          slice.end < plan.samples[index(slice.sample)])
        names.emplace("by heads, gradients of several B");
      if (pack.recompute == Recompute::full) {
        names.emplace(keys.pages ? "by heads, full recomputation with pages"
                                 : "by heads, full recomputation without");
      }
    }
  }
  for (const std::string& name : names) table.add(name, found);
}

/// Bytes of keys and values that B of `full` would pass to heads again if pages did not hold them:
/// `communication_of` counts them, nobody sends them.
std::int64_t kept_from_travel(const Plan& plan) {
  const std::int64_t keys =
      ring_bytes(plan.model, element_bytes_of(plan.model, plan.memory.gradient_bytes)).kv;
  const std::vector<KeptKeys> kept = kept_keys(plan);
  std::int64_t bytes = 0;
  for (const MicroPack& pack : plan.micropacks) {
    if (pack.pass != Pass::backward || pack.recompute != Recompute::full) continue;
    for (const Slice& slice : pack.slices) {
      const KeptKeys& of = kept[index(slice.sample)];
      if (!of.by_heads || !of.pages) continue;
      const auto ranks = static_cast<std::int64_t>(plan.groups[index(pack.group)].size());
      bytes += slice.length().value * keys / of.parts * (ranks - 1) * plan.model.layers;
    }
  }
  return bytes;
}

void check_heads_plan(const Plan& plan) {
  const Validation validation = validate(plan);
  for (const Violation& violation : validation.violations) FAIL_CHECK(violation.message);
}

}  // namespace

TEST_CASE("by heads: random plans give the loss, gradients and weights of the oracle") {
  test::FeatureTable table;
  for (std::uint64_t seed = 0; seed < test::draws(240U); ++seed) {
    CAPTURE(seed);
    const Plan plan = plan_by_heads(seed);
    check_heads_plan(plan);
    const auto found = cpu::check_plan(plan, cpu::random_tokens(plan, seed), seed);
    CAPTURE(found.worst_tensor);
    CHECK(found.loss_difference <= 1e-10);
    CHECK(found.gradient_difference <= 1e-10);
    CHECK(found.weight_difference <= 1e-10);
    table.add(plan, found);
    add_heads_exchanges(table, plan, found);
  }
  table.print();
  for (const char* name : {"by heads of 2 ranks",
                           "by heads of 3 ranks",
                           "by heads of 4 ranks",
                           "by heads, undivided",
                           "by heads and round a ring in a pack",
                           "by heads from a later rank",
                           "by heads, whole samples",
                           "by heads, cut samples",
                           "by heads behind a prefix",
                           "by heads, a slice of one block",
                           "by heads, a rank without rows",
                           "by heads, weights apart",
                           "by heads, grouped queries",
                           "by heads, as many keys",
                           "by heads, keys on several ranks",
                           "by heads, one head of keys",
                           "by heads, tensor parallelism",
                           "by heads, keys kept",
                           "by heads, keys made again",
                           "by heads, gradients kept",
                           "by heads, gradients not kept",
                           "by heads, gradients of several B",
                           "by heads, full recomputation with pages",
                           "by heads, full recomputation without",
                           "recompute none",
                           "recompute light",
                           "recompute layer",
                           "recompute full",
                           "keys made again",
                           "key gradients not kept"}) {
    CAPTURE(name);
    CHECK(table.plans(name) >= test::draws(10));
  }
}

TEST_CASE("by heads: the fast backend is within 2e-5 of the oracle") {
  for (std::uint64_t seed = 0; seed < test::draws(90U); ++seed) {
    CAPTURE(seed);
    const Plan plan = plan_by_heads(seed);
    const auto tokens = cpu::random_tokens(plan, seed);
    const auto found = cpu::check_plan<cpu::FastMath>(plan, tokens, seed);
    CAPTURE(found.worst_tensor);
    CHECK(found.loss_difference <= 1e-6);
    if (found.gradient_difference > 2e-5) {  // gradients may cancel: no fp32 can do better
      CHECK(found.gradient_difference <=
            8 * test::change_by_rounding(plan, cpu::step_data(plan, tokens), seed));
    }
  }
}

TEST_CASE("by heads: ranks that share weights give the oracle's step and the simulator's bytes") {
  test::FeatureTable table;
  for (std::uint64_t seed = 0; seed < test::draws(90U); ++seed) {
    CAPTURE(seed);
    test::ShardedPlanOptions options;
    options.by_heads = true;
    const Plan plan = test::random_sharded_plan(seed, options);
    check_heads_plan(plan);
    const auto data = cpu::step_data(plan, cpu::random_tokens(plan, seed));
    test::Executed executed(plan);
    const auto found = cpu::check_plan<cpu::PlainMath>(plan, data, seed, {}, executed.observer());
    CHECK(found.worst() <= 1e-10);
    executed.finish();
    test::check_memory(plan, executed, 16);
    table.add(plan, found);
  }
  CHECK(table.plans("merged, by heads") >= test::draws(20));
}

TEST_CASE("by heads: devices hold the simulator's bytes, event by event and at the peak") {
  for (std::uint64_t seed = 0; seed < test::draws(100U); ++seed) {
    CAPTURE(seed);
    const Plan plan = plan_by_heads(seed);
    test::Executed executed(plan);
    auto devices = cpu::make_devices(plan, seed);
    (void)runtime::run_step(plan, cpu::step_data(plan, cpu::random_tokens(plan, seed)),
                            std::span(devices), executed.observer());
    executed.finish();
    test::check_memory(plan, executed, 16);
  }
}

TEST_CASE("by heads: a slice's rows pass to heads and home once a layer, keys of prefixes never") {
  std::int64_t travel = 0, stay = 0, prefixes = 0;
  for (std::uint64_t seed = 0; seed < test::draws(90U); ++seed) {
    CAPTURE(seed);
    const Plan plan = plan_by_heads(seed);
    const std::vector<KeptKeys> kept = kept_keys(plan);
    std::int64_t expected = 0;
    bool rings = false;
    for (const MicroPack& pack : plan.micropacks) {
      const auto ranks = static_cast<std::int64_t>(plan.groups[index(pack.group)].size());
      for (std::size_t i = 0; i < pack.exchange.size(); ++i) {
        const Slice& slice = pack.slices[i];
        if (pack.exchange[i] != RingMode::by_heads) {
          rings = rings || !cp_shard_of(plan, slice.sample, 0).undivided(slice.end);
          continue;
        }
        const bool stays = !kept[index(slice.sample)].by_heads;
        ++(stays ? stay : travel);
        if (stays) continue;
        if (slice.begin > Tokens{}) ++prefixes;
        const bool again = pack.pass == Pass::backward && pack.recompute == Recompute::full;
        expected += (again ? 4 : 2) * ranks * plan.parallel.tp * plan.model.layers;
      }
    }
    HeadsTraffic traffic;
    count_heads_step(plan, seed, traffic);
    CHECK(traffic.exchanges == expected);
    CHECK((traffic.hops > 0) == rings);
    if (rings) continue;
    CHECK(traffic.bytes == communication_of(plan).exchange.value - kept_from_travel(plan));
  }
  CHECK(travel > static_cast<std::int64_t>(test::draws(90U)));
  CHECK(stay >= static_cast<std::int64_t>(test::draws(90U)) / 10);
  CHECK(prefixes > static_cast<std::int64_t>(test::draws(90U)));
  MESSAGE("slices that travel ", travel, ", behind a prefix ", prefixes, ", that stay ", stay);
}

TEST_CASE("by heads: a step has the loss of the ring's, up to rounding, and equal bits each time") {
  for (const std::int64_t kv_heads : {4, 8}) {
    CAPTURE(kv_heads);
    Plan plan = test::tiny_plan(4, {{0}, {1}, {2}, {3}, {0, 1}, {0, 1, 2, 3}},
                                {{61, 5}, {30, 4}, {2, 5}, {9, 2}});
    plan.version = 3;
    plan.sources.push_back({"tiny", 4, ""});
    plan.sample_first = {1, 1, 3, 0};
    plan.model.heads = 8;
    plan.model.kv_heads = kv_heads;
    const auto data = cpu::step_data(plan, cpu::random_tokens(plan, 1));
    const auto ring = cpu::check_plan(plan, data, 1);
    for (MicroPack& pack : plan.micropacks) std::ranges::fill(pack.exchange, RingMode::by_heads);
    check_heads_plan(plan);
    const auto heads = cpu::check_plan(plan, data, 1), again = cpu::check_plan(plan, data, 1);
    CHECK(ring.worst() <= 1e-12);
    CHECK(heads.worst() <= 1e-12);
    CHECK(heads.loss == again.loss);
    CHECK(heads.gradient_difference == again.gradient_difference);
    CHECK(heads.weight_difference == again.weight_difference);
  }
}
