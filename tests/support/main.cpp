// SPDX-License-Identifier: Apache-2.0
#define DOCTEST_CONFIG_IMPLEMENT
#include "support/skip.hpp"

REGISTER_LISTENER("chosen_cases", 1, slimpack::test::ChosenCases);

int main(int count, char** arguments) {
  doctest::Context context(count, arguments);
  return slimpack::test::run_tests(context);
}
