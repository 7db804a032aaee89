// SPDX-License-Identifier: Apache-2.0
// Small plans written as text, times given by hand, timelines read as text.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "slimpack/cost/unit_times.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/sim/dag.hpp"
#include "slimpack/sim/timeline.hpp"

namespace slimpack::test {

/// Times as functions; by default every unit takes one nanosecond, and transfers none.
struct HandTimes {
  std::function<std::int64_t(std::uint32_t pack, std::int32_t line)> unit = [](auto, auto) {
    return 1;
  };
  std::int64_t head_time = 1, transfer_time = 0, reduce_time = 0, optimizer_time = 1;

  [[nodiscard]] Nanos compute(PackId pack, std::int32_t line) const {
    return {unit(static_cast<std::uint32_t>(pack), line)};
  }
  [[nodiscard]] Nanos head(PackId, std::size_t, std::int32_t) const { return {head_time}; }
  [[nodiscard]] Nanos transfer(PackId, std::int32_t, std::size_t) const { return {transfer_time}; }
  [[nodiscard]] Nanos reduce(std::int32_t, std::int32_t) const { return {reduce_time}; }
  [[nodiscard]] Nanos optimizer(std::int32_t, std::int32_t) const { return {optimizer_time}; }
};
static_assert(UnitTimes<HandTimes> && !UnitTimes<int>);

/// "F0 F2.1 H0 B1 R0 O": kind, then pack (R: chunk), then ".chunk" where it is not 0.
[[nodiscard]] inline std::vector<Unit> order_of(const std::string& text) {
  std::vector<Unit> order;
  std::istringstream in(text);
  for (std::string word; in >> word;) {
    Unit unit;
    const std::size_t dot = word.find('.');
    const std::int32_t number = word.size() > 1 ? std::stoi(word.substr(1)) : 0;
    if (dot != std::string::npos) unit.chunk = std::stoi(word.substr(dot + 1));
    unit.pack = PackId{static_cast<std::uint32_t>(number)};
    switch (word[0]) {
      case 'F':
        unit.kind = UnitKind::forward;
        break;
      case 'B':
        unit.kind = UnitKind::backward;
        break;
      case 'H':
        unit.kind = UnitKind::head;
        break;
      case 'R':
        unit = {UnitKind::reduce, {}, number};
        break;
      default:
        unit = {UnitKind::optimizer, {}, 0};
    }
    order.push_back(unit);
  }
  return order;
}

/// A plan of a model with weights of one element: sample i of four tokens has forward pack 2i and
/// backward pack 2i + 1. `orders` are those of the devices by (dp, pp); a sample belongs to the
/// group that `groups` gives it.
struct HandPlan {
  std::int32_t dp = 1, pp = 1, chunks = 1, max_in_flight = 2;
  std::int64_t stage_layers = 1;
  LmHead head = LmHead::last;
  std::vector<std::vector<std::int32_t>> groups{{0}};
  std::vector<std::uint32_t> sample_group;
  std::vector<std::string> orders;

  [[nodiscard]] Plan plan() const {
    Plan plan;
    plan.planner = "hand";
    plan.model = {"hand", stage_layers * pp * chunks, 1, 1, 1, 1, 1, 4, false, 10000.0, 1e-5, 4};
    plan.memory.capacity = Bytes{1'000'000};
    plan.memory.page_tokens = Tokens{2};
    plan.memory.cp_block_tokens = Tokens{1};
    plan.memory.head_tile = Tokens{8};
    plan.parallel.dp = dp;
    plan.parallel.pp = pp;
    plan.parallel.chunks = chunks;
    plan.parallel.head = head;
    plan.parallel.granularity = Tokens{1};
    plan.max_in_flight = max_in_flight;
    plan.groups = groups;
    for (std::int32_t line = 0; line < pp * chunks; ++line) {
      plan.stages.push_back(
          {line % pp, line / pp, stage_layers * line, stage_layers * (line + 1), line == 0});
    }
    for (std::size_t sample = 0; sample < sample_group.size(); ++sample) {
      plan.samples.push_back(Tokens{4});
      plan.sample_group.push_back(GroupId{sample_group[sample]});
      MicroPack pack;
      pack.group = plan.sample_group.back();
      pack.slices = {{SampleId{static_cast<std::uint32_t>(sample)}, Tokens{0}, Tokens{4}}};
      if (groups[sample_group[sample]].size() > 1) pack.exchange = {RingMode::pass_kv};
      plan.micropacks.push_back(pack);
      pack.pass = Pass::backward;
      plan.micropacks.push_back(std::move(pack));
    }
    for (std::int32_t rank = 0; rank < dp; ++rank) {
      for (std::int32_t stage = 0; stage < pp; ++stage) {
        plan.schedule.push_back(
            {rank, stage, order_of(orders[static_cast<std::size_t>(rank * pp + stage)])});
      }
    }
    return plan;
  }
};

/// One line a resource, in the order of ids: its nodes with start and end, by start, then id.
[[nodiscard]] inline std::string timeline_text(const sim::Dag& dag, const sim::Timeline& timeline) {
  std::ostringstream out;
  for (std::size_t resource = 0; resource < dag.resources.size(); ++resource) {
    const sim::Resource& facts = dag.resources[resource];
    if (facts.kind == sim::ResourceKind::compute) {
      out << "dp" << facts.dp << " pp" << facts.pp << ":";
    } else if (facts.kind == sim::ResourceKind::link) {
      out << "dp" << facts.dp << " " << facts.pp << ">" << facts.to_pp << ":";
    } else if (facts.kind == sim::ResourceKind::port) {
      out << "dp" << facts.dp << " " << facts.pp << ">:";
    } else {
      out << "R pp" << facts.pp << ":";
    }
    std::vector<std::size_t> nodes;
    for (std::size_t i = 0; i < dag.size(); ++i) {
      if (index(dag.resource[i]) == resource) nodes.push_back(i);
    }
    std::stable_sort(nodes.begin(), nodes.end(), [&](std::size_t a, std::size_t b) {
      return timeline.start[a] < timeline.start[b];
    });
    for (const std::size_t i : nodes) {
      const sim::NodeLabel& label = dag.label[i];
      out << " ";
      if (label.kind == sim::NodeKind::reduce) {
        out << label.chunk << "/" << label.bucket;
      } else if (label.kind == sim::NodeKind::optimizer) {
        out << "O";
      } else {
        if (label.kind != sim::NodeKind::transfer) out << sim::to_string(label.kind);
        out << index(label.pack);
        if (label.chunk > 0) out << "." << label.chunk;
      }
      out << "[" << timeline.start[i].value << "," << timeline.end[i].value << ")";
    }
    out << "\n";
  }
  return out.str();
}

}  // namespace slimpack::test
