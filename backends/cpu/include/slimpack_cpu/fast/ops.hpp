// SPDX-License-Identifier: Apache-2.0
// Operators of a decoder in fp32 that work row by row: norms, gates, positions, losses, AdamW.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack_cpu/fast/matrix.hpp"
#include "slimpack_cpu/fast/packet.hpp"
#include "slimpack_cpu/ops.hpp"

/// What each operator computes is said in slimpack_cpu/ops.hpp.
namespace slimpack::cpu::fast {

using In = std::span<const float>;
using Out = std::span<float>;

/// Throws InvalidInput unless a span named `what` of `op` has rows x cols elements.
inline void check_size(std::size_t size, std::int64_t rows, std::int64_t cols, const char* op,
                       const char* what) {
  if (rows >= 0 && cols >= 0 && size == static_cast<std::size_t>(rows * cols)) return;
  require(false, std::string("fast ") + op + ": size of " + what + " must be as the shape says",
          static_cast<std::int64_t>(size));
}

/// The sum of a * b, each lane in order.
inline float dot(const float* a, const float* b, std::int64_t count) {
  Packet sums = all(0.0F);
  for_packets(count, [&](std::int64_t i, auto lanes) {
    sums = multiply_add(lanes.load(a + i), lanes.load(b + i), sums);
  });
  return sum_of(sums);
}

/// The operator of the same name in slimpack_cpu/ops.hpp, in fp32.
inline void add(Out into, In values) {
  check_size(values.size(), 1, static_cast<std::int64_t>(into.size()), "add", "values");
  for_packets(static_cast<std::int64_t>(into.size()), [&](std::int64_t i, auto lanes) {
    float* at = into.data() + i;
    lanes.store(at, sum(lanes.load(at), lanes.load(values.data() + i)));
  });
}

/// The operator of the same name in slimpack_cpu/ops.hpp, in fp32.
inline void rms_norm_forward(Out out, Out inverse_rms, In in, In gain, RowShape shape,
                             double epsilon) {
  constexpr const char* kName = "rms_norm_forward";
  check_size(out.size(), shape.rows, shape.cols, kName, "out");
  check_size(in.size(), shape.rows, shape.cols, kName, "in");
  check_size(inverse_rms.size(), shape.rows, 1, kName, "inverse_rms");
  check_size(gain.size(), 1, shape.cols, kName, "gain");
  const float* x = in.data();
  float* y = out.data();
  for (std::size_t r = 0; r < inverse_rms.size(); ++r, x += shape.cols, y += shape.cols) {
    const float mean = dot(x, x, shape.cols) / static_cast<float>(shape.cols);
    const float inverse = 1.0F / std::sqrt(mean + static_cast<float>(epsilon));
    inverse_rms[r] = inverse;
    const Packet factor = all(inverse);
    for_packets(shape.cols, [&](std::int64_t i, auto lanes) {
      lanes.store(y + i, product(product(lanes.load(x + i), factor), lanes.load(gain.data() + i)));
    });
  }
}

/// The operator of the same name in slimpack_cpu/ops.hpp, in fp32.
inline void rms_norm_backward(Out din, Out dgain, In dout, In in, In gain, In inverse_rms,
                              RowShape shape) {
  constexpr const char* kName = "rms_norm_backward";
  check_size(din.size(), shape.rows, shape.cols, kName, "din");
  check_size(dout.size(), shape.rows, shape.cols, kName, "dout");
  check_size(in.size(), shape.rows, shape.cols, kName, "in");
  check_size(inverse_rms.size(), shape.rows, 1, kName, "inverse_rms");
  check_size(gain.size(), 1, shape.cols, kName, "gain");
  check_size(dgain.size(), 1, shape.cols, kName, "dgain");
  const float* x = in.data();
  const float* dy = dout.data();
  float* dx = din.data();
  for (const float inverse : inverse_rms) {
    Packet sums = all(0.0F);  // of the gradient along the normalised row
    for_packets(shape.cols, [&](std::int64_t i, auto lanes) {
      const Packet scaled = product(lanes.load(dy + i), lanes.load(gain.data() + i));
      sums = multiply_add(scaled, lanes.load(x + i), sums);
    });
    const float along = sum_of(sums) * inverse / static_cast<float>(shape.cols);
    const Packet factor = all(inverse), minus_share = all(-inverse * along);
    for_packets(shape.cols, [&](std::int64_t i, auto lanes) {
      const Packet value = lanes.load(x + i), seen = lanes.load(dy + i);
      const Packet scaled = product(seen, lanes.load(gain.data() + i));
      const Packet inner = multiply_add(value, minus_share, scaled);
      lanes.store(dx + i, multiply_add(inner, factor, lanes.load(dx + i)));
      float* at = dgain.data() + i;
      lanes.store(at, multiply_add(product(seen, value), factor, lanes.load(at)));
    });
    x += shape.cols;
    dy += shape.cols;
    dx += shape.cols;
  }
}

/// Rotary positions. Angles of position 64 b + o come from those of 64 b and of o by the sum of
/// angles, so that sines are few and tables small.
class Rotary {
 public:
  /// As cpu::rotate, in fp32. Keeps its tables for the next call with the same theta and head_dim.
  void rotate(Out values, Tokens first, RopeShape shape, double theta, Rotation rotation) {
    require(shape.head_dim > 0 && shape.head_dim % 2 == 0, "fast rotate: head_dim must be even",
            shape.head_dim);
    check_size(values.size(), shape.rows, shape.heads * shape.head_dim, "rotate", "values");
    prepare(theta, shape.head_dim);
    const std::int64_t half = shape.head_dim / 2;
    const Packet sign = all(rotation == Rotation::forward ? 1.0F : -1.0F);
    std::int64_t block = -1;
    float* line = values.data();
    for (std::int64_t r = 0; r < shape.rows; ++r) {
      const std::int64_t position = first.value + r;
      if (position / kBlock != block) {
        block = position / kBlock;
        fill(base_.data(), static_cast<double>(block * kBlock));
      }
      const float* offset = offsets_.data() + position % kBlock * 2 * half;
      const float* base = base_.data();
      float* turn = turn_.data();
      for_packets(half, [&](std::int64_t i, auto lanes) {
        const Packet c = lanes.load(base + i), s = lanes.load(base + half + i);
        const Packet oc = lanes.load(offset + i), os = lanes.load(offset + half + i);
        lanes.store(turn + i, difference(product(c, oc), product(s, os)));
        lanes.store(turn + half + i, product(sign, multiply_add(s, oc, product(c, os))));
      });
      for (std::int64_t head = 0; head < shape.heads; ++head, line += shape.head_dim) {
        for_packets(half, [&](std::int64_t i, auto lanes) {
          const Packet a = lanes.load(line + i), b = lanes.load(line + half + i);
          const Packet c = lanes.load(turn + i), s = lanes.load(turn + half + i);
          lanes.store(line + i, difference(product(a, c), product(b, s)));
          lanes.store(line + half + i, multiply_add(a, s, product(b, c)));
        });
      }
    }
  }

