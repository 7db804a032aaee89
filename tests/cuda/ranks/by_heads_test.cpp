// SPDX-License-Identifier: Apache-2.0
// Slices that context-parallel groups exchange by heads, on emulated devices against the unsliced
// oracle.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cuda/ranks/by_heads_plans.hpp"
#include "cuda/ranks/rank_plans.hpp"
#include "cuda/ranks/shared_plan.hpp"
#include "slimpack/plan/head_pieces.hpp"
#include "slimpack/validate/validate.hpp"
#include "slimpack_cuda/emulation.hpp"
#include "support/executed_memory.hpp"

namespace by_heads_test {

using namespace slimpack;

namespace {

/// Checks what plans gave, and what they were.
struct Worst {
  double loss = 0, gradient = 0, norm = 0;
  test::ByHeadsFeatures features;
  void add(const Plan& plan, const test::RankCheck& found) {
    CAPTURE(found.worst_tensor);
    CHECK(found.loss <= 2e-3);
    CHECK(found.norm <= 2e-2);
    CHECK(found.gradient <= 4e-2);
    loss = std::max(loss, found.loss);
    gradient = std::max(gradient, found.gradient);
    norm = std::max(norm, found.norm);
    features += test::by_heads_features(plan);
  }
  void print() const {
    std::printf("  largest difference: loss %.1e, gradients %.1e, their norm %.1e\n", loss,
                gradient, norm);
  }
};

void require_valid(const Plan& plan) {
  const Validation validation = validate(plan);
  for (const Violation& violation : validation.violations) FAIL_CHECK(violation.message);
  REQUIRE(validation.valid());
}

/// A plan's step in the memory that the plan counts, but for `rounding` bytes of weights.
void check(const Plan& plan, std::uint64_t seed, Worst& worst, const cuda::RankOptions& ranks,
           std::int64_t rounding) {
  CAPTURE(seed);
  require_valid(plan);
  test::Executed executed(plan);
  const test::RankCheck found = test::check_ranks(plan, seed, executed.observer(), ranks);
  executed.finish();
  test::check_memory(plan, executed, rounding);
  worst.add(plan, found);
}
void check(const Plan& plan, std::uint64_t seed, Worst& worst,
           const cuda::RankOptions& ranks = test::plain_path()) {
  check(plan, seed, worst, ranks, test::most_pieces(plan) * 8 * 12);
}

/// The plan of one sample, in a group of several ranks, as its first rank computes it alone.
Plan on_one_rank(Plan plan) {
  const std::vector<std::int32_t> group = plan.groups[index(plan.sample_group.front())];
  plan.groups = {{0}};
  plan.sample_group = {GroupId{0}};
  plan.sample_first = {0};
  for (MicroPack& pack : plan.micropacks) {
    pack.group = GroupId{0};
    pack.exchange.clear();
  }
  std::erase_if(plan.schedule,
                [&](const DeviceSchedule& device) { return device.dp != group.front(); });
  for (DeviceSchedule& device : plan.schedule) device.dp = 0;
  const auto gone = [](const auto& device) { return device.dp > 0; };
  std::erase_if(plan.placement, gone);
  std::erase_if(plan.prediction.devices, gone);
  plan.parallel.dp = plan.parallel.max_cp = 1;
  return plan;
}

/// Gradients of all tensors, by tensor.
std::map<std::string, std::vector<double>> gradients_of(const Plan& plan,
                                                        const test::RankDevices& devices) {
  std::map<std::string, std::vector<double>> all;
  for (const runtime::TensorShape& tensor : runtime::model_tensors(plan.model)) {
    all[tensor.name].resize(static_cast<std::size_t>(tensor.rows * tensor.cols));
  }
  for (const cuda::RankDevice& device : devices) {
    for (const cuda::TensorPart& part : device.gradient_parts()) {
      std::ranges::copy(part.values,
                        all.at(part.tensor).begin() + static_cast<std::ptrdiff_t>(part.first));
    }
  }
  return all;
}
/// The norm of the difference of two models' gradients, relative to that of the first.
double difference(const std::map<std::string, std::vector<double>>& one,
                  const std::map<std::string, std::vector<double>>& two) {
  double off = 0, all = 0;
  for (const auto& [tensor, values] : one) {
    const std::vector<double>& others = two.at(tensor);
    for (std::size_t i = 0; i < values.size(); ++i) {
      off += (values[i] - others[i]) * (values[i] - others[i]);
      all += values[i] * values[i];
    }
  }
  return std::sqrt(off / all);
}

/// Notes what begins (b) and what ends (e) of what members give each other.
class NotingLink : public cuda::StreamTransport {
 public:
  NotingLink(cuda::StreamTransport link, std::string& notes)
      : cuda::StreamTransport(std::move(link)), notes_(notes) {}
  void begin_all_to_all(const runtime::ProcessGroup& process_group,
                        std::span<const std::span<const std::byte>> from,
                        std::span<const std::span<std::byte>> into) {
    notes_ += 'b';
    cuda::StreamTransport::begin_all_to_all(process_group, from, into);
  }
  void end_all_to_all() {
    notes_ += 'e';
    cuda::StreamTransport::end_all_to_all();
  }

