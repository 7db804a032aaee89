// SPDX-License-Identifier: Apache-2.0
// The loss of a pack: final norm, vocabulary projection, cross-entropy, and their gradients.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <vector>

#include "slimpack/plan/cp_shard.hpp"
#include "slimpack/plan/tensor_rows.hpp"
#include "slimpack/runtime/backend.hpp"
#include "slimpack/runtime/memory_events.hpp"
#include "slimpack/runtime/transport.hpp"
#include "slimpack_cuda/cross_entropy.hpp"
#include "slimpack_cuda/elements.hpp"
#include "slimpack_cuda/rank/layer.hpp"
#include "slimpack_cuda/rank/memory.hpp"
#include "slimpack_cuda/rank/pack_tables.hpp"
#include "slimpack_cuda/rank/row_groups.hpp"
#include "slimpack_cuda/rank/weights.hpp"
#include "slimpack_cuda/rows.hpp"

namespace slimpack::cuda {

/// The part of the vocabulary that a device projects onto. Logits stand in rows of a multiple of
/// kWhole numbers; those that are left, `rest` of them, have kWhole columns of their own, and the
/// projection onto them a copy that ends in rows of zeros.
struct VocabularyPart {
  static constexpr std::int64_t kWhole = 8;
  std::int64_t first = 0, size = 0;
  [[nodiscard]] constexpr std::int64_t whole() const noexcept { return size / kWhole * kWhole; }
  [[nodiscard]] constexpr std::int64_t rest() const noexcept { return size % kWhole; }
};

/// Bytes that H needs for each row of a device in a tile, where `devices` tensor-parallel ones and
/// `stages` divide the vocabulary; docs/equations.md grants slimpack::head_row_bytes.
[[nodiscard]] constexpr std::int64_t head_bytes_used(const ModelShape& model,
                                                     const VocabularyPart& part,
                                                     std::int64_t stages,
                                                     std::int64_t devices) noexcept {
  constexpr auto kSum = static_cast<std::int64_t>(sizeof(LogitSum));
  const std::int64_t h = model.hidden, rest = part.rest() > 0 ? 1 : 0;
  const std::int64_t gradients = 2 * h * devices + 4 * h;
  const std::int64_t sums = devices * kSum * (std::max(stages, devices) + rest) + 12;
  return 2 * h * devices + 2 * h + std::max(gradients, sums) +
         devices * (2 * (part.whole() + rest * VocabularyPart::kWhole) + kSum + 4) + 4;
}

/// Rows of a tile: as many of each tensor-parallel device as of the one that has most, device by
/// device; behind a device's own there are rows of zeros without targets.
struct HeadTile {
  std::int64_t first = 0, rows = 0;     ///< among those of all tiles
  std::int64_t first_own = 0, own = 0;  ///< of this device, among its own rows of the blocks
  std::int64_t padded = 0;              ///< rows of each device
};

/// The tiles of a H, and what each of their rows is.
struct HeadRows {
  std::vector<HeadTile> tiles;
  std::vector<std::int32_t> pack_rows;  ///< by row of the tiles: that of the pack, or -1
};

/// Rows of all tiles but the last, where there are as few as there can be with at most `most` rows
/// each: equally many up to a multiple of eight. Ever new numbers of rows of a last tile would ask
/// for ever new matrix products, whose algorithms have to be looked for and loaded.
[[nodiscard]] constexpr std::int64_t head_tile_length(std::int64_t rows,
                                                      std::int64_t most) noexcept {
  const auto parts = [](std::int64_t all, std::int64_t part) { return (all + part - 1) / part; };
  const std::int64_t tiles = std::max(parts(rows, most), std::int64_t{1});
  return std::min(most, 8 * parts(rows, 8 * tiles));
}

/// Tiles of at most `most` rows of each device, by `head_tile_length`. Every device makes the same
/// ones. O(rows).
[[nodiscard]] inline HeadRows head_rows(std::span<const runtime::PieceMemory> pieces,
                                        std::span<const BlockRows> blocks, const TensorRows& own,
                                        Tokens rows, std::int64_t most) {
  std::vector<std::vector<std::int32_t>> by_device(static_cast<std::size_t>(own.devices));
  const std::vector<std::int32_t> owners = owners_of(pieces, blocks, own, rows);
  std::vector<std::int32_t> order(owners.size());
  for_each_piece(pieces, blocks,
                 [&](const runtime::Piece& piece, std::int64_t first, std::int64_t row) {
                   for (std::int64_t r = 0; r < piece.length().value; ++r) {
                     order[static_cast<std::size_t>(first + r)] = to_table(row + r);
                   }
                 });
  for (std::size_t row = 0; row < owners.size(); ++row) {
    by_device[static_cast<std::size_t>(owners[row])].push_back(order[row]);
  }
  HeadRows made;
  const auto size = [](const auto& list) { return static_cast<std::int64_t>(list.size()); };
  std::int64_t largest = 0;
  for (const auto& list : by_device) largest = std::max(largest, size(list));
  const std::int64_t mine = size(by_device[static_cast<std::size_t>(own.device)]);
  const std::int64_t length = head_tile_length(largest, most);
  for (std::int64_t first = 0; first < largest; first += length) {
    HeadTile& tile = made.tiles.emplace_back();
    tile.padded = std::min(length, largest - first);
    tile.first = size(made.pack_rows);
    tile.rows = own.devices * tile.padded;
    tile.first_own = std::min(first, mine);
    tile.own = std::min(mine, first + tile.padded) - tile.first_own;
    for (const auto& list : by_device) {
      for (std::int64_t row = first; row < first + tile.padded; ++row) {
        made.pack_rows.push_back(row < size(list) ? list[static_cast<std::size_t>(row)] : -1);
      }
    }
  }
  return made;
}

/// The targets of a H by the rows of its tiles.
[[nodiscard]] inline std::vector<std::int32_t> targets_of(
    std::span<const runtime::PieceMemory> pieces, const HeadRows& rows,
    const runtime::StepData& data) {
  std::vector<std::int32_t> of_pack, targets;
  for (const runtime::PieceMemory& memory : pieces) {
    const auto& sample = data.targets[index(memory.piece.sample)];
    std::transform(
        sample.begin() + memory.piece.begin.value, sample.begin() + memory.piece.end.value,
        std::back_inserter(of_pack),
        [](const std::optional<std::int32_t>& target) { return target.value_or(kNoTarget); });
  }
  targets.reserve(rows.pack_rows.size());
  for (const std::int32_t row : rows.pack_rows) {
    targets.push_back(row < 0 ? kNoTarget : of_pack[static_cast<std::size_t>(row)]);
  }
  return targets;
}

/// What H of one call works on.
struct HeadWork {
  VocabularyPart vocabulary;
  DeviceSpan<const Bf16> weights;  ///< of the part, row by row
  DeviceSpan<const Bf16> rest;     ///< its last rows and zeros, kWhole in all
  DeviceSpan<float> gradients;     ///< of the part and of what follows up to whole kWhole rows
  DeviceSpan<const Bf16> norm;     ///< final norm; the last stage alone has this and what follows
  DeviceSpan<float> norm_gradient;
  DeviceSpan<const Bf16> hidden;           ///< own rows of the pack
  DeviceSpan<const std::int32_t> rows;     ///< of the pack by those of the blocks; none if alike
  DeviceSpan<const std::int32_t> targets;  ///< by rows of the tiles
  std::span<float> losses;                 ///< pinned, by rows of the tiles
  float scale = 0;                         ///< of the gradients
  bool last = false;
};

class RankHead {
 public:
  RankHead(const LayerTools& tools, const ModelShape& model, const HeadWork& work,
           const runtime::HeadCall& call, std::span<const BlockRows> blocks)
      : tools_(tools),
        model_(model),
        work_(work),
        call_(call),
        blocks_(blocks),
        h_(model.hidden),
        stages_(call.stages.members.size()),
        devices_(call.tensor.members.size()) {}

