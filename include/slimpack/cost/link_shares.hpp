// SPDX-License-Identifier: Apache-2.0
// What the units of devices leave of their links to collectives that run beside them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "slimpack/core/int128.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/cost/links.hpp"
#include "slimpack/cost/load.hpp"
#include "slimpack/cost/terms.hpp"
#include "slimpack/cost/unit_bytes.hpp"
#include "slimpack/cost/unit_times.hpp"
#include "slimpack/plan/memory.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/plan/virtual_stages.hpp"

namespace slimpack {

/// `alone` prolonged by what units, which take `units` in all, send meanwhile for `busy`: to alone
/// / (1 - busy / units), rounded up, but never beyond twice, the half of a link that two who share
/// it have each.
[[nodiscard]] constexpr Nanos beside_traffic(Nanos alone, Nanos busy, Nanos units) noexcept {
  if (units.value <= 0 || busy.value <= 0) return alone;
  const std::int64_t free = std::max(units.value - busy.value, (units.value + 1) / 2);
  return {static_cast<std::int64_t>((Int128{alone.value} * units.value + free - 1) / free)};
}

/// How much of each link the units of the packs that are added take, on average over their own
/// times: messages, exchanges, tensor-parallel traffic and the sharded head. Keeps plan and links,
/// which must outlive it.
class LinkShares {
 public:
  /// Without packs so far. O(groups x ranks).
  LinkShares(const Plan& plan, const Links& links)
      : plan_(plan),
        links_(links),
        lines_(static_cast<std::size_t>(virtual_stages_of(plan).size())),
        sent_(plan.groups.size()),
        time_(plan.groups.size() * lines_),
        alone_(plan.groups.size()),
        head_on_all_(plan.parallel.head == LmHead::shard) {
    places_.resize(static_cast<std::size_t>(plan.parallel.dp));
    for (std::size_t group = 0; group < plan.groups.size(); ++group) {
      for (std::size_t place = 0; place < plan.groups[group].size(); ++place) {
        places_[static_cast<std::size_t>(plan.groups[group][place])].push_back({group, place});
      }
    }
  }

  /// Counts a pack with these loads on the ranks of its group. For `alone` of its time it sends
  /// while it computes nothing: whoever hides traffic behind the rest shares no link with that.
  /// O(virtual stages + ranks).
  template <class Times>
  void add(PackId id, std::span<const PackLoad> loads, const Times& times, Nanos alone = {}) {
    add(id, loads, times, exchange_bytes(plan_, plan_.micropacks[index(id)]));
    alone_[index(plan_.micropacks[index(id)].group)] += alone;
  }
  /// The same where tokens of the pack bring other bytes.
  template <class Times>
  void add(PackId id, std::span<const PackLoad> loads, const Times& times,
           const ExchangeBytes& each) {
    const MicroPack& pack = plan_.micropacks[index(id)];
    const std::size_t group = index(pack.group);
    const bool forward = pack.pass == Pass::forward;
    sent_[group].resize(plan_.groups[group].size());
    for (std::size_t line = 0; line < lines_; ++line) {
      time_[group * lines_ + line] += times.compute(id, static_cast<std::int32_t>(line));
    }
    for (std::size_t rank = 0; rank < loads.size(); ++rank) {
      const PackLoad& load = loads[rank];
      Sent& sent = sent_[group][rank];
      if (forward) sent.forward += load.tokens.value;
      if (pack.pass == Pass::backward) sent.backward += load.tokens.value;
      sent.gathered += load.tokens.value * tensor_collectives(pack);
      sent.exchanged += load.kv_received.value * each.kv + load.q_received.value * each.q;
      sent.by_heads += load.heads_sent.value * each.heads;
      if (forward) sent.head += times.head(id, rank, plan_.parallel.pp - 1);
    }
  }

  /// The times of collectives of all ranks of a stage over `link` that take `alone` by themselves:
  /// as long as on the rank that leaves them least. O((groups of a rank x chunks + collectives) x
  /// ranks).
  [[nodiscard]] std::vector<Nanos> beside_units(const std::vector<Nanos>& alone, std::int32_t pp,
                                                const Link& link) const {
    std::vector<Nanos> longest = alone;
    for (std::int32_t dp = 0; dp < plan_.parallel.dp; ++dp) {
      const Use use = use_of(dp, pp, link);
      const Nanos busy = to_nanos(picos(use.bytes, picos_each(1, link.bytes_per_s) /
                                                       static_cast<double>(plan_.parallel.tp))) -
                         use.alone;
      for (std::size_t i = 0; i < alone.size(); ++i) {
        longest[i] = std::max(longest[i], beside_traffic(alone[i], busy, use.time - use.alone));
      }
    }
    return longest;
  }

