// SPDX-License-Identifier: Apache-2.0
// The shape of a decoder-only transformer of the Llama family.
#pragma once

#include <cstdint>
#include <string>

namespace slimpack {

/// Sizes of a Llama-style decoder: RMSNorm, rotary positions, grouped queries, SwiGLU.
struct ModelShape {
  std::string name;                    ///< for messages and reports; decides nothing in a plan
  std::int64_t layers = 0;             ///< decoder layers, at least 1
  std::int64_t hidden = 0;             ///< width of the hidden state
  std::int64_t heads = 0;              ///< query heads
  std::int64_t kv_heads = 0;           ///< key heads; divides `heads`
  std::int64_t head_dim = 0;           ///< width of a head, even
  std::int64_t ffn = 0;                ///< width between the matrices of SwiGLU
  std::int64_t vocab = 0;              ///< rows of the embedding and of the vocabulary projection
  bool tied = false;                   ///< the vocabulary projection is the embedding table
  double rope_theta = 10000.0;         ///< base of the rotary positions' wavelengths, > 0
  double norm_eps = 1e-5;              ///< added to the mean square under RMSNorm's root, 0 .. 1
  std::int64_t bytes_per_element = 2;  ///< weights and activations: 2 bf16, 4 fp32, 8 fp64

  friend bool operator==(const ModelShape&, const ModelShape&) = default;

  /// Width of the queries of one token, and of the attention output.
  [[nodiscard]] constexpr std::int64_t query_width() const noexcept { return heads * head_dim; }
  /// Width of the keys of one token; the values are as wide.
  [[nodiscard]] constexpr std::int64_t key_width() const noexcept { return kv_heads * head_dim; }
  /// Weights of one layer that take part in matrix products.
  [[nodiscard]] constexpr std::int64_t layer_matrix_weights() const noexcept {
    return hidden * (2 * query_width() + 2 * key_width()) + 3 * hidden * ffn;
  }
  /// All weights of one layer: the matrices and two norm gains.
  [[nodiscard]] constexpr std::int64_t layer_weights() const noexcept {
    return layer_matrix_weights() + 2 * hidden;
  }
  /// Bytes of a statistic kept beside activations (log-sum-exp, inverse RMS): at least fp32.
  [[nodiscard]] constexpr std::int64_t statistic_bytes() const noexcept {
    return bytes_per_element < 4 ? 4 : bytes_per_element;
  }
};

}  // namespace slimpack
