// SPDX-License-Identifier: Apache-2.0
// The events of a simulation, earliest first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "slimpack/sim/dag.hpp"

namespace slimpack::sim {

/// The end of a node.
struct Event {
  Nanos time;  ///< when the node ends
  NodeId node{};
  /// Equal times in the order of ids.
  friend constexpr bool operator<(const Event& a, const Event& b) noexcept {
    return a.time < b.time || (a.time == b.time && a.node < b.node);
  }
};

/// A heap of four children a node: as many events wait as resources work, so it is small and
/// shallow. Push and pop O(log n); no allocation below the reserved size.
class EventQueue {
 public:
  explicit EventQueue(std::size_t reserved) { heap_.reserve(reserved); }
  [[nodiscard]] bool empty() const noexcept { return heap_.empty(); }
  [[nodiscard]] const Event& top() const noexcept { return heap_.front(); }

  void push(Event event) {
    std::size_t i = heap_.size();
    heap_.push_back(event);
    while (i > 0) {
      const std::size_t parent = (i - 1) / kChildren;
      if (!(event < heap_[parent])) break;
      heap_[i] = heap_[parent];
      i = parent;
    }
    heap_[i] = event;
  }

  void pop() noexcept {
    const Event moved = heap_.back();
    heap_.pop_back();
    const std::size_t size = heap_.size();
    if (size == 0) return;
    std::size_t i = 0;
    for (;;) {
      const std::size_t first = i * kChildren + 1;
      if (first >= size) break;
      const std::size_t last = first + kChildren < size ? first + kChildren : size;
      std::size_t least = first;
      for (std::size_t child = first + 1; child < last; ++child) {
        if (heap_[child] < heap_[least]) least = child;
      }
      if (!(heap_[least] < moved)) break;
      heap_[i] = heap_[least];
      i = least;
    }
    heap_[i] = moved;
  }

 private:
  static constexpr std::size_t kChildren = 4;
  std::vector<Event> heap_;
};

}  // namespace slimpack::sim
