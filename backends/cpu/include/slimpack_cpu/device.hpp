// SPDX-License-Identifier: Apache-2.0
// The fp64 CPU backend: one device's weights, gradients and optimizer state, and its units of work.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/exec/backend.hpp"
#include "slimpack/exec/memory.hpp"
#include "slimpack/exec/thread_transport.hpp"
#include "slimpack/exec/transport.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/plan/share.hpp"
#include "slimpack_cpu/exchange.hpp"
#include "slimpack_cpu/layer.hpp"
#include "slimpack_cpu/ops.hpp"
#include "slimpack_cpu/parameters.hpp"

namespace slimpack::cpu {

/// A backend (exec/backend.hpp) for one device of a plan. It lives over any number of steps, whose
/// plans share model, partition and optimizer state with the first; it always computes and stores
/// in fp64, whatever `bytes_per_element` says.
class Device {
 public:
  class Buffer {
   public:
    explicit Buffer(Bytes bytes)
        : size_(static_cast<std::size_t>(bytes.value)),
          data_(std::make_unique<double[]>((size_ + sizeof(double) - 1) / sizeof(double))) {}
    [[nodiscard]] std::span<std::byte> bytes() const noexcept {
      return {reinterpret_cast<std::byte*>(data_.get()), size_};
    }

   private:
    std::size_t size_;
    std::unique_ptr<double[]> data_;
  };

  /// The device at position `device` of `plan.schedule`, with weights drawn from `seed`. Throws
  /// InvalidInput where the plan is none that can be executed or the model's sizes do not fit.
  Device(const Plan& plan, std::size_t device, std::uint64_t seed, AdamW settings = {})
      : settings_(settings) {
    exec::check_executable(plan);
    const ModelShape& model = plan.model;
    require(model.hidden > 0 && model.ffn > 0 && model.vocab > 0 && model.heads > 0,
            "Device: hidden, heads, ffn and vocab must be > 0");
    require(model.kv_heads > 0 && model.heads % model.kv_heads == 0,
            "Device: kv_heads must divide heads", model.kv_heads);
    require(model.head_dim > 0 && model.head_dim % 2 == 0, "Device: head_dim must be even",
            model.head_dim);
    require(device < plan.schedule.size(), "Device: device must be one of the plan",
            static_cast<std::int64_t>(device));
    adopt(plan);
    dp_ = plan.schedule[device].dp;
    pp_ = plan.schedule[device].pp;
    layout_ = layout_of(plan, pp_);
    weights_.resize(layout_.size());
    gradients_.resize(layout_.size());
    for (const HeldTensor& tensor : layout_.tensors) {
      TensorShape whole = tensor.shape;
      whole.rows = tensor.whole_rows;
      initialise(of(weights_, tensor), whole, tensor.first_row, seed);
    }
    const auto ranks = static_cast<std::size_t>(parallel_.dp);
    const std::size_t part = optimizer_ == OptimizerState::sharded
                                 ? (layout_.size() + ranks - 1) / ranks
                                 : layout_.size();
    first_moment_.resize(part);
    second_moment_.resize(part);
  }

  /// What this device holds, in the order of its memory.
  [[nodiscard]] std::span<const HeldTensor> tensors() const noexcept { return layout_.tensors; }
  [[nodiscard]] In weights(const HeldTensor& tensor) const { return of(weights_, tensor); }
  [[nodiscard]] Out weights(const HeldTensor& tensor) { return of(weights_, tensor); }
  /// Of the last step, summed over ranks and copies.
  [[nodiscard]] In gradients(const HeldTensor& tensor) const { return of(gradients_, tensor); }

  // --- exec::Backend ---

  [[nodiscard]] exec::ElementBytes element_bytes() const noexcept { return {}; }
  [[nodiscard]] exec::StaticBytes static_bytes() const noexcept {
    const auto size = [](std::size_t elements) {
      return Bytes{static_cast<std::int64_t>(elements * sizeof(double))};
    };
    return {size(weights_.size()), size(gradients_.size()),
            size(first_moment_.size() + second_moment_.size())};
  }
  [[nodiscard]] Buffer allocate(Bytes bytes) { return Buffer(bytes); }
  [[nodiscard]] std::span<std::byte> bytes(const Buffer& buffer) const { return buffer.bytes(); }
  void clear(Buffer& buffer) { std::ranges::fill(buffer.bytes(), std::byte{0}); }

