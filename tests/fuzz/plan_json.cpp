// SPDX-License-Identifier: Apache-2.0
#include "slimpack/io/plan_json.hpp"

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "fuzz/fuzz.hpp"

using namespace slimpack;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return fuzz::round_trip(
      data, size, [](std::string_view text) { return plan_from_json(text, "fuzz"); },
      [](const Plan& value) { return plan_to_json(value); });
}
