// SPDX-License-Identifier: Apache-2.0
#include "slimpack/io/cluster_json.hpp"

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "fuzz/fuzz.hpp"
#include "slimpack/cost/presets.hpp"

using namespace slimpack;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::vector<Cluster> presets = cluster_presets();
  return fuzz::round_trip(
      data, size, [](std::string_view text) { return cluster_from_json(text, "fuzz", presets); },
      [](const Cluster& value) { return cluster_to_json(value); });
}
