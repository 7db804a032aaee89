// SPDX-License-Identifier: Apache-2.0
#include "chakra_graph.hpp"

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/cost/price.hpp"
#include "slimpack/plan/memory.hpp"
#include "slimpack/plan/virtual_stages.hpp"
#include "slimpack/report/dag_text.hpp"
#include "slimpack/sim/dag.hpp"

namespace slimpack::report::detail {
namespace {

using sim::NodeId;
using sim::NodeKind;
using sim::NodeLabel;

/// A node of a device that has to end before what follows a simulated node may start there.
struct Image {
  std::size_t device = 0;
  std::uint32_t node = 0;
  friend auto operator<=>(const Image&, const Image&) = default;
};

class GraphCutter {
 public:
  GraphCutter(const Plan& plan, const sim::PlanSimulation& simulation)
      : plan_(plan),
        dag_(simulation.dag),
        timeline_(simulation.timeline),
        predecessors_(sim::predecessors(simulation.dag)),
        turn_before_(simulation.dag.size(), kNone),
        images_(simulation.dag.size()),
        built_(simulation.dag.size(), false),
        parts_(simulation.dag.size()),
        whole_(simulation.dag.size(), kNone),
        graphs_(plan.schedule.size()) {
    const sim::NodeLists& turns = timeline_.turns;
    for (std::size_t row = 0; row < turns.rows(); ++row) {
      for (std::size_t i = 1; i < turns[row].size(); ++i) {
        turn_before_[index(turns[row][i])] = turns[row][i - 1];
      }
    }
    tied_ = tied_stages(plan);
    for (const sim::Part& part : dag_.parts) {
      // Without anybody to reduce with, a unit need not be cut.
      const NodeLabel& label = dag_.label[index(part.node)];
      if (!reduces(label.pp, label.chunk)) continue;
      parts_[index(part.whole)].push_back(part.node);
      whole_[index(part.node)] = part.whole;
    }
  }

  [[nodiscard]] std::vector<std::vector<LocalNode>> cut() && {
    for (const NodeId node : execution_order(dag_, timeline_)) build(node);
    if (plan_.memory.weights == WeightState::sharded) {
      meet_in_rounds(LocalKind::gather);
      meet_in_rounds(LocalKind::scatter);
    }
    return std::move(graphs_);
  }

 private:
  static constexpr NodeId kNone{~std::uint32_t{0}};

  [[nodiscard]] bool is_tied(std::int32_t pp) const {
    return std::find(tied_.begin(), tied_.end(), pp) != tied_.end();
  }
  /// Whether R of a chunk takes time: with a tied table it does on one rank too.
  [[nodiscard]] bool reduces(std::int32_t pp, std::int32_t chunk) const {
    if (plan_.memory.weights == WeightState::sharded) return false;  // B has scattered all
    return plan_.parallel.dp > 1 || (chunk == 0 && is_tied(pp));
  }
  [[nodiscard]] std::size_t device_of(const NodeLabel& label) const {
    return device_index(plan_, label.dp, label.pp);
  }

  /// Shared weights pass between all ranks once the last unit of a round has begun: B begins behind
  /// an H of its own.
  void meet_in_rounds(LocalKind kind) {
    std::vector<Nanos> latest;
    const auto for_each_round = [&](const auto& visit) {
      for (std::vector<LocalNode>& graph : graphs_) {
        std::size_t round = 0;
        for (LocalNode& node : graph) {
          if (node.kind == kind) visit(node, round++);
        }
      }
    };
    for_each_round([&](const LocalNode& node, std::size_t round) {
      if (round == latest.size()) latest.push_back(node.start);
      latest[round] = std::max(latest[round], node.start);
    });
    for_each_round([&](LocalNode& node, std::size_t round) { node.start = latest[round]; });
  }

  void build(NodeId node) {
    if (built_[index(node)]) return;
    const NodeLabel& label = dag_.label[index(node)];
    // Releases come before the end of the unit that they are parts of.
    if (whole_[index(node)] != kNone) return build(whole_[index(node)]);
    built_[index(node)] = true;
    switch (label.kind) {
      case NodeKind::transfer:
        return build_message(node, label);
      case NodeKind::reduce:
        return build_bucket(node, label);
      case NodeKind::join:
        return build_join(node);
      case NodeKind::release:
        return pass_on(node);
      default:
        return build_unit(node, label);
    }
  }

