// SPDX-License-Identifier: Apache-2.0
// What a device computes with: the plain operators in fp64, or the fast ones in fp32.
#pragma once

#include <concepts>
#include <cstdint>
#include <span>

#include "slimpack_cpu/attention.hpp"
#include "slimpack_cpu/fast/attention.hpp"
#include "slimpack_cpu/fast/matrix.hpp"
#include "slimpack_cpu/fast/ops.hpp"
#include "slimpack_cpu/ops.hpp"

namespace slimpack::cpu {

/// Numbers that an operator reads.
template <class Number>
using InOf = std::span<const Number>;
/// Numbers that an operator writes.
template <class Number>
using OutOf = std::span<Number>;

/// The operators of ops.hpp and attention.hpp over numbers of one type.
/// Laws: operators named forward overwrite, operators named backward add; equal input gives equal
/// bits. Between two calls of `forget` no weight that linear operators are given changes.
template <class Candidate>
concept Mathematics =
    std::floating_point<typename Candidate::Number> &&
    requires(Candidate& math, InOf<typename Candidate::Number> in,
             OutOf<typename Candidate::Number> out, LinearShape linear, RowShape row,
             RopeShape rope, LogitShape logit, const AttentionShape& attention, Targets targets,
             std::span<const std::int32_t> tokens, const AdamW& adamw, std::int64_t count,
             double factor) {
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
      math.attention_forward(out, out, in, in, in, attention);
      math.attention_backward(out, out, out, in, in, in, in, in, in, attention);
      math.attention_delta(out, in, in, attention);
      math.attention_backward_from(out, out, out, in, in, in, in, in, in, attention);
      math.adamw_step(out, out, out, in, adamw, count, factor);
      { math.squares(in) } -> std::same_as<double>;
    };

/// The plain operators: the oracle of the others.
struct PlainMath {
  using Number = double;

  static void forget() {}
  static void add(Out into, In values) { cpu::add(into, values); }
  static void linear_forward(Out out, In in, In weight, LinearShape shape) {
    cpu::linear_forward(out, in, weight, shape);
  }
  static void linear_backward_input(Out din, In dout, In weight, LinearShape shape) {
    cpu::linear_backward_input(din, dout, weight, shape);
  }
  static void linear_backward_weight(Out dweight, In dout, In in, LinearShape shape) {
    cpu::linear_backward_weight(dweight, dout, in, shape);
  }
  static void rms_norm_forward(Out out, Out inverse, In in, In gain, RowShape shape,
                               double epsilon) {
    cpu::rms_norm_forward(out, inverse, in, gain, shape, epsilon);
  }
  static void rms_norm_backward(Out din, Out dgain, In dout, In in, In gain, In inverse,
                                RowShape shape) {
    cpu::rms_norm_backward(din, dgain, dout, in, gain, inverse, shape);
  }
  static void rotate(Out values, Tokens first, RopeShape shape, double theta, Rotation rotation) {
    cpu::rotate(values, first, shape, theta, rotation);
  }
  static void swiglu_forward(Out product, In gate, In up) {
    cpu::swiglu_forward(product, gate, up);
  }
  static void swiglu_backward(Out dgate, Out dup, In dproduct, In gate, In up) {
    cpu::swiglu_backward(dgate, dup, dproduct, gate, up);
  }
  static void embedding_forward(Out out, In table, std::span<const std::int32_t> tokens,
                                std::int64_t vocab, std::int64_t hidden) {
    cpu::embedding_forward(out, table, tokens, vocab, hidden);
  }
  static void embedding_backward(Out dtable, In dout, std::span<const std::int32_t> tokens,
                                 std::int64_t vocab, std::int64_t hidden) {
    cpu::embedding_backward(dtable, dout, tokens, vocab, hidden);
  }
  static void logit_maximum(Out maximum, In logits, LogitShape shape) {
    cpu::logit_maximum(maximum, logits, shape);
  }
  static void logit_sums(Out sum, Out target, In logits, In maximum, Targets targets,
                         LogitShape shape) {
    cpu::logit_sums(sum, target, logits, maximum, targets, shape);
  }
  static void logit_gradients(Out logits, In maximum, In sum, Targets targets, LogitShape shape,
                              double scale) {
    cpu::logit_gradients(logits, maximum, sum, targets, shape, scale);
  }
  static void attention_begin(Out out, Out log_sum) { cpu::attention_begin(out, log_sum); }
  static void attention_forward(Out out, Out log_sum, In query, In key, In value,
                                const AttentionShape& shape) {
    cpu::attention_forward(out, log_sum, query, key, value, shape);
  }
  static void attention_backward(Out dquery, Out dkey, Out dvalue, In query, In key, In value,
                                 In out, In log_sum, In dout, const AttentionShape& shape) {
    cpu::attention_backward(dquery, dkey, dvalue, query, key, value, out, log_sum, dout, shape);
  }
  static void attention_delta(Out delta, In out, In dout, const AttentionShape& shape) {
    cpu::attention_delta(delta, out, dout, shape);
  }
  static void attention_backward_from(Out dquery, Out dkey, Out dvalue, In query, In key, In value,
                                      In delta, In log_sum, In dout, const AttentionShape& shape) {
    cpu::attention_backward_from(dquery, dkey, dvalue, query, key, value, delta, log_sum, dout,
                                 shape);
  }
  static void adamw_step(Out weights, Out first_moment, Out second_moment, In gradients,
                         const AdamW& settings, std::int64_t step, double factor) {
    cpu::adamw_step(weights, first_moment, second_moment, gradients, settings, step, factor);
  }
  static double squares(In values) { return detail::dot(values, values); }
};

/// Register tiles, packed weights and fused loops in fp32. It owns scratch of a few megabytes,
/// allocated once: one object is for one thread at a time.
class FastMath {
 public:
  using Number = float;
  using In = fast::In;
  using Out = fast::Out;

