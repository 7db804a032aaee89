// SPDX-License-Identifier: Apache-2.0
// What every profile is made of: the data of its plans, and the rows of their units' times.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "slimpack/core/random.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/cost/load.hpp"
#include "slimpack/cost/profile.hpp"
#include "slimpack/cost/terms.hpp"
#include "slimpack/cost/unit_bytes.hpp"
#include "slimpack/plan/memory.hpp"
#include "slimpack/plan/model.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/runtime/backend.hpp"
#include "slimpack/runtime/memory_events.hpp"
#include "slimpack/runtime/transport.hpp"
#include "slimpack_cpu/profile_plans.hpp"

namespace slimpack::cpu::detail {

/// The values must not be empty.
[[nodiscard]] inline double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

/// The middle of the values, of two the mean. They must not be empty.
[[nodiscard]] inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

/// Random tokens for every sample, each token's target the next one.
[[nodiscard]] inline runtime::StepData profile_data(const Plan& plan) {
  Random random(1);
  runtime::StepData data;
  for (const Tokens length : plan.samples) {
    auto& tokens = data.tokens.emplace_back();
    auto& targets = data.targets.emplace_back();
    for (std::int64_t i = 0; i < length.value; ++i) {
      tokens.push_back(static_cast<std::int32_t>(random.between(0, plan.model.vocab - 1)));
      if (i > 0) targets.emplace_back(tokens.back());
    }
    targets.emplace_back(std::nullopt);
  }
  return data;
}

[[nodiscard]] inline runtime::ProcessGroup profile_process_group(std::size_t ranks,
                                                                 std::size_t self) {
  runtime::ProcessGroup process_group{std::vector<std::size_t>(ranks), self};
  std::iota(process_group.members.begin(), process_group.members.end(), std::size_t{0});
  return process_group;
}

/// Seconds there and back between ranks 2i and 2i + 1 as `timed` measures them; to be called on
/// both. Half of `memory` is sent, the other received.
template <class Link, class Timed>
[[nodiscard]] double there_and_back(Link& link, std::size_t rank, std::span<std::byte> memory,
                                    const Timed& timed) {
  const auto pair = static_cast<std::int32_t>(rank / 2);
  const runtime::Channel down{GroupId{}, pair, runtime::Direction::down, 0, 1};
  const runtime::Channel up{GroupId{}, pair, runtime::Direction::up, 1, 0};
  const bool first = rank % 2 == 0;
  const auto out = memory.first(memory.size() / 2), in = memory.subspan(memory.size() / 2);
  std::size_t message = 0;
  return timed([&] {
    link.post_receive(first ? up : down, message, in);
    if (!first) link.await_receive(down, message);
    link.queue_send(first ? down : up, message, out);
    if (first) link.await_receive(up, message);
    link.await_send(first ? down : up, message);
    ++message;
  });
}

/// Seconds that a first stage takes for the tokens of a pack before its first layer, or behind it.
using EmbeddingTimes = std::map<std::pair<Pass, Tokens>, double>;

/// What the first rank of a pack's group has of it.
[[nodiscard]] inline PackLoad rank_load(const Plan& plan, const MicroPack& pack) {
  PackLoad load;
  for (std::size_t slot = 0; slot < pack.slices.size(); ++slot) add_slot(load, plan, pack, slot, 0);
  return load;
}

/// Adds what a rank has of every forward and backward pack of the plan, with no time yet.
inline void list_embeddings(const Plan& plan, EmbeddingTimes& times) {
  for (const MicroPack& pack : plan.micropacks) {
    if (pack.pass == Pass::weight) continue;
    times[{pack.pass, rank_load(plan, pack).tokens}] = 0;
  }
}

/// Bytes that a rank of a pack's group sends in one layer.
[[nodiscard]] inline std::int64_t group_bytes(const Plan& plan, const MicroPack& pack,
                                              const PackLoad& load) {
  const ExchangeBytes each = exchange_bytes(plan, pack);
  return load.kv_received.value * each.kv + load.q_received.value * each.q +
         load.heads_sent.value * each.heads * (load.ranks - 1) / load.ranks;
}

/// The row of a unit that took `seconds`, its embedding not counted; nothing for a unit that is
/// not fitted, of a plan whose weights are apart for all but B and W, and of devices that work
/// together for all but F and B: the others are as in other plans. `held` is what the device always
/// holds.
[[nodiscard]] inline std::optional<ProfileRow> profile_row(const ProfilePlan& profile,
                                                           const Unit& unit, double seconds,
                                                           const StaticBytes& held,
                                                           const EmbeddingTimes& embedding) {
  ProfileRow row;
  row.seconds = std::max(seconds, 1e-9);
  const bool apart = profile.weights == WeightGradients::apart;
  const bool group = profile.plan.groups.front().size() > 1;
  const std::int64_t tp = profile.plan.parallel.tp;
  if ((group || tp > 1) && unit.kind != UnitKind::forward && unit.kind != UnitKind::backward) {
    return std::nullopt;
  }
  if (apart && unit.kind != UnitKind::backward && unit.kind != UnitKind::weight) {
    return std::nullopt;
  }
  if (unit.kind == UnitKind::optimizer) {
    row.kind = ProfileKind::optimizer;
    row.bytes = {2 * held.optimizer.value + held.gradients.value + held.weights.value};
    return row;
  }
  if (!names_pack(unit.kind)) return std::nullopt;
  const MicroPack& pack = profile.plan.micropacks[index(unit.pack)];
  const PackLoad load = rank_load(profile.plan, pack);
  row.tokens = load.tokens;
  row.pairs = static_cast<double>(load.pairs2) / 2;
  row.own_pairs = static_cast<double>(load.own_pairs2) / 2;
  row.keys = load.keys;
  row.segments = load.segments;
  if (unit.kind == UnitKind::head) {
    ProfileRow head;
    head.kind = ProfileKind::head;
    head.tokens = row.tokens;
    head.seconds = row.seconds;
    return head;
  }
  row.layers = profile.layers;
  const std::int64_t weights = row.layers * profile.plan.model.layer_matrix_weights();
  const Bytes accumulators{2 * weights * profile.plan.memory.gradient_bytes};
  if (pack.pass == Pass::weight) {
    ProfileRow weight;
    weight.kind = ProfileKind::weight;
    weight.tokens = row.tokens;
    weight.layers = row.layers;
    weight.accumulator_bytes = accumulators;
    weight.seconds = row.seconds;
    return weight;
  }
  row.weight_bytes = {weights * profile.plan.model.bytes_per_element};
  if (apart) {
    row.kind = ProfileKind::apart;
  } else {
    row.pass = pack.pass;
    if (group) {
      row.kind = ProfileKind::context;
      row.ranks = load.ranks;
      row.bytes = {row.layers * group_bytes(profile.plan, pack, load)};
    }
    if (tp > 1) {
      const ModelShape& model = profile.plan.model;
      row.kind = ProfileKind::tensor;
      row.ranks = tp;
      row.bytes = {row.tokens.value * model.hidden * model.bytes_per_element * (tp - 1) / tp};
    }
    if (pack.pass == Pass::backward) row.accumulator_bytes = accumulators;
  }
  row.seconds = std::max(row.seconds - embedding.at({pack.pass, row.tokens}), 1e-9);
  return row;
}

}  // namespace slimpack::cpu::detail
