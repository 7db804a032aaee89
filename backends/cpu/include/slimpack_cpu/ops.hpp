// SPDX-License-Identifier: Apache-2.0
// Operators of a Llama-style decoder in fp64, except attention: plain loops over rows.
#pragma once

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"

/// Matrices are row by row. Operators named forward overwrite their outputs, operators named
/// backward add to them. Every operator throws InvalidInput where a span has not the size that the
/// shape says, and computes each row on its own, so that a row's result does not depend on others.
namespace slimpack::cpu {

/// Numbers that an operator reads.
using In = std::span<const double>;
/// Numbers that an operator writes.
using Out = std::span<double>;

namespace detail {

template <class Element>
concept Number = std::floating_point<std::remove_const_t<Element>>;

inline void check_size(std::size_t size, std::int64_t rows, std::int64_t cols,
                       std::string_view rule) {
  require(rows >= 0 && cols >= 0, rule, std::min(rows, cols));
  require(size == static_cast<std::size_t>(rows * cols), rule, static_cast<std::int64_t>(size));
}

/// Row `i` of a matrix of `cols` columns.
template <Number Element>
std::span<Element> row(std::span<Element> matrix, std::int64_t i, std::int64_t cols) {
  return matrix.subspan(static_cast<std::size_t>(i * cols), static_cast<std::size_t>(cols));
}

/// Rows [first, first + count) of a matrix of `cols` columns.
template <Number Element>
std::span<Element> rows(std::span<Element> matrix, std::int64_t first, std::int64_t count,
                        std::int64_t cols) {
  return matrix.subspan(static_cast<std::size_t>(first * cols),
                        static_cast<std::size_t>(count * cols));
}

inline double dot(In a, In b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

/// into += factor * values
inline void add_scaled(Out into, double factor, In values) {
  for (std::size_t i = 0; i < into.size(); ++i) into[i] += factor * values[i];
}

/// Whether all are finite; the loop has no exit, so that it runs on whole vectors.
template <std::floating_point Value>
[[nodiscard]] bool all_finite(std::span<const Value> values) {
  std::int32_t others = 0;
  for (const Value value : values) {
    others |= std::abs(value) <= std::numeric_limits<Value>::max() ? 0 : 1;
  }
  return others == 0;
}

}  // namespace detail

/// into += values. Throws InvalidInput unless both are as long.
inline void add(Out into, In values) {
  require(into.size() == values.size(), "add: values is not as long as into",
          static_cast<std::int64_t>(values.size()));
  detail::add_scaled(into, 1.0, values);
}

/// Sizes of a linear layer.
struct LinearShape {
  std::int64_t rows = 0;  ///< tokens
  std::int64_t in = 0;    ///< numbers of a row before it
  std::int64_t out = 0;   ///< numbers of a row behind it
};

/// out[rows, out] = in[rows, in] * transpose(weight[out, in]).
inline void linear_forward(Out out, In in, In weight, LinearShape shape) {
  detail::check_size(out.size(), shape.rows, shape.out, "linear_forward: out is not rows * out");
  detail::check_size(in.size(), shape.rows, shape.in, "linear_forward: in is not rows * in");
  detail::check_size(weight.size(), shape.out, shape.in, "linear_forward: weight is not out * in");
  for (std::int64_t r = 0; r < shape.rows; ++r) {
    const In x = detail::row(in, r, shape.in);
    const Out y = detail::row(out, r, shape.out);
    for (std::int64_t o = 0; o < shape.out; ++o) {
      y[static_cast<std::size_t>(o)] = detail::dot(x, detail::row(weight, o, shape.in));
    }
  }
}

/// din[rows, in] += dout[rows, out] * weight[out, in].
inline void linear_backward_input(Out din, In dout, In weight, LinearShape shape) {
  detail::check_size(din.size(), shape.rows, shape.in,
                     "linear_backward_input: din is not rows * in");
  detail::check_size(dout.size(), shape.rows, shape.out,
                     "linear_backward_input: dout is not rows * out");
  detail::check_size(weight.size(), shape.out, shape.in,
                     "linear_backward_input: weight is not out * in");
  for (std::int64_t r = 0; r < shape.rows; ++r) {
    const In dy = detail::row(dout, r, shape.out);
    for (std::int64_t o = 0; o < shape.out; ++o) {
      detail::add_scaled(detail::row(din, r, shape.in), dy[static_cast<std::size_t>(o)],
                         detail::row(weight, o, shape.in));
    }
  }
}

/// dweight[out, in] += transpose(dout[rows, out]) * in[rows, in].
inline void linear_backward_weight(Out dweight, In dout, In in, LinearShape shape) {
  detail::check_size(dweight.size(), shape.out, shape.in,
                     "linear_backward_weight: dweight is not out * in");
  detail::check_size(dout.size(), shape.rows, shape.out,
                     "linear_backward_weight: dout is not rows * out");
  detail::check_size(in.size(), shape.rows, shape.in,
                     "linear_backward_weight: in is not rows * in");
  for (std::int64_t r = 0; r < shape.rows; ++r) {
    const In dy = detail::row(dout, r, shape.out);
    for (std::int64_t o = 0; o < shape.out; ++o) {
      detail::add_scaled(detail::row(dweight, o, shape.in), dy[static_cast<std::size_t>(o)],
                         detail::row(in, r, shape.in));
    }
  }
}

/// A matrix of rows.
struct RowShape {
  std::int64_t rows = 0;  ///< tokens
  std::int64_t cols = 0;  ///< numbers of a row
};

/// out = in * inverse_rms * gain, inverse_rms = 1 / sqrt(mean(in^2) + epsilon), one a row.
inline void rms_norm_forward(Out out, Out inverse_rms, In in, In gain, RowShape shape,
                             double epsilon) {
  require(shape.cols > 0, "rms_norm_forward: cols must be > 0", shape.cols);
  detail::check_size(out.size(), shape.rows, shape.cols,
                     "rms_norm_forward: out is not rows * cols");
  detail::check_size(in.size(), shape.rows, shape.cols, "rms_norm_forward: in is not rows * cols");
  detail::check_size(inverse_rms.size(), shape.rows, 1,
                     "rms_norm_forward: inverse_rms is not one a row");
  detail::check_size(gain.size(), 1, shape.cols, "rms_norm_forward: gain is not one a column");
  for (std::int64_t r = 0; r < shape.rows; ++r) {
    const In x = detail::row(in, r, shape.cols);
    const Out y = detail::row(out, r, shape.cols);
    const double mean = detail::dot(x, x) / static_cast<double>(shape.cols);
    const double inverse = 1.0 / std::sqrt(mean + epsilon);
    inverse_rms[static_cast<std::size_t>(r)] = inverse;
    for (std::size_t i = 0; i < x.size(); ++i) y[i] = x[i] * inverse * gain[i];
  }
}

/// din += d(loss)/d(in), dgain += d(loss)/d(gain).
inline void rms_norm_backward(Out din, Out dgain, In dout, In in, In gain, In inverse_rms,
                              RowShape shape) {
  require(shape.cols > 0, "rms_norm_backward: cols must be > 0", shape.cols);
  detail::check_size(din.size(), shape.rows, shape.cols,
                     "rms_norm_backward: din is not rows * cols");
  detail::check_size(dout.size(), shape.rows, shape.cols,
                     "rms_norm_backward: dout is not rows * cols");
  detail::check_size(in.size(), shape.rows, shape.cols, "rms_norm_backward: in is not rows * cols");
  detail::check_size(inverse_rms.size(), shape.rows, 1,
                     "rms_norm_backward: inverse_rms is not one a row");
  detail::check_size(gain.size(), 1, shape.cols, "rms_norm_backward: gain is not one a column");
  detail::check_size(dgain.size(), 1, shape.cols, "rms_norm_backward: dgain is not one a column");
  for (std::int64_t r = 0; r < shape.rows; ++r) {
    const In x = detail::row(in, r, shape.cols);
    const In dy = detail::row(dout, r, shape.cols);
    const Out dx = detail::row(din, r, shape.cols);
    const double inverse = inverse_rms[static_cast<std::size_t>(r)];
    double along = 0;  // of the gradient on the normalised row
    for (std::size_t i = 0; i < x.size(); ++i) along += dy[i] * gain[i] * x[i] * inverse;
    along /= static_cast<double>(shape.cols);
    for (std::size_t i = 0; i < x.size(); ++i) {
      dx[i] += inverse * (dy[i] * gain[i] - x[i] * inverse * along);
      dgain[i] += dy[i] * x[i] * inverse;
    }
  }
}

/// Rows of heads that are rotated.
struct RopeShape {
  std::int64_t rows = 0;      ///< tokens, at consecutive positions
  std::int64_t heads = 0;     ///< heads of a row
  std::int64_t head_dim = 0;  ///< width of a head, even
};

/// Whether heads are turned by the angles of their position, or back by them.
enum class Rotation : std::uint8_t { forward, inverse };

/// Rotary positions in place: element i < head_dim / 2 of a head turns with element
/// i + head_dim / 2 by position * theta^(-2 i / head_dim). Row r stands at position first + r. The
/// inverse turns back, and so is also the gradient.
inline void rotate(Out values, Tokens first, RopeShape shape, double theta, Rotation rotation) {
  require(shape.head_dim > 0 && shape.head_dim % 2 == 0, "rotate: head_dim must be even",
          shape.head_dim);
  detail::check_size(values.size(), shape.rows, shape.heads * shape.head_dim,
                     "rotate: values is not rows * heads * head_dim");
  const std::int64_t half = shape.head_dim / 2;
  for (std::int64_t i = 0; i < half; ++i) {
    const double frequency =
        1.0 / std::pow(theta, static_cast<double>(2 * i) / static_cast<double>(shape.head_dim));
    for (std::int64_t r = 0; r < shape.rows; ++r) {
      const double angle = static_cast<double>(first.value + r) * frequency;
      const double cosine = std::cos(angle);
      const double sine = rotation == Rotation::forward ? std::sin(angle) : -std::sin(angle);
      for (std::int64_t head = 0; head < shape.heads; ++head) {
        const auto k = static_cast<std::size_t>((r * shape.heads + head) * shape.head_dim + i);
        const double a = values[k];
        const double b = values[k + static_cast<std::size_t>(half)];
        values[k] = a * cosine - b * sine;
        values[k + static_cast<std::size_t>(half)] = b * cosine + a * sine;
      }
    }
  }
}

/// product = silu(gate) * up, silu(x) = x / (1 + exp(-x)).
inline void swiglu_forward(Out product, In gate, In up) {
  require(gate.size() == product.size(), "swiglu_forward: gate is not as long as product",
          static_cast<std::int64_t>(gate.size()));
  require(up.size() == product.size(), "swiglu_forward: up is not as long as product",
          static_cast<std::int64_t>(up.size()));
  for (std::size_t i = 0; i < product.size(); ++i) {
    product[i] = gate[i] / (1.0 + std::exp(-gate[i])) * up[i];
  }
}

/// dgate += d(loss)/d(gate), dup += d(loss)/d(up).
inline void swiglu_backward(Out dgate, Out dup, In dproduct, In gate, In up) {
  for (const std::size_t size : {dgate.size(), dup.size(), gate.size(), up.size()}) {
    require(size == dproduct.size(), "swiglu_backward: all spans must be as long as dproduct",
            static_cast<std::int64_t>(size));
  }
  for (std::size_t i = 0; i < dproduct.size(); ++i) {
    const double sigmoid = 1.0 / (1.0 + std::exp(-gate[i]));
    const double silu = gate[i] * sigmoid;
    dgate[i] += dproduct[i] * up[i] * (sigmoid + silu * (1.0 - sigmoid));
    dup[i] += dproduct[i] * silu;
  }
}

/// out[r] = table[tokens[r]]. Throws InvalidInput also where a token is not below the vocabulary.
inline void embedding_forward(Out out, In table, std::span<const std::int32_t> tokens,
                              std::int64_t vocab, std::int64_t hidden) {
  const auto rows = static_cast<std::int64_t>(tokens.size());
  detail::check_size(out.size(), rows, hidden, "embedding_forward: out is not tokens * hidden");
  detail::check_size(table.size(), vocab, hidden, "embedding_forward: table is not vocab * hidden");
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t token = tokens[static_cast<std::size_t>(r)];
    require(token >= 0 && token < vocab, "embedding_forward: tokens must be below vocab", token);
    std::ranges::copy(detail::row(table, token, hidden), detail::row(out, r, hidden).begin());
  }
}

/// dtable[tokens[r]] += dout[r].
inline void embedding_backward(Out dtable, In dout, std::span<const std::int32_t> tokens,
                               std::int64_t vocab, std::int64_t hidden) {
  const auto rows = static_cast<std::int64_t>(tokens.size());
  detail::check_size(dout.size(), rows, hidden, "embedding_backward: dout is not tokens * hidden");
  detail::check_size(dtable.size(), vocab, hidden,
                     "embedding_backward: dtable is not vocab * hidden");
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t token = tokens[static_cast<std::size_t>(r)];
    require(token >= 0 && token < vocab, "embedding_backward: tokens must be below vocab", token);
    add(detail::row(dtable, token, hidden), detail::row(dout, r, hidden));
  }
}

