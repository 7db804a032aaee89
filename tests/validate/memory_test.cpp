// SPDX-License-Identifier: Apache-2.0
// Rule 7's arithmetic against a recount token by token, and against numbers worked out by hand.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "slimpack/validate/validate.hpp"
#include "support/counted_rows.hpp"
#include "support/random_heads_plan.hpp"
#include "support/random_plan.hpp"
#include "validate/hand_plan.hpp"

using namespace slimpack;

namespace {

/// The table of docs/equations.md once more, as long sums, and every token looked at by itself.
class Recount {
 public:
  explicit Recount(const Plan& plan) : plan_(plan) {
    for (const MicroPack& pack : plan.micropacks) {
      for (std::size_t i = 0; i < pack.exchange.size(); ++i) {
        const std::size_t sample = index(pack.slices[i].sample);
        if (pack.exchange[i] == RingMode::by_heads &&
            plan.samples[sample] > plan.memory.cp_block_tokens) {
          by_heads_.insert(sample);
        }
      }
      for (const Slice& slice : pack.slices) {
        if (pack.pass == Pass::forward && slice.begin.value > 0) {
          cut_forth_.insert(index(slice.sample));
        }
      }
    }
    for (std::size_t id = 0; id < plan.micropacks.size(); ++id) {
      if (plan.micropacks[id].pass != Pass::backward) continue;
      for (const Slice& slice : plan.micropacks[id].slices) {
        if (slice.begin.value > 0) cut_back_.insert(index(slice.sample));
        for (std::int64_t i = slice.begin.value; i < slice.end.value; ++i) {
          mode_[{index(slice.sample), i}] = plan.micropacks[id].recompute;
        }
      }
    }
  }

  std::int64_t peak(std::size_t device) {
    order_ = &plan_.schedule[device].order;
    rank_ = plan_.schedule[device].dp;
    stage_ = plan_.schedule[device].pp;
    std::int64_t most = 0;
    for (std::size_t i = 0; i < order_->size(); ++i) {
      most = std::max({most, during(i), after(i)});
    }
    return most;
  }

 private:
  using Token = std::pair<std::size_t, std::int64_t>;

  std::int64_t part(std::int64_t bytes) const {
    return (bytes + plan_.parallel.tp - 1) / plan_.parallel.tp;
  }
  bool has_rows() const { return plan_.parallel.tp > 1 && plan_.version > 1; }
  /// Of a token, bytes that tensor-parallel devices split by width, and by rows.
  std::int64_t split(const Token& token, std::int64_t width, std::int64_t row) const {
    if (!has_rows()) return part(width + row);
    return part(width) + (counted_.contains(token) ? row : 0);
  }
  /// Rows that count of one tile of a unit's tokens, and two whole rows for each device's.
  std::int64_t tile_rows(const Unit& unit) const {
    std::int64_t count = 0;
    for (const Token& token : own(unit)) count += counted_.contains(token) ? 1 : 0;
    return std::min(count, part(plan_.memory.head_tile.value));
  }
  std::int64_t whole_rows(const Unit& unit) const {
    return has_rows() ? 2 * plan_.parallel.tp * tile_rows(unit) * h() * e() : 0;
  }
  const MicroPack& pack(const Unit& unit) const { return plan_.micropacks[index(unit.pack)]; }
  const std::vector<std::int32_t>& ranks(const Unit& unit) const {
    return plan_.groups[index(pack(unit).group)];
  }
  std::int32_t owner(const std::vector<std::int32_t>& group, std::size_t sample,
                     std::int64_t i) const {
    const auto g = static_cast<std::int64_t>(group.size());
    const std::int64_t turn = i / plan_.memory.cp_block_tokens.value % (2 * g);
    const std::int64_t first = plan_.sample_first.empty() ? 0 : plan_.sample_first[sample];
    return group[static_cast<std::size_t>((first + std::min(turn, 2 * g - 1 - turn)) % g)];
  }
  std::vector<Token> own(const Unit& unit) const {
    std::vector<Token> tokens;
    for (const Slice& slice : pack(unit).slices) {
      for (std::int64_t i = slice.begin.value; i < slice.end.value; ++i) {
        if (owner(ranks(unit), index(slice.sample), i) == rank_)
          tokens.emplace_back(index(slice.sample), i);
      }
    }
    return tokens;
  }
  /// Tokens of a unit of whose keys and values the rank keeps some heads.
  std::vector<Token> keys_of(const Unit& unit) const {
    std::vector<Token> tokens;
    for (const Slice& slice : pack(unit).slices) {
      for (std::int64_t i = slice.begin.value; i < slice.end.value; ++i) {
        if (by_heads_.count(index(slice.sample)) > 0 ||
            owner(ranks(unit), index(slice.sample), i) == rank_) {
          tokens.emplace_back(index(slice.sample), i);
        }
      }
    }
    return tokens;
  }
  /// Parts of the heads of a sample's keys, each on one rank or, if they are one head, on several.
  std::int64_t parts_of(std::size_t sample) const {
    if (by_heads_.count(sample) == 0) return 1;
    const auto ranks =
        static_cast<std::int64_t>(plan_.groups[index(plan_.sample_group[sample])].size());
    return std::min(ranks, plan_.model.kv_heads / plan_.parallel.tp);
  }
  std::int64_t own_in(const Unit& unit, std::size_t sample, std::int64_t begin, std::int64_t end,
                      std::int32_t rank) const {
    std::int64_t count = 0;
    for (std::int64_t i = begin; i < end; ++i) count += owner(ranks(unit), sample, i) == rank;
    return count;
  }

