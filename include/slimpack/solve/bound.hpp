// SPDX-License-Identifier: Apache-2.0
// A proven lower bound on the time of a step, over all valid plans of its samples.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/cost/any_model.hpp"
#include "slimpack/cost/cost_model.hpp"
#include "slimpack/cost/ideal.hpp"
#include "slimpack/cost/memory_model.hpp"
#include "slimpack/cost/price.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/plan/share.hpp"

namespace slimpack {

/// A lower bound and the term that gives it, the first of equals:
/// `work`: a stage's work over its data-parallel ranks, after the fill and before the drain;
/// `sample`: the same of the rank that holds the longest sample (nothing merged);
/// `ranks`: the same of a rank that must hold several long samples (nothing merged);
/// `path`: the longest sample through the whole line and back (nothing merged).
struct LowerBound {
  Nanos value;
  std::string term;
  std::int32_t pp = 0;  ///< the stage that binds
  friend bool operator==(const LowerBound&, const LowerBound&) = default;
};

/// Lower bound on the iteration of every valid plan with this plan's samples, model, cluster, cost,
/// memory rules, degrees, head, stages, granularity and `merge`; its packs, groups, schedule and
/// placement do not matter.
///
/// Proof. Take device (dp, s). By rule 4 the first unit on it that has tokens is F in chunk 0 of
/// slices that begin their samples; they hold at least t = min(granularity, shortest sample)
/// tokens, of which some rank of a group owns a merge-th. By rule 5 the same unit has run, and its
/// output has travelled, on stages 0 .. s-1 before: `fill(s)`. Likewise its last unit with tokens
/// is B in chunk 0 of slices that begin their samples, after which B and a transfer follow on
/// stages s-1 .. 0, and O on each stage after its B: `tail(s)`. Between the two the device executes
/// all its units one after another; no price is below its work at the model's rates
/// (RatedCostModel), and the tokens and pairs of a sample are divided among the devices of a stage
/// without loss, however it is sliced or merged, so one of dp devices has at least the mean:
/// `work`. Without merging a sample lies on one rank: `sample`; and of k dp + 1 samples some rank
/// holds k + 1: `ranks`, the k + 1 shortest of the k dp + 1 longest. For `path` take line j: all F
/// of the sample there precede its last slice's way on to the end of the line, H of that slice, and
/// the way back of the first B, which reads every key; all its B at line j follow; then the drain.
/// Prices round their terms to picoseconds, a table layer by layer, so that every slice is given
/// 30 + 8 layers of them back.
/// Recomputation, regrouping, R, launches but for the fill, drain and path, tiles, links but the
/// faster and waiting are counted as nothing.
///
/// O(n log n) in samples, times stages. Throws InvalidInput where the plan's degrees, stages, cost
/// or lengths are out of range.
template <RatedCostModel Model>
[[nodiscard]] LowerBound iteration_bound(const Plan& plan, const Model& model);

/// The same by the plan's own cost.
[[nodiscard]] inline LowerBound iteration_bound(const Plan& plan) {
  return std::visit([&](const auto& model) { return iteration_bound(plan, model); },
                    make_model(plan));
}

namespace detail {

/// The pieces of the bound. Times in nanoseconds, work in picoseconds of one device.
template <RatedCostModel Model>
class BoundTerms {
 public:
  BoundTerms(const Plan& plan, const Model& model)
      : plan_(plan), model_(model), line_(line_of(plan)), rates_(model.rates()) {
    fast_.bytes_per_s = std::max(plan.cluster.inside.bytes_per_s, plan.cluster.between.bytes_per_s);
    fast_.latency_s = std::min(plan.cluster.inside.latency_s, plan.cluster.between.latency_s);
    Tokens shortest = plan.samples.front();
    for (const Tokens length : plan.samples) shortest = std::min(shortest, length);
    const std::int64_t first = std::min(shortest, plan.parallel.granularity).value;
    const std::int64_t merge = plan.parallel.merge;
    first_.tokens = {(first + merge - 1) / merge};
    first_.pairs2 = first_.tokens.value * first_.tokens.value;
    first_.filled_pairs2 = first_.pairs2;
    first_.segments = 1;
    first_.runs = 1;
    last_ = first_;
    last_.tokens = {1};
  }

