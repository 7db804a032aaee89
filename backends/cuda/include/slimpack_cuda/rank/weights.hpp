// SPDX-License-Identifier: Apache-2.0
// What a rank always holds on its device: weights, gradients and its part of the optimizer state.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/plan/memory.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/runtime/memory_events.hpp"
#include "slimpack/runtime/parameters.hpp"
#include "slimpack/runtime/process_groups.hpp"
#include "slimpack/runtime/transport.hpp"
#include "slimpack_cuda/bf16.hpp"
#include "slimpack_cuda/device.hpp"
#include "slimpack_cuda/elements.hpp"
#include "slimpack_cuda/rank/memory.hpp"
#include "slimpack_cuda/rank/shared_units.hpp"

namespace slimpack::cuda {

/// Elements [first, first + weights.size()) of a named tensor, counted over the whole tensor: fp32
/// weights and both moments, on the host.
struct MasterPart {
  runtime::TensorShape tensor;  ///< whole
  std::size_t first = 0;
  std::vector<float> weights, first_moment, second_moment;
};

/// Numbers of elements [first, first + values.size()) of a named tensor, counted over the whole
/// tensor, on the host.
struct TensorPart {
  std::string tensor;
  std::size_t first = 0;
  std::vector<float> values;
};

/// The tensors of a layer as matrix products take them: those that read the same input lie one
/// behind the other and are one matrix.
template <class Element>
struct LayerMatrices {
  DeviceSpan<Element> input_norm, query_key_value, query, output, mid_norm, gate_up, down;
};

/// Elements [begin, end) of a rank's memory, whose optimizer state is the rank's and begins at `at`
/// of what it holds of that.
struct OwnedRange {
  std::size_t begin = 0, end = 0, at = 0;
  [[nodiscard]] std::size_t size() const noexcept { return end - begin; }
};

/// How the elements of a bucket are given to the stage's ranks, which update them.
[[nodiscard]] inline runtime::ShardLayout layout_of(const runtime::Bucket& bucket, std::int32_t dp,
                                                    std::size_t most) {
  return {bucket.size, static_cast<std::size_t>(dp), most};
}

/// Whether data-parallel ranks share weights and gradients.
[[nodiscard]] inline bool shares_weights(const Plan& plan) noexcept {
  return plan.memory.weights == WeightState::sharded;
}

/// The sums that make up a device's gradients; none where they are made unit by unit.
[[nodiscard]] inline std::vector<runtime::Bucket> buckets_of(
    const Plan& plan, const runtime::StageProcessGroups& place,
    const runtime::ParameterLayout& layout) {
  if (shares_weights(plan)) return {};
  return runtime::buckets_of(plan.model, plan.stages, place, layout);
}

/// What rank `dp` of a stage updates, in the order of memory: everything, or where the optimizer is
/// sharded its parts of the buckets, or of shared units. Rank 0 has the most. O(pieces log pieces).
[[nodiscard]] inline std::vector<OwnedRange> owned_ranges(const Plan& plan,
                                                          std::span<const runtime::Bucket> buckets,
                                                          const runtime::ParameterLayout& layout,
                                                          std::int32_t dp, std::size_t most) {
  std::vector<OwnedRange> ranges;
  if (plan.memory.optimizer == OptimizerState::replicated || plan.parallel.dp == 1) {
    ranges.push_back({0, layout.size(), 0});
    return ranges;
  }
  const auto add = [&](std::size_t begin, const runtime::ShardPiece& piece) {
    const auto [first, last] = piece.of(static_cast<std::size_t>(dp));
    if (first < last) ranges.push_back({begin + first, begin + last, 0});
  };
  for (const runtime::Bucket& bucket : buckets) {
    for (const runtime::ShardPiece& piece : layout_of(bucket, plan.parallel.dp, most).pieces()) {
      add(bucket.begin, piece);
    }
  }
  if (shares_weights(plan)) {
    for (const WeightUnit& unit : weight_units(layout)) {
      add(unit.begin, unit.piece(static_cast<std::size_t>(plan.parallel.dp)));
    }
  }
  std::ranges::sort(ranges, {}, &OwnedRange::begin);
  std::size_t i = 0;
  for (OwnedRange& range : ranges) range.at = std::exchange(i, i + range.size());
  return ranges;
}

/// Where device `device` (`device_number`) of a plan is.
[[nodiscard]] inline runtime::StageProcessGroups place_of(const Plan& plan, std::size_t device) {
  const auto parts = static_cast<std::size_t>(plan.parallel.tp);
  const DeviceSchedule& schedule = plan.schedule[device / parts];
  return {plan.parallel, schedule.dp, schedule.pp, static_cast<std::int32_t>(device % parts)};
}

/// Of the ranges of a device those elements that count in the norm of the whole model's gradients:
/// a tied table on stage 0 alone, gains of norms, which all tensor-parallel devices have, on the
/// first of them. O(ranges + tensors).
[[nodiscard]] inline std::vector<OwnedRange> counted_ranges(
    std::span<const OwnedRange> ranges, const runtime::ParameterLayout& layout,
    const runtime::StageProcessGroups& place) {
  std::vector<OwnedRange> counted;
  std::size_t next = place.pp == 0 ? 0 : layout.table;  // what is left out of what comes before
  const auto add_until = [&](std::size_t end) {
    for (const OwnedRange& range : ranges) {
      const std::size_t begin = std::max(range.begin, next), last = std::min(range.end, end);
      if (begin < last) counted.push_back({begin, last, range.at + begin - range.begin});
    }
  };
  for (const runtime::HeldTensor& tensor : layout.tensors) {
    if (place.tp == 0 || tensor.whole_rows != 1) continue;
    add_until(tensor.offset);
    next = tensor.offset + tensor.size();
  }
  add_until(layout.size());
  return counted;
}

/// Weights in bf16, gradients in fp32, both whole or, where ranks share them, those of the elements
/// that are the rank's to update and the units that it works with; of the former fp32 weights and
/// moments too.
class RankWeights {
 public:
  /// Rows of a vocabulary that are never divided.
  static constexpr std::size_t kWhole = 8;

