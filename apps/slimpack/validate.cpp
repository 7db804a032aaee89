// SPDX-License-Identifier: Apache-2.0
// slimpack validate: every violation of a plan.
#include "slimpack/validate/validate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "command.hpp"
#include "slimpack/io/plan_json.hpp"

namespace slimpack::app {
namespace {

void print_json(const Validation& validation, Bytes peak) {
  using Report = nlohmann::ordered_json;
  Report violations = Report::array();
  for (const Violation& violation : validation.violations) {
    Report entry{{"rule", violation.rule}, {"message", violation.message}};
    if (violation.sample) entry["sample"] = index(*violation.sample);
    if (violation.micropack) entry["micropack"] = index(*violation.micropack);
    if (violation.dp) entry["dp"] = *violation.dp;
    if (violation.pp) entry["pp"] = *violation.pp;
    if (violation.unit) entry["unit"] = *violation.unit;
    violations.push_back(std::move(entry));
  }
  Report json{{"valid", validation.valid()}, {"breaches", std::move(violations)}};
  if (!validation.worst_case_peak.empty()) json["worst_case_peak_bytes"] = peak.value;
  std::cout << json.dump(2) << '\n';
}

int run(const std::string& path, bool json) {
  const Plan plan = read_plan_file(path);
  const Validation validation = validate(plan);
  Bytes peak;
  for (const Bytes bytes : validation.worst_case_peak) peak = std::max(peak, bytes);
  if (json) {
    print_json(validation, peak);
  } else if (validation.valid()) {
    std::cout << fmt::format(
        "{}: valid: {} samples, {} MicroPacks, {} devices; whatever the times are, no device holds "
        "more than {} of {} bytes\n",
        path, plan.samples.size(), plan.micropacks.size(), plan.schedule.size(), peak.value,
        (plan.memory.capacity - plan.memory.reserved).value);
  } else {
    for (const Violation& violation : validation.violations) {
      std::cout << fmt::format("rule {}: {}\n", violation.rule, violation.message);
    }
  }
  if (validation.valid()) return 0;
  const Violation& first = validation.violations.front();
  std::cerr << fmt::format("slimpack: {}: {} violation{}, the first of rule {}: {}\n", path,
                           validation.violations.size(),
                           validation.violations.size() == 1 ? "" : "s", first.rule, first.message);
  return 1;
}

}  // namespace

Run add_validate(CLI::App& command) {
  struct Options {
    std::string plan;
    bool json = false;
  };
  auto options = std::make_shared<Options>();
  command.add_option("PLAN", options->plan, "plan.json, or - for standard input")->required();
  command.add_flag("--json", options->json, "print JSON (docs/schemas.md)");
  return [options] { return run(options->plan, options->json); };
}

}  // namespace slimpack::app
