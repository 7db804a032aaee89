// SPDX-License-Identifier: Apache-2.0
// The loss of a pack: final norm, vocabulary projection, cross-entropy, and their gradients.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "slimpack/plan/cp_shard.hpp"
#include "slimpack/runtime/backend.hpp"
#include "slimpack/runtime/memory_events.hpp"
#include "slimpack/runtime/transport.hpp"
#include "slimpack_cuda/cross_entropy.hpp"
#include "slimpack_cuda/elements.hpp"
#include "slimpack_cuda/rank/layer.hpp"
#include "slimpack_cuda/rank/memory.hpp"
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

/// Bytes that H needs for a token of a tile; docs/equations.md grants runtime::head_workspace.
[[nodiscard]] constexpr std::int64_t head_row_bytes(const ModelShape& model,
                                                    const VocabularyPart& part,
                                                    std::int64_t stages) noexcept {
  const std::int64_t sums = stages + (part.rest() > 0 ? 1 : 0);
  return 3 * model.hidden * 2 + model.hidden * 4 +
         2 * (part.whole() + (part.rest() > 0 ? VocabularyPart::kWhole : 0)) +
         sums * static_cast<std::int64_t>(sizeof(LogitSum)) + 2 * 4;
}

/// What H of one call works on.
struct HeadWork {
  VocabularyPart vocabulary;
  DeviceSpan<const Bf16> weights;  ///< of the part, row by row
  DeviceSpan<const Bf16> rest;     ///< its last rows and zeros, kWhole in all
  DeviceSpan<float> gradients;     ///< of the part and of what follows up to whole kWhole rows
  DeviceSpan<const Bf16> norm;     ///< final norm; the last stage alone has this and what follows
  DeviceSpan<float> norm_gradient;
  DeviceSpan<const Bf16> hidden;           ///< rows of the pack
  DeviceSpan<const std::int32_t> rows;     ///< of the pack by those of the blocks; none if alike
  DeviceSpan<const std::int32_t> targets;  ///< by rows of the blocks, as everything else
  std::span<float> losses;                 ///< pinned
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
        stages_(call.stages.members.size()) {}

  /// Loss and gradients of rows [first, first + rows). Every stage computes the logits of its part
  /// of the vocabulary; the last one owns hidden states, losses and hidden gradients.
  template <class Link>
  void tile(std::int64_t first, std::int64_t rows, Link& link) {
    place(first, rows);
    if (work_.last) normalise();
    if (sharded()) {
      // Pairs of bf16 travel as numbers of fp32: the same bits.
      link.broadcast(call_.stages, stages_ - 1,
                     std::span(reinterpret_cast<float*>(normed_.data),
                               static_cast<std::size_t>(normed_.size / 2)));
    }
    sum_logits(link);
    make_gradients();
    if (sharded()) {
      link.all_reduce(call_.stages, host_span(dnormed_), runtime::Reduction::sum);
    }
    if (work_.last) hand_back();
  }

 private:
  [[nodiscard]] bool sharded() const noexcept { return stages_ > 1; }
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

  void place(std::int64_t first, std::int64_t rows) {
    first_ = first;
    rows_ = rows;
    Carver workspace(call_.workspace);
    normed_ = workspace.take<Bf16>(rows, h_);
    dnormed_rounded_ = workspace.take<Bf16>(rows, h_);
    gathered_ = workspace.take<Bf16>(rows, h_);
    dnormed_ = workspace.take<float>(rows, h_);
    logits_ = workspace.take<Bf16>(rows, work_.vocabulary.whole());
    if (has_rest()) rest_logits_ = workspace.take<Bf16>(rows, VocabularyPart::kWhole);
    all_sums_ = workspace.take<LogitSum>(static_cast<std::int64_t>(stages_), rows);
    if (has_rest()) rest_sums_ = workspace.take<LogitSum>(rows, 1);
    inverse_ = workspace.take<float>(rows, 1);
    losses_ = workspace.take<float>(rows, 1);
    targets_ = work_.targets.subspan(first, rows);
  }

  void normalise() {
    hidden_ = work_.rows.size == 0 ? work_.hidden.subspan(first_ * h_, rows_ * h_) : gathered_;
    if (work_.rows.size > 0) {
      gather_rows(gathered_, work_.hidden, work_.rows.subspan(first_, rows_), {rows_, h_},
                  tools_.stream);
    }
    rms_norm_forward(normed_, inverse_, hidden_, work_.norm, {rows_, h_},
                     static_cast<float>(model_.norm_eps), tools_.stream);
  }

