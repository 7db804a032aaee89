// SPDX-License-Identifier: Apache-2.0
// What all ranks do together outside of devices: compare plans, bring results home.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/plan/plan_hash.hpp"
#include "slimpack/runtime/run_step.hpp"
#include "slimpack_processes/packed.hpp"

namespace slimpack::processes {

/// One of several processes. All of them call the same in the same order: `gather` gives rank 0
/// what each has, in the order of ranks, and the others nothing; `share` gives all what rank 0 has.
/// Both throw where another rank has failed.
template <class Candidate>
concept Together =
    requires(Candidate& ranks, std::span<const std::byte> bytes, std::vector<std::byte> owned) {
      { ranks.gather(bytes) } -> std::same_as<std::vector<std::vector<std::byte>>>;
      { ranks.share(std::move(owned)) } -> std::same_as<std::vector<std::byte>>;
    };

/// A value's bytes, to be given away.
template <class Value>
[[nodiscard]] std::vector<std::byte> bytes_of(std::span<const Value> values) {
  const auto bytes = std::as_bytes(values);
  return {bytes.begin(), bytes.end()};
}

/// The device of a rank, for sentences.
[[nodiscard]] inline std::string device_of(const Plan& plan, std::size_t rank) {
  const auto stages = static_cast<std::size_t>(plan.parallel.pp);
  const auto parts = static_cast<std::size_t>(plan.parallel.tp);
  const std::size_t device = rank / parts;
  return "device (dp " + std::to_string(device / stages) + ", pp " +
         std::to_string(device % stages) +
         (parts > 1 ? ", tp " + std::to_string(rank % parts) : std::string()) + ")";
}

/// Throws InvalidInput on every rank unless all have a plan of one hash, naming the ranks whose
/// hash is not rank 0's.
template <Together Ranks>
void check_same_plan(Ranks& ranks, const Plan& plan) {
  const PlanHash mine = plan_hash(plan);
  std::string differing;
  const auto all = ranks.gather(std::as_bytes(std::span(&mine, 1)));
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    PlanHash hash;
    std::memcpy(&hash, all[rank].data(), sizeof(hash));
    if (hash == mine) continue;
    differing += (differing.empty() ? "rank " : ", rank ") + std::to_string(rank) + ", " +
                 device_of(plan, rank) + ", has " + to_string(hash);
  }
  const auto said = ranks.share(bytes_of(std::span<const char>(differing)));
  if (said.empty()) return;
  const std::string text(reinterpret_cast<const char*>(said.data()), said.size());
  const auto root = ranks.share(bytes_of(std::span(&mine, 1)));
  PlanHash expected;
  std::memcpy(&expected, root.data(), sizeof(expected));
  throw InvalidInput("ranks must run one plan, whose hash is " + to_string(expected) +
                     " on rank 0, but " + text);
}

/// The result of a step, the same on all ranks: losses of all devices are summed on rank 0 in the
/// order of samples and tokens.
template <Together Ranks>
[[nodiscard]] runtime::StepResult collect(Ranks& ranks, const Plan& plan,
                                          const runtime::DeviceResult& mine) {
  std::vector<runtime::DeviceResult> all;
  for (auto& bytes : ranks.gather(pack(mine))) all.push_back(unpack_device(std::move(bytes)));
  return unpack_step(
      ranks.share(all.empty() ? std::vector<std::byte>{} : pack(runtime::step_result(plan, all))));
}

/// What each rank gives, on all of them.
template <class Value, Together Ranks>
  requires std::is_trivially_copyable_v<Value>
[[nodiscard]] std::vector<Value> everyone(Ranks& ranks, const Value& here) {
  std::vector<std::byte> together;
  for (const auto& bytes : ranks.gather(std::as_bytes(std::span(&here, 1)))) {
    together.insert(together.end(), bytes.begin(), bytes.end());
  }
  together = ranks.share(std::move(together));
  std::vector<Value> values(together.size() / sizeof(Value));
  if (!values.empty()) std::memcpy(values.data(), together.data(), together.size());
  return values;
}

}  // namespace slimpack::processes
