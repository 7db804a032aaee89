// SPDX-License-Identifier: Apache-2.0
// What a device computes with: the plain operators in fp64, or the fast ones in fp32.
#pragma once

#include <concepts>
#include <cstdint>
#include <span>

#include "slimpack_cpu/attention.hpp"
#include "slimpack_cpu/attention_runs.hpp"
#include "slimpack_cpu/fast/attention.hpp"
#include "slimpack_cpu/fast/matrix.hpp"
#include "slimpack_cpu/fast/ops.hpp"
#include "slimpack_cpu/ops.hpp"

namespace slimpack::cpu {

/// The operators of ops.hpp and attention.hpp over numbers of one type.
/// Laws: operators named forward overwrite, operators named backward add; equal input gives equal
/// bits. Between two calls of `forget` no weight that linear operators are given changes.
template <class Candidate>
concept Mathematics =
    std::floating_point<typename Candidate::Number> &&
    requires(Candidate& math, InOf<typename Candidate::Number> in,
             OutOf<typename Candidate::Number> out, LinearShape linear, RowShape row,
             RopeShape rope, LogitShape logit, const AttentionShape& attention, Targets targets,
             std::span<const QueryRun<typename Candidate::Number>> queries,
             const KeyRun<typename Candidate::Number>& keys, std::span<const std::int32_t> tokens,
             const AdamW& adamw, std::int64_t count, double factor) {
      math.forget();
      math.add(out, in);
      math.linear_forward(out, in, in, linear);
      math.linear_backward_input(out, in, in, linear);
      math.linear_backward_weight(out, in, in, linear);
      math.rms_norm_forward(out, out, in, in, row, factor);
      math.rms_norm_backward(out, out, in, in, in, in, row);
      math.rotate(out, Tokens{}, rope, factor, Rotation::forward);
      math.swiglu_forward(out, in, in);
      math.swiglu_backward(out, out, in, in, in);
      math.embedding_forward(out, in, tokens, count, count);
      math.embedding_backward(out, in, tokens, count, count);
      math.logit_maximum(out, in, logit);
      math.logit_sums(out, out, in, in, targets, logit);
      math.logit_gradients(out, in, in, targets, logit, factor);
      math.attention_begin(out, out);
      math.attention_forward(queries, keys, attention);
      math.attention_delta(out, in, in, attention);
      math.attention_backward(queries, keys, attention);
      math.adamw_step(out, out, out, in, adamw, count, factor);
      { math.squares(in) } -> std::same_as<double>;
    };

/// The plain operators: the oracle of the others.
struct PlainMath {
  /// What is computed in.
  using Number = double;

