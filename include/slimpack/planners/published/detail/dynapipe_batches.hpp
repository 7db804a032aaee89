// SPDX-License-Identifier: Apache-2.0
// DynaPipe's cut of sorted samples into micro-batches.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/int128.hpp"

namespace slimpack::planners::detail {

/// What a sample adds to a micro-batch.
struct BatchItem {
  std::int64_t time = 0;   ///< on the slowest stage, forward and backward, > 0
  std::int64_t bytes = 0;  ///< activations on the fullest stage
};

/// What a cut into micro-batches keeps to.
struct BatchRules {
  std::int64_t unit = 0;      ///< time of a micro-batch beyond that of its samples
  std::int64_t room = 0;      ///< most bytes of a micro-batch of several samples
  std::int64_t stages = 1;    ///< stages of the pipeline
  std::int64_t replicas = 1;  ///< data-parallel ranks
};

/// Cuts a queue of samples into micro-batches: among all cuts into runs of consecutive samples,
/// each of one sample or of at most `room` bytes, one that minimises DynaPipe's objective
///     (stages - 1) max + sum / replicas
/// over the micro-batches' times (arXiv 2311.10418, section 4; equal ones: the smaller maximum).
/// The time of a micro-batch is `unit` and the sum of its samples' times. So under a given maximum
/// the sum is least with the fewest micro-batches, which result from filling each as far as the
/// maximum allows. Only those maxima matter at which the number of micro-batches falls; bisection
/// finds them. The result is the optimum of the publication's dynamic program, without its table of
/// O(n^2) entries. O(micro-batches^2 log n log time) at worst; it ends where fewer micro-batches
/// cannot make up for a larger maximum.
class BatchCut {
 public:
  BatchCut(std::span<const BatchItem> items, const BatchRules& rules)
      : rules_(rules), time_(1), bytes_(1) {
    for (const BatchItem& item : items) {
      require(item.time >= 1, "BatchCut: a time must be >= 1", item.time);
      time_.push_back(time_.back() + item.time);
      bytes_.push_back(bytes_.back() + item.bytes);
      longest_ = std::max(longest_, item.time);
    }
  }

  /// The position behind the last sample of each micro-batch, rising.
  [[nodiscard]] std::vector<std::size_t> ends() const {
    const std::int64_t whole = rules_.unit + time_.back();
    if (rules_.stages == 1) return fill(whole);
    const std::size_t least = fill(whole).size();
    std::int64_t most = rules_.unit + longest_;
    std::vector<std::size_t> best = fill(most);
    std::int64_t best_most = most;
    for (std::size_t count = best.size(); count > least;) {
      // Beyond this maximum even the fewest possible micro-batches would not make up for it.
      const Int128 saved = Int128{rules_.unit} * static_cast<std::int64_t>(best.size() - least);
      const Int128 slope = Int128{rules_.stages - 1} * rules_.replicas;
      auto high = static_cast<std::int64_t>(std::min(best_most + saved / slope, Int128{whole}));
      if (high <= most || fill(high).size() >= count) break;
      for (std::int64_t low = most; high - low > 1;) {
        const std::int64_t middle = low + (high - low) / 2;
        (fill(middle).size() < count ? high : low) = middle;
      }
      most = high;
      std::vector<std::size_t> ends = fill(most);
      count = ends.size();
      if (objective(most, count) < objective(best_most, best.size())) {
        best = std::move(ends);
        best_most = most;
      }
    }
    return best;
  }

 private:
  /// Replicas times the objective, without the samples' times.
  [[nodiscard]] Int128 objective(std::int64_t most, std::size_t count) const {
    return Int128{rules_.stages - 1} * rules_.replicas * most +
           Int128{rules_.unit} * static_cast<std::int64_t>(count);
  }
  /// Runs that take as many samples as `most` time and the room allow, one at least.
  [[nodiscard]] std::vector<std::size_t> fill(std::int64_t most) const {
    std::vector<std::size_t> ends;
    for (std::size_t i = 0; i + 1 < time_.size();) {
      const auto last = [&](const std::vector<std::int64_t>& sums, std::int64_t bound) {
        return static_cast<std::size_t>(
            std::upper_bound(sums.begin() + static_cast<std::ptrdiff_t>(i), sums.end(), bound) -
            sums.begin() - 1);
      };
      const std::size_t end = std::min(last(time_, time_[i] + most - rules_.unit),
                                       last(bytes_, bytes_[i] + rules_.room));
      i = std::max(i + 1, end);
      ends.push_back(i);
    }
    return ends;
  }

  BatchRules rules_;
  std::vector<std::int64_t> time_, bytes_;  // of the samples before each
  std::int64_t longest_ = 0;
};

}  // namespace slimpack::planners::detail
