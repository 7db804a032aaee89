// SPDX-License-Identifier: Apache-2.0
// Walks one device's order of a plan: receives, allocates, computes, sends, frees.
#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/plan/memory.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/plan/tensor_rows.hpp"
#include "slimpack/plan/virtual_stages.hpp"
#include "slimpack/runtime/apart_rows.hpp"
#include "slimpack/runtime/backend.hpp"
#include "slimpack/runtime/memory_events.hpp"
#include "slimpack/runtime/process_groups.hpp"
#include "slimpack/runtime/program.hpp"
#include "slimpack/runtime/transport.hpp"
#include "slimpack/runtime/workspace.hpp"

namespace slimpack::runtime {

/// Runs the order of device `device` (`device_number`) once.
///
///     const Program program = make_program(plan);
///     DeviceRun run(plan, program, data, device, backend, link, observer);
///     const DeviceResult result = run.run();   // losses, and the peak of memory
///
/// `run_step` does this on a thread for each device; a process for each device calls it itself. The
/// backend must be that device's, and the plan one that `validate` passes. Throws ExecutionError if
/// a unit fails, after telling all other devices (`Transport::abort`), and passes on Aborted and
/// Deadlock of the transport, and ExecutionError if anything but what is always held is left.
template <class Device, class Link>
  requires Backend<Device, Link>
class DeviceRun {
 public:
  using Buffer = typename Device::Buffer;  ///< what the backend allocates

  /// What is passed by reference must outlive the run; an empty `observer` is not called.
  DeviceRun(const Plan& plan, const Program& program, const StepData& data, std::size_t device,
            Device& backend, Link& link, const MemoryObserver& observer)
      : plan_(plan),
        program_(program),
        own_(program.of_device(device)),
        rows_(program.rows_of_device(device)),
        process_groups_{plan.parallel, own_.dp, own_.pp, static_cast<std::int32_t>(rows_.device)},
        data_(data),
        device_(device),
        backend_(backend),
        link_(link),
        observer_(observer),
        size_(backend.element_bytes()),
        layer_(split_bytes(plan, size_)),
        boundary_(program, layer_, rows_),
        apart_(backend, program, layer_, rows_) {
    if constexpr (!WeightBackend<Device, Link>) require_weights_with(plan, "execution");
  }

  /// Runs all units. To be called once.
  [[nodiscard]] DeviceResult run() {
    try {
      start();
      started_ = true;
      for (unit_ = 0; unit_ < own_.units.size(); ++unit_) {
        announce_unit();
        step(own_.units[unit_]);
      }
      announce_unit();
      finish();
    } catch (const Aborted&) {
      throw;
    } catch (const Deadlock&) {
      throw;
    } catch (const std::exception& error) {
      fail(error.what());
    } catch (...) {
      fail("an exception of unknown type");
    }
    return std::move(result_);
  }

 private:
  struct Held {
    Buffer buffer;
    Bytes bytes;
  };
  using ChunkSample = std::pair<std::int32_t, SampleId>;
  using ChunkBlock = std::pair<std::int32_t, std::size_t>;
  struct Sample {
    Tokens forward;                      ///< tokens [0, forward) have run forward
    Tokens backward;                     ///< tokens [backward, length) have run backward
    std::vector<Held> pages, gradients;  ///< none where the unit's workspace has them
  };

  [[nodiscard]] std::string place() const {
    std::string text = "device (dp " + std::to_string(own_.dp) + ", pp " + std::to_string(own_.pp);
    if (rows_.devices > 1) text += ", tp " + std::to_string(rows_.device);
    if (!started_) return text + "), start of the step";
    if (unit_ >= own_.units.size()) return text + "), end of the step";
    return text + "), unit " + std::to_string(unit_) + ", " + to_string(own_.units[unit_].unit);
  }

  void announce_unit() {  // some transports issue their work unit by unit
    link_.announce(place());
    if constexpr (requires { link_.begin_unit(unit_); }) link_.begin_unit(unit_);
  }

  /// Tells the others now, while the buffers that they may read are still there.
  [[noreturn]] void fail(const std::string& cause) {
    const std::string sentence = place() + ", failed: " + cause;
    link_.abort(sentence);
    throw ExecutionError(sentence);
  }

