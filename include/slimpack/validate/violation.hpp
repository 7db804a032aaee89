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

/// One broken rule. `rule` is 1 to 7 as in "What makes a plan valid", or 0 for what the format asks
/// elsewhere. `message` names rule and place in words; the optionals name the place for programs.
struct Violation {
  int rule = 0;
  std::string message;
  std::optional<SampleId> sample;
  std::optional<PackId> micropack;
  std::optional<std::int32_t> dp, pp;
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
