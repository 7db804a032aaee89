// SPDX-License-Identifier: Apache-2.0
#include "slimpack/runtime/thread_transport.hpp"

#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "slimpack/core/random.hpp"

using namespace slimpack;
using runtime::ProcessGroup;
using runtime::Reduction;
using runtime::Rendezvous;
using runtime::ThreadTransport;

namespace {

const runtime::Channel kDown{GroupId{0}, 0, runtime::Direction::down, 0, 1};
const runtime::Channel kUp{GroupId{0}, 0, runtime::Direction::up, 1, 0};

std::span<std::byte> bytes_of(std::vector<double>& values) {
  return std::as_writable_bytes(std::span(values));
}

/// Runs work(device, link) on a thread each; returns what each threw, empty for nothing.
std::vector<std::string> run_threads(
    Rendezvous& rendezvous, std::size_t devices,
    const std::function<void(std::size_t, ThreadTransport&)>& work) {
  std::vector<std::string> thrown(devices);
  {
    std::vector<std::jthread> threads;
    for (std::size_t device = 0; device < devices; ++device) {
      threads.emplace_back([&, device] {
        try {
          ThreadTransport link(rendezvous, device);
          link.announce("device " + std::to_string(device));
          work(device, link);
        } catch (const Deadlock& error) {
          thrown[device] = std::string("Deadlock: ") + error.what();
        } catch (const runtime::Aborted& error) {
          thrown[device] = std::string("Aborted: ") + error.what();
        } catch (const std::exception& error) {
          thrown[device] = error.what();
        }
        rendezvous.leave(device);
      });
    }
  }
  return thrown;
}

runtime::ProcessGroup all_of(std::size_t devices, std::size_t self) {
  runtime::ProcessGroup process_group{{}, self};
  for (std::size_t device = 0; device < devices; ++device) process_group.members.push_back(device);
  return process_group;
}

}  // namespace

TEST_CASE("ThreadTransport: messages arrive in order through windows of any size") {
  for (std::int32_t max_in_flight = 1; max_in_flight <= 3; ++max_in_flight) {
    CAPTURE(max_in_flight);
    constexpr std::size_t kMessages = 50;
    const auto size = static_cast<std::size_t>(max_in_flight);
    Rendezvous rendezvous(2, max_in_flight);
    std::vector<double> got;
    const auto thrown = run_threads(rendezvous, 2, [&](std::size_t device, ThreadTransport& link) {
      std::vector<std::vector<double>> buffers(kMessages);
      for (std::size_t i = 0; i < kMessages; ++i) buffers[i] = {static_cast<double>(i), 0.5};
      if (device == 0) {
        for (std::size_t i = 0; i < kMessages; ++i) {
          if (i >= size) link.await_send(kDown, i - size);
          link.queue_send(kDown, i, bytes_of(buffers[i]));
        }
        link.await_send(kDown, kMessages - 1);
        CHECK(link.send_ended(kDown, kMessages - 1));
        return;
      }
      for (auto& buffer : buffers) buffer = {-1.0, -1.0};
      for (std::size_t i = 0; i < size; ++i) link.post_receive(kDown, i, bytes_of(buffers[i]));
      for (std::size_t i = 0; i < kMessages; ++i) {
        link.await_receive(kDown, i);
        got.push_back(buffers[i][0]);
        if (i + size < kMessages) link.post_receive(kDown, i + size, bytes_of(buffers[i + size]));
      }
    });
    CHECK(thrown == std::vector<std::string>(2));
    REQUIRE(got.size() == kMessages);
    for (std::size_t i = 0; i < kMessages; ++i) CHECK(got[i] == static_cast<double>(i));
    CHECK(rendezvous.leftover().empty());
  }
}

TEST_CASE("ThreadTransport: a transfer waits for both sides") {
  Rendezvous rendezvous(2, 1);
  ThreadTransport sender(rendezvous, 0), receiver(rendezvous, 1);
  std::vector<double> from{1, 2}, into{0, 0};
  sender.queue_send(kDown, 0, bytes_of(from));
  CHECK_FALSE(sender.send_ended(kDown, 0));
  CHECK(rendezvous.leftover() ==
        "an unfinished message on the channel of group 0, rank 0, activations from stage 0 to "
        "stage 1");
  receiver.post_receive(kDown, 0, bytes_of(into));
  CHECK(sender.send_ended(kDown, 0));
  CHECK(into == from);
}

