// SPDX-License-Identifier: Apache-2.0
#include "slimpack/cost/profile.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "fuzz/fuzz.hpp"

using namespace slimpack;

namespace {

std::string decimals(double value) {
  char digits[40];
  static_cast<void>(std::snprintf(digits, sizeof digits, "%.17g", value));
  return digits;
}

std::string write_profile(const std::vector<ProfileRow>& rows) {
  std::string text(kProfileHeader);
  for (const ProfileRow& row : rows) {
    text += "\n";
    text += kProfileKinds[static_cast<std::size_t>(row.kind)];
    text += !row.pass ? ",-" : *row.pass == Pass::forward ? ",forward" : ",backward";
    text += "," + std::to_string(row.tokens.value) + "," + decimals(row.pairs);
    text += "," + std::to_string(row.segments) + "," + std::to_string(row.layers);
    text += "," + std::to_string(row.ranks) + "," + std::to_string(row.bytes.value);
    text += "," + decimals(row.seconds);
  }
  return text;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return fuzz::round_trip(
      data, size, [](std::string_view text) { return parse_profile(text, "fuzz"); }, write_profile);
}
