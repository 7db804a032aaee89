// SPDX-License-Identifier: Apache-2.0
// Phase 1: samples to data-parallel ranks by time, long ones to groups of ranks.
#pragma once

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "slimpack/core/parallel_for.hpp"
#include "slimpack/core/union_find.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/cost/memory_model.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/planners/slimpack/problem.hpp"
#include "slimpack/planners/slimpack/sampled_workload.hpp"
#include "slimpack/planners/slimpack/settings.hpp"
#include "slimpack/planners/slimpack/slice_costs.hpp"
#include "slimpack/schedule/assign.hpp"
#include "slimpack/schedule/cut.hpp"

namespace slimpack::planners {

/// Samples of a step assigned to CP groups, and the rank components that these groups join.
struct RankAssignment {
  schedule::Assignment assignment;                           ///< of samples, longest first
  std::vector<std::vector<schedule::QueuedSample>> members;  ///< by group, longest first
  /// Ranks of each rank component, the components by their lowest rank.
  std::vector<std::vector<std::int32_t>> components;
  std::vector<std::size_t> component_of;  ///< of each rank: index in `components`
  std::vector<SampledWorkload> sampled;   ///< by component
  std::size_t hardest = 0;                ///< rank component that is likely to take longest
  std::int32_t widest = 1;                ///< ranks of the largest group
};

namespace detail {

/// What ranks may share, and where they lie: rules for settings with which ranks share samples.
[[nodiscard]] inline schedule::AssignRules sharing_rules(const SlimpackProblem& problem,
                                                         const Plan& plan,
                                                         const SlimpackSettings& settings) {
  const PlanRequest& request = problem.request();
  const std::int64_t node_devices = request.cluster.devices_per_node;
  schedule::AssignRules rules;
  rules.ranks = request.dp;
  rules.min_cp = settings.narrowest_group;
  rules.groups = settings.groups;
  const bool by_threshold = settings.groups == schedule::GroupRule::threshold;
  rules.max_cp = settings.cp_threshold_permille > 0 || !by_threshold
                     ? std::max(settings.widest_group, settings.narrowest_group)
                     : settings.narrowest_group;
  rules.threshold_permille = std::max<std::int64_t>(1, settings.cp_threshold_permille);
  if (settings.groups == schedule::GroupRule::even) {
    rules.room = {SlimpackProblem::free_bytes(plan).value / 100 * 95};
  } else {
    // The more is shared by time, the less of a device's room one sample may take.
    const std::int64_t percent =
        by_threshold
            ? std::clamp<std::int64_t>(30 + settings.cp_threshold_permille * 5 / 4, 30, 100)
            : 100;
    rules.room = std::max(Bytes{problem.room(plan, settings).value / 100 * percent}, Bytes{1});
  }
  for (std::int32_t dp = 0; dp < request.dp; ++dp) {
    const std::size_t first = device_index(plan, dp, 0) * static_cast<std::size_t>(request.tp);
    rules.node.push_back(plan.placement[first].device / node_devices);
  }
  return rules;
}

/// Whether ranks share nothing and all samples recompute alike: then recomputation, which is
/// linear, hardly changes what is balanced, and one assignment does for all modes.
[[nodiscard]] inline bool recomputes_alike(const SlimpackSettings& settings) {
  const ModeChoice& mode = settings.mode;
  return !settings.shares() && (mode.most == mode.lean || mode.lean_permille > 0);
}

/// Sets the bytes of samples, longest first, that stay on a device until their backward passes.
inline void add_bytes(std::vector<schedule::SampleNeed>& needs, const SlimpackProblem& problem,
                      const Plan& plan, const SlimpackSettings& settings) {
  const LayerBytes layer = layer_bytes(plan.model, plan.memory.gradient_bytes, plan.parallel.tp);
  const std::int64_t layers = most_layers(plan.stages, plan.parallel.pp);
  // Even ranks may be worth a sample that nearly fills them; in one pack it adds up no gradients of
  // keys and values.
  const std::int64_t spared = settings.groups == schedule::GroupRule::even ? layer.kv_gradient : 0;
  for (std::size_t i = 0; i < needs.size(); ++i) {
    const Tokens length = problem.lengths()[i];
    needs[i].bytes = {
        length.value *
        (layers * (resident_bytes(layer, settings.mode, length) - spared) + 2 * layer.boundary)};
  }
}

/// Finds the components of ranks that share groups.
inline void find_components(RankAssignment& assigned, std::int32_t dp) {
  UnionFind ranks(static_cast<std::size_t>(dp));
  for (const auto& group : assigned.assignment.groups) {
    assigned.widest = std::max(assigned.widest, static_cast<std::int32_t>(group.size()));
    for (const std::int32_t rank : group) {
      ranks.join(static_cast<std::size_t>(group.front()), static_cast<std::size_t>(rank));
    }
  }
  assigned.component_of = ranks.numbered();
  for (std::int32_t rank = 0; rank < dp; ++rank) {
    const std::size_t component = assigned.component_of[static_cast<std::size_t>(rank)];
    if (component == assigned.components.size()) assigned.components.emplace_back();
    assigned.components[component].push_back(rank);
  }
}

/// The component with most ranks, which have most to wait for. Of equal ones that with a rank whose
/// load is far above the others', then that with the longest sample on one rank, which asks for
/// most memory, then that with most load; of equals the first.
[[nodiscard]] inline std::size_t hardest_component(const RankAssignment& assigned) {
  struct Hardship {
    std::size_t ranks = 0;
    bool overloaded = false;
    std::int64_t longest = 0, load = 0;
    auto operator<=>(const Hardship&) const = default;
  };
  const std::vector<std::int64_t>& load = assigned.assignment.load;
  const std::int64_t far_above = *std::max_element(load.begin(), load.end()) / 50 * 49;
  std::size_t hardest = 0;
  Hardship most;
  for (std::size_t i = 0; i < assigned.components.size(); ++i) {
    Hardship here{assigned.components[i].size(), false, 0, 0};
    for (const std::int32_t dp : assigned.components[i]) {
      const auto rank = static_cast<std::size_t>(dp);
      const auto& members = assigned.members[rank];
      if (!members.empty()) here.longest = std::max(here.longest, members.front().length.value);
      here.load = std::max(here.load, load[rank]);
    }
    here.overloaded = here.load > far_above;
    if (most < here) {
      most = here;
      hardest = i;
    }
  }
  return hardest;
}

}  // namespace detail

/// Components beside the hardest that may lack memory or end later than it does: that with the
/// sample which keeps most bytes on a device, of equal ones with most load, and that with most
/// load; where none of these is a rank alone, that with most load of those, for what is good for
/// ranks that share samples may not be for one that shares none. The first of equals, each once.
/// O(samples).
[[nodiscard]] inline std::vector<std::size_t> witnesses_of(const SlimpackProblem& problem,
                                                           const RankAssignment& assigned,
                                                           const SlimpackSettings& settings) {
  const Plan& frame = problem.frame();
  const LayerBytes layer = layer_bytes(frame.model, frame.memory.gradient_bytes, frame.parallel.tp);
  std::vector<std::int64_t> fullest(assigned.components.size()), load(fullest);
  for (std::size_t group = 0; group < assigned.members.size(); ++group) {
    const auto& ranks = assigned.assignment.groups[group];
    const std::size_t at = assigned.component_of[static_cast<std::size_t>(ranks.front())];
    for (const schedule::QueuedSample& sample : assigned.members[group]) {
      const std::int64_t kept =
          sample.length.value * resident_bytes(layer, settings.mode, sample.length);
      fullest[at] = std::max(fullest[at], kept / static_cast<std::int64_t>(ranks.size()));
    }
    for (const std::int32_t rank : ranks) {
      load[at] = std::max(load[at], assigned.assignment.load[static_cast<std::size_t>(rank)]);
    }
  }
  std::vector<std::size_t> witnesses;
  const auto alone = [&](std::size_t i) { return assigned.components[i].size() == 1; };
  const auto add = [&](const auto& hardship, bool any = true) {
    std::size_t most = assigned.hardest;
    for (std::size_t i = 0; i < fullest.size(); ++i) {
      if (i == assigned.hardest || (!any && !alone(i))) continue;
      if (most == assigned.hardest || hardship(most) < hardship(i)) most = i;
    }
    if (most != assigned.hardest && std::count(witnesses.begin(), witnesses.end(), most) == 0) {
      witnesses.push_back(most);
    }
  };
  add([&](std::size_t i) { return std::pair(fullest[i], load[i]); });
  const auto by_load = [&](std::size_t i) { return load[i]; };
  add(by_load);
  if (!alone(assigned.hardest) && std::none_of(witnesses.begin(), witnesses.end(), alone)) {
    add(by_load, false);
  }
  return witnesses;
}

/// Assigns the samples of a step as these settings ask for; `besides` as in `AssignRules`.
[[nodiscard]] inline RankAssignment assign_ranks(const SlimpackProblem& problem,
                                                 const SlimpackSettings& settings,
                                                 const std::vector<std::int64_t>& besides = {}) {
  schedule::AssignRules rules;
  rules.ranks = problem.request().dp;
  const bool alike = detail::recomputes_alike(settings);
  std::vector<schedule::SampleNeed> own;
  if (!alike) own = problem.needs(settings.mode);
  const std::vector<schedule::SampleNeed>& needs = alike ? problem.needs() : own;
  std::map<std::int32_t, PassCosts> costs;  // by ranks of a group
  if (settings.shares()) {
    const Plan plan = problem.outline(settings);
    rules = detail::sharing_rules(problem, plan, settings);
    detail::add_bytes(own, problem, plan, settings);
    rules.part = [&problem, &settings, &costs, plan](std::size_t sample, std::int32_t ranks) {
      auto found = costs.find(ranks);
      if (found == costs.end()) {
        std::vector<std::int32_t> group(static_cast<std::size_t>(ranks));
        std::iota(group.begin(), group.end(), 0);
        found = costs.emplace(ranks, problem.costs(plan, group)).first;
      }
      return problem.part(problem.lengths()[sample], settings.mode, found->second, ranks,
                          plan.memory.cp_block_tokens, ranks > settings.narrowest_group,
                          settings.spread);
    };
  }
  rules.besides = besides;
  RankAssignment assigned;
  assigned.assignment = schedule::assign_samples(needs, rules);
  assigned.members.resize(assigned.assignment.groups.size());
  for (std::size_t i = 0; i < needs.size(); ++i) {
    assigned.members[index(assigned.assignment.sample_group[i])].push_back(
        {static_cast<SampleId>(problem.order()[i]), problem.lengths()[i]});
  }
  detail::find_components(assigned, rules.ranks);
  assigned.sampled = sample_workload(assigned.assignment, assigned.members, needs,
                                     assigned.component_of, assigned.components.size());
  assigned.hardest = detail::hardest_component(assigned);
  return assigned;
}

/// The assignments of all candidates so far: many candidates have the same. Thread-safe.
class AssignmentCache {
 public:
  /// An empty cache for one request; the problem must outlive it.
  explicit AssignmentCache(const SlimpackProblem& problem) : problem_(problem) {}