TEST_CASE("ThreadTransport: wrong order, too many in flight and wrong sizes are refused") {
  Rendezvous rendezvous(2, 1);
  ThreadTransport sender(rendezvous, 0), receiver(rendezvous, 1);
  std::vector<double> two{1, 2}, three{1, 2, 3};
  const std::string channel =
      "the channel of group 0, rank 0, activations from stage 0 to stage 1, got ";
  CHECK_THROWS_WITH_AS(
      sender.queue_send(kDown, 1, bytes_of(two)),
      ("transport: sends must be queued in order and within max_in_flight on " + channel + "1")
          .c_str(),
      InvalidInput);
  sender.queue_send(kDown, 0, bytes_of(two));
  CHECK_THROWS_WITH_AS(
      sender.queue_send(kDown, 1, bytes_of(two)),
      ("transport: sends must be queued in order and within max_in_flight on " + channel + "1")
          .c_str(),
      InvalidInput);
  CHECK_THROWS_WITH_AS(
      receiver.post_receive(kDown, 0, bytes_of(three)),
      ("transport: both sides must post as many bytes on " + channel + "24").c_str(), InvalidInput);
  CHECK_THROWS_WITH_AS(
      receiver.post_receive(kDown, 1, bytes_of(two)),
      ("transport: receives must be posted in order and within max_in_flight on " + channel + "1")
          .c_str(),
      InvalidInput);
  CHECK_THROWS_WITH_AS(ThreadTransport(rendezvous, 2),
                       "ThreadTransport: device must be one of the rendezvous, "
                       "got 2",
                       InvalidInput);
  CHECK_THROWS_WITH_AS(Rendezvous(0, 1), "Rendezvous: devices must be >= 1", InvalidInput);
  CHECK_THROWS_WITH_AS(Rendezvous(1, 0), "Rendezvous: max_in_flight must be >= 1, got 0",
                       InvalidInput);
  CHECK_THROWS_WITH_AS(sender.await_sum(all_of(2, 0), 4),
                       "transport: a sum must be queued before it is awaited, got 4", InvalidInput);
  CHECK_THROWS_WITH_AS(sender.all_gather(all_of(1, 0), std::span(two), 1, 3),
                       "transport: all_gather past the end, got 3", InvalidInput);
}

TEST_CASE("ThreadTransport: collectives give every member the same result, in the members' order") {
  for (std::size_t devices = 1; devices <= 4; ++devices) {
    CAPTURE(devices);
    Rendezvous rendezvous(devices, 1);
    std::vector<std::vector<double>> rung(devices), sums(devices), maxima(devices), told(devices),
        gathered(devices), later(devices);
    const auto value = [](std::size_t device) { return 0.1 + static_cast<double>(device) / 3.0; };
    const auto thrown =
        run_threads(rendezvous, devices, [&](std::size_t device, ThreadTransport& link) {
          const runtime::ProcessGroup all = all_of(devices, device);
          std::vector<double> mine(device + 1, value(device));  // members' sizes may differ
          rung[device].resize((device + devices - 1) % devices + 1);
          later[device] = {value(device), value(device)};
          link.queue_sum(all, 7, std::span(later[device]));
          link.ring(all, 0, std::as_bytes(std::span(mine)), bytes_of(rung[device]));
          sums[device] = {value(device)};
          maxima[device] = {value(device)};
          told[device] = {value(device)};
          gathered[device].assign(devices, -1.0);
          gathered[device][device] = value(device);
          link.all_reduce(all, std::span(sums[device]), runtime::Reduction::sum);
          link.all_reduce(all, std::span(maxima[device]), runtime::Reduction::maximum);
          link.broadcast(all, devices - 1, std::span(told[device]));
          link.all_gather(all, std::span(gathered[device]), device, device + 1);
          link.await_sum(all, 7);
        });
    CHECK(thrown == std::vector<std::string>(devices));
    CHECK(rendezvous.leftover().empty());
    double sum = value(0);
    for (std::size_t device = 1; device < devices; ++device) sum += value(device);
    for (std::size_t device = 0; device < devices; ++device) {
      const std::size_t before = (device + devices - 1) % devices;
      CHECK(rung[device] == std::vector<double>(before + 1, value(before)));
      CHECK(sums[device][0] == sum);
      CHECK(later[device] == std::vector<double>(2, sum));
      CHECK(maxima[device][0] == value(devices - 1));
      CHECK(told[device][0] == value(devices - 1));
      for (std::size_t other = 0; other < devices; ++other) {
        CHECK(gathered[device][other] == value(other));
      }
    }
  }
}

