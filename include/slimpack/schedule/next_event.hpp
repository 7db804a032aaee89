// SPDX-License-Identifier: Apache-2.0
// When each of a few devices has its next event, and which is first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace slimpack::schedule {

inline constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

/// The earliest of one event a device, ties to the lowest device: a tree of winners.
class NextEvent {
 public:
  void reset(std::size_t devices) {
    leaves_ = 1;
    while (leaves_ < devices) leaves_ *= 2;
    at_.assign(leaves_, kNever);
    winner_.resize(2 * leaves_);
    for (std::size_t leaf = 0; leaf < leaves_; ++leaf) {
      winner_[leaves_ + leaf] = static_cast<std::uint32_t>(leaf);
    }
    for (std::size_t node = leaves_; node-- > 1;) winner_[node] = winner_[2 * node];
    if (leaves_ == 1) winner_[1] = 0;
  }
  void set(std::uint32_t device, std::int64_t i) noexcept {
    at_[device] = i;
    for (std::size_t node = (leaves_ + device) / 2; node > 0; node /= 2) {
      const std::uint32_t left = winner_[2 * node], right = winner_[2 * node + 1];
      winner_[node] = at_[right] < at_[left] ? right : left;
    }
  }
  [[nodiscard]] std::uint32_t device() const noexcept { return winner_[1]; }
  [[nodiscard]] std::int64_t time() const noexcept { return at_[winner_[1]]; }
  [[nodiscard]] std::int64_t time(std::uint32_t device) const noexcept { return at_[device]; }

 private:
  std::size_t leaves_ = 1;
  std::vector<std::int64_t> at_;
  std::vector<std::uint32_t> winner_;  // node 1 is the root; leaves from leaves_
};

}  // namespace slimpack::schedule
