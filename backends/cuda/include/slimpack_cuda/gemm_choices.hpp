// SPDX-License-Identifier: Apache-2.0
// Which of the algorithms that are proposed for a matrix product are taken, by measured times.
// Plain C++.
#pragma once

#include <algorithm>
#include <compare>
#include <cstddef>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack_cuda/gemm_layout.hpp"

namespace slimpack::cuda {

/// The place of the shortest time, where another one than the first is taken only if it needs less
/// than 0.97 of the first one's: what differs by less differs from run to run. Of equal times the
/// first. Times are medians, > 0; infinite where a candidate cannot run. Throws InvalidInput if
/// there is none. O(candidates).
[[nodiscard]] inline std::size_t fastest_candidate(std::span<const double> times) {
  require(!times.empty(), "fastest_candidate: there must be a candidate");
  constexpr double kWorthIt = 0.97;
  const auto best = static_cast<std::size_t>(std::ranges::min_element(times) - times.begin());
  return times[best] < kWorthIt * times.front() ? best : 0;
}

/// Most algorithms of a product that can be asked for.
inline constexpr int kMostGemmCandidates = 1000;

/// The algorithm of a product, as its place among those that cuBLASLt proposes.
struct GemmChoice {
  GemmKey key;
  int multiprocessors = 0;  ///< that the product is for; 0: all of a device
  std::size_t choice = 0;
  friend auto operator<=>(const GemmChoice&, const GemmChoice&) = default;
};

/// The choices of one process, which all its Gemm objects share that are given this one: a product
/// is timed by whoever comes to it first, and everybody takes the same algorithm from then on. For
/// devices of one kind, on which the same algorithms are proposed. May be used by several threads;
/// it must outlive the objects that use it.
///
/// Times differ from run to run, and with them choices and the last bits of what is computed: where
/// two runs have to agree to the bit, both are given the choices of an earlier one
/// (gemm_choices_file.hpp), or none.
class GemmChoices {
 public:
  /// How many proposed algorithms of a product are timed. Throws InvalidInput unless it is in
  /// 2 .. kMostGemmCandidates.
  explicit GemmChoices(int candidates) : candidates_(candidates) {
    require(candidates >= 2, "GemmChoices: candidates must be >= 2", candidates);
    require(candidates <= kMostGemmCandidates, "GemmChoices: candidates must be <= 1000",
            candidates);
  }
  /// Those of an earlier run, which timed as many `candidates`: nothing is timed, and a product
  /// that is not among them takes the first. Throws InvalidInput as above.
  GemmChoices(int candidates, std::span<const GemmChoice> made) : GemmChoices(candidates) {
    times_ = false;
    for (const GemmChoice& choice : made) {
      chosen_.try_emplace({choice.multiprocessors, choice.key}, choice.choice);
    }
  }

  [[nodiscard]] int candidates() const noexcept { return candidates_; }
  /// Whether a product without a choice is timed.
  [[nodiscard]] bool times() const noexcept { return times_; }
  /// What was kept for a product on so many multiprocessors (0: all), if anything.
  [[nodiscard]] std::optional<std::size_t> find(int multiprocessors, const GemmKey& key) const {
    const std::lock_guard lock(mutex_);
    const auto found = chosen_.find({multiprocessors, key});
    if (found == chosen_.end()) return std::nullopt;
    return found->second;
  }
  /// Keeps a choice unless another thread has kept one, and gives what is kept.
  std::size_t keep(int multiprocessors, const GemmKey& key, std::size_t choice) {
    const std::lock_guard lock(mutex_);
    return chosen_.try_emplace({multiprocessors, key}, choice).first->second;
  }
  /// All that is kept, in the order of products.
  [[nodiscard]] std::vector<GemmChoice> made() const {
    const std::lock_guard lock(mutex_);
    std::vector<GemmChoice> all;
    for (const auto& [product, choice] : chosen_) {
      all.push_back({product.second, product.first, choice});
    }
    std::ranges::sort(all);
    return all;
  }
  /// Products whose choice is kept, and how many of them do not take the first.
  [[nodiscard]] std::pair<std::size_t, std::size_t> counts() const {
    const std::lock_guard lock(mutex_);
    const auto others =
        std::ranges::count_if(chosen_, [](const auto& choice) { return choice.second != 0; });
    return {chosen_.size(), static_cast<std::size_t>(others)};
  }

 private:
  const int candidates_;
  bool times_ = true;
  mutable std::mutex mutex_;
  std::map<std::pair<int, GemmKey>, std::size_t> chosen_;
};

}  // namespace slimpack::cuda