  /// Pieces of at most `most` elements are given to ranks.
  RankWeights(const Plan& plan, const runtime::StageProcessGroups& place, std::size_t most)
      : layout_(runtime::layout_of(plan, place.pp, place.tp)),
        process_groups_(place),
        buckets_(buckets_of(plan, place, layout_)),
        ranges_(owned_ranges(plan, buckets_, layout_, place.dp, most)),
        // The gradient of a vocabulary that is no multiple of kWhole rows ends in rows of zeros.
        behind_(static_cast<std::int64_t>(kWhole) * plan.model.hidden) {
    std::size_t own = 0;
    for (const OwnedRange& range : owned_ranges(plan, buckets_, layout_, 0, most)) {
      own += range.size();
    }
    const auto count = [](std::size_t elements) { return static_cast<std::int64_t>(elements); };
    const bool shared = shares_weights(plan);
    const std::int64_t always = count(shared ? own : layout_.size());
    const std::int64_t whole = shared ? count(whole_unit(layout_, plan.parallel.dp)) : 0;
    weights_ = DeviceBuffer<Bf16>(always + 2 * whole);
    gradients_ = DeviceBuffer<float>(always + (shared ? 2 : 1) * (whole + behind_));
    master_ = DeviceBuffer<float>(count(own));
    first_moment_ = DeviceBuffer<float>(count(own));
    second_moment_ = DeviceBuffer<float>(count(own));
    if (shared) {
      shared_.emplace(layout_, place, weights_.span(), gradients_.span(), always, whole);
    }
  }

