// SPDX-License-Identifier: Apache-2.0
// A CPU device that notes when each unit ran, and that can evaluate without learning.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/plan/memory.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/runtime/arena_size.hpp"
#include "slimpack/runtime/backend.hpp"
#include "slimpack/runtime/element_type.hpp"
#include "slimpack/runtime/memory_events.hpp"
#include "slimpack/runtime/parameters.hpp"
#include "slimpack/runtime/weight_units.hpp"
#include "slimpack_cpu/device.hpp"
#include "unit_time.hpp"

namespace slimpack::trainer {

/// A rank on a core, with the interface that Run expects of devices (CudaDevice has the same).
template <cpu::Mathematics Math>
class CpuDevice : public cpu::BasicDevice<Math> {
 public:
  using Base = cpu::BasicDevice<Math>;
  using Base::Base;

  using Settings = cpu::AdamW;
  /// What weights and moments are in files.
  using Stored = typename Base::Number;
  static constexpr runtime::ElementType kStored =
      std::is_same_v<Stored, float> ? runtime::ElementType::f32 : runtime::ElementType::f64;
  static constexpr std::string_view kNumbers = std::is_same_v<Stored, float> ? "fp32" : "fp64";
  /// The largest relative difference from the reference.
  static constexpr double kTolerance = std::is_same_v<Stored, float> ? 2e-5 : 1e-10;
  /// What of the plan's computation depends on the device, for people: nothing.
  [[nodiscard]] static std::string describe(const Plan&) { return ""; }
  static constexpr Tokens kGranularity{64};
  static constexpr std::optional<Tokens> kHeadTile = std::nullopt;
  [[nodiscard]] static constexpr ElementBytes element_sizes() {
    return cpu::element_bytes_of<Stored>();
  }
  /// Whether buffers lie where runtime::buffer_layout says. Here the arena finds room as they come.
  static constexpr bool kPlaced = false;
  /// Of buffers of a device that has this part of the model, and bytes that are free behind them.
  [[nodiscard]] static std::size_t alignment(const ModelShape&) { return cpu::kBufferAlignment; }
  [[nodiscard]] static std::size_t behind(const ModelShape&) { return 0; }
  /// A weight as the device computes with it.
  [[nodiscard]] static double rounded(double weight) {
    return static_cast<double>(static_cast<Stored>(weight));
  }

  /// Makes the arena at least so large, and ready as far as the step will reach:
  /// runtime::arena_bytes adds a quarter to that.
  void prepare(const runtime::BufferLayout& layout) {
    Base::reserve(layout.capacity);
    Base::touch(Bytes{layout.capacity.value / 5 * 4});
  }
  /// visit(name, first element, gradients): all that are here, summed over ranks.
  template <class Visit>
  void visit_gradients(const Visit& visit) const {
    for (const runtime::HeldTensor& tensor : Base::tensors()) {
      visit_runs(tensor, Base::gradients(tensor), visit);
    }
  }
  /// fill(elements, first of them) writes all weights of a held tensor that are here.
  template <class Fill>
  void fill_weights(const runtime::HeldTensor& tensor, const Fill& fill) {
    fill(Base::weights(tensor), Base::here(tensor).begin);
  }
  /// fill(tensor, first element, first moments, second moments) writes the moments that are here.
  template <class Fill>
  void fill_moments(const Fill& fill) {
    for (auto& part : Base::optimizer_state()) {
      fill(part.tensor, part.first, part.first_moment, part.second_moment);
    }
  }
  /// visit(name, first element, weights) gets what this device is to save: its own part where
  /// ranks share weights, else everything on the stage's first rank.
  template <class Visit>
  void visit_weights(const DeviceSchedule& place, OptimizerState, const Visit& visit) const {
    if (place.dp > 0 && !Base::shares_weights()) return;
    for (const runtime::HeldTensor& tensor : Base::tensors()) {
      visit_runs(tensor, Base::weights(tensor),
                 [&](const std::string& name, std::size_t first, std::span<const Stored> weights) {
                   visit(name, static_cast<std::int64_t>(first), weights);
                 });
    }
  }
  /// visit(name, first element, first moments, second moments).
  template <class Visit>
  void visit_moments(const Visit& visit) {
    for (const auto& part : Base::optimizer_state()) {
      visit(part.tensor.name, static_cast<std::int64_t>(part.first),
            std::span<const Stored>(part.first_moment),
            std::span<const Stored>(part.second_moment));
    }
  }

  /// While it is on, steps compute losses and change neither weights nor moments.
  void set_evaluating(bool evaluating) noexcept { evaluating_ = evaluating; }
  /// Times of the last step's units, in the device's order.
  [[nodiscard]] const std::vector<UnitTime>& times() const noexcept { return times_; }

  void begin_step(const Plan& plan, const runtime::StepData& data) {
    Base::begin_step(plan, data);
    times_.clear();
    begun_ = Clock::now();
  }
  template <class Link>
  void forward(const runtime::PackCall& call, Link& link) {
    timed([&] { Base::forward(call, link); });
  }
  template <class Link>
  void backward(const runtime::PackCall& call, Link& link) {
    timed([&] {
      if (!evaluating_) Base::backward(call, link);
    });
  }
  template <class Link>
  void weight(const runtime::PackCall& call, Link& link) {
    timed([&] {
      if (!evaluating_) Base::weight(call, link);
    });
  }
  template <class Link>
  void head(const runtime::HeadCall& call, Link& link) {
    timed([&] { Base::head(call, link); });
  }
  template <class Link>
  void reduce(std::int32_t chunk, Link& link) {
    timed([&] {
      if (!evaluating_) Base::reduce(chunk, link);
    });
  }
  template <class Link>
  void optimize(Link& link) {
    timed([&] {
      if (!evaluating_) Base::optimize(link);
    });
  }

 private:
  using Clock = std::chrono::steady_clock;

  /// visit(name, first element, values) gets the runs of what is here of a tensor.
  template <class Visit>
  void visit_runs(const runtime::HeldTensor& tensor, std::span<const Stored> values,
                  const Visit& visit) const {
    const runtime::ElementRange here = Base::here(tensor);
    tensor.for_each_run(here.begin, here.end,
                        [&](std::size_t first, std::size_t i, std::size_t count) {
                          visit(tensor.shape.name, first, values.subspan(i - here.begin, count));
                        });
  }
  template <class Work>
  void timed(const Work& work) {
    const Nanos begin = since();
    work();
    times_.push_back({begin, since()});
  }
  [[nodiscard]] Nanos since() const {
    return {std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begun_).count()};
  }

  bool evaluating_ = false;
  Clock::time_point begun_ = Clock::now();
  std::vector<UnitTime> times_;
};

}  // namespace slimpack::trainer
