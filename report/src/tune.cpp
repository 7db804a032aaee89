// SPDX-License-Identifier: Apache-2.0
#include "slimpack/report/tune.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <mutex>
#include <numeric>
#include <optional>
#include <span>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "figures.hpp"
#include "slimpack/core/error.hpp"
#include "slimpack/core/int128.hpp"
#include "slimpack/core/parallel_for.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/planners/planner.hpp"
#include "slimpack/planners/search/degrees.hpp"
#include "slimpack/planners/search/setting_search.hpp"
#include "slimpack/report/compare.hpp"
#include "slimpack/report/time_split.hpp"

namespace slimpack::report {

using namespace detail;  // NOLINT(google-build-using-namespace): of this library

namespace {

/// Degrees that a further round may take although they are infeasible lack at most an eighth of
/// what there is.
constexpr std::int64_t kNearMiss = 125;

/// Degrees that take at most 1/kClose longer than the best stay in every round: a search with a
/// larger budget may gain as much.
constexpr std::int64_t kClose = 10;

/// The budget of a first round, in steps: with fewer, good degrees may look bad.
constexpr std::int64_t kLeastBudget = 32;
/// With more, a round ranks degrees no better; only the last one has it.
constexpr std::int64_t kMostBudget = 128;

/// How much more is needed than there is, in thousandths of it.
[[nodiscard]] std::int64_t lack_of(const Infeasible& none) noexcept {
  if (none.available <= 0) return std::numeric_limits<std::int64_t>::max();
  const Int128 lack = (Int128{none.needed} - none.available) * 1000 / none.available;
  return static_cast<std::int64_t>(
      std::min<Int128>(lack, std::numeric_limits<std::int64_t>::max()));
}

class Tuner {
 public:
  Tuner(const planners::PlannerInfo& planner, std::span<const planners::PlanRequest> steps,
        const TuneOptions& options)
      : planner_(planner), steps_(steps), options_(options) {}

  [[nodiscard]] Tuning run() {
    const auto start = std::chrono::steady_clock::now();
    const planners::PlanRequest& request = steps_.front();
    planners::DegreeBounds bounds = options_.bounds;
    if (request.chunks) bounds.chunks = *request.chunks;
    if (request.fewer_last_layers) bounds.fewer_last_layers = *request.fewer_last_layers;
    for (const planners::Degrees& degrees :
         planners::degree_choices(request.model, request.cluster, options_.devices, bounds)) {
      Choice choice;
      choice.tuned.degrees = degrees;
      const auto none = planners::lacks_static_memory(request, degrees);
      const bool shared = degrees.dp > 1 && degrees.pp <= planner_.sharding_stages &&
                          request.weight_state != WeightState::replicated;
      if (none && !shared) {
        choice.tuned.skipped = true;
        choice.tuned.why = why_infeasible(*none);
      }
      choices_.push_back(std::move(choice));
    }
    const auto planned = std::count_if(choices_.begin(), choices_.end(),
                                       [](const Choice& choice) { return !choice.tuned.skipped; });
    const std::vector<Round> rounds = rounds_for(planned);
    for (const Round& round : rounds) {
      most_ += round.budget * std::min(round.degrees, planned) *
               static_cast<std::int64_t>(steps_.size());
    }
    for (std::size_t i = 0; i < rounds.size(); ++i) {
      plan_all(best_choices(rounds[i].degrees), rounds[i].budget, i + 1 == rounds.size());
    }

    Tuning tuning;
    tuning.planner = planner_.name;
    tuning.devices = options_.devices;
    for (const std::size_t i : ranking()) tuning.tried.push_back(std::move(choices_[i].tuned));
    tuning.rounds = std::move(rounds_);
    for (const TuneRound& round : tuning.rounds) {
      tuning.evaluations += round.evaluations;
      tuning.cpu_seconds += round.cpu_seconds;
    }
    tuning.simulated_devices = simulated_devices_;
    tuning.seconds = seconds_since(start);
    return tuning;
  }

 private:
  struct Choice {
    TunedDegrees tuned;
    std::int64_t lack = std::numeric_limits<std::int64_t>::max();  ///< the most of its steps
  };
  /// One step at one choice of degrees.
  struct Answer {
    ComparedPlan entry;
    TimeSplit split;
    std::int64_t lack = 0;
  };