/// The target of each row; a row without one adds no loss.
using Targets = std::span<const std::optional<std::int32_t>>;

/// Logits of a shard of the vocabulary, rows x size: column c is row first + c of the vocabulary.
struct LogitShape {
  std::int64_t rows = 0;   ///< tokens
  std::int64_t first = 0;  ///< first row of the vocabulary in the shard
  std::int64_t size = 0;   ///< rows of the vocabulary in the shard; may be 0
};

/// The largest logit of each row; minus infinity where the shard is empty.
inline void logit_maximum(Out maximum, In logits, LogitShape shape) {
  detail::check_size(logits.size(), shape.rows, shape.size,
                     "logit_maximum: logits is not rows * size");
  detail::check_size(maximum.size(), shape.rows, 1, "logit_maximum: maximum is not one a row");
  for (std::int64_t r = 0; r < shape.rows; ++r) {
    double largest = -std::numeric_limits<double>::infinity();
    for (const double logit : detail::row(logits, r, shape.size)) {
      largest = std::max(largest, logit);
    }
    maximum[static_cast<std::size_t>(r)] = largest;
  }
}

/// Per row the sum of exp(logit - maximum), and the target's logit where it is in this shard, else
/// zero. Summed over shards they give the loss, maximum + log(sum) - target.
inline void logit_sums(Out sum, Out target_logit, In logits, In maximum, Targets targets,
                       LogitShape shape) {
  detail::check_size(logits.size(), shape.rows, shape.size,
                     "logit_sums: logits is not rows * size");
  detail::check_size(sum.size(), shape.rows, 1, "logit_sums: sum is not one a row");
  detail::check_size(target_logit.size(), shape.rows, 1,
                     "logit_sums: target_logit is not one a row");
  detail::check_size(maximum.size(), shape.rows, 1, "logit_sums: maximum is not one a row");
  detail::check_size(targets.size(), shape.rows, 1, "logit_sums: targets is not one a row");
  for (std::int64_t r = 0; r < shape.rows; ++r) {
    const auto i = static_cast<std::size_t>(r);
    const In row = detail::row(logits, r, shape.size);
    sum[i] = 0;
    for (const double logit : row) sum[i] += std::exp(logit - maximum[i]);
    target_logit[i] = 0;
    if (!targets[i]) continue;
    const std::int64_t column = *targets[i] - shape.first;
    if (column >= 0 && column < shape.size) {
      target_logit[i] = row[static_cast<std::size_t>(column)];
    }
  }
}

