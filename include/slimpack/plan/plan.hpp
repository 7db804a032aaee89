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
  std::string path;            ///< as the user named it
  std::int64_t documents = 0;  ///< how many documents the file holds
  std::string sha256;          ///< digest of its bytes; empty where unknown (standard input)
  friend bool operator==(const Source&, const Source&) = default;
};

/// Where a sample comes from.
struct Origin {
  std::int64_t source = 0;    ///< index in `Plan::sources`
  std::int64_t document = 0;  ///< number of the document in that source, from 0
  Tokens first;               ///< position of the sample's first token in that document
  friend bool operator==(const Origin&, const Origin&) = default;
};

/// Tokens [begin, end) of a sample. Its prefix, the tokens it attends to before itself, is `begin`.
struct Slice {
  SampleId sample{};  ///< index in `Plan::samples`
  Tokens begin;       ///< first token, >= 0
  Tokens end;         ///< one past the last token, at most the sample's length
  /// Number of tokens.
  [[nodiscard]] constexpr Tokens length() const noexcept { return end - begin; }
  friend auto operator<=>(const Slice&, const Slice&) = default;
};

/// What a MicroPack computes as it runs through the layers: forward, backward, or, last layer
/// first, the gradients of weights that backward packs have left to it.
enum class Pass : std::uint8_t { forward, backward, weight };

/// How the ranks of a context-parallel group attend to a slice together: keys and values travel
/// round their ring, or queries and partial outputs do, or each rank attends with a part of the
/// heads to all of it (since version 3; all slices of a sample or none; docs/equations.md,
/// "Exchange by heads").
enum class RingMode : std::uint8_t { pass_kv, pass_q, by_heads };

/// What a forward pass keeps for the backward pass, per token and layer (docs/equations.md).
enum class Recompute : std::uint8_t { none, light, layer, full };
/// How many recomputation modes there are.
inline constexpr int kRecomputeModes = 4;

/// Where the gradients of layers' matrices are computed: with those of inputs in B, or apart, in W.
enum class WeightGradients : std::uint8_t { with, apart };

/// The scheduling unit: slices of different samples that run together. Its id is its index in
/// `Plan::micropacks`.
struct MicroPack {
  Pass pass = Pass::forward;              ///< of all its slices
  GroupId group{};                        ///< the CP group whose ranks compute the pack together
  std::vector<Slice> slices;              ///< at least one, of samples of the group
  std::vector<RingMode> exchange;         ///< in groups of several ranks one a slice, else empty;
                                          ///< empty in weight packs
  Recompute recompute = Recompute::none;  ///< backward packs only: what was kept of their tokens
  WeightGradients weights = WeightGradients::with;  ///< backward packs only: `apart` leaves them
                                                    ///< to weight packs (version 2)
  friend bool operator==(const MicroPack&, const MicroPack&) = default;
};

/// What a unit does: forward, backward, loss (H), reduction of gradients (R), optimizer (O) or
/// gradients of weights (W).
enum class UnitKind : std::uint8_t { forward, backward, head, reduce, optimizer, weight };

/// Whether units of this kind run a MicroPack through the layers of a chunk: F, B and W.
[[nodiscard]] constexpr bool runs_layers(UnitKind kind) noexcept {
  return kind == UnitKind::forward || kind == UnitKind::backward || kind == UnitKind::weight;
}
/// Whether a unit of this kind names a MicroPack: F, B, W and H.
[[nodiscard]] constexpr bool names_pack(UnitKind kind) noexcept {
  return runs_layers(kind) || kind == UnitKind::head;
}
/// Whether a unit of this kind names a chunk: F, B, W and R.
[[nodiscard]] constexpr bool names_chunk(UnitKind kind) noexcept {
  return runs_layers(kind) || kind == UnitKind::reduce;
}
/// The pass of the MicroPacks that units of this kind name.
[[nodiscard]] constexpr Pass pass_of(UnitKind kind) noexcept {
  if (kind == UnitKind::weight) return Pass::weight;
  return kind == UnitKind::backward ? Pass::backward : Pass::forward;
}
/// The units that run a MicroPack of this pass through layers.
[[nodiscard]] constexpr UnitKind unit_of(Pass pass) noexcept {
  if (pass == Pass::weight) return UnitKind::weight;
  return pass == Pass::backward ? UnitKind::backward : UnitKind::forward;
}

/// One entry of a device's schedule. `pack` and `chunk` have a meaning for the kinds that name one;
/// they are zero elsewhere.
struct Unit {
  UnitKind kind = UnitKind::forward;  ///< F, B, H, R, O or W
  PackId pack{};           ///< index in `Plan::micropacks`, of the unit's own pass; H: of forward
  std::int32_t chunk = 0;  ///< which of its device's chunks, from 0
  friend auto operator<=>(const Unit&, const Unit&) = default;
};

/// The device order of device (dp, pp): its units in the order in which it runs them.
struct DeviceSchedule {
  std::int32_t dp = 0;      ///< data-parallel rank
  std::int32_t pp = 0;      ///< stage
  std::vector<Unit> order;  ///< a valid plan ends it with O
  friend bool operator==(const DeviceSchedule&, const DeviceSchedule&) = default;
};

/// Layers [first_layer, end_layer) that chunk `chunk` of stage `pp` holds.
struct Stage {
  std::int32_t pp = 0;           ///< stage of the pipeline, from 0
  std::int32_t chunk = 0;        ///< which of the stage's chunks, from 0
  std::int64_t first_layer = 0;  ///< of the model's layers, counted from 0
  std::int64_t end_layer = 0;    ///< one past the last layer; may equal `first_layer`
  bool embedding = false;        ///< whether it holds the embedding: chunk 0 of stage 0 alone
  /// Number of layers.
  [[nodiscard]] constexpr std::int64_t layers() const noexcept { return end_layer - first_layer; }
  friend bool operator==(const Stage&, const Stage&) = default;
};

