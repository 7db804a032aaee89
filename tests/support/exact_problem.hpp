// SPDX-License-Identifier: Apache-2.0
// What is left of a plan once its MicroPacks are cut: units, who meets, what waits, what is kept.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/cost/memory_model.hpp"
#include "slimpack/cost/unit_times.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/plan/virtual_stages.hpp"

namespace slimpack::test {

/// F, B, W or H on all devices that meet for it.
struct ExactOp {
  struct After {
    std::size_t op = 0;
    std::int64_t lag = 0;  ///< of a transfer
  };
  /// What the unit does to one device's memory, in bytes.
  struct Memory {
    std::int64_t during = 0;  ///< above what was held before it
    std::int64_t change = 0;  ///< from before it to after it
  };
  Unit unit;
  std::size_t pack = 0;
  std::int64_t duration = 0;
  std::int64_t tail = 0;  ///< the step ends no earlier than so long after the unit: R and O
  std::vector<std::size_t> devices;
  std::vector<Memory> memory;  ///< one a device
  std::vector<After> after;
  /// F, and B, of one group at one virtual stage; such units keep one order at all of them.
  std::optional<std::size_t> channel;
  bool receives = false;  ///< its order is that of the place before; else it decides the order
};

/// The scheduling problem of a plan without schedule, by docs/equations.md: rules 3 to 6, and of
/// rule 7 what the order of a device alone decides (kept tensors, keys and values, their gradients,
/// H's input and output, workspaces and the buffers of the unit at work; without the exchange of
/// groups of several ranks). Left out are max_in_flight, receives posted ahead, sends in flight and
/// waiting for links, so a plan is never faster or smaller here than it would be there. For one
/// chunk, untied embeddings and stages of one layer, whose R is one bucket behind the last B or W.
/// Weight packs must come last.
struct ExactProblem {
  std::vector<ExactOp> ops;
  std::size_t devices = 0;
  std::size_t channels = 0;
  std::vector<std::int64_t> room;  ///< bytes that each device has for samples
  std::int64_t least = 0;          ///< R and O of the slowest stage

  template <UnitTimes Times>
  ExactProblem(const Plan& plan, const Times& times);

 private:
  template <UnitTimes Times>
  void add_passes(const Plan& plan, const Times& times, const MemoryModel& memory);
  template <UnitTimes Times>
  void add_heads(const Plan& plan, const Times& times, const MemoryModel& memory);
  template <UnitTimes Times>
  void add_weights(const Plan& plan, const Times& times, const MemoryModel& memory);
  void add_order(const Plan& plan);
  [[nodiscard]] static bool overlap(const MicroPack& a, const MicroPack& b) {
    return std::any_of(a.slices.begin(), a.slices.end(), [&](const Slice& x) {
      return std::any_of(b.slices.begin(), b.slices.end(), [&](const Slice& y) {
        return x.sample == y.sample && x.begin < y.end && y.begin < x.end;
      });
    });
  }

