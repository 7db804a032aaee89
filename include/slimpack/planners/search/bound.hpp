// SPDX-License-Identifier: Apache-2.0
// A proven lower bound on the time of a step, over all valid plans of its samples.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/int128.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/cost/any_model.hpp"
#include "slimpack/cost/cost_model.hpp"
#include "slimpack/cost/memory_model.hpp"
#include "slimpack/cost/price.hpp"
#include "slimpack/plan/cp_shard.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/plan/virtual_stages.hpp"
#include "slimpack/planners/search/detail/bound_work.hpp"
#include "slimpack/schedule/longest_first.hpp"

namespace slimpack::planners {

/// A lower bound and the term that gives it.
struct LowerBound {
  Nanos value;  ///< no valid plan's step is shorter
  /// The term that gives the bound, the first of equals:
  /// `work`: a stage's work over its data-parallel ranks, after the fill and before what follows
  /// the last of it: all work and the end of the step, or all but W and the drain; `sample`: the
  /// same of the ranks that share the longest sample; `ranks`: the same of a rank that must hold
  /// several long samples (no rank shares any); `path`: the longest sample through all virtual
  /// stages and back.
  /// `+memory` behind a name says that recomputation which memory forces is part of it.
  std::string term;
  std::int32_t pp = 0;  ///< the stage that binds
  friend bool operator==(const LowerBound&, const LowerBound&) = default;
};

/// Lower bound on the iteration of every valid plan with this plan's samples, model, cluster, cost,
/// memory rules, degrees, head, stages, granularity and `max_cp`; its packs, groups, schedule and
/// placement do not matter. The proof is in docs/bound.md.
///
/// O(n log n) in samples, times kinds of stages. Throws InvalidInput where the plan's degrees,
/// stages, cost or lengths are out of range.
template <RatedCostModel Model>
[[nodiscard]] LowerBound iteration_bound(const Plan& plan, const Model& model);

/// The same where the lengths of the plan's samples are known, falling.
template <RatedCostModel Model>
[[nodiscard]] LowerBound iteration_bound(const Plan& plan, const Model& model,
                                         const std::vector<Tokens>& longest);

/// The same as the first by the plan's own cost.
[[nodiscard]] inline LowerBound iteration_bound(const Plan& plan) {
  return std::visit([&](const auto& model) { return iteration_bound(plan, model); },
                    make_model(plan));
}

namespace detail {

inline void check_length(Tokens length) {
  require(length.value > 0 && length.value <= std::int64_t{1} << 31,
          "iteration_bound: a sample's length must be in [1, 2^31]", length.value);
}

/// What must come before and after a stage's work. Times are those of the smallest legal slices.
template <RatedCostModel Model>
class BoundTerms {
 public:
  BoundTerms(const Plan& plan, const Model& model, Tokens shortest, Tokens longest)
      : plan_(plan),
        model_(model),
        virtual_stages_(virtual_stages_of(plan)),
        fast_(fastest_link(plan.cluster)) {
    const std::int64_t ranks = most_ranks(plan), granularity = plan.parallel.granularity.value;
    const std::int64_t first = std::min(shortest.value, granularity);
    first_.tokens = {(first + ranks - 1) / ranks};
    first_.pairs2 = first_.filled_pairs2 = first_.tokens.value * first_.tokens.value;
    first_.segments = first_.runs = 1;
    // The last slice reads every key; a rank of several has some of its rows or some of its pairs.
    const std::int64_t last = (longest.value - 1) % granularity + 1;
    last_.tokens = {(last + ranks - 1) / ranks};
    if (ranks == 1) last_.pairs2 = last_.filled_pairs2 = last * (2 * longest.value - last);
    last_.segments = ranks == 1 ? 1 : 0;
    last_.runs = 1;
    hop_ = hop();
    for (std::int32_t line = 0; line < virtual_stages_.size(); ++line) {
      const StageLoad of = stage(line);
      lines_.push_back({model_.forward(first_, of), backward(first_, of), model_.forward(last_, of),
                        backward(last_, of), last_bucket(line)});
    }
    for (std::int32_t pp = 0; pp < virtual_stages_.pp; ++pp) optimizer_.push_back(optimizer(pp));
  }

