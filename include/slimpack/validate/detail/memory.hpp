// SPDX-License-Identifier: Apache-2.0
// Rule 7, the amounts: bytes of tokens, MicroPacks and weights, by the validator's own formulas.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/validate/detail/frame.hpp"
#include "slimpack/validate/detail/partition.hpp"
#include "slimpack/validate/detail/size.hpp"

namespace slimpack::validation {

/// Bytes of one token, or of one row of a device, from the tables of docs/equations.md.
struct TokenBytes {
  std::array<Size, kRecomputeModes> kept{};           ///< per layer
  std::array<Size, kRecomputeModes> forward_work{};   ///< workspace of F, by mode
  std::array<Size, kRecomputeModes> backward_work{};  ///< of B
  std::array<Size, kRecomputeModes> for_weights{};    ///< per layer, that B apart makes, by mode
  Size left_apart;                                    ///< per layer, from the end of B to W's
  Size keys_values, key_value_gradients;              ///< per layer
  Size hidden;                                        ///< a hidden state, or its gradient
  Size kv_forward, kv_backward;                       ///< exchange of keys and values
  Size q_forward, q_backward;                         ///< exchange of queries
};

/// Whether tensor-parallel devices split hidden states by rows and the rest by width, which version
/// 1 did not tell apart.
[[nodiscard]] inline bool has_rows(const Plan& plan) {
  return plan.version > 1 && plan.parallel.tp > 1;
}

/// What of a token one of `tp` devices holds: of widths a tp-th, rounded up. Hidden states and the
/// statistics of norms are in it if `rows` are, the rest if `widths` are.
[[nodiscard]] inline TokenBytes token_bytes(const Plan& plan, bool rows, bool widths,
                                            std::int64_t tp) {
  const ModelShape& model = plan.model;
  const Size e = model.bytes_per_element, t = std::max<std::int64_t>(model.bytes_per_element, 4);
  const Size g = plan.memory.gradient_bytes, h = rows ? model.hidden : 0, norms = rows ? 2 : 0;
  const Size f = widths ? model.ffn : 0, heads = widths ? model.heads : 0;
  const Size kv_heads = widths ? model.kv_heads : 0;
  const Size q = heads * Size{model.head_dim}, k = kv_heads * Size{model.head_dim};
  const std::array<Size, kRecomputeModes> kept = {
      (h * 4 + q * 2 + f * 3) * e + (heads + norms) * t,
      (h * 2 + q * 2 + f * 2) * e + heads * t,
      (h + q) * e + heads * t,
      h * e,
  };
  TokenBytes bytes;
  for (std::size_t mode = 0; mode < kept.size(); ++mode) {
    const Size again = kept[0] - kept[mode];
    bytes.kept[mode] = kept[mode].part(tp);
    bytes.forward_work[mode] = ((h * 2 + k * 2) * e + again).part(tp);
    bytes.backward_work[mode] = ((h * 3 + q * 2 + f * 3) * e + k * 2 * g + again).part(tp);
  }
  // Inputs of matrix products are two norms, the attention's output and the product of gate and
  // up; outputs are q, k and v, both sums with the residual, gate and up.
  const Size inputs = (h * 2 + q + f) * e, outputs = (h * 2 + q + k * 2 + f * 2) * e;
  const std::array<Size, kRecomputeModes> kept_inputs = {inputs, q * e, q * e, 0};
  for (std::size_t mode = 0; mode < kept.size(); ++mode) {
    bytes.for_weights[mode] = (inputs - kept_inputs[mode]).part(tp) + outputs.part(tp);
  }
  bytes.left_apart = inputs.part(tp) + outputs.part(tp);
  bytes.keys_values = (k * 2 * e).part(tp);
  bytes.key_value_gradients = (k * 2 * g).part(tp);
  bytes.hidden = (h * e).part(tp);
  bytes.kv_forward = (k * 4 * e).part(tp);
  bytes.kv_backward = bytes.kv_forward + (k * 4 * g).part(tp);
  bytes.q_forward = ((q * 2 * e + heads * t) * 2).part(tp);
  bytes.q_backward = ((q * 2 * e + q * g + heads * 2 * t) * 2).part(tp);
  return bytes;
}

/// Ranks of a group by heads that have the same keys.
[[nodiscard]] inline std::int64_t ranks_of_a_key(const Plan& plan, std::int64_t ranks) {
  const std::int64_t keys = std::max<std::int64_t>(1, plan.model.kv_heads / plan.parallel.tp);
  return std::max<std::int64_t>(1, ranks / keys);
}

/// Buffers of an exchange by heads between `ranks`: of a slice's token that the rank owns; of any,
/// of whose heads each rank has a part; of any of a whole sample. `again`: B makes attention again.
[[nodiscard]] inline std::array<Size, 3> bytes_by_heads(const Plan& plan, std::int64_t ranks,
                                                        Pass pass, bool again) {
  const ModelShape& model = plan.model;
  const std::int64_t tp = plan.parallel.tp;
  const Size e = model.bytes_per_element, t = std::max<std::int64_t>(model.bytes_per_element, 4);
  const Size queries = Size{model.heads} * model.head_dim * e, statistics = Size{model.heads} * t;
  const Size key_values = Size{model.kv_heads} * model.head_dim * 2 * ranks_of_a_key(plan, ranks);
  const Size keys = key_values * e, sums = key_values * plan.memory.gradient_bytes;
  if (pass == Pass::forward) {
    return {(queries + keys + statistics).part(tp), (queries * 3 + keys + statistics).part(tp),
            Size{}};
  }
  const Size there = queries * 2 + statistics * 3, home = queries + keys;
  const Size message = std::max(there, home), attended = queries * 3 + statistics * 4;
  if (!again) return {message.part(tp), (message + attended).part(tp), sums.part(tp)};
  return {message.part(tp), (message + attended + queries).part(tp), (sums + keys).part(tp)};
}

/// Tokens of [0, end) that place `place` of `ranks` owns: whole blocks of its two turns, and its
/// part of the block that is cut.
[[nodiscard]] inline std::int64_t owned_before(std::int64_t end, std::int64_t place,
                                               std::int64_t ranks, std::int64_t block) {
  if (ranks == 1) return end;
  const std::int64_t blocks = end / block;
  const std::int64_t turns[2] = {place, 2 * ranks - 1 - place};
  std::int64_t owned = 0;
  for (const std::int64_t turn : turns) {
    if (blocks > turn) owned += ((blocks - 1 - turn) / (2 * ranks) + 1) * block;
    if (blocks % (2 * ranks) == turn) owned += end % block;
  }
  return owned;
}

/// Of [begin, end) of a sample, positions x with (x + sample) mod `devices` = `device`.
[[nodiscard]] inline std::int64_t rows_between(std::int64_t begin, std::int64_t end,
                                               std::size_t sample, std::int64_t device,
                                               std::int64_t devices) {
  const auto shift = static_cast<std::int64_t>(sample % static_cast<std::size_t>(devices));
  const std::int64_t first = (device - shift + devices) % devices;  // the least such position
  const auto below = [&](std::int64_t x) { return x > first ? (x - 1 - first) / devices + 1 : 0; };
  return below(end) - below(begin);
}

/// What a MicroPack is to one rank of its group.
struct PackPart {
  Size tokens;  ///< own
  Size rows;    ///< of them, that a tensor-parallel device holds at most
  Size kept;    ///< bytes per layer, allocated by F, freed by B
  Size work;    ///< workspace, without exchange
  Size made;    ///< B apart: bytes per layer that it makes for W
  Size left;    ///< B apart: bytes per layer that it leaves, W: that it frees
  Size pages;   ///< F: bytes per layer of keys and values that it opens, over its samples
  Size opens;   ///< B: bytes per layer of their gradients where a sample's backward begins here
  Size closes;  ///< B: the same where it ends here
  Size closed_pages;
};

/// The parts of one rank, by the numbering of its MicroPacks, and the exchange of each MicroPack.
class Parts {
 public:
  Parts(const Plan& plan, const std::vector<std::vector<Piece>>& pieces)
      : plan_(plan),
        pieces_(pieces),
        weights_(cuts_of(plan, Pass::weight)),
        bytes_(token_bytes(plan, !has_rows(plan), true, plan.parallel.tp)),
        row_bytes_(has_rows(plan) ? token_bytes(plan, true, false, 1) : TokenBytes{}),
        samples_(plan.groups.size()),
        by_heads_(plan.samples.size()) {
    for (std::size_t i = 0; i < plan.samples.size(); ++i) {
      samples_[index(plan.sample_group[i])].push_back(i);
    }
    exchange_.reserve(plan.micropacks.size());
    for (const MicroPack& pack : plan.micropacks) {
      for (std::size_t i = 0; i < pack.exchange.size(); ++i) {
        const std::size_t sample = index(pack.slices[i].sample);
        by_heads_[sample] = pack.exchange[i] == RingMode::by_heads &&
                            plan.samples[sample] > plan.memory.cp_block_tokens;
      }
      exchange_.push_back(exchange_of(pack));
    }
  }

