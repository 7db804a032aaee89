// SPDX-License-Identifier: Apache-2.0
// The least work that samples are on a stage, whatever their slices (docs/bound.md).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "slimpack/core/int128.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/cost/cost_model.hpp"
#include "slimpack/cost/ideal.hpp"
#include "slimpack/cost/load.hpp"
#include "slimpack/cost/memory_model.hpp"
#include "slimpack/cost/terms.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/plan/virtual_stages.hpp"

namespace slimpack::planners::detail {

/// Most ranks that may share a sample.
[[nodiscard]] constexpr std::int64_t most_ranks(const Plan& plan) noexcept {
  return std::min(plan.parallel.max_cp, plan.parallel.dp);
}

/// The better of both links in each respect.
[[nodiscard]] constexpr Link fastest_link(const Cluster& cluster) noexcept {
  return {std::max(cluster.inside.bytes_per_s, cluster.between.bytes_per_s),
          std::min(cluster.inside.latency_s, cluster.between.latency_s)};
}

/// What a recomputation mode changes if all tokens of a sample have it: bytes that it frees, and
/// the time that it adds in picoseconds of one device.
struct ModeEffect {
  Int128 freed = 0, added = 0;
};
/// The least added time that frees `lack` bytes of a sample. Tokens may have different modes, so
/// the answer is the best mean of two modes that frees enough. Where no mode frees enough, the
/// sample can fit only if it keeps no keys and values, which asks for the leanest mode: the answer
/// is then what that one adds.
[[nodiscard]] constexpr Int128 least_added(const std::array<ModeEffect, kRecomputeModes>& modes,
                                           Int128 lack) noexcept {
  if (lack <= 0) return 0;
  Int128 least = -1;
  const auto offer = [&](Int128 added) {
    if (least < 0 || added < least) least = added;
  };
  for (const ModeEffect& enough : modes) {
    if (enough.freed < lack) continue;
    offer(enough.added);
    for (const ModeEffect& less : modes) {
      if (less.freed >= lack) continue;
      // The part of tokens with the leaner mode, in 2^-20, so that products stay inside 128 bits.
      const Int128 part = ((lack - less.freed) << 20) / (enough.freed - less.freed);
      offer(((Int128{1} << 20) * less.added + part * (enough.added - less.added)) >> 20);
    }
  }
  return least >= 0 ? least : modes.back().added;
}

/// The rates of plans whose B all leave weights apart, but for what W takes.
[[nodiscard]] constexpr WorkRates without_weights(WorkRates rates) noexcept {
  rates.backward_token = rates.apart_token;
  rates.backward_launch = rates.apart_launch;
  rates.backward_tensor = rates.apart_tensor;
  return rates;
}

/// The work of samples in picoseconds of one device without tensor parallelism.
class BoundWork {
 public:
  BoundWork(const Plan& plan, const WorkRates& rates)
      : plan_(plan),
        virtual_stages_(virtual_stages_of(plan)),
        rates_(rates),
        ranks_(most_ranks(plan)) {
    for (std::int32_t i = 0; i < virtual_stages_.size(); ++i) {
      layers_.push_back(chunk_layers(plan, virtual_stages_.stage(i), virtual_stages_.chunk(i)));
    }
    const std::int64_t tile = plan.cluster.tile_tokens;
    const bool aligned = tile > 0 && plan.parallel.granularity.value % tile == 0 &&
                         (ranks_ == 1 || plan.memory.cp_block_tokens.value % tile == 0);
    tile_ = aligned ? tile : 0;
    // A device that holds most rows holds a tp-th of them at least: what is kept counts no more,
    // what recomputation frees no less.
    const SplitBytes bytes =
        split_bytes(plan, element_bytes_of(plan.model, plan.memory.gradient_bytes));
    const std::int64_t tp = plan.parallel.tp;
    const auto kept = [&](std::size_t mode) {
      return bytes.token.kept[mode] + bytes.row.kept[mode] / tp;
    };
    for (std::size_t mode = 0; mode < freed_.size(); ++mode) {
      const std::int64_t rows = bytes.row.kept[0] - bytes.row.kept[mode];
      freed_[mode] = std::max<std::int64_t>(
          bytes.token.kept[0] - bytes.token.kept[mode] + (rows + tp - 1) / tp, 0);
    }
    for (std::int32_t pp = 0; pp < virtual_stages_.pp; ++pp) {
      Room room;
      for (std::int32_t chunk = 0; chunk < virtual_stages_.chunks; ++chunk) {
        room.layers += chunk_layers(plan, pp, chunk);
      }
      // A sample that is cut holds its gradients of keys and values; of one that is not, B's
      // workspace holds all tokens.
      std::int64_t begun =
          chunk_layers(plan, pp, virtual_stages_.chunks - 1) * bytes.token.kv_gradient;
      if (plan.version >= 2) {
        begun = std::min(begun,
                         bytes.token.backward_workspace[0] + bytes.row.backward_workspace[0] / tp);
      }
      room.token = room.layers * (kept(0) + bytes.token.kv) + begun;
      rows_ = std::max(rows_, head_rows(plan, pp));
      const Bytes free =
          plan.memory.capacity - plan.memory.reserved - static_bytes(plan, pp).total();
      room.bytes = Int128{std::max<std::int64_t>(free.value, 0)} * ranks_;
      if (room.layers > 0 && room.token > 0) {
        always_fits_ = std::min(always_fits_, static_cast<std::int64_t>(room.bytes / room.token));
      }
      rooms_.push_back(room);
    }
  }

