// SPDX-License-Identifier: Apache-2.0
// Weights that ranks share: gathered before they are used, their gradients summed behind that.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "slimpack/runtime/parameters.hpp"
#include "slimpack/runtime/process_groups.hpp"
#include "slimpack/runtime/transport.hpp"
#include "slimpack_cuda/bf16.hpp"
#include "slimpack_cuda/device.hpp"
#include "slimpack_cuda/elements.hpp"
#include "slimpack_cuda/rank/memory.hpp"
#include "slimpack_cuda/rank/tensor_unit.hpp"

namespace slimpack::cuda {

/// Elements [begin, end) of a device's weights that ranks gather together.
struct WeightUnit {
  std::size_t begin = 0, end = 0;
  [[nodiscard]] std::size_t size() const noexcept { return end - begin; }
  /// One piece of equal parts, but for what is missing behind the unit's end.
  [[nodiscard]] runtime::ShardPiece piece(std::size_t ranks) const {
    return runtime::ShardLayout{size(), ranks, std::numeric_limits<std::size_t>::max()}
        .pieces()
        .front();
  }
};

/// The units of a stage that is the whole model, in the order of memory: the embedding, the head
/// with the final norm (all in one where embedding and head are tied), then each layer. O(layers).
[[nodiscard]] inline std::vector<WeightUnit> weight_units(const runtime::ParameterLayout& layout) {
  std::vector<WeightUnit> units;
  const auto begin_at = [&](std::size_t tensor) {
    const std::size_t begin = layout.tensors[tensor].offset;
    if (!units.empty()) units.back().end = begin;
    units.push_back({begin, layout.size()});
  };
  begin_at(layout.embedding.front());
  if (layout.head != layout.embedding) begin_at(layout.head.front());
  for (const std::size_t layer : layout.layer) begin_at(layer);
  return units;
}

/// Elements that one whole unit takes up, the largest, with parts of ranks made equal.
[[nodiscard]] inline std::size_t whole_unit(const runtime::ParameterLayout& layout,
                                            std::int32_t dp) {
  const auto ranks = static_cast<std::size_t>(dp);
  std::size_t most = 0;
  for (const WeightUnit& unit : weight_units(layout)) {
    most = std::max(most, unit.piece(ranks).part * ranks);
  }
  return most;
}

/// What of shared weights is whole at one time: the bf16 weights of two units, of which one is
/// gathered while the other is computed with, and the fp32 gradients of two, of which one is summed
/// over ranks while the other is added to; with tensor parallelism, whose collectives come in
/// between, sums end at once. Elements are known by their place among all weights of the device.
/// All ranks make the same calls in the same order; all is done in the order of the stream.
class SharedUnits {
 public:
  /// The device's own parts of all units lie first in `weights` and in `gradients`, `own` elements
  /// in the order of units. Behind them both have room for two of `whole` elements, `gradients`
  /// behind each of them for what may be added to behind a unit's end.
  SharedUnits(const runtime::ParameterLayout& layout,
              const runtime::StageProcessGroups& process_groups, DeviceSpan<Bf16> weights,
              DeviceSpan<float> gradients, std::int64_t own, std::int64_t whole)
      : units_(weight_units(layout)),
        ranks_(process_groups.ranks()),
        alone_(process_groups.parallel.tp == 1),
        behind_((gradients.size - own) / 2 - whole),
        own_weights_(weights.subspan(0, own)),
        own_gradients_(gradients.subspan(0, own)) {
    for (std::size_t i = 0; i < gathered_.size(); ++i) {
      const auto place = static_cast<std::int64_t>(i);
      gathered_[i].weights = weights.subspan(own + place * whole, whole);
      opened_[i].gradients = gradients.subspan(own + place * (whole + behind_), whole + behind_);
    }
    std::int64_t at = 0;
    for (const WeightUnit& unit : units_) {
      const auto [first, last] = unit.piece(ranks_.members.size()).of(ranks_.self);
      const auto size = static_cast<std::int64_t>(last - first);
      own_.push_back({static_cast<std::int64_t>(first), size, std::exchange(at, at + size)});
    }
  }

  /// Nothing is whole, and nothing is under way.
  void begin_step() {
    for (Gathered& gathered : gathered_) gathered.unit.reset();
    for (Opened& opened : opened_) opened.unit.reset();
    sums_ = false;
  }

  // --- weights ---

