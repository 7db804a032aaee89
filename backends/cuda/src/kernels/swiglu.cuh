// SPDX-License-Identifier: Apache-2.0
// The gated product: 8 columns of one row a thread.
#pragma once

#include <cstdint>

#include "kernels/functors.hpp"
#include "kernels/launch.hpp"
#include "kernels/vectors.cuh"
#include "slimpack_cuda/swiglu.hpp"

namespace slimpack::cuda::kernels {

struct SwigluForward {
  Bf16* product;
  const Bf16* gate_up;
  std::int64_t cols;
  unsigned parts;  ///< blocks a row
};

struct SwigluBackward {
  Bf16* dgate_up;
  const Bf16* dproduct;
  const Bf16* gate_up;
  std::int64_t cols;
  unsigned parts;
};

struct SwigluLaunch {
  Launch launch;
  unsigned parts;
};
/// A row is divided among blocks, so that no thread divides by the number of columns.
[[nodiscard]] inline SwigluLaunch swiglu_launch(RowShape shape) {
  const unsigned threads = threads_for(shape.cols / 8, 256);
  const std::int64_t parts = divide_up(shape.cols / 8, threads);
  return {{checked_blocks(shape.rows * parts), threads, 0}, static_cast<unsigned>(parts)};
}

SLIMPACK_DEVICE void swiglu_forward_part(const SwigluForward& work) {
  const std::int64_t row = simt::block_index() / work.parts;
  const unsigned part = simt::block_index() % work.parts;
  const std::int64_t col = std::int64_t{8} * (part * simt::block_threads() + simt::thread_index());
  if (col >= work.cols) return;
  const Bf16* from = work.gate_up + 2 * row * work.cols + col;
  const Floats<8> gate = load<8>(from), up = load<8>(from + work.cols);
  Floats<8> product;
  SLIMPACK_UNROLL
  for (unsigned i = 0; i < 8; ++i) product[i] = swiglu(gate[i], up[i]);
  store<8>(work.product + row * work.cols + col, product);
}

SLIMPACK_DEVICE void swiglu_backward_part(const SwigluBackward& work) {
  const std::int64_t row = simt::block_index() / work.parts;
  const unsigned part = simt::block_index() % work.parts;
  const std::int64_t col = std::int64_t{8} * (part * simt::block_threads() + simt::thread_index());
  if (col >= work.cols) return;
  const std::int64_t k = 2 * row * work.cols + col;
  const Floats<8> gate = load<8>(work.gate_up + k), up = load<8>(work.gate_up + k + work.cols);
  const Floats<8> dproduct = load<8>(work.dproduct + row * work.cols + col);
  Floats<8> dgate, dup;
  SLIMPACK_UNROLL
  for (unsigned i = 0; i < 8; ++i) {
    const SwigluGradient gradient = swiglu_gradient(dproduct[i], gate[i], up[i]);
    dgate[i] = gradient.dgate;
    dup[i] = gradient.dup;
  }
  store<8>(work.dgate_up + k, dgate);
  store<8>(work.dgate_up + k + work.cols, dup);
}

}  // namespace slimpack::cuda::kernels
