// SPDX-License-Identifier: Apache-2.0
// What Zeppelin's micro-batches take: attention by zones, even linear work, remapping between them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/cost/any_model.hpp"
#include "slimpack/cost/communication.hpp"
#include "slimpack/cost/cost_model.hpp"
#include "slimpack/cost/links.hpp"
#include "slimpack/cost/price.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/planners/published/detail/unit_parts.hpp"
#include "slimpack/planners/published/detail/zeppelin_zones.hpp"

namespace slimpack::planners::detail {

/// Bytes of one token and layer that remapping moves: queries, keys and values there, outputs
/// back; backward their gradients, and what a full recomputation repeats.
[[nodiscard]] constexpr std::int64_t remapped_bytes(const Plan& plan,
                                                    const MicroPack& pack) noexcept {
  const std::int64_t once =
      2 * (plan.model.query_width() + plan.model.key_width()) * plan.model.bytes_per_element;
  return pack.pass == Pass::backward && pack.recompute == Recompute::full ? 2 * once : once;
}

/// The time of a unit, and the bytes that its ranks exchange, handed out inside nodes too.
struct ZonedUnit {
  Nanos time;
  std::int64_t bytes = 0;
  bool remapped = false;
};

/// One unit of a partitioned micro-batch on one virtual stage. A rank works off its queues one
/// after another while rings run, those inside and between nodes at the same time. As in a ring of
/// slimpack's, the shorter of attention and rings hides behind the longer but for one of as many
/// parts as the widest ring of the rank has ranks, and each of its steps adds a latency a layer
/// (docs/costs.md); the message that the unit sends keeps them waiting as there. Then, whichever is
/// faster, tokens are remapped and all ranks do an even part of the linear work, or each does that
/// of its own tokens.
template <CostModel Model>
[[nodiscard]] ZonedUnit zoned_unit(const Model& model, const Plan& plan, const MicroPack& pack,
                                   const Zones& zones, const RankNodes& nodes,
                                   const StageLoad& stage) {
  const std::int64_t keys = exchange_bytes(plan, pack).kv * stage.layers;
  const std::int64_t tp = stage.tensor_parallel;
  const auto traffic = [&](Tokens tokens, std::int64_t each, const Link& link) {
    if (tokens.value == 0) return Nanos{};
    return model.transfer(Bytes{(tokens.value * each + tp - 1) / tp}, link);
  };
  const auto flow = [&](Tokens tokens, std::int64_t each, const Link& link) {
    return tokens.value == 0 ? Nanos{}
                             : traffic(tokens, each, link) - model.transfer(Bytes{}, link);
  };
  const auto back = [&](PackLoad load) {
    if (pack.pass == Pass::backward) load.runs = load.tokens.value > 0 ? 1 : 0;
    return load;
  };
  Nanos attention, uneven;
  Tokens total;
  ZonedUnit unit;
  std::size_t place = 0;
  for (const ZoneLoad& rank : zones.ranks) {
    const UnitParts own = unit_parts(model, back(rank.load), stage, pack.pass, pack.recompute);
    const bool over_nodes = rank.between.value > 0;
    const auto ring = [&](Tokens tokens, const Link& link) {
      if (tokens.value == 0) return Nanos{};
      return flow(tokens, keys, link) +
             own_message(model, plan, rank.load.tokens, stage, pack.pass, link);
    };
    const Nanos rings =
        std::max(ring(rank.inside, plan.cluster.inside), ring(rank.between, plan.cluster.between));
    Nanos longest = std::max(own.attention, rings);
    if (rank.inside.value > 0 || over_nodes) {
      const auto members = static_cast<std::int64_t>(
          over_nodes ? zones.ranks.size() : nodes.ranks[nodes.node[place]].size());
      longest += Nanos{(std::min(own.attention, rings).value + members - 1) / members} +
                 model.transfer(Bytes{}, over_nodes ? plan.cluster.between : plan.cluster.inside) *
                     ((members - 1) * stage.layers) +
                 part_of(std::min(own.attention, rings), plan.cluster.small.collective_compute);
    }
    ++place;
    attention = std::max(attention, longest);
    uneven = std::max(uneven, own.linear + longest);
    total += rank.load.tokens;
    unit.bytes += (rank.inside.value + rank.between.value) * keys;
  }
  const auto count = static_cast<std::int64_t>(zones.ranks.size());
  PackLoad even;
  even.tokens = Tokens{(total.value + count - 1) / count};
  const Remapping moves = remapping(zones, nodes);
  const std::int64_t moved = remapped_bytes(plan, pack) * stage.layers;
  const Nanos remapped = attention +
                         unit_price(model, back(even), stage, pack.pass, pack.recompute) +
                         traffic(moves.inside, moved, plan.cluster.inside) +
                         traffic(moves.between, moved, plan.cluster.between);
  unit.remapped = remapped < uneven;
  unit.time = std::min(remapped, uneven);
  if (unit.remapped) unit.bytes += moves.moved.value * moved;
  return unit;
}

/// Times of all F and B of a plan of whole documents, two packs a micro-batch.
struct ZonedTimes {
  std::vector<Nanos> times;  ///< by pack and virtual stage
  std::int64_t bytes = 0;
  std::int64_t local = 0, node = 0, cluster = 0;  ///< documents by zone, on the first stage
  std::int64_t remapped = 0;                      ///< forward packs, on the first stage
};

/// Partitions every micro-batch by the limits of `limit_choices` with which its forward pass takes
/// least, ties to the first.
class ZeppelinPricing {
 public:
  ZeppelinPricing(const Plan& plan, AnyModel model) : plan_(plan), model_(std::move(model)) {
    const Links links(plan);
    for (std::size_t group = 0; group < plan.groups.size(); ++group) {
      add_group(links, static_cast<GroupId>(group));
    }
  }
  [[nodiscard]] ZonedTimes run() const {
    return std::visit([&](const auto& model) { return price(model); }, model_);
  }

