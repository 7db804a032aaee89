// SPDX-License-Identifier: Apache-2.0
#include "slimpack/runtime/any_transport.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "runtime/transport_laws.hpp"
#include "slimpack/runtime/device_threads.hpp"
#include "slimpack/runtime/thread_transport.hpp"
#include "support/draws.hpp"

using namespace slimpack;

namespace {

/// Odd devices refer to their transports, the others keep them.
template <class Element>
void exchange_erased(runtime::DeviceThreads& device_threads, std::uint64_t seed) {
  const auto plan = test::random_exchange(seed, device_threads.size());
  runtime::Rendezvous rendezvous(device_threads.size(),
                                 static_cast<std::int32_t>(plan.max_in_flight));
  std::vector<std::string> wrong(device_threads.size());
  device_threads.run([&](std::size_t device) {
    const auto run = [&](runtime::AnyTransport& link) {
      wrong[device] = test::ExchangeRun<Element, runtime::AnyTransport>(plan, device, link).run();
    };
    runtime::ThreadTransport thread(rendezvous, device);
    if (device % 2 == 1) {
      runtime::ErasedTransport link(thread);
      run(link);
    } else {
      runtime::ErasedTransport link(std::move(thread));
      run(link);
    }
    rendezvous.leave(device);
  });
  CHECK(wrong == std::vector<std::string>(device_threads.size()));
  CHECK(rendezvous.leftover().empty());
}

}  // namespace

TEST_CASE("AnyTransport: random exchanges bring every device what the others gave") {
  for (std::size_t devices = 1; devices <= 3; ++devices) {
    CAPTURE(devices);
    runtime::DeviceThreads device_threads(devices);
    for (std::uint64_t seed = 0; seed < test::draws(60U); ++seed) {
      CAPTURE(seed);
      exchange_erased<double>(device_threads, seed);
      exchange_erased<float>(device_threads, seed + 1000);
    }
  }
}

TEST_CASE("AnyTransport: what the transport behind it throws comes through") {
  runtime::Rendezvous rendezvous(1, 1);
  runtime::ErasedTransport link(runtime::ThreadTransport(rendezvous, 0));
  std::array<std::byte, 1> bytes{};
  const runtime::Channel channel{GroupId{0}, 0, runtime::Direction::down, 0, 1};
  CHECK_THROWS_AS(link.post_receive(channel, 1, bytes), InvalidInput);
  link.announce("the only device");
  link.abort("it has to end");
  CHECK_THROWS_WITH_AS(link.announce("the only device"), "it has to end", runtime::Aborted);
}
