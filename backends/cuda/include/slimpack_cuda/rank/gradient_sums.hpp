// SPDX-License-Identifier: Apache-2.0
// The sums of a rank's gradients over ranks and copies, and the way back of what ranks update.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "slimpack/runtime/process_groups.hpp"
#include "slimpack/runtime/transport.hpp"
#include "slimpack_cuda/device.hpp"
#include "slimpack_cuda/rank/memory.hpp"
#include "slimpack_cuda/rank/weights.hpp"

namespace slimpack::cuda {

/// Where the optimizer is sharded, a rank gets the sum of the elements that it updates alone. Where
/// ranks share weights there is nothing to sum: units have done so, and gather what is updated. The
/// weights are the same in all calls.
class GradientSums {
 public:
  /// `sharded`: ranks of the stage update different elements, given out in pieces of at most
  /// `most`.
  GradientSums(const RankWeights& weights, runtime::StageProcessGroups process_groups, bool sharded,
               std::size_t most)
      : queue_(weights.buckets()),
        process_groups_(process_groups),
        sharded_(sharded),
        most_(most) {}

  [[nodiscard]] bool sharded() const noexcept { return sharded_; }
  void begin_step() { queue_.begin_step(); }

  /// A backward unit that releases has passed a layer.
  template <class Link>
  void pass(std::int64_t layer, const RankWeights& weights, Link& link) {
    queue_.pass(layer, [&](const runtime::Bucket& bucket) { send(bucket, weights, link); });
  }
  /// What of a chunk has not gone goes now.
  template <class Link>
  void reduce(std::int32_t chunk, const RankWeights& weights, Link& link) {
    queue_.reduce(chunk, [&](const runtime::Bucket& bucket) { send(bucket, weights, link); });
  }
  template <class Link>
  void await(Link& link) const {
    for (const runtime::Bucket& bucket : queue_.all())
      link.await_sum(bucket.process_group, bucket.tag);
  }

  /// Gradients of the weights that this rank updates, for the sum of the norm: where all ranks
  /// update all, each data-parallel rank sums over its own stages.
  [[nodiscard]] std::vector<DeviceSpan<const float>> counted(const RankWeights& weights) const {
    std::vector<DeviceSpan<const float>> counted;
    for (const OwnedRange& range :
         counted_ranges(weights.ranges(), weights.layout(), process_groups_)) {
      counted.push_back(weights.own_gradients(range));
    }
    return counted;
  }

  /// Calls update(range) for all that this rank updates; all ranks of the stage that hold it too
  /// get what each has updated, bucket by bucket, while the next ones are updated.
  template <class Link, std::invocable<const OwnedRange&> Update>
  void update(const RankWeights& weights, Link& link, Update update) const {
    if (!sharded_ || weights.shared()) {
      for (const OwnedRange& range : weights.ranges()) update(range);
      return;
    }
    for (const runtime::Bucket& bucket : queue_.all()) {
      const std::size_t end = bucket.begin + bucket.size;
      const auto size = static_cast<std::int64_t>(bucket.size);
      for (const OwnedRange& range : weights.ranges()) {
        if (bucket.begin <= range.begin && range.begin < end) update(range);
      }
      link.begin_gather(process_groups_.ranks(),
                        host_span(weights.weights_from(bucket.begin, size)), shard_layout(bucket));
    }
    link.end_gathers();
  }

 private:
  [[nodiscard]] runtime::ShardLayout shard_layout(const runtime::Bucket& bucket) const {
    return layout_of(bucket, process_groups_.parallel.dp, most_);
  }
  template <class Link>
  void send(const runtime::Bucket& bucket, const RankWeights& weights, Link& link) const {
    weights.sum_norms(bucket.begin, bucket.begin + bucket.size, link);
    const std::span<float> values =
        host_span(weights.gradients_from(bucket.begin, static_cast<std::int64_t>(bucket.size)));
    const runtime::ShardLayout assigned = shard_layout(bucket);
    if (sharded_ && bucket.process_group.members.size() == assigned.members) {
      link.queue_scatter(bucket.process_group, bucket.tag, values, assigned);
    } else {  // a tied table on two stages: each copy is updated where it is
      link.queue_sum(bucket.process_group, bucket.tag, values);
    }
  }

  runtime::BucketQueue queue_;
  runtime::StageProcessGroups process_groups_;
  bool sharded_;
  std::size_t most_;
};

}  // namespace slimpack::cuda
