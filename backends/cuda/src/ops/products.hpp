// SPDX-License-Identifier: Apache-2.0
// What computes the products of gemm.hpp: cuBLASLt, or loops of the emulated library.
#pragma once

#include <cstdint>
#include <memory>

#include "slimpack_cuda/gemm.hpp"

namespace slimpack::cuda::detail {

class Products {
 public:
  Products() = default;
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;
  virtual ~Products() = default;

  /// Puts d = left * right on the stream, plus `addend` if the key says so, of d's type and shape;
  /// else `addend` is d. Both factors lie row by row as in LinearProduct.
  virtual void run(const GemmKey& key, void* d, const void* addend, const Bf16* left,
                   const Bf16* right, StreamView stream) = 0;
  /// Algorithms kept.
  [[nodiscard]] virtual std::int64_t choices() const noexcept = 0;
};

/// Products on the current device; all arguments as Gemm was given them.
[[nodiscard]] std::unique_ptr<Products> make_products(DeviceSpan<std::byte> workspace,
                                                      int multiprocessors, GemmChoices* timed);

}  // namespace slimpack::cuda::detail
