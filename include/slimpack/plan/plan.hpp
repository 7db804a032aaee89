// SPDX-License-Identifier: Apache-2.0
// A plan: one training step, fully decided. Plain data, the memory form of plan.json.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/plan/cluster.hpp"
#include "slimpack/plan/cost_spec.hpp"
#include "slimpack/plan/model.hpp"

namespace slimpack {

/// A file that samples come from.
struct Source {
  std::string path;
  std::int64_t documents = 0;
  std::string sha256;  ///< empty where it is not known (standard input)
  friend bool operator==(const Source&, const Source&) = default;
};

/// Where a sample comes from: source, document in it, first token in that document.
struct Origin {
  std::int64_t source = 0;
  std::int64_t document = 0;
  Tokens first;
  friend bool operator==(const Origin&, const Origin&) = default;
};

/// Tokens [begin, end) of a sample. Its prefix, the tokens it attends to before itself, is `begin`.
struct Slice {
  SampleId sample{};
  Tokens begin;
  Tokens end;
  /// Number of tokens.
  [[nodiscard]] constexpr Tokens length() const noexcept { return end - begin; }
  friend auto operator<=>(const Slice&, const Slice&) = default;
};

/// Direction of a MicroPack.
enum class Pass : std::uint8_t { forward, backward };

/// What travels round the ring of a context-parallel group: keys and values, or queries and partial
/// outputs.
enum class RingMode : std::uint8_t { pass_kv, pass_q };

/// What a forward pass keeps for the backward pass, per token and layer (docs/equations.md).
enum class Recompute : std::uint8_t { none, light, layer, full };
/// How many recomputation modes there are.
inline constexpr int kRecomputeModes = 4;

/// The scheduling unit: slices of different samples that run together. Its id is its index in
/// `Plan::micropacks`.
struct MicroPack {
  Pass pass = Pass::forward;
  GroupId group{};
  std::vector<Slice> slices;
  std::vector<RingMode> exchange;         ///< one a slice in groups of several ranks, else empty
  Recompute recompute = Recompute::none;  ///< backward packs only: what was kept of their tokens
  friend bool operator==(const MicroPack&, const MicroPack&) = default;
};

/// What a unit does: forward, backward, loss (H), reduction of gradients (R) or optimizer (O).
enum class UnitKind : std::uint8_t { forward, backward, head, reduce, optimizer };

/// One entry of a device's schedule. `pack` has a meaning for forward, backward and head; `chunk`
/// for forward, backward and reduce; both are zero elsewhere.
struct Unit {
  UnitKind kind = UnitKind::forward;
  PackId pack{};
  std::int32_t chunk = 0;
  friend auto operator<=>(const Unit&, const Unit&) = default;
};

/// What device (dp, pp) does, in order.
struct DeviceSchedule {
  std::int32_t dp = 0;
  std::int32_t pp = 0;
  std::vector<Unit> order;
  friend bool operator==(const DeviceSchedule&, const DeviceSchedule&) = default;
};

/// Layers [first, end) that chunk `chunk` of stage `pp` holds.
struct Stage {
  std::int32_t pp = 0;
  std::int32_t chunk = 0;
  std::int64_t first_layer = 0;
  std::int64_t end_layer = 0;
  bool embedding = false;
  /// Number of layers.
  [[nodiscard]] constexpr std::int64_t layers() const noexcept { return end_layer - first_layer; }
  friend bool operator==(const Stage&, const Stage&) = default;
};

/// The device of the cluster that runs (dp, pp, tp).
struct Placement {
  std::int32_t dp = 0, pp = 0, tp = 0;
  std::int64_t device = 0;
  friend bool operator==(const Placement&, const Placement&) = default;
};

/// Vocabulary projection and loss: on the last stage, or split over all stages of a rank.
enum class LmHead : std::uint8_t { last, shard };

/// Degrees of parallelism, and what packing and groups may do.
struct Parallel {
  std::int32_t dp = 1, pp = 1, tp = 1;
  std::int32_t chunks = 1;  ///< virtual stages of a device
  LmHead head = LmHead::last;
  Tokens granularity{128};  ///< inner slice boundaries are multiples of it
  std::int32_t max_cp = 1;  ///< most ranks a group may have
  friend bool operator==(const Parallel&, const Parallel&) = default;
};

/// Whether data-parallel ranks share the optimizer state or each hold all of it.
enum class OptimizerState : std::uint8_t { sharded, replicated };

/// The memory rules of a device (rule 7; docs/equations.md).
struct MemorySpec {
  Bytes capacity;
  Bytes reserved;
  OptimizerState optimizer = OptimizerState::sharded;
  std::int64_t gradient_bytes = 4;  ///< element of accumulated gradients: weights, keys, values
  Tokens page_tokens{128};          ///< keys and values are allocated in pages of so many tokens
  Tokens cp_block_tokens{512};      ///< blocks in which ranks own a sample (CpShard)
  Tokens head_tile{1024};           ///< tokens whose logits exist at one time
  friend bool operator==(const MemorySpec&, const MemorySpec&) = default;
};

/// What the simulation predicts of device (dp, pp): compute time and peak memory.
struct DevicePrediction {
  std::int32_t dp = 0, pp = 0;
  Nanos busy;
  Bytes peak;
  friend bool operator==(const DevicePrediction&, const DevicePrediction&) = default;
};

/// What the simulation predicts of the step. `devices` are in the order of `Plan::schedule`.
struct Prediction {
  Nanos iteration, ideal, lower_bound;
  std::vector<DevicePrediction> devices;
  friend bool operator==(const Prediction&, const Prediction&) = default;
};

/// One training step, fully decided: plain data that planners make and executors run.
///
///     const Plan plan = read_plan_file("plan.json");      // io/plan_json.hpp
///     if (!validate(plan).valid()) return 1;              // validate/validate.hpp
///     for (const DeviceSchedule& device : plan.schedule) {
///       for (const Unit& unit : device.order) run(unit);  // what each device does
///     }
///
/// Stages are in the order of VirtualStages (chunk, then pp), schedules in that of (dp, pp). A plan
/// that has been read may break any other rule until `validate` has passed it.
struct Plan {
  std::string planner;
  std::int64_t step_index = 0;
  std::int64_t target_tokens = 0;
  std::vector<Source> sources;
  std::vector<Origin> origin;   ///< one a sample
  std::vector<Tokens> samples;  ///< lengths
  ModelShape model;
  Cluster cluster;
  CostSpec cost;
  MemorySpec memory;
  Parallel parallel;
  std::vector<Placement> placement;
  std::vector<Stage> stages;
  std::vector<std::vector<std::int32_t>> groups;  ///< data-parallel ranks, ascending
  std::vector<GroupId> sample_group;              ///< one a sample
  std::vector<MicroPack> micropacks;
  std::vector<DeviceSchedule> schedule;
  std::int32_t max_in_flight = 2;  ///< unfinished sends, and posted receives, of a channel
  Prediction prediction;
  friend bool operator==(const Plan&, const Plan&) = default;
};

}  // namespace slimpack
