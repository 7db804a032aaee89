// SPDX-License-Identifier: Apache-2.0
// How bytes get from device to device within one process: the part of the transport between
// threads that depends on where memory lies.
#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include "slimpack/runtime/transport.hpp"

namespace slimpack::runtime {

/// What is moved. Work of different lanes need not wait for each other.
enum class Lane : std::uint8_t { activations, gradients, collectives, sums };
inline constexpr std::size_t kLanes = 4;

[[nodiscard]] constexpr Lane lane_of(Direction direction) noexcept {
  return direction == Direction::down ? Lane::activations : Lane::gradients;
}

/// The memory that one member brings to a collective or sum.
struct Contribution {
  std::span<const std::byte> from;
  std::span<std::byte> into;
  std::size_t first = 0, last = 0;  ///< bytes that a member of all_gather brings
  /// What a member of all_to_all gives each, and where it takes each one's.
  std::span<const std::span<const std::byte>> from_each{};
  std::span<const std::span<std::byte>> into_each{};
};
using Contributions = std::span<const Contribution>;

/// One device's way to move bytes, called by the device's thread alone. Where memory belongs to a
/// queue of work, calls return before that work has run; a mark is a point of such a queue.
/// Laws:
/// - `note` marks everything that the device has been told so far; `follow` puts all that it is
///   told from now on behind a mark, which any device may have made.
/// - `after` puts what this mover does on a lane from now on behind a mark; `copy` and `reduce` are
///   done on the lane in the order of their calls; `finish` marks all of it. A lane never waits
///   for what is told later, so that no two lanes can wait for each other.
/// - `copy` has spans of equal size, which do not overlap. `reduce` combines what members bring in
///   their order (`combine`) and gives every member the result, or one of them alone.
/// - `reached` tells whether a mark's work has ended; it never blocks.
template <class Candidate>
concept Mover = requires(Candidate& mover, Lane lane, const typename Candidate::Mark& mark,
                         std::span<const std::byte> from, std::span<std::byte> into,
                         Contributions all, std::size_t member) {
  requires std::copyable<typename Candidate::Mark>;
  requires std::default_initializable<typename Candidate::Mark>;
  { mover.note() } -> std::same_as<typename Candidate::Mark>;
  mover.follow(mark);
  mover.after(lane, mark);
  mover.copy(lane, from, into);
  mover.template reduce<float>(lane, all, Reduction::sum);
  mover.template reduce<double>(lane, all, Reduction::maximum);
  mover.template reduce<float>(lane, all, Reduction::sum, member);
  { mover.finish(lane) } -> std::same_as<typename Candidate::Mark>;
  { mover.reached(mark) } -> std::same_as<bool>;
};

/// Memory of the host: what is told has happened, so marks say nothing.
class HostMover {
 public:
  struct Mark {};

  [[nodiscard]] static Mark note() noexcept { return {}; }
  static void follow(Mark) noexcept {}
  static void after(Lane, Mark) noexcept {}
  static void copy(Lane, std::span<const std::byte> from, std::span<std::byte> into) {
    std::copy(from.begin(), from.end(), into.begin());
  }
  /// Combines block by block, so that partial sums stay in the first-level cache.
  template <std::floating_point Element>
  static void reduce(Lane, Contributions all, Reduction reduction,
                     std::optional<std::size_t> only = std::nullopt) {
    const Contributions takers = only ? all.subspan(*only, 1) : all;
    std::array<Element, 1024> sum, other;
    const std::size_t bytes = all.front().from.size();
    for (std::size_t i = 0; i < bytes; i += sizeof(sum)) {
      const std::size_t size = std::min(sizeof(sum), bytes - i);
      const std::size_t count = size / sizeof(Element);
      std::memcpy(sum.data(), all.front().from.data() + i, size);
      for (const auto& one : all.subspan(1)) {
        std::memcpy(other.data(), one.from.data() + i, size);
        combine(std::span(sum).first(count), std::span<const Element>(other).first(count),
                reduction);
      }
      for (const auto& one : takers) std::memcpy(one.into.data() + i, sum.data(), size);
    }
  }
  [[nodiscard]] static Mark finish(Lane) noexcept { return {}; }
  [[nodiscard]] static bool reached(Mark) noexcept { return true; }
};

static_assert(Mover<HostMover> && !Mover<int>);

}  // namespace slimpack::runtime
