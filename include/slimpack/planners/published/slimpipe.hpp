// SPDX-License-Identifier: Apache-2.0
// SlimPipe: uniform slices in its order, attention exchanged between stages, a sharded vocabulary.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "slimpack/core/int128.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/cost/any_model.hpp"
#include "slimpack/cost/communication.hpp"
#include "slimpack/cost/links.hpp"
#include "slimpack/cost/memory_model.hpp"
#include "slimpack/cost/price.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/plan/virtual_stages.hpp"
#include "slimpack/planners/check_request.hpp"
#include "slimpack/planners/planner.hpp"
#include "slimpack/planners/published/megatron_cp.hpp"
#include "slimpack/planners/published/slimpipe_order.hpp"
#include "slimpack/planners/search/choose_modelled.hpp"
#include "slimpack/planners/search/choose_packed.hpp"
#include "slimpack/planners/search/packed_sequences.hpp"
#include "slimpack/planners/search/unit_parts.hpp"
#include "slimpack/schedule/orders.hpp"

namespace slimpack::planners {

/// One unit of those that the stages of a pipeline run at the same time.
struct StageWork {
  std::int32_t stage = 0;
  UnitParts parts;
  /// What one nanosecond of its attention, handed over, costs is found from these.
  std::int64_t queries = 0;  ///< bytes of queries, outputs and statistics of all its tokens
  std::int64_t keys = 0;     ///< bytes of the keys and values that a mean query attends to
};

/// What becomes of units that run at the same time.
struct ExchangedWork {
  std::vector<Nanos> time;  ///< of each unit
  std::int64_t bytes = 0;   ///< that change stages
  bool exchanged = false;
};

/// Attention exchanged so that all stages spend the mean on it, to a nanosecond; the first stages
/// have the odd ones. Who has more than that gives to those who have less, both in the given order;
/// a gift costs all queries of its unit there and their outputs back, and of the keys and values
/// the gift's share. `transfer(bytes, from, to)` is its time, behind which computing hides or which
/// hides behind computing. Where the slowest unit would not gain, everyone does its own. Law: the
/// attention of all units keeps its sum. O(units).
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
  Nanos room;  // of the taker
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

/// Merged slices exchange what is fewer bytes: their keys so far, or their queries.
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

/// The candidates of SlimPipe.
class SlimpipeCandidates {
 public:
  SlimpipeCandidates(const PlanRequest& request, std::string_view planner, PackedSpace space)
      : request_(request), planner_(planner), space_(std::move(space)) {}

  /// The settings of packed sequences, then exchange and none.
  [[nodiscard]] std::vector<std::size_t> sizes() const {
    const auto packed = space_.sizes();
    std::vector<std::size_t> sizes(packed.begin(), packed.end());
    sizes.push_back(2);
    return sizes;
  }
  [[nodiscard]] bool exists(const SettingPoint& point) const {
    const PackedSettings settings = space_.at(point);
    return space_.first_of_its_kind(point) &&
           leaves_layers(request_, settings.chunks, settings.head);
  }
  [[nodiscard]] SimulationOnlyPlan build(const SettingPoint& point) const {
    Plan plan = build_packed(request_, planner_, space_.at(point), SlimpipeOrder::order);
    if (plan.groups.front().size() > 1) exchange_fewer_bytes(plan);
    const AnyModel model = make_model(plan);
    PricedPlan prices = std::visit([&](const auto& m) { return PricedPlan(plan, m); }, model);
    if (point.back() != 0) {
      UnitTimeOverrides times = own_times(plan, std::move(prices));
      return {std::move(plan), std::move(times), "", std::nullopt};
    }
    SlimpipeTimes exchanged(plan, model);
    const Bytes bytes = communication_of(plan).exchange + Bytes{exchanged.bytes};
    UnitTimeOverrides times(plan, std::move(prices), std::move(exchanged.times));
    return {std::move(plan), std::move(times), "exchange of attention between stages", bytes};
  }
  [[nodiscard]] std::map<std::string, std::string> settings(const SettingPoint& point,
                                                            const Plan& plan) const {
    auto lines = packed_settings(space_, space_.at(point), plan);
    lines["exchange"] = point.back() == 0 ? "attention" : "none";
    return lines;
  }

 private:
  const PlanRequest& request_;
  std::string_view planner_;
  PackedSpace space_;
};

}  // namespace detail

/// SlimPipe (Li et al., "SlimPipe: Memory-Thrifty and Efficient Pipeline Parallelism for
/// Long-Context LLM Training", arXiv 2504.14519): packed sequences in slices of equal length, one
/// forward and one backward slice by turns, the vocabulary sharded over the stages; stages that at
/// the same time work on slices with different prefixes hand attention work to each other (queries
/// and part of the keys and values there, partial outputs back), so that all take the mean time.
///
/// Searched: what `SlimpipeOrder` searches, whether stages exchange attention at all, and context
/// parallelism as `MegatronCp` does, each slice exchanging keys and values or queries, whichever is
/// fewer bytes. Without exchange between stages the answer is a plan.
///
/// Deviations and assumptions, all in its favour: work is exchanged to the nanosecond, not by whole
/// slices of keys; all traffic hides behind computing and the longer of the two counts; where an
/// exchange would not shorten the slowest unit of an instant it is left out; units that exchange do
/// not wait for each other; received queries and keys take no memory. An instant is the units at
/// positions k, k - 1, .. of the stages' forward (backward) orders, as in the steady state.
/// Sequences of several whole documents are masked by document, and cut as `SlimpipeOrder` does;
/// stages hand work to each other in the order of their numbers. Written from the publication's
/// abstract and from descriptions of it by others; where these are silent, the choice is ours.
struct Slimpipe {
  static constexpr std::string_view name = "slimpipe";
  static constexpr std::string_view description =
      "SlimPipe: uniform slices, attention exchanged between stages, sharded vocabulary";
  static constexpr std::string_view simulated_only = "where stages exchange attention";

  [[nodiscard]] PlanOutcome plan(const PlanRequest& request) const {
    check_request(request);
    PackedSpace space = SlimpipeOrder::space(request);
    space.ranks = detail::context_parallel_choices(request);
    space.share = detail::share_choices(request, space.ranks);
    const detail::SlimpipeCandidates candidates(request, name, std::move(space));
    return choose_modelled(request, candidates.sizes(), candidates);
  }
};
static_assert(Planner<Slimpipe>);

}  // namespace slimpack::planners
