// SPDX-License-Identifier: Apache-2.0
// What units take when the stages of SlimPipe exchange attention.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/int128.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/cost/any_model.hpp"
#include "slimpack/cost/communication.hpp"
#include "slimpack/cost/links.hpp"
#include "slimpack/cost/price.hpp"
#include "slimpack/cost/stage_load.hpp"
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
  Nanos message;             ///< for which its own message keeps transfers waiting
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
/// `transfer(bytes, from, to)`. Of attention and transfers the shorter hides behind the longer but
/// for one of as many parts as there are units, the share by which the rings of ranks hide
/// (docs/costs.md); a unit's own message goes before its transfers. If the slowest unit would not
/// gain, nothing is exchanged. Law: the attention of
/// all units keeps its sum. O(units).
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
    if (traffic[i] > Nanos{}) traffic[i] += units[i].message;
    const Nanos shorter = std::min(share[i], traffic[i]);
    time[i] = units[i].parts.linear + std::max(share[i], traffic[i]) +
              Nanos{(shorter.value + count - 1) / count};
  }
  if (*std::max_element(time.begin(), time.end()) >= slowest) return result;
  return {std::move(time), bytes, true};
}

namespace detail {

/// Times of a plan in SlimPipe's order whose stages exchange attention, and the bytes of it. An
/// instant is the units at positions k, k - 1, .. of the stages' forward (backward) orders. The
/// stages of an instant wait for each other, which its times contain, and exchange attention where
/// all of them are then done sooner than the slowest would be by itself.
class SlimpipeTimes {
 public:
  SlimpipeTimes(const Plan& plan, const AnyModel& model, const PricedPlan& prices)
      : plan_(plan),
        model_(model),
        prices_(prices),
        links_(plan),
        parts_(plan, links_, model),
        lines_(static_cast<std::size_t>(virtual_stages_of(plan).size())) {
    for (std::size_t i = 0; i < plan.micropacks.size(); ++i) {
      for (std::size_t line = 0; line < lines_; ++line) {
        times.push_back(parts_(static_cast<PackId>(i), static_cast<std::int32_t>(line)).total());
      }
    }
    for (const auto& group : plan.groups) run(group);
  }

  std::vector<Nanos> times;
  std::int64_t bytes = 0;

 private:
  /// One unit of a stage's order.
  struct Step {
    Unit unit;
    std::size_t instant = 0;  // of F and B
  };
  /// A unit of an instant: its stage and its place in the stage's order.
  struct Member {
    std::size_t stage = 0, place = 0;
  };

  /// Runs the units of the stages of a group's first rank in time.
  void run(const std::vector<std::int32_t>& group) {
    const auto stages = static_cast<std::size_t>(plan_.parallel.pp);
    group_ = &group;
    find_messages();
    steps_.assign(stages, {});
    instants_.clear();
    next_.assign(stages, 0);
    free_.assign(stages, Nanos{});
    end_.assign(plan_.micropacks.size() * lines_, Nanos{-1});
    std::size_t left = 0, fronts = 0;
    for (std::size_t stage = 0; stage < stages; ++stage) {
      std::array<std::size_t, 2> count{};
      for (const Unit& unit :
           plan_.schedule[device_index(plan_, group.front(), static_cast<std::int32_t>(stage))]
               .order) {
        if (unit.kind == UnitKind::reduce || unit.kind == UnitKind::optimizer) continue;
        steps_[stage].push_back({unit, 0});
        if (unit.kind == UnitKind::head) continue;
        // F comes from the first stage, B from the last: instants of F are even, of B odd.
        const bool back = unit.kind == UnitKind::backward;
        const std::size_t front = count[back ? 1 : 0]++ + (back ? stages - 1 - stage : stage);
        steps_[stage].back().instant = 2 * front + (back ? 1 : 0);
        fronts = std::max(fronts, front + 1);
      }
      left += steps_[stage].size();
    }
    instants_.resize(2 * fronts);
    for (std::size_t stage = 0; stage < stages; ++stage) {
      for (std::size_t place = 0; place < steps_[stage].size(); ++place) {
        if (steps_[stage][place].unit.kind == UnitKind::head) continue;
        instants_[steps_[stage][place].instant].push_back({stage, place});
      }
    }
    while (left > 0) {
      std::size_t moved = 0;
      for (std::size_t stage = 0; stage < stages; ++stage) {
        while (const std::size_t ran = advance(stage)) moved += ran;
      }
      SLIMPACK_ASSERT(moved > 0 || blocked());
      if (moved == 0 && !part()) break;
      left -= moved;
    }
  }