  /// Whether gradients of keys and values, and keys and values themselves, outlive a unit.
  bool has_gradients(std::size_t sample) const {
    return plan_.version == 1 || cut_back_.contains(sample);
  }
  bool has_pages(std::size_t sample) const {
    return has_gradients(sample) || cut_forth_.contains(sample) ||
           mode_.at({sample, 0}) != Recompute::full;
  }

  // Bytes by the tables.
  std::int64_t e() const { return plan_.model.bytes_per_element; }
  std::int64_t t() const { return std::max<std::int64_t>(e(), 4); }
  std::int64_t g() const { return plan_.memory.gradient_bytes; }
  std::int64_t h() const { return plan_.model.hidden; }
  std::int64_t q() const { return plan_.model.heads * plan_.model.head_dim; }
  std::int64_t k() const { return plan_.model.kv_heads * plan_.model.head_dim; }
  std::int64_t ffn() const { return plan_.model.ffn; }
  std::int64_t kept(Recompute mode) const {
    const std::int64_t query = q() * e(), output = q() * e(), gate = ffn() * e(), up = ffn() * e();
    const std::int64_t product = ffn() * e(), log_sum = plan_.model.heads * t();
    switch (mode) {
      case Recompute::none:
        return query + output + gate + up + product + log_sum;
      case Recompute::light:
        return query + output + gate + up + log_sum;
      case Recompute::layer:
        return output + log_sum;
      case Recompute::full:
        break;
    }
    return 0;
  }
  std::int64_t kept_rows(Recompute mode) const {
    const std::int64_t input = h() * e(), norm = h() * e(), mid = h() * e(), second = h() * e();
    const std::int64_t inverse = 2 * t();
    if (mode == Recompute::none) return input + norm + mid + second + inverse;
    return mode == Recompute::light ? input + mid : input;
  }
  /// What matrix products read, and the part of it that a mode keeps; the gradients of what they
  /// write.
  std::int64_t inputs(const Token& token, bool norms, bool attention) const {
    const std::int64_t norm = h() * e(), output = q() * e(), second = h() * e();
    return split(token, (attention ? output : 0) + (norms ? ffn() * e() : 0),
                 norms ? norm + second : 0);
  }
  std::int64_t output_gradients(const Token& token) const {
    const std::int64_t query = q() * e(), keys = k() * e(), values = k() * e();
    const std::int64_t mid = h() * e(), gate = ffn() * e(), up = ffn() * e(), output = h() * e();
    return split(token, query + keys + values + gate + up, mid + output);
  }
  std::int64_t left(const Token& token) const {
    return inputs(token, true, true) + output_gradients(token);
  }
  std::int64_t left(const Unit& unit) const {
    std::int64_t bytes = 0;
    for (const Token& token : own(unit)) bytes += left(token);
    return bytes;
  }

  std::int64_t layers(std::int32_t chunk) const {
    for (const Stage& stage : plan_.stages) {
      if (stage.pp == stage_ && stage.chunk == chunk) return stage.end_layer - stage.first_layer;
    }
    return 0;
  }
  std::int64_t vocabulary() const {
    const std::int64_t v = plan_.model.vocab, p = plan_.parallel.pp;
    if (plan_.parallel.head == LmHead::last) return stage_ == p - 1 ? v : 0;
    return v * (stage_ + 1) / p - v * stage_ / p;
  }
  std::int64_t always() const {
    std::int64_t weights = 0;
    const auto shard = [&](std::int64_t all) { return has_rows() ? part(all) : all; };
    for (std::int32_t chunk = 0; chunk < plan_.parallel.chunks; ++chunk) {
      weights += layers(chunk) *
                 (shard(h() * q() + 2 * h() * k() + q() * h() + 3 * h() * ffn()) + 2 * h());
    }
    if (stage_ == 0) weights += shard(plan_.model.vocab) * h();
    if (stage_ == plan_.parallel.pp - 1) weights += h();
    if (!plan_.model.tied || stage_ != 0) weights += shard(vocabulary()) * h();
    const std::int64_t state = weights * (2 * t() + (e() < 4 ? 4 : 0));
    const std::int64_t tp = has_rows() ? 1 : plan_.parallel.tp;
    const std::int64_t parts =
        tp * (plan_.memory.optimizer == OptimizerState::sharded ? plan_.parallel.dp : 1);
    return (weights * e() + tp - 1) / tp + (weights * g() + tp - 1) / tp +
           (state + parts - 1) / parts;
  }
  std::int64_t hidden(const Unit& unit) const {
    std::int64_t bytes = 0;
    for (const Token& token : own(unit)) bytes += split(token, 0, h() * e());
    return bytes;
  }

