// SPDX-License-Identifier: Apache-2.0
// Plans of one stage in rounds: packs of whole samples, one a rank, that all ranks run together.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "slimpack/core/int128.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/cost/links.hpp"
#include "slimpack/cost/load.hpp"
#include "slimpack/cost/stage_load.hpp"
#include "slimpack/plan/cp_shard.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/planners/planner.hpp"
#include "slimpack/planners/search/detail/choices.hpp"
#include "slimpack/planners/search/detail/choose.hpp"
#include "slimpack/planners/search/detail/lengths.hpp"
#include "slimpack/planners/search/detail/sp_groups.hpp"
#include "slimpack/planners/search/detail/token_capacity.hpp"
#include "slimpack/planners/search/settings.hpp"
#include "slimpack/planners/slimpack/cut_rounds.hpp"
#include "slimpack/planners/slimpack/exchange.hpp"
#include "slimpack/planners/slimpack/fit_modes.hpp"
#include "slimpack/planners/slimpack/packs.hpp"
#include "slimpack/planners/slimpack/problem.hpp"
#include "slimpack/planners/slimpack/settings.hpp"
#include "slimpack/planners/slimpack/split_packs.hpp"
#include "slimpack/planners/slimpack/spread_samples.hpp"

namespace slimpack::planners {

/// One candidate of a plan in rounds.
struct RoundSettings {
  WeightState weights = WeightState::sharded;  ///< whether ranks share them
  Recompute recompute = Recompute::none;       ///< with which a round should fit
  bool fit_modes = false;     ///< packs keep what fits, else all what `recompute` says
  std::int64_t quarters = 4;  ///< so many quarters of the fewest rounds that hold all
  std::int64_t room = 4;      ///< quarters of what memory holds that groups may fill
  std::size_t degrees = 1;    ///< sizes of groups: 1, 2, 4 .. ranks
  Tokens cp_block{128};       ///< of samples that several ranks share
  DeviceOrder devices = DeviceOrder::ranks;  ///< placement of ranks
  bool exposed = true;     ///< samples are taken to wait for what their ranks exchange
  std::int64_t pack = 64;  ///< samples of a kind that are priced together
  std::int64_t cut = 0;    ///< sixteenths of a round's longest sample that are packs of their own
};

namespace detail {

/// Candidates whose samples, longest first, are cut into rounds of about as many tokens; in each
/// all ranks are divided into groups so that the slowest takes nearly the least time.
class RoundCandidates : public CandidateBase<RoundSettings> {
 public:
  /// Problem and name must outlive the candidates.
  RoundCandidates(const SlimpackProblem& problem, std::string_view planner, WeightState weights)
      : CandidateBase(problem.request(), planner), problem_(problem) {
    space_.add("weight_state", &RoundSettings::weights, {weights});
    std::vector<Recompute> modes{Recompute::none, Recompute::light, Recompute::layer,
                                 Recompute::full};
    if (request_.recompute) modes = {*request_.recompute};
    const std::size_t mode = space_.add("recompute", &RoundSettings::recompute, modes,
                                        {.ordered = true, .memory = true});
    space_.add("fit_modes", &RoundSettings::fit_modes, {!request_.recompute});
    const std::size_t quarters =
        space_.add("", &RoundSettings::quarters, {4, 5, 6, 8, 12, 16, 32}, {.ordered = true});
    const std::size_t room = space_.add("", &RoundSettings::room, {4, 3, 2, 5});
    std::vector<Tokens> blocks{Tokens{128}, Tokens{256}, Tokens{512}, Tokens{1024}, Tokens{32}};
    if (request_.memory.cp_block_tokens) blocks = {*request_.memory.cp_block_tokens};
    const std::size_t block = space_.add("share_tokens", &RoundSettings::cp_block, blocks);
    // All sizes first; groups that lie on one node may be sooner done.
    std::vector<std::size_t> sizes{1};
    std::size_t of_node = 0;
    for (std::int32_t ranks = 2; ranks <= request_.dp; ranks *= 2) {
      sizes.insert(sizes.begin(), sizes.front() + 1);
      if (ranks * request_.tp > request_.cluster.devices_per_node) ++of_node;
    }
    const std::size_t degrees = space_.add("", &RoundSettings::degrees, sizes, {.ordered = true});
    space_.add("devices", &RoundSettings::devices, device_choices(request_));
    const std::size_t waits = space_.add("", &RoundSettings::exposed, {true, false});
    const std::size_t pack = space_.add("", &RoundSettings::pack, {64, 1});
    // One sample that fills all ranks may lack little to keep more.
    const std::vector<Tokens>& samples = request_.batch.samples;
    std::vector<std::int64_t> cuts{0};
    if (!request_.max_units && !request_.recompute &&
        2 * std::ranges::max(samples).value > total_tokens(samples).value) {
      cuts.insert(cuts.end(), {1, 2, 4, 8});
    }
    const std::size_t cut = space_.add("", &RoundSettings::cut, cuts, {.ordered = true});
    for (const Recompute each : modes) {
      for (const bool exposed : {false, true}) {
        for (const std::int64_t count : {64, 1}) {
          times_.emplace(std::tuple(each, exposed, count), sample_times(each, exposed, count));
        }
      }
    }
    const std::size_t middle = blocks.size() > 1 ? 2 : 0;
    for (std::size_t i = 0; i < modes.size(); ++i) {
      space_.start({{mode, i}, {block, middle}, {degrees, of_node}});
      space_.start({{mode, i}, {degrees, of_node}});
      space_.start({{mode, i}, {degrees, of_node}, {waits, 1}});
      space_.start({{mode, i}, {degrees, sizes.size() - 1}});
      space_.start({{mode, i}, {quarters, 1}});
      for (std::size_t part = 1; part < cuts.size(); ++part) {
        space_.start({{mode, i}, {cut, part}});
      }
      space_.start({{mode, i}, {pack, 1}});
      space_.start({{mode, i}, {room, 1}, {block, middle}});
      space_.start({{mode, i}, {block, blocks.size() - 1}});
    }
  }

