// SPDX-License-Identifier: Apache-2.0
// Seconds from coefficients fitted to a measured profile; what was not measured stays analytic.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/cost/cost_model.hpp"
#include "slimpack/cost/head_exchange.hpp"
#include "slimpack/cost/terms.hpp"
#include "slimpack/plan/cost_spec.hpp"

namespace slimpack {

namespace detail {

/// FittedTerms in picoseconds.
struct FittedPicos {
  Picos unit = 0;
  double layer = 0, token = 0, pair2 = 0, own_pair2 = 0, key = 0, segment = 0, byte = 0;
  double weights = 0, accumulators = 0;  // per layer
  double spill_token = 0;
  std::int64_t spill_from = 0;  // tokens

  [[nodiscard]] Picos linear(std::int64_t tokens, std::int64_t layers,
                             std::int64_t tp) const noexcept {
    return picos(layers, layer) + picos(tokens * layers, token / static_cast<double>(tp)) +
           spilled(tokens, layers, tp) + picos(layers, weights / static_cast<double>(tp)) +
           picos(layers, accumulators / static_cast<double>(tp));
  }
  [[nodiscard]] Picos spilled(std::int64_t tokens, std::int64_t layers,
                              std::int64_t tp) const noexcept {
    // A device has a tp-th of the rows' bytes, or of their columns.
    const std::int64_t beyond = std::max<std::int64_t>(tokens - spill_from * tp, 0);
    return picos(beyond * layers, spill_token / static_cast<double>(tp));
  }
  [[nodiscard]] Picos attention(const PackLoad& load, const StageLoad& stage) const noexcept {
    const auto tp = static_cast<double>(stage.tensor_parallel);
    return picos(load.pairs2, stage.layers, pair2 / tp) +
           picos(load.own_pairs2, stage.layers, own_pair2 / tp) +
           picos(load.keys, stage.layers, key / tp) + picos(load.segments, stage.layers, segment);
  }
};

/// Whole tokens. Throws InvalidInput where they are out of range.
[[nodiscard]] inline std::int64_t spill_from(double tokens, const char* kind) {
  require(tokens >= 0 && tokens <= 1e9,
          std::string("cost.") + kind + ".spill_from must be from 0 to 1e9",
          std::to_string(tokens));
  return static_cast<std::int64_t>(tokens);
}

/// Throws InvalidInput naming the coefficient that is negative or not finite.
[[nodiscard]] inline std::optional<FittedPicos> fitted_picos(
    const std::optional<FittedTerms>& terms, const char* kind, const ModelShape& model,
    const MemorySpec& memory) {
  if (!terms) return std::nullopt;
  const auto each = [&](double value, const char* name) {
    require(value >= 0 && std::isfinite(value),
            std::string("cost.") + kind + "." + name + " must be finite and >= 0",
            std::to_string(value));
    return value * 1e12;
  };
  FittedPicos result;
  result.unit = picos(1, each(terms->unit, "unit"));
  result.layer = each(terms->layer, "layer");
  result.token = each(terms->token, "token");
  result.pair2 = each(terms->pair, "pair") / 2;
  result.own_pair2 = each(terms->own_pair, "own_pair") / 2;
  result.key = each(terms->key, "key");
  result.segment = each(terms->segment, "segment");
  result.byte = each(terms->byte, "byte");
  result.spill_token = each(terms->spill_token, "spill_token");
  result.spill_from = spill_from(terms->spill_from, kind);
  const auto bytes = [](std::int64_t count) { return static_cast<double>(count); };
  const std::int64_t weights = model.layer_matrix_weights();
  result.weights =
      each(terms->weight_byte, "weight_byte") * bytes(weights * model.bytes_per_element);
  result.accumulators = each(terms->accumulator_byte, "accumulator_byte") *
                        bytes(2 * weights * memory.gradient_bytes);
  return result;
}

}  // namespace detail

/// Throws InvalidInput unless prices of B apart and of W are there together, beside those of B.
inline void require_whole(const FittedCost& cost) {
  require(
      cost.layer_apart.has_value() == cost.layer_weight.has_value() &&
          (!cost.layer_apart || cost.layer_backward),
      "cost: B that leaves weights apart (apart, layer_apart) and W (weight, layer_weight) must "
      "be measured together, beside B (layer backward, layer_backward)");
}

/// Fitted costs (docs/costs.md). `layer` repeats the linear terms of the forward pass, `full` all
/// of them, `light` has its own terms or else the analytic model's bytes. Coefficients hold for one
/// tensor-parallel device and for links inside a node; the rest is analytic. All answers are O(1).
class FittedModel {
 public:
  /// Throws InvalidInput naming the first rate or coefficient that is out of range.
  FittedModel(const FittedCost& cost, const ModelShape& model, const Cluster& cluster,
              const MemorySpec& memory)
      : terms_(model, cluster, memory),
        layer_forward_(detail::fitted_picos(cost.layer_forward, "layer_forward", model, memory)),
        layer_backward_(detail::fitted_picos(cost.layer_backward, "layer_backward", model, memory)),
        layer_apart_(detail::fitted_picos(cost.layer_apart, "layer_apart", model, memory)),
        layer_weight_(detail::fitted_picos(cost.layer_weight, "layer_weight", model, memory)),
        embedding_forward_(
            detail::fitted_picos(cost.embedding_forward, "embedding_forward", model, memory)),
        embedding_backward_(
            detail::fitted_picos(cost.embedding_backward, "embedding_backward", model, memory)),
        head_(detail::fitted_picos(cost.head, "head", model, memory)),
        optimizer_(detail::fitted_picos(cost.optimizer, "optimizer", model, memory)),
        p2p_(detail::fitted_picos(cost.p2p, "p2p", model, memory)),
        reduce_(detail::fitted_picos(cost.reduce, "reduce", model, memory)),
        exchange_(detail::fitted_picos(cost.exchange, "exchange", model, memory)),
        tensor_(detail::fitted_picos(cost.tensor, "tp", model, memory)),
        context_forward_(detail::fitted_picos(cost.context_forward, "cp_forward", model, memory)),
        context_backward_(
            detail::fitted_picos(cost.context_backward, "cp_backward", model, memory)),
        light_(detail::fitted_picos(cost.light, "light", model, memory)) {
    require(!head_ || model.vocab > 0, "model.vocab must be > 0", model.vocab);
    require_whole(cost);
    measured_apart_ = cost.layer_apart.has_value();
    if (!measured_apart_) divide_backward();
  }

