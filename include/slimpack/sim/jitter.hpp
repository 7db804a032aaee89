// SPDX-License-Identifier: Apache-2.0
// How a plan stands when its units take other times than priced.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/int128.hpp"
#include "slimpack/core/random.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/plan/names.hpp"
#include "slimpack/sim/dag.hpp"
#include "slimpack/sim/detail/topological_dag.hpp"
#include "slimpack/sim/timeline.hpp"

namespace slimpack::sim {

/// How the times of units differ from those planned.
enum class JitterKind : std::uint8_t {
  noise,       ///< every F, B, H and O is faster or slower by its own uniform draw
  slow_device  ///< all units of one device are slower; each draw takes another device
};

}  // namespace slimpack::sim

namespace slimpack {
// The words of `sim::JitterKind`.
template <>
inline constexpr std::array<std::string_view, 2> kWords<sim::JitterKind>{"noise", "slow device"};
}  // namespace slimpack

namespace slimpack::sim {

/// What `draw_jitter` draws.
struct JitterOptions {
  JitterKind kind = JitterKind::noise;      ///< which times change
  std::int64_t parts_per_million = 50'000;  ///< the largest change of a unit, 0 to 1,000,000
  std::int64_t draws = 100;                 ///< >= 1
  std::uint64_t seed = 0;                   ///< equal seeds give equal draws
};

/// Iteration times under jitter.
struct Jitter {
  Nanos planned;                ///< with the planned times
  Nanos mean;                   ///< over all draws, rounded down
  Nanos least;                  ///< over all draws
  Nanos most;                   ///< over all draws
  std::vector<Nanos> makespan;  ///< one a draw
};

namespace detail {

/// time x (1 + change / 10^6), rounded towards zero; exact for any time below 2^63 / 2.
[[nodiscard]] constexpr Nanos changed(Nanos time, std::int64_t change) noexcept {
  constexpr std::int64_t kMillion = 1'000'000;
  return {time.value + time.value / kMillion * change + time.value % kMillion * change / kMillion};
}

/// The nodes of a collective take as long as the slowest; parts follow their whole.
inline void settle_durations(const Dag& dag, std::span<Nanos> duration) {
  for (std::size_t row = 0; row < dag.collectives.rows(); ++row) {
    Nanos longest;
    for (const NodeId node : dag.collectives[row]) {
      longest = std::max(longest, duration[index(node)]);
    }
    for (const NodeId node : dag.collectives[row]) duration[index(node)] = longest;
  }
  for (const Part& part : dag.parts) {
    duration[index(part.node)].value = static_cast<std::int64_t>(
        static_cast<Int128>(duration[index(part.whole)].value) * part.numerator / part.denominator);
  }
}

}  // namespace detail

/// Runs the simulated order with drawn times. Orders never change; transfers and reductions keep
/// their times. The same seed gives the same draws everywhere. Throws InvalidInput where an option
/// is out of range. O(draws x nodes).
[[nodiscard]] inline Jitter draw_jitter(const Dag& dag, const Timeline& timeline,
                                        const JitterOptions& options) {
  require(options.parts_per_million >= 0 && options.parts_per_million <= 1'000'000,
          "jitter must be between 0 and 1000000 parts per million", options.parts_per_million);
  require(options.draws >= 1, "jitter: draws must be >= 1", options.draws);
  const TopologicalDag fixed(dag, timeline);
  Random random(options.seed);
  Jitter jitter;
  jitter.planned = timeline.makespan;
  std::vector<Nanos> by_row, ends(fixed.rows() + 1);
  Int128 sum = 0;
  for (std::int64_t draw = 0; draw < options.draws; ++draw) {
    std::vector<Nanos> duration = dag.duration;
    ResourceId slow = kNoResource;
    if (options.kind == JitterKind::slow_device && !dag.devices.empty()) {
      slow = dag.devices[random.below(dag.devices.size())].compute;
    }
    for (std::size_t i = 0; i < dag.size(); ++i) {
      if (!is_compute(dag.label[i].kind) || dag.resource[i] == kNoResource) continue;
      if (options.kind == JitterKind::noise) {
        const std::int64_t change =
            random.between(-options.parts_per_million, options.parts_per_million);
        duration[i] = detail::changed(duration[i], change);
      } else if (dag.resource[i] == slow) {
        duration[i] = detail::changed(duration[i], options.parts_per_million);
      }
    }
    detail::settle_durations(dag, duration);
    fixed.arrange(duration, by_row);
    jitter.makespan.push_back(fixed.run(by_row, ends));
    sum += jitter.makespan.back().value;
  }
  jitter.mean.value = static_cast<std::int64_t>(sum / options.draws);
  jitter.least = *std::min_element(jitter.makespan.begin(), jitter.makespan.end());
  jitter.most = *std::max_element(jitter.makespan.begin(), jitter.makespan.end());
  return jitter;
}

}  // namespace slimpack::sim