  [[nodiscard]] const TokenBytes& bytes() const noexcept { return bytes_; }
  /// Hidden states of the pack on the device that holds most of its rows.
  [[nodiscard]] Size hidden(const PackPart& pack) const {
    return pack.tokens * bytes_.hidden + pack.rows * row_bytes_.hidden;
  }
  [[nodiscard]] Size exchange(PackId pack) const { return exchange_[index(pack)]; }

  [[nodiscard]] std::vector<PackPart> of_rank(const Frame& frame, std::size_t rank) const {
    std::vector<PackPart> parts(frame.rank_packs[rank]);
    for (const Membership& member : frame.membership[rank]) {
      const auto ranks = static_cast<std::int64_t>(plan_.groups[member.group].size());
      std::int64_t turn = 0;  // of the rank, counted from the one with the sample's first block
      const auto begin_sample = [&](std::size_t sample) { turn = turn_of(member, sample); };
      const auto own = [&](Tokens end) {
        return owned_before(end.value, turn, ranks, plan_.memory.cp_block_tokens.value);
      };
      // Bytes a layer of keys and values in pages, and of their gradients: of own tokens, or by
      // heads a part of all tokens'.
      const auto kept_of = [&](std::size_t sample, Size tokens, Size each) {
        if (!by_heads_[sample]) return tokens * each;
        return tokens * each.part(ranks / ranks_of_a_key(plan_, ranks));
      };
      const auto pages = [&](std::size_t sample, Tokens end) {
        const std::int64_t page = plan_.memory.page_tokens.value;
        const Size tokens = by_heads_[sample] ? Size{end.value} : own(end);
        return kept_of(sample, tokens.part(page) * Size{page}, bytes_.keys_values);
      };
      const auto part = [&](PackId pack) -> PackPart& {
        return parts[member.first + frame.slot[index(pack)]];
      };
      for (const std::size_t sample : samples_[member.group]) {
        begin_sample(sample);
        for (const Piece& piece : pieces_[sample]) {
          const Size tokens = own(piece.end) - own(piece.begin);
          const auto mode =
              static_cast<std::size_t>(plan_.micropacks[index(piece.backward)].recompute);
          const Size kept = tokens * bytes_.kept[mode];
          for (const PackId pack : {piece.forward, piece.backward}) {
            part(pack).tokens += tokens;
            part(pack).kept += kept;
          }
          part(piece.forward).work += tokens * bytes_.forward_work[mode];
          part(piece.backward).work += tokens * bytes_.backward_work[mode];
          if (plan_.micropacks[index(piece.backward)].weights == WeightGradients::apart) {
            part(piece.backward).made += tokens * bytes_.for_weights[mode];
            part(piece.backward).left += tokens * bytes_.left_apart;
          }
          if (is_paged(sample)) {
            part(piece.forward).pages += pages(sample, piece.end) - pages(sample, piece.begin);
          }
        }
        const Tokens length = plan_.samples[sample];
        PackPart& last = part(pieces_[sample].front().backward);
        if (is_paged(sample)) {
          last.closed_pages += pages(sample, length);
        } else {
          last.work += Size{own(length)} * bytes_.keys_values;
        }
        if (is_summed(sample)) {
          const Size tokens = by_heads_[sample] ? Size{length.value} : own(length);
          const Size gradients = kept_of(sample, tokens, bytes_.key_value_gradients);
          part(pieces_[sample].back().backward).opens += gradients;
          last.closes += gradients;
        }
      }
      for (const PackId pack : frame.packs[member.group]) {
        if (plan_.micropacks[index(pack)].pass != Pass::weight) continue;
        for (const Slice& slice : plan_.micropacks[index(pack)].slices) {
          begin_sample(index(slice.sample));
          part(pack).tokens += own(slice.end) - own(slice.begin);
        }
        part(pack).left = part(pack).work = part(pack).tokens * bytes_.left_apart;
      }
      if (!has_rows(plan_)) continue;
      add_rows(member, part);
      const std::int64_t tp = plan_.parallel.tp;
      const Size tile = Size{plan_.memory.head_tile.value}.part(tp);
      for (const PackId pack : frame.packs[member.group]) {
        part(pack).work += Size{2} * Size{tp} * std::min(part(pack).rows, tile) * row_bytes_.hidden;
      }
    }
    return parts;
  }

