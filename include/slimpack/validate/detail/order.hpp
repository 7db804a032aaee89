// SPDX-License-Identifier: Apache-2.0
// Rules 4 and 5 as far as one device's order shows them: slices, stages, head, reduction.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/validate/detail/findings.hpp"
#include "slimpack/validate/detail/frame.hpp"
#include "slimpack/validate/detail/partition.hpp"

namespace slimpack::validation {

/// The MicroPacks that hold tokens of each one's slices in the pass before its own, ascending: of
/// backward ones the forward ones, whose H they need, of weight ones the backward ones.
[[nodiscard]] inline std::vector<std::vector<PackId>> needed_packs(
    const Plan& plan, const std::vector<std::vector<Piece>>& pieces,
    const std::vector<std::vector<Piece>>& weight_pieces) {
  std::vector<std::vector<PackId>> needs(plan.micropacks.size());
  for (const auto* all : {&pieces, &weight_pieces}) {
    for (const auto& of_sample : *all) {
      for (const Piece& piece : of_sample) needs[index(piece.backward)].push_back(piece.forward);
    }
  }
  for (auto& packs : needs) {
    std::sort(packs.begin(), packs.end());
    packs.erase(std::unique(packs.begin(), packs.end()), packs.end());
  }
  return needs;
}

/// One device's view for the checks of its order.
struct DeviceView {
  const Plan& plan;
  Frame& frame;
  Position on;
  const DeviceSchedule& device;
  Findings& found;

  [[nodiscard]] Where where(std::size_t unit) const {
    return Where{}.device(device.dp, device.pp).unit(unit);
  }
  void blame(Position unit) const { frame.faulty[on][unit] = true; }
};

/// Rule 4 for one sample and chunk: forward slices rise, backward slices fall, backward after the
/// end of forward.
inline void check_sample_order(const DeviceView& view, const Membership& member, std::size_t sample,
                               std::size_t chunk, const std::vector<Cut>& forward,
                               const std::vector<Cut>& backward) {
  const Frame& frame = view.frame;
  const auto place = [&](const Cut& cut) {
    return index(view.plan.micropacks[index(cut.pack)].group) == member.group
               ? frame.at(view.on, member, cut.pack, chunk)
               : kNowhere;
  };
  // `late` must not come before `early`, and does.
  const auto disorder = [&](const char* kind, const Cut& early, const Cut& late) {
    const Position first = place(early), second = place(late);
    if (first == kNowhere || second == kNowhere || first <= second || early.begin == late.begin) {
      return;
    }
    view.found.add(4, kind, view.where(second).sample(sample).pack(late.pack), [&] {
      return std::string(kind) + ": slice " + range_name(late.begin, late.end) + " runs before " +
             range_name(early.begin, early.end) + " of MicroPack " +
             std::to_string(index(early.pack)) + " (unit " + std::to_string(first) + "), chunk " +
             std::to_string(chunk);
    });
  };
  for (std::size_t i = 1; i < forward.size(); ++i) {
    disorder("forward slices must rise", forward[i - 1], forward[i]);
  }
  for (std::size_t i = 1; i < backward.size(); ++i) {
    disorder("backward slices must fall", backward[i], backward[i - 1]);
  }
  if (forward.empty() || backward.empty()) return;
  const Position end = place(forward.back());
  if (end == kNowhere) return;
  const Cut* first = nullptr;
  for (const Cut& cut : backward) {
    const Position k = place(cut);
    if (k == kNowhere || k > end) continue;
    view.blame(k);
    if (first == nullptr || k < place(*first)) first = &cut;
  }
  if (first == nullptr) return;
  const char* kind = "backward must follow the end of forward";
  view.found.add(4, kind, view.where(place(*first)).sample(sample).pack(first->pack), [&] {
    return std::string(kind) + ": backward slice " + range_name(first->begin, first->end) +
           " runs before the forward slice " +
           range_name(forward.back().begin, forward.back().end) + " of MicroPack " +
           std::to_string(index(forward.back().pack)) + " (unit " + std::to_string(end) +
           "), chunk " + std::to_string(chunk);
  });
}

/// Rule 5 for one MicroPack on one device.
inline void check_pack_order(const DeviceView& view, const Membership& member, PackId pack,
                             const std::vector<PackId>& others) {
  const Frame& frame = view.frame;
  const Pass pass = view.plan.micropacks[index(pack)].pass;
  const bool forward = pass == Pass::forward;
  const auto at = [&](PackId id, std::size_t chunk) {
    return frame.at(view.on, member, id, chunk);
  };
  const auto needs = [&](Position unit, Position needed, const char* reason) {
    if (unit == kNowhere || needed == kNowhere || needed < unit) return;
    view.blame(unit);
    view.found.add(5, reason, view.where(unit).pack(pack), [&] {
      return to_string(view.device.order[unit]) + " runs before " +
             to_string(view.device.order[needed]) + " (unit " + std::to_string(needed) +
             "): " + reason;
    });
  };
  const auto needs_all = [&](std::size_t chunk, std::size_t needed_at, const char* reason) {
    for (const PackId id : others) {
      if (view.plan.micropacks[index(id)].group != view.plan.micropacks[index(pack)].group) {
        continue;
      }
      needs(at(pack, chunk), at(id, needed_at), reason);
    }
  };
  if (pass == Pass::weight) {
    for (std::size_t chunk = 0; chunk < frame.chunks; ++chunk) {
      needs_all(chunk, chunk, "W needs B of every token it holds");
    }
    return;
  }
  for (std::size_t chunk = 1; chunk < frame.chunks; ++chunk) {
    if (forward) {
      needs(at(pack, chunk), at(pack, chunk - 1), "F of a chunk needs F of the chunk before");
    } else {
      needs(at(pack, chunk - 1), at(pack, chunk), "B of a chunk needs B of the chunk after");
    }
  }
  if (!joins_head(view.plan, view.device.pp)) return;
  const std::size_t last = frame.chunks - 1;
  if (forward) {
    needs(at(pack, frame.chunks), at(pack, last), "H needs F of the last chunk");
    return;
  }
  needs_all(last, frame.chunks, "B needs H of every forward token it holds");
}

/// Rule 5 for R: after the last B or W of its chunk.
inline void check_reduce_order(const DeviceView& view) {
  std::vector<Position> last(view.frame.chunks, kNowhere);
  const auto& order = view.device.order;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const bool gradients = order[i].kind == UnitKind::backward || order[i].kind == UnitKind::weight;
    if (!gradients || view.frame.faulty[view.on][i]) continue;
    last[static_cast<std::size_t>(order[i].chunk)] = static_cast<Position>(i);
  }
  for (std::size_t chunk = 0; chunk < view.frame.chunks; ++chunk) {
    const Position reduce = view.frame.reduce[view.on][chunk];
    if (reduce == kNowhere || last[chunk] == kNowhere || reduce > last[chunk]) continue;
    view.found.add(5, "R before the last B", view.where(reduce), [&] {
      return to_string(order[reduce]) + " runs before " + to_string(order[last[chunk]]) +
             " (unit " + std::to_string(last[chunk]) + "): R follows the chunk's last " +
             std::string(to_string(order[last[chunk]].kind));
    });
  }
}

