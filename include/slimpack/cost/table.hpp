// SPDX-License-Identifier: Apache-2.0
// Seconds of a layer, interpolated in a measured table; everything else is analytic.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/int128.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/cost/cost_model.hpp"
#include "slimpack/cost/head_exchange.hpp"
#include "slimpack/cost/terms.hpp"
#include "slimpack/plan/cost_spec.hpp"

namespace slimpack {

namespace detail {

/// One pass of a TableCost as a function of tokens and pairs2, all in integers: along a row linear
/// in pairs, constant below its first column and going on above its last; between rows linear in
/// tokens at the same pairs; below the first row as the first; above the last row each token costs
/// what it does at its first column. A row never answers less than those with fewer tokens.
class TableSurface {
 public:
  struct Rates {
    double token = 0, pair2 = 0;
  };

  /// Throws InvalidInput if the grid is not ascending, a size does not fit, or seconds are not
  /// finite, are negative or fall along a row.
  TableSurface(const std::vector<Tokens>& tokens, const std::vector<Tokens>& context,
               const std::vector<double>& seconds, const std::string& name);

  /// Picoseconds of one layer. O(rows log columns).
  [[nodiscard]] Picos at(std::int64_t tokens, std::int64_t pairs2) const noexcept;

  /// Picoseconds at the least pairs of the table.
  [[nodiscard]] Picos at(std::int64_t tokens) const noexcept { return at(tokens, 0); }

  /// The steepest linear function of the table's far corner that nowhere exceeds it.
  [[nodiscard]] Rates rates() const noexcept { return rates_; }

 private:
  [[nodiscard]] std::int64_t knot(std::size_t row, std::size_t column) const noexcept {
    return 2 * tokens_[row] * context_[column];
  }
  [[nodiscard]] Picos value(std::size_t row, std::size_t column) const noexcept {
    return values_[row * context_.size() + column];
  }
  [[nodiscard]] Picos along(std::size_t row, std::int64_t pairs2) const noexcept;
  void find_rates() noexcept;

