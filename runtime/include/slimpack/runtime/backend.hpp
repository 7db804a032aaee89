// SPDX-License-Identifier: Apache-2.0
// What computes: a backend is given the memory it works on and the transport to other devices.
#pragma once

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/plan/cp_shard.hpp"
#include "slimpack/plan/memory.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/plan/tensor_rows.hpp"
#include "slimpack/plan/virtual_stages.hpp"
#include "slimpack/runtime/memory_events.hpp"
#include "slimpack/runtime/process_groups.hpp"
#include "slimpack/runtime/program.hpp"
#include "slimpack/runtime/transport.hpp"

namespace slimpack::runtime {

/// What a step learns from: tokens and targets by sample. A token without a target adds no loss.
struct StepData {
  std::vector<std::vector<std::int32_t>> tokens;  ///< ids in [0, vocab), by sample and position
  /// The token that each token is to predict, by sample and position.
  std::vector<std::vector<std::optional<std::int32_t>>> targets;
};

/// A block and its own memory. With tensor parallelism it has room for the largest share of rows of
/// any device: "own rows" below are those of this device (`TensorRows`), all rows without it.
struct BlockMemory {
  std::span<std::byte> kept;  ///< F and B: layers x kept_bytes x rows, of hidden states own rows
  std::span<std::byte> hidden_gradient;   ///< H, and B of the last virtual stage: own rows x hidden
  Tokens rows;                            ///< tokens of the block
  Recompute recompute = Recompute::none;  ///< what `kept` holds of each layer and row
};

/// A piece and where its rows are: rows [row, row + length) of a block of the call.
struct PieceMemory {
  Piece piece;            ///< as in `Program::pieces`
  std::size_t block = 0;  ///< position among the blocks of the call, not in `Program::blocks`
  Tokens row;             ///< of its first token in that block
  /// B that leaves weights apart, and W: layers x left_apart bytes (`LayerBytes`) x rows.
  std::span<std::byte> apart{};
  Tokens own{};      ///< own rows of the piece; all without tensor parallelism
  Tokens own_row{};  ///< of the first of them among the own rows of that block
};

/// One rank's part of a slice with its memory. Own token i of the sample (counted from 0) has its
/// keys and values in row i mod page_tokens of page i / page_tokens, and its gradients of keys and
/// values in row i; by heads (`KeptKeys::by_heads`) so has any token of the sample, of the rank's
/// part of the heads, with key widths divided by the parts. `gradients` exists in B only. What
/// `kept` leaves out, which it does only where the slice is the whole sample, has its place in the
/// unit's workspace, layer by layer: keys and values, which B then makes again from the layers'
/// inputs, and gradients.
struct SegmentMemory {
  Slice slice;                            ///< all of it, with the tokens of the group's other ranks
  RingMode exchange = RingMode::pass_kv;  ///< without meaning in a group of one
  Tokens rows;                            ///< tokens of all `pieces`; 0 where the rank owns none
  KeptKeys kept;                          ///< whether there are `pages` and, in B, `gradients`
  std::vector<PieceMemory> pieces;        ///< tokens of the slice that the rank owns, ascending
  std::vector<std::span<std::byte>> pages;  ///< each layers x 2 x key width x page_tokens
  std::span<std::byte> gradients;           ///< layers x 2 x key width x own tokens of the sample
  CpShard shard{};                          ///< which tokens of the sample are the rank's
};

/// A piece of `work` with its place among the blocks of the call and its rows on a device.
[[nodiscard]] inline PieceMemory piece_memory(const Program& program, const PackWork& work,
                                              std::size_t piece, const TensorRows& rows = {}) {
  const Piece& found = program.pieces[piece];
  const auto block = std::find(work.blocks.begin(), work.blocks.end(), found.block);
  PieceMemory memory{found,           static_cast<std::size_t>(block - work.blocks.begin()),
                     found.block_row, {},
                     found.length(),  found.block_row};
  if (rows.devices > 1) {
    memory.own = rows.between(found.sample, found.begin, found.end);
    memory.own_row = program.own_block_rows[piece * static_cast<std::size_t>(rows.devices) +
                                            static_cast<std::size_t>(rows.device)];
  }
  return memory;
}

/// A segment of `work` without keys and values.
[[nodiscard]] inline SegmentMemory segment_memory(const Program& program, const PackWork& work,
                                                  const Segment& segment,
                                                  const TensorRows& rows = {}) {
  const KeptKeys kept = program.keys[index(segment.slice.sample)];
  SegmentMemory memory{segment.slice, segment.exchange, segment.rows, kept, {}, {}, {},
                       segment.shard};
  for (const std::size_t piece : segment.pieces) {
    memory.pieces.push_back(piece_memory(program, work, piece, rows));
  }
  return memory;
}

/// F, B or W of a pack on one virtual stage. `input` and `output` are own rows x hidden:
/// activations in F, gradients in B; with tensor parallelism they have room for the largest share.
/// `input` is empty where the backend has it otherwise: token embeddings in F of virtual stage 0,
/// hidden gradients in B of the last one. `output` is empty in B of virtual stage 0. W has neither,
/// nor blocks: all that it needs is in the memory `apart` of its pieces.
struct PackCall {
  PackId pack{};                          ///< forward pack for F, backward for B, weight for W
  std::int32_t chunk = 0;                 ///< chunk of the device that holds the layers
  std::int32_t virtual_stage = 0;         ///< in `Plan::stages`
  Recompute recompute = Recompute::none;  ///< B: what was kept
  ProcessGroup ring;                      ///< the ranks of the group on this stage, in its order
  Tokens rows;                            ///< tokens of the pack that the rank owns; can be 0
  std::vector<BlockMemory> blocks;        ///< all that the pieces of the segments lie in
  std::vector<SegmentMemory> segments;    ///< one a slice of the pack, in the pack's order
  std::span<const std::byte> input;       ///< from the neighbouring virtual stage
  std::span<std::byte> output;            ///< for the neighbouring one; of F on the last one: for H
  std::span<std::byte> workspace;         ///< of any content; its size is in docs/equations.md
  WeightGradients weights = WeightGradients::with;  ///< B: `apart` fills `apart` of its pieces
  bool releases =
      false;            ///< B and W: gradients of a layer that it has passed may be summed at once
  TensorRows own;       ///< which rows the device holds
  ProcessGroup tensor;  ///< the tensor-parallel devices of rank and stage, in step with this one