  /// F of a pack on a stage.
  [[nodiscard]] Nanos forward(const PackLoad& load, const StageLoad& stage) const noexcept {
    const Picos linear = linear_again(load, stage, false);
    Picos time = embedding(embedding_forward_, load, stage, false) + linear +
                 in_cp_group(attention(layer_forward_, load, stage, false), load, stage, false,
                             terms_.beside_exchange(load, stage, false)) +
                 tensor_parallel(load, stage, kTensorForward, linear,
                                 terms_.beside_tensor(load, stage, false));
    if (layer_forward_ && stage.layers > 0 && Terms::starts(load)) {
      time += layer_forward_->unit;
    }
    return to_nanos(time);
  }

  /// B of a pack on a stage, with what is computed again because F has not kept it.
  [[nodiscard]] Nanos backward(const PackLoad& load, const StageLoad& stage,
                               Recompute recompute) const noexcept {
    const Picos linear = layer_backward_ ? linear_of(*layer_backward_, load, stage)
                                         : terms_.linear_backward(load.tokens, stage);
    return to_nanos(layers_backward(layer_backward_, load, stage, recompute, linear,
                                    terms_.cluster().backward_kernels, kTensorBackward) +
                    regroup(layer_backward_, load, stage, recompute, false));
  }

  /// What F of a pack, or B, takes because its rows do not stay in caches
  /// (`FittedTerms::spill_token`).
  [[nodiscard]] Nanos spilled(Tokens tokens, const StageLoad& stage, bool back) const noexcept {
    const std::optional<detail::FittedPicos>& fitted = back ? layer_backward_ : layer_forward_;
    return fitted ? to_nanos(fitted->spilled(tokens.value, stage.layers, stage.tensor_parallel))
                  : Nanos{};
  }

  /// B of a pack that leaves the gradients of weights apart. Where it was not measured, a fitted
  /// layer is divided between B and W as the analytic one.
  [[nodiscard]] Nanos backward_apart(const PackLoad& load, const StageLoad& stage,
                                     Recompute recompute) const noexcept {
    const Picos linear = layer_apart_ ? linear_of(*layer_apart_, load, stage)
                                      : terms_.linear_backward_apart(load.tokens, stage);
    return to_nanos(layers_backward(layer_apart_, load, stage, recompute, linear,
                                    terms_.backward_apart_kernels(), kTensorBackwardApart) +
                    regroup(layer_apart_, load, stage, recompute, true));
  }