/// Adds every violation of rules 4 and 5 that one device's order shows; marks the units at fault.
/// O(slices x chunks) a device.
inline void check_orders(const Plan& plan, Frame& frame, const Cuts& forward, const Cuts& backward,
                         const std::vector<std::vector<Piece>>& pieces,
                         const std::vector<std::vector<Piece>>& weight_pieces, Findings& found) {
  const auto needs = needed_packs(plan, pieces, weight_pieces);
  std::vector<std::vector<std::size_t>> samples(plan.groups.size());
  for (std::size_t i = 0; i < std::min(plan.samples.size(), plan.sample_group.size()); ++i) {
    const std::size_t group = index(plan.sample_group[i]);
    if (group < samples.size()) samples[group].push_back(i);
  }
  for (const Position on : frame.device) {
    if (on == kNowhere) continue;
    const DeviceSchedule& device = plan.schedule[on];
    const DeviceView view{plan, frame, on, device, found};
    // Before units are blamed below, so that a B at fault elsewhere still holds R back.
    check_reduce_order(view);
    for (const Membership& member : frame.membership[static_cast<std::size_t>(device.dp)]) {
      for (const std::size_t sample : samples[member.group]) {
        for (std::size_t chunk = 0; chunk < frame.chunks; ++chunk) {
          check_sample_order(view, member, sample, chunk, forward[sample], backward[sample]);
        }
      }
      for (const PackId pack : frame.packs[member.group]) {
        check_pack_order(view, member, pack, needs[index(pack)]);
      }
    }
  }
}

}  // namespace slimpack::validation
