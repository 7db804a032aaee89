// SPDX-License-Identifier: Apache-2.0
// The shapes of one lane of a timeline picture: what is too thin to see goes into shaded columns.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "slimpack/core/int128.hpp"
#include "slimpack/core/units.hpp"
#include "text.hpp"

namespace slimpack::report::detail {

/// How a stretch of a lane is drawn. Gaps carry their cause as `shade`, units their chunk.
enum class Paint : std::uint8_t { forward, backward, head, optimizer, weight, reduce, gap };

inline constexpr std::size_t kPaints = 7;

inline constexpr std::size_t kShades = 9;

/// A stretch of a lane. `mark` is a number to write into it where it fits.
struct Stretch {
  Nanos begin, end;
  Paint paint = Paint::forward;
  std::uint8_t shade = 0;
  bool in_cp_group = false;
  std::optional<std::uint32_t> mark;
};

/// Lengths in hundredths of a pixel: every coordinate is an exact integer.
using Hundredths = std::int64_t;

/// Times along the width of a plot.
struct TimeScale {
  Nanos span;          ///< > 0
  Hundredths width{};  ///< > 0
  [[nodiscard]] constexpr Hundredths at(Nanos time) const noexcept {
    return static_cast<Hundredths>((static_cast<Int128>(time.value) * width + span.value / 2) /
                                   span.value);
  }
};

[[nodiscard]] inline std::string pixels(Hundredths length) {
  return short_decimal(length, 2);
}

/// Path data of one lane, by paint and shade. `full` are lines along the middle of the lane, as
/// thick as it is high; `parts` are areas; `marks` are places of numbers.
struct LanePath {
  std::array<std::array<std::string, kShades>, kPaints> full, parts;
  std::string in_cp_group;  ///< lines along the top
  struct Mark {
    Hundredths at{};
    std::uint32_t number = 0;
  };
  std::vector<Mark> marks;
};

/// Draws stretches that follow one another in time (gaps between them stay empty). A stretch of at
/// least a column is drawn as it is; a run of thinner ones within a column becomes one stack whose
/// areas are in proportion to their times, and equal neighbours become one. At most about two
/// shapes a column come out, whatever the number of stretches. O(stretches + columns).
class LanePainter {
 public:
  LanePainter(TimeScale scale, Hundredths height, std::int64_t columns, bool with_marks)
      : scale_(scale), height_(height), columns_(columns), with_marks_(with_marks) {}

  [[nodiscard]] LanePath paint(std::span<const Stretch> stretches) && {
    const Nanos column{std::max<std::int64_t>(1, scale_.span.value / columns_)};
    for (const Stretch& stretch : stretches) {
      if (stretch.end <= stretch.begin) continue;
      if (stretch.end - stretch.begin >= column) {
        end_run();
        end_stack();
        draw(stretch);
      } else {
        gather(stretch, stretch.begin.value / column.value);
      }
    }
    end_run();
    end_stack();
    return std::move(path_);
  }

 private:
  static constexpr std::size_t kKinds = kPaints * kShades;
  static constexpr std::int64_t kLevels = 24;  // heights that a share of a stack may have
  using Shares = std::array<std::int64_t, kKinds>;

  static std::size_t kind_of(const Stretch& stretch) {
    return static_cast<std::size_t>(stretch.paint) * kShades + stretch.shade;
  }
  static void line(std::string& to, Hundredths from, Hundredths width) {
    to += 'M';
    to += pixels(from);
    to += " 0h";
    to += pixels(width);
  }

  void draw(const Stretch& stretch) {
    const Hundredths from = scale_.at(stretch.begin);
    Hundredths width = scale_.at(stretch.end) - from;
    if (stretch.paint != Paint::gap && width >= 150) width -= width >= 400 ? 60 : 30;
    if (width == 0) return;
    line(path_.full[static_cast<std::size_t>(stretch.paint)][stretch.shade], from, width);
    if (stretch.in_cp_group) line(path_.in_cp_group, from, width);
    if (!with_marks_ || !stretch.mark) return;
    const auto digits = static_cast<Hundredths>(std::to_string(*stretch.mark).size());
    if (width >= 600 + 600 * digits) path_.marks.push_back({from + width / 2, *stretch.mark});
  }

  void gather(const Stretch& stretch, std::int64_t column) {
    if (run_ && (column != column_ || stretch.begin != run_end_)) end_run();
    if (!run_) {
      run_ = true;
      column_ = column;
      run_begin_ = stretch.begin;
      times_ = {};
      merged_time_ = 0;
    }
    run_end_ = stretch.end;
    times_[kind_of(stretch)] += (stretch.end - stretch.begin).value;
    if (stretch.in_cp_group) merged_time_ += (stretch.end - stretch.begin).value;
  }

  /// Rounded down, the rest to the largest share, so that the heights sum up to the lane's.
  void end_run() {
    if (!run_) return;
    run_ = false;
    const std::int64_t whole = (run_end_ - run_begin_).value;
    Shares levels{};
    std::int64_t rest = kLevels;
    std::size_t largest = 0;
    for (std::size_t kind = 0; kind < kKinds; ++kind) {
      levels[kind] = kLevels * times_[kind] / whole;
      rest -= levels[kind];
      if (times_[kind] > times_[largest]) largest = kind;
    }
    levels[largest] += rest;
    const bool in_cp_group = 2 * merged_time_ > whole;
    if (stack_ && stack_end_ == run_begin_ && levels == stack_levels_ &&
        in_cp_group == stack_merged_) {
      stack_end_ = run_end_;
      return;
    }
    end_stack();
    stack_ = true;
    stack_begin_ = run_begin_;
    stack_end_ = run_end_;
    stack_levels_ = levels;
    stack_merged_ = in_cp_group;
  }

  void end_stack() {
    if (!stack_) return;
    stack_ = false;
    const Hundredths from = scale_.at(stack_begin_);
    const Hundredths width = scale_.at(stack_end_) - from;
    if (width == 0) return;
    if (stack_merged_) line(path_.in_cp_group, from, width);
    std::int64_t below = 0;
    for (std::size_t kind = 0; kind < kKinds; ++kind) {
      const std::int64_t level = stack_levels_[kind];
      if (level == 0) continue;
      if (level == kLevels) {
        line(path_.full[kind / kShades][kind % kShades], from, width);
        return;
      }
      const Hundredths bottom = height_ - height_ * below / kLevels;
      below += level;
      const Hundredths top = height_ - height_ * below / kLevels;
      std::string& area = path_.parts[kind / kShades][kind % kShades];
      area += 'M';
      area += pixels(from);
      area += ' ';
      area += pixels(top);
      area += 'h';
      area += pixels(width);
      area += 'v';
      area += pixels(bottom - top);
      area += 'h';
      area += pixels(-width);
      area += 'z';
    }
  }

  TimeScale scale_;
  Hundredths height_;
  std::int64_t columns_;
  bool with_marks_;
  LanePath path_;

  bool run_ = false;
  std::int64_t column_ = 0;
  Nanos run_begin_, run_end_;
  Shares times_{};
  std::int64_t merged_time_ = 0;

  bool stack_ = false;
  Nanos stack_begin_, stack_end_;
  Shares stack_levels_{};
  bool stack_merged_ = false;
};

}  // namespace slimpack::report::detail
