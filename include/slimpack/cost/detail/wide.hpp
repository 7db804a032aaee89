// SPDX-License-Identifier: Apache-2.0
// 128-bit integers for sums and products that outgrow 64 bits.
#pragma once

namespace slimpack::detail {

__extension__ using Wide = __int128;

}  // namespace slimpack::detail
