// SPDX-License-Identifier: Apache-2.0
// WLB-LLM's outlier queues: long documents wait until there is one for every micro-batch.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <set>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "slimpack/core/int128.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/plan/batch.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/planners/planner.hpp"
#include "slimpack/planners/published/detail/wlb_packs.hpp"
#include "slimpack/planners/search/detail/choices.hpp"
#include "slimpack/schedule/ranks.hpp"

namespace slimpack::planners::detail {

/// A sample of one of several steps, with the tokens of it that have a target.
struct WaitingSample {
  Tokens length;
  Origin origin;
  std::int64_t targets = 0;
};
using WaitingSteps = std::vector<std::vector<WaitingSample>>;

/// Says which samples of the steps lack targets. A batch tells only how many there are: the last
/// token of a document has none, so the lack is laid on samples shorter than the context first,
/// then on full ones that no other sample continues, then on the rest, one each; what is left on
/// the first that have any. Sums are kept exactly. O(samples log samples).
[[nodiscard]] inline WaitingSteps samples_with_targets(const std::vector<PlanRequest>& steps) {
  using Place = std::tuple<std::int64_t, std::int64_t, Tokens>;
  const auto place = [](const Origin& origin, Tokens after) {
    return Place{origin.source, origin.document, origin.first + after};
  };
  std::set<Place> begins;
  for (const PlanRequest& step : steps) {
    for (const Origin& origin : step.batch.origin) begins.insert(place(origin, Tokens{}));
  }
  WaitingSteps result;
  for (const PlanRequest& step : steps) {
    const Batch& batch = step.batch;
    auto& samples = result.emplace_back();
    std::int64_t lack = -batch.target_tokens;
    for (std::size_t i = 0; i < batch.samples.size(); ++i) {
      samples.push_back({batch.samples[i], batch.origin[i], batch.samples[i].value});
      lack += batch.samples[i].value;
    }
    for (int round = 0; round < 3; ++round) {
      for (WaitingSample& sample : samples) {
        const bool full = sample.length >= step.context;
        const bool goes_on = begins.contains(place(sample.origin, sample.length));
        const int turn = !full ? 0 : goes_on ? 2 : 1;
        if (turn != round || lack <= 0) continue;
        --sample.targets;
        --lack;
      }
    }
    for (WaitingSample& sample : samples) {
      const std::int64_t taken = std::clamp<std::int64_t>(lack, 0, sample.targets);
      sample.targets -= taken;
      lack -= taken;
    }
  }
  return result;
}

[[nodiscard]] inline std::int64_t targets_of(std::span<const WaitingSample> samples) {
  std::int64_t targets = 0;
  for (const WaitingSample& sample : samples) targets += sample.targets;
  return targets;
}

/// Moves long samples to later steps. `levels` are the shortest lengths of the queues, rising: a
/// sample at least as long as levels[i], and no longer level, waits in queue i; as soon as a queue
/// has one for each of a step's `packs` micro-batches, the longest-waiting ones join that step,
/// so many at a time. The last step delays none and takes all that wait. A step that would be left
/// without a target takes the longest-waiting ones of the shortest level back. O(samples).
[[nodiscard]] inline WaitingSteps delay_outliers(const WaitingSteps& steps,
                                                 std::span<const Tokens> levels,
                                                 std::span<const std::int64_t> packs) {
  std::vector<std::deque<WaitingSample>> queues(levels.size());
  WaitingSteps result;
  for (std::size_t step = 0; step < steps.size(); ++step) {
    auto& now = result.emplace_back();
    const bool last = step + 1 == steps.size();
    for (const WaitingSample& sample : steps[step]) {
      const auto above = std::upper_bound(levels.begin(), levels.end(), sample.length);
      if (last || above == levels.begin()) {
        now.push_back(sample);
      } else {
        queues[static_cast<std::size_t>(above - levels.begin()) - 1].push_back(sample);
      }
    }
    const auto join = [&](std::deque<WaitingSample>& queue, std::size_t count) {
      const auto end = queue.begin() + static_cast<std::ptrdiff_t>(count);
      now.insert(now.end(), queue.begin(), end);
      queue.erase(queue.begin(), end);
    };
    const auto each = static_cast<std::size_t>(packs[step]);
    for (auto& queue : queues) join(queue, last ? queue.size() : queue.size() / each * each);
    for (auto& queue : queues) {
      while (!queue.empty() && targets_of(now) < 1) join(queue, 1);
    }
  }
  return result;
}

/// How long steps take as far as that is known before they are planned: the fullest rank's packs
/// and the heaviest pack once more for each further stage, at the best degree of context
/// parallelism and the best of some lengths of packs, summed over the steps. In
/// picoseconds of one device's layers.
[[nodiscard]] inline Int128 estimated_time(const std::vector<PlanRequest>& requests,
                                           const WaitingSteps& steps,
                                           std::span<const Tokens> pack_lengths) {
  Int128 sum = 0;
  for (std::size_t step = 0; step < steps.size(); ++step) {
    const PlanRequest& request = requests[step];
    std::vector<Tokens> lengths;
    for (const WaitingSample& sample : steps[step]) lengths.push_back(sample.length);
    const std::vector<Int128> works = sample_works(request, lengths);
    Int128 best = -1;
    for (const std::int32_t degree : context_parallel_choices(request)) {
      for (const Tokens length : pack_lengths) {
        const std::int32_t groups = request.dp / degree;
        const std::int64_t count = nominal_packs(lengths, length, groups);
        const auto packs = pack_by_work(lengths, works, count, 2 * length);
        const std::vector<Int128> heavy = pack_works(packs, works);
        Int128 fullest = 0;
        for (const auto& items : schedule::assign_balanced(heavy, groups)) {
          Int128 load = 0;
          for (const std::size_t item : items) load += heavy[item];
          fullest = std::max(fullest, load);
        }
        const Int128 time =
            (fullest + (request.pp - 1) * *std::max_element(heavy.begin(), heavy.end())) / degree;
        if (best < 0 || time < best) best = time;
      }
    }
    sum += best;
  }
  return sum;
}

/// Levels of the queues to choose from: none, and thresholds that halve from half the length of a
/// pack down.
[[nodiscard]] inline std::vector<std::vector<Tokens>> level_choices(Tokens pack_length) {
  std::vector<std::vector<Tokens>> choices{{}};
  for (std::int64_t lowest = 2; lowest <= 16; lowest *= 2) {
    for (std::int64_t highest = 2; highest <= lowest; highest *= 2) {
      std::vector<Tokens> levels;
      for (std::int64_t part = lowest; part >= highest; part /= 2) {
        levels.push_back(Tokens{std::max<std::int64_t>(1, pack_length.value / part)});
      }
      levels.erase(std::unique(levels.begin(), levels.end()), levels.end());
      choices.push_back(std::move(levels));
    }
  }
  return choices;
}

}  // namespace slimpack::planners::detail
