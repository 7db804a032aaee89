// SPDX-License-Identifier: Apache-2.0
// Which values of each setting are worth trying for a request, and where to begin.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <variant>
#include <vector>

#include "slimpack/core/int128.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/cost/memory_model.hpp"
#include "slimpack/planners/search/packed_sequences.hpp"
#include "slimpack/planners/slimpack/build.hpp"
#include "slimpack/planners/slimpack/settings.hpp"

namespace slimpack::planners {

/// Chooses the values of a space, one setting after the other.
class SlimpackSpaceMaker {
 public:
  explicit SlimpackSpaceMaker(const SlimpackProblem& problem)
      : problem_(problem), request_(problem.request()), options_(problem.options()) {
    for (const Tokens length : request_.batch.samples) {
      longest_ = std::max(longest_, length);
      tokens_ += length;
    }
  }

  [[nodiscard]] SlimpackSpace make() {
    start_.assign(space_.sizes().size(), 0);
    heads();
    devices();
    units();
    chunks();
    modes();
    ramps();
    space_.order = {QueueOrder::long_first, QueueOrder::short_first, QueueOrder::pyramid};
    space_.max_cp = {0};
    if (options_.merging && request_.dp > 1 && request_.max_cp.value_or(2) > 1) {
      space_.max_cp = {0, 1000, 200, 50, 25, 12, 6};
    }
    space_.backward = {1000};
    if (options_.asymmetric && !request_.max_units) {
      space_.backward = {700, 1000, 1400};
      start_[kBackward] = 1;
    }
    space_.lockstep = {false};
    if (request_.pp > 1 && request_.chunks.value_or(1) == 1) space_.lockstep = {false, true};
    space_.queue = {1, 2};
    starts();
    return std::move(space_);
  }

 private:
  /// Places of settings in a point.
  enum : std::size_t {
    kMode,
    kHead,
    kUnits,
    kRamp,
    kMerge,
    kOrder,
    kChunks,
    kDevices,
    kBackward,
    kLockstep,
    kQueue
  };

  /// Where a pipeline full is no more than a hundredth of the packs chunks have nothing to gain.
  static constexpr std::int64_t kManyFulls = 100;

  void heads() {
    const std::int32_t pp = request_.pp;
    const bool shard =
        request_.head == LmHead::shard || (!request_.head && options_.shard_head && pp > 1 &&
                                           request_.fewer_last_layers.value_or(0) == 0);
    const bool last = request_.head != LmHead::shard;
    const std::int32_t least = request_.chunks.value_or(1);
    if (last) {
      for (std::int32_t fewer_last_layers = kMostFewerLastLayers; fewer_last_layers >= 0;
           --fewer_last_layers) {
        const LmHeadPlacement place{LmHead::last, fewer_last_layers};
        if (request_.fewer_last_layers.value_or(fewer_last_layers) != fewer_last_layers) continue;
        if (fewer_last_layers > 0 && (pp == 1 || !leaves_layers(request_, least, place))) continue;
        space_.head.push_back({place, 1});
      }
      start_[kHead] = space_.head.empty() ? 0 : space_.head.size() - 1;
    }
    if (shard) {
      for (const std::int32_t batch : {1, 2, 4, 8, 16}) {
        space_.head.push_back({{LmHead::shard, 0}, batch});
      }
      start_[kHead] = space_.head.size() - 3;
    }
  }
  /// Fill and drain are nothing beside such a number of packs.
  [[nodiscard]] bool many_packs() const {
    return space_.units[start_[kUnits]] >= kManyFulls * request_.pp;
  }
  void chunks() {
    space_.chunks = {1};
    if (request_.chunks) {
      space_.chunks = {*request_.chunks};
    } else if (request_.pp > 1 && !many_packs()) {
      for (const std::int32_t more : {2, 4}) {
        if (std::int64_t{request_.pp} * more <= request_.model.layers) {
          space_.chunks.push_back(more);
        }
      }
    }
  }
  void devices() {
    space_.devices = {DeviceOrder::ranks};
    const std::int64_t rank = std::int64_t{request_.pp} * request_.tp;
    const std::int64_t node = request_.cluster.devices_per_node;
    if (request_.dp > 1 && request_.pp > 1 && rank * request_.dp > node) {
      space_.devices = {DeviceOrder::stages, DeviceOrder::ranks};
      if (rank > node) start_[kDevices] = 1;
    }
  }
  /// Around the count that balances fill and drain against what a unit costs by itself:
  /// T = W + (p - 1) W / m + o m.
  void units() {
    const Int128 work =
        (problem_.mean_work(Pass::forward) + problem_.mean_work(Pass::backward)) / kCostScale;
    const std::int64_t best = square_root(Int128{request_.pp - 1} * work /
                                          std::max<std::int64_t>(unit_overhead().value, 1));
    std::int64_t grains = 0, longest = 1;
    for (const Tokens length : request_.batch.samples) {
      const std::int64_t of_sample =
          (length + request_.granularity - Tokens{1}) / request_.granularity;
      grains += of_sample;
      longest = std::max(longest, of_sample);
    }
    const std::int64_t most = std::max((grains + request_.dp - 1) / request_.dp, longest);
    const std::int64_t least =
        std::max<std::int64_t>(1, tokens_.value / (request_.dp * fitting_unit().value));
    const std::int64_t middle = request_.pp > 1 ? best : least;
    std::int64_t before = 0;
    for (std::size_t step = 0; step < kUnitSteps.size(); ++step) {
      std::int64_t count =
          std::clamp((middle * kUnitSteps[step] + 500) / 1000, std::min(least, most), most);
      if (request_.max_units) count = std::min(count, *request_.max_units);
      if (2 * step + 1 < kUnitSteps.size()) {
        start_[kUnits] = space_.units.size() - (count == before ? 1 : 0);
      }
      if (count != before) space_.units.push_back(count);
      before = count;
    }
  }
  /// Thousandths of the middle, each 2^(3/8) times the one before.
  static constexpr std::array<std::int64_t, 17> kUnitSteps{
      125, 162, 210, 273, 354, 459, 595, 771, 1000, 1297, 1682, 2181, 2828, 3668, 4757, 6169, 8000};

