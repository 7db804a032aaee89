// SPDX-License-Identifier: Apache-2.0
// Where projects differ only in how they find the library, one header shows it.
#include <iostream>
#include <slimpack/cost/presets.hpp>
int main() {
  for (const auto& model : slimpack::model_presets()) std::cout << model.name << '\n';
}
