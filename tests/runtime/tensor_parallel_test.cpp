// SPDX-License-Identifier: Apache-2.0
// Tensor parallelism with sequence parallelism, executed, against the unsliced oracle.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "runtime/feature_table.hpp"
#include "runtime/rounding.hpp"
#include "slimpack/cost/communication.hpp"
#include "slimpack/runtime/device_threads.hpp"
#include "slimpack/runtime/program.hpp"
#include "slimpack/runtime/run_step.hpp"
#include "slimpack/runtime/thread_transport.hpp"
#include "slimpack/runtime/transport.hpp"
#include "slimpack_cpu/check_plan.hpp"
#include "support/draws.hpp"
#include "support/executed_memory.hpp"
#include "support/random_plan.hpp"

using namespace slimpack;

namespace {

/// Plans of tp 2 and 4, by turns with every feature.
test::RandomPlanOptions tensor_parallel(std::uint64_t seed) {
  test::RandomPlanOptions options = test::may_have_weights(seed % 3 == 0);
  options.version = 2;
  options.tp = seed % 2 == 0 ? 2 : 4;
  options.max_dp = 3;
  options.max_pp = 3;
  options.max_chunks = 2;
  options.max_tokens = 40;
  if (seed % 5 == 0) options.cp_groups = true;
  if (seed % 7 == 0) options.uncut = true;
  if (seed % 4 < 2) options.recompute = static_cast<Recompute>(seed / 4 % kRecomputeModes);
  if (seed % 11 == 0) options.head = LmHead::shard;
  return options;
}

/// A transport that counts what a device sends to its tensor-parallel devices, rows of tokens
/// alone.
class CountingLink : public runtime::ThreadTransport {
 public:
  CountingLink(runtime::Rendezvous& rendezvous, std::size_t device, std::atomic<std::int64_t>& sent)
      : runtime::ThreadTransport(rendezvous, device), sent_(&sent) {}

  template <class Element>
  void all_gather(const runtime::ProcessGroup& process_group, std::span<Element> values,
                  std::size_t first, std::size_t last) {
    if (in_step(process_group)) count(process_group, (last - first) * sizeof(Element));
    runtime::ThreadTransport::all_gather(process_group, values, first, last);
  }
  template <class Element>
  void reduce_scatter(const runtime::ProcessGroup& process_group, std::span<Element> values,
                      std::size_t first, std::size_t last) {
    count(process_group, (last - first) * sizeof(Element));  // what arrives, as much as is sent
    runtime::ThreadTransport::reduce_scatter(process_group, values, first, last);
  }

 private:
  /// Devices of ranks and stages are never neighbours in number where tp > 1.
  static bool in_step(const runtime::ProcessGroup& process_group) {
    return process_group.members.size() > 1 &&
           process_group.members[1] == process_group.members[0] + 1;
  }
  void count(const runtime::ProcessGroup& process_group, std::size_t bytes) {
    *sent_ += static_cast<std::int64_t>(bytes * (process_group.members.size() - 1));
  }

  std::atomic<std::int64_t>* sent_;
};

}  // namespace

TEST_CASE("tensor parallelism: devices send what the plan's bytes say, collective by collective") {
  std::int64_t all = 0, predicted = 0;
  for (std::uint64_t seed = 0; seed < test::draws(60U); ++seed) {
    CAPTURE(seed);
    const Plan plan = test::random_plan(seed, tensor_parallel(seed));
    const runtime::Program program = runtime::make_program(plan);
    auto devices = cpu::make_devices(plan, seed);
    runtime::DeviceThreads device_threads(devices.size());
    std::atomic<std::int64_t> sent{0};
    (void)runtime::run_step_with<CountingLink>(
        device_threads, plan, program, cpu::step_data(plan, cpu::random_tokens(plan, seed)),
        std::span(devices), [&](runtime::Rendezvous& rendezvous, std::size_t device) {
          return CountingLink(rendezvous, device, sent);
        });
    // By the counts of docs/equations.md: of each token and layer; of the embedding; of H.
    std::int64_t rows = 0;
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
    CHECK(sent == rows * (plan.parallel.tp - 1) * plan.model.hidden * 8);
    CHECK(sent == communication_of(plan).tensor_parallel.value);
    all += sent;
    predicted += communication_of(plan).tensor_parallel.value;
  }
  MESSAGE("tensor-parallel bytes counted ", all, ", predicted ", predicted);
}

TEST_CASE("tensor parallelism: the fast backend is within 2e-5 of the oracle") {
  double worst = 0;
  for (std::uint64_t seed = 0; seed < test::draws(60U); ++seed) {
    CAPTURE(seed);
    const Plan plan = test::random_plan(seed, tensor_parallel(seed));
    const auto tokens = cpu::random_tokens(plan, seed);
    const auto found = cpu::check_plan<cpu::FastMath>(plan, tokens, seed);
    CAPTURE(found.worst_tensor);
    CHECK(found.loss_difference <= 1e-6);
    if (found.gradient_difference > 2e-5) {  // gradients may cancel: no fp32 can do better
      CHECK(found.gradient_difference <=
            8 * test::change_by_rounding(plan, cpu::step_data(plan, tokens), seed));
    } else {
      worst = std::max(worst, found.gradient_difference);
    }
  }
  MESSAGE("largest relative difference of a gradient within it ", worst);
}

TEST_CASE("tensor parallelism: random plans give the loss, gradients and weights of the oracle") {
  test::FeatureTable table;
  for (std::uint64_t seed = 0; seed < test::draws(120U); ++seed) {
    CAPTURE(seed);
    const Plan plan = test::random_plan(seed, tensor_parallel(seed));
    const auto found = cpu::check_plan(plan, cpu::random_tokens(plan, seed), seed);
    CAPTURE(found.worst_tensor);
    CHECK(found.loss_difference <= 1e-10);
    CHECK(found.gradient_difference <= 1e-10);
    CHECK(found.weight_difference <= 1e-10);
    table.add(plan, found);
    table.add("tp " + std::to_string(plan.parallel.tp), found);
    if (test::features_of(plan).weights != 0) table.add("W", found);
  }
  table.print();
  for (const char* name :
       {"tp 2", "tp 4", "merged, kv exchange", "merged, q exchange", "chunks", "sharded head",
        "tied", "tied, sharded head", "recompute none", "recompute light", "recompute layer",
        "recompute full", "W", "keys made again", "key gradients not kept", "sharded optimizer"}) {
    CAPTURE(name);
    CHECK(table.plans(name) >= test::draws(5));
  }
}

TEST_CASE(
    "tensor parallelism: devices hold the simulator's bytes, event by event and at the peak") {
  for (std::uint64_t seed = 0; seed < test::draws(80U); ++seed) {
    CAPTURE(seed);
    const Plan plan = test::random_plan(seed, tensor_parallel(seed));
    test::Executed executed(plan);
    auto devices = cpu::make_devices(plan, seed);
    (void)runtime::run_step(plan, cpu::step_data(plan, cpu::random_tokens(plan, seed)),
                            std::span(devices), executed.observer());
    executed.finish();
    test::check_memory(plan, executed, 16);
  }
}
