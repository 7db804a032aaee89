// SPDX-License-Identifier: Apache-2.0
// 128-bit integers, for sums and products that outgrow 64 bits.
#pragma once

namespace slimpack {

/// Signed, 128 bits.
__extension__ using Int128 = __int128;
/// Unsigned, 128 bits.
__extension__ using UInt128 = unsigned __int128;

}  // namespace slimpack
