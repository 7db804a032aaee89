// SPDX-License-Identifier: Apache-2.0
// The transport between ranks of one process on the memory of a device.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cuda/stream_exchange.hpp"

namespace stream_transport_test {

using namespace slimpack;

TEST_CASE("StreamTransport: random exchanges on one device bring every rank what others gave") {
  for (std::size_t ranks = 1; ranks <= 4; ++ranks) {
    runtime::DeviceThreads device_threads(ranks);
    for (std::uint64_t seed = 0; seed < 4; ++seed) {
      CAPTURE(ranks);
      CAPTURE(seed);
      const auto here = [](std::size_t) {};
      CHECK(test::exchange_on_streams<float>(device_threads, seed, here) ==
            std::vector<std::string>(ranks));
      CHECK(test::exchange_on_streams<double>(device_threads, seed, here) ==
            std::vector<std::string>(ranks));
    }
  }
}

TEST_CASE("StreamTransport: ranks on parts of one device exchange the same") {
  const std::vector<cuda::Partition> parts = cuda::split_device(4);
  runtime::DeviceThreads device_threads(parts.size());
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    CAPTURE(seed);
    const auto wrong = test::exchange_on_streams<float>(
        device_threads, seed, [&](std::size_t rank) { parts[rank].make_current(); });
    CHECK(wrong == std::vector<std::string>(parts.size()));
  }
}

}  // namespace stream_transport_test
