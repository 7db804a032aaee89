// SPDX-License-Identifier: Apache-2.0
// Small plans whose units span what a profile measures.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/plan/layer_bytes.hpp"
#include "slimpack/plan/model.hpp"
#include "slimpack/plan/plan.hpp"

namespace slimpack::cpu {

/// A plan whose units are timed. Forward pack i is backward pack i, on the only stage.
struct ProfilePlan {
  Plan plan;                                        ///< of one stage, which recomputes nothing
  std::int64_t layers = 0;                          ///< of the model that is left on the device
  WeightGradients weights = WeightGradients::with;  ///< of all its B
};

/// Tokens [begin, end) of a profiled plan's sample, by the sample's position.
using ProfilePack = std::vector<Slice>;

/// One stage of `tp` tensor-parallel devices with `layers` layers of the model runs F and H of all
/// packs, then B of all packs backwards, each followed by its W where `weights` are apart, then R
/// and O. Nothing is recomputed. Slices of a sample must be in rising order and cover it.
/// O(slices).
[[nodiscard]] inline ProfilePlan profile_plan(ModelShape model, std::int64_t layers,
                                              const std::vector<ProfilePack>& packs,
                                              WeightGradients weights = WeightGradients::with,
                                              std::int32_t tp = 1) {
  ProfilePlan profile;
  profile.layers = layers;
  profile.weights = weights;
  Plan& plan = profile.plan;
  plan.planner = "profile";
  model.layers = layers;
  plan.model = std::move(model);
  plan.memory.capacity = Bytes{std::int64_t{1} << 50U};
  plan.memory.gradient_bytes = plan.model.bytes_per_element;
  plan.parallel.granularity = Tokens{1};
  plan.stages = {{0, 0, 0, layers, true}};
  plan.groups = {{0}};
  plan.parallel.tp = tp;
  for (std::int32_t part = 0; part < tp; ++part) plan.placement.push_back({0, 0, part, part});
  plan.schedule = {{0, 0, {}}};
  std::map<SampleId, Tokens> lengths;
  for (const ProfilePack& pack : packs) {
    for (const Slice& slice : pack) lengths[slice.sample] = slice.end;
  }
  for (const auto& [sample, length] : lengths) {
    require(index(sample) == plan.samples.size(), "profile_plan: samples must be dense");
    plan.origin.push_back({0, static_cast<std::int64_t>(plan.samples.size()), Tokens{}});
    plan.samples.push_back(length);
    plan.sample_group.push_back(GroupId{});
    plan.target_tokens += length.value - 1;
  }
  std::vector<Unit>& order = plan.schedule.front().order;
  for (const ProfilePack& pack : packs) {
    const auto id = static_cast<PackId>(plan.micropacks.size());
    plan.micropacks.push_back({Pass::forward, GroupId{}, pack, {}, Recompute::none});
    order.push_back({UnitKind::forward, id, 0});
    order.push_back({UnitKind::head, id, 0});
  }
  for (std::size_t i = packs.size(); i-- > 0;) {
    const auto id = static_cast<PackId>(plan.micropacks.size());
    plan.micropacks.push_back({Pass::backward, GroupId{}, packs[i], {}, Recompute::none, weights});
    order.push_back({UnitKind::backward, id, 0});
    if (weights == WeightGradients::with) continue;
    const auto behind = static_cast<PackId>(plan.micropacks.size());
    plan.micropacks.push_back({Pass::weight, GroupId{}, packs[i], {}});
    order.push_back({UnitKind::weight, behind, 0});
  }
  order.push_back({UnitKind::reduce, {}, 0});
  order.push_back({UnitKind::optimizer, {}, 0});
  return profile;
}

namespace detail {

/// Packs over new samples.
class PackMaker {
 public:
  /// A sample of `length` tokens, cut into packs of `step` tokens.
  void cut(std::int64_t length, std::int64_t step) {
    for (std::int64_t begin = 0; begin < length; begin += step) {
      packs.push_back({next(begin, std::min(length, begin + step))});
    }
    ++samples_;
  }
  /// One pack of whole samples.
  void whole(const std::vector<std::int64_t>& lengths) {
    ProfilePack pack;
    for (const std::int64_t length : lengths) {
      pack.push_back(next(0, length));
      ++samples_;
    }
    packs.push_back(std::move(pack));
  }

  std::vector<ProfilePack> packs;

