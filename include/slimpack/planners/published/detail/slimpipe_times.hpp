// SPDX-License-Identifier: Apache-2.0
// What units take when the stages of SlimPipe exchange attention.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "slimpack/core/int128.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/cost/any_model.hpp"
#include "slimpack/cost/communication.hpp"
#include "slimpack/cost/links.hpp"
#include "slimpack/plan/cp_shard.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/planners/published/detail/unit_parts.hpp"

namespace slimpack::planners {

/// One unit of those that the stages of a pipeline run at the same time.
struct StageWork {
  std::int32_t stage = 0;    ///< that runs it
  UnitParts parts;           ///< time of attention and of the rest
  std::int64_t queries = 0;  ///< bytes of queries, outputs and statistics of all its tokens
  std::int64_t keys = 0;     ///< bytes of the keys and values that a mean query attends to
};

/// What becomes of units that run at the same time.
struct ExchangedWork {
  std::vector<Nanos> time;  ///< of each unit
  std::int64_t bytes = 0;   ///< that change stages
  bool exchanged = false;   ///< false where nothing was to gain
};

/// Moves attention between units so that all stages spend the mean time on it; the nanoseconds left
/// by the division go to the first stages. Units with more than the mean hand over to units with
/// less, both in the given order. Each transfer carries all queries of its unit there, their
/// outputs back, and the part of keys and values that belongs to the attention moved; it takes
/// `transfer(bytes, from, to)`. Transfers and computing overlap, and the longer of them counts. If
/// the slowest unit would not gain, nothing is exchanged. Law: the attention of all units keeps its
/// sum. O(units).
template <class Transfer>
[[nodiscard]] ExchangedWork exchange_attention(std::span<const StageWork> units,
                                               const Transfer& transfer) {
  ExchangedWork result;
  const auto count = static_cast<std::int64_t>(units.size());
  Nanos sum, slowest;
  for (const StageWork& unit : units) {
    result.time.push_back(unit.parts.total());
    sum += unit.parts.attention;
    slowest = std::max(slowest, unit.parts.total());
  }
  if (count < 2) return result;
  std::vector<Nanos> share(units.size()), traffic(units.size());
  for (std::size_t i = 0; i < units.size(); ++i) {
    const bool odd = static_cast<std::int64_t>(i) < sum.value % count;
    share[i] = Nanos{sum.value / count + (odd ? 1 : 0)};
  }
  std::int64_t bytes = 0;
  std::size_t taker = 0;
  Nanos room;  // what the taker still lacks to the mean
  const auto next_taker = [&] {
    while (taker < units.size() && units[taker].parts.attention >= share[taker]) ++taker;
    if (taker < units.size()) room = share[taker] - units[taker].parts.attention;
  };
  next_taker();
  for (std::size_t giver = 0; giver < units.size(); ++giver) {
    const StageWork& unit = units[giver];
    for (Nanos left = unit.parts.attention - share[giver]; left > Nanos{};) {
      const Nanos gift = std::min(left, room);
      const auto keys = static_cast<std::int64_t>(
          (Int128{unit.keys} * gift.value + unit.parts.attention.value - 1) /
          unit.parts.attention.value);
      const Nanos time = transfer(Bytes{unit.queries + keys}, unit.stage, units[taker].stage);
      bytes += unit.queries + keys;
      traffic[giver] += time;
      traffic[taker] += time;
      left -= gift;
      room -= gift;
      if (room == Nanos{}) {
        ++taker;
        next_taker();
      }
    }
  }
  std::vector<Nanos> time(units.size());
  for (std::size_t i = 0; i < units.size(); ++i) {
    time[i] = std::max(units[i].parts.linear + share[i], traffic[i]);
  }
  if (*std::max_element(time.begin(), time.end()) >= slowest) return result;
  return {std::move(time), bytes, true};
}

namespace detail {

/// The units of one pass of a stage, in its order.
[[nodiscard]] inline std::vector<Unit> units_of(const DeviceSchedule& device, UnitKind kind) {
  std::vector<Unit> units;
  for (const Unit& unit : device.order) {
    if (unit.kind == kind) units.push_back(unit);
  }
  return units;
}

/// Times of a plan in SlimPipe's order whose stages exchange attention, and the bytes of it.
class SlimpipeTimes {
 public:
  SlimpipeTimes(const Plan& plan, const AnyModel& model)
      : plan_(plan), model_(model), links_(plan), parts_(plan, links_, model) {
    const std::int32_t lines = virtual_stages_of(plan).size();
    for (std::size_t i = 0; i < plan.micropacks.size(); ++i) {
      for (std::int32_t line = 0; line < lines; ++line) {
        times.push_back(parts_(static_cast<PackId>(i), line).total());
      }
    }
    for (const auto& group : plan.groups) {
      balance(group, UnitKind::forward);
      balance(group, UnitKind::backward);
    }
  }