  std::int64_t workspace(const Unit& unit) const {
    std::int64_t bytes = 0;
    if (unit.kind == UnitKind::head) {
      const auto tokens = static_cast<std::int64_t>(own(unit).size());
      if (!has_rows()) {
        return std::min(tokens, plan_.memory.head_tile.value) *
               part(vocabulary() * t() + 3 * h() * e() + h() * g() + 4 * t());
      }
      return tile_rows(unit) * (3 * h() * e() + h() * g()) +
             tile_rows(unit) * plan_.parallel.tp * (part(vocabulary()) * t() + 4 * t()) +
             whole_rows(unit);
    }
    bytes += whole_rows(unit);
    if (unit.kind == UnitKind::weight) return bytes + left(unit);
    const bool forward = unit.kind == UnitKind::forward;
    for (const Token& token : own(unit)) {
      const Recompute mode = mode_.at(token);
      const std::int64_t made = kept(Recompute::none) - kept(mode);
      const std::int64_t made_rows = kept_rows(Recompute::none) - kept_rows(mode);
      bytes += forward ? split(token, 2 * k() * e() + made, 2 * h() * e() + made_rows)
                       : split(token, (2 * q() + 3 * ffn()) * e() + 2 * k() * g() + made,
                               3 * h() * e() + made_rows);
      if (!forward && !has_pages(token.first)) bytes += part(2 * k() * e());
    }
    std::int64_t exchange = 0;
    for (std::size_t i = 0; i < pack(unit).exchange.size(); ++i) {
      const Slice& slice = pack(unit).slices[i];
      if (pack(unit).exchange[i] == RingMode::by_heads) continue;
      const bool kv = pack(unit).exchange[i] == RingMode::pass_kv;
      std::int64_t share = 0;
      for (const std::int32_t rank : ranks(unit)) {
        share = std::max(share, own_in(unit, index(slice.sample), kv ? 0 : slice.begin.value,
                                       slice.end.value, rank));
      }
      const std::int64_t statistics = plan_.model.heads * t();
      std::int64_t each = 0;
      if (kv) {
        each = part(2 * 2 * k() * e()) + (forward ? 0 : part(2 * 2 * k() * g()));
      } else if (forward) {
        each = part(2 * (2 * q() * e() + statistics));
      } else {
        each = part(2 * (2 * q() * e() + q() * g() + 2 * statistics));
      }
      exchange = std::max(exchange, share * each);
    }
    return bytes + exchange + by_heads(unit);
  }

  /// Buffers of what several ranks exchange by heads, on the rank that has most: whole heads of its
  /// own tokens, and of all tokens one part of the heads a rank.
  std::int64_t by_heads(const Unit& unit) const {
    const bool forward = unit.kind == UnitKind::forward;
    const bool again = !forward && pack(unit).recompute == Recompute::full;
    const auto count = static_cast<std::int64_t>(ranks(unit).size());
    // Each rank has a head of keys at least.
    const std::int64_t of_keys =
        2 * std::max(k(), count * plan_.parallel.tp * plan_.model.head_dim);
    const std::int64_t query = q() * e(), output = q() * e(), key_value = of_keys * e();
    const std::int64_t statistic = plan_.model.heads * t();
    // B: outputs' gradients and three statistics make room for those of keys and values.
    const std::int64_t comes = forward ? query + key_value + statistic
                                       : query + std::max(output + 3 * statistic, key_value);
    // In the order of tokens: queries and outputs; B has their gradients too, in place of outputs,
    // and statistics that make matrices start where they may.
    const std::int64_t ordered = forward ? query + output : (again ? 4 : 3) * query + 4 * statistic;
    const std::int64_t one_token = part(comes + ordered), own_token = part(comes);
    // A whole sample has no pages of gradients, and where B makes all again none of keys.
    const std::int64_t of_whole = part(of_keys * g() + (again ? key_value : 0));
    std::int64_t all = 0;
    std::map<std::int32_t, std::int64_t> own_bytes;
    for (std::size_t i = 0; i < pack(unit).exchange.size(); ++i) {
      const Slice& slice = pack(unit).slices[i];
      if (pack(unit).exchange[i] != RingMode::by_heads) continue;
      if (by_heads_.count(index(slice.sample)) == 0) continue;
      for (std::int64_t token = slice.begin.value; token < slice.end.value; ++token) {
        own_bytes[owner(ranks(unit), index(slice.sample), token)] += own_token;
        all += one_token;
        if (!forward && slice.length() == plan_.samples[index(slice.sample)]) all += of_whole;
      }
    }
    std::int64_t most = 0;
    for (const auto& entry : own_bytes) most = std::max(most, entry.second);
    return most + (all + count - 1) / count;
  }

