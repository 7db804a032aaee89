// SPDX-License-Identifier: Apache-2.0
// A device that computes nothing and calls its transport as one that does.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "slimpack/exec/backend.hpp"
#include "slimpack/exec/buckets.hpp"
#include "slimpack/exec/deal.hpp"
#include "slimpack/exec/memory.hpp"
#include "slimpack/exec/parameters.hpp"
#include "slimpack/exec/stage_meetings.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/plan/share.hpp"

namespace slimpack::test {

/// Spans of it have sizes, and addresses that nobody follows.
class LinkDevice {
 public:
  struct Buffer {
    std::size_t bytes = 0;
  };

  LinkDevice(const Plan& plan, std::size_t device)
      : plan_(plan),
        meetings_{plan.parallel, plan.schedule[device].dp, plan.schedule[device].pp},
        layout_(exec::layout_of(plan, plan.schedule[device].pp)),
        buckets_(exec::buckets_of(plan.model, plan.stages, meetings_, layout_)) {}

  [[nodiscard]] exec::ElementBytes element_bytes() const noexcept { return {2, 4, 4}; }
  [[nodiscard]] exec::StaticBytes static_bytes() const noexcept { return {}; }
  [[nodiscard]] Buffer allocate(Bytes bytes) const noexcept {
    return {static_cast<std::size_t>(bytes.value)};
  }
  [[nodiscard]] std::span<std::byte> bytes(const Buffer& buffer) const noexcept {
    return some<std::byte>(buffer.bytes);
  }
  void clear(Buffer&) noexcept {}
  void begin_step(const Plan&, const exec::StepData&) { buckets_.begin_step(); }

  template <class Link>
  void forward(const exec::PackCall& call, Link& link) {
    const Stage& stage = plan_.stages[static_cast<std::size_t>(call.line)];
    for (std::int64_t layer = 0; layer < stage.layers(); ++layer) {
      exchange(call, Pass::forward, link);
    }
  }
  template <class Link>
  void backward(const exec::PackCall& call, Link& link) {
    const Stage& stage = plan_.stages[static_cast<std::size_t>(call.line)];
    for (std::int64_t layer = stage.end_layer; layer-- > stage.first_layer;) {
      if (call.recompute == Recompute::full) exchange(call, Pass::forward, link);
      exchange(call, Pass::backward, link);
      if (call.releases) buckets_.pass(layer, queue_on(link));
    }
  }
  template <class Link>
  void head(const exec::HeadCall& call, Link& link) {
    const std::size_t members = call.stages.members.size();
    if (members == 1) return;
    for (std::int64_t first = 0; first < call.rows.value; first += plan_.memory.head_tile.value) {
      const auto rows =
          static_cast<std::size_t>(std::min(plan_.memory.head_tile.value, call.rows.value - first));
      const std::size_t hidden = rows * static_cast<std::size_t>(plan_.model.hidden);
      link.broadcast(call.stages, members - 1, some<std::uint16_t>(hidden));
      link.all_reduce(call.stages, some<float>(rows), exec::Reduction::maximum);
      const std::size_t self = call.stages.self;
      link.all_gather(call.stages, some<float>(3 * rows * members), 3 * rows * self,
                      3 * rows * (self + 1));
      link.all_reduce(call.stages, some<float>(hidden), exec::Reduction::sum);
    }
  }
  template <class Link>
  void reduce(std::int32_t chunk, Link& link) {
    buckets_.reduce(chunk, queue_on(link));
  }
  template <class Link>
  void optimize(Link& link) {
    for (const exec::Bucket& bucket : buckets_.all()) link.await_sum(bucket.meeting, bucket.tag);
    link.all_reduce(meetings_.stages(), some<double>(1), exec::Reduction::sum);
    if (!sharded()) return;
    link.all_reduce(meetings_.ranks(), some<double>(1), exec::Reduction::sum);
    for (const exec::Bucket& bucket : buckets_.all()) {
      link.gather_parts(meetings_.ranks(), some<std::uint16_t>(bucket.size), deal(bucket));
    }
  }

 private:
  template <class Element>
  [[nodiscard]] static std::span<Element> some(std::size_t size) {
    return {reinterpret_cast<Element*>(std::uintptr_t{1} << 40U), size};
  }

  template <class Link>
  [[nodiscard]] auto queue_on(Link& link) const {
    return [&](const exec::Bucket& bucket) {
      if (sharded() && bucket.meeting.members.size() == deal(bucket).members) {
        link.queue_scatter(bucket.meeting, bucket.tag, some<float>(bucket.size), deal(bucket));
      } else {
        link.queue_sum(bucket.meeting, bucket.tag, some<float>(bucket.size));
      }
    };
  }

  [[nodiscard]] bool sharded() const {
    return plan_.memory.optimizer == OptimizerState::sharded && plan_.parallel.dp > 1;
  }
  [[nodiscard]] exec::Deal deal(const exec::Bucket& bucket) const {
    return {bucket.size, static_cast<std::size_t>(plan_.parallel.dp), 1000};
  }

  /// Of one layer.
  template <class Link>
  void exchange(const exec::PackCall& call, Pass pass, Link& link) {
    const std::int64_t ranks = call.share.ranks;
    if (ranks == 1) return;
    for (const exec::SegmentMemory& segment : call.segments) {
      const bool keys = segment.exchange == Exchange::kv;
      const std::int64_t width = keys ? 4 * plan_.model.key_width() : 6 * plan_.model.query_width();
      const auto part = [&](std::int64_t owner) {
        const Share share{owner, ranks, call.share.block};
        const Tokens rows =
            share.between(keys ? Tokens{0} : segment.slice.begin, segment.slice.end);
        return some<std::byte>(static_cast<std::size_t>(rows.value * width));
      };
      std::int64_t rank = call.share.rank;
      const std::int64_t steps = keys && pass == Pass::forward ? ranks - 1 : ranks;
      for (std::int64_t step = 0; step < steps; ++step) {
        const std::int64_t before = (rank + ranks - 1) % ranks;
        link.ring(call.ring, part(rank), part(before));
        rank = before;
      }
    }
  }

  const Plan& plan_;
  exec::StageMeetings meetings_;
  exec::ParameterLayout layout_;
  exec::BucketQueue buckets_;
};

}  // namespace slimpack::test
