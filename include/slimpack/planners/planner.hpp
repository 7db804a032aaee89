// SPDX-License-Identifier: Apache-2.0
// What every planner is asked and what it answers.
#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "slimpack/core/compiled.hpp"
#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/cost/unit_time_overrides.hpp"
#include "slimpack/plan/batch.hpp"
#include "slimpack/plan/cluster.hpp"
#include "slimpack/plan/cost_spec.hpp"
#include "slimpack/plan/model.hpp"
#include "slimpack/plan/names.hpp"
#include "slimpack/plan/plan.hpp"

namespace slimpack::planners {

/// How many whole steps a planner may simulate.
enum class Effort : std::uint8_t { fast, normal, thorough };

/// What has to execute a plan as it is planned.
enum class Runtime : std::uint8_t {
  any,  ///< whatever runs all that a plan can say
  /// PyTorch's pipeline runtime: its last stage runs H right behind the F that it reads, and ranks
  /// of a group exchange keys and values. Prices are of it with `SmallUnitPrices::run_graphs`
  torch
};

}  // namespace slimpack::planners

namespace slimpack {
template <>
inline constexpr std::array<std::string_view, 3> kWords<planners::Effort>{"fast", "normal",
                                                                          "thorough"};
template <>
inline constexpr std::array<std::string_view, 2> kWords<planners::Runtime>{"any", "torch"};
}  // namespace slimpack