  bool is_last(const Unit& unit) const {
    return stage_ == plan_.parallel.pp - 1 && unit.chunk == plan_.parallel.chunks - 1;
  }
  std::int32_t line(const Unit& unit) const { return unit.chunk * plan_.parallel.pp + stage_; }

  /// Position of the unit of a pack at a virtual stage of this rank, and its stage.
  std::pair<std::int32_t, std::size_t> remote(const Unit& unit, std::int32_t to) const {
    const std::int32_t stage = to % plan_.parallel.pp;
    const auto& order =
        plan_.schedule[static_cast<std::size_t>(rank_ * plan_.parallel.pp + stage)].order;
    const Unit wanted{unit.kind, unit.pack, to / plan_.parallel.pp};
    return {stage, static_cast<std::size_t>(std::find(order.begin(), order.end(), wanted) -
                                            order.begin())};
  }
  std::int32_t source_line(const Unit& unit) const {
    return unit.kind == UnitKind::forward ? line(unit) - 1 : line(unit) + 1;
  }
  std::int32_t target_line(const Unit& unit) const {
    return unit.kind == UnitKind::forward ? line(unit) + 1 : line(unit) - 1;
  }
  bool exists(std::int32_t i) const {
    return i >= 0 && i < plan_.parallel.pp * plan_.parallel.chunks;
  }
  static bool computes(const Unit& unit) {
    return unit.kind == UnitKind::forward || unit.kind == UnitKind::backward;
  }
  bool same_channel(const Unit& a, const Unit& b) const {
    return a.kind == b.kind && pack(a).group == pack(b).group;
  }

  /// Units of another stage of the rank that are known to have ended when unit `at` starts.
  std::size_t known(std::int32_t stage, std::size_t k) const {
    std::size_t units = 0;
    for (std::size_t i = 0; i <= k; ++i) {
      const Unit& unit = (*order_)[i];
      if (computes(unit) && exists(source_line(unit)) && plan_.parallel.pp > 1) {
        const auto [from, position] = remote(unit, source_line(unit));
        if (from == stage) units = std::max(units, position + 1);
      }
      if (unit.kind == UnitKind::head && plan_.parallel.head == LmHead::shard) {
        const auto& order =
            plan_.schedule[static_cast<std::size_t>(rank_ * plan_.parallel.pp + stage)].order;
        units = std::max(units, static_cast<std::size_t>(
                                    std::find(order.begin(), order.end(), unit) - order.begin()));
      }
    }
    return units;
  }

  /// What is held while unit `at` runs; with `ended`, right after it.
  std::int64_t during(std::size_t i) const { return held(i, false); }
  std::int64_t after(std::size_t i) const { return held(i, true); }

