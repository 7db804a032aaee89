// SPDX-License-Identifier: Apache-2.0
// The checks that a plan's tables fit together, so that no later step leaves its arrays.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/plan/names.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/plan/virtual_stages.hpp"

namespace slimpack {
namespace detail {

template <class Text>
[[noreturn, gnu::cold, gnu::noinline]] void reject_table(std::string_view caller,
                                                         const Text& text) {
  throw InvalidInput(std::string(caller) + ": " + text());
}

/// Throws "CALLER: text()" unless the condition holds. Plans have a million slices, so the text is
/// made only where it is needed.
template <std::invocable Text>
void require_table(bool condition, std::string_view caller, const Text& text) {
  if (!condition) reject_table(caller, text);
}
template <std::invocable Text>
void require_table(bool condition, std::string_view caller, const Text& text, std::int64_t value) {
  if (!condition) {
    reject_table(caller, [&] { return text() + ", got " + std::to_string(value); });
  }
}

/// "groups[2]".
[[nodiscard]] inline std::string entry_name(const char* table, std::size_t entry) {
  return std::string(table) + "[" + std::to_string(entry) + "]";
}

inline void require_degrees(const Plan& plan, std::string_view caller) {
  const auto at_least_one = [&](std::int64_t value, const char* name) {
    const auto rule = [name] { return std::string(name) + " must be >= 1"; };
    require_table(value >= 1, caller, rule, value);
  };
  require_table(
      plan.version >= 1 && plan.version <= kPlanVersion, caller,
      [] { return "version must be from 1 to " + std::to_string(kPlanVersion); }, plan.version);
  at_least_one(plan.parallel.dp, "parallel.dp");
  at_least_one(plan.parallel.pp, "parallel.pp");
  at_least_one(plan.parallel.tp, "parallel.tp");
  at_least_one(plan.parallel.chunks, "parallel.chunks");
  at_least_one(plan.max_in_flight, "window");
  at_least_one(plan.memory.page_tokens.value, "memory.page_tokens");
  at_least_one(plan.memory.cp_block_tokens.value, "memory.share_tokens");
}

inline void require_stages(const Plan& plan, std::string_view caller) {
  const VirtualStages virtual_stages = virtual_stages_of(plan);
  require_table(
      plan.stages.size() == static_cast<std::size_t>(virtual_stages.size()), caller,
      [] { return std::string("stages must have one entry a stage and chunk"); },
      static_cast<std::int64_t>(plan.stages.size()));
  for (std::size_t i = 0; i < plan.stages.size(); ++i) {
    const Stage& stage = plan.stages[i];
    const auto virtual_stage = static_cast<std::int32_t>(i);
    require_table(stage.pp == virtual_stages.stage(virtual_stage) &&
                      stage.chunk == virtual_stages.chunk(virtual_stage),
                  caller,
                  [&] { return entry_name("stages", i) + " must be in the order of chunk, pp"; });
    require_table(
        stage.layers() >= 0, caller,
        [&] { return entry_name("stages", i) + " must have a number of layers >= 0"; },
        stage.layers());
  }
}

inline void require_groups(const Plan& plan, std::string_view caller) {
  for (std::size_t i = 0; i < plan.groups.size(); ++i) {
    const std::vector<std::int32_t>& ranks = plan.groups[i];
    require_table(!ranks.empty(), caller,
                  [&] { return entry_name("groups", i) + " must not be empty"; });
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      require_table(
          ranks[rank] >= 0 && ranks[rank] < plan.parallel.dp &&
              (rank == 0 || ranks[rank - 1] < ranks[rank]),
          caller,
          [&] { return entry_name("groups", i) + " must be ascending ranks below parallel.dp"; },
          ranks[rank]);
    }
  }
}

inline void require_samples(const Plan& plan, std::string_view caller) {
  require_table(
      plan.sample_group.size() == plan.samples.size(), caller,
      [] { return std::string("sample_group must have one entry a sample"); },
      static_cast<std::int64_t>(plan.sample_group.size()));
  require_table(
      plan.sample_first.empty() ||
          (plan.version >= 3 && plan.sample_first.size() == plan.samples.size()),
      caller, [] { return std::string("sample_first must have one entry a sample, in version 3"); },
      static_cast<std::int64_t>(plan.sample_first.size()));
  for (std::size_t i = 0; i < plan.samples.size(); ++i) {
    require_table(
        plan.samples[i].value >= 1, caller,
        [&] { return entry_name("samples", i) + " must be >= 1"; }, plan.samples[i].value);
    require_table(
        index(plan.sample_group[i]) < plan.groups.size(), caller,
        [&] { return entry_name("sample_group", i) + " must be a group"; },
        static_cast<std::int64_t>(index(plan.sample_group[i])));
    if (plan.sample_first.empty()) continue;
    const std::int32_t first = plan.sample_first[i];
    require_table(
        first >= 0 &&
            static_cast<std::size_t>(first) < plan.groups[index(plan.sample_group[i])].size(),
        caller, [&] { return entry_name("sample_first", i) + " must be a position in the group"; },
        first);
  }
}

inline void require_schedules(const Plan& plan, std::string_view caller) {
  const auto devices =
      static_cast<std::size_t>(plan.parallel.dp) * static_cast<std::size_t>(plan.parallel.pp);
  require_table(
      plan.schedule.size() == devices, caller,
      [] { return std::string("schedule must have one entry a device"); },
      static_cast<std::int64_t>(plan.schedule.size()));
  for (std::size_t i = 0; i < devices; ++i) {
    const DeviceSchedule& device = plan.schedule[i];
    require_table(device.dp >= 0 && device.pp >= 0 && device.pp < plan.parallel.pp &&
                      device_index(plan, device.dp, device.pp) == i,
                  caller,
                  [&] { return entry_name("schedule", i) + " must be sorted by dp, then pp"; });
  }
}

inline void require_unit(const Plan& plan, const DeviceSchedule& device, std::size_t place,
                         std::string_view caller) {
  const Unit& unit = device.order[place];
  const auto check = [&](bool condition, const char* rule) {
    require_table(condition, caller, [&] {
      return "unit " + std::to_string(place) + " of device (dp " + std::to_string(device.dp) +
             ", pp " + std::to_string(device.pp) + "), " + to_string(unit) + ", must " + rule;
    });
  };
  check(unit.chunk >= 0 && unit.chunk < plan.parallel.chunks, "name a chunk of the plan");
  if (unit.kind == UnitKind::reduce || unit.kind == UnitKind::optimizer) return;
  check(index(unit.pack) < plan.micropacks.size(), "name a MicroPack of the plan");
  const MicroPack& pack = plan.micropacks[index(unit.pack)];
  check(pack.pass == pass_of(unit.kind), "name a MicroPack of its pass");
  const std::vector<std::int32_t>& ranks = plan.groups[index(pack.group)];
  check(std::binary_search(ranks.begin(), ranks.end(), device.dp),
        "name a MicroPack of a group of its rank");
  check(unit.kind != UnitKind::head || plan.parallel.head == LmHead::shard ||
            device.pp == plan.parallel.pp - 1,
        "be on the last stage, which alone has the head");
}

}  // namespace detail

