// SPDX-License-Identifier: Apache-2.0
// A Dag whose every order is fixed, laid out so that other durations are simulated in one pass.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/sim/dag.hpp"
#include "slimpack/sim/timeline.hpp"

namespace slimpack::sim {

/// The nodes of a Dag in a topological order. A row is a node with at most three rows that it
/// starts after. Resources that a simulation served first come, first served keep the order that it
/// found. A node with more predecessors follows rows without duration that gather them.
///
///     const TopologicalDag fixed(dag, simulate(dag));
///     const std::vector<Nanos> by_row = fixed.arrange(other_durations);
///     std::vector<Nanos> ends(fixed.rows() + 1);
///     const Nanos makespan = fixed.run(by_row, ends);
class TopologicalDag {
 public:
  /// `timeline` is a simulation of `dag`; throws InvalidInput if it is of another DAG.
  /// O(nodes + edges).
  TopologicalDag(const Dag& dag, const Timeline& timeline) {
    require(timeline.start.size() == dag.size(), "TopologicalDag: the timeline is of another DAG",
            static_cast<std::int64_t>(timeline.start.size()));
    lay_out(dag, orders_of(dag, timeline));
  }

  /// The number of rows: one a node, and those that gather predecessors.
  [[nodiscard]] std::size_t rows() const noexcept { return after_.size(); }
  /// Row of a node.
  [[nodiscard]] std::size_t row(NodeId node) const noexcept { return row_of_[index(node)]; }

  /// Durations by row from durations by node. Throws InvalidInput unless there is one a node.
  [[nodiscard]] std::vector<Nanos> arrange(std::span<const Nanos> by_node) const {
    std::vector<Nanos> by_row;
    arrange(by_node, by_row);
    return by_row;
  }
  /// The same, into `by_row`.
  void arrange(std::span<const Nanos> by_node, std::vector<Nanos>& by_row) const {
    require(by_node.size() == row_of_.size(), "TopologicalDag: there must be one duration a node",
            static_cast<std::int64_t>(by_node.size()));
    by_row.resize(rows());
    for (std::size_t i = 0; i < row_of_.size(); ++i) by_row[row_of_[i]] = by_node[i];
  }

  /// The makespan with these durations by row. `ends` has one entry more than there are rows: 0,
  /// then each row's end. Throws InvalidInput on other sizes. O(rows), without a branch a node.
  [[nodiscard]] Nanos run(std::span<const Nanos> by_row, std::span<Nanos> ends) const {
    require(by_row.size() == rows() && ends.size() == rows() + 1,
            "TopologicalDag: there must be one duration a row and one end more",
            static_cast<std::int64_t>(by_row.size()));
    ends[0] = Nanos{};
    const After* after = after_.data();
    const Nanos* duration = by_row.data();
    Nanos* end = ends.data();
    for (std::size_t i = 0; i < after_.size(); ++i) {
      const std::int64_t first = end[after[i][0]].value;
      const std::int64_t second = end[after[i][1]].value;
      const std::int64_t third = end[after[i][2]].value;
      const std::int64_t latest = first > second ? first : second;
      end[i + 1].value = (latest > third ? latest : third) + duration[i].value;
    }
    Nanos makespan;
    for (const std::uint32_t last : last_) makespan = std::max(makespan, ends[last]);
    return makespan;
  }

  /// Writes start and end of each node after a run. Throws InvalidInput on other sizes.
  void spread(std::span<const Nanos> by_row, std::span<const Nanos> ends, std::span<Nanos> start,
              std::span<Nanos> end) const {
    require(by_row.size() == rows() && ends.size() == rows() + 1 &&
                start.size() == row_of_.size() && end.size() == row_of_.size(),
            "TopologicalDag: there must be one entry a row or node",
            static_cast<std::int64_t>(rows()));
    for (std::size_t i = 0; i < row_of_.size(); ++i) {
      end[i] = ends[row_of_[i] + 1];
      start[i] = end[i] - by_row[row_of_[i]];
    }
  }

 private:
  using After = std::array<std::uint32_t, 3>;  // entries of `ends`; 0 where there is none

  /// All edges as predecessors: those of the Dag and the turns that a simulation found.
  [[nodiscard]] static NodeLists orders_of(const Dag& dag, const Timeline& timeline) {
    NodeLists before = predecessors(dag);
    bool any = false;
    for (std::size_t row = 0; row < timeline.turns.rows(); ++row) {
      any = any || timeline.turns[row].size() > 1;
    }
    if (!any) return before;
    const NodeId none{~std::uint32_t{0}};
    std::vector<NodeId> turn(dag.size(), none);
    for (std::size_t row = 0; row < timeline.turns.rows(); ++row) {
      const auto nodes = timeline.turns[row];
      for (std::size_t i = 1; i < nodes.size(); ++i) turn[index(nodes[i])] = nodes[i - 1];
    }
    NodeLists all;
    all.offset.reserve(dag.size() + 1);
    all.node.reserve(before.node.size() + timeline.turns.node.size());
    for (std::size_t i = 0; i < dag.size(); ++i) {
      const auto nodes = before[i];
      all.node.insert(all.node.end(), nodes.begin(), nodes.end());
      if (turn[i] != none) all.node.push_back(turn[i]);
      all.offset.push_back(static_cast<std::uint32_t>(all.node.size()));
    }
    return all;
  }

