// SPDX-License-Identifier: Apache-2.0
#include "slimpack/io/detail/npy_lengths.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "fuzz/fuzz.hpp"
#include "slimpack/io/npy.hpp"

using namespace slimpack;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return fuzz::round_trip(
      data, size,
      [](std::string_view text) {
        return parse_npy_lengths(std::as_bytes(std::span(text)), "fuzz");
      },
      [](const LengthSet& set) {
        std::vector<std::int64_t> values;
        for (const Tokens length : set.documents) values.push_back(length.value);
        return npy_bytes(std::span<const std::int64_t>(values));
      });
}
