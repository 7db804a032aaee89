// SPDX-License-Identifier: Apache-2.0
// What the format asks of a plan outside its seven rules: complete tables, sizes in range.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/validate/detail/findings.hpp"

namespace slimpack::validation {

/// What later checks may rely on.
struct Sound {
  bool parallel = true;  ///< sizes of parallel are positive, so is max_in_flight
  bool stages = true;    ///< one entry a stage and chunk, in the order of virtual stages
  bool groups = true;    ///< non-empty ascending sets of existing ranks
  bool sizes = true;     ///< model and memory sizes are positive
  [[nodiscard]] bool all() const noexcept { return parallel && stages && groups && sizes; }
};

/// Adds a violation of rule 0 unless value >= least.
inline bool at_least(Findings& found, const char* name, std::int64_t value, std::int64_t least) {
  if (value >= least) return true;
  found.add(0, "value out of range", {}, [&] {
    return std::string(name) + " must be >= " + std::to_string(least) + ", got " +
           std::to_string(value);
  });
  return false;
}

inline void check_sizes(const Plan& plan, Findings& found, Sound& sound) {
  const Parallel& parallel = plan.parallel;
  const auto holds = [&](bool& flag, const char* name, std::int64_t value, std::int64_t least) {
    if (!at_least(found, name, value, least)) flag = false;
  };
  holds(sound.parallel, "parallel.dp", parallel.dp, 1);
  holds(sound.parallel, "parallel.pp", parallel.pp, 1);
  holds(sound.parallel, "parallel.tp", parallel.tp, 1);
  holds(sound.parallel, "parallel.chunks", parallel.chunks, 1);
  holds(sound.parallel, "parallel.merge", parallel.max_cp, 1);
  holds(sound.parallel, "parallel.granularity", parallel.granularity.value, 1);
  holds(sound.parallel, "window", plan.max_in_flight, 1);
  if (at_least(found, "version", plan.version, 1) && plan.version > kPlanVersion) {
    found.add(0, "value out of range", {}, [&] {
      return "version must be <= " + std::to_string(kPlanVersion) + ", got " +
             std::to_string(plan.version);
    });
  }
  const ModelShape& model = plan.model;
  holds(sound.sizes, "model.layers", model.layers, 1);
  holds(sound.sizes, "model.hidden", model.hidden, 1);
  holds(sound.sizes, "model.heads", model.heads, 1);
  holds(sound.sizes, "model.kv_heads", model.kv_heads, 1);
  holds(sound.sizes, "model.head_dim", model.head_dim, 1);
  holds(sound.sizes, "model.ffn", model.ffn, 1);
  holds(sound.sizes, "model.vocab", model.vocab, 1);
  holds(sound.sizes, "model.bytes_per_element", model.bytes_per_element, 1);
  if (model.kv_heads >= 1 && model.heads % model.kv_heads != 0) {
    found.add(0, "value out of range", {}, [&] {
      return "model.kv_heads must divide model.heads " + std::to_string(model.heads) + ", got " +
             std::to_string(model.kv_heads);
    });
  }
  for (const auto& [name, value] :
       {std::pair{"heads", model.heads}, {"kv_heads", model.kv_heads}, {"ffn", model.ffn}}) {
    if (parallel.tp < 1 || value % parallel.tp == 0) continue;
    found.add(0, "value out of range", {}, [&, name = name, value = value] {
      return "parallel.tp must divide model." + std::string(name) + " (" + std::to_string(value) +
             "), got " + std::to_string(parallel.tp);
    });
  }
  const MemorySpec& memory = plan.memory;
  holds(sound.sizes, "memory.capacity", memory.capacity.value, 0);
  holds(sound.sizes, "memory.reserved", memory.reserved.value, 0);
  holds(sound.sizes, "memory.gradient_bytes", memory.gradient_bytes, 1);
  holds(sound.sizes, "memory.page_tokens", memory.page_tokens.value, 1);
  holds(sound.sizes, "memory.share_tokens", memory.cp_block_tokens.value, 1);
  holds(sound.sizes, "memory.head_tile", memory.head_tile.value, 1);
  at_least(found, "cluster.devices_per_node", plan.cluster.devices_per_node, 1);
  at_least(found, "step.index", plan.step_index, 0);
}

/// A sample's tokens all have targets but for at most its last one.
/// Where samples begin in their groups, which version 2 does not tell.
inline void check_firsts(const Plan& plan, Findings& found) {
  if (plan.sample_first.empty()) return;
  if (plan.version < 3) found.add(0, "sample_first", {}, "sample_first needs version 3");
  for (std::size_t i = 0; i < std::min(plan.sample_first.size(), plan.sample_group.size()); ++i) {
    const std::size_t group = index(plan.sample_group[i]);
    if (group >= plan.groups.size()) continue;
    const auto ranks = static_cast<std::int64_t>(plan.groups[group].size());
    if (plan.sample_first[i] >= 0 && plan.sample_first[i] < ranks) continue;
    found.add(0, "sample_first", Where{}.sample(i), [&] {
      return "sample_first must be in [0, " + std::to_string(ranks) + "), got " +
             std::to_string(plan.sample_first[i]);
    });
  }
}

inline void check_samples(const Plan& plan, Findings& found) {
  const std::size_t samples = plan.samples.size();
  std::int64_t tokens = 0;
  bool countable = true;
  for (std::size_t i = 0; i < samples; ++i) {
    const std::int64_t length = plan.samples[i].value;
    if (length < 1) {
      found.add(0, "sample without tokens", Where{}.sample(i),
                [&] { return "a sample's length must be > 0, got " + std::to_string(length); });
      countable = false;
    } else if (__builtin_add_overflow(tokens, length, &tokens)) {
      countable = false;
    }
  }
  const std::int64_t least = std::max<std::int64_t>(1, tokens - static_cast<std::int64_t>(samples));
  if (countable && (plan.target_tokens < least || plan.target_tokens > tokens)) {
    found.add(0, "target_tokens", {}, [&] {
      return "step.target_tokens must be in [" + std::to_string(least) + ", " +
             std::to_string(tokens) + "], got " + std::to_string(plan.target_tokens);
    });
  }
  const auto same_size = [&](const char* name, std::size_t size) {
    if (size == samples) return;
    found.add(0, "table size", {}, [&] {
      return std::string(name) + " must have one entry a sample, " + std::to_string(samples) +
             ", has " + std::to_string(size);
    });
  };
  same_size("origin", plan.origin.size());
  same_size("sample_group", plan.sample_group.size());
  if (!plan.sample_first.empty()) same_size("sample_first", plan.sample_first.size());
  for (std::size_t i = 0; i < plan.origin.size(); ++i) {
    const Origin& origin = plan.origin[i];
    const bool known =
        origin.source >= 0 && static_cast<std::uint64_t>(origin.source) < plan.sources.size();
    if (known && origin.first.value >= 0 && origin.document >= 0 &&
        origin.document < plan.sources[static_cast<std::size_t>(origin.source)].documents) {
      continue;
    }
    found.add(0, "origin", Where{}.sample(i), [&] {
      return "origin [" + std::to_string(origin.source) + ", " + std::to_string(origin.document) +
             ", " + std::to_string(origin.first.value) + "] is not in the sources";
    });
  }
  for (std::size_t i = 0; i < std::min(samples, plan.sample_group.size()); ++i) {
    if (index(plan.sample_group[i]) < plan.groups.size()) continue;
    found.add(0, "sample_group", Where{}.sample(i), [&] {
      return "sample_group names group " + std::to_string(index(plan.sample_group[i])) + " of " +
             std::to_string(plan.groups.size());
    });
  }
  check_firsts(plan, found);
}

inline void check_stages(const Plan& plan, Findings& found, Sound& sound) {
  const auto pp = static_cast<std::int64_t>(plan.parallel.pp);
  const std::int64_t lines = pp * plan.parallel.chunks;
  if (static_cast<std::int64_t>(plan.stages.size()) != lines) {
    sound.stages = false;
    found.add(0, "stages", {}, [&] {
      return "stages must have one entry for each stage and chunk, " + std::to_string(lines) +
             ", has " + std::to_string(plan.stages.size());
    });
    return;
  }
  std::int64_t next = 0;
  for (std::size_t i = 0; i < plan.stages.size(); ++i) {
    const Stage& stage = plan.stages[i];
    const auto line = static_cast<std::int64_t>(i);
    const auto report = [&](const std::string& reason) {
      found.add(0, "stages", {}, "stages[" + std::to_string(i) + "] " + reason);
    };
    if (stage.pp != line % pp || stage.chunk != line / pp) {
      sound.stages = false;
      report("must be pp " + std::to_string(line % pp) + ", chunk " + std::to_string(line / pp) +
             ", is pp " + std::to_string(stage.pp) + ", chunk " + std::to_string(stage.chunk));
    }
    if (stage.first_layer != next || stage.end_layer < stage.first_layer) {
      sound.stages = false;
      report("must hold layers from " + std::to_string(next) + " on, holds [" +
             std::to_string(stage.first_layer) + ", " + std::to_string(stage.end_layer) + ")");
    }
    if (stage.embedding != (i == 0)) {
      report(i == 0 ? "must hold the embedding" : "must not hold the embedding");
    }
    next = stage.end_layer;
  }
  if (next != plan.model.layers) {
    sound.stages = false;
    found.add(0, "stages", {}, [&] {
      return "stages must end at model.layers " + std::to_string(plan.model.layers) + ", end at " +
             std::to_string(next);
    });
  }
}

inline void check_groups(const Plan& plan, Findings& found, Sound& sound) {
  for (std::size_t i = 0; i < plan.groups.size(); ++i) {
    const auto& ranks = plan.groups[i];
    const auto report = [&](const std::string& reason) {
      sound.groups = false;
      found.add(0, "groups", {}, "groups[" + std::to_string(i) + "] " + reason);
    };
    if (ranks.empty()) report("must not be empty");
    for (std::size_t k = 0; k < ranks.size(); ++k) {
      if (ranks[k] < 0 || ranks[k] >= plan.parallel.dp) {
        report("names dp " + std::to_string(ranks[k]) + " of " + std::to_string(plan.parallel.dp));
      }
      if (k > 0 && ranks[k - 1] >= ranks[k]) report("must be ascending");
    }
  }
  std::vector<std::size_t> order(plan.groups.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return plan.groups[a] < plan.groups[b]; });
  for (std::size_t k = 1; k < order.size(); ++k) {
    if (plan.groups[order[k - 1]] != plan.groups[order[k]]) continue;
    found.add(0, "groups", {}, [&] {
      return "groups[" + std::to_string(order[k]) + "] is the same set as groups[" +
             std::to_string(order[k - 1]) + "]";
    });
  }
}

