// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "mpi/world.hpp"
#include "runtime/transport_laws.hpp"
#include "slimpack/runtime/run_step.hpp"
#include "slimpack_cpu/check_plan.hpp"
#include "slimpack_mpi/run_step.hpp"
#include "support/draws.hpp"
#include "support/random_plan.hpp"
#include "support/random_sharded_plan.hpp"

using namespace slimpack;
using test::mpi_link;
using test::mpi_rank;
using test::mpi_ranks;

namespace {

template <class Element>
void exchange(std::uint64_t seed) {
  const auto plan = test::random_exchange(seed, mpi_ranks());
  mpi_link().begin_step(static_cast<std::int32_t>(mpi_ranks()),
                        static_cast<std::int32_t>(plan.max_in_flight));
  const std::string wrong =
      test::ExchangeRun<Element, mpi::MpiTransport>(plan, mpi_rank(), mpi_link()).run();
  CHECK(wrong.empty());
  INFO(wrong);
  mpi_link().end_step("between exchanges");
}

/// Random plans of one device a rank, with tensor parallelism where there are several.
std::vector<Plan> plans_of_all_ranks(std::size_t count) {
  std::vector<Plan> plans;
  const auto ranks = static_cast<std::int32_t>(mpi_ranks());
  for (std::uint64_t seed = 0; plans.size() < count; ++seed) {
    Random random(seed);
    test::RandomPlanOptions options;
    options.dp = static_cast<std::int32_t>(random.between(1, ranks));
    options.tp = static_cast<std::int32_t>(random.between(1, ranks));
    if (ranks % (*options.dp * *options.tp) != 0) continue;
    options.pp = ranks / (*options.dp * *options.tp);
    if (*options.tp > 1) options.version = 2;
    if (*options.dp == 4 && random.chance(1, 2)) options = test::on_nodes(4, 1);
    if (*options.dp > 1 && random.chance(1, 2)) {
      options.version = 3;
      options.cp_groups = true;
      options.by_heads = true;
    }
    plans.push_back(test::random_plan(seed, options));
  }
  return plans;
}

/// The same of plans whose ranks share weights; none for a single rank.
std::vector<Plan> shared_plans_of_all_ranks(std::size_t count) {
  std::vector<Plan> plans;
  const auto ranks = static_cast<std::int32_t>(mpi_ranks());
  if (ranks == 1) return plans;
  for (std::uint64_t seed = 0; plans.size() < count; ++seed) {
    test::ShardedPlanOptions options;
    options.tp = ranks % 2 == 0 && ranks > 2 && seed % 2 == 1 ? 2 : 1;
    options.dp = ranks / *options.tp;
    options.by_heads = true;
    plans.push_back(test::random_sharded_plan(seed, options));
  }
  return plans;
}

/// All bits that a device holds.
std::vector<double> values_of(const cpu::Device& device) {
  std::vector<double> values;
  for (const runtime::HeldTensor& tensor : device.tensors()) {
    const cpu::In weights = device.weights(tensor), gradients = device.gradients(tensor);
    values.insert(values.end(), weights.begin(), weights.end());
    values.insert(values.end(), gradients.begin(), gradients.end());
  }
  return values;
}

}  // namespace

TEST_CASE("MpiTransport: random exchanges bring every rank what the others gave") {
  for (std::uint64_t seed = 0; seed < test::draws(60U); ++seed) {
    CAPTURE(seed);
    exchange<double>(seed);
    exchange<float>(seed + 1000);
  }
}