  std::int64_t held(std::size_t n, bool ended) const {
    const std::int64_t pp = plan_.parallel.pp;
    std::int64_t bytes = always();
    // Started: [0, at]. Over: [0, at), and `at` with `ended`.
    const std::size_t over = n + (ended ? 1 : 0);
    const UnitKind running = (*order_)[n].kind;
    if (!ended && running != UnitKind::reduce && running != UnitKind::optimizer) {
      bytes += workspace((*order_)[n]);
    }
    std::set<std::tuple<std::size_t, std::int64_t, std::int32_t>> live, closed_tokens;
    std::set<std::tuple<std::size_t, std::int64_t, std::int32_t>> pages;
    std::set<std::pair<std::size_t, std::int32_t>> begun, closed;
    for (std::size_t i = 0; i <= n; ++i) {
      const Unit& unit = (*order_)[i];
      if (unit.kind == UnitKind::backward) {
        for (const Slice& slice : pack(unit).slices) {
          const std::pair key{index(slice.sample), unit.chunk};
          begun.insert(key);
          if (i < over && slice.begin == Tokens{0}) closed.insert(key);
        }
        if (i < over) {
          for (const Token& token : own(unit)) {
            closed_tokens.insert({token.first, token.second, unit.chunk});
          }
        }
      }
    }
    for (std::size_t i = 0; i <= n; ++i) {
      const Unit& unit = (*order_)[i];
      if (unit.kind == UnitKind::weight && i < over) {
        bytes -= layers(unit.chunk) * left(unit);
      }
      if (unit.kind == UnitKind::backward && pack(unit).weights == WeightGradients::apart) {
        for (const Token& token : own(unit)) {
          const Recompute mode = mode_.at(token);
          const std::int64_t made =
              inputs(token, mode != Recompute::none, mode == Recompute::full) +
              output_gradients(token);
          bytes += layers(unit.chunk) * (i < over ? left(token) : made);
        }
      }
      if (unit.kind == UnitKind::forward) {
        for (const Token& token : own(unit)) {
          if (closed_tokens.count({token.first, token.second, unit.chunk}) == 0) {
            const Recompute mode = mode_.at(token);
            bytes += layers(unit.chunk) * split(token, kept(mode), kept_rows(mode));
          }
        }
        for (const Token& token : keys_of(unit)) {
          if (closed.count({token.first, unit.chunk}) == 0 && has_pages(token.first)) {
            const std::int64_t before = by_heads_.count(token.first) > 0
                                            ? token.second
                                            : own_in(unit, token.first, 0, token.second, rank_);
            pages.insert({token.first, before / plan_.memory.page_tokens.value, unit.chunk});
          }
        }
        if (is_last(unit)) {
          const Unit head{UnitKind::head, unit.pack, 0};
          const auto place = static_cast<std::size_t>(
              std::find(order_->begin(), order_->end(), head) - order_->begin());
          if (place >= over) bytes += hidden(unit);
        }
      }
      if (unit.kind == UnitKind::head && stage_ == pp - 1) {
        for (const Token& token : own(unit)) {
          const std::int32_t last = plan_.parallel.chunks - 1;
          if (closed_tokens.count({token.first, token.second, last}) == 0) {
            bytes += split(token, 0, h() * e());
          }
        }
      }
      if (!computes(unit)) continue;
      if (exists(target_line(unit))) {
        if (pp == 1) {  // handed over in place
          const Unit next{unit.kind, unit.pack,
                          unit.chunk + (unit.kind == UnitKind::forward ? 1 : -1)};
          const auto place = static_cast<std::size_t>(
              std::find(order_->begin(), order_->end(), next) - order_->begin());
          if (place >= over) bytes += hidden(unit);
        } else {
          // A send is over when the send `window` later on its channel has started, or when the
          // receiver has been heard of after it consumed.
          const auto [stage, consumer] = remote(unit, target_line(unit));
          std::int64_t later = 0;
          for (std::size_t j = i + 1; j <= n; ++j) {
            const Unit& other = (*order_)[j];
            if (computes(other) && same_channel(unit, other) && exists(target_line(other))) ++later;
          }
          if (later < plan_.max_in_flight && consumer >= known(stage, n)) bytes += hidden(unit);
        }
      }
    }
    for (const auto& page : pages) {
      bytes += layers(std::get<2>(page)) * plan_.memory.page_tokens.value * part(2 * k() * e()) /
               parts_of(std::get<0>(page));
    }
    for (const auto& [sample, chunk] : begun) {
      if (closed.count({sample, chunk}) != 0 || !has_gradients(sample)) continue;
      const auto& group = plan_.groups[index(plan_.sample_group[sample])];
      for (std::int64_t token = 0; token < plan_.samples[sample].value; ++token) {
        if (by_heads_.count(sample) > 0 || owner(group, sample, token) == rank_) {
          bytes += layers(chunk) * part(2 * k() * g()) / parts_of(sample);
        }
      }
    }
    if (pp > 1) bytes += receives(over);
    return bytes;
  }

  /// Receive buffers once the first `over` units have ended.
  std::int64_t receives(std::size_t over) const {
    std::int64_t bytes = 0;
    std::map<std::pair<std::size_t, UnitKind>, std::int64_t> consumed, seen;
    for (std::size_t i = 0; i < order_->size(); ++i) {
      const Unit& unit = (*order_)[i];
      if (!computes(unit) || !exists(source_line(unit))) continue;
      const std::pair channel{index(pack(unit).group), unit.kind};
      if (i < over) ++consumed[channel];
    }
    for (const Unit& unit : *order_) {
      if (!computes(unit) || !exists(source_line(unit))) continue;
      const std::pair channel{index(pack(unit).group), unit.kind};
      const std::int64_t number = seen[channel]++;
      if (number >= consumed[channel] && number < consumed[channel] + plan_.max_in_flight) {
        bytes += hidden(unit);
      }
    }
    return bytes;
  }

  const Plan& plan_;
  std::set<Token> counted_ = test::counted_rows(plan_);
  std::map<Token, Recompute> mode_;
  std::set<std::size_t> cut_forth_, cut_back_;  ///< samples of several slices
  std::set<std::size_t> by_heads_;              ///< samples longer than a block, by heads
  const std::vector<Unit>* order_ = nullptr;
  std::int32_t rank_ = 0, stage_ = 0;
};

}  // namespace

TEST_CASE("rule 7: peaks equal a recount token by token") {
  test::Features found;
  for (std::uint64_t seed = 0; seed < 280; ++seed) {
    CAPTURE(seed);
    test::RandomPlanOptions options;
    if (seed >= 160 && seed < 200) options.uncut = true;
    if (seed >= 180 && seed < 200) options.recompute = Recompute::full;
    options.max_samples = 4;
    options.max_tokens = 24;
    options.max_dp = 3;
    options.max_pp = 3;
    options.max_tp = 3;
    options.vary_bytes = true;
    if (seed % 2 == 0) options.cp_groups = true;
    options.weights = seed % 3 > 0;
    const Plan plan =
        seed < 200 ? test::random_plan(seed, options) : test::random_heads_plan(seed, options);
    if (seed < 200) found += test::features_of(plan);
    const Validation validation = validate(plan);
    REQUIRE(validation.valid());
    Recount recount(plan);
    for (std::size_t device = 0; device < plan.schedule.size(); ++device) {
      CAPTURE(device);
      REQUIRE(validation.worst_case_peak[device].value == recount.peak(device));
    }
  }
  MESSAGE(test::to_string(found));
}

