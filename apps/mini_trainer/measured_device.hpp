// SPDX-License-Identifier: Apache-2.0
// A CPU device that notes when each unit ran, and that can evaluate without learning.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/exec/backend.hpp"
#include "slimpack/exec/memory.hpp"
#include "slimpack_cpu/device.hpp"

namespace slimpack::trainer {

/// When a unit of the device's order ran, since the step began on the device.
struct UnitTime {
  Nanos begin, end;
};

template <cpu::Mathematics Math>
class MeasuredDevice : public cpu::BasicDevice<Math> {
 public:
  using Base = cpu::BasicDevice<Math>;
  using Base::Base;

  /// While it is on, steps compute losses and change neither weights nor moments.
  void set_evaluating(bool evaluating) noexcept { evaluating_ = evaluating; }
  /// Of the last step, in the device's order.
  [[nodiscard]] const std::vector<UnitTime>& times() const noexcept { return times_; }

  void begin_step(const Plan& plan, const exec::StepData& data) {
    Base::begin_step(plan, data);
    times_.clear();
    begun_ = Clock::now();
  }
  template <class Link>
  void forward(const exec::PackCall& call, Link& link) {
    timed([&] { Base::forward(call, link); });
  }
  template <class Link>
  void backward(const exec::PackCall& call, Link& link) {
    timed([&] {
      if (!evaluating_) Base::backward(call, link);
    });
  }
  template <class Link>
  void head(const exec::HeadCall& call, Link& link) {
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