  /// From the start to the first unit with tokens on a virtual stage.
  [[nodiscard]] Nanos fill(std::int32_t i) const {
    Nanos sum;
    for (std::int32_t line = 0; line < i; ++line) {
      sum += at(line).first_forward + hop_;
    }
    return sum;
  }
  /// From the last B with tokens on a virtual stage to the end.
  [[nodiscard]] Nanos tail(std::int32_t i) const {
    Nanos drained, longest;
    for (std::int32_t line = i;; --line) {
      if (line < virtual_stages_.pp) longest = std::max(longest, drained + end(line));
      if (line == 0) return longest;
      drained += hop_ + at(line - 1).first_backward;
    }
  }
  /// From the last B or W with tokens of a virtual stage to the end.
  [[nodiscard]] Nanos end(std::int32_t i) const {
    return at(i).last_bucket + optimizer_[static_cast<std::size_t>(virtual_stages_.stage(i))];
  }
  /// The same of a stage, whichever chunk's comes last.
  [[nodiscard]] Nanos end_of_stage(std::int32_t pp) const {
    Nanos least = end(pp);
    for (std::int32_t chunk = 1; chunk < virtual_stages_.chunks; ++chunk) {
      const std::int32_t i = virtual_stages_.index(pp, chunk);
      if (stage(i).layers > 0) least = std::min(least, end(i));
    }
    return least;
  }
  /// The longest sample's last slice from a virtual stage to the last one, and back to it.
  [[nodiscard]] Nanos onward(std::int32_t i) const {
    Nanos sum;
    for (std::int32_t line = i + 1; line < virtual_stages_.size(); ++line) {
      sum += hop_ + at(line).last_forward;
    }
    return sum;
  }
  [[nodiscard]] Nanos back(std::int32_t i) const {
    Nanos sum;
    for (std::int32_t line = i + 1; line < virtual_stages_.size(); ++line) {
      sum += hop_ + at(line).last_backward;
    }
    return sum;
  }
  [[nodiscard]] Nanos last_head() const {
    HeadLoad load;
    load.tokens = last_.tokens;
    load.tensor_parallel = plan_.parallel.tp;
    load.tile = plan_.memory.head_tile;
    load.link = load.tensor_link = fast_;
    if (plan_.parallel.head == LmHead::shard) load.shards = plan_.parallel.pp;
    for (std::int32_t pp = 0; pp < plan_.parallel.pp; ++pp) {
      load.vocab = std::max(load.vocab, head_rows(plan_, pp));
    }
    return model_.head(load);
  }

 private:
  /// Prices on a virtual stage.
  struct Line {
    Nanos first_forward, first_backward, last_forward, last_backward, last_bucket;
  };
  [[nodiscard]] const Line& at(std::int32_t line) const {
    return lines_[static_cast<std::size_t>(line)];
  }
  [[nodiscard]] Nanos hop() const {
    if (virtual_stages_.pp == 1) return {};
    const std::int64_t boundary =
        layer_bytes(plan_.model, plan_.memory.gradient_bytes, plan_.parallel.tp).boundary;
    const Bytes bytes{most_ranks(plan_) == 1 ? boundary : 0};
    return over_links([&](const Link& link) { return model_.transfer(bytes, link); });
  }
  /// The shorter B, with the gradients of weights or without.
  [[nodiscard]] Nanos backward(const PackLoad& load, const StageLoad& on) const {
    const Nanos with = model_.backward(load, on, Recompute::none);
    if constexpr (SplitCostModel<Model>) {
      return std::min(with, model_.backward_apart(load, on, Recompute::none));
    } else {
      return with;
    }
  }
  /// R of the layer that the last unit passes last, with what is reduced beside chunk 0's layers.
  [[nodiscard]] Nanos last_bucket(std::int32_t i) const {
    const std::int32_t pp = virtual_stages_.stage(i), chunk = virtual_stages_.chunk(i);
    const std::int64_t layers = chunk_layers(plan_, pp, chunk), tp = plan_.parallel.tp;
    const std::int64_t weights = reduced_weights(plan_, pp, chunk);
    if (weights == 0 || plan_.memory.weights == WeightState::sharded) return {};
    const Bytes bytes{(weights * plan_.memory.gradient_bytes + tp - 1) / tp};
    const std::int64_t all = over_links([&](const Link& link) {
                               return model_.reduce(bytes, plan_.parallel.dp, link);
                             }).value;
    const std::int64_t earlier =
        std::max<std::int64_t>(layers - 1, 0) * plan_.model.layer_weights();
    return Nanos{all - static_cast<std::int64_t>(Int128{all} * earlier / weights)};
  }
  [[nodiscard]] Nanos optimizer(std::int32_t pp) const {
    const bool sharded = plan_.memory.optimizer == OptimizerState::sharded &&
                         plan_.memory.weights == WeightState::replicated;
    const std::int64_t tp = plan_.parallel.tp;
    const std::int64_t weights = device_weights(plan_, pp).total() * plan_.model.bytes_per_element;
    const Bytes gathered{sharded ? (weights + tp - 1) / tp : 0};
    return over_links([&](const Link& link) {
      return model_.optimizer(optimizer_bytes(plan_, pp), gathered, plan_.parallel.dp, link);
    });
  }
  template <class Price>
  [[nodiscard]] Nanos over_links(const Price& price) const {
    return std::min(price(plan_.cluster.inside), price(plan_.cluster.between));
  }
  [[nodiscard]] StageLoad stage(std::int32_t line) const {
    StageLoad stage;
    stage.layers = chunk_layers(plan_, virtual_stages_.stage(line), virtual_stages_.chunk(line));
    stage.embedding = line == 0;
    stage.tensor_parallel = plan_.parallel.tp;
    stage.tensor_link = stage.exchange_link = fast_;
    return stage;
  }

