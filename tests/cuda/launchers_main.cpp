// SPDX-License-Identifier: Apache-2.0
// Runs the tests of a device's launchers on an emulated Hopper, whose work happens as late as it
// may.
#define DOCTEST_CONFIG_IMPLEMENT
#include "slimpack_cuda/emulation.hpp"
#include "support/skip.hpp"

REGISTER_LISTENER("chosen_cases", 1, slimpack::test::ChosenCases);

int main(int count, char** arguments) {
  slimpack::cuda::Emulation hopper;
  hopper.timing = slimpack::cuda::EmulatedTiming::late;
  hopper.major = 9;
  hopper.minor = 0;
  const slimpack::cuda::ScopedEmulation during(hopper);
  doctest::Context context(count, arguments);
  return slimpack::test::run_tests(context);
}