  /// First in, first out: neighbours in the order seldom depend on each other, so that their
  /// additions overlap in the processor.
  [[nodiscard]] static std::vector<NodeId> topological(const NodeLists& before) {
    const std::size_t nodes = before.rows();
    NodeLists next;
    next.offset.assign(nodes + 2, 0);
    for (const NodeId from : before.node) ++next.offset[index(from) + 2];
    for (std::size_t i = 2; i < next.offset.size(); ++i) next.offset[i] += next.offset[i - 1];
    next.node.resize(before.node.size());
    std::vector<std::uint32_t> waiting(nodes);
    std::vector<NodeId> order;
    order.reserve(nodes);
    for (std::size_t i = 0; i < nodes; ++i) {
      const NodeId node{static_cast<std::uint32_t>(i)};
      waiting[i] = static_cast<std::uint32_t>(before[i].size());
      if (waiting[i] == 0) order.push_back(node);
      for (const NodeId from : before[i]) next.node[next.offset[index(from) + 1]++] = node;
    }
    next.offset.pop_back();
    for (std::size_t i = 0; i < order.size(); ++i) {
      for (const NodeId to : next[index(order[i])]) {
        if (--waiting[index(to)] == 0) order.push_back(to);
      }
    }
    require(order.size() == nodes, "TopologicalDag: the orders of the timeline contradict the DAG");
    return order;
  }

  void lay_out(const Dag& dag, const NodeLists& before) {
    row_of_.assign(dag.size(), 0);
    after_.reserve(dag.size());
    std::vector<bool> followed(dag.size(), false);
    std::vector<std::uint32_t> needed;
    std::vector<NodeId> kept;
    for (const NodeId node : topological(before)) {
      kept.assign(before[index(node)].begin(), before[index(node)].end());
      for (const NodeId from : kept) followed[index(from)] = true;
      keep_latest(dag, kept);
      needed.clear();
      for (const NodeId from : kept) needed.push_back(row_of_[index(from)] + 1);
      while (needed.size() > 3) {
        after_.push_back({needed[0], needed[1], needed[2]});
        needed.erase(needed.begin(), needed.begin() + 3);
        needed.push_back(static_cast<std::uint32_t>(after_.size()));
      }
      needed.resize(3, 0);
      row_of_[index(node)] = static_cast<std::uint32_t>(after_.size());
      after_.push_back({needed[0], needed[1], needed[2]});
    }
    for (std::size_t i = 0; i < dag.size(); ++i) {
      if (!followed[i]) last_.push_back(row_of_[i] + 1);
    }
  }

  /// Of the predecessors on one resource the latest row stands for all: they end one after another.
  void keep_latest(const Dag& dag, std::vector<NodeId>& nodes) const {
    std::size_t kept = 0;
    for (const NodeId node : nodes) {
      const ResourceId resource = dag.resource[index(node)];
      std::size_t same = 0;
      while (same < kept &&
             (resource == kNoResource || dag.resource[index(nodes[same])] != resource)) {
        ++same;
      }
      if (same == kept) {
        nodes[kept++] = node;
      } else if (row_of_[index(nodes[same])] < row_of_[index(node)]) {
        nodes[same] = node;
      }
    }
    nodes.resize(kept);
  }

  std::vector<After> after_;
  std::vector<std::uint32_t> row_of_;  // by node
  std::vector<std::uint32_t> last_;    // entries of `ends` of nodes that nothing follows
};

/// When nodes run in the order of a TopologicalDag.
struct TopologicalTimes {
  std::vector<Nanos> start;  ///< one a node
  std::vector<Nanos> end;    ///< one a node
  Nanos makespan;            ///< when the last node ends
};

/// Runs a TopologicalDag with durations by node. Throws InvalidInput unless there is one a node.
/// O(rows).
[[nodiscard]] inline TopologicalTimes run_topological(const TopologicalDag& dag,
                                                      std::span<const Nanos> by_node) {
  TopologicalTimes times;
  const std::vector<Nanos> by_row = dag.arrange(by_node);
  std::vector<Nanos> ends(dag.rows() + 1);
  times.makespan = dag.run(by_row, ends);
  times.start.resize(by_node.size());
  times.end.resize(by_node.size());
  dag.spread(by_row, ends, times.start, times.end);
  return times;
}

}  // namespace slimpack::sim
