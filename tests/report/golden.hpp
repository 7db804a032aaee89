// SPDX-License-Identifier: Apache-2.0
// Files in tests/golden, compared as text.
#pragma once

#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "support/directory.hpp"

namespace slimpack::test {

/// Checks `text` against tests/golden/NAME; with SLIMPACK_UPDATE_GOLDEN set, writes it there.
inline void check_golden(const std::string& name, const std::string& text) {
  const std::string path = directory() + "/golden/" + name;
  if (std::getenv("SLIMPACK_UPDATE_GOLDEN") != nullptr) {
    std::ofstream(path, std::ios::binary) << text;
    return;
  }
  std::ifstream file(path, std::ios::binary);
  REQUIRE_MESSAGE(file.good(), path);
  std::ostringstream golden;
  golden << file.rdbuf();
  std::istringstream expected(golden.str()), found(text);
  std::string expected_line, found_line;
  for (int line = 1; std::getline(expected, expected_line); ++line) {
    std::getline(found, found_line);
    CAPTURE(name);
    CAPTURE(line);
    REQUIRE(found_line == expected_line);
    found_line.clear();
  }
  CHECK(golden.str() == text);
}

}  // namespace slimpack::test