  // --- memory ---

  void emit(Moment moment, MemoryKind kind, std::optional<MessageRef> message, std::size_t unit,
            Bytes change) {
    if (change == Bytes{}) return;
    now_ += change;
    result_.peak = std::max(result_.peak, now_);
    if (observer_) observer_({device_, moment, unit, kind, message, change});
  }

  /// Events of one moment, one a kind.
  void emit_changes(Moment moment) {
    for (std::size_t kind = 0; kind < kMemoryKinds; ++kind) {
      emit(moment, static_cast<MemoryKind>(kind), std::nullopt, unit_, changes_[kind]);
      changes_[kind] = Bytes{};
    }
  }

  /// Bytes that go with events of this moment still to come are there or gone already.
  [[nodiscard]] Held allocate(std::int64_t bytes) {
    const Bytes after = std::accumulate(changes_.begin(), changes_.end(), now_ + Bytes{bytes});
    if (own_.peak && after > *own_.peak) collect_sends(true);
    return {backend_.allocate(Bytes{bytes}), Bytes{bytes}};
  }

  [[nodiscard]] Held hold(MemoryKind kind, std::int64_t bytes) {
    Held held = allocate(bytes);
    changes_[static_cast<std::size_t>(kind)] += held.bytes;
    return held;
  }

  void drop(MemoryKind kind, Held held) { changes_[static_cast<std::size_t>(kind)] -= held.bytes; }

  [[nodiscard]] std::span<std::byte> bytes(Held& held) { return backend_.bytes(held.buffer); }

  template <class Key>
  [[nodiscard]] std::span<std::byte> keep(std::map<Key, Held>& all, std::type_identity_t<Key> key,
                                          MemoryKind kind, std::int64_t size) {
    return bytes(all.insert_or_assign(key, hold(kind, size)).first->second);
  }

  // --- messages ---

  void post(Moment moment, MessageRef message) {
    if (message.index >= program_.channels[message.channel].messages.size()) return;
    Held& held = receives_.emplace(message, allocate(boundary_.bytes(boundary_.sent(message))))
                     .first->second;
    emit(moment, MemoryKind::receive_buffer, message, unit_, held.bytes);
    link_.post_receive(boundary_.channel(message.channel), message.index,
                       boundary_.travelling(message, bytes(held)));
  }

  void emit_sent(MessageRef message, const Held& held) {
    const Message& sent = program_.channels[message.channel].messages[message.index];
    emit(Moment::transfer_end, MemoryKind::send_buffer, message, sent.sender_unit, -held.bytes);
  }

  /// Frees buffers of messages that have been sent, those that are late too where they are awaited.
  void collect_sends(bool await_late = false) {
    std::erase_if(sends_, [&](const auto& send) {
      const auto& [message, held] = send;
      const ChannelWork& work = program_.channels[message.channel];
      const Channel channel = boundary_.channel(message.channel);
      if (work.messages[message.index].kept_until > unit_) return false;
      if (await_late) link_.await_send(channel, message.index);
      if (!link_.send_ended(channel, message.index)) return false;
      emit_sent(message, held);
      return true;
    });
  }

  void await_send(MessageRef message) {
    const auto send = sends_.find(message);
    if (send == sends_.end()) return;
    link_.await_send(boundary_.channel(message.channel), message.index);
    emit_sent(message, send->second);
    sends_.erase(send);
  }

  // --- units ---

  void start() {
    backend_.begin_step(plan_, data_);
    result_.held = backend_.static_bytes();
    const StaticBytes& held = result_.held;
    emit(Moment::step_start, MemoryKind::weights, std::nullopt, 0, held.weights);
    emit(Moment::step_start, MemoryKind::weight_gradients, std::nullopt, 0, held.gradients);
    emit(Moment::step_start, MemoryKind::optimizer_state, std::nullopt, 0, held.optimizer);
    for (const std::size_t channel : own_.incoming) {
      for (std::size_t message = 0; message < static_cast<std::size_t>(plan_.max_in_flight);
           ++message) {
        post(Moment::step_start, {channel, message});
      }
    }
  }

