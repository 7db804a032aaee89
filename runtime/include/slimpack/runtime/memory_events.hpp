// SPDX-License-Identifier: Apache-2.0
// Bytes that a step really holds: what for, and when they change.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>

#include "slimpack/core/units.hpp"

namespace slimpack::runtime {

/// What bytes are held for: the rows of the table in docs/equations.md, "Memory".
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
/// How many kinds there are.
inline constexpr std::size_t kMemoryKinds = 11;

/// When bytes change, in the order of the device that holds them.
enum class Moment : std::uint8_t { step_start, unit_start, unit_end, transfer_end };

/// One message of a step.
struct MessageRef {
  std::size_t channel = 0;  ///< in `Program::channels`
  std::size_t index = 0;    ///< in `ChannelWork::messages`
  friend auto operator<=>(const MessageRef&, const MessageRef&) = default;
};

/// One change. Bytes of one kind that change at one moment are one event, except buffers of
/// messages, which have one each; changes of zero bytes are left out.
struct MemoryEvent {
  std::size_t device = 0;              ///< by dp, pp, tp (`device_number`)
  Moment moment = Moment::step_start;  ///< when in the course of `unit`, or of the step
  std::size_t unit = 0;  ///< position in the device's order; of a transfer's end: the sending unit
  MemoryKind kind = MemoryKind::weights;  ///< what the bytes are held for
  std::optional<MessageRef> message;      ///< receive and send buffers of channels
  Bytes change;                           ///< negative where bytes are freed
  friend bool operator==(const MemoryEvent&, const MemoryEvent&) = default;
};

/// Sees every change of one device in the device's own order. Devices call it at the same time from
/// threads of their own.
using MemoryObserver = std::function<void(const MemoryEvent&)>;

}  // namespace slimpack::runtime
