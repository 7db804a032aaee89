// SPDX-License-Identifier: Apache-2.0
// Tensor parallelism with sequence parallelism on emulated devices, against the unsliced oracle.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "cuda/ranks/rank_plans.hpp"
#include "slimpack/core/random.hpp"
#include "slimpack/cost/communication.hpp"
#include "slimpack_cuda/rank/row_groups.hpp"
#include "support/executed_memory.hpp"

namespace tensor_parallel_test {

using namespace slimpack;

namespace {

/// Plans of tp 2 and 4, by turns with every feature.
test::RandomPlanOptions tensor_parallel(std::uint64_t seed) {
  test::RandomPlanOptions options = test::small_plans();
  options.version = 2;
  options.tp = seed % 2 == 0 ? 2 : 4;
  options.max_dp = options.max_pp = 2;
  options.max_samples = 4;
  options.weights = seed % 3 == 0;
  if (seed % 5 < 2) {
    options.cp_groups = true;
    options.exchange = seed % 5 == 0 ? RingMode::pass_kv : RingMode::pass_q;
  }
  if (seed % 7 == 0) options.uncut = true;
  if (seed % 4 < 2) options.recompute = static_cast<Recompute>(seed / 4 % kRecomputeModes);
  if (seed % 3 == 1) options.head = LmHead::shard;
  return options;
}

/// The worst of the plans that have a feature.
class Table {
 public:
  void add(const std::string& feature, const test::RankCheck& found) {
    Row& row = rows_[feature];
    ++row.plans;
    row.loss = std::max(row.loss, found.loss);
    row.gradient = std::max(row.gradient, found.gradient);
    row.norm = std::max(row.norm, found.norm);
  }
  void add(const Plan& plan, const test::RankCheck& found) {
    add("tp " + std::to_string(plan.parallel.tp), found);
    if (plan.parallel.chunks > 1) add("chunks", found);
    if (plan.parallel.head == LmHead::shard && plan.parallel.pp > 1) add("sharded head", found);
    if (plan.model.tied) add("tied", found);
    if (plan.parallel.dp > 1 && plan.memory.optimizer == OptimizerState::sharded) {
      add("sharded optimizer", found);
    }
    const auto has = [&](auto which) { return std::ranges::any_of(plan.micropacks, which); };
    if (has([](const MicroPack& pack) { return pack.pass == Pass::weight; })) add("W", found);
    for (const Recompute mode :
         {Recompute::none, Recompute::light, Recompute::layer, Recompute::full}) {
      if (has([&](const MicroPack& pack) {
            return pack.pass == Pass::backward && pack.recompute == mode;
          })) {
        add("recompute " + std::to_string(static_cast<int>(mode)), found);
      }
    }
    for (const RingMode mode : {RingMode::pass_kv, RingMode::pass_q}) {
      if (has([&](const MicroPack& pack) {
            return plan.groups[index(pack.group)].size() > 1 &&
                   std::ranges::find(pack.exchange, mode) != pack.exchange.end();
          })) {
        add(mode == RingMode::pass_kv ? "merged, kv" : "merged, q", found);
      }
    }
  }
  [[nodiscard]] std::int64_t plans(const std::string& feature) const {
    const auto row = rows_.find(feature);
    return row == rows_.end() ? 0 : row->second.plans;
  }
  void print() const {
    for (const auto& [feature, row] : rows_) {
      std::printf("  %-18s %3lld plans: loss %.1e, gradients %.1e, their norm %.1e\n",
                  feature.c_str(), static_cast<long long>(row.plans), row.loss, row.gradient,
                  row.norm);
    }
  }

