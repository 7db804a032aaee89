// SPDX-License-Identifier: Apache-2.0
// A length in the place of a size is refused: units are types.
// expect: (no match for .operator=|no viable overloaded)
#include "slimpack/plan/plan.hpp"

int main() {
  slimpack::MemorySpec memory;
#ifdef SLIMPACK_MUST_NOT_COMPILE
  memory.capacity = slimpack::Tokens{4096};
#else
  memory.capacity = slimpack::Bytes{4096};
#endif
  return memory.capacity.value == 4096 ? 0 : 1;
}