  void step(const UnitWork& work) {
    const auto max_in_flight = static_cast<std::size_t>(plan_.max_in_flight);
    if (work.send && work.send->index >= max_in_flight) {
      await_send({work.send->channel, work.send->index - max_in_flight});
    }
    if (const auto& from = work.receive) {
      link_.await_receive(boundary_.channel(from->channel), from->index);
    }
    collect_sends();
    switch (work.unit.kind) {
      case UnitKind::forward:
        forward(work);
        break;
      case UnitKind::backward:
        backward(work);
        break;
      case UnitKind::head:
        head(work);
        break;
      case UnitKind::reduce:
        backend_.reduce(work.unit.chunk, link_);
        break;
      case UnitKind::optimizer:
        backend_.optimize(link_);
        break;
      case UnitKind::weight:
        weight(work);
        break;
    }
    emit_changes(Moment::unit_end);
    if (work.send) {
      const MessageRef message = *work.send;
      link_.queue_send(boundary_.channel(message.channel), message.index,
                       boundary_.travelling(message, bytes(sends_.at(message))));
    }
    if (work.receive) {
      const auto done = receives_.find(*work.receive);
      emit(Moment::unit_end, MemoryKind::receive_buffer, done->first, unit_, -done->second.bytes);
      receives_.erase(done);
      post(Moment::unit_end, {work.receive->channel, work.receive->index + max_in_flight});
    }
  }

  [[nodiscard]] const Stage& stage(const UnitWork& work) const {
    return plan_.stages[static_cast<std::size_t>(work.virtual_stage)];
  }
  [[nodiscard]] bool is_last(const UnitWork& work) const {
    return work.virtual_stage + 1 == virtual_stages_of(plan_).size();
  }

  [[nodiscard]] std::span<std::byte> input(const UnitWork& work) {
    if (work.receive) return bytes(receives_.at(*work.receive));
    const auto handed = handed_.find({work.unit.pack, work.virtual_stage});
    require(handed != handed_.end(), "the neighbouring stage must have run before");
    return bytes(handed->second);
  }

  /// The buffer for what leaves the unit towards virtual stage `to`.
  [[nodiscard]] std::span<std::byte> output(const UnitWork& work, std::int32_t to) {
    const std::int64_t size = boundary_.bytes(part(work));
    if (!work.send) return keep(handed_, {work.unit.pack, to}, MemoryKind::receive_buffer, size);
    Held held = allocate(size);
    emit(Moment::unit_start, MemoryKind::send_buffer, work.send, unit_, held.bytes);
    return bytes(sends_.emplace(*work.send, std::move(held)).first->second);
  }

  void drop_handed(const UnitWork& work) {
    const auto handed = handed_.find({work.unit.pack, work.virtual_stage});
    if (handed == handed_.end()) return;
    drop(MemoryKind::receive_buffer, std::move(handed->second));
    handed_.erase(handed);
  }

  [[nodiscard]] const PackWork& part(const UnitWork& work) const {
    return program_.packs[index(work.unit.pack)][work.rank];
  }

  /// Runs a unit with its workspace.
  template <class Call, std::invocable Run>
  void run_in(const UnitWork& work, Call& call, Run run) {
    Held held =
        hold(MemoryKind::workspace, workspace_bytes(plan_, program_, size_, layer_, work, own_.pp));
    call.workspace = bytes(held);
    emit_changes(Moment::unit_start);
    run();
    drop(MemoryKind::workspace, std::move(held));
  }

