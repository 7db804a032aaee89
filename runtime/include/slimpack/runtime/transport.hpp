// SPDX-License-Identifier: Apache-2.0
// What moves bytes between devices: channels of neighbouring stages, process groups, and abortion.
#pragma once

#include <algorithm>
#include <compare>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/plan/ring_order.hpp"

namespace slimpack::runtime {

/// Along the virtual stages: activations go down, gradients up.
enum class Direction : std::uint8_t { down, up };

/// A channel (docs/equations.md, "Transfers"): messages of one group's packs on one rank from
/// stage `from` to stage `to`.
struct Channel {
  GroupId group{};                        ///< context-parallel group whose packs travel on it
  std::int32_t dp = 0;                    ///< data-parallel rank of both ends
  Direction direction = Direction::down;  ///< what travels: activations or gradients
  std::int32_t from = 0;                  ///< stage that sends
  std::int32_t to = 0;                    ///< stage that receives
  std::int32_t tp = 0;                    ///< tensor-parallel part of both ends
  friend auto operator<=>(const Channel&, const Channel&) = default;
};

/// "the channel of group 0, rank 0, activations from stage 0 to stage 1".
[[nodiscard]] inline std::string to_string(const Channel& channel) {
  return "the channel of group " + std::to_string(index(channel.group)) + ", rank " +
         std::to_string(channel.dp) +
         (channel.tp > 0 ? ", tp " + std::to_string(channel.tp) : std::string()) +
         (channel.direction == Direction::down ? ", activations" : ", gradients") + " from stage " +
         std::to_string(channel.from) + " to stage " + std::to_string(channel.to);
}

/// Devices that run collectives together, in one order on all of them.
struct ProcessGroup {
  std::vector<std::size_t> members;  ///< numbers of devices (`device_number`)
  std::size_t self = 0;              ///< position in `members`
  /// Where rings go node by node: members of a node, one after the other; 0: one ring.
  std::size_t per_node = 0;

  /// The order in which rings go.
  [[nodiscard]] RingOrder order() const noexcept {
    const auto all = static_cast<std::int64_t>(members.size());
    return {all, per_node == 0 ? all : static_cast<std::int64_t>(per_node)};
  }
  /// The position of the member that takes what this one hands on with a hop of a ring.
  [[nodiscard]] std::size_t next(std::size_t hop) const noexcept { return next(self, hop); }
  /// The same of any position.
  [[nodiscard]] std::size_t next(std::size_t position, std::size_t hop) const noexcept {
    return static_cast<std::size_t>(
        order().next(static_cast<std::int64_t>(position), static_cast<std::int64_t>(hop)));
  }
  /// The position of the member that hands this one something with a hop of a ring.
  [[nodiscard]] std::size_t before(std::size_t hop) const noexcept {
    return static_cast<std::size_t>(
        order().before(static_cast<std::int64_t>(self), static_cast<std::int64_t>(hop)));
  }
};

/// How values of several members become one.
enum class Reduction : std::uint8_t { sum, maximum };

/// A device failed; `what()` names device, unit and cause.
class ExecutionError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Thrown out of a transport's calls after some device called `abort`; `what()` is its sentence.
class Aborted : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// One device's end of what connects the devices of a plan. Elements are what a backend computes
/// in; spans may lie in the device's own memory.
/// Laws:
/// - Channels: message i of a channel is sent and received in the order of i. A transfer happens
///   when both sides were posted and transfer i-1 has ended; it copies the sent bytes to the
///   posted ones, as many. Neither `queue_send` nor `post_receive` blocks. The spans stay valid
///   and unwritten from posting to the end. At most `max_in_flight` sends of a channel are
///   unfinished, and at most `max_in_flight` receives are posted and not yet awaited.
/// - Collectives: all members of a process group call the same ones in the same relative order; a
///   call returns when its result is there. `ring` is one hop, counted from 0, of the ring that the
///   process group's `order` describes: it hands `from` to the next member and fills `into` from
///   the one before. Reductions combine in the order of members, so that all get equal bits.
///   `all_to_all` gives from[i] to member i and fills into[i] with what member i gives this one,
///   as many bytes, its own part included; nothing given overlaps anything filled.
///   `all_gather` makes whole what each member holds of [first, last); `reduce_scatter` leaves the
///   sum of all members in the [first, last) of each and anything elsewhere.
/// - `queue_sum` never blocks, in whatever order members call it: a sum is known by its members
///   and tag; `await_sum` returns when `values` is the sum. Between both nobody touches `values`.
/// - After `abort(sentence)` on any device, every blocked or later call of every other throws
///   Aborted with that sentence.
/// - `announce` says what the device is about to do, for the sentences of errors.
template <class Candidate, class Element>
concept Transport = requires(
    Candidate& link, const Channel& channel, std::size_t message, std::span<std::byte> into,
    std::span<const std::byte> from, std::span<const std::span<std::byte>> into_each,
    std::span<const std::span<const std::byte>> from_each, const ProcessGroup& process_group,
    std::span<Element> values, std::int64_t tag, std::size_t position, const std::string& text) {
  link.post_receive(channel, message, into);
  link.await_receive(channel, message);
  link.queue_send(channel, message, from);
  { link.send_ended(channel, message) } -> std::same_as<bool>;
  link.await_send(channel, message);
  link.ring(process_group, message, from, into);
  link.all_to_all(process_group, from_each, into_each);
  link.broadcast(process_group, position, values);
  link.all_reduce(process_group, values, Reduction::sum);
  link.all_gather(process_group, values, position, position);
  link.reduce_scatter(process_group, values, position, position);
  link.queue_sum(process_group, tag, values);
  link.await_sum(process_group, tag);
  link.announce(text);
  link.abort(text);
};

/// Throws InvalidInput unless an all_to_all has one part a member each way.
inline void check_all_to_all(const ProcessGroup& process_group, std::size_t from,
                             std::size_t into) {
  const std::size_t members = process_group.members.size();
  require(from == members && into == members, "transport: all_to_all needs one part a member",
          static_cast<std::int64_t>(from == members ? into : from));
}

/// Elements [begin, end), of which member i has `part` from begin + i * part on, fewer or none
/// where the piece ends.
struct ShardPiece {
  std::size_t begin = 0;  ///< first element of the piece
  std::size_t end = 0;    ///< the one behind its last
  std::size_t part = 0;   ///< elements of a member, a multiple of ShardLayout::kWhole
  /// First element of a member, and the one behind its last.
  [[nodiscard]] std::pair<std::size_t, std::size_t> of(std::size_t member) const noexcept {
    return {std::min(end, begin + part * member), std::min(end, begin + part * (member + 1))};
  }
  /// Whether all members have as many.
  [[nodiscard]] bool even(std::size_t members) const noexcept {
    return part * members == end - begin;
  }
};

/// Which member owns which of `size` elements. They are cut into pieces of at most `most` elements,
/// so that a piece can travel while others are still computed; each piece is divided among all
/// `members`.
struct ShardLayout {
  static constexpr std::size_t kWhole = 8;  ///< parts of members are multiples of so many elements
  static constexpr std::size_t kMost = std::size_t{1} << 23U;  ///< elements of a piece by default
  std::size_t size = 0;                                        ///< elements in all
  std::size_t members = 1;                                     ///< of the process group
  /// Elements of a piece, rounded down to a multiple of members x kWhole, but at least that.
  std::size_t most = kMost;