  /// Loss and gradients of the rows of a tile. Every device computes the logits of its part of the
  /// vocabulary; those of the last stage own hidden states, losses and hidden gradients, each of
  /// its rows.
  template <class Link>
  void tile(const HeadTile& tile, Link& link) {
    place(tile);
    if (work_.last) normalise();
    if (sharded()) {
      // Pairs of bf16 travel as numbers of fp32: the same bits.
      link.broadcast(call_.stages, stages_ - 1,
                     std::span(reinterpret_cast<float*>(own_normed_.data),
                               static_cast<std::size_t>(own_normed_.size / 2)));
    }
    if (several()) link.all_gather(call_.tensor, host_span(normed_), own_begin(), own_end());
    sum_logits(link);
    make_input_gradients();
    if (several()) {
      link.begin_reduce_scatter(call_.tensor, host_span(partial_), own_begin(), own_end());
    }
    add_weight_gradients();  // beside the sums
    if (several()) link.end_collective();
    if (sharded()) {
      const DeviceSpan<float> sums = dnormed_.subspan(0, tile_.own * h_);
      if (several()) convert(sums, rounded_, tools_.stream);
      link.all_reduce(call_.stages, host_span(sums), runtime::Reduction::sum);
    }
    if (work_.last) hand_back();
  }

