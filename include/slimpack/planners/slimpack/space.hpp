// SPDX-License-Identifier: Apache-2.0
// Which values of each setting are worth trying for a request.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "slimpack/core/int128.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/cost/memory_model.hpp"
#include "slimpack/planners/search/detail/choices.hpp"
#include "slimpack/planners/search/detail/lengths.hpp"
#include "slimpack/planners/search/settings.hpp"
#include "slimpack/planners/slimpack/mode_values.hpp"
#include "slimpack/planners/slimpack/problem.hpp"
#include "slimpack/planners/slimpack/settings.hpp"
#include "slimpack/planners/slimpack/starts.hpp"

namespace slimpack::planners {

/// The position of the number of packs in a point.
inline constexpr std::size_t kUnitsSetting = 2;

namespace detail {

/// Chooses the values of a space, one setting after the other.
class SlimpackSpaceMaker {
 public:
  SlimpackSpaceMaker(const SlimpackProblem& problem, const SlimpackOptions& options, Effort effort)
      : problem_(problem),
        request_(problem.request()),
        effort_(effort),
        options_(options),
        tokens_(total_tokens(request_.batch.samples)),
        longest_(longest_of(request_.batch.samples)),
        unit_costs_(problem) {}

  [[nodiscard]] SlimpackSpace make() {
    const Values<LmHeadPlacement> heads = head_values();
    const Values<std::int64_t> units = unit_values();
    const Values<std::int32_t> chunks = chunk_values(units);
    SlimpackSettings first;
    first.head = heads.values[heads.start];
    first.units = units.values[units.start];
    first.chunks = chunks.values.front();
    layout_.modes = mode_values(problem_, options_, first);
    layout_.unit_values = units.values;
    const bool pipelined = request_.pp > 1;

    layout_.mode =
        add("", &SlimpackSettings::mode, {layout_.modes}, {.ordered = true, .memory = true});
    layout_.head = add("", &SlimpackSettings::head, heads);
    layout_.units = add("units", &SlimpackSettings::units, units, {.ordered = true});
    const auto own_packs = [](const SlimpackSettings& settings) { return !settings.same_packs; };
    layout_.packs = add("same_packs", &SlimpackSettings::same_packs, {packs_values()});
    layout_.balance =
        add("balance", &SlimpackSettings::balance, {balance_values()}, {.ordered = true});
    layout_.chunks =
        add("chunks", &SlimpackSettings::chunks, chunks, {.ordered = true, .shared = true});
    const auto nested = [](const SlimpackSettings& settings) {
      return settings.groups != schedule::GroupRule::disjoint;
    };
    const auto by_threshold = [](const SlimpackSettings& settings) {
      return settings.groups == schedule::GroupRule::threshold;
    };
    layout_.threshold = add(
        "merge_threshold", &SlimpackSettings::cp_threshold_permille, {threshold_values()},
        {.ordered = true, .shared = true, .applies = by_threshold, .neutral = 0}, threshold_text);
    layout_.widest = add("widest_group", &SlimpackSettings::widest_group, {widest_values()},
                         {.shared = true,
                          .applies =
                              [](const SlimpackSettings& settings) {
                                return settings.cp_threshold_permille > 0 ||
                                       settings.groups != schedule::GroupRule::threshold;
                              },
                          .neutral = 0});
    layout_.narrowest =
        add("narrowest_group", &SlimpackSettings::narrowest_group, {narrowest_values()},
            {.ordered = true, .shared = true, .applies = nested, .neutral = 0});
    std::vector<schedule::GroupRule> groups{schedule::GroupRule::threshold};
    if (narrowest_values().size() > 1) {
      groups.insert(groups.end(), {schedule::GroupRule::even, schedule::GroupRule::disjoint});
    }
    layout_.groups = add("groups", &SlimpackSettings::groups, {groups}, {.shared = true});
    // What R runs beside on one stage the few candidates of a fast search should have from the
    // first.
    layout_.order = add("order", &SlimpackSettings::order,
                        {{QueueOrder::long_first, QueueOrder::short_first, QueueOrder::pyramid},
                         pipelined || effort_ != Effort::fast ? std::size_t{0} : std::size_t{1}});
    const Values<std::int32_t> batches = head_batch_values(heads);
    layout_.head_batch = add(
        "head_batch", &SlimpackSettings::head_batch, batches,
        {.ordered = true,
         .applies =
             [](const SlimpackSettings& settings) { return settings.head.head == LmHead::shard; },
         .neutral = batches.start});
    layout_.whole = add("whole_samples", &SlimpackSettings::whole_samples, {whole_values()});
    const std::vector<WeightRule> weights = weight_values();
    std::vector<OrderRule> rules{OrderRule::list};
    if (pipelined && request_.chunks.value_or(1) == 1 && weights.front() == WeightRule::with) {
      rules.push_back(OrderRule::lockstep);
    }
    layout_.rule = add("schedule", &SlimpackSettings::rule, {rules});
    const auto by_list = [](const SlimpackSettings& settings) {
      return settings.rule == OrderRule::list;
    };
    layout_.weights =
        add("weights", &SlimpackSettings::weights, {weights}, {.applies = by_list, .neutral = 0});
    add("ramp", &SlimpackSettings::ramp, {ramp_values()},
        {.ordered = true,
         .applies =
             [](const SlimpackSettings& settings) {
               return !settings.same_packs && !settings.whole_samples;
             },
         .neutral = 0},
        ramp_text);
    const Values<std::int64_t> backward = backward_values();
    add("", &SlimpackSettings::backward_permille, backward,
        {.ordered = true, .applies = own_packs, .neutral = backward.start});
    layout_.devices = add("devices", &SlimpackSettings::devices, device_values(),
                          {.ordered = true, .shared = true});
    std::vector<bool> blocks{false};
    if (options_.consolidation && pipelined && chunks.values.back() > 1) blocks.push_back(true);
    layout_.blocks =
        add("short_blocks", &SlimpackSettings::short_blocks, {blocks},
            {.applies = [](const SlimpackSettings& settings) { return settings.chunks > 1; },
             .neutral = 0});
    std::vector<bool> ends{false};
    if (pipelined && chunks.values.back() > 1 && options_.slicing &&
        2 * tokens_.value < longest_.value * request_.dp * units.values[units.start]) {
      ends.push_back(true);
    }
    layout_.sample_blocks =
        add("sample_blocks", &SlimpackSettings::sample_blocks, {ends},
            {.applies = [](const SlimpackSettings& settings) { return settings.chunks > 1; },
             .neutral = 0});
    // A full block behind which few packs are left suits the few candidates of a fast search best.
    Values<bool> even{{false}};
    if (pipelined && chunks.values.back() > 1) {
      even = {{false, true}, effort_ == Effort::fast ? std::size_t{0} : std::size_t{1}};
    }
    layout_.even_blocks = add("even_blocks", &SlimpackSettings::even_blocks, even,
                              {.applies =
                                   [](const SlimpackSettings& settings) {
                                     return settings.chunks > 1 && !settings.sample_blocks;
                                   },
                               .neutral = 0});
    std::vector<bool> firsts{false};
    if (pipelined && chunks.values.back() > 1) firsts.push_back(true);
    layout_.backward_first =
        add("backward_first", &SlimpackSettings::backward_first, {firsts},
            {.applies =
                 [](const SlimpackSettings& settings) {
                   return settings.chunks > 1 && settings.head.head == LmHead::last;
                 },
             .neutral = 0});
    std::vector<std::int32_t> queues{1};
    if (pipelined) queues.push_back(2);
    add("forward_queue", &SlimpackSettings::forward_queue, {queues},
        {.ordered = true, .applies = by_list, .neutral = 0});
    const Values<std::int64_t> finer = unit_permille_values();
    add("", &SlimpackSettings::units_permille, finer, {.ordered = true, .late = true});
    const std::vector<Tokens> cp_blocks = block_values();
    if (cp_blocks.size() > 1) {
      layout_.cp_block =
          add("share_tokens", &SlimpackSettings::cp_block, {cp_blocks},
              {.shared = true,
               .applies = [](const SlimpackSettings& settings) { return settings.shares(); },
               .neutral = 0,
               .late = !options_.spread});
    }
    layout_.fit_modes = options_.fit_modes;
    layout_.spread = options_.spread;
    layout_.group_blocks = options_.group_blocks && layout_.sample_blocks.size > 1;
    if (options_.fit_modes) add("fit_modes", &SlimpackSettings::fit_modes, {{true}});
    if (options_.spread) add("spread", &SlimpackSettings::spread, {{true}});
    if (options_.group_blocks) add("group_blocks", &SlimpackSettings::group_blocks, {{true}});
    space_.require_that([&request = request_](const SlimpackSettings& settings) {
      // Few packs are no fewer by so little.
      if (settings.units_permille != 1000 && settings.forward_units() == settings.units)
        return false;
      return (settings.rule == OrderRule::list ||
              (settings.chunks == 1 && settings.weights == WeightRule::with)) &&
             leaves_layers(request, settings.chunks, settings.head);
    });
    layout_.many_packs = many_packs(units);
    for (std::size_t i = 0; i <= heads.start; ++i) {
      if (heads.values[i].head == LmHead::last) layout_.last_head = i;
    }
    layout_.chunk_values = chunks.values;
    while (layout_.usual_chunks + 1 < chunks.values.size() &&
           chunks.values[layout_.usual_chunks + 1] <= kUsualChunks) {
      ++layout_.usual_chunks;
    }
    // Chunks of unequal layers wait for each other: one more is better where that makes them equal
    // and leaves two layers each, or packs are so many that more of them cost little.
    const auto alike = [&](std::int32_t each) {
      return request_.model.layers % (std::int64_t{request_.pp} * each) == 0;
    };
    constexpr std::int32_t kMore = kUsualChunks + 1;
    const std::size_t more = layout_.usual_chunks + 1;
    if (options_.equal_chunks && more < chunks.values.size() && chunks.values[more] == kMore &&
        alike(kMore) && !alike(chunks.values[layout_.usual_chunks]) &&
        (std::int64_t{request_.pp} * kMore < request_.model.layers || has_many_samples(request_))) {
      layout_.usual_chunks = more;
    }
    const std::vector<std::int32_t> widest = widest_values();
    layout_.widest_most =
        static_cast<std::size_t>(std::max_element(widest.begin(), widest.end()) - widest.begin());
    const auto pair = std::find(widest.begin(), widest.end(), 2);
    layout_.pair = pair == widest.end() ? 0 : static_cast<std::size_t>(pair - widest.begin());
    SlimpackStarts(problem_, effort_, layout_, unit_costs_, space_).add_all();
    return std::move(space_);
  }

