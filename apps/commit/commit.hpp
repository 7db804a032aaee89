// SPDX-License-Identifier: Apache-2.0
// What `--version` says.
#pragma once

#include <string>

namespace slimpack {

/// "NAME 0.2.0 (commit 0123456789ab)"; the commit is that of the sources when CMake configured
/// them, with `-dirty` where files differed from it; of an sdist that of which it was made, and
/// `unknown` elsewhere outside of a git repository.
[[nodiscard]] std::string version_line(const std::string& name);

}  // namespace slimpack
