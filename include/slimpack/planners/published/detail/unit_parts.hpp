// SPDX-License-Identifier: Apache-2.0
// What the forward and backward units of a plan take, attention apart from the rest.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <variant>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/cost/any_model.hpp"
#include "slimpack/cost/cost_model.hpp"
#include "slimpack/cost/links.hpp"
#include "slimpack/cost/load.hpp"
#include "slimpack/cost/memory_model.hpp"
#include "slimpack/cost/stage_load.hpp"
#include "slimpack/plan/cp_shard.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/plan/virtual_stages.hpp"

namespace slimpack::planners {

/// The time of a unit in two parts: attention is what its pairs, segments and exchange add to the
/// price of its tokens.
struct UnitParts {
  Nanos linear, attention;
  [[nodiscard]] constexpr Nanos total() const noexcept { return linear + attention; }
  friend bool operator==(const UnitParts&, const UnitParts&) = default;
};

/// What a load costs forward, or backward where `recompute` was kept.
template <CostModel Model>
[[nodiscard]] Nanos unit_price(const Model& model, const PackLoad& load, const StageLoad& stage,
                               Pass pass, Recompute recompute) noexcept {
  return pass == Pass::forward ? model.forward(load, stage)
                               : model.backward(load, stage, recompute);
}

/// A load without its attention and exchange.
[[nodiscard]] constexpr PackLoad without_attention(PackLoad load) noexcept {
  load.pairs2 = load.filled_pairs2 = load.own_pairs2 = load.keys = load.segments = 0;
  load.kv_received = load.q_received = load.kv_sent = {};
  return load;
}

/// The parts of `unit_price`; their sum is exactly that.
template <CostModel Model>
[[nodiscard]] UnitParts unit_parts(const Model& model, const PackLoad& load, const StageLoad& stage,
                                   Pass pass, Recompute recompute) noexcept {
  const Nanos whole = unit_price(model, load, stage, pass, recompute);
  const Nanos linear =
      std::min(whole, unit_price(model, without_attention(load), stage, pass, recompute));
  return {linear, whole - linear};
}

/// How long the message of a unit with so many own tokens keeps `link` from traffic that the cost
/// model does not know: 0 where it takes another link, or has kept tensor-parallel traffic waiting.
template <CostModel Model>
[[nodiscard]] Nanos own_message(const Model& model, const Plan& plan, Tokens tokens,
                                const StageLoad& stage, Pass pass, const Link& link) noexcept {
  const Link& sent = pass == Pass::forward ? stage.forward_message : stage.backward_message;
  if (sent.bytes_per_s == 0 || sent != link) return {};
  if (stage.tensor_parallel > 1 && sent == stage.tensor_link) return {};
  const std::int64_t hidden = layer_bytes(plan.model, 0, plan.parallel.tp).boundary;
  return model.transfer(Bytes{tokens.value * hidden}, link) - model.transfer(Bytes{}, link);
}

/// The virtual stages of a group, those that cost the same as one kind.
struct StageKinds {
  std::vector<StageLoad> loads;
  std::vector<std::size_t> kind;  ///< of a virtual stage
};
[[nodiscard]] inline StageKinds stage_kinds(const Plan& plan, const Links& links, GroupId group) {
  StageKinds kinds;
  for (std::int32_t line = 0; line < virtual_stages_of(plan).size(); ++line) {
    const StageLoad load = stage_load(plan, links, plan.groups[index(group)], line);
    const auto found = std::find(kinds.loads.begin(), kinds.loads.end(), load);
    kinds.kind.push_back(static_cast<std::size_t>(found - kinds.loads.begin()));
    if (found == kinds.loads.end()) kinds.loads.push_back(load);
  }
  return kinds;
}

/// The parts of every F and B of a plan, those of the slowest rank of its group: their sum is what
/// `PricedPlan` charges. Linear in packs times ranks times kinds of virtual
/// stages.
class PlanParts {
 public:
  PlanParts(const Plan& plan, const Links& links, const AnyModel& any) {
    std::visit([&](const auto& model) { find(plan, links, model); }, any);
  }
  [[nodiscard]] const UnitParts& operator()(PackId pack, std::int32_t line) const noexcept {
    const std::vector<std::size_t>& kind = kinds_[index(group_[index(pack)])].kind;
    return parts_[first_[index(pack)] + kind[static_cast<std::size_t>(line)]];
  }
  /// Tokens of a pack, all ranks together.
  [[nodiscard]] Tokens tokens(PackId pack) const noexcept { return tokens_[index(pack)]; }
  /// Twice its pairs, all ranks together.
  [[nodiscard]] std::int64_t pairs2(PackId pack) const noexcept { return pairs2_[index(pack)]; }

 private:
  template <CostModel Model>
  void find(const Plan& plan, const Links& links, const Model& model) {
    for (std::size_t group = 0; group < plan.groups.size(); ++group) {
      kinds_.push_back(stage_kinds(plan, links, static_cast<GroupId>(group)));
    }
    const PackLoads loads(plan);
    for (std::size_t i = 0; i < plan.micropacks.size(); ++i) {
      const auto id = static_cast<PackId>(i);
      const MicroPack& pack = plan.micropacks[i];
      group_.push_back(pack.group);
      first_.push_back(parts_.size());
      for (const StageLoad& stage : kinds_[index(pack.group)].loads) {
        Nanos linear, whole;
        for (std::size_t rank = 0; rank < loads.ranks(id); ++rank) {
          const UnitParts own =
              unit_parts(model, loads(id, rank), stage, pack.pass, pack.recompute);
          linear = std::max(linear, own.linear);
          whole = std::max(whole, own.total());
        }
        parts_.push_back({linear, whole - linear});
      }
      tokens_.emplace_back();
      pairs2_.emplace_back();
      for (std::size_t rank = 0; rank < loads.ranks(id); ++rank) {
        tokens_.back() += loads(id, rank).tokens;
        pairs2_.back() += loads(id, rank).pairs2;
      }
    }
  }

  std::vector<StageKinds> kinds_;   // by group
  std::vector<GroupId> group_;      // by pack
  std::vector<std::size_t> first_;  // of a pack in parts_, then by kind
  std::vector<UnitParts> parts_;
  std::vector<Tokens> tokens_;
  std::vector<std::int64_t> pairs2_;
};

}  // namespace slimpack::planners
