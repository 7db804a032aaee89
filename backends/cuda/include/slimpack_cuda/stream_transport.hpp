// SPDX-License-Identifier: Apache-2.0
// The transport between ranks that are threads of one process and have their memory on devices:
// events order what streams do, and the host waits for other hosts alone.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/runtime/thread_transport.hpp"
#include "slimpack/runtime/transport.hpp"
#include "slimpack_cuda/bf16.hpp"
#include "slimpack_cuda/device.hpp"
#include "slimpack_cuda/members.hpp"

namespace slimpack::cuda {

/// Events of one context, used again when nobody holds them any more. It may go before the events
/// that it gave out do. Called by several threads.
class EventPool {
 public:
  /// A point of the stream's work, recorded. The stream must be of the context in which the pool
  /// is used.
  [[nodiscard]] std::shared_ptr<const Event> record(StreamView stream) {
    std::unique_ptr<Event> event = take();
    event->record(stream);
    return std::shared_ptr<Event>(event.release(), [shelf = shelf_](Event* used) {
      const std::lock_guard lock(shelf->mutex);
      shelf->events.emplace_back(used);
    });
  }

 private:
  struct Shelf {
    std::mutex mutex;
    std::vector<std::unique_ptr<Event>> events;
  };

  [[nodiscard]] std::unique_ptr<Event> take() {
    const std::lock_guard lock(shelf_->mutex);
    if (shelf_->events.empty()) return std::make_unique<Event>();
    std::unique_ptr<Event> event = std::move(shelf_->events.back());
    shelf_->events.pop_back();
    return event;
  }

  std::shared_ptr<Shelf> shelf_ = std::make_shared<Shelf>();
};

/// What a rank moves bytes with, over any number of steps: a communication stream a lane beside
/// the stream that it computes on. Made, used and given up by the rank's thread, whose current
/// context is the rank's.
class RankStreams {
 public:
  /// The compute stream must outlive the object. Throws CudaError.
  explicit RankStreams(StreamView compute) : compute_(compute) {
    for (Stream& lane : lanes_) lane = Stream(StreamPriority::high);
  }
  RankStreams(const RankStreams&) = delete;
  RankStreams& operator=(const RankStreams&) = delete;

  [[nodiscard]] StreamView compute() const noexcept { return compute_; }
  [[nodiscard]] StreamView lane(runtime::Lane lane) const noexcept {
    return lanes_[static_cast<std::size_t>(lane)].view();
  }
  [[nodiscard]] std::shared_ptr<const Event> record(StreamView stream) {
    return events_.record(stream);
  }

 private:
  StreamView compute_;
  std::array<Stream, runtime::kLanes> lanes_;
  EventPool events_;
};

/// Moves bytes between the memories of devices: a mark is an event. What a lane does runs on the
/// rank's stream of that lane; nothing that runs there waits for anything but events that were
/// recorded before, so streams cannot wait for each other in a circle.
class StreamMover {
 public:
  using Mark = std::shared_ptr<const Event>;

  explicit StreamMover(RankStreams& streams) noexcept : streams_(&streams) {}

  [[nodiscard]] Mark note() { return streams_->record(streams_->compute()); }
  void follow(const Mark& mark) {
    if (mark) mark->make_wait(streams_->compute());
  }
  void after(runtime::Lane lane, const Mark& mark) {
    if (mark) mark->make_wait(streams_->lane(lane));
  }
  void copy(runtime::Lane lane, std::span<const std::byte> from, std::span<std::byte> into) {
    if (from.empty() || from.data() == into.data()) return;
    copy_on_device(into.data(), from.data(), from.size(), streams_->lane(lane));
  }
  template <class Element>
    requires std::floating_point<Element> || std::same_as<Element, Bf16>
  void reduce(runtime::Lane lane, runtime::Contributions all, runtime::Reduction reduction,
              std::optional<std::size_t> only = std::nullopt) {
    std::vector<DeviceSpan<Element>> members;
    for (const runtime::Contribution& one : all) {
      members.emplace_back(reinterpret_cast<Element*>(one.into.data()),
                           static_cast<std::int64_t>(one.into.size() / sizeof(Element)));
    }
    const std::span<const DeviceSpan<Element>> spans(members);
    if constexpr (!std::same_as<Element, Bf16>) {  // nobody asks for their maximum
      if (reduction != runtime::Reduction::sum) {
        return largest_of_members(spans, streams_->lane(lane), only);
      }
    }
    sum_members(spans, streams_->lane(lane), only);
  }
  [[nodiscard]] Mark finish(runtime::Lane lane) { return streams_->record(streams_->lane(lane)); }
  [[nodiscard]] static bool reached(const Mark& mark) { return !mark || mark->reached(); }

 private:
  RankStreams* streams_;
};

using StreamRendezvous = runtime::BasicRendezvous<StreamMover>;
/// Models runtime::Transport ordered on the compute stream: a call returns when what it does has
/// been queued, on every device that takes part. Spans lie in device memory.
using StreamTransport = runtime::BasicThreadTransport<StreamMover>;

static_assert(runtime::Mover<StreamMover> && runtime::ScatterTransport<StreamTransport, float> &&
              runtime::Transport<StreamTransport, double>);

}  // namespace slimpack::cuda
