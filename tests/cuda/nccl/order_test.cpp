// SPDX-License-Identifier: Apache-2.0
// What all ranks of a plan ask of NCCL, and that no device can wait for ever.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "cuda/ranks/by_heads_plans.hpp"
#include "cuda/ranks/shared_plan.hpp"
#include "link_device.hpp"
#include "recorder.hpp"
#include "slimpack/core/random.hpp"
#include "slimpack/data/sample.hpp"
#include "slimpack/planners/registry.hpp"
#include "slimpack/runtime/executor.hpp"
#include "slimpack/runtime/program.hpp"
#include "slimpack_cuda/emulation.hpp"
#include "slimpack_cuda/nccl/nccl_transport.hpp"
#include "support/random_plan.hpp"

namespace order_test {

using namespace slimpack;
using test::LinkDevice;
using test::Operation;
using test::Record;
namespace nccl = cuda::nccl;

namespace {

/// Ranks that live over steps; what each queues in a step.
class Recording {
 public:
  explicit Recording(std::size_t ranks) {
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      Rank& one = ranks_.emplace_back();
      one.stream = std::make_unique<cuda::Stream>();
      one.api = std::make_unique<test::RecordingNccl>();
      one.control = std::make_unique<test::CountingControl>(rank);
      cuda::nccl::NcclOptions options;
      options.bucket = 4096;
      one.link = std::make_unique<cuda::nccl::NcclTransport>(*one.api, *one.control,
                                                             one.stream->view(), options);
    }
  }

  std::vector<Record> run(const Plan& plan) {
    const runtime::Program program = runtime::make_program(plan);
    const runtime::StepData data;
    const runtime::MemoryObserver observer;
    std::vector<Record> records;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      Rank& one = ranks_[rank];
      one.api->record.clear();
      one.link->begin_step(plan, program);
      LinkDevice device(plan, rank);
      (void)runtime::DeviceRun<LinkDevice, cuda::nccl::NcclTransport>(plan, program, data, rank,
                                                                      device, *one.link, observer)
          .run();
      one.link->end_step("between steps");
      records.push_back(std::move(one.api->record));
    }
    return records;
  }
  [[nodiscard]] std::size_t joined() const {
    std::size_t all = 0;
    for (const Rank& one : ranks_) all += one.api->joined();
    return all;
  }

 private:
  struct Rank {
    std::unique_ptr<cuda::Stream> stream;
    std::unique_ptr<test::RecordingNccl> api;
    std::unique_ptr<test::CountingControl> control;
    std::unique_ptr<cuda::nccl::NcclTransport> link;
  };
  std::vector<Rank> ranks_;
};

std::size_t operations(std::span<const Record> records) {
  std::size_t all = 0;
  for (const Record& record : records) {
    for (const test::Group& group : record) all += group.size();
  }
  return all;
}

/// Operations that are not on a stream of high priority.
std::size_t misplaced(const Record& record) {
  std::size_t all = 0;
  for (const test::Group& group : record) {
    for (const Operation& one : group) all += one.urgent ? 0 : 1;
  }
  return all;
}

std::string replay(std::span<const Record> records) {
  return test::DeviceReplay(records).run();
}

/// What a rank joins at most, of all ranks.
std::int64_t most_joined(const Plan& plan) {
  std::map<std::size_t, std::int64_t> joined;
  for (const nccl::CommunicatorKey& key : nccl::communicators_of(plan)) {
    for (const std::size_t rank : key.members) ++joined[rank];
  }
  std::int64_t most = 0;
  for (const auto& [rank, count] : joined) most = std::max(most, count);
  return most;
}

Plan plan_of(std::uint64_t seed, std::int32_t dp, std::int32_t pp) {
  test::RandomPlanOptions options;
  options.dp = dp;
  options.pp = pp;
  options.min_samples = 6;
  options.min_tokens = 30;
  return test::random_plan(seed, options);
}

