// SPDX-License-Identifier: Apache-2.0
// The CPU backend: one device's weights, gradients and optimizer state, and its units of work.
#pragma once

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/plan/memory.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/plan/virtual_stages.hpp"
#include "slimpack/runtime/backend.hpp"
#include "slimpack/runtime/memory_events.hpp"
#include "slimpack/runtime/parameters.hpp"
#include "slimpack/runtime/process_groups.hpp"
#include "slimpack/runtime/thread_transport.hpp"
#include "slimpack/runtime/transport.hpp"
#include "slimpack_cpu/arena.hpp"
#include "slimpack_cpu/exchange.hpp"
#include "slimpack_cpu/layer.hpp"
#include "slimpack_cpu/mathematics.hpp"
#include "slimpack_cpu/ops.hpp"

namespace slimpack::cpu {

/// What one device needs of a transport: sums of numbers, and of the gradient's norm in fp64.
template <class Candidate, class Number>
concept DeviceLink = runtime::Transport<Candidate, Number> && runtime::Transport<Candidate, double>;

/// Both moments of elements [first, first + size) of a named tensor, counted over the whole tensor.
template <std::floating_point Number>
struct OptimizerPart {
  runtime::TensorShape tensor;      ///< whole
  std::size_t first = 0;            ///< element of the whole tensor, counted row by row
  std::span<Number> first_moment;   ///< of `size` elements, in the device's memory
  std::span<Number> second_moment;  ///< of the same elements
};

/// A backend (runtime/backend.hpp) for one device of a plan.
///
///     FastDevice device(plan, 0, seed);             // position in plan.schedule
///     device.reserve(runtime::arena_bytes(plan, program, 0, device.element_bytes(),
///                                         kBufferAlignment));
///     runtime::DeviceRun run(plan, program, data, 0, device, link, observer);
///
/// It lives over any number of steps, whose plans share model, partition and optimizer state with
/// the first; it always computes and stores in `Math::Number`, whatever `bytes_per_element` says.
template <Mathematics Math>
class BasicDevice {
 public:
  /// What is computed in and stored.
  using Number = typename Math::Number;
  /// Numbers that are read.
  using In = InOf<Number>;
  /// Numbers that are written.
  using Out = OutOf<Number>;
  /// What `allocate` gives, from the heap or from the arena.
  using Buffer = cpu::Buffer;

  /// The device at position `device` of `plan.schedule`, with weights drawn from `seed`. Throws
  /// InvalidInput where the plan is none that can be executed or the model's sizes do not fit.
  BasicDevice(const Plan& plan, std::size_t device, std::uint64_t seed, AdamW settings = {})
      : settings_(settings) {
    runtime::check_executable(plan);
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
    layout_ = runtime::layout_of(plan, pp_);
    buckets_ = runtime::BucketQueue(runtime::buckets_of(model, stages_, process_groups(), layout_));
    weights_.resize(layout_.size());
    gradients_.resize(layout_.size());
    for (const runtime::HeldTensor& tensor : layout_.tensors) {
      runtime::TensorShape whole = tensor.shape;
      whole.rows = tensor.whole_rows;
      if constexpr (std::same_as<Number, double>) {
        runtime::initialise(of(weights_, tensor), whole, tensor.first_row, seed);
      } else {
        std::vector<double> drawn(tensor.size());
        runtime::initialise(drawn, whole, tensor.first_row, seed);
        std::ranges::transform(drawn, of(weights_, tensor).begin(),
                               [](double value) { return static_cast<Number>(value); });
      }
    }
    const auto ranks = static_cast<std::size_t>(parallel_.dp);
    const std::size_t part = optimizer_ == OptimizerState::sharded
                                 ? (layout_.size() + ranks - 1) / ranks
                                 : layout_.size();
    first_moment_.resize(part);
    second_moment_.resize(part);
  }

  /// What this device holds, in the order of its memory.
  [[nodiscard]] std::span<const runtime::HeldTensor> tensors() const noexcept {
    return layout_.tensors;
  }
  /// What the device holds of a tensor.
  [[nodiscard]] In weights(const runtime::HeldTensor& tensor) const { return of(weights_, tensor); }
  /// The same, to be written: a loaded checkpoint.
  [[nodiscard]] Out weights(const runtime::HeldTensor& tensor) { return of(weights_, tensor); }
  /// Gradients of the last step in what the device holds of a tensor, summed over ranks and copies.
  [[nodiscard]] In gradients(const runtime::HeldTensor& tensor) const {
    return of(gradients_, tensor);
  }

