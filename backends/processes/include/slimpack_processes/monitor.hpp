// SPDX-License-Identifier: Apache-2.0
// A thread beside the main one in every rank that tells the others what the rank does, and ends the
// rank with a sentence when another one was killed, is stopped, or has failed.
#pragma once

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "slimpack/runtime/thread_system.hpp"
#include "slimpack_processes/places.hpp"
#include "slimpack_processes/wire.hpp"

namespace slimpack::processes {

/// Time in which a rank was itself stopped counts as one beat at most.
struct MonitorOptions {
  std::chrono::milliseconds beat{500};  ///< between two signs of life
  /// A rank that gives no sign is stopped or its machine is gone.
  std::chrono::milliseconds silence{5000};
  /// A rank that inside a step neither computes nor waits for others is given up. One that computes
  /// may take as long as it likes.
  std::chrono::milliseconds hang{6000};
  /// All ranks wait for others and nothing has ended anywhere.
  std::chrono::milliseconds stuck{30000};
  /// After a failure, until a rank that computes must have come back.
  std::chrono::milliseconds grace{2000};
};

/// What a rank's main thread does, as the monitor tells others.
enum class Doing : std::uint8_t { outside, computing, waiting };

/// Rank 0 hears all others and decides on the first cause of a failure; the others hear rank 0.
/// Calls are made by the rank's main thread or its helpers; `live` is the monitor's own thread.
class Monitor {
 public:
  /// How ranks find each other: rank 0 has `listener`, the others `to_root`.
  struct Links {
    Descriptor listener;
    Wire to_root;
    std::string token;  ///< tells ranks from strangers
  };

  Monitor(std::size_t rank, std::size_t ranks, Links links, Places& places, MonitorOptions options)
      : rank_(rank),
        options_(options),
        places_(places),
        token_(std::move(links.token)),
        listener_(std::move(links.listener)),
        peers_(ranks),
        event_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
        main_(runtime::ComputeClock::mine()),
        parent_(::getppid()) {
    sigset_t term;
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    signals_ = Descriptor(::signalfd(-1, &term, SFD_NONBLOCK | SFD_CLOEXEC));
    check_system(event_.open() && signals_.open(), "no monitor");
    if (rank_ != 0) {
      peers_[0].wire = std::move(links.to_root);
      peers_[0].wire.send({Frame::Kind::hello, 0, rank_, token_, {}});
      peers_[0].known = true;
    }
    peers_[rank_].known = true;
    announce("before the first step");
    thread_ = std::thread([this] { live(); });
  }
  ~Monitor() { finish(); }
  Monitor(const Monitor&) = delete;
  Monitor& operator=(const Monitor&) = delete;

  // --- for the main thread ---

  /// What the rank is about to do.
  void announce(const std::string& place) {
    const std::lock_guard lock(mutex_);
    place_ = place;
    places_.write(rank_, place);
  }
  /// What it is waiting for, once that takes long.
  void awaits(const std::string& what) {
    const std::lock_guard lock(mutex_);
    awaited_ = what;
  }
  void doing(Doing state) noexcept { doing_.store(state, std::memory_order_relaxed); }
  [[nodiscard]] Doing doing() const noexcept { return doing_.load(std::memory_order_relaxed); }
  /// Something that was waited for has ended.
  void progressed() noexcept { ended_.fetch_add(1, std::memory_order_relaxed); }

  [[nodiscard]] bool failed() const noexcept { return failed_.load(std::memory_order_acquire); }
  /// The first cause, as far as it is known here.
  [[nodiscard]] std::string cause() const {
    const std::lock_guard lock(mutex_);
    return cause_.value_or(own_.value_or(std::string()));
  }

  /// Tells all ranks of a failure of this one. Only the first sentence of all counts.
  void abort(const std::string& sentence) {
    {
      const std::lock_guard lock(mutex_);
      if (!own_) own_ = sentence;
      failed_.store(true, std::memory_order_release);
    }
    wake();
  }

