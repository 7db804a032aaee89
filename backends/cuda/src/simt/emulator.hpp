// SPDX-License-Identifier: Apache-2.0
// Runs the blocks of a kernel on the CPU: every thread is a fiber, and what threads do together
// happens when the last one has come. Copies that the device makes in the background happen as late
// as they may, or at once: a kernel has to be right with both.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "simt/fiber.hpp"

namespace slimpack::cuda::simt {

struct Grid {
  unsigned blocks = 1, threads = 32;
  std::size_t shared_bytes = 0;
};

/// When background work happens.
enum class Timing : std::uint8_t {
  at_once,  ///< where it is issued: finds what is overwritten before it is read
  late,     ///< when somebody waits for it and nobody can go on: finds what is read too early
};

/// One block at a time, its threads in turn. Throws std::logic_error where threads wait for each
/// other for ever, a warp's threads meet in different operations, or shared memory is left.
class Emulator {
 public:
  Emulator(Grid grid, Timing timing) : grid_(grid), timing_(timing) {}

  void run(const std::function<void()>& kernel) {
    current() = this;
    fibers().all_idle();
    try {
      for (block_ = 0; block_ < grid_.blocks; ++block_) run_block(kernel);
    } catch (...) {
      current() = nullptr;
      throw;
    }
    current() = nullptr;
  }

  [[nodiscard]] static Emulator& now() { return *current(); }

  [[nodiscard]] unsigned thread() const noexcept { return running_; }
  [[nodiscard]] unsigned block() const noexcept { return block_; }
  [[nodiscard]] const Grid& grid() const noexcept { return grid_; }
  [[nodiscard]] Timing timing() const noexcept { return timing_; }

  /// Shared memory; a block finds bytes there that make NaN of every number.
  [[nodiscard]] std::byte* shared() noexcept { return shared_; }
  /// The bytes at a shared address, which must lie inside.
  [[nodiscard]] std::byte* shared(std::uint32_t address, std::size_t bytes) {
    if (address % 4 != 0 && bytes >= 4) fail("a shared address is not aligned");
    if (address + bytes > grid_.shared_bytes) fail("an access leaves shared memory");
    return shared_ + address;
  }
  [[nodiscard]] bool is_shared(const void* pointer) const {
    const auto* at = static_cast<const std::byte*>(pointer);
    return at >= shared_ && at < shared_ + grid_.shared_bytes;
  }
  [[nodiscard]] std::uint32_t address_of(const void* pointer) const {
    return static_cast<std::uint32_t>(static_cast<const std::byte*>(pointer) - shared_);
  }

  // --- the two proxies of shared memory ---
  // What a thread writes is read by products and by TMA, and may be overwritten by TMA, only after
  // its fence, and after a barrier that it passes behind the fence. Stores by simt's names are
  // noted.

  void note_store(std::uint32_t address, std::size_t bytes) {
    if (stores_.empty()) stores_.resize(grid_.shared_bytes / 4 + 1);
    for (std::size_t word = address / 4; word < (address + bytes + 3) / 4; ++word) {
      if (stores_[word].thread != running_ + 1) stored_[running_].push_back(word);
      stores_[word] = {running_ + 1, false};
    }
  }
  void note_fence() {
    for (const std::size_t word : stored_[running_]) {
      if (stores_[word].thread == running_ + 1) stores_[word].fenced = true;
    }
  }
  void note_barrier() {
    std::erase_if(stored_[running_], [&](std::size_t word) {
      if (stores_[word].thread != running_ + 1) return true;
      if (stores_[word].fenced) stores_[word] = {};
      return stores_[word].thread == 0;
    });
  }
  void check_proxy(std::uint32_t address, std::size_t bytes, const char* what) const {
    for (std::size_t word = address / 4; !stores_.empty() && word < (address + bytes + 3) / 4;
         ++word) {
      if (stores_[word].thread == 0) continue;
      fail(std::string(what) + " meets what thread " + std::to_string(stores_[word].thread - 1) +
           " wrote to shared memory, without a " + (stores_[word].fenced ? "barrier" : "fence") +
           " since");
    }
  }
  /// Whether fences do nothing: a test that the check sees it.
  static bool& fences_lost() {
    static thread_local bool lost = false;
    return lost;
  }

