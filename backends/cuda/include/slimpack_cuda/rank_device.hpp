// SPDX-License-Identifier: Apache-2.0
// The CUDA backend: one rank's weights, gradients and optimizer state on a device, and its units of
// work.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/plan/memory.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/runtime/arena_size.hpp"
#include "slimpack/runtime/backend.hpp"
#include "slimpack/runtime/memory_events.hpp"
#include "slimpack/runtime/parameters.hpp"
#include "slimpack/runtime/process_groups.hpp"
#include "slimpack/runtime/thread_transport.hpp"
#include "slimpack/runtime/transport.hpp"
#include "slimpack_cuda/attention.hpp"
#include "slimpack_cuda/device.hpp"
#include "slimpack_cuda/optimizer.hpp"
#include "slimpack_cuda/rank/attention_unit.hpp"
#include "slimpack_cuda/rank/boundary.hpp"
#include "slimpack_cuda/rank/fixed_bytes.hpp"
#include "slimpack_cuda/rank/gradient_norm.hpp"
#include "slimpack_cuda/rank/gradient_sums.hpp"
#include "slimpack_cuda/rank/head.hpp"
#include "slimpack_cuda/rank/limits.hpp"
#include "slimpack_cuda/rank/reports.hpp"
#include "slimpack_cuda/rank/row_groups.hpp"
#include "slimpack_cuda/rank/tensor_unit.hpp"
#include "slimpack_cuda/rank/weight_rows.hpp"
#include "slimpack_cuda/rows.hpp"

namespace slimpack::cuda {

struct RankOptions {
  int multiprocessors = 0;            ///< that matrix products are for: a part of a card; 0: all
  std::optional<AttentionPath> path;  ///< of attention; none: the fastest that can
  std::int64_t gemm_workspace = kGemmWorkspaceBytes;
  GemmChoices* gemm_choices = nullptr;  ///< of algorithms by their times; must outlive the device
  /// Elements of gradients and weights that travel at one time where the optimizer is sharded. The
  /// same on all ranks.
  std::size_t piece = runtime::ShardLayout::kMost;
  /// Rows of all tensor-parallel devices of a product that is one of several for the sake of
  /// collectives beside it, >= 1. The same on all ranks.
  std::int64_t smallest_piece = 1024;
  /// How long the host waits for the device at one time, unless the transport knows better.
  std::chrono::milliseconds hang_timeouts{600'000};
};

/// What one rank needs of a transport. Spans lie in device memory, and "has happened" means behind
/// the rank's stream: what is queued there comes before a call, what is queued later behind it.
/// Laws: `begin_ring` and `end_ring` are `ring`, `begin_all_to_all` and `end_all_to_all` are
/// `all_to_all`, `begin_gather` and `end_gathers` are `gather_parts`, `begin_all_gather` and
/// `begin_reduce_scatter` with `end_collective` the collectives of these names, in two calls; what
/// is queued between them runs beside the exchange. Nothing there touches what arrives or writes to
/// what is sent. One ring, one collective and any number of gathers are under way at a time, and
/// any number of all_to_all, of which each end is that of the first one.
template <class Candidate>
concept RankLink =
    runtime::ScatterTransport<Candidate, float> && runtime::Transport<Candidate, double> &&
    requires(Candidate& link, const runtime::ProcessGroup& process_group,
             std::span<const std::byte> from, std::span<std::byte> into,
             std::span<const std::span<const std::byte>> given,
             std::span<const std::span<std::byte>> taken, std::span<Bf16> values,
             std::span<float> gradients, const runtime::ShardLayout& shard_layout) {
      link.begin_ring(process_group, std::size_t{}, from, into);
      link.end_ring();
      link.begin_all_to_all(process_group, given, taken);
      link.end_all_to_all();
      link.all_gather(process_group, values, std::size_t{}, std::size_t{});
      link.begin_all_gather(process_group, values, std::size_t{}, std::size_t{});
      link.begin_reduce_scatter(process_group, values, std::size_t{}, std::size_t{});
      link.begin_reduce_scatter(process_group, gradients, std::size_t{}, std::size_t{});
      link.end_collective();
      link.begin_gather(process_group, values, shard_layout);
      link.end_gathers();
    };

/// A backend (exec/backend.hpp) for one device of a plan, on the device and in the context that
/// were current when it was made. It lives over any number of steps, whose plans share model,
/// partition, optimizer state and how ranks hold weights with the first; it stores bf16, and fp32
/// where sums grow and in the optimizer, whatever `bytes_per_element` says. Where ranks share
/// weights, the next layer's are gathered while one is computed, and a layer's gradients are summed
/// while the next is made again (SharedUnits).
///
/// All work is on one stream. Units only queue it: the host waits for the device where it would be
/// TableRing::kUnits units ahead, once in `optimize`, and in `finish` of a step without. Losses
/// that are not finite are found there, before the update. To one thread at a time.
class RankDevice {
 public:
  using Buffer = ArenaBuffer;

