// SPDX-License-Identifier: Apache-2.0
#define DOCTEST_CONFIG_IMPLEMENT
#include <cstdio>

#include "slimpack_cuda/device.hpp"
#include "support/skip.hpp"

REGISTER_LISTENER("chosen_cases", 1, slimpack::test::ChosenCases);

int main(int count, char** arguments) {
  doctest::Context context(count, arguments);
  if (const auto why = slimpack::cuda::why_no_device(); why && !context.shouldExit()) {
    std::printf("skipped: %s\n", why->c_str());
    return slimpack::test::must_run("device") ? 1 : slimpack::test::kSkipped;
  }
  return slimpack::test::run_tests(context);
}
