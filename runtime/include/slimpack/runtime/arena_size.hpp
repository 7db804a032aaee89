// SPDX-License-Identifier: Apache-2.0
// How large a device's arena must be for a plan, and where in it its buffers lie: its order
// replayed without computing.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/plan/memory.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/runtime/backend.hpp"
#include "slimpack/runtime/buffer_places.hpp"
#include "slimpack/runtime/executor.hpp"
#include "slimpack/runtime/memory_events.hpp"
#include "slimpack/runtime/program.hpp"

namespace slimpack::runtime {

/// The buffers of one step of a device in an arena of `capacity` bytes.
struct BufferLayout {
  Bytes capacity;                   ///< end of the buffer that reaches furthest
  std::vector<std::size_t> places;  ///< first bytes, in the order in which the step takes buffers
};

namespace detail {

/// A backend that allocates places and computes nothing.
class ReplayDevice {
 public:
  class Buffer {
   public:
    Buffer(BufferPlaces& places, std::size_t bytes)
        : places_(&places), place_(places.take(bytes)), bytes_(bytes) {}
    Buffer(Buffer&& other) noexcept
        : places_(std::exchange(other.places_, nullptr)),
          place_(other.place_),
          bytes_(other.bytes_) {}
    Buffer& operator=(Buffer&& other) noexcept {
      std::swap(places_, other.places_);
      std::swap(place_, other.place_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    ~Buffer() {
      if (places_ != nullptr) places_->give_back(place_, bytes_);
    }
    [[nodiscard]] std::size_t place() const noexcept { return place_; }

   private:
    BufferPlaces* places_;
    std::size_t place_, bytes_;
  };

  ReplayDevice(const ElementBytes& size, std::size_t alignment, std::size_t behind)
      : size_(size),
        behind_(behind),
        places_(Bytes{std::numeric_limits<std::int64_t>::max() / 2}, alignment) {}

  [[nodiscard]] ElementBytes element_bytes() const noexcept { return size_; }
  [[nodiscard]] StaticBytes static_bytes() const noexcept { return {}; }
  [[nodiscard]] Buffer allocate(Bytes bytes) {
    const auto size = static_cast<std::size_t>(bytes.value);
    Buffer buffer(places_, size == 0 ? 0 : size + behind_);
    taken_.push_back(buffer.place());
    return buffer;
  }
  [[nodiscard]] std::span<std::byte> bytes(const Buffer&) const noexcept { return {}; }
  void clear(Buffer&) noexcept {}
  void begin_step(const Plan&, const StepData&) noexcept {}
  template <class Link>
  void forward(const PackCall&, Link&) noexcept {}
  template <class Link>
  void backward(const PackCall&, Link&) noexcept {}
  template <class Link>
  void weight(const PackCall&, Link&) noexcept {}
  template <class Link>
  void head(const HeadCall&, Link&) noexcept {}
  template <class Link>
  void reduce(std::int32_t, Link&) noexcept {}
  template <class Link>
  void optimize(Link&) noexcept {}
  [[nodiscard]] BufferLayout layout() && { return {places_.reached(), std::move(taken_)}; }

 private:
  ElementBytes size_;
  std::size_t behind_;
  BufferPlaces places_;
  std::vector<std::size_t> taken_;
};

/// A transport on which nothing is waited for. Sends end as late as `max_in_flight` lets them, or
/// at once.
struct ReplayLink {
  bool at_once = false;
  void post_receive(const Channel&, std::size_t, std::span<std::byte>) noexcept {}
  void await_receive(const Channel&, std::size_t) noexcept {}
  void queue_send(const Channel&, std::size_t, std::span<const std::byte>) noexcept {}
  [[nodiscard]] bool send_ended(const Channel&, std::size_t) const noexcept { return at_once; }
  void await_send(const Channel&, std::size_t) noexcept {}
  void announce(const std::string&) noexcept {}
  void abort(const std::string&) noexcept {}
};

inline BufferLayout replay(const Plan& plan, const Program& program, std::size_t device,
                           const ElementBytes& size, std::size_t alignment, bool at_once,
                           std::size_t behind = 0) {
  const StepData data;
  const MemoryObserver observer;
  ReplayDevice replay(size, alignment, behind);
  ReplayLink link{at_once};
  (void)DeviceRun<ReplayDevice, ReplayLink>(plan, program, data, device, replay, link, observer)
      .run();
  return std::move(replay).layout();
}

}  // namespace detail

/// Where the buffers of device `device` (`device_number`) lie, each at a multiple of
/// `alignment` and with `behind` bytes that no other one has behind it, weights, gradients and
/// optimizer state apart. A send's buffer has its place until
/// `max_in_flight` or the step's end makes the device wait for it: no send ends later, so that
/// buffers that are in use at one time never overlap, whenever sends end. Throws as run_step where
/// the device's order is impossible. O(units x buffers).
[[nodiscard]] inline BufferLayout buffer_layout(const Plan& plan, const Program& program,
                                                std::size_t device, const ElementBytes& size,
                                                std::size_t alignment, std::size_t behind = 0) {
  return detail::replay(plan, program, device, size, alignment, false, behind);
}

/// Bytes of an arena with which a device runs the plan that finds places as it goes (BufferPlaces).
/// The device's order is replayed with its buffers at their places in an arena, once with sends
/// that end at once and once with sends that end as late as `max_in_flight` allows; the larger
/// arena counts, and a quarter of it is added for sends that end in between. What is reached over
/// the predicted peak is the price of fragmentation. Throws as run_step where the device's order is
/// impossible. O(units x buffers).
[[nodiscard]] inline Bytes arena_bytes(const Plan& plan, const Program& program, std::size_t device,
                                       const ElementBytes& size, std::size_t alignment) {
  Bytes most;
  for (const bool at_once : {false, true}) {
    most = std::max(most, detail::replay(plan, program, device, size, alignment, at_once).capacity);
  }
  return Bytes{most.value + most.value / 4};
}

}  // namespace slimpack::runtime