  /// W of a pack: the gradients of weights alone.
  [[nodiscard]] Nanos weight(const PackLoad& load, const StageLoad& stage) const noexcept {
    const Picos linear = layer_weight_
                             ? linear_of(*layer_weight_, load, stage)
                             : terms_.linear_weight(load.tokens, stage) +
                                   terms_.launches(load, stage.layers * terms_.weight_kernels());
    return to_nanos(linear + tensor_parallel(load, stage, kTensorWeight, linear) +
                    terms_.regroup_weight(load, stage));
  }

  /// H: final norm, vocabulary projection, loss and their gradients.
  [[nodiscard]] Nanos head(const HeadLoad& load) const noexcept {
    const Picos tensor =
        2 * beyond_collective(load.tokens.value, load.tensor_parallel, load.tensor_link);
    if (!head_) {
      const auto own = [&](std::int64_t tokens) { return terms_.own_head(tokens, load); };
      return to_nanos(terms_.head(load, own, terms_.head_launches(load) + tensor));
    }
    const double row = head_->token / rows() / static_cast<double>(load.tensor_parallel);
    const auto own = [&](std::int64_t tokens) { return picos(tokens * load.vocab, row); };
    const bool starts = load.tokens.value > 0 || load.shards > 1;
    return to_nanos(terms_.head(load, own, (starts ? head_->unit : 0) + tensor));
  }

  /// One message over a link.
  [[nodiscard]] Nanos transfer(Bytes bytes, const Link& link) const noexcept {
    if (!p2p_ || link != terms_.cluster().inside) {
      return to_nanos(terms_.transfer(bytes.value, link));
    }
    return to_nanos(p2p_->unit + picos(bytes.value, p2p_->byte));
  }

  /// R of so many bytes of gradients over `ranks` ranks.
  [[nodiscard]] Nanos reduce(Bytes bytes, std::int64_t ranks, const Link& link) const noexcept {
    return to_nanos(terms_.reduction_collectives() * collective(bytes.value, ranks, link));
  }

  /// O: the update touches and then gathers so many bytes.
  [[nodiscard]] Nanos optimizer(Bytes touched, Bytes gathered, std::int64_t ranks,
                                const Link& link) const noexcept {
    Picos time = collective(gathered.value, ranks, link);
    if (!optimizer_) {
      time += terms_.update(touched.value);
    } else if (touched.value > 0) {
      time += optimizer_->unit + picos(touched.value, optimizer_->byte);
    }
    return to_nanos(time);
  }

  /// What units of work cost at best, for lower bounds and the ideal time.
  [[nodiscard]] WorkRates rates() const noexcept {
    WorkRates rates = terms_.rates();
    if (layer_forward_) {
      rates.forward_token = layer_forward_->token;
      rates.forward_pair2 = layer_forward_->pair2;
      rates.forward_unit = static_cast<double>(layer_forward_->unit);
      rates.forward_launch = layer_forward_->layer;
      rates.forward_segment = layer_forward_->segment;
      rates.forward_tiles = false;
    }
    if (layer_backward_) {
      rates.backward_token = layer_backward_->token;
      rates.backward_pair2 = layer_backward_->pair2;
      rates.backward_unit = static_cast<double>(layer_backward_->unit);
      rates.backward_launch = layer_backward_->layer;
      rates.backward_segment = layer_backward_->segment;
      rates.backward_tiles = false;
      rates.apart_token = layer_apart_->token;
      rates.apart_launch = layer_apart_->layer;
      if (measured_apart_) at_most_in_parts(rates);
    }
    if (tensor_) at_most_measured(rates);
    if (embedding_forward_) rates.embedding_forward = embedding_forward_->token;
    if (embedding_backward_) rates.embedding_backward = embedding_backward_->token;
    if (light_) rates.light_token = light_->token;
    if (head_) {
      rates.head_row = head_->token / rows();
      rates.head_token = 0;
      rates.head_unit = static_cast<double>(head_->unit);
    }
    return rates;
  }

 private:
  using Fitted = std::optional<detail::FittedPicos>;