TEST_CASE("MpiTransport: whole steps have the bits of those between threads") {
  std::vector<Plan> plans = plans_of_all_ranks(test::draws(15U));
  for (Plan& plan : shared_plans_of_all_ranks(test::draws(9U))) plans.push_back(std::move(plan));
  test::Features found;
  for (const Plan& plan : plans) {
    found += test::features_of(plan);
    CAPTURE(plan.parallel.dp);
    CAPTURE(plan.parallel.pp);
    CAPTURE(plan.parallel.tp);
    const runtime::Program program = runtime::make_program(plan);
    constexpr std::uint64_t kSeed = 3;
    auto threads = cpu::make_devices(plan, kSeed);
    cpu::Device mine(plan, mpi_rank(), kSeed);
    runtime::DeviceThreads device_threads(threads.size());
    mpi::check_same_plan(mpi_link(), plan);
    for (std::uint64_t step = 0; step < 3; ++step) {
      const auto data = cpu::step_data(plan, cpu::random_tokens(plan, step));
      const auto here = mpi::run_step(mpi_link(), plan, program, data, mine);
      const auto there = runtime::run_step(device_threads, plan, program, data, std::span(threads));
      CHECK(here.loss == there.loss);
      CHECK(here.sample_loss == there.sample_loss);
      CHECK(here.peak.size() == there.peak.size());
      CHECK(values_of(mine) == values_of(threads[mpi_rank()]));
    }
  }
  CHECK((found.merged_heads > 0) == (mpi_ranks() > 1));
}

TEST_CASE("check_same_plan: ranks with another plan are named to all") {
  const Plan plan = plans_of_all_ranks(1).front();
  CHECK_NOTHROW(mpi::check_same_plan(mpi_link(), plan));
  if (mpi_ranks() == 1) return;
  Plan other = plan;
  ++other.step_index;
  const std::size_t last = mpi_ranks() - 1;
  const std::string sentence = "ranks must run one plan, whose hash is " +
                               to_string(plan_hash(plan)) + " on rank 0, but rank " +
                               std::to_string(last) + ", " + processes::device_of(plan, last) +
                               ", has " + to_string(plan_hash(other));
  CHECK_THROWS_WITH_AS(mpi::check_same_plan(mpi_link(), mpi_rank() == last ? other : plan),
                       sentence.c_str(), InvalidInput);
}

TEST_CASE(
    "MpiTransport: violations of order and of messages in flight are refused before anything is "
    "sent") {
  auto& link = mpi_link();
  std::vector<double> values{1, 2};
  const auto bytes = std::as_writable_bytes(std::span(values));
  const runtime::Channel channel{GroupId{0}, 0, runtime::Direction::down, 0, 0};
  const std::string name =
      "the channel of group 0, rank 0, activations from stage 0 to stage 0, got ";
  link.begin_step(1, 1);
  CHECK_THROWS_WITH_AS(
      link.queue_send(channel, 1, bytes),
      ("transport: sends must be queued in order and within max_in_flight on " + name + "1")
          .c_str(),
      InvalidInput);
  CHECK_THROWS_WITH_AS(
      link.post_receive(channel, 1, bytes),
      ("transport: receives must be posted in order and within max_in_flight on " + name + "1")
          .c_str(),
      InvalidInput);
  runtime::ProcessGroup alone{{mpi_rank()}, 0};
  CHECK_THROWS_WITH_AS(link.await_sum(alone, 4),
                       "transport: a sum must be queued before it is awaited, got 4", InvalidInput);
  CHECK_THROWS_WITH_AS(link.all_gather(alone, std::span(values), 1, 3),
                       "transport: all_gather past the end, got 3", InvalidInput);
  link.queue_sum(alone, 4, std::span(values));
  CHECK_THROWS_WITH_AS(link.queue_sum(alone, 4, std::span(values)),
                       "transport: a sum must be awaited before it is queued again, got 4",
                       InvalidInput);
  CHECK_THROWS_WITH_AS(link.end_step("between steps"),
                       "the step must end drained, but holds a sum that not all members awaited",
                       runtime::ExecutionError);
  link.await_sum(alone, 4);
  CHECK(values == std::vector<double>{1, 2});
  CHECK_NOTHROW(link.end_step("between steps"));
  CHECK_THROWS_WITH_AS(link.begin_step(1, 0), "MpiTransport: window must be >= 1, got 0",
                       InvalidInput);
}
