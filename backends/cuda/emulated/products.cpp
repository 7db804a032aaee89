// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <type_traits>
#include <vector>

#include "emulated/runtime.hpp"
#include "ops/products.hpp"
#include "slimpack/core/error.hpp"

namespace slimpack::cuda::detail {
namespace {

/// A factor of a product as it is stored.
struct Factor {
  const Bf16* data;
  std::int64_t rows, columns;
  bool transposed;
};

/// Row by row, transposed where it has to be.
std::vector<float> unpacked(const Factor& factor) {
  std::vector<float> values(static_cast<std::size_t>(factor.rows * factor.columns));
  float* to = values.data();
  const Bf16* from = factor.data;
  for (std::int64_t row = 0; row < factor.rows; ++row) {
    for (std::int64_t column = 0; column < factor.columns; ++column, ++from) {
      to[factor.transposed ? column * factor.rows + row : row * factor.columns + column] =
          to_float(*from);
    }
  }
  return values;
}

/// d[rows, columns] = left * right + addend. Every sum runs over the inner dimension in order.
template <class Result>
void multiply(Result* d, const Result* addend, const Factor& left, const Factor& right) {
  const std::int64_t rows = left.transposed ? left.columns : left.rows;
  const std::int64_t inner = left.transposed ? left.rows : left.columns;
  const std::int64_t columns = right.transposed ? right.rows : right.columns;
  const std::vector<float> a = unpacked(left), b = unpacked(right);
  std::vector<float> sums(static_cast<std::size_t>(columns));
  for (std::int64_t row = 0; row < rows; ++row) {
    sums.assign(sums.size(), 0.0F);
    float* const into = sums.data();
    for (std::int64_t k = 0; k < inner; ++k) {
      const float factor = a[static_cast<std::size_t>(row * inner + k)];
      const float* const others = b.data() + k * columns;
      for (std::int64_t column = 0; column < columns; ++column) {
        into[column] += factor * others[column];
      }
    }
    for (std::int64_t column = 0; column < columns; ++column) {
      const std::int64_t i = row * columns + column;
      if constexpr (std::is_same_v<Result, float>) {
        d[i] = into[column] + (addend != nullptr ? addend[i] : 0.0F);
      } else {
        d[i] = to_bf16(into[column] + (addend != nullptr ? to_float(addend[i]) : 0.0F));
      }
    }
  }
}

/// d = left * right + addend where the key says so.
template <class Result>
void run_product(const GemmKey& key, void* d, const void* addend, const Bf16* left,
                 const Bf16* right) {
  const auto [rows, inputs, outputs] = key.shape;
  Factor a{left, rows, outputs, false}, b{right, outputs, inputs, false};
  if (key.product == LinearProduct::forward) a.columns = inputs, b.transposed = true;
  if (key.product == LinearProduct::weight_gradient) a.transposed = true, b.rows = rows;
  multiply(static_cast<Result*>(d), key.adds ? static_cast<const Result*>(addend) : nullptr, a, b);
}

class EmulatedProducts : public Products {
 public:
  EmulatedProducts(int multiprocessors, GemmChoices* timed)
      : multiprocessors_(multiprocessors), timed_(timed) {}

  void run(const GemmKey& key, void* d, const void* addend, const Bf16* left, const Bf16* right,
           StreamView stream) override {
    emulated::require_current(stream, "cublasLtMatmul failed");
    const GemmKey like = key_of_choice(key);
    if (choices_.insert(like).second && timed_ != nullptr) choose(like);
    emulated::enqueue(stream, "a matrix product", [=] {
      const auto product = key.single ? run_product<float> : run_product<Bf16>;
      product(key, d, addend, left, right);
    });
  }
  [[nodiscard]] std::int64_t choices() const noexcept override {
    return static_cast<std::int64_t>(choices_.size());
  }

 private:
  void choose(const GemmKey& key) {
    if (timed_->times()) timed_->keep(multiprocessors_, key, 0);
    const std::size_t chosen = timed_->find(multiprocessors_, key).value_or(0);
    require(chosen == 0, "gemm: the emulated library has one algorithm, so a choice must be 0",
            static_cast<std::int64_t>(chosen));
  }

  int multiprocessors_;
  GemmChoices* timed_;
  std::set<GemmKey> choices_;
};

}  // namespace

std::unique_ptr<Products> make_products(DeviceSpan<std::byte>, int multiprocessors,
                                        GemmChoices* timed) {
  return std::make_unique<EmulatedProducts>(multiprocessors, timed);
}

}  // namespace slimpack::cuda::detail

namespace slimpack::cuda {

std::int64_t gemm_library_version() {
  return 0;
}

}  // namespace slimpack::cuda
