// SPDX-License-Identifier: Apache-2.0
// Tunings of several planners and batch sizes in one ranking, and why each place lost.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "slimpack/core/int128.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/report/compare.hpp"
#include "slimpack/report/detail/text.hpp"
#include "slimpack/report/time_split.hpp"
#include "slimpack/report/tune.hpp"

namespace slimpack::report {

/// Steps of one batch size.
struct TunedBatch {
  std::optional<Tokens> batch_tokens;  ///< what a step may hold; absent where nothing was asked
  std::vector<ComparedStep> steps;
  [[nodiscard]] Tokens tokens() const noexcept {
    Tokens sum;
    for (const ComparedStep& step : steps) sum += step.tokens;
    return sum;
  }
};

/// One planner on one batch size.
struct TunedPlanner {
  std::size_t batch = 0;  ///< in `TuneReport::batches`
  Tuning tuning;
};

/// All that `slimpack tune` found. Degrees, batch tokens and steps of `task` are not used.
struct TuneReport {
  ComparedTask task;
  std::int64_t devices = 0;
  std::vector<TunedBatch> batches;
  std::vector<TunedPlanner> results;  ///< one for each planner and batch
};

/// A place in the ranking: a choice of degrees of a result.
struct TunedPlace {
  std::size_t result = 0, tried = 0;
  friend bool operator==(const TunedPlace&, const TunedPlace&) = default;
};

[[nodiscard]] inline const TunedDegrees& tuned_at(const TuneReport& report, TunedPlace place) {
  return report.results[place.result].tuning.tried[place.tried];
}
/// Tokens of all steps that the choice was planned on.
[[nodiscard]] inline Tokens tokens_at(const TuneReport& report, TunedPlace place) {
  return report.batches[report.results[place.result].batch].tokens();
}

/// Every feasible choice, most tokens a second first; ties to the earlier result, then the better
/// place in it. Exact. O(n log n) in choices.
[[nodiscard]] inline std::vector<TunedPlace> tuned_ranking(const TuneReport& report) {
  std::vector<TunedPlace> places;
  for (std::size_t result = 0; result < report.results.size(); ++result) {
    const auto& tried = report.results[result].tuning.tried;
    for (std::size_t i = 0; i < tried.size() && tried[i].time; ++i) {
      places.push_back({result, i});
    }
  }
  std::stable_sort(places.begin(), places.end(), [&](TunedPlace a, TunedPlace b) {
    return Int128{tokens_at(report, a).value} * tuned_at(report, b).time->value >
           Int128{tokens_at(report, b).value} * tuned_at(report, a).time->value;
  });
  return places;
}

namespace detail {

/// A cause of time in words that go behind "0.1 s more".
[[nodiscard]] inline std::string_view cause_words(std::size_t cause) {
  constexpr std::array<std::string_view, kTimeCauses> kWords{"work",
                                                             "recomputation",
                                                             "communication inside units",
                                                             "launches, segments and tiles",
                                                             "optimizer step",
                                                             "filling of the pipeline",
                                                             "draining of the pipeline",
                                                             "waiting for slower ranks at the end",
                                                             "reduction of gradients",
                                                             "waiting for neighbouring stages",
                                                             "waiting for ranks and stages to meet",
                                                             "waiting for a place to send",
                                                             "waiting for memory",
                                                             "waiting by order of the schedule"};
  return kWords[cause];
}

/// What a place is called; planner and batch only where there are several.
[[nodiscard]] inline std::string place_name(const TuneReport& report, TunedPlace place) {
  const TunedPlanner& result = report.results[place.result];
  std::string name = planners::to_string(tuned_at(report, place).degrees);
  if (report.batches.size() > 1) {
    if (const auto limit = report.batches[result.batch].batch_tokens) {
      name += ", " + count_text(limit->value) + " tokens a step";
    }
  }
  return report.results.size() > report.batches.size() ? result.tuning.planner + " at " + name
                                                       : name;
}

}  // namespace detail

/// One sentence: how much longer the loser takes for the same tokens and where that time goes. Its
/// largest causes are named, three at most, and the largest gain it has in return, each where it is
/// a tenth of the difference or more.
[[nodiscard]] inline std::string why_lost(const TuneReport& report, TunedPlace winner,
                                          TunedPlace loser) {
  const TunedDegrees &best = tuned_at(report, winner), &other = tuned_at(report, loser);
  const double scale = static_cast<double>(tokens_at(report, winner).value) /
                       static_cast<double>(tokens_at(report, loser).value);
  std::array<double, kTimeCauses> more{};
  double all = 0;
  std::array<std::size_t, kTimeCauses> order{};
  for (std::size_t cause = 0; cause < kTimeCauses; ++cause) {
    order[cause] = cause;
    more[cause] = seconds(other.split.time[cause]) * scale - seconds(best.split.time[cause]);
    all += more[cause];
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return more[a] > more[b]; });
  const double least = std::max(std::abs(all) / 10, 1e-9);
  std::string causes;
  const auto name = [&](std::size_t cause) {
    causes.append(causes.empty() ? ": " : ", ");
    causes.append(detail::time_text({std::llround(std::abs(more[cause]) * 1e9)}));
    causes.append(more[cause] > 0 ? " more " : " less ").append(detail::cause_words(cause));
  };
  for (std::size_t i = 0; i < 3; ++i) {
    if (more[order[i]] >= least) name(order[i]);
  }
  if (more[order.back()] <= -least) name(order.back());
  std::string sentence = detail::place_name(report, loser) + " takes " +
                         detail::fixed(100 * all / seconds(*best.time), 2) + " % longer than " +
                         detail::place_name(report, winner);
  if (scale != 1) sentence += " for as many tokens";
  return sentence + causes;
}

}  // namespace slimpack::report
