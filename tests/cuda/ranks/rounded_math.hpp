// SPDX-License-Identifier: Apache-2.0
// The plain operators in fp64 with bf16 where a rank on a device stores bf16: how far rounding
// alone takes a step from the oracle.
#pragma once

#include <cstdint>
#include <span>

#include "slimpack_cpu/device.hpp"
#include "slimpack_cuda/bf16.hpp"

namespace slimpack::test {

/// Activations and their gradients are rounded when they are written; sums of weights' gradients,
/// of keys' and values' gradients, and statistics are not. Arithmetic is exact beside a device's.
struct RoundedMath : cpu::PlainMath {
  using In = cpu::In;
  using Out = cpu::Out;

  static void round(Out values) {
    for (double& value : values) {
      value = static_cast<double>(cuda::to_float(cuda::to_bf16(static_cast<float>(value))));
    }
  }

  static void add(Out into, In values) {
    PlainMath::add(into, values);
    round(into);
  }
  static void linear_forward(Out out, In in, In weight, cpu::LinearShape shape) {
    PlainMath::linear_forward(out, in, weight, shape);
    round(out);
  }
  static void linear_backward_input(Out din, In dout, In weight, cpu::LinearShape shape) {
    PlainMath::linear_backward_input(din, dout, weight, shape);
    round(din);
  }
  static void rms_norm_forward(Out out, Out inverse, In in, In gain, cpu::RowShape shape,
                               double epsilon) {
    PlainMath::rms_norm_forward(out, inverse, in, gain, shape, epsilon);
    round(out);
  }
  static void rms_norm_backward(Out din, Out dgain, In dout, In in, In gain, In inverse,
                                cpu::RowShape shape) {
    PlainMath::rms_norm_backward(din, dgain, dout, in, gain, inverse, shape);
    round(din);
  }
  static void rotate(Out values, Tokens first, cpu::RopeShape shape, double theta,
                     cpu::Rotation rotation) {
    PlainMath::rotate(values, first, shape, theta, rotation);
    round(values);
  }
  static void swiglu_forward(Out product, In gate, In up) {
    PlainMath::swiglu_forward(product, gate, up);
    round(product);
  }
  static void swiglu_backward(Out dgate, Out dup, In dproduct, In gate, In up) {
    PlainMath::swiglu_backward(dgate, dup, dproduct, gate, up);
    round(dgate);
    round(dup);
  }
  static void logit_gradients(Out logits, In maximum, In sum, cpu::Targets targets,
                              cpu::LogitShape shape, double scale) {
    PlainMath::logit_gradients(logits, maximum, sum, targets, shape, scale);
    round(logits);
  }
  static void attention_forward(std::span<const cpu::QueryRun<double>> queries,
                                const cpu::KeyRun<double>& keys, const cpu::AttentionShape& heads) {
    PlainMath::attention_forward(queries, keys, heads);
    for (const auto& rows : queries) round(rows.attention);
  }
  static void attention_backward(std::span<const cpu::QueryRun<double>> queries,
                                 const cpu::KeyRun<double>& keys,
                                 const cpu::AttentionShape& heads) {
    PlainMath::attention_backward(queries, keys, heads);
    for (const auto& rows : queries) round(rows.dquery);
  }
};

/// A device that computes in fp64 and stores in bf16.
using RoundedDevice = cpu::BasicDevice<RoundedMath>;

}  // namespace slimpack::test
