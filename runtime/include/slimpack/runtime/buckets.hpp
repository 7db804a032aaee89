// SPDX-License-Identifier: Apache-2.0
// Which gradients of a device are summed together, with whom, and when they may go.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "slimpack/plan/plan.hpp"
#include "slimpack/runtime/parameters.hpp"
#include "slimpack/runtime/process_groups.hpp"
#include "slimpack/runtime/transport.hpp"

namespace slimpack::runtime {

/// Elements [begin, begin + size) of a device's gradients, which are one sum.
struct Bucket {
  std::size_t begin = 0, size = 0;
  ProcessGroup process_group;
  std::int64_t tag = 0;
  std::int32_t chunk = 0;             ///< whose R it is part of
  std::optional<std::int64_t> layer;  ///< of the model, where it is one
};

/// All buckets of a device, chunk after chunk: the layers from the last one down, in chunk 0 then
/// embedding, final norm and head, or the parts of a tied table. They make up its memory. `stages`
/// are the plan's. Tags are different among buckets of the same members. O(layers).
[[nodiscard]] inline std::vector<Bucket> buckets_of(const ModelShape& model,
                                                    std::span<const Stage> stages,
                                                    const StageProcessGroups& process_groups,
                                                    const ParameterLayout& layout) {
  const Parallel& parallel = process_groups.parallel;
  const std::int64_t first_tag = std::int64_t{parallel.chunks} + parallel.pp;
  std::vector<Bucket> buckets;
  const auto add = [&](Bucket bucket) {
    if (bucket.size > 0) buckets.push_back(std::move(bucket));
  };
  for (const Stage& stage : stages) {
    if (stage.pp != process_groups.pp) continue;
    const auto chunk = static_cast<std::size_t>(stage.chunk);
    std::size_t end = layout.chunk_begin[chunk + 1];
    for (std::int64_t layer = stage.end_layer; layer-- > stage.first_layer;) {
      const std::size_t begin =
          layout.tensors[layout.layer[static_cast<std::size_t>(layer)]].offset;
      add({begin, end - begin, process_groups.ranks(), first_tag + layer, stage.chunk, layer});
      end = begin;
    }
    const std::size_t begin = layout.chunk_begin[chunk] + (chunk == 0 ? layout.table : 0);
    add({begin, end - begin, process_groups.ranks(), stage.chunk, stage.chunk, std::nullopt});
    if (chunk != 0) continue;
    for (const TablePart& part : process_groups.table_parts(model, layout)) {
      add({part.begin, part.size, part.process_group, part.tag, 0, std::nullopt});
    }
  }
  return buckets;
}

/// The buckets of a device, of which each goes once in a step.
class BucketQueue {
 public:
  BucketQueue() = default;
  explicit BucketQueue(std::vector<Bucket> buckets) : buckets_(std::move(buckets)) {}

  [[nodiscard]] std::span<const Bucket> all() const noexcept { return buckets_; }
  void begin_step() { gone_.assign(buckets_.size(), false); }
  /// A B that releases has passed a layer: queue(bucket).
  template <std::invocable<const Bucket&> Queue>
  void pass(std::int64_t layer, Queue queue) {
    go([&](const Bucket& bucket) { return bucket.layer == layer; }, queue);
  }
  /// R of a chunk: queue(bucket) for each of the chunk's that has not gone.
  template <std::invocable<const Bucket&> Queue>
  void reduce(std::int32_t chunk, Queue queue) {
    go([&](const Bucket& bucket) { return bucket.chunk == chunk; }, queue);
  }

 private:
  template <class Which, class Queue>
  void go(Which which, Queue& queue) {
    for (std::size_t i = 0; i < buckets_.size(); ++i) {
      if (gone_[i] || !which(buckets_[i])) continue;
      gone_[i] = true;
      queue(buckets_[i]);
    }
  }

  std::vector<Bucket> buckets_;
  std::vector<bool> gone_;
};

}  // namespace slimpack::runtime
