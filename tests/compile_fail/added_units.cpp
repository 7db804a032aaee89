// SPDX-License-Identifier: Apache-2.0
// Bytes and nanoseconds have no sum.
// expect: (no match for .operator\+|invalid operands to binary expression)
#include "slimpack/core/units.hpp"

int main() {
#ifdef SLIMPACK_MUST_NOT_COMPILE
  const auto sum = slimpack::Bytes{1} + slimpack::Nanos{2};
#else
  const auto sum = slimpack::Nanos{1} + slimpack::Nanos{2};
#endif
  return sum.value == 3 ? 0 : 1;
}
