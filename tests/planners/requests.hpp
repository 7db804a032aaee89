// SPDX-License-Identifier: Apache-2.0
// Requests and plan texts for tests of planners.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "slimpack/core/random.hpp"
#include "slimpack/cost/presets.hpp"
#include "slimpack/planners/planner.hpp"

namespace slimpack::test {

/// A small model of `layers` layers on h100, every degree one.
inline planners::PlanRequest request_of(const std::vector<std::int64_t>& lengths,
                                        std::int64_t layers = 8) {
  planners::PlanRequest request;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    request.batch.samples.push_back({lengths[i]});
    request.batch.origin.push_back({0, static_cast<std::int64_t>(i), {}});
    request.batch.target_tokens += lengths[i];
  }
  request.sources = {{"lengths", static_cast<std::int64_t>(lengths.size()), ""}};
  request.model = {"small", layers, 512, 8, 4, 64, 1024, 4096, false, 1e4, 1e-5, 2};
  request.cluster = cluster_preset("h100").value();
  request.context = {1024};
  request.effort = planners::Effort::fast;
  return request;
}

[[nodiscard]] inline std::vector<Tokens> tokens_of(const std::vector<std::int64_t>& numbers) {
  std::vector<Tokens> lengths;
  for (const std::int64_t number : numbers) lengths.push_back({number});
  return lengths;
}

/// Lengths of a long tail, between 1 and the context.
inline std::vector<std::int64_t> random_lengths(Random& random, std::int64_t count,
                                                std::int64_t context) {
  std::vector<std::int64_t> lengths;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t most =
        random.chance(1, 10) ? context : std::max<std::int64_t>(1, context / 8);
    lengths.push_back(random.chance(1, 20) ? context : random.between(1, most));
  }
  return lengths;
}

/// Packs as "0F[0:0-5 1:0-3]" and schedules as "0.1: F0.0 H0 B1.0 R0 O", one a line.
inline std::string plan_text(const Plan& plan) {
  std::string text;
  for (std::size_t i = 0; i < plan.micropacks.size(); ++i) {
    const MicroPack& pack = plan.micropacks[i];
    text.append(i == 0 ? "" : " ").append(std::to_string(i));
    text.append(pack.pass == Pass::forward ? "F[" : "B[");
    for (std::size_t slice = 0; slice < pack.slices.size(); ++slice) {
      const Slice& part = pack.slices[slice];
      text.append(slice == 0 ? "" : " ").append(std::to_string(index(part.sample)));
      text.append(":").append(std::to_string(part.begin.value));
      text.append("-").append(std::to_string(part.end.value));
    }
    text.append("]");
  }
  text.append("\n");
  for (const DeviceSchedule& device : plan.schedule) {
    text.append(std::to_string(device.dp)).append(".").append(std::to_string(device.pp));
    text.append(":");
    for (const Unit& unit : device.order) {
      const std::string pack = std::to_string(index(unit.pack));
      const std::string chunk = std::to_string(unit.chunk);
      text.append(" ");
      switch (unit.kind) {
        case UnitKind::forward:
          text.append("F").append(pack).append(".").append(chunk);
          break;
        case UnitKind::backward:
          text.append("B").append(pack).append(".").append(chunk);
          break;
        case UnitKind::head:
          text.append("H").append(pack);
          break;
        case UnitKind::reduce:
          text.append("R").append(chunk);
          break;
        case UnitKind::optimizer:
          text.append("O");
          break;
        case UnitKind::weight:
          text.append("W").append(pack).append(".").append(chunk);
          break;
      }
    }
    text.append("\n");
  }
  return text;
}

}  // namespace slimpack::test
