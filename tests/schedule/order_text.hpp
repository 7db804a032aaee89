// SPDX-License-Identifier: Apache-2.0
// Pipeline orders as text, and a slow execution of them that shares no code with the library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "slimpack/schedule/pipeline.hpp"

namespace slimpack::test {

/// "F0 F1 H0 B0 R O", with ".chunk" behind F and B and the chunk behind R where there are several.
inline std::string order_text(const std::vector<schedule::PipelineOp>& order, std::int32_t chunks) {
  std::string text;
  for (const schedule::PipelineOp& step : order) {
    if (!text.empty()) text += ' ';
    std::string chunk;
    if (chunks > 1) chunk.append(".").append(std::to_string(step.chunk));
    switch (step.kind) {
      case UnitKind::forward:
        text.append("F").append(std::to_string(step.item)).append(chunk);
        break;
      case UnitKind::backward:
        text.append("B").append(std::to_string(step.item)).append(chunk);
        break;
      case UnitKind::head:
        text.append("H").append(std::to_string(step.item));
        break;
      case UnitKind::reduce:
        text.append("R").append(chunk);
        break;
      case UnitKind::optimizer:
        text.append("O");
        break;
      case UnitKind::weight:
        text.append("W").append(std::to_string(step.item)).append(chunk);
        break;
    }
  }
  return text;
}

/// All stages, one a line.
inline std::string orders_text(const schedule::StageOrders& orders, std::int32_t chunks = 1) {
  std::string text;
  for (const auto& order : orders) text += order_text(order, chunks) + "\n";
  return text;
}

/// Whether orders end when every channel is a rendezvous with `window` unfinished sends and posted
/// receives, H a process group of all stages that list it, and B on the last virtual stage
/// waits for H where there is one.
inline bool orders_end(const schedule::Pipeline& pipeline, const schedule::StageOrders& orders,
                       std::int32_t max_in_flight) {
  const std::int32_t p = pipeline.stages;
  const std::int32_t last = p * pipeline.chunks - 1;
  using Key = std::tuple<UnitKind, std::int32_t, std::int32_t>;  // kind, item, line
  std::set<Key> done;
  std::map<std::pair<int, std::int32_t>, std::int64_t> sent;
  std::map<std::pair<int, std::int32_t>, std::int64_t> consumed;
  std::map<std::pair<int, std::int32_t>, std::deque<Key>> content;
  std::vector<std::size_t> next(orders.size());
  std::map<std::int32_t, std::vector<std::size_t>> head_stages;  // by item
  for (std::size_t stage = 0; stage < orders.size(); ++stage) {
    for (const schedule::PipelineOp& step : orders[stage]) {
      if (step.kind == UnitKind::head) head_stages[step.item].push_back(stage);
    }
  }
  const bool any_head = !head_stages.empty();
  const auto current = [&](std::size_t stage) -> const schedule::PipelineOp* {
    return next[stage] < orders[stage].size() ? &orders[stage][next[stage]] : nullptr;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t stage = 0; stage < orders.size(); ++stage) {
      while (const schedule::PipelineOp* step = current(stage)) {
        const auto r = static_cast<std::int32_t>(stage);
        if (step->kind == UnitKind::head) {
          bool all = done.contains({UnitKind::forward, step->item, last});
          const auto& stages = head_stages.at(step->item);
          for (const std::size_t other : stages) {
            const schedule::PipelineOp* there = current(other);
            all = all && there != nullptr && *there == *step;
          }
          if (!all) break;
          for (const std::size_t other : stages) ++next[other];
          done.insert({UnitKind::head, step->item, last});
          moved = true;
          continue;
        }
        if (step->kind == UnitKind::reduce || step->kind == UnitKind::optimizer) {
          ++next[stage];
          moved = true;
          continue;
        }
        const bool forward = step->kind == UnitKind::forward;
        const std::int32_t line = step->chunk * p + r;
        const int direction = forward ? 0 : 1;
        const std::int32_t from = forward ? line - 1 : line + 1;
        const bool receives = forward ? line > 0 : line < last;
        const bool sends = forward ? line < last : line > 0;
        if (!forward && line == last &&
            !done.contains({any_head ? UnitKind::head : UnitKind::forward, step->item, last})) {
          break;
        }
        if (receives && p == 1 && !done.contains({step->kind, step->item, from})) break;
        const std::pair<int, std::int32_t> in{direction, from >= 0 ? from % p : 0};
        if (receives && p > 1) {
          if (content[in].empty() || content[in].front() != Key{step->kind, step->item, from}) {
            break;
          }
        }
        const std::pair<int, std::int32_t> out{direction, r};
        // Send i waits for the end of send i - max_in_flight, whose receive was posted by the
        // consumer of message i - 2 max_in_flight.
        if (sends && p > 1 && sent[out] >= 2 * max_in_flight &&
            consumed[out] <= sent[out] - 2 * max_in_flight) {
          break;
        }
        done.insert({step->kind, step->item, line});
        if (receives && p > 1) {
          content[in].pop_front();
          ++consumed[in];
        }
        if (sends && p > 1) {
          content[out].push_back({step->kind, step->item, line});
          ++sent[out];
        }
        ++next[stage];
        moved = true;
      }
    }
  }
  for (std::size_t stage = 0; stage < orders.size(); ++stage) {
    if (next[stage] < orders[stage].size()) return false;
  }
  return true;
}

}  // namespace slimpack::test
