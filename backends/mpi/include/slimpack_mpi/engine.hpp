// SPDX-License-Identifier: Apache-2.0
// Keeps MPI going for one rank: waits without taking cores from ranks that compute, and ends waits
// when another rank has failed.
#pragma once

#include <mpi.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <concepts>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "slimpack/runtime/transport.hpp"
#include "slimpack_mpi/flight.hpp"
#include "slimpack_mpi/session.hpp"
#include "slimpack_processes/monitor.hpp"
#include "slimpack_processes/together.hpp"

namespace slimpack::mpi {

struct TransportOptions {
  /// Between two looks at MPI, by a thread of its own, while the rank computes and something is on
  /// its way; zero: MPI goes on only in the transport's own calls. Nothing: zero on one machine,
  /// where receivers fetch long messages from the sender's memory without its help, and 200 us
  /// between machines.
  std::optional<std::chrono::microseconds> progress;
};

/// All that a rank does with MPI goes through here, under one lock. After a failure nothing of MPI
/// is called any more.
class Engine {
 public:
  /// Tag of what ranks say outside of steps; channels, process groups and sums have others.
  static constexpr int kControl = 3;

  /// `advance` moves on what goes on by itself and says whether anything is under way; it is called
  /// with the lock held, from this object's thread too.
  Engine(Session& session, const TransportOptions& options, std::function<bool()> advance)
      : session_(session),
        monitor_(session.monitor()),
        comm_(session.comm()),
        pause_(
            options.progress.value_or(std::chrono::microseconds(session.one_machine() ? 0 : 200))),
        advance_(std::move(advance)) {
    if (session.serialized() && session.size() > 1 && pause_.count() > 0) {
      progress_ = std::thread([this] { keep_going(); });
    }
  }
  ~Engine() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    news_.notify_all();
    if (progress_.joinable()) progress_.join();
  }
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  [[nodiscard]] Session& session() noexcept { return session_; }
  [[nodiscard]] MPI_Comm comm() const noexcept { return comm_; }

  /// Does `work` with the lock held, unless a rank has failed.
  template <std::invocable Work>
  std::invoke_result_t<Work&> locked(Work work) {
    const std::lock_guard lock(mutex_);
    check_aborted();
    if (!std::exchange(under_way_, true)) news_.notify_one();
    return guarded(std::move(work));
  }

  /// Looks again and again, ever more seldom, so that ranks that compute keep their cores.
  template <std::predicate Ready, std::invocable Awaited>
  void wait_until(Ready ready, Awaited awaited) {
    using Clock = std::chrono::steady_clock;
    const auto try_it = [&] {
      const std::lock_guard lock(mutex_);
      check_aborted();
      rethrow();
      return guarded([&] {
        static_cast<void>(advance_());  // others may wait for this rank's part
        return ready();
      });
    };
    if (try_it()) return;
    const processes::Doing before = monitor_.doing();
    const auto begin = Clock::now();
    monitor_.doing(processes::Doing::waiting);
    in_wait_.store(true, std::memory_order_relaxed);
    struct Leave {
      Engine& self;
      processes::Doing before;
      ~Leave() {
        self.in_wait_.store(false, std::memory_order_relaxed);
        self.monitor_.doing(before);
      }
    } leave{*this, before};
    bool named = false;
    for (int turn = 0; !try_it(); ++turn) {
      if (turn < kYields) {
        ::sched_yield();
        continue;
      }
      std::this_thread::sleep_for(std::chrono::microseconds(turn < kYields + 50 ? 20 : 100));
      if (named || Clock::now() - begin < std::chrono::seconds(1)) continue;
      monitor_.awaits(awaited());
      named = true;
    }
    monitor_.progressed();
  }

  /// Begins transfers by begin(flight) and waits for them.
  template <std::invocable<Flight&> Begin, std::invocable Awaited>
  void fly(Begin begin, Awaited awaited) {
    Flight flight;
    locked([&] { begin(flight); });
    wait_until([&] { return flight.ended(); }, awaited);
  }

  /// Tells all ranks of a failure. When it returns nobody is inside MPI any more.
  void abort(const std::string& sentence) {
    monitor_.abort("rank " + std::to_string(session_.rank()) + ", " + sentence);
    const std::lock_guard lock(mutex_);
    given_up_ = true;
  }