 private:
  [[nodiscard]] Slice next(std::int64_t begin, std::int64_t end) const {
    return {static_cast<SampleId>(samples_), Tokens{begin}, Tokens{end}};
  }
  std::size_t samples_ = 0;
};

}  // namespace detail

/// The plans of a profile for samples of up to `context` tokens: one sample in slices with growing
/// prefixes, coarse and fine; packs of 1 to 256 samples; packs of mixed lengths; packs of few
/// tokens and of as many as a micro-batch has; on 1, 2 and 4 layers, or as many as the model has;
/// those on 1 and 4 once more with the gradients of weights apart. What packs of few tokens keep of
/// one layer stays in the caches of a core, which no stage of several layers has; they are on 4.
[[nodiscard]] inline std::vector<ProfilePlan> profile_plans(const ModelShape& model,
                                                            Tokens context) {
  const std::int64_t most = std::max<std::int64_t>(context.value, 128);
  const auto part = [&](std::int64_t parts) { return std::max<std::int64_t>(most / parts, 2); };
  // Lengths from a half to one and a half of `length`: those of documents fill no tiles.
  const auto about = [](std::int64_t count, std::int64_t length) {
    std::vector<std::int64_t> lengths;
    for (std::int64_t i = 0; i < count; ++i) {
      lengths.push_back(std::max<std::int64_t>(2, length / 2 + i * 7919 % (length + 1)));
    }
    return lengths;
  };
  const auto beside = [](std::vector<std::int64_t> lengths, std::int64_t length) {
    lengths.push_back(length);
    return lengths;
  };
  detail::PackMaker one;
  one.cut(most, part(4));
  one.whole(about(128, part(1024)));
  one.whole(about(64, part(300)));
  one.whole({most});
  detail::PackMaker two;
  two.cut(part(2), part(4));
  two.whole(about(4, part(8)));
  two.whole(about(16, part(32)));
  two.whole(about(64, part(128)));
  two.whole(about(256, part(1500)));
  two.whole({part(128)});
  two.whole(about(8, part(64)));
  two.whole(beside(about(64, part(128)), part(2)));
  detail::PackMaker four;
  four.whole({part(8)});
  four.whole(beside(about(100, part(800)), part(4)));
  four.whole(beside(about(100, part(200)), part(2)));
  four.whole(about(32, part(64)));
  four.cut(part(2), part(16));
  four.whole({part(30)});
  four.whole({part(60)});
  four.whole(about(12, part(192)));
  four.whole(about(16, part(128)));
  std::vector<ProfilePlan> plans;
  const auto add = [&](std::int64_t layers, const detail::PackMaker& maker,
                       WeightGradients weights) {
    plans.push_back(profile_plan(model, std::min(layers, model.layers), maker.packs, weights));
  };
  add(1, one, WeightGradients::with);
  add(2, two, WeightGradients::with);
  add(4, four, WeightGradients::with);
  add(1, one, WeightGradients::apart);
  add(4, four, WeightGradients::apart);
  return plans;
}

/// Packs of what a micro-batch holds, in slices and documents of several lengths, and of a quarter
/// and a 16th of it, on two layers or as many as the model has, which `tp` devices split.
[[nodiscard]] inline ProfilePlan split_plan(const ModelShape& model, Tokens context,
                                            std::int32_t tp) {
  const std::int64_t most = std::max<std::int64_t>(context.value, 128);
  detail::PackMaker packs;
  packs.cut(most, most / 2);
  packs.whole(std::vector<std::int64_t>(8, most / 8));
  packs.whole(std::vector<std::int64_t>(32, most / 64));
  packs.whole({most / 4});
  packs.whole({most / 16});
  return profile_plan(model, std::min<std::int64_t>(2, model.layers), packs.packs,
                      WeightGradients::with, tp);
}

/// `profile` on `ranks` ranks that share all samples, whose exchange goes by `mode`. Where a CP
/// block is a 2 `ranks`-th of each slice's begin and end, ranks have equal parts. O(slices x
/// ranks).
[[nodiscard]] inline ProfilePlan in_group(ProfilePlan profile, std::int32_t ranks, Tokens block,
                                          RingMode mode) {
  Plan& plan = profile.plan;
  plan.version = 3;
  plan.parallel.dp = plan.parallel.max_cp = ranks;
  plan.memory.cp_block_tokens = block;
  const std::vector<Unit> order = plan.schedule.front().order;
  plan.groups = {{}};
  plan.placement.clear();
  plan.schedule.clear();
  for (std::int32_t rank = 0; rank < ranks; ++rank) {
    plan.groups.front().push_back(rank);
    plan.placement.push_back({rank, 0, 0, rank});
    plan.schedule.push_back({rank, 0, order});
  }
  for (MicroPack& pack : plan.micropacks) pack.exchange.assign(pack.slices.size(), mode);
  return profile;
}

/// Packs of a micro-batch and less of it, in slices and samples of several lengths, on two layers
/// or as many as the model has, in a group of `ranks` ranks: keys and values travel, and where
/// ranks can have equal parts of the heads, heads do.
[[nodiscard]] inline std::vector<ProfilePlan> group_plans(const ModelShape& model, Tokens context,
                                                          std::int32_t ranks) {
  const std::int64_t parts = 2 * std::int64_t{ranks};
  const Tokens block{std::max<std::int64_t>(context.value / (8 * parts), 1)};
  const std::int64_t eighth = parts * block.value;
  detail::PackMaker packs;
  packs.cut(8 * eighth, 4 * eighth);
  packs.whole({8 * eighth});
  packs.whole({4 * eighth});
  packs.whole(std::vector<std::int64_t>(2, 2 * eighth));
  packs.whole(std::vector<std::int64_t>(4, eighth));
  packs.whole({2 * eighth});
  packs.whole({eighth});
  std::vector<ProfilePlan> plans;
  for (const RingMode mode : {RingMode::pass_kv, RingMode::by_heads}) {
    if (mode == RingMode::by_heads && !divides_heads(model, 1, ranks)) continue;
    plans.push_back(
        in_group(profile_plan(model, std::min<std::int64_t>(2, model.layers), packs.packs), ranks,
                 block, mode));
  }
  return plans;
}

/// The same in few units that take a moment: for a rough cost where none was measured.
[[nodiscard]] inline std::vector<ProfilePlan> quick_profile_plans(const ModelShape& model,
                                                                  Tokens context) {
  const std::int64_t most = std::max<std::int64_t>(context.value / 4, 128);
  detail::PackMaker one;
  one.cut(most, most / 4);
  one.whole({most / 8});
  one.whole(std::vector<std::int64_t>(16, most / 32));
  detail::PackMaker two;
  two.whole({most / 4});
  two.whole({most / 16, most / 16});
  return {profile_plan(model, 1, one.packs),
          profile_plan(model, std::min<std::int64_t>(2, model.layers), two.packs)};
}

}  // namespace slimpack::cpu