  /// The assignment of these settings; `besides` as in `AssignRules`.
  [[nodiscard]] std::shared_ptr<const RankAssignment> operator()(
      const SlimpackSettings& settings, const std::vector<std::int64_t>& besides = {}) const {
    const Lock lock(mutex_);
    auto& found = assigned_[{Key(settings), besides}];
    if (!found) {
      found = std::make_shared<const RankAssignment>(assign_ranks(problem_, settings, besides));
    }
    return found;
  }

 private:
  /// The settings that an assignment depends on.
  struct Key {
    explicit Key(const SlimpackSettings& settings) {
      if (detail::recomputes_alike(settings)) return;
      limits = settings.mode.limit;
      most = settings.mode.most;
      lean = settings.mode.lean;
      lean_permille = settings.mode.lean_permille;
      early = settings.mode.early;
      first = settings.mode.first;
      if (!settings.shares()) return;
      threshold_permille = settings.cp_threshold_permille;
      widest_group = settings.widest_group;
      groups = settings.groups;
      cp_block = settings.cp_block;
      spread = settings.spread;
      narrowest_group = settings.narrowest_group;
      units = settings.forward_units();
      chunks = settings.chunks;
      devices = settings.devices;
      fewer_last_layers = settings.head.fewer_last_layers;
    }
    std::int64_t threshold_permille = 0;
    std::int32_t widest_group = 0, narrowest_group = 0;
    schedule::GroupRule groups{};
    Tokens cp_block;
    bool spread = false;
    Recompute most{}, lean{};
    decltype(ModeChoice::limit) limits{};
    std::int64_t lean_permille = 0;
    Tokens early;
    Recompute first{};
    std::int64_t units = 0;
    std::int32_t chunks = 0;
    DeviceOrder devices{};
    std::int32_t fewer_last_layers = 0;
    auto operator<=>(const Key&) const = default;
  };

  const SlimpackProblem& problem_;
  mutable Mutex mutex_;
  mutable std::map<std::pair<Key, std::vector<std::int64_t>>, std::shared_ptr<const RankAssignment>>
      assigned_;
};

}  // namespace slimpack::planners