 private:
  /// A rank's place in its group, counted round from that of the rank with the sample's first
  /// block.
  [[nodiscard]] std::int64_t turn_of(const Membership& member, std::size_t sample) const {
    const auto ranks = static_cast<std::int64_t>(plan_.groups[member.group].size());
    const std::int64_t first = plan_.sample_first.empty() ? 0 : plan_.sample_first[sample];
    return (static_cast<std::int64_t>(member.place) + ranks - first) % ranks;
  }
  /// Adds what the device holds that has most rows of the tokens of one forward, one backward and
  /// one weight MicroPack, for all of those.
  template <class PartOf>
  void add_rows(const Membership& member, const PartOf& part) const {
    const std::int64_t tp = plan_.parallel.tp, block = plan_.memory.cp_block_tokens.value;
    const auto ranks = static_cast<std::int64_t>(plan_.groups[member.group].size());
    using Key = std::array<std::size_t, 3>;  // forward, backward and weight, one too many: none
    std::map<Key, std::vector<std::int64_t>> rows;
    const auto count = [&](const Key& key, std::size_t sample, std::int64_t begin,
                           std::int64_t end) {
      auto& counted = rows.try_emplace(key, static_cast<std::size_t>(tp), 0).first->second;
      for (std::int64_t from = begin; from < end;) {  // block by block
        const std::int64_t to = ranks == 1 ? end : std::min(end, (from / block + 1) * block);
        const std::int64_t turn = from / block % (2 * ranks);
        const bool own =
            ranks == 1 || std::min(turn, 2 * ranks - 1 - turn) == turn_of(member, sample);
        for (std::int64_t device = 0; own && device < tp; ++device) {
          counted[static_cast<std::size_t>(device)] += rows_between(from, to, sample, device, tp);
        }
        from = to;
      }
    };
    for (const std::size_t sample : samples_[member.group]) {
      for (const Piece& piece : pieces_[sample]) {
        const Key key{index(piece.forward), index(piece.backward), plan_.micropacks.size()};
        if (plan_.micropacks[index(piece.backward)].weights == WeightGradients::with) {
          count(key, sample, piece.begin.value, piece.end.value);
          continue;
        }
        for (const Cut& cut : weights_[sample]) {
          const Tokens begin = std::max(piece.begin, cut.begin), end = std::min(piece.end, cut.end);
          if (begin < end) count({key[0], key[1], index(cut.pack)}, sample, begin.value, end.value);
        }
      }
    }
    for (const auto& [key, counted] : rows) {
      const Size most = *std::max_element(counted.begin(), counted.end());
      const MicroPack& backward = plan_.micropacks[key[1]];
      const auto mode = static_cast<std::size_t>(backward.recompute);
      PackPart& down = part(static_cast<PackId>(key[0]));
      PackPart& up = part(static_cast<PackId>(key[1]));
      for (PackPart* const pack : {&down, &up}) {
        pack->rows += most;
        pack->kept += most * row_bytes_.kept[mode];
      }
      down.work += most * row_bytes_.forward_work[mode];
      up.work += most * row_bytes_.backward_work[mode];
      if (backward.weights == WeightGradients::with) continue;
      up.made += most * row_bytes_.for_weights[mode];
      up.left += most * row_bytes_.left_apart;
      PackPart& weight = part(static_cast<PackId>(key[2]));
      weight.rows += most;
      weight.left += most * row_bytes_.left_apart;
      weight.work += most * row_bytes_.left_apart;
    }
  }