 private:
  /// The values of a setting, and the index of the one at which most searches begin.
  template <class Value>
  struct Values {
    std::vector<Value> values;
    std::size_t start = 0;
  };
  template <class Value>
  using Member = Value SlimpackSettings::*;
  template <class Value, class Text = SettingText>
  SpaceLayout::Setting add(std::string_view name, Member<Value> member,
                           const Values<std::type_identity_t<Value>>& values,
                           const SettingTraits<SlimpackSettings>& traits = {}, Text text = {}) {
    layout_.start.push_back(values.start);
    return {space_.add(name, member, values.values, traits, text), values.values.size()};
  }

  [[nodiscard]] static std::string ramp_text(const schedule::Ramp& ramp) {
    if (ramp == schedule::Ramp{}) return "off";
    return std::to_string(ramp.first_permille) + "+" + std::to_string(ramp.growth_permille);
  }
  [[nodiscard]] static std::string threshold_text(std::int64_t permille) {
    return permille == 0 ? "off" : std::to_string(permille) + "/1000";
  }

  /// The head on the last stage, from fewest layers there to an even part; then sharded.
  [[nodiscard]] Values<LmHeadPlacement> head_values() const {
    const std::int32_t least_chunks = request_.chunks.value_or(1);
    Values<LmHeadPlacement> heads{head_choices(request_, {&least_chunks, 1}, options_.shard_head)};
    const bool shard = !heads.values.empty() && heads.values.back().head == LmHead::shard;
    std::reverse(heads.values.begin(), heads.values.end() - (shard ? 1 : 0));
    heads.start = heads.values.empty() ? 0 : heads.values.size() - 1;
    return heads;
  }
  /// From one to many packs whose H run back to back.
  [[nodiscard]] static Values<std::int32_t> head_batch_values(
      const Values<LmHeadPlacement>& heads) {
    if (heads.values.back().head == LmHead::last) return {{1}};
    return {{1, 2, 4, 8, 16}, 2};
  }
  /// Whether there are so many packs that fill and drain do not count, so that chunks gain nothing.
  [[nodiscard]] bool many_packs(const Values<std::int64_t>& units) const {
    return units.values[units.start] >= kManyFulls * request_.pp;
  }
  static constexpr std::int32_t kUsualChunks = 4;
  /// One, two, four, and those that leave all chunks as many layers.
  [[nodiscard]] Values<std::int32_t> chunk_values(const Values<std::int64_t>& units) const {
    if (request_.chunks) return {{*request_.chunks}};
    Values<std::int32_t> chunks{{1}};
    if (request_.pp == 1 || many_packs(units)) return chunks;
    const std::vector<std::int32_t> even = chunk_choices(request_, 2);
    for (std::int32_t more = 2; more <= 8; ++more) {
      const bool usual = more == 2 || more == kUsualChunks;
      if ((usual || std::find(even.begin(), even.end(), more) != even.end()) &&
          std::int64_t{request_.pp} * more <= request_.model.layers) {
        chunks.values.push_back(more);
      }
    }
    return chunks;
  }
  [[nodiscard]] Values<DeviceOrder> device_values() const {
    if (device_choices(request_).size() == 1) return {{DeviceOrder::ranks}};
    const bool wide = std::int64_t{request_.pp} * request_.tp > request_.cluster.devices_per_node;
    return {{DeviceOrder::stages, DeviceOrder::ranks}, wide ? std::size_t{1} : 0};
  }
  [[nodiscard]] std::vector<std::int64_t> threshold_values() const {
    if (!options_.merging || request_.dp == 1 || request_.max_cp.value_or(2) == 1) return {0};
    return {0, 1000, 200, 50, 25, 12, 6};
  }
  [[nodiscard]] std::vector<bool> whole_values() const {
    if (!options_.slicing) return {true};
    // What is longer than a pack leaves the caches where it is whole.
    const bool cut = request_.pp == 1 && problem_.spills();
    return cut || longest_ <= request_.granularity ? std::vector<bool>{false}
                                                   : std::vector<bool>{false, true};
  }
  /// On one stage nothing waits for a drain.
  [[nodiscard]] std::vector<WeightRule> weight_values() const {
    if (!options_.weights || !problem_.splits()) return {WeightRule::with};
    if (request_.weights == WeightGradients::apart) return {WeightRule::apart};
    if (request_.pp == 1) return {WeightRule::with};
    return {WeightRule::with, WeightRule::tail, WeightRule::apart};
  }
  /// The same packs in both passes have no most number: each long sample begins one.
  [[nodiscard]] std::vector<bool> packs_values() const {
    if (options_.asymmetric && request_.max_units) return {false};
    return options_.asymmetric ? std::vector<bool>{false, true} : std::vector<bool>{true};
  }
  /// The most ranks that may share a sample: the usual number, then every other power of two.
  [[nodiscard]] std::vector<std::int32_t> widest_values() const {
    const std::int32_t most = std::min(request_.dp, request_.max_cp.value_or(request_.dp));
    if (threshold_values().size() == 1) return {1};
    const std::int32_t usual = usual_widest_group(request_);
    std::vector<std::int32_t> widest{usual};
    for (std::int32_t ranks = 2; ranks <= most; ranks *= 2) {
      if (ranks != usual) widest.push_back(ranks);
    }
    if (most != usual && widest.back() != most) widest.push_back(most);
    return widest;
  }
  /// The ranks that share every sample, or every one that is not long: divisors of all ranks.
  [[nodiscard]] std::vector<std::int32_t> narrowest_values() const {
    const std::int32_t most = std::min(request_.dp, request_.max_cp.value_or(request_.dp));
    std::vector<std::int32_t> narrowest{1};
    if (!options_.merging || !options_.consolidation) return narrowest;
    for (std::int32_t ranks = 2; ranks <= most; ++ranks) {
      if (request_.dp % ranks == 0) narrowest.push_back(ranks);
    }
    return narrowest;
  }
  /// CP blocks: small ones, for in a pipeline samples are cut finely; on one stage also those of
  /// which each rank has two of the longest sample, so that attention has fewer runs of queries to
  /// handle one by one.
  [[nodiscard]] std::vector<Tokens> block_values() const {
    std::vector<Tokens> blocks{problem_.frame().memory.cp_block_tokens};
    if (request_.pp > 1 || request_.memory.cp_block_tokens || widest_values().front() == 1) {
      return blocks;
    }
    const auto add = [&](Tokens block) {
      if (std::ranges::find(blocks, block) == blocks.end()) blocks.push_back(block);
    };
    for (const std::int32_t ranks : widest_values()) {
      const std::int64_t halves = 2 * std::int64_t{ranks};
      const Tokens each{(longest_.value + halves - 1) / halves};
      const Tokens tiles =
          (each.value + blocks.front().value - 1) / blocks.front().value * blocks.front();
      add(tiles);
      // Where blocks of whole tiles are longer by much, the rank with the last one has less.
      constexpr std::int64_t kMuch = 50;
      if ((tiles - each).value * kMuch > each.value) add(each);
    }
    if (!options_.spread) return blocks;
    for (Tokens block = 4 * blocks.front(); 4 * block <= longest_; block = 2 * block) add(block);
    return blocks;
  }
  [[nodiscard]] std::vector<PackBalance> balance_values() const {
    if (!options_.consolidation || request_.max_units) return {PackBalance::time};
    return {PackBalance::time, PackBalance::both, PackBalance::tokens};
  }
  [[nodiscard]] Values<std::int64_t> backward_values() const {
    if (!options_.asymmetric || request_.max_units) return {{1000}};
    return {{700, 1000, 1400}, 1};
  }
  [[nodiscard]] std::vector<schedule::Ramp> ramp_values() const {
    std::vector<schedule::Ramp> ramps{{}};
    if (request_.pp > 1 && !request_.max_units && options_.slicing) {
      ramps.insert(ramps.end(), {{250, 150}, {125, 75}, {60, 60}, {30, 50}});
    }
    return ramps;
  }
  /// Numbers of packs around the m that makes the step's time W + (p - 1) W / m + c(m) least: W is
  /// the mean work of a rank, p the stages, c what m units cost by themselves. On one stage without
  /// caches that packs leave, and where memory asks for more, around the fewest packs that fit.
  [[nodiscard]] Values<std::int64_t> unit_values() const {
    const Int128 work =
        (problem_.mean_work(Pass::forward) + problem_.mean_work(Pass::backward)) / kCostScale;
    const std::int64_t root = square_root(Int128{request_.pp - 1} * work /
                                          std::max<std::int64_t>(unit_costs_.each().value, 1));
    std::int64_t all = 0, longest = 1;  // in slices of the granularity
    for (const Tokens length : request_.batch.samples) {
      const std::int64_t slices =
          (length + request_.granularity - Tokens{1}) / request_.granularity;
      all += slices;
      longest = std::max(longest, slices);
    }
    const std::int64_t most = std::max((all + request_.dp - 1) / request_.dp, longest);
    const std::int64_t least =
        std::max<std::int64_t>(1, tokens_.value / (request_.dp * fitting_unit().value));
    std::int64_t middle = request_.pp > 1 ? std::max(root, least) : least;
    if (request_.pp == 1 && problem_.spills()) middle = best_with_caches(least, most, work);
    Values<std::int64_t> units;
    std::int64_t before = 0;
    for (std::size_t step = 0; step < kUnitSteps.size(); ++step) {
      std::int64_t count =
          std::clamp((middle * kUnitSteps[step] + 500) / 1000, std::min(least, most), most);
      if (request_.max_units) count = std::min(count, *request_.max_units);
      if (2 * step + 1 < kUnitSteps.size()) {
        units.start = units.values.size() - (count == before ? 1 : 0);
      }
      if (count != before) units.values.push_back(count);
      before = count;
    }
    return units;
  }
  /// The least number of packs, of some from `least` to `most`, with the shortest time.
  [[nodiscard]] std::int64_t best_with_caches(std::int64_t least, std::int64_t most,
                                              Int128 work) const {
    const auto time = [&](std::int64_t units) {
      return Int128{request_.pp - 1} * work / units + unit_costs_.all(units).value;
    };
    std::int64_t best = least;
    for (std::int64_t units = least; units <= most; units += 1 + units / 16) {
      if (time(units) < time(best)) best = units;
    }
    return best;
  }
  /// Between the numbers of packs: what fits into memory, and costs few launches, may be there.
  [[nodiscard]] Values<std::int64_t> unit_permille_values() const {
    if (request_.max_units) return {{1000}};
    return {{880, 940, 1000, 1067, 1139}, 2};
  }
  /// Thousandths of the middle, each 2^(3/8) times the one before.
  static constexpr std::array<std::int64_t, 17> kUnitSteps{
      125, 162, 210, 273, 354, 459, 595, 771, 1000, 1297, 1682, 2181, 2828, 3668, 4757, 6169, 8000};