  std::vector<std::int64_t> tokens_, context_;
  std::vector<Picos> values_;
  Picos rise_ = 0;        // above the last row: so much more ...
  std::int64_t run_ = 1;  // ... for so many tokens
  Rates rates_;
};

/// low + (high - low) part / whole, rounded down; part may exceed whole.
[[nodiscard]] inline Picos interpolated(Picos low, Picos high, std::int64_t part,
                                        std::int64_t whole) noexcept {
  const Int128 rise = static_cast<Int128>(high - low) * part / whole;
  return static_cast<Picos>(std::min<Int128>(low + rise, kMostPicos));
}

inline TableSurface::TableSurface(const std::vector<Tokens>& tokens,
                                  const std::vector<Tokens>& context,
                                  const std::vector<double>& seconds, const std::string& name) {
  require(!tokens.empty(), "cost.tokens must not be empty");
  require(!context.empty(), "cost.context must not be empty");
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    require(tokens[i].value > (i == 0 ? 0 : tokens[i - 1].value),
            "cost.tokens must be positive and ascending", tokens[i].value);
    tokens_.push_back(tokens[i].value);
  }
  for (std::size_t i = 0; i < context.size(); ++i) {
    require(context[i].value > (i == 0 ? -1 : context[i - 1].value),
            "cost.context must be >= 0 and ascending", context[i].value);
    context_.push_back(context[i].value);
  }
  require(seconds.size() == tokens.size() * context.size(),
          "cost." + name + " must have one value for each pair of tokens and context",
          static_cast<std::int64_t>(seconds.size()));
  for (std::size_t i = 0; i < seconds.size(); ++i) {
    const std::string place = "cost." + name + "[" + std::to_string(i) + "]";
    require(seconds[i] >= 0 && std::isfinite(seconds[i]), place + " must be finite and >= 0",
            std::to_string(seconds[i]));
    values_.push_back(picos(1, seconds[i] * 1e12));
    require(i % context.size() == 0 || values_[i - 1] <= values_[i],
            place + " must not be less than the value before it in its row",
            std::to_string(seconds[i]));
  }
  const std::size_t last = tokens_.size() - 1;
  const std::int64_t pairs2 = knot(last, 0);
  rise_ = value(last, 0);
  run_ = tokens_[last];
  if (last > 0) {
    Picos below = 0;
    for (std::size_t row = 0; row < last; ++row) below = std::max(below, along(row, pairs2));
    rise_ = std::max<Picos>(value(last, 0) - below, 0);
    run_ = tokens_[last] - tokens_[last - 1];
  }
  find_rates();
}

inline Picos TableSurface::along(std::size_t row, std::int64_t pairs2) const noexcept {
  const std::size_t columns = context_.size();
  if (columns == 1 || pairs2 <= knot(row, 0)) return value(row, 0);
  std::size_t low = 0, high = columns - 1;
  while (high - low > 1) {
    const std::size_t middle = low + (high - low) / 2;
    (knot(row, middle) <= pairs2 ? low : high) = middle;
  }
  return interpolated(value(row, low), value(row, high), pairs2 - knot(row, low),
                      knot(row, high) - knot(row, low));
}

inline Picos TableSurface::at(std::int64_t tokens, std::int64_t pairs2) const noexcept {
  Picos most = along(0, pairs2);
  std::size_t row = 0;
  while (row + 1 < tokens_.size() && tokens_[row + 1] <= tokens) {
    most = std::max(most, along(++row, pairs2));
  }
  if (tokens <= tokens_[row]) return most;
  if (row + 1 == tokens_.size()) {
    return interpolated(most, most + rise_, tokens - tokens_[row], run_);
  }
  const Picos next = std::max(most, along(row + 1, pairs2));
  return interpolated(most, next, tokens - tokens_[row], tokens_[row + 1] - tokens_[row]);
}

inline void TableSurface::find_rates() noexcept {
  const std::size_t rows = tokens_.size(), columns = context_.size();
  if (columns > 1) {
    rates_.pair2 = static_cast<double>(kMostPicos);
    for (std::size_t row = 0; row < rows; ++row) {
      rates_.pair2 = std::min(
          rates_.pair2, static_cast<double>(value(row, columns - 1) - value(row, columns - 2)) /
                            static_cast<double>(knot(row, columns - 1) - knot(row, columns - 2)));
      for (std::size_t column = 0; column < columns; ++column) {
        if (knot(row, column) == 0) continue;
        rates_.pair2 = std::min(rates_.pair2, static_cast<double>(value(row, column)) /
                                                  static_cast<double>(knot(row, column)));
      }
    }
  }
  rates_.token = static_cast<double>(rise_) / static_cast<double>(run_);
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t column = 0; column < columns; ++column) {
      // Integers, rounded against the rate, so that no fused step decides it.
      const Picos pairs = picos(knot(row, column), rates_.pair2);
      const Picos left = std::max<Picos>(value(row, column) - pairs - 1, 0);
      rates_.token =
          std::min(rates_.token, static_cast<double>(left) / static_cast<double>(tokens_[row]));
    }
  }
}

}  // namespace detail

/// A table of measured layers (docs/costs.md). One segment is in the table; each further one adds
/// the cluster's `segment_s`. `layer` repeats the forward pass at the table's least context, `full`
/// at its own, `light` the analytic model's bytes. Answers are O(rows log columns).
class TableModel {
 public:
  /// Throws InvalidInput naming the first rate, grid value or time that is out of range.
  TableModel(const TableCost& cost, const ModelShape& model, const Cluster& cluster,
             const MemorySpec& memory)
      : terms_(model, cluster, memory),
        forward_(cost.tokens, cost.context, cost.forward_s, "forward_s"),
        backward_(cost.tokens, cost.context, cost.backward_s, "backward_s") {}

  /// F of a pack on a stage, ring and tensor-parallel traffic included.
  [[nodiscard]] Nanos forward(const PackLoad& load, const StageLoad& stage) const noexcept {
    return to_nanos(
        terms_.embedding(load, stage, false) +
        layers(forward_, load, stage, false, terms_.beside_exchange(load, stage, false)) +
        terms_.tensor_parallel(load, stage, kTensorForward, linear(forward_, load, stage),
                               terms_.beside_tensor(load, stage, false)));
  }

