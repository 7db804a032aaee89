// SPDX-License-Identifier: Apache-2.0
// A plan as its devices read it: pieces of samples, each rank's part of each pack, messages.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/plan/cp_shard.hpp"
#include "slimpack/plan/memory.hpp"
#include "slimpack/plan/names.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/plan/ring_order.hpp"
#include "slimpack/plan/structure.hpp"
#include "slimpack/plan/tensor_rows.hpp"
#include "slimpack/plan/virtual_stages.hpp"
#include "slimpack/runtime/executable.hpp"
#include "slimpack/runtime/memory_events.hpp"
#include "slimpack/runtime/transport.hpp"

namespace slimpack::runtime {

/// Tokens [begin, end) of a sample that one rank owns and that lie in one forward, one backward
/// and, where weights are apart, one weight pack: they are in one block.
struct Piece {
  SampleId sample{};                      ///< in `Plan::samples`
  Tokens begin;                           ///< position of its first token in the sample
  Tokens end;                             ///< position behind its last token
  PackId forward{};                       ///< forward pack that holds its tokens
  PackId backward{};                      ///< backward pack that holds its tokens
  Recompute recompute = Recompute::none;  ///< mode of the backward pack: what F keeps of it
  std::size_t block = 0;                  ///< in `Program::blocks`
  Tokens block_row;                       ///< row of its first token in that block
  std::optional<PackId> weight{};  ///< weight pack that holds its tokens, where weights are apart
  /// Number of tokens.
  [[nodiscard]] constexpr Tokens length() const noexcept { return end - begin; }
};

/// All tokens of a rank that lie in one forward and one backward pack: what is saved of them is
/// allocated and freed together. Its rows are those of the forward pack that are in the backward
/// one, in the forward pack's order.
struct Block {
  PackId forward{};                       ///< forward pack that holds its tokens
  PackId backward{};                      ///< backward pack that holds its tokens
  Recompute recompute = Recompute::none;  ///< mode of the backward pack: what F keeps of it
  Tokens rows;                            ///< number of its tokens, > 0
  Tokens share;  ///< rows of them that a tensor-parallel device holds at most (`Share`)
};

/// Tokens of a rank that lie in one forward, one backward and, where weights are apart, one weight
/// pack, of whose rows a tensor-parallel device holds `rows` at most. Buffers are counted, and
/// collectives padded, by these: sums of them are the same from whichever pass they are seen.
struct Share {
  std::size_t block = 0;           ///< in `Program::blocks`
  std::optional<PackId> weight{};  ///< weight pack that holds the tokens, where weights are apart
  Tokens tokens;                   ///< number of tokens
  Tokens rows;                     ///< of the device that has most rows; all without tp
};

/// One rank's part of a slice: the pieces that it owns.
struct Segment {
  Slice slice;                            ///< all of it, with the tokens of the group's other ranks
  RingMode exchange = RingMode::pass_kv;  ///< without meaning in a group of one
  std::vector<std::size_t> pieces;        ///< in `Program::pieces`, ascending
  Tokens rows;                            ///< tokens of all `pieces`; 0 where the rank owns none
  CpShard shard{};                        ///< which tokens of the sample are the rank's
};

/// One rank's part of a pack. Its rows are its tokens, slice by slice, ascending in each.
struct PackWork {
  std::vector<Segment> segments;      ///< one a slice of the pack, in the pack's order
  std::vector<std::size_t> blocks;    ///< in `Program::blocks`, in the order of their first rows;
                                      ///< none in weight packs
  Tokens rows;                        ///< sum of the segments' rows; can be 0 in a CP group
  std::vector<std::size_t> shares{};  ///< in `Program::shares`: parts of its tokens
  Tokens share{};                     ///< sum of their rows
};

/// A message: what the `sender_unit`-th unit of the sending device makes.
struct Message {
  PackId pack{};                   ///< of the unit that makes it and of the one that consumes it
  std::int32_t virtual_stage = 0;  ///< of the sender
  std::size_t rank = 0;         ///< of both ends in the pack's group; without tokens it is sent too
  std::size_t sender_unit = 0;  ///< position in the order of the sending device
  std::size_t receiver_unit = 0;  ///< position, in the receiver's order, of the unit that consumes
  /// Position in the sender's order of the first unit before which the buffer may be freed, once
  /// the message is sent (`keep_sends`).
  std::size_t kept_until = 0;
};

/// A channel with all that travels on it in a step.
struct ChannelWork {
  Channel channel;                ///< its ends and its direction
  std::vector<Message> messages;  ///< in the order sent
};

/// A unit with everything that the plan says about it.
struct UnitWork {
  Unit unit;                          ///< the entry in the device's order
  std::int32_t virtual_stage = 0;     ///< of the unit's chunk; of chunk 0 for H and O
  std::size_t rank = 0;               ///< position in the pack's group; 0 for R and O
  std::optional<MessageRef> receive;  ///< message that it consumes; none where none arrives
  std::optional<MessageRef> send;  ///< message that it makes; none where nothing leaves the device
  bool releases = false;  ///< B and W: only R come between it and its chunk's R (docs/equations.md)
};

/// The order of device (dp, pp), with what each unit receives and sends. With tensor parallelism
/// its tp devices run it in step: each sends its rows to its like on the neighbouring stage.
struct DeviceProgram {
  std::int32_t dp = 0;                ///< data-parallel rank
  std::int32_t pp = 0;                ///< stage
  std::vector<UnitWork> units;        ///< as in `DeviceSchedule::order`
  std::vector<std::size_t> incoming;  ///< channels that end here, in `Program::channels`, ascending
  std::optional<Bytes> peak;          ///< above which it waits for late messages (`keep_sends`)
};

/// A plan as its devices read it. Indices count within these vectors.
struct Program {
  std::vector<KeptKeys> keys;  ///< by sample: what is held from unit to unit
  std::vector<Piece> pieces;   ///< by sample, then slices, then rank, then position
  std::vector<Block> blocks;   ///< by forward pack, then rank of its group
  std::vector<Share> shares;   ///< by block, then weight pack
  /// With tensor parallelism, by piece and tensor-parallel part: rows of that device in the piece's
  /// block that come before the piece.
  std::vector<Tokens> own_block_rows;
  std::int32_t tensor_parallel = 1;          ///< devices that run each order
  std::vector<std::vector<PackWork>> packs;  ///< by pack, then rank of its group
  std::vector<ChannelWork> channels;         ///< in the order of the first units that send on them
  std::vector<DeviceProgram> devices;        ///< as in `Plan::schedule`
  std::vector<RingOrder> rings;              ///< by group, then stage

