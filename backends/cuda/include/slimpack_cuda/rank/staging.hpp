// SPDX-License-Identifier: Apache-2.0
// Tables of a unit on their way to the device: put together on the host, copied from pinned memory.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "slimpack/runtime/transport.hpp"
#include "slimpack_cuda/device.hpp"

namespace slimpack::cuda {

/// Waits on the host for a point of the device's work: the link knows what else can end the wait,
/// the death of a peer above all. Throws runtime::ExecutionError where the point is not reached in
/// time, CudaError where the device failed.
template <class Link>
void await_on_host(Link& link, const Event& event, std::chrono::milliseconds hang_timeouts) {
  if constexpr (requires { link.await_device(event); }) {
    link.await_device(event);
  } else if (!wait_until(event, std::chrono::steady_clock::now() + hang_timeouts)) {
    throw runtime::ExecutionError("the device has not ended its work within " +
                                  std::to_string(hang_timeouts.count()) + " ms");
  }
}

/// Rows of a table among the tables of a unit.
template <class Row>
struct TablePart {
  std::size_t at = 0;  ///< bytes
  std::int64_t size = 0;
};

/// The tables of one unit, one behind the other.
class Tables {
 public:
  template <class Row>
  TablePart<Row> add(std::span<const Row> rows) {
    static_assert(std::is_trivially_copyable_v<Row>);
    const std::size_t i = (bytes_.size() + kAlignment - 1) / kAlignment * kAlignment;
    bytes_.resize(i + rows.size_bytes());
    if (!rows.empty()) std::memcpy(bytes_.data() + i, rows.data(), rows.size_bytes());
    return {i, static_cast<std::int64_t>(rows.size())};
  }
  template <class Row>
  TablePart<Row> add(const std::vector<Row>& rows) {
    return add(std::span<const Row>(rows));
  }
  void clear() noexcept { bytes_.clear(); }
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return bytes_; }

 private:
  static constexpr std::size_t kAlignment = 16;
  std::vector<std::byte> bytes_;
};

/// The tables of the unit that runs, in device memory, and those of the next units in pinned
/// memory. One stream uses them: a unit's tables are written over those of the unit before.
class TableRing {
 public:
  static constexpr std::size_t kUnits = 8;  ///< that the host may be ahead

  /// Room for tables of so many bytes. No work that uses the ring may be queued. Throws CudaError.
  /// Pinning memory takes milliseconds in which no rank of the process queues work, so after the
  /// first time it grows by half at least.
  void reserve(std::int64_t bytes) {
    if (bytes <= device_.size()) return;
    bytes = std::max(bytes, device_.size() + device_.size() / 2);
    device_ = DeviceBuffer<std::byte>(bytes);
    pinned_ = PinnedBuffer<std::byte>(bytes * static_cast<std::int64_t>(kUnits));
  }
  [[nodiscard]] std::int64_t capacity() const noexcept { return device_.size(); }

  /// Queues the copy of a unit's tables; waits for the unit kUnits before this. Throws
  /// std::logic_error where they are larger than what was reserved.
  template <std::invocable<const Event&> Wait>
  void upload(const Tables& tables, StreamView stream, Wait wait) {
    const auto bytes = tables.bytes();
    const auto capacity = static_cast<std::size_t>(device_.size());
    if (bytes.size() > capacity) throw std::logic_error("a unit's tables are larger than foreseen");
    if (bytes.empty()) return;
    Slot& slot = slots_[next_];
    if (slot.used) wait(slot.copied);
    std::byte* const from = pinned_.span().data() + next_ * capacity;
    std::memcpy(from, bytes.data(), bytes.size());
    detail::copy_to_device(device_.span().data, from, bytes.size(), stream);
    slot.copied.record(stream);
    slot.used = true;
    next_ = (next_ + 1) % kUnits;
  }

  /// A table of the tables that were uploaded last.
  template <class Row>
  [[nodiscard]] DeviceSpan<const Row> span(const TablePart<Row>& part) const noexcept {
    return {reinterpret_cast<const Row*>(device_.span().data + part.at), part.size};
  }

 private:
  struct Slot {
    Event copied;
    bool used = false;
  };
  DeviceBuffer<std::byte> device_;
  PinnedBuffer<std::byte> pinned_;
  std::array<Slot, kUnits> slots_;
  std::size_t next_ = 0;
};

}  // namespace slimpack::cuda
