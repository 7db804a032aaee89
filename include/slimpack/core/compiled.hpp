// SPDX-License-Identifier: Apache-2.0
// Where the large functions are compiled: in each program that includes them, or once.
#pragma once

/// Planners, validator, prices and simulation of plans are compiled where their headers are
/// included, or once, in the target slimpack::planners, which defines SLIMPACK_COMPILED_PLANNERS
/// for whoever links it.
#ifdef SLIMPACK_COMPILED_PLANNERS
#define SLIMPACK_PLANNERS_API
#else
#define SLIMPACK_PLANNERS_API inline
#endif