  /// How many devices run the program: a position below is (dp, pp), then tp.
  [[nodiscard]] std::size_t device_count() const noexcept {
    return devices.size() * static_cast<std::size_t>(tensor_parallel);
  }
  /// The order of one of them.
  [[nodiscard]] const DeviceProgram& of_device(std::size_t device) const {
    return devices[device / static_cast<std::size_t>(tensor_parallel)];
  }
  /// Its part among the tensor-parallel devices of its stage.
  [[nodiscard]] TensorRows rows_of_device(std::size_t device) const noexcept {
    return {static_cast<std::int64_t>(device % static_cast<std::size_t>(tensor_parallel)),
            tensor_parallel};
  }
};

/// The program of a plan that `validate` passes. Throws InvalidInput, before any work, as
/// `check_executable` does, if the plan's tables do not fit together, if the slices of a pass do
/// not partition a sample, if a receiver consumes in another order than the sender sends, or if
/// ranks or stages run their common collectives in different orders. O(n log n) in slices and
/// units, times the ranks of a group.
[[nodiscard]] Program make_program(const Plan& plan);

namespace detail {

/// A slice, and where it stands among the packs.
struct PlacedSlice {
  Slice slice;
  PackId pack{};
  std::size_t slot = 0;  ///< in the pack
};

/// Slices of one pass by sample, ascending; throws unless they partition every sample.
inline std::vector<std::vector<PlacedSlice>> slices_of(const Plan& plan, Pass pass) {
  std::vector<std::vector<PlacedSlice>> slices(plan.samples.size());
  for (std::size_t id = 0; id < plan.micropacks.size(); ++id) {
    const MicroPack& pack = plan.micropacks[id];
    if (pack.pass != pass) continue;
    for (std::size_t i = 0; i < pack.slices.size(); ++i) {
      const Slice& slice = pack.slices[i];
      slices[index(slice.sample)].push_back({slice, static_cast<PackId>(id), i});
    }
  }
  for (std::size_t sample = 0; sample < slices.size(); ++sample) {
    auto& parts = slices[sample];
    std::sort(parts.begin(), parts.end(),
              [](const PlacedSlice& a, const PlacedSlice& b) { return a.slice < b.slice; });
    Tokens end;
    bool whole = true;
    for (const PlacedSlice& part : parts) {
      whole = whole && part.slice.begin == end && part.slice.end > part.slice.begin;
      end = part.slice.end;
    }
    if (pass == Pass::weight) continue;  // they hold what backward leaves apart
    require(whole && end == plan.samples[sample],
            "execution: the " + std::string(to_string(pass)) + " slices must partition sample",
            static_cast<std::int64_t>(sample));
  }
  return slices;
}

inline void add_pieces(const Plan& plan, Program& program) {
  program.packs.resize(plan.micropacks.size());
  for (std::size_t id = 0; id < plan.micropacks.size(); ++id) {
    const MicroPack& pack = plan.micropacks[id];
    const std::size_t ranks = plan.groups[index(pack.group)].size();
    program.packs[id].resize(ranks);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      for (std::size_t i = 0; i < pack.slices.size(); ++i) {
        const RingMode exchange = i < pack.exchange.size() ? pack.exchange[i] : RingMode::pass_kv;
        program.packs[id][rank].segments.push_back(
            {pack.slices[i],
             exchange,
             {},
             Tokens{},
             cp_shard_of(plan, pack.slices[i].sample, rank)});
      }
    }
  }
  const auto forward = slices_of(plan, Pass::forward);
  const auto backward = slices_of(plan, Pass::backward);
  const auto weight = slices_of(plan, Pass::weight);
  for (std::size_t sample = 0; sample < plan.samples.size(); ++sample) {
    const GroupId group = plan.sample_group[sample];
    const std::size_t ranks = plan.groups[index(group)].size();
    auto f = forward[sample].begin();
    auto b = backward[sample].begin();
    auto w = weight[sample].begin();
    const auto ended = weight[sample].end();
    const auto require_apart = [&](bool condition) {
      require(condition,
              "execution: the weight slices must hold what backward leaves apart of sample",
              static_cast<std::int64_t>(sample));
    };
    for (Tokens begin; begin < plan.samples[sample];) {
      Tokens end = std::min(f->slice.end, b->slice.end);
      const bool apart = plan.micropacks[index(b->pack)].weights == WeightGradients::apart;
      if (apart) {
        require_apart(w != ended && w->slice.begin <= begin && begin < w->slice.end);
        end = std::min(end, w->slice.end);
      } else {
        require_apart(w == ended || w->slice.begin >= end);
      }
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        Segment& down = program.packs[index(f->pack)][rank].segments[f->slot];
        Segment& up = program.packs[index(b->pack)][rank].segments[b->slot];
        cp_shard_of(plan, static_cast<SampleId>(sample), rank)
            .for_each_run(begin, end, [&](Tokens first, Tokens last) {
              const auto add = [&](PackId pack, Segment& segment) {
                segment.pieces.push_back(program.pieces.size());
                segment.rows += last - first;
                program.packs[index(pack)][rank].rows += last - first;
              };
              add(f->pack, down);
              add(b->pack, up);
              if (apart) add(w->pack, program.packs[index(w->pack)][rank].segments[w->slot]);
              program.pieces.push_back({static_cast<SampleId>(sample), first, last, f->pack,
                                        b->pack, plan.micropacks[index(b->pack)].recompute, 0,
                                        Tokens{}, apart ? std::optional(w->pack) : std::nullopt});
            });
      }
      if (apart && w->slice.end == end) ++w;
      if (f->slice.end == end) ++f;
      if (b->slice.end == end) ++b;
      begin = end;
    }
    require_apart(w == ended);
  }
}

