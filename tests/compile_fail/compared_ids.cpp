// SPDX-License-Identifier: Apache-2.0
// A sample's id is no MicroPack's id.
// expect: (no match for .operator==|invalid operands to binary expression)
#include "slimpack/core/units.hpp"

int main() {
#ifdef SLIMPACK_MUST_NOT_COMPILE
  return slimpack::SampleId{1} == slimpack::PackId{1} ? 0 : 1;
#else
  return slimpack::SampleId{1} == slimpack::SampleId{1} ? 0 : 1;
#endif
}