 private:
  std::string& notes_;
};

/// A piece that comes has ended before attention and the next has begun; what goes home ends when
/// the next piece has been attended to. In B all queries have come before.
std::string notes_of_pieces(std::int64_t count, bool back) {
  const auto all = static_cast<std::size_t>(back ? count : 0);
  std::string notes = std::string(all, 'b') + std::string(all, 'e') + "b";
  for (std::int64_t i = 0; i < count; ++i) {
    if (i >= 2) notes += 'e';
    notes += 'e';
    if (i + 1 < count) notes += 'b';
    notes += 'b';
  }
  return notes + (count == 1 ? "e" : "ee");
}

}  // namespace

TEST_CASE("ranks by heads: a piece is on its way while the one before is attended to") {
  std::set<std::int64_t> counts;
  for (std::int64_t heads = 1; heads <= 5; ++heads) {
    CAPTURE(heads);
    test::ByHeadsOptions options;
    options.heads = heads;
    options.plans.max_pp = options.plans.max_chunks = 1;
    options.plans.recompute = Recompute::none;
    const Plan plan = test::by_heads_plan(900, options);
    test::RankDevices devices = test::rank_devices(plan, 1);
    std::vector<std::string> notes(devices.size());
    std::vector<std::unique_ptr<cuda::RankStreams>> streams;
    for (cuda::RankDevice& device : devices) {
      streams.push_back(std::make_unique<cuda::RankStreams>(device.stream()));
    }
    runtime::DeviceThreads threads(devices.size());
    (void)runtime::run_step_with<NotingLink>(
        threads, plan, runtime::make_program(plan), test::random_data(plan, 1), std::span(devices),
        [&](cuda::StreamRendezvous& rendezvous, std::size_t device) {
          return NotingLink(
              cuda::StreamTransport(rendezvous, device, cuda::StreamMover(*streams[device])),
              notes[device]);
        });
    std::string expected;
    for (const Unit& unit : plan.schedule.front().order) {
      if (unit.kind != UnitKind::forward && unit.kind != UnitKind::backward) continue;
      const HeadSets sets = head_sets_of(plan, plan.micropacks[index(unit.pack)]);
      const std::int64_t count =
          std::min<std::int64_t>(heads, 4) *
          std::ranges::count_if(sets.tokens, [](std::uint16_t part) { return part > 0; });
      if (count == 0) continue;
      counts.insert(count);
      for (std::int64_t layer = 0; layer < plan.model.layers; ++layer) {
        expected += notes_of_pieces(count, unit.kind == UnitKind::backward);
      }
    }
    CHECK(notes[0] == expected);
    CHECK(notes[1] == notes[0]);
  }
  CHECK(counts == std::set<std::int64_t>{1, 2, 3, 4});
}

TEST_CASE("head_pieces: four at most, of about equal numbers of heads") {
  for (std::int64_t heads = 1; heads <= 40; ++heads) {
    CAPTURE(heads);
    const std::vector<cuda::HeadPiece> pieces = cuda::head_pieces(heads);
    CHECK(static_cast<std::int64_t>(pieces.size()) == std::min<std::int64_t>(heads, 4));
    std::int64_t next = 0, least = heads, most = 0;
    for (const cuda::HeadPiece& piece : pieces) {
      CHECK(piece.first == next);
      next += piece.heads;
      least = std::min(least, piece.heads);
      most = std::max(most, piece.heads);
    }
    CHECK(next == heads);
    CHECK(most - least <= 1);
  }
}

TEST_CASE("ranks by heads: groups of 2, 3 and 4 give the oracle's loss and gradients") {
  Worst worst;
  for (std::uint64_t seed = 0; seed < 18; ++seed) {
    test::ByHeadsOptions options;
    options.ranks = 2 + static_cast<std::int32_t>(seed % 3);
    options.queries_a_key = 1 + static_cast<std::int64_t>(seed / 3 % 2);
    options.heads = 1 + static_cast<std::int64_t>(seed / 2 % 3);
    options.plans.recompute = static_cast<Recompute>(seed % kRecomputeModes);
    check(test::by_heads_plan(seed, options), seed, worst);
  }
  CHECK(worst.features.travelling >= 18);
  CHECK(worst.features.with_prefix >= 6);
  CHECK(worst.features.within_block >= 1);
  worst.print();
}

TEST_CASE("ranks by heads: packs of which some samples go round rings, or stay on one rank") {
  Worst worst;
  for (std::uint64_t seed = 100; seed < 112; ++seed) {
    test::ByHeadsOptions options;
    options.ranks = seed % 2 == 0 ? 2 : 4;
    options.mixed = true;
    options.plans.min_share = 6;
    options.plans.max_share = 12;
    options.plans.weights = seed % 3 == 0;
    check(test::by_heads_plan(seed, options), seed, worst);
  }
  CHECK(worst.features.travelling >= 24);
  CHECK(worst.features.rings >= 24);
  CHECK(worst.features.undivided >= 4);
  worst.print();
}

TEST_CASE("ranks by heads: samples that are not cut, whose keys are made again") {
  Worst worst;
  std::int64_t again = 0, unsummed = 0;
  for (std::uint64_t seed = 200; seed < 212; ++seed) {
    test::ByHeadsOptions options;
    options.ranks = seed % 2 == 0 ? 2 : 4;
    options.queries_a_key = 2;
    options.mixed = seed % 3 == 0;
    // Of the last ones some samples are cut, most of whose packs are `full`.
    if (seed < 208) options.plans.uncut = true;
    if (seed >= 204) options.plans.recompute = Recompute::full;
    const Plan plan = test::by_heads_plan(seed, options);
    for (const KeptKeys& kept : kept_keys(plan)) {
      again += kept.pages ? 0 : 1;
      unsummed += kept.gradients ? 0 : 1;
    }
    check(plan, seed, worst);
  }
  CHECK(again >= 6);
  CHECK(unsummed > again);
  CHECK(worst.features.full >= 6);
  worst.print();
}

TEST_CASE("ranks by heads: with tensor parallelism, of each device's own heads") {
  Worst worst;
  for (std::uint64_t seed = 300; seed < 310; ++seed) {
    test::ByHeadsOptions options;
    options.plans = test::tensor_parallel_plans(2);
    options.ranks = seed % 3 == 0 ? 4 : 2;
    options.queries_a_key = 1 + static_cast<std::int64_t>(seed % 2);
    options.mixed = seed % 4 == 3;
    options.plans.max_pp = options.ranks == 4 ? 1 : 2;
    options.plans.recompute = static_cast<Recompute>(seed % kRecomputeModes);
    check(test::by_heads_plan(seed, options), seed, worst);
  }
  CHECK(worst.features.travelling >= 10);
  CHECK(worst.features.full >= 2);
  worst.print();
}

TEST_CASE("ranks by heads: several ranks with the same head of keys") {
  Worst worst;
  for (std::uint64_t seed = 500; seed < 516; ++seed) {
    test::ByHeadsOptions options;
    if (seed % 4 == 3) options.plans = test::tensor_parallel_plans(2);
    options.ranks = seed % 3 == 0 ? 2 : 4;
    options.ranks_a_key = seed % 3 == 1 ? 4 : 2;
    options.queries_a_key = 1 + static_cast<std::int64_t>(seed / 2 % 2);
    options.mixed = seed % 5 == 4;
    options.plans.uncut = seed >= 510;
    if (options.ranks == 4) options.plans.max_pp = 1;
    options.plans.recompute = static_cast<Recompute>(seed / 4 % kRecomputeModes);
    check(test::by_heads_plan(seed, options), seed, worst);
  }
  CHECK(worst.features.travelling >= 18);
  CHECK(worst.features.with_prefix >= 4);
  CHECK(worst.features.full >= 3);
  worst.print();
}

TEST_CASE("ranks by heads: rounds of ranks that share weights") {
  Worst worst;
  for (std::uint64_t seed = 400; seed < 412; ++seed) {
    test::SharedPlanOptions options;
    options.dp = seed % 2 == 0 ? 2 : 4;
    if (seed % 3 == 2) {
      options.tp = 2;
      options.dp = 2;
    }
    Plan plan = test::shared_plan(seed, options);
    test::give_heads(plan.model, plan.parallel.dp, plan.parallel.tp, 2);
    test::exchange_by_heads(plan, seed, seed % 4 == 3);
    // Whole vectors of 8 elements in each rank's part of a unit.
    const std::int64_t units = plan.model.layers + 2;
    check(plan, seed, worst, test::plain_path(),
          units * 8 * (2 + 4 + 12) + 8 * plan.parallel.dp * (2 * 2 + 2 * 4));
  }
  CHECK(worst.features.travelling >= 12);
  worst.print();
}

TEST_CASE("ranks by heads: attention on tiles, of half of the heads") {
  cuda::Emulation hopper;
  hopper.major = 9;
  const cuda::ScopedEmulation emulated(hopper);
  Worst worst;
  using cuda::AttentionPath;
  for (const auto& way : {std::pair{AttentionPath::wgmma, std::int64_t{64}},
                          {AttentionPath::wgmma, 128},
                          {AttentionPath::mma, 128}}) {
    const std::int64_t dim = way.second;
    const auto seed = static_cast<std::uint64_t>(500 + dim);
    CAPTURE(dim);
    test::ByHeadsOptions options;
    options.queries_a_key = dim == 64 ? 1 : 2;
    options.plans.max_pp = options.plans.max_chunks = 1;
    options.plans.max_samples = 2;
    options.plans.max_tokens = 150;
    options.plans.min_page = options.plans.max_page = 64;
    options.plans.min_share = options.plans.max_share = 64;
    Plan plan = test::by_heads_plan(seed, options);
    plan.model.head_dim = dim;
    plan.model.hidden = dim * plan.model.heads / 2;
    plan.model.ffn = dim * plan.model.heads;
    cuda::RankOptions ranks = test::plain_path();
    ranks.path = way.first;
    check(plan, seed, worst, ranks);
  }
  worst.print();
}

TEST_CASE("ranks by heads: equal bits whenever streams run, and nothing read too early") {
  for (std::uint64_t seed = 600; seed < 606; ++seed) {
    CAPTURE(seed);
    test::ByHeadsOptions options;
    options.ranks = seed % 2 == 0 ? 2 : 4;
    options.mixed = seed % 3 == 0;
    options.heads = 1 + static_cast<std::int64_t>(seed % 5);
    const Plan plan = test::by_heads_plan(seed, options);
    const runtime::StepData data = test::random_data(plan, seed);
    test::RankDevices first = test::rank_devices(plan, seed);
    const runtime::StepResult at_once = test::run_ranks(plan, data, std::span(first));
    cuda::Emulation late = cuda::emulation();
    late.timing = cuda::EmulatedTiming::late;
    const cuda::ScopedEmulation scope(late);
    test::RankDevices second = test::rank_devices(plan, seed);
    CHECK(test::run_ranks(plan, data, std::span(second)).sample_loss == at_once.sample_loss);
    CHECK(test::state_of(second) == test::state_of(first));
  }
}

TEST_CASE("ranks by heads: losses have the bits of a rank that is alone") {
  double worst = 0;
  for (std::uint64_t seed = 700; seed < 706; ++seed) {
    CAPTURE(seed);
    test::ByHeadsOptions options;
    options.ranks = seed % 2 == 0 ? 2 : 4;
    options.queries_a_key = 2;
    options.heads = 1 + static_cast<std::int64_t>(seed % 3);
    options.plans.max_pp = 1;
    options.plans.max_samples = 1;
    options.plans.min_tokens = 25;
    const Plan plan = test::by_heads_plan(seed, options), alone = on_one_rank(plan);
    require_valid(alone);
    const runtime::StepData data = test::random_data(plan, seed);
    test::RankDevices group = test::rank_devices(plan, seed);
    test::RankDevices one = test::rank_devices(alone, seed);
    CHECK(test::run_ranks(plan, data, std::span(group)).sample_loss ==
          test::run_ranks(alone, data, std::span(one)).sample_loss);
    worst = std::max(worst, difference(gradients_of(plan, group), gradients_of(alone, one)));
  }
  // Gradients of keys and values are rounded on their way home.
  CHECK(worst <= 1e-2);
  std::printf("  largest difference of gradients: %.1e\n", worst);
}

TEST_CASE("ranks by heads: ranks that do not divide the heads of keys are refused in a sentence") {
  test::ByHeadsOptions options;
  const Plan plan = test::by_heads_plan(800, options);
  CHECK(cuda::why_not_plan(plan) == std::nullopt);
  Plan wrong = plan;
  wrong.model.heads = 3;
  wrong.model.kv_heads = 1;
  CHECK(cuda::why_not_plan(wrong) ==
        "RankDevice: an exchange by heads needs ranks that divide the 1 heads of keys of a device, "
        "or are a multiple of them that divides its 3 heads of queries, got 2");
}

}  // namespace by_heads_test