  std::vector<std::vector<std::size_t>> heads_;  // H of each forward pack
};

namespace detail {

/// What F or B of a pack does to the device of the `rank`-th rank of its group on stage `pp`.
[[nodiscard]] inline ExactOp::Memory exact_memory(const Plan& plan, const MemoryModel& memory,
                                                  PackId id, std::size_t rank, std::int32_t pp) {
  const MicroPack& pack = plan.micropacks[index(id)];
  const bool forward = pack.pass == Pass::forward;
  const bool first = pp == 0, last = pp == plan.parallel.pp - 1;
  const std::int64_t layers = chunk_layers(plan, pp, 0);
  const std::int64_t boundary = memory.boundary(id, rank).value;
  const std::int64_t held = memory.kept(id, rank, layers).value +
                            memory.keys_values(id, rank, layers).value + (last ? boundary : 0);
  const std::int64_t begins = forward ? held : memory.begun_gradients(id, rank, layers).value;
  const std::int64_t ends = forward ? 0 : memory.ended_gradients(id, rank, layers).value + held;
  std::int64_t unit = (first ? 0 : boundary) + (last ? 0 : boundary);
  if (plan.groups[index(pack.group)].size() == 1) unit += memory.pack_workspace(id, rank).value;
  const std::int64_t made = forward ? 0 : memory.made_apart(id, rank, layers).value;
  const std::int64_t left = forward ? 0 : memory.left_apart(id, rank, layers).value;
  return {begins + made + unit, begins - ends + left};
}

}  // namespace detail

template <UnitTimes Times>
ExactProblem::ExactProblem(const Plan& plan, const Times& times) {
  require(plan.parallel.chunks == 1, "ExactProblem: chunks must be 1", plan.parallel.chunks);
  require(!plan.model.tied, "ExactProblem: embeddings must not be tied");
  for (const Stage& stage : plan.stages) {
    require(stage.layers() == 1, "ExactProblem: a stage must have one layer", stage.layers());
  }
  const MemoryModel memory(plan);
  devices = static_cast<std::size_t>(plan.parallel.dp) * static_cast<std::size_t>(plan.parallel.pp);
  channels = 2 * plan.groups.size() * static_cast<std::size_t>(plan.parallel.pp);
  for (std::size_t device = 0; device < devices; ++device) {
    const auto pp = static_cast<std::int32_t>(device) % plan.parallel.pp;
    room.push_back(
        (plan.memory.capacity - plan.memory.reserved - static_bytes(plan, pp).total()).value);
    least = std::max(least, (times.reduce(pp, 0) + times.optimizer(0, pp)).value);
  }
  add_passes(plan, times, memory);
  add_heads(plan, times, memory);
  add_weights(plan, times, memory);
  add_order(plan);
}

template <UnitTimes Times>
void ExactProblem::add_passes(const Plan& plan, const Times& times, const MemoryModel& memory) {
  const std::int32_t last = plan.parallel.pp - 1;
  for (std::size_t pack = 0; pack < plan.micropacks.size(); ++pack) {
    const auto id = static_cast<PackId>(pack);
    if (plan.micropacks[pack].pass == Pass::weight) continue;
    require(ops.size() == pack * (static_cast<std::size_t>(last) + 1),
            "ExactProblem: weight packs must come last");
    const bool forward = plan.micropacks[pack].pass == Pass::forward;
    const auto& ranks = plan.groups[index(plan.micropacks[pack].group)];
    for (std::int32_t pp = 0; pp <= last; ++pp) {
      ExactOp op;
      op.unit = {forward ? UnitKind::forward : UnitKind::backward, id, 0};
      op.pack = pack;
      op.duration = times.compute(id, pp).value;
      for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
        op.devices.push_back(device_index(plan, ranks[rank], pp));
        op.memory.push_back(detail::exact_memory(plan, memory, id, rank, pp));
        if (!forward) {
          op.tail =
              std::max(op.tail, (times.reduce(pp, 0) + times.optimizer(ranks[rank], pp)).value);
        }
      }
      const std::size_t side = 2 * index(plan.micropacks[pack].group) + (forward ? 0 : 1);
      op.channel = side * (static_cast<std::size_t>(last) + 1) + static_cast<std::size_t>(pp);
      op.receives = pp != (forward ? 0 : last);
      if (op.receives) {
        const std::int32_t from = forward ? pp - 1 : pp + 1;
        std::int64_t lag = 0;
        for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
          lag = std::max(lag, times.transfer(id, from, rank).value);
        }
        const std::size_t before = pack * (static_cast<std::size_t>(last) + 1);
        op.after.push_back({before + static_cast<std::size_t>(from), lag});
      }
      ops.push_back(std::move(op));
    }
  }
}

