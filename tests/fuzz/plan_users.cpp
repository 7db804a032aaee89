// SPDX-License-Identifier: Apache-2.0
// What has been read as a plan is safe to validate and to simulate; one without a violation
// simulates to its end.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "fuzz/fuzz.hpp"
#include "slimpack/io/plan_json.hpp"
#include "slimpack/sim/simulate_plan.hpp"
#include "slimpack/validate/validate.hpp"

using namespace slimpack;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::optional<Plan> plan;
  try {
    plan = plan_from_json(std::string_view(reinterpret_cast<const char*>(data), size), "fuzz");
  } catch (const InvalidInput&) {
    return 0;
  }
  const bool valid = validate(*plan).violations.empty();
  try {
    static_cast<void>(sim::simulate_plan(*plan));
  } catch (const InvalidInput& error) {
    fuzz::expect(!valid, error.what());
  } catch (const Deadlock& error) {
    fuzz::expect(!valid, error.what());
  }
  return 0;
}