/// A step of random lengths that a planner is asked for.
planners::PlanRequest request_of(std::uint64_t seed, std::int32_t dp, std::int32_t pp) {
  Random random(seed);
  planners::PlanRequest request;
  for (int sample = 0; sample < 12; ++sample) {
    const std::int64_t length = random.between(4, random.chance(1, 4) ? 600 : 90);
    request.batch.samples.push_back(Tokens{length});
    request.batch.origin.push_back({0, sample, Tokens{0}});
    request.batch.target_tokens += length - 1;
  }
  request.sources = {{"drawn", 12, ""}};
  request.model = {"drawn", 2 * std::int64_t{pp}, 12,  4,    2, 4, 20,
                   23,      random.chance(1, 3),  1e4, 1e-5, 2};
  request.cluster.name = "drawn";
  request.cluster.devices_per_node = 8;
  request.cluster.memory = Bytes{std::int64_t{1} << 40U};
  request.cluster.peak_flops = 2e9;
  request.cluster.matrix_flops = 1e9;
  request.cluster.attention_forward_flops = 5e8;
  request.cluster.attention_backward_flops = 4e8;
  request.cluster.memory_bytes_per_s = 1e11;
  request.cluster.inside = {1e10, 1e-6};
  request.cluster.between = {2e9, 2e-6};
  request.cluster.kernel_s = 1e-6;
  request.cluster.segment_s = 1e-7;
  request.cluster.tile_tokens = 4;
  request.dp = dp;
  request.pp = pp;
  request.context = Tokens{600};
  request.granularity = Tokens{16};
  request.effort = planners::Effort::fast;
  request.memory.page_tokens = Tokens{8};
  request.memory.cp_block_tokens = Tokens{16};
  request.memory.head_tile = Tokens{32};
  request.memory.capacity = Bytes{std::int64_t{1} << 40U};
  return request;
}

}  // namespace

TEST_CASE("NcclTransport: what ranks queue for random plans meets and ends on any device") {
  std::size_t all = 0, groups = 0;
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    CAPTURE(seed);
    test::RandomPlanOptions options;
    if (seed >= 300) options.cp_groups = true;
    if (seed >= 350) options.chunks = 3;
    options.weights = seed % 4 == 1;
    const Plan plan = test::random_plan(seed, options);
    Recording ranks(plan.schedule.size());
    const auto records = ranks.run(plan);
    CHECK(replay(records) == "");
    for (const Record& record : records) CHECK(misplaced(record) == 0);
    all += operations(records);
    for (const Record& record : records) {
      for (const test::Group& group : record) groups += group.size() > 1 ? 1 : 0;
    }
  }
  MESSAGE(all, " operations, ", groups, " groups of several");
  CHECK(all > 10000);
  CHECK(groups > 100);
}

TEST_CASE("NcclTransport: what ranks queue with tensor parallelism meets and ends") {
  std::size_t all = 0, groups = 0;
  for (std::uint64_t seed = 0; seed < 120; ++seed) {
    CAPTURE(seed);
    test::RandomPlanOptions options;
    options.version = 2;
    options.tp = seed % 3 == 0 ? 4 : 2;
    options.max_dp = options.max_pp = 3;
    options.cp_groups = seed % 2 == 0;
    options.weights = seed % 4 == 1;
    if (seed >= 100) options.chunks = 3;
    if (seed % 5 == 0) options.head = LmHead::shard;
    const Plan plan = test::random_plan(seed, options);
    Recording ranks(device_count(plan));
    const auto records = ranks.run(plan);
    CHECK(replay(records) == "");
    for (const Record& record : records) CHECK(misplaced(record) == 0);
    all += operations(records);
    for (const auto& group : plan.groups) groups += group.size() > 1 ? 1 : 0;
    const Parallel& parallel = plan.parallel;
    CHECK(most_joined(plan) <= nccl::most_communicators(parallel.dp, parallel.pp, parallel.tp) +
                                   static_cast<std::int64_t>(plan.groups.size()));
  }
  MESSAGE(all, " operations, ", groups, " context-parallel groups");
  CHECK(all > 10000);
  CHECK(groups > 50);
}

