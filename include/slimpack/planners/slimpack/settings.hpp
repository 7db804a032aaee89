// SPDX-License-Identifier: Apache-2.0
// What the slimpack planner decides by search, and the values it tries.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/planners/planner.hpp"
#include "slimpack/planners/search/packed_sequences.hpp"
#include "slimpack/planners/search/setting_search.hpp"
#include "slimpack/planners/slimpack/options.hpp"
#include "slimpack/schedule/cut.hpp"

namespace slimpack::planners {

/// Samples of a rank on its line: longest first, shortest first, or short ones at both ends.
enum class QueueOrder : std::uint8_t { long_first, short_first, pyramid };

/// Which devices lie next to each other: the data-parallel ranks of a stage or the stages of a
/// rank.
enum class DeviceOrder : std::uint8_t { ranks, stages };

/// What is kept of samples: as much as `most` says of short ones, the less the longer they are,
/// down to `lean`. `limit[m]` is the longest sample that mode m is for.
struct ModeChoice {
  Recompute most = Recompute::none;
  Recompute lean = Recompute::none;
  std::array<Tokens, kRecomputeModes> limit{Tokens::max(), Tokens::max(), Tokens::max(),
                                            Tokens::max()};
  [[nodiscard]] constexpr Recompute of(Tokens length) const noexcept {
    auto mode = static_cast<std::size_t>(most);
    while (mode < static_cast<std::size_t>(lean) && length > limit[mode]) ++mode;
    return static_cast<Recompute>(mode);
  }
};

/// Where the head is; how many packs run their H back to back where it is sharded.
struct LmHeadChoice {
  LmHeadPlacement place;
  std::int32_t batch = 1;
};

/// One candidate.
struct SlimpackSettings {
  ModeChoice mode;
  LmHeadChoice head;
  std::int64_t units = 1;                 ///< full forward packs that a rank's line is worth
  std::int64_t backward_permille = 1000;  ///< backward packs, to so many thousandths of these
  schedule::Ramp ramp;
  QueueOrder order = QueueOrder::long_first;
  std::int64_t cp_threshold_permille = 0;  ///< threshold of merging by time; 0: nothing is merged
  std::int32_t chunks = 1;
  DeviceOrder devices = DeviceOrder::ranks;
  bool lockstep = false;   ///< orders slot by slot, else by list scheduling
  std::int32_t queue = 1;  ///< F that list scheduling keeps waiting at the next stage
};

/// The values of each setting. Of those in `ladder` neighbours are alike, of the others not.
struct SlimpackSpace {
  std::vector<ModeChoice> mode;
  std::vector<LmHeadChoice> head;
  std::vector<std::int64_t> units, backward;
  std::vector<schedule::Ramp> ramp;
  std::vector<QueueOrder> order;
  std::vector<std::int64_t> max_cp;
  std::vector<std::int32_t> chunks;
  std::vector<DeviceOrder> devices;
  std::vector<bool> lockstep;
  std::vector<std::int32_t> queue;
  std::vector<SettingPoint> starts;

  static constexpr std::array<bool, 11> kLadder{true, true, true, true,  true, false,
                                                true, true, true, false, true};
  /// What all components of ranks have in common.
  static constexpr std::array<bool, 11> kShared{false, false, false, false, true, false,
                                                true,  true,  false, false, false};

  [[nodiscard]] std::array<std::size_t, 11> sizes() const noexcept {
    return {mode.size(),     head.size(),     units.size(),  ramp.size(),
            max_cp.size(),   order.size(),    chunks.size(), devices.size(),
            backward.size(), lockstep.size(), queue.size()};
  }
  [[nodiscard]] SlimpackSettings at(const SettingPoint& point) const {
    SlimpackSettings settings;
    settings.mode = mode.at(point[0]);
    settings.head = head.at(point[1]);
    settings.units = units.at(point[2]);
    settings.ramp = ramp.at(point[3]);
    settings.cp_threshold_permille = max_cp.at(point[4]);
    settings.order = order.at(point[5]);
    settings.chunks = chunks.at(point[6]);
    settings.devices = devices.at(point[7]);
    settings.backward_permille = backward.at(point[8]);
    settings.lockstep = lockstep.at(point[9]);
    settings.queue = queue.at(point[10]);
    return settings;
  }
};

[[nodiscard]] inline std::map<std::string, std::string> describe(const SlimpackSettings& settings,
                                                                 const SlimpackOptions& options) {
  std::map<std::string, std::string> lines;
  const ModeChoice& mode = settings.mode;
  lines["recompute"] = to_string(mode.most);
  for (auto i = static_cast<std::size_t>(mode.most); i < static_cast<std::size_t>(mode.lean); ++i) {
    lines["recompute_long"] += (lines["recompute_long"].empty() ? "" : ", ") +
                               std::string(to_string(static_cast<Recompute>(i + 1))) + " from " +
                               std::to_string(mode.limit[i].value + 1);
  }
  lines["chunks"] = std::to_string(settings.chunks);
  const LmHeadPlacement& head = settings.head.place;
  lines["head"] = head.head == LmHead::last ? "last" : "shard";
  if (head.head == LmHead::shard) lines["head_batch"] = std::to_string(settings.head.batch);
  lines["last_stage_layers"] =
      head.fewer_last_layers == 0 ? "even" : std::to_string(head.fewer_last_layers) + "-fewer";
  lines["units"] = std::to_string(settings.units);
  if (options.asymmetric) {
    lines["backward_units"] = std::to_string(
        std::max<std::int64_t>(1, settings.units * settings.backward_permille / 1000));
  }
  lines["ramp"] = settings.ramp == schedule::Ramp{}
                      ? "off"
                      : std::to_string(settings.ramp.first_permille) + "+" +
                            std::to_string(settings.ramp.growth_permille);
  constexpr std::array<std::string_view, 3> kOrders{"long-first", "short-first", "pyramid"};
  lines["order"] = kOrders[static_cast<std::size_t>(settings.order)];
  lines["merge_threshold"] = settings.cp_threshold_permille == 0
                                 ? "off"
                                 : std::to_string(settings.cp_threshold_permille) + "/1000";
  lines["schedule"] = settings.lockstep ? "lockstep" : "list";
  if (!settings.lockstep) lines["forward_queue"] = std::to_string(settings.queue);
  lines["devices"] = settings.devices == DeviceOrder::ranks ? "ranks-together" : "stages-together";
  return lines;
}

}  // namespace slimpack::planners
