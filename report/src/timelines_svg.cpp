// SPDX-License-Identifier: Apache-2.0
#include "slimpack/report/svg.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lane_path.hpp"
#include "picture.hpp"
#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/plan/step_trace.hpp"
#include "slimpack/sim/dag.hpp"
#include "text.hpp"

namespace slimpack::report {

using namespace detail;  // NOLINT(google-build-using-namespace): of this library

namespace {

/// The lanes of one step by dp, then pp, each with its spans by begin.
class TraceLanes {
 public:
  explicit TraceLanes(const TitledTrace& titled) : iteration_(titled.trace.iteration) {
    require(!titled.trace.units.empty(), "timeline: a step must have a unit", titled.title);
    for (const TracedUnit& traced : titled.trace.units) {
      require(Nanos{} <= traced.begin && traced.begin <= traced.end && traced.end <= iteration_,
              "timeline: " + sim::device_name(traced.dp, traced.pp) + " " +
                  sim::unit_name(traced.unit) + ": must lie within the step",
              traced.begin.value);
      place(traced).push_back(traced);
    }
    for (Device& device : devices_) {
      const auto by_begin = [](const TracedUnit& a, const TracedUnit& b) {
        return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
      };
      std::stable_sort(device.units.begin(), device.units.end(), by_begin);
      std::stable_sort(device.reductions.begin(), device.reductions.end(), by_begin);
    }
  }

  [[nodiscard]] std::size_t size() const noexcept { return devices_.size(); }
  [[nodiscard]] bool reduces() const noexcept {
    return std::any_of(devices_.begin(), devices_.end(),
                       [](const Device& device) { return !device.reductions.empty(); });
  }

  /// Refers to this object, which must live until the lane is drawn.
  [[nodiscard]] Lane lane(std::size_t i) const {
    const Device& device = devices_[i];
    Lane lane;
    if (std::all_of(devices_.begin(), devices_.end(), [](const Device& d) { return d.pp == 0; })) {
      lane.name = "rank " + std::to_string(device.dp);
    } else {
      lane.name = "stage " + std::to_string(device.pp);
      if (i == 0 || devices_[i - 1].dp != device.dp) {
        lane.header = "data-parallel rank " + std::to_string(device.dp);
      }
    }
    Nanos busy;
    for (const TracedUnit& traced : device.units) busy += traced.end - traced.begin;
    const std::int64_t whole = std::max<std::int64_t>(1, iteration_.value);
    lane.upper_note =
        "busy " + percent(static_cast<double>(busy.value) / static_cast<double>(whole));
    lane.stretches = [this, &device] { return stretches(device); };
    lane.reductions = [&device] {
      std::vector<Stretch> out;
      for (const TracedUnit& traced : device.reductions) {
        out.push_back({traced.begin, traced.end, Paint::reduce, 0, false, {}});
      }
      return out;
    };
    lane.memory = [] { return std::vector<HeldBytes>{}; };
    return lane;
  }

  template <class Visit>
  void for_each_unit(const Visit& visit) const {
    for (const Device& device : devices_) {
      for (const TracedUnit& traced : device.units) visit(traced);
    }
  }

 private:
  struct Device {
    std::int32_t dp = 0, pp = 0;
    std::vector<TracedUnit> units, reductions;
  };

  [[nodiscard]] std::vector<TracedUnit>& place(const TracedUnit& traced) {
    const std::pair wanted(traced.dp, traced.pp);
    auto device = std::lower_bound(
        devices_.begin(), devices_.end(), wanted,
        [](const Device& a, const auto& key) { return std::pair(a.dp, a.pp) < key; });
    if (device == devices_.end() || std::pair(device->dp, device->pp) != wanted) {
      device = devices_.insert(device, Device{traced.dp, traced.pp, {}, {}});
    }
    return traced.unit.kind == UnitKind::reduce ? device->reductions : device->units;
  }