TEST_CASE("NcclTransport: what ranks that share weights queue meets and ends") {
  std::size_t all = 0, groups = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    test::SharedPlanOptions options;
    if (seed % 3 == 0) options.tp = 2;
    const Plan plan = test::shared_plan(seed, options);
    Recording ranks(device_count(plan));
    const auto records = ranks.run(plan);
    CHECK(replay(records) == "");
    all += operations(records);
    for (const auto& group : plan.groups) groups += group.size() > 1 ? 1 : 0;
  }
  MESSAGE(all, " operations, ", groups, " context-parallel groups");
  CHECK(all > 10000);
  CHECK(groups > 50);
}

TEST_CASE("NcclTransport: what ranks queue for slices by heads meets and ends") {
  std::int64_t travelling = 0, rings = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    test::ByHeadsOptions options;
    options.ranks = 2 + static_cast<std::int32_t>(seed % 3);
    options.mixed = seed % 2 == 0;
    options.heads = 1 + static_cast<std::int64_t>(seed % 5);
    options.plans.tp = seed % 5 == 0 ? 2 : 1;
    options.plans.weights = seed % 4 == 1;
    const Plan plan = test::by_heads_plan(seed, options);
    Recording ranks(device_count(plan));
    const auto records = ranks.run(plan);
    CHECK(replay(records) == "");
    for (const Record& record : records) CHECK(misplaced(record) == 0);
    const test::ByHeadsFeatures found = test::by_heads_features(plan);
    travelling += found.travelling;
    rings += found.rings;
  }
  CHECK(travelling > 100);
  CHECK(rings > 50);
}

TEST_CASE("NcclTransport: what ranks queue for the plans of every planner meets and ends") {
  std::size_t planned = 0, cp_groups = 0;
  std::uint64_t seed = 0;
  for (const planners::PlannerInfo& planner : planners::registry()) {
    const std::string name(planner.name);
    CAPTURE(name);
    std::size_t found = 0;
    for (const auto& [dp, pp] : {std::pair{1, 4}, {4, 1}, {2, 2}, {2, 4}, {4, 2}, {1, 1}}) {
      const planners::PlanRequest request = request_of(++seed, dp, pp);
      const planners::PlanOutcome outcome = planner.plan(request);
      if (planners::plan_in(outcome.result) == nullptr) continue;
      Plan plan = *planners::plan_in(outcome.result);
      // What is only simulated may share weights in ways that no rank executes.
      if (!std::holds_alternative<Plan>(outcome.result)) {
        plan.memory.weights = WeightState::replicated;
      }
      CHECK(most_joined(plan) <= nccl::most_communicators(dp, pp, 1));
      Recording ranks(plan.schedule.size());
      CHECK(replay(ranks.run(plan)) == "");
      ++found;
      for (const auto& group : plan.groups) cp_groups += group.size() > 1 ? 1 : 0;
    }
    CHECK(found >= 1);
    planned += found;
  }
  MESSAGE(planned, " plans, ", cp_groups, " context-parallel groups");
}

TEST_CASE(
    "NcclTransport: communicators live on, and later steps add context-parallel groups alone") {
  Recording ranks(8);
  std::size_t before = 0, grown = 0;
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    test::RandomPlanOptions options;
    options.dp = 4;
    options.pp = 2;
    options.chunks = 1;
    options.tied = false;
    const Plan plan = test::random_plan(seed, options);
    CHECK(replay(ranks.run(plan)) == "");
    grown += seed > 0 && ranks.joined() > before ? 1 : 0;
    before = ranks.joined();
    CHECK(replay(ranks.run(plan)) == "");
    CHECK(ranks.joined() == before);
  }
  CHECK(grown >= 1);
}

TEST_CASE(
    "NcclTransport: messages, process groups and sums have communicators and streams of their "
    "own") {
  const Plan plan = plan_of(3, 2, 3);
  const std::vector<Record> records = Recording(6).run(plan);
  for (const Record& record : records) {
    std::map<std::size_t, std::set<const void*>> streams;
    std::map<const void*, std::set<std::size_t>> comms;
    for (const test::Group& group : record) {
      for (const Operation& one : group) {
        streams[one.comm].insert(one.stream.get());
        comms[one.stream.get()].insert(one.comm);
      }
    }
    for (const auto& [comm, used] : streams) CHECK(used.size() == 1);
    std::size_t shared = 0;
    for (const auto& [stream, used] : comms) shared += used.size() > 1 ? 1 : 0;
    CHECK(shared == 0);
  }
}