  [[nodiscard]] Plan build(const RoundSettings& settings) const {
    SlimpackSettings outline;
    outline.cp_block = settings.cp_block;
    outline.devices = settings.devices;
    outline.head.head = request_.head.value_or(LmHead::last);
    Plan plan = problem_.outline(outline);
    plan.planner = planner_;
    plan.memory.weights = settings.weights;
    plan.samples = request_.batch.samples;
    plan.origin = request_.batch.origin;
    plan.sources = request_.sources;
    plan.sample_group.resize(plan.samples.size());
    plan.parallel.max_cp = request_.max_cp.value_or(1);
    std::map<std::pair<std::int32_t, std::int32_t>, GroupId> group_of;  // by first rank and size
    for (std::int32_t dp = 0; dp < request_.dp; ++dp) {
      group_of[{dp, 1}] = static_cast<GroupId>(dp);
    }
    const std::vector<SpTimes>& times =
        times_.at({settings.recompute, settings.exposed, settings.pack});
    for (const std::vector<std::size_t>& round : cut_sorted(plan.samples, count(settings))) {
      add_round(plan, settings, times, round, group_of);
    }
    const PassCosts alone = problem_.costs(plan, {0}, PackSize::large);
    schedule::SliceCost both = alone.forward;
    const auto& back = alone.backward[static_cast<std::size_t>(settings.recompute)];
    both.per_slice += back.per_slice;
    both.per_token += back.per_token;
    both.per_pair2 += back.per_pair2;
    const auto settle = [&](Plan& settled) {
      spread_samples(settled, both);
      exchange_by_heads(settled);
      if (settings.fit_modes) fit_modes(settled);
    };
    if (request_.max_units) {
      settle(plan);
    } else {
      split_packs(plan, settle);
    }
    if (settings.cut > 0) cut_rounds(plan, settings.cut);
    add_round_orders(plan);
    return plan;
  }
  void describe(const RoundSettings& settings, const Plan& plan, SettingTexts& texts) const {
    texts["head"] = to_string(plan.parallel.head);
    texts["rounds"] = std::to_string(count(settings));
    texts["tokens_per_rank"] = std::to_string(capacity(settings).value);
    texts["largest_group"] = std::to_string(plan.parallel.max_cp);
    if (settings.cut > 0) texts["cut_first"] = std::to_string(settings.cut) + "/16";
  }