  /// What a round plans, and with how much.
  struct Round {
    std::int64_t degrees = 0, budget = 0;
  };
  /// All choices with a small budget, then by turns half of them with twice as much, to the whole.
  [[nodiscard]] std::vector<Round> rounds_for(std::int64_t planned) const {
    const std::int64_t whole = planners::evaluations(steps_.front());
    std::int64_t budget = whole;
    for (std::int64_t count = planned; count > options_.finalists; count = (count + 1) / 2) {
      budget = std::min(kMostBudget, budget / 2);
    }
    budget = std::min(whole, std::max(budget, kLeastBudget));
    std::vector<Round> rounds{{planned, budget}};
    while (budget < whole) {
      budget = budget < kMostBudget ? std::min(whole, 2 * budget) : whole;
      rounds.push_back(
          {std::max<std::int64_t>((rounds.back().degrees + 1) / 2, options_.finalists), budget});
    }
    return rounds;
  }

  /// Feasible ones by time, then by what is lacking, then skipped ones; ties to the earlier choice.
  [[nodiscard]] std::vector<std::size_t> ranking() const {
    std::vector<std::size_t> order(choices_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    const auto key = [&](std::size_t i) {
      const Choice& choice = choices_[i];
      const int kind = choice.tuned.time ? 0 : choice.tuned.skipped ? 2 : 1;
      return std::tuple(kind, choice.tuned.time.value_or(Nanos{}), kind == 1 ? choice.lack : 0, i);
    };
    std::sort(order.begin(), order.end(),
              [&](std::size_t a, std::size_t b) { return key(a) < key(b); });
    return order;
  }

  /// The best `count` choices, those that are nearly as good as the best one, and the infeasible
  /// one nearest to fitting if it is near.
  [[nodiscard]] std::vector<std::size_t> best_choices(std::int64_t count) const {
    std::vector<std::size_t> chosen;
    const std::vector<std::size_t> order = ranking();
    bool near = false;
    for (const std::size_t i : order) {
      const Choice& choice = choices_[i];
      if (choice.tuned.skipped) break;
      const bool nearest = !choice.tuned.time && !near;
      near = near || nearest;
      const auto& best = choices_[order.front()].tuned.time;
      const bool close =
          choice.tuned.time && (choice.tuned.time->value - best->value) * kClose <= best->value;
      if (static_cast<std::int64_t>(chosen.size()) < count || close ||
          (nearest && choice.lack <= kNearMiss)) {
        chosen.push_back(i);
      }
    }
    return chosen;
  }

  void plan_all(const std::vector<std::size_t>& chosen, std::int64_t budget, bool last) {
    if (chosen.empty()) return;
    const std::size_t count = steps_.size();
    std::vector<std::vector<planners::PlanRequest>> requests(chosen.size());
    std::vector<Answer> answers(chosen.size() * count);
    const std::size_t workers =
        std::min<std::size_t>(static_cast<std::size_t>(options_.threads), answers.size());
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      std::vector<planners::PlanRequest> steps(steps_.begin(), steps_.end());
      for (planners::PlanRequest& step : steps) {
        step = planners::at_degrees(std::move(step), choices_[chosen[i]].tuned.degrees);
        if (!last) step.effort = planners::Effort::fast;
        // The whole budget of a higher effort is more than one search.
        if (step.effort == planners::Effort::fast) step.budget = budget;
        step.threads = std::max(1, options_.threads / static_cast<std::int32_t>(workers));
        step.progress = nullptr;
      }
      requests[i] = steps_of(planner_, std::move(steps));
    }
    parallel_for(answers.size(), static_cast<std::int32_t>(workers), [&](std::size_t i) {
      answers[i] = answer(std::move(requests[i / count][i % count]));
    });
    TuneRound round;
    round.degrees = static_cast<std::int64_t>(chosen.size());
    round.budget = budget;
    for (const Answer& one : answers) {
      round.evaluations += one.entry.evaluations;
      round.cpu_seconds += one.entry.cpu_seconds;
      simulated_devices_ += one.entry.simulated_devices;
    }
    const planners::Effort effort = last ? steps_.front().effort : planners::Effort::fast;
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      take(choices_[chosen[i]], std::span(answers).subspan(i * count, count), effort, budget);
    }
    round.best = choices_[ranking().front()].tuned.time;
    rounds_.push_back(round);
  }