  /// Work per token is divided as in the analytic model, the fixed cost of a layer as its kernels
  /// are; W has the accumulators, B reads the weights, and each has the fixed cost of a unit.
  void divide_backward() {
    if (!layer_backward_) return;
    layer_apart_ = layer_weight_ = layer_backward_;
    const double kernels =
        static_cast<double>(std::max<std::int64_t>(terms_.cluster().backward_kernels, 1));
    const double share = terms_.weight_share();
    const double launches = static_cast<double>(terms_.weight_kernels()) / kernels;
    layer_weight_->token = layer_backward_->token * share;
    layer_apart_->token = layer_backward_->token * (1 - share);
    layer_weight_->spill_token = layer_backward_->spill_token * share;
    layer_apart_->spill_token = layer_backward_->spill_token * (1 - share);
    layer_weight_->layer = layer_backward_->layer * launches;
    layer_apart_->layer = layer_backward_->layer * (1 - launches);
    layer_weight_->weights = layer_apart_->accumulators = 0;
  }
  [[nodiscard]] static Picos linear_of(const detail::FittedPicos& fitted, const PackLoad& load,
                                       const StageLoad& stage) noexcept {
    if (stage.layers == 0 || !Terms::starts(load)) return 0;
    return fitted.unit + fitted.linear(load.tokens.value, stage.layers, stage.tensor_parallel);
  }
  /// What was measured apart may be less than B: rates hold for both.
  void at_most_in_parts(WorkRates& rates) const noexcept {
    const auto least = [](double& rate, double other) { rate = std::min(rate, other); };
    least(rates.backward_token, layer_apart_->token + layer_weight_->token);
    least(rates.apart_token, rates.backward_token);
    least(rates.backward_launch, layer_apart_->layer + layer_weight_->layer);
    least(rates.apart_launch, rates.backward_launch);
    least(rates.backward_pair2, layer_apart_->pair2);
    least(rates.backward_segment, layer_apart_->segment);
    least(rates.backward_unit, static_cast<double>(layer_apart_->unit));
  }
  /// Rates count bytes over the fastest link: as many as it takes for the price that was measured,
  /// where that is lower.
  void at_most_measured(WorkRates& rates) const noexcept {
    const double fastest =
        std::max(terms_.cluster().inside.bytes_per_s, terms_.cluster().between.bytes_per_s);
    const double share = std::min(1.0, tensor_->byte * 1e-12 * fastest);
    for (std::int64_t* bytes :
         {&rates.forward_tensor, &rates.backward_tensor, &rates.apart_tensor, &rates.head_tensor}) {
      *bytes = static_cast<std::int64_t>(static_cast<double>(*bytes) * share);
    }
  }
  /// Terms::tensor_parallel, where measured with the fixed cost of each collective.
  [[nodiscard]] Picos tensor_parallel(const PackLoad& load, const StageLoad& stage,
                                      std::int64_t collectives, Picos arithmetic,
                                      Picos kept = 0) const noexcept {
    if (!measured_tensor(stage.tensor_link)) {
      return terms_.tensor_parallel(load, stage, collectives, arithmetic, kept);
    }
    const std::int64_t count = collectives * stage.layers;
    if (stage.tensor_parallel == 1 || count == 0) return 0;
    const Picos traffic = tensor_bytes(load.tokens.value * count, stage.tensor_parallel) + kept;
    const Picos hidden = std::min(picos(traffic, terms_.cluster().small.tp_overlap), arithmetic);
    return traffic - hidden + terms_.taken_by_collective(hidden) +
           (Terms::starts(load) ? count * tensor_->unit : 0);
  }
  /// What a collective of rows behind which nothing runs takes beyond its analytic price.
  [[nodiscard]] Picos beyond_collective(std::int64_t tokens, std::int64_t tp,
                                        const Link& link) const noexcept {
    if (!measured_tensor(link) || tp == 1 || tokens == 0) return 0;
    return tensor_->unit + tensor_bytes(tokens, tp) -
           terms_.collective(tokens * hidden_row(), tp, link);
  }
  [[nodiscard]] bool measured_tensor(const Link& link) const noexcept {
    return tensor_ && link == terms_.cluster().inside;
  }
  /// The time of what each of `tp` devices sends of so many rows.
  [[nodiscard]] Picos tensor_bytes(std::int64_t rows, std::int64_t tp) const noexcept {
    return picos(rows * hidden_row() * (tp - 1), tensor_->byte / static_cast<double>(tp));
  }
  /// Bytes of a token's hidden state.
  [[nodiscard]] std::int64_t hidden_row() const noexcept {
    return terms_.model().hidden * terms_.model().bytes_per_element;
  }
  /// B with `linear` work and attention by `fitted`, but for regrouping; `kernels` a layer are
  /// launched beside work that is not fitted.
  [[nodiscard]] Picos layers_backward(const Fitted& fitted, const PackLoad& load,
                                      const StageLoad& stage, Recompute recompute, Picos linear,
                                      std::int64_t kernels,
                                      std::int64_t collectives) const noexcept {
    Picos time =
        embedding(embedding_backward_, load, stage, true) + linear +
        in_cp_group(attention(fitted, load, stage, true), load, stage, true,
                    terms_.beside_exchange(load, stage, true)) +
        ahead(load, stage, recompute, linear) +
        tensor_parallel(load, stage, collectives, linear, terms_.beside_tensor(load, stage, true));
    if (!fitted) time += terms_.launches(load, stage.layers * kernels);
    if (recompute == Recompute::light) time += light_again(load, stage);
    if (recompute == Recompute::layer || recompute == Recompute::full) {
      const Picos again = linear_again(load, stage, recompute == Recompute::layer);
      time += again + tensor_parallel(load, stage, kTensorAgain, again);
    }
    if (recompute == Recompute::full) {
      time += in_cp_group(attention(layer_forward_, load, stage, false), load, stage, false);
    }
    return time;
  }