  const Plan& plan_;
  const Model& model_;
  VirtualStages virtual_stages_;
  Link fast_;
  PackLoad first_, last_;
  Nanos hop_;
  std::vector<Line> lines_;       // by virtual stage
  std::vector<Nanos> optimizer_;  // by stage
};

/// Work of some samples on one stage, and the part of it that is recomputation which memory forces.
struct SampleWork {
  Int128 work = 0, again = 0;
};
/// Samples of which a stage's work bounds the step.
struct StageSums {
  SampleWork all, longest;  ///< of all samples; of the longest
  /// Of the samples that some rank has at least where no rank shares any: of the k ranks + 1
  /// longest, for some k, the k + 1 shortest. That k which takes longest, the first of equals.
  std::optional<SampleWork> rank;
};
/// F and H of a sample of each length on one stage, and the recomputation that memory forces: the
/// same with W and without. `longest` are the lengths, falling.
[[nodiscard]] inline std::vector<SampleWork> forward_work(const BoundWork& work, std::int32_t pp,
                                                          const std::vector<Tokens>& longest) {
  std::vector<SampleWork> forward;
  forward.reserve(longest.size());
  for (std::size_t i = 0; i < longest.size(); ++i) {
    if (i > 0 && longest[i] == longest[i - 1]) continue;
    forward.push_back({work.forward(pp, longest[i]), work.recomputed(pp, longest[i])});
  }
  return forward;
}
/// `longest` are the lengths, falling, `forward` what `forward_work` says of them; `ranks` is 0
/// where ranks may share samples.
[[nodiscard]] inline StageSums stage_sums(const BoundWork& work, std::int32_t pp,
                                          const std::vector<Tokens>& longest,
                                          const std::vector<SampleWork>& forward,
                                          std::size_t ranks) {
  struct Run {  // samples of one length: the first, each of them, and all before
    std::size_t first;
    SampleWork each, before;
  };
  std::vector<Run> runs;  // where they are asked for below
  if (ranks > 0) runs.reserve(forward.size());
  StageSums sums;
  SampleWork each, before;
  auto known_work = forward.begin();
  for (std::size_t i = 0; i < longest.size();) {
    const SampleWork& known = *known_work++;
    const Int128 least = known.work + work.backward(pp, longest[i]), more = known.again;
    // What rounding gives back must not make a shorter sample count for more than a longer one.
    const Int128 again = i == 0 ? more : std::min(each.again, more);
    each = {(i == 0 ? least : std::min(each.work - each.again, least)) + again, again};
    if (i == 0) sums.longest = each;
    if (ranks > 0) runs.push_back({i, each, before});
    std::size_t end = i + 1;
    while (end < longest.size() && longest[end] == longest[i]) ++end;
    const auto count = static_cast<Int128>(end - i);
    before = {before.work + count * each.work, before.again + count * each.again};
    i = end;
  }
  sums.all = before;
  if (ranks == 0) return sums;
  // Of the n longest; n never falls for one `run`.
  const auto upto = [&](std::size_t n, std::size_t& run) {
    while (run + 1 < runs.size() && runs[run + 1].first <= n) ++run;
    const auto count = static_cast<Int128>(n - runs[run].first);
    return SampleWork{runs[run].before.work + count * runs[run].each.work,
                      runs[run].before.again + count * runs[run].each.again};
  };
  std::size_t from = 0, to = 0;
  Nanos most{-1};
  Int128 enough = 0;  // work that takes longer than `most`
  for (std::size_t k = 1; k * ranks < longest.size(); ++k) {
    const SampleWork first = upto(k * ranks - k, from), last = upto(k * ranks + 1, to);
    const SampleWork held{last.work - first.work, last.again - first.again};
    if (held.work < enough) continue;
    sums.rank = held;
    most = work.each(held.work, 1);
    enough = work.longer_than(most);
  }
  return sums;
}

}  // namespace detail

template <RatedCostModel Model>
LowerBound iteration_bound(const Plan& plan, const Model& model) {
  for (const Tokens length : plan.samples) detail::check_length(length);
  const std::vector<std::uint32_t> order = schedule::longest_first(
      plan.samples.size(), [&](std::uint32_t sample) { return plan.samples[sample].value; });
  std::vector<Tokens> longest(order.size());
  std::transform(order.begin(), order.end(), longest.begin(),
                 [&](std::uint32_t sample) { return plan.samples[sample]; });
  return iteration_bound(plan, model, longest);
}

template <RatedCostModel Model>
LowerBound iteration_bound(const Plan& plan, const Model& model,
                           const std::vector<Tokens>& longest) {
  const Parallel& degrees = plan.parallel;
  require(degrees.dp > 0 && degrees.pp > 0 && degrees.tp > 0 && degrees.chunks > 0,
          "iteration_bound: dp, pp, tp and chunks must be > 0");
  require(degrees.max_cp > 0, "iteration_bound: max_cp must be > 0", degrees.max_cp);
  require(degrees.granularity.value > 0, "iteration_bound: granularity must be > 0",
          degrees.granularity.value);
  if (longest.empty()) return {Nanos{}, "work", 0};
  detail::check_length(longest.back());
  detail::check_length(longest.front());
  const detail::BoundTerms<Model> terms(plan, model, longest.back(), longest.front());
  // All work, and all but W of plans whose B all leave weights apart: W may fill the drain.
  const std::array<detail::BoundWork, 2> work{
      detail::BoundWork(plan, model.rates()),
      detail::BoundWork(plan, detail::without_weights(model.rates()))};
  LowerBound best;
  const auto offer = [&](Nanos value, const char* term, bool memory, std::int32_t pp) {
    if (!best.term.empty() && value <= best.value) return;
    best = {value, std::string(term) + (memory ? "+memory" : ""), pp};
  };
  const auto ranks = static_cast<std::size_t>(degrees.dp);
  const std::int64_t most = detail::most_ranks(plan);
  std::vector<std::array<detail::StageSums, 2>> sums;
  std::vector<std::size_t> sums_of;
  for (std::int32_t pp = 0; pp < degrees.pp; ++pp) {
    const Nanos before = terms.fill(pp) + work[1].launches(pp);
    const std::array<Nanos, 2> after{terms.end_of_stage(pp), terms.tail(pp)};
    std::size_t kind = sums.size();
    for (std::int32_t other = 0; other < pp && kind == sums.size(); ++other) {
      if (work[0].alike(other, pp)) kind = sums_of[static_cast<std::size_t>(other)];
    }
    sums_of.push_back(kind);
    if (kind == sums.size()) {
      const std::size_t apart = most == 1 ? ranks : 0;
      const std::vector<detail::SampleWork> forward = detail::forward_work(work[0], pp, longest);
      sums.push_back({detail::stage_sums(work[0], pp, longest, forward, apart),
                      detail::stage_sums(work[1], pp, longest, forward, apart)});
    }
    for (std::size_t part = 0; part < 2; ++part) {
      const auto offer_some = [&](const detail::SampleWork& some, std::int64_t devices,
                                  const char* term) {
        offer(before + work[part].each(some.work, devices) + after[part], term, some.again > 0, pp);
      };
      const detail::StageSums& sum = sums[kind][part];
      offer_some(sum.all, degrees.dp, "work");
      offer_some(sum.longest, most, "sample");
      if (sum.rank) offer_some(*sum.rank, 1, "ranks");
    }
  }
  const VirtualStages virtual_stages = virtual_stages_of(plan);
  Nanos there, home;
  std::int32_t stage = 0;
  for (std::int32_t i = 0; i < virtual_stages.size(); ++i) {
    const Nanos forward = work[0].each(work[0].line(i, longest.front(), false), most);
    const Nanos forth = terms.fill(i) + forward + work[0].launch(i, false) + terms.onward(i);
    if (forth > there) {
      there = forth;
      stage = virtual_stages.stage(i);
    }
    const std::array<Nanos, 2> after{terms.end(i), terms.tail(i)};
    for (std::size_t part = 0; part < 2; ++part) {
      const Nanos backward = work[part].each(work[part].line(i, longest.front(), true), most);
      home = std::max(home, terms.back(i) + work[1].launch(i, true) + backward + after[part]);
    }
  }
  offer(there + terms.last_head() + home, "path", false, stage);
  return best;
}

}  // namespace slimpack::planners
