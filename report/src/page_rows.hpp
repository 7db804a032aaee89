// SPDX-License-Identifier: Apache-2.0
// The timeline of one data-parallel rank in a few bytes a unit, with what each gap waited for.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "packed_bytes.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/sim/bottlenecks.hpp"
#include "slimpack/sim/dag.hpp"
#include "slimpack/sim/simulate_plan.hpp"
#include "slimpack/sim/timeline.hpp"

namespace slimpack::report::detail {

/// How the page numbers kinds of nodes: F, B, H, O and W as it numbers units, then the others.
[[nodiscard]] constexpr unsigned page_kind(sim::NodeKind kind) noexcept {
  if (kind == sim::NodeKind::weight) return 4;
  return static_cast<unsigned>(kind) + (kind > sim::NodeKind::optimizer ? 1U : 0U);
}

/// Writes rows for page/decode.js, which names the fields in the same order. A row is a device's
/// time from 0 to the makespan without a hole, units and gaps; entries carry durations alone. A
/// duration is left out where the same unit took as long on the stage before, as it mostly does.
class PageRows {
 public:
  static constexpr unsigned kFirstGap = 5;  ///< codes: F, B, H, O, W, then the causes of gaps
  static constexpr unsigned kTimed = 16, kBlocked = 32, kChunked = 64;  // of units
  static constexpr unsigned kInstead = 16;                              // of gaps

  PageRows(const Plan& plan, const sim::PlanSimulation& simulation, const sim::Gaps& gaps)
      : plan_(plan), dag_(simulation.dag), timeline_(simulation.timeline), gaps_(gaps) {
    before_ = sim::predecessors(dag_);
    nodes_.resize(dag_.devices.size());
    std::vector<std::size_t> device_of(dag_.resources.size(), 0);
    for (std::size_t i = 0; i < dag_.devices.size(); ++i) {
      device_of[index(dag_.devices[i].compute)] = i;
    }
    for (std::size_t i = 0; i < dag_.size(); ++i) {
      if (!sim::is_compute(dag_.label[i].kind)) continue;
      nodes_[device_of[index(dag_.resource[i])]].push_back(
          sim::NodeId{static_cast<std::uint32_t>(i)});
    }
    std::size_t gap = 0;
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      std::stable_sort(nodes_[i].begin(), nodes_[i].end(), [&](sim::NodeId a, sim::NodeId b) {
        return timeline_.start[index(a)] < timeline_.start[index(b)];
      });
      first_gap_.push_back(gap);
      while (gap < gaps_.gaps.size() && index(gaps_.gaps[gap].device) == i) ++gap;
    }
    first_gap_.push_back(gap);
  }

  /// Units and gaps of a rank.
  [[nodiscard]] std::size_t entries(std::size_t rank) const {
    const auto stages = static_cast<std::size_t>(plan_.parallel.pp);
    std::size_t count = first_gap_[(rank + 1) * stages] - first_gap_[rank * stages];
    for (std::size_t i = rank * stages; i < (rank + 1) * stages; ++i) count += nodes_[i].size();
    return count;
  }

  /// The rows of a rank's stages, one after the other.
  [[nodiscard]] PackedBytes rank(std::size_t rank) {
    const auto stages = static_cast<std::size_t>(plan_.parallel.pp);
    PackedBytes bytes;
    seen_.assign(kFirstGap * plan_.micropacks.size(), Nanos{-1});
    for (std::size_t i = rank * stages; i < (rank + 1) * stages; ++i) add_row(bytes, i);
    return bytes;
  }

 private:
  void add_row(PackedBytes& bytes, std::size_t device) {
    const std::size_t end = first_gap_[device + 1];
    bytes.add_size(nodes_[device].size() + end - first_gap_[device]);
    std::size_t gap = first_gap_[device];
    std::array<std::int64_t, kFirstGap> last{};
    for (const sim::NodeId node : nodes_[device]) {
      const Nanos start = timeline_.start[index(node)];
      const std::size_t first = gap;
      for (; gap < end && gaps_.gaps[gap].begin < start; ++gap) add_gap(bytes, gaps_.gaps[gap]);
      add_unit(bytes, device, node, last, gap > first);
    }
    for (; gap < end; ++gap) add_gap(bytes, gaps_.gaps[gap]);
  }

  void add_gap(PackedBytes& bytes, const sim::Gap& gap) const {
    bytes.add((kFirstGap + static_cast<unsigned>(gap.cause)) | (gap.instead ? kInstead : 0U));
    bytes.add_signed((gap.end - gap.begin).value);
    if (!gap.instead) return;
    const sim::NodeLabel& label = dag_.label[index(*gap.instead)];
    bytes.add(page_kind(label.kind));
    bytes.add_size(index(label.pack));
    bytes.add(static_cast<std::uint64_t>(label.chunk));
  }

