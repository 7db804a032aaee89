// SPDX-License-Identifier: Apache-2.0
// Bytes that a step really holds: kinds, events, and the sizes of docs/equations.md, "Memory".
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>

#include "slimpack/core/units.hpp"
#include "slimpack/plan/cp_shard.hpp"
#include "slimpack/plan/plan.hpp"

namespace slimpack::runtime {

/// What bytes are held for: the rows of the table.
enum class MemoryKind : std::uint8_t {
  weights,
  weight_gradients,
  optimizer_state,
  activations,
  keys_values,
  key_value_gradients,
  last_output,
  hidden_gradients,
  receive_buffer,
  send_buffer,
  workspace
};
inline constexpr std::size_t kMemoryKinds = 11;

/// When bytes change, as the device itself sees it.
enum class Moment : std::uint8_t { step_start, unit_start, unit_end, transfer_end };

/// A message: its channel in `Program::channels` and its place in that channel.
struct MessageRef {
  std::size_t channel = 0;
  std::size_t index = 0;
  friend auto operator<=>(const MessageRef&, const MessageRef&) = default;
};

/// One change. Bytes of one kind that change at one moment are one event, except buffers of
/// messages, which have one each; changes of zero bytes are left out.
struct MemoryEvent {
  std::size_t device = 0;  ///< position in `Plan::schedule`
  Moment moment = Moment::step_start;
  std::size_t unit = 0;  ///< position in the device's order; of a transfer's end: the sending unit
  MemoryKind kind = MemoryKind::weights;
  std::optional<MessageRef> message;  ///< receive and send buffers of channels
  Bytes change;                       ///< negative where bytes are freed
  friend bool operator==(const MemoryEvent&, const MemoryEvent&) = default;
};

/// Sees every change of one device in the device's own order. Devices call it at the same time from
/// threads of their own.
using MemoryObserver = std::function<void(const MemoryEvent&)>;

/// Bytes of an element as a backend stores it.
struct ElementBytes {
  std::int64_t element = 8;    ///< weights and activations
  std::int64_t statistic = 8;  ///< log-sum-exp, inverse RMS
  std::int64_t gradient = 8;   ///< accumulated gradients of weights, keys and values
};

/// Bytes of the always held weights, gradients and optimizer state of one device.
struct StaticBytes {
  Bytes weights, gradients, optimizer;
};

/// Bytes kept of one token and layer from F to B, keys and values apart.
[[nodiscard]] constexpr std::int64_t kept_bytes(const ModelShape& model, Recompute mode,
                                                const ElementBytes& size) noexcept {
  const std::int64_t h = model.hidden, q = model.query_width(), f = model.ffn;
  std::int64_t elements = h, statistics = 0;  // full: the layer's input
  if (mode != Recompute::full) {              // attention output
    elements += q;
    statistics += model.heads;
  }
  if (mode == Recompute::light || mode == Recompute::none) elements += q + h + 2 * f;
  if (mode == Recompute::none) {  // both norms and the product
    elements += 2 * h + f;
    statistics += 2;
  }
  return elements * size.element + statistics * size.statistic;
}

/// Workspace of F for one token.
[[nodiscard]] constexpr std::int64_t forward_workspace(const ModelShape& model, Recompute mode,
                                                       const ElementBytes& size) noexcept {
  return (2 * model.hidden + 2 * model.key_width()) * size.element +
         kept_bytes(model, Recompute::none, size) - kept_bytes(model, mode, size);
}

/// Workspace of B for one token.
[[nodiscard]] constexpr std::int64_t backward_workspace(const ModelShape& model, Recompute mode,
                                                        const ElementBytes& size) noexcept {
  return (3 * model.hidden + 2 * model.query_width() + 3 * model.ffn) * size.element +
         2 * model.key_width() * size.gradient + kept_bytes(model, Recompute::none, size) -
         kept_bytes(model, mode, size);
}

/// The largest part that a rank of a group of `ranks` owns in [begin, end). O(ranks).
[[nodiscard]] constexpr Tokens largest_share(std::int64_t ranks, Tokens block, Tokens begin,
                                             Tokens end) noexcept {
  Tokens largest;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    largest = std::max(largest, CpShard{rank, ranks, block}.between(begin, end));
  }
  return largest;
}

/// Workspace of the exchange of one slice in a group of `ranks`; nothing in a group of one.
[[nodiscard]] constexpr std::int64_t exchange_workspace(const ModelShape& model, const Slice& slice,
                                                        Pass pass, RingMode exchange,
                                                        std::int64_t ranks, Tokens block,
                                                        const ElementBytes& size) noexcept {
  if (ranks <= 1) return 0;
  const std::int64_t q = model.query_width(), k = model.key_width();
  if (exchange == RingMode::pass_kv) {
    const std::int64_t rows = largest_share(ranks, block, Tokens{0}, slice.end).value;
    const std::int64_t gradients = pass == Pass::backward ? 2 * k * size.gradient : 0;
    return 2 * rows * (2 * k * size.element + gradients);
  }
  const std::int64_t rows = largest_share(ranks, block, slice.begin, slice.end).value;
  const std::int64_t row =
      pass == Pass::forward
          ? 2 * q * size.element + model.heads * size.statistic
          : 2 * q * size.element + q * size.gradient + 2 * model.heads * size.statistic;
  return 2 * rows * row;
}

/// Workspace of H for one token of a tile on a device that holds `rows` rows of the vocabulary.
[[nodiscard]] constexpr std::int64_t head_workspace(const ModelShape& model, std::int64_t rows,
                                                    const ElementBytes& size) noexcept {
  return rows * size.statistic + 3 * model.hidden * size.element + model.hidden * size.gradient +
         4 * size.statistic;
}

}  // namespace slimpack::runtime