  /// The pieces, ascending; all but the last are even. O(pieces).
  [[nodiscard]] std::vector<ShardPiece> pieces() const {
    const std::size_t row = members * kWhole;
    const std::size_t step = std::max<std::size_t>(1, most / row) * row;
    std::vector<ShardPiece> all;
    for (std::size_t begin = 0; begin < size; begin += step) {
      const std::size_t end = std::min(size, begin + step);
      all.push_back({begin, end, (end - begin + row - 1) / row * kWhole});
    }
    return all;
  }
};

/// Throws InvalidInput unless the layout is of `size` elements for the members of the process
/// group.
inline void check_shard_layout(const ProcessGroup& process_group, std::size_t size,
                               const ShardLayout& shard_layout) {
  require(shard_layout.size == size && shard_layout.members == process_group.members.size(),
          "transport: a shard layout must be of the elements for the members",
          static_cast<std::int64_t>(shard_layout.size));
}

/// A transport whose sums may leave each member its own part alone.
/// Laws, for a layout of as many elements and members:
/// - `queue_scatter` is `queue_sum`, awaited alike, after which the parts of this member hold their
///   sum, and all others anything.
/// - `gather_parts` is a collective that brings every member the parts of all.
template <class Candidate, class Element>
concept ScatterTransport =
    Transport<Candidate, Element> &&
    requires(Candidate& link, const ProcessGroup& process_group, std::int64_t tag,
             std::span<Element> values, const ShardLayout& shard_layout) {
      link.queue_scatter(process_group, tag, values, shard_layout);
      link.gather_parts(process_group, values, shard_layout);
    };

/// into[i] becomes into[i] + from[i] or the larger of both. A reduction over members is member 0's
/// values, then `combine` with each later member's in order. Spans of the same size. O(size).
template <std::floating_point Element>
void combine(std::span<Element> into, std::span<const Element> from, Reduction reduction) noexcept {
  const std::size_t size = into.size();
  Element* const out = into.data();
  const Element* const in = from.data();
  if (reduction == Reduction::sum) {
    for (std::size_t i = 0; i < size; ++i) out[i] = out[i] + in[i];
  } else {
    for (std::size_t i = 0; i < size; ++i) out[i] = std::max(out[i], in[i]);
  }
}

}  // namespace slimpack::runtime