  /// Device `device` of the plan (`device_number`), with weights drawn from `seed`. Throws
  /// InvalidInput where the plan is none that can be executed or why_not_rank has a sentence,
  /// CudaError where the device fails or has too little memory.
  RankDevice(const Plan& plan, std::size_t device, std::uint64_t seed, AdamW settings = {},
             RankOptions options = {})
      : plan_device_(checked(plan, device)),
        options_(options),
        settings_(settings),
        place_(place_of(plan, device)),
        weights_(plan, place_, options.piece),
        sums_(weights_, place_,
              plan.memory.optimizer == OptimizerState::sharded && plan.parallel.dp > 1,
              options.piece),
        gemm_workspace_(options.gemm_workspace),
        gemm_(gemm_workspace_.span(), options.multiprocessors, options.gemm_choices),
        norm_workspace_(norm_workspace(plan.model)),
        frequencies_(plan.model.head_dim / 2),
        vocabulary_rest_(VocabularyPart::kWhole * plan.model.hidden),
        norm_(norm_sums(counted_ranges(weights_.ranges(), weights_.layout(), place_))) {
    adopt(plan);
    const DeviceProperties properties = device_properties();
    major_ = properties.major;
    minor_ = properties.minor;
    weights_.initialise(seed, stream());
    fill_zeros(vocabulary_rest_.span(), stream());
    const auto frequencies =
        rope_frequencies(static_cast<std::int32_t>(model_.head_dim), model_.rope_theta);
    upload(frequencies_.span(), std::span<const std::uint64_t>(frequencies), stream());
    stream().synchronize();
  }

  /// The stream that all work is queued on.
  [[nodiscard]] StreamView stream() const noexcept { return stream_.view(); }
  /// What this device holds, in the order of its memory.
  [[nodiscard]] std::span<const runtime::HeldTensor> tensors() const noexcept {
    return weights_.layout().tensors;
  }

  /// Whether it shares weights with the other data-parallel ranks.
  [[nodiscard]] bool shares_weights() const noexcept { return weights_.shared(); }

  // --- weights on the host; each waits for the device ---

  /// What the device holds of a tensor, as matrix products see it: rounded to bf16. Throws
  /// InvalidInput where ranks share weights: none holds a tensor then.
  [[nodiscard]] std::vector<float> weights(const runtime::HeldTensor& tensor) const {
    require(!weights_.shared(), "RankDevice: shared weights are read part by part");
    const std::vector<Bf16> stored = download(weights_.weights(tensor), stream());
    std::vector<float> values;
    for (const Bf16 value : stored) values.push_back(to_float(value));
    return values;
  }
  /// The same of the elements that this rank updates, in the order of memory, ranks that share
  /// weights or not. The parts of all devices make up every tensor, as master_parts do.
  [[nodiscard]] std::vector<TensorPart> weight_parts() const {
    return weights_.weight_parts(stream());
  }
  /// Gradients of the last step, summed over ranks and copies, of the same elements.
  [[nodiscard]] std::vector<TensorPart> gradient_parts() const {
    return weights_.gradient_parts(stream());
  }
  /// Sets all that is held of a tensor, its fp32 weights too where they are here. Throws
  /// InvalidInput unless there is one value an element of the device's part of it, whether all of
  /// that is held or the rank's part of it.
  void set_weights(const runtime::HeldTensor& tensor, std::span<const float> values) {
    require(values.size() == tensor.size(), "RankDevice: values must be one an element",
            static_cast<std::int64_t>(values.size()));
    weights_.set(tensor.offset, values, stream());
  }
  /// The rank's part of the optimizer, in the order of memory. The parts of all devices make up
  /// every tensor, copies (of ranks with replicated state, of a tied table) holding equal numbers.
  [[nodiscard]] std::vector<MasterPart> master_parts() const {
    return weights_.master_parts(stream());
  }
  /// Sets the rank's part of the optimizer and the bf16 copies of the same elements; the copies of
  /// elements that other ranks update are set by set_weights. Throws InvalidInput unless the parts
  /// are those of this device.
  void set_master_parts(std::span<const MasterPart> parts) {
    weights_.set_master_parts(parts, stream());
  }

