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
#include "slimpack/plan/tensor_rows.hpp"
#include "slimpack/plan/virtual_stages.hpp"
#include "slimpack/runtime/backend.hpp"
#include "slimpack/runtime/memory_events.hpp"
#include "slimpack/runtime/parameters.hpp"
#include "slimpack/runtime/process_groups.hpp"
#include "slimpack/runtime/thread_transport.hpp"
#include "slimpack/runtime/transport.hpp"
#include "slimpack/runtime/weight_units.hpp"
#include "slimpack_cpu/arena.hpp"
#include "slimpack_cpu/exchange.hpp"
#include "slimpack_cpu/layer.hpp"
#include "slimpack_cpu/mathematics.hpp"
#include "slimpack_cpu/ops.hpp"
#include "slimpack_cpu/tensor.hpp"
#include "slimpack_cpu/weight_store.hpp"
#include "slimpack_cpu/workspace.hpp"

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
///     FastDevice device(plan, 0, seed);             // number among those of the plan
///     device.reserve(runtime::arena_bytes(plan, program, 0, device.element_bytes(),
///                                         kBufferAlignment));
///     runtime::DeviceRun run(plan, program, data, 0, device, link, observer);
///
/// It lives over any number of steps, whose plans have model, partition and what ranks share of
/// weights and optimizer state from the first; it always computes and stores in `Math::Number`,
/// whatever `bytes_per_element` says.
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

  /// Device `device` of the plan (`device_number`), with weights drawn from `seed`. Throws
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
    require(device < device_count(plan), "Device: device must be one of the plan",
            static_cast<std::int64_t>(device));
    const auto parts = static_cast<std::size_t>(plan.parallel.tp);
    dp_ = plan.schedule[device / parts].dp;
    pp_ = plan.schedule[device / parts].pp;
    tp_ = static_cast<std::int32_t>(device % parts);
    adopt(plan);
    layout_ = runtime::layout_of(plan, pp_, tp_);
    store_ = WeightStore<Number>(layout_, process_groups().ranks(), plan.memory.weights);
    if (!shares_weights()) {  // else B sums gradients itself, layer by layer
      buckets_ =
          runtime::BucketQueue(runtime::buckets_of(model, stages_, process_groups(), layout_));
    }
    store_.draw(layout_, seed);
    const std::size_t part =
        optimizer_ == OptimizerState::sharded
            ? runtime::elements_of_rank(layout_.size(), static_cast<std::size_t>(parallel_.dp))
            : layout_.size();
    first_moment_.resize(part);
    second_moment_.resize(part);
  }

  /// What this device holds, in the order of its memory.
  [[nodiscard]] std::span<const runtime::HeldTensor> tensors() const noexcept {
    return layout_.tensors;
  }
  /// Whether the data-parallel ranks share weights and gradients, of which each owns a part.
  [[nodiscard]] bool shares_weights() const noexcept { return store_.shared(); }
  /// Elements of the held tensor whose weights and gradients are here: all, or where ranks share
  /// them what this rank owns, which may be none.
  [[nodiscard]] runtime::ElementRange here(const runtime::HeldTensor& tensor) const {
    return store_.own_of(tensor).from(tensor.offset);
  }
  /// The weights that are `here`.
  [[nodiscard]] In weights(const runtime::HeldTensor& tensor) const {
    return store_.part(store_.weights(), store_.own_of(tensor));
  }
  /// The same, to be written: a loaded checkpoint.
  [[nodiscard]] Out weights(const runtime::HeldTensor& tensor) {
    return store_.part(store_.weights(), store_.own_of(tensor));
  }
  /// Gradients of the last step in what is `here`, summed over ranks and copies.
  [[nodiscard]] In gradients(const runtime::HeldTensor& tensor) const {
    return store_.part(store_.gradients(), store_.own_of(tensor));
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
  /// it is sharded its rank's part, each part elements that follow each other in their tensor: of
  /// matrices that tensor-parallel devices hold by columns one a row. The parts of all devices make
  /// up every tensor, copies (of ranks with replicated state, of a tied table, of norms on
  /// tensor-parallel devices) holding equal numbers.
  [[nodiscard]] std::vector<OptimizerPart<Number>> optimizer_state() {
    const runtime::ElementRange range = optimizer_range();
    std::vector<OptimizerPart<Number>> parts;
    for (const runtime::HeldTensor& tensor : layout_.tensors) {
      const runtime::ElementRange part =
          range.within(runtime::elements_of(tensor)).from(tensor.offset);
      tensor.for_each_run(
          part.begin, part.end, [&](std::size_t element, std::size_t i, std::size_t count) {
            const std::size_t here = tensor.offset + i - range.begin;
            parts.push_back({tensor.whole(), element, std::span(first_moment_).subspan(here, count),
                             std::span(second_moment_).subspan(here, count)});
          });
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
    const std::size_t moments = (first_moment_.size() + second_moment_.size()) * sizeof(Number);
    return {store_.weight_bytes(), store_.gradient_bytes(),
            Bytes{static_cast<std::int64_t>(moments)}};
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
  /// InvalidInput if the plan's model or partition, or what ranks share, is not that of the first.
  void begin_step(const Plan& plan, const runtime::StepData& data) {
    require(plan.model == model_ && plan.stages == stages_ && plan.parallel.dp == parallel_.dp &&
                plan.parallel.pp == parallel_.pp && plan.parallel.tp == parallel_.tp &&
                plan.parallel.head == parallel_.head && plan.memory.optimizer == optimizer_ &&
                (plan.memory.weights == WeightState::sharded) == shares_weights(),
            "Device: model and partition must stay from step to step");
    adopt(plan);
    buckets_.begin_step();
    data_ = &data;
    store_.clear_gradients();
  }

  /// F of a pack on a virtual stage.
  template <DeviceLink<Number> Link>
  void forward(const runtime::PackCall& call, Link& link) {
    Workspace<Number> workspace(numbers<Number>(call.workspace));
    auto tensor = tensor_group(call, workspace, link);
    const std::size_t unit = workspace.mark();
    const Stage& stage = stage_of(call);
    std::vector<Out> next = layer_inputs(call, 0);
    enter(call, next, tensor, link);
    for (std::int64_t layer = 0; layer < stage.layers(); ++layer) {
      workspace.rewind(unit);
      const Layer<Math, Link> work = whole_layer(stage.first_layer + layer, tensor, link);
      const std::vector<PieceRows<Number>> pieces = rows_of_pieces(call, layer, workspace);
      const std::vector<SegmentKeys<Number>> all_keys =
          segment_keys(call, Pass::forward, workspace);
      const std::vector<Out> keys = by_part(call, all_keys, &KeyRows<Number>::key);
      const std::vector<Out> values = by_part(call, all_keys, &KeyRows<Number>::value);
      by_group(pieces, [&](std::size_t first, std::size_t count) {
        const Pieces group = Pieces(pieces).subspan(first, count);
        work.normalise_input(group);
        work.project(group, std::span(keys).subspan(first, count),
                     std::span(values).subspan(first, count));
      });
      std::size_t piece = 0;
      for_each_slice(call, layer, pieces, all_keys, [&](const auto& slice, Pieces own) {
        for (const auto& rows : own) {
          slice.store(rows, keys[piece], values[piece]);
          ++piece;
        }
      });
      const std::size_t mark = workspace.mark();
      for_each_slice(call, layer, pieces, all_keys, [&](const auto& slice, Pieces own) {
        workspace.rewind(mark);
        slice.forward(own, workspace, link);
      });
      next = layer_inputs(call, layer + 1);
      by_group(pieces, [&](std::size_t first, std::size_t count) {
        work.finish(Pieces(pieces).subspan(first, count), std::span(next).subspan(first, count));
      });
    }
  }

  /// B of a pack on a virtual stage. Throws std::runtime_error naming samples where the gradient of
  /// a token is not finite.
  template <DeviceLink<Number> Link>
  void backward(const runtime::PackCall& call, Link& link) {
    Workspace<Number> workspace(numbers<Number>(call.workspace));
    auto tensor = tensor_group(call, workspace, link);
    const Stage& stage = stage_of(call);
    const Out gradient = workspace.take(own_rows(call), model_.hidden);
    load_gradient(call, gradient);
    const std::size_t mark = workspace.mark();
    for (std::int64_t layer = stage.layers(); layer-- > 0;) {
      workspace.rewind(mark);
      backward_layer(call, stage.first_layer + layer, layer, gradient, workspace, tensor, link);
      if (call.releases) buckets_.pass(stage.first_layer + layer, queue_on(link));
    }
    check_gradient(call, gradient);
    if (!call.output.empty()) {
      std::ranges::copy(gradient, numbers<Number>(call.output).begin());
    } else if (stage.embedding) {
      embedding_backward(call, gradient, tensor, link);
    }
  }

  /// W of a pack on a virtual stage: the gradients of matrices of rows that B has left apart.
  template <DeviceLink<Number> Link>
  void weight(const runtime::PackCall& call, Link& link) {
    Workspace<Number> workspace(numbers<Number>(call.workspace));
    auto tensor = tensor_group(call, workspace, link);
    const Stage& stage = stage_of(call);
    const std::size_t mark = workspace.mark();
    for (std::int64_t layer = stage.layers(); layer-- > 0;) {
      workspace.rewind(mark);
      const std::int64_t model_layer = stage.first_layer + layer;
      const Layer<Math, Link> work = whole_layer(model_layer, tensor, link);
      const LayerTensors<Out> gradients = begin_gradients(model_layer);
      std::vector<WeightRows<Number>> rows = weight_rows(call, layer);
      if (call.own.devices == 1 && rows.size() > 1) {
        rows = {gathered_weight_rows(std::span<const WeightRows<Number>>(rows), workspace)};
      }
      for_each_group(
          rows.size(), [&](std::size_t i) { return rows[i].run.rows; }, group_rows_,
          [&](std::size_t first, std::size_t count) {
            work.add_weight_gradients(gradients, std::span(rows).subspan(first, count));
          });
      if (call.releases) buckets_.pass(model_layer, queue_on(link));
    }
  }

  /// H of a pack, tile by tile. Throws std::runtime_error naming samples whose loss is not finite.
  template <DeviceLink<Number> Link>
  void head(const runtime::HeadCall& call, Link& link) {
    const runtime::ElementRange unit = runtime::head_unit(layout_);
    const HeadTensors<In> weights = head_of(gather(unit, link));
    const HeadTensors<Out> gradients = head_of(store_.begin_gradients(unit));
    const std::vector<std::vector<Row>> rows = rows_by_device(call);
    const std::int64_t most = call.own.devices == 1
                                  ? head_tile_.value
                                  : (head_tile_.value + call.own.devices - 1) / call.own.devices;
    for (std::size_t first = 0;; first += static_cast<std::size_t>(most)) {
      HeadTile tile;
      for (const std::vector<Row>& of_device : rows) {
        const std::size_t begin = std::min(first, of_device.size());
        const std::size_t end = std::min(of_device.size(), begin + static_cast<std::size_t>(most));
        if (&of_device == &rows[static_cast<std::size_t>(call.own.device)]) {
          tile.first = tile.rows.size();
          tile.own = end - begin;
        }
        tile.rows.insert(tile.rows.end(), of_device.begin() + static_cast<std::ptrdiff_t>(begin),
                         of_device.begin() + static_cast<std::ptrdiff_t>(end));
      }
      if (tile.rows.empty()) break;
      head_tile(call, tile, weights, gradients, link);
    }
    check_losses(call);
    scatter(unit, link);
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
    for (const runtime::Bucket& bucket : buckets_.all())
      link.await_sum(bucket.process_group, bucket.tag);
    // Every rank adds up what is here of its own stages and parts; the table counts on stage 0
    // only, and gains of norms, which all parts have, on part 0 only.
    const std::size_t table = pp_ == 0 ? 0 : layout_.table;
    double sum = 0;
    if (tp_ == 0) {
      sum = math_.squares(store_.gradients().subspan(table));
    } else {
      for (const runtime::HeldTensor& tensor : layout_.tensors) {
        if (tensor.whole_rows == 1 || tensor.offset < table) continue;
        sum += math_.squares(gradients(tensor));
      }
    }
    sum_of_model(sum, link);
    gradient_norm_ = std::sqrt(sum);
    if (!std::isfinite(gradient_norm_)) throw_norm_not_finite(gradient_norm_, link);
    ++steps_;
    const runtime::ElementRange range = optimizer_range();
    const Out weights = store_.weights();
    math_.adamw_step(store_.part(weights, range), std::span(first_moment_).first(range.size()),
                     std::span(second_moment_).first(range.size()),
                     store_.part(store_.gradients(), range), settings_, steps_,
                     clipping_factor(settings_, gradient_norm_));
    if (range.size() < weights.size()) {
      link.all_gather(process_groups().ranks(), weights, range.begin, range.end);
    }
  }

 private:
  /// A token in H: row `row` of its piece, own row `own` where the device holds it, and its place
  /// among the rows of the call and among its own ones.
  struct Row {
    const runtime::PieceMemory* memory;
    std::int64_t row, own, place, own_place;
  };
  /// Rows whose logits exist at one time, device by device. Own ones are rows [first, first + own).
  struct HeadTile {
    std::vector<Row> rows;
    std::size_t first = 0, own = 0;
  };
  using Pieces = std::span<const PieceRows<Number>>;

  /// What H uses of a device: its rows of the vocabulary projection, and on the last stage the gain
  /// of the norm before it.
  template <class Span>
  struct HeadTensors {
    Span projection, norm;
  };

  void adopt(const Plan& plan) {
    model_ = plan.model;
    part_ = runtime::part_of(model_, plan.parallel.tp);
    group_rows_ = group_rows({tp_, plan.parallel.tp}, plan.memory.head_tile);
    stages_ = plan.stages;
    parallel_ = plan.parallel;
    optimizer_ = plan.memory.optimizer;
    page_tokens_ = plan.memory.page_tokens;
    head_tile_ = plan.memory.head_tile;
    scale_ = 1.0 / static_cast<double>(plan.target_tokens);
  }

  [[nodiscard]] bool is_last() const { return pp_ + 1 == parallel_.pp; }
  [[nodiscard]] runtime::StageProcessGroups process_groups() const {
    return {parallel_, dp_, pp_, tp_};
  }
  /// Queues a bucket's sum over ranks.
  template <class Link>
  [[nodiscard]] auto queue_on(Link& link) {
    return [&](const runtime::Bucket& bucket) {
      const runtime::ElementRange range{bucket.begin, bucket.begin + bucket.size};
      const UnitValues<Out> gradients = store_.gradients_of(range);
      join_norms(range, gradients, link);
      link.queue_sum(bucket.process_group, bucket.tag,
                     gradients.values.subspan(range.begin, range.size()));
    };
  }
  /// Tensor-parallel devices have added to the gradients of norms by their own rows: makes those
  /// within a range equal.
  template <class Link>
  void join_norms(const runtime::ElementRange& range, const UnitValues<Out>& gradients,
                  Link& link) const {
    if (parallel_.tp == 1) return;
    const runtime::ProcessGroup tensor = process_groups().tensor();
    for (const runtime::HeldTensor& held : layout_.tensors) {
      const bool within = held.offset >= range.begin && held.offset < range.end;
      if (held.whole_rows != 1 || !within) continue;
      link.all_reduce(tensor, gradients.of(held), runtime::Reduction::sum);
    }
  }
  /// Adds up a number that each device has of its part of the model.
  template <class Link>
  void sum_of_model(double& number, Link& link) const {
    const auto sum = [&](const runtime::ProcessGroup& process_group, bool several) {
      if (!several) return;
      link.all_reduce(process_group, std::span(&number, 1), runtime::Reduction::sum);
    };
    sum(process_groups().tensor(), parallel_.tp > 1);
    sum(process_groups().stages(), parallel_.pp > 1);
    sum(process_groups().ranks(), shares_weights());
  }

  /// The weights of a unit, whole until the gather after the next.
  template <class Link>
  [[nodiscard]] UnitValues<In> gather(const runtime::ElementRange& unit, Link& link) {
    math_.forget();  // other weights may lie where those of a unit before did
    return store_.gather(unit, link);
  }
  /// Brings the gradients of a unit that has run to the ranks that own them, where ranks share
  /// them.
  template <class Link>
  void scatter(const runtime::ElementRange& unit, Link& link) {
    if (!shares_weights()) return;
    join_norms(unit, store_.gradients_of(unit), link);
    store_.scatter(unit, link);
  }
  /// A layer of the model with its weights.
  template <class Link>
  [[nodiscard]] Layer<Math, Link> whole_layer(std::int64_t layer, TensorGroup<Number, Link>& tensor,
                                              Link& link) {
    const runtime::ElementRange unit = runtime::layer_unit(layout_, layer);
    return {math_, part_, layer_of(gather(unit, link), layer), tensor};
  }
  /// Where to add the gradients of a layer of the model.
  [[nodiscard]] LayerTensors<Out> begin_gradients(std::int64_t layer) {
    return layer_of(store_.begin_gradients(runtime::layer_unit(layout_, layer)), layer);
  }

  /// Elements of the device's memory whose optimizer state is here.
  [[nodiscard]] runtime::ElementRange optimizer_range() const {
    if (optimizer_ == OptimizerState::replicated) return {0, layout_.size()};
    return runtime::part_of_rank(layout_.size(), static_cast<std::size_t>(parallel_.dp),
                                 static_cast<std::size_t>(dp_));
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
    for_each_piece(call, [&](const runtime::PieceMemory& memory, std::int64_t first_own) {
      const In rows = detail::rows(gradient, first_own, memory.own.value, model_.hidden);
      if (!detail::all_finite(rows)) samples.add(memory.piece.sample);
    });
    if (!samples.text().empty()) throw not_finite("the gradient", " in samples " + samples.text());
  }

  /// Throws for a norm that is not finite although the gradients of all tokens were: a sum over
  /// tokens is not. `norm` is that of all devices, of which one at least can name the tensor.
  template <class Link>
  [[noreturn]] void throw_norm_not_finite(double norm, Link& link) const {
    for (const runtime::HeldTensor& tensor : layout_.tensors) {
      if (detail::all_finite(gradients(tensor))) continue;
      throw not_finite("the gradient", " in '" + tensor.shape.name +
                                           "', where the MicroPacks' gradients are added up");
    }
    // A device that can say more never comes here.
    sum_of_model(norm, link);
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

  template <class Span>
  [[nodiscard]] LayerTensors<Span> layer_of(const UnitValues<Span>& values,
                                            std::int64_t layer) const {
    const std::size_t first = layout_.layer[static_cast<std::size_t>(layer)];
    const auto held = [&](runtime::LayerTensor tensor) -> Span {
      return values.of(layout_.tensors[first + static_cast<std::size_t>(tensor)]);
    };
    return {held(runtime::LayerTensor::input_norm), held(runtime::LayerTensor::query),
            held(runtime::LayerTensor::key),        held(runtime::LayerTensor::value),
            held(runtime::LayerTensor::output),     held(runtime::LayerTensor::mid_norm),
            held(runtime::LayerTensor::gate),       held(runtime::LayerTensor::up),
            held(runtime::LayerTensor::down)};
  }

  template <class Span>
  [[nodiscard]] HeadTensors<Span> head_of(const UnitValues<Span>& values) const {
    // A tied table that is here whole begins with the device's rows.
    const std::int64_t rows = head_shard(model_.vocab, parallel_, pp_, tp_).size();
    const Span table = values.of(layout_.tensors[layout_.head.front()]);
    return {table.first(static_cast<std::size_t>(rows * model_.hidden)),
            is_last() ? values.of(layout_.tensors[layout_.final_norm.front()]) : Span{}};
  }

  [[nodiscard]] std::span<const std::int32_t> tokens(const runtime::Piece& piece) const {
    return std::span(data_->tokens[index(piece.sample)])
        .subspan(static_cast<std::size_t>(piece.begin.value),
                 static_cast<std::size_t>(piece.length().value));
  }

  template <class Call>
    requires std::same_as<Call, runtime::PackCall> || std::same_as<Call, runtime::HeadCall>
  [[nodiscard]] std::span<std::byte> hidden_gradient_of(const Call& call,
                                                        const runtime::PieceMemory& piece) const {
    const auto row = static_cast<std::int64_t>(sizeof(Number)) * model_.hidden;
    return slimpack::cpu::part_of(call.blocks[piece.block].hidden_gradient, {0, row}, piece);
  }

  /// Calls visit(memory, its first own row among those of the pack).
  template <std::invocable<const runtime::PieceMemory&, std::int64_t> Visit>
  static void for_each_piece(const runtime::PackCall& call, Visit visit) {
    std::int64_t row = 0;
    for (const runtime::SegmentMemory& segment : call.segments) {
      for (const runtime::PieceMemory& memory : segment.pieces) {
        visit(memory, row);
        row += memory.own.value;
      }
    }
  }
  [[nodiscard]] static std::int64_t own_rows(const runtime::PackCall& call) {
    std::int64_t rows = 0;
    for_each_piece(call, [&](const auto& memory, std::int64_t) { rows += memory.own.value; });
    return rows;
  }

  /// What the tensor-parallel devices of a unit do together, with its place in the workspace.
  template <class Link>
  [[nodiscard]] TensorGroup<Number, Link> tensor_group(const runtime::PackCall& call,
                                                       Workspace<Number>& workspace, Link& link) {
    return {call.tensor,   call.own,  std::min(group_rows_, call.rows.value),
            model_.hidden, workspace, link};
  }
  /// Calls visit(first piece, number of pieces) for groups of pieces.
  template <std::invocable<std::size_t, std::size_t> Visit>
  void by_group(Pieces pieces, Visit visit) const {
    for_each_group(
        pieces.size(), [&](std::size_t i) { return pieces[i].rows; }, group_rows_, visit);
  }

  /// Calls visit(run of tokens, first own row among those of the pack, own rows, tokens) for the
  /// parts of the pack's pieces.
  template <class Visit>
    requires std::invocable<Visit&, RowRun, std::int64_t, std::int64_t,
                            std::span<const std::int32_t>>
  void for_each_run(const runtime::PackCall& call, Visit visit) const {
    for_each_piece(call, [&](const runtime::PieceMemory& memory, std::int64_t first_own) {
      const std::int64_t holder = call.own.owner(memory.piece.sample, memory.piece.begin);
      for_each_part(
          memory.piece.length().value, group_rows_, [&](std::int64_t i, std::int64_t count) {
            const std::int64_t first = (holder + i) % call.own.devices;
            visit(RowRun{count, first}, first_own + call.own.among(holder, i),
                  call.own.among(first, count),
                  tokens(memory.piece)
                      .subspan(static_cast<std::size_t>(i), static_cast<std::size_t>(count)));
          });
    });
  }

  /// Where the input of layer `layer` of this stage belongs, by part of a piece: what is kept, or
  /// behind the last layer the unit's output. Own rows.
  [[nodiscard]] std::vector<Out> layer_inputs(const runtime::PackCall& call,
                                              std::int64_t layer) const {
    std::vector<Out> inputs;
    const std::int64_t layers = stage_of(call).layers();
    for_each_piece(call, [&](const runtime::PieceMemory& memory, std::int64_t first_own) {
      const std::int64_t holder = call.own.owner(memory.piece.sample, memory.piece.begin);
      const Out whole = layer == layers
                            ? detail::rows(numbers<Number>(call.output), first_own,
                                           memory.own.value, model_.hidden)
                            : numbers<Number>(kept_of<Number>(part_, call, memory, layer, layers));
      for_each_part(memory.piece.length().value, group_rows_,
                    [&](std::int64_t i, std::int64_t count) {
                      const std::int64_t before = call.own.among(holder, i);
                      const std::int64_t end = call.own.among(holder, i + count);
                      inputs.push_back(detail::rows(whole, before, end - before, model_.hidden));
                    });
    });
    return inputs;
  }

  /// Fills the first layer's input from token embeddings or from what was received.
  template <class Link>
  void enter(const runtime::PackCall& call, std::span<const Out> inputs,
             TensorGroup<Number, Link>& tensor, Link& link) {
    const bool embeds = stage_of(call).embedding;
    const In table = embeds ? gather(runtime::embedding_unit(layout_), link).of(embedding()) : In{};
    std::size_t part = 0;
    for_each_run(call, [&](const RowRun& run, std::int64_t first_own, std::int64_t own,
                           std::span<const std::int32_t> ids) {
      const Out into = inputs[part++];
      if (!embeds) {
        std::ranges::copy(detail::rows(numbers<Number>(call.input), first_own, own, model_.hidden),
                          into.begin());
        return;
      }
      tensor.sum(std::span(&run, 1), std::span(&into, 1), [&](std::span<const Out> sums) {
        for_each_embedded(ids, sums.front(), [&](auto row, const std::int32_t* id) {
          if (id == nullptr) {
            std::ranges::fill(row, Number{0});
          } else {
            Math::embedding_forward(row, table, std::span(id, 1), rows_of_table(), model_.hidden);
          }
        });
      });
    });
  }

  /// Adds the gradients of the stage's input to those of the embedding.
  template <class Link>
  void embedding_backward(const runtime::PackCall& call, Out gradient,
                          TensorGroup<Number, Link>& tensor, Link& link) {
    const runtime::ElementRange unit = runtime::embedding_unit(layout_);
    const Out table = store_.begin_gradients(unit).of(embedding());
    for_each_run(call, [&](const RowRun& run, std::int64_t first_own, std::int64_t own,
                           std::span<const std::int32_t> ids) {
      const Out rows = detail::rows(gradient, first_own, own, model_.hidden);
      const In whole = tensor.gather(std::span(&run, 1), std::span(&rows, 1)).front();
      for_each_embedded(ids, whole, [&](In row, const std::int32_t* id) {
        if (id == nullptr) return;
        math_.embedding_backward(table, row, std::span(id, 1), rows_of_table(), model_.hidden);
      });
    });
    scatter(unit, link);
  }

  [[nodiscard]] const runtime::HeldTensor& embedding() const {
    return layout_.tensors[layout_.embedding.front()];
  }
  [[nodiscard]] std::int64_t rows_of_table() const { return embedding().shape.rows; }

  /// Calls visit(row, id) for every token: `id` is its row of the device's part of the table, null
  /// where another tensor-parallel device has that.
  template <class Rows, class Visit>
  void for_each_embedded(std::span<const std::int32_t> ids, Rows rows, Visit visit) const {
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const auto row = static_cast<std::int32_t>(ids[i] - embedding().first_row);
      const bool here = row >= 0 && row < rows_of_table();
      visit(detail::row(rows, static_cast<std::int64_t>(i), model_.hidden), here ? &row : nullptr);
    }
  }

  void load_gradient(const runtime::PackCall& call, Out gradient) const {
    if (call.virtual_stage + 1 < static_cast<std::int32_t>(stages_.size())) {
      std::ranges::copy(numbers<Number>(call.input).first(gradient.size()), gradient.begin());
      return;
    }
    for_each_piece(call, [&](const runtime::PieceMemory& memory, std::int64_t first_own) {
      std::ranges::copy(numbers<Number>(hidden_gradient_of(call, memory)),
                        detail::rows(gradient, first_own, memory.own.value, model_.hidden).begin());
    });
  }

  /// The pack's pieces, in parts of at most a group.
  [[nodiscard]] std::vector<PieceRows<Number>> rows_of_pieces(const runtime::PackCall& call,
                                                              std::int64_t layer,
                                                              Workspace<Number>& workspace) const {
    std::vector<PieceRows<Number>> pieces;
    for_each_piece(call, [&](const runtime::PieceMemory& memory, std::int64_t first_own) {
      const auto whole =
          rows_of(part_, call, memory, first_own, layer, stage_of(call).layers(), workspace);
      for_each_part(whole.rows, group_rows_, [&](std::int64_t i, std::int64_t count) {
        pieces.push_back(slimpack::cpu::part_of(whole, call.own, i, count));
      });
    });
    return pieces;
  }

  /// What W needs of the pack's pieces, in the parts of `rows_of_pieces`.
  [[nodiscard]] std::vector<WeightRows<Number>> weight_rows(const runtime::PackCall& call,
                                                            std::int64_t layer) const {
    std::vector<WeightRows<Number>> rows;
    for_each_piece(call, [&](const runtime::PieceMemory& memory, std::int64_t) {
      add_weight_rows(rows, part_, call.own, group_rows_, memory, layer, stage_of(call).layers());
    });
    return rows;
  }

  /// By segment of the call: keys and values in F, and in B where no pages hold them; their
  /// gradients in B.
  [[nodiscard]] std::vector<SegmentKeys<Number>> segment_keys(const runtime::PackCall& call,
                                                              Pass pass,
                                                              Workspace<Number>& workspace) const {
    std::vector<SegmentKeys<Number>> all;
    for (const runtime::SegmentMemory& segment : call.segments) {
      const KeptKeys& kept = segment.kept;
      const bool backward = pass == Pass::backward, by_heads = backward && kept.by_heads;
      const std::int64_t width = part_.key_width();
      const auto take = [&](bool needed, Tokens rows, std::int64_t cols) {
        return needed ? workspace.take(rows.value, cols) : Out{};
      };
      SegmentKeys<Number>& keys = all.emplace_back();
      for (Out* const own : {&keys.own.dkey, &keys.own.dvalue}) {
        *own = take(backward, segment.rows, width);
      }
      for (Out* const own : {&keys.own.key, &keys.own.value}) {
        *own = take(!backward || !kept.pages, segment.rows, width);
      }
      for (Out* const part : {&keys.by_heads.dkey, &keys.by_heads.dvalue}) {
        *part = take(by_heads && !kept.gradients, segment.slice.end, width / kept.parts);
      }
      for (Out* const part : {&keys.by_heads.key, &keys.by_heads.value}) {
        *part = take(by_heads && !kept.pages, segment.slice.end, width / kept.parts);
      }
      keys.queries = take(by_heads && call.recompute == Recompute::full, segment.slice.length(),
                          part_.query_width() / segment.shard.ranks);
    }
    return all;
  }
  /// One of the matrices of own rows by part of a piece; empty where it is.
  [[nodiscard]] std::vector<Out> by_part(const runtime::PackCall& call,
                                         std::span<const SegmentKeys<Number>> keys,
                                         Out KeyRows<Number>::* matrix) const {
    std::vector<Out> parts;
    for (std::size_t i = 0; i < call.segments.size(); ++i) {
      const Out whole = keys[i].own.*matrix;
      std::int64_t row = 0;
      for (const runtime::PieceMemory& memory : call.segments[i].pieces) {
        for_each_part(
            memory.piece.length().value, group_rows_, [&](std::int64_t, std::int64_t count) {
              parts.push_back(whole.empty() ? whole
                                            : detail::rows(whole, row, count, part_.key_width()));
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
                      std::span<const SegmentKeys<Number>> keys, Visit visit) {
    for (std::size_t i = 0; i < call.segments.size(); ++i) {
      const runtime::SegmentMemory& segment = call.segments[i];
      const SliceAttention<Math> slice(math_, part_, page_tokens_, call, segment, keys[i], layer,
                                       stage_of(call).layers());
      std::size_t parts = 0;
      for (const runtime::PieceMemory& memory : segment.pieces) {
        for_each_part(memory.piece.length().value, group_rows_,
                      [&](std::int64_t, std::int64_t) { ++parts; });
      }
      visit(slice, pieces.first(parts));
      pieces = pieces.subspan(parts);
    }
  }

  /// Backward of one layer: `gradient` is that of its output and becomes that of its input.
  template <DeviceLink<Number> Link>
  void backward_layer(const runtime::PackCall& call, std::int64_t model_layer, std::int64_t layer,
                      Out gradient, Workspace<Number>& workspace, TensorGroup<Number, Link>& tensor,
                      Link& link) {
    const Layer<Math, Link> work = whole_layer(model_layer, tensor, link);
    const LayerTensors<Out> gradients = begin_gradients(model_layer);
    const std::vector<PieceRows<Number>> pieces = rows_of_pieces(call, layer, workspace);
    const std::vector<SegmentKeys<Number>> all_keys = segment_keys(call, Pass::backward, workspace);
    const std::vector<Out> keys = by_part(call, all_keys, &KeyRows<Number>::key);
    const std::vector<Out> values = by_part(call, all_keys, &KeyRows<Number>::value);
    const std::vector<Out> dkeys = by_part(call, all_keys, &KeyRows<Number>::dkey);
    const std::vector<Out> dvalues = by_part(call, all_keys, &KeyRows<Number>::dvalue);
    std::vector<PieceGradients<Number>> scratch;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const auto& rows = pieces[i];
      const auto take = [&](std::int64_t cols) { return workspace.take(rows.rows, cols); };
      const std::int64_t q = part_.query_width(), f = part_.ffn;
      PieceGradients<Number>& piece = scratch.emplace_back();
      piece.dmid = workspace.take(rows.own, model_.hidden);
      piece.dnorm = workspace.take(rows.own, model_.hidden);
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
    const auto each_group = [&](const auto& visit) {
      by_group(pieces, [&](std::size_t first, std::size_t count) {
        const std::span<const WeightRows<Number>> all(apart);
        visit(Pieces(pieces).subspan(first, count),
              std::span(std::as_const(scratch)).subspan(first, count),
              all.empty() ? all : all.subspan(first, count));
      });
    };
    by_group(pieces, [&](std::size_t first, std::size_t count) {
      work.recompute_before(Pieces(pieces).subspan(first, count), call.recompute,
                            std::span(keys).subspan(first, count),
                            std::span(values).subspan(first, count));
    });
    if (call.recompute == Recompute::full) {
      for_each_slice(call, layer, pieces, all_keys, [&](const auto& slice, Pieces own) {
        workspace.rewind(mark);
        slice.forward(own, workspace, link);
      });
    }
    each_group([&](Pieces group, auto group_scratch, auto group_apart) {
      work.recompute_behind(group, call.recompute);
      work.backward_behind_attention(gradients, group, group_scratch, gradient, group_apart);
    });
    std::size_t piece = 0;
    for_each_slice(call, layer, pieces, all_keys, [&](const auto& slice, Pieces own) {
      workspace.rewind(mark);
      const auto own_scratch = std::span(std::as_const(scratch)).subspan(piece, own.size());
      slice.backward(own, own_scratch, workspace, link);
      for (std::size_t i = 0; i < own.size(); ++i) {
        slice.gradients(own[i], own_scratch[i].dkey, own_scratch[i].dvalue);
      }
      piece += own.size();
    });
    each_group([&](Pieces group, auto group_scratch, auto group_apart) {
      work.backward_before_attention(gradients, group, group_scratch, gradient, group_apart);
    });
    scatter(runtime::layer_unit(layout_, model_layer), link);
  }

  /// The rows of H by the tensor-parallel device that holds them, in the order of the call.
  [[nodiscard]] static std::vector<std::vector<Row>> rows_by_device(const runtime::HeadCall& call) {
    std::vector<std::vector<Row>> rows(static_cast<std::size_t>(call.own.devices));
    std::int64_t place = 0;
    for (const runtime::PieceMemory& memory : call.pieces) {
      std::int64_t device = call.own.owner(memory.piece.sample, memory.piece.begin);
      const std::int64_t first = device;
      for (std::int64_t r = 0; r < memory.piece.length().value; ++r) {
        auto& of_device = rows[static_cast<std::size_t>(device)];
        const std::int64_t own = TensorRows{device, call.own.devices}.among(first, r);
        of_device.push_back(
            {&memory, r, own, place++, static_cast<std::int64_t>(of_device.size())});
        device = (device + 1) % call.own.devices;
      }
    }
    return rows;
  }

  /// Loss and gradients of the rows of a tile. Every device computes the logits of its part of the
  /// vocabulary; those of the last stage own hidden states, losses and hidden gradients, each of
  /// its rows.
  template <DeviceLink<Number> Link>
  void head_tile(const runtime::HeadCall& call, const HeadTile& tile,
                 const HeadTensors<In>& weights, const HeadTensors<Out>& gradients, Link& link) {
    const auto n = static_cast<std::int64_t>(tile.rows.size());
    const auto own = static_cast<std::int64_t>(tile.own);
    const std::int64_t h = model_.hidden;
    const auto width = static_cast<std::size_t>(h);
    const std::size_t first = tile.first * width, last = first + tile.own * width;
    const bool sharded = call.stages.members.size() > 1;
    const bool several = call.own.devices > 1;
    const VocabularyShard shard = head_shard(model_.vocab, parallel_, pp_, tp_);
    const std::size_t root = call.stages.members.size() - 1;
    Workspace<Number> workspace(numbers<Number>(call.workspace));
    // All rows, own ones at their place.
    const Out normed = workspace.take_zeros(n, h), dnormed = workspace.take_zeros(n, h);
    const Out dhidden = workspace.take_zeros(own, h), inverse = workspace.take_zeros(own, 1);
    const Out logits = workspace.take(n, shard.size());
    const Out maximum = workspace.take(n, 1), sum = workspace.take(n, 1),
              target_logit = workspace.take(n, 1);
    const Out own_normed = normed.subspan(first, last - first);
    const In hidden = is_last() && own > 0 ? detail::rows(numbers<Number>(call.hidden),
                                                          tile.rows[tile.first].own_place, own, h)
                                           : In{};
    const RowShape norm_shape{own, h};
    if (is_last()) {
      math_.rms_norm_forward(own_normed, inverse, hidden, weights.norm, norm_shape,
                             model_.norm_eps);
    }
    if (sharded) link.broadcast(call.stages, root, own_normed);
    if (several) link.all_gather(call.tensor, normed, first, last);

    std::vector<std::optional<std::int32_t>> targets;
    for (const Row& row : tile.rows) {
      targets.push_back(data_->targets[index(row.memory->piece.sample)][static_cast<std::size_t>(
          row.memory->piece.begin.value + row.row)]);
    }
    const auto all_reduce = [&](Out values, runtime::Reduction reduction) {
      if (several) link.all_reduce(call.tensor, values, reduction);
      if (sharded) link.all_reduce(call.stages, values, reduction);
    };
    const LinearShape projection{n, h, shard.size()};
    const LogitShape logit_shape{n, shard.first, shard.size()};
    math_.linear_forward(logits, normed, weights.projection, projection);
    math_.logit_maximum(maximum, logits, logit_shape);
    all_reduce(maximum, runtime::Reduction::maximum);
    math_.logit_sums(sum, target_logit, logits, maximum, targets, logit_shape);
    all_reduce(sum, runtime::Reduction::sum);
    all_reduce(target_logit, runtime::Reduction::sum);
    math_.logit_gradients(logits, maximum, sum, targets, logit_shape, scale_);
    math_.linear_backward_input(dnormed, logits, weights.projection, projection);
    math_.linear_backward_weight(gradients.projection, logits, normed, projection);
    if (several) link.reduce_scatter(call.tensor, dnormed, first, last);
    const Out own_dnormed = dnormed.subspan(first, last - first);
    if (sharded) link.all_reduce(call.stages, own_dnormed, runtime::Reduction::sum);
    if (!is_last()) return;

    math_.rms_norm_backward(dhidden, gradients.norm, own_dnormed, hidden, weights.norm, inverse,
                            norm_shape);
    for (std::size_t i = 0; i < tile.rows.size(); ++i) {
      if (!targets[i]) continue;
      call.losses[static_cast<std::size_t>(tile.rows[i].place)] =
          static_cast<double>(maximum[i]) + std::log(static_cast<double>(sum[i])) -
          static_cast<double>(target_logit[i]);
    }
    for (std::int64_t r = 0; r < own; ++r) {
      const Row& row = tile.rows[tile.first + static_cast<std::size_t>(r)];
      std::ranges::copy(
          detail::row(dhidden, r, h),
          detail::row(numbers<Number>(hidden_gradient_of(call, *row.memory)), row.own, h).begin());
    }
  }

  AdamW settings_;
  ModelShape model_, part_;  ///< whole, and what a tensor-parallel device has of a layer
  std::vector<Stage> stages_;
  Parallel parallel_;
  OptimizerState optimizer_ = OptimizerState::sharded;
  Tokens page_tokens_, head_tile_;
  double scale_ = 0;
  std::int64_t group_rows_ = kGroupRows;
  std::int32_t dp_ = 0, pp_ = 0, tp_ = 0;
  runtime::ParameterLayout layout_;
  runtime::BucketQueue buckets_;
  WeightStore<Number> store_;
  std::vector<Number> first_moment_, second_moment_;
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