  /// Lets others run until `ready()`.
  template <class Ready>
  void wait_until(const Ready& ready, const char* what) {
    while (!ready()) {
      waiting_for_[running_] = what;
      yield();
    }
    ++progress_;
  }

  /// Threads [first, first + count) meet: each leaves what it brings, the last one runs `work` on
  /// all of it, and each takes its result away. `name` must be the same for all.
  template <class Slot, class Work>
  Slot together(unsigned first, unsigned count, const char* name, const Slot& mine,
                const Work& work) {
    Swap& swap = count == 32 && first % 32 == 0 ? warps_[first / 32] : swaps_[{first, count}];
    const unsigned self = running_ - first;
    const std::uint64_t generation = swap.generation;
    // A swap can end only after all have come back from the one before it: two sets of slots do.
    std::vector<std::byte>& bytes = swap.slots[generation % 2];
    if (swap.arrived == 0) {
      swap.name = name;
      const std::size_t needed = count * sizeof(Slot) + alignof(std::max_align_t);
      if (bytes.size() < needed) bytes.resize(needed);
    } else if (swap.name != name && std::strcmp(swap.name, name) != 0) {
      fail(std::string("threads meet in ") + swap.name + " and " + name);
    }
    Slot* slots = aligned<Slot>(bytes);
    std::memcpy(static_cast<void*>(slots + self), &mine, sizeof(Slot));
    if (++swap.arrived == count) {
      work(slots);
      swap.arrived = 0;
      ++swap.generation;
    }
    wait_until([&] { return swap.generation != generation; }, name);
    Slot result;
    std::memcpy(static_cast<void*>(&result), slots + self, sizeof(Slot));
    return result;
  }

  /// Barrier `id` of `count` threads; those that only arrive do not wait.
  void barrier(unsigned id, unsigned count, bool wait, const char* name) {
    Barrier& barrier = barriers_[id];
    note_barrier();
    if (barrier.arrived > 0 && barrier.count != count) fail("a barrier is met with two counts");
    barrier.count = count;
    const std::uint64_t generation = barrier.generation;
    if (++barrier.arrived == count) {
      barrier.arrived = 0;
      ++barrier.generation;
    }
    ++progress_;
    if (wait) wait_until([&] { return barrier.generation != generation; }, name);
  }

  /// Background work: happens now, or when nobody can go on.
  void in_background(std::function<void()> work) {
    if (timing_ == Timing::at_once) {
      work();
    } else {
      background_.push_back(std::move(work));
    }
  }

  [[noreturn]] void fail(const std::string& why) const {
    throw std::logic_error("block " + std::to_string(block_) + ", thread " +
                           std::to_string(running_) + ": " + why);
  }

  /// Whatever an instruction has to remember for a thread, made on first use.
  template <class State>
  [[nodiscard]] State& of_thread() {
    return state<State>(running_);
  }
  /// The same for the block.
  template <class State>
  [[nodiscard]] State& of_block() {
    return state<State>(grid_.threads);
  }

 private:
  struct Swap {
    const char* name = "";
    unsigned arrived = 0;
    std::uint64_t generation = 0;
    std::array<std::vector<std::byte>, 2> slots;
  };
  struct Barrier {
    unsigned arrived = 0, count = 0;
    std::uint64_t generation = 0;
  };
  /// Who wrote a word of shared memory that the other proxy has not been told of; 0: nobody.
  struct SharedStore {
    unsigned thread = 0;
    bool fenced = false;
  };
  static constexpr std::size_t kSharedAlignment = 1024;

  static Emulator*& current() {
    static thread_local Emulator* emulator = nullptr;
    return emulator;
  }
  template <class Slot>
  static Slot* aligned(std::vector<std::byte>& bytes) {
    void* at = bytes.data();
    std::size_t space = bytes.size();
    return static_cast<Slot*>(std::align(alignof(Slot), sizeof(Slot), at, space));
  }
  template <class State>
  static const void* tag() {
    static const char kTag = 0;
    return &kTag;
  }
  template <class State>
  State& state(unsigned owner) {
    std::shared_ptr<void>& held = states_[{tag<State>(), owner}];
    if (!held) held = std::make_shared<State>();
    return *static_cast<State*>(held.get());
  }