TEST_CASE("rule 7: one device worked out by hand") {
  // h 4, q 4, k 2, f 6, V 10, one layer, e 2, t 4, g 4; pages of 4 tokens, head tile 3.
  // Weights: layer 4 (2 x 4 + 2 x 2) + 3 x 4 x 6 + 2 x 4 = 128, table 40, norm 4, head 40: 212.
  // Always: 212 x (2 + 4 + 2 x 4 + 4) = 3816.
  Plan plan = test::usual_plan({1, 1, 1, LmHead::last, 2});
  // Kept: full 4 x 2 = 8, light (8 + 8 + 12) x 2 + 8 = 64. Keys and values: 2 x 2 x 2 = 8 a token.
  // none is (16 + 8 + 18) x 2 + 8 + 8 = 100. Work of F: light 24 + 36, full 24 + 92; of B: light
  // 76 + 16 + 36, full 76 + 16 + 92.
  // F 0, tokens 0-3, all light: kept 256, a page 32, output 32, work 4 x 60: 560.
  // F 1, tokens 4-7, two light and two full: kept 400, pages 64, outputs 64, work
  //   2 x 60 + 2 x 116: 880.
  // H 0: kept 400, pages 64, outputs 64, hidden gradients 32, work 3 x (40 + 24 + 16 + 16) = 288:
  //   848. H 1: an output less, hidden gradients 64: 848.
  // B 2, tokens 6-7, full: kept 400, pages 64, hidden gradients 64, gradients of keys and values
  //   8 x 16 = 128, work 2 x 184: 1024.
  // B 3, tokens 0-5, light: kept 384, pages 64, hidden gradients 48, 128, work 6 x 128: 1392.
  const Validation validation = validate(plan);
  REQUIRE(validation.valid());
  CHECK(validation.worst_case_peak[0].value == 3816 + 1392);
  // Without recomputation of either pass: B 3 has kept 600, work 6 x 92 = 552.
  plan.micropacks[2].recompute = plan.micropacks[3].recompute = Recompute::none;
  CHECK(validate(plan).worst_case_peak[0].value == 3816 + 600 + 64 + 48 + 128 + 552);
}

TEST_CASE("rule 7: a sample that is not cut keeps no gradients, and in full no pages") {
  // The sizes above, one sample of 4 tokens, pages of 8: 64 bytes. In B of either mode kept and
  // work are 4 x (100 + 92) or 4 x (8 + 184), hidden gradients 32.
  Plan plan = test::hand_plan({1, 1, 1, LmHead::last, 2});
  plan.memory.page_tokens = Tokens{8};
  const SampleId sample = test::add_sample(plan, 4, 0);
  test::add_pack(plan, Pass::forward, 0, {{sample, {0}, {4}}});
  test::add_pack(plan, Pass::backward, 0, {{sample, {0}, {4}}});
  test::schedule_in_order(plan);
  const auto peak = [](const Plan& of) { return validate(of).worst_case_peak.at(0).value - 3816; };
  CHECK(peak(plan) == 768 + 32 + 64);
  Plan old = plan;
  old.version = 1;  // gradients 4 x 16
  CHECK(peak(old) == 768 + 32 + 64 + 64);
  plan.micropacks[1].recompute = Recompute::full;  // keys and values 4 x 8 in the workspace
  CHECK(peak(plan) == 768 + 32 + 32);
  old.micropacks = plan.micropacks;
  CHECK(peak(old) == 768 + 32 + 64 + 64);
  // Two slices forward need the page, two slices backward the gradients too; the first of them has
  // work 2 x 184.
  Plan cut = test::hand_plan({1, 1, 1, LmHead::last, 2});
  cut.memory.page_tokens = Tokens{8};
  (void)test::add_sample(cut, 4, 0);
  test::add_pack(cut, Pass::forward, 0, {{sample, {0}, {2}}});
  test::add_pack(cut, Pass::forward, 0, {{sample, {2}, {4}}});
  test::add_pack(cut, Pass::backward, 0, {{sample, {0}, {4}}}, Recompute::full);
  test::schedule_in_order(cut);
  CHECK(peak(cut) == 768 + 32 + 64);
  cut.micropacks[2].slices = {{sample, {2}, {4}}};
  test::add_pack(cut, Pass::backward, 0, {{sample, {0}, {2}}}, Recompute::full);
  test::schedule_in_order(cut);
  CHECK(peak(cut) == 32 + 2 * 184 + 32 + 64 + 64);
}