  /// Throws InvalidInput if the plan's model or partition is not that of the first.
  void begin_step(const Plan& plan, const exec::StepData& data) {
    require(plan.model == model_ && plan.stages == stages_ && plan.parallel.dp == parallel_.dp &&
                plan.parallel.pp == parallel_.pp && plan.parallel.head == parallel_.head &&
                plan.memory.optimizer == optimizer_,
            "Device: model and partition must stay from step to step");
    adopt(plan);
    data_ = &data;
    std::ranges::fill(gradients_, 0.0);
  }

  template <exec::Transport<double> Link>
  void forward(const exec::PackCall& call, Link& link) {
    Arena arena(numbers(call.workspace));
    const Stage& stage = stage_of(call);
    const std::int64_t layers = stage.layers();
    std::vector<Out> next = layer_inputs(call, 0);
    enter(call, next);
    for (std::int64_t layer = 0; layer < layers; ++layer) {
      arena.rewind(0);
      const LayerTensors<In> weights =
          layer_of<In>(std::as_const(weights_), stage.first_layer + layer);
      const auto pieces = rows_of_segments(call, layer, arena);
      std::vector<SliceAttention> attention = attentions(call, layer);
      for (std::size_t s = 0; s < pieces.size(); ++s) {
        for (const PieceRows& rows : pieces[s]) {
          normalise_input(model_, weights, rows);
          project_query(model_, weights, rows);
          const Out key = arena.take(rows.rows, model_.key_width());
          const Out value = arena.take(rows.rows, model_.key_width());
          project_key_value(model_, weights, rows, key, value);
          attention[s].store(rows, key, value);
        }
      }
      const std::size_t mark = arena.mark();
      for (std::size_t s = 0; s < pieces.size(); ++s) {
        arena.rewind(mark);
        attention[s].forward(pieces[s], arena, link);
      }
      next = layer_inputs(call, layer + 1);
      std::size_t piece = 0;
      for (const auto& segment : pieces) {
        for (const PieceRows& rows : segment) finish_layer(model_, weights, rows, next[piece++]);
      }
    }
  }

  template <exec::Transport<double> Link>
  void backward(const exec::PackCall& call, Link& link) {
    Arena arena(numbers(call.workspace));
    const Stage& stage = stage_of(call);
    const Out gradient = arena.take(call.rows.value, model_.hidden);
    load_gradient(call, gradient);
    const std::size_t mark = arena.mark();
    for (std::int64_t layer = stage.layers(); layer-- > 0;) {
      arena.rewind(mark);
      backward_layer(call, stage.first_layer + layer, layer, gradient, arena, link);
    }
    if (!call.output.empty()) {
      std::ranges::copy(gradient, numbers(call.output).begin());
    } else if (stage.embedding) {
      for_each_piece(call, [&](const exec::PieceMemory& memory, std::int64_t first_row) {
        embedding_backward(
            of(gradients_, layout_.tensors[layout_.embedding.front()]),
            detail::rows(gradient, first_row, memory.piece.length().value, model_.hidden),
            tokens(memory.piece), model_.vocab, model_.hidden);
      });
    }
  }