/// Throws InvalidInput unless a MicroPack's group exists, has ranks, and, where it has several and
/// is not of pass `weight`, the pack names a ring mode for each of its slices. `caller` begins the
/// message. O(1).
inline void require_group_of(const Plan& plan, PackId id, std::string_view caller) {
  const MicroPack& pack = plan.micropacks[index(id)];
  const auto place = [&] { return detail::entry_name("micropacks", index(id)); };
  detail::require_table(
      index(pack.group) < plan.groups.size(), caller,
      [&] { return place() + ".group must be a group"; },
      static_cast<std::int64_t>(index(pack.group)));
  const std::size_t ranks = plan.groups[index(pack.group)].size();
  detail::require_table(ranks > 0, caller, [&] { return place() + ".group must have ranks"; });
  detail::require_table(
      ranks == 1 || pack.pass == Pass::weight || pack.exchange.size() == pack.slices.size(), caller,
      [&] { return place() + ".exchange must have one entry a slice"; },
      static_cast<std::int64_t>(pack.exchange.size()));
}

/// Throws InvalidInput if a MicroPack is of pass `weight` or leaves weights' gradients to one: for
/// callers that compute them in B. `caller` begins the message. O(MicroPacks).
inline void require_weights_with(const Plan& plan, std::string_view caller) {
  for (std::size_t i = 0; i < plan.micropacks.size(); ++i) {
    const MicroPack& pack = plan.micropacks[i];
    detail::require_table(pack.pass != Pass::weight && pack.weights == WeightGradients::with,
                          caller, [&] {
                            return detail::entry_name("micropacks", i) +
                                   " must leave no gradients of weights to units of their own (W)";
                          });
  }
}