TEST_CASE("rule 7: what B leaves to W, worked out by hand") {
  // The sizes above, one sample of 4 tokens in one page of 8. A token's inputs of products are
  // 2 (2 x 4 + 4 + 6) = 36 bytes, gradients of their outputs 2 (2 x 4 + 4 + 2 x 2 + 2 x 6) = 56.
  Plan plan = test::hand_plan({1, 1, 1, LmHead::last, 2});
  plan.memory.page_tokens = Tokens{8};
  const SampleId sample = test::add_sample(plan, 4, 0);
  test::add_pack(plan, Pass::forward, 0, {{sample, {0}, {4}}});
  test::add_pack(plan, Pass::backward, 0, {{sample, {0}, {4}}});
  test::add_pack(plan, Pass::weight, 0, {{sample, {0}, {4}}});
  plan.micropacks[1].weights = WeightGradients::apart;
  test::schedule_in_order(plan);
  const auto peak = [](const Plan& of) { return validate(of).worst_case_peak.at(0).value - 3816; };
  // B: kept and work 4 x (100 + 92), hidden gradients 32, a page 64, output gradients 4 x 56.
  CHECK(peak(plan) == 768 + 32 + 64 + 224);
  // light makes 2 (4 + 4 + 6) again, in the workspace the 36 bytes of a layer besides.
  plan.micropacks[1].recompute = Recompute::light;
  CHECK(peak(plan) == 4 * (64 + 92 + 36) + 32 + 64 + 224 + 4 * 28);
  // full makes all 36 again, and keys and values in the workspace.
  plan.micropacks[1].recompute = Recompute::full;
  CHECK(peak(plan) == 4 * (8 + 92 + 92 + 8) + 32 + 224 + 4 * 36);
  // Two samples, all B first: the second has the first's 4 x (36 + 56) beside it.
  const SampleId other = test::add_sample(plan, 4, 0);
  test::add_pack(plan, Pass::forward, 0, {{other, {0}, {4}}});
  test::add_pack(plan, Pass::backward, 0, {{other, {0}, {4}}}, Recompute::full);
  test::add_pack(plan, Pass::weight, 0, {{other, {0}, {4}}});
  plan.micropacks[4].weights = WeightGradients::apart;
  test::schedule_in_order(plan);
  const std::int64_t alone = 4 * (8 + 92 + 92 + 8) + 32 + 224 + 4 * 36;
  CHECK(peak(plan) == alone + 368);
  // W right after its B has made room: F of the second and its hidden gradients are there.
  test::order_of(plan, 0, 0) = {test::f(0), test::f(3), test::h(0), test::h(3), test::b(1),
                                test::w(2), test::b(4), test::w(5), test::r(),  test::o()};
  CHECK(peak(plan) == alone + 4 * 8 + 32);
  const std::int64_t most = 3816 + alone + 4 * 8 + 32;
  plan.memory.capacity = Bytes{most + 1000 - 1};
  const Validation validation = validate(plan);
  REQUIRE(validation.violations.size() == 1);
  CHECK(validation.violations[0].message ==
        "rule 7, dp 0, pp 0, unit 4: memory may reach " + std::to_string(most) +
            " bytes in B of MicroPack 1, chunk 0, of which weights, gradients and optimizer state "
            "are 3816; capacity - reserved is " +
            std::to_string(most - 1));
}

TEST_CASE("rule 7: buffers of an exchange by heads, worked out by hand") {
  // The sizes above with two heads of keys, k 4, on two ranks: 8 tokens in blocks of 2, 4 a rank.
  Plan plan = test::hand_plan({2, 1, 1, LmHead::last, 2});
  plan.version = 3;
  plan.model.kv_heads = 2;
  plan.groups.push_back({0, 1});
  const SampleId sample = test::add_sample(plan, 8, 2);
  test::add_pack(plan, Pass::forward, 2, {{sample, {0}, {8}}});
  test::add_pack(plan, Pass::backward, 2, {{sample, {0}, {8}}});
  test::schedule_in_order(plan);
  const auto peak = [](const Plan& of) {
    const Validation validation = validate(of);
    REQUIRE(validation.valid());
    CHECK(validation.worst_case_peak[0] == validation.worst_case_peak[1]);
    return validation.worst_case_peak[0].value;
  };
  // Fullest in B. Rings of keys: two messages of 4 tokens, 16 bytes and gradients of 32.
  const std::int64_t ring = 2 * 4 * 16 + 2 * 4 * 32;
  // By heads: of 4 own tokens query and output gradient, 8 bytes each, and three statistics of two
  // heads, 8 each, of which keys and values take less. Of 8 tokens, half of the heads: those, three
  // of queries, four statistics, and gradients of keys and values of 32, for the sample is whole.
  // Keys of 4 own tokens fill a page of 16 bytes a token, halves of those of 8 two of half the
  // size.
  const std::int64_t sent = 8 + 8 + 3 * 8, ordered = 3 * 8 + 4 * 8;
  const std::int64_t heads = 4 * sent + 8 * (sent + ordered + 32) / 2;
  const std::int64_t with_ring = peak(plan);
  Plan by_heads = plan;
  for (MicroPack& pack : by_heads.micropacks) pack.exchange = {RingMode::by_heads};
  CHECK(peak(by_heads) - with_ring == heads - ring);
  // With blocks as long as the sample it stays on one rank, with no buffers by heads.
  by_heads.memory.cp_block_tokens = {8};
  Plan beside = by_heads;
  for (MicroPack& pack : beside.micropacks) pack.exchange = {RingMode::pass_kv};
  const Validation alone = validate(by_heads), ring_alone = validate(beside);
  REQUIRE(alone.valid());
  REQUIRE(ring_alone.valid());
  // Rings up to the end of what one rank owns have a buffer all the same.
  CHECK(ring_alone.worst_case_peak[0] - alone.worst_case_peak[0] == Bytes{2 * 8 * 16 + 2 * 8 * 32});
}