  void forward(const UnitWork& work) {
    PackCall call = pack_call(plan_, program_, work, process_groups_);
    const std::int64_t layers = stage(work).layers();
    const std::int64_t page_bytes = layers * layer_.token.kv * plan_.memory.page_tokens.value;
    for (const std::size_t id : part(work).blocks) {
      const Block& block = program_.blocks[id];
      const auto mode = static_cast<std::size_t>(block.recompute);
      const std::int64_t size = layers * (block.rows.value * layer_.token.kept[mode] +
                                          block.share.value * layer_.row.kept[mode]);
      call.blocks.push_back({keep(kept_, {call.chunk, id}, MemoryKind::activations, size),
                             {},
                             block.rows,
                             block.recompute});
    }
    for (const Segment& segment : part(work).segments) {
      SegmentMemory memory = segment_memory(program_, part(work), segment, rows_);
      Sample& sample = samples_[{call.chunk, segment.slice.sample}];
      const std::int64_t pages =
          pages_of(memory.kept.tokens(segment.shard, segment.slice.end), plan_.memory.page_tokens);
      require(sample.forward == segment.slice.begin,
              "forward slices must run in rising order, not so sample",
              static_cast<std::int64_t>(index(segment.slice.sample)));
      sample.forward = sample.backward = segment.slice.end;
      while (memory.kept.pages && static_cast<std::int64_t>(sample.pages.size()) < pages) {
        sample.pages.push_back(hold(MemoryKind::keys_values, page_bytes / memory.kept.parts));
      }
      for (Held& held : sample.pages) memory.pages.push_back(bytes(held));
      call.segments.push_back(std::move(memory));
    }
    if (work.virtual_stage > 0) call.input = input(work);
    if (is_last(work)) {
      call.output =
          keep(last_outputs_, call.pack, MemoryKind::last_output, boundary_.bytes(part(work)));
    } else {
      call.output = output(work, work.virtual_stage + 1);
    }
    run_in(work, call, [&] { backend_.forward(call, link_); });
    drop_handed(work);
  }

  void backward(const UnitWork& work) {
    PackCall call = pack_call(plan_, program_, work, process_groups_);
    const std::int64_t layers = stage(work).layers();
    for (const Segment& segment : part(work).segments) {
      SegmentMemory memory = segment_memory(program_, part(work), segment, rows_);
      Sample& sample = samples_[{call.chunk, segment.slice.sample}];
      const Tokens length = plan_.samples[index(segment.slice.sample)];
      require(sample.forward == length && sample.backward == segment.slice.end,
              "backward slices must run in falling order after all forward ones, not so sample",
              static_cast<std::int64_t>(index(segment.slice.sample)));
      sample.backward = segment.slice.begin;
      if (memory.kept.gradients && sample.gradients.empty()) {
        const std::int64_t size = layers * (layer_.token.kv_gradient / memory.kept.parts) *
                                  memory.kept.tokens(segment.shard, length).value;
        sample.gradients.push_back(hold(MemoryKind::key_value_gradients, size));
        backend_.clear(sample.gradients.back().buffer);
      }
      for (Held& held : sample.gradients) memory.gradients = bytes(held);
      for (Held& held : sample.pages) memory.pages.push_back(bytes(held));
      call.segments.push_back(std::move(memory));
    }
    for (const std::size_t id : part(work).blocks) {
      const Block& block = program_.blocks[id];
      BlockMemory memory{bytes(kept_.at({call.chunk, id})), {}, block.rows, block.recompute};
      if (is_last(work)) {
        const auto gradient = hidden_.find(id);
        require(gradient != hidden_.end(), "tokens must have been through H, not so MicroPack",
                static_cast<std::int64_t>(index(block.forward)));
        memory.hidden_gradient = bytes(gradient->second);
      }
      call.blocks.push_back(memory);
    }
    const bool apart = call.weights == WeightGradients::apart;
    if (apart) apart_.begin(call, part(work), layers, kept_change());
    if (!is_last(work)) call.input = input(work);
    if (work.virtual_stage > 0) call.output = output(work, work.virtual_stage - 1);
    run_in(work, call, [&] { backend_.backward(call, link_); });
    drop_handed(work);
    if (apart) apart_.leave(part(work), layers, kept_change());
    release(work);
  }

  void weight(const UnitWork& work) {
    PackCall call = pack_call(plan_, program_, work, process_groups_);
    apart_.fill(call, part(work));
    run_in(work, call, [&] {
      if constexpr (WeightBackend<Device, Link>) backend_.weight(call, link_);
    });
    apart_.free(call, part(work), kept_change());
  }

  [[nodiscard]] Bytes& kept_change() noexcept {
    return changes_[static_cast<std::size_t>(MemoryKind::activations)];
  }

