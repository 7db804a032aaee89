// SPDX-License-Identifier: Apache-2.0
// When gradients are reduced: buckets, what releases them, their turns, and O after them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/cost/memory_model.hpp"
#include "slimpack/cost/unit_times.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/plan/virtual_stages.hpp"
#include "slimpack/sim/dag.hpp"
#include "slimpack/sim/detail/bucket_times.hpp"
#include "slimpack/sim/detail/plan_draft.hpp"

namespace slimpack::sim::detail {

template <UnitTimes Times>
class PlanReductions {
 public:
  PlanReductions(PlanDraft& draft, const Times& times) : draft_(draft), times_(times) {}

  /// Before anything awaits a unit: finds each R's release, and gives a start of its own to each B
  /// or W that releases by parts.
  void plan() { plan_releases(); }
  /// Throws InvalidInput where a rank lacks the R of another, or a time is negative.
  void add() { add_reductions(); }

 private:
  /// Where a device's R of a chunk is queued, and the B or W that releases its buckets one by one.
  struct Release {
    NodeId after = kNoNode;  // the compute unit before R
    bool bucketed = false;   // that unit is the chunk's last B or W
    bool present = false;
    std::uint32_t place = 0;
  };

  void plan_releases() {
    const auto chunks = static_cast<std::size_t>(draft_.plan.parallel.chunks);
    releases_.assign(draft_.plan.schedule.size() * chunks, {});
    std::vector<NodeId> last_gradients(chunks);
    for (std::size_t i = 0; i < draft_.plan.schedule.size(); ++i) {
      const DeviceSchedule& schedule = draft_.plan.schedule[i];
      std::fill(last_gradients.begin(), last_gradients.end(), kNoNode);
      for (std::size_t place = 0; place < schedule.order.size(); ++place) {
        const Unit& unit = schedule.order[place];
        if (unit.kind != UnitKind::backward && unit.kind != UnitKind::weight) continue;
        last_gradients[static_cast<std::size_t>(unit.chunk)] = draft_.node_at(i, place);
      }
      for (std::size_t place = 0; place < schedule.order.size(); ++place) {
        const Unit& unit = schedule.order[place];
        if (unit.kind != UnitKind::reduce) continue;
        const auto chunk = static_cast<std::size_t>(unit.chunk);
        Release& release = releases_[i * chunks + chunk];
        require_built(!release.present,
                      [&] { return unit_place(schedule, unit) + " is there twice"; });
        release.present = true;
        release.place = static_cast<std::uint32_t>(place);
        release.after = draft_.node_at(i, place);
        release.bucketed = release.after != kNoNode && release.after == last_gradients[chunk] &&
                           draft_.layers(draft_.virtual_stages.index(schedule.pp, unit.chunk)) > 1;
        if (release.bucketed && draft_.entry(release.after) == release.after) {
          draft_.enter_by(draft_.add_join(release.after), release.after);
        }
      }
    }
  }

  void add_reductions() {
    find_table_stages();
    std::vector<NodeId> table_buckets;
    for (std::int32_t pp = 0; pp < draft_.plan.parallel.pp; ++pp) {
      const ResourceId link = draft_.out.add_resource({ResourceKind::reduce, 0, pp, 0, false});
      std::vector<std::vector<NodeId>> buckets(
          static_cast<std::size_t>(draft_.plan.parallel.chunks));
      last_bucket_ = kNoNode;
      for (const Unit& unit : draft_.plan.schedule[device_index(draft_.plan, 0, pp)].order) {
        if (unit.kind != UnitKind::reduce) continue;
        std::vector<NodeId>& row = buckets[static_cast<std::size_t>(unit.chunk)];
        row = add_buckets(pp, unit.chunk, link);
        if (holds_table(pp) && unit.chunk == 0) table_buckets.push_back(row.back());
      }
      for (std::int32_t dp = 0; dp < draft_.plan.parallel.dp; ++dp) follow_order(dp, pp, buckets);
    }
    if (table_buckets.size() > 1) draft_.end_together(table_buckets);
  }

  /// With tied embeddings the stages that hold the table, a copy or a shard, reduce it together:
  /// the last bucket of their chunk 0 is a collective.
  void find_table_stages() {
    std::int32_t stages = 0;
    for (std::int32_t pp = 0; pp < draft_.plan.parallel.pp; ++pp) {
      if (pp == 0 || head_rows(draft_.plan, pp) > 0) ++stages;
    }
    if (!draft_.plan.model.tied || stages < 2) return;
    NodeLabel label;
    label.kind = NodeKind::join;
    label.unit = release(0, 0, 0).place;
    table_join_ = draft_.add_node(Nanos{}, kNoResource, label);
  }
  [[nodiscard]] bool holds_table(std::int32_t pp) const noexcept {
    return table_join_ != kNoNode && (pp == 0 || head_rows(draft_.plan, pp) > 0);
  }