  /// Does nothing: no copy of a weight is kept.
  static void forget() {}
  /// into += values.
  static void add(Out into, In values) { cpu::add(into, values); }
  /// out = in * transpose(weight).
  static void linear_forward(Out out, In in, In weight, LinearShape shape) {
    cpu::linear_forward(out, in, weight, shape);
  }
  /// din += dout * weight.
  static void linear_backward_input(Out din, In dout, In weight, LinearShape shape) {
    cpu::linear_backward_input(din, dout, weight, shape);
  }
  /// dweight += transpose(dout) * in.
  static void linear_backward_weight(Out dweight, In dout, In in, LinearShape shape) {
    cpu::linear_backward_weight(dweight, dout, in, shape);
  }
  /// out = in * inverse * gain, with `inverse` the inverse RMS of each row.
  static void rms_norm_forward(Out out, Out inverse, In in, In gain, RowShape shape,
                               double epsilon) {
    cpu::rms_norm_forward(out, inverse, in, gain, shape, epsilon);
  }
  /// din and dgain += the gradients of rms_norm_forward.
  static void rms_norm_backward(Out din, Out dgain, In dout, In in, In gain, In inverse,
                                RowShape shape) {
    cpu::rms_norm_backward(din, dgain, dout, in, gain, inverse, shape);
  }
  /// Turns each row by its position, or back; row 0 stands at position `first`.
  static void rotate(Out values, Tokens first, RopeShape shape, double theta, Rotation rotation) {
    cpu::rotate(values, first, shape, theta, rotation);
  }
  /// product = silu(gate) * up.
  static void swiglu_forward(Out product, In gate, In up) {
    cpu::swiglu_forward(product, gate, up);
  }
  /// dgate and dup += the gradients of swiglu_forward.
  static void swiglu_backward(Out dgate, Out dup, In dproduct, In gate, In up) {
    cpu::swiglu_backward(dgate, dup, dproduct, gate, up);
  }
  /// out[r] = table[tokens[r]].
  static void embedding_forward(Out out, In table, std::span<const std::int32_t> tokens,
                                std::int64_t vocab, std::int64_t hidden) {
    cpu::embedding_forward(out, table, tokens, vocab, hidden);
  }
  /// dtable[tokens[r]] += dout[r].
  static void embedding_backward(Out dtable, In dout, std::span<const std::int32_t> tokens,
                                 std::int64_t vocab, std::int64_t hidden) {
    cpu::embedding_backward(dtable, dout, tokens, vocab, hidden);
  }
  /// The largest logit of each row in a shard of the vocabulary.
  static void logit_maximum(Out maximum, In logits, LogitShape shape) {
    cpu::logit_maximum(maximum, logits, shape);
  }
  /// The sum of exp(logit - maximum) and the target logit of each row in a shard of the vocabulary.
  static void logit_sums(Out sum, Out target, In logits, In maximum, Targets targets,
                         LogitShape shape) {
    cpu::logit_sums(sum, target, logits, maximum, targets, shape);
  }
  /// Turns logits into their gradients, with maximum and sum of the whole vocabulary.
  static void logit_gradients(Out logits, In maximum, In sum, Targets targets, LogitShape shape,
                              double scale) {
    cpu::logit_gradients(logits, maximum, sum, targets, shape, scale);
  }
  /// What attention begins with, before any key is seen: zeros, and a log-sum-exp of -infinity.
  static void attention_begin(Out out, Out log_sum) { cpu::attention_begin(out, log_sum); }
  /// Lets ascending runs of rows see a further run of keys: changes `attention` and `log_sum`.
  static void attention_forward(std::span<const QueryRun<Number>> queries,
                                const KeyRun<Number>& keys, const AttentionShape& heads) {
    for_each_pair(queries, keys, heads,
                  [](const auto& rows, const auto& met, const AttentionShape& shape) {
                    cpu::attention_forward(rows.attention, rows.log_sum, rows.query, met.key,
                                           met.value, shape);
                  });
  }
  /// dquery, dkey and dvalue += their gradients through one run of keys.
  static void attention_backward(std::span<const QueryRun<Number>> queries,
                                 const KeyRun<Number>& keys, const AttentionShape& heads) {
    for_each_pair(queries, keys, heads,
                  [](const auto& rows, const auto& met, const AttentionShape& shape) {
                    if (rows.delta.empty()) {
                      cpu::attention_backward(rows.dquery, met.dkey, met.dvalue, rows.query,
                                              met.key, met.value, rows.attention, rows.log_sum,
                                              rows.dattention, shape);
                    } else {
                      cpu::attention_backward_from(rows.dquery, met.dkey, met.dvalue, rows.query,
                                                   met.key, met.value, rows.delta, rows.log_sum,
                                                   rows.dattention, shape);
                    }
                  });
  }
  /// delta[row, head] = sum over the head of out * dout.
  static void attention_delta(Out delta, In out, In dout, const AttentionShape& shape) {
    cpu::attention_delta(delta, out, dout, shape);
  }
  /// One update with `factor` times the gradients; `step` counts from 1.
  static void adamw_step(Out weights, Out first_moment, Out second_moment, In gradients,
                         const AdamW& settings, std::int64_t step, double factor) {
    cpu::adamw_step(weights, first_moment, second_moment, gradients, settings, step, factor);
  }
  /// The sum of all values squared.
  static double squares(In values) { return detail::dot(values, values); }