namespace slimpack::planners {

/// The budget of a planner in simulated steps, the same for every planner: 4, 768 or 3072, with
/// more than 32768 samples fewer in proportion, but at least 4, 144 or 768.
[[nodiscard]] constexpr std::int64_t evaluations(Effort effort, std::int64_t samples) noexcept {
  constexpr std::array<std::int64_t, 3> kMost{4, 768, 3072}, kLeast{4, 144, 768};
  constexpr std::int64_t kMany = 32'768;
  const auto i = static_cast<std::size_t>(effort);
  const std::int64_t share = kMost[i] * kMany / std::max(samples, kMany);
  return std::max(share, kLeast[i]);
}

/// Searches that the budget of a normal or thorough effort pays for. A planner that makes one goes
/// on while that finds better settings.
inline constexpr std::int64_t kSearches = 6;

/// The steps of one of them; those of the whole budget where the effort is fast.
[[nodiscard]] constexpr std::int64_t search_evaluations(Effort effort,
                                                        std::int64_t samples) noexcept {
  return evaluations(effort, samples) / (effort == Effort::fast ? 1 : kSearches);
}

/// What a request says about memory in place of the cluster's figures and the rules' defaults.
struct MemoryOverrides {
  std::optional<Bytes> capacity;               ///< of a device; absent: the cluster's `memory`
  std::optional<Bytes> reserved;               ///< of it not for a plan; absent: the cluster's
  std::optional<std::int64_t> gradient_bytes;  ///< as in MemorySpec; absent: its default
  std::optional<Tokens> page_tokens;           ///< as in MemorySpec; absent: its default
  std::optional<Tokens> cp_block_tokens;       ///< as in MemorySpec; absent: the planner's choice
  std::optional<Tokens> head_tile;             ///< as in MemorySpec; absent: its default
  friend bool operator==(const MemoryOverrides&, const MemoryOverrides&) = default;
};

/// Most layers that the last virtual stage may hold fewer than an even part.
inline constexpr std::int32_t kMostFewerLastLayers = 2;

/// One step to plan. An absent option is searched by the planner.
struct PlanRequest {
  Batch batch;                         ///< the samples of the step, at least one
  std::vector<Source> sources;         ///< what `Batch::origin` counts in
  ModelShape model;                    ///< what is trained
  Cluster cluster;                     ///< what it is trained on
  CostSpec cost;                       ///< how units are priced
  MemoryOverrides memory;              ///< empty: all by cluster and defaults
  std::int32_t dp = 1;                 ///< data-parallel ranks
  std::int32_t pp = 1;                 ///< stages of the pipeline
  std::int32_t tp = 1;                 ///< tensor-parallel devices of a stage
  std::optional<std::int32_t> chunks;  ///< virtual stages of a device
  std::optional<LmHead> head;          ///< place of vocabulary projection and loss
  /// Layers that the last virtual stage holds fewer than an even part: weights stay where an
  /// earlier step of the same training had them. A sharded head has 0.
  std::optional<std::int32_t> fewer_last_layers;
  std::optional<Recompute> recompute;  ///< the mode of every backward pack
  /// Where gradients of weights are computed, of every backward pack; `apart` is known to planners
  /// of the slimpack family alone.
  std::optional<WeightGradients> weights;
  /// `torch` asks for tp 1, `head` last and `fewer_last_layers` 0, since a run's stages hold the
  /// same layers in every step.
  Runtime runtime = Runtime::any;
  Tokens granularity{128};                ///< inner slice boundaries are multiples of it
  std::optional<std::int64_t> max_units;  ///< most MicroPacks of a pass and rank
  std::optional<std::int32_t> max_cp;     ///< most ranks of a CP group; 1: each is alone
  OptimizerState optimizer = OptimizerState::sharded;  ///< over the data-parallel ranks
  /// Whether data-parallel ranks share weights and gradients; `sharded` is known to slimpack and
  /// FlexSP alone.
  std::optional<WeightState> weight_state;
  Tokens context{131072};  ///< longest sample that the step may hold
  /// Planners of published systems: no more than the publication has (docs/planners.md).
  bool as_published = false;
  Effort effort = Effort::normal;  ///< how many steps may be simulated
  /// How many steps may be simulated instead, at least 1; absent: as many as the effort says.
  std::optional<std::int64_t> budget;
  std::int32_t threads = 1;  ///< for simulating candidates; never changes the answer
  /// Called after each simulation with how many steps' worth is done and the most there will be;
  /// never by two threads at a time. May be empty.
  std::function<void(std::int64_t done, std::int64_t most)> progress;
};

/// A step of a system whose work no plan can express. `plan` keeps every rule of a plan and says as
/// much as one can: which tokens are computed when and by whom, what that keeps in memory and what
/// stages send. Its units take `times` instead of the prices of its cost, and its prediction has
/// them. It is simulated and compared, never executed or written as plan.json.
struct SimulationOnlyPlan {
  Plan plan;                        ///< what a plan can say of the step
  UnitTimeOverrides times;          ///< what its F and B take on the system
  std::string unsupported_feature;  ///< what no plan can say, "attention work between stages"
  /// What ranks or stages exchange inside units; absent: what the plan's groups do.
  std::optional<Bytes> exchange = {};
};

/// A plan to execute, why there is none, or a step that is only simulated.
using PlanResult = std::variant<Plan, Infeasible, SimulationOnlyPlan>;

/// The plan of an answer, that of a SimulationOnlyPlan too; null where there is none.
[[nodiscard]] inline const Plan* plan_in(const PlanResult& result) noexcept {
  if (const auto* step = std::get_if<SimulationOnlyPlan>(&result)) return &step->plan;
  return std::get_if<Plan>(&result);
}

/// The plan of a planner's answer, to be written or run; absent where there is none. Throws
/// InvalidInput, with the planner's name, where the system it models does not fit into a plan.
[[nodiscard]] inline std::optional<Plan> take_plan(PlanResult&& result) {
  if (const auto* step = std::get_if<SimulationOnlyPlan>(&result)) {
    throw InvalidInput("planner " + step->plan.planner +
                       " is modelled on the simulator only: a plan has no " +
                       step->unsupported_feature);
  }
  auto* plan = std::get_if<Plan>(&result);
  return plan == nullptr ? std::nullopt : std::optional<Plan>(std::move(*plan));
}

/// A planner's answer and how it came about.
struct PlanOutcome {
  PlanResult result;  ///< the answer
  /// What the planner's own search chose, name to text; where the answer is Infeasible, of the
  /// candidate nearest to fitting. Empty where nothing was searched.
  std::map<std::string, std::string> settings = {};
  /// Candidates and whole plans that were simulated, whether they fitted or not.
  std::int64_t evaluations = 0;
  /// Devices that these simulated, summed: each counts the tp devices of every (dp, pp) that it
  /// simulates. At most `evaluations(request)` times the devices of a step.
  std::int64_t simulated_devices = 0;
  double cpu_seconds = 0;  ///< processor time of all threads of the planner; measured
};

/// The budget of a request in simulated steps: its own, or by its effort and number of samples.
[[nodiscard]] inline std::int64_t evaluations(const PlanRequest& request) noexcept {
  return request.budget.value_or(
      evaluations(request.effort, static_cast<std::int64_t>(request.batch.samples.size())));
}

/// All devices of a step.
[[nodiscard]] inline std::int64_t all_devices(const PlanRequest& request) noexcept {
  return std::int64_t{request.dp} * request.pp * request.tp;
}

/// Laws: pure (equal requests give equal outcomes but for `cpu_seconds`, whatever `threads` is); no
/// more is simulated than the budget allows; the answer is a complete
/// plan that `validate` passes, its prediction filled by simulation (of the system's own times in a
/// SimulationOnlyPlan, whose plan has its ideal time for a lower bound), or Infeasible; a request
/// that breaks a rule of `check_request` throws InvalidInput before any work; `name` is unique
/// among planners and becomes `Plan::planner`.
template <class Type>
concept Planner =
    std::default_initializable<Type> && requires(const Type& planner, const PlanRequest& request) {
      { Type::name } -> std::convertible_to<std::string_view>;
      { Type::description } -> std::convertible_to<std::string_view>;
      { planner.plan(request) } -> std::same_as<PlanOutcome>;
    };
static_assert(!Planner<int>);

/// A planner of a system that moves documents between steps.
/// Laws: `rebatch` is pure and keeps everything of consecutive steps but their batches; each
/// sample of the given batches is in exactly one of those returned, none in an earlier step than
/// before, all by the last; targets go with their samples.
template <class Type>
concept MultiStepPlanner =
    Planner<Type> && requires(const Type& planner, std::vector<PlanRequest> steps) {
      { planner.rebatch(std::move(steps)) } -> std::same_as<std::vector<PlanRequest>>;
    };

/// A planner as data: what lists and command lines need.
struct PlannerInfo {
  std::string_view name;                              ///< unique; what users give and plans carry
  std::string_view description;                       ///< one line
  PlanOutcome (*plan)(const PlanRequest&) = nullptr;  ///< plans one step
  /// What the planner makes of consecutive steps before it plans each; null where it leaves them.
  std::vector<PlanRequest> (*rebatch)(std::vector<PlanRequest>) = nullptr;
  /// Where the planner's steps are SimulationOnlyPlans, as in "with context-parallel ranks"; empty
  /// where they never are.
  std::string_view simulated_only = {};
  /// With up to so many stages steps may fit although a device could not hold all weights and
  /// gradients of its own.
  std::int32_t sharding_stages = 0;
  /// Where the planner deviates against the system that it models, to be said beside its figures;
  /// empty: nowhere.
  std::string_view against = {};
};

/// The outcome of a planner for whoever needs a plan of every step: where effort `fast` finds none
/// and the request gives no budget of its own, that of `normal`. What was spent is of both. Throws
/// what the planner throws.
[[nodiscard]] inline PlanOutcome plan_step(const PlannerInfo& planner, PlanRequest request) {
  PlanOutcome outcome = planner.plan(request);
  const bool lacks = std::holds_alternative<Infeasible>(outcome.result);
  if (!lacks || request.effort != Effort::fast || request.budget) return outcome;
  request.effort = Effort::normal;
  PlanOutcome more = planner.plan(request);
  more.evaluations += outcome.evaluations;
  more.simulated_devices += outcome.simulated_devices;
  more.cpu_seconds += outcome.cpu_seconds;
  return more;
}

/// The entry of a planner in a list.
template <Planner Type>
[[nodiscard]] constexpr PlannerInfo planner_info() noexcept {
  PlannerInfo info;
  info.name = Type::name;
  info.description = Type::description;
  if constexpr (requires { Type::simulated_only; }) info.simulated_only = Type::simulated_only;
  if constexpr (requires { Type::sharding_stages; }) info.sharding_stages = Type::sharding_stages;
  if constexpr (requires { Type::against; }) info.against = Type::against;
  info.plan = [](const PlanRequest& request) { return Type{}.plan(request); };
  if constexpr (MultiStepPlanner<Type>) {
    info.rebatch = [](std::vector<PlanRequest> steps) { return Type{}.rebatch(std::move(steps)); };
  }
  return info;
}

}  // namespace slimpack::planners
