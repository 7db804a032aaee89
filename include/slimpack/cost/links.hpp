// SPDX-License-Identifier: Apache-2.0
// Which links the devices of a plan talk over, from its placement.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/plan/cluster.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/plan/ring_order.hpp"
#include "slimpack/plan/virtual_stages.hpp"

namespace slimpack {

/// The slower of two links, which have to outlive the answer: fewer bytes a second, then longer
/// latency.
[[nodiscard]] constexpr const Link& slower(const Link& a, const Link& b) noexcept {
  const bool first =
      a.bytes_per_s != b.bytes_per_s ? a.bytes_per_s < b.bytes_per_s : a.latency_s >= b.latency_s;
  return first ? a : b;  // NOLINT(bugprone-return-const-ref-from-parameter): of links that stay
}

/// Links by placement: of several devices that communicate, the slowest link between any two of
/// them. One device alone counts as inside its node.
class Links {
 public:
  /// O(placement). Throws InvalidInput if a (dp, pp, tp) is missing, out of range or given twice.
  explicit Links(const Plan& plan)
      : cluster_(plan.cluster),
        dp_(plan.parallel.dp),
        pp_(plan.parallel.pp),
        tp_(plan.parallel.tp) {
    require(dp_ > 0 && pp_ > 0 && tp_ > 0, "parallel: dp, pp and tp must be > 0");
    require(plan.cluster.devices_per_node > 0, "cluster.devices_per_node must be > 0",
            plan.cluster.devices_per_node);
    nodes_.assign(static_cast<std::size_t>(dp_) * static_cast<std::size_t>(pp_) *
                      static_cast<std::size_t>(tp_),
                  kNone);
    for (std::size_t i = 0; i < plan.placement.size(); ++i) {
      const Placement& place = plan.placement[i];
      const auto check = [i](bool condition, const char* rule, auto... value) {
        if (condition) return;
        require(false, "placement[" + std::to_string(i) + "]: " + rule, value...);
      };
      check(place.dp >= 0 && place.dp < dp_, "dp is out of range", place.dp);
      check(place.pp >= 0 && place.pp < pp_, "pp is out of range", place.pp);
      check(place.tp >= 0 && place.tp < tp_, "tp is out of range", place.tp);
      check(place.device >= 0, "device must be >= 0", place.device);
      std::int64_t& node = nodes_[slot(place.dp, place.pp, place.tp)];
      check(node == kNone, "these ranks have a device already");
      node = place.device / plan.cluster.devices_per_node;
    }
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      require(nodes_[i] != kNone, "placement: no device for rank (dp, pp, tp) number",
              static_cast<std::int64_t>(i));
    }
  }

  /// Between two stages of one data-parallel rank. O(tp).
  [[nodiscard]] const Link& stages(std::int32_t dp, std::int32_t a, std::int32_t b) const {
    Collective collective;
    for (std::int32_t tp = 0; tp < tp_; ++tp) {
      (node(dp, a, tp) == node(dp, b, tp) ? collective.inside : collective.between) = true;
    }
    return link(collective);
  }
  /// Between all stages of one data-parallel rank. O(pp log pp tp).
  [[nodiscard]] const Link& rank(std::int32_t dp) const {
    Collective collective;
    for (std::int32_t tp = 0; tp < tp_; ++tp) {
      collective.add(static_cast<std::size_t>(pp_),
                     [&](std::size_t pp) { return node(dp, static_cast<std::int32_t>(pp), tp); });
    }
    return link(collective);
  }
  /// Between some data-parallel ranks of one stage. O(ranks log ranks tp).
  [[nodiscard]] const Link& ranks(const std::vector<std::int32_t>& group, std::int32_t pp) const {
    Collective collective;
    for (std::int32_t tp = 0; tp < tp_; ++tp) {
      collective.add(group.size(), [&](std::size_t rank) { return node(group[rank], pp, tp); });
    }
    return link(collective);
  }
  /// Between all data-parallel ranks of one stage. O(ranks log ranks tp).
  [[nodiscard]] const Link& all_ranks(std::int32_t pp) const {
    Collective collective;
    for (std::int32_t tp = 0; tp < tp_; ++tp) {
      collective.add(static_cast<std::size_t>(dp_),
                     [&](std::size_t dp) { return node(static_cast<std::int32_t>(dp), pp, tp); });
    }
    return link(collective);
  }
  /// How data-parallel ranks of one stage hand on what they exchange. O(ranks x tp log ranks).
  [[nodiscard]] RingOrder ring(const std::vector<std::int32_t>& group, std::int32_t pp) const {
    return ring_order(static_cast<std::int64_t>(group.size()), tp_,
                      [&](std::int64_t rank, std::int32_t tp) {
                        return node(group[static_cast<std::size_t>(rank)], pp, tp);
                      });
  }
  /// How many of some data-parallel ranks of one stage are on the node where they are fewest; 0
  /// where all are on one. O(ranks x tp log ranks).
  [[nodiscard]] std::int64_t fewest_on_node(const std::vector<std::int32_t>& group,
                                            std::int32_t pp) const {
    std::size_t fewest = group.size();
    std::vector<std::int64_t> nodes(group.size());
    for (std::int32_t tp = 0; group.size() > 1 && tp < tp_; ++tp) {
      std::ranges::transform(group, nodes.begin(),
                             [&](std::int32_t dp) { return node(dp, pp, tp); });
      std::ranges::sort(nodes);
      for (auto at = nodes.begin(); at != nodes.end();) {
        const auto end = std::upper_bound(at, nodes.end(), *at);
        fewest = std::min(fewest, static_cast<std::size_t>(end - at));
        at = end;
      }
    }
    return fewest == group.size() ? 0 : static_cast<std::int64_t>(fewest);
  }
  /// Between the tensor-parallel devices of (dp, pp). O(tp log tp).
  [[nodiscard]] const Link& tensor(std::int32_t dp, std::int32_t pp) const {
    Collective collective;
    collective.add(static_cast<std::size_t>(tp_),
                   [&](std::size_t tp) { return node(dp, pp, static_cast<std::int32_t>(tp)); });
    return link(collective);
  }