  /// Whether several ranks compute the pack together.
  [[nodiscard]] bool in_cp_group() const noexcept { return ring.members.size() > 1; }
};

/// The call of F, B or W of a device, without memory. O(ranks of the group + tp).
[[nodiscard]] inline PackCall pack_call(const Plan& plan, const Program& program,
                                        const UnitWork& work,
                                        const StageProcessGroups& process_groups) {
  const MicroPack& pack = plan.micropacks[index(work.unit.pack)];
  PackCall call;
  call.pack = work.unit.pack;
  call.chunk = work.unit.chunk;
  call.virtual_stage = work.virtual_stage;
  call.recompute = pack.recompute;
  call.weights = pack.weights;
  call.releases = work.releases;
  call.ring = process_groups.of_ranks(plan.groups[index(pack.group)], work.rank);
  const RingOrder& order =
      program.rings[index(pack.group) * static_cast<std::size_t>(plan.parallel.pp) +
                    static_cast<std::size_t>(process_groups.pp)];
  if (order.nodes() > 1) call.ring.per_node = static_cast<std::size_t>(order.per_node);
  call.own = {process_groups.tp, plan.parallel.tp};
  call.tensor = process_groups.tensor();
  call.rows = program.packs[index(work.unit.pack)][work.rank].rows;
  return call;
}

/// H of a forward pack. On the last stage `hidden` is the last layer's output, own rows x hidden,
/// the hidden gradients of the blocks are to be filled, and `losses` gets one number a row, zero
/// where a token has no target, by the end of the step; elsewhere they are empty.
struct HeadCall {
  PackId pack{};                      ///< a forward pack
  Tokens rows;                        ///< tokens of the pack that the rank owns; can be 0
  std::vector<BlockMemory> blocks;    ///< without `kept`
  std::vector<PieceMemory> pieces;    ///< of the pack's rows, in their order
  ProcessGroup stages;                ///< of the rank; one member unless the head is sharded
  std::span<const std::byte> hidden;  ///< output of the last layer, before the final norm
  std::span<double> losses;           ///< in the order of the rows
  std::span<std::byte> workspace;     ///< of any content, for min(rows, head_tile) rows
  TensorRows own;                     ///< which rows the device holds
  ProcessGroup tensor;                ///< the tensor-parallel devices of rank and stage
};

/// The call of H of a device, without memory. O(pieces x blocks).
[[nodiscard]] inline HeadCall head_call(const Plan& plan, const Program& program,
                                        const UnitWork& work,
                                        const StageProcessGroups& process_groups) {
  const PackWork& part = program.packs[index(work.unit.pack)][work.rank];
  HeadCall call;
  call.pack = work.unit.pack;
  call.rows = part.rows;
  call.stages =
      plan.parallel.head == LmHead::shard
          ? process_groups.stages()
          : ProcessGroup{{process_groups.device_at(process_groups.dp, process_groups.pp)}, 0};
  call.own = {process_groups.tp, plan.parallel.tp};
  call.tensor = process_groups.tensor();
  for (const Segment& segment : part.segments) {
    for (const std::size_t piece : segment.pieces) {
      call.pieces.push_back(piece_memory(program, part, piece, call.own));
    }
  }
  return call;
}

/// One device's computation and memory.
/// Laws:
/// - `allocate` gives exactly that many bytes of any content, `clear` makes them zero. A unit uses
///   the spans of its call and what `static_bytes` counts, and nothing else from unit to unit.
/// - `forward` fills `output`, what is kept and the pages; `backward` reads them, adds to the
///   gradients, fills `output`. Weight gradients are summed over all units of a step; H scales
///   them by 1 / target_tokens.
/// - `reduce` queues the sums of a chunk's gradients over the ranks, with chunk 0 embedding, final
///   norm and head too, as far as a `backward` that releases has not, and never blocks; `optimize`
///   awaits all sums, then updates the weights.
/// - Where ranks share weights (`MemorySpec::weights`), they run units of one kind at the same
/// time.
///   `forward`, `backward` and `head` make the weights that they use whole and sum what they add to
///   gradients onto the ranks that own them, with all ranks, also where a rank has no rows;
///   `reduce` then finds nothing left to sum.
/// - A backend that has `finish(link)` gets this call behind the last unit: what it has queued,
///   losses above all, has happened when it returns.
/// - With tensor parallelism the devices `tensor` of a call run it at the same time: each holds its
///   heads, its part of ffn and vocabulary, its rows, and all gains of norms, which stay equal.
/// - Equal input gives equal bits, in any interleaving of devices.
template <class Candidate, class Link>
concept Backend =
    requires(Candidate& backend, const Candidate& constant, typename Candidate::Buffer& buffer,
             Link& link, const PackCall& pack, const HeadCall& head, const StepData& data,
             Bytes bytes, std::int32_t chunk, const Plan& plan) {
      requires std::movable<typename Candidate::Buffer>;
      { constant.element_bytes() } -> std::same_as<ElementBytes>;
      { constant.static_bytes() } -> std::same_as<StaticBytes>;
      { backend.allocate(bytes) } -> std::same_as<typename Candidate::Buffer>;
      { constant.bytes(buffer) } -> std::same_as<std::span<std::byte>>;
      backend.clear(buffer);
      backend.begin_step(plan, data);
      backend.forward(pack, link);
      backend.backward(pack, link);
      backend.head(head, link);
      backend.reduce(chunk, link);
      backend.optimize(link);
    };

/// A backend that can leave gradients of weights apart.
/// Laws:
/// - `backward` of a call whose `weights` are apart fills `apart` of every piece instead of adding
///   to the gradients of the layers' matrices; `weight` reads it and adds to them. Those of norms
///   and embedding stay with `backward`.
template <class Candidate, class Link>
concept WeightBackend =
    Backend<Candidate, Link> &&
    requires(Candidate& backend, Link& link, const PackCall& pack) { backend.weight(pack, link); };

/// Calls visit(piece, its losses) for each piece; `losses` has one number a row, in the order of
/// the pieces. O(pieces).
template <class Visit>
  requires std::invocable<Visit, const Piece&, std::span<const double>>
void for_each_piece_loss(std::span<const PieceMemory> pieces, std::span<const double> losses,
                         Visit visit) {
  for (const PieceMemory& memory : pieces) {
    const auto rows = static_cast<std::size_t>(memory.piece.length().value);
    visit(memory.piece, losses.first(rows));
    losses = losses.subspan(rows);
  }
}

/// Collects samples for a message, "1, 4": each once where its pieces follow each other.
class SampleList {
 public:
  /// Adds a sample, unless it is the last one added.
  void add(SampleId sample) {
    if (last_ == sample) return;
    last_ = sample;
    text_ += (text_.empty() ? "" : ", ") + std::to_string(index(sample));
  }
  /// The list; empty where no sample was added.
  [[nodiscard]] const std::string& text() const noexcept { return text_; }