TEST_CASE("NcclTransport: a collective that has begun does not wait for what is queued behind it") {
  const cuda::ScopedEmulation mode({.timing = cuda::EmulatedTiming::late});
  const cuda::Stream compute;
  test::RecordingNccl api;
  test::CountingControl control(0);
  nccl::NcclTransport link(api, control, compute.view());
  nccl::StepOrder order;
  order.devices.resize(2);
  const std::vector<nccl::CommunicatorKey> communicators{
      {nccl::CommunicatorKey::Use::process_group, {0, 1}}};
  Parallel stages;
  stages.pp = 2;
  link.begin_step(order, {}, communicators, stages, 1);
  const cuda::DeviceBuffer<float> rows(8), one(1), before(1), behind(1);
  cuda::fill_zeros(one.span(), compute.view());
  const runtime::ProcessGroup both{{0, 1}, 0};
  const std::span<float> values(rows.span().data, 8);
  const auto is_written = [](const cuda::DeviceBuffer<float>& value) {
    return value.span().data[0] == 0.0F;
  };
  for (const bool gathers : {true, false}) {
    CAPTURE(gathers);
    cuda::copy_on_device(before.span().data, one.span().data, sizeof(float), compute.view());
    if (gathers) {
      link.begin_all_gather(both, values, 0, 4);
    } else {
      link.begin_reduce_scatter(both, values, 0, 4);
    }
    cuda::copy_on_device(behind.span().data, one.span().data, sizeof(float), compute.view());
    const Operation queued = api.record.back().front();
    CHECK(queued.urgent);
    queued.stream.synchronize();
    CHECK(is_written(before));
    CHECK_FALSE(is_written(behind));
    link.end_collective();
    // Nothing is left of it: the next wait is for what begins next.
    link.end_collective();
    if (!gathers) break;
    compute.view().synchronize();
    CHECK(is_written(behind));
    for (const auto* value : {&before, &behind}) value->span().data[0] = -1.0F;
  }
  link.end_step("the end");
}

TEST_CASE("NcclTransport: parts that travel wait for nothing behind them, and end in their order") {
  const cuda::ScopedEmulation mode({.timing = cuda::EmulatedTiming::late});
  const cuda::Stream compute;
  test::RecordingNccl api;
  test::CountingControl control(0);
  nccl::NcclTransport link(api, control, compute.view());
  nccl::StepOrder order;
  order.devices.resize(2);
  const std::vector<nccl::CommunicatorKey> communicators{
      {nccl::CommunicatorKey::Use::process_group, {0, 1}}};
  Parallel stages;
  stages.pp = 2;
  link.begin_step(order, {}, communicators, stages, 1);
  const cuda::DeviceBuffer<float> rows(8), one(1), before(1), behind(1);
  cuda::fill_zeros(one.span(), compute.view());
  const runtime::ProcessGroup both{{0, 1}, 0};
  const auto bytes = std::as_writable_bytes(std::span(rows.span().data, 8));
  const std::vector<std::span<const std::byte>> from{bytes.first(4), bytes.subspan(4, 4)};
  const std::vector<std::span<std::byte>> into{bytes.subspan(8, 4), bytes.subspan(12, 4)};
  const auto is_written = [](const cuda::DeviceBuffer<float>& value) {
    return value.span().data[0] == 0.0F;
  };
  CHECK_THROWS_AS(link.end_all_to_all(), InvalidInput);
  cuda::copy_on_device(before.span().data, one.span().data, sizeof(float), compute.view());
  link.begin_all_to_all(both, from, into);
  CHECK_THROWS_AS(link.all_to_all(both, from, into), InvalidInput);
  const Operation first = api.record.back().front();
  CHECK(first.urgent);
  cuda::copy_on_device(behind.span().data, one.span().data, sizeof(float), compute.view());
  first.stream.synchronize();
  CHECK(is_written(before));
  CHECK_FALSE(is_written(behind));
  // What begins behind it is no part of its end.
  link.end_all_to_all();
  link.begin_all_to_all(both, from, into);
  link.begin_all_to_all(both, from, into);
  link.end_all_to_all();
  link.end_all_to_all();
  CHECK_THROWS_AS(link.end_all_to_all(), InvalidInput);
  compute.view().synchronize();
  CHECK(is_written(behind));
  link.end_step("the end");
}