  [[nodiscard]] const runtime::ParameterLayout& layout() const noexcept { return layout_; }
  /// Whether ranks share them.
  [[nodiscard]] bool shared() const noexcept { return shared_.has_value(); }
  /// The embedding. The device must hold it; final_norm and head likewise.
  [[nodiscard]] const runtime::HeldTensor& embedding() const {
    return layout_.tensors[layout_.embedding.front()];
  }
  [[nodiscard]] const runtime::HeldTensor& final_norm() const {
    return layout_.tensors[layout_.final_norm.front()];
  }
  [[nodiscard]] const runtime::HeldTensor& head() const {
    return layout_.tensors[layout_.head.front()];
  }
  /// The first tensor of a layer of the model.
  [[nodiscard]] const runtime::HeldTensor& layer(std::int64_t layer) const {
    return layout_.tensors[layout_.layer[static_cast<std::size_t>(layer)]];
  }
  /// The sums that make up the gradients; none where they are shared.
  [[nodiscard]] const std::vector<runtime::Bucket>& buckets() const noexcept { return buckets_; }
  /// What is the rank's to update, in the order of memory.
  [[nodiscard]] const std::vector<OwnedRange>& ranges() const noexcept { return ranges_; }
  [[nodiscard]] StaticBytes bytes() const noexcept {
    const auto size = [](std::int64_t elements, std::size_t each) {
      return Bytes{elements * static_cast<std::int64_t>(each)};
    };
    return {size(weights_.size(), sizeof(Bf16)),
            size(gradients_.size() - (shared_ ? 2 : 1) * behind_, sizeof(float)),
            size(master_.size(), 3 * sizeof(float))};
  }

  /// Draws weights from `seed`, as every backend does, and clears the moments.
  void initialise(std::uint64_t seed, StreamView stream) {
    fill_zeros(weights_.span(), stream);
    for (const runtime::HeldTensor& tensor : layout_.tensors) {
      const std::int64_t at_once = std::max<std::int64_t>(1, kDrawn / tensor.shape.cols);
      for (std::int64_t row = 0; row < tensor.shape.rows; row += at_once) {
        const std::int64_t rows = std::min(at_once, tensor.shape.rows - row);
        std::vector<double> drawn(static_cast<std::size_t>(rows * tensor.shape.cols));
        runtime::initialise(drawn, tensor.whole(), tensor.first_row + row, seed, tensor.first_col,
                            tensor.shape.cols);
        std::vector<float> values(drawn.size());
        std::ranges::transform(drawn, values.begin(),
                               [](double value) { return static_cast<float>(value); });
        set(tensor.offset + static_cast<std::size_t>(row * tensor.shape.cols), values, stream);
      }
    }
    fill_zeros(first_moment_.span(), stream);
    fill_zeros(second_moment_.span(), stream);
    fill_zeros(gradients_.span(), stream);
    stream.synchronize();
  }

  /// Sets elements [offset, offset + values.size()), and their fp32 weights where they are here.
  void set(std::size_t offset, std::span<const float> values, StreamView stream) {
    std::vector<Bf16> rounded(values.size());
    std::ranges::transform(values, rounded.begin(), to_bf16);
    const std::span<const Bf16> copies(rounded);
    if (!shared()) {
      upload(weights_from(offset, static_cast<std::int64_t>(values.size())), copies, stream);
    }
    for (const OwnedRange& range : ranges_) {
      const std::size_t begin = std::max(range.begin, offset);
      const std::size_t end = std::min(range.end, offset + values.size());
      if (begin >= end) continue;
      const OwnedRange part{begin, end, range.at + begin - range.begin};
      upload(master(part), values.subspan(begin - offset, part.size()), stream);
      if (shared()) upload(own_weights(part), copies.subspan(begin - offset, part.size()), stream);
    }
    stream.synchronize();  // the values are the caller's
  }