  void forget() noexcept { multiplier_.forget(); }
  static void add(Out into, In values) { fast::add(into, values); }
  void linear_forward(Out out, In in, In weight, LinearShape shape) {
    check(shape, "linear_forward", out.size(), in.size(), weight.size());
    multiplier_.run(out.data(), shape.rows, shape.out, {in.data(), shape.in, 1}, weight.data(),
                    shape.in, fast::Multiplier::Order::transposed, false, true);
  }
  void linear_backward_input(Out din, In dout, In weight, LinearShape shape) {
    check(shape, "linear_backward_input", dout.size(), din.size(), weight.size());
    multiplier_.run(din.data(), shape.rows, shape.in, {dout.data(), shape.out, 1}, weight.data(),
                    shape.out, fast::Multiplier::Order::rows, true, true);
  }
  void linear_backward_weight(Out dweight, In dout, In in, LinearShape shape) {
    check(shape, "linear_backward_weight", dout.size(), in.size(), dweight.size());
    multiplier_.run(dweight.data(), shape.out, shape.in, {dout.data(), 1, shape.out}, in.data(),
                    shape.rows, fast::Multiplier::Order::rows, true, false);
  }
  static void rms_norm_forward(Out out, Out inverse, In in, In gain, RowShape shape,
                               double epsilon) {
    fast::rms_norm_forward(out, inverse, in, gain, shape, epsilon);
  }
  static void rms_norm_backward(Out din, Out dgain, In dout, In in, In gain, In inverse,
                                RowShape shape) {
    fast::rms_norm_backward(din, dgain, dout, in, gain, inverse, shape);
  }
  void rotate(Out values, Tokens first, RopeShape shape, double theta, Rotation rotation) {
    rotary_.rotate(values, first, shape, theta, rotation);
  }
  static void swiglu_forward(Out product, In gate, In up) {
    fast::swiglu_forward(product, gate, up);
  }
  static void swiglu_backward(Out dgate, Out dup, In dproduct, In gate, In up) {
    fast::swiglu_backward(dgate, dup, dproduct, gate, up);
  }
  static void embedding_forward(Out out, In table, std::span<const std::int32_t> tokens,
                                std::int64_t vocab, std::int64_t hidden) {
    fast::embedding_forward(out, table, tokens, vocab, hidden);
  }
  static void embedding_backward(Out dtable, In dout, std::span<const std::int32_t> tokens,
                                 std::int64_t vocab, std::int64_t hidden) {
    fast::embedding_backward(dtable, dout, tokens, vocab, hidden);
  }
  static void logit_maximum(Out maximum, In logits, LogitShape shape) {
    fast::logit_maximum(maximum, logits, shape);
  }
  static void logit_sums(Out sum, Out target, In logits, In maximum, Targets targets,
                         LogitShape shape) {
    fast::logit_sums(sum, target, logits, maximum, targets, shape);
  }
  static void logit_gradients(Out logits, In maximum, In sum, Targets targets, LogitShape shape,
                              double scale) {
    fast::logit_gradients(logits, maximum, sum, targets, shape, scale);
  }
  static void attention_begin(Out out, Out log_sum) {
    std::fill(out.begin(), out.end(), 0.0F);
    std::fill(log_sum.begin(), log_sum.end(), -std::numeric_limits<float>::infinity());
  }
  void attention_forward(Out out, Out log_sum, In query, In key, In value,
                         const AttentionShape& shape) {
    attention_.forward(out, log_sum, query, key, value, shape);
  }
  void attention_backward(Out dquery, Out dkey, Out dvalue, In query, In key, In value, In out,
                          In log_sum, In dout, const AttentionShape& shape) {
    attention_.backward(dquery, dkey, dvalue, query, key, value, out, {}, log_sum, dout, shape);
  }
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
  void attention_backward_from(Out dquery, Out dkey, Out dvalue, In query, In key, In value,
                               In delta, In log_sum, In dout, const AttentionShape& shape) {
    fast::check_size(delta.size(), shape.rows, shape.heads, "attention_backward_from", "delta");
    if (shape.rows == 0) return;
    attention_.backward(dquery, dkey, dvalue, query, key, value, {}, delta, log_sum, dout, shape);
  }
  static void adamw_step(Out weights, Out first_moment, Out second_moment, In gradients,
                         const AdamW& settings, std::int64_t step, double factor) {
    fast::adamw_step(weights, first_moment, second_moment, gradients, settings, step, factor);
  }
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