  /// Units and what lies between them, up to the step's end.
  [[nodiscard]] std::vector<Stretch> stretches(const Device& device) const {
    std::vector<Stretch> out;
    Nanos idle_since;
    const auto idle_until = [&](Nanos until) {
      if (idle_since < until) out.push_back({idle_since, until, Paint::gap, 0, false, {}});
    };
    for (const TracedUnit& traced : device.units) {
      idle_until(traced.begin);
      constexpr std::array<Paint, 6> kPaint{Paint::forward, Paint::backward,  Paint::head,
                                            Paint::reduce,  Paint::optimizer, Paint::weight};
      const UnitKind kind = traced.unit.kind;
      Stretch stretch{traced.begin,
                      traced.end,
                      kPaint[static_cast<std::size_t>(kind)],
                      static_cast<std::uint8_t>(std::min<std::int32_t>(
                          traced.unit.chunk, static_cast<std::int32_t>(kShades) - 1)),
                      traced.in_cp_group,
                      {}};
      if (kind != UnitKind::optimizer) stretch.mark = static_cast<std::uint32_t>(traced.unit.pack);
      out.push_back(stretch);
      idle_since = std::max(idle_since, traced.end);
    }
    idle_until(iteration_);
    return out;
  }

  Nanos iteration_;
  std::vector<Device> devices_;
};

[[nodiscard]] std::vector<LegendEntry> timelines_legend(std::span<const TraceLanes> timelines) {
  std::array<bool, 6> kinds{};
  bool chunks = false, in_cp_group = false, reduces = false;
  for (const TraceLanes& lanes : timelines) {
    lanes.for_each_unit([&](const TracedUnit& traced) {
      kinds[static_cast<std::size_t>(traced.unit.kind)] = true;
      chunks = chunks || traced.unit.chunk > 0;
      in_cp_group = in_cp_group || traced.in_cp_group;
    });
    reduces = reduces || lanes.reduces();
  }
  std::vector<LegendEntry> legend;
  const auto offer = [&](bool seen, const char* style, int shade, const char* text) {
    if (seen) legend.push_back({style, shade, text});
  };
  offer(kinds[0], "forward", 0, "forward");
  offer(kinds[1], "backward", 0, "backward");
  offer(kinds[2], "head-unit", 0, "head");
  offer(kinds[4], "optimizer", 0, "optimizer");
  offer(kinds[5], "weight", 0, "weight gradients apart");
  offer(chunks, "forward", 1, "later chunks, weaker");
  offer(in_cp_group, "merged", 0, "context-parallel group");
  offer(reduces, "reduce", 0, "reduction of gradients");
  offer(true, "gap0", 0, "idle");
  return legend;
}

}  // namespace

void write_timelines_svg(std::ostream& out, std::string_view title,
                         std::span<const TitledTrace> steps) {
  constexpr std::size_t kMostLanes = 96;
  require(!steps.empty(), "timelines: there must be a step");
  Picture picture;
  picture.title = clipped(one_line(title), 120);
  picture.span = Nanos{1};
  picture.with_memory = false;
  for (const TitledTrace& step : steps) {
    picture.span = std::max(picture.span, step.trace.iteration);
  }
  std::vector<TraceLanes> timelines;
  timelines.reserve(steps.size());
  for (const TitledTrace& step : steps) timelines.emplace_back(step);
  const std::size_t room = std::max<std::size_t>(1, kMostLanes / steps.size());
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const TraceLanes& lanes = timelines[i];
    picture.with_reductions = picture.with_reductions || lanes.reduces();
    for (std::size_t lane = 0; lane < std::min(room, lanes.size()); ++lane) {
      picture.lanes.push_back(lanes.lane(lane));
      if (lane > 0) continue;
      picture.lanes.back().heading =
          clipped(one_line(steps[i].title), 120) + ": " + time_text(steps[i].trace.iteration);
    }
    if (lanes.size() > room) {
      picture.footnote =
          "Of each step at most the first " + std::to_string(room) + " devices are drawn.";
    }
  }
  picture.lines = {"one time axis, idle time up to each step's own end"};
  picture.legend = timelines_legend(timelines);
  write_picture(out, picture);
}

}  // namespace slimpack::report
