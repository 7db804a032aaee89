// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstdint>
#include <span>
#include <vector>

#include "slimpack_cuda/device.hpp"

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
