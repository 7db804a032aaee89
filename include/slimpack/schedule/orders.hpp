// SPDX-License-Identifier: Apache-2.0
// The pipeline orders that were published: 1F1B, interleaved, SlimPipe, Seq1F1B and cyclic.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/schedule/pipeline.hpp"

namespace slimpack::schedule {

/// F and B of `items` micro-batches on a pipeline of one chunk (Narayanan et al., "Efficient
/// Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", SC 2021, section 2.2.1).
/// Stage r starts with p-1-r forward units, then runs one forward and one backward by turns: at
/// most p-r micro-batches are in flight there, from the start of F to the end of B. With equal
/// micro-batches and stages, (p-1)/m of the ideal time is idle. Free of deadlock with any number of
/// messages in flight. Throws InvalidInput if stages < 1 or items < 0. O(stages * items).
[[nodiscard]] inline StageOrders one_f_one_b(std::int32_t stages, std::int32_t items) {
  check_pipeline({stages, 1});
  require(items >= 0, "one_f_one_b: items must be >= 0", items);
  std::vector<PipelineOp> forward;
  std::vector<PipelineOp> backward;
  for (std::int32_t item = 0; item < items; ++item) {
    forward.push_back({UnitKind::forward, item, 0});
    backward.push_back({UnitKind::backward, item, 0});
  }
  StageOrders orders;
  for (std::int32_t stage = 0; stage < stages; ++stage) {
    orders.push_back(one_backward_one_forward(forward, backward, stages - stage));
  }
  return orders;
}

/// Sizes of the groups of micro-batches that run chunk after chunk: as many groups of at least
/// `stages` items as there can be, equal but for one item, the larger first; one group where there
/// are fewer items than stages.
[[nodiscard]] inline std::vector<std::int32_t> interleaved_groups(std::int32_t stages,
                                                                  std::int32_t items) {
  const std::int32_t count = std::max<std::int32_t>(1, items / stages);
  std::vector<std::int32_t> sizes;
  for (std::int32_t group = 0; group < count; ++group) {
    sizes.push_back(items / count + (group < items % count ? 1 : 0));
  }
  return sizes;
}

/// F and B of `items` micro-batches on `chunks` chunks a stage (Narayanan et al., "Efficient
/// Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", SC 2021, section 2.2.2).
/// A group of micro-batches passes chunk after chunk forwards, and in the reverse order of chunks
/// backwards; stage r runs 2(p-1-r) + (v-1)g + 1 forward units ahead, g being the largest group.
/// The publication requires a multiple of p micro-batches in groups of p. Here any number is
/// divided into equal groups of p to 2p-1 (`interleaved_groups`). Where a group exceeds p + 2
/// max_in_flight - 2 the stages run further ahead: otherwise the channel from the last stage to the
/// first would fill up and nothing could move. With equal micro-batches, stages and groups of p,
/// (p-1)/(v m) of the ideal time is idle. With one chunk the order is that of one_f_one_b. Free of
/// deadlock with this `max_in_flight`. Throws InvalidInput if a size is < 1 or items < 0. O(stages
/// * chunks * items).
[[nodiscard]] inline StageOrders interleaved(const Pipeline& pipeline, std::int32_t items,
                                             std::int32_t max_in_flight = 2) {
  check_pipeline(pipeline);
  require(items >= 0, "interleaved: items must be >= 0", items);
  require(max_in_flight >= 1, "interleaved: max_in_flight must be >= 1", max_in_flight);
  const std::int32_t stages = pipeline.stages;
  if (pipeline.chunks == 1) return one_f_one_b(stages, items);
  std::vector<PipelineOp> forward;
  std::vector<PipelineOp> backward;
  const std::vector<std::int32_t> groups = interleaved_groups(stages, items);
  std::int32_t first = 0;
  for (const std::int32_t size : groups) {
    for (std::int32_t chunk = 0; chunk < pipeline.chunks; ++chunk) {
      for (std::int32_t item = first; item < first + size; ++item) {
        forward.push_back({UnitKind::forward, item, chunk});
        backward.push_back({UnitKind::backward, item, pipeline.chunks - 1 - chunk});
      }
    }
    first += size;
  }
  const std::int64_t largest = groups.front();
  const std::int64_t reach =
      std::max<std::int64_t>(2 * (stages - 1), 2 * largest - 4 * max_in_flight + 1);
  StageOrders orders;
  for (std::int32_t stage = 0; stage < stages; ++stage) {
    const std::int64_t below = stages - 1 - stage;
    const std::int64_t hops = stages == 1 ? 0 : (reach * below + stages - 2) / (stages - 1);
    orders.push_back(
        one_backward_one_forward(forward, backward, hops + (pipeline.chunks - 1) * largest + 1));
  }
  return orders;
}

/// F and B of sequences cut into slices (SlimPipe, arXiv 2504.14519). `slices[q]` is the number of
/// slices of sequence q; items count through all sequences in turn. Forward, the slices of a
/// sequence rise; with several chunks p slices at a time pass chunk after chunk. Backward is the
/// exact reverse within the sequence. With n slices in the longest sequence, at most n v + 2(p-1-r)
/// pairs of slice and chunk are in flight on stage r, from the start of F to the end of B. With
/// equal slices and stages (p-1)/(n v m) of the ideal time of m sequences is idle. The publication
/// requires n to be a multiple of p where v > 1. A sequence of another number is ordered as if it
/// were filled up to the next multiple, without the missing units; n then counts as that multiple.
/// Free of deadlock with any number of messages in flight. Throws InvalidInput if a size is < 1.
/// O(stages * chunks * slices).
[[nodiscard]] inline StageOrders slimpipe(const Pipeline& pipeline,
                                          std::span<const std::int32_t> slices) {
  check_pipeline(pipeline);
  const std::int32_t stride = pipeline.chunks == 1 ? 1 : pipeline.stages;
  const auto filled = [&](std::int32_t count) { return (count + stride - 1) / stride * stride; };
  std::int32_t longest = 1;
  for (const std::int32_t count : slices) {
    require(count >= 1, "slimpipe: slices of a sequence must be >= 1", count);
    longest = std::max(longest, filled(count));
  }
  constexpr std::int32_t kMissing = -1;
  std::vector<PipelineOp> forward;
  std::vector<PipelineOp> backward;
  std::int32_t first = 0;
  for (const std::int32_t count : slices) {
    const std::size_t start = forward.size();
    for (std::int32_t run = 0; run < filled(count); run += stride) {
      for (std::int32_t chunk = 0; chunk < pipeline.chunks; ++chunk) {
        for (std::int32_t slice = run; slice < run + stride; ++slice) {
          forward.push_back({UnitKind::forward, slice < count ? first + slice : kMissing, chunk});
        }
      }
    }
    for (std::size_t i = forward.size(); i > start; --i) {
      backward.push_back({UnitKind::backward, forward[i - 1].item, forward[i - 1].chunk});
    }
    first += count;
  }
  StageOrders orders;
  for (std::int32_t stage = 0; stage < pipeline.stages; ++stage) {
    const std::int64_t in_flight =
        std::int64_t{longest} * pipeline.chunks + 2 * (std::int64_t{pipeline.stages} - 1 - stage);
    orders.push_back(one_backward_one_forward(forward, backward, in_flight));
    std::erase_if(orders.back(), [](const PipelineOp& step) { return step.item == kMissing; });
  }
  return orders;
}

/// How far forward units run ahead of backward units.
enum class ChunkLead : std::uint8_t {
  steady,        ///< always as far as the sequence of most chunks requires
  just_in_time,  ///< no further than each sequence requires to be complete in time
};

/// F and B of sequences of chunks on a pipeline of one chunk a stage. `chunks[q]` is the number of
/// chunks of sequence q; items count through all sequences in turn. Forward, the chunks of a
/// sequence rise; its backward units follow in the reverse order once all its forward units are
/// through the last stage, the sequences in turn. Between backward units at most one forward unit
/// runs, but before the first: before backward unit k (from 1) of the last stage `steady` has run
/// k + N - 1 forward units, N being the most chunks of a sequence (Seq1F1B, arXiv 2406.03488);
/// `just_in_time` has run the least number that rises by at most one from unit to unit and has
/// every sequence complete before its first backward unit. Each stage before the last has run one
/// more than the next. Sequences of one chunk are in the order of one_f_one_b. Free of deadlock
/// with any number of messages in flight. Throws InvalidInput if a size is < 1. O(stages * chunks).
[[nodiscard]] inline StageOrders chunked_one_f_one_b(std::int32_t stages,
                                                     std::span<const std::int32_t> chunks,
                                                     ChunkLead lead) {
  check_pipeline({stages, 1});
  std::vector<std::int32_t> backward;  // items in backward order
  std::vector<std::int64_t> needed;    // forward units that each of them waits for
  std::int32_t first = 0, most = 1;
  for (const std::int32_t count : chunks) {
    require(count >= 1, "chunked_one_f_one_b: chunks of a sequence must be >= 1", count);
    most = std::max(most, count);
    for (std::int32_t item = first + count - 1; item >= first; --item) {
      backward.push_back(item);
      needed.push_back(first + count);
    }
    first += count;
  }
  const auto items = static_cast<std::int64_t>(backward.size());
  std::int64_t later = 0;
  for (std::int64_t i = items - 1; i >= 0; --i) {
    std::int64_t& here = needed[static_cast<std::size_t>(i)];
    here = lead == ChunkLead::steady ? i + most : std::max({here, i + 1, later - 1});
    later = here;
  }
  StageOrders orders(static_cast<std::size_t>(stages));
  for (std::int32_t stage = 0; stage < stages; ++stage) {
    auto& order = orders[static_cast<std::size_t>(stage)];
    order.reserve(2 * backward.size());
    std::int64_t ahead = 0;
    for (std::size_t i = 0; i < backward.size(); ++i) {
      const std::int64_t until = std::min(items, needed[i] + stages - 1 - stage);
      for (; ahead < until; ++ahead) {
        order.push_back({UnitKind::forward, static_cast<std::int32_t>(ahead), 0});
      }
      order.push_back({UnitKind::backward, backward[i], 0});
    }
  }
  return orders;
}

/// Laws: pure; called with (stage, oldest, next), it returns whether the stage has room for the
/// forward unit of item `next` while items `oldest` .. next - 1 wait there for their backward
/// units. It is called only while there are such items: an item always has room for itself.
template <class Room>
concept StageRoom = std::predicate<const Room&, std::int32_t, std::int32_t, std::int32_t>;

/// Room without end.
inline constexpr auto kAmpleRoom = [](std::int32_t, std::int32_t, std::int32_t) noexcept {
  return true;
};

/// F and B of `items` micro-batches on a pipeline of one chunk (DynaPipe, arXiv 2311.10418: the
/// memory-aware cyclic schedule). In every cycle each stage runs the oldest backward unit and the
/// oldest forward unit whose inputs were there when the cycle began, backward first; forward only
/// if `room` allows it, and while fewer than `max_in_flight` units wait at the next stage. With
/// ample room stage r has up to 2(p-1-r) + 1 items in flight, about twice those of one_f_one_b. So
/// units may be unequal without making a neighbour wait. Free of deadlock with this `max_in_flight`
/// and any larger one. Throws InvalidInput if a size is < 1 or items < 0. O(stages * (items +
/// stages) / room).
template <StageRoom Room>
[[nodiscard]] StageOrders cyclic_order(std::int32_t stages, std::int32_t items, const Room& room,
                                       std::int32_t max_in_flight = 2) {
  check_pipeline({stages, 1});
  require(items >= 0, "cyclic_order: items must be >= 0", items);
  require(max_in_flight >= 1, "cyclic_order: max_in_flight must be >= 1", max_in_flight);
  const auto count = static_cast<std::size_t>(stages);
  std::vector<std::int32_t> forward(count), backward(count);  // units run
  StageOrders orders(count);
  for (auto& order : orders) order.reserve(2 * static_cast<std::size_t>(items));
  while (backward.front() < items) {
    const std::vector<std::int32_t> forward_before = forward, backward_before = backward;
    for (std::size_t stage = 0; stage < count; ++stage) {
      const bool last = stage + 1 == count;
      const std::int32_t gradients = last ? forward_before[stage] : backward_before[stage + 1];
      if (backward[stage] < gradients) {
        orders[stage].push_back({UnitKind::backward, backward[stage]++, 0});
      }
      const std::int32_t inputs = stage == 0 ? items : forward_before[stage - 1];
      const std::int32_t next = forward[stage];
      if (next >= inputs || (!last && next - forward_before[stage + 1] >= max_in_flight)) continue;
      if (backward[stage] < next && !room(static_cast<std::int32_t>(stage), backward[stage], next))
        continue;
      orders[stage].push_back({UnitKind::forward, forward[stage]++, 0});
    }
    SLIMPACK_ASSERT(forward != forward_before || backward != backward_before);
  }
  return orders;
}

}  // namespace slimpack::schedule