  /// Of one virtual stage and one pass, without the head.
  [[nodiscard]] Int128 line(std::int32_t i, Tokens length, bool back) const noexcept {
    const std::int64_t layers = layers_at(i), tokens = length.value, tp = plan_.parallel.tp;
    Int128 work = layer_work(rates_, length, layers, back);
    const double pair2 = back ? rates_.backward_pair2 : rates_.forward_pair2;
    if (tile_ > 0 && (back ? rates_.backward_tiles : rates_.forward_tiles)) {
      const std::int64_t missing = missing_rows(tokens, tile_);
      work += picos(missing * (2 * tokens - tokens % tile_), layers, pair2);
    }
    work += Int128{picos(1, layers, back ? rates_.backward_segment : rates_.forward_segment)} * tp;
    work += passed_on(tokens, layers, back ? rates_.backward_tensor : rates_.forward_tensor);
    if (i == 0) work += picos(tokens, back ? rates_.embedding_backward : rates_.embedding_forward);
    return std::max<Int128>(work - rounding(length), 0);
  }

  /// Of all chunks of a stage, forward, and the head.
  [[nodiscard]] Int128 forward(std::int32_t pp, Tokens length) const noexcept {
    const Int128 work = lines(pp, length, false);
    const std::int64_t rows = rows_at(pp);
    if (rows == 0) return work;
    const Int128 head =
        head_work(rates_, length, rows) + passed_on(length.value, 1, rates_.head_tensor);
    return work + std::max<Int128>(head - rounding(length), 0);
  }
  /// Of all chunks of a stage, backward.
  [[nodiscard]] Int128 backward(std::int32_t pp, Tokens length) const noexcept {
    return lines(pp, length, true);
  }

  /// Of a stage, the recomputation without which the sample does not fit.
  [[nodiscard]] Int128 recomputed(std::int32_t pp, Tokens length) const noexcept {
    if (length.value <= always_fits_) return 0;
    const std::int64_t layers = rooms_[static_cast<std::size_t>(pp)].layers;
    const std::array<double, kRecomputeModes> each = {0, rates_.light_token, rates_.forward_token,
                                                      rates_.forward_token};
    Int128 most = 0;
    for (const Room& room : rooms_) {
      const Int128 lack = Int128{length.value} * room.token - room.bytes;
      if (lack <= 0 || room.layers == 0) continue;
      std::array<ModeEffect, kRecomputeModes> modes;
      for (std::size_t mode = 0; mode < modes.size(); ++mode) {
        modes[mode].freed = Int128{length.value} * room.layers * freed_[mode];
        modes[mode].added = picos(length.value, layers, each[mode]);
      }
      most = std::max(most, least_added(modes, lack));
    }
    return std::max<Int128>(most - rounding(length), 0);
  }

