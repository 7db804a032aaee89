// SPDX-License-Identifier: Apache-2.0
// Ranks as threads that find each other over the loopback.
#include <doctest/doctest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <future>
#include <memory>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "slimpack_processes/bootstrap.hpp"

namespace bootstrap_test {

using namespace slimpack;
using namespace std::chrono_literals;
using processes::BootstrapOptions;
using processes::Launch;

namespace {

/// A port that is free now, of those that the system gives nobody who asks for any.
std::uint16_t free_port() {
  static std::random_device random;
  for (;;) {
    const auto port = static_cast<std::uint16_t>(10000 + random() % 20000);
    try {
      static_cast<void>(processes::listen_at(port, 1));
      return port;
    } catch (const std::runtime_error&) {
      continue;  // it is taken
    }
  }
}

Launch launch_of(std::size_t rank, std::size_t size, std::uint16_t port) {
  Launch launch;
  launch.rank = rank;
  launch.size = size;
  launch.port = port;
  launch.job = "test";
  return launch;
}

BootstrapOptions within(std::chrono::milliseconds deadline) {
  BootstrapOptions options;
  options.deadline = deadline;
  options.stranger = 400ms;
  options.tell_strangers = false;
  return options;
}

/// What a rank ended with: a ring, or a sentence.
struct End {
  std::optional<processes::Ring> ring;
  std::string sentence;
};

std::future<End> start(Launch launch, BootstrapOptions options) {
  return std::async(std::launch::async, [launch = std::move(launch), options] {
    End end;
    try {
      end.ring = processes::find_each_other(launch, options);
    } catch (const processes::BootstrapError& error) {
      end.sentence = error.what();
    }
    return end;
  });
}

/// A connection to rank 0, as soon as it takes some.
processes::Descriptor knock(std::uint16_t port) {
  processes::Descriptor socket;
  std::string why;
  for (int i = 0; i < 400 && !socket.open(); ++i) {
    socket = processes::try_connect("127.0.0.1", port, processes::Clock::now() + 2s, why);
    if (!socket.open()) std::this_thread::sleep_for(5ms);
  }
  CHECK_MESSAGE(socket.open(), why);
  return socket;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("bootstrap: ranks that come in any order find each other") {
  for (const char* host : {"127.0.0.1", "localhost", "::1"}) {
    CAPTURE(host);
    constexpr std::size_t kRanks = 5;
    const std::uint16_t port = free_port();
    std::vector<std::future<End>> ranks(kRanks);
    for (const std::size_t rank : std::vector<std::size_t>{3, 1, 0, 4, 2}) {
      Launch launch = launch_of(rank, kRanks, port);
      launch.host = host;
      ranks[rank] = start(launch, within(8s));
      std::this_thread::sleep_for(5ms);
    }
    std::vector<End> ends;
    for (auto& rank : ranks) ends.push_back(rank.get());
    for (const End& end : ends) {
      CHECK(end.sentence == "");
      REQUIRE(end.ring.has_value());
      CHECK(end.ring->token == ends[0].ring->token);
      CHECK(end.ring->hosts == ends[0].ring->hosts);
      CHECK(end.ring->hosts.size() == kRanks);
      CHECK(end.ring->one_machine);
    }
    // Messages of any length go both ways.
    std::vector<std::byte> message(3'000'000, std::byte{7});
    auto sent = std::async(std::launch::async, [&] { ends[2].ring->root.send(message, [] {}); });
    CHECK(ends[0].ring->lines[2].take([] {}) == message);
    sent.get();
  }
}

TEST_CASE("bootstrap: one rank needs nobody") {
  const processes::Ring ring = processes::find_each_other(launch_of(0, 1, 1));
  CHECK(ring.hosts.size() == 1);
  CHECK_FALSE(ring.token.empty());
}

TEST_CASE("bootstrap: ranks that do not come are named to all that came") {
  const std::uint16_t port = free_port();
  auto zero = start(launch_of(0, 5, port), within(600ms));
  auto two = start(launch_of(2, 5, port), within(600ms));
  const std::string sentence = "ranks 1, 3, 4 of 5 ranks have not arrived at 127.0.0.1, port " +
                               std::to_string(port) + " within 600 ms";
  CHECK(zero.get().sentence == sentence);
  CHECK(two.get().sentence == sentence);
}

TEST_CASE("bootstrap: rank 0 that does not come is named") {
  const std::uint16_t port = free_port();
  const End end = start(launch_of(1, 2, port), within(300ms)).get();
  CHECK(has(end.sentence, "rank 0 of 2 ranks has not answered at 127.0.0.1, port " +
                              std::to_string(port) + " within 300 ms: Connection refused"));
  Launch launch = launch_of(1, 2, port);
  launch.host = "no.such.host.invalid";
  const End unknown = start(launch, within(300ms)).get();
  CHECK(has(unknown.sentence, "host 'no.such.host.invalid' is not known"));
}

TEST_CASE("bootstrap: a rank that ends before all have come is named") {
  const std::uint16_t port = free_port();
  auto zero = start(launch_of(0, 4, port), within(8s));
  auto one = start(launch_of(1, 4, port), within(8s));
  {
    const auto socket = knock(port);
    REQUIRE(socket.open());
    const std::string hello =
        std::string(processes::detail::Gate::kVersion) + "\ntest\n4\n2\nelsewhere\n";
    CHECK(::send(socket.get(), hello.data(), hello.size(), MSG_NOSIGNAL) > 0);
    std::this_thread::sleep_for(300ms);
  }
  const std::string sentence = "rank 2 of 4 ranks, on elsewhere, has ended before all had arrived";
  CHECK(zero.get().sentence == sentence);
  CHECK(one.get().sentence == sentence);
}

TEST_CASE(
    "bootstrap: strangers and ranks of other jobs are sent away, and the others find each other") {
  const std::uint16_t port = free_port();
  auto zero = start(launch_of(0, 2, port), within(8s));
  const auto web = knock(port);
  const std::string request = "GET / HTTP/1.1\r\n\r\n";
  CHECK(::send(web.get(), request.data(), request.size(), MSG_NOSIGNAL) > 0);
  const auto silent = knock(port);
  {
    const auto gone = knock(port);
  }
  const auto refused = [&](Launch launch, const std::string& text) {
    const End end = start(std::move(launch), within(2s)).get();
    CHECK_MESSAGE(has(end.sentence, text), end.sentence);
  };
  Launch other = launch_of(1, 2, port);
  other.job = "other";
  refused(other, "has sent rank 1 away: it is of another job ('other', not 'test')");
  refused(launch_of(1, 3, port), "has sent rank 1 away: it is one of 3 ranks, not of 2");
  auto one = start(launch_of(1, 2, port), within(8s));
  CHECK(one.get().sentence == "");
  CHECK(zero.get().sentence == "");
}

TEST_CASE("bootstrap: a number that came twice, and what is no rank 0") {
  const std::uint16_t port = free_port();
  auto zero = start(launch_of(0, 3, port), within(1s));
  auto first = start(launch_of(1, 3, port), within(1s));
  std::this_thread::sleep_for(200ms);
  const End second = start(launch_of(1, 3, port), within(1s)).get();
  CHECK(has(second.sentence, "has sent rank 1 away: rank 1 is here already"));
  CHECK(has(zero.get().sentence, "rank 2 of 3 ranks has not arrived"));
  CHECK(has(first.get().sentence, "rank 2 of 3 ranks has not arrived"));

  auto [listener, taken] = processes::listen_socket(false, 4);
  const End lost = start(launch_of(1, 2, taken), within(500ms)).get();
  CHECK(has(lost.sentence, "is no rank 0 of slimpack"));
  const End busy = start(launch_of(0, 2, taken), within(500ms)).get();
  CHECK(has(busy.sentence, "rank 0 cannot listen at port " + std::to_string(taken)));
  CHECK(has(busy.sentence, "MASTER_PORT names another one"));
}

}  // namespace bootstrap_test
