// SPDX-License-Identifier: Apache-2.0
// From settings to a plan without a schedule: groups, lines, packs.
#pragma once

#include <algorithm>
#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "slimpack/core/int128.hpp"
#include "slimpack/core/parallel_for.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/cost/any_model.hpp"
#include "slimpack/cost/links.hpp"
#include "slimpack/cost/memory_model.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/planners/planner.hpp"
#include "slimpack/planners/search/layout.hpp"
#include "slimpack/planners/slimpack/sampled_workload.hpp"
#include "slimpack/planners/slimpack/sequences.hpp"
#include "slimpack/planners/slimpack/settings.hpp"
#include "slimpack/planners/slimpack/slice_costs.hpp"
#include "slimpack/planners/slimpack/symmetric.hpp"
#include "slimpack/schedule/assign.hpp"
#include "slimpack/schedule/cut.hpp"
#include "slimpack/schedule/schedule_parts.hpp"

namespace slimpack::planners {

/// The devices of all ranks in this order; tensor-parallel devices lie next to each other.
[[nodiscard]] inline std::vector<Placement> place_devices(const Parallel& parallel,
                                                          DeviceOrder order) {
  std::vector<Placement> placement = slimpack::planners::place_devices(parallel);
  if (order == DeviceOrder::ranks) return placement;
  for (Placement& place : placement) {
    place.device = (std::int64_t{place.dp} * parallel.pp + place.pp) * parallel.tp + place.tp;
  }
  return placement;
}

/// Samples of a step dealt to groups, and which ranks are bound together by them.
struct RankAssignment {
  schedule::Assignment assignment;                           // of samples, longest first
  std::vector<std::vector<schedule::QueuedSample>> members;  // by group, longest first
  std::vector<std::vector<std::int32_t>> components;  // ranks that share groups, by lowest rank
  std::vector<std::size_t> component_of;              // by rank
  std::vector<SampledWorkload> sampled;               // by component
  std::size_t hardest = 0;  // the component that is likely to take longest
  std::int32_t widest = 1;  // ranks of the largest group
};

/// Everything about a request that candidates have in common. Thread-safe.
class SlimpackProblem {
 public:
  SlimpackProblem(const PlanRequest& request, std::string_view planner,
                  const SlimpackOptions& options);

  [[nodiscard]] const PlanRequest& request() const noexcept { return request_; }
  [[nodiscard]] const SlimpackOptions& options() const noexcept { return options_; }
  [[nodiscard]] const Plan& frame() const noexcept { return frame_; }
  [[nodiscard]] const AnyModel& model() const noexcept { return model_; }

  /// The ranks' most work in a pass, alone, nothing recomputed: nanoseconds over 2^20.
  [[nodiscard]] Int128 mean_work(Pass pass) const;

  /// Samples dealt as these settings ask for. Kept, because many candidates share it.
  [[nodiscard]] std::shared_ptr<const RankAssignment> assign(
      const SlimpackSettings& settings) const;

  /// The plan of these settings without schedule and prediction; of what one component of ranks is
  /// judged on if `component` is given: then its samples are numbered anew. `settings` are one for
  /// all components or one each; those of one plan agree in head, chunks and order of devices.
  [[nodiscard]] Plan build(const RankAssignment& assigned,
                           std::span<const SlimpackSettings> settings,
                           std::optional<std::size_t> component) const;

  /// Bytes that a device of the fullest stage has for samples.
  [[nodiscard]] Bytes room(const Plan& plan, const SlimpackSettings& settings) const;

  /// A plan with stages, degrees and placement of these settings, without samples.
  [[nodiscard]] Plan outline(const SlimpackSettings& settings) const;

 private:
  [[nodiscard]] PassCosts costs(const Plan& plan, const std::vector<std::int32_t>& group) const;
  [[nodiscard]] RankAssignment assign_now(const SlimpackSettings& settings) const;
  void add_packs(Plan& plan, const QueueSegment& part, const schedule::PackCuts& line, Pass pass,
                 const SlimpackSettings& settings) const;