  /// What `light` computes again.
  [[nodiscard]] Picos light_again(const PackLoad& load, const StageLoad& stage) const noexcept {
    if (light_) {
      return Terms::starts(load)
                 ? light_->linear(load.tokens.value, stage.layers, stage.tensor_parallel)
                 : 0;
    }
    return terms_.light(load.tokens.value * stage.layers, stage.tensor_parallel) +
           terms_.launches(load, stage.layers * terms_.recomputed_kernels(Recompute::light));
  }

  /// What rows in several runs add. Where each run is a graph, a further one has the fixed costs of
  /// F and B once more.
  [[nodiscard]] Picos regroup(const Fitted& fitted, const PackLoad& load, const StageLoad& stage,
                              Recompute recompute, bool apart) const noexcept {
    if (!terms_.cluster().small.run_graphs || !layer_forward_ || !fitted || stage.layers == 0) {
      return terms_.regroup(load, stage, recompute, apart);
    }
    const auto fixed = [&](const detail::FittedPicos& pass) {
      return pass.unit + pass.linear(0, stage.layers, stage.tensor_parallel);
    };
    return std::max<std::int64_t>(load.runs - 1, 0) * (fixed(*layer_forward_) + fixed(*fitted));
  }
  [[nodiscard]] double rows() const noexcept { return static_cast<double>(terms_.model().vocab); }

  [[nodiscard]] Picos embedding(const Fitted& fitted, const PackLoad& load, const StageLoad& stage,
                                bool back) const noexcept {
    if (!stage.embedding || !Terms::starts(load)) return 0;
    const std::int64_t tokens = load.tokens.value, tp = stage.tensor_parallel;
    const Picos beyond = beyond_collective(tokens, tp, stage.tensor_link);
    if (!fitted) return terms_.embedding(load, stage, back) + beyond;
    return fitted->unit + fitted->linear(tokens, 1, tp) +
           terms_.collective(tokens * hidden_row(), tp, stage.tensor_link) + beyond;
  }

  /// The forward pass but for attention; `kept_attention` leaves out its kernel too.
  [[nodiscard]] Picos linear_again(const PackLoad& load, const StageLoad& stage,
                                   bool kept_attention) const noexcept {
    const std::int64_t tokens = load.tokens.value, tp = stage.tensor_parallel;
    if (layer_forward_) {
      return Terms::starts(load) ? layer_forward_->linear(tokens, stage.layers, tp) : 0;
    }
    const std::int64_t kernels = kept_attention ? terms_.recomputed_kernels(Recompute::layer)
                                                : terms_.cluster().forward_kernels;
    return terms_.linear_forward(load.tokens, stage) +
           terms_.launches(load, stage.layers * kernels);
  }

  [[nodiscard]] Picos attention(const Fitted& fitted, const PackLoad& load, const StageLoad& stage,
                                bool back) const noexcept {
    return fitted ? fitted->attention(load, stage) : terms_.attention(load, stage, back);
  }

