// SPDX-License-Identifier: Apache-2.0
// The terms that cost models are summed from (docs/costs.md), in integer picoseconds.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <string>

#include "slimpack/core/error.hpp"
#include "slimpack/core/int128.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/cost/cost_model.hpp"
#include "slimpack/cost/head_dim_rate.hpp"
#include "slimpack/cost/head_exchange.hpp"
#include "slimpack/cost/picos.hpp"
#include "slimpack/plan/cluster.hpp"
#include "slimpack/plan/memory.hpp"
#include "slimpack/plan/model.hpp"
#include "slimpack/plan/plan.hpp"

namespace slimpack {

/// Elements read and written per token and layer by kernels bound by memory (docs/costs.md).
struct MovedElements {
  std::int64_t forward = 0;                           ///< in F
  std::int64_t backward = 0;                          ///< in B, nothing recomputed
  std::int64_t light = 0;                             ///< in B besides, where the mode is `light`
  std::array<std::int64_t, kRecomputeModes> saved{};  ///< inputs of products that F keeps, by mode
  std::int64_t left_apart = 0;  ///< inputs of products and gradients of what these make, for W
  /// Weights of the products that read them, a layer.
  std::array<std::int64_t, kRecomputeModes> saved_weights{};
};

/// What kernels bound by memory move of one token in one layer.
[[nodiscard]] constexpr MovedElements moved_elements(const ModelShape& model) noexcept {
  const std::int64_t hidden = model.hidden, query = model.query_width();
  const std::int64_t key = model.key_width(), ffn = model.ffn;
  MovedElements moved;
  moved.forward = 9 * hidden + 2 * (query + key) + 3 * ffn;
  moved.backward = 8 * hidden + 2 * query + 2 * (query + key) + 2 * key + 5 * ffn;
  moved.light = 4 * hidden + 3 * ffn;
  moved.saved = {2 * hidden + query + ffn, query, query, 0};
  moved.left_apart = 4 * hidden + 2 * query + 2 * key + 3 * ffn;
  const std::int64_t all = model.layer_matrix_weights();
  moved.saved_weights = {all, hidden * query, hidden * query, 0};
  return moved;
}

/// Matrix products whose weight gradient reads a kept input, by recomputation mode.
inline constexpr std::array<std::int64_t, kRecomputeModes> kProductsOfSaved = {4, 1, 1, 0};
/// Kernels that `light` repeats: two norms and the product.
inline constexpr std::int64_t kLightKernels = 3;
/// Collectives of tensor-parallel devices in a layer of F: two gathers and two reductions.
inline constexpr std::int64_t kTensorForward = 4;
/// The same of what B repeats of F: a layer's output is not made again.
inline constexpr std::int64_t kTensorAgain = 3;
/// The same of B: as many of gradients, and two more gathers of the inputs of weight gradients.
inline constexpr std::int64_t kTensorBackward = 6;
/// The same of B that leaves weights apart: two gathers and two reductions of gradients.
inline constexpr std::int64_t kTensorBackwardApart = 4;
/// The same of W: of inputs and of output gradients, those that are sharded by rows.
inline constexpr std::int64_t kTensorWeight = 4;
/// Kernels of a layer of W, which B does without where it leaves weights apart.
inline constexpr std::int64_t kWeightKernels = 4;

/// The coefficients of one model on one cluster and the terms built from them.
class Terms {
 public:
  /// Throws InvalidInput naming the first rate or size that is not positive.
  Terms(const ModelShape& model, const Cluster& cluster, const MemorySpec& memory);

  /// The model whose sizes the coefficients come from.
  [[nodiscard]] const ModelShape& model() const noexcept { return model_; }
  /// The cluster whose rates the coefficients come from.
  [[nodiscard]] const Cluster& cluster() const noexcept { return cluster_; }
  /// The rates of work as such; those that fits and tables replace are analytic here.
  [[nodiscard]] WorkRates rates() const noexcept;