TEST_CASE("ThreadTransport: all_to_all brings every member what each gives it") {
  for (std::size_t devices = 1; devices <= 4; ++devices) {
    CAPTURE(devices);
    Rendezvous rendezvous(devices, 1);
    // Member i gives member j i + 2 j numbers, so that the first gives itself none.
    const auto part = [](std::size_t giver, std::size_t taker) {
      return std::vector<double>(giver + 2 * taker, 0.5 + static_cast<double>(giver * 8 + taker));
    };
    std::vector<std::vector<std::vector<double>>> taken(devices);
    const auto thrown =
        run_threads(rendezvous, devices, [&](std::size_t device, ThreadTransport& link) {
          std::vector<std::vector<double>> given;
          for (std::size_t other = 0; other < devices; ++other) {
            given.push_back(part(device, other));
            taken[device].emplace_back(part(other, device).size(), -1.0);
          }
          std::vector<std::span<const std::byte>> from;
          std::vector<std::span<std::byte>> into;
          for (auto& values : given) from.push_back(bytes_of(values));
          for (auto& values : taken[device]) into.push_back(bytes_of(values));
          link.all_to_all(all_of(devices, device), from, into);
        });
    CHECK(thrown == std::vector<std::string>(devices));
    CHECK(rendezvous.leftover().empty());
    for (std::size_t device = 0; device < devices; ++device) {
      for (std::size_t other = 0; other < devices; ++other) {
        CHECK(taken[device][other] == part(other, device));
      }
    }
  }
}

TEST_CASE("ThreadTransport: several all_to_all are under way, and end in the order of beginnings") {
  const std::vector<double> given{1, 2};
  std::vector<double> taken(2);
  Rendezvous rendezvous(1, 1);
  ThreadTransport link(rendezvous, 0);
  CHECK_THROWS_WITH_AS(link.end_all_to_all(), "transport: no all_to_all is under way",
                       InvalidInput);
  for (std::size_t i = 0; i < 2; ++i) {
    const std::span<const std::byte> from = std::as_bytes(std::span(given).subspan(i, 1));
    const std::span<std::byte> into = std::as_writable_bytes(std::span(taken).subspan(i, 1));
    link.begin_all_to_all(all_of(1, 0), std::span(&from, 1), std::span(&into, 1));
    if (i == 0) continue;
    CHECK_THROWS_WITH_AS(link.all_to_all(all_of(1, 0), std::span(&from, 1), std::span(&into, 1)),
                         "transport: an all_to_all is under way", InvalidInput);
  }
  link.end_all_to_all();
  link.end_all_to_all();
  CHECK(taken == given);
}

TEST_CASE("ThreadTransport: all_to_all refuses parts that do not fit") {
  Rendezvous rendezvous(1, 1);
  ThreadTransport link(rendezvous, 0);
  std::vector<double> two{1, 2}, three{1, 2, 3};
  const std::array<std::span<const std::byte>, 2> from{bytes_of(two), bytes_of(two)};
  const std::array<std::span<std::byte>, 1> into{bytes_of(three)};
  CHECK_THROWS_WITH_AS(link.all_to_all(all_of(1, 0), from, into),
                       "transport: all_to_all needs one part a member, got 2", InvalidInput);
  CHECK_THROWS_WITH_AS(link.all_to_all(all_of(1, 0), std::span(from).first(1), into),
                       "transport: members of all_to_all must agree on bytes, got 24",
                       InvalidInput);
}

