// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace slimpack::test {

/// Absolute path of the folder tests/ of these sources.
std::string directory();

}  // namespace slimpack::test
