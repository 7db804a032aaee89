// SPDX-License-Identifier: Apache-2.0
// A program as one rank of many: starts MPI and the monitor, and ends both in good and bad ends.
#pragma once

#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <concepts>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>
#include <utility>

#include "slimpack/core/error.hpp"
#include "slimpack_processes/alarm.hpp"
#include "slimpack_processes/monitor.hpp"
#include "slimpack_processes/places.hpp"
#include "slimpack_processes/run.hpp"
#include "slimpack_processes/sockets.hpp"
#include "slimpack_processes/wire.hpp"

namespace slimpack::mpi {

using processes::Monitor;
using processes::MonitorOptions;

struct SessionOptions {
  MonitorOptions monitor;
  /// Until all ranks have started; a rank that dies before is not named.
  std::chrono::milliseconds start{60000};
};

/// Whether the process was started by mpirun or its kin.
[[nodiscard]] inline bool started_by_mpi() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"}) {
    if (std::getenv(name) != nullptr) return true;
  }
  return false;
}

/// This process as a rank. One a process, made by the main thread before it starts any other.
/// SIGTERM is taken by the monitor from then on: launchers send it to all ranks when one has died,
/// and the rank tells the cause before it ends.
class Session {
 public:
  /// All ranks do this together. Throws std::runtime_error where MPI or the sockets between ranks
  /// do not work.
  Session(int& argc, char**& argv, const SessionOptions& options = {}) {
    sigset_t term;
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    ::pthread_sigmask(SIG_BLOCK, &term, nullptr);
    const processes::Alarm alarm(options.start, "MPI ranks: not all have started within " +
                                                    std::to_string(options.start.count() / 1000) +
                                                    " seconds");
    int level = MPI_THREAD_SINGLE;
    processes::check_system(
        MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &level) == MPI_SUCCESS,
        "MPI cannot be started");
    serialized_ = level >= MPI_THREAD_SERIALIZED;
    MPI_Comm_dup(MPI_COMM_WORLD, &comm_);
    MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
    int rank = 0, size = 1;
    MPI_Comm_rank(comm_, &rank);
    MPI_Comm_size(comm_, &size);
    rank_ = static_cast<std::size_t>(rank);
    size_ = static_cast<std::size_t>(size);
    monitor_ = std::make_unique<Monitor>(rank_, size_, connect(), places_, options.monitor);
    monitor_->await_all();
    MPI_Barrier(comm_);
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  [[nodiscard]] std::size_t rank() const noexcept { return rank_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] MPI_Comm comm() const noexcept { return comm_; }
  /// Threads may take turns in calling MPI.
  [[nodiscard]] bool serialized() const noexcept { return serialized_; }
  [[nodiscard]] bool one_machine() const noexcept { return one_machine_; }
  [[nodiscard]] Monitor& monitor() noexcept { return *monitor_; }

  /// All ranks do this together when their work is done: ends MPI, then the monitor.
  void finish() {
    MPI_Comm_free(&comm_);
    MPI_Finalize();
    monitor_->finish();
  }

  /// Ends the process after all ranks know of the failure.
  [[noreturn]] void end(const std::string& cause, int status) {
    if (!monitor_->failed()) monitor_->abort(monitor_->whereabouts() + ", failed: " + cause);
    std::fflush(nullptr);
    monitor_->end(status);
  }

 private:
  /// Sockets from every rank to rank 0, on the loopback where all ranks are on one machine, and
  /// there the table of places too.
  [[nodiscard]] Monitor::Links connect() {
    MPI_Comm node = MPI_COMM_NULL;
    int on_node = 0;
    MPI_Comm_split_type(comm_, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
    MPI_Comm_size(node, &on_node);
    MPI_Comm_free(&node);
    int together = static_cast<std::size_t>(on_node) == size_ ? 1 : 0;
    MPI_Allreduce(MPI_IN_PLACE, &together, 1, MPI_INT, MPI_MIN, comm_);

    one_machine_ = together == 1;
    struct Meet {
      std::array<char, 256> host;
      std::array<char, 33> token;
      std::uint16_t port;
      char table;
    } meet{};
    Monitor::Links links;
    if (rank_ == 0) {
      auto [listener, port] = processes::listen_socket(together == 1, static_cast<int>(size_));
      links.listener = std::move(listener);
      meet.port = port;
      if (together == 1) {
        std::snprintf(meet.host.data(), meet.host.size(), "127.0.0.1");
      } else {
        ::gethostname(meet.host.data(), meet.host.size() - 1);
      }
      std::snprintf(meet.token.data(), meet.token.size(), "%s", processes::random_token().c_str());
      const std::string name = std::string("/slimpack-") + meet.token.data();
      meet.table = together == 1 && places_.open(name, size_, true) ? 1 : 0;
    }
    MPI_Bcast(&meet, sizeof(meet), MPI_BYTE, 0, comm_);
    links.token = meet.token.data();
    if (rank_ != 0) {
      links.to_root = processes::Wire(processes::connect_socket(meet.host.data(), meet.port));
      if (meet.table != 0) places_.open("/slimpack-" + links.token, size_, false);
    }
    MPI_Barrier(comm_);
    if (rank_ == 0) processes::Places::forget("/slimpack-" + links.token);
    return links;
  }

  MPI_Comm comm_ = MPI_COMM_NULL;
  std::size_t rank_ = 0, size_ = 1;
  bool serialized_ = false, one_machine_ = false;
  processes::Places places_;
  std::unique_ptr<Monitor> monitor_;
};

/// The whole of a program's main function as a rank: body(session) gives the exit status, the same
/// on all ranks. What it throws is told to all ranks, and every rank ends with the first cause on
/// standard error: with 2 where it threw InvalidInput, else with 1.
template <std::invocable<Session&> Body>
int run(int argc, char** argv, const SessionOptions& options, Body body) {
  Session session(argc, argv, options);
  return processes::run(session, std::move(body));
}

}  // namespace slimpack::mpi