  // --- optimizer ---

  [[nodiscard]] const AdamW& settings() const noexcept { return settings_; }
  /// Changes the optimizer's settings for the steps to come: a schedule sets the learning rate here
  /// before each of them.
  void set_settings(const AdamW& settings) { settings_ = settings; }
  /// How many updates the optimizer has done.
  [[nodiscard]] std::int64_t steps() const noexcept { return steps_; }
  /// Goes on where a saved optimizer stopped. Throws InvalidInput unless steps >= 0.
  void set_steps(std::int64_t steps) {
    require(steps >= 0, "RankDevice: steps must be >= 0", steps);
    steps_ = steps;
  }
  /// Norm of the whole model's gradients in the last step, before clipping.
  [[nodiscard]] double gradient_norm() const noexcept { return gradient_norm_; }
  /// While this is on, steps compute losses alone: `backward`, `reduce` and `optimize` do nothing.
  void set_evaluating(bool evaluating) noexcept { evaluating_ = evaluating; }

  // --- memory ---

  /// Buffers come from one arena of at least so many bytes, kept over all steps: it grows with the
  /// step that needs most. No buffer may be held. Throws CudaError naming what is needed and what
  /// there is where the device has too little memory.
  void reserve(Bytes capacity) {
    if (arena_ && arena_->capacity() >= capacity) return;
    arena_.reset();
    arena_ = std::make_unique<DeviceArena>(capacity, std::min(2 * part_.head_dim, 4 * part_.heads));
  }
  /// Says where the buffers of the next step lie, as computed beforehand (runtime::buffer_layout
  /// with kRankElements, rank_alignment and bytes_behind). Throws as reserve.
  void place(runtime::BufferLayout layout) {
    reserve(layout.capacity);
    layout_ = std::move(layout);
    placed_ = true;
  }
  /// The arena, if there is one.
  [[nodiscard]] const DeviceArena* arena() const noexcept { return arena_.get(); }

  // --- runtime::Backend ---

  [[nodiscard]] ElementBytes element_bytes() const noexcept { return kRankElements; }
  [[nodiscard]] StaticBytes static_bytes() const noexcept { return weights_.bytes(); }
  [[nodiscard]] Buffer allocate(Bytes bytes) {
    if (taken_ == layout_.places.size()) throw std::logic_error("a buffer more than foreseen");
    return {arena_->bytes(layout_.places[taken_++], bytes)};
  }
  [[nodiscard]] std::span<std::byte> bytes(const Buffer& buffer) const { return buffer.bytes; }
  void clear(Buffer& buffer) { fill_zeros(elements<std::byte>(buffer.bytes), stream()); }

  /// Throws InvalidInput if the plan's model or partition is not that of the first, or its ranks
  /// share weights and did not there, or the other way round.
  void begin_step(const Plan& plan, const runtime::StepData& data) {
    require(plan.model == model_ && plan.stages == stages_ && plan.parallel.dp == parallel_.dp &&
                plan.parallel.pp == parallel_.pp && plan.parallel.tp == parallel_.tp &&
                plan.parallel.head == parallel_.head && plan.memory.optimizer == optimizer_,
            "RankDevice: model and partition must stay from step to step");
    require(cuda::shares_weights(plan) == weights_.shared(),
            "RankDevice: ranks must share weights in all steps or in none");
    const runtime::Program program = runtime::make_program(plan);
    if (const auto why = why_not_plan(plan)) throw InvalidInput(*why);
    adopt(plan);
    if (!std::exchange(placed_, false)) {
      layout_ = runtime::buffer_layout(plan, program, plan_device_, kRankElements,
                                       rank_alignment(part_), bytes_behind(part_));
      reserve(layout_.capacity);
    }
    taken_ = 0;
    ring_.reserve(table_bytes(plan, program, plan_device_));
    reports_.reserve(program, plan_device_, is_last());
    data_ = &data;
    sums_.begin_step();
    reports_.clear();
    weights_.begin_step(stream());
  }

