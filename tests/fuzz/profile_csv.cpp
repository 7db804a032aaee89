// SPDX-License-Identifier: Apache-2.0
#include "slimpack/cost/profile.hpp"

#include <cstddef>
#include <cstdint>
#include <sstream>
#include <string>
#include <string_view>

#include "fuzz/fuzz.hpp"

using namespace slimpack;

namespace {

std::string written(const Profile& profile) {
  std::ostringstream text;
  write_profile(text, profile);
  return text.str();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return fuzz::round_trip(
      data, size, [](std::string_view text) { return parse_profile(text, "fuzz"); }, written);
}