/// Calls visit(piece) for the pieces of a pack in the order of its rows.
template <std::invocable<Piece&> Visit>
void for_each_piece(Program& program, const PackWork& work, Visit visit) {
  for (const Segment& segment : work.segments) {
    for (const std::size_t place : segment.pieces) visit(program.pieces[place]);
  }
}

/// Joins the pieces to blocks.
inline void add_blocks(const Plan& plan, Program& program) {
  for (std::size_t id = 0; id < plan.micropacks.size(); ++id) {
    if (plan.micropacks[id].pass != Pass::forward) continue;
    for (PackWork& work : program.packs[id]) {
      std::map<PackId, std::size_t> found;  // by backward pack
      for_each_piece(program, work, [&](Piece& piece) {
        const auto [entry, added] = found.try_emplace(piece.backward, program.blocks.size());
        if (added) {
          program.blocks.push_back(
              {piece.forward, piece.backward, piece.recompute, Tokens{}, Tokens{}});
          work.blocks.push_back(entry->second);
        }
        Block& block = program.blocks[entry->second];
        piece.block = entry->second;
        piece.block_row = block.rows;
        block.rows += piece.length();
      });
    }
  }
  for (std::size_t id = 0; id < plan.micropacks.size(); ++id) {
    if (plan.micropacks[id].pass != Pass::backward) continue;
    for (PackWork& work : program.packs[id]) {
      for_each_piece(program, work, [&](const Piece& piece) {
        const bool known =
            std::find(work.blocks.begin(), work.blocks.end(), piece.block) != work.blocks.end();
        if (!known) work.blocks.push_back(piece.block);
      });
    }
  }
}