  template <RankLink Link>
  void forward(const runtime::PackCall& call, Link& link) {
    const std::int64_t n = call.rows.value, h = model_.hidden, q = part_.query_width(),
                       k = part_.key_width();
    const Stage& stage = stage_of(call);
    if (stage.embedding) weights_.begin_gather(weights_.embedding(), link, stream());
    const std::vector<runtime::PieceMemory> pieces = pieces_of(call);
    std::vector<BlockRows> blocks = rows_of_blocks(call.blocks, pieces);
    const std::int64_t own = own_rows(blocks);
    const UnitRows unit = unit_rows(pieces, blocks, call, true);
    Carver workspace(call.workspace, bytes_behind(part_));
    place_missing(blocks, BlockPart::numbered, part_, workspace);
    const DeviceSpan<Bf16> scratch = workspace.take<Bf16>(1, std::max(n * (q + 2 * k), own * h));
    const WholeRows whole = place_whole_rows(workspace, unit.groups, h);
    const std::span<std::byte> rest = workspace.rest();
    const std::span<std::byte> exchange = place_rest(blocks, part_, workspace);
    UnitKeys keys = unit_keys(call, Pass::forward);
    if (keys.head_keys > 0) {
      Carver first(arena_->from_row(exchange, 2 * k));
      keys.head_key = first.take<Bf16>(keys.head_keys, k);
      keys.head_value = first.take<Bf16>(keys.head_keys, k);
    }
    if (keys.keys > 0) {  // where rows of `full` come to be behind attention
      Carver later(arena_->from_row(
          rest.first(static_cast<std::size_t>(exchange.data() - rest.data())), 2 * k));
      keys.key = later.take<Bf16>(keys.keys, k);
      keys.value = later.take<Bf16>(keys.keys, k);
    }
    const auto layers = rows_by_layer(blocks, part_, call, stage.layers());
    const PackPlaces places = places_of(call, keys, layers, exchange);
    const PackTables tables =
        upload_tables(places, Pass::forward, false, blocks, unit.groups, link);
    // Where the projection was, partial outputs come later.
    const DeviceSpan<Bf16> partial = scratch.subspan(0, n * q);
    const DeviceSpan<float> partial_log_sum(reinterpret_cast<float*>(scratch.data + partial.size),
                                            n * part_.heads);
    const RankAttention attention(places, tables, ring_, path_of(places.shape), partial,
                                  partial_log_sum, scratch, stream());
    const LayerTools tools = this->tools();
    TensorUnit<Link> tensor(call.tensor, unit.groups, whole, ring_.span(tables.row_places), h, link,
                            stream());
    const Boundary boundary{call, blocks, tables, ring_, h, stream()};
    // Rows of the last layer that go back to another order do so by way of the scratch.
    const DeviceSpan<Bf16> output = boundary.leaves_directly() && stage.layers() > 0
                                        ? boundary.output()
                                        : scratch.subspan(0, own * h);
    std::vector<BlockGroup> rows = unit.of(stage.layers() > 0 ? layers.front() : blocks, part_);
    const auto leaving = [&](std::size_t group, std::size_t block) {
      return own_rows_at(output, rows[group].blocks[block], h);
    };
    weights_.end_gather(link);
    begin_gather(stage, 0, link);
    boundary.enter(embedding_table(stage), std::span<const BlockGroup>(rows), tensor,
                   [&](std::size_t group, std::size_t block) {
                     return layers.empty() ? leaving(group, block)
                                           : rows[group].blocks[block].input;
                   });
    for (std::int64_t i = 0; i < stage.layers(); ++i) {
      weights_.end_gather(link);
      begin_gather(stage, i + 1, link);
      RankLayer<Link> layer(tools, part_, weights_.layer_weights(stage.first_layer + i), tensor);
      if (i == 0) layer.normalise_inputs(rows);
      layer.project(rows, scratch.subspan(0, n * (q + 2 * k)), attention.queries(),
                    attention.key_rows(), attention.key_rows(),
                    ring_.span(tables.rope[static_cast<std::size_t>(i)]));
      attention.forward(i, link);
      const bool last = i + 1 == stage.layers();
      std::vector<BlockGroup> next;
      DeviceSpan<const Bf16> gain;
      if (!last) {
        next = unit.of(layers[static_cast<std::size_t>(i + 1)], part_);
        gain = weights_.layer_weights(stage.first_layer + i + 1).input_norm;
      }
      layer.finish(rows, [&](std::size_t group, std::size_t block) -> LayerOutput {
        if (last) return {leaving(group, block)};
        weights_.end_gather(link);  // the gain is the next layer's
        const BlockRows& rows_of_next = next[group].blocks[block];
        return {rows_of_next.input, rows_of_next.input_norm, rows_of_next.input_inverse, gain};
      });
      if (!last) rows = std::move(next);
    }
    boundary.leave(output);
  }

