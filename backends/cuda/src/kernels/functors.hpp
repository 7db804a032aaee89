// SPDX-License-Identifier: Apache-2.0
// Arithmetic of single numbers in fp32, the same on the host and on the device.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "simt/simt.hpp"
#include "slimpack_cuda/cross_entropy.hpp"

namespace slimpack::cuda::kernels {

/// e^x, to a few ulp near zero; the error grows as |x| * 2^-24.
SLIMPACK_DEVICE float exp_fast(float x) {
  return simt::exp2_fast(x * 1.44269504F);
}

SLIMPACK_DEVICE float sigmoid(float x) {
  return simt::reciprocal_fast(1.0F + exp_fast(-x));
}

/// silu(gate) * up
SLIMPACK_DEVICE float swiglu(float gate, float up) {
  return gate * sigmoid(gate) * up;
}

struct SwigluGradient {
  float dgate, dup;
};
SLIMPACK_DEVICE SwigluGradient swiglu_gradient(float dproduct, float gate, float up) {
  const float s = sigmoid(gate);
  const float silu = gate * s;
  return {dproduct * up * (s + silu * (1.0F - s)), dproduct * silu};
}

/// Cosine and sine of an angle.
struct Turn {
  float cosine, sine;
};

/// Cosine and sine of `position` times a frequency given in 2^-64 turns. The product modulo one
/// turn is exact, so that the angle is as good at a position of a million as at one.
SLIMPACK_DEVICE Turn turn_at(std::int32_t position, std::uint64_t frequency) {
  const std::uint64_t turns = static_cast<std::uint64_t>(position) * frequency;
  const auto part = static_cast<std::uint32_t>(turns >> 32U);  // 2^-32 turns
  // The nearest quarter turn and what is left, at most an eighth either way.
  const std::uint32_t quarter = (part + 0x2000'0000U) >> 30U;
  const auto left = static_cast<std::int32_t>(part - (quarter << 30U));
  const float x = static_cast<float>(left) * 1.46291808e-9F;  // 2 pi / 2^32
  const float z = x * x;
  // Taylor series; the first terms left out are below 2e-9 for |x| <= pi / 4.
  const float sine =
      x + x * z * (-1.0F / 6 + z * (1.0F / 120 + z * (-1.0F / 5040 + z * (1.0F / 362880))));
  const float cosine =
      1.0F + z * (-0.5F +
                  z * (1.0F / 24 + z * (-1.0F / 720 + z * (1.0F / 40320 + z * (-1.0F / 3628800)))));
  switch (quarter % 4) {
    case 0:
      return {cosine, sine};
    case 1:
      return {-sine, cosine};
    case 2:
      return {-cosine, -sine};
    default:
      return {sine, -cosine};
  }
}

/// Largest logit so far and the sum of exp(logit - largest), of none at first.
struct RunningSum {
  float maximum = -std::numeric_limits<float>::infinity(), sum = 0;
};

/// What exponents are taken relative to: where there is no finite logit yet, to zero, so that
/// exp(-infinity) comes out as zero and not as NaN.
SLIMPACK_DEVICE float exponent_base(float maximum) {
  return maximum == -std::numeric_limits<float>::infinity() ? 0.0F : maximum;
}

SLIMPACK_DEVICE RunningSum merge(const RunningSum& a, const RunningSum& b) {
  const float maximum = std::fmax(a.maximum, b.maximum);
  const float base = exponent_base(maximum);
  return {maximum, a.sum * exp_fast(a.maximum - base) + b.sum * exp_fast(b.maximum - base)};
}

SLIMPACK_DEVICE LogitSum merge(const LogitSum& a, const LogitSum& b) {
  const RunningSum both = merge(RunningSum{a.maximum, a.sum}, RunningSum{b.maximum, b.sum});
  return {both.maximum, both.sum, a.target + b.target};
}

SLIMPACK_DEVICE float cross_entropy(const LogitSum& row) {
  return row.maximum + std::log(row.sum) - row.target;
}

/// One step of AdamW, as far as it is the same for all weights.
struct AdamWStep {
  float beta1, rest1;  ///< rest = 1 - beta
  float beta2, rest2;
  float rate;                 ///< learning rate / first correction
  float inverse_correction2;  ///< 1 / second correction
  float epsilon;
  float decay;  ///< learning rate * weight decay
};

struct AdamWState {
  float weight, first_moment, second_moment;
};

SLIMPACK_DEVICE AdamWState adamw_update(const AdamWStep& step, const AdamWState& at,
                                        float gradient) {
  AdamWState next;
  next.first_moment = step.beta1 * at.first_moment + step.rest1 * gradient;
  next.second_moment = step.beta2 * at.second_moment + step.rest2 * gradient * gradient;
  const float denominator = std::sqrt(next.second_moment * step.inverse_correction2) + step.epsilon;
  next.weight = at.weight - (step.rate * next.first_moment / denominator + step.decay * at.weight);
  return next;
}

}  // namespace slimpack::cuda::kernels