 private:
  struct Row {
    std::int64_t plans = 0;
    double loss = 0, gradient = 0, norm = 0;
  };
  std::map<std::string, Row> rows_;
};

/// A transport that counts what a device sends to its tensor-parallel devices, rows of tokens
/// alone.
class CountingLink : public cuda::StreamTransport {
 public:
  CountingLink(cuda::StreamTransport link, std::atomic<std::int64_t>& sent)
      : cuda::StreamTransport(std::move(link)), sent_(&sent) {}
  template <class Element>
  void all_gather(const runtime::ProcessGroup& process_group, std::span<Element> values,
                  std::size_t first, std::size_t last) {
    begin_all_gather(process_group, values, first, last);
    end_collective();
  }
  template <class Element>
  void begin_all_gather(const runtime::ProcessGroup& process_group, std::span<Element> values,
                        std::size_t first, std::size_t last) {
    if constexpr (std::is_same_v<Element, cuda::Bf16>) count(process_group, last - first);
    cuda::StreamTransport::begin_all_gather(process_group, values, first, last);
  }
  template <class Element>
  void begin_reduce_scatter(const runtime::ProcessGroup& process_group, std::span<Element> values,
                            std::size_t first, std::size_t last) {
    count(process_group, last - first);  // what arrives, as much as is sent
    cuda::StreamTransport::begin_reduce_scatter(process_group, values, first, last);
  }

 private:
  void count(const runtime::ProcessGroup& process_group, std::size_t numbers) {
    *sent_ += static_cast<std::int64_t>(2 * numbers * (process_group.members.size() - 1));
  }
  std::atomic<std::int64_t>* sent_;
};

runtime::StepResult run_counted(const Plan& plan, const runtime::StepData& data,
                                std::span<cuda::RankDevice> devices,
                                std::atomic<std::int64_t>& sent) {
  const runtime::Program program = runtime::make_program(plan);
  runtime::DeviceThreads device_threads(devices.size());
  std::vector<std::unique_ptr<cuda::RankStreams>> streams;
  for (cuda::RankDevice& device : devices) {
    streams.push_back(std::make_unique<cuda::RankStreams>(device.stream()));
  }
  return runtime::run_step_with<CountingLink>(
      device_threads, plan, program, data, devices,
      [&](cuda::StreamRendezvous& rendezvous, std::size_t device) {
        return CountingLink(
            cuda::StreamTransport(rendezvous, device, cuda::StreamMover(*streams[device])), sent);
      });
}

/// A device that fails in its first B.
class FailingRank : public cuda::RankDevice {
 public:
  explicit FailingRank(cuda::RankDevice&& device) : cuda::RankDevice(std::move(device)) {}
  template <class Link>
  void backward(const runtime::PackCall& call, Link& link) {
    if (fails) throw std::runtime_error("out of luck");
    cuda::RankDevice::backward(call, link);
  }
  bool fails = false;
};

}  // namespace

TEST_CASE("row groups: all rows come once, each at a place of its device, alike on all devices") {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const std::int64_t devices = random.between(2, 5), most = random.between(1, 40);
    std::vector<std::int32_t> owners;
    for (std::int64_t samples = random.between(0, 12); samples > 0; --samples) {
      const auto sample = static_cast<SampleId>(random.below(100));
      const std::int64_t begin = random.between(0, 50), rows = random.between(1, 60);
      for (std::int64_t x = begin; x < begin + rows; ++x) {
        owners.push_back(
            static_cast<std::int32_t>(TensorRows{0, devices}.owner(sample, Tokens{x})));
      }
    }
    std::vector<std::int64_t> next_own(static_cast<std::size_t>(devices), 0);
    const cuda::RowGroups first = cuda::row_groups(owners, {0, devices}, most);
    CHECK(first.places.size() == owners.size());
    std::int64_t next = 0;
    for (std::size_t g = 0; g < first.groups.size(); ++g) {
      const cuda::RowGroup& group = first.groups[g];
      CHECK(group.first == next);
      CHECK((group.rows > 0 && group.padded >= 1 && group.padded <= most));
      next += group.rows;
      std::vector<std::int64_t> held(static_cast<std::size_t>(devices), 0);
      bool right = true;
      for (std::int64_t row = group.first; row < next; ++row) {
        const auto i = static_cast<std::size_t>(row);
        right = right && first.places[i] ==
                             owners[i] * group.padded + held[static_cast<std::size_t>(owners[i])]++;
      }
      CHECK(right);
      CHECK(*std::ranges::max_element(held) == group.padded);
      for (std::int64_t device = 0; device < devices; ++device) {
        const auto d = static_cast<std::size_t>(device);
        const cuda::RowGroups mine = cuda::row_groups(owners, {device, devices}, most);
        REQUIRE(mine.groups.size() == first.groups.size());
        CHECK(mine.places == first.places);
        CHECK(mine.groups[g].own == held[d]);
        CHECK(mine.groups[g].first_own == next_own[d]);
        next_own[d] += held[d];
      }
      // A group ends where a device would have more than `most`, or with the rows.
      if (g + 1 < first.groups.size()) {
        CHECK(held[static_cast<std::size_t>(owners[static_cast<std::size_t>(next)])] == most);
      }
    }
    CHECK(next == static_cast<std::int64_t>(owners.size()));
  }
}

