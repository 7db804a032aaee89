// SPDX-License-Identifier: Apache-2.0
// A stranger's first program.
#include <iostream>
#include <slimpack/slimpack.hpp>

int main() {
  const slimpack::Tokens tokens = slimpack::Tokens{900} + slimpack::Tokens{100};
  std::cout << tokens.value << " tokens/s\n";
}
