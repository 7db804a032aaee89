// SPDX-License-Identifier: Apache-2.0
// What a transport costs: messages, process groups and sums a second, and how long a message takes
// to a rank that waits while the sender computes. Between threads, or under mpirun between
// processes:
//   bench_transport [RANKS]              threads
//   mpirun -n RANKS bench_transport      processes
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "slimpack/runtime/device_threads.hpp"
#include "slimpack/runtime/thread_transport.hpp"
#ifdef SLIMPACK_WITH_MPI
#include "slimpack_mpi/mpi_transport.hpp"
#endif

namespace {

using namespace slimpack;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

void print(bool talks, const std::string& what, double value, const char* unit) {
  if (talks) std::printf("%-58s %12.1f %s\n", what.c_str(), value, unit);
}

runtime::ProcessGroup everybody(std::size_t ranks, std::size_t self) {
  runtime::ProcessGroup process_group{std::vector<std::size_t>(ranks), self};
  std::iota(process_group.members.begin(), process_group.members.end(), std::size_t{0});
  return process_group;
}

/// There and back again between ranks 0 and 1.
template <class Link>
void ping_pong(Link& link, std::size_t rank, std::size_t bytes, std::size_t rounds) {
  const runtime::Channel down{GroupId{0}, 0, runtime::Direction::down, 0, 1};
  const runtime::Channel up{GroupId{0}, 0, runtime::Direction::up, 1, 0};
  std::vector<std::byte> out(bytes), in(bytes);
  const auto begin = Clock::now();
  for (std::size_t i = 0; i < rounds && rank < 2; ++i) {
    link.post_receive(rank == 0 ? up : down, i, in);
    if (rank == 1) link.await_receive(down, i);
    link.queue_send(rank == 0 ? down : up, i, out);
    if (rank == 0) link.await_receive(up, i);
    link.await_send(rank == 0 ? down : up, i);
  }
  print(rank == 0, "messages of " + std::to_string(bytes) + " bytes, there and back",
        2 * static_cast<double>(rounds) / seconds_since(begin), "1/s");
}

template <class Link>
void process_groups(Link& link, std::size_t rank, std::size_t ranks, std::size_t elements,
                    std::size_t rounds) {
  std::vector<float> values(elements, 1.0F);
  const runtime::ProcessGroup all = everybody(ranks, rank);
  const auto begin = Clock::now();
  for (std::size_t i = 0; i < rounds; ++i) {
    link.all_reduce(all, std::span(values), runtime::Reduction::maximum);
  }
  print(rank == 0, "all_reduce of " + std::to_string(elements) + " floats",
        static_cast<double>(rounds) / seconds_since(begin), "1/s");
}

template <class Link>
void sums(Link& link, std::size_t rank, std::size_t ranks, std::size_t elements,
          std::size_t rounds) {
  std::vector<float> values(elements, 0.0F);
  const runtime::ProcessGroup all = everybody(ranks, rank);
  const auto begin = Clock::now();
  for (std::size_t i = 0; i < rounds; ++i) {
    link.queue_sum(all, static_cast<std::int64_t>(i), std::span(values));
    link.await_sum(all, static_cast<std::int64_t>(i));
  }
  print(rank == 0, "queue_sum of " + std::to_string(elements) + " floats",
        1e3 * seconds_since(begin) / static_cast<double>(rounds), "ms");
}

/// Rank 0 sends and computes for 20 ms; how long rank 1 waits for the message.
template <class Link>
void behind_compute(Link& link, std::size_t rank, std::size_t bytes, std::size_t rounds) {
  const runtime::Channel down{GroupId{1}, 0, runtime::Direction::down, 0, 1};
  std::vector<std::byte> buffer(bytes);
  double waited = 0;
  for (std::size_t i = 0; i < rounds && rank < 2; ++i) {
    double sent = 0;
    const runtime::ProcessGroup pair = everybody(2, rank);
    if (rank == 1) link.post_receive(down, i, buffer);
    link.all_reduce(pair, std::span(&sent, 1), runtime::Reduction::sum);
    const auto begin = Clock::now();
    if (rank == 1) {
      link.await_receive(down, i);
      waited += seconds_since(begin);
    } else {
      link.queue_send(down, i, buffer);
      while (seconds_since(begin) < 0.020) {
      }
      link.await_send(down, i);
    }
  }
  print(rank == 1, "message of " + std::to_string(bytes) + " bytes while the sender computes",
        1e3 * waited / static_cast<double>(rounds), "ms");
}

template <class Link, class Step>
void measure(std::size_t ranks, Step step) {
  step([](Link& link, std::size_t rank) { ping_pong(link, rank, 1024, 20000); });
  step([](Link& link, std::size_t rank) { ping_pong(link, rank, 65536, 5000); });
  step([](Link& link, std::size_t rank) { ping_pong(link, rank, 1 << 20, 500); });
  step([ranks](Link& link, std::size_t rank) { process_groups(link, rank, ranks, 64, 10000); });
  step([ranks](Link& link, std::size_t rank) { process_groups(link, rank, ranks, 16384, 1000); });
  step([ranks](Link& link, std::size_t rank) { sums(link, rank, ranks, 1 << 20, 100); });
  step([](Link& link, std::size_t rank) { behind_compute(link, rank, 1 << 22, 20); });
}

void on_threads(std::size_t ranks) {
  runtime::DeviceThreads device_threads(ranks);
  std::printf("%zu threads\n", ranks);
  measure<runtime::ThreadTransport>(ranks, [&](auto work) {
    runtime::Rendezvous rendezvous(ranks, 1);
    device_threads.run([&](std::size_t rank) {
      runtime::ThreadTransport link(rendezvous, rank);
      work(link, rank);
      rendezvous.leave(rank);
    });
    std::fflush(stdout);
  });
}

#ifdef SLIMPACK_WITH_MPI
int on_processes(int argc, char** argv) {
  return mpi::run(argc, argv, {}, [](mpi::Session& session) {
    for (const int progress : {0, 200, 1000}) {
      if (session.rank() == 0) {
        std::printf("%zu processes, looking at MPI every %d us while computing\n", session.size(),
                    progress);
        std::fflush(stdout);
      }
      mpi::MpiTransport link(session, {std::chrono::microseconds(progress)});
      measure<mpi::MpiTransport>(session.size(), [&](auto work) {
        link.begin_step(static_cast<std::int32_t>(session.size()), 1);
        work(link, session.rank());
        link.end_step("between measurements");
        std::fflush(stdout);
      });
    }
    return 0;
  });
}
#endif

}  // namespace

int main(int argc, char** argv) {
#ifdef SLIMPACK_WITH_MPI
  if (mpi::started_by_mpi()) return on_processes(argc, argv);
#endif
  on_threads(argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 2);
  return 0;
}
