// SPDX-License-Identifier: Apache-2.0
// Says which units never start, and what each of them awaits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "slimpack/sim/dag.hpp"

namespace slimpack::sim {

namespace detail {

class DeadlockText {
 public:
  DeadlockText(const Dag& dag, std::span<const std::uint32_t> waiting)
      : dag_(dag), waiting_(waiting), before_(predecessors(dag)), told_(dag.size(), false) {}

  [[nodiscard]] std::string text() {
    text_ = "the plan never ends";
    std::vector<bool> blocked(dag_.resources.size(), false);
    for (std::size_t i = 0; i < dag_.size(); ++i) {
      const ResourceId resource = dag_.resource[i];
      if (waiting_[i] == 0 || resource == kNoResource || blocked[index(resource)]) continue;
      if (dag_.resources[index(resource)].kind != ResourceKind::compute) continue;
      blocked[index(resource)] = true;
      tell(NodeId{static_cast<std::uint32_t>(i)});
    }
    if (count_ == 0) tell_first();
    return text_;
  }

 private:
  /// One clause for a node and for the messages and buckets between it and other units.
  void tell(NodeId first) {
    std::vector<NodeId> open{first};
    told_[index(first)] = true;
    for (std::size_t next = 0; next < open.size(); ++next) {
      const NodeId node = open[next];
      text_ += count_++ == 0 ? ": " : "; ";
      text_ += node_name(dag_, node) + " awaits ";
      std::vector<NodeId> awaited;
      collect(node, awaited);
      for (std::size_t i = 0; i < awaited.size(); ++i) {
        text_ += (i == 0 ? "" : ", ") + node_name(dag_, awaited[i]);
        const std::size_t one = index(awaited[i]);
        if (is_compute(dag_.label[one].kind) || told_[one]) continue;
        told_[one] = true;
        open.push_back(awaited[i]);
      }
    }
  }

  /// The unfinished predecessors of a node; those of a join stand for it.
  void collect(NodeId node, std::vector<NodeId>& awaited) const {
    for (const NodeId before : before_[index(node)]) {
      if (waiting_[index(before)] == 0) continue;
      if (dag_.label[index(before)].kind == NodeKind::join) {
        collect(before, awaited);
      } else {
        awaited.push_back(before);
      }
    }
  }

  /// Where no device is blocked: any node that never ends.
  void tell_first() {
    for (std::size_t i = 0; i < dag_.size(); ++i) {
      if (waiting_[i] == 0) continue;
      tell(NodeId{static_cast<std::uint32_t>(i)});
      return;
    }
  }

  const Dag& dag_;
  std::span<const std::uint32_t> waiting_;
  NodeLists before_;
  std::vector<bool> told_;
  std::string text_;
  std::size_t count_ = 0;
};

}  // namespace detail

/// One sentence: the first blocked unit of each device, the messages and buckets it awaits, and
/// what those await. `waiting` counts each node's unfinished predecessors after all that could end
/// has ended. O(nodes + edges).
[[nodiscard]] inline std::string describe_deadlock(const Dag& dag,
                                                   std::span<const std::uint32_t> waiting) {
  return detail::DeadlockText(dag, waiting).text();
}

}  // namespace slimpack::sim