  template <RankLink Link>
  void backward(const runtime::PackCall& call, Link& link) {
    if (evaluating_) return;
    const std::int64_t n = call.rows.value, q = part_.query_width(), k = part_.key_width();
    const Stage& stage = stage_of(call);
    begin_gather(stage, stage.layers() - 1, link);
    const std::vector<runtime::PieceMemory> pieces = pieces_of(call);
    std::vector<BlockRows> blocks = rows_of_blocks(call.blocks, pieces);
    const UnitRows unit = unit_rows(pieces, blocks, call, call.weights != WeightGradients::with);
    Carver workspace(call.workspace, bytes_behind(part_));
    place_missing(blocks, BlockPart::numbered, part_, workspace);
    const BackwardRows rows = place_scratch(workspace, part_, n, own_rows(blocks));
    const WholeRows whole = place_whole_rows(workspace, unit.groups, model_.hidden);
    UnitKeys keys = unit_keys(call, Pass::backward);
    keys.key = workspace.take<Bf16>(keys.keys, k);
    keys.value = workspace.take<Bf16>(keys.keys, k);
    keys.dkey = rows.dkey;
    keys.dvalue = rows.dvalue;
    const std::span<std::byte> exchange = place_rest(blocks, part_, workspace);
    const auto layers = rows_by_layer(blocks, part_, call, stage.layers());
    const PackPlaces places = places_of(call, keys, layers, exchange);
    const bool attends = call.recompute == Recompute::full;
    const PackTables tables =
        upload_tables(places, Pass::backward, attends, blocks, unit.groups, link);
    const RankAttention attention(places, tables, ring_, path_of(places.shape), rows.dattention,
                                  rows.delta, {}, stream());
    const LayerTools tools = this->tools();
    TensorUnit<Link> tensor(call.tensor, unit.groups, whole, ring_.span(tables.row_places),
                            model_.hidden, link, stream());
    const Boundary boundary{call, blocks, tables, ring_, model_.hidden, stream()};
    boundary.load_gradient(rows.gradient,
                           call.virtual_stage + 1 == static_cast<std::int32_t>(stages_.size()));
    const KeysToMake again{tables.again, rows.dqkv.subspan(n * q, 2 * k * keys.keys), keys.key,
                           keys.value, ring_.span(tables.rope_again)};
    for (std::int64_t i = stage.layers(); i-- > 0;) {
      weights_.end_gather(link);
      begin_gather(stage, i - 1, link);
      const std::int64_t model_layer = stage.first_layer + i;
      const std::vector<BlockRows>& matrices = layers[static_cast<std::size_t>(i)];
      const std::vector<BlockGroup> groups = unit.of(matrices, part_);
      const auto rope = ring_.span(tables.rope[static_cast<std::size_t>(i)]);
      RankLayer<Link> layer(tools, part_, weights_.layer_weights(model_layer), tensor);
      // Queries that are not kept lie block behind block.
      const DeviceSpan<Bf16> query(blocks.empty() ? nullptr : blocks.front().query.data, n * q);
      layer.recompute_before(groups, call.recompute, rows.dattention, query, rope, again);
      if (attends) attention.forward(i, link);
      attention.give_ahead(i, link);
      layer.recompute_behind(groups, call.recompute);
      weights_.open_gradients(weights_.layer(model_layer), link, stream());
      const LayerMatrices<float> gradients = weights_.layer_gradients(model_layer);
      // dqkv and dgate_up share memory: a half is done with before the next begins.
      const auto leave = [&](LayerHalf half) {
        if (call.weights == WeightGradients::with) return;
        leave_weight_rows(call, matrices, rows, half, part_, i, stage.layers(), stream());
      };
      layer.backward_behind(groups, gradients, rows, call.weights);
      leave(LayerHalf::behind_attention);
      attention.backward(i, rows, link);
      const auto [dkey, dvalue] = attention.summed();
      layer.backward_before(groups, gradients, rows, dkey, dvalue, rope, call.weights);
      leave(LayerHalf::before_attention);
      weights_.begin_sum(link, stream());
      if (call.releases) sums_.pass(model_layer, weights_, link);
    }
    report_gradient(call, pieces, blocks, rows);
    if (!call.output.empty()) {
      boundary.leave(rows.gradient);
    } else if (stage.embedding) {
      weights_.open_gradients(weights_.embedding(), link, stream());
      boundary.embedding_gradient(weights_.gradients(weights_.embedding()), rows.gradient,
                                  unit.of(blocks, part_), tensor);
      weights_.begin_sum(link, stream());
    }
  }

