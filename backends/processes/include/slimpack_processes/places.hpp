// SPDX-License-Identifier: Apache-2.0
// Where each rank of a machine is, in memory that outlives the rank.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "slimpack_processes/wire.hpp"

namespace slimpack::processes {

/// A table of texts, one a rank, shared by the processes of one machine. A text that its rank has
/// written can be read after the rank was killed or stopped, whatever the moment.
class Places {
 public:
  Places() = default;
  Places(const Places&) = delete;
  Places& operator=(const Places&) = delete;
  ~Places() {
    if (slots_ != nullptr) ::munmap(slots_, ranks_ * sizeof(Slot));
  }

  /// Rank 0 makes the table first, the others find it by the same name; who has it may forget the
  /// name. False where the system has no such memory: there is then no table.
  bool open(const std::string& name, std::size_t ranks, bool create) {
    const Descriptor file(
        ::shm_open(name.c_str(), create ? O_RDWR | O_CREAT | O_EXCL : O_RDWR, 0600));
    if (!file.open()) return false;
    const std::size_t size = ranks * sizeof(Slot);
    if (create && ::ftruncate(file.get(), static_cast<off_t>(size)) != 0) return false;
    void* const memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    if (memory == MAP_FAILED) return false;
    slots_ = static_cast<Slot*>(memory);  // zero bytes are empty texts
    ranks_ = ranks;
    return true;
  }
  static void forget(const std::string& name) { ::shm_unlink(name.c_str()); }

  [[nodiscard]] bool open() const noexcept { return slots_ != nullptr; }

  /// Writes the rank's text, cut to what a slot holds. To be called by the rank itself, one thread
  /// at a time.
  void write(std::size_t rank, const std::string& text) noexcept {
    if (slots_ == nullptr) return;
    Slot& slot = slots_[rank];
    const std::uint32_t next = slot.turn.load(std::memory_order_relaxed) + 1;
    const std::size_t size = std::min(text.size(), kText - 1);
    char* const into = slot.text[next % 2];
    std::memcpy(into, text.data(), size);
    into[size] = 0;
    slot.turn.store(next, std::memory_order_release);
  }

  /// The last text that was written whole.
  [[nodiscard]] std::string read(std::size_t rank) const {
    if (slots_ == nullptr) return {};
    const Slot& slot = slots_[rank];
    const char* const text = slot.text[slot.turn.load(std::memory_order_acquire) % 2];
    return {text, ::strnlen(text, kText)};
  }

 private:
  static constexpr std::size_t kText = 508;
  struct Slot {
    std::atomic<std::uint32_t> turn;  ///< its parity says which text is whole
    char text[2][kText];
  };
  static_assert(std::atomic<std::uint32_t>::is_always_lock_free);
  Slot* slots_ = nullptr;
  std::size_t ranks_ = 0;
};

}  // namespace slimpack::processes