TEST_CASE("rule 7: keys of a sample by heads that is cut, worked out by hand") {
  // The same two ranks. Of 10 tokens in blocks of 2 rank 0 owns blocks 0, 3 and 4, rank 1 two.
  Plan plan = test::hand_plan({2, 1, 1, LmHead::last, 2});
  plan.version = 3;
  plan.model.kv_heads = 2;
  plan.groups.push_back({0, 1});
  const SampleId sample = test::add_sample(plan, 10, 2);
  test::add_pack(plan, Pass::forward, 2, {{sample, {0}, {2}}});
  test::add_pack(plan, Pass::forward, 2, {{sample, {2}, {10}}});
  test::add_pack(plan, Pass::backward, 2, {{sample, {4}, {10}}});
  test::add_pack(plan, Pass::backward, 2, {{sample, {0}, {4}}});
  test::schedule_in_order(plan);
  Plan by_heads = plan;
  for (MicroPack& pack : by_heads.micropacks) pack.exchange = {RingMode::by_heads};
  const Validation rings = validate(plan), heads = validate(by_heads);
  REQUIRE(rings.valid());
  REQUIRE(heads.valid());
  // Fullest in the first B. The ring of keys has two messages of 6 tokens. By heads: rank 0 owns 4
  // of the 6 tokens of the slice, of which each rank has half of the heads. Gradients of keys and
  // values go to their pages.
  const std::int64_t ring_buffers = 6 * (2 * 16 + 2 * 32);
  const std::int64_t sent = 8 + 8 + 3 * 8, ordered = 3 * 8 + 4 * 8;
  const std::int64_t head_buffers = 4 * sent + 6 * (sent + ordered) / 2;
  // Pages of 4 tokens of 16 bytes, and gradients of 32: two and 6 tokens on rank 0, one and 4 on
  // rank 1; by heads halves of three, and of 10 tokens.
  const std::int64_t half = 3 * 4 * 16 / 2 + 10 * 32 / 2;
  const auto more = [&](std::size_t rank) {
    return (heads.worst_case_peak[rank] - rings.worst_case_peak[rank]).value;
  };
  CHECK(more(0) == head_buffers - ring_buffers + half - (2 * 4 * 16 + 6 * 32));
  CHECK(more(1) == head_buffers - ring_buffers + half - (1 * 4 * 16 + 4 * 32));
}

TEST_CASE("rule 7: send buffers are held until their end is certain") {
  // Two stages, three packs of 4 tokens, one in flight: F 0, F 1 and F 2 send 32 bytes each.
  Plan plan = test::hand_plan({1, 2, 1, LmHead::last, 1});
  plan.model.layers = 2;
  for (int i = 0; i < 3; ++i) {
    const SampleId sample = test::add_sample(plan, 4, 0);
    test::add_pack(plan, Pass::forward, 0, {{sample, {0}, {4}}});
    test::add_pack(plan, Pass::backward, 0, {{sample, {0}, {4}}});
  }
  test::schedule_in_order(plan);
  const auto peak = [&] { return validate(plan).worst_case_peak.at(0).value; };
  // Stage 0 is fullest in B 1: kept 3 x 400, pages 3 x 32, receive 32, work 4 x 92 = 368. Its
  // gradient has been heard after stage 1 consumed all: no send is held.
  const std::int64_t always = (128 + 40) * 18;
  CHECK(peak() == always + 1200 + 96 + 32 + 368);
  // With all heads first, B 1 is sent after F 4 is consumed. Here it is sent before: stage 0 holds
  // the send of F 4 while it runs B 1, because nothing tells that it has ended.
  test::order_of(plan, 0, 1) = {test::f(0), test::h(0), test::b(1), test::f(2),
                                test::h(2), test::b(3), test::f(4), test::h(4),
                                test::b(5), test::r(),  test::o()};
  CHECK(peak() == always + 1200 + 96 + 32 + 368 + 32);
}

TEST_CASE("rule 7: sizes that do not fit a number are above every capacity") {
  Plan plan = test::usual_plan({1, 1, 1, LmHead::last, 2});
  plan.model.hidden = std::int64_t{1} << 61;
  plan.memory.capacity = Bytes{(std::int64_t{1} << 62)};
  const Validation validation = validate(plan);
  REQUIRE(validation.violations.size() == 1);
  CHECK(validation.violations[0].rule == 7);
  CHECK(validation.violations[0].message.find("memory may reach more than 2^63 bytes") !=
        std::string::npos);
}