  /// W of a pack: the gradients of matrices of rows that B has left apart.
  template <RankLink Link>
  void weight(const runtime::PackCall& call, Link& link) {
    if (evaluating_) return;
    const Stage& stage = stage_of(call);
    const std::vector<runtime::PieceMemory> pieces = pieces_of(call);
    std::int64_t own = 0, next = 0;
    for (const runtime::PieceMemory& piece : pieces) own += piece.own.value;
    const auto owners =
        owners_of(pieces, call.own, call.rows, [&](const runtime::PieceMemory& piece) {
          return std::exchange(next, next + piece.piece.length().value);
        });
    const RowGroups groups =
        row_groups(owners, call.own, most_gathered(head_tile_, place_.parallel.tp));
    Carver workspace(call.workspace);
    const WeightRows gathered = place_weight_rows(workspace, part_, call.rows.value, own);
    const WholeRows whole = place_whole_rows(workspace, groups, model_.hidden);
    tables_.clear();
    TablePart<std::int32_t> row_places;
    if (groups.devices > 1) row_places = tables_.add(groups.places);
    send_tables(link);
    TensorUnit<Link> tensor(call.tensor, groups, whole, ring_.span(row_places), model_.hidden, link,
                            stream());
    const LayerTools tools = this->tools();
    for (std::int64_t i = stage.layers(); i-- > 0;) {
      const std::int64_t model_layer = stage.first_layer + i;
      RankLayer<Link> layer(tools, part_, weights_.layer_weights(model_layer), tensor);
      layer.add_weight_gradients(
          groups.groups, weights_.layer_gradients(model_layer),
          gather_weight_rows(pieces, gathered, part_, i, stage.layers(), stream()));
      if (call.releases) sums_.pass(model_layer, weights_, link);
    }
  }

  template <RankLink Link>
  void head(const runtime::HeadCall& call, Link& link) {
    weights_.begin_gather(weights_.head(), link, stream());
    const std::vector<BlockRows> blocks = rows_of_blocks(call.blocks, call.pieces);
    const std::vector<std::int32_t> rows = own_pack_rows(call.pieces, blocks);
    const bool in_order = is_in_order(rows);
    HeadRows tiles = head_rows(call.pieces, blocks, call.own, call.rows,
                               most_gathered(head_tile_, place_.parallel.tp));
    tables_.clear();
    const TablePart<std::int32_t> targets = tables_.add(targets_of(call.pieces, tiles, *data_));
    TablePart<std::int32_t> order;
    if (!in_order) order = tables_.add(rows);
    send_tables(link);
    weights_.end_gather(link);
    weights_.open_gradients(weights_.head(), link, stream());
    HeadWork work;
    work.vocabulary = vocabulary();
    work.weights = projection();
    work.rest = vocabulary_rest(work);
    work.gradients = weights_.gradients_from(
        weights_.head().offset, (work.vocabulary.size + VocabularyPart::kWhole) * model_.hidden);
    work.targets = ring_.span(targets);
    if (!in_order) work.rows = ring_.span(order);
    work.scale = static_cast<float>(scale_);
    work.last = is_last();
    if (work.last) {
      const runtime::HeldTensor& norm = weights_.final_norm();
      work.norm = weights_.weights(norm);
      work.norm_gradient = weights_.gradients(norm);
      work.hidden = elements<Bf16>(call.hidden);
      work.losses = reports_.place_losses(call, std::move(tiles.pack_rows));
    }
    const LayerTools tools = this->tools();
    RankHead head(tools, model_, work, call, blocks);
    for (const HeadTile& tile : tiles.tiles) head.tile(tile, link);
    if (!evaluating_) weights_.begin_sum(link, stream());
  }

  template <RankLink Link>
  void reduce(std::int32_t chunk, Link& link) {
    if (evaluating_) return;
    sums_.reduce(chunk, weights_, link);
  }

  /// Throws std::runtime_error naming the step, with all weights as they were, if a loss or the
  /// gradients' norm is not finite, with MicroPack and samples where a loss or a token's gradient
  /// is not; all devices find the same norm.
  template <RankLink Link>
  void optimize(Link& link) {
    if (evaluating_) return;
    weights_.end_sum(link, stream());
    sums_.await(link);
    norm_.queue(sums_.counted(weights_), sums_.sharded(), settings_.largest_norm, place_, link,
                stream());
    deliver(link);
    gradient_norm_ = norm_.value();
    if (!std::isfinite(gradient_norm_)) {
      // What another rank can say of its losses, then of its tokens' gradients, says more.
      norm_.meet(place_, link);
      await_device(link);
      reports_.check_gradients(steps_ + 1);
      norm_.meet(place_, link);
      await_device(link);
      throw std::runtime_error("the norm of the gradients of step " + std::to_string(steps_ + 1) +
                               " is not finite");
    }
    ++steps_;
    sums_.update(weights_, link, [&](const OwnedRange& range) {
      adamw_step(weights_.master(range), weights_.own_weights(range), weights_.first_moment(range),
                 weights_.second_moment(range), weights_.own_gradients(range), norm_.clipping(),
                 settings_, steps_, stream());
    });
  }

