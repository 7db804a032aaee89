// SPDX-License-Identifier: Apache-2.0
// The transport between threads with streams, on emulated devices: what tests/exec asks of every
// transport, with work that runs as late as it may.
#include "slimpack_cuda/stream_transport.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuda/stream_exchange.hpp"
#include "slimpack/runtime/device_threads.hpp"
#include "slimpack_cuda/bf16.hpp"
#include "slimpack_cuda/emulation.hpp"

namespace stream_transport_test {

using namespace slimpack;

namespace {

using cuda::EmulatedTiming;

using Rank = test::StreamRank;

/// What is left out by a mover that is wrong.
enum class Missing { nothing, note, follow, after };

template <Missing kMissing>
class WrongMover : public cuda::StreamMover {
 public:
  using cuda::StreamMover::StreamMover;
  [[nodiscard]] Mark note() {
    if constexpr (kMissing == Missing::note) return nullptr;
    return StreamMover::note();
  }
  void follow(const Mark& mark) {
    if constexpr (kMissing != Missing::follow) StreamMover::follow(mark);
  }
  void after(runtime::Lane lane, const Mark& mark) {
    if constexpr (kMissing != Missing::after) StreamMover::after(lane, mark);
  }
};

template <class Element, class Mover = cuda::StreamMover>
std::vector<std::string> exchange(runtime::DeviceThreads& device_threads, std::uint64_t seed) {
  return test::exchange_on_streams<Element, Mover>(device_threads, seed, [](std::size_t) {});
}

template <class Mover>
bool is_seen(EmulatedTiming timing) {
  const cuda::ScopedEmulation mode({.timing = timing});
  runtime::DeviceThreads device_threads(3);
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    if (exchange<float, Mover>(device_threads, seed) != std::vector<std::string>(3)) return true;
  }
  return false;
}

}  // namespace

TEST_CASE("StreamTransport: random exchanges bring every device what the others gave") {
  for (const EmulatedTiming timing : {EmulatedTiming::at_once, EmulatedTiming::late}) {
    const cuda::ScopedEmulation mode({.timing = timing});
    for (std::size_t devices = 1; devices <= 4; ++devices) {
      runtime::DeviceThreads device_threads(devices);
      for (std::uint64_t seed = 0; seed < 12; ++seed) {
        CAPTURE(devices);
        CAPTURE(seed);
        CHECK(exchange<float>(device_threads, seed) == std::vector<std::string>(devices));
        CHECK(exchange<double>(device_threads, seed + 1000) == std::vector<std::string>(devices));
      }
    }
  }
}

TEST_CASE("StreamTransport: a mover that leaves out a wait is found where work runs late") {
  CHECK_FALSE(is_seen<cuda::StreamMover>(EmulatedTiming::late));
  CHECK(is_seen<WrongMover<Missing::note>>(EmulatedTiming::late));
  CHECK(is_seen<WrongMover<Missing::follow>>(EmulatedTiming::late));
  CHECK(is_seen<WrongMover<Missing::after>>(EmulatedTiming::late));
}

TEST_CASE("StreamTransport: numbers of two bytes are gathered and broadcast") {
  using cuda::Bf16;
  const cuda::ScopedEmulation mode({.timing = EmulatedTiming::late});
  constexpr std::size_t kRanks = 3, kSize = 101;
  runtime::DeviceThreads device_threads(kRanks);
  cuda::StreamRendezvous rendezvous(kRanks, 1);
  std::vector<std::vector<Bf16>> gathered(kRanks), told(kRanks);
  std::vector<std::unique_ptr<Rank>> ranks(kRanks);
  const auto value = [](std::size_t i) { return cuda::to_bf16(static_cast<float>(i)); };
  const auto first = [](std::size_t member) { return kSize * member / kRanks; };
  device_threads.run([&](std::size_t self) {
    ranks[self] = std::make_unique<Rank>();
    const cuda::StreamView stream = ranks[self]->compute.view();
    cuda::StreamTransport link(rendezvous, self, cuda::StreamMover(ranks[self]->streams));
    std::vector<Bf16> own(kSize, value(999));
    for (std::size_t i = first(self); i < first(self + 1); ++i) own[i] = value(i);
    const cuda::DeviceBuffer<Bf16> memory(kSize);
    cuda::upload(memory.span(), std::span<const Bf16>(own), stream);
    const std::span<Bf16> span(memory.span().data, kSize);
    const runtime::ProcessGroup group{{0, 1, 2}, self};
    link.all_gather(group, span, first(self), first(self + 1));
    gathered[self] = cuda::download(memory.span(), stream);
    if (self == 1) cuda::upload(memory.span(), std::span<const Bf16>(own), stream);
    link.broadcast(group, 1, span);
    told[self] = cuda::download(memory.span(), stream);
    if (self == 1) CHECK(told[self] == own);
    rendezvous.leave(self);
  });
  for (std::size_t self = 0; self < kRanks; ++self) {
    for (std::size_t i = 0; i < kSize; ++i) CHECK(gathered[self][i] == value(i));
    CHECK(told[self] == told[1]);
  }
}

TEST_CASE("StreamTransport: the host goes on while devices have not begun") {
  const cuda::ScopedEmulation mode({.timing = EmulatedTiming::late});
  Rank sender, receiver;
  cuda::StreamRendezvous rendezvous(2, 1);
  cuda::StreamTransport from(rendezvous, 0, cuda::StreamMover(sender.streams));
  cuda::StreamTransport to(rendezvous, 1, cuda::StreamMover(receiver.streams));
  const runtime::Channel channel{GroupId{0}, 0, runtime::Direction::down, 0, 1};
  const cuda::DeviceBuffer<float> memory(8);
  const auto bytes = std::as_writable_bytes(std::span(memory.span().data, 8));
  to.post_receive(channel, 0, bytes.subspan(16));
  CHECK_FALSE(from.send_ended(channel, 0));
  from.queue_send(channel, 0, bytes.first(16));
  to.await_receive(channel, 0);
  from.await_send(channel, 0);
  CHECK_FALSE(from.send_ended(channel, 0));  // it has been told, and has not happened
  sender.compute.view().synchronize();
  CHECK(from.send_ended(channel, 0));
  CHECK(rendezvous.leftover().empty());
}

TEST_CASE("StreamTransport: what fails while bytes are moved ends every device with its words") {
  struct Failing : cuda::StreamMover {
    using cuda::StreamMover::StreamMover;
    void copy(runtime::Lane, std::span<const std::byte>, std::span<std::byte>) {
      throw cuda::CudaError("out of luck");
    }
  };
  using Link = runtime::BasicThreadTransport<Failing>;
  runtime::DeviceThreads device_threads(3);
  Link::RendezvousType rendezvous(3, 1);
  std::array<std::string, 3> thrown;
  std::array<std::array<std::byte, 4>, 3> memory{};
  device_threads.run([&](std::size_t self) {
    Rank rank;
    Link link(rendezvous, self, Failing(rank.streams));
    try {
      link.ring({{0, 1, 2}, self}, 0, memory[self], memory[self]);
    } catch (const runtime::Aborted& error) {
      thrown[self] = std::string("aborted: ") + error.what();
    } catch (const std::exception& error) {
      thrown[self] = error.what();
      link.abort(error.what());
    }
    rendezvous.leave(self);
  });
  std::size_t first = 0;
  for (const std::string& sentence : thrown) {
    if (sentence == "out of luck") {
      ++first;
    } else {
      CHECK(sentence == "aborted: out of luck");
    }
  }
  CHECK(first == 1);
}

}  // namespace stream_transport_test
