// SPDX-License-Identifier: Apache-2.0
// The version of slimpack. CMake, the Python package and all packages read it from these lines.
#pragma once

/// Breaks with earlier sources where it is larger.
#define SLIMPACK_VERSION_MAJOR 0
/// Before 1.0 it may break sources too.
#define SLIMPACK_VERSION_MINOR 2
/// Only mends.
#define SLIMPACK_VERSION_PATCH 0
/// One number to compare with: 0.2.0 is 200, 1.2.3 is 10203.
#define SLIMPACK_VERSION \
  (SLIMPACK_VERSION_MAJOR * 10000 + SLIMPACK_VERSION_MINOR * 100 + SLIMPACK_VERSION_PATCH)

#define SLIMPACK_DETAIL_TEXT(text) #text
#define SLIMPACK_DETAIL_VERSION_TEXT(major, minor, patch) \
  SLIMPACK_DETAIL_TEXT(major) "." SLIMPACK_DETAIL_TEXT(minor) "." SLIMPACK_DETAIL_TEXT(patch)
/// The version as text: "0.2.0".
#define SLIMPACK_VERSION_TEXT                                                  \
  SLIMPACK_DETAIL_VERSION_TEXT(SLIMPACK_VERSION_MAJOR, SLIMPACK_VERSION_MINOR, \
                               SLIMPACK_VERSION_PATCH)
