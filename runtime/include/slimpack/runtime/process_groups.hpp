// SPDX-License-Identifier: Apache-2.0
// Which devices of a plan run collectives together, and which gradients they sum.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/plan/virtual_stages.hpp"
#include "slimpack/runtime/parameters.hpp"
#include "slimpack/runtime/transport.hpp"

namespace slimpack::runtime {

/// Rows of the tied table that a device reduces with other stages, as elements of its memory.
struct TablePart {
  std::size_t begin = 0;       ///< first element, in the device's weights and gradients alike
  std::size_t size = 0;        ///< number of elements, whole rows
  ProcessGroup process_group;  ///< the ranks of stage 0 and of the other stage that holds the rows
  std::int64_t tag = 0;        ///< of the sum: chunks + the other stage
};

/// The process groups of the device (dp, pp, tp). Those over ranks or stages consist of devices of
/// one tensor-parallel part: each of these has its own.
struct StageProcessGroups {
  Parallel parallel;    ///< degrees of the plan
  std::int32_t dp = 0;  ///< data-parallel rank of the device
  std::int32_t pp = 0;  ///< stage of the device
  std::int32_t tp = 0;  ///< tensor-parallel part of the device

  /// Number of the device of a rank and stage in this part (`device_number`).
  [[nodiscard]] std::size_t device_at(std::int32_t rank, std::int32_t stage) const {
    return (static_cast<std::size_t>(rank) * static_cast<std::size_t>(parallel.pp) +
            static_cast<std::size_t>(stage)) *
               static_cast<std::size_t>(parallel.tp) +
           static_cast<std::size_t>(tp);
  }

  /// The tensor-parallel devices of the rank and stage.
  [[nodiscard]] ProcessGroup tensor() const {
    ProcessGroup process_group{{}, static_cast<std::size_t>(tp)};
    const std::size_t first = device_at(dp, pp) - static_cast<std::size_t>(tp);
    for (std::int32_t part = 0; part < parallel.tp; ++part) {
      process_group.members.push_back(first + static_cast<std::size_t>(part));
    }
    return process_group;
  }

  /// The data-parallel ranks `members` of the stage, of which `self` is this one.
  [[nodiscard]] ProcessGroup of_ranks(std::span<const std::int32_t> members,
                                      std::size_t self) const {
    ProcessGroup process_group{{}, self};
    for (const std::int32_t rank : members) process_group.members.push_back(device_at(rank, pp));
    return process_group;
  }

  /// The data-parallel ranks of the stage.
  [[nodiscard]] ProcessGroup ranks() const {
    ProcessGroup process_group{{}, static_cast<std::size_t>(dp)};
    for (std::int32_t rank = 0; rank < parallel.dp; ++rank) {
      process_group.members.push_back(device_at(rank, pp));
    }
    return process_group;
  }

  /// The stages of the rank.
  [[nodiscard]] ProcessGroup stages() const {
    ProcessGroup process_group{{}, static_cast<std::size_t>(pp)};
    for (std::int32_t stage = 0; stage < parallel.pp; ++stage) {
      process_group.members.push_back(device_at(dp, stage));
    }
    return process_group;
  }

  /// What the device holds of a tied table, one part for each stage that shares it; nothing if it
  /// holds none.
  [[nodiscard]] std::vector<TablePart> table_parts(const ModelShape& model,
                                                   const ParameterLayout& layout) const {
    if (layout.table == 0) return {};
    const std::int32_t last = parallel.pp - 1;
    if (parallel.head == LmHead::last) {
      return {table_part(model, last, vocabulary_shard(model.vocab, tp, parallel.tp))};
    }
    std::vector<TablePart> parts;
    for (std::int32_t other = pp; other <= (pp == 0 ? last : pp); ++other) {
      parts.push_back(table_part(model, other, head_shard(model.vocab, parallel, other, tp)));
    }
    return parts;
  }

 private:
  /// The ranks of stage 0 and of stage `other`, for the rows of the table that both hold.
  [[nodiscard]] TablePart table_part(const ModelShape& model, std::int32_t other,
                                     VocabularyShard rows) const {
    const auto cols = static_cast<std::size_t>(model.hidden);
    TablePart part;
    const VocabularyShard held = vocabulary_shard(model.vocab, tp, parallel.tp);
    part.begin = pp == 0 ? static_cast<std::size_t>(rows.first - held.first) * cols : 0;
    part.size = static_cast<std::size_t>(rows.size()) * cols;
    part.tag = parallel.chunks + other;
    for (std::int32_t rank = 0; rank < parallel.dp; ++rank) {
      for (std::int32_t stage = 0; stage <= other; stage += std::max(other, 1)) {
        if (rank == dp && stage == pp) part.process_group.self = part.process_group.members.size();
        part.process_group.members.push_back(device_at(rank, stage));
      }
    }
    return part;
  }
};

/// Elements [begin, begin + size) of a device's gradients, which are one sum.
struct Bucket {
  std::size_t begin = 0;              ///< first element in the device's gradients
  std::size_t size = 0;               ///< number of elements, > 0
  ProcessGroup process_group;         ///< devices whose gradients are summed, this one among them
  std::int64_t tag = 0;               ///< of the sum, equal on all members
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

/// The buckets of a device: each is queued once in a step, by the first that asks.
class BucketQueue {
 public:
  BucketQueue() = default;
  /// Takes the buckets of a device, as `buckets_of` lists them.
  explicit BucketQueue(std::vector<Bucket> buckets) : buckets_(std::move(buckets)) {}

  /// All buckets, chunk after chunk.
  [[nodiscard]] std::span<const Bucket> all() const noexcept { return buckets_; }
  /// From now on no bucket is queued.
  void begin_step() { gone_.assign(buckets_.size(), false); }
  /// A B that releases has passed a layer: calls queue(bucket) for the buckets of that layer.
  template <std::invocable<const Bucket&> Queue>
  void pass(std::int64_t layer, Queue queue) {
    go([&](const Bucket& bucket) { return bucket.layer == layer; }, queue);
  }
  /// R of a chunk: calls queue(bucket) for each of its buckets that is not queued yet.
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