TEST_CASE("device replay: planted errors are found") {
  Random random(7);
  std::size_t swapped = 0, sized = 0, ungrouped = 0, left_out = 0, again = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    test::RandomPlanOptions options;
    options.dp = 2;
    options.pp = 2;
    options.cp_groups = true;
    options.min_tokens = 30;
    const Plan plan = test::random_plan(seed, options);
    const std::vector<Record> records = Recording(plan.schedule.size()).run(plan);
    const std::size_t rank = random.below(records.size());
    if (records[rank].size() < 2) continue;
    const std::size_t place = random.below(records[rank].size() - 1);
    {
      // An operation that the other side has at another place of its order.
      auto wrong = records;
      for (std::size_t other = 0; other + 1 < wrong[rank].size(); ++other) {
        const std::size_t i = (place + other) % (wrong[rank].size() - 1);
        test::Group &one = wrong[rank][i], &two = wrong[rank][i + 1];
        if (one.front().comm != two.front().comm || one.front().bytes == two.front().bytes ||
            one.size() != two.size()) {
          continue;
        }
        std::swap(one, two);
        CHECK(replay(wrong) != "");
        ++swapped;
        break;
      }
    }
    {
      auto wrong = records;
      wrong[rank][place].front().bytes += 4;
      CHECK(replay(wrong).starts_with("differ: "));
      ++sized;
    }
    {
      auto wrong = records;
      wrong[rank].erase(wrong[rank].begin() + static_cast<std::ptrdiff_t>(place));
      CHECK(replay(wrong) != "");
      ++left_out;
    }
    {
      auto wrong = records;
      wrong[rank].push_back(wrong[rank][place]);
      CHECK(replay(wrong).starts_with("for ever: "));
      ++again;
    }
    // A ring whose members all send first.
    auto wrong = records;
    bool found = false;
    for (Record& record : wrong) {
      Record alone;
      for (const test::Group& group : record) {
        found = found || (group.size() > 1 && group[0].kind == Operation::Kind::send);
        for (const Operation& one : group) alone.push_back({one});
      }
      record = std::move(alone);
    }
    if (!found) continue;
    CHECK(replay(wrong).starts_with("for ever: "));
    ++ungrouped;
  }
  MESSAGE(swapped, " swapped, ", sized, " of another size, ", left_out, " left out, ", ungrouped,
          " without groups");
  CHECK(swapped > 20);
  CHECK(sized > 40);
  CHECK(ungrouped > 20);
  CHECK(again > 40);
}

TEST_CASE("communicators: limits reach NCCL, and short waits are not slept on") {
  /// One that settles after many questions.
  class SlowNccl : public test::RecordingNccl {
   public:
    [[nodiscard]] bool settled(nccl::Comm) override { return ++asked % 4000 == 0; }
    int asked = 0;
  };
  SlowNccl api;
  test::CountingControl control(0);
  nccl::NcclOptions options;
  options.spin = std::chrono::seconds(10);
  options.most_blocks = 7;
  const nccl::CommunicatorKey key{nccl::CommunicatorKey::Use::sum, {0, 1}};
  const auto begin = std::chrono::steady_clock::now();
  nccl::Communicators communicators(api, control, options);
  communicators.make(std::span(&key, 1));
  CHECK(api.asked == 4000);
  // With the pauses of a long wait this would take 0.8 s.
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(400));
  CHECK(api.most_blocks() == 7);
}