  void build_unit(NodeId node, const NodeLabel& label) {
    const std::size_t device = device_of(label);
    const std::vector<std::uint32_t> after = those_of(device, awaited(node));
    const std::vector<NodeId>& releases = parts_[index(node)];
    const auto parts = static_cast<std::uint32_t>(releases.size() + 1);
    const Nanos start = timeline_.start[index(node)];
    Nanos done;
    std::uint32_t last = 0;
    for (std::uint32_t part = 0; part < parts; ++part) {
      const NodeId release = part + 1 < parts ? releases[part] : node;
      const Nanos until = dag_.duration[index(release)];
      std::vector<std::uint32_t> before = after;
      if (part > 0) before = {last};
      last = add(
          device,
          {LocalKind::compute, node, part, parts, start + done, until - done, std::move(before)},
          release);
      built_[index(release)] = true;
      done = until;
    }
    for (const LocalKind inside : collectives_inside(label)) {
      add(device, {inside, node, 0, 1, start, Nanos{}, after}, node);
    }
  }

  /// The collectives whose time the unit's own includes, and that send something.
  [[nodiscard]] std::vector<LocalKind> collectives_inside(const NodeLabel& label) const {
    std::vector<LocalKind> inside;
    const Parallel& parallel = plan_.parallel;
    const bool layers = label.kind == NodeKind::forward || label.kind == NodeKind::backward ||
                        label.kind == NodeKind::weight;
    if (layers && label.kind != NodeKind::weight && ranks_of(label.pack) > 1) {
      if (has_ring(label.pack)) inside.push_back(LocalKind::exchange);
      if (passes_heads(label.pack)) inside.push_back(LocalKind::heads);
    }
    if (label.kind == NodeKind::head && parallel.head == LmHead::shard && parallel.pp > 1) {
      inside.push_back(LocalKind::head);
    }
    if (parallel.tp > 1 && (layers || label.kind == NodeKind::head)) {
      inside.push_back(LocalKind::tensor_gather);
      if (label.kind != NodeKind::weight) inside.push_back(LocalKind::tensor_reduce);
    }
    const bool shared = plan_.memory.weights == WeightState::sharded;
    if (shared && layers) inside.push_back(LocalKind::gather);
    if (shared && label.kind == NodeKind::backward) inside.push_back(LocalKind::scatter);
    if (!shared && label.kind == NodeKind::optimizer && parallel.dp > 1 &&
        plan_.memory.optimizer == OptimizerState::sharded) {
      inside.push_back(LocalKind::gather);
    }
    return inside;
  }
  [[nodiscard]] std::size_t ranks_of(PackId pack) const {
    return plan_.groups[index(plan_.micropacks[index(pack)].group)].size();
  }

  /// Whether a slice of a pack of several ranks has a ring.
  [[nodiscard]] bool has_ring(PackId pack) const {
    return std::ranges::any_of(plan_.micropacks[index(pack)].exchange,
                               [](RingMode mode) { return mode != RingMode::by_heads; });
  }
  /// Whether a slice of a pack of several ranks passes to parts of heads.
  [[nodiscard]] bool passes_heads(PackId id) const {
    const MicroPack& pack = plan_.micropacks[index(id)];
    for (std::size_t slot = 0; slot < pack.slices.size(); ++slot) {
      if (is_by_heads(plan_, pack.slices[slot], pack.exchange[slot])) return true;
    }
    return false;
  }

  void build_message(NodeId node, const NodeLabel& label) {
    const std::size_t sender = device_of(label);
    const std::size_t receiver =
        device_index(plan_, label.dp, dag_.channels[index(label.channel)].to_pp);
    const std::vector<Image> before = awaited(node);
    for (const LocalKind kind : {LocalKind::send, LocalKind::receive}) {
      const std::size_t device = kind == LocalKind::send ? sender : receiver;
      add(device,
          {kind, node, 0, 1, timeline_.start[index(node)], dag_.duration[index(node)],
           those_of(device, before)},
          node);
    }
  }

  void build_bucket(NodeId node, const NodeLabel& label) {
    if (!reduces(label.pp, label.chunk)) return pass_on(node);
    const std::vector<Image> before = awaited(node);
    const bool with_table = label.chunk == 0 && is_tied(label.pp) && is_last_bucket(node);
    for (std::int32_t dp = 0; dp < plan_.parallel.dp; ++dp) {
      const std::size_t device = device_index(plan_, dp, label.pp);
      const Nanos start = timeline_.start[index(node)], duration = dag_.duration[index(node)];
      const std::uint32_t reduced = add(
          device, {LocalKind::reduce, node, 0, 1, start, duration, those_of(device, before)}, node);
      if (!with_table) continue;
      add(device, {LocalKind::table, node, 0, 1, start + duration, Nanos{}, {reduced}}, node);
    }
  }
  /// Buckets of a chunk have consecutive numbers.
  [[nodiscard]] bool is_last_bucket(NodeId node) const {
    const std::size_t next = index(node) + 1;
    if (next >= dag_.size()) return true;
    const NodeLabel& label = dag_.label[next];
    return label.kind != NodeKind::reduce || label.bucket == 0;
  }

