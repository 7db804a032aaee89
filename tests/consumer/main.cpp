// SPDX-License-Identifier: Apache-2.0
#include <iostream>
#include <slimpack/slimpack.hpp>
int main() {
  for (const auto& planner : slimpack::planners()) std::cout << planner.name << '\n';
}
