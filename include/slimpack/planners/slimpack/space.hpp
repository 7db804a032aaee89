// SPDX-License-Identifier: Apache-2.0
// Which values of each setting are worth trying for a request, and where to begin.
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
#include "slimpack/planners/slimpack/problem.hpp"
#include "slimpack/planners/slimpack/settings.hpp"

namespace slimpack::planners {

/// The settings with the values that are tried, and where searches begin.
using SlimpackSpace = SettingSpace<SlimpackSettings>;

/// The most ranks of a group that is tried first: those of a node, beyond which the exchange is no
/// longer cheap, as far as the request allows them.
[[nodiscard]] inline std::int32_t usual_widest_group(const PlanRequest& request) {
  const std::int32_t most = std::min(request.dp, request.max_cp.value_or(request.dp));
  const std::int64_t near =
      std::max<std::int64_t>(2, request.cluster.devices_per_node / request.tp);
  return static_cast<std::int32_t>(std::min<std::int64_t>(near, most));
}

/// The position of the number of packs in a point.
inline constexpr std::size_t kUnitsSetting = 2;

namespace detail {

/// Chooses the values of a space, one setting after the other.
class SlimpackSpaceMaker {
 public:
  SlimpackSpaceMaker(const SlimpackProblem& problem, Effort effort)
      : problem_(problem),
        request_(problem.request()),
        effort_(effort),
        options_(problem.options()),
        tokens_(total_tokens(request_.batch.samples)),
        longest_(longest_of(request_.batch.samples)) {}

  [[nodiscard]] SlimpackSpace make() {
    const Values<LmHeadChoice> heads = head_values();
    const Values<std::int64_t> units = unit_values();
    const Values<std::int32_t> chunks = chunk_values(units);
    SlimpackSettings first;
    first.head = heads.values[heads.start];
    first.units = units.values[units.start];
    first.chunks = chunks.values.front();
    modes_ = mode_values(first);
    units_values_ = units.values;
    const bool pipelined = request_.pp > 1;

    mode_ = add("", &SlimpackSettings::mode, {modes_}, {.ordered = true, .memory = true});
    head_ = add("", &SlimpackSettings::head, heads, {.ordered = true});
    units_ = add("units", &SlimpackSettings::units, units, {.ordered = true});
    const auto own_packs = [](const SlimpackSettings& settings) { return !settings.same_packs; };
    packs_ = add("same_packs", &SlimpackSettings::same_packs, {packs_values()});
    add("ramp", &SlimpackSettings::ramp, {ramp_values()},
        {.ordered = true, .applies = own_packs, .neutral = 0}, ramp_text);
    threshold_ = add("merge_threshold", &SlimpackSettings::cp_threshold_permille,
                     {threshold_values()}, {.ordered = true, .shared = true}, threshold_text);
    widest_ = add("widest_group", &SlimpackSettings::widest_group, {widest_values()},
                  {.shared = true,
                   .applies = [](const SlimpackSettings& settings) { return settings.shares(); },
                   .neutral = 0});
    order_ = add("order", &SlimpackSettings::order,
                 {{QueueOrder::long_first, QueueOrder::short_first, QueueOrder::pyramid}});
    chunks_ = add("chunks", &SlimpackSettings::chunks, chunks, {.ordered = true, .shared = true});
    devices_ = add("devices", &SlimpackSettings::devices, device_values(),
                   {.ordered = true, .shared = true});
    const Values<std::int64_t> backward = backward_values();
    add("", &SlimpackSettings::backward_permille, backward,
        {.ordered = true, .applies = own_packs, .neutral = backward.start});
    std::vector<OrderRule> rules{OrderRule::list};
    if (pipelined && request_.chunks.value_or(1) == 1) rules.push_back(OrderRule::lockstep);
    rule_ = add("schedule", &SlimpackSettings::rule, {rules});
    std::vector<std::int32_t> queues{1};
    if (pipelined) queues.push_back(2);
    add("forward_queue", &SlimpackSettings::forward_queue, {queues},
        {.ordered = true,
         .applies =
             [](const SlimpackSettings& settings) { return settings.rule == OrderRule::list; },
         .neutral = 0});
    space_.require_that([&request = request_](const SlimpackSettings& settings) {
      return (settings.rule == OrderRule::list || settings.chunks == 1) &&
             leaves_layers(request, settings.chunks, settings.head.place);
    });
    many_packs_ = many_packs(units);
    heads_start_ = heads.start;
    last_head_ = heads.values.front().place.head == LmHead::last;
    while (last_head_ && last_head_start_ + 1 <= heads.start &&
           heads.values[last_head_start_ + 1].place.head == LmHead::last) {
      ++last_head_start_;
    }
    starts();
    return std::move(space_);
  }