  /// A join of several devices is a collective of them, that of one device is its own edges.
  void build_join(NodeId node) {
    const auto places = places_that_meet(plan_, dag_, node);
    if (places.size() < 2) return pass_on(node);
    const std::vector<Image> before = awaited(node);
    for (const auto& [dp, pp] : places) {
      const std::size_t device = device_index(plan_, dp, pp);
      add(device,
          {LocalKind::barrier, node, 0, 1, timeline_.start[index(node)], Nanos{},
           those_of(device, before)},
          node);
    }
  }

  /// The node is nothing of its own: what follows it awaits what it awaits.
  void pass_on(NodeId node) { images_[index(node)] = awaited(node); }

  /// Adds a node to a device's graph, as an image of `of`.
  std::uint32_t add(std::size_t device, LocalNode node, NodeId of) {
    std::vector<LocalNode>& graph = graphs_[device];
    graph.push_back(std::move(node));
    const auto number = static_cast<std::uint32_t>(graph.size() - 1);
    images_[index(of)].push_back({device, number});
    return number;
  }

  /// What a node awaits, by device, ascending, without repetition.
  [[nodiscard]] std::vector<Image> awaited(NodeId node) const {
    std::vector<Image> images;
    const auto append = [&](NodeId before) {
      const std::vector<Image>& more = images_[index(before)];
      images.insert(images.end(), more.begin(), more.end());
    };
    for (const NodeId before : predecessors_[index(node)]) append(before);
    if (turn_before_[index(node)] != kNone) append(turn_before_[index(node)]);
    std::sort(images.begin(), images.end());
    images.erase(std::unique(images.begin(), images.end()), images.end());
    return images;
  }
  /// The nodes of one device among `images`, which are sorted.
  [[nodiscard]] static std::vector<std::uint32_t> those_of(std::size_t device,
                                                           const std::vector<Image>& images) {
    std::vector<std::uint32_t> nodes;
    for (auto image = std::lower_bound(images.begin(), images.end(), Image{device, 0});
         image != images.end() && image->device == device; ++image) {
      nodes.push_back(image->node);
    }
    return nodes;
  }

  const Plan& plan_;
  const sim::Dag& dag_;
  const sim::Timeline& timeline_;
  const sim::NodeLists predecessors_;
  std::vector<NodeId> turn_before_;  // by node: before it on a link that serves first come
  std::vector<std::vector<Image>> images_;
  std::vector<bool> built_;
  std::vector<std::vector<NodeId>> parts_;  // by unit: its releases, in their order
  std::vector<NodeId> whole_;               // by release: its unit
  std::vector<std::int32_t> tied_;
  std::vector<std::vector<LocalNode>> graphs_;
};

}  // namespace

std::vector<std::pair<std::int32_t, std::int32_t>> places_that_meet(const Plan& plan,
                                                                    const sim::Dag& dag,
                                                                    sim::NodeId join) {
  std::vector<std::pair<std::int32_t, std::int32_t>> places;
  for (const sim::NodeId next : dag.successors[index(join)]) {
    const sim::NodeLabel& label = dag.label[index(next)];
    const bool all = label.kind == sim::NodeKind::reduce;  // of all ranks
    const std::int32_t last = all ? plan.parallel.dp - 1 : label.dp;
    for (std::int32_t dp = all ? 0 : label.dp; dp <= last; ++dp) places.emplace_back(dp, label.pp);
  }
  std::sort(places.begin(), places.end());
  places.erase(std::unique(places.begin(), places.end()), places.end());
  return places;
}

std::vector<std::vector<LocalNode>> device_graphs(const Plan& plan,
                                                  const sim::PlanSimulation& simulation) {
  require(simulation.dag.devices.size() == plan.schedule.size() &&
              simulation.timeline.start.size() == simulation.dag.size(),
          "chakra: the simulation must be of the plan",
          static_cast<std::int64_t>(simulation.dag.devices.size()));
  return GraphCutter(plan, simulation).cut();
}

}  // namespace slimpack::report::detail
