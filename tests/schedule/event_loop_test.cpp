// SPDX-License-Identifier: Apache-2.0
#include "slimpack/schedule/event_loop.hpp"

#include <doctest/doctest.h>
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "slimpack/core/random.hpp"

using namespace slimpack;

namespace {

/// Runs the durations of each device one after the other and writes down what is called.
struct Recorder {
  explicit Recorder(const std::vector<std::vector<std::int64_t>>& of)
      : durations(of), next(of.size()), running(of.size(), false) {
    loop.reset(of.size());
  }
  [[nodiscard]] bool busy(std::uint32_t device) const { return running[device]; }
  void finish(std::uint32_t device) {
    running[device] = false;
    note("end", device);
  }
  void decide(std::uint32_t device) {
    if (next[device] == durations[device].size()) return;
    note("begin", device);
    running[device] = true;
    loop.set(device, loop.now() + durations[device][next[device]++]);
  }
  bool settle() {
    ++settled;
    return false;
  }
  bool unblock() {
    if (more == 0) return false;
    --more;
    durations[0].push_back(1);
    loop.ask(0);
    return true;
  }
  void note(const std::string& what, std::uint32_t device) {
    text += std::to_string(loop.now()) + " " + what + " " + std::to_string(device) + "\n";
  }

  schedule::EventLoop loop;
  std::vector<std::vector<std::int64_t>> durations;
  std::vector<std::size_t> next;
  std::vector<bool> running;
  std::string text;
  int settled = 0, more = 0;
};
static_assert(schedule::EventPolicy<Recorder> && !schedule::EventPolicy<int>);

}  // namespace

TEST_CASE("NextEvent: the earliest event, equal ones by device, whatever is set") {
  schedule::NextEvent events;  // the same for few and for many devices
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    std::vector<std::int64_t> times(static_cast<std::size_t>(random.between(1, 20)),
                                    schedule::kNever);
    events.reset(times.size());
    CHECK(events.time() == schedule::kNever);
    for (int change = 0; change < 100; ++change) {
      const auto device = static_cast<std::uint32_t>(random.below(times.size()));
      times[device] = random.chance(1, 4) ? schedule::kNever : random.between(0, 9);
      events.set(device, times[device]);
      const auto least = std::min_element(times.begin(), times.end());
      CHECK(events.time() == *least);
      CHECK(events.time(device) == times[device]);
      if (*least == schedule::kNever) continue;
      CHECK(events.device() == static_cast<std::uint32_t>(least - times.begin()));
    }
  }
}

TEST_CASE(
    "EventLoop: what ends at an instant ends before anything begins, high devices decide first") {
  Recorder recorder({{2, 1}, {2}, {3}});
  recorder.loop.run(recorder);
  CHECK(recorder.text ==
        "0 begin 2\n0 begin 1\n0 begin 0\n"
        "2 end 0\n2 end 1\n2 begin 0\n"
        "3 end 0\n3 end 2\n");
  CHECK(recorder.settled == 3);
}

TEST_CASE("EventLoop: what takes no time ends at its instant") {
  Recorder recorder({{0, 0}, {1}});
  recorder.loop.run(recorder);
  CHECK(recorder.text == "0 begin 1\n0 begin 0\n0 end 0\n0 begin 0\n0 end 0\n1 end 1\n");
}

TEST_CASE("EventLoop: the policy may go on when no event is left") {
  Recorder recorder({{}, {5}});
  recorder.more = 2;
  recorder.loop.run(recorder);
  CHECK(recorder.text == "0 begin 1\n5 end 1\n5 begin 0\n6 end 0\n6 begin 0\n7 end 0\n");
  CHECK(recorder.loop.now() == 7);
}
