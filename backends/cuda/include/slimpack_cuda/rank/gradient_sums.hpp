// SPDX-License-Identifier: Apache-2.0
// The sums of a rank's gradients over ranks and copies, and the way back of what ranks update.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "slimpack/exec/buckets.hpp"
#include "slimpack/exec/deal.hpp"
#include "slimpack/exec/stage_meetings.hpp"
#include "slimpack_cuda/device.hpp"
#include "slimpack_cuda/rank/memory.hpp"
#include "slimpack_cuda/rank/weights.hpp"

namespace slimpack::cuda {

/// Where the optimizer is sharded, a rank gets the sum of the elements that it updates alone. The
/// weights are the same in all calls.
class GradientSums {
 public:
  /// `sharded`: ranks of the stage update different elements, dealt in pieces of at most `most`.
  GradientSums(const RankWeights& weights, exec::StageMeetings meetings, bool sharded,
               std::size_t most)
      : queue_(weights.buckets()), meetings_(meetings), sharded_(sharded), most_(most) {}

  [[nodiscard]] bool sharded() const noexcept { return sharded_; }
  void begin_step() { queue_.begin_step(); }

  /// A backward unit that releases has passed a layer.
  template <class Link>
  void pass(std::int64_t layer, const RankWeights& weights, Link& link) {
    queue_.pass(layer, [&](const exec::Bucket& bucket) { send(bucket, weights, link); });
  }
  /// What of a chunk has not gone goes now.
  template <class Link>
  void reduce(std::int32_t chunk, const RankWeights& weights, Link& link) {
    queue_.reduce(chunk, [&](const exec::Bucket& bucket) { send(bucket, weights, link); });
  }
  template <class Link>
  void await(Link& link) const {
    for (const exec::Bucket& bucket : queue_.all()) link.await_sum(bucket.meeting, bucket.tag);
  }

  /// Those that this rank updates; where all ranks update all, each adds up its own line of stages.
  /// A tied table counts on stage 0 alone.
  [[nodiscard]] std::vector<DeviceSpan<const float>> counted(const RankWeights& weights) const {
    const std::size_t skipped = meetings_.pp == 0 ? 0 : weights.layout().table;
    std::vector<DeviceSpan<const float>> counted;
    for (const OwnedRange& range : weights.ranges()) {
      const std::size_t begin = std::max(range.begin, skipped);
      if (begin < range.end) counted.push_back(part(weights.all_gradients(), begin, range.end));
    }
    return counted;
  }

  /// All ranks of the stage get what each has updated.
  template <class Link>
  void gather(const RankWeights& weights, Link& link) const {
    if (!sharded_) return;
    for (const exec::Bucket& bucket : queue_.all()) {
      link.gather_parts(meetings_.ranks(),
                        host_span(part(weights.all(), bucket.begin, bucket.begin + bucket.size)),
                        deal(bucket));
    }
  }

 private:
  template <class Element>
  static DeviceSpan<Element> part(DeviceSpan<Element> whole, std::size_t begin, std::size_t end) {
    return whole.subspan(static_cast<std::int64_t>(begin), static_cast<std::int64_t>(end - begin));
  }
  [[nodiscard]] exec::Deal deal(const exec::Bucket& bucket) const {
    return deal_of(bucket, meetings_.parallel.dp, most_);
  }
  template <class Link>
  void send(const exec::Bucket& bucket, const RankWeights& weights, Link& link) const {
    const std::span<float> values =
        host_span(part(weights.all_gradients(), bucket.begin, bucket.begin + bucket.size));
    const exec::Deal dealt = deal(bucket);
    if (sharded_ && bucket.meeting.members.size() == dealt.members) {
      link.queue_scatter(bucket.meeting, bucket.tag, values, dealt);
    } else {  // a tied table on two stages: each copy is updated where it is
      link.queue_sum(bucket.meeting, bucket.tag, values);
    }
  }

  exec::BucketQueue queue_;
  exec::StageMeetings meetings_;
  bool sharded_;
  std::size_t most_;
};

}  // namespace slimpack::cuda