  /// Whether a sample's gradients of keys and values are summed over several B, which version 1
  /// takes for granted.
  [[nodiscard]] bool is_summed(std::size_t sample) const {
    return plan_.version < 2 || pieces_[sample].front().backward != pieces_[sample].back().backward;
  }
  /// Whether a sample's keys and values are in pages. B makes them again where one F made them, all
  /// of them are of one B, and that B makes everything again.
  [[nodiscard]] bool is_paged(std::size_t sample) const {
    const Piece& first = pieces_[sample].front();
    return is_summed(sample) || first.forward != pieces_[sample].back().forward ||
           plan_.micropacks[index(first.backward)].recompute != Recompute::full;
  }

  [[nodiscard]] Size exchange_of(const MicroPack& pack) const {
    const auto& ranks = plan_.groups[index(pack.group)];
    Size largest;
    for (std::size_t i = 0; i < pack.exchange.size(); ++i) {
      if (pack.exchange[i] == RingMode::by_heads) continue;
      const bool kv = pack.exchange[i] == RingMode::pass_kv;
      const bool forward = pack.pass == Pass::forward;
      const Tokens begin = kv ? Tokens{0} : pack.slices[i].begin;
      std::int64_t share = 0;
      for (std::size_t place = 0; place < ranks.size(); ++place) {
        const auto own = [&](Tokens end) {
          return owned_before(end.value, static_cast<std::int64_t>(place),
                              static_cast<std::int64_t>(ranks.size()),
                              plan_.memory.cp_block_tokens.value);
        };
        share = std::max(share, own(pack.slices[i].end) - own(begin));
      }
      const Size each = kv ? (forward ? bytes_.kv_forward : bytes_.kv_backward)
                           : (forward ? bytes_.q_forward : bytes_.q_backward);
      largest = std::max(largest, Size{share} * each);
    }
    return largest + by_heads(pack);
  }
  /// Buffers of all slices by heads that several ranks own, of the rank that owns most.
  [[nodiscard]] Size by_heads(const MicroPack& pack) const {
    const auto ranks = static_cast<std::int64_t>(plan_.groups[index(pack.group)].size());
    const std::array<Size, 3> each =
        bytes_by_heads(plan_, ranks, pack.pass, pack.recompute == Recompute::full);
    std::vector<Size> own(static_cast<std::size_t>(ranks));
    Size all;
    for (std::size_t i = 0; i < pack.exchange.size(); ++i) {
      const Slice& slice = pack.slices[i];
      if (!by_heads_[index(slice.sample)]) continue;
      const std::int64_t block = plan_.memory.cp_block_tokens.value;
      all += Size{slice.length().value} * each[1];
      if (slice.length() == plan_.samples[index(slice.sample)]) {
        all += Size{slice.length().value} * each[2];
      }
      const std::int64_t first =
          plan_.sample_first.empty() ? 0 : plan_.sample_first[index(slice.sample)];
      for (std::int64_t place = 0; place < ranks; ++place) {
        const std::int64_t turn = (place + ranks - first) % ranks;
        own[static_cast<std::size_t>(place)] +=
            (owned_before(slice.end.value, turn, ranks, block) -
             owned_before(slice.begin.value, turn, ranks, block)) *
            each[0];
      }
    }
    return *std::max_element(own.begin(), own.end()) + all.part(ranks);
  }

