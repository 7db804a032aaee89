// SPDX-License-Identifier: Apache-2.0
// The emulated streams: work in order, nothing sooner than it has to be in the timing `late`.
#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "emulated/runtime.hpp"
#include "slimpack/core/error.hpp"
#include "slimpack_cuda/device.hpp"
#include "slimpack_cuda/elements.hpp"
#include "slimpack_cuda/emulation.hpp"
#include "slimpack_cuda/stream_transport.hpp"

namespace streams_test {

using namespace slimpack;
using namespace slimpack::cuda;
using namespace std::chrono_literals;

namespace {

Emulation with(EmulatedTiming timing) {
  Emulation settings;
  settings.timing = timing;
  return settings;
}
constexpr EmulatedTiming kTimings[] = {EmulatedTiming::at_once, EmulatedTiming::late};

using Number = std::int32_t;

/// Adds `more` to a number of the device.
void add_to(DeviceSpan<Number> number, Number more, StreamView stream) {
  emulated::enqueue(stream, "an addition", [=] { *number.data += more; });
}
DeviceBuffer<Number> zero() {
  DeviceBuffer<Number> number(1);
  *number.span().data = 0;
  return number;
}
Number read(const DeviceBuffer<Number>& number) {
  return *number.span().data;
}

/// A kernel whose threads wait for each other for ever.
void fail_on(StreamView stream) {
  emulated::start_kernel({1, 64, 0}, "here:1", stream, [] {
    if (simt::thread_index() < 32) simt::sync_block();
  });
}

template <class Work>
std::string error_of(const Work& work) {
  try {
    work();
  } catch (const CudaError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("emulated memory: begins as NaN, and as much as was asked for is there") {
  Emulation small;
  small.memory = 1 << 20;
  const ScopedEmulation during(small);
  CHECK(free_memory() == 1 << 20);
  const DeviceBuffer<std::uint32_t> half(1 << 17);
  CHECK(free_memory() == 1 << 19);
  CHECK(half.span().data[12345] == 0xffffffffU);
  CHECK(error_of([] { (void)DeviceBuffer<std::byte>((1 << 19) + 1); }) ==
        "cudaMalloc failed: out of memory, 524289 bytes asked for, 524288 left");
  CHECK_NOTHROW(DeviceBuffer<std::byte>(1 << 19));
  const Stream stream;
  std::array<std::byte, 16> host{};
  CHECK(error_of([&] {
          cuda::detail::copy_to_device(host.data(), host.data(), 16, stream.view());
        }) == "cudaMemcpyAsync failed: 16 bytes do not lie in device memory");
  CHECK_NOTHROW(cuda::detail::copy_to_device(half.span().data, host.data(), 16, stream.view()));
}

TEST_CASE("emulated devices: as many as are set, for each thread its own") {
  Emulation settings;
  settings.devices = 2;
  {
    const ScopedEmulation during(settings);
    CHECK(device_count() == 2);
    CHECK(error_of([] { set_device(2); }) == "cudaSetDevice failed: there is no device 2");
    set_device(1);
    const DeviceBuffer<std::byte> some(256);
    CHECK(free_memory() == settings.memory - 256);
    set_device(0);
    CHECK(free_memory() == settings.memory);
    CHECK_FALSE(why_no_device());
  }
  settings.devices = 0;
  const ScopedEmulation during(settings);
  CHECK(device_count() == 0);
  CHECK(why_no_device() == "no CUDA device can be used: there is none");
}

TEST_CASE("emulated streams: a missing wait is seen, a right one passes") {
  const ScopedEmulation during(with(EmulatedTiming::late));
  const Stream first, second;
  for (const bool waits : {false, true}) {
    const DeviceBuffer<Number> number = zero(), copy = zero();
    Event written;
    add_to(number.span(), 7, first.view());
    written.record(first.view());
    if (waits) written.make_wait(second.view());
    copy_on_device(copy.span().data, number.span().data, sizeof(Number), second.view());
    second.view().synchronize();
    CHECK(read(copy) == (waits ? 7 : 0));
  }
}

TEST_CASE("emulated streams: no more runs than has to") {
  const ScopedEmulation during(with(EmulatedTiming::late));
  const Stream first, second;
  const DeviceBuffer<Number> number = zero();
  Event early(EventUse::time), late(EventUse::time);
  add_to(number.span(), 1, first.view());
  early.record(first.view());
  add_to(number.span(), 10, first.view());
  late.record(first.view());
  add_to(number.span(), 100, first.view());
  CHECK(read(number) == 0);
  early.make_wait(second.view());
  second.view().synchronize();
  CHECK(read(number) == 1);
  late.synchronize();
  CHECK(read(number) == 11);
  first.view().synchronize();
  CHECK(read(number) == 111);
  CHECK(late.milliseconds_since(early) >= 0);
  const Event untimed;
  CHECK_THROWS_AS((void)late.milliseconds_since(untimed), CudaError);
}

TEST_CASE("streams: what moves bytes comes before what computes") {
  const Stream compute;
  const RankStreams streams(compute.view());
  CHECK(compute.view().priority() == StreamPriority::normal);
  for (std::size_t lane = 0; lane < slimpack::runtime::kLanes; ++lane) {
    CHECK(streams.lane(static_cast<slimpack::runtime::Lane>(lane)).priority() ==
          StreamPriority::high);
  }
}

TEST_CASE("emulated events: a wait is for what was recorded when it was queued") {
  for (const EmulatedTiming timing : kTimings) {
    const ScopedEmulation during(with(timing));
    const Stream first, second;
    const DeviceBuffer<Number> number = zero(), copy = zero();
    Event event;
    CHECK(event.reached());  // never recorded
    event.make_wait(second.view());
    add_to(number.span(), 1, first.view());
    event.record(first.view());
    event.make_wait(second.view());
    copy_on_device(copy.span().data, number.span().data, sizeof(Number), second.view());
    event.record(second.view());  // the wait before is still for the first stream
    event.synchronize();
    CHECK(read(copy) == 1);
  }
}

TEST_CASE("Event::reached: not at first where work is late; wait_until goes on asking") {
  const ScopedEmulation during(with(EmulatedTiming::late));
  const Stream stream;
  const DeviceBuffer<Number> number = zero();
  Event event;
  add_to(number.span(), 1, stream.view());
  event.record(stream.view());
  CHECK_FALSE(event.reached());
  CHECK(event.reached());
  CHECK(read(number) == 1);
  event.record(stream.view());
  CHECK(wait_until(event, std::chrono::steady_clock::now() + 10s));
  Event never;
  CHECK(wait_until(never, std::chrono::steady_clock::now() - 1s));
}

TEST_CASE("PinnedBuffer: memory that is used again too early is seen, after an event it is not") {
  const ScopedEmulation during(with(EmulatedTiming::late));
  const Stream stream;
  for (const bool waits : {false, true}) {
    const PinnedBuffer<Number> staging(1);
    const DeviceBuffer<Number> number(1);
    Event copied;
    staging.span()[0] = 1;
    upload(number.span(), std::span<const Number>(staging.span()), stream.view());
    copied.record(stream.view());
    if (waits) copied.synchronize();
    staging.span()[0] = 2;
    stream.view().synchronize();
    CHECK(read(number) == (waits ? 1 : 2));
  }
}

TEST_CASE("emulated streams: what a stream has left runs when it is gone, before memory is") {
  const ScopedEmulation during(with(EmulatedTiming::late));
  const DeviceBuffer<Number> number = zero();
  Event event;
  {
    const DeviceBuffer<Number> passing = zero();
    const Stream stream;
    add_to(passing.span(), 3, stream.view());
    copy_on_device(number.span().data, passing.span().data, sizeof(Number), stream.view());
    event.record(stream.view());
  }
  CHECK(event.reached());
  CHECK(read(number) == 3);
}

TEST_CASE("emulated streams: a failure is reported where somebody waits, and passed on by events") {
  for (const EmulatedTiming timing : kTimings) {
    const ScopedEmulation during(with(timing));
    const std::string words = "the kernel started at here:1 failed: block 0 stands still";
    const Stream broken, dependent, sound;
    const DeviceBuffer<Number> number = zero();
    Event event;
    CHECK_NOTHROW(fail_on(broken.view()));
    add_to(number.span(), 1, broken.view());
    event.record(broken.view());
    event.make_wait(dependent.view());
    add_to(number.span(), 1, dependent.view());
    add_to(number.span(), 10, sound.view());
    CHECK_NOTHROW(sound.view().synchronize());
    CHECK(error_of([&] { (void)event.reached(); }).find(words) != std::string::npos);
    CHECK(error_of([&] { event.synchronize(); }).find(words) != std::string::npos);
    CHECK(error_of([&] { dependent.view().synchronize(); }).find(words) != std::string::npos);
    CHECK(error_of([&] { broken.view().synchronize(); }).find(words) != std::string::npos);
    CHECK(error_of([&] {
            (void)wait_until(event, std::chrono::steady_clock::now() + 10s);
          }).find(words) != std::string::npos);
    CHECK(read(number) == 10);
  }
}

TEST_CASE("emulated streams: what a device would not start is refused at once") {
  const Stream stream;
  const auto start = [&](unsigned threads, std::size_t shared) {
    emulated::start_kernel({1, threads, shared}, "here:1", stream.view(), [] {});
  };
  CHECK(error_of([&] { start(1025, 0); }) ==
        "launch failed at here:1: a block cannot have 1025 threads");
  CHECK(error_of([&] { start(32, 163 * 1024 + 1); }) ==
        "launch failed at here:1: a block cannot have 166913 bytes of shared memory");
  CHECK_NOTHROW(start(1024, 163 * 1024));
}

TEST_CASE("emulated streams: two threads pass numbers to and fro by events") {
  for (const EmulatedTiming timing : kTimings) {
    const ScopedEmulation during(with(timing));
    constexpr int kRounds = 50;
    const DeviceBuffer<Number> ball = zero();
    std::array<Stream, 2> streams;
    std::array<std::vector<Event>, 2> thrown;
    std::array<std::array<std::atomic<bool>, kRounds>, 2> recorded{};
    for (auto& events : thrown) events.resize(kRounds);
    const auto play = [&](std::size_t self) {
      const StreamView stream = streams[self].view();
      for (int round = 0; round < kRounds; ++round) {
        const auto i = static_cast<std::size_t>(round);
        // A wait may be queued once its event has been recorded, not before.
        if (const bool waits = self == 1 || round > 0; waits) {
          const std::size_t from = self == 1 ? i : i - 1;
          while (!recorded[1 - self][from]) std::this_thread::yield();
          thrown[1 - self][from].make_wait(stream);
        }
        emulated::enqueue(stream, "a throw", [number = ball.span().data, self] {
          *number = self == 0 ? *number + 1 : *number * 2 % 1000003;
        });
        thrown[self][i].record(stream);
        recorded[self][i] = true;
      }
    };
    std::thread other(play, 1);
    play(0);
    other.join();
    streams[1].view().synchronize();
    Number expected = 0;
    for (int round = 0; round < kRounds; ++round) expected = (expected + 1) * 2 % 1000003;
    CHECK(read(ball) == expected);
  }
}

TEST_CASE("split_device: equal parts in multiples of eight, as many as fit") {
  const auto sizes = [](int count, int multiprocessors) {
    std::vector<int> found;
    for (const Partition& part : split_device(count, multiprocessors)) {
      part.make_current();
      const Stream here;
      found.push_back(part.multiprocessors());
    }
    set_device(0);
    return found;
  };
  CHECK(sizes(1, 0) == std::vector<int>{128});
  CHECK(sizes(4, 0) == std::vector<int>{32, 32, 32, 32});
  CHECK(sizes(2, 30) == std::vector<int>{32, 32});
  CHECK(sizes(16, 0) == std::vector<int>(16, 8));
  CHECK_THROWS_WITH_AS(
      (void)split_device(17),
      "split_device: the device has too few multiprocessors for so many partitions, got 132",
      InvalidInput);
  CHECK_THROWS_WITH_AS(
      (void)split_device(2, 65),
      "split_device: the device has too few multiprocessors for so many partitions, got 132",
      InvalidInput);
  CHECK_THROWS_WITH_AS((void)split_device(0), "split_device: count must be >= 1, got 0",
                       InvalidInput);
  CHECK_THROWS_WITH_AS((void)split_device(1, -1),
                       "split_device: multiprocessors must be >= 0, got -1", InvalidInput);
}

TEST_CASE(
    "Partition: events and launches stay in the partition of their stream, waits may leave it") {
  const std::vector<Partition> parts = split_device(2);
  const DeviceBuffer<float> numbers(8);
  const Stream whole;
  Event outside;
  parts[0].make_current();
  const Stream inside;
  Event event;
  CHECK_NOTHROW(add(numbers.span(), numbers.span(), inside.view()));
  CHECK_NOTHROW(event.record(inside.view()));
  CHECK_NOTHROW(event.make_wait(whole.view()));
  CHECK(error_of([&] { outside.record(inside.view()); }) ==
        "cudaEventRecord failed: the stream belongs to another partition or device than the event");
  CHECK(error_of([&] { event.record(whole.view()); }) ==
        "cudaEventRecord failed: the stream belongs to another partition or device than the event");
  CHECK_NOTHROW(copy_on_device(numbers.span().data, numbers.span().data, 0, whole.view()));
  parts[1].make_current();
  CHECK(error_of([&] {
          add(numbers.span(), numbers.span(), inside.view());
        }).find("the stream belongs to another partition or device than is current") !=
        std::string::npos);
  set_device(0);
  CHECK_NOTHROW(add(numbers.span(), numbers.span(), whole.view()));
  CHECK_NOTHROW(whole.view().synchronize());
}

}  // namespace streams_test