  /// Matrix products and kernels bound by memory of F.
  [[nodiscard]] Picos linear_forward(Tokens tokens, const StageLoad& stage) const noexcept {
    return products_forward(tokens, stage) +
           picos(tokens.value * stage.layers, moved_forward_ / d(stage.tensor_parallel));
  }
  /// The same of B: gradients of inputs and of weights, each as many products as F.
  [[nodiscard]] Picos linear_backward(Tokens tokens, const StageLoad& stage) const noexcept {
    return products_backward(tokens, stage) +
           picos(tokens.value * stage.layers, moved_backward_ / d(stage.tensor_parallel));
  }
  /// The same of B that leaves weights apart.
  [[nodiscard]] Picos linear_backward_apart(Tokens tokens, const StageLoad& stage) const noexcept {
    return products_forward(tokens, stage) +
           picos(tokens.value * stage.layers, moved_backward_ / d(stage.tensor_parallel));
  }
  /// Matrix products of W, which read and write the accumulators.
  [[nodiscard]] Picos linear_weight(Tokens tokens, const StageLoad& stage) const noexcept {
    const double tp = d(stage.tensor_parallel);
    return beside(picos(filled_rows(tokens) * stage.layers, matrix_ / tp),
                  tokens.value > 0 ? picos(stage.layers, accumulators_ / tp) : 0);
  }
  /// What part of B's work per token is in W where it is apart.
  [[nodiscard]] double weight_share() const noexcept {
    return matrix_ / (2 * matrix_ + moved_backward_);
  }
  /// Kernels of a layer of W.
  [[nodiscard]] std::int64_t weight_kernels() const noexcept {
    return std::min(kWeightKernels, cluster_.backward_kernels);
  }
  /// Kernels of a layer of B where W is apart.
  [[nodiscard]] std::int64_t backward_apart_kernels() const noexcept {
    return cluster_.backward_kernels - weight_kernels();
  }
  /// Matrix products of F: their rows fill tiles, and the weights are read meanwhile.
  [[nodiscard]] Picos products_forward(Tokens tokens, const StageLoad& stage) const noexcept {
    const double tp = d(stage.tensor_parallel);
    return beside(picos(filled_rows(tokens) * stage.layers, matrix_ / tp),
                  tokens.value > 0 ? picos(stage.layers, weights_ / tp) : 0);
  }
  /// Matrix products of B: half read the weights, half read and write the accumulators.
  [[nodiscard]] Picos products_backward(Tokens tokens, const StageLoad& stage) const noexcept {
    const std::int64_t rows = filled_rows(tokens) * stage.layers;
    const double tp = d(stage.tensor_parallel);
    if (weights_ == 0 && accumulators_ == 0) return picos(rows, 2 * matrix_ / tp);
    return products_forward(tokens, stage) + linear_weight(tokens, stage);
  }
  /// What B of recomputation mode `light` computes again.
  [[nodiscard]] Picos light(std::int64_t rows, std::int64_t tp) const noexcept {
    return picos(rows, light_ / d(tp));
  }
  /// Attention of a pack on a stage, its filled tiles and segments included.
  [[nodiscard]] Picos attention(const PackLoad& load, const StageLoad& stage,
                                bool back) const noexcept {
    const std::int64_t pairs2 = std::max(load.filled_pairs2, load.pairs2);
    const double pair2 = back ? attention_backward_ : attention_forward_;
    const double key = back ? keys_backward_ : keys_forward_;
    const double tp = d(stage.tensor_parallel);
    return beside(picos(pairs2, stage.layers, pair2 / tp),
                  picos(load.keys, stage.layers, key / tp)) +
           segments(load.segments, stage.layers);
  }
  /// Arithmetic and traffic of the same kernels: the longer, and of the shorter what does not hide.
  [[nodiscard]] Picos beside(Picos arithmetic, Picos traffic) const noexcept {
    return std::max(arithmetic, traffic) + picos(std::min(arithmetic, traffic), not_hidden_);
  }
  /// What `count` segments add on `layers` layers.
  [[nodiscard]] Picos segments(std::int64_t count, std::int64_t layers) const noexcept {
    return picos(count, layers, segment_);
  }
  /// The fixed cost of `count` kernels.
  [[nodiscard]] Picos kernels(std::int64_t count) const noexcept { return picos(count, kernel_); }
  /// The fixed cost of a unit's `count` kernels, if it starts any.
  [[nodiscard]] Picos launches(const PackLoad& load, std::int64_t count) const noexcept {
    return starts(load) ? kernels(count) : 0;
  }
  /// Kernels of a layer that B repeats.
  [[nodiscard]] std::int64_t recomputed_kernels(Recompute mode) const noexcept;
  /// Gathering of saved rows that are not contiguous, or more kernels, whichever is cheaper.
  /// Only gathering, of what F kept for W, where B leaves weights `apart`.
  [[nodiscard]] Picos regroup(const PackLoad& load, const StageLoad& stage, Recompute mode,
                              bool apart = false) const noexcept;
  /// The same for W: inputs and output gradients lie backward pack by backward pack.
  [[nodiscard]] Picos regroup_weight(const PackLoad& load, const StageLoad& stage) const noexcept;
  /// How long the message of F or, where `back`, B keeps `link` from other traffic of the unit.
  [[nodiscard]] Picos own_message(const PackLoad& load, const StageLoad& stage, bool back,
                                  const Link& link) const noexcept {
    const Link& sent = back ? stage.backward_message : stage.forward_message;
    if (sent.bytes_per_s == 0 || sent != link) return 0;
    return picos(load.tokens.value * hidden_bytes_,
                 picos_each(1, link.bytes_per_s) / d(stage.tensor_parallel));
  }
  /// The same on the link of tensor-parallel devices.
  [[nodiscard]] Picos beside_tensor(const PackLoad& load, const StageLoad& stage,
                                    bool back) const noexcept {
    return stage.tensor_parallel == 1 ? 0 : own_message(load, stage, back, stage.tensor_link);
  }
  /// The same on the link of the exchange, unless tensor-parallel traffic has waited.
  [[nodiscard]] Picos beside_exchange(const PackLoad& load, const StageLoad& stage,
                                      bool back) const noexcept {
    if (load.ranks == 1 || beside_tensor(load, stage, back) > 0) return 0;
    return own_message(load, stage, back, stage.exchange_link);
  }
  /// What `collectives` a layer between tensor-parallel devices add to `arithmetic`, behind which
  /// a share of them hides and from which they take theirs; their link is `kept` from them so long.
  [[nodiscard]] Picos tensor_parallel(const PackLoad& load, const StageLoad& stage,
                                      std::int64_t collectives, Picos arithmetic,
                                      Picos kept = 0) const noexcept;
  /// Bytes that one layer's rings bring to this rank.
  [[nodiscard]] std::int64_t exchange_bytes(const PackLoad& load, bool back) const noexcept {
    return load.kv_received.value * (ring_.kv + (back ? ring_.kv_back : 0)) +
           load.q_received.value * (back ? ring_.q_back : ring_.q);
  }
  /// What a token brings to an exchange.
  [[nodiscard]] const RingBytes& ring() const noexcept { return ring_; }
  /// Whether a unit starts its kernels: one without rows does where other ranks wait for it.
  [[nodiscard]] static bool starts(const PackLoad& load) noexcept {
    return load.tokens.value > 0 || load.ranks > 1;
  }
  /// What of a pack's attention is to what its rank owns alone, behind which no exchange hides.
  [[nodiscard]] static Picos alone(Picos attention, const PackLoad& load) noexcept {
    if (load.alone_pairs2 == 0) return 0;
    return static_cast<Picos>(Int128{attention} * load.alone_pairs2 / load.pairs2);
  }
  /// Attention beside the exchange of the group's ranks, hop by hop; the link of those that leave a
  /// node, or of all, is `kept` from them so long.
  [[nodiscard]] Picos in_cp_group(Picos attention, const PackLoad& load, const StageLoad& stage,
                                  bool back, Picos kept = 0) const noexcept;
  /// What compute loses to a collective that runs beside it for `time`.
  [[nodiscard]] Picos taken_by_collective(Picos time) const noexcept {
    return picos(time, cluster_.small.collective_compute);
  }

