// SPDX-License-Identifier: Apache-2.0
// What the slimpack planner decides by search.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "slimpack/core/units.hpp"
#include "slimpack/plan/names.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/planners/search/detail/choices.hpp"
#include "slimpack/planners/search/detail/recompute_by_length.hpp"
#include "slimpack/planners/search/settings.hpp"
#include "slimpack/schedule/assign_rules.hpp"
#include "slimpack/schedule/cut.hpp"

namespace slimpack {
namespace planners {

/// Samples of a rank in its queue: longest first, shortest first, or short ones at both ends.
enum class QueueOrder : std::uint8_t { long_first, short_first, pyramid };

/// What the packs of a pass are equal in: time, tokens, or half in either. Memory goes with tokens.
enum class PackBalance : std::uint8_t { time, both, tokens };

/// How devices get their orders: by list scheduling, or slot by slot.
enum class OrderRule : std::uint8_t { list, lockstep };

/// Which backward packs leave the gradients of weights to packs of their own: none, those of the
/// drain, or all.
enum class WeightRule : std::uint8_t { with, tail, apart };

}  // namespace planners

template <>
inline constexpr std::array<std::string_view, 3> kWords<planners::QueueOrder>{
    "long-first", "short-first", "pyramid"};
template <>
inline constexpr std::array<std::string_view, 3> kWords<planners::PackBalance>{"time", "both",
                                                                               "tokens"};
template <>
inline constexpr std::array<std::string_view, 3> kWords<schedule::GroupRule>{"threshold", "even",
                                                                             "disjoint"};
template <>
inline constexpr std::array<std::string_view, 2> kWords<planners::OrderRule>{"list", "lockstep"};
template <>
inline constexpr std::array<std::string_view, 3> kWords<planners::WeightRule>{"with", "tail",
                                                                              "apart"};

}  // namespace slimpack

namespace slimpack::planners {

/// One candidate of slimpack's own planner.
struct SlimpackSettings {
  ModeChoice mode;                            ///< recomputation
  LmHeadPlacement head;                       ///< place of vocabulary projection and loss
  std::int32_t head_batch = 1;                ///< packs that run their H back to back, if sharded
  std::int64_t units = 1;                     ///< full packs that a rank's queue is worth, about
  std::int64_t units_permille = 1000;         ///< forward packs, to so many thousandths of these
  bool whole_samples = false;                 ///< no sample is cut
  PackBalance balance = PackBalance::time;    ///< what packs are equal in
  bool same_packs = false;                    ///< both passes have the same packs, without ramps
  std::int64_t backward_permille = 1000;      ///< backward packs, to so many thousandths of these
  schedule::Ramp ramp;                        ///< at both ends of each queue
  QueueOrder order = QueueOrder::long_first;  ///< of a rank's own samples
  /// Samples that take more than so many thousandths of a rank's mean time may be shared; 0: none.
  std::int64_t cp_threshold_permille = 0;
  std::int32_t widest_group = 1;             ///< most ranks that share such a sample
  std::int32_t narrowest_group = 1;          ///< ranks that share every other sample
  schedule::GroupRule groups{};              ///< how it is chosen which ranks share samples
  Tokens cp_block{0};                        ///< of samples that are; 0: as small as pays
  std::int32_t chunks = 1;                   ///< virtual stages of a device
  DeviceOrder devices = DeviceOrder::ranks;  ///< placement of (dp, pp)
  OrderRule rule = OrderRule::list;          ///< how device orders are made
  std::int32_t forward_queue = 1;  ///< F that list scheduling keeps waiting at the next stage
  bool short_blocks = false;       ///< as many packs as stages pass chunk after chunk together
  bool sample_blocks = false;      ///< such blocks end with samples
  bool even_blocks = false;        ///< they are equal but for one pack, else full but for the rest
  bool backward_first = false;     ///< on the last stage, where the head is there: B before F
  WeightRule weights = WeightRule::with;  ///< packs that leave weights apart, by list scheduling
  bool fit_modes = false;                 ///< on one stage packs that lack memory keep less
  bool spread = false;                    ///< shared samples begin on the rank that has least
  bool group_blocks = false;              ///< shared samples are packed into `sample_blocks`, too

  /// Whether ranks may share samples.
  [[nodiscard]] constexpr bool shares() const noexcept {
    return cp_threshold_permille > 0 || narrowest_group > 1 ||
           groups != schedule::GroupRule::threshold;
  }
  /// Full forward packs that a rank's queue is worth.
  [[nodiscard]] constexpr std::int64_t forward_units() const noexcept {
    return std::max<std::int64_t>(1, (units * units_permille + 500) / 1000);
  }
  /// Full backward packs that a rank's queue is worth.
  [[nodiscard]] constexpr std::int64_t backward_units() const noexcept {
    return std::max<std::int64_t>(1, forward_units() * backward_permille / 1000);
  }
  friend bool operator==(const SlimpackSettings&, const SlimpackSettings&) = default;
};

}  // namespace slimpack::planners