  /// Rounded down.
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
  /// Tokens of a pack of which a pipeline full fits into memory, everything recomputed.
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

  void modes() {
    using enum Recompute;
    if (request_.recompute) {
      space_.mode = {{*request_.recompute, *request_.recompute}};
      return;
    }
    SlimpackSettings settings;
    settings.head = space_.head[start_[kHead]];
    settings.units = space_.units[start_[kUnits]];
    settings.chunks = space_.chunks.front();
    const Plan plan = problem_.outline(settings);
    const Bytes room = problem_.room(plan, settings);
    const LayerBytes bytes = layer_bytes(plan.model, plan.memory.gradient_bytes, plan.parallel.tp);
    const std::int64_t layers = most_layers(plan.stages, plan.parallel.pp);
    // As much of the room as one sample may take; the rest is for those before and after it.
    const auto add = [&](Recompute most, Recompute lean, std::int64_t percent) {
      ModeChoice choice{most, lean};
      for (auto mode = static_cast<std::size_t>(most); mode < static_cast<std::size_t>(lean);
           ++mode) {
        choice.limit[mode] = {std::max<std::int64_t>(0, room.value) / 100 * percent /
                              (layers * resident_bytes(bytes, static_cast<Recompute>(mode)))};
      }
      if (most != lean &&
          (!options_.mixed_modes || longest_ <= choice.limit[static_cast<std::size_t>(most)]))
        return;
      space_.mode.push_back(choice);
    };
    add(none, none, 0);
    for (const std::int64_t percent : {80, 60, 40}) add(none, layer, percent);
    add(light, light, 0);
    for (const std::int64_t percent : {80, 60, 40}) add(light, layer, percent);
    add(layer, layer, 0);
    add(layer, full, 60);
    add(full, full, 0);
  }
  void ramps() {
    space_.ramp = {schedule::Ramp{}};
    if (request_.pp > 1 && !request_.max_units && options_.slicing) {
      space_.ramp.insert(space_.ramp.end(), {{250, 150}, {125, 75}, {60, 60}, {30, 50}});
    }
  }
  /// Where a mode is in the space: for all samples, or the leanest or fullest that long samples do
  /// not share; what is there in its place if it is not.
  enum class Kind : std::uint8_t { uniform, fullest, leanest };
  [[nodiscard]] std::size_t mode_at(Recompute most, Kind kind) const {
    std::size_t found = start_[kMode];
    bool mixed = false;
    for (std::size_t i = 0; i < space_.mode.size(); ++i) {
      const ModeChoice& mode = space_.mode[i];
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
  /// Good plans of several kinds: interleaved and in lockstep, with long samples merged over ranks
  /// that lie next to each other or not, keeping much or little.
  void starts() {
    const auto add = [&](std::size_t mode, bool in_cp_group, bool interleaved, std::size_t finer,
                         QueueOrder order = QueueOrder::long_first) {
      SettingPoint point = start_;
      point[kMode] = mode;
      point[kOrder] = static_cast<std::size_t>(order);
      if (in_cp_group) {
        if (space_.max_cp.size() == 1) return;
        point[kMerge] = space_.max_cp.size() / 2 + 1;
        point[kDevices] = space_.devices.size() - 1;
      }
      if (interleaved) {
        point[kChunks] = space_.chunks.size() - 1;
        // Chunks divide what fill and drain take: larger packs do, and are planned sooner.
        if (request_.effort == Effort::fast) {
          point[kUnits] -= std::min(point[kUnits], point[kChunks]);
        }
      } else {
        point[kLockstep] = space_.lockstep.size() - 1;
      }
      point[kUnits] = std::min(point[kUnits] + finer, space_.units.size() - 1);
      if (std::find(space_.starts.begin(), space_.starts.end(), point) == space_.starts.end()) {
        space_.starts.push_back(std::move(point));
      }
    };
    using enum Recompute;
    add(mode_at(none, Kind::uniform), false, true, 0);
    add(mode_at(none, Kind::uniform), false, false, 1);
    add(mode_at(light, Kind::uniform), true, false, 2);
    // Of many packs that wait for merged ones, small ones keep more of them in flight.
    if (many_packs()) add(mode_at(light, Kind::fullest), true, true, 5);
    add(mode_at(light, Kind::uniform), true, true, 2);
    add(mode_at(light, Kind::uniform), false, true, 1);
    add(mode_at(light, Kind::fullest), false, true, 3, QueueOrder::short_first);
    add(mode_at(light, Kind::leanest), false, true, 2);
    add(space_.mode.size() - 1, true, false, 4);
    add(space_.mode.size() - 1, false, false, 4);
    add(space_.mode.size() - 1, true, false, space_.units.size());
    add(space_.mode.size() - 1, false, false, space_.units.size());
    if (space_.head.front().place.head == LmHead::last) {
      SettingPoint point = start_;
      while (point[kHead] > 0 && space_.head[point[kHead]].place.head != LmHead::last)
        --point[kHead];
      point[kUnits] = space_.units.size() / 4;
      space_.starts.push_back(std::move(point));
    }
  }

  const SlimpackProblem& problem_;
  const PlanRequest& request_;
  const SlimpackOptions& options_;
  Tokens longest_{1}, tokens_;
  SlimpackSpace space_;
  SettingPoint start_;
};

}  // namespace slimpack::planners
