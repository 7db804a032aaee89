// SPDX-License-Identifier: Apache-2.0
#include "trace_units.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/plan/step_trace.hpp"

namespace slimpack::report::detail {

std::string describe_slices(const MicroPack& pack, std::size_t most) {
  std::string text;
  for (std::size_t i = 0; i < pack.slices.size() && i < most; ++i) {
    const Slice& slice = pack.slices[i];
    if (i > 0) text += ' ';
    text += std::to_string(index(slice.sample)) + ":[" + std::to_string(slice.begin.value) + "," +
            std::to_string(slice.end.value) + ")";
  }
  if (pack.slices.size() > most) {
    text += " and " + std::to_string(pack.slices.size() - most) + " more";
  }
  return text;
}

Tokens tokens_of(const MicroPack& pack) {
  Tokens tokens;
  for (const Slice& slice : pack.slices) tokens += slice.length();
  return tokens;
}

const std::vector<std::int32_t>& ranks_of(const Plan& plan, PackId pack) {
  return plan.groups[index(plan.micropacks[index(pack)].group)];
}

TracedUnit traced_unit(const Plan& plan, std::int32_t dp, std::int32_t pp, const Unit& unit,
                       Nanos begin, Nanos end) {
  TracedUnit traced{dp, pp, unit, {}, {}, false, begin, end};
  if (names_pack(unit.kind)) {
    traced.tokens = tokens_of(plan.micropacks[index(unit.pack)]);
    traced.in_cp_group = ranks_of(plan, unit.pack).size() > 1;
  }
  return traced;
}

}  // namespace slimpack::report::detail