  /// The rank's part of the optimizer, in the order of memory; of matrices that are held by columns
  /// one part a row.
  [[nodiscard]] std::vector<MasterPart> master_parts(StreamView stream) const {
    std::vector<MasterPart> parts;
    for_each_part([&](const runtime::HeldTensor& tensor, const OwnedRange& range) {
      const std::vector<float> weights = download(here(master_, range), stream);
      const std::vector<float> first = download(here(first_moment_, range), stream);
      const std::vector<float> second = download(here(second_moment_, range), stream);
      for_each_run(tensor, range, [&](std::size_t element, std::size_t i, std::size_t count) {
        parts.push_back({tensor.whole(), element, cut(weights, i, count), cut(first, i, count),
                         cut(second, i, count)});
      });
    });
    return parts;
  }
  /// Sets moments and fp32 weights, with their bf16 copies, as master_parts gave them. Throws
  /// InvalidInput unless these are the parts that are here.
  void set_master_parts(std::span<const MasterPart> parts, StreamView stream) {
    std::size_t next = 0;
    for_each_part([&](const runtime::HeldTensor& tensor, const OwnedRange& range) {
      std::vector<float> weights(range.size()), first(range.size()), second(range.size());
      for_each_run(tensor, range, [&](std::size_t element, std::size_t i, std::size_t count) {
        require(next < parts.size() && parts[next].tensor.name == tensor.shape.name &&
                    parts[next].first == element && parts[next].weights.size() == count &&
                    parts[next].first_moment.size() == count &&
                    parts[next].second_moment.size() == count,
                "RankDevice: parts of the optimizer must be those of the device",
                static_cast<std::int64_t>(next));
        const MasterPart& part = parts[next++];
        const auto into = static_cast<std::ptrdiff_t>(i);
        std::ranges::copy(part.weights, weights.begin() + into);
        std::ranges::copy(part.first_moment, first.begin() + into);
        std::ranges::copy(part.second_moment, second.begin() + into);
      });
      set(range.begin, weights, stream);
      upload(here(first_moment_, range), std::span<const float>(first), stream);
      upload(here(second_moment_, range), std::span<const float>(second), stream);
      stream.synchronize();  // the values are of this call
    });
    require(next == parts.size(), "RankDevice: parts of the optimizer must be those of the device",
            static_cast<std::int64_t>(parts.size()));
  }

  /// Gradients of the elements that are the rank's to update, in the order of memory; of matrices
  /// that are held by columns one part a row.
  [[nodiscard]] std::vector<TensorPart> gradient_parts(StreamView stream) const {
    return parts_of(
        [&](const OwnedRange& range) { return download(own_gradients(range), stream); });
  }
  /// The same of bf16 weights.
  [[nodiscard]] std::vector<TensorPart> weight_parts(StreamView stream) const {
    return parts_of([&](const OwnedRange& range) {
      const std::vector<Bf16> stored = download(own_weights(range), stream);
      std::vector<float> values(stored.size());
      std::ranges::transform(stored, values.begin(), to_float);
      return values;
    });
  }

  // --- what a step does with them; nothing but zeros where each rank has all ---

