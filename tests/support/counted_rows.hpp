// SPDX-License-Identifier: Apache-2.0
// Which tokens' rows count in the memory of a tensor-parallel device, found token by token.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "slimpack/plan/plan.hpp"

namespace slimpack::test {

/// Tokens (sample, position) whose rows the device holds that has most of the rows of one forward,
/// one backward and one weight pack on one rank. Without tensor parallelism, or in version 1, where
/// everything is a tp-th, none.
[[nodiscard]] inline std::set<std::pair<std::size_t, std::int64_t>> counted_rows(const Plan& plan) {
  std::set<std::pair<std::size_t, std::int64_t>> counted;
  const std::int64_t tp = plan.parallel.tp;
  if (tp == 1 || plan.version < 2) return counted;
  using Token = std::pair<std::size_t, std::int64_t>;
  std::map<Token, std::vector<std::size_t>> packs;  // in the order of passes
  for (const Pass pass : {Pass::forward, Pass::backward, Pass::weight}) {
    for (std::size_t id = 0; id < plan.micropacks.size(); ++id) {
      if (plan.micropacks[id].pass != pass) continue;
      for (const Slice& slice : plan.micropacks[id].slices) {
        for (std::int64_t i = slice.begin.value; i < slice.end.value; ++i) {
          packs[{index(slice.sample), i}].push_back(id);
        }
      }
    }
  }
  std::map<std::pair<std::vector<std::size_t>, std::int64_t>, std::vector<std::vector<Token>>> held;
  for (const auto& [token, of] : packs) {
    const auto ranks =
        static_cast<std::int64_t>(plan.groups[index(plan.sample_group[token.first])].size());
    const std::int64_t turn = token.second / plan.memory.cp_block_tokens.value % (2 * ranks);
    const std::int64_t first = plan.sample_first.empty() ? 0 : plan.sample_first[token.first];
    const std::int64_t rank = (first + std::min(turn, 2 * ranks - 1 - turn)) % ranks;
    auto& by_device = held[{of, rank}];
    by_device.resize(static_cast<std::size_t>(tp));
    const std::int64_t device = (token.second + static_cast<std::int64_t>(token.first)) % tp;
    by_device[static_cast<std::size_t>(device)].push_back(token);
  }
  for (const auto& [part, by_device] : held) {
    const std::vector<Token>* most = &by_device.front();
    for (const auto& of_device : by_device) {
      if (of_device.size() > most->size()) most = &of_device;
    }
    counted.insert(most->begin(), most->end());
  }
  return counted;
}

}  // namespace slimpack::test