 private:
  [[nodiscard]] bool sharded() const noexcept { return stages_ > 1; }
  [[nodiscard]] bool several() const noexcept { return devices_ > 1; }
  /// Elements of the tile's rows that are the device's.
  [[nodiscard]] std::size_t own_begin() const noexcept {
    return call_.tensor.self * static_cast<std::size_t>(tile_.padded * h_);
  }
  [[nodiscard]] std::size_t own_end() const noexcept {
    return (call_.tensor.self + 1) * static_cast<std::size_t>(tile_.padded * h_);
  }
  [[nodiscard]] LinearShape shape(std::int64_t columns) const { return {rows_, h_, columns}; }
  [[nodiscard]] LogitShape whole_shape() const {
    const std::int64_t whole = work_.vocabulary.whole();
    return {rows_, work_.vocabulary.first, whole, whole};
  }
  [[nodiscard]] LogitShape rest_shape() const {
    return {rows_, work_.vocabulary.first + work_.vocabulary.whole(), work_.vocabulary.rest(),
            VocabularyPart::kWhole};
  }
  [[nodiscard]] bool has_rest() const noexcept { return work_.vocabulary.rest() > 0; }
  [[nodiscard]] DeviceSpan<const Bf16> whole_weights() const {
    return work_.weights.subspan(0, work_.vocabulary.whole() * h_);
  }

  void place(const HeadTile& tile) {
    tile_ = tile;
    rows_ = tile.rows;
    Carver workspace(call_.workspace);
    normed_ = workspace.take<Bf16>(rows_, h_);
    own_normed_ = normed_.subspan(static_cast<std::int64_t>(own_begin()), tile.padded * h_);
    gathered_ = workspace.take<Bf16>(tile.padded, h_);
    // Sums of logits are done with before their gradients come to be.
    const auto devices = static_cast<std::int64_t>(devices_);
    const auto shards = static_cast<std::int64_t>(std::max(stages_, devices_));
    const std::int64_t sums = rows_ * (shards + (has_rest() ? 1 : 0));
    const std::int64_t whole = several() ? devices : 1;
    const std::span<std::byte> shared = workspace.take_bytes(std::max(
        tile.padded * h_ * (2 * whole + 4), sums * static_cast<std::int64_t>(sizeof(LogitSum))));
    workspace.align();
    Carver gradients(shared);
    dnormed_ = gradients.take<float>(tile.padded, h_);
    partial_ = gradients.take<Bf16>(whole * tile.padded, h_);
    rounded_ = rows_at(partial_, several() ? static_cast<std::int64_t>(own_begin()) / h_ : 0,
                       tile.own, h_);
    Carver shards_of(shared);
    all_sums_ = shards_of.take<LogitSum>(shards, rows_);
    if (has_rest()) rest_sums_ = shards_of.take<LogitSum>(rows_, 1);
    logits_ = workspace.take<Bf16>(rows_, work_.vocabulary.whole());
    if (has_rest()) rest_logits_ = workspace.take<Bf16>(rows_, VocabularyPart::kWhole);
    sums_ = workspace.take<LogitSum>(rows_, 1);
    inverse_ = workspace.take<float>(tile.padded, 1);
    losses_ = workspace.take<float>(rows_, 1);
    targets_ = work_.targets.subspan(tile.first, rows_);
  }

  void normalise() {
    const DeviceSpan<Bf16> mine = gathered_.subspan(0, tile_.own * h_);
    hidden_ = work_.rows.size == 0 ? rows_at(work_.hidden, tile_.first_own, tile_.own, h_) : mine;
    if (work_.rows.size > 0) {
      gather_rows(mine, work_.hidden, work_.rows.subspan(tile_.first_own, tile_.own),
                  {tile_.own, h_}, tools_.stream);
    }
    rms_norm_forward(own_normed_.subspan(0, tile_.own * h_), inverse_.subspan(0, tile_.own),
                     hidden_, work_.norm, {tile_.own, h_}, static_cast<float>(model_.norm_eps),
                     tools_.stream);
    fill_zeros(rows_at(own_normed_, tile_.own, tile_.padded - tile_.own, h_), tools_.stream);
  }

  /// Logits, and their sums over the whole vocabulary: gathered, and combined in the order of
  /// tensor-parallel devices, then of stages.
  template <class Link>
  void sum_logits(Link& link) {
    if (work_.vocabulary.whole() > 0) {
      tools_.gemm.forward(logits_, normed_, whole_weights(), shape(work_.vocabulary.whole()),
                          tools_.stream);
    }
    logit_sums(sums_, logits_, targets_, whole_shape(), tools_.stream);
    if (has_rest()) {
      tools_.gemm.forward(rest_logits_, normed_, work_.rest, shape(VocabularyPart::kWhole),
                          tools_.stream);
      logit_sums(rest_sums_, rest_logits_, targets_, rest_shape(), tools_.stream);
      merge_logit_sums(sums_, rest_sums_, tools_.stream);
    }
    combine_sums(call_.tensor, link);
    combine_sums(call_.stages, link);
  }
  template <class Link>
  void combine_sums(const runtime::ProcessGroup& process_group, Link& link) {
    const std::size_t members = process_group.members.size();
    if (members == 1) return;
    const auto part = [&](std::size_t member) {
      return all_sums_.subspan(static_cast<std::int64_t>(member) * rows_, rows_);
    };
    copy(part(process_group.self), sums_, tools_.stream);
    constexpr std::size_t kNumbers = sizeof(LogitSum) / sizeof(float);
    const std::size_t size = static_cast<std::size_t>(rows_) * kNumbers;
    link.all_gather(process_group,
                    std::span(reinterpret_cast<float*>(all_sums_.data), members * size),
                    process_group.self * size, (process_group.self + 1) * size);
    copy(sums_, part(0), tools_.stream);
    for (std::size_t member = 1; member < members; ++member) {
      merge_logit_sums(sums_, part(member), tools_.stream);
    }
  }