  /// Runs the next unit of a stage with all that it meets, if they can; how many ran.
  std::size_t advance(std::size_t stage) {
    if (next_[stage] == steps_[stage].size()) return 0;
    const Step& step = steps_[stage][next_[stage]];
    if (step.unit.kind == UnitKind::head) return advance_head(stage, step.unit);
    const std::vector<Member>& members = instants_[step.instant];
    if (members.size() < 2) {
      if (!ready(stage)) return 0;
      finish(stage, *ready(stage), times[cell(stage)]);
      return 1;
    }
    Nanos start, alone;
    std::vector<StageWork> together;
    std::vector<Nanos> begin;
    std::int64_t layers = 1;
    for (const Member& member : members) {
      if (next_[member.stage] != member.place) return 0;
      const std::optional<Nanos> at = ready(member.stage);
      if (!at) return 0;
      const Unit& unit = steps_[member.stage][member.place].unit;
      const auto pp = static_cast<std::int32_t>(member.stage);
      const std::int32_t line = virtual_stages_of(plan_).index(pp, unit.chunk);
      together.push_back(work(unit.pack, line, pp));
      layers = std::max(layers, plan_.stages[static_cast<std::size_t>(line)].layers());
      begin.push_back(*at);
      start = std::max(start, *at);
      alone = std::max(alone, *at + times[cell(member.stage)]);
    }
    const auto ranks = static_cast<std::int64_t>(group_->size());
    const auto transfer = [&](Bytes some, std::int32_t from, std::int32_t to) {
      const std::int64_t parts = ranks * plan_.parallel.tp;
      const Bytes each{(some.value + parts - 1) / parts};
      const Link& link = links_.stages(group_->front(), from, to);
      return std::visit(
          [&](const auto& model) {
            // Every layer sends there and back; one latency is in the whole's transfer.
            return model.transfer(each, link) + model.transfer(Bytes{}, link) * (2 * layers - 1);
          },
          model_);
    };
    const ExchangedWork done = exchange_attention(together, transfer);
    const Nanos slowest = *std::max_element(done.time.begin(), done.time.end());
    const bool exchanged = done.exchanged && start + slowest < alone;
    if (exchanged) bytes += done.bytes;
    for (std::size_t i = 0; i < members.size(); ++i) {
      Nanos& time = times[cell(members[i].stage)];
      if (exchanged) time = start - begin[i] + done.time[i];
      finish(members[i].stage, begin[i], time);
    }
    return members.size();
  }

  /// H: on the last stage, or on all stages together.
  std::size_t advance_head(std::size_t stage, const Unit& unit) {
    const bool meets = plan_.parallel.head == LmHead::shard && steps_.size() > 1;
    Nanos start = free_[stage];
    for (std::size_t other = 0; meets && other < steps_.size(); ++other) {
      if (next_[other] == steps_[other].size()) return 0;
      const Unit& there = steps_[other][next_[other]].unit;
      if (there.kind != UnitKind::head || there.pack != unit.pack) return 0;
      start = std::max(start, free_[other]);
    }
    std::size_t ran = 0;
    for (std::size_t other = meets ? 0 : stage; other < (meets ? steps_.size() : stage + 1);
         ++other, ++ran) {
      free_[other] = start + prices_.head(unit.pack, 0, static_cast<std::int32_t>(other));
      ++next_[other];
    }
    return ran;
  }

  /// Where stages wait for each other in a circle, those of one instant no longer do. Whether there
  /// was one to part.
  bool part() {
    for (std::size_t stage = 0; stage < steps_.size(); ++stage) {
      if (next_[stage] == steps_[stage].size()) continue;
      const Step& step = steps_[stage][next_[stage]];
      if (step.unit.kind == UnitKind::head || !ready(stage)) continue;
      instants_[step.instant].clear();
      return true;
    }
    return false;
  }
  /// Whether some stage waits for others of its instant alone.
  [[nodiscard]] bool blocked() const {
    for (std::size_t stage = 0; stage < steps_.size(); ++stage) {
      if (next_[stage] < steps_[stage].size() &&
          steps_[stage][next_[stage]].unit.kind != UnitKind::head && ready(stage)) {
        return true;
      }
    }
    return false;
  }

