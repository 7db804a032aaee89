// SPDX-License-Identifier: Apache-2.0
#include "slimpack/io/cost_json.hpp"

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "fuzz/fuzz.hpp"

using namespace slimpack;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return fuzz::round_trip(
      data, size, [](std::string_view text) { return cost_from_json(text, "fuzz"); },
      [](const CostSpec& value) { return cost_to_json(value); });
}
