// SPDX-License-Identifier: Apache-2.0
// Rings of context-parallel groups, counted while random plans are executed.
#include <doctest/doctest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "slimpack/plan/structure.hpp"
#include "slimpack/runtime/device_threads.hpp"
#include "slimpack/runtime/program.hpp"
#include "slimpack/runtime/run_step.hpp"
#include "slimpack/runtime/thread_transport.hpp"
#include "slimpack_cpu/check_plan.hpp"
#include "support/draws.hpp"
#include "support/random_plan.hpp"

using namespace slimpack;

namespace {

/// A transport that counts the hops of rings.
class RingLink : public runtime::ThreadTransport {
 public:
  RingLink(runtime::Rendezvous& rendezvous, std::size_t device, std::atomic<std::int64_t>& hops)
      : runtime::ThreadTransport(rendezvous, device), hops_(&hops) {}

  void ring(const runtime::ProcessGroup& process_group, std::size_t hop,
            std::span<const std::byte> from, std::span<std::byte> into) {
    ++*hops_;
    runtime::ThreadTransport::ring(process_group, hop, from, into);
  }

 private:
  std::atomic<std::int64_t>* hops_;
};

}  // namespace

TEST_CASE("rings: a slice whose sample one rank owns up to its end makes no hop") {
  std::int64_t travel = 0, stay = 0;
  for (std::uint64_t seed = 0; seed < test::draws(60U); ++seed) {
    CAPTURE(seed);
    test::RandomPlanOptions options;
    options.version = 2;
    options.cp_groups = true;
    options.max_tokens = 40;
    options.recompute = static_cast<Recompute>(seed % kRecomputeModes);
    const Plan plan = test::random_plan(seed, options);
    std::int64_t expected = 0;
    for (const MicroPack& pack : plan.micropacks) {
      const auto ranks = static_cast<std::int64_t>(plan.groups[index(pack.group)].size());
      if (ranks == 1 || pack.pass == Pass::weight) continue;
      for (std::size_t i = 0; i < pack.slices.size(); ++i) {
        if (pack.slices[i].end <= plan.memory.cp_block_tokens) {
          ++stay;
          continue;
        }
        ++travel;
        // Keys need not come home, queries do, and so do gradients.
        const std::int64_t forward = ranks - (pack.exchange[i] == RingMode::pass_kv ? 1 : 0);
        std::int64_t hops = forward;
        if (pack.pass == Pass::backward) {
          hops = ranks + (pack.recompute == Recompute::full ? forward : 0);
        }
        expected += hops * ranks * plan.parallel.tp * plan.model.layers;
      }
    }
    const runtime::Program program = runtime::make_program(plan);
    auto devices = cpu::make_devices(plan, seed);
    runtime::DeviceThreads device_threads(devices.size());
    std::atomic<std::int64_t> hops{0};
    (void)runtime::run_step_with<RingLink>(
        device_threads, plan, program, cpu::step_data(plan, cpu::random_tokens(plan, seed)),
        std::span(devices), [&](runtime::Rendezvous& rendezvous, std::size_t device) {
          return RingLink(rendezvous, device, hops);
        });
    CHECK(hops == expected);
  }
  CHECK(travel > static_cast<std::int64_t>(test::draws(60U)));
  CHECK(stay > static_cast<std::int64_t>(test::draws(60U)) / 10);
  MESSAGE("slices that travel ", travel, ", that stay ", stay);
}
