// SPDX-License-Identifier: Apache-2.0
// How plan.json says what it is.
#pragma once

#include <string_view>

namespace slimpack::detail {

inline constexpr std::string_view kPlanFormat = "slimpack-plan";

}  // namespace slimpack::detail
