// SPDX-License-Identifier: Apache-2.0
// What all candidates of the slimpack planner have in common.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "slimpack/core/int128.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/cost/any_model.hpp"
#include "slimpack/cost/links.hpp"
#include "slimpack/cost/memory_model.hpp"
#include "slimpack/plan/cp_shard.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/planners/planner.hpp"
#include "slimpack/planners/search/detail/lengths.hpp"
#include "slimpack/planners/search/layout.hpp"
#include "slimpack/planners/slimpack/options.hpp"
#include "slimpack/planners/slimpack/settings.hpp"
#include "slimpack/planners/slimpack/slice_costs.hpp"
#include "slimpack/schedule/assign.hpp"
#include "slimpack/schedule/cut.hpp"
#include "slimpack/schedule/longest_first.hpp"
#include "slimpack/schedule/schedule_parts.hpp"

namespace slimpack::planners {

/// With more samples a normal search times fewer candidates.
inline constexpr std::size_t kFewSamples = 16'384;

/// Whether fill and drain hardly count, so that a normal search is over all settings alone, of few
/// candidates, the best of a fast one and estimated ones first: more than 2048 samples a rank and
/// `kFewSamples` in all, or 65536.
[[nodiscard]] inline bool has_many_samples(const PlanRequest& request) noexcept {
  const std::size_t samples = request.batch.samples.size();
  const std::size_t of_ranks = 2048 * static_cast<std::size_t>(request.dp);
  return samples > std::clamp<std::size_t>(of_ranks, kFewSamples, 65'536);
}

/// A request with what does not depend on settings: its samples by falling length, the time of
/// each, and a plan without samples.
class SlimpackProblem {
 public:
  /// Copies the request and prices its samples. The request must have passed `check_request`.
  /// O(n log n) in samples.
  SlimpackProblem(const PlanRequest& request, std::string_view planner,
                  const SlimpackOptions& options)
      : request_(request),
        options_(options),
        model_(make_model(request.cost, request.model, request.cluster, memory(request))) {
    request_.as_published = false;  // slimpack is no published system
    // The frame has no samples: there may be many, so they step aside and are not copied.
    std::vector<Tokens> samples;
    std::vector<Origin> origin;
    std::vector<Source> sources;
    const auto swap_samples = [&] {
      samples.swap(request_.batch.samples);
      origin.swap(request_.batch.origin);
      sources.swap(request_.sources);
    };
    swap_samples();
    frame_ = plan_frame(request_, planner);
    swap_samples();
    frame_.memory = memory(request);
    alone_ = costs(frame_, {0});
    find_needs();
  }

  /// What is planned.
  [[nodiscard]] const PlanRequest& request() const noexcept { return request_; }
  /// The ideas that are used.
  [[nodiscard]] const SlimpackOptions& options() const noexcept { return options_; }
  /// The cost model of the request.
  [[nodiscard]] const AnyModel& model() const noexcept { return model_; }
  /// Whether large units take longer a token than small ones, for their rows leave the caches
  /// (`FittedTerms::spill_token`).
  [[nodiscard]] bool spills() const noexcept {
    const auto* fitted = std::get_if<FittedCost>(&request_.cost);
    const auto spills = [](const std::optional<FittedTerms>& terms) {
      return terms && terms->spill_token > 0;
    };
    return fitted != nullptr && (spills(fitted->layer_forward) || spills(fitted->layer_backward));
  }
  /// Whether gradients of weights may be apart: the idea is used, the request allows it, and its
  /// cost has prices of them.
  [[nodiscard]] bool splits() const {
    return options_.weights && request_.weights != WeightGradients::with &&
           std::visit([]<class Model>(const Model&) { return SplitCostModel<Model>; }, model_);
  }
  /// A plan of the request without samples, evenly on one chunk a stage.
  [[nodiscard]] const Plan& frame() const noexcept { return frame_; }
  /// Positions of samples, longest first.
  [[nodiscard]] const std::vector<std::uint32_t>& order() const noexcept { return order_; }
  /// Lengths of samples in that order.
  [[nodiscard]] const std::vector<Tokens>& lengths() const noexcept { return lengths_; }
  /// Times of samples in that order, nothing recomputed; bytes are not set.
  [[nodiscard]] const std::vector<schedule::SampleNeed>& needs() const noexcept { return needs_; }
  /// The same with recomputation as `mode` has it. O(n).
  [[nodiscard]] std::vector<schedule::SampleNeed> needs(const ModeChoice& mode) const {
    std::vector<schedule::SampleNeed> needs(lengths_.size());
    for (std::size_t i = 0; i < needs.size(); ++i) {
      const Tokens length = lengths_[i];
      const bool same = i > 0 && length == lengths_[i - 1];
      needs[i].time = same ? needs[i - 1].time : scaled(work(alone_, length, mode.of(length), 1));
    }
    return needs;
  }
  /// Time of each rank of a group of `ranks` that shares a sample, in the unit of needs; `costs`
  /// are those of the group, with blocks of `block` tokens. The sample is in packs with others, or
  /// has one of each pass for itself (`own_packs`). `spread`: other samples make ranks even.
  [[nodiscard]] std::int64_t part(Tokens length, const ModeChoice& mode, const PassCosts& costs,
                                  std::int32_t ranks, Tokens block, bool own_packs,
                                  bool spread) const {
    if (spread && length <= block) {
      return scaled(work(alone_, length, mode.of(length), 1) / ranks) + (own_packs ? 1 : 0);
    }
    // The first rank owns the first block of every sample: of many short ones it has most.
    const CpShard first{0, ranks, block};
    const std::int64_t uneven = spread ? 0 : first.before(length).value * ranks - length.value;
    const auto recompute = static_cast<std::size_t>(mode.of(length));
    const Int128 rows =
        Int128{costs.forward.per_token + costs.backward[recompute].per_token} * uneven;
    return scaled(std::max<Int128>(0, work(costs, length, mode.of(length), ranks) + rows) +
                  (own_packs ? costs.pack : 0));
  }

  /// Mean work of a rank in a pass, in nanoseconds over 2^20, if each sample is on one rank, packs
  /// are large and nothing is recomputed.
  [[nodiscard]] Int128 mean_work(Pass pass) const {
    const PassCosts large = costs(frame_, {0}, PackSize::large);
    const schedule::SliceCost& cost = pass == Pass::forward ? large.forward : large.backward[0];
    return sum_of_lengths([&](Tokens length) { return cost.slice({}, length); }) / request_.dp;
  }

  /// What slices cost on the fullest stage of a group of ranks, in packs that caches hold or in
  /// large ones.
  [[nodiscard]] PassCosts costs(const Plan& plan, const std::vector<std::int32_t>& group,
                                PackSize size = PackSize::cached) const {
    StageLoad stage;
    stage.layers = most_layers(plan.stages, plan.parallel.pp);
    stage.tensor_parallel = plan.parallel.tp;
    const Links links(plan);
    stage.tensor_link = links.tensor(group.front(), 0);
    stage.exchange_link = links.ranks(group, 0);
    stage.exchange_hops = links.ring(group, 0).hops_between();
    return CostProbe(model_, stage, static_cast<std::int64_t>(group.size()), size).passes();
  }

  /// A plan with stages, degrees and placement of these settings, without samples.
  [[nodiscard]] Plan outline(const SlimpackSettings& settings) const {
    Plan plan = frame_;
    if (settings.cp_block.value > 0) plan.memory.cp_block_tokens = settings.cp_block;
    plan.parallel.chunks = settings.chunks;
    plan.parallel.head = settings.head.head;
    plan.stages =
        spread_layers(request_.model.layers, virtual_stages_of(plan),
                      settings.head.fewer_last_layers, settings.head.head == LmHead::last);
    plan.placement = place_devices(plan.parallel, settings.devices);
    if (settings.chunks > 1 && settings.shares()) {
      // Where ranks share packs, at most twice as many as may be in flight pass chunk after chunk.
      const schedule::ListOptions list;
      plan.max_in_flight = std::max(plan.max_in_flight, (list.block(request_.pp) + 1) / 2);
    }
    return plan;
  }

  /// Bytes that a device of the fullest stage has beside weights, gradients and optimizer.
  [[nodiscard]] static Bytes free_bytes(const Plan& plan) {
    Bytes always;
    for (std::int32_t pp = 0; pp < plan.parallel.pp; ++pp) {
      always = std::max(always, static_bytes(plan, pp).total());
    }
    return plan.memory.capacity - plan.memory.reserved - always;
  }

  /// Those of them that samples may fill, beside what a unit works with.
  [[nodiscard]] Bytes room(const Plan& plan, const SlimpackSettings& settings) const {
    const LayerBytes layer = layer_bytes(plan.model, plan.memory.gradient_bytes, plan.parallel.tp);
    const Bytes available = free_bytes(plan);
    const std::int64_t units = std::int64_t{request_.dp} * settings.forward_units();
    const std::int64_t unit = total_tokens(request_.batch.samples).value / units + 1;
    const auto mode = static_cast<std::size_t>(settings.mode.most);
    const std::int64_t layers = most_layers(plan.stages, plan.parallel.pp);
    const Bytes slack{unit * (6 * layer.boundary + layer.backward_workspace[mode] +
                              2 * layers * (layer.kept[mode] + layer.kv))};
    return std::max(available - slack, Bytes{available.value / 2});
  }

 private:
  /// Unless the request says otherwise, CP blocks of 128 tokens, or of the granularity if that is
  /// finer, but at least 32: finer blocks let shared samples be cut into finer slices of which
  /// every rank owns an equal part.
  [[nodiscard]] static MemorySpec memory(const PlanRequest& request) {
    MemorySpec memory = memory_of(request);
    if (!request.memory.cp_block_tokens) {
      memory.cp_block_tokens = std::clamp(request.granularity, Tokens{32}, Tokens{128});
    }
    return memory;
  }

  /// F, B and H of each sample on a rank alone, scaled so that their sum stays far from 64 bits.
  void find_needs() {
    const std::vector<Tokens>& samples = request_.batch.samples;
    HeadLoad head;
    head.vocab = std::max<std::int64_t>(1, request_.model.vocab / request_.pp);
    head.tensor_parallel = request_.tp;
    head.tile = frame_.memory.head_tile;
    head.link = head.tensor_link = request_.cluster.inside;
    head_token_ = CostProbe(model_, StageLoad{}, 1).head_token(head);
    order_ = schedule::longest_first(samples.size(),
                                     [&](std::uint32_t sample) { return samples[sample].value; });
    lengths_.reserve(order_.size());
    for (const std::uint32_t sample : order_) lengths_.push_back(samples[sample]);
    const Int128 total = sum_of_lengths(  // at most, everything recomputed
        [&](Tokens length) { return work(alone_, length, Recompute::full, 1); });
    while (total >> shift_ >= Int128{1} << 58) ++shift_;
    needs_ = needs(ModeChoice(Recompute::none));
  }
  /// F, B and H of a sample on each of the ranks that share it, in nanoseconds over 2^20.
  [[nodiscard]] Int128 work(const PassCosts& costs, Tokens length, Recompute mode,
                            std::int32_t ranks) const {
    return Int128{costs.forward.slice({}, length)} +
           costs.backward[static_cast<std::size_t>(mode)].slice({}, length) +
           Int128{length.value} * head_token_ / ranks;
  }
  /// The sum of a figure over all samples, found once for those of one length. O(n).
  template <class Figure>
  [[nodiscard]] Int128 sum_of_lengths(const Figure& figure) const {
    Int128 sum = 0, each = 0;
    for (std::size_t i = 0; i < lengths_.size(); ++i) {
      if (i == 0 || lengths_[i] != lengths_[i - 1]) each = figure(lengths_[i]);
      sum += each;
    }
    return sum;
  }
  [[nodiscard]] std::int64_t scaled(Int128 work) const {
    return static_cast<std::int64_t>(work >> shift_) + 1;
  }

  PlanRequest request_;
  SlimpackOptions options_;
  AnyModel model_;
  Plan frame_;
  std::vector<std::uint32_t> order_;
  std::vector<Tokens> lengths_;
  std::vector<schedule::SampleNeed> needs_;
  PassCosts alone_;  // of a rank that shares nothing
  std::int64_t head_token_ = 0;
  int shift_ = 0;
};

}  // namespace slimpack::planners