  /// When the next F or B of a stage can start by itself; absent: its input is not there.
  [[nodiscard]] std::optional<Nanos> ready(std::size_t stage) const {
    const Unit& unit = steps_[stage][next_[stage]].unit;
    const auto line = static_cast<std::int32_t>(line_of(stage));
    const bool back = unit.kind == UnitKind::backward;
    const std::int32_t from = back ? line + 1 : line - 1;
    if (from < 0 || from == static_cast<std::int32_t>(lines_)) return free_[stage];
    const Nanos ended = end_[index(unit.pack) * lines_ + static_cast<std::size_t>(from)];
    if (ended < Nanos{}) return std::nullopt;
    return std::max(free_[stage], ended + prices_.transfer(unit.pack, from, 0));
  }
  [[nodiscard]] std::size_t line_of(std::size_t stage) const {
    const Unit& unit = steps_[stage][next_[stage]].unit;
    return static_cast<std::size_t>(
        virtual_stages_of(plan_).index(static_cast<std::int32_t>(stage), unit.chunk));
  }
  /// The next unit of a stage among `times`.
  [[nodiscard]] std::size_t cell(std::size_t stage) const {
    return index(steps_[stage][next_[stage]].unit.pack) * lines_ + line_of(stage);
  }
  void finish(std::size_t stage, Nanos begin, Nanos time) {
    end_[cell(stage)] = free_[stage] = begin + time;
    ++next_[stage];
  }

  [[nodiscard]] StageWork work(PackId pack, std::int32_t line, std::int32_t pp) const {
    const ExchangeBytes each = exchange_bytes(plan_, plan_.micropacks[index(pack)]);
    const std::int64_t layers = plan_.stages[static_cast<std::size_t>(line)].layers();
    const std::int64_t tokens = parts_.tokens(pack).value;
    const std::int64_t keys = parts_.pairs2(pack) / (2 * tokens) + 1;
    return {pp, parts_(pack, line), layers * tokens * each.q, layers * keys * each.kv,
            message(pack, line)};
  }
  /// Finds the messages that take the slowest link between the stages, over which they exchange,
  /// and for which no other traffic of their units has waited.
  void find_messages() {
    exchange_ = links_.rank(group_->front());
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      std::vector<bool>& keeps = keeps_exchange_[static_cast<std::size_t>(pass)];
      keeps.assign(lines_, false);
      if (!plan_.cluster.small.shared_links) continue;
      for (std::int32_t line = 0; line < static_cast<std::int32_t>(lines_); ++line) {
        const auto sent = slowest_message_link(plan_, links_, *group_, line, pass);
        const StageLoad stage = stage_load(plan_, links_, *group_, line);
        const bool waited = (group_->size() > 1 && sent == stage.exchange_link) ||
                            (plan_.parallel.tp > 1 && sent == stage.tensor_link);
        keeps[static_cast<std::size_t>(line)] = sent == exchange_ && !waited;
      }
    }
  }
  [[nodiscard]] Nanos message(PackId pack, std::int32_t line) const {
    const Pass pass = plan_.micropacks[index(pack)].pass;
    if (!keeps_exchange_[static_cast<std::size_t>(pass)][static_cast<std::size_t>(line)]) return {};
    return prices_.transfer(pack, line, 0) -
           std::visit([&](const auto& model) { return model.transfer(Bytes{}, exchange_); },
                      model_);
  }

  const Plan& plan_;
  const AnyModel& model_;
  const PricedPlan& prices_;
  Links links_;
  PlanParts parts_;
  std::size_t lines_;  // virtual stages
  const std::vector<std::int32_t>* group_ = nullptr;
  Link exchange_;                                    // slowest between the stages of the group
  std::array<std::vector<bool>, 2> keeps_exchange_;  // by pass and virtual stage
  std::vector<std::vector<Step>> steps_;             // of each stage
  std::vector<std::vector<Member>> instants_;        // empty: its units do not wait
  std::vector<std::size_t> next_;                    // place of each stage
  std::vector<Nanos> free_;                          // when each stage has run what came before
  std::vector<Nanos> end_;  // of units, by pack and virtual stage; -1: not yet
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