TEST_CASE("row groups: of long samples next to nothing is padded") {
  std::vector<std::int32_t> owners;
  for (std::int64_t sample = 0; sample < 7; ++sample) {
    for (std::int64_t x = 0; x < 1000 + 37 * sample; ++x) {
      owners.push_back(static_cast<std::int32_t>((x + sample) % 4));
    }
  }
  std::int64_t moved = 0;
  for (const cuda::RowGroup& group : cuda::row_groups(owners, {1, 4}, 256).groups) {
    moved += 4 * group.padded;
  }
  const auto rows = static_cast<std::int64_t>(owners.size());
  CHECK(moved >= rows);
  CHECK(moved <= rows + rows / 100);
}

TEST_CASE("ranks: tensor parallelism gives the oracle's loss and gradients, feature by feature") {
  Table table;
  for (std::uint64_t seed = 0; seed < 24; ++seed) {
    CAPTURE(seed);
    const Plan plan = test::rank_plan(700 + seed, tensor_parallel(seed));
    test::Executed executed(plan);
    const test::RankCheck found = test::check_ranks(plan, seed, executed.observer());
    executed.finish();
    // Rounded up are a rank's parts of pieces, embedding and head.
    test::check_memory(plan, executed, 12 * plan.model.hidden * 8 + 10'000);
    CAPTURE(found.worst_tensor);
    CHECK(found.loss <= 2e-3);
    CHECK(found.norm <= 2e-2);
    CHECK(found.gradient <= 4e-2);
    table.add(plan, found);
  }
  table.print();
  for (const char* name :
       {"tp 2", "tp 4", "merged, kv", "merged, q", "chunks", "sharded head", "tied", "recompute 0",
        "recompute 1", "recompute 2", "recompute 3", "W", "sharded optimizer"}) {
    CAPTURE(name);
    CHECK(table.plans(name) >= 4);
  }
}

TEST_CASE("ranks: packs of single tokens, where most tensor-parallel devices have no row") {
  double worst = 0;
  for (std::uint64_t seed = 780; seed < 792; ++seed) {
    CAPTURE(seed);
    test::RandomPlanOptions options = tensor_parallel(seed);
    options.min_tokens = 1;
    options.max_tokens = 3;
    const Plan plan = test::rank_plan(seed, options);
    const test::RankCheck found = test::check_ranks(plan, seed);
    CAPTURE(found.worst_tensor);
    CHECK(found.loss <= 2e-3);
    CHECK(found.norm <= 3e-2);
    worst = std::max(worst, found.gradient);
  }
  std::printf("  largest difference of gradients %.1e\n", worst);
}

TEST_CASE("ranks: any number of heads a device, alone and in groups") {
  double worst = 0;
  for (std::uint64_t seed = 730; seed < 738; ++seed) {
    CAPTURE(seed);
    test::RandomPlanOptions options = tensor_parallel(seed);
    options.tp = seed % 2 == 0 ? 1 : 4;
    options.cp_groups = seed % 4 < 2;
    Plan plan = test::rank_plan(seed, options);
    plan.model.hidden = 96;
    plan.model.heads = plan.parallel.tp == 1 ? 6 : 12;
    plan.model.kv_heads = plan.parallel.tp == 1 ? 3 : 4;
    plan.model.ffn = 128;
    const test::RankCheck found = test::check_ranks(plan, seed);
    CAPTURE(found.worst_tensor);
    CHECK(found.loss <= 2e-3);
    CHECK(found.norm <= 2e-2);
    CHECK(found.gradient <= 4e-2);
    worst = std::max(worst, found.gradient);
  }
  std::printf("  largest difference of gradients %.1e\n", worst);
}

TEST_CASE(
    "ranks: tensor-parallel devices send what plans count, rows padded to the largest share") {
  std::int64_t all = 0, predicted = 0;
  for (std::uint64_t seed = 750; seed < 760; ++seed) {
    CAPTURE(seed);
    const Plan plan = test::rank_plan(seed, tensor_parallel(seed));
    std::atomic<std::int64_t> sent{0};
    test::RankDevices devices = test::rank_devices(plan, seed);
    (void)run_counted(plan, test::random_data(plan, seed), std::span(devices), sent);
    std::int64_t rows = 0;  // by the counts of docs/equations.md
    for (const MicroPack& pack : plan.micropacks) {
      std::int64_t tokens = 0, layer = 4;
      for (const Slice& slice : pack.slices) tokens += slice.length().value;
      if (pack.pass == Pass::backward) {
        const bool again = pack.recompute == Recompute::layer || pack.recompute == Recompute::full;
        layer = (pack.weights == WeightGradients::with ? 6 : 4) + (again ? 3 : 0);
      }
      rows += tokens * (layer * plan.model.layers + (pack.pass == Pass::weight ? 0 : 1));
      const bool sharded = plan.parallel.head == LmHead::shard;
      if (pack.pass == Pass::forward) rows += tokens * 2 * (sharded ? plan.parallel.pp : 1);
    }
    const std::int64_t exact = rows * (plan.parallel.tp - 1) * plan.model.hidden * 2;
    CHECK(sent >= exact);
    all += sent;
    predicted += communication_of(plan).tensor_parallel.value;
  }
  std::printf("  bytes counted %lld, predicted %lld\n", static_cast<long long>(all),
              static_cast<long long>(predicted));
  CHECK(static_cast<double>(all) > 0.9 * static_cast<double>(predicted));
  CHECK(static_cast<double>(all) < 1.6 * static_cast<double>(predicted));
}

TEST_CASE("ranks: a tensor-parallel device that fails ends all devices in one sentence") {
  test::RandomPlanOptions options = test::tensor_parallel_plans(4);
  options.dp = options.pp = 2;
  const Plan plan = test::rank_plan(770, options);
  std::vector<FailingRank> devices;
  for (cuda::RankDevice& device : test::rank_devices(plan, 1)) {
    devices.emplace_back(std::move(device));
  }
  const auto works = std::ranges::find_if(plan.schedule, [](const DeviceSchedule& schedule) {
    return schedule.pp == 1 && std::ranges::any_of(schedule.order, [](const Unit& unit) {
             return unit.kind == UnitKind::backward;
           });
  });
  REQUIRE(works != plan.schedule.end());
  devices[static_cast<std::size_t>(works - plan.schedule.begin()) * 4 + 2].fails = true;
  CHECK_THROWS_WITH_AS((void)test::run_ranks(plan, test::random_data(plan, 1), std::span(devices)),
                       doctest::Contains("pp 1, tp 2), unit "), runtime::ExecutionError);
}

}  // namespace tensor_parallel_test