  void add_unit(PackedBytes& bytes, std::size_t device, sim::NodeId node,
                std::array<std::int64_t, kFirstGap>& last, bool waited) {
    const sim::NodeLabel& label = dag_.label[index(node)];
    const Nanos duration = dag_.duration[index(node)];
    const unsigned kind = page_kind(label.kind);
    const bool packed = label.kind != sim::NodeKind::optimizer;
    bool timed = true;
    if (packed) {
      Nanos& seen = seen_[kFirstGap * index(label.pack) + kind];
      timed = seen != duration;
      seen = duration;
    }
    const std::vector<sim::NodeId> blockers =
        waited ? find_blockers(device, node) : std::vector<sim::NodeId>{};
    const bool chunked = packed && label.chunk != 0 && label.kind != sim::NodeKind::head;
    bytes.add(kind | (timed ? kTimed : 0U) | (blockers.empty() ? 0U : kBlocked) |
              (chunked ? kChunked : 0U));
    if (packed) {
      const auto pack = static_cast<std::int64_t>(index(label.pack));
      bytes.add_signed(pack - last[kind]);
      last[kind] = pack;
    }
    if (chunked) bytes.add(static_cast<std::uint64_t>(label.chunk));
    if (timed) bytes.add_signed(duration.value);
    if (blockers.empty()) return;
    bytes.add_size(blockers.size());
    for (const sim::NodeId blocker : blockers) add_blocker(bytes, device, node, blocker);
  }

  /// What came last of all that the unit needs from elsewhere, through its collective; before it,
  /// where that is another's, the last transfer of its own device. Ties to the lower id.
  [[nodiscard]] std::vector<sim::NodeId> find_blockers(std::size_t device, sim::NodeId node) const {
    const sim::ResourceId compute = dag_.devices[device].compute;
    std::optional<sim::NodeId> last, own;
    const auto later = [&](std::optional<sim::NodeId>& found, sim::NodeId need) {
      if (!found || timeline_.end[index(need)] > timeline_.end[index(*found)]) found = need;
    };
    const auto consider = [&](sim::NodeId need) {
      if (dag_.resource[index(need)] == compute ||
          dag_.label[index(need)].kind == sim::NodeKind::join) {
        return;
      }
      later(last, need);
      if (is_own(device, need)) later(own, need);
    };
    for (const sim::NodeId need : before_[index(node)]) {
      consider(need);
      if (dag_.label[index(need)].kind != sim::NodeKind::join) continue;
      for (const sim::NodeId inner : before_[index(need)]) consider(inner);
    }
    std::vector<sim::NodeId> found;
    if (own && own != last) found.push_back(*own);
    if (last) found.push_back(*last);
    return found;
  }

  /// Whether a node is a transfer from or to a device.
  [[nodiscard]] bool is_own(std::size_t device, sim::NodeId node) const {
    const sim::NodeLabel& label = dag_.label[index(node)];
    if (label.kind != sim::NodeKind::transfer) return false;
    const sim::Channel& channel = dag_.channels[index(label.channel)];
    const sim::DagDevice& here = dag_.devices[device];
    return channel.dp == here.dp && (channel.from_pp == here.pp || channel.to_pp == here.pp);
  }

  void add_blocker(PackedBytes& bytes, std::size_t device, sim::NodeId unit,
                   sim::NodeId node) const {
    const sim::NodeLabel& label = dag_.label[index(node)];
    const sim::NodeLabel& waiting = dag_.label[index(unit)];
    const bool transfer = label.kind == sim::NodeKind::transfer;
    std::int32_t dp = label.dp;
    std::int32_t to_pp = label.pp;
    bytes.add(page_kind(label.kind));
    if (transfer) {
      const sim::Channel& channel = dag_.channels[index(label.channel)];
      dp = channel.dp;
      to_pp = channel.to_pp;
    }
    bytes.add_signed(dp - dag_.devices[device].dp);
    bytes.add_signed(label.pp - dag_.devices[device].pp);
    bytes.add_signed(static_cast<std::int64_t>(index(label.pack)) -
                     static_cast<std::int64_t>(index(waiting.pack)));
    bytes.add(static_cast<std::uint64_t>(label.chunk));
    if (transfer) {
      bytes.add_signed(to_pp - dag_.devices[device].pp);
      bytes.add_signed((timeline_.end[index(node)] - timeline_.start[index(node)]).value);
    }
    bytes.add_signed((timeline_.start[index(unit)] - timeline_.end[index(node)]).value);
  }

  const Plan& plan_;
  const sim::Dag& dag_;
  const sim::Timeline& timeline_;
  const sim::Gaps& gaps_;
  sim::NodeLists before_;
  std::vector<std::vector<sim::NodeId>> nodes_;
  std::vector<std::size_t> first_gap_;
  std::vector<Nanos> seen_;  // by pack, then kind: how long it last took
};

}  // namespace slimpack::report::detail