  void begin_step(StreamView stream) {
    if (shared()) shared_->begin_step();
    fill_zeros(gradients_.span(), stream);
  }
  /// Begins to gather the unit that a tensor is in; it is there behind end_gather, until two others
  /// have been gathered.
  template <class Link>
  void begin_gather(const runtime::HeldTensor& tensor, Link& link, StreamView stream) {
    if (shared()) shared_->begin_gather(tensor.offset, link, stream);
  }
  /// Where nothing has begun nothing happens.
  template <class Link>
  void end_gather(Link& link) const {
    if (shared()) shared_->end_gather(link);
  }
  /// The gradients of the unit that a tensor is in can be added to, until they are summed.
  template <class Link>
  void open_gradients(const runtime::HeldTensor& tensor, Link& link, StreamView stream) {
    if (shared()) shared_->open_gradients(tensor.offset, link, stream);
  }
  /// Begins to add them to the gradients of the ranks that own them.
  template <class Link>
  void begin_sum(Link& link, StreamView stream) {
    if (!shared()) return;
    const WeightUnit& unit = shared_->open_unit();
    sum_norms(unit.begin, unit.end, link);
    shared_->begin_sum(link, stream);
  }
  /// Where nothing has begun nothing happens.
  template <class Link>
  void end_sum(Link& link, StreamView stream) {
    if (shared()) shared_->end_sum(link, stream);
  }
  /// Tensor-parallel devices have added to the gradients of norms by their own rows: makes those of
  /// elements [begin, end) equal.
  template <class Link>
  void sum_norms(std::size_t begin, std::size_t end, Link& link) const {
    if (process_groups_.parallel.tp == 1) return;
    for (const runtime::HeldTensor& held : layout_.tensors) {
      if (held.whole_rows != 1 || held.offset < begin || held.offset >= end) continue;
      link.all_reduce(process_groups_.tensor(), host_span(gradients(held)),
                      runtime::Reduction::sum);
    }
  }

  // --- views ---

  /// What follows an element of a unit that is here.
  [[nodiscard]] DeviceSpan<Bf16> weights_from(std::size_t offset, std::int64_t size) const {
    return shared() ? shared_->weights(offset, size)
                    : weights_.span().subspan(static_cast<std::int64_t>(offset), size);
  }
  /// The same of gradients, rows of zeros behind the last tensor of the unit included.
  [[nodiscard]] DeviceSpan<float> gradients_from(std::size_t offset, std::int64_t size) const {
    return shared() ? shared_->gradients(offset, size)
                    : gradients_.span().subspan(static_cast<std::int64_t>(offset), size);
  }
  [[nodiscard]] DeviceSpan<const Bf16> weights(const runtime::HeldTensor& tensor) const {
    return weights_from(tensor.offset, static_cast<std::int64_t>(tensor.size()));
  }
  [[nodiscard]] DeviceSpan<float> gradients(const runtime::HeldTensor& tensor) const {
    return gradients_from(tensor.offset, static_cast<std::int64_t>(tensor.size()));
  }
  /// Of elements that are the rank's to update; so is all that follows.
  [[nodiscard]] DeviceSpan<Bf16> own_weights(const OwnedRange& range) const noexcept {
    return own(weights_, range);
  }
  [[nodiscard]] DeviceSpan<float> own_gradients(const OwnedRange& range) const noexcept {
    return own(gradients_, range);
  }
  [[nodiscard]] DeviceSpan<float> master(const OwnedRange& range) const noexcept {
    return here(master_, range);
  }
  [[nodiscard]] DeviceSpan<float> first_moment(const OwnedRange& range) const noexcept {
    return here(first_moment_, range);
  }
  [[nodiscard]] DeviceSpan<float> second_moment(const OwnedRange& range) const noexcept {
    return here(second_moment_, range);
  }

  [[nodiscard]] LayerMatrices<const Bf16> layer_weights(std::int64_t layer) const {
    return matrices<const Bf16>(
        layer, [&](std::size_t offset, std::int64_t size) { return weights_from(offset, size); });
  }
  [[nodiscard]] LayerMatrices<float> layer_gradients(std::int64_t layer) const {
    return matrices<float>(
        layer, [&](std::size_t offset, std::int64_t size) { return gradients_from(offset, size); });
  }

 private:
  static constexpr std::int64_t kDrawn = 1 << 22;  ///< numbers drawn at a time