  /// Adds a bucket after the others of its stage.
  [[nodiscard]] NodeId add_bucket(Nanos time, const NodeLabel& label, ResourceId link,
                                  bool with_table) {
    const NodeId bucket = draft_.add_node(time, link, label, last_bucket_);
    if (with_table) draft_.enter_by(table_join_, bucket);
    last_bucket_ = bucket;
    return bucket;
  }

  [[nodiscard]] Release& release(std::int32_t dp, std::int32_t pp, std::int32_t chunk) noexcept {
    return releases_[device_index(draft_.plan, dp, pp) *
                         static_cast<std::size_t>(draft_.plan.parallel.chunks) +
                     static_cast<std::size_t>(chunk)];
  }

  [[nodiscard]] std::vector<NodeId> add_buckets(std::int32_t pp, std::int32_t chunk,
                                                ResourceId link) {
    const std::int64_t layers = draft_.layers(draft_.virtual_stages.index(pp, chunk));
    bool bucketed = false;
    for (std::int32_t dp = 0; dp < draft_.plan.parallel.dp; ++dp) {
      require_built(release(dp, pp, chunk).present, [&] {
        return device_name(dp, pp) + " never runs " + unit_name({UnitKind::reduce, {}, chunk});
      });
      bucketed = bucketed || release(dp, pp, chunk).bucketed;
    }
    const Nanos time = times_.reduce(pp, chunk);
    require_time(time, [&] {
      return "pp " + std::to_string(pp) + " " + unit_name({UnitKind::reduce, {}, chunk});
    });
    NodeLabel label;
    label.kind = NodeKind::reduce;
    label.pp = pp;
    label.chunk = chunk;
    label.unit = release(0, pp, chunk).place;
    const std::vector<Nanos> times =
        bucket_times(draft_.plan, pp, chunk, time, bucketed ? layers : 1);
    std::vector<NodeId> buckets;
    for (std::size_t bucket = 0; bucket < times.size(); ++bucket) {
      label.bucket = static_cast<std::uint32_t>(bucket);
      const bool with_table = chunk == 0 && bucket + 1 == times.size() && holds_table(pp);
      buckets.push_back(add_bucket(times[bucket], label, link, with_table));
    }
    for (std::int32_t dp = 0; dp < draft_.plan.parallel.dp; ++dp) {
      add_release(dp, pp, chunk, buckets);
    }
    return buckets;
  }

  void add_release(std::int32_t dp, std::int32_t pp, std::int32_t chunk,
                   std::span<const NodeId> buckets) {
    const Release& from = release(dp, pp, chunk);
    if (from.after == kNoNode) return;
    if (!from.bucketed) {
      draft_.out.add_edge(from.after, draft_.entry(buckets.front()));
      return;
    }
    const auto count = static_cast<std::uint32_t>(buckets.size());
    for (std::uint32_t bucket = 0; bucket + 1 < count; ++bucket) {
      NodeLabel label = draft_.out.label(from.after);
      label.kind = NodeKind::release;
      label.bucket = bucket;
      const Nanos whole = draft_.out.duration(from.after);
      const NodeId part =
          draft_.add_node(Nanos{part_of_time(whole, bucket + 1, count)}, kNoResource, label);
      draft_.out.add_part({part, from.after, bucket + 1, count});
      draft_.out.add_edge(draft_.entry(from.after), part);
      draft_.out.add_edge(part, draft_.entry(buckets[bucket]));
    }
    draft_.out.add_edge(from.after, draft_.entry(buckets.back()));
  }

  /// The order of R in one device's schedule, and O after all of them.
  void follow_order(std::int32_t dp, std::int32_t pp,
                    const std::vector<std::vector<NodeId>>& buckets) {
    const std::size_t i = device_index(draft_.plan, dp, pp);
    NodeId last = kNoNode;
    for (const Unit& unit : draft_.plan.schedule[i].order) {
      if (unit.kind != UnitKind::reduce) continue;
      const std::vector<NodeId>& row = buckets[static_cast<std::size_t>(unit.chunk)];
      require_built(!row.empty(),
                    [&] { return device_name(0, pp) + " never runs " + unit_name(unit); });
      if (last != kNoNode && row.front() < last) {
        draft_.out.add_edge(last, draft_.entry(row.front()));
      }
      last = row.back();
    }
    for (std::size_t place = 0; place < draft_.plan.schedule[i].order.size(); ++place) {
      if (draft_.plan.schedule[i].order[place].kind != UnitKind::optimizer) continue;
      for (const std::vector<NodeId>& row : buckets) {
        if (!row.empty()) draft_.out.add_edge(row.back(), draft_.node_at(i, place));
      }
    }
  }

  PlanDraft& draft_;
  const Times& times_;
  std::vector<Release> releases_;  // row device, column chunk
  NodeId last_bucket_ = kNoNode;   // of the stage at hand
  NodeId table_join_ = kNoNode;    // start of the collective that reduces a tied table
};

}  // namespace slimpack::sim::detail