  /// "rank 2, device (dp 1, pp 0), unit 5, ..."
  [[nodiscard]] std::string whereabouts() const {
    const std::lock_guard lock(mutex_);
    return "rank " + std::to_string(rank_) + ", " + place_;
  }

  /// Returns when all ranks have connected (rank 0) or at once.
  void await_all() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return rank_ != 0 || known_ == peers_.size(); });
  }

  /// Ends the process after the failure has been told; `abort` or a failure elsewhere came before.
  [[noreturn]] void end(int status) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, options_.grace, [&] { return may_exit_; });
    }
    tell();
    ::_exit(status);
  }

  /// All work is done. Returns when the other ranks know (rank 0: when all have said the same).
  void finish() {
    if (!thread_.joinable()) return;
    finishing_.store(true);
    wake();
    thread_.join();
  }

 private:
  using Clock = std::chrono::steady_clock;
  using Millis = std::chrono::milliseconds;
  struct Peer {
    Wire wire;
    bool known = false, bye = false, lost = false;
    Millis silent{};
    Doing doing = Doing::outside;
    std::uint64_t ended = 0;
    std::string place = "before the first step", awaited;
  };

  void wake() const noexcept {
    const std::uint64_t one = 1;
    static_cast<void>(!::write(event_.get(), &one, sizeof(one)));
  }

  /// Prints the cause once.
  void tell() {
    if (told_.exchange(true)) return;
    const std::string line = "rank " + std::to_string(rank_) + " of " +
                             std::to_string(peers_.size()) + " ends: " + cause() + "\n";
    static_cast<void>(!::write(STDERR_FILENO, line.data(), line.size()));
  }

  [[nodiscard]] std::string where(std::size_t rank) const {
    const std::string place = places_.open() ? places_.read(rank) : peers_[rank].place;
    return "rank " + std::to_string(rank) + ", " + place;
  }

  /// The first cause is settled, and rank 0 tells it to all. Another rank tells rank 0, which may
  /// have been stopped and woken to be ended.
  void settle(const std::string& sentence) {
    {
      const std::lock_guard lock(mutex_);
      if (cause_) return;
      cause_ = sentence;
      failed_.store(true, std::memory_order_release);
    }
    for (Peer& peer : peers_) peer.wire.send({Frame::Kind::fail, 0, rank_, sentence, {}});
    tell();
    if (rank_ != 0) allow_exit();
  }
  void allow_exit() {
    {
      const std::lock_guard lock(mutex_);
      may_exit_ = true;
    }
    changed_.notify_all();
  }
  [[nodiscard]] bool settled() const {
    const std::lock_guard lock(mutex_);
    return cause_.has_value();
  }

  // --- the monitor's own thread ---

  void live() {
    auto before = Clock::now();
    Millis due{};
    for (;;) {
      wait_for_news(failed() || told_to_end_ || finishing_.load() ? Millis(20)
                                                                  : options_.beat - due);
      const auto now = Clock::now();
      const Millis passed =
          std::min(std::chrono::duration_cast<Millis>(now - before), options_.beat);
      before = passed > Millis{} ? now : before;
      due += passed;
      listen();
      if (due >= options_.beat) {
        due = Millis{};
        beat();
      }
      sample_workload(passed);
      if (finishing_.load() && finished()) return;
    }
  }

  void wait_for_news(Millis timeout) {
    std::vector<pollfd> waits{{event_.get(), POLLIN, 0}, {signals_.get(), POLLIN, 0}};
    if (listener_.open()) waits.push_back({listener_.get(), POLLIN, 0});
    const auto add = [&](const Wire& wire) {
      if (!wire.open()) return;
      waits.push_back(
          {wire.descriptor(), static_cast<short>(wire.sent() ? POLLIN : POLLIN | POLLOUT), 0});
    };
    for (const Peer& peer : peers_) add(peer.wire);
    for (const Wire& wire : strangers_) add(wire);
    ::poll(waits.data(), waits.size(), std::max(1, static_cast<int>(timeout.count())));
    std::uint64_t count = 0;
    static_cast<void>(!::read(event_.get(), &count, sizeof(count)));
    signalfd_siginfo signal{};
    if (::read(signals_.get(), &signal, sizeof(signal)) == sizeof(signal)) told_to_end_ = true;
  }

  void listen() {
    while (listener_.open()) {
      Descriptor socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!socket.open()) break;
      strangers_.emplace_back(std::move(socket));
    }
    for (Wire& wire : strangers_) {
      wire.fill();
      const auto hello = wire.take();
      if (!hello || hello->kind != Frame::Kind::hello || hello->text != token_ ||
          hello->number >= peers_.size() || peers_[hello->number].known) {
        continue;
      }
      Peer& peer = peers_[hello->number];
      peer.wire = std::move(wire);
      wire = Wire();
      const std::lock_guard lock(mutex_);
      peer.known = true;
      known_ = static_cast<std::size_t>(
          std::count_if(peers_.begin(), peers_.end(), [](const Peer& one) { return one.known; }));
      changed_.notify_all();
    }
    std::erase_if(strangers_, [](const Wire& wire) { return !wire.open(); });
    for (std::size_t rank = 0; rank < peers_.size(); ++rank) {
      Peer& peer = peers_[rank];
      if (!peer.known || rank == rank_ || peer.lost) continue;
      peer.wire.flush();
      peer.wire.fill();
      while (const auto frame = peer.wire.take()) hear(rank, *frame);
      if (peer.wire.open()) continue;
      peer.lost = true;
      if (peer.bye || (rank_ != 0 && finishing_.load())) continue;
      settle_for(own_cause(),
                 where(rank) + ", has ended without a word: it was killed or has left");
    }
  }

  void hear(std::size_t rank, const Frame& frame) {
    Peer& peer = peers_[rank];
    peer.silent = Millis{};
    switch (frame.kind) {
      case Frame::Kind::beat:
        peer.doing = static_cast<Doing>(frame.state);
        peer.ended = frame.number;
        peer.place = frame.text;
        peer.awaited = frame.awaited;
        break;
      case Frame::Kind::abort:
      case Frame::Kind::fail:
        settle(frame.text);
        break;
      case Frame::Kind::bye:
        peer.bye = true;
        break;
      case Frame::Kind::hello:
        break;
    }
  }

  void beat() {
    Frame frame{Frame::Kind::beat,
                static_cast<std::uint8_t>(doing()),
                ended_.load(std::memory_order_relaxed),
                {},
                {}};
    {
      const std::lock_guard lock(mutex_);
      frame.text = place_;
      frame.awaited = awaited_;
    }
    for (Peer& peer : peers_) peer.wire.send(frame);
    Peer& self = peers_[rank_];
    self.doing = doing();
    self.ended = frame.number;
    self.place = frame.text;
    self.awaited = frame.awaited;
  }

  [[nodiscard]] std::optional<std::string> own_cause() const {
    const std::lock_guard lock(mutex_);
    return own_;
  }
  void settle_for(const std::optional<std::string>& first, const std::string& second) {
    settle(first ? *first : second);
  }
  [[nodiscard]] static std::string written(Millis time) {
    return std::to_string(time.count()) + " ms";
  }

  void sample_workload(Millis passed) {
    if (settled()) return after_failure(passed);
    if (const auto own = own_cause()) return on_own_failure(*own, passed);
    for (std::size_t rank = 0; rank < peers_.size(); ++rank) {
      Peer& peer = peers_[rank];
      if (rank == rank_ || !peer.known || peer.lost || peer.bye || !peer.wire.open()) continue;
      peer.silent += passed;
      if (peer.silent >= options_.silence) {
        return settle(where(rank) + ", has not answered for " + written(peer.silent) +
                      ": it is stopped or its machine is gone");
      }
    }
    const auto computed = main_.read();
    if (doing() != Doing::computing || !computed || computed != computed_) {
      computed_ = computed;
      idle_ = Millis{};
    } else {
      idle_ += passed;
      if (idle_ >= options_.hang) {
        hung_ = true;
        return abort(whereabouts() + ", has not answered for " + written(idle_) +
                     ": it neither computes nor waits for another rank");
      }
    }
    if (::getppid() != parent_) {
      return abort(whereabouts() + ", ends because the program that started it is gone");
    }
    if (told_to_end_) since_signal_ += passed;
    if (since_signal_ >= Millis(500)) {
      return abort(whereabouts() + ", was told to end (SIGTERM)");
    }
    if (rank_ == 0) judge_all(passed);
  }

  void judge_all(Millis passed) {
    std::uint64_t ended = 0;
    for (const Peer& peer : peers_) {
      ended += peer.ended;
      if (peer.doing != Doing::waiting || peer.bye) stuck_ = Millis{};
    }
    if (ended != all_ended_) stuck_ = Millis{};
    all_ended_ = ended;
    stuck_ += passed;
    if (stuck_ < options_.stuck) return;
    std::string text = "execution cannot end:";
    for (std::size_t rank = 0; rank < peers_.size(); ++rank) {
      text += (rank == 0 ? " rank " : "; rank ") + std::to_string(rank) + ", " +
              peers_[rank].place + ", awaits " + peers_[rank].awaited;
    }
    settle(text);
  }

  /// Rank 0 settles its own; another rank asks rank 0, and settles it itself without an answer.
  void on_own_failure(const std::string& own, Millis passed) {
    if (rank_ == 0) return settle(own);
    if (!asked_) peers_[0].wire.send({Frame::Kind::abort, 0, rank_, own, {}});
    asked_ = true;
    since_asked_ += passed;
    if (!peers_[0].wire.open() || since_asked_ >= options_.grace / 2) settle(own);
  }

  void after_failure(Millis passed) {
    since_failure_ += passed;
    const bool alone = std::all_of(peers_.begin(), peers_.end(),
                                   [](const Peer& peer) { return !peer.wire.open(); });
    if (rank_ == 0 && (alone || since_failure_ >= options_.grace / 2)) allow_exit();
    // A main thread that hangs will not come back.
    if (since_failure_ >= (hung_ ? options_.beat / 2 : options_.grace)) ::_exit(1);
  }

  [[nodiscard]] bool finished() {
    if (settled()) return false;  // the process ends by `end` or after the grace
    if (rank_ != 0) {
      peers_[0].wire.send({Frame::Kind::bye, 0, rank_, {}, {}});
      return true;
    }
    return std::all_of(peers_.begin() + 1, peers_.end(), [](const Peer& peer) { return peer.bye; });
  }

  std::size_t rank_;
  MonitorOptions options_;
  Places& places_;
  std::string token_;

  // Of the monitor's thread alone, but `known_` is told under the mutex.
  Descriptor listener_;
  std::vector<Peer> peers_;
  std::vector<Wire> strangers_;
  Descriptor event_, signals_;
  runtime::ComputeClock main_;
  std::optional<std::chrono::nanoseconds> computed_;
  pid_t parent_;
  bool told_to_end_ = false, asked_ = false, hung_ = false;
  Millis idle_{}, stuck_{}, since_signal_{}, since_asked_{}, since_failure_{};
  std::uint64_t all_ended_ = 0;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::string place_, awaited_;
  std::optional<std::string> own_, cause_;
  std::size_t known_ = 1;
  bool may_exit_ = false;
  std::atomic<Doing> doing_ = Doing::outside;
  std::atomic<std::uint64_t> ended_ = 0;
  std::atomic<bool> failed_ = false, told_ = false, finishing_ = false;
  std::thread thread_;
};

}  // namespace slimpack::processes