  // --- optimizer ---

  /// Settings of the optimizer.
  [[nodiscard]] const AdamW& settings() const noexcept { return settings_; }
  /// Changes the optimizer's settings for the steps to come: a schedule sets the learning rate here
  /// before each of them.
  void set_settings(const AdamW& settings) { settings_ = settings; }
  /// How many updates the optimizer has done.
  [[nodiscard]] std::int64_t steps() const noexcept { return steps_; }
  /// Goes on where a saved optimizer stopped. Throws InvalidInput unless steps >= 0.
  void set_steps(std::int64_t steps) {
    require(steps >= 0, "Device: steps must be >= 0", steps);
    steps_ = steps;
  }
  /// Norm of the whole model's gradients in the last step, before clipping.
  [[nodiscard]] double gradient_norm() const noexcept { return gradient_norm_; }
  /// The optimizer state that is here, in the order of memory: all that the device holds, or where
  /// it is sharded its rank's part. The parts of all devices make up every tensor, copies (of
  /// ranks with replicated state, of a tied table) holding equal numbers.
  [[nodiscard]] std::vector<OptimizerPart<Number>> optimizer_state() {
    const auto [first, last] = optimizer_range();
    std::vector<OptimizerPart<Number>> parts;
    for (const runtime::HeldTensor& tensor : layout_.tensors) {
      const std::size_t begin = std::max(first, tensor.offset);
      const std::size_t end = std::min(last, tensor.offset + tensor.size());
      if (begin >= end) continue;
      runtime::TensorShape whole = tensor.shape;
      whole.rows = tensor.whole_rows;
      const auto skipped = static_cast<std::size_t>(tensor.first_row * tensor.shape.cols);
      parts.push_back({std::move(whole), skipped + begin - tensor.offset,
                       std::span(first_moment_).subspan(begin - first, end - begin),
                       std::span(second_moment_).subspan(begin - first, end - begin)});
    }
    return parts;
  }

  // --- memory ---

  /// From now on buffers come from one arena of at least so many bytes, kept over all steps; see
  /// runtime::arena_bytes. A page of it that neither a buffer nor `touch` reaches stays untouched.
  /// No buffer may be held. Throws InvalidInput unless capacity >= 0.
  void reserve(Bytes capacity) { arena_.reserve(capacity); }
  /// Touches the first so many bytes of the arena, where there is one: see BufferArena.
  void touch(Bytes bytes) noexcept {
    if (arena_.get() != nullptr) arena_.get()->touch(bytes);
  }
  /// The arena, if there is one.
  [[nodiscard]] const BufferArena* arena() const noexcept { return arena_.get(); }

  // --- runtime::Backend ---

  /// Bytes of one number of `Math`, for all sorts.
  [[nodiscard]] ElementBytes element_bytes() const noexcept { return element_bytes_of<Number>(); }
  /// Weights, gradients and optimizer state of this device.
  [[nodiscard]] StaticBytes static_bytes() const noexcept {
    const auto size = [](std::size_t elements) {
      return Bytes{static_cast<std::int64_t>(elements * sizeof(Number))};
    };
    return {size(weights_.size()), size(gradients_.size()),
            size(first_moment_.size() + second_moment_.size())};
  }
  /// A buffer from the arena, if there is one, else from the heap.
  [[nodiscard]] Buffer allocate(Bytes bytes) {
    return arena_.get() != nullptr ? Buffer(*arena_.get(), bytes) : Buffer(bytes);
  }
  /// The memory of a buffer.
  [[nodiscard]] std::span<std::byte> bytes(const Buffer& buffer) const { return buffer.bytes(); }
  /// Makes all bytes zero.
  void clear(Buffer& buffer) { std::ranges::fill(buffer.bytes(), std::byte{0}); }

  /// Takes the data of the plan's step, which must outlive it, and clears the gradients. Throws
  /// InvalidInput if the plan's model or partition is not that of the first.
  void begin_step(const Plan& plan, const runtime::StepData& data) {
    require(plan.model == model_ && plan.stages == stages_ && plan.parallel.dp == parallel_.dp &&
                plan.parallel.pp == parallel_.pp && plan.parallel.head == parallel_.head &&
                plan.memory.optimizer == optimizer_,
            "Device: model and partition must stay from step to step");
    adopt(plan);
    buckets_.begin_step();
    data_ = &data;
    std::ranges::fill(gradients_, Number{0});
  }

