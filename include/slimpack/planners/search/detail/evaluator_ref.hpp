// SPDX-License-Identifier: Apache-2.0
// An evaluator of any type behind plain functions.
#pragma once

#include <cstdint>
#include <optional>

#include "slimpack/core/units.hpp"
#include "slimpack/planners/search/search_space.hpp"
#include "slimpack/planners/search/settings.hpp"

namespace slimpack::planners::detail {

/// Any evaluator, so that searches are compiled once. The evaluator must outlive it.
class EvaluatorRef {
 public:
  template <CandidateEvaluator Evaluate>
  explicit EvaluatorRef(const Evaluate& evaluate)
      : evaluate_(&evaluate),
        exists_([](const void* any, const SettingPoint& point) {
          return static_cast<const Evaluate*>(any)->exists(point);
        }),
        devices_([](const void* any, const SettingPoint& point) {
          return static_cast<const Evaluate*>(any)->devices(point);
        }),
        score_([](const void* any, const SettingPoint& point,
                  [[maybe_unused]] std::optional<Nanos> limit) {
          const Evaluate& evaluator = *static_cast<const Evaluate*>(any);
          if constexpr (LimitedEvaluator<Evaluate>) {
            return evaluator(point, limit);
          } else {
            return evaluator(point);
          }
        }) {
    if constexpr (WitnessedEvaluator<Evaluate>) {
      witness_devices_ = [](const void* any, const SettingPoint& point) {
        return static_cast<const Evaluate*>(any)->witness_devices(point);
      };
      witness_ = [](const void* any, const SettingPoint& point, std::size_t number) {
        return static_cast<const Evaluate*>(any)->witness(point, number);
      };
    }
  }

  [[nodiscard]] bool exists(const SettingPoint& point) const { return exists_(evaluate_, point); }
  [[nodiscard]] std::int64_t devices(const SettingPoint& point) const {
    return devices_(evaluate_, point);
  }
  /// Exact unless the point takes longer than `limit` and the evaluator knows limits.
  [[nodiscard]] CandidateScore operator()(const SettingPoint& point,
                                          std::optional<Nanos> limit) const {
    return score_(evaluate_, point, limit);
  }
  [[nodiscard]] std::vector<std::int64_t> witness_devices(const SettingPoint& point) const {
    return witness_devices_ == nullptr ? std::vector<std::int64_t>{}
                                       : witness_devices_(evaluate_, point);
  }
  [[nodiscard]] CandidateScore witness(const SettingPoint& point, std::size_t number) const {
    return witness_(evaluate_, point, number);
  }

 private:
  const void* evaluate_;
  bool (*exists_)(const void*, const SettingPoint&);
  std::int64_t (*devices_)(const void*, const SettingPoint&);
  CandidateScore (*score_)(const void*, const SettingPoint&, std::optional<Nanos>);
  std::vector<std::int64_t> (*witness_devices_)(const void*, const SettingPoint&) = nullptr;
  CandidateScore (*witness_)(const void*, const SettingPoint&, std::size_t) = nullptr;
};

}  // namespace slimpack::planners::detail
