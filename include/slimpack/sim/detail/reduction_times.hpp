// SPDX-License-Identifier: Apache-2.0
// When gradients are reduced and the optimizer ends, once all other units have their times.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/cost/price.hpp"
#include "slimpack/cost/unit_times.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/plan/virtual_stages.hpp"
#include "slimpack/sim/detail/bucket_times.hpp"

namespace slimpack::sim::detail {

/// R and O of all devices. Nothing but O waits for them.
class FastReductions {
 public:
  explicit FastReductions(const Plan& plan)
      : plan_(plan), devices_(plan.schedule.size()), virtual_stages_(virtual_stages_of(plan)) {}

  /// R of `chunk` comes on a device behind a unit that ran from `start` to `end`; `by_layers` if
  /// its gradients are ready layer by layer while that unit runs.
  void release(std::size_t device, std::int32_t chunk, std::int64_t start, std::int64_t end,
               bool by_layers) {
    require(!devices_[device].ends, "plan_figures: R must not follow O, chunk", chunk);
    devices_[device].releases.push_back({chunk, start, end, by_layers});
  }
  /// O comes on a device whose units before have ended at `end`.
  void optimizer(std::size_t device, std::int64_t end) {
    require(!devices_[device].ends, "plan_figures: O must be there once, device",
            static_cast<std::int64_t>(device));
    devices_[device].ends = end;
  }
  /// No other unit may follow O.
  [[nodiscard]] bool closed(std::size_t device) const noexcept {
    return devices_[device].ends.has_value();
  }

  /// The end of the last R and O; adds each O to the busy times.
  template <UnitTimes Times>
  [[nodiscard]] std::int64_t run(const Times& times, std::vector<Nanos>& busy) {
    std::vector<Stage> stages(static_cast<std::size_t>(plan_.parallel.pp));
    for (std::int32_t pp = 0; pp < plan_.parallel.pp; ++pp) {
      stages[static_cast<std::size_t>(pp)] = buckets(times, pp);
    }
    // With tied embeddings the last bucket of chunk 0 is a collective of the stages that hold the
    // table.
    const std::vector<std::int32_t> tied = tied_stages(plan_);
    std::int64_t start = 0, longest = 0;
    for (const std::int32_t pp : tied) {
      Stage& stage = stages[static_cast<std::size_t>(pp)];
      const Bucket& table = stage.buckets[stage.table];
      start = std::max({start, advance(stage, stage.table), table.released});
      longest = std::max(longest, table.time);
    }
    for (const std::int32_t pp : tied) {
      Stage& stage = stages[static_cast<std::size_t>(pp)];
      stage.done = stage.table + 1;
      stage.end = start + longest;
    }
    std::int64_t last = 0;
    for (std::size_t device = 0; device < devices_.size(); ++device) {
      const DeviceSchedule& on = plan_.schedule[device];
      Stage& stage = stages[static_cast<std::size_t>(on.pp)];
      const std::int64_t reduced = advance(stage, stage.buckets.size());
      last = std::max(last, reduced);
      if (!devices_[device].ends) continue;
      const Nanos time = times.optimizer(on.dp, on.pp);
      busy[device] += time;
      last = std::max(last, std::max(*devices_[device].ends, reduced) + time.value);
    }
    return last;
  }

 private:
  struct Release {
    std::int32_t chunk = 0;
    std::int64_t start = 0, end = 0;
    bool by_layers = false;
  };
  struct Device {
    std::vector<Release> releases;
    std::optional<std::int64_t> ends;
  };
  struct Bucket {
    std::int64_t released = 0, time = 0;
  };
  struct Stage {
    std::vector<Bucket> buckets;  // one after the other
    std::size_t table = 0;        // the last of chunk 0
    std::size_t done = 0;
    std::int64_t end = 0;  // of those that are done
  };

  /// Runs the buckets of a stage up to the one named; when that may begin.
  static std::int64_t advance(Stage& stage, std::size_t until) {
    for (; stage.done < until; ++stage.done) {
      const Bucket& bucket = stage.buckets[stage.done];
      stage.end = std::max(stage.end, bucket.released) + bucket.time;
    }
    return stage.end;
  }

  template <UnitTimes Times>
  [[nodiscard]] Stage buckets(const Times& times, std::int32_t pp) const {
    Stage stage;
    const std::vector<Release>& order = devices_[device_index(plan_, 0, pp)].releases;
    require(order.size() == static_cast<std::size_t>(plan_.parallel.chunks),
            "plan_figures: every chunk must have one R on stage", pp);
    for (std::size_t turn = 0; turn < order.size(); ++turn) {
      const std::int32_t chunk = order[turn].chunk;
      bool by_layers = false;
      for (std::int32_t dp = 0; dp < plan_.parallel.dp; ++dp) {
        const auto& releases = devices_[device_index(plan_, dp, pp)].releases;
        require(releases.size() == order.size() && releases[turn].chunk == chunk,
                "plan_figures: R must come in the same order on all ranks of stage", pp);
        by_layers = by_layers || releases[turn].by_layers;
      }
      const std::int64_t layers =
          plan_.stages[static_cast<std::size_t>(virtual_stages_.index(pp, chunk))].layers();
      const std::vector<Nanos> cut =
          bucket_times(plan_, pp, chunk, times.reduce(pp, chunk), by_layers ? layers : 1);
      const auto count = static_cast<std::int64_t>(cut.size());
      for (std::int64_t i = 0; i < count; ++i) {
        Bucket bucket{0, cut[static_cast<std::size_t>(i)].value};
        for (std::int32_t dp = 0; dp < plan_.parallel.dp; ++dp) {
          const Release& from = devices_[device_index(plan_, dp, pp)].releases[turn];
          bucket.released = std::max(bucket.released, released(from, i, count));
        }
        stage.buckets.push_back(bucket);
      }
      if (chunk == 0) stage.table = stage.buckets.size() - 1;
    }
    return stage;
  }

  [[nodiscard]] static std::int64_t released(const Release& from, std::int64_t bucket,
                                             std::int64_t count) {
    if (!from.by_layers) return bucket == 0 ? from.end : 0;
    if (bucket + 1 == count) return from.end;
    return from.start + part_of_time(Nanos{from.end - from.start}, bucket + 1, count);
  }

  const Plan& plan_;
  std::vector<Device> devices_;
  VirtualStages virtual_stages_;
};

}  // namespace slimpack::sim::detail