/// The largest shares of rows, and where each device's rows lie in blocks.
inline void add_shares(const Plan& plan, Program& program) {
  const std::int64_t tp = plan.parallel.tp;
  struct Counted {
    Tokens tokens;
    TensorShares rows;
  };
  const auto devices = static_cast<std::size_t>(tp);
  if (tp > 1) program.own_block_rows.resize(program.pieces.size() * devices);
  for (std::size_t id = 0; id < plan.micropacks.size(); ++id) {
    if (plan.micropacks[id].pass != Pass::forward) continue;
    for (std::size_t rank = 0; rank < program.packs[id].size(); ++rank) {
      PackWork& work = program.packs[id][rank];
      std::map<std::pair<std::size_t, std::optional<PackId>>, Counted> parts;
      std::map<std::pair<std::size_t, std::int64_t>, Tokens> before;  // by block and device
      for (const Segment& segment : work.segments) {
        for (const std::size_t place : segment.pieces) {
          const Piece& piece = program.pieces[place];
          Counted& counted =
              parts.try_emplace({piece.block, piece.weight}, Counted{{}, TensorShares(tp)})
                  .first->second;
          counted.tokens += piece.length();
          counted.rows.add(piece.sample, piece.begin, piece.end);
          for (std::int64_t device = 0; tp > 1 && device < tp; ++device) {
            Tokens& rows = before[{piece.block, device}];
            program.own_block_rows[place * devices + static_cast<std::size_t>(device)] = rows;
            rows += TensorRows{device, tp}.between(piece.sample, piece.begin, piece.end);
          }
        }
      }
      for (const auto& [key, counted] : parts) {
        const Share share{key.first, key.second, counted.tokens, counted.rows.largest()};
        Block& block = program.blocks[share.block];
        block.share += share.rows;
        const auto add = [&](PackWork& of_pass) {
          of_pass.shares.push_back(program.shares.size());
          of_pass.share += share.rows;
        };
        add(work);
        add(program.packs[index(block.backward)][rank]);
        if (share.weight) add(program.packs[index(*share.weight)][rank]);
        program.shares.push_back(share);
      }
    }
  }
}

inline UnitWork locate(const Plan& plan, const DeviceSchedule& order, std::size_t place) {
  const Unit& unit = order.order[place];
  UnitWork work{unit, 0, 0, std::nullopt, std::nullopt, false};
  work.virtual_stage = virtual_stages_of(plan).index(order.pp, unit.chunk);
  if (unit.kind == UnitKind::reduce || unit.kind == UnitKind::optimizer) return work;
  const MicroPack& pack = plan.micropacks[index(unit.pack)];
  const auto& ranks = plan.groups[index(pack.group)];
  const auto rank = std::lower_bound(ranks.begin(), ranks.end(), order.dp);
  work.rank = static_cast<std::size_t>(rank - ranks.begin());
  for (const Unit& next : std::span(order.order).subspan(place + 1)) {
    const bool gradients = unit.kind == UnitKind::backward || unit.kind == UnitKind::weight;
    if (!gradients || next.kind != UnitKind::reduce) break;
    work.releases = work.releases || next.chunk == unit.chunk;
  }
  return work;
}

/// The channel between two neighbouring virtual stages of rank dp.
inline Channel channel_between(const Plan& plan, PackId pack, std::int32_t dp, std::int32_t from,
                               std::int32_t to) {
  const VirtualStages virtual_stages = virtual_stages_of(plan);
  return {plan.micropacks[index(pack)].group, dp, from < to ? Direction::down : Direction::up,
          virtual_stages.stage(from), virtual_stages.stage(to)};
}

