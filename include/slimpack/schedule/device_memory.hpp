// SPDX-License-Identifier: Apache-2.0
// What one device holds while its units run, and the most that it ever holds.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "slimpack/core/units.hpp"

namespace slimpack::schedule {

/// Bytes of a device in simulated time; what changes at one instant counts together.
///
///     DeviceMemory memory(always);
///     memory.change(start, workspace + sent);       // a unit starts
///     memory.change(end, -workspace);               // it ends
///     late = late || !memory.free(arrival, sent);   // its send buffer goes later by itself
///     const Bytes most = memory.close();
class DeviceMemory {
 public:
  /// What is held before anything happens.
  explicit DeviceMemory(Bytes first) : level_(first.value) {}

  /// Bytes that come or go at `now`, which never falls. O(sends that have not ended).
  void change(std::int64_t now, std::int64_t bytes) {
    if (now != last_) {
      settle();
      last_ = now;
    }
    level_ += bytes;
  }
  /// Bytes that go at a time by themselves. Whether they are in time: false where the instant at
  /// which they go has been counted already, as if they were still there.
  bool free(std::int64_t time, std::int64_t bytes) {
    if (first_ == sends_.size()) {
      sends_.clear();
      first_ = 0;
    }
    sends_.emplace_back(time, bytes);
    for (std::size_t i = sends_.size() - 1; i > first_ && sends_[i].first < sends_[i - 1].first;
         --i) {
      std::swap(sends_[i], sends_[i - 1]);
    }
    return time > settled_;
  }

  /// The most bytes at any instant.
  [[nodiscard]] Bytes close() {
    settle();
    return Bytes{peak_};
  }

 private:
  void settle() {
    for (; first_ < sends_.size() && sends_[first_].first <= last_; ++first_) {
      level_ -= sends_[first_].second;
    }
    peak_ = std::max(peak_, level_);
    settled_ = last_;
  }

  std::int64_t last_ = 0, settled_ = -1, level_ = 0, peak_ = 0;
  std::vector<std::pair<std::int64_t, std::int64_t>> sends_;  // (end, bytes), by end
  std::size_t first_ = 0;                                     // that has not been counted
};

}  // namespace slimpack::schedule