  /// F of a pack on a virtual stage.
  template <DeviceLink<Number> Link>
  void forward(const runtime::PackCall& call, Link& link) {
    math_.forget();
    Workspace<Number> workspace(numbers<Number>(call.workspace));
    const Stage& stage = stage_of(call);
    std::vector<Out> next = layer_inputs(call, 0);
    enter(call, next);
    for (std::int64_t layer = 0; layer < stage.layers(); ++layer) {
      workspace.rewind(0);
      const Layer<Math> work(math_, model_,
                             layer_of<In>(std::as_const(weights_), stage.first_layer + layer));
      const std::vector<PieceRows<Number>> pieces = rows_of_pieces(call, layer, workspace);
      const std::vector<KeyRows<Number>> own_keys = key_rows(call, Pass::forward, workspace);
      const std::vector<Out> keys = by_part(call, own_keys, &KeyRows<Number>::key);
      const std::vector<Out> values = by_part(call, own_keys, &KeyRows<Number>::value);
      for_each_group(Pieces(pieces), [&](std::size_t first, std::size_t count) {
        const Pieces group = Pieces(pieces).subspan(first, count);
        work.normalise_input(group);
        work.project_query(group);
        work.project_key_value(group, std::span(keys).subspan(first, count),
                               std::span(values).subspan(first, count));
      });
      std::size_t piece = 0;
      for_each_slice(call, layer, pieces, own_keys, [&](const auto& slice, Pieces own) {
        for (const auto& rows : own) {
          slice.store(rows, keys[piece], values[piece]);
          ++piece;
        }
      });
      const std::size_t mark = workspace.mark();
      for_each_slice(call, layer, pieces, own_keys, [&](const auto& slice, Pieces own) {
        workspace.rewind(mark);
        slice.forward(own, workspace, link);
      });
      next = layer_inputs(call, layer + 1);
      for_each_group(Pieces(pieces), [&](std::size_t first, std::size_t count) {
        work.finish(Pieces(pieces).subspan(first, count), std::span(next).subspan(first, count));
      });
    }
  }

  /// B of a pack on a virtual stage. Throws std::runtime_error naming samples where the gradient of
  /// a token is not finite.
  template <DeviceLink<Number> Link>
  void backward(const runtime::PackCall& call, Link& link) {
    math_.forget();
    Workspace<Number> workspace(numbers<Number>(call.workspace));
    const Stage& stage = stage_of(call);
    const Out gradient = workspace.take(call.rows.value, model_.hidden);
    load_gradient(call, gradient);
    const std::size_t mark = workspace.mark();
    for (std::int64_t layer = stage.layers(); layer-- > 0;) {
      workspace.rewind(mark);
      backward_layer(call, stage.first_layer + layer, layer, gradient, workspace, link);
      if (call.releases) buckets_.pass(stage.first_layer + layer, queue_on(link));
    }
    check_gradient(call, gradient);
    if (!call.output.empty()) {
      std::ranges::copy(gradient, numbers<Number>(call.output).begin());
    } else if (stage.embedding) {
      for_each_piece(call, [&](const runtime::PieceMemory& memory, std::int64_t first_row) {
        math_.embedding_backward(
            of(gradients_, layout_.tensors[layout_.embedding.front()]),
            detail::rows(In(gradient), first_row, memory.piece.length().value, model_.hidden),
            tokens(memory.piece), model_.vocab, model_.hidden);
      });
    }
  }

  /// W of a pack on a virtual stage: the gradients of matrices of rows that B has left apart.
  template <DeviceLink<Number> Link>
  void weight(const runtime::PackCall& call, Link& link) {
    math_.forget();
    const Stage& stage = stage_of(call);
    for (std::int64_t layer = stage.layers(); layer-- > 0;) {
      const std::int64_t model_layer = stage.first_layer + layer;
      const Layer<Math> work(math_, model_, layer_of<In>(std::as_const(weights_), model_layer));
      work.add_weight_gradients(layer_of<Out>(gradients_, model_layer), weight_rows(call, layer));
      if (call.releases) buckets_.pass(model_layer, queue_on(link));
    }
  }