  /// Bytes of every rank, on rank 0; nothing on the others.
  [[nodiscard]] std::vector<std::vector<std::byte>> gather(std::span<const std::byte> bytes) {
    std::vector<std::vector<std::byte>> all;
    const std::uint64_t size = bytes.size();
    const auto as_bytes = std::as_bytes(std::span(&size, 1));
    if (session_.rank() != 0) {
      fly_to_all([&](Flight& flight) {
        flight.send(comm_, 0, kControl, as_bytes);
        flight.send(comm_, 0, kControl, bytes);
      });
      return all;
    }
    std::vector<std::uint64_t> sizes(session_.size(), 0);
    fly_to_all([&](Flight& flight) {
      for (std::size_t rank = 1; rank < sizes.size(); ++rank) {
        flight.receive(comm_, rank, kControl, std::as_writable_bytes(std::span(&sizes[rank], 1)));
      }
    });
    all.resize(sizes.size());
    all[0].assign(bytes.begin(), bytes.end());
    fly_to_all([&](Flight& flight) {
      for (std::size_t rank = 1; rank < sizes.size(); ++rank) {
        all[rank].resize(sizes[rank]);
        flight.receive(comm_, rank, kControl, all[rank]);
      }
    });
    return all;
  }

  /// What rank 0 gives, on all.
  [[nodiscard]] std::vector<std::byte> share(std::vector<std::byte> bytes) {
    std::uint64_t size = bytes.size();
    const auto size_bytes = std::as_writable_bytes(std::span(&size, 1));
    const auto step = [&](std::span<std::byte> part) {
      fly_to_all([&](Flight& flight) {
        if (session_.rank() != 0) return flight.receive(comm_, 0, kControl, part);
        for (std::size_t rank = 1; rank < session_.size(); ++rank) {
          flight.send(comm_, rank, kControl, part);
        }
      });
    };
    step(size_bytes);
    bytes.resize(size);
    step(bytes);
    return bytes;
  }

 private:
  static constexpr int kYields = 50;  ///< looks before the first sleep

  template <std::invocable<Flight&> Begin>
  void fly_to_all(Begin begin) {
    fly(begin, [] { return std::string("all other ranks"); });
  }

  void check_aborted() {
    if (!monitor_.failed()) return;
    given_up_ = true;
    throw runtime::Aborted(monitor_.cause());
  }

  /// An error of MPI is mostly the death of another rank: the monitor is given time to say whose.
  template <std::invocable Work>
  std::invoke_result_t<Work&> guarded(Work work) {
    try {
      return work();
    } catch (const MpiError& error) {
      given_up_ = true;
      for (int i = 0; i < 200 && !monitor_.failed(); ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
      check_aborted();
      throw runtime::ExecutionError(std::string("MPI failed: ") + error.what());
    }
  }

  // --- the thread that keeps messages going while the rank computes ---

  void rethrow() {
    if (fault_) std::rethrow_exception(std::exchange(fault_, nullptr));
  }
  void keep_going() {
    std::unique_lock lock(mutex_);
    while (!stop_) {
      if (!under_way_ || given_up_) {
        news_.wait(lock);
        continue;
      }
      news_.wait_for(lock, pause_, [&] { return stop_; });
      if (stop_ || given_up_ || in_wait_.load(std::memory_order_relaxed)) continue;
      if (monitor_.failed()) {
        given_up_ = true;
        continue;
      }
      try {
        under_way_ = advance_();
        for (int look = 0; look < 16; ++look) {
          int found = 0;
          MPI_Iprobe(MPI_ANY_SOURCE, kControl, comm_, &found, MPI_STATUS_IGNORE);
        }
      } catch (...) {
        fault_ = std::current_exception();
        given_up_ = true;
      }
    }
  }

  Session& session_;
  Monitor& monitor_;
  MPI_Comm comm_;
  std::chrono::microseconds pause_;
  std::function<bool()> advance_;

  std::mutex mutex_;  ///< guards MPI, what `advance_` and `locked` touch, and what follows
  std::condition_variable news_;
  std::exception_ptr fault_;
  bool stop_ = false, given_up_ = false, under_way_ = false;
  std::atomic<bool> in_wait_ = false;
  std::thread progress_;
};

static_assert(processes::Together<Engine>);

}  // namespace slimpack::mpi