  [[nodiscard]] Answer answer(planners::PlanRequest request) {
    const std::int64_t expected = planners::evaluations(request);
    std::int64_t told = 0;
    const auto tell = [&](std::int64_t done) {
      const std::lock_guard lock(mutex_);
      done_ += done - std::exchange(told, done);
      if (options_.progress) options_.progress(done_, most_);
    };
    if (options_.progress) {
      request.progress = [&](std::int64_t done, std::int64_t) { tell(std::min(done, expected)); };
    }
    Answer answer;
    const auto start = std::chrono::steady_clock::now();
    planners::PlanOutcome outcome = planner_.plan(request);
    const double plan_seconds = seconds_since(start);
    if (const auto* none = std::get_if<Infeasible>(&outcome.result)) answer.lack = lack_of(*none);
    ComparedOutcome compared =
        compare_outcome(planner_, request.batch.step, std::move(outcome), plan_seconds);
    answer.entry = std::move(compared.entry);
    if (compared.timeline) answer.split = time_split(*compared.timeline, *answer.entry.metrics);
    tell(expected);
    return answer;
  }

  /// Keeps the answers of a larger budget unless those of a smaller one are better.
  void take(Choice& choice, std::span<Answer> answers, planners::Effort effort,
            std::int64_t budget) {
    TunedDegrees now;
    now.degrees = choice.tuned.degrees;
    now.effort = effort;
    now.budget = budget;
    std::int64_t lack = 0;
    Nanos time;
    for (Answer& one : answers) {
      if (one.entry.metrics) {
        time += one.entry.metrics->iteration;
        now.split += one.split;
      } else {
        if (now.why.empty()) now.why = one.entry.why;
        lack = std::max(lack, one.lack);
      }
      now.steps.push_back(std::move(one.entry));
    }
    if (now.why.empty()) {
      now.time = time;
    } else {
      now.split = {};
    }
    if (choice.tuned.time && (!now.time || *now.time >= *choice.tuned.time)) return;
    if (!choice.tuned.time && !now.time && choice.lack <= lack) return;
    choice.tuned = std::move(now);
    choice.lack = lack;
  }

  const planners::PlannerInfo& planner_;
  std::span<const planners::PlanRequest> steps_;
  const TuneOptions& options_;
  std::vector<Choice> choices_;
  std::vector<TuneRound> rounds_;
  std::int64_t simulated_devices_ = 0;
  std::mutex mutex_;
  std::int64_t done_ = 0, most_ = 0;
};

}  // namespace

std::vector<TimeDifference> time_differences(const TunedDegrees& winner,
                                             const TunedDegrees& loser) {
  std::vector<TimeDifference> differences;
  for (std::size_t cause = 0; cause < kTimeCauses; ++cause) {
    differences.push_back({cause, loser.split.time[cause] - winner.split.time[cause]});
  }
  std::stable_sort(differences.begin(), differences.end(),
                   [](const auto& a, const auto& b) { return a.time > b.time; });
  return differences;
}

std::optional<double> gain_of_round(const Tuning& tuning, std::size_t round) {
  require(round < tuning.rounds.size(), "gain_of_round: there is no such round",
          static_cast<std::int64_t>(round));
  if (round == 0 || !tuning.rounds[round - 1].best) return std::nullopt;
  const double before = seconds(*tuning.rounds[round - 1].best);
  return ratio(before - seconds(*tuning.rounds[round].best), before);
}

Tuning tune(const planners::PlannerInfo& planner, std::span<const planners::PlanRequest> steps,
            const TuneOptions& options) {
  require(!steps.empty(), "tune: there must be a step");
  require(options.finalists >= 1, "tune: finalists must be >= 1", options.finalists);
  require(options.threads >= 1, "tune: threads must be >= 1", options.threads);
  return Tuner(planner, steps, options).run();
}

}  // namespace slimpack::report