  PlanRequest request_;
  SlimpackOptions options_;
  AnyModel model_;
  Plan frame_;                              // without samples
  std::vector<std::uint32_t> order_;        // samples, longest first
  std::vector<schedule::SampleNeed> need_;  // in that order, bytes not set
  PassCosts alone_;
  mutable Mutex mutex_;
  mutable std::map<std::tuple<std::int64_t, std::int64_t, std::int64_t, int>,
                   std::shared_ptr<const RankAssignment>>
      assigned_;
};

inline MemorySpec slimpack_memory(const PlanRequest& request) {
  MemorySpec memory = memory_of(request);
  // Finer shares let slices of merged samples be cut finer at equal parts.
  if (!request.memory.cp_block_tokens) memory.cp_block_tokens = Tokens{128};
  return memory;
}

inline SlimpackProblem::SlimpackProblem(const PlanRequest& request, std::string_view planner,
                                        const SlimpackOptions& options)
    : request_(request),
      options_(options),
      model_(make_model(request.cost, request.model, request.cluster, slimpack_memory(request))) {
  const std::vector<Tokens> samples = std::exchange(request_.batch.samples, {});
  PlanRequest bare = request_;
  bare.batch.origin.clear();
  frame_ = plan_frame(bare, planner);
  frame_.sources.clear();
  frame_.memory = slimpack_memory(request_);
  request_.batch.samples = samples;
  order_ = schedule::longest_first(samples.size(),
                                   [&](std::uint32_t sample) { return samples[sample].value; });
  Plan outline = frame_;
  alone_ = costs(outline, {0});
  HeadLoad head;
  head.vocab = std::max<std::int64_t>(1, request_.model.vocab / request_.pp);
  head.tensor_parallel = request_.tp;
  head.tile = frame_.memory.head_tile;
  head.link = head.tensor_link = request_.cluster.inside;
  const StageLoad stage;
  const std::int64_t head_token = CostProbe(model_, stage, 1).head_token(head);
  Int128 total = 0;
  const auto work = [&](Tokens length) {
    return alone_.forward.slice({}, length) + alone_.backward[0].slice({}, length) +
           Int128{length.value} * head_token;
  };
  for (const Tokens length : samples) total += work(length);
  int shift = 0;
  while (total >> shift >= Int128{1} << 58) ++shift;
  need_.reserve(samples.size());
  for (const std::uint32_t sample : order_) {
    need_.push_back({static_cast<std::int64_t>(work(samples[sample]) >> shift) + 1, Bytes{}});
  }
}

inline PassCosts SlimpackProblem::costs(const Plan& plan,
                                        const std::vector<std::int32_t>& group) const {
  StageLoad stage;
  stage.layers = most_layers(plan.stages, plan.parallel.pp);
  stage.tensor_parallel = plan.parallel.tp;
  const Links links(plan);
  stage.tensor_link = links.tensor(group.front(), 0);
  stage.exchange_link = links.ranks(group, 0);
  return CostProbe(model_, stage, static_cast<std::int64_t>(group.size())).passes();
}

inline Int128 SlimpackProblem::mean_work(Pass pass) const {
  const schedule::SliceCost& cost = pass == Pass::forward ? alone_.forward : alone_.backward[0];
  Int128 sum = 0;
  for (const Tokens length : request_.batch.samples) sum += cost.slice({}, length);
  return sum / request_.dp;
}

inline Plan SlimpackProblem::outline(const SlimpackSettings& settings) const {
  Plan plan = frame_;
  plan.parallel.chunks = settings.chunks;
  plan.parallel.head = settings.head.place.head;
  plan.stages = spread_layers(request_.model.layers, virtual_stages_of(plan),
                              settings.head.place.fewer_last_layers,
                              settings.head.place.head == LmHead::last);
  plan.placement = place_devices(plan.parallel, settings.devices);
  if (settings.chunks > 1 && settings.cp_threshold_permille > 0) {
    // Where ranks share packs, no more than two windows of them pass chunk after chunk together.
    const schedule::ListOptions list;
    plan.max_in_flight = std::max(plan.max_in_flight, (list.block(request_.pp) + 1) / 2);
  }
  return plan;
}

inline Bytes SlimpackProblem::room(const Plan& plan, const SlimpackSettings& settings) const {
  const LayerBytes layer = layer_bytes(plan.model, plan.memory.gradient_bytes, plan.parallel.tp);
  Bytes always;
  for (std::int32_t pp = 0; pp < plan.parallel.pp; ++pp) {
    always = std::max(always, static_bytes(plan, pp).total());
  }
  const Bytes available = plan.memory.capacity - plan.memory.reserved - always;
  Tokens tokens;
  for (const Tokens length : request_.batch.samples) tokens += length;
  const std::int64_t unit =
      tokens.value / (std::int64_t{request_.dp} * std::max<std::int64_t>(1, settings.units)) + 1;
  const auto mode = static_cast<std::size_t>(settings.mode.most);
  const std::int64_t layers = most_layers(plan.stages, plan.parallel.pp);
  const Bytes slack{unit * (6 * layer.boundary + layer.backward_workspace[mode] +
                            2 * layers * (layer.kept[mode] + layer.kv))};
  return std::max(available - slack, Bytes{available.value / 2});
}

inline std::shared_ptr<const RankAssignment> SlimpackProblem::assign(
    const SlimpackSettings& settings) const {
  const bool merging = settings.cp_threshold_permille > 0;
  const std::tuple key{
      settings.cp_threshold_permille,
      merging
          ? static_cast<std::int64_t>(settings.mode.lean) * 4 +
                static_cast<std::int64_t>(settings.mode.most) +
                16 * (settings.mode.of(Tokens::max()) == settings.mode.most
                          ? 0
                          : settings.mode.limit[static_cast<std::size_t>(settings.mode.most)].value)
          : 0,
      merging ? settings.units * 64 + settings.chunks : 0,
      merging ? static_cast<int>(settings.devices) * 8 + settings.head.place.fewer_last_layers : 0};
  const Lock lock(mutex_);
  auto& found = assigned_[key];
  if (!found) found = std::make_shared<const RankAssignment>(assign_now(settings));
  return found;
}

inline RankAssignment SlimpackProblem::assign_now(const SlimpackSettings& settings) const {
  const std::vector<Tokens>& lengths = request_.batch.samples;
  schedule::AssignRules rules;
  rules.ranks = request_.dp;
  std::vector<schedule::SampleNeed> needs = need_;
  if (settings.cp_threshold_permille > 0) {
    const Plan plan = outline(settings);
    // Beyond a node the exchange is no longer cheap.
    const auto near = static_cast<std::int32_t>(
        std::clamp<std::int64_t>(request_.cluster.devices_per_node / request_.tp, 2, request_.dp));
    rules.max_cp = request_.max_cp.value_or(near);
    rules.threshold_permille = settings.cp_threshold_permille;
    // The more is merged by time, the less of a device's room one sample may take.
    const std::int64_t percent =
        std::clamp<std::int64_t>(30 + settings.cp_threshold_permille * 5 / 4, 30, 100);
    rules.room = std::max(Bytes{room(plan, settings).value / 100 * percent}, Bytes{1});
    for (std::int32_t dp = 0; dp < request_.dp; ++dp) {
      const std::size_t i = static_cast<std::size_t>(dp) * static_cast<std::size_t>(request_.pp) *
                            static_cast<std::size_t>(request_.tp);
      rules.node.push_back(plan.placement[i].device / request_.cluster.devices_per_node);
    }
    const LayerBytes layer = layer_bytes(plan.model, plan.memory.gradient_bytes, plan.parallel.tp);
    const std::int64_t layers = most_layers(plan.stages, plan.parallel.pp);
    for (std::size_t i = 0; i < needs.size(); ++i) {
      const Tokens length = lengths[order_[i]];
      needs[i].bytes = {length.value * (layers * resident_bytes(layer, settings.mode.of(length)) +
                                        2 * layer.boundary)};
    }
  }
  RankAssignment assigned;
  assigned.assignment = schedule::assign_samples(needs, rules);
  const schedule::Assignment& assignment = assigned.assignment;
  assigned.members.resize(assignment.groups.size());
  for (std::size_t i = 0; i < order_.size(); ++i) {
    assigned.members[index(assignment.sample_group[i])].push_back(
        {static_cast<SampleId>(order_[i]), lengths[order_[i]]});
  }
  std::vector<std::int32_t> component(static_cast<std::size_t>(request_.dp));
  std::iota(component.begin(), component.end(), 0);
  for (const auto& group : assignment.groups) {
    assigned.widest = std::max(assigned.widest, static_cast<std::int32_t>(group.size()));
    const std::int32_t to = component[static_cast<std::size_t>(group.front())];
    for (const std::int32_t rank : group) {
      const std::int32_t from = component[static_cast<std::size_t>(rank)];
      std::replace(component.begin(), component.end(), std::max(from, to), std::min(from, to));
    }
  }
  for (std::int32_t first = 0; first < request_.dp; ++first) {
    std::vector<std::int32_t> ranks;
    for (std::int32_t rank = first; rank < request_.dp; ++rank) {
      if (component[static_cast<std::size_t>(rank)] == first) ranks.push_back(rank);
    }
    if (!ranks.empty()) assigned.components.push_back(std::move(ranks));
  }
  assigned.component_of.resize(static_cast<std::size_t>(request_.dp));
  for (std::size_t i = 0; i < assigned.components.size(); ++i) {
    for (const std::int32_t rank : assigned.components[i]) {
      assigned.component_of[static_cast<std::size_t>(rank)] = i;
    }
  }
  assigned.sampled = sample_workload(assigned.assignment, assigned.members, need_,
                                     assigned.component_of, assigned.components.size());
  // Most ranks have most to wait for; of equals, the longest sample that a rank holds alone asks
  // for most memory, unless a rank has much more to do than others.
  struct Hardship {
    std::size_t ranks = 0;
    std::int64_t excess = 0, longest = 0, load = 0;
    auto operator<=>(const Hardship&) const = default;
  };
  const std::int64_t load =
      *std::max_element(assignment.load.begin(), assignment.load.end()) / 50 * 49;
  Hardship most;
  for (std::size_t i = 0; i < assigned.components.size(); ++i) {
    Hardship here{assigned.components[i].size(), 0, 0, 0};
    for (const std::int32_t rank : assigned.components[i]) {
      const auto& members = assigned.members[static_cast<std::size_t>(rank)];
      if (!members.empty()) here.longest = std::max(here.longest, members.front().length.value);
      here.load = std::max(here.load, assignment.load[static_cast<std::size_t>(rank)]);
    }
    here.excess = here.load > load ? 1 : 0;
    if (most < here) {
      most = here;
      assigned.hardest = i;
    }
  }
  return assigned;
}

/// The exchange with fewer bytes, and of equals queries.
[[nodiscard]] inline RingMode cheaper_exchange(const Slice& slice, Pass pass,
                                               const ModelShape& model,
                                               std::int64_t gradient_bytes) {
  const std::int64_t element = model.bytes_per_element;
  const std::int64_t log_sum = model.heads * model.statistic_bytes();
  std::int64_t keys = 2 * model.key_width() * element;
  std::int64_t queries = 2 * model.query_width() * element + log_sum;
  if (pass == Pass::backward) {
    keys += 2 * model.key_width() * gradient_bytes;
    queries += model.query_width() * gradient_bytes + log_sum;
  }
  const Int128 by_keys = Int128{slice.end.value} * keys;
  return by_keys < Int128{slice.length().value} * queries ? RingMode::pass_kv : RingMode::pass_q;
}

inline void SlimpackProblem::add_packs(Plan& plan, const QueueSegment& part,
                                       const schedule::PackCuts& line, Pass pass,
                                       const SlimpackSettings& settings) const {
  const bool in_cp_group = plan.groups[index(part.group)].size() > 1;
  for (std::size_t i = 0; i < line.packs(); ++i) {
    const auto slices = line.pack(i);
    MicroPack pack;
    pack.pass = pass;
    pack.group = part.group;
    pack.slices.assign(slices.begin(), slices.end());
    for (const Slice& slice : pack.slices) {
      if (pass == Pass::backward) {
        pack.recompute =
            std::max(pack.recompute, settings.mode.of(plan.samples[index(slice.sample)]));
      }
      if (in_cp_group) {
        pack.exchange.push_back(
            cheaper_exchange(slice, pass, plan.model, plan.memory.gradient_bytes));
      }
    }
    plan.micropacks.push_back(std::move(pack));
  }
}

/// Packs of a part with so much of the `most` work of a rank, which is worth `full` of them.
[[nodiscard]] inline std::int64_t part_units(Int128 work, Int128 most, std::int64_t full) {
  if (most == 0) return 1;
  return std::max<std::int64_t>(1,
                                static_cast<std::int64_t>((2 * work * full + most) / (2 * most)));
}

inline Plan SlimpackProblem::build(const RankAssignment& assigned,
                                   std::span<const SlimpackSettings> settings,
                                   std::optional<std::size_t> component) const {
  Plan plan = outline(settings.front());
  plan.groups = assigned.assignment.groups;
  plan.parallel.max_cp = request_.max_cp.value_or(assigned.widest);
  if (!options_.merging) plan.parallel.max_cp = 1;
  const auto component_of = [&](std::size_t group) {
    return assigned.component_of[static_cast<std::size_t>(plan.groups[group].front())];
  };
  const auto settings_of = [&](std::size_t group) -> const SlimpackSettings& {
    return settings[settings.size() == 1 ? 0 : component_of(group)];
  };
  std::vector<std::vector<schedule::QueuedSample>> members =
      component ? assigned.sampled[*component].members : assigned.members;
  if (component) {
    for (std::size_t group = 0; group < members.size(); ++group) {
      for (schedule::QueuedSample& sample : members[group]) {
        sample.id = static_cast<SampleId>(plan.samples.size());
        plan.samples.push_back(sample.length);
        plan.sample_group.push_back(static_cast<GroupId>(group));
      }
    }
  } else {
    plan.samples = request_.batch.samples;
    plan.origin = request_.batch.origin;
    plan.sources = request_.sources;
    plan.sample_group.resize(plan.samples.size());
    for (std::size_t i = 0; i < order_.size(); ++i) {
      plan.sample_group[order_[i]] = assigned.assignment.sample_group[i];
    }
  }

  std::vector<QueueOrder> orders;
  for (std::size_t group = 0; group < members.size(); ++group) {
    orders.push_back(settings_of(group).order);
  }
  const std::vector<QueueSegment> parts = queue_segments(plan.groups, members, orders);
  std::map<std::size_t, PassCosts> by_width;
  for (const QueueSegment& part : parts) {
    const auto& group = plan.groups[index(part.group)];
    if (!by_width.contains(group.size())) by_width[group.size()] = costs(plan, group);
  }
  // By pass and part, and of each component's fullest rank.
  std::array<std::vector<Int128>, 2> work, rank_work, most;
  for (std::size_t pass = 0; pass < 2; ++pass) {
    work[pass].resize(parts.size());
    rank_work[pass].resize(static_cast<std::size_t>(request_.dp));
    most[pass].resize(assigned.components.size());
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::size_t number = index(parts[i].group);
    const auto& group = plan.groups[number];
    const PassCosts& cost = by_width[group.size()];
    for (const schedule::QueuedSample& sample : parts[i].samples) {
      const auto mode = static_cast<std::size_t>(settings_of(number).mode.of(sample.length));
      work[0][i] += cost.forward.slice({}, sample.length);
      work[1][i] += cost.backward[mode].slice({}, sample.length);
    }
    for (std::size_t pass = 0; pass < 2; ++pass) {
      for (const std::int32_t rank : group) {
        Int128& sum = rank_work[pass][static_cast<std::size_t>(rank)];
        sum += work[pass][i];
        most[pass][component_of(number)] = std::max(most[pass][component_of(number)], sum);
      }
    }
  }
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    const auto side = static_cast<std::size_t>(pass);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const QueueSegment& part = parts[i];
      const std::size_t number = index(part.group);
      const SlimpackSettings& wanted = settings_of(number);
      const auto width = static_cast<std::int64_t>(plan.groups[number].size());
      const PassCosts& cost = by_width[plan.groups[number].size()];
      schedule::CutRules rules;
      rules.granularity = plan.parallel.granularity;
      if (width > 1) {
        // Every rank has as many tokens of each slice where slices end at whole rounds of shares.
        rules.granularity =
            rules.granularity *
            (std::lcm(rules.granularity.value, plan.memory.cp_block_tokens.value * width) /
             rules.granularity.value);
      }
      rules.whole = options_.slicing ? Tokens{} : Tokens::max();
      // Both ends of both lines grow alike: then every stage has as much to do at a time.
      if (part.first) rules.front = wanted.ramp;
      if (part.last) rules.back = wanted.ramp;
      const std::size_t counted = options_.asymmetric ? side : 0;
      std::int64_t full =
          counted == 0 ? wanted.units
                       : std::max<std::int64_t>(1, wanted.units * wanted.backward_permille / 1000);
      if (component) full = assigned.sampled[*component].part_of(full);
      rules.units = part_units(work[counted][i], most[counted][component_of(number)], full);
      if (request_.max_units) {
        rules.front = rules.back = {};
        rules.units = std::max<std::int64_t>(
            1, std::min(rules.units, *request_.max_units / (part.slot == 1 ? 1 : 2)));
      }
      const schedule::SliceCost& back = cost.backward[static_cast<std::size_t>(wanted.mode.most)];
      if (options_.asymmetric) {
        const schedule::SliceCost& slice = pass == Pass::forward ? cost.forward : back;
        add_packs(plan, part, schedule::cut_packs(part.samples, pass, slice, rules), pass, wanted);
        continue;
      }
      const schedule::SliceCost both{cost.forward.per_slice + back.per_slice,
                                     cost.forward.per_token + back.per_token,
                                     cost.forward.per_pair2 + back.per_pair2};
      const SymmetricPacks packs = pack_symmetrically(part.samples, both, rules.units, rules);
      add_packs(plan, part, packs.line(pass), pass, wanted);
    }
  }
  return plan;
}

}  // namespace slimpack::planners
