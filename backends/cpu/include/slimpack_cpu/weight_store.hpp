// SPDX-License-Identifier: Apache-2.0
// A device's weights and gradients, whole or shared by the data-parallel ranks.
#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/runtime/parameters.hpp"
#include "slimpack/runtime/transport.hpp"
#include "slimpack/runtime/weight_units.hpp"
#include "slimpack_cpu/mathematics.hpp"

namespace slimpack::cpu {

/// Weights, or gradients, of elements [begin, begin + values.size()) of a device's layout.
template <class Span>
struct UnitValues {
  Span values;            ///< of every element
  std::size_t begin = 0;  ///< element of the layout that the first value is of
  /// Those of a tensor within the unit.
  [[nodiscard]] Span of(const runtime::HeldTensor& tensor) const {
    return values.subspan(tensor.offset - begin, tensor.size());
  }
};

/// Weights and accumulated gradients of a device: all of its layout or, where the data-parallel
/// ranks share them (`WeightState::sharded`), the part of both that this rank owns. Then all ranks
/// together make the weights of a unit (weight_units.hpp) whole before it runs, and sum its
/// gradients onto their owners behind it; where they are not shared, neither moves anything.
///
///     const UnitValues<In> weights = store.gather(unit, link);
///     const UnitValues<Out> gradients = store.begin_gradients(unit);  // add to these
///     store.scatter(unit, link);
template <std::floating_point Number>
class WeightStore {
 public:
  /// Numbers that are read.
  using In = InOf<Number>;
  /// Numbers that are written.
  using Out = OutOf<Number>;

  WeightStore() = default;
  /// For a device with this layout; `ranks` are the data-parallel ranks of its stage. All is zero.
  WeightStore(const runtime::ParameterLayout& layout, runtime::ProcessGroup ranks,
              WeightState state)
      : ranks_(std::move(ranks)), shared_(state == WeightState::sharded), own_{0, layout.size()} {
    std::size_t held = layout.size();
    if (shared_) {
      const std::size_t members = ranks_.members.size();
      own_ = runtime::part_of_rank(layout.size(), members, ranks_.self);
      held = runtime::elements_of_rank(layout.size(), members);
      const std::size_t whole = runtime::largest_unit(layout);
      for (std::vector<Number>& buffer : gathered_) buffer.resize(whole);
      for (std::vector<Number>& buffer : summed_) buffer.resize(whole);
    }
    weights_.resize(held);
    gradients_.resize(held);
  }

  /// Draws the weights that are here (`runtime::initialise`); of the layout that the store is for.
  void draw(const runtime::ParameterLayout& layout, std::uint64_t seed) {
    for (const runtime::HeldTensor& tensor : layout.tensors) {
      const runtime::ElementRange own = own_of(tensor), place = own.from(tensor.offset);
      if (own.size() == 0) continue;
      // Rows are drawn whole, also those of which other ranks own a part.
      const auto cols = static_cast<std::size_t>(tensor.shape.cols);
      const std::size_t first = place.begin / cols, end = (place.end + cols - 1) / cols;
      std::vector<double> drawn((end - first) * cols);
      runtime::initialise(drawn, tensor.whole(),
                          tensor.first_row + static_cast<std::int64_t>(first), seed,
                          tensor.first_col, tensor.shape.cols);
      std::ranges::transform(std::span(drawn).subspan(place.begin - first * cols, own.size()),
                             part(weights(), own).begin(),
                             [](double value) { return static_cast<Number>(value); });
    }
  }