  /// Frees what was kept of a B's tokens, and keys and values of samples whose first token it held.
  void release(const UnitWork& work) {
    for (const std::size_t id : part(work).blocks) {
      const auto kept = kept_.find({work.unit.chunk, id});
      drop(MemoryKind::activations, std::move(kept->second));
      kept_.erase(kept);
      if (!is_last(work)) continue;
      const auto gradient = hidden_.find(id);
      drop(MemoryKind::hidden_gradients, std::move(gradient->second));
      hidden_.erase(gradient);
    }
    for (const Segment& segment : part(work).segments) {
      if (segment.slice.begin > Tokens{}) continue;
      const auto sample = samples_.find({work.unit.chunk, segment.slice.sample});
      for (Held& held : sample->second.pages) drop(MemoryKind::keys_values, std::move(held));
      for (Held& held : sample->second.gradients) {
        drop(MemoryKind::key_value_gradients, std::move(held));
      }
      samples_.erase(sample);
    }
  }

  void head(const UnitWork& work) {
    const bool last = own_.pp + 1 == plan_.parallel.pp;
    HeadCall call = head_call(plan_, program_, work, process_groups_);
    for (const std::size_t id : part(work).blocks) {
      const Block& block = program_.blocks[id];
      BlockMemory memory{{}, {}, block.rows, block.recompute};
      if (last) {
        memory.hidden_gradient =
            keep(hidden_, id, MemoryKind::hidden_gradients, boundary_.bytes(block));
      }
      call.blocks.push_back(memory);
    }
    const auto output = last_outputs_.find(call.pack);
    if (last) {
      require(output != last_outputs_.end(), "F of the last stage must have run before");
      call.hidden = bytes(output->second);
      losses_.emplace_back(call.pieces,
                           std::vector<double>(static_cast<std::size_t>(call.rows.value)));
      call.losses = losses_.back().second;
    }
    run_in(work, call, [&] { backend_.head(call, link_); });
    if (!last) return;
    drop(MemoryKind::last_output, std::move(output->second));
    last_outputs_.erase(output);
  }

  void finish() {
    if constexpr (requires { backend_.finish(link_); }) backend_.finish(link_);
    for (const auto& [pieces, losses] : losses_)
      detail::append_losses(result_.losses, pieces, losses);
    while (!sends_.empty()) await_send(sends_.begin()->first);
    detail::require_drained({{"kept activations", kept_.size()},
                             {"keys and values", samples_.size()},
                             {"what is left to W", apart_.size()},
                             {"outputs of the last layer", last_outputs_.size()},
                             {"hidden gradients", hidden_.size()},
                             {"tensors between chunks", handed_.size()},
                             {"receive buffers", receives_.size()}});
    const Bytes held = result_.held.weights + result_.held.gradients + result_.held.optimizer;
    if (now_ == held) return;
    throw ExecutionError("the step must end with the bytes always held, " +
                         std::to_string(held.value) + ", but counts " + std::to_string(now_.value));
  }

  const Plan& plan_;
  const Program& program_;
  const DeviceProgram& own_;
  TensorRows rows_;
  StageProcessGroups process_groups_;
  const StepData& data_;
  std::size_t device_;
  Device& backend_;
  Link& link_;
  const MemoryObserver& observer_;
  ElementBytes size_;
  SplitBytes layer_;
  BoundaryRows boundary_;
  ApartRows<Device> apart_;
  bool started_ = false;
  std::size_t unit_ = 0;
  Bytes now_;
  std::array<Bytes, kMemoryKinds> changes_{};
  std::map<ChunkBlock, Held> kept_;
  std::map<ChunkSample, Sample> samples_;
  std::map<PackId, Held> last_outputs_;
  std::map<std::size_t, Held> hidden_;  ///< by block
  std::map<std::pair<PackId, std::int32_t>, Held> handed_;
  std::map<MessageRef, Held> receives_, sends_;
  std::vector<std::pair<std::vector<PieceMemory>, std::vector<double>>> losses_;  ///< by H
  DeviceResult result_;
};

}  // namespace slimpack::runtime