  /// Waits for the losses of a step that had no `optimize`. Throws as it does.
  template <RankLink Link>
  void finish(Link& link) {
    if (!reports_.empty()) deliver(link);
  }

 private:
  /// The rows of a unit, as collectives make them whole.
  struct UnitRows {
    std::vector<std::int32_t> owners;  ///< tensor-parallel devices, by the rows of blocks
    RowGroups groups;
    [[nodiscard]] std::vector<BlockGroup> of(std::span<const BlockRows> blocks,
                                             const ModelShape& part) const {
      return cut_blocks(blocks, groups, owners, part);
    }
  };
  /// `in_pieces`: products may be cut for the sake of collectives beside them. Those that add to
  /// gradients of weights are not: each reads and writes all of these.
  [[nodiscard]] UnitRows unit_rows(std::span<const runtime::PieceMemory> pieces,
                                   std::span<const BlockRows> blocks, const runtime::PackCall& call,
                                   bool in_pieces) const {
    UnitRows rows{owners_of(pieces, blocks, call.own, call.rows), {}};
    const std::int64_t devices = call.own.devices;
    const std::int64_t most = in_pieces
                                  ? most_of_piece(largest_share(rows.owners, devices), head_tile_,
                                                  devices, options_.smallest_piece)
                                  : most_gathered(head_tile_, devices);
    rows.groups = row_groups(rows.owners, call.own, most);
    return rows;
  }

  static std::size_t checked(const Plan& plan, std::size_t device) {
    runtime::check_executable(plan);
    require(device < device_count(plan), "RankDevice: device must be one of the plan",
            static_cast<std::int64_t>(device));
    if (const auto why = why_not_rank(plan)) throw InvalidInput(*why);
    return device;
  }

  void adopt(const Plan& plan) {
    model_ = plan.model;
    part_ = runtime::part_of(model_, plan.parallel.tp);
    stages_ = plan.stages;
    parallel_ = plan.parallel;
    optimizer_ = plan.memory.optimizer;
    page_tokens_ = plan.memory.page_tokens;
    head_tile_ = plan.memory.head_tile;
    scale_ = 1.0 / static_cast<double>(plan.target_tokens);
  }

  [[nodiscard]] bool is_last() const { return place_.pp + 1 == parallel_.pp; }
  [[nodiscard]] const Stage& stage_of(const runtime::PackCall& call) const {
    return stages_[static_cast<std::size_t>(call.virtual_stage)];
  }
  [[nodiscard]] LayerTools tools() {
    return {gemm_, norm_workspace_.span(), frequencies_.span(), stream()};
  }
  /// Begins to gather a layer of the stage, counted from its first, where it is one.
  template <class Link>
  void begin_gather(const Stage& stage, std::int64_t layer, Link& link) {
    if (layer < 0 || layer >= stage.layers()) return;
    weights_.begin_gather(weights_.layer(stage.first_layer + layer), link, stream());
  }
  [[nodiscard]] VocabularyPart vocabulary() const {
    return vocabulary_part(model_, parallel_, place_.pp, place_.tp);
  }
  /// The rows of the vocabulary that are here.
  [[nodiscard]] DeviceSpan<const Bf16> projection() const {
    return weights_.weights(weights_.head()).subspan(0, vocabulary().size * model_.hidden);
  }
  /// Copies the last rows of those to where zeros are behind them.
  [[nodiscard]] DeviceSpan<const Bf16> vocabulary_rest(const HeadWork& work) {
    const std::int64_t h = model_.hidden, rest = work.vocabulary.rest();
    copy(vocabulary_rest_.span().subspan(0, rest * h),
         work.weights.subspan(work.vocabulary.whole() * h, rest * h), stream());
    return vocabulary_rest_.span();
  }
  [[nodiscard]] AttentionPath path_of(const AttentionShape& shape) const {
    return options_.path.value_or(best_path(shape, major_, minor_));
  }