 private:
  [[nodiscard]] Tokens capacity(const RoundSettings& settings) const {
    const std::int64_t all = token_capacity(request_, settings.recompute, settings.weights).value;
    return {std::max<std::int64_t>(1, all / 4 * settings.room)};
  }
  [[nodiscard]] std::int64_t count(const RoundSettings& settings) const {
    const std::vector<Tokens>& samples = request_.batch.samples;
    const Int128 room = Int128{capacity(settings).value} * request_.dp;
    const Int128 fewest = (total_tokens(samples).value + room - 1) / room;
    return static_cast<std::int64_t>(std::min<Int128>((fewest * settings.quarters + 3) / 4,
                                                      static_cast<std::int64_t>(samples.size())));
  }

  /// What each sample adds to F, B and H on groups of 1, 2, 4 .. ranks, one after the other, each
  /// rank with an equal part: beside its exchange, or waiting for it (`exposed`), by heads if it
  /// may.
  [[nodiscard]] std::vector<SpTimes> sample_times(Recompute recompute, bool exposed,
                                                  std::int64_t pack) const {
    const Plan plan = problem_.outline({});
    const Links links(plan);
    std::vector<SpTimes> times(request_.batch.samples.size());
    for (std::int32_t ranks = 1; ranks <= request_.dp; ranks *= 2) {
      std::vector<std::int32_t> group(static_cast<std::size_t>(ranks));
      std::iota(group.begin(), group.end(), 0);
      const StageLoad stage = stage_load(plan, links, group, 0);
      const auto price = [&](const PackLoad& load) {
        return std::visit(
            [&](const auto& model) {
              return (model.forward(load, stage) + model.backward(load, stage, recompute) +
                      head_time(plan, model, load.tokens))
                  .value;
            },
            problem_.model());
      };
      PackLoad least;
      least.tokens = Tokens{1};
      least.ranks = ranks;
      const std::int64_t fixed = price(least);
      const std::int64_t sets =
          std::min(pack, head_sets(head_pieces(plan.model, plan.parallel.tp, ranks)));
      for (std::size_t i = 0; i < times.size(); ++i) {
        const std::size_t sample = problem_.order()[i];
        if (i > 0 && problem_.lengths()[i] == problem_.lengths()[i - 1]) {
          times[sample].push_back(times[problem_.order()[i - 1]].back());
          continue;
        }
        PackLoad load = many(even_load(plan, problem_.lengths()[i], ranks, exposed), pack);
        load.head_sets = equal_head_sets(sets);
        times[sample].push_back(std::max<std::int64_t>(1, (price(load) - fixed) / pack));
      }
    }
    return times;
  }
  [[nodiscard]] PackLoad even_load(const Plan& plan, Tokens length, std::int32_t ranks,
                                   bool exposed) const {
    PackLoad load;
    add_slice(load, {SampleId{}, {}, length}, RingMode::pass_kv, CpShard{},
              Tokens{plan.cluster.tile_tokens});
    const auto part = [&](std::int64_t amount) { return (amount + ranks - 1) / ranks; };
    load.ranks = ranks;
    load.tokens = Tokens{part(load.tokens.value)};
    for (const AttentionAmount& amount : kAttentionAmounts) {
      load.*amount.all = part(load.*amount.all);
    }
    if (ranks == 1 || !exposed) return load;
    if (may_divide_heads(plan, static_cast<std::size_t>(ranks))) {
      load.heads_sent = load.tokens;
      for (const AttentionAmount& amount : kAttentionAmounts) {
        load.*amount.alone = load.*amount.all;
      }
    } else {
      load.kv_received = length - load.tokens;
    }
    return load;
  }