  /// The embedding's part of F or, where `back`, of B, with its collective; 0 without it.
  [[nodiscard]] Picos embedding(const PackLoad& load, const StageLoad& stage,
                                bool back) const noexcept {
    if (!stage.embedding) return 0;
    const double each = back ? embedding_backward_ : embedding_forward_;
    return picos(load.tokens.value, each / d(stage.tensor_parallel)) +
           launches(load, cluster_.embedding_kernels) +
           collective(load.tokens.value * hidden_bytes_, stage.tensor_parallel, stage.tensor_link);
  }
  /// H on one device, its traffic included.
  [[nodiscard]] Picos head(const HeadLoad& load) const noexcept {
    const auto own = [&](std::int64_t tokens) { return own_head(tokens, load); };
    return head(load, own, head_launches(load));
  }
  /// The compute of H on one device for `tokens`.
  [[nodiscard]] Picos own_head(std::int64_t tokens, const HeadLoad& load) const noexcept {
    const double tp = d(load.tensor_parallel);
    const std::int64_t tile = std::max<std::int64_t>(load.tile.value, 1);
    const std::int64_t tiles = (tokens + tile - 1) / tile;
    return beside(picos(filled_rows(Tokens{tokens}) * load.vocab, head_row_matrix_ / tp),
                  picos(tiles * load.vocab, head_weights_ / tp) +
                      picos(tiles * load.vocab, head_accumulators_ / tp)) +
           picos(tokens * load.vocab, head_row_moved_ / tp) + picos(tokens, head_token_ / tp);
  }
  /// The fixed cost of the kernels of H; none without tokens.
  [[nodiscard]] Picos head_launches(const HeadLoad& load) const noexcept {
    return load.tokens.value > 0 || load.shards > 1 ? kernels(cluster_.head_kernels) : 0;
  }
  /// The head with own work `own(tokens)` and fixed cost `fixed`. The shorter of own work and
  /// traffic hides behind the longer but for its first tile.
  template <class Own>
  [[nodiscard]] Picos head(const HeadLoad& load, const Own& own, Picos fixed) const noexcept;
  /// Sending `bytes` over a link: its latency, then bytes over its rate.
  [[nodiscard]] Picos transfer(std::int64_t bytes, const Link& link) const noexcept {
    return latency(link) + picos(bytes, picos_each(1, link.bytes_per_s));
  }
  /// A reduce-scatter or gather of `bytes` over `ranks`, in a ring.
  [[nodiscard]] Picos collective(std::int64_t bytes, std::int64_t ranks,
                                 const Link& link) const noexcept {
    if (ranks <= 1 || bytes <= 0) return 0;
    return latency(link, ranks - 1) +
           picos(bytes * (ranks - 1), picos_each(1, link.bytes_per_s) / d(ranks));
  }
  /// Collectives that a reduction of gradients takes: an all-reduce is two.
  [[nodiscard]] std::int64_t reduction_collectives() const noexcept { return sharded_ ? 1 : 2; }
  /// O without its traffic: one kernel that reads and writes `bytes`; nothing for none.
  [[nodiscard]] Picos update(std::int64_t bytes) const noexcept {
    return bytes > 0 ? kernels(1) + picos(bytes, moved_byte_) : 0;
  }
  /// `steps` times the latency of a link.
  [[nodiscard]] static Picos latency(const Link& link, std::int64_t steps = 1) noexcept {
    return picos(steps, link.latency_s * 1e12);
  }