  /// `from(offset, size)` is a view of so many elements.
  template <class View, class From>
  [[nodiscard]] LayerMatrices<View> matrices(std::int64_t layer, From from) const {
    const std::size_t first = layout_.layer[static_cast<std::size_t>(layer)];
    const auto tensor = [&](runtime::LayerTensor which) -> const runtime::HeldTensor& {
      return layout_.tensors[first + static_cast<std::size_t>(which)];
    };
    const auto from_to = [&](runtime::LayerTensor begin, runtime::LayerTensor end) {
      const std::size_t size = tensor(end).offset + tensor(end).size() - tensor(begin).offset;
      return DeviceSpan<View>(from(tensor(begin).offset, static_cast<std::int64_t>(size)));
    };
    using enum runtime::LayerTensor;
    return {from_to(input_norm, input_norm),
            from_to(query, value),
            from_to(query, query),
            from_to(output, output),
            from_to(mid_norm, mid_norm),
            from_to(gate, up),
            from_to(down, down)};
  }

  /// Calls visit(tensor, range) for every run of elements of one tensor whose optimizer state is
  /// here.
  template <class Visit>
  void for_each_part(Visit visit) const {
    auto range = ranges_.begin();
    for (const runtime::HeldTensor& tensor : layout_.tensors) {
      const std::size_t behind = tensor.offset + tensor.size();
      for (; range != ranges_.end() && range->begin < behind; ++range) {
        const std::size_t begin = std::max(range->begin, tensor.offset);
        const std::size_t end = std::min(range->end, behind);
        if (begin < end) visit(tensor, OwnedRange{begin, end, range->at + begin - range->begin});
        if (range->end > behind) break;  // the next tensor has the rest
      }
    }
  }
  /// Calls visit(element, i, count) for elements [i, i + count) of the range that are elements from
  /// `element` on of the whole tensor.
  template <class Visit>
  static void for_each_run(const runtime::HeldTensor& tensor, const OwnedRange& range,
                           Visit visit) {
    const std::size_t begin = range.begin - tensor.offset;
    tensor.for_each_run(begin, range.end - tensor.offset,
                        [&](std::size_t element, std::size_t i, std::size_t count) {
                          visit(element, i - begin, count);
                        });
  }
  /// `values_of(range)` are numbers of elements that are the rank's to update.
  template <class ValuesOf>
  [[nodiscard]] std::vector<TensorPart> parts_of(ValuesOf values_of) const {
    std::vector<TensorPart> parts;
    for_each_part([&](const runtime::HeldTensor& tensor, const OwnedRange& range) {
      const std::vector<float> values = values_of(range);
      for_each_run(tensor, range, [&](std::size_t element, std::size_t i, std::size_t count) {
        parts.push_back({tensor.shape.name, element, cut(values, i, count)});
      });
    });
    return parts;
  }
  [[nodiscard]] static std::vector<float> cut(const std::vector<float>& values, std::size_t i,
                                              std::size_t count) {
    const auto begin = values.begin() + static_cast<std::ptrdiff_t>(i);
    return {begin, begin + static_cast<std::ptrdiff_t>(count)};
  }
  /// Own elements of what the rank has either whole or its own parts of.
  template <class Element>
  [[nodiscard]] DeviceSpan<Element> own(const DeviceBuffer<Element>& buffer,
                                        const OwnedRange& range) const noexcept {
    return buffer.span().subspan(static_cast<std::int64_t>(shared() ? range.at : range.begin),
                                 static_cast<std::int64_t>(range.size()));
  }
  [[nodiscard]] static DeviceSpan<float> here(const DeviceBuffer<float>& buffer,
                                              const OwnedRange& range) noexcept {
    return buffer.span().subspan(static_cast<std::int64_t>(range.at),
                                 static_cast<std::int64_t>(range.size()));
  }

  runtime::ParameterLayout layout_;
  runtime::StageProcessGroups process_groups_;
  std::vector<runtime::Bucket> buckets_;
  std::vector<OwnedRange> ranges_;
  std::int64_t behind_;  ///< elements of gradients behind the last tensor
  DeviceBuffer<Bf16> weights_;
  DeviceBuffer<float> gradients_;
  DeviceBuffer<float> master_, first_moment_, second_moment_;  ///< rank 0's elements, as all have
  std::optional<SharedUnits> shared_;
};

}  // namespace slimpack::cuda
