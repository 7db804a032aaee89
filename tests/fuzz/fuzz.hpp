// SPDX-License-Identifier: Apache-2.0
// What every fuzz target asks of its reader.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "slimpack/core/error.hpp"

namespace slimpack::fuzz {

/// Ends the run with a message where a property does not hold.
inline void expect(bool condition, const char* property) {
  if (condition) return;
  std::fprintf(stderr, "property broken: %s\n", property);
  std::abort();
}

/// Reads the input, and what has been read, written and read again must be equal. Bad input may be
/// refused the first time only, with InvalidInput that names the file; any other exception ends the
/// run.
template <class Read, class Write>
int round_trip(const std::uint8_t* data, std::size_t size, Read&& read, Write&& write) {
  // A copy of the exact size, so that reading one byte beyond it is seen.
  const std::vector<char> input(data, data + size);
  std::optional<std::decay_t<decltype(read(std::string_view()))>> first;
  try {
    first.emplace(read(std::string_view(input.data(), input.size())));
  } catch (const InvalidInput& error) {
    expect(std::string_view(error.what()).starts_with("fuzz:"), "a message begins with the file");
    return 0;
  }
  const std::string written = write(*first);
  try {
    const auto second = read(std::string_view(written));
    expect(*first == second, "what is written is read back the same");
    expect(written == write(second), "equal values have equal texts");
  } catch (const InvalidInput& error) {
    std::fprintf(stderr, "%s\n", error.what());
    expect(false, "what is written can be read");
  }
  return 0;
}

}  // namespace slimpack::fuzz
