// SPDX-License-Identifier: Apache-2.0
// A timeline picture as data, and its SVG: lanes of stretches with a memory curve under each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "lane_path.hpp"
#include "slimpack/core/units.hpp"

namespace slimpack::report::detail {

/// What a device held from an instant on.
struct HeldBytes {
  Nanos time;
  Bytes bytes;
};

/// One device. Stretches and the curve rise in time and are made when the lane is drawn, one lane
/// at a time.
struct Lane {
  std::string name;
  std::string upper_note, lower_note;  ///< right of the lane
  std::string header;                  ///< above the lane, where a new rank begins; may be empty
  std::string heading;                 ///< above that, where a new plan begins; may be empty
  Bytes always;
  std::function<std::vector<Stretch>()> stretches;
  std::function<std::vector<Stretch>()> reductions;
  std::function<std::vector<HeldBytes>()> memory;
};

struct LegendEntry {
  std::string style;  ///< class of the swatch
  int shade = 0;
  std::string text;
};

struct Picture {
  std::string title;
  std::vector<std::string> lines;  ///< below the title
  std::vector<LegendEntry> legend;
  std::vector<Lane> lanes;
  std::string footnote;  ///< may be empty
  Nanos span;
  Bytes limit;
  bool with_reductions = false;
  bool with_memory = true;
};

[[nodiscard]] std::string paint_class(std::size_t paint, std::size_t shade);

/// Later chunks are paler.
[[nodiscard]] std::string shade_opacity(std::size_t paint, std::size_t shade);

/// Round steps of 1, 2 or 5 so that about `ticks` of them span `whole`.
[[nodiscard]] constexpr std::int64_t tick_step(std::int64_t whole, std::int64_t ticks) noexcept {
  std::int64_t step = 1;
  for (;;) {
    for (const std::int64_t factor : {1, 2, 5}) {
      if (whole / (step * factor) <= ticks) return step * factor;
    }
    step *= 10;
  }
}

/// Writes the picture as one SVG file. The time columns are halved in number until the file is
/// below about 2 MB; a picture of few units takes one turn.
void write_picture(std::ostream& out, const Picture& picture);

}  // namespace slimpack::report::detail