  /// Prices the slice that ends a sample of `length` tokens: one token that reads every key.
  void set_longest(Tokens length) { last_.pairs2 = last_.filled_pairs2 = 2 * length.value - 1; }

  [[nodiscard]] Nanos hop() const {
    if (line_.pp == 1) return {};
    const std::int64_t boundary =
        layer_bytes(plan_.model, plan_.memory.gradient_bytes, plan_.parallel.tp).boundary;
    const Bytes bytes{plan_.parallel.merge == 1 ? boundary : 0};
    return std::min(model_.transfer(bytes, plan_.cluster.inside),
                    model_.transfer(bytes, plan_.cluster.between));
  }
  [[nodiscard]] Nanos first_forward(std::int32_t line) const {
    return model_.forward(first_, stage(line));
  }
  [[nodiscard]] Nanos first_backward(std::int32_t line) const {
    return model_.backward(first_, stage(line), Recompute::none);
  }
  [[nodiscard]] Nanos last_forward(std::int32_t line) const {
    return model_.forward(last_, stage(line));
  }
  [[nodiscard]] Nanos last_backward(std::int32_t line) const {
    return model_.backward(last_, stage(line), Recompute::none);
  }
  [[nodiscard]] Nanos last_head() const {
    HeadLoad load;
    load.tokens = {1};
    load.tensor_parallel = plan_.parallel.tp;
    load.tile = plan_.memory.head_tile;
    load.link = load.tensor_link = fast_;
    if (plan_.parallel.head == Head::shard) load.shards = plan_.parallel.pp;
    load.vocab = head_rows(plan_, plan_.parallel.pp - 1);
    return model_.head(load);
  }
  [[nodiscard]] Nanos optimizer(std::int32_t pp) const {
    const bool sharded = plan_.memory.optimizer == OptimizerState::sharded;
    const std::int64_t tp = plan_.parallel.tp;
    const std::int64_t weights = device_weights(plan_, pp).total() * plan_.model.bytes_per_element;
    const Bytes gathered{sharded ? (weights + tp - 1) / tp : 0};
    const auto over = [&](const Link& link) {
      return model_.optimizer(optimizer_bytes(plan_, pp), gathered, plan_.parallel.dp, link);
    };
    return std::min(over(plan_.cluster.inside), over(plan_.cluster.between));
  }

  /// From the start to the first unit with tokens on stage `pp`.
  [[nodiscard]] Nanos fill(std::int32_t pp) const {
    Nanos sum;
    for (std::int32_t stage = 0; stage < pp; ++stage) sum += first_forward(stage) + hop();
    return sum;
  }
  /// From the last unit with tokens on stage `pp` to the end.
  [[nodiscard]] Nanos tail(std::int32_t pp) const {
    Nanos drained, longest;
    for (std::int32_t stage = pp;; --stage) {
      longest = std::max(longest, drained + optimizer(stage));
      if (stage == 0) return longest;
      drained += hop() + first_backward(stage - 1);
    }
  }

  /// Work of a sample on one place of the line, in one pass, without the head.
  [[nodiscard]] Wide line_work(std::int32_t line, Tokens length, bool back) const {
    Wide work = layer_work(rates_, length, stage(line).layers, back);
    if (line == 0) {
      work += picos(length.value, back ? rates_.embedding_backward : rates_.embedding_forward);
    }
    return work;
  }
  /// Work of a sample on all chunks of a stage, less what rounding may have taken from prices.
  [[nodiscard]] Wide stage_work(std::int32_t pp, Tokens length) const {
    Wide work = 0;
    for (std::int32_t chunk = 0; chunk < line_.chunks; ++chunk) {
      const std::int32_t line = line_.at(pp, chunk);
      work += line_work(line, length, false) + line_work(line, length, true);
    }
    const std::int64_t rows = head_rows(plan_, pp);
    if (rows > 0) work += head_work(rates_, length, rows);
    return std::max<Wide>(work - rounding(length) * line_.chunks, 0);
  }
  [[nodiscard]] Wide rounding(Tokens length) const {
    const std::int64_t granularity = plan_.parallel.granularity.value;
    const std::int64_t slices = (length.value + granularity - 1) / granularity;
    return Wide{30 + 8 * plan_.model.layers} * slices * plan_.parallel.merge * plan_.parallel.tp;
  }
  /// Picoseconds of `devices` devices as nanoseconds of each, rounded down.
  [[nodiscard]] Nanos each(Wide work, std::int64_t devices) const {
    return {static_cast<std::int64_t>(work / (Wide{devices} * plan_.parallel.tp * 1000))};
  }