 private:
  /// The values of a setting, and the index of the one at which most searches begin.
  template <class Value>
  struct Values {
    std::vector<Value> values;
    std::size_t start = 0;
  };
  /// The position of a setting in a point, and how many values it has.
  struct Setting {
    std::size_t position = 0, size = 1;
  };

  template <class Value, class Text = SettingText>
  Setting add(std::string_view name, Value SlimpackSettings::* member,
              const Values<std::type_identity_t<Value>>& values,
              const SettingTraits<SlimpackSettings>& traits = {}, Text text = {}) {
    start_.push_back(values.start);
    return {space_.add(name, member, values.values, traits, text), values.values.size()};
  }

  [[nodiscard]] static std::string ramp_text(const schedule::Ramp& ramp) {
    if (ramp == schedule::Ramp{}) return "off";
    return std::to_string(ramp.first_permille) + "+" + std::to_string(ramp.growth_permille);
  }
  [[nodiscard]] static std::string threshold_text(std::int64_t permille) {
    return permille == 0 ? "off" : std::to_string(permille) + "/1000";
  }

  /// With so many times the packs that fill a pipeline, fill and drain no longer count.
  static constexpr std::int64_t kManyFulls = 100;

  /// The head on the last stage, from fewest layers there to an even part; then sharded, from one
  /// to many packs whose H run back to back.
  [[nodiscard]] Values<LmHeadChoice> head_values() const {
    Values<LmHeadChoice> heads;
    const std::int32_t least_chunks = request_.chunks.value_or(1);
    std::vector<LmHeadPlacement> places =
        head_choices(request_, {&least_chunks, 1}, options_.shard_head);
    const bool shard = !places.empty() && places.back().head == LmHead::shard;
    if (shard) places.pop_back();
    for (std::size_t i = places.size(); i > 0; --i) heads.values.push_back({places[i - 1], 1});
    heads.start = heads.values.empty() ? 0 : heads.values.size() - 1;
    if (shard) {
      for (const std::int32_t batch : {1, 2, 4, 8, 16}) {
        heads.values.push_back({{LmHead::shard, 0}, batch});
      }
      heads.start = heads.values.size() - 3;
    }
    return heads;
  }
  /// Whether there are so many packs that fill and drain do not count, so that chunks gain nothing.
  [[nodiscard]] bool many_packs(const Values<std::int64_t>& units) const {
    return units.values[units.start] >= kManyFulls * request_.pp;
  }
  [[nodiscard]] Values<std::int32_t> chunk_values(const Values<std::int64_t>& units) const {
    if (request_.chunks) return {{*request_.chunks}};
    Values<std::int32_t> chunks{{1}};
    for (const std::int32_t more : {2, 4}) {
      if (request_.pp > 1 && !many_packs(units) &&
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
  /// Numbers of packs around the m that makes the step's time W + (p - 1) W / m + o m least: W is
  /// the mean work of a rank, p the stages, o what a unit costs by itself. On one stage, around the
  /// fewest packs that fit into memory.
  [[nodiscard]] Values<std::int64_t> unit_values() const {
    const Int128 work =
        (problem_.mean_work(Pass::forward) + problem_.mean_work(Pass::backward)) / kCostScale;
    const std::int64_t best = square_root(Int128{request_.pp - 1} * work /
                                          std::max<std::int64_t>(unit_overhead().value, 1));
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
    const std::int64_t middle = request_.pp > 1 ? best : least;
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
  [[nodiscard]] Nanos unit_overhead() const {
    const Plan& frame = problem_.frame();
    StageLoad stage;
    stage.layers = most_layers(frame.stages, request_.pp);
    stage.tensor_parallel = request_.tp;
    stage.tensor_link = request_.cluster.inside;
    PackLoad one;
    one.tokens = {1};
    HeadLoad head;
    head.tokens = {1};
    head.vocab = 1;
    head.shards = request_.pp;
    head.tensor_parallel = request_.tp;
    head.link = head.tensor_link = request_.cluster.inside;
    return std::visit(
        [&](const auto& model) {
          return model.forward(one, stage) + model.backward(one, stage, Recompute::none) +
                 model.head(head);
        },
        problem_.model());
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

  /// One mode for all samples, or leaner ones for those that would fill a large part of a device's
  /// room; from the fastest to the leanest.
  [[nodiscard]] std::vector<ModeChoice> mode_values(const SlimpackSettings& settings) const {
    using enum Recompute;
    if (request_.recompute) return {ModeChoice(*request_.recompute)};
    std::vector<ModeChoice> modes;
    const Plan plan = problem_.outline(settings);
    const StageRoom stage{problem_.room(plan, settings),
                          layer_bytes(plan.model, plan.memory.gradient_bytes, plan.parallel.tp),
                          most_layers(plan.stages, plan.parallel.pp)};
    // `percent` of the room is for one sample; the rest is for those before and after it.
    const auto add = [&](Recompute most, Recompute lean, std::int64_t percent) {
      const ModeChoice choice = mode_by_length(most, lean, stage, percent);
      if (most != lean &&
          (!options_.mixed_modes || longest_ <= choice.limit[static_cast<std::size_t>(most)]))
        return;
      modes.push_back(choice);
    };
    add(none, none, 0);
    for (const std::int64_t percent : {80, 60, 40}) add(none, layer, percent);
    add(light, light, 0);
    for (const std::int64_t percent : {80, 60, 40}) add(light, layer, percent);
    add(layer, layer, 0);
    add(layer, full, 60);
    add(full, full, 0);
    return modes;
  }
  /// Which of several modes with one `most`: the same for all samples, or the one whose long
  /// samples are leaner from the greatest length (`fullest`) or from the least (`leanest`).
  enum class Kind : std::uint8_t { uniform, fullest, leanest };
  /// The index of a mode; if there is none of this kind, of one with the same `most`, or the first.
  [[nodiscard]] std::size_t mode_at(Recompute most, Kind kind) const {
    std::size_t found = start_[mode_.position];
    bool mixed = false;
    for (std::size_t i = 0; i < modes_.size(); ++i) {
      const ModeChoice& mode = modes_[i];
      if (mode.most != most) continue;
      if (mode.lean == most) {
        found = i;
      } else if (kind == Kind::leanest || (kind == Kind::fullest && !mixed)) {
        found = i;
        mixed = true;
      }
    }
    return found;
  }
  /// The first number of packs, by index, not below `from`, of which as many as there are stages
  /// fit into memory where samples keep what `mode` says; the last where none does.
  [[nodiscard]] std::size_t fitting_units(const ModeChoice& mode, std::size_t from) const {
    const Plan& frame = problem_.frame();
    const LayerBytes layer =
        layer_bytes(frame.model, frame.memory.gradient_bytes, frame.parallel.tp);
    const std::int64_t layers = most_layers(frame.stages, request_.pp);
    SlimpackSettings settings;
    const auto most = static_cast<std::size_t>(mode.most);
    for (std::size_t i = from; i + 1 < units_values_.size(); ++i) {
      settings.units = units_values_[i];
      settings.mode = mode;
      // What waits in a pipeline, or what a sample keeps until its last token has been forward.
      const std::int64_t pack = tokens_.value / (request_.dp * settings.units) + 1;
      const std::int64_t each = layers * (layer.kept[most] + layer.kv) + 2 * layer.boundary;
      const std::int64_t bytes =
          pack * (request_.pp * each + layer.backward_workspace[most] + 4 * layer.boundary);
      if (bytes <= problem_.free_bytes(frame).value) return i;
    }
    return units_values_.size() - 1;
  }

  /// Good plans of several kinds: interleaved and in lockstep, with long samples on several ranks
  /// that lie next to each other or not, keeping much or little.
  void starts() {
    using enum Recompute;
    const std::size_t leanest = modes_.size() - 1;
    add_start(mode_at(none, Kind::uniform), {.interleaved = true}, 0);
    add_start(mode_at(none, Kind::uniform), {}, 1);
    add_start(mode_at(light, Kind::uniform), {.shares = true}, 2);
    add_start(mode_at(light, Kind::uniform), {.interleaved = true, .same_packs = true}, 1);
    // Where many packs wait for shared ones, smaller packs let more of them be in flight.
    if (many_packs_) {
      add_start(mode_at(light, Kind::fullest), {.shares = true, .interleaved = true}, 5);
    }
    add_start(mode_at(light, Kind::uniform), {.shares = true, .interleaved = true, .few = true}, 1);
    add_start(mode_at(light, Kind::uniform),
              {.shares = true, .interleaved = true, .few = true, .same_packs = true}, 1);
    add_start(mode_at(light, Kind::uniform), {.shares = true, .interleaved = true}, 2);
    add_start(mode_at(light, Kind::uniform), {.interleaved = true}, 1);
    add_start(mode_at(light, Kind::uniform), {.same_packs = true}, 2);
    add_start(mode_at(light, Kind::uniform), {.two_chunks = true, .same_packs = true}, 2);
    if (last_head_ && last_head_start_ != heads_start_) {
      add_start(mode_at(light, Kind::uniform),
                {.interleaved = true, .same_packs = true, .last_head = true}, 1);
    }
    add_start(mode_at(light, Kind::fullest), {.interleaved = true, .short_first = true}, 3);
    add_start(mode_at(light, Kind::leanest), {.interleaved = true}, 2);
    for (const std::size_t finer : {std::size_t{4}, units_.size}) {
      add_start(leanest, {.shares = true}, finer);
      add_start(leanest, {}, finer);
    }
    if (last_head_) {
      SettingPoint point = start_;
      point[head_.position] = last_head_start_;
      point[units_.position] = units_.size / 4;
      space_.start_at(std::move(point));
    }
  }

  struct StartKind {
    bool shares = false;       ///< ranks share long samples
    bool interleaved = false;  ///< as many chunks as there may be, else lockstep
    bool two_chunks = false;   ///< two of them, or as many as there may be if fewer
    bool short_first = false;
    bool few = false;         ///< of those that share, only the longest, two ranks each
    bool same_packs = false;  ///< in both passes
    bool last_head = false;   ///< the head on the last stage, where it may be elsewhere
  };
  /// Adds a start whose number of packs is `finer` values above the usual one.
  void add_start(std::size_t mode, StartKind kind, std::size_t finer) {
    SettingPoint point = start_;
    std::size_t& units = point[units_.position];
    point[mode_.position] = mode;
    if (kind.short_first) {
      point[order_.position] = static_cast<std::size_t>(QueueOrder::short_first);
    }
    // So many packs fill and drain in no time: there is no other reason for smaller ones.
    if (many_packs_ && !kind.shares && mode + 1 < modes_.size()) finer = 0;
    if (kind.last_head) point[head_.position] = last_head_start_;
    if (kind.same_packs) point[packs_.position] = packs_.size - 1;
    if (kind.shares) {
      if (threshold_.size == 1) return;
      point[threshold_.position] = threshold_.size / 2 + 1;
      point[devices_.position] = devices_.size - 1;
      if (kind.few) {
        point[threshold_.position] = 1;
        if (widest_.size > 1) point[widest_.position] = 1;
      }
    }
    if (kind.interleaved) {
      point[chunks_.position] = chunks_.size - 1;
      // Chunks shorten fill and drain, so larger packs will do; they are planned sooner.
      if (effort_ == Effort::fast) units -= std::min(units, chunks_.size - 1);
    } else if (kind.two_chunks) {
      point[chunks_.position] = std::min<std::size_t>(1, chunks_.size - 1);
    } else {
      point[rule_.position] = rule_.size - 1;
    }
    units = std::min(units + finer, units_.size - 1);
    units = fitting_units(modes_[mode], units);
    space_.start_at(std::move(point));
  }

  const SlimpackProblem& problem_;
  const PlanRequest& request_;
  Effort effort_;
  const SlimpackOptions& options_;
  Tokens tokens_, longest_;
  SlimpackSpace space_;
  SettingPoint start_;
  std::vector<ModeChoice> modes_;
  std::vector<std::int64_t> units_values_;
  Setting mode_, head_, units_, packs_, threshold_, widest_, order_, chunks_, devices_, rule_;
  bool many_packs_ = false;
  bool last_head_ = false;           // on the last stage, among others
  std::size_t last_head_start_ = 0;  // the last such value up to the start
  std::size_t heads_start_ = 0;      // the value at the start
};

}  // namespace detail

/// The values of each setting that are worth trying for a request, and where searches of an effort
/// begin; the values are the same for all efforts.
[[nodiscard]] inline SlimpackSpace slimpack_space(const SlimpackProblem& problem, Effort effort) {
  return detail::SlimpackSpaceMaker(problem, effort).make();
}

}  // namespace slimpack::planners
