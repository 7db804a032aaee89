// SPDX-License-Identifier: Apache-2.0
// Random exchanges of the transport between threads with streams: on devices, and on emulated ones.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/transport_laws.hpp"
#include "slimpack/runtime/device_threads.hpp"
#include "slimpack_cuda/device.hpp"
#include "slimpack_cuda/stream_transport.hpp"

namespace slimpack::test {

/// A device's memory for an exchange: written, read and given back in the order of its compute
/// stream, and used again at once.
template <std::floating_point Element>
class DeviceExchange {
 public:
  struct Buffer {
    std::size_t size = 0;
    cuda::DeviceBuffer<Element> memory;
  };

  explicit DeviceExchange(cuda::StreamView stream) : stream_(stream) {}

  [[nodiscard]] Buffer write(const std::vector<Element>& values) {
    Buffer buffer{values.size(), {}};
    auto& shelf = free_[values.size()];
    if (shelf.empty()) {
      buffer.memory = cuda::DeviceBuffer<Element>(static_cast<std::int64_t>(values.size()));
    } else {
      buffer.memory = std::move(shelf.back());
      shelf.pop_back();
    }
    cuda::PinnedBuffer<Element> staged(static_cast<std::int64_t>(values.size()));
    std::copy(values.begin(), values.end(), staged.span().begin());
    cuda::upload(buffer.memory.span(), std::span<const Element>(staged.span()), stream_);
    kept_.push_back(std::move(staged));
    return buffer;
  }
  [[nodiscard]] static std::span<Element> span(Buffer& buffer) {
    return {buffer.memory.span().data, buffer.size};
  }
  void expect(Buffer& got, const std::vector<Element>& want, const std::string& what) {
    cuda::PinnedBuffer<Element> values(static_cast<std::int64_t>(got.size));
    cuda::copy_to_host(values.span(), got.memory.span(), stream_);
    expected_.push_back({what, want, std::move(values)});
  }
  void free(Buffer&& buffer) { free_[buffer.size].push_back(std::move(buffer.memory)); }
  [[nodiscard]] std::string end() {
    stream_.synchronize();
    for (const Expected& one : expected_) {
      const std::span<const Element> got = one.got.span();
      if (got.size() != one.want.size()) return one.what;
      if (!got.empty() && std::memcmp(got.data(), one.want.data(), got.size_bytes()) != 0) {
        return one.what;
      }
    }
    return {};
  }

 private:
  struct Expected {
    std::string what;
    std::vector<Element> want;
    cuda::PinnedBuffer<Element> got;
  };
  cuda::StreamView stream_;
  std::map<std::size_t, std::vector<cuda::DeviceBuffer<Element>>> free_;
  std::deque<cuda::PinnedBuffer<Element>> kept_;
  std::deque<Expected> expected_;
};

/// A device of a test: its compute stream and what it moves bytes with.
struct StreamRank {
  cuda::Stream compute;
  cuda::RankStreams streams{compute.view()};
};

/// A random exchange on the threads, each device on a stream of its own; what was wrong, by device.
/// enter(device) is called first on the device's thread.
template <class Element, class Mover = cuda::StreamMover, std::invocable<std::size_t> Enter>
std::vector<std::string> exchange_on_streams(runtime::DeviceThreads& device_threads,
                                             std::uint64_t seed, Enter enter) {
  using Link = runtime::BasicThreadTransport<Mover>;
  const auto plan = random_exchange(seed, device_threads.size());
  typename Link::RendezvousType rendezvous(device_threads.size(),
                                           static_cast<std::int32_t>(plan.max_in_flight));
  std::vector<std::string> wrong(device_threads.size());
  std::vector<std::unique_ptr<StreamRank>> ranks(device_threads.size());
  device_threads.run([&](std::size_t device) {
    enter(device);
    ranks[device] = std::make_unique<StreamRank>();
    StreamRank& rank = *ranks[device];
    Link link(rendezvous, device, Mover(rank.streams));
    wrong[device] = ExchangeRun<Element, Link, DeviceExchange<Element>>(
                        plan, device, link, DeviceExchange<Element>(rank.compute.view()))
                        .run();
    rendezvous.leave(device);
  });
  CHECK(rendezvous.leftover().empty());
  return wrong;
}

}  // namespace slimpack::test
