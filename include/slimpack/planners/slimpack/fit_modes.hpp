// SPDX-License-Identifier: Apache-2.0
// On one stage: packs that would not fit into memory keep less for their backward passes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/cost/memory_model.hpp"
#include "slimpack/cost/slice_index.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/planners/slimpack/exchange.hpp"

namespace slimpack::planners {

namespace detail {

/// A forward pack and the backward pack with the same slices, all of them whole samples.
using TwinPacks = std::pair<PackId, PackId>;

[[nodiscard]] inline std::vector<TwinPacks> twin_packs(const Plan& plan) {
  std::vector<TwinPacks> twins;
  PassPacks backward(plan, Pass::backward);
  for (std::size_t i = 0; i < plan.micropacks.size(); ++i) {
    const MicroPack& pack = plan.micropacks[i];
    if (pack.pass != Pass::forward) continue;
    const bool whole = std::ranges::all_of(pack.slices, [&](const Slice& slice) {
      return slice.length() == plan.samples[index(slice.sample)];
    });
    if (!whole) continue;
    if (const auto twin = backward.twin(pack)) twins.emplace_back(static_cast<PackId>(i), *twin);
  }
  return twins;
}

/// By rank, the bytes that its largest H works with, hidden gradients included.
[[nodiscard]] inline std::vector<Bytes> head_bytes(const Plan& plan, const MemoryModel& memory) {
  struct Most {
    Bytes hidden;
    std::int64_t rows = 0;
  };
  std::vector<Most> most(static_cast<std::size_t>(plan.parallel.dp));
  for (std::size_t i = 0; i < plan.micropacks.size(); ++i) {
    const MicroPack& pack = plan.micropacks[i];
    if (pack.pass != Pass::forward) continue;
    const std::vector<std::int32_t>& ranks = plan.groups[index(pack.group)];
    for (std::size_t place = 0; place < ranks.size(); ++place) {
      Most& own = most[static_cast<std::size_t>(ranks[place])];
      const auto id = static_cast<PackId>(i);
      own.hidden = std::max(own.hidden, memory.boundary(id, place));
      own.rows = std::max(own.rows, memory.head_rows(id, place));
    }
  }
  const ElementBytes size = element_bytes_of(plan.model, plan.memory.gradient_bytes);
  std::vector<Bytes> bytes;
  for (const Most& own : most) {
    bytes.push_back(own.hidden + Bytes{own.rows * head_row_bytes(plan, 0, size)});
  }
  return bytes;
}

}  // namespace detail

/// Makes backward packs of a plan of one stage leaner, mode by mode, as long as they would not fit
/// on some rank of their group. Where the leanest does not fit by heads, whose buffers are larger,
/// the ranks exchange by rings instead, with the least lean mode that fits so. Packs count that are
/// the same in both passes and hold whole samples: each is backward as soon as it has been forward,
/// so that a device holds one at a time. All others keep what they have. O(plan) for each mode.
inline void fit_modes(Plan& plan) {
  const std::vector<detail::TwinPacks> twins = detail::twin_packs(plan);
  if (twins.empty()) return;
  const Bytes available =
      plan.memory.capacity - plan.memory.reserved - static_bytes(plan, 0).total();
  const std::int64_t layers = plan.model.layers;
  for (bool changed = true; std::exchange(changed, false);) {
    const MemoryModel memory(plan);
    const std::vector<Bytes> head = detail::head_bytes(plan, memory);
    for (const auto& [forward, backward] : twins) {
      MicroPack& pack = plan.micropacks[index(backward)];
      const bool leanest = pack.recompute == Recompute::full;
      const bool by_heads =
          std::ranges::find(pack.exchange, RingMode::by_heads) != pack.exchange.end();
      if (leanest && !by_heads) continue;
      const std::vector<std::int32_t>& ranks = plan.groups[index(pack.group)];
      for (std::size_t place = 0; place < ranks.size(); ++place) {
        const Bytes held = memory.kept(forward, place, layers) +
                           memory.keys_values(forward, place, layers) +
                           memory.boundary(forward, place);
        const Bytes work = std::max({memory.pack_workspace(forward, place),
                                     memory.pack_workspace(backward, place) +
                                         memory.begun_gradients(backward, place, layers),
                                     head[static_cast<std::size_t>(ranks[place])]});
        if (held + work <= available) continue;
        changed = true;
        if (!leanest) {
          pack.recompute = static_cast<Recompute>(static_cast<std::uint8_t>(pack.recompute) + 1);
          break;
        }
        for (MicroPack* twin : {&plan.micropacks[index(forward)], &pack}) {
          twin->exchange = detail::ring_exchange(plan, *twin);
        }
        pack.recompute = Recompute::none;
        break;
      }
    }
  }
}

}  // namespace slimpack::planners