  std::vector<Nanos> times;
  std::int64_t bytes = 0;

 private:
  /// The stages run F k, k - 1, .. at the same time, the first stage first; B the other way round.
  void balance(const std::vector<std::int32_t>& group, UnitKind kind) {
    const std::int32_t stages = plan_.parallel.pp;
    std::vector<std::vector<Unit>> units;
    for (std::int32_t pp = 0; pp < stages; ++pp) {
      units.push_back(units_of(plan_.schedule[device_index(plan_, group.front(), pp)], kind));
    }
    const auto count = static_cast<std::int64_t>(units.front().size());
    const auto ranks = static_cast<std::int64_t>(group.size());
    for (std::int64_t front = 0; front < count + stages - 1; ++front) {
      std::vector<StageWork> together;
      std::vector<std::size_t> cell;
      for (std::int32_t pp = 0; pp < stages; ++pp) {
        const std::int64_t i = front - (kind == UnitKind::forward ? pp : stages - 1 - pp);
        if (i < 0 || i >= count) continue;
        const Unit& unit = units[static_cast<std::size_t>(pp)][static_cast<std::size_t>(i)];
        const std::int32_t line = virtual_stages_of(plan_).index(pp, unit.chunk);
        together.push_back(work(unit.pack, line, pp));
        cell.push_back(index(unit.pack) *
                           static_cast<std::size_t>(virtual_stages_of(plan_).size()) +
                       static_cast<std::size_t>(line));
      }
      const auto transfer = [&](Bytes some, std::int32_t from, std::int32_t to) {
        const std::int64_t parts = ranks * plan_.parallel.tp;
        const Bytes each{(some.value + parts - 1) / parts};
        const Link& link = links_.stages(group.front(), from, to);
        return std::visit([&](const auto& model) { return model.transfer(each, link); }, model_);
      };
      const ExchangedWork work = exchange_attention(together, transfer);
      if (!work.exchanged) continue;
      for (std::size_t i = 0; i < cell.size(); ++i) times[cell[i]] = work.time[i];
      bytes += work.bytes;
    }
  }

  [[nodiscard]] StageWork work(PackId pack, std::int32_t line, std::int32_t pp) const {
    const ExchangeBytes each = exchange_bytes(plan_, plan_.micropacks[index(pack)]);
    const std::int64_t layers = plan_.stages[static_cast<std::size_t>(line)].layers();
    const std::int64_t tokens = parts_.tokens(pack).value;
    const std::int64_t keys = parts_.pairs2(pack) / (2 * tokens) + 1;
    return {pp, parts_(pack, line), layers * tokens * each.q, layers * keys * each.kv};
  }

  const Plan& plan_;
  const AnyModel& model_;
  Links links_;
  PlanParts parts_;
};

/// Gives each slice of a group of several ranks the ring mode that sends fewer bytes: keys and
/// values of all tokens up to its end, or its queries.
inline void exchange_fewer_bytes(Plan& plan) {
  for (MicroPack& pack : plan.micropacks) {
    const ExchangeBytes each = exchange_bytes(plan, pack);
    for (std::size_t slot = 0; slot < pack.exchange.size(); ++slot) {
      const Slice& slice = pack.slices[slot];
      const bool queries = slice.length().value * each.q < slice.end.value * each.kv;
      pack.exchange[slot] = queries ? RingMode::pass_q : RingMode::pass_kv;
    }
  }
}

}  // namespace detail
}  // namespace slimpack::planners
