// SPDX-License-Identifier: Apache-2.0
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdio>

#include "slimpack_cuda/device.hpp"

int main(int count, char** arguments) {
  doctest::Context context(count, arguments);
  if (const auto why = slimpack::cuda::why_no_device(); why && !context.shouldExit()) {
    std::printf("skipped: %s\n", why->c_str());
    return 77;
  }
  return context.run();
}