  /// The launch of one F or B on a virtual stage. Rounded down.
  [[nodiscard]] Nanos launch(std::int32_t i, bool back) const noexcept {
    const std::int64_t layers = layers_at(i);
    if (layers == 0) return {};
    const Picos sum = picos(layers, back ? rates_.backward_launch : rates_.forward_launch) +
                      picos(1, back ? rates_.backward_unit : rates_.forward_unit);
    // Two terms may have been rounded up here and down in the price.
    return {std::max<Picos>(sum - 2, 0) / 1000};
  }
  /// Launches of one F and one B a chunk, and of one H, on a device of a stage. Rounded down.
  [[nodiscard]] Nanos launches(std::int32_t pp) const noexcept {
    Nanos sum;
    if (rows_at(pp) > 0) sum.value = std::max<Picos>(picos(1, rates_.head_unit) - 1, 0) / 1000;
    for (std::int32_t chunk = 0; chunk < virtual_stages_.chunks; ++chunk) {
      sum += launch(virtual_stages_.index(pp, chunk), false) +
             launch(virtual_stages_.index(pp, chunk), true);
    }
    return sum;
  }

  /// Whether two stages do the same work on every sample.
  [[nodiscard]] bool alike(std::int32_t a, std::int32_t b) const noexcept {
    for (std::int32_t chunk = 0; chunk < virtual_stages_.chunks; ++chunk) {
      if (layers_at(virtual_stages_.index(a, chunk)) != layers_at(virtual_stages_.index(b, chunk)))
        return false;
    }
    return a == b || (a != 0 && b != 0 && rows_at(a) == rows_at(b));
  }

  /// Rows of the vocabulary for which H keeps a stage busy: of the largest shard, because all
  /// stages wait for each other.
  [[nodiscard]] std::int64_t rows_at(std::int32_t pp) const noexcept {
    return plan_.parallel.head == LmHead::shard || pp + 1 == virtual_stages_.pp ? rows_ : 0;
  }
  [[nodiscard]] std::int64_t layers_at(std::int32_t i) const noexcept {
    return layers_[static_cast<std::size_t>(i)];
  }
  /// Picoseconds of `devices` devices as nanoseconds of each, rounded down.
  [[nodiscard]] Nanos each(Int128 work, std::int64_t devices) const noexcept {
    return {static_cast<std::int64_t>(work / (Int128{devices} * plan_.parallel.tp * 1000))};
  }
  /// The least work that takes one device longer, by that rule.
  [[nodiscard]] Int128 longer_than(Nanos time) const noexcept {
    return (Int128{time.value} + 1) * plan_.parallel.tp * 1000;
  }

 private:
  struct Room {
    std::int64_t layers = 0;
    Int128 token = 0, bytes = 0;
  };

  [[nodiscard]] Int128 lines(std::int32_t pp, Tokens length, bool back) const noexcept {
    Int128 work = 0, same = 0;
    for (std::int32_t chunk = 0; chunk < virtual_stages_.chunks; ++chunk) {
      const std::int32_t i = virtual_stages_.index(pp, chunk);
      // Chunks with as many layers do the same work, but for the embedding's.
      const std::int32_t before = i - virtual_stages_.pp;
      if (before <= 0 || layers_at(before) != layers_at(i)) same = line(i, length, back);
      work += same;
    }
    return work;
  }
  [[nodiscard]] Int128 passed_on(std::int64_t tokens, std::int64_t layers,
                                 std::int64_t bytes) const noexcept {
    const std::int64_t steps = plan_.parallel.tp - 1;
    if (steps == 0) return 0;
    return picos(tokens * steps, layers * bytes,
                 picos_each(1, fastest_link(plan_.cluster).bytes_per_s));
  }
  /// What rounding may have taken from the prices of a sample's slices in one pass.
  [[nodiscard]] Int128 rounding(Tokens length) const noexcept {
    const std::int64_t granularity = plan_.parallel.granularity.value;
    const std::int64_t slices = (length.value + granularity - 1) / granularity;
    return Int128{20 + 4 * plan_.model.layers} * slices * ranks_ * plan_.parallel.tp;
  }

  const Plan& plan_;
  VirtualStages virtual_stages_;
  WorkRates rates_;
  std::int64_t ranks_, tile_ = 0, rows_ = 0;
  std::array<std::int64_t, kRecomputeModes> freed_{};
  std::vector<std::int64_t> layers_;  // by virtual stage
  std::vector<Room> rooms_;
  std::int64_t always_fits_ =
      std::numeric_limits<std::int64_t>::max();  // tokens that no room lacks
};

}  // namespace slimpack::planners::detail