  template <exec::Transport<double> Link>
  void head(const exec::HeadCall& call, Link& link) {
    std::vector<Row> rows;
    for (const exec::PieceMemory& memory : call.pieces) {
      for (std::int64_t r = 0; r < memory.piece.length().value; ++r) rows.push_back({&memory, r});
    }
    for (std::int64_t first = 0; first < call.rows.value; first += head_tile_.value) {
      const std::int64_t count = std::min(head_tile_.value, call.rows.value - first);
      head_tile(
          call, first,
          std::span(rows).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count)),
          link);
    }
  }

  template <exec::Transport<double> Link>
  void reduce(std::int32_t chunk, Link& link) {
    const auto at = static_cast<std::size_t>(chunk);
    std::size_t begin = layout_.chunk_begin[at];
    if (chunk == 0) begin += layout_.table;
    const std::span all(gradients_);
    link.queue_sum(ranks(), chunk, all.subspan(begin, layout_.chunk_begin[at + 1] - begin));
    if (chunk != 0) return;
    for (const TablePart& part : table_parts()) {
      link.queue_sum(part.meeting, part.tag, all.subspan(part.begin, part.size));
    }
  }

  template <exec::Transport<double> Link>
  void optimize(Link& link) {
    for (std::int32_t chunk = 0; chunk < parallel_.chunks; ++chunk) link.await_sum(ranks(), chunk);
    for (const TablePart& part : table_parts()) link.await_sum(part.meeting, part.tag);
    ++step_;
    const std::size_t size = layout_.size();
    std::size_t first = 0, last = size;
    if (optimizer_ == OptimizerState::sharded) {
      first = std::min(size, first_moment_.size() * static_cast<std::size_t>(dp_));
      last = std::min(size, first + first_moment_.size());
    }
    const std::size_t count = last - first;
    adamw_step(std::span(weights_).subspan(first, count), std::span(first_moment_).first(count),
               std::span(second_moment_).first(count), std::span(gradients_).subspan(first, count),
               settings_, step_);
    if (count < size) link.all_gather(ranks(), std::span(weights_), first, last);
  }

 private:
  struct Row {
    const exec::PieceMemory* memory;
    std::int64_t row;
  };
  /// Rows of the tied table that this device reduces with other stages.
  struct TablePart {
    std::size_t begin = 0, size = 0;
    exec::Meeting meeting;
    std::int64_t tag = 0;
  };

  static Out of(std::vector<double>& values, const HeldTensor& tensor) {
    return std::span(values).subspan(tensor.offset, tensor.size());
  }
  static In of(const std::vector<double>& values, const HeldTensor& tensor) {
    return std::span(values).subspan(tensor.offset, tensor.size());
  }

  void adopt(const Plan& plan) {
    model_ = plan.model;
    stages_ = plan.stages;
    parallel_ = plan.parallel;
    optimizer_ = plan.memory.optimizer;
    page_tokens_ = plan.memory.page_tokens;
    head_tile_ = plan.memory.head_tile;
    scale_ = 1.0 / static_cast<double>(plan.target_tokens);
  }

  [[nodiscard]] std::size_t device_at(std::int32_t dp, std::int32_t pp) const {
    return static_cast<std::size_t>(dp) * static_cast<std::size_t>(parallel_.pp) +
           static_cast<std::size_t>(pp);
  }
  [[nodiscard]] bool is_last() const { return pp_ + 1 == parallel_.pp; }

  /// The data-parallel ranks of this stage.
  [[nodiscard]] exec::Meeting ranks() const {
    exec::Meeting meeting{{}, static_cast<std::size_t>(dp_)};
    for (std::int32_t dp = 0; dp < parallel_.dp; ++dp)
      meeting.members.push_back(device_at(dp, pp_));
    return meeting;
  }

  /// The ranks of stage 0 and of stage `other`, for the rows of the table that both hold.
  [[nodiscard]] TablePart table_part(std::int32_t other, VocabularyShard rows) const {
    const auto cols = static_cast<std::size_t>(model_.hidden);
    TablePart part;
    part.begin = pp_ == 0 ? static_cast<std::size_t>(rows.first) * cols : 0;
    part.size = static_cast<std::size_t>(rows.size()) * cols;
    part.tag = parallel_.chunks + other;
    for (std::int32_t dp = 0; dp < parallel_.dp; ++dp) {
      for (std::int32_t pp = 0; pp <= other; pp += std::max(other, 1)) {
        if (dp == dp_ && pp == pp_) part.meeting.self = part.meeting.members.size();
        part.meeting.members.push_back(device_at(dp, pp));
      }
    }
    return part;
  }

  [[nodiscard]] std::vector<TablePart> table_parts() const {
    if (layout_.table == 0) return {};
    const std::int32_t last = parallel_.pp - 1;
    if (parallel_.head == Head::last) return {table_part(last, {0, model_.vocab})};
    std::vector<TablePart> parts;
    for (std::int32_t pp = pp_; pp <= (pp_ == 0 ? last : pp_); ++pp) {
      parts.push_back(table_part(pp, vocabulary_shard(model_.vocab, pp, parallel_.pp)));
    }
    return parts;
  }

  [[nodiscard]] const Stage& stage_of(const exec::PackCall& call) const {
    return stages_[static_cast<std::size_t>(call.line)];
  }

  template <class Span, class Values>
  requires std::same_as<std::remove_const_t<Values>, std::vector<double>>
  [[nodiscard]] LayerTensors<Span> layer_of(Values& values, std::int64_t layer) const {
    const std::size_t first = layout_.layer[static_cast<std::size_t>(layer)];
    const auto at = [&](LayerTensor tensor) -> Span {
      return of(values, layout_.tensors[first + static_cast<std::size_t>(tensor)]);
    };
    return {at(LayerTensor::input_norm), at(LayerTensor::query),  at(LayerTensor::key),
            at(LayerTensor::value),      at(LayerTensor::output), at(LayerTensor::mid_norm),
            at(LayerTensor::gate),       at(LayerTensor::up),     at(LayerTensor::down)};
  }

  [[nodiscard]] std::span<const std::int32_t> tokens(const exec::Piece& piece) const {
    return std::span(data_->tokens[index(piece.sample)])
        .subspan(static_cast<std::size_t>(piece.begin.value),
                 static_cast<std::size_t>(piece.length().value));
  }

  /// Calls visit(memory, first row in the pack).
  template <std::invocable<const exec::PieceMemory&, std::int64_t> Visit>
  static void for_each_piece(const exec::PackCall& call, Visit visit) {
    std::int64_t row = 0;
    for (const exec::SegmentMemory& segment : call.segments) {
      for (const exec::PieceMemory& memory : segment.pieces) {
        visit(memory, row);
        row += memory.piece.length().value;
      }
    }
  }

  /// Where the input of layer `layer` of this stage belongs, by piece: what is kept, or behind the
  /// last layer the unit's output.
  [[nodiscard]] std::vector<Out> layer_inputs(const exec::PackCall& call,
                                              std::int64_t layer) const {
    std::vector<Out> inputs;
    const bool behind = layer == stage_of(call).layers();
    for_each_piece(call, [&](const exec::PieceMemory& memory, std::int64_t first_row) {
      const std::int64_t rows = memory.piece.length().value;
      const std::int64_t kept =
          exec::kept_bytes(model_, memory.piece.recompute, element_bytes()) * rows;
      inputs.push_back(
          behind
              ? detail::rows(numbers(call.output), first_row, rows, model_.hidden)
              : detail::rows(numbers(memory.kept.subspan(static_cast<std::size_t>(layer * kept))),
                             0, rows, model_.hidden));
    });
    return inputs;
  }

  /// Fills the first layer's input from token embeddings or from what was received.
  void enter(const exec::PackCall& call, std::span<const Out> inputs) const {
    std::size_t piece = 0;
    for_each_piece(call, [&](const exec::PieceMemory& memory, std::int64_t first_row) {
      const Out into = inputs[piece++];
      if (stage_of(call).embedding) {
        embedding_forward(into, of(weights_, layout_.tensors[layout_.embedding.front()]),
                          tokens(memory.piece), model_.vocab, model_.hidden);
      } else {
        std::ranges::copy(detail::rows(numbers(call.input), first_row, memory.piece.length().value,
                                       model_.hidden),
                          into.begin());
      }
    });
  }

  void load_gradient(const exec::PackCall& call, Out gradient) const {
    if (call.line + 1 < static_cast<std::int32_t>(stages_.size())) {
      std::ranges::copy(numbers(call.input), gradient.begin());
      return;
    }
    for_each_piece(call, [&](const exec::PieceMemory& memory, std::int64_t first_row) {
      std::ranges::copy(
          numbers(memory.hidden_gradient),
          detail::rows(gradient, first_row, memory.piece.length().value, model_.hidden).begin());
    });
  }

  [[nodiscard]] std::vector<std::vector<PieceRows>> rows_of_segments(const exec::PackCall& call,
                                                                     std::int64_t layer,
                                                                     Arena& arena) const {
    std::vector<std::vector<PieceRows>> segments;
    std::int64_t row = 0;
    for (const exec::SegmentMemory& segment : call.segments) {
      segments.emplace_back();
      for (const exec::PieceMemory& memory : segment.pieces) {
        segments.back().push_back(rows_of(model_, memory, row, layer, arena));
        row += memory.piece.length().value;
      }
    }
    return segments;
  }

  [[nodiscard]] std::vector<SliceAttention> attentions(const exec::PackCall& call,
                                                       std::int64_t layer) const {
    std::vector<SliceAttention> slices;
    for (const exec::SegmentMemory& segment : call.segments) {
      slices.emplace_back(model_, page_tokens_, call, segment, layer, stage_of(call).layers());
    }
    return slices;
  }

  /// Backward of one layer: `gradient` is that of its output and becomes that of its input.
  template <exec::Transport<double> Link>
  void backward_layer(const exec::PackCall& call, std::int64_t model_layer, std::int64_t layer,
                      Out gradient, Arena& arena, Link& link) {
    const LayerTensors<In> weights = layer_of<In>(std::as_const(weights_), model_layer);
    const LayerTensors<Out> gradients = layer_of<Out>(gradients_, model_layer);
    const auto pieces = rows_of_segments(call, layer, arena);
    const std::vector<SliceAttention> attention = attentions(call, layer);
    std::vector<std::vector<PieceGradients>> scratch;
    for (const auto& segment : pieces) {
      scratch.emplace_back();
      for (const PieceRows& rows : segment) {
        const auto take = [&](std::int64_t cols) { return arena.take_zeros(rows.rows, cols); };
        const std::int64_t h = model_.hidden, q = model_.query_width(), f = model_.ffn;
        PieceGradients piece;
        piece.dmid = take(h);
        piece.dnorm = take(h);
        piece.dattention = take(q);
        piece.dquery = take(q);
        piece.dproduct = take(f);
        piece.dgate = take(f);
        piece.dup = take(f);
        piece.dkey = take(model_.key_width());
        piece.dvalue = take(model_.key_width());
        scratch.back().push_back(piece);
      }
    }
    const std::size_t mark = arena.mark();
    for (std::size_t s = 0; s < pieces.size(); ++s) {
      if (call.recompute == Recompute::none) break;
      for (const PieceRows& rows : pieces[s]) {
        normalise_input(model_, weights, rows);
        if (call.recompute != Recompute::light) project_query(model_, weights, rows);
      }
      if (call.recompute == Recompute::full) {
        arena.rewind(mark);
        attention[s].forward(pieces[s], arena, link);
      }
    }
    for (std::size_t s = 0; s < pieces.size(); ++s) {
      for (std::size_t i = 0; i < pieces[s].size(); ++i) {
        const PieceRows& rows = pieces[s][i];
        recompute(model_, weights, rows, call.recompute);
        backward_behind_attention(
            model_, weights, gradients, rows, scratch[s][i],
            detail::rows(In(gradient), rows.first_row, rows.rows, model_.hidden));
      }
    }
    for (std::size_t s = 0; s < pieces.size(); ++s) {
      arena.rewind(mark);
      attention[s].backward(pieces[s], scratch[s], arena, link);
    }
    for (std::size_t s = 0; s < pieces.size(); ++s) {
      for (std::size_t i = 0; i < pieces[s].size(); ++i) {
        const PieceRows& rows = pieces[s][i];
        attention[s].gradients(rows, scratch[s][i].dkey, scratch[s][i].dvalue);
        backward_before_attention(model_, weights, gradients, rows, scratch[s][i],
                                  detail::rows(gradient, rows.first_row, rows.rows, model_.hidden));
      }
    }
  }

  /// Loss and gradients of at most `head_tile` rows. Every stage computes the logits of its part of
  /// the vocabulary; the last one owns hidden states, losses and hidden gradients.
  template <exec::Transport<double> Link>
  void head_tile(const exec::HeadCall& call, std::int64_t first, std::span<const Row> rows,
                 Link& link) {
    const auto n = static_cast<std::int64_t>(rows.size());
    const std::int64_t h = model_.hidden;
    const bool sharded = call.stages.members.size() > 1;
    const VocabularyShard shard = sharded ? vocabulary_shard(model_.vocab, pp_, parallel_.pp)
                                          : VocabularyShard{0, model_.vocab};
    const std::size_t root = call.stages.members.size() - 1;
    Arena arena(numbers(call.workspace));
    const Out normed = arena.take_zeros(n, h), dnormed = arena.take_zeros(n, h),
              dhidden = arena.take_zeros(n, h), inverse = arena.take_zeros(n, 1);
    const Out logits = arena.take(n, shard.size());
    const Out maximum = arena.take(n, 1), sum = arena.take(n, 1), target_logit = arena.take(n, 1);
    const In hidden = is_last() ? detail::rows(numbers(call.hidden), first, n, h) : In{};
    const RowShape norm_shape{n, h};
    if (is_last()) {
      const HeldTensor& norm = layout_.tensors[layout_.final_norm.front()];
      rms_norm_forward(normed, inverse, hidden, of(std::as_const(weights_), norm), norm_shape,
                       model_.norm_eps);
    }
    if (sharded) link.broadcast(call.stages, root, normed);

    std::vector<std::optional<std::int32_t>> targets;
    for (const Row& row : rows) {
      targets.push_back(data_->targets[index(row.memory->piece.sample)][static_cast<std::size_t>(
          row.memory->piece.begin.value + row.row)]);
    }
    const std::size_t head_offset = layout_.tensors[layout_.head.front()].offset;
    const auto head_size = static_cast<std::size_t>(shard.size() * h);
    const In head_weights = std::span(weights_).subspan(head_offset, head_size);
    const LinearShape projection{n, h, shard.size()};
    const LogitShape logit_shape{n, shard.first, shard.size()};
    linear_forward(logits, normed, head_weights, projection);
    logit_maximum(maximum, logits, logit_shape);
    if (sharded) link.all_reduce(call.stages, maximum, exec::Reduction::maximum);
    logit_sums(sum, target_logit, logits, maximum, targets, logit_shape);
    if (sharded) {
      link.all_reduce(call.stages, sum, exec::Reduction::sum);
      link.all_reduce(call.stages, target_logit, exec::Reduction::sum);
    }
    logit_gradients(logits, maximum, sum, targets, logit_shape, scale_);
    linear_backward_input(dnormed, logits, head_weights, projection);
    linear_backward_weight(std::span(gradients_).subspan(head_offset, head_size), logits, normed,
                           projection);
    if (sharded) link.all_reduce(call.stages, dnormed, exec::Reduction::sum);
    if (!is_last()) return;

    const HeldTensor& norm = layout_.tensors[layout_.final_norm.front()];
    rms_norm_backward(dhidden, of(gradients_, norm), dnormed, hidden,
                      of(std::as_const(weights_), norm), inverse, norm_shape);
    for (std::int64_t r = 0; r < n; ++r) {
      const auto at = static_cast<std::size_t>(r);
      if (targets[at]) {
        call.losses[static_cast<std::size_t>(first) + at] =
            maximum[at] + std::log(sum[at]) - target_logit[at];
      }
      std::ranges::copy(
          detail::row(dhidden, r, h),
          detail::row(numbers(rows[at].memory->hidden_gradient), rows[at].row, h).begin());
    }
  }

  AdamW settings_;
  ModelShape model_;
  std::vector<Stage> stages_;
  Parallel parallel_;
  OptimizerState optimizer_ = OptimizerState::sharded;
  Tokens page_tokens_, head_tile_;
  double scale_ = 0;
  std::int32_t dp_ = 0, pp_ = 0;
  ParameterLayout layout_;
  std::vector<double> weights_, gradients_, first_moment_, second_moment_;
  std::int64_t step_ = 0;
  const exec::StepData* data_ = nullptr;
};

static_assert(exec::Backend<Device, exec::ThreadTransport> &&
              !exec::Backend<int, exec::ThreadTransport>);

}  // namespace slimpack::cpu