  void add_round(Plan& plan, const RoundSettings& settings, std::span<const SpTimes> times,
                 const std::vector<std::size_t>& round,
                 std::map<std::pair<std::int32_t, std::int32_t>, GroupId>& group_of) const {
    std::vector<Tokens> lengths;
    std::vector<SpTimes> own;
    for (const std::size_t sample : round) {
      lengths.push_back(plan.samples[sample]);
      own.emplace_back(times[sample].begin(),
                       times[sample].begin() + static_cast<std::ptrdiff_t>(settings.degrees));
    }
    const std::vector<SpGroup> groups =
        solve_sp_groups({lengths, own, request_.dp, capacity(settings)});
    const std::vector<std::int32_t> ranks = all_ranks(groups, own);
    std::int32_t first = 0;
    for (std::size_t i = 0; i < groups.size(); ++i) {
      const auto [found, added] = group_of.try_emplace({first, ranks[i]}, GroupId{});
      if (added) {
        found->second = static_cast<GroupId>(plan.groups.size());
        plan.groups.emplace_back(static_cast<std::size_t>(ranks[i]));
        std::iota(plan.groups.back().begin(), plan.groups.back().end(), first);
        plan.parallel.max_cp = std::max(plan.parallel.max_cp, ranks[i]);
      }
      MicroPack forward, backward;
      forward.group = found->second;
      for (const std::size_t at : groups[i].samples) {
        plan.sample_group[round[at]] = found->second;
        forward.slices.push_back({static_cast<SampleId>(round[at]), {}, lengths[at]});
      }
      backward = forward;
      backward.pass = Pass::backward;
      backward.recompute = settings.fit_modes ? Recompute::none : settings.recompute;
      for (MicroPack* pack : {&forward, &backward}) {
        if (ranks[i] > 1) pack->exchange = ring_exchange(plan, *pack);
      }
      plan.micropacks.push_back(std::move(forward));
      plan.micropacks.push_back(std::move(backward));
      first += ranks[i];
    }
  }
  /// The ranks of each group. Of those that no group has, groups that are done no later with twice
  /// as many take what they can, the slowest first; the rest goes to the slowest.
  [[nodiscard]] std::vector<std::int32_t> all_ranks(std::span<const SpGroup> groups,
                                                    std::span<const SpTimes> times) const {
    std::vector<std::size_t> degrees;
    const auto load = [&](std::size_t group, std::size_t degree) {
      std::int64_t sum = 0;
      for (const std::size_t sample : groups[group].samples) sum += times[sample][degree];
      return sum;
    };
    std::vector<std::int64_t> loads;
    std::int32_t left = request_.dp;
    for (std::size_t i = 0; i < groups.size(); ++i) {
      degrees.push_back(groups[i].degree);
      loads.push_back(load(i, degrees[i]));
      left -= std::int32_t{1} << degrees[i];
    }
    const auto slowest = static_cast<std::size_t>(std::ranges::max_element(loads) - loads.begin());
    const std::int64_t most = loads[slowest];
    while (left > 0) {
      std::size_t best = groups.size();
      for (std::size_t i = 0; i < groups.size(); ++i) {
        const bool fits =
            degrees[i] + 1 < times.front().size() && std::int32_t{1} << degrees[i] <= left;
        if (fits && load(i, degrees[i] + 1) <= most &&
            (best == groups.size() || loads[i] > loads[best])) {
          best = i;
        }
      }
      if (best == groups.size()) break;
      left -= std::int32_t{1} << degrees[best];
      loads[best] = load(best, ++degrees[best]);
    }
    std::vector<std::int32_t> ranks;
    for (const std::size_t degree : degrees) ranks.push_back(std::int32_t{1} << degree);
    ranks[slowest] += left;
    return ranks;
  }

  const SlimpackProblem& problem_;
  std::map<std::tuple<Recompute, bool, std::int64_t>, std::vector<SpTimes>> times_;
};

}  // namespace detail

}  // namespace slimpack::planners
