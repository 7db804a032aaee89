// SPDX-License-Identifier: Apache-2.0
// A bare number is no amount of anything.
// expect: (could not convert|no viable conversion|no known conversion|cannot convert)
#include "slimpack/plan/cp_shard.hpp"

int main() {
  const slimpack::CpShard share{0, 2, slimpack::Tokens{512}};
#ifdef SLIMPACK_MUST_NOT_COMPILE
  return share.owns(511) ? 0 : 1;
#else
  return share.owns(slimpack::Tokens{511}) ? 0 : 1;
#endif
}
