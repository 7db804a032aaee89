// SPDX-License-Identifier: Apache-2.0
// What must hold of a plan before a DAG can be made of it at all.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/plan/virtual_stages.hpp"
#include "slimpack/sim/node_names.hpp"

namespace slimpack::sim::detail {

/// Throws InvalidInput with "build_dag: " and text() unless `condition` holds: no text is made for
/// units that are well.
template <class Text>
void require_built(bool condition, const Text& text) {
  if (!condition) throw InvalidInput("build_dag: " + text());
}

inline void require_parallel(const Plan& plan) {
  const Parallel& parallel = plan.parallel;
  require(parallel.dp >= 1, "build_dag: dp must be >= 1", parallel.dp);
  require(parallel.pp >= 1, "build_dag: pp must be >= 1", parallel.pp);
  require(parallel.tp >= 1, "build_dag: tp must be >= 1", parallel.tp);
  require(parallel.chunks >= 1, "build_dag: chunks must be >= 1", parallel.chunks);
  require(plan.max_in_flight >= 1, "build_dag: window must be >= 1", plan.max_in_flight);
  require(plan.memory.page_tokens.value >= 1, "build_dag: memory.page_tokens must be >= 1",
          plan.memory.page_tokens.value);
  require(plan.memory.cp_block_tokens.value >= 1, "build_dag: memory.share_tokens must be >= 1",
          plan.memory.cp_block_tokens.value);
}

inline void require_stages(const Plan& plan) {
  const VirtualStages virtual_stages = virtual_stages_of(plan);
  require(plan.stages.size() == static_cast<std::size_t>(virtual_stages.size()),
          "build_dag: stages must be pp x chunks", static_cast<std::int64_t>(plan.stages.size()));
  for (std::size_t i = 0; i < plan.stages.size(); ++i) {
    const auto place = static_cast<std::int32_t>(i);
    const Stage& stage = plan.stages[i];
    require(stage.pp == virtual_stages.stage(place) && stage.chunk == virtual_stages.chunk(place),
            "build_dag: stages must be in line order, stage " + std::to_string(i) + " is not");
    require(stage.layers() >= 0,
            "build_dag: stage " + std::to_string(i) + " must have a number of layers >= 0",
            stage.layers());
  }
}

inline void require_groups(const Plan& plan) {
  for (std::size_t i = 0; i < plan.groups.size(); ++i) {
    const std::vector<std::int32_t>& ranks = plan.groups[i];
    const std::string name = "build_dag: group " + std::to_string(i);
    require(!ranks.empty(), name + " has no rank");
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      require(ranks[rank] >= 0 && ranks[rank] < plan.parallel.dp,
              name + " names a rank that does not exist", ranks[rank]);
      require(rank == 0 || ranks[rank - 1] < ranks[rank], name + " must list its ranks rising");
    }
  }
  require(plan.sample_group.size() == plan.samples.size(),
          "build_dag: sample_group must have an entry a sample",
          static_cast<std::int64_t>(plan.sample_group.size()));
  for (std::size_t i = 0; i < plan.samples.size(); ++i) {
    require_built(plan.samples[i].value >= 1, [&] {
      return "sample " + std::to_string(i) + " must have a length >= 1, got " +
             std::to_string(plan.samples[i].value);
    });
    require_built(index(plan.sample_group[i]) < plan.groups.size(), [&] {
      return "sample " + std::to_string(i) + " is in a group that does not exist";
    });
  }
}

inline void require_packs(const Plan& plan) {
  for (std::size_t i = 0; i < plan.micropacks.size(); ++i) {
    const MicroPack& pack = plan.micropacks[i];
    const auto check = [&](bool condition, const char* rule) {
      require_built(condition, [&] { return "MicroPack " + std::to_string(i) + " " + rule; });
    };
    check(index(pack.group) < plan.groups.size(), "has a group that does not exist");
    check(plan.groups[index(pack.group)].size() == 1 || pack.exchange.size() == pack.slices.size(),
          "of a merged group must have one exchange a slice");
    for (const Slice& slice : pack.slices) {
      check(index(slice.sample) < plan.samples.size(), "holds a sample that does not exist");
      check(plan.sample_group[index(slice.sample)] == pack.group,
            "holds a sample of another group");
    }
  }
}

inline void require_unit(const Plan& plan, const DeviceSchedule& schedule, std::size_t place) {
  const Unit& unit = schedule.order[place];
  const auto check = [&](bool condition, const char* rule) {
    require_built(condition, [&] {
      return device_name(schedule.dp, schedule.pp) + " unit " + std::to_string(place) + " (" +
             unit_name(unit) + ") " + rule;
    });
  };
  check(unit.chunk >= 0 && unit.chunk < plan.parallel.chunks, "has a chunk that does not exist");
  if (unit.kind == UnitKind::reduce || unit.kind == UnitKind::optimizer) return;
  check(index(unit.pack) < plan.micropacks.size(), "has a MicroPack that does not exist");
  const MicroPack& pack = plan.micropacks[index(unit.pack)];
  check((pack.pass == Pass::backward) == (unit.kind == UnitKind::backward),
        "has a MicroPack of the other pass");
  const std::vector<std::int32_t>& ranks = plan.groups[index(pack.group)];
  check(std::binary_search(ranks.begin(), ranks.end(), schedule.dp),
        "has a MicroPack of another rank");
  check(unit.kind != UnitKind::head || plan.parallel.head == LmHead::shard ||
            schedule.pp == plan.parallel.pp - 1,
        "is not on the last stage, which alone has the head");
}

inline void require_units(const Plan& plan) {
  require(plan.schedule.size() == static_cast<std::size_t>(plan.parallel.dp) *
                                      static_cast<std::size_t>(plan.parallel.pp),
          "build_dag: there must be one schedule a device",
          static_cast<std::int64_t>(plan.schedule.size()));
  for (std::size_t i = 0; i < plan.schedule.size(); ++i) {
    const DeviceSchedule& schedule = plan.schedule[i];
    require_built(schedule.pp >= 0 && schedule.pp < plan.parallel.pp &&
                      device_index(plan, schedule.dp, schedule.pp) == i,
                  [&] {
                    return "schedules must be ordered by (dp, pp), schedule " + std::to_string(i) +
                           " is not";
                  });
    for (std::size_t place = 0; place < schedule.order.size(); ++place) {
      require_unit(plan, schedule, place);
    }
  }
}

/// Throws InvalidInput, naming the place, where the arrays of a plan do not fit together.
inline void require_structure(const Plan& plan) {
  require_parallel(plan);
  require_stages(plan);
  require_groups(plan);
  require_packs(plan);
  require_units(plan);
}

}  // namespace slimpack::sim::detail