/// Turns logits into their gradients, scale * (softmax - one at the target), or zero in rows
/// without target. `maximum` and `sum` are those of the whole vocabulary.
inline void logit_gradients(Out logits, In maximum, In sum, Targets targets, LogitShape shape,
                            double scale) {
  detail::check_size(logits.size(), shape.rows, shape.size,
                     "logit_gradients: logits is not rows * size");
  detail::check_size(maximum.size(), shape.rows, 1, "logit_gradients: maximum is not one a row");
  detail::check_size(sum.size(), shape.rows, 1, "logit_gradients: sum is not one a row");
  detail::check_size(targets.size(), shape.rows, 1, "logit_gradients: targets is not one a row");
  for (std::int64_t r = 0; r < shape.rows; ++r) {
    const auto i = static_cast<std::size_t>(r);
    const Out row = detail::row(logits, r, shape.size);
    const double factor = targets[i] ? scale : 0.0;
    for (double& logit : row) logit = factor * std::exp(logit - maximum[i]) / sum[i];
    if (!targets[i]) continue;
    const std::int64_t column = *targets[i] - shape.first;
    if (column >= 0 && column < shape.size) row[static_cast<std::size_t>(column)] -= scale;
  }
}

/// AdamW (Loshchilov, Hutter, "Decoupled weight decay regularization", ICLR 2019) with bias
/// correction, on all weights alike. Gradients whose norm over the whole model is larger than
/// `largest_norm` are scaled down to it.
struct AdamW {
  double learning_rate = 1e-3;  ///< of the next step
  double beta1 = 0.9;           ///< decay of the first moment
  double beta2 = 0.95;          ///< decay of the second moment
  double epsilon = 1e-8;        ///< added to the root of the corrected second moment
  double weight_decay = 0.1;  ///< weights fall by learning_rate * weight_decay of themselves a step
  double largest_norm = std::numeric_limits<double>::infinity();  ///< infinite: no clipping
  friend bool operator==(const AdamW&, const AdamW&) = default;
};