  /// Fibers of this thread of the host. One whose kernel has ended takes up another thread of it: a
  /// kernel whose threads never meet runs on one stack.
  class Fibers {
   public:
    Fiber* take(void (*entry)()) {
      if (idle_.empty()) {
        made_.push_back(std::make_unique<Fiber>());
        idle_.push_back(made_.back().get());
      }
      Fiber* fiber = idle_.back();
      idle_.pop_back();
      fiber->prepare(entry);
      return fiber;
    }
    void give_back(Fiber* fiber) { idle_.push_back(fiber); }
    void all_idle() {
      idle_.clear();
      for (const auto& fiber : made_) idle_.push_back(fiber.get());
    }

   private:
    std::vector<std::unique_ptr<Fiber>> made_;
    std::vector<Fiber*> idle_;
  };
  static Fibers& fibers() {
    static thread_local Fibers all;
    return all;
  }

  void yield() { of_threads_[running_]->give_way(); }

  static void enter() {
    Emulator& emulator = now();
    const unsigned self = emulator.running_;
    try {
      (*emulator.kernel_)();
    } catch (...) {
      if (!emulator.error_) emulator.error_ = std::current_exception();
    }
    emulator.done_[self] = true;
    ++emulator.progress_;
    emulator.of_threads_[self]->give_way();
  }

  void run_block(const std::function<void()>& kernel) {
    kernel_ = &kernel;
    const unsigned threads = grid_.threads;
    shared_storage_.assign(grid_.shared_bytes + kSharedAlignment, std::byte{0xff});
    void* at = shared_storage_.data();
    std::size_t space = shared_storage_.size();
    shared_ = static_cast<std::byte*>(std::align(kSharedAlignment, grid_.shared_bytes, at, space));
    swaps_.clear(), barriers_.clear(), states_.clear(), background_.clear(), stores_.clear();
    stored_.assign(threads, {});
    warps_.resize(threads / 32 + 1);
    for (Swap& warp : warps_) warp.arrived = 0;
    done_.assign(threads, false);
    waiting_for_.assign(threads, "");
    of_threads_.assign(threads, nullptr);
    Fibers& pool = fibers();
    unsigned left = threads;
    while (left > 0) {
      const std::uint64_t before = progress_;
      left = 0;
      for (running_ = 0; running_ < threads; ++running_) {
        if (done_[running_]) continue;
        Fiber*& fiber = of_threads_[running_];
        if (fiber == nullptr) fiber = pool.take(&Emulator::enter);
        fiber->resume();
        if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
        if (done_[running_]) {
          pool.give_back(fiber);
        } else {
          ++left;
        }
      }
      if (left == 0 || progress_ != before) continue;
      if (background_.empty()) {
        std::string who;
        for (unsigned thread = 0; thread < threads; ++thread) {
          if (done_[thread] ||
              (thread % 32 != 0 && waiting_for_[thread] == waiting_for_[thread - 1]))
            continue;
          who += " thread " + std::to_string(thread) + " in " + waiting_for_[thread] + ";";
        }
        throw std::logic_error("block " + std::to_string(block_) + " stands still:" + who);
      }
      const std::function<void()> work = std::move(background_.front());
      background_.pop_front();
      work();
    }
    while (!background_.empty()) {  // a copy that nobody waited for still writes
      background_.front()();
      background_.pop_front();
    }
  }

  Grid grid_;
  Timing timing_;
  const std::function<void()>* kernel_ = nullptr;
  unsigned block_ = 0, running_ = 0;
  std::uint64_t progress_ = 0;
  std::byte* shared_ = nullptr;
  std::vector<std::byte> shared_storage_;
  std::vector<SharedStore> stores_;               ///< by word, empty before the first
  std::vector<std::vector<std::size_t>> stored_;  ///< words, by thread
  std::map<std::pair<unsigned, unsigned>, Swap> swaps_;
  std::map<unsigned, Barrier> barriers_;
  std::map<std::pair<const void*, unsigned>, std::shared_ptr<void>> states_;
  std::deque<std::function<void()>> background_;
  std::vector<bool> done_;
  std::vector<const char*> waiting_for_;
  std::vector<Fiber*> of_threads_;
  std::vector<Swap> warps_;
  std::exception_ptr error_;
};

/// Runs `kernel` for every thread of the grid.
template <class Kernel>
void emulate(Grid grid, Timing timing, const Kernel& kernel) {
  Emulator(grid, timing).run(std::function<void()>(kernel));
}

}  // namespace slimpack::cuda::simt