 private:
  /// Where a group's ranks are on each virtual stage; those that cost the same are one kind.
  struct GroupPlaces {
    std::vector<RankNodes> nodes;
    std::vector<std::pair<StageLoad, std::size_t>> kinds;  // the second one in `nodes`
    std::vector<std::size_t> kind;                         // of a virtual stage
  };

  void add_group(const Links& links, GroupId id) {
    GroupPlaces places;
    const VirtualStages virtual_stages = virtual_stages_of(plan_);
    const StageKinds stages = stage_kinds(plan_, links, id);
    for (std::int32_t i = 0; i < virtual_stages.size(); ++i) {
      std::vector<std::int64_t> numbers;
      for (const std::int32_t dp : plan_.groups[index(id)])
        numbers.push_back(node(dp, virtual_stages.stage(i)));
      const RankNodes nodes = rank_nodes(numbers);
      const auto known = std::find(places.nodes.begin(), places.nodes.end(), nodes);
      const auto which = static_cast<std::size_t>(known - places.nodes.begin());
      if (known == places.nodes.end()) places.nodes.push_back(nodes);
      const std::pair<StageLoad, std::size_t> kind{
          stages.loads[stages.kind[static_cast<std::size_t>(i)]], which};
      const auto found = std::find(places.kinds.begin(), places.kinds.end(), kind);
      places.kind.push_back(static_cast<std::size_t>(found - places.kinds.begin()));
      if (found == places.kinds.end()) places.kinds.push_back(kind);
    }
    groups_.push_back(std::move(places));
  }
  /// The node of the first tensor-parallel device of (dp, pp).
  [[nodiscard]] std::int64_t node(std::int32_t dp, std::int32_t pp) const {
    const std::size_t i = device_index(plan_, dp, pp) * static_cast<std::size_t>(plan_.parallel.tp);
    return plan_.placement[i].device / plan_.cluster.devices_per_node;
  }

  template <CostModel Model>
  [[nodiscard]] Zones choose(const Model& model, const MicroPack& forward,
                             std::span<const Tokens> documents, const RankNodes& nodes,
                             const StageLoad& stage) const {
    const Tokens tile{plan_.cluster.tile_tokens};
    std::optional<Nanos> least;
    Zones best;
    for (const ZoneLimits& limits : limit_choices(documents, nodes)) {
      Zones zones = partition(documents, nodes, limits, tile);
      const Nanos time = zoned_unit(model, plan_, forward, zones, nodes, stage).time;
      if (least && *least <= time) continue;
      least = time;
      best = std::move(zones);
    }
    return best;
  }

  template <CostModel Model>
  [[nodiscard]] ZonedTimes price(const Model& model) const {
    ZonedTimes result;
    for (std::size_t i = 0; i < plan_.micropacks.size(); i += 2) {
      const MicroPack& forward = plan_.micropacks[i];
      const GroupPlaces& places = groups_[index(forward.group)];
      std::vector<Tokens> documents;
      for (const Slice& slice : forward.slices) documents.push_back(slice.length());
      std::vector<Zones> zones;  // by nodes
      for (std::size_t which = 0; which < places.nodes.size(); ++which) {
        const auto first = std::find_if(places.kinds.begin(), places.kinds.end(),
                                        [&](const auto& kind) { return kind.second == which; });
        zones.push_back(choose(model, forward, documents, places.nodes[which], first->first));
      }
      result.local += zones.front().local;
      result.node += zones.front().node;
      result.cluster += zones.front().cluster;
      for (const std::size_t id : {i, i + 1}) {
        std::vector<ZonedUnit> units;
        for (const auto& [stage, which] : places.kinds) {
          units.push_back(zoned_unit(model, plan_, plan_.micropacks[id], zones[which],
                                     places.nodes[which], stage));
        }
        for (const std::size_t kind : places.kind) {
          result.times.push_back(units[kind].time);
          result.bytes += units[kind].bytes;
        }
        if (id == i && units[places.kind.front()].remapped) ++result.remapped;
      }
    }
    return result;
  }

  const Plan& plan_;
  AnyModel model_;
  std::vector<GroupPlaces> groups_;
};

}  // namespace slimpack::planners::detail
