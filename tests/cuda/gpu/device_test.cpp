// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

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

TEST_CASE("free_memory: less while memory is held") {
  const std::int64_t before = free_memory();
  const DeviceBuffer<std::byte> some(64 << 20);
  CHECK(free_memory() <= before - (32 << 20));
  CHECK(device_count() >= 1);
  CHECK_THROWS_AS(set_device(device_count()), CudaError);
}

}  // namespace device_test