  /// Begins to make the unit of an element whole, in the place of the one gathered before the last.
  /// Until end_gather nobody touches it.
  template <class Link>
  void begin_gather(std::size_t element, Link& link, StreamView stream) {
    last_ = 1 - last_;
    Gathered& into = gathered_[last_];
    into.unit = unit_of(element);
    const Own& own = own_[*into.unit];
    copy(into.weights.subspan(own.first, own.size), own_weights_.subspan(own.at, own.size), stream);
    const std::size_t size = part_of(*into.unit) * ranks_.members.size();
    link.begin_gather(ranks_, host_span(into.weights).first(size),
                      runtime::ShardLayout{size, ranks_.members.size(), size});
  }
  template <class Link>
  void end_gather(Link& link) const {
    link.end_gathers();
  }
  /// Weights of one of the two units.
  [[nodiscard]] DeviceSpan<Bf16> weights(std::size_t element, std::int64_t size) const {
    const std::size_t unit = unit_of(element);
    for (const Gathered& gathered : gathered_) {
      if (gathered.unit == unit) return gathered.weights.subspan(offset_in(unit, element), size);
    }
    throw std::logic_error("weights must be gathered before they are used");
  }

  // --- gradients ---

  /// The gradients of the unit of an element are zero and can be added to.
  template <class Link>
  void open_gradients(std::size_t element, Link& link, StreamView stream) {
    if (sums_ && summed_ != open_) end_sum(link, stream);  // of the one opened before the last
    open_ = 1 - open_;
    opened_[open_].unit = unit_of(element);
    fill_zeros(opened_[open_].gradients.subspan(
                   0, static_cast<std::int64_t>(open_unit().size()) + behind_),
               stream);
  }
  /// The unit whose gradients can be added to.
  [[nodiscard]] const WeightUnit& open_unit() const { return units_[opened_[open_].unit.value()]; }
  /// Gradients of that unit, and what is behind them.
  [[nodiscard]] DeviceSpan<float> gradients(std::size_t element, std::int64_t size) const {
    const std::size_t unit = unit_of(element);
    if (opened_[open_].unit != unit) {
      throw std::logic_error("gradients must be opened before they are added to");
    }
    return opened_[open_].gradients.subspan(offset_in(unit, element), size);
  }
  /// Begins to sum the gradients of that unit on the ranks that own them.
  template <class Link>
  void begin_sum(Link& link, StreamView stream) {
    end_sum(link, stream);  // one such collective is under way at a time
    const std::size_t part = part_of(opened_[open_].unit.value());
    link.begin_reduce_scatter(
        ranks_, host_span(opened_[open_].gradients).first(part * ranks_.members.size()),
        part * ranks_.self, part * (ranks_.self + 1));
    sums_ = true;
    summed_ = open_;
    if (!alone_) end_sum(link, stream);
  }
  /// Adds what has been summed, if anything, to the device's own gradients.
  template <class Link>
  void end_sum(Link& link, StreamView stream) {
    if (!std::exchange(sums_, false)) return;
    link.end_collective();
    const Opened& summed = opened_[summed_];
    const Own& own = own_[summed.unit.value()];
    add(own_gradients_.subspan(own.at, own.size), summed.gradients.subspan(own.first, own.size),
        stream);
  }

 private:
  /// A whole unit's place, and which one is there.
  struct Gathered {
    DeviceSpan<Bf16> weights;
    std::optional<std::size_t> unit;
  };
  /// A place for gradients, and the unit that was opened there last.
  struct Opened {
    DeviceSpan<float> gradients;
    std::optional<std::size_t> unit;
  };
  /// The device's part of a unit: where it begins in the unit, and among its parts of all.
  struct Own {
    std::int64_t first = 0, size = 0, at = 0;
  };

  [[nodiscard]] std::size_t unit_of(std::size_t element) const {
    const auto behind = std::ranges::upper_bound(units_, element, {}, &WeightUnit::begin);
    return static_cast<std::size_t>(behind - units_.begin()) - 1;
  }
  [[nodiscard]] std::int64_t offset_in(std::size_t unit, std::size_t element) const {
    return static_cast<std::int64_t>(element - units_[unit].begin);
  }
  [[nodiscard]] std::size_t part_of(std::size_t unit) const {
    return units_[unit].piece(ranks_.members.size()).part;
  }

  std::vector<WeightUnit> units_;
  std::vector<Own> own_;  ///< by unit
  runtime::ProcessGroup ranks_;
  bool alone_;           ///< no other tensor-parallel devices
  std::int64_t behind_;  ///< elements behind a unit's gradients
  DeviceSpan<Bf16> own_weights_;
  DeviceSpan<float> own_gradients_;
  std::array<Gathered, 2> gathered_;
  std::size_t last_ = 0;  ///< of both, the one gathered last
  std::array<Opened, 2> opened_;
  std::size_t open_ = 0, summed_ = 0;  ///< of both, the one that can be added to, or is summed
  bool sums_ = false;                  ///< a sum has begun
};

}  // namespace slimpack::cuda