/// An exchange by heads gives each rank of a group as many heads of queries, and as many heads of
/// keys or one that several ranks have.
inline void check_by_heads(const Plan& plan, const MicroPack& pack, const Where& where,
                           Findings& found) {
  if (std::ranges::find(pack.exchange, RingMode::by_heads) == pack.exchange.end()) return;
  if (plan.version < 3) found.add(0, "micropack", where, "exchange by heads needs version 3");
  const auto ranks = static_cast<std::int64_t>(plan.groups[index(pack.group)].size());
  const std::int64_t tp = std::max(plan.parallel.tp, 1);
  const std::int64_t keys = plan.model.kv_heads / tp, queries = plan.model.heads / tp;
  const bool own_keys = ranks > 0 && keys % ranks == 0;
  const bool one_key = ranks > 0 && keys > 0 && ranks % keys == 0 && queries % ranks == 0;
  if (ranks > 0 && !own_keys && !one_key) {
    found.add(0, "micropack", where, [&] {
      return "exchange by heads needs a number of ranks that divides the " + std::to_string(keys) +
             " key heads of a device, or is a multiple of them that divides its " +
             std::to_string(queries) + " query heads, got " + std::to_string(ranks);
    });
  }
}

/// All slices of a sample are exchanged by heads, or none is.
inline void check_samples_by_heads(const Plan& plan, Findings& found) {
  constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();
  std::vector<std::array<std::size_t, 2>> first(plan.samples.size(), {kNone, kNone});
  for (std::size_t i = 0; i < plan.micropacks.size(); ++i) {
    const MicroPack& pack = plan.micropacks[i];
    for (std::size_t k = 0; k < std::min(pack.exchange.size(), pack.slices.size()); ++k) {
      const std::size_t sample = index(pack.slices[k].sample);
      if (sample >= plan.samples.size()) continue;
      const std::size_t mine = pack.exchange[k] == RingMode::by_heads ? 1 : 0;
      if (first[sample][mine] == kNone) first[sample][mine] = i;
      const std::size_t other = first[sample][1 - mine];
      if (other == kNone) continue;
      found.add(0, "micropack", Where{}.sample(sample).pack(i), [&] {
        return "the slices of a sample are all exchanged by heads or none is; not so with those of "
               "MicroPack " +
               std::to_string(other);
      });
    }
  }
}

