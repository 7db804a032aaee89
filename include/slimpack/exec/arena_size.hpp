// SPDX-License-Identifier: Apache-2.0
// How large a device's arena must be for a plan: its order replayed without computing.
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
#include "slimpack/exec/backend.hpp"
#include "slimpack/exec/buffer_places.hpp"
#include "slimpack/exec/executor.hpp"
#include "slimpack/exec/memory.hpp"
#include "slimpack/exec/program.hpp"
#include "slimpack/plan/plan.hpp"

namespace slimpack::exec {

namespace detail {

/// A backend that allocates places and computes nothing.
class ReplayDevice {
 public:
  class Buffer {
   public:
    Buffer(BufferPlaces& places, std::size_t bytes)
        : places_(&places), at_(places.take(bytes)), bytes_(bytes) {}
    Buffer(Buffer&& other) noexcept
        : places_(std::exchange(other.places_, nullptr)), at_(other.at_), bytes_(other.bytes_) {}
    Buffer& operator=(Buffer&& other) noexcept {
      std::swap(places_, other.places_);
      std::swap(at_, other.at_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    ~Buffer() {
      if (places_ != nullptr) places_->give_back(at_, bytes_);
    }

   private:
    BufferPlaces* places_;
    std::size_t at_, bytes_;
  };

  ReplayDevice(const ElementBytes& size, std::size_t alignment)
      : size_(size), places_(Bytes{std::numeric_limits<std::int64_t>::max() / 2}, alignment) {}

  [[nodiscard]] ElementBytes element_bytes() const noexcept { return size_; }
  [[nodiscard]] StaticBytes static_bytes() const noexcept { return {}; }
  [[nodiscard]] Buffer allocate(Bytes bytes) {
    return Buffer(places_, static_cast<std::size_t>(bytes.value));
  }
  [[nodiscard]] std::span<std::byte> bytes(const Buffer&) const noexcept { return {}; }
  void clear(Buffer&) noexcept {}
  void begin_step(const Plan&, const StepData&) noexcept {}
  template <class Link>
  void forward(const PackCall&, Link&) noexcept {}
  template <class Link>
  void backward(const PackCall&, Link&) noexcept {}
  template <class Link>
  void head(const HeadCall&, Link&) noexcept {}
  template <class Link>
  void reduce(std::int32_t, Link&) noexcept {}
  template <class Link>
  void optimize(Link&) noexcept {}
  [[nodiscard]] Bytes reached() const noexcept { return places_.reached(); }

 private:
  ElementBytes size_;
  BufferPlaces places_;
};

/// A transport on which nothing is waited for. Sends end as late as the window lets them, or at
/// once.
struct ReplayLink {
  bool at_once = false;
  void post_receive(const Channel&, std::size_t, std::span<std::byte>) noexcept {}
  void await_receive(const Channel&, std::size_t) noexcept {}
  void queue_send(const Channel&, std::size_t, std::span<const std::byte>) noexcept {}
  [[nodiscard]] bool send_ended(const Channel&, std::size_t) const noexcept { return at_once; }
  void await_send(const Channel&, std::size_t) noexcept {}
  void at(const std::string&) noexcept {}
  void abort(const std::string&) noexcept {}
};

}  // namespace detail

/// Bytes of an arena, whose buffers are aligned to `alignment` bytes, with which device `device`
/// (in `Plan::schedule`) runs the plan, weights, gradients and optimizer state apart. The device's
/// order is replayed with its buffers at their places in an arena, once with sends that end at once
/// and once with sends that end as late as the window allows; the larger arena counts, and a
/// quarter of it is added for sends that end in between. What is reached over the predicted peak is
/// the price of fragmentation. Throws as run_step where the device's order is impossible. O(units x
/// buffers).
[[nodiscard]] inline Bytes arena_bytes(const Plan& plan, const Program& program, std::size_t device,
                                       const ElementBytes& size, std::size_t alignment) {
  Bytes most;
  const StepData data;
  const MemoryObserver observer;
  for (const bool at_once : {false, true}) {
    detail::ReplayDevice replay(size, alignment);
    detail::ReplayLink link{at_once};
    (void)DeviceRun<detail::ReplayDevice, detail::ReplayLink>(plan, program, data, device, replay,
                                                              link, observer)
        .run();
    most = std::max(most, replay.reached());
  }
  return Bytes{most.value + most.value / 4};
}

}  // namespace slimpack::exec
