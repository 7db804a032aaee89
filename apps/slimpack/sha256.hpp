// SPDX-License-Identifier: Apache-2.0
// Digests of length files and of settings.
#pragma once

#include <string>
#include <string_view>

namespace slimpack::app {

/// The SHA-256 of a text (FIPS 180-4), 64 lower-case hexadecimal digits. O(bytes).
[[nodiscard]] std::string sha256_of(std::string_view bytes);

/// The SHA-256 of a file's bytes. Throws InvalidInput if it is unreadable.
[[nodiscard]] std::string sha256_of_file(const std::string& path);

}  // namespace slimpack::app