 private:
  /// Of the packs of a group on one of its ranks: tokens, tokens times collectives a layer, bytes
  /// of rings a layer and those that pass to parts of heads, and the time of H.
  struct Sent {
    std::int64_t forward = 0, backward = 0, gathered = 0, exchanged = 0, by_heads = 0;
    Nanos head;
  };
  /// A group that a rank belongs to, and which of its ranks it is.
  struct Place {
    std::size_t group, place;
  };
  struct Use {
    std::int64_t bytes = 0;  // of all tensor-parallel devices
    Nanos time, alone;
  };

  [[nodiscard]] bool has_packs(std::size_t group) const noexcept { return !sent_[group].empty(); }
  [[nodiscard]] Use use_of(std::int32_t dp, std::int32_t pp, const Link& link) const {
    const std::vector<Place>& places = places_[static_cast<std::size_t>(dp)];
    if (std::none_of(places.begin(), places.end(),
                     [&](const Place& place) { return has_packs(place.group); })) {
      return {};
    }
    const VirtualStages virtual_stages = virtual_stages_of(plan_);
    const std::int64_t hidden = plan_.model.hidden * plan_.model.bytes_per_element;
    const std::int64_t head_row =
        head_traffic_bytes(plan_.model, element_bytes_of(plan_.model, plan_.memory.gradient_bytes));
    const std::int64_t tp = plan_.parallel.tp;
    const bool ahead = message_link(plan_, links_, dp, pp, Pass::forward) == link;
    const bool back = message_link(plan_, links_, dp, pp, Pass::backward) == link;
    const bool tensor = tp > 1 && links_.tensor(dp, pp) == link;
    const bool head = head_on_all_ && plan_.parallel.pp > 1 && links_.rank(dp) == link;
    Use use;
    for (const auto& [group, place] : places) {
      if (!has_packs(group)) continue;
      const Sent& sent = sent_[group][place];
      const std::int64_t exchanged = exchanged_over(link, plan_.groups[group], pp, sent.exchanged) +
                                     by_heads_over(link, plan_.groups[group], pp, sent.by_heads);
      for (std::int32_t chunk = 0; chunk < plan_.parallel.chunks; ++chunk) {
        const std::int32_t line = virtual_stages.index(pp, chunk);
        const std::int64_t layers = chunk_layers(plan_, pp, chunk);
        use.time += time_[group * lines_ + static_cast<std::size_t>(line)];
        if (ahead && line + 1 < virtual_stages.size()) use.bytes += sent.forward * hidden;
        if (back && line > 0) use.bytes += sent.backward * hidden;
        use.bytes += exchanged * layers;
        if (tensor) use.bytes += sent.gathered * layers * hidden * (tp - 1);
        if (tensor && line == 0) use.bytes += (sent.forward + sent.backward) * hidden * (tp - 1);
      }
      use.alone += alone_[group];
      if (head) use.bytes += sent.forward * head_row;
      if (head_on_all_ || pp + 1 == plan_.parallel.pp) use.time += sent.head;
    }
    return use;
  }

  /// The part of what a group exchanges that goes over a link.
  [[nodiscard]] std::int64_t exchanged_over(const Link& link,
                                            const std::vector<std::int32_t>& ranks, std::int32_t pp,
                                            std::int64_t exchanged) const {
    if (ranks.size() == 1 || exchanged == 0) return 0;
    const std::int64_t far = links_.ring(ranks, pp).hops_between();
    if (far == 0) return links_.ranks(ranks, pp) == link ? exchanged : 0;
    const std::int64_t outside = exchanged * far / (static_cast<std::int64_t>(ranks.size()) - 1);
    return (link == plan_.cluster.between ? outside : 0) +
           (link == plan_.cluster.inside ? exchanged - outside : 0);
  }

  /// The part of what a rank of a group passes to parts of heads that goes over a link.
  [[nodiscard]] std::int64_t by_heads_over(const Link& link, const std::vector<std::int32_t>& group,
                                           std::int32_t pp, std::int64_t bytes) const {
    if (group.size() == 1 || bytes == 0) return 0;
    const auto ranks = static_cast<std::int64_t>(group.size());
    const std::int64_t fewest = links_.fewest_on_node(group, pp),
                       here = fewest > 0 ? fewest : ranks;
    return (link == plan_.cluster.inside ? bytes * (here - 1) / ranks : 0) +
           (here < ranks && link == plan_.cluster.between ? bytes * (ranks - here) / ranks : 0);
  }

  const Plan& plan_;
  const Links& links_;
  std::size_t lines_;                       // virtual stages
  std::vector<std::vector<Sent>> sent_;     // by group and rank of it
  std::vector<std::vector<Place>> places_;  // by data-parallel rank
  std::vector<Nanos> time_;                 // of F, B and W, by group and virtual stage
  std::vector<Nanos> alone_;                // of time_, by group
  bool head_on_all_;                        // the stages share it
};

}  // namespace slimpack
