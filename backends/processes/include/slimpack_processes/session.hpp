// SPDX-License-Identifier: Apache-2.0
// A program as one rank of many without MPI: ranks find each other over TCP, and are watched over.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "slimpack/runtime/transport.hpp"
#include "slimpack_processes/alarm.hpp"
#include "slimpack_processes/bootstrap.hpp"
#include "slimpack_processes/launch.hpp"
#include "slimpack_processes/line.hpp"
#include "slimpack_processes/monitor.hpp"
#include "slimpack_processes/places.hpp"
#include "slimpack_processes/run.hpp"
#include "slimpack_processes/together.hpp"

namespace slimpack::processes {

struct SessionOptions {
  MonitorOptions monitor;
  BootstrapOptions bootstrap;
};

/// This process as a rank. One a process, made by the main thread before it starts any other.
/// SIGTERM is taken by the monitor from then on: launchers send it to all ranks when one has died,
/// and the rank tells the cause before it ends.
class Session {
 public:
  /// All ranks do this together. Throws BootstrapError.
  explicit Session(const Launch& launch, const SessionOptions& options = {}) {
    sigset_t term;
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    ring_ = find_each_other(launch, options.bootstrap);
    const Alarm alarm(options.bootstrap.deadline, "ranks: not all have started within " +
                                                      detail::written(options.bootstrap.deadline));
    ::pthread_sigmask(SIG_BLOCK, &term, nullptr);
    Monitor::Links links;
    links.token = ring_.token;
    links.listener = std::move(ring_.listener);
    const std::string table = "/slimpack-" + ring_.token;
    if (ring_.one_machine && size() > 1 && rank() == 0) places_.open(table, size(), true);
    pass();  // the table is there
    if (ring_.one_machine && rank() != 0) places_.open(table, size(), false);
    if (rank() != 0) links.to_root = Wire(connect_socket(launch.host, launch.port));
    monitor_ =
        std::make_unique<Monitor>(rank(), size(), std::move(links), places_, options.monitor);
    monitor_->await_all();
    pass();
    if (rank() == 0 && places_.open()) Places::forget(table);
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  [[nodiscard]] std::size_t rank() const noexcept { return ring_.launch.rank; }
  [[nodiscard]] std::size_t size() const noexcept { return ring_.launch.size; }
  [[nodiscard]] const Launch& launch() const noexcept { return ring_.launch; }
  [[nodiscard]] const std::vector<std::string>& hosts() const noexcept { return ring_.hosts; }
  [[nodiscard]] Monitor& monitor() noexcept { return *monitor_; }

  /// Throws runtime::Aborted with the first cause where a rank has failed.
  void check() const {
    if (monitor_ != nullptr && monitor_->failed()) throw runtime::Aborted(monitor_->cause());
  }

  /// Bytes of every rank, on rank 0; nothing on the others.
  [[nodiscard]] std::vector<std::vector<std::byte>> gather(std::span<const std::byte> bytes) {
    std::vector<std::vector<std::byte>> all;
    waiting([&] {
      if (rank() != 0) return ring_.root.send(bytes, [&] { check(); });
      all.resize(size());
      all[0].assign(bytes.begin(), bytes.end());
      for (std::size_t other = 1; other < size(); ++other) {
        all[other] = ring_.lines[other].take([&] { check(); });
      }
    });
    return all;
  }

  /// What rank 0 gives, on all.
  [[nodiscard]] std::vector<std::byte> share(std::vector<std::byte> bytes) {
    waiting([&] {
      if (rank() != 0) {
        bytes = ring_.root.take([&] { check(); });
        return;
      }
      for (std::size_t other = 1; other < size(); ++other) {
        ring_.lines[other].send(bytes, [&] { check(); });
      }
    });
    return bytes;
  }

  /// Returns when all ranks have come here.
  void pass() {
    static_cast<void>(gather({}));
    static_cast<void>(share({}));
  }

  /// All ranks do this together when their work is done.
  void finish() {
    pass();
    monitor_->finish();
  }

  /// Ends the process after all ranks know of the failure.
  [[noreturn]] void end(const std::string& cause, int status) {
    if (!monitor_->failed()) monitor_->abort(monitor_->whereabouts() + ", failed: " + cause);
    std::fflush(nullptr);
    monitor_->end(status);
  }

 private:
  /// A connection ends when its rank does: the monitor is given time to say how.
  template <class Work>
  void waiting(const Work& work) {
    const Doing before = monitor_ != nullptr ? monitor_->doing() : Doing::outside;
    if (monitor_ != nullptr) {
      monitor_->awaits("all other ranks");
      monitor_->doing(Doing::waiting);
    }
    try {
      work();
    } catch (const LineBroken& error) {
      for (int i = 0; i < 200 && monitor_ != nullptr && !monitor_->failed(); ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
      check();
      throw BootstrapError(std::string("ranks have lost each other: ") + error.what());
    }
    if (monitor_ == nullptr) return;
    monitor_->doing(before);
    monitor_->progressed();
  }

  Ring ring_;
  Places places_;
  std::unique_ptr<Monitor> monitor_;
};

static_assert(Together<Session> && RankSession<Session>);

}  // namespace slimpack::processes
