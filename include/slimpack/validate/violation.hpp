// SPDX-License-Identifier: Apache-2.0
// What the validator reports: violations with rule, place and reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "slimpack/core/units.hpp"

namespace slimpack {

/// One place in a plan that breaks a rule. What does not apply to it is absent.
struct Violation {
  int rule = 0;         ///< 1 to 7 (docs/validation.md), or 0 for what the format asks elsewhere
  std::string message;  ///< rule and place in words
  std::optional<SampleId> sample;   ///< the sample that it concerns
  std::optional<PackId> micropack;  ///< the MicroPack that it concerns
  std::optional<std::int32_t> dp;   ///< data-parallel rank of the device
  std::optional<std::int32_t> pp;   ///< stage of the device
  std::optional<std::size_t> unit;  ///< position in the device's order
  friend bool operator==(const Violation&, const Violation&) = default;
};

/// The answer of `validate`.
struct Validation {
  std::vector<Violation> violations;  ///< by rule; none: the plan is valid
  /// Most bytes that each device of `Plan::schedule` may come to hold, whatever the times are;
  /// empty where rules 0 to 5 are broken, because then what is allocated and freed does not match.
  std::vector<Bytes> worst_case_peak;
  /// Whether no rule is broken.
  [[nodiscard]] bool valid() const noexcept { return violations.empty(); }
  friend bool operator==(const Validation&, const Validation&) = default;
};

}  // namespace slimpack