  /// Gradients of the logits, and of what the projection reads as far as this device's rows of the
  /// vocabulary contribute.
  void make_input_gradients() {
    const std::int64_t whole = work_.vocabulary.whole();
    if (whole > 0) {
      logit_gradients(logits_, sums_, targets_, whole_shape(), work_.scale, tools_.stream);
      input_gradient(logits_, whole_weights(), whole, Into::overwrite);
    }
    if (has_rest()) {
      logit_gradients(rest_logits_, sums_, targets_, rest_shape(), work_.scale, tools_.stream);
      input_gradient(rest_logits_, work_.rest, VocabularyPart::kWhole,
                     whole > 0 ? Into::add : Into::overwrite);
    }
  }
  /// Gradients of the projection.
  void add_weight_gradients() {
    const std::int64_t whole = work_.vocabulary.whole();
    if (whole > 0) {
      tools_.gemm.weight_gradient(work_.gradients.subspan(0, whole * h_), logits_, normed_,
                                  shape(whole), Into::add, tools_.stream);
    }
    if (has_rest()) {
      constexpr std::int64_t kColumns = VocabularyPart::kWhole;
      // Columns past the vocabulary are zero, and so is what they add to the rows behind it.
      tools_.gemm.weight_gradient(work_.gradients.subspan(whole * h_, kColumns * h_), rest_logits_,
                                  normed_, shape(kColumns), Into::add, tools_.stream);
    }
  }
  void input_gradient(DeviceSpan<const Bf16> logits, DeviceSpan<const Bf16> weights,
                      std::int64_t columns, Into into) {
    if (several()) {
      tools_.gemm.input_gradient(partial_, logits, weights, shape(columns), into, tools_.stream);
    } else {
      tools_.gemm.input_gradient(dnormed_, logits, weights, shape(columns), into, tools_.stream);
    }
  }

  /// Losses to the host, hidden gradients to the blocks.
  void hand_back() {
    cross_entropy_losses(losses_, sums_, targets_, tools_.stream);
    copy_to_host(work_.losses.subspan(static_cast<std::size_t>(tile_.first),
                                      static_cast<std::size_t>(rows_)),
                 losses_, tools_.stream);
    if (sharded() || !several()) {
      convert(rounded_, dnormed_.subspan(0, tile_.own * h_), tools_.stream);
    }
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      const BlockRows& block = blocks_[i];
      const std::int64_t begin = std::max(tile_.first_own, block.first_own);
      const std::int64_t count =
          std::min(tile_.first_own + tile_.own, block.first_own + block.own) - begin;
      if (count <= 0) continue;
      const std::int64_t within = begin - tile_.first_own;
      rms_norm_backward(rows_at(elements<Bf16>(call_.blocks[i].hidden_gradient),
                                begin - block.first_own, count, h_),
                        work_.norm_gradient, tools_.norm_workspace,
                        rows_at(rounded_, within, count, h_), {},
                        rows_at(hidden_, within, count, h_), work_.norm,
                        rows_at(inverse_, within, count, 1), {count, h_}, tools_.stream);
    }
  }

  const LayerTools& tools_;
  const ModelShape& model_;
  const HeadWork& work_;
  const runtime::HeadCall& call_;
  std::span<const BlockRows> blocks_;
  std::int64_t h_;
  std::size_t stages_, devices_;

  HeadTile tile_;
  std::int64_t rows_ = 0;
  DeviceSpan<Bf16> normed_, own_normed_, gathered_, logits_, rest_logits_;
  DeviceSpan<Bf16> partial_;  ///< of several devices: gradients of `normed_`, a part of each sum
  DeviceSpan<Bf16> rounded_;  ///< those of own rows
  DeviceSpan<const Bf16> hidden_;
  DeviceSpan<float> dnormed_, inverse_, losses_;
  DeviceSpan<LogitSum> all_sums_, sums_, rest_sums_;
  DeviceSpan<const std::int32_t> targets_;
};

}  // namespace slimpack::cuda