inline void check_packs(const Plan& plan, Findings& found) {
  for (std::size_t i = 0; i < plan.micropacks.size(); ++i) {
    const MicroPack& pack = plan.micropacks[i];
    const Where where = Where{}.pack(i);
    if (pack.slices.empty()) found.add(0, "micropack", where, "a MicroPack holds at least a slice");
    const bool apart = pack.weights != WeightGradients::with;
    if (plan.version < 2 && (pack.pass == Pass::weight || apart)) {
      found.add(0, "micropack", where, "gradients of weights apart from B need version 2");
    }
    if (pack.pass != Pass::backward && apart) {
      found.add(0, "micropack", where, "weights belongs to backward MicroPacks");
    }
    if (pack.pass != Pass::backward && pack.recompute != Recompute::none) {
      found.add(0, "micropack", where, "recompute belongs to backward MicroPacks");
    }
    if (index(pack.group) >= plan.groups.size()) {
      found.add(0, "micropack", where, [&] {
        return "group " + std::to_string(index(pack.group)) + " of " +
               std::to_string(plan.groups.size());
      });
    } else {
      const bool in_cp_group = plan.groups[index(pack.group)].size() > 1;
      const bool exchanges = in_cp_group && pack.pass != Pass::weight;
      if (pack.exchange.size() != (exchanges ? pack.slices.size() : 0)) {
        found.add(0, "micropack", where, [&] {
          return std::string(exchanges     ? "exchange must have one entry a slice, "
                             : in_cp_group ? "exchange belongs to forward and backward MicroPacks, "
                                           : "exchange belongs to groups of several ranks, ") +
                 std::to_string(pack.slices.size()) + " slices, " +
                 std::to_string(pack.exchange.size()) + " entries";
        });
      }
      check_by_heads(plan, pack, where, found);
    }
    for (const Slice& slice : pack.slices) {
      if (index(slice.sample) < plan.samples.size()) continue;
      found.add(0, "micropack", where, [&] {
        return "a slice names sample " + std::to_string(index(slice.sample)) + " of " +
               std::to_string(plan.samples.size());
      });
    }
  }
}