  /// The square root, rounded down.
  [[nodiscard]] static std::int64_t square_root(Int128 value) noexcept {
    std::int64_t root = 0;
    for (int bit = 31; bit >= 0; --bit) {
      const std::int64_t more = root + (std::int64_t{1} << bit);
      if (Int128{more} * more <= value) root = more;
    }
    return root;
  }
  /// Tokens of the largest pack of which as many as there are stages fit into memory, everything
  /// recomputed.
  [[nodiscard]] Tokens fitting_unit() const {
    const Plan& frame = problem_.frame();
    const LayerBytes layer =
        layer_bytes(frame.model, frame.memory.gradient_bytes, frame.parallel.tp);
    const std::int64_t layers = most_layers(frame.stages, request_.pp);
    const std::int64_t each = layer.backward_workspace[3] + 6 * layer.boundary +
                              2 * layers * (layer.kept[3] + layer.kv) * request_.pp;
    SlimpackSettings settings;
    const Bytes room = problem_.room(frame, settings);
    return std::max(Tokens{room.value / std::max<std::int64_t>(1, each)}, request_.granularity);
  }

  const SlimpackProblem& problem_;
  const PlanRequest& request_;
  Effort effort_;
  SlimpackOptions options_;
  Tokens tokens_, longest_;
  UnitCosts unit_costs_;
  SlimpackSpace space_;
  SpaceLayout layout_;
};

}  // namespace detail

/// The values of each setting that are worth trying for a request with these ideas, and where
/// searches of an effort begin; the values are the same for all efforts.
[[nodiscard]] inline SlimpackSpace slimpack_space(const SlimpackProblem& problem,
                                                  const SlimpackOptions& options, Effort effort) {
  return detail::SlimpackSpaceMaker(problem, options, effort).make();
}

}  // namespace slimpack::planners