/// The device of the cluster that runs (dp, pp, tp).
struct Placement {
  std::int32_t dp = 0;      ///< data-parallel rank
  std::int32_t pp = 0;      ///< stage
  std::int32_t tp = 0;      ///< tensor-parallel part
  std::int64_t device = 0;  ///< number of the device in the cluster; each is given once
  friend bool operator==(const Placement&, const Placement&) = default;
};

/// Where vocabulary projection and loss are: on the last stage, or split over all stages of a rank.
enum class LmHead : std::uint8_t { last, shard };

/// Degrees of parallelism, and what packing and groups may do.
struct Parallel {
  std::int32_t dp = 1;         ///< data-parallel ranks
  std::int32_t pp = 1;         ///< stages of the pipeline of a rank
  std::int32_t tp = 1;         ///< tensor-parallel devices of a stage
  std::int32_t chunks = 1;     ///< virtual stages of a device
  LmHead head = LmHead::last;  ///< place of vocabulary projection and loss
  Tokens granularity{128};     ///< inner slice boundaries are multiples of it
  std::int32_t max_cp = 1;     ///< most ranks that a CP group may have; 1: none is shared
  friend bool operator==(const Parallel&, const Parallel&) = default;
};

/// Whether data-parallel ranks share the optimizer state or each hold all of it.
enum class OptimizerState : std::uint8_t { sharded, replicated };

/// Whether each data-parallel rank holds all weights and gradients of its stage, or one part of
/// both and gathers the weights of a layer before it runs it (ZeRO-3; docs/equations.md).
enum class WeightState : std::uint8_t { replicated, sharded };

/// The memory rules of a device (rule 7; docs/equations.md).
struct MemorySpec {
  Bytes capacity;                                      ///< of one device
  Bytes reserved;                                      ///< of `capacity`, what a plan may not use
  OptimizerState optimizer = OptimizerState::sharded;  ///< over the data-parallel ranks
  std::int64_t gradient_bytes = 4;  ///< element of accumulated gradients: weights, keys, values
  Tokens page_tokens{128};          ///< keys and values are allocated in pages of so many tokens
  Tokens cp_block_tokens{512};      ///< blocks in which ranks own a sample (CpShard)
  Tokens head_tile{1024};           ///< tokens whose logits exist at one time
  WeightState weights = WeightState::replicated;  ///< and gradients; sharded since version 3
  friend bool operator==(const MemorySpec&, const MemorySpec&) = default;
};

/// What the simulation predicts of device (dp, pp).
struct DevicePrediction {
  std::int32_t dp = 0;  ///< data-parallel rank
  std::int32_t pp = 0;  ///< stage
  Nanos busy;           ///< sum of the times of its F, B, H and O
  Bytes peak;           ///< most bytes that it holds at one time
  friend bool operator==(const DevicePrediction&, const DevicePrediction&) = default;
};

/// What the simulation predicts of the step; zero and empty where nobody has simulated the plan.
struct Prediction {
  Nanos iteration;    ///< time of the step
  Nanos ideal;        ///< bare compute of all samples, spread evenly over all devices
  Nanos lower_bound;  ///< no valid plan of the same degrees and memory is faster (docs/bound.md)
  std::vector<DevicePrediction> devices;  ///< in the order of `Plan::schedule`
  friend bool operator==(const Prediction&, const Prediction&) = default;
};

/// The newest version of the rules that a plan follows (docs/schemas.md).
inline constexpr std::int32_t kPlanVersion = 3;
/// The version of a plan that needs nothing newer, so that older programs read it.
inline constexpr std::int32_t kUsualPlanVersion = 2;

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
  std::int32_t version = kUsualPlanVersion;  ///< of the rules that it follows: 1, 2 or 3
  std::string planner;                       ///< name of the planner that made it
  std::int64_t step_index = 0;               ///< number of the step in its run, from 0
  std::int64_t target_tokens = 0;    ///< tokens that have a target: what the loss is a mean over
  std::vector<Source> sources;       ///< the files that samples come from
  std::vector<Origin> origin;        ///< one a sample: where it comes from
  std::vector<Tokens> samples;       ///< lengths, each > 0
  ModelShape model;                  ///< what is trained
  Cluster cluster;                   ///< what it was planned for; only times depend on it
  CostSpec cost;                     ///< how units were priced; only times depend on it
  MemorySpec memory;                 ///< how memory is counted, and how much there is
  Parallel parallel;                 ///< degrees of parallelism
  std::vector<Placement> placement;  ///< one for each (dp, pp, tp)
  std::vector<Stage> stages;         ///< one a virtual stage, in their order
  std::vector<std::vector<std::int32_t>> groups;  ///< the data-parallel ranks of each, ascending
  std::vector<GroupId> sample_group;              ///< one a sample: the group that computes it
  std::vector<std::int32_t> sample_first;         ///< one a sample: position in its group of the
                                                  ///< rank that owns its first block (version 3);
                                                  ///< empty: the first rank of each
  std::vector<MicroPack> micropacks;              ///< of all passes; a PackId is an index in it
  std::vector<DeviceSchedule> schedule;           ///< one a device, by dp, then pp
  std::int32_t max_in_flight = 2;  ///< most unfinished sends, and posted receives, of a channel
  Prediction prediction;           ///< no part of what is executed
  friend bool operator==(const Plan&, const Plan&) = default;
};

}  // namespace slimpack