  /// H of a pack, tile by tile. Throws std::runtime_error naming samples whose loss is not finite.
  template <DeviceLink<Number> Link>
  void head(const runtime::HeadCall& call, Link& link) {
    math_.forget();
    std::vector<Row> rows;
    for (const runtime::PieceMemory& memory : call.pieces) {
      for (std::int64_t r = 0; r < memory.piece.length().value; ++r) rows.push_back({&memory, r});
    }
    for (std::int64_t first = 0; first < call.rows.value; first += head_tile_.value) {
      const std::int64_t count = std::min(head_tile_.value, call.rows.value - first);
      head_tile(
          call, first,
          std::span(rows).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count)),
          link);
    }
    check_losses(call);
  }

  /// R of a chunk: queues the sums that no B has queued.
  template <DeviceLink<Number> Link>
  void reduce(std::int32_t chunk, Link& link) {
    buckets_.reduce(chunk, queue_on(link));
  }

  /// O: awaits all sums, clips the gradients by their norm, updates the weights. Throws
  /// std::runtime_error naming the step, with all weights as they were, if the norm is not finite;
  /// all devices find the same norm. Where a loss or a token's gradient is not finite, `head` and
  /// `backward` have named its sample before.
  template <DeviceLink<Number> Link>
  void optimize(Link& link) {
    const runtime::StageProcessGroups process_groups = this->process_groups();
    for (const runtime::Bucket& bucket : buckets_.all())
      link.await_sum(bucket.process_group, bucket.tag);
    // Every rank adds up its own stages; the table counts on stage 0 only.
    double sum = math_.squares(std::span(gradients_).subspan(pp_ == 0 ? 0 : layout_.table));
    if (parallel_.pp > 1) {
      link.all_reduce(process_groups.stages(), std::span(&sum, 1), runtime::Reduction::sum);
    }
    gradient_norm_ = std::sqrt(sum);
    if (!std::isfinite(gradient_norm_)) throw_norm_not_finite(gradient_norm_, link);
    ++steps_;
    const auto [first, last] = optimizer_range();
    const std::size_t count = last - first;
    math_.adamw_step(std::span(weights_).subspan(first, count),
                     std::span(first_moment_).first(count), std::span(second_moment_).first(count),
                     std::span(gradients_).subspan(first, count), settings_, steps_,
                     clipping_factor(settings_, gradient_norm_));
    if (count < layout_.size())
      link.all_gather(process_groups.ranks(), std::span(weights_), first, last);
  }

 private:
  struct Row {
    const runtime::PieceMemory* memory;
    std::int64_t row;
  };
  using Pieces = std::span<const PieceRows<Number>>;

  static Out of(std::vector<Number>& values, const runtime::HeldTensor& tensor) {
    return std::span(values).subspan(tensor.offset, tensor.size());
  }
  static In of(const std::vector<Number>& values, const runtime::HeldTensor& tensor) {
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

  [[nodiscard]] bool is_last() const { return pp_ + 1 == parallel_.pp; }
  [[nodiscard]] runtime::StageProcessGroups process_groups() const { return {parallel_, dp_, pp_}; }
  template <class Link>
  [[nodiscard]] auto queue_on(Link& link) {
    return [&](const runtime::Bucket& bucket) {
      link.queue_sum(bucket.process_group, bucket.tag,
                     std::span(gradients_).subspan(bucket.begin, bucket.size));
    };
  }

  /// Elements [first, last) of the device's memory whose optimizer state is here.
  [[nodiscard]] std::pair<std::size_t, std::size_t> optimizer_range() const {
    const std::size_t size = layout_.size();
    if (optimizer_ == OptimizerState::replicated) return {0, size};
    const std::size_t first = std::min(size, first_moment_.size() * static_cast<std::size_t>(dp_));
    return {first, std::min(size, first + first_moment_.size())};
  }

  void check_losses(const runtime::HeadCall& call) const {
    if (call.losses.empty()) return;
    const std::string samples = runtime::samples_not_finite(call.pieces, call.losses);
    if (samples.empty()) return;
    throw not_finite("the loss", " in samples " + samples);
  }

  /// Throws where the gradient of the stage's input is not finite: it holds what the gradients of
  /// all rows in the stage's layers have come to.
  void check_gradient(const runtime::PackCall& call, In gradient) const {
    runtime::SampleList samples;
    for_each_piece(call, [&](const runtime::PieceMemory& memory, std::int64_t first_row) {
      const In rows = detail::rows(gradient, first_row, memory.piece.length().value, model_.hidden);
      if (!detail::all_finite(rows)) samples.add(memory.piece.sample);
    });
    if (!samples.text().empty()) throw not_finite("the gradient", " in samples " + samples.text());
  }

  /// Throws for a norm that is not finite although the gradients of all tokens were: a sum over
  /// tokens is not. `norm` is that of all stages, of which one at least can name the tensor.
  template <class Link>
  [[noreturn]] void throw_norm_not_finite(double norm, Link& link) const {
    for (const runtime::HeldTensor& tensor : layout_.tensors) {
      if (detail::all_finite(gradients(tensor))) continue;
      throw not_finite("the gradient", " in '" + tensor.shape.name +
                                           "', where the MicroPacks' gradients are added up");
    }
    // A stage that can say more never comes here.
    if (parallel_.pp > 1) {
      link.all_reduce(process_groups().stages(), std::span(&norm, 1), runtime::Reduction::sum);
    }
    throw not_finite("the norm of the gradients", "");
  }

  [[nodiscard]] std::runtime_error not_finite(const std::string& what,
                                              const std::string& where) const {
    return std::runtime_error(what + " of step " + std::to_string(steps_ + 1) + " is not finite" +
                              where);
  }

  [[nodiscard]] const Stage& stage_of(const runtime::PackCall& call) const {
    return stages_[static_cast<std::size_t>(call.virtual_stage)];
  }

  template <class Span, class Values>
    requires std::same_as<std::remove_const_t<Values>, std::vector<Number>>
  [[nodiscard]] LayerTensors<Span> layer_of(Values& values, std::int64_t layer) const {
    const std::size_t first = layout_.layer[static_cast<std::size_t>(layer)];
    const auto held = [&](runtime::LayerTensor tensor) -> Span {
      return of(values, layout_.tensors[first + static_cast<std::size_t>(tensor)]);
    };
    return {held(runtime::LayerTensor::input_norm), held(runtime::LayerTensor::query),
            held(runtime::LayerTensor::key),        held(runtime::LayerTensor::value),
            held(runtime::LayerTensor::output),     held(runtime::LayerTensor::mid_norm),
            held(runtime::LayerTensor::gate),       held(runtime::LayerTensor::up),
            held(runtime::LayerTensor::down)};
  }

  [[nodiscard]] std::span<const std::int32_t> tokens(const runtime::Piece& piece) const {
    return std::span(data_->tokens[index(piece.sample)])
        .subspan(static_cast<std::size_t>(piece.begin.value),
                 static_cast<std::size_t>(piece.length().value));
  }

  template <class Call>
    requires std::same_as<Call, runtime::PackCall> || std::same_as<Call, runtime::HeadCall>
  static std::span<std::byte> hidden_gradient_of(const Call& call,
                                                 const runtime::PieceMemory& piece) {
    const runtime::BlockMemory& block = call.blocks[piece.block];
    return part_of(block.hidden_gradient, block.rows, piece);
  }

  /// Calls visit(memory, first row in the pack).
  template <std::invocable<const runtime::PieceMemory&, std::int64_t> Visit>
  static void for_each_piece(const runtime::PackCall& call, Visit visit) {
    std::int64_t row = 0;
    for (const runtime::SegmentMemory& segment : call.segments) {
      for (const runtime::PieceMemory& memory : segment.pieces) {
        visit(memory, row);
        row += memory.piece.length().value;
      }
    }
  }

  /// Where the input of layer `layer` of this stage belongs, by part of a piece: what is kept, or
  /// behind the last layer the unit's output.
  [[nodiscard]] std::vector<Out> layer_inputs(const runtime::PackCall& call,
                                              std::int64_t layer) const {
    std::vector<Out> inputs;
    const bool behind = layer == stage_of(call).layers();
    for_each_piece(call, [&](const runtime::PieceMemory& memory, std::int64_t first_row) {
      const std::int64_t rows = memory.piece.length().value;
      const std::int64_t kept =
          rows *
          kept_bytes(model_, element_bytes())[static_cast<std::size_t>(memory.piece.recompute)];
      const Out whole =
          behind ? detail::rows(numbers<Number>(call.output), first_row, rows, model_.hidden)
                 : numbers<Number>(
                       kept_of(call, memory).subspan(static_cast<std::size_t>(layer * kept)));
      for_each_part(rows, [&](std::int64_t i, std::int64_t count) {
        inputs.push_back(detail::rows(whole, i, count, model_.hidden));
      });
    });
    return inputs;
  }

  /// Fills the first layer's input from token embeddings or from what was received.
  void enter(const runtime::PackCall& call, std::span<const Out> inputs) const {
    std::size_t part = 0;
    for_each_piece(call, [&](const runtime::PieceMemory& memory, std::int64_t first_row) {
      for_each_part(memory.piece.length().value, [&](std::int64_t i, std::int64_t count) {
        const Out into = inputs[part++];
        if (stage_of(call).embedding) {
          Math::embedding_forward(
              into, of(weights_, layout_.tensors[layout_.embedding.front()]),
              tokens(memory.piece)
                  .subspan(static_cast<std::size_t>(i), static_cast<std::size_t>(count)),
              model_.vocab, model_.hidden);
        } else {
          std::ranges::copy(
              detail::rows(numbers<Number>(call.input), first_row + i, count, model_.hidden),
              into.begin());
        }
      });
    });
  }

  void load_gradient(const runtime::PackCall& call, Out gradient) const {
    if (call.virtual_stage + 1 < static_cast<std::int32_t>(stages_.size())) {
      std::ranges::copy(numbers<Number>(call.input), gradient.begin());
      return;
    }
    for_each_piece(call, [&](const runtime::PieceMemory& memory, std::int64_t first_row) {
      std::ranges::copy(
          numbers<Number>(hidden_gradient_of(call, memory)),
          detail::rows(gradient, first_row, memory.piece.length().value, model_.hidden).begin());
    });
  }

  /// The pack's pieces, in parts of at most a group.
  [[nodiscard]] std::vector<PieceRows<Number>> rows_of_pieces(const runtime::PackCall& call,
                                                              std::int64_t layer,
                                                              Workspace<Number>& workspace) const {
    std::vector<PieceRows<Number>> pieces;
    for_each_piece(call, [&](const runtime::PieceMemory& memory, std::int64_t first_row) {
      const auto whole = rows_of(model_, call, memory, first_row, layer, workspace);
      for_each_part(whole.rows, [&](std::int64_t i, std::int64_t count) {
        pieces.push_back(part_of(whole, i, count));
      });
    });
    return pieces;
  }

  /// What W needs of the pack's pieces, in the parts of `rows_of_pieces`.
  [[nodiscard]] std::vector<WeightRows<Number>> weight_rows(const runtime::PackCall& call,
                                                            std::int64_t layer) const {
    std::vector<WeightRows<Number>> rows;
    for_each_piece(call, [&](const runtime::PieceMemory& memory, std::int64_t) {
      add_weight_rows(rows, model_, memory, layer);
    });
    return rows;
  }

  /// By segment of the call: keys and values in F, and in B where no pages hold them; their
  /// gradients in B.
  [[nodiscard]] std::vector<KeyRows<Number>> key_rows(const runtime::PackCall& call, Pass pass,
                                                      Workspace<Number>& workspace) const {
    std::vector<KeyRows<Number>> all;
    for (const runtime::SegmentMemory& segment : call.segments) {
      const auto take = [&] { return workspace.take(segment.rows.value, model_.key_width()); };
      KeyRows<Number>& rows = all.emplace_back();
      if (pass == Pass::backward) {
        rows.dkey = take();
        rows.dvalue = take();
      }
      if (pass == Pass::forward || !segment.kept.pages) {
        rows.key = take();
        rows.value = take();
      }
    }
    return all;
  }
  /// One of the matrices of `rows` by part of a piece; empty where it is.
  [[nodiscard]] std::vector<Out> by_part(const runtime::PackCall& call,
                                         std::span<const KeyRows<Number>> rows,
                                         Out KeyRows<Number>::* matrix) const {
    std::vector<Out> parts;
    for (std::size_t i = 0; i < call.segments.size(); ++i) {
      const Out whole = rows[i].*matrix;
      std::int64_t row = 0;
      for (const runtime::PieceMemory& memory : call.segments[i].pieces) {
        for_each_part(memory.piece.length().value, [&](std::int64_t, std::int64_t count) {
          parts.push_back(whole.empty() ? whole
                                        : detail::rows(whole, row, count, model_.key_width()));
          row += count;
        });
      }
    }
    return parts;
  }

  /// Calls visit(attention of the slice, its pieces) for every segment of the call; `keys` has an
  /// entry for each.
  template <class Visit>
    requires std::invocable<Visit&, const SliceAttention<Math>&, Pieces>
  void for_each_slice(const runtime::PackCall& call, std::int64_t layer, Pieces pieces,
                      std::span<const KeyRows<Number>> keys, Visit visit) {
    for (std::size_t i = 0; i < call.segments.size(); ++i) {
      const runtime::SegmentMemory& segment = call.segments[i];
      const SliceAttention<Math> slice(math_, model_, page_tokens_, call, segment, keys[i], layer,
                                       stage_of(call).layers());
      std::size_t parts = 0;
      for (const runtime::PieceMemory& memory : segment.pieces) {
        for_each_part(memory.piece.length().value, [&](std::int64_t, std::int64_t) { ++parts; });
      }
      visit(slice, pieces.first(parts));
      pieces = pieces.subspan(parts);
    }
  }

  /// Backward of one layer: `gradient` is that of its output and becomes that of its input.
  template <DeviceLink<Number> Link>
  void backward_layer(const runtime::PackCall& call, std::int64_t model_layer, std::int64_t layer,
                      Out gradient, Workspace<Number>& workspace, Link& link) {
    const Layer<Math> work(math_, model_, layer_of<In>(std::as_const(weights_), model_layer));
    const LayerTensors<Out> gradients = layer_of<Out>(gradients_, model_layer);
    const std::vector<PieceRows<Number>> pieces = rows_of_pieces(call, layer, workspace);
    const std::vector<KeyRows<Number>> own_keys = key_rows(call, Pass::backward, workspace);
    const std::vector<Out> keys = by_part(call, own_keys, &KeyRows<Number>::key);
    const std::vector<Out> values = by_part(call, own_keys, &KeyRows<Number>::value);
    const std::vector<Out> dkeys = by_part(call, own_keys, &KeyRows<Number>::dkey);
    const std::vector<Out> dvalues = by_part(call, own_keys, &KeyRows<Number>::dvalue);
    std::vector<PieceGradients<Number>> scratch;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const auto& rows = pieces[i];
      const auto take = [&](std::int64_t cols) { return workspace.take(rows.rows, cols); };
      const std::int64_t h = model_.hidden, q = model_.query_width(), f = model_.ffn;
      PieceGradients<Number>& piece = scratch.emplace_back();
      piece.dmid = take(h);
      piece.dnorm = take(h);
      piece.dattention = take(q);
      piece.dquery = take(q);
      piece.dproduct = take(f);
      piece.dgate = take(f);
      piece.dup = take(f);
      piece.dkey = dkeys[i];
      piece.dvalue = dvalues[i];
    }
    std::vector<WeightRows<Number>> apart;
    if (call.weights == WeightGradients::apart) apart = weight_rows(call, layer);
    const std::size_t mark = workspace.mark();
    const auto by_group = [&](const auto& visit) {
      for_each_group(Pieces(pieces), [&](std::size_t first, std::size_t count) {
        const std::span<const WeightRows<Number>> all(apart);
        visit(Pieces(pieces).subspan(first, count),
              std::span(std::as_const(scratch)).subspan(first, count),
              all.empty() ? all : all.subspan(first, count));
      });
    };
    for_each_group(Pieces(pieces), [&](std::size_t first, std::size_t count) {
      const Pieces group = Pieces(pieces).subspan(first, count);
      work.recompute_before(group, call.recompute);
      work.project_key_value(group, std::span(keys).subspan(first, count),
                             std::span(values).subspan(first, count));
    });
    if (call.recompute == Recompute::full) {
      for_each_slice(call, layer, pieces, own_keys, [&](const auto& slice, Pieces own) {
        workspace.rewind(mark);
        slice.forward(own, workspace, link);
      });
    }
    by_group([&](Pieces group, auto group_scratch, auto group_apart) {
      work.recompute_behind(group, call.recompute);
      work.backward_behind_attention(gradients, group, group_scratch, In(gradient), group_apart);
    });
    std::size_t piece = 0;
    for_each_slice(call, layer, pieces, own_keys, [&](const auto& slice, Pieces own) {
      workspace.rewind(mark);
      const auto own_scratch = std::span(std::as_const(scratch)).subspan(piece, own.size());
      slice.backward(own, own_scratch, workspace, link);
      for (std::size_t i = 0; i < own.size(); ++i) {
        slice.gradients(own[i], own_scratch[i].dkey, own_scratch[i].dvalue);
      }
      piece += own.size();
    });
    by_group([&](Pieces group, auto group_scratch, auto group_apart) {
      work.backward_before_attention(gradients, group, group_scratch, gradient, group_apart);
    });
  }

  /// Loss and gradients of at most `head_tile` rows. Every stage computes the logits of its part of
  /// the vocabulary; the last one owns hidden states, losses and hidden gradients.
  template <DeviceLink<Number> Link>
  void head_tile(const runtime::HeadCall& call, std::int64_t first, std::span<const Row> rows,
                 Link& link) {
    const auto n = static_cast<std::int64_t>(rows.size());
    const std::int64_t h = model_.hidden;
    const bool sharded = call.stages.members.size() > 1;
    const VocabularyShard shard = sharded ? vocabulary_shard(model_.vocab, pp_, parallel_.pp)
                                          : VocabularyShard{0, model_.vocab};
    const std::size_t root = call.stages.members.size() - 1;
    Workspace<Number> workspace(numbers<Number>(call.workspace));
    const Out normed = workspace.take_zeros(n, h), dnormed = workspace.take_zeros(n, h),
              dhidden = workspace.take_zeros(n, h), inverse = workspace.take_zeros(n, 1);
    const Out logits = workspace.take(n, shard.size());
    const Out maximum = workspace.take(n, 1), sum = workspace.take(n, 1),
              target_logit = workspace.take(n, 1);
    const In hidden = is_last() ? detail::rows(numbers<Number>(call.hidden), first, n, h) : In{};
    const RowShape norm_shape{n, h};
    if (is_last()) {
      const runtime::HeldTensor& norm = layout_.tensors[layout_.final_norm.front()];
      math_.rms_norm_forward(normed, inverse, hidden, of(std::as_const(weights_), norm), norm_shape,
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
    math_.linear_forward(logits, normed, head_weights, projection);
    math_.logit_maximum(maximum, logits, logit_shape);
    if (sharded) link.all_reduce(call.stages, maximum, runtime::Reduction::maximum);
    math_.logit_sums(sum, target_logit, logits, maximum, targets, logit_shape);
    if (sharded) {
      link.all_reduce(call.stages, sum, runtime::Reduction::sum);
      link.all_reduce(call.stages, target_logit, runtime::Reduction::sum);
    }
    math_.logit_gradients(logits, maximum, sum, targets, logit_shape, scale_);
    math_.linear_backward_input(dnormed, logits, head_weights, projection);
    math_.linear_backward_weight(std::span(gradients_).subspan(head_offset, head_size), logits,
                                 normed, projection);
    if (sharded) link.all_reduce(call.stages, dnormed, runtime::Reduction::sum);
    if (!is_last()) return;

    const runtime::HeldTensor& norm = layout_.tensors[layout_.final_norm.front()];
    math_.rms_norm_backward(dhidden, of(gradients_, norm), dnormed, hidden,
                            of(std::as_const(weights_), norm), inverse, norm_shape);
    for (std::int64_t r = 0; r < n; ++r) {
      const auto i = static_cast<std::size_t>(r);
      if (targets[i]) {
        call.losses[static_cast<std::size_t>(first) + i] = static_cast<double>(maximum[i]) +
                                                           std::log(static_cast<double>(sum[i])) -
                                                           static_cast<double>(target_logit[i]);
      }
      std::ranges::copy(
          detail::row(dhidden, r, h),
          detail::row(numbers<Number>(hidden_gradient_of(call, *rows[i].memory)), rows[i].row, h)
              .begin());
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
  runtime::ParameterLayout layout_;
  runtime::BucketQueue buckets_;
  std::vector<Number> weights_, gradients_, first_moment_, second_moment_;
  std::int64_t steps_ = 0;
  double gradient_norm_ = 0;
  ArenaOwner arena_;
  Math math_;
  const runtime::StepData* data_ = nullptr;
};

/// The plain device in fp64: slow, and the oracle of every other backend.
using Device = BasicDevice<PlainMath>;
/// The device at speed, in fp32.
using FastDevice = BasicDevice<FastMath>;

static_assert(runtime::Backend<Device, runtime::ThreadTransport> &&
              runtime::Backend<FastDevice, runtime::ThreadTransport> &&
              !runtime::Backend<int, runtime::ThreadTransport>);

}  // namespace slimpack::cpu
