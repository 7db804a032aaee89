// SPDX-License-Identifier: Apache-2.0
#include "slimpack/io/detail/jsonl_lengths.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "fuzz/fuzz.hpp"

using namespace slimpack;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return fuzz::round_trip(
      data, size, [](std::string_view text) { return parse_jsonl_lengths(text, "fuzz"); },
      [](const LengthSet& set) {
        std::string text;
        for (const Tokens length : set.documents)
          text += "{\"length\": " + std::to_string(length.value) + "}\n";
        return text;
      });
}