TEST_CASE("communicators: what one takes of the device's memory is measured") {
  /// One that takes memory when it joins and when it first sums.
  class HungryNccl : public test::RecordingNccl {
   public:
    [[nodiscard]] nccl::Comm join(const nccl::Id& id, std::size_t size, std::size_t rank,
                                  int most) override {
      taken[0] = cuda::DeviceBuffer<std::byte>(3 << 20);
      return RecordingNccl::join(id, size, rank, most);
    }
    void all_reduce(nccl::Comm comm, void* values, std::size_t count, nccl::Number number,
                    runtime::Reduction reduction, cuda::StreamView stream) override {
      taken[1] = cuda::DeviceBuffer<std::byte>(4 << 20);
      RecordingNccl::all_reduce(comm, values, count, number, reduction, stream);
    }
    std::array<cuda::DeviceBuffer<std::byte>, 2> taken;
  };
  HungryNccl api;
  test::CountingControl control(0);
  CHECK(nccl::communicator_bytes(api, control, 2) == Bytes{7 << 20});
  CHECK(api.left() == 1);
  CHECK(nccl::communicator_bytes(api, control, 1) == Bytes{});
}

TEST_CASE("NcclTransport: parts of a gathering") {
  using Parts = std::vector<std::pair<std::size_t, std::size_t>>;
  CHECK(nccl::parts_of(2, 0, 10, 0, 5) == Parts{{0, 5}, {5, 10}});
  CHECK(nccl::parts_of(4, 3, 10, 9, 10) == Parts{{0, 3}, {3, 6}, {6, 9}, {9, 10}});
  CHECK(nccl::parts_of(4, 1, 10, 2, 5) == Parts{{0, 2}, {2, 5}, {5, 7}, {7, 10}});
  CHECK(nccl::parts_of(3, 1, 20, 8, 16) == Parts{{0, 8}, {8, 16}, {16, 20}});
  CHECK(nccl::parts_of(4, 3, 5, 5, 5) == Parts{{0, 2}, {2, 4}, {4, 5}, {5, 5}});
  for (std::size_t members = 1; members < 6; ++members) {
    for (std::size_t size = 0; size < 40; ++size) {
      const std::size_t part = (size + members - 1) / members;
      for (std::size_t self = 0; self < members; ++self) {
        const auto equal = nccl::parts_of(members, self, size, std::min(size, part * self),
                                          std::min(size, part * (self + 1)));
        const auto even =
            nccl::parts_of(members, self, size, size * self / members, size * (self + 1) / members);
        CHECK(equal == nccl::parts_of(members, 0, size, 0, std::min(size, part)));
        CHECK(even == nccl::parts_of(members, 0, size, 0, size / members));
      }
    }
  }
  CHECK_THROWS_WITH_AS(static_cast<void>(nccl::parts_of(2, 1, 10, 4, 9)),
                       "transport: all_gather must be of equal parts, not so the one that begins "
                       "at, got 4",
                       InvalidInput);
  CHECK_THROWS_WITH_AS(static_cast<void>(nccl::parts_of(2, 1, 10, 5, 11)),
                       "transport: all_gather past the end, got 11", InvalidInput);
}

TEST_CASE("order: a plan whose units wait for each other is refused") {
  Plan plan = plan_of(1, 1, 2);
  const runtime::Program program = runtime::make_program(plan);
  const auto order = cuda::nccl::order_of(plan, program);
  REQUIRE(order.devices.size() == 2);
  for (std::size_t device = 0; device < 2; ++device) {
    std::size_t unit = 0;
    for (const cuda::nccl::Turn& turn : order.devices[device]) {
      if (turn.kind == cuda::nccl::Turn::Kind::unit) CHECK(turn.number == unit++);
    }
    CHECK(unit == plan.schedule[device].order.size());
  }
  // Stage 0 takes the gradients of a pack before it sends what they are made of.
  runtime::Program wrong = program;
  auto& units = wrong.devices[0].units;
  const auto first = std::find_if(units.begin(), units.end(), [](const runtime::UnitWork& unit) {
    return unit.unit.kind == UnitKind::backward;
  });
  REQUIRE(first != units.end());
  std::rotate(units.begin(), first, first + 1);
  CHECK_THROWS_AS(static_cast<void>(cuda::nccl::order_of(plan, wrong)), Deadlock);
}

}  // namespace order_test
