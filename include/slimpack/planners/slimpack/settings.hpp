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
#include "slimpack/planners/search/settings.hpp"
#include "slimpack/schedule/cut.hpp"

namespace slimpack {
namespace planners {

/// Samples of a rank in its queue: longest first, shortest first, or short ones at both ends.
enum class QueueOrder : std::uint8_t { long_first, short_first, pyramid };

/// Which devices lie next to each other: the data-parallel ranks of a stage or the stages of a
/// rank.
enum class DeviceOrder : std::uint8_t { ranks, stages };

/// How devices get their orders: by list scheduling, or slot by slot.
enum class OrderRule : std::uint8_t { list, lockstep };

}  // namespace planners

template <>
inline constexpr std::array<std::string_view, 3> kWords<planners::QueueOrder>{
    "long-first", "short-first", "pyramid"};
template <>
inline constexpr std::array<std::string_view, 2> kWords<planners::DeviceOrder>{"ranks-together",
                                                                               "stages-together"};
template <>
inline constexpr std::array<std::string_view, 2> kWords<planners::OrderRule>{"list", "lockstep"};

}  // namespace slimpack

namespace slimpack::planners {

/// Recomputation by length: short samples keep what `most` says, longer ones less, down to `lean`.
struct ModeChoice {
  Recompute most = Recompute::none;  ///< of the shortest samples
  Recompute lean = Recompute::none;  ///< of the longest samples; `most` or a leaner mode
  /// The longest sample of each mode from `most` on; that of `lean` has no meaning.
  std::array<Tokens, kRecomputeModes> limit{Tokens::max(), Tokens::max(), Tokens::max(),
                                            Tokens::max()};

  /// The mode of a sample.
  [[nodiscard]] constexpr Recompute of(Tokens length) const noexcept {
    auto mode = static_cast<std::size_t>(most);
    while (mode < static_cast<std::size_t>(lean) && length > limit[mode]) ++mode;
    return static_cast<Recompute>(mode);
  }
  /// The text "recompute", and "recompute_long" where samples differ.
  void describe(SettingTexts& texts) const {
    texts["recompute"] = to_string(most);
    for (auto i = static_cast<std::size_t>(most); i < static_cast<std::size_t>(lean); ++i) {
      std::string& text = texts["recompute_long"];
      if (!text.empty()) text += ", ";
      text += std::string(to_string(static_cast<Recompute>(i + 1))) + " from " +
              std::to_string(limit[i].value + 1);
    }
  }
};

/// The place of the head and how its units run.
struct LmHeadChoice {
  LmHeadPlacement place;   ///< last or sharded, and layers of the last stage
  std::int32_t batch = 1;  ///< packs that run their H back to back where it is sharded

  /// The texts of the placement, and "head_batch" of a sharded head.
  void describe(SettingTexts& texts) const {
    place.describe(texts);
    if (place.head == LmHead::shard) texts["head_batch"] = std::to_string(batch);
  }
};

/// One candidate of slimpack's own planner.
struct SlimpackSettings {
  ModeChoice mode;                            ///< recomputation
  LmHeadChoice head;                          ///< place of vocabulary projection and loss
  std::int64_t units = 1;                     ///< full forward packs that a rank's queue is worth
  std::int64_t backward_permille = 1000;      ///< backward packs, to so many thousandths of these
  schedule::Ramp ramp;                        ///< at both ends of each queue
  QueueOrder order = QueueOrder::long_first;  ///< of a rank's own samples
  /// Samples that take more than so many thousandths of a rank's mean time may be shared; 0: none.
  std::int64_t cp_threshold_permille = 0;
  std::int32_t chunks = 1;                   ///< virtual stages of a device
  DeviceOrder devices = DeviceOrder::ranks;  ///< placement of (dp, pp)
  OrderRule rule = OrderRule::list;          ///< how device orders are made
  std::int32_t forward_queue = 1;  ///< F that list scheduling keeps waiting at the next stage

  /// Whether ranks may share samples.
  [[nodiscard]] constexpr bool shares() const noexcept { return cp_threshold_permille > 0; }
  /// Full backward packs that a rank's queue is worth.
  [[nodiscard]] constexpr std::int64_t backward_units() const noexcept {
    return std::max<std::int64_t>(1, units * backward_permille / 1000);
  }
};

}  // namespace slimpack::planners
