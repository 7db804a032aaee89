// SPDX-License-Identifier: Apache-2.0
// slimpack validate: every breach of a plan.
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
  Report breaches = Report::array();
  for (const Breach& breach : validation.breaches) {
    Report entry{{"rule", breach.rule}, {"message", breach.message}};
    if (breach.sample) entry["sample"] = index(*breach.sample);
    if (breach.micropack) entry["micropack"] = index(*breach.micropack);
    if (breach.dp) entry["dp"] = *breach.dp;
    if (breach.pp) entry["pp"] = *breach.pp;
    if (breach.unit) entry["unit"] = *breach.unit;
    breaches.push_back(std::move(entry));
  }
  Report json{{"valid", validation.valid()}, {"breaches", std::move(breaches)}};
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
    for (const Breach& breach : validation.breaches) {
      std::cout << fmt::format("rule {}: {}\n", breach.rule, breach.message);
    }
  }
  if (validation.valid()) return 0;
  const Breach& first = validation.breaches.front();
  std::cerr << fmt::format("slimpack: {}: {} breach{}, the first of rule {}: {}\n", path,
                           validation.breaches.size(), validation.breaches.size() == 1 ? "" : "es",
                           first.rule, first.message);
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