  const Plan& plan_;
  const std::vector<std::vector<Piece>>& pieces_;
  Cuts weights_;
  TokenBytes bytes_, row_bytes_;
  std::vector<std::vector<std::size_t>> samples_;  ///< by group
  std::vector<bool> by_heads_;                     ///< samples of whose keys ranks have parts
  std::vector<Size> exchange_;
};

/// Rows of the vocabulary that a stage works on in H.
[[nodiscard]] inline Size vocabulary_rows(const Plan& plan, std::int64_t pp) {
  if (plan.parallel.head == LmHead::last) {
    return pp + 1 == plan.parallel.pp ? plan.model.vocab : 0;
  }
  // V pp / p without the product, which need not fit.
  const std::int64_t stages = plan.parallel.pp;
  const std::int64_t whole = plan.model.vocab / stages, rest = plan.model.vocab % stages;
  return whole + rest * (pp + 1) / stages - rest * pp / stages;
}

/// Workspace of H on a stage. Of a tile's rows a tensor-parallel device has logits, statistics and
/// two whole rows each, of its own the hidden states.
[[nodiscard]] inline Size head_work(const Plan& plan, std::int64_t pp, const PackPart& pack) {
  const Size e = plan.model.bytes_per_element, t = std::max<std::int64_t>(4, e.value());
  const Size h = plan.model.hidden, g = plan.memory.gradient_bytes, v = vocabulary_rows(plan, pp);
  const Size tile = plan.memory.head_tile.value, tp = plan.parallel.tp;
  const Size hidden = h * 3 * e + h * g;
  if (!has_rows(plan)) {
    return std::min(pack.tokens, tile) * (v * t + hidden + t * 4).part(tp.value());
  }
  const Size rows = std::min(pack.rows, tile.part(tp.value()));
  return rows * hidden + rows * tp * (v.part(tp.value()) * t + t * 4 + h * 2 * e);
}

/// Weights, gradients and optimizer state of a stage.
[[nodiscard]] inline Size fixed_bytes(const Plan& plan, std::int32_t pp) {
  const ModelShape& model = plan.model;
  const Size h = model.hidden, q = Size{model.heads} * Size{model.head_dim};
  const Size k = Size{model.kv_heads} * Size{model.head_dim};
  // Norms are on all tensor-parallel devices, matrices in parts; version 1 counts parts of all.
  const std::int64_t split = has_rows(plan) ? plan.parallel.tp : 1;
  const Size layer = (h * q * 2 + h * k * 2 + h * Size{model.ffn} * 3).part(split) + h * 2;
  Size weights;
  for (const Stage& stage : plan.stages) {
    if (stage.pp == pp) weights += layer * Size{stage.layers()};
  }
  const bool table = pp == 0, last = pp + 1 == plan.parallel.pp;
  if (table) weights += h * Size{model.vocab}.part(split);
  if (last) weights += h;
  if (!(model.tied && table)) weights += h * vocabulary_rows(plan, pp).part(split);
  const std::int64_t e = model.bytes_per_element, tp = split > 1 ? 1 : plan.parallel.tp;
  const Size state = Size{2} * Size{std::max<std::int64_t>(4, e)} + Size{e < 4 ? 4 : 0};
  const std::int64_t sharers =
      plan.memory.optimizer == OptimizerState::sharded ? plan.parallel.dp : 1;
  Size held = weights;
  if (plan.memory.weights == WeightState::sharded) {
    // A part of all, and what is whole at one time: two layers, or tables.
    const Size norm = last ? h : Size{};
    Size whole = std::max(layer, h * vocabulary_rows(plan, pp).part(split) + norm);
    if (table) whole = std::max(whole, h * Size{model.vocab}.part(split));
    held = weights.part(plan.parallel.dp) + whole * 2;
  }
  return (held * Size{e}).part(tp) + (held * Size{plan.memory.gradient_bytes}).part(tp) +
         (weights * state).part(sharers).part(tp);
}

}  // namespace slimpack::validation