/// Placement and prediction list each device once.
inline void check_devices(const Plan& plan, Findings& found) {
  const Parallel& parallel = plan.parallel;
  using Key = std::array<std::int32_t, 3>;
  const auto check = [&](const char* name, std::vector<Key>& keys, std::int32_t tp) {
    const double wanted = static_cast<double>(parallel.dp) * parallel.pp * tp;
    for (const Key& key : keys) {
      if (key[0] >= 0 && key[0] < parallel.dp && key[1] >= 0 && key[1] < parallel.pp &&
          key[2] >= 0 && key[2] < tp) {
        continue;
      }
      found.add(0, name, {}, [&] {
        return std::string(name) + " names " + device_name(key[0], key[1]) + ", tp " +
               std::to_string(key[2]) + ", which does not exist";
      });
    }
    std::sort(keys.begin(), keys.end());
    for (std::size_t i = 1; i < keys.size(); ++i) {
      if (keys[i] != keys[i - 1]) continue;
      found.add(0, name, {}, [&] {
        return std::string(name) + " lists " + device_name(keys[i][0], keys[i][1]) + ", tp " +
               std::to_string(keys[i][2]) + " twice";
      });
    }
    keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
    if (static_cast<double>(keys.size()) < wanted) {
      found.add(0, name, {}, [&] {
        return std::string(name) + " must list every device once, lists " +
               std::to_string(keys.size());
      });
    }
  };
  std::vector<Key> keys;
  std::vector<std::int64_t> devices;
  for (const Placement& place : plan.placement) {
    keys.push_back({place.dp, place.pp, place.tp});
    devices.push_back(place.device);
    if (place.device < 0) {
      found.add(0, "placement", {}, [&] {
        return "placement puts " + device_name(place.dp, place.pp) + " on device " +
               std::to_string(place.device);
      });
    }
  }
  check("placement", keys, parallel.tp);
  std::sort(devices.begin(), devices.end());
  for (std::size_t i = 1; i < devices.size(); ++i) {
    if (devices[i] != devices[i - 1]) continue;
    found.add(0, "placement", {},
              [&] { return "placement uses device " + std::to_string(devices[i]) + " twice"; });
  }
  keys.clear();
  for (const DevicePrediction& device : plan.prediction.devices) {
    keys.push_back({device.dp, device.pp, 0});
  }
  // A plan that has not been simulated yet predicts nothing.
  if (!keys.empty()) check("prediction.devices", keys, 1);
}