inline void add_messages(const Plan& plan, Program& program) {
  const VirtualStages virtual_stages = virtual_stages_of(plan);
  if (virtual_stages.pp == 1) return;
  std::map<Channel, std::size_t> places;
  for (DeviceProgram& device : program.devices) {
    for (std::size_t place = 0; place < device.units.size(); ++place) {
      UnitWork& work = device.units[place];
      const bool down =
          work.unit.kind == UnitKind::forward && work.virtual_stage + 1 < virtual_stages.size();
      const bool up = work.unit.kind == UnitKind::backward && work.virtual_stage > 0;
      if (!down && !up) continue;
      const Channel channel =
          channel_between(plan, work.unit.pack, device.dp, work.virtual_stage,
                          down ? work.virtual_stage + 1 : work.virtual_stage - 1);
      const auto [found, added] = places.try_emplace(channel, program.channels.size());
      if (added) program.channels.push_back({channel, {}});
      auto& messages = program.channels[found->second].messages;
      work.send = MessageRef{found->second, messages.size()};
      messages.push_back({work.unit.pack, work.virtual_stage, work.rank, place, 0, 0});
    }
  }
  std::vector<std::size_t> consumed(program.channels.size(), 0);
  for (DeviceProgram& device : program.devices) {
    for (std::size_t place = 0; place < device.units.size(); ++place) {
      UnitWork& work = device.units[place];
      const bool down = work.unit.kind == UnitKind::forward && work.virtual_stage > 0;
      const bool up =
          work.unit.kind == UnitKind::backward && work.virtual_stage + 1 < virtual_stages.size();
      if (!down && !up) continue;
      const std::int32_t from = down ? work.virtual_stage - 1 : work.virtual_stage + 1;
      const auto found =
          places.find(channel_between(plan, work.unit.pack, device.dp, from, work.virtual_stage));
      const auto next = [&]() -> Message* {
        if (found == places.end()) return nullptr;
        auto& messages = program.channels[found->second].messages;
        return consumed[found->second] < messages.size() ? &messages[consumed[found->second]]
                                                         : nullptr;
      }();
      require(next != nullptr && next->pack == work.unit.pack && next->virtual_stage == from,
              "execution: device (dp " + std::to_string(device.dp) + ", pp " +
                  std::to_string(device.pp) + ") must consume in the order sent, not so at unit " +
                  std::to_string(place) + ", " + to_string(work.unit));
      next->receiver_unit = place;
      work.receive = MessageRef{found->second, consumed[found->second]++};
    }
  }
  for (std::size_t place = 0; place < program.channels.size(); ++place) {
    const ChannelWork& work = program.channels[place];
    require(consumed[place] == work.messages.size(),
            "execution: every message must be consumed, not so on " + to_string(work.channel));
    program.devices[device_index(plan, work.channel.dp, work.channel.to)].incoming.push_back(place);
  }
}

}  // namespace detail

inline Program make_program(const Plan& plan) {
  check_executable(plan);
  require_contents(plan, "execution");
  detail::check_rounds(plan);
  Program program;
  program.tensor_parallel = plan.parallel.tp;
  program.keys = kept_keys(plan);
  detail::add_pieces(plan, program);
  detail::add_blocks(plan, program);
  detail::add_shares(plan, program);
  for (const DeviceSchedule& order : plan.schedule) {
    DeviceProgram device{order.dp, order.pp, {}, {}, {}};
    for (std::size_t place = 0; place < order.order.size(); ++place) {
      device.units.push_back(detail::locate(plan, order, place));
    }
    program.devices.push_back(std::move(device));
  }
  program.rings = ring_orders(plan);
  detail::check_process_groups(plan);
  detail::add_messages(plan, program);
  return program;
}

/// Has the buffers of messages stay as long as a simulation says (`send_ends`), by device and unit,
/// so that what devices hold does not depend on which of them is a moment early. Without this a
/// buffer goes before the first unit that begins when its message has been sent. With the
/// simulation's `peaks`, by device, a device holds no more because a message is late: it waits for
/// messages that have been sent by now in the simulation where what it allocates would be above its
/// peak. What it waits for does not wait for it, as all of that came before in the simulation.
/// Throws InvalidInput unless there is an entry a unit and, where there are any, a peak a device.
/// O(messages).
inline void keep_sends(Program& program, std::span<const std::vector<std::size_t>> ends,
                       std::span<const Bytes> peaks = {}) {
  require(ends.size() == program.devices.size(), "execution: ends of sends must be given by device",
          static_cast<std::int64_t>(ends.size()));
  require(peaks.empty() || peaks.size() == ends.size(), "execution: peaks must be given by device",
          static_cast<std::int64_t>(peaks.size()));
  for (std::size_t device = 0; device < ends.size(); ++device) {
    const auto& units = program.devices[device].units;
    require(ends[device].size() == units.size(),
            "execution: ends of sends must be given for every unit of device",
            static_cast<std::int64_t>(device));
    for (std::size_t unit = 0; unit < units.size(); ++unit) {
      if (const auto& send = units[unit].send) {
        program.channels[send->channel].messages[send->index].kept_until = ends[device][unit];
      }
    }
    if (!peaks.empty()) program.devices[device].peak = peaks[device];
  }
}

}  // namespace slimpack::runtime