TEST_CASE("ThreadTransport: members that disagree on sizes are told so, and nobody hangs") {
  Rendezvous rendezvous(2, 1);
  std::atomic<bool> arrived = false;
  const auto thrown = run_threads(rendezvous, 2, [&](std::size_t device, ThreadTransport& link) {
    std::vector<double> values(device + 1, 1.0);
    while (device == 1 && !arrived) std::this_thread::yield();
    arrived = true;
    try {
      link.all_reduce(all_of(2, device), std::span(values), runtime::Reduction::sum);
    } catch (const InvalidInput& error) {
      link.abort(error.what());
      throw;
    }
  });
  const std::string sentence = "transport: members must agree on bytes, got ";
  const bool first = thrown[0].starts_with("Aborted");
  CHECK(thrown[first ? 1 : 0].starts_with(sentence));
  CHECK(thrown[first ? 0 : 1] == "Aborted: " + thrown[first ? 1 : 0]);
}

TEST_CASE("ThreadTransport: abort wakes whoever waits, and all later calls throw its sentence") {
  Rendezvous rendezvous(6, 1);
  const auto thrown = run_threads(rendezvous, 6, [&](std::size_t device, ThreadTransport& link) {
    std::vector<double> values{1.0};
    switch (device) {
      case 0:
        link.post_receive(kDown, 0, bytes_of(values));
        link.await_receive(kDown, 0);
        break;
      case 1:
        link.queue_send(kUp, 0, bytes_of(values));
        link.await_send(kUp, 0);
        break;
      case 2:
        link.all_reduce(runtime::ProcessGroup{{2, 4}, 0}, std::span(values),
                        runtime::Reduction::sum);
        break;
      case 3:
        link.queue_sum(runtime::ProcessGroup{{3, 4}, 0}, 1, std::span(values));
        link.await_sum(runtime::ProcessGroup{{3, 4}, 0}, 1);
        break;
      case 5: {
        const std::array<std::span<const std::byte>, 2> from{bytes_of(values), bytes_of(values)};
        std::vector<double> other{0.0}, own{0.0};
        const std::array<std::span<std::byte>, 2> into{bytes_of(other), bytes_of(own)};
        link.all_to_all(runtime::ProcessGroup{{4, 5}, 1}, from, into);
        break;
      }
      default:
        link.abort("the fifth has failed");
        CHECK_THROWS_AS((void)link.send_ended(kUp, 0), runtime::Aborted);
    }
  });
  for (const std::size_t device : {0U, 1U, 2U, 3U, 5U}) {
    CHECK(thrown[device] == "Aborted: the fifth has failed");
  }
  CHECK(thrown[4].empty());
}

TEST_CASE("ThreadTransport: when nobody can go on, one throws Deadlock with what each awaits") {
  Rendezvous rendezvous(3, 1);
  const auto thrown = run_threads(rendezvous, 3, [&](std::size_t device, ThreadTransport& link) {
    std::vector<double> values{1.0};
    if (device == 0) {
      link.post_receive(kUp, 0, bytes_of(values));
      link.await_receive(kUp, 0);
    } else if (device == 1) {
      link.all_reduce(runtime::ProcessGroup{{0, 1}, 1}, std::span(values), runtime::Reduction::sum);
    }
  });
  const std::string list =
      "execution cannot end: device 0 awaits message 0 of the channel of group 0, rank 0, "
      "gradients from stage 1 to stage 0; device 1 awaits a collective with [device 0]";
  std::size_t deadlocks = 0, aborted = 0;
  for (const std::string& text : thrown) {
    if (text == "Deadlock: " + list) ++deadlocks;
    if (text == "Aborted: " + list) ++aborted;
  }
  CHECK(deadlocks + aborted == 2);  // the last to leave may be the one who finds it
  CHECK(deadlocks <= 1);
  CHECK(thrown[2].empty());
}
