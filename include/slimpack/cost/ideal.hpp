// SPDX-License-Identifier: Apache-2.0
// The time that no plan of a step can beat by arranging it: its compute over all devices.
#pragma once

#include <cstdint>
#include <span>
#include <variant>

#include "slimpack/core/error.hpp"
#include "slimpack/core/int128.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/cost/any_model.hpp"
#include "slimpack/cost/cost_model.hpp"
#include "slimpack/cost/terms.hpp"
#include "slimpack/plan/plan.hpp"

namespace slimpack {

/// Work of one sample as one slice on `layers` layers, forward or backward, in picoseconds.
[[nodiscard]] inline Int128 layer_work(const WorkRates& rates, Tokens length, std::int64_t layers,
                                       bool back) noexcept {
  const std::int64_t tokens = length.value;
  return Int128{picos(tokens, layers, back ? rates.backward_token : rates.forward_token)} +
         picos(tokens * tokens, layers, back ? rates.backward_pair2 : rates.forward_pair2);
}

/// Embedding, both passes.
[[nodiscard]] inline Int128 embedding_work(const WorkRates& rates, Tokens length) noexcept {
  return Int128{picos(length.value, rates.embedding_forward)} +
         picos(length.value, rates.embedding_backward);
}

/// Final norm and `rows` rows of the vocabulary, all three products.
[[nodiscard]] inline Int128 head_work(const WorkRates& rates, Tokens length,
                                      std::int64_t rows) noexcept {
  return Int128{picos(length.value, rows, rates.head_row)} + picos(length.value, rates.head_token);
}

/// `ideal_s` of plan.json: the compute of every sample as one slice, forward and backward, all
/// kernels at the model's asymptotic rates, embedding and head included; no launch, segment or tile
/// cost, recomputation, communication, optimizer or waiting; over dp x pp x tp. Rounded down.
/// Throws InvalidInput if a degree is not positive or a length is not in [1, 2^31]. O(samples).
template <RatedCostModel Model>
[[nodiscard]] Nanos ideal_time(std::span<const Tokens> samples, const ModelShape& shape,
                               const Model& model, const Parallel& degrees) {
  require(degrees.dp > 0 && degrees.pp > 0 && degrees.tp > 0,
          "ideal_time: dp, pp and tp must be > 0");
  const WorkRates rates = model.rates();
  Int128 sum = 0;
  for (const Tokens length : samples) {
    require(length.value > 0 && length.value <= std::int64_t{1} << 31,
            "ideal_time: a sample's length must be in [1, 2^31]", length.value);
    sum += layer_work(rates, length, shape.layers, false) +
           layer_work(rates, length, shape.layers, true) + embedding_work(rates, length) +
           head_work(rates, length, shape.vocab);
  }
  const Int128 devices = Int128{degrees.dp} * degrees.pp * degrees.tp;
  return {static_cast<std::int64_t>(sum / (devices * 1000))};
}

/// The same by the model that `cost` asks for, with gradients of four bytes.
[[nodiscard]] inline Nanos ideal_time(std::span<const Tokens> samples, const ModelShape& shape,
                                      const Cluster& cluster, const CostSpec& cost,
                                      const Parallel& degrees) {
  return std::visit([&](const auto& model) { return ideal_time(samples, shape, model, degrees); },
                    make_model(cost, shape, cluster, MemorySpec{}));
}

/// The same of a plan's samples.
[[nodiscard]] inline Nanos ideal_time(const Plan& plan) {
  return ideal_time(plan.samples, plan.model, plan.cluster, plan.cost, plan.parallel);
}

}  // namespace slimpack