  /// B of a pack on a stage, with what it recomputes.
  [[nodiscard]] Nanos backward(const PackLoad& load, const StageLoad& stage,
                               Recompute recompute) const noexcept {
    Picos time =
        terms_.embedding(load, stage, true) +
        layers(backward_, load, stage, true, terms_.beside_exchange(load, stage, true)) +
        terms_.tensor_parallel(load, stage, kTensorBackward, linear(backward_, load, stage),
                               terms_.beside_tensor(load, stage, true)) +
        terms_.regroup(load, stage, recompute);
    if (recompute == Recompute::light) {
      time += terms_.light(load.tokens.value * stage.layers, stage.tensor_parallel) +
              terms_.launches(load, stage.layers * terms_.recomputed_kernels(recompute));
    }
    time += queries_ahead(terms_, linear(backward_, load, stage), load, stage, recompute);
    if (recompute == Recompute::layer) time += linear(forward_, load, stage);
    if (recompute == Recompute::full) time += layers(forward_, load, stage, false);
    if (recompute == Recompute::layer || recompute == Recompute::full) {
      time += terms_.tensor_parallel(load, stage, kTensorAgain, linear(forward_, load, stage));
    }
    return to_nanos(time);
  }

  /// H: final norm, logits, loss and their gradients.
  [[nodiscard]] Nanos head(const HeadLoad& load) const noexcept {
    return to_nanos(terms_.head(load));
  }
  /// Sending `bytes` over a link.
  [[nodiscard]] Nanos transfer(Bytes bytes, const Link& link) const noexcept {
    return to_nanos(terms_.transfer(bytes.value, link));
  }
  /// Reducing `bytes` of gradients over `ranks`.
  [[nodiscard]] Nanos reduce(Bytes bytes, std::int64_t ranks, const Link& link) const noexcept {
    return to_nanos(terms_.reduction_collectives() * terms_.collective(bytes.value, ranks, link));
  }
  /// O over `touched` bytes, and the gathering of `gathered` bytes of weights over `ranks`.
  [[nodiscard]] Nanos optimizer(Bytes touched, Bytes gathered, std::int64_t ranks,
                                const Link& link) const noexcept {
    return to_nanos(terms_.update(touched.value) + terms_.collective(gathered.value, ranks, link));
  }

  /// What the model charges for work as such.
  [[nodiscard]] WorkRates rates() const noexcept {
    WorkRates rates = terms_.rates();
    rates.forward_token = forward_.rates().token;
    rates.forward_pair2 = forward_.rates().pair2;
    rates.backward_token = backward_.rates().token;
    rates.backward_pair2 = backward_.rates().pair2;
    rates.forward_launch = rates.backward_launch = 0;
    rates.forward_segment = rates.backward_segment = 0;
    rates.forward_tiles = rates.backward_tiles = false;
    rates.apart_token = rates.backward_token;
    rates.apart_launch = rates.backward_launch;
    rates.apart_tensor = rates.backward_tensor;
    return rates;
  }

 private:
  [[nodiscard]] static Picos spread(Picos one_layer, const StageLoad& stage) noexcept {
    const std::int64_t tp = stage.tensor_parallel;
    const Picos most = kMostPicos / std::max<std::int64_t>(stage.layers, 1);
    return (std::min(one_layer, most) * stage.layers + tp - 1) / tp;
  }
  [[nodiscard]] static Picos linear(const detail::TableSurface& surface, const PackLoad& load,
                                    const StageLoad& stage) noexcept {
    return Terms::starts(load) ? spread(surface.at(load.tokens.value), stage) : 0;
  }
  /// What pairs add to the table's least context counts as attention, behind which the exchange
  /// of a context-parallel group hides.
  [[nodiscard]] Picos layers(const detail::TableSurface& surface, const PackLoad& load,
                             const StageLoad& stage, bool back, Picos kept = 0) const noexcept {
    const Picos base = linear(surface, load, stage);
    const Picos whole =
        Terms::starts(load) ? spread(surface.at(load.tokens.value, load.pairs2), stage) : 0;
    const Picos further =
        terms_.segments(std::max<std::int64_t>(load.segments - 1, 0), stage.layers);
    return base + terms_.in_cp_group(whole - base + further, load, stage, back, kept);
  }

  Terms terms_;
  detail::TableSurface forward_, backward_;
};
static_assert(RatedCostModel<TableModel>);

}  // namespace slimpack