/// Throws InvalidInput unless degrees and sizes are at least 1 and the tables of stages, groups,
/// samples and schedules have their entries in order, each naming what exists. The message is
/// "CALLER: table[entry] must ..., got value". O(stages + ranks + samples + devices).
inline void require_layout(const Plan& plan, std::string_view caller) {
  detail::require_degrees(plan, caller);
  detail::require_stages(plan, caller);
  detail::require_groups(plan, caller);
  detail::require_samples(plan, caller);
  detail::require_schedules(plan, caller);
}

/// Throws InvalidInput, naming which does not divide, unless tensor-parallel devices can share the
/// model's heads, key heads and ffn evenly. `caller` begins the message. O(1).
inline void require_divisible(const Plan& plan, std::string_view caller) {
  const ModelShape& model = plan.model;
  const auto divides = [&](std::int64_t value, const char* name) {
    detail::require_table(
        value % plan.parallel.tp == 0, caller,
        [&] {
          return "parallel.tp must divide model." + std::string(name) + " (" +
                 std::to_string(value) + ")";
        },
        plan.parallel.tp);
  };
  divides(model.heads, "heads");
  divides(model.kv_heads, "kv_heads");
  divides(model.ffn, "ffn");
}

/// Throws InvalidInput unless MicroPacks name groups and samples that exist, and units name chunks
/// and MicroPacks that their device runs. The plan must have passed `require_layout`.
/// O(slices + units x log ranks).
inline void require_contents(const Plan& plan, std::string_view caller) {
  for (std::size_t i = 0; i < plan.micropacks.size(); ++i) {
    const MicroPack& pack = plan.micropacks[i];
    require_group_of(plan, static_cast<PackId>(i), caller);
    for (const Slice& slice : pack.slices) {
      detail::require_table(
          index(slice.sample) < plan.samples.size(), caller,
          [&] { return detail::entry_name("micropacks", i) + " must hold known samples"; },
          static_cast<std::int64_t>(index(slice.sample)));
      detail::require_table(
          plan.sample_group[index(slice.sample)] == pack.group, caller,
          [&] {
            return detail::entry_name("micropacks", i) +
                   " must hold samples of its own group only, not sample";
          },
          static_cast<std::int64_t>(index(slice.sample)));
    }
  }
  for (const DeviceSchedule& device : plan.schedule) {
    for (std::size_t place = 0; place < device.order.size(); ++place) {
      detail::require_unit(plan, device, place, caller);
    }
  }
}

/// Throws InvalidInput, naming table, entry, rule and value, unless every index in the plan's
/// tables names what exists. Whether the plan is valid, `validate` says. `caller` begins the
/// message. O(slices + units x log ranks).
inline void require_structure(const Plan& plan, std::string_view caller) {
  require_layout(plan, caller);
  require_contents(plan, caller);
}

}  // namespace slimpack
