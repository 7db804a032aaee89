// SPDX-License-Identifier: Apache-2.0
// Where the devices, channels and links of a plan that is being timed stand.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "slimpack/plan/plan.hpp"
#include "slimpack/sim/schedule_tables.hpp"

namespace slimpack::sim::detail {

struct FastDevice {
  std::size_t next = 0;  ///< in its order: the unit that runs or comes next
  bool busy = false;     ///< that unit runs
  bool known = false;    ///< `place` is that of this unit
  bool there = false;    ///< waits for the other devices of its collective, or runs with them
  ScheduleTables::Place place;
  Unit last{};                         ///< that ended; its times, and of all of them the sum
  std::int64_t started = 0, ends = 0;  ///< of the unit that runs or ran last
  std::int64_t worked = 0;
};

struct FastChannel {
  std::uint32_t made = 0, sent = 0;  ///< messages whose unit has ended; that have their time
};

struct FastLink {
  struct Message {
    std::int64_t possible = 0;  ///< when it could go
    std::size_t place = 0;      ///< of its unit in the sender's order
    std::uint32_t message = 0;
    auto operator<=>(const Message&) const = default;
  };
  std::int64_t free = 0;  ///< when all messages that have their time have passed
  std::uint32_t channels = 0;
  bool waits = false;            ///< chooses its next messages when the instant is over
  std::vector<Message> waiting;  ///< of a link with several channels
};

}  // namespace slimpack::sim::detail