template <UnitTimes Times>
void ExactProblem::add_heads(const Plan& plan, const Times& times, const MemoryModel& memory) {
  const std::int32_t last = plan.parallel.pp - 1;
  heads_.resize(plan.micropacks.size());
  for (std::size_t pack = 0; pack < plan.micropacks.size(); ++pack) {
    if (plan.micropacks[pack].pass != Pass::forward) continue;
    const auto id = static_cast<PackId>(pack);
    const auto& ranks = plan.groups[index(plan.micropacks[pack].group)];
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      ExactOp op;
      op.unit = {UnitKind::head, id, 0};
      op.pack = pack;
      for (std::int32_t pp = plan.parallel.head == LmHead::shard ? 0 : last; pp <= last; ++pp) {
        op.devices.push_back(device_index(plan, ranks[rank], pp));
        op.duration = std::max(op.duration, times.head(id, rank, pp).value);
        const std::int64_t boundary = pp == last ? memory.boundary(id, rank).value : 0;
        const Tokens own = memory.own_tokens(id, rank);
        op.memory.push_back({boundary + head_workspace(plan, pp, own).value, 0});
      }
      const std::size_t stages = static_cast<std::size_t>(last) + 1;
      op.after.push_back({pack * stages + stages - 1, 0});
      heads_[pack].push_back(ops.size());
      ops.push_back(std::move(op));
    }
  }
}

/// Each rank runs its own tokens, behind the B of all of them.
template <UnitTimes Times>
void ExactProblem::add_weights(const Plan& plan, const Times& times, const MemoryModel& memory) {
  const auto stages = static_cast<std::size_t>(plan.parallel.pp);
  for (std::size_t pack = 0; pack < plan.micropacks.size(); ++pack) {
    if (plan.micropacks[pack].pass != Pass::weight) continue;
    const auto id = static_cast<PackId>(pack);
    const auto& ranks = plan.groups[index(plan.micropacks[pack].group)];
    for (std::size_t place = 0; place < stages * ranks.size(); ++place) {
      const auto pp = static_cast<std::int32_t>(place % stages);
      const std::size_t rank = place / stages;
      ExactOp op;
      op.unit = {UnitKind::weight, id, 0};
      op.pack = pack;
      op.duration = weight_time(times, id, pp, rank).value;
      op.tail = (times.reduce(pp, 0) + times.optimizer(ranks[rank], pp)).value;
      op.devices = {device_index(plan, ranks[rank], pp)};
      op.memory = {{memory.pack_workspace(id, rank).value,
                    -memory.left_apart(id, rank, chunk_layers(plan, pp, 0)).value}};
      for (std::size_t other = 0; other < plan.micropacks.size(); ++other) {
        if (plan.micropacks[other].pass != Pass::backward) continue;
        if (overlap(plan.micropacks[other], plan.micropacks[pack])) {
          op.after.push_back({other * stages + static_cast<std::size_t>(pp), 0});
        }
      }
      ops.push_back(std::move(op));
    }
  }
}

inline void ExactProblem::add_order(const Plan& plan) {
  const auto stages = static_cast<std::size_t>(plan.parallel.pp);
  for (std::size_t a = 0; a < plan.micropacks.size(); ++a) {
    for (std::size_t b = 0; b < plan.micropacks.size(); ++b) {
      if (plan.micropacks[a].pass == Pass::weight || plan.micropacks[b].pass == Pass::weight) {
        continue;
      }
      const bool forward = plan.micropacks[a].pass == Pass::forward;
      const bool same = plan.micropacks[b].pass == plan.micropacks[a].pass;
      bool before = false;
      for (const Slice& x : plan.micropacks[a].slices) {
        for (const Slice& y : plan.micropacks[b].slices) {
          if (x.sample != y.sample) continue;
          if (same) before = before || (forward ? x.begin < y.begin : x.begin > y.begin);
          if (!same && forward) before = before || (x.begin < y.end && y.begin < x.end);
        }
      }
      if (a == b || !before) continue;
      if (same) {
        for (std::size_t pp = 0; pp < stages; ++pp) {
          ops[b * stages + pp].after.push_back({a * stages + pp, 0});
        }
      } else {
        for (const std::size_t head : heads_[a]) {
          ops[b * stages + stages - 1].after.push_back({head, 0});
        }
      }
    }
  }
}

}  // namespace slimpack::test