/// Where ranks share weights, they gather each layer together: on one stage, in units of one kind
/// at one position of all orders, those of a group's MicroPack at the same one on all its ranks.
inline void check_shared_weights(const Plan& plan, Findings& found) {
  if (plan.memory.weights != WeightState::sharded) return;
  const auto wrong = [&](const Where& where, const std::string& rule) {
    found.add(0, "sharded weights", where, [&] { return "sharded weights need " + rule; });
  };
  if (plan.version < 3) wrong({}, "version 3");
  if (plan.memory.optimizer != OptimizerState::sharded) wrong({}, "sharded optimizer state");
  if (plan.parallel.dp < 2) wrong({}, "several data-parallel ranks");
  if (plan.parallel.pp != 1 || plan.parallel.chunks != 1) wrong({}, "one stage of one chunk");
  for (std::size_t id = 0; id < plan.micropacks.size(); ++id) {
    const MicroPack& pack = plan.micropacks[id];
    if (pack.pass != Pass::weight && pack.weights == WeightGradients::with) continue;
    wrong(Where{}.pack(static_cast<PackId>(id)), "the gradients of weights to be computed in B");
  }
  constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();
  std::vector<std::size_t> at(plan.micropacks.size() * 2, kNone);  // F or B, and H
  for (const DeviceSchedule& device : plan.schedule) {
    const std::vector<Unit>& first = plan.schedule.front().order;
    const Where here = Where{}.device(device.dp, device.pp);
    if (device.order.size() != first.size()) wrong(here, "as many units on all ranks");
    std::array<std::size_t, 3> last{};  // MicroPack of each pass before
    for (std::size_t i = 0; i < device.order.size(); ++i) {
      const Unit& unit = device.order[i];
      const Where where = here.unit(i);
      if (i < first.size() && unit.kind != first[i].kind) {
        wrong(where, "units of one kind at one position of all orders");
      }
      if (!names_pack(unit.kind) || index(unit.pack) >= plan.micropacks.size()) continue;
      const bool head = unit.kind == UnitKind::head;
      std::size_t& place = at[2 * index(unit.pack) + (head ? 1 : 0)];
      if (place != kNone && place != i) {
        wrong(where.pack(unit.pack), "a MicroPack to be at one position of all its ranks' orders");
      }
      place = i;
      std::size_t& before = last[head ? 2 : unit.kind == UnitKind::backward ? 1 : 0];
      if (before > index(unit.pack)) {
        wrong(where.pack(unit.pack), "MicroPacks of a pass to run in the order of their ids");
      }
      before = index(unit.pack);
    }
  }
}

/// Adds every violation of rule 0. O(n log n) in the size of the plan.
[[nodiscard]] inline Sound check_format(const Plan& plan, Findings& found) {
  Sound sound;
  check_sizes(plan, found, sound);
  check_samples(plan, found);
  if (sound.parallel) {
    check_stages(plan, found, sound);
    check_groups(plan, found, sound);
    check_devices(plan, found);
  }
  check_packs(plan, found);
  check_samples_by_heads(plan, found);
  check_shared_weights(plan, found);
  return sound;
}

}  // namespace slimpack::validation
