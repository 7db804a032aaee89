// SPDX-License-Identifier: Apache-2.0
#include "commit.hpp"

#include "slimpack/core/version.hpp"

namespace slimpack {

std::string version_line(const std::string& name) {
  return name + " " SLIMPACK_VERSION_TEXT " (commit " SLIMPACK_COMMIT ")";
}

}  // namespace slimpack