/// What gradients are multiplied by, given their norm over the whole model.
[[nodiscard]] inline double clipping_factor(const AdamW& settings, double norm) noexcept {
  return norm > settings.largest_norm ? settings.largest_norm / norm : 1.0;
}

/// One update with `factor` times the gradients; `step` counts from 1. Throws InvalidInput also
/// unless step >= 1.
inline void adamw_step(Out weights, Out first_moment, Out second_moment, In gradients,
                       const AdamW& settings, std::int64_t step, double factor = 1.0) {
  require(step >= 1, "adamw_step: step must be >= 1", step);
  for (const std::size_t size : {first_moment.size(), second_moment.size(), gradients.size()}) {
    require(size == weights.size(), "adamw_step: all spans must be as long as weights",
            static_cast<std::int64_t>(size));
  }
  const double correction1 = 1.0 - std::pow(settings.beta1, static_cast<double>(step));
  const double correction2 = 1.0 - std::pow(settings.beta2, static_cast<double>(step));
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const double g = factor * gradients[i];
    first_moment[i] = settings.beta1 * first_moment[i] + (1.0 - settings.beta1) * g;
    second_moment[i] = settings.beta2 * second_moment[i] + (1.0 - settings.beta2) * g * g;
    const double denominator = std::sqrt(second_moment[i] / correction2) + settings.epsilon;
    weights[i] -= settings.learning_rate * (first_moment[i] / correction1 / denominator +
                                            settings.weight_decay * weights[i]);
  }
}

}  // namespace slimpack::cpu
