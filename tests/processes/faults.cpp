// SPDX-License-Identifier: Apache-2.0
// A rank of many for faults.py: it meets the others in step after step, and one of them fails.
//   process_faults FAULT RANK STEPS
// In step 3 the rank RANK throws, waits for ever, stops or kills itself, or leaves (FAULT throw,
// hang, stop, kill, leave), or nothing happens (none). Variables of torchrun say who is who.
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <stdexcept>
#include <string>

#include "slimpack_processes/launch.hpp"
#include "slimpack_processes/session.hpp"

using namespace slimpack;

namespace {

void fail(const std::string& fault) {
  if (fault == "throw") throw std::runtime_error("out of luck");
  if (fault == "bad") throw InvalidInput("--option: must be good");
  if (fault == "stop") ::raise(SIGSTOP);
  if (fault == "kill") ::raise(SIGKILL);
  if (fault == "leave") ::_exit(0);
  if (fault == "hang") {
    std::mutex mutex;
    std::unique_lock lock(mutex);
    std::condition_variable().wait(lock, [] { return false; });
  }
}

int work(processes::Session& session, const std::string& fault, std::size_t victim, int steps) {
  for (int step = 0; step < steps; ++step) {
    session.monitor().announce("unit " + std::to_string(step));
    session.monitor().doing(processes::Doing::computing);
    if (step == 3 && session.rank() == victim) fail(fault);
    const auto all = processes::everyone(
        session, std::int64_t{step} * 100 + static_cast<std::int64_t>(session.rank()));
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      if (all[rank] != step * 100 + static_cast<std::int64_t>(rank)) {
        throw std::runtime_error("a rank's number is wrong");
      }
    }
    session.monitor().doing(processes::Doing::outside);
  }
  if (session.rank() == 0) std::puts("done");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  try {
    processes::SessionOptions options;
    options.bootstrap.deadline = std::chrono::seconds(8);
    processes::Session session(processes::launch_of(processes::environment()), options);
    return processes::run(session, [&](processes::Session& ranks) {
      return work(ranks, argv[1], std::stoul(argv[2]), std::stoi(argv[3]));
    });
  } catch (const InvalidInput& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
