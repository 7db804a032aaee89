// SPDX-License-Identifier: Apache-2.0
// What the stand-in for cuBLASLt tells tests, and what they ask of it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace slimpack::test {

/// Products so far by the place of their algorithm among the four that are proposed. In the
/// stand-in's time they take 8 ms, 2 ms and 5 ms; the second refuses to run.
extern std::array<std::int64_t, 4> products_of_algorithm;

/// The most bytes that can be allocated at one time.
extern std::size_t most_allocated;
/// Whether an algorithm runs products with other numbers of rows than it was proposed for.
extern bool takes_other_rows;

}  // namespace slimpack::test
