// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "ops/placement.hpp"
#include "slimpack_cuda/device.hpp"
#include "slimpack_cuda/elements.hpp"

namespace device_test {

using namespace slimpack::cuda;

TEST_CASE("DeviceBuffer: what is uploaded comes back") {
  const Stream stream;
  std::vector<std::int32_t> values;
  for (std::int32_t i = 0; i < 1000; ++i) values.push_back(i * 7919);
  const DeviceBuffer<std::int32_t> buffer(1000);
  upload(buffer.span(), std::span<const std::int32_t>(values), stream.view());
  CHECK(download(buffer.span(), stream.view()) == values);
}

TEST_CASE("device_properties: a device has multiprocessors, memory and a name") {
  const DeviceProperties properties = device_properties();
  CHECK(properties.multiprocessors > 0);
  CHECK(properties.memory > 0);
  CHECK_FALSE(properties.name.empty());
}

TEST_CASE("PinnedBuffer, copy_on_device: numbers go there, across and back by the stream's order") {
  const Stream owner;
  const StreamView stream = owner.view();
  constexpr std::int64_t kSize = 1000;
  const PinnedBuffer<float> out(kSize), back(kSize);
  const DeviceBuffer<float> first(kSize), second(kSize);
  std::iota(out.span().begin(), out.span().end(), 1.0F);
  upload(first.span(), std::span<const float>(out.span()), stream);
  copy_on_device(second.span().data, first.span().data, kSize * sizeof(float), stream);
  add(second.span(), first.span(), stream);
  copy_to_host(back.span(), second.span(), stream);
  Event done;
  done.record(stream);
  REQUIRE(wait_until(done, std::chrono::steady_clock::now() + std::chrono::seconds(30)));
  CHECK(done.reached());
  for (std::size_t i = 0; i < kSize; ++i) CHECK(back.span()[i] == 2 * out.span()[i]);
}

TEST_CASE("split_device: work of a part of the card gives what the whole card's does") {
  constexpr std::int64_t kSize = 100000;
  std::vector<float> numbers(kSize);
  std::iota(numbers.begin(), numbers.end(), 0.0F);
  const DeviceBuffer<float> values(kSize);
  upload(values.span(), std::span<const float>(numbers), StreamView());
  StreamView().synchronize();
  for (const Partition& part : split_device(2)) {
    CHECK(part.multiprocessors() >= 4);
    CHECK(part.multiprocessors() <= device_properties().multiprocessors / 2);
    part.make_current();
    {
      const Stream here;
      const DeviceBuffer<float> sum(kSize);
      copy_on_device(sum.span().data, values.span().data, kSize * sizeof(float), here.view());
      add(sum.span(), values.span(), here.view());
      const std::vector<float> found = download(sum.span(), here.view());
      bool same = true;
      for (std::size_t i = 0; i < kSize; ++i) same = same && found[i] == 2 * numbers[i];
      CHECK(same);
    }
    set_device(0);
  }
}

TEST_CASE("streams, events: priority, and times where they were asked for") {
  const Stream normal, high(StreamPriority::high);
  CHECK(normal.view().priority() == StreamPriority::normal);
  CHECK(high.view().priority() == StreamPriority::high);
  Event begin(EventUse::time), end(EventUse::time), untimed;
  begin.record(high.view());
  untimed.record(high.view());
  end.record(high.view());
  end.synchronize();
  CHECK(end.milliseconds_since(begin) >= 0);
  CHECK_THROWS_AS((void)end.milliseconds_since(untimed), CudaError);
}

#ifndef SLIMPACK_EMULATED
TEST_CASE("split_device: partitions run on multiprocessors that no other one has") {
  const auto size = static_cast<std::int64_t>(2 * device_properties().multiprocessors);
  std::vector<std::int32_t> parts(static_cast<std::size_t>(size), 0);  // that have run on each
  for (const Partition& part : split_device(4)) {
    part.make_current();
    {
      const Stream here(StreamPriority::high);
      const DeviceBuffer<std::int32_t> seen(size);
      const std::vector<std::int32_t> none(static_cast<std::size_t>(size), 0);
      upload(seen.span(), std::span<const std::int32_t>(none), here.view());
      detail::note_multiprocessors(seen.span(), 4096, here.view());
      int own = 0;
      const std::vector<std::int32_t> found = download(seen.span(), here.view());
      for (std::size_t i = 0; i < found.size(); ++i) parts[i] += found[i], own += found[i];
      CHECK(own == part.multiprocessors());
    }
    set_device(0);
  }
  for (const std::int32_t count : parts) CHECK(count <= 1);
}
#endif

TEST_CASE("free_memory: less while memory is held") {
  const std::int64_t before = free_memory();
  const DeviceBuffer<std::byte> some(64 << 20);
  CHECK(free_memory() <= before - (32 << 20));
  CHECK(device_count() >= 1);
  CHECK_THROWS_AS(set_device(device_count()), CudaError);
}

}  // namespace device_test