  /// The way of the longest sample through the line and back, all its work done at `line`.
  [[nodiscard]] Nanos path(std::int32_t line, Tokens length) const {
    Nanos sum = last_head();
    for (std::int32_t at = 0; at < line; ++at) {
      sum += first_forward(at) + hop() + hop() + first_backward(at);
    }
    for (std::int32_t at = line + 1; at < line_.size(); ++at) {
      sum += hop() + last_forward(at) + last_backward(at) + hop();
    }
    const Wide work = line_work(line, length, false) + line_work(line, length, true);
    return sum + each(std::max<Wide>(work - rounding(length), 0), 1) + optimizer(0);
  }

 private:
  [[nodiscard]] StageLoad stage(std::int32_t line) const {
    StageLoad stage;
    stage.layers = chunk_layers(plan_, line_.stage(line), line_.chunk(line));
    stage.embedding = line == 0;
    stage.tensor_parallel = plan_.parallel.tp;
    stage.tensor_link = stage.exchange_link = fast_;
    return stage;
  }

  const Plan& plan_;
  const Model& model_;
  Line line_;
  WorkRates rates_;
  Link fast_;
  PackLoad first_, last_;
};

}  // namespace detail

template <RatedCostModel Model>
LowerBound iteration_bound(const Plan& plan, const Model& model) {
  const Parallel& degrees = plan.parallel;
  require(degrees.dp > 0 && degrees.pp > 0 && degrees.tp > 0 && degrees.chunks > 0,
          "iteration_bound: dp, pp, tp and chunks must be > 0");
  require(degrees.merge > 0, "iteration_bound: merge must be > 0", degrees.merge);
  require(degrees.granularity.value > 0, "iteration_bound: granularity must be > 0",
          degrees.granularity.value);
  if (plan.samples.empty()) return {Nanos{}, "work", 0};
  std::vector<Tokens> longest = plan.samples;
  std::sort(longest.begin(), longest.end(), std::greater<>());
  require(longest.back().value > 0 && longest.front().value <= std::int64_t{1} << 31,
          "iteration_bound: a sample's length must be in [1, 2^31]",
          longest.back().value > 0 ? longest.front().value : longest.back().value);

  detail::BoundTerms<Model> terms(plan, model);
  terms.set_longest(longest.front());
  LowerBound best;
  const auto offer = [&](Nanos value, const char* term, std::int32_t pp) {
    if (best.term.empty() || value > best.value) best = {value, term, pp};
  };
  const auto ranks = static_cast<std::size_t>(degrees.dp);
  for (std::int32_t pp = 0; pp < degrees.pp; ++pp) {
    const Nanos around = terms.fill(pp) + terms.tail(pp);
    std::vector<detail::Wide> up_to = {0};  // work of the longest n samples
    for (const Tokens length : longest) {
      up_to.push_back(up_to.back() + terms.stage_work(pp, length));
    }
    offer(around + terms.each(up_to.back(), degrees.dp), "work", pp);
    if (degrees.merge > 1) continue;
    offer(around + terms.each(up_to[1], 1), "sample", pp);
    for (std::size_t k = 1; k * ranks < longest.size(); ++k) {
      offer(around + terms.each(up_to[k * ranks + 1] - up_to[k * ranks - k], 1), "ranks", pp);
    }
  }
  const Line line = line_of(plan);
  for (std::int32_t at = 0; degrees.merge == 1 && at < line.size(); ++at) {
    offer(terms.path(at, longest.front()), "path", line.stage(at));
  }
  return best;
}

}  // namespace slimpack