  [[nodiscard]] PackPlaces places_of(const runtime::PackCall& call, const UnitKeys& keys,
                                     std::span<const std::vector<BlockRows>> layers,
                                     std::span<std::byte> exchange) const {
    const AttentionShape shape{static_cast<std::int32_t>(part_.heads),
                               static_cast<std::int32_t>(part_.kv_heads),
                               static_cast<std::int32_t>(part_.head_dim),
                               attention_page(page_tokens_, call.segments.front().shard)};
    return {call,
            keys,
            layers,
            *arena_,
            part_,
            page_tokens_,
            shape,
            attention_tiles(shape, path_of(shape)),
            by_heads(call, shape),
            exchange};
  }

  /// Attention with one head of keys; nothing where no slice goes by heads.
  [[nodiscard]] AttentionWay by_heads(const runtime::PackCall& call, AttentionShape shape) const {
    if (std::ranges::none_of(call.segments, travels_by_heads)) return {};
    shape.heads /= std::max(shape.kv_heads, static_cast<std::int32_t>(call.ring.members.size()));
    shape.kv_heads = 1;
    return {shape, attention_tiles(shape, path_of(shape)), path_of(shape)};
  }

  template <class Link>
  void send_tables(Link& link) {
    ring_.upload(tables_, stream(),
                 [&](const Event& event) { await_on_host(link, event, options_.hang_timeouts); });
  }
  template <class Link>
  [[nodiscard]] PackTables upload_tables(const PackPlaces& places, Pass pass, bool attends,
                                         std::span<const BlockRows> blocks, const RowGroups& groups,
                                         Link& link) {
    tables_.clear();
    TokenTables tokens;
    if (stage_of(places.call).embedding) {
      const runtime::HeldTensor& table = weights_.embedding();
      tokens = {data_, {table.first_row, table.first_row + table.shape.rows}};
    }
    PackTables tables = pack_tables(tables_, places, pass, attends, blocks, groups, tokens);
    send_tables(link);
    return tables;
  }
  /// The rows of the embedding that are here; none but on the first virtual stage.
  [[nodiscard]] DeviceSpan<const Bf16> embedding_table(const Stage& stage) const {
    if (!stage.embedding) return {};
    return weights_.weights(weights_.embedding());
  }

  /// Queues the copy of a number for each own row of the stage's input that is finite where the
  /// row's gradient is. All gradients of rows in the stage's layers have gone into it.
  void report_gradient(const runtime::PackCall& call, std::vector<runtime::PieceMemory> pieces,
                       std::span<const BlockRows> blocks, const BackwardRows& rows) {
    std::vector<std::int32_t> order = pack_rows_of_own(pieces, blocks, call.own);
    largest_by_row(rows.largest, rows.gradient, {rows.own, model_.hidden}, stream());
    copy_to_host(
        reports_.place_gradients(call.pack, std::move(pieces), std::move(order), call.rows),
        rows.largest, stream());
  }

  template <class Link>
  void await_device(Link& link) {
    reached_.record(stream());
    await_on_host(link, reached_, options_.hang_timeouts);
  }
  /// Waits until the device has done all that is queued, and hands losses over.
  template <class Link>
  void deliver(Link& link) {
    await_device(link);
    reports_.deliver(steps_ + 1);
  }

  std::size_t plan_device_;
  RankOptions options_;
  AdamW settings_;
  runtime::StageProcessGroups place_;
  ModelShape model_, part_;  ///< whole, and what a tensor-parallel device has of a layer
  std::vector<Stage> stages_;
  Parallel parallel_;
  OptimizerState optimizer_ = OptimizerState::sharded;
  Tokens page_tokens_, head_tile_;
  double scale_ = 0;
  int major_ = 0, minor_ = 0;
  std::int64_t steps_ = 0;
  double gradient_norm_ = 0;
  bool evaluating_ = false;
  const runtime::StepData* data_ = nullptr;

  Stream stream_;
  RankWeights weights_;
  GradientSums sums_;
  DeviceBuffer<std::byte> gemm_workspace_;
  Gemm gemm_;
  DeviceBuffer<float> norm_workspace_;
  DeviceBuffer<std::uint64_t> frequencies_;
  DeviceBuffer<Bf16> vocabulary_rest_;
  GradientNorm norm_;
  std::unique_ptr<DeviceArena> arena_;
  runtime::BufferLayout layout_;
  bool placed_ = false;    ///< layout_ is the next step's
  std::size_t taken_ = 0;  ///< buffers of the step
  Tables tables_;
  TableRing ring_;
  RankReports reports_;
  Event reached_;
};

static_assert(runtime::WeightBackend<RankDevice, runtime::ThreadTransport> &&
              !runtime::Backend<DeviceArena, runtime::ThreadTransport>);

}  // namespace slimpack::cuda