 private:
  std::string text_;
  std::optional<SampleId> last_;
};

/// The samples that have a number that is not finite, as a list for a message; empty where all are
/// finite. `numbers` has one number a row, in the order of the pieces. O(rows).
[[nodiscard]] inline std::string samples_not_finite(std::span<const PieceMemory> pieces,
                                                    std::span<const double> numbers) {
  SampleList samples;
  for_each_piece_loss(pieces, numbers, [&](const Piece& piece, std::span<const double> values) {
    const bool good =
        std::ranges::all_of(values, [](double value) { return std::isfinite(value); });
    if (!good) samples.add(piece.sample);
  });
  return samples.text();
}

/// Losses of tokens [begin, begin + values.size()) of a sample.
struct TokenLosses {
  SampleId sample{};           ///< in `Plan::samples`
  Tokens begin;                ///< position in the sample that the first value belongs to
  std::vector<double> values;  ///< one a token, not divided; zero where a token has no target
};

/// What a device ends its step with.
struct DeviceResult {
  std::vector<TokenLosses> losses;  ///< on devices of the last stage
  StaticBytes held;                 ///< weights, gradients and optimizer state
  Bytes peak;  ///< the most bytes held at one time, held ones included, in the device's own order
};

namespace detail {

/// The losses by sample and token.
inline void append_losses(std::vector<TokenLosses>& to, std::span<const PieceMemory> pieces,
                          std::span<const double> losses) {
  for_each_piece_loss(pieces, losses, [&](const Piece& piece, std::span<const double> values) {
    to.push_back({piece.sample, piece.begin, {values.begin(), values.end()}});
  });
}

/// Throws ExecutionError that names the first of what is held although the step has ended.
inline void require_drained(std::initializer_list<std::pair<const char*, std::size_t>> held) {
  for (const auto& [what, count] : held) {
    if (count == 0) continue;
    throw ExecutionError("the step must end drained, but holds " + std::string(what) + " (" +
                         std::to_string(count) + ")");
  }
}

}  // namespace detail

}  // namespace slimpack::runtime
