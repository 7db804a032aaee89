// SPDX-License-Identifier: Apache-2.0
#include "slimpack/io/text_lengths.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "fuzz/fuzz.hpp"
#include "slimpack/data/statistics.hpp"

using namespace slimpack;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return fuzz::round_trip(
      data, size, [](std::string_view text) { return parse_text_lengths(text, "fuzz"); },
      [](const LengthSet& set) {
        const LengthStatistics statistics = length_statistics(set.documents);
        fuzz::expect(statistics.long_pair_share >= 0 && statistics.long_pair_share <= 1,
                     "a share is in 0 .. 1");
        std::string text;
        for (const Tokens length : set.documents) text += std::to_string(length.value) + "\n";
        return text;
      });
}