 private:
  static constexpr std::int64_t kNone = -1;  // no node: devices count from 0

  /// Whether two of some devices are on one node, and whether two are not.
  struct Collective {
    bool inside = false, between = false;
    template <class NodeOf>
    void add(std::size_t devices, const NodeOf& node_of) {
      for (std::size_t i = 1; i < devices; ++i) {
        (node_of(i - 1) == node_of(i) ? inside : between) = true;
      }
      // Where neighbours alone are apart, those of one node may not be neighbours.
      if (inside || devices < 3) return;
      std::vector<std::int64_t> nodes;
      nodes.reserve(devices);
      for (std::size_t i = 0; i < devices; ++i) nodes.push_back(node_of(i));
      std::sort(nodes.begin(), nodes.end());
      inside = std::adjacent_find(nodes.begin(), nodes.end()) != nodes.end();
    }
  };

  [[nodiscard]] std::size_t slot(std::int32_t dp, std::int32_t pp, std::int32_t tp) const noexcept {
    return (static_cast<std::size_t>(dp) * static_cast<std::size_t>(pp_) +
            static_cast<std::size_t>(pp)) *
               static_cast<std::size_t>(tp_) +
           static_cast<std::size_t>(tp);
  }
  [[nodiscard]] std::int64_t node(std::int32_t dp, std::int32_t pp, std::int32_t tp) const {
    return nodes_[slot(dp, pp, tp)];
  }
  [[nodiscard]] const Link& link(const Collective& collective) const noexcept {
    if (!collective.between) return cluster_.inside;
    return collective.inside ? slower(cluster_.inside, cluster_.between) : cluster_.between;
  }

  Cluster cluster_;
  std::int32_t dp_, pp_, tp_;
  std::vector<std::int64_t> nodes_;
};

/// The link of the message that (dp, pp) sends forward, or back, round the ring of stages; absent
/// with one stage.
[[nodiscard]] inline std::optional<Link> message_link(const Plan& plan, const Links& links,
                                                      std::int32_t dp, std::int32_t pp, Pass pass) {
  const std::int32_t stages = plan.parallel.pp;
  if (stages == 1) return std::nullopt;
  return links.stages(dp, pp, (pp + (pass == Pass::forward ? 1 : stages - 1)) % stages);
}

/// Of each device, dp by dp, whether its messages forward and back take turns: always where both go
/// to one neighbour, and on links that are shared where both take links of one class. O(devices x
/// tp). Throws as `Links` does, but only where links are shared.
[[nodiscard]] inline std::vector<bool> one_port(const Plan& plan) {
  const std::int32_t dp_count = plan.parallel.dp, pp_count = plan.parallel.pp;
  std::vector<bool> one(static_cast<std::size_t>(dp_count) * static_cast<std::size_t>(pp_count),
                        pp_count <= 2);
  if (pp_count <= 2 || !plan.cluster.small.shared_links) return one;
  const Links links(plan);
  // With one chunk the ends of the pipeline send one way only.
  const std::int32_t first = plan.parallel.chunks > 1 ? 0 : 1;
  for (std::int32_t dp = 0; dp < dp_count; ++dp) {
    for (std::int32_t pp = first; pp < pp_count - first; ++pp) {
      one[device_index(plan, dp, pp)] = message_link(plan, links, dp, pp, Pass::forward) ==
                                        message_link(plan, links, dp, pp, Pass::backward);
    }
  }
  return one;
}

}  // namespace slimpack
