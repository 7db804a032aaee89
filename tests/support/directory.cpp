// SPDX-License-Identifier: Apache-2.0
#include "support/directory.hpp"

// The only source that is compiled with a path: a compiler cache knows the others in any folder.
std::string slimpack::test::directory() {
  return SLIMPACK_TEST_DIR;
}
