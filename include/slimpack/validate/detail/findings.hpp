// SPDX-License-Identifier: Apache-2.0
// Collects the validator's violations, listed up to a cap of each kind.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/plan/names.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/validate/violation.hpp"

namespace slimpack::validation {

/// Violations of one kind that are listed; the rest is counted in one line.
inline constexpr std::size_t kListed = 100;

/// "dp 0, pp 1".
[[nodiscard]] inline std::string device_name(std::int32_t dp, std::int32_t pp) {
  return "dp " + std::to_string(dp) + ", pp " + std::to_string(pp);
}

/// "[0, 128)".
[[nodiscard]] inline std::string range_name(Tokens begin, Tokens end) {
  return "[" + std::to_string(begin.value) + ", " + std::to_string(end.value) + ")";
}

/// Where a violation is, put together piece by piece.
class Where {
 public:
  Where sample(std::size_t id) const {
    Where where = *this;
    where.violation_.sample = static_cast<SampleId>(id);
    return where;
  }
  Where pack(PackId id) const {
    Where where = *this;
    where.violation_.micropack = id;
    return where;
  }
  Where pack(std::size_t id) const { return pack(static_cast<PackId>(id)); }
  Where device(std::int32_t dp, std::int32_t pp) const {
    Where where = *this;
    where.violation_.dp = dp;
    where.violation_.pp = pp;
    return where;
  }
  Where unit(std::size_t position) const {
    Where where = *this;
    where.violation_.unit = position;
    return where;
  }

  /// The violation of `rule` here: "rule 4, sample 1, MicroPack 3, dp 0, pp 1, unit 7: reason".
  [[nodiscard]] Violation violation(int rule, const std::string& reason) const {
    Violation violation = violation_;
    violation.rule = rule;
    violation.message = rule == 0 ? "format" : "rule " + std::to_string(rule);
    if (violation.sample)
      violation.message += ", sample " + std::to_string(index(*violation.sample));
    if (violation.micropack) {
      violation.message += ", MicroPack " + std::to_string(index(*violation.micropack));
    }
    if (violation.dp && violation.pp)
      violation.message += ", " + device_name(*violation.dp, *violation.pp);
    if (violation.unit) violation.message += ", unit " + std::to_string(*violation.unit);
    violation.message += ": " + reason;
    return violation;
  }

 private:
  Violation violation_;
};

/// Collects violations by rule and kind. Only the first kListed of a kind are written out.
class Findings {
 public:
  template <std::invocable Reason>
  void add(int rule, std::string_view kind, const Where& where, Reason&& reason) {
    Kind& entry = kind_of(rule, kind);
    if (++entry.count <= kListed) entry.listed.push_back(where.violation(rule, reason()));
  }
  void add(int rule, std::string_view kind, const Where& where, const std::string& reason) {
    add(rule, kind, where, [&]() -> const std::string& { return reason; });
  }

  /// Whether a rule in [first, last] is broken.
  [[nodiscard]] bool any(int first, int last) const noexcept {
    return std::any_of(kinds_.begin(), kinds_.end(),
                       [&](const Kind& kind) { return kind.rule >= first && kind.rule <= last; });
  }

  /// All of them by rule, then kind in order of appearance, then order of appearance.
  [[nodiscard]] std::vector<Violation> list() && {
    std::stable_sort(kinds_.begin(), kinds_.end(),
                     [](const Kind& a, const Kind& b) { return a.rule < b.rule; });
    std::vector<Violation> violations;
    for (Kind& kind : kinds_) {
      const std::size_t more = kind.count - kind.listed.size();
      for (Violation& violation : kind.listed) violations.push_back(std::move(violation));
      if (more > 0) {
        violations.push_back(
            Where{}.violation(kind.rule, std::to_string(more) + " more of the kind: " + kind.name));
      }
    }
    return violations;
  }

 private:
  struct Kind {
    int rule;
    std::string name;
    std::size_t count = 0;
    std::vector<Violation> listed;
  };
  Kind& kind_of(int rule, std::string_view name) {
    for (Kind& kind : kinds_) {
      if (kind.rule == rule && kind.name == name) return kind;
    }
    kinds_.push_back({rule, std::string(name), 0, {}});
    return kinds_.back();
  }
  std::vector<Kind> kinds_;
};

}  // namespace slimpack::validation