 private:
  static constexpr std::int64_t kBlock = 64;

  void prepare(double theta, std::int64_t head_dim) {
    if (theta == theta_ && static_cast<std::int64_t>(turn_.size()) == head_dim) return;
    theta_ = theta;
    const auto dim = static_cast<std::size_t>(head_dim);
    frequency_.resize(dim / 2);
    for (std::size_t i = 0; i < dim / 2; ++i) {
      frequency_[i] =
          1.0 / std::pow(theta, static_cast<double>(2 * i) / static_cast<double>(head_dim));
    }
    base_.resize(dim);
    turn_.resize(dim);
    offsets_.resize(dim * kBlock);
    for (std::size_t offset = 0; offset < kBlock; ++offset) {
      fill(offsets_.data() + offset * dim, static_cast<double>(offset));
    }
  }

  /// Cosines, then sines, of one position.
  void fill(float* into, double position) const {
    for (const double frequency : frequency_) {
      into[0] = static_cast<float>(std::cos(position * frequency));
      into[frequency_.size()] = static_cast<float>(std::sin(position * frequency));
      ++into;
    }
  }

  double theta_ = 0;
  std::vector<double> frequency_;
  std::vector<float> base_, offsets_, turn_;
};

/// 1 / (1 + exp(-x))
inline Packet sigmoid(const Packet& x) {
  const Packet one = all(1.0F);
  return quotient(one, sum(one, exp2(product(x, all(-kLog2E)))));
}

/// The operator of the same name in slimpack_cpu/ops.hpp, in fp32.
inline void swiglu_forward(Out result, In gate, In up) {
  const auto count = static_cast<std::int64_t>(result.size());
  check_size(gate.size(), 1, count, "swiglu_forward", "gate");
  check_size(up.size(), 1, count, "swiglu_forward", "up");
  for_packets(count, [&](std::int64_t i, auto lanes) {
    const Packet g = lanes.load(gate.data() + i);
    lanes.store(result.data() + i, product(product(g, sigmoid(g)), lanes.load(up.data() + i)));
  });
}

/// The operator of the same name in slimpack_cpu/ops.hpp, in fp32.
inline void swiglu_backward(Out dgate, Out dup, In dproduct, In gate, In up) {
  const auto count = static_cast<std::int64_t>(dproduct.size());
  for (const std::size_t size : {dgate.size(), dup.size(), gate.size(), up.size()}) {
    check_size(size, 1, count, "swiglu_backward", "each span");
  }
  const Packet one = all(1.0F);
  for_packets(count, [&](std::int64_t i, auto lanes) {
    const Packet g = lanes.load(gate.data() + i), seen = lanes.load(dproduct.data() + i);
    const Packet share = sigmoid(g);
    const Packet silu = product(g, share);
    const Packet slope = multiply_add(silu, difference(one, share), share);
    float* at = dgate.data() + i;
    lanes.store(at, multiply_add(product(seen, lanes.load(up.data() + i)), slope, lanes.load(at)));
    at = dup.data() + i;
    lanes.store(at, multiply_add(seen, silu, lanes.load(at)));
  });
}

/// The operator of the same name in slimpack_cpu/ops.hpp, in fp32.
inline void embedding_forward(Out out, In table, std::span<const std::int32_t> tokens,
                              std::int64_t vocab, std::int64_t hidden) {
  const auto rows = static_cast<std::int64_t>(tokens.size());
  check_size(out.size(), rows, hidden, "embedding_forward", "out");
  check_size(table.size(), vocab, hidden, "embedding_forward", "table");
  float* line = out.data();
  for (const std::int32_t token : tokens) {
    require(token >= 0 && token < vocab, "fast embedding_forward: tokens must be below vocab",
            token);
    line = std::copy_n(table.data() + token * hidden, hidden, line);
  }
}

/// The operator of the same name in slimpack_cpu/ops.hpp, in fp32.
inline void embedding_backward(Out dtable, In dout, std::span<const std::int32_t> tokens,
                               std::int64_t vocab, std::int64_t hidden) {
  const auto rows = static_cast<std::int64_t>(tokens.size());
  check_size(dout.size(), rows, hidden, "embedding_backward", "dout");
  check_size(dtable.size(), vocab, hidden, "embedding_backward", "dtable");
  const auto cols = static_cast<std::size_t>(hidden);
  for (std::size_t r = 0; r < tokens.size(); ++r) {
    require(tokens[r] >= 0 && tokens[r] < vocab,
            "fast embedding_backward: tokens must be below vocab", tokens[r]);
    add(dtable.subspan(static_cast<std::size_t>(tokens[r]) * cols, cols),
        dout.subspan(r * cols, cols));
  }
}

/// The operator of the same name in slimpack_cpu/ops.hpp, in fp32.
inline void logit_maximum(Out maximum, In logits, LogitShape shape) {
  check_size(logits.size(), shape.rows, shape.size, "logit_maximum", "logits");
  check_size(maximum.size(), shape.rows, 1, "logit_maximum", "maximum");
  const float* line = logits.data();
  for (float& largest : maximum) {
    largest = -std::numeric_limits<float>::infinity();
    for (std::int64_t i = 0; i < shape.size; ++i) largest = std::max(largest, line[i]);
    line += shape.size;
  }
}

/// The operator of the same name in slimpack_cpu/ops.hpp, in fp32.
inline void logit_sums(Out sums, Out target_logit, In logits, In maximum, Targets targets,
                       LogitShape shape) {
  constexpr const char* kName = "logit_sums";
  check_size(logits.size(), shape.rows, shape.size, kName, "logits");
  check_size(sums.size(), shape.rows, 1, kName, "sum");
  check_size(target_logit.size(), shape.rows, 1, kName, "target_logit");
  check_size(maximum.size(), shape.rows, 1, kName, "maximum");
  check_size(targets.size(), shape.rows, 1, kName, "targets");
  const float* line = logits.data();
  for (std::size_t r = 0; r < sums.size(); ++r, line += shape.size) {
    const Packet peak = all(maximum[r]), base = all(kLog2E);
    const std::int64_t whole = shape.size / kLanes * kLanes;
    Packet parts = all(0.0F);
    for (std::int64_t i = 0; i < whole; i += kLanes) {
      parts = sum(parts, exp2(product(difference(load(line + i), peak), base)));
    }
    sums[r] = sum_of(parts);
    for (std::int64_t i = whole; i < shape.size; ++i) sums[r] += std::exp(line[i] - maximum[r]);
    target_logit[r] = 0;
    if (!targets[r]) continue;
    const std::int64_t column = *targets[r] - shape.first;
    if (column >= 0 && column < shape.size) target_logit[r] = line[column];
  }
}

/// The operator of the same name in slimpack_cpu/ops.hpp, in fp32.
inline void logit_gradients(Out logits, In maximum, In sums, Targets targets, LogitShape shape,
                            double scale) {
  constexpr const char* kName = "logit_gradients";
  check_size(logits.size(), shape.rows, shape.size, kName, "logits");
  check_size(maximum.size(), shape.rows, 1, kName, "maximum");
  check_size(sums.size(), shape.rows, 1, kName, "sum");
  check_size(targets.size(), shape.rows, 1, kName, "targets");
  float* line = logits.data();
  for (std::size_t r = 0; r < sums.size(); ++r, line += shape.size) {
    const float factor = targets[r] ? static_cast<float>(scale) / sums[r] : 0.0F;
    const Packet peak = all(maximum[r]), base = all(kLog2E), factors = all(factor);
    for_packets(shape.size, [&](std::int64_t i, auto lanes) {
      const Packet power = product(difference(lanes.load(line + i), peak), base);
      lanes.store(line + i, product(factors, exp2(power)));
    });
    if (!targets[r]) continue;
    const std::int64_t column = *targets[r] - shape.first;
    if (column >= 0 && column < shape.size) line[column] -= static_cast<float>(scale);
  }
}

/// Gradients are multiplied by `factor` first.
inline void adamw_step(Out weights, Out first_moment, Out second_moment, In gradients,
                       const AdamW& settings, std::int64_t step, double factor) {
  require(step >= 1, "fast adamw_step: step must be >= 1", step);
  const auto count = static_cast<std::int64_t>(weights.size());
  for (const std::size_t size : {first_moment.size(), second_moment.size(), gradients.size()}) {
    check_size(size, 1, count, "adamw_step", "each span");
  }
  const auto number = [](double value) { return all(static_cast<float>(value)); };
  const double power = static_cast<double>(step);
  const Packet scale = number(factor);
  const Packet keep1 = number(settings.beta1), take1 = number(1.0 - settings.beta1);
  const Packet keep2 = number(settings.beta2), take2 = number(1.0 - settings.beta2);
  const Packet inverse1 = number(settings.learning_rate / (1.0 - std::pow(settings.beta1, power)));
  const Packet inverse2 = number(1.0 / (1.0 - std::pow(settings.beta2, power)));
  const Packet epsilon = number(settings.epsilon);
  const Packet decay = number(1.0 - settings.learning_rate * settings.weight_decay);
  for_packets(count, [&](std::int64_t i, auto lanes) {
    const Packet g = product(lanes.load(gradients.data() + i), scale);
    const Packet mean = multiply_add(keep1, lanes.load(first_moment.data() + i), product(take1, g));
    const Packet square =
        multiply_add(keep2, lanes.load(second_moment.data() + i), product(take2, product(g, g)));
    lanes.store(first_moment.data() + i, mean);
    lanes.store(second_moment.data() + i, square);
    const Packet denominator = sum(root(product(square, inverse2)), epsilon);
    const Packet change = quotient(product(mean, inverse1), denominator);
    float* at = weights.data() + i;
    lanes.store(at, difference(product(lanes.load(at), decay), change));
  });
}

/// The sum of squares, in double: eight sums side by side, then from first to last.
inline double squares(In values) {
  double sums[8] = {};
  std::size_t i = 0;
  for (; i + 8 <= values.size(); i += 8) {
    for (std::size_t lane = 0; lane < 8; ++lane) {
      const double value = values[i + lane];
      sums[lane] += value * value;
    }
  }
  double total = 0;
  for (const double part : sums) total += part;
  for (; i < values.size(); ++i) {
    total += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  }
  return total;
}

}  // namespace slimpack::cpu::fast