  [[nodiscard]] Picos in_cp_group(Picos attention, const PackLoad& load, const StageLoad& stage,
                                  bool back, Picos kept = 0) const noexcept {
    if (const Fitted& measured = measured_context(stage, back)) {
      // Every rank waits for all others, whose parts are as large as the largest.
      PackLoad each = load;
      each.kv_received = std::max(load.kv_received, load.kv_sent * (load.ranks - 1));
      const std::int64_t bytes =
          terms_.exchange_bytes(each, back) + own_head_bytes(load, stage, back);
      if (load.ranks <= 1 || bytes == 0 || stage.layers == 0) return attention;
      return attention + kept + picos(stage.layers, measured->layer) +
             context_bytes(bytes, stage, *measured);
    }
    if (!exchange_ || stage.exchange_link != terms_.cluster().inside) {
      return terms_.in_cp_group(attention, load, stage, back, kept);
    }
    if (load.ranks <= 1) return attention;
    const std::int64_t bytes = terms_.exchange_bytes(load, back) * stage.layers;
    const LinkPicos link{exchange_->byte, exchange_->unit};
    const Picos own = bytes == 0 ? attention : Terms::alone(attention, load);
    const auto by_heads = [&](Picos wait) {
      return heads_beside(terms_, own, load, stage, back, link, link, wait);
    };
    if (bytes == 0) return own + by_heads(kept);
    const auto tp = static_cast<double>(stage.tensor_parallel);
    const Picos traffic = picos(stage.layers, static_cast<double>(exchange_->unit)) +
                          picos(bytes, exchange_->byte / tp);
    const auto beside_rings = [&](Picos wait) {
      return overlapped(attention - own, traffic + wait, load.ranks);
    };
    return own + detail::with_one_wait(beside_rings, by_heads, kept);
  }

  [[nodiscard]] Picos ahead(const PackLoad& load, const StageLoad& stage, Recompute recompute,
                            Picos linear) const noexcept {
    if (const Fitted& measured = measured_context(stage, true)) {
      if (recompute == Recompute::full) return 0;
      const std::int64_t bytes = load.heads_sent.value * terms_.ring().heads_query;
      return context_bytes(bytes * (load.ranks - 1) / load.ranks, stage, *measured);
    }
    if (!exchange_ || stage.exchange_link != terms_.cluster().inside) {
      return queries_ahead(terms_, linear, load, stage, recompute);
    }
    const LinkPicos link{exchange_->byte, exchange_->unit};
    return queries_ahead(terms_, linear, load, stage, recompute, link, link);
  }

  /// What exchanges of F, or B, were measured to add; nothing where they were not.
  [[nodiscard]] const Fitted& measured_context(const StageLoad& stage, bool back) const noexcept {
    static constexpr Fitted kNone;
    if (stage.exchange_link != terms_.cluster().inside) return kNone;
    return back ? context_backward_ : context_forward_;
  }
  /// Bytes that a rank sends by heads in one layer, but for queries that go ahead of B.
  [[nodiscard]] std::int64_t own_head_bytes(const PackLoad& load, const StageLoad& stage,
                                            bool back) const noexcept {
    if (load.heads_sent == Tokens{}) return 0;
    const std::int64_t copies = key_copies(terms_.model(), stage.tensor_parallel, load.ranks);
    return detail::head_bytes(terms_.ring(), load, back, copies) * (load.ranks - 1) / load.ranks;
  }
  /// The price of so many bytes of a layer, of all tensor-parallel devices.
  [[nodiscard]] static Picos context_bytes(std::int64_t bytes, const StageLoad& stage,
                                           const detail::FittedPicos& measured) noexcept {
    return picos(bytes * stage.layers, measured.byte / static_cast<double>(stage.tensor_parallel));
  }

  [[nodiscard]] Picos collective(std::int64_t bytes, std::int64_t ranks,
                                 const Link& link) const noexcept {
    if (!reduce_ || link != terms_.cluster().inside) return terms_.collective(bytes, ranks, link);
    if (ranks <= 1 || bytes <= 0) return 0;
    return reduce_->unit + picos(bytes * (ranks - 1), reduce_->byte / static_cast<double>(ranks));
  }

  Terms terms_;
  Fitted layer_forward_, layer_backward_;
  Fitted layer_apart_, layer_weight_;  // measured, or of `layer_backward_`
  bool measured_apart_ = false;
  Fitted embedding_forward_, embedding_backward_;
  Fitted head_, optimizer_, p2p_, reduce_, exchange_, tensor_;
  Fitted context_forward_, context_backward_;
  Fitted light_;
};
static_assert(RatedCostModel<FittedModel> && SplitCostModel<FittedModel>);

}  // namespace slimpack