 private:
  [[nodiscard]] static double d(std::int64_t count) noexcept { return static_cast<double>(count); }
  [[nodiscard]] std::int64_t filled_rows(Tokens tokens) const noexcept {
    return filled(tokens.value, cluster_.small.matrix_tile_rows);
  }

  ModelShape model_;
  Cluster cluster_;
  bool sharded_;
  // Picoseconds, per token and layer unless named otherwise.
  double moved_byte_;  // per byte
  double matrix_, moved_forward_, moved_backward_, light_;
  double attention_forward_, attention_backward_;         // per pair2
  double embedding_forward_, embedding_backward_;         // per token
  double head_row_matrix_, head_row_moved_, head_token_;  // per token and row; per token
  double weights_, accumulators_;                         // per layer
  double keys_forward_, keys_backward_;                   // per key
  double head_weights_, head_accumulators_;               // per row and tile of tokens
  double not_hidden_;                                     // share
  std::array<double, kRecomputeModes> gather_{};          // of kept inputs
  std::array<double, kRecomputeModes> regather_{};        // accumulators of products of kept inputs
  double gather_apart_;                                   // of what is left to W
  double kernel_, segment_;
  RingBytes ring_;                                  // per token and layer
  std::int64_t hidden_bytes_, head_traffic_bytes_;  // per token; of H with the message beside it
};

inline Terms::Terms(const ModelShape& model, const Cluster& cluster, const MemorySpec& memory)
    : model_(model), cluster_(cluster), sharded_(memory.optimizer == OptimizerState::sharded) {
  const auto positive = [](double value, const char* name) {
    require(value > 0 && std::isfinite(value), std::string(name) + " must be finite and > 0",
            std::to_string(value));
  };
  positive(cluster.matrix_flops, "cluster.matrix_flops");
  positive(cluster.attention_forward_flops, "cluster.attention_forward_flops");
  positive(cluster.attention_backward_flops, "cluster.attention_backward_flops");
  positive(cluster.memory_bytes_per_s, "cluster.memory_bytes_per_s");
  positive(cluster.inside.bytes_per_s, "cluster.inside.bytes_per_s");
  positive(cluster.between.bytes_per_s, "cluster.between.bytes_per_s");
  const auto not_negative = [](double value, const char* name) {
    require(value >= 0 && std::isfinite(value), std::string(name) + " must be finite and >= 0",
            std::to_string(value));
  };
  not_negative(cluster.inside.latency_s, "cluster.inside.latency_s");
  not_negative(cluster.between.latency_s, "cluster.between.latency_s");
  not_negative(cluster.kernel_s, "cluster.kernel_s");
  not_negative(cluster.segment_s, "cluster.segment_s");
  const SmallUnitPrices& small = cluster.small;
  not_negative(small.weight_traffic, "cluster.small.weight_traffic");
  not_negative(small.accumulator_traffic, "cluster.small.accumulator_traffic");
  not_negative(small.prefix_traffic, "cluster.small.prefix_traffic");
  require(small.matrix_tile_rows >= 0, "cluster.small.matrix_tile_rows must be >= 0",
          small.matrix_tile_rows);
  const auto share = [&](double value, const char* name) {
    require(value >= 0 && value <= 1, std::string(name) + " must be in [0, 1]",
            std::to_string(value));
  };
  share(small.memory_overlap, "cluster.small.memory_overlap");
  share(small.tp_overlap, "cluster.small.tp_overlap");
  share(small.collective_compute, "cluster.small.collective_compute");
  for (const HeadDimRate& rate : small.head_dims) {
    positive(d(rate.head_dim), "cluster.small.head_dims: head_dim");
    positive(rate.forward, "cluster.small.head_dims: forward");
    positive(rate.backward, "cluster.small.head_dims: backward");
  }
  require(model.hidden > 0, "model.hidden must be > 0", model.hidden);
  require(model.heads > 0, "model.heads must be > 0", model.heads);
  require(model.bytes_per_element > 0, "model.bytes_per_element must be > 0",
          model.bytes_per_element);

  const double rate = cluster.memory_bytes_per_s;
  const std::int64_t element = model.bytes_per_element, gradient = memory.gradient_bytes;
  const std::int64_t hidden = model.hidden, query = model.query_width(), key = model.key_width();
  const MovedElements moved = moved_elements(model);
  moved_byte_ = picos_each(1, rate);
  matrix_ = picos_each(d(2 * model.layer_matrix_weights()), cluster.matrix_flops);
  moved_forward_ = picos_each(d(moved.forward * element), rate);
  moved_backward_ = picos_each(d(moved.backward * element + 2 * key * gradient), rate);
  light_ = picos_each(d(moved.light * element), rate);
  const HeadDimRate of_dim = rate_of_head_dim(small.head_dims, model.head_dim);
  attention_forward_ = picos_each(d(2 * query), cluster.attention_forward_flops) / of_dim.forward;
  attention_backward_ =
      picos_each(d(5 * query), cluster.attention_backward_flops) / of_dim.backward;
  const double weight_bytes = d(model.layer_matrix_weights());
  weights_ = picos_each(weight_bytes * d(element), rate) * small.weight_traffic;
  accumulators_ = picos_each(weight_bytes * d(2 * gradient), rate) * small.accumulator_traffic;
  keys_forward_ = picos_each(d(2 * key * element), rate) * small.prefix_traffic;
  keys_backward_ =
      picos_each(d(2 * key * element + 4 * key * gradient), rate) * small.prefix_traffic;
  not_hidden_ = 1 - small.memory_overlap;
  for (std::size_t mode = 0; mode < gather_.size(); ++mode) {
    gather_[mode] = picos_each(d(2 * moved.saved[mode] * element), rate);
    regather_[mode] = accumulators_ * d(moved.saved_weights[mode]) / weight_bytes;
  }
  gather_apart_ = picos_each(d(2 * moved.left_apart * element), rate);
  embedding_forward_ = picos_each(d(2 * hidden * element), rate);
  embedding_backward_ = picos_each(d(hidden * element + 2 * hidden * gradient), rate);
  head_row_matrix_ = picos_each(d(6 * hidden), cluster.matrix_flops);
  head_row_moved_ = picos_each(d(3 * model.statistic_bytes()), rate);
  // Logits and gradients of hidden states read the weights, their own gradients the accumulators.
  head_weights_ = picos_each(d(2 * hidden * element), rate) * small.weight_traffic;
  head_accumulators_ = picos_each(d(2 * hidden * gradient), rate) * small.accumulator_traffic;
  head_token_ = picos_each(d(6 * hidden * element), rate);
  kernel_ = cluster.kernel_s * 1e12;
  segment_ = cluster.segment_s * 1e12;

  const ElementBytes size = element_bytes_of(model, gradient);
  ring_ = ring_bytes(model, size);
  hidden_bytes_ = hidden * element;
  // The slowest link between the stages of a rank is one that neighbours among them send over.
  head_traffic_bytes_ = head_traffic_bytes(model, size) + (small.shared_links ? hidden_bytes_ : 0);
}

inline WorkRates Terms::rates() const noexcept {
  WorkRates rates;
  rates.forward_token = matrix_ + moved_forward_;
  rates.forward_pair2 = attention_forward_;
  // Twice a power of two is exact, so no contraction of 2 matrix + moved can show.
  rates.backward_token = 2 * matrix_ + moved_backward_;
  rates.backward_pair2 = attention_backward_;
  rates.embedding_forward = embedding_forward_;
  rates.embedding_backward = embedding_backward_;
  rates.head_row = head_row_matrix_ + head_row_moved_;
  rates.head_token = head_token_;
  rates.forward_launch = kernel_ * d(cluster_.forward_kernels);
  rates.backward_launch = kernel_ * d(cluster_.backward_kernels);
  rates.head_unit = kernel_ * d(cluster_.head_kernels);
  rates.forward_segment = rates.backward_segment = segment_;
  rates.forward_tiles = rates.backward_tiles = true;
  rates.light_token = light_;
  const double exposed = 1 - cluster_.small.tp_overlap;
  const auto passed_on = [&](std::int64_t bytes) {
    return static_cast<std::int64_t>(d(bytes) * exposed);
  };
  rates.forward_tensor = passed_on(kTensorForward * hidden_bytes_);
  rates.backward_tensor = passed_on(kTensorBackward * hidden_bytes_);
  rates.head_tensor = 2 * hidden_bytes_;
  rates.apart_token = matrix_ + moved_backward_;
  rates.apart_launch = kernel_ * d(backward_apart_kernels());
  rates.apart_tensor = passed_on(kTensorBackwardApart * hidden_bytes_);
  return rates;
}

inline std::int64_t Terms::recomputed_kernels(Recompute mode) const noexcept {
  const std::int64_t linear = std::max<std::int64_t>(cluster_.forward_kernels - 1, 0);
  switch (mode) {
    case Recompute::light:
      return std::min(kLightKernels, linear);
    case Recompute::layer:
      return linear;
    case Recompute::full:
      return cluster_.forward_kernels;
    default:
      return 0;
  }
}

inline Picos Terms::regroup(const PackLoad& load, const StageLoad& stage, Recompute mode,
                            bool apart) const noexcept {
  if (load.runs <= 1) return 0;
  const std::int64_t further = (load.runs - 1) * stage.layers;
  if (cluster_.small.run_graphs) {
    const std::int64_t back = apart ? backward_apart_kernels() : cluster_.backward_kernels;
    return kernels(further * (cluster_.forward_kernels + back + recomputed_kernels(mode)));
  }
  const auto i = static_cast<std::size_t>(mode);
  const double tp = d(stage.tensor_parallel);
  const Picos gather = picos(load.tokens.value * stage.layers, gather_[i] / tp);
  if (apart) return gather;
  return std::min(gather,
                  kernels(further * kProductsOfSaved[i]) + picos(further, regather_[i] / tp));
}

inline Picos Terms::regroup_weight(const PackLoad& load, const StageLoad& stage) const noexcept {
  if (load.runs <= 1) return 0;
  const double tp = d(stage.tensor_parallel);
  const Picos gather = picos(load.tokens.value * stage.layers, gather_apart_ / tp);
  const std::int64_t further = (load.runs - 1) * stage.layers;
  return std::min(gather, kernels(further * weight_kernels()) + picos(further, accumulators_ / tp));
}

inline Picos Terms::tensor_parallel(const PackLoad& load, const StageLoad& stage,
                                    std::int64_t collectives, Picos arithmetic,
                                    Picos kept) const noexcept {
  if (stage.tensor_parallel == 1) return 0;  // one device waits for nobody, and nothing is `kept`
  const std::int64_t count = collectives * stage.layers;
  const Picos bytes = collective(load.tokens.value * hidden_bytes_ * count, stage.tensor_parallel,
                                 Link{stage.tensor_link.bytes_per_s, 0}) +
                      (count > 0 ? kept : 0);
  const Picos hidden = std::min(picos(bytes, cluster_.small.tp_overlap), arithmetic);
  return bytes - hidden + taken_by_collective(hidden) +
         (starts(load) ? latency(stage.tensor_link, count * (stage.tensor_parallel - 1)) : 0);
}

inline Picos Terms::in_cp_group(Picos attention, const PackLoad& load, const StageLoad& stage,
                                bool back, Picos kept) const noexcept {
  if (load.ranks <= 1) return attention;
  const Picos own = alone(attention, load);
  const std::int64_t bytes = exchange_bytes(load, back) * stage.layers, hops = load.ranks - 1;
  const std::int64_t far = stage.exchange_hops > 0 ? std::min(stage.exchange_hops, hops) : hops;
  const LinkPicos near = link_picos(cluster_.inside), slow = link_picos(stage.exchange_link);
  const double tp = d(stage.tensor_parallel);
  const Picos inside = picos(bytes - bytes * far / hops, near.byte / tp);
  const auto beside_rings = [&](Picos wait) {
    const Picos outside = picos(bytes * far / hops, slow.byte / tp) + (bytes > 0 ? wait : 0);
    const RingTime both = ring_time(attention - own, inside, outside, load.ranks, far);
    return both.time + taken_by_collective(both.hidden);
  };
  const auto by_heads = [&](Picos wait) {
    return heads_beside(*this, own, load, stage, back, near, slow, wait);
  };
  const std::int64_t rings = (load.kv_received.value > 0) + (load.q_received.value > 0);
  return own + detail::with_one_wait(beside_rings, by_heads, kept) +
         latency(stage.exchange_link, rings * far * stage.layers) +
         latency(cluster_.inside, rings * (hops - far) * stage.layers);
}

template <class Own>
Picos Terms::head(const HeadLoad& load, const Own& own, Picos fixed) const noexcept {
  const std::int64_t tokens = load.tokens.value, tp = load.tensor_parallel;
  fixed += 2 * collective(tokens * hidden_bytes_, tp, load.tensor_link);
  if (load.shards <= 1) return fixed + own(tokens);
  const double each = picos_each(1, load.link.bytes_per_s) / d(tp);
  const auto traffic = [&](std::int64_t some) { return picos(some * head_traffic_bytes_, each); };
  const auto hops = std::bit_width(static_cast<std::uint64_t>(load.shards - 1));
  const std::int64_t tile = load.tile.value > 0 ? std::min(load.tile.value, tokens) : tokens;
  return fixed + latency(load.link, 3 * static_cast<std::int64_t>(hops)) +
         std::max(own(tokens), traffic(tokens)) + std::min(own(tile), traffic(tile)) +
         taken_by_collective(std::min(own(tokens), traffic(tokens)));
}

}  // namespace slimpack
