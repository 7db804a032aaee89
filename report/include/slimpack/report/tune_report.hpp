// SPDX-License-Identifier: Apache-2.0
// Tunings of several planners and batch sizes in one ranking, as JSON and as tables to read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/io/json_writer.hpp"
#include "slimpack/report/compare.hpp"
#include "slimpack/report/tune.hpp"

namespace slimpack::report {

/// Steps of one batch size.
struct TunedBatch {
  std::optional<Tokens> batch_tokens;  ///< what a step may hold; absent where nothing was asked
  std::vector<ComparedStep> steps;     ///< that every choice of degrees was planned on
  /// Tokens of all steps.
  [[nodiscard]] Tokens tokens() const noexcept {
    Tokens sum;
    for (const ComparedStep& step : steps) sum += step.tokens;
    return sum;
  }
};

/// One planner on one batch size.
struct TunedPlanner {
  std::size_t batch = 0;  ///< in `TuneReport::batches`
  Tuning tuning;          ///< all degrees that were tried
};

/// All that `slimpack tune` found. Degrees, batch tokens and steps of `task` are not used.
struct TuneReport {
  ComparedTask task;                  ///< what was asked of all planners
  std::int64_t devices = 0;           ///< that every choice of degrees uses
  std::vector<TunedBatch> batches;    ///< the batch sizes that were tried
  std::vector<TunedPlanner> results;  ///< one for each planner and batch
};

/// A place in the ranking: a choice of degrees of a result.
struct TunedPlace {
  std::size_t result = 0;  ///< in `TuneReport::results`
  std::size_t tried = 0;   ///< in that result's `Tuning::tried`
  friend bool operator==(const TunedPlace&, const TunedPlace&) = default;
};

/// The choice of degrees that a place stands for.
[[nodiscard]] const TunedDegrees& tuned_at(const TuneReport& report, TunedPlace place);

/// Tokens of all steps that the choice was planned on.
[[nodiscard]] Tokens tokens_at(const TuneReport& report, TunedPlace place);

/// Every feasible choice, most tokens a second first; ties to the earlier result, then the better
/// place in it. Exact. O(n log n) in choices.
[[nodiscard]] std::vector<TunedPlace> tuned_ranking(const TuneReport& report);

/// One sentence: how much longer the loser takes for the same tokens and where that time goes. Its
/// largest causes are named, three at most, and the largest gain it has in return, each where it is
/// a tenth of the difference or more.
[[nodiscard]] std::string why_lost(const TuneReport& report, TunedPlace winner, TunedPlace loser);

/// Writes the member `rounds`: of each round of a tuning, degrees, budget, simulations, processor
/// time, the best time after it and its gain.
void write_tune_rounds(JsonWriter& json, const Tuning& tuning);

/// Writes the report as `"format": "slimpack-tuning"`, version 1.
void write_tuning_json(std::ostream& out, const TuneReport& report);

/// Writes, with several planners or batches, a row for the best degrees of each; of each the gain
/// of its rounds; then every choice of degrees of the best of them, best first, then the best one's
/// settings and one sentence on why the runner-up lost. Tokens a second, time, efficiency, MFU and
/// idle share are over all steps.
void write_tuning_text(std::ostream& out, const TuneReport& report);

}  // namespace slimpack::report