  /// Logits, and their sums over the whole vocabulary: gathered, and combined in the order of
  /// stages.
  template <class Link>
  void sum_logits(Link& link) {
    const auto self = static_cast<std::int64_t>(call_.stages.self);
    const DeviceSpan<LogitSum> mine = all_sums_.subspan(self * rows_, rows_);
    if (work_.vocabulary.whole() > 0) {
      tools_.gemm.forward(logits_, normed_, whole_weights(), shape(work_.vocabulary.whole()),
                          tools_.stream);
    }
    logit_sums(mine, logits_, targets_, whole_shape(), tools_.stream);
    if (has_rest()) {
      tools_.gemm.forward(rest_logits_, normed_, work_.rest, shape(VocabularyPart::kWhole),
                          tools_.stream);
      logit_sums(rest_sums_, rest_logits_, targets_, rest_shape(), tools_.stream);
      merge_logit_sums(mine, rest_sums_, tools_.stream);
    }
    sums_ = all_sums_.subspan(0, rows_);
    if (!sharded()) return;
    constexpr std::size_t kNumbers = sizeof(LogitSum) / sizeof(float);
    const std::size_t part = static_cast<std::size_t>(rows_) * kNumbers;
    link.all_gather(call_.stages,
                    std::span(reinterpret_cast<float*>(all_sums_.data), stages_ * part),
                    call_.stages.self * part, (call_.stages.self + 1) * part);
    for (std::size_t stage = 1; stage < stages_; ++stage) {
      merge_logit_sums(sums_, all_sums_.subspan(static_cast<std::int64_t>(stage) * rows_, rows_),
                       tools_.stream);
    }
  }

  /// Gradients of the logits, of the projection, and of what it reads as far as this stage's rows
  /// of the vocabulary contribute.
  void make_gradients() {
    const std::int64_t whole = work_.vocabulary.whole();
    Into into = Into::overwrite;
    if (whole > 0) {
      logit_gradients(logits_, sums_, targets_, whole_shape(), work_.scale, tools_.stream);
      tools_.gemm.input_gradient(dnormed_, logits_, whole_weights(), shape(whole), into,
                                 tools_.stream);
      tools_.gemm.weight_gradient(work_.gradients.subspan(0, whole * h_), logits_, normed_,
                                  shape(whole), Into::add, tools_.stream);
      into = Into::add;
    }
    if (has_rest()) {
      constexpr std::int64_t kColumns = VocabularyPart::kWhole;
      logit_gradients(rest_logits_, sums_, targets_, rest_shape(), work_.scale, tools_.stream);
      tools_.gemm.input_gradient(dnormed_, rest_logits_, work_.rest, shape(kColumns), into,
                                 tools_.stream);
      // Columns past the vocabulary are zero, and so is what they add to the rows behind it.
      tools_.gemm.weight_gradient(work_.gradients.subspan(whole * h_, kColumns * h_), rest_logits_,
                                  normed_, shape(kColumns), Into::add, tools_.stream);
    }
  }

  /// Losses to the host, hidden gradients to the blocks.
  void hand_back() {
    cross_entropy_losses(losses_, sums_, targets_, tools_.stream);
    copy_to_host(
        work_.losses.subspan(static_cast<std::size_t>(first_), static_cast<std::size_t>(rows_)),
        losses_, tools_.stream);
    convert(dnormed_rounded_, dnormed_, tools_.stream);
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      const BlockRows& block = blocks_[i];
      const std::int64_t begin = std::max(first_, block.first);
      const std::int64_t count = std::min(first_ + rows_, block.first + block.rows) - begin;
      if (count <= 0) continue;
      rms_norm_backward(
          rows_at(elements<Bf16>(call_.blocks[i].hidden_gradient), begin - block.first, count, h_),
          work_.norm_gradient, tools_.norm_workspace,
          rows_at(dnormed_rounded_, begin - first_, count, h_), {},
          rows_at(hidden_, begin - first_, count, h_), work_.norm,
          rows_at(inverse_, begin - first_, count, 1), {count, h_}, tools_.stream);
    }
  }

  const LayerTools& tools_;
  const ModelShape& model_;
  const HeadWork& work_;
  const runtime::HeadCall& call_;
  std::span<const BlockRows> blocks_;
  std::int64_t h_;
  std::size_t stages_;

  std::int64_t first_ = 0, rows_ = 0;
  DeviceSpan<Bf16> normed_, dnormed_rounded_, gathered_, logits_, rest_logits_;
  DeviceSpan<const Bf16> hidden_;
  DeviceSpan<float> dnormed_, inverse_, losses_;
  DeviceSpan<LogitSum> all_sums_, sums_, rest_sums_;
  DeviceSpan<const std::int32_t> targets_;
};

}  // namespace slimpack::cuda