 private:
  /// Calls visit(rows, keys, shape) for all rows and keys that may meet, both of consecutive
  /// positions.
  template <class Visit>
  static void for_each_pair(std::span<const QueryRun<Number>> queries, const KeyRun<Number>& keys,
                            const AttentionShape& heads, Visit visit) {
    for (const QueryRun<Number>& rows : queries) {
      keys.for_each_stretch([&](const KeyRun<Number>& met) {
        if (met.first > rows.last()) return;
        visit(rows, met,
              AttentionShape{rows.rows, met.keys, rows.first, met.first, heads.heads,
                             heads.kv_heads, heads.head_dim});
      });
    }
  }
};

/// Register tiles, packed weights and fused loops in fp32. It owns scratch of a few megabytes,
/// allocated once: one object is for one thread at a time.
class FastMath {
 public:
  /// What is computed in.
  using Number = float;
  /// Numbers that an operator reads.
  using In = fast::In;
  /// Numbers that an operator writes.
  using Out = fast::Out;

  /// Drops the packed weight. To be called before weights change.
  void forget() noexcept { multiplier_.forget(); }
  /// into += values.
  static void add(Out into, In values) { fast::add(into, values); }
  /// out = in * transpose(weight). The last weight stays packed until `forget` if it is one block.
  void linear_forward(Out out, In in, In weight, LinearShape shape) {
    check(shape, "linear_forward", out.size(), in.size(), weight.size());
    multiplier_.run(out.data(), shape.rows, shape.out, {in.data(), shape.in, 1}, weight.data(),
                    shape.in, fast::Multiplier::Order::transposed, false, true);
  }
  /// din += dout * weight. The last weight stays packed until `forget` if it is one block.
  void linear_backward_input(Out din, In dout, In weight, LinearShape shape) {
    check(shape, "linear_backward_input", dout.size(), din.size(), weight.size());
    multiplier_.run(din.data(), shape.rows, shape.in, {dout.data(), shape.out, 1}, weight.data(),
                    shape.out, fast::Multiplier::Order::rows, true, true);
  }
  /// dweight += transpose(dout) * in.
  void linear_backward_weight(Out dweight, In dout, In in, LinearShape shape) {
    check(shape, "linear_backward_weight", dout.size(), in.size(), dweight.size());
    multiplier_.run(dweight.data(), shape.out, shape.in, {dout.data(), 1, shape.out}, in.data(),
                    shape.rows, fast::Multiplier::Order::rows, true, false);
  }
  /// out = in * inverse * gain, with `inverse` the inverse RMS of each row.
  static void rms_norm_forward(Out out, Out inverse, In in, In gain, RowShape shape,
                               double epsilon) {
    fast::rms_norm_forward(out, inverse, in, gain, shape, epsilon);
  }
  /// din and dgain += the gradients of rms_norm_forward.
  static void rms_norm_backward(Out din, Out dgain, In dout, In in, In gain, In inverse,
                                RowShape shape) {
    fast::rms_norm_backward(din, dgain, dout, in, gain, inverse, shape);
  }
  /// Turns each row by its position, or back; row 0 stands at position `first`.
  void rotate(Out values, Tokens first, RopeShape shape, double theta, Rotation rotation) {
    rotary_.rotate(values, first, shape, theta, rotation);
  }
  /// product = silu(gate) * up.
  static void swiglu_forward(Out product, In gate, In up) {
    fast::swiglu_forward(product, gate, up);
  }
  /// dgate and dup += the gradients of swiglu_forward.
  static void swiglu_backward(Out dgate, Out dup, In dproduct, In gate, In up) {
    fast::swiglu_backward(dgate, dup, dproduct, gate, up);
  }
  /// out[r] = table[tokens[r]].
  static void embedding_forward(Out out, In table, std::span<const std::int32_t> tokens,
                                std::int64_t vocab, std::int64_t hidden) {
    fast::embedding_forward(out, table, tokens, vocab, hidden);
  }
  /// dtable[tokens[r]] += dout[r].
  static void embedding_backward(Out dtable, In dout, std::span<const std::int32_t> tokens,
                                 std::int64_t vocab, std::int64_t hidden) {
    fast::embedding_backward(dtable, dout, tokens, vocab, hidden);
  }
  /// The largest logit of each row in a shard of the vocabulary.
  static void logit_maximum(Out maximum, In logits, LogitShape shape) {
    fast::logit_maximum(maximum, logits, shape);
  }
  /// The sum of exp(logit - maximum) and the target logit of each row in a shard of the vocabulary.
  static void logit_sums(Out sum, Out target, In logits, In maximum, Targets targets,
                         LogitShape shape) {
    fast::logit_sums(sum, target, logits, maximum, targets, shape);
  }
  /// Turns logits into their gradients, with maximum and sum of the whole vocabulary.
  static void logit_gradients(Out logits, In maximum, In sum, Targets targets, LogitShape shape,
                              double scale) {
    fast::logit_gradients(logits, maximum, sum, targets, shape, scale);
  }
  /// What attention begins with, before any key is seen: zeros, and a log-sum-exp of -infinity.
  static void attention_begin(Out out, Out log_sum) {
    std::fill(out.begin(), out.end(), 0.0F);
    std::fill(log_sum.begin(), log_sum.end(), -std::numeric_limits<float>::infinity());
  }
  /// Lets ascending runs of rows see a further run of keys: changes `attention` and `log_sum`.
  void attention_forward(std::span<const QueryRun<Number>> queries, const KeyRun<Number>& keys,
                         const AttentionShape& heads) {
    attention_.forward(queries, keys, heads);
  }
  /// dquery, dkey and dvalue += their gradients through one run of keys.
  void attention_backward(std::span<const QueryRun<Number>> queries, const KeyRun<Number>& keys,
                          const AttentionShape& heads) {
    attention_.backward(queries, keys, heads);
  }
  /// delta[row, head] = sum over the head of out * dout.
  static void attention_delta(Out delta, In out, In dout, const AttentionShape& shape) {
    detail::check_attention(shape);
    fast::check_size(delta.size(), shape.rows, shape.heads, "attention_delta", "delta");
    fast::check_size(out.size(), shape.rows, shape.query_width(), "attention_delta", "out");
    fast::check_size(dout.size(), shape.rows, shape.query_width(), "attention_delta", "dout");
    for (std::size_t i = 0; i < delta.size(); ++i) {
      const std::size_t from = i * static_cast<std::size_t>(shape.head_dim);
      delta[i] = fast::dot(out.data() + from, dout.data() + from, shape.head_dim);
    }
  }
  /// One update with `factor` times the gradients; `step` counts from 1.
  static void adamw_step(Out weights, Out first_moment, Out second_moment, In gradients,
                         const AdamW& settings, std::int64_t step, double factor) {
    fast::adamw_step(weights, first_moment, second_moment, gradients, settings, step, factor);
  }
  /// The sum of all values squared, in fp64.
  static double squares(In values) { return fast::squares(values); }

 private:
  static void check(LinearShape shape, const char* op, std::size_t out, std::size_t in,
                    std::size_t weight) {
    fast::check_size(out, shape.rows, shape.out, op, "out");
    fast::check_size(in, shape.rows, shape.in, op, "in");
    fast::check_size(weight, shape.out, shape.in, op, "weight");
  }

  fast::Multiplier multiplier_;
  fast::Attention attention_;
  fast::Rotary rotary_;
};

static_assert(Mathematics<PlainMath> && Mathematics<FastMath> && !Mathematics<AdamW>);

}  // namespace slimpack::cpu