  /// Whether the ranks share weights and gradients.
  [[nodiscard]] bool shared() const noexcept { return shared_; }
  /// Elements of the layout that are here.
  [[nodiscard]] const runtime::ElementRange& own() const noexcept { return own_; }
  /// The weights that are here.
  [[nodiscard]] In weights() const { return In(weights_).first(own_.size()); }
  /// The same, to be written.
  [[nodiscard]] Out weights() { return Out(weights_).first(own_.size()); }
  /// The gradients that are here.
  [[nodiscard]] In gradients() const { return In(gradients_).first(own_.size()); }
  /// Elements of the layout of which `tensor` has weights and gradients here.
  [[nodiscard]] runtime::ElementRange own_of(const runtime::HeldTensor& tensor) const noexcept {
    return own_.within(runtime::elements_of(tensor));
  }
  /// Those of `values`, which are `weights()` or `gradients()`, of a range of `own()`.
  template <class Span>
  [[nodiscard]] Span part(Span values, const runtime::ElementRange& range) const {
    return range.size() == 0 ? Span{} : values.subspan(range.begin - own_.begin, range.size());
  }
  /// Bytes of all weights that are in memory, gathered ones included.
  [[nodiscard]] Bytes weight_bytes() const noexcept {
    return bytes(weights_.size() + gathered_[0].size() + gathered_[1].size());
  }
  /// The same of gradients.
  [[nodiscard]] Bytes gradient_bytes() const noexcept {
    return bytes(gradients_.size() + summed_[0].size() + summed_[1].size());
  }

  /// The weights of a unit, whole until the gather after the next: there are two buffers, as plans
  /// count them, for devices that gather a layer while the one before it runs.
  template <class Link>
  [[nodiscard]] UnitValues<In> gather(const runtime::ElementRange& unit, Link& link) {
    if (!shared_) return {weights_, 0};
    std::swap(gathered_[0], gathered_[1]);
    const Out whole = Out(gathered_[0]).first(unit.size());
    const runtime::ElementRange own = own_.within(unit), place = own.from(unit.begin);
    std::ranges::copy(part(std::as_const(*this).weights(), own),
                      whole.subspan(place.begin, place.size()).begin());
    link.all_gather(ranks_, whole, place.begin, place.end);
    return {whole, unit.begin};
  }

  /// Where to add the gradients of a unit until it is scattered. There are two buffers, as plans
  /// count them, for devices that scatter a layer while the next one runs.
  [[nodiscard]] UnitValues<Out> begin_gradients(const runtime::ElementRange& unit) {
    if (shared_) std::swap(summed_[0], summed_[1]);
    const UnitValues<Out> sums = gradients_of(unit);
    if (shared_) std::ranges::fill(sums.values, Number{0});
    return sums;
  }
  /// The same without a new beginning: what has been added so far.
  [[nodiscard]] UnitValues<Out> gradients_of(const runtime::ElementRange& unit) {
    if (!shared_) return {gradients_, 0};
    return {Out(summed_[0]).first(unit.size()), unit.begin};
  }
  /// Adds what all ranks have added to the unit's gradients to those of its owners.
  template <class Link>
  void scatter(const runtime::ElementRange& unit, Link& link) {
    if (!shared_) return;
    const Out sum = Out(summed_[0]).first(unit.size());
    const runtime::ElementRange own = own_.within(unit), place = own.from(unit.begin);
    link.reduce_scatter(ranks_, sum, place.begin, place.end);
    runtime::combine(part(Out(gradients_), own), In(sum.subspan(place.begin, place.size())),
                     runtime::Reduction::sum);
  }
  /// Makes all gradients zero.
  void clear_gradients() { std::ranges::fill(gradients_, Number{0}); }

 private:
  [[nodiscard]] static Bytes bytes(std::size_t elements) noexcept {
    return Bytes{static_cast<std::int64_t>(elements * sizeof(Number))};
  }

  runtime::ProcessGroup ranks_;
  bool shared_ = false;
  runtime::ElementRange own_;
  std::vector<Number> weights_, gradients_;      ///< of `own_`
  std::array<std::vector<Number>, 2> gathered_;  ///< whole units, the last one first
  std::array<std::vector<Number>, 2> summed_;    ///< gradients, of the unit that runs first
};

}  // namespace slimpack::cpu
