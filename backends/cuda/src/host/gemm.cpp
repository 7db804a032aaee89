// SPDX-License-Identifier: Apache-2.0
#include "slimpack_cuda/gemm.hpp"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

#include "ops/products.hpp"
#include "slimpack/core/error.hpp"

namespace slimpack::cuda {
namespace {

std::uintptr_t address(const void* data) {
  return std::bit_cast<std::uintptr_t>(data);
}

void require_size(std::int64_t size, std::int64_t rows, std::int64_t columns, const char* rule) {
  require(size == rows * columns, rule, size);
}

}  // namespace

struct Gemm::State {
  std::unique_ptr<detail::Products> products;
  int major = 0, minor = 0;

  void require_supported(const LinearShape& shape) const {
    if (const auto why = why_not(shape, major, minor)) throw InvalidInput(*why);
  }

  /// d = left * right, plus `addend` if there is one, of d's type and shape.
  template <class Result>
  void run(LinearProduct product, const LinearShape& shape, Result* d, const Result* addend,
           const Bf16* left, const Bf16* right, StreamView stream) {
    const void* const c = addend != nullptr ? addend : d;
    products->run({product, shape, std::is_same_v<Result, float>, addend != nullptr,
                   common_alignment({address(d), address(c), address(left), address(right)})},
                  d, c, left, right, stream);
  }

  template <class Result>
  void forward(DeviceSpan<Result> out, const DeviceSpan<const Result>* addend,
               DeviceSpan<const Bf16> in, DeviceSpan<const Bf16> weight, const LinearShape& shape,
               StreamView stream) {
    require_supported(shape);
    require_size(out.size, shape.rows, shape.outputs, "gemm: out is not rows * outputs");
    require_size(in.size, shape.rows, shape.inputs, "gemm: in is not rows * inputs");
    require_size(weight.size, shape.outputs, shape.inputs, "gemm: weight is not outputs * inputs");
    if (addend != nullptr) {
      require_size(addend->size, shape.rows, shape.outputs, "gemm: addend is not rows * outputs");
    }
    if (shape.rows == 0) return;
    run(LinearProduct::forward, shape, out.data, addend != nullptr ? addend->data : nullptr,
        in.data, weight.data, stream);
  }

  template <class Result>
  void input_gradient(DeviceSpan<Result> din, DeviceSpan<const Bf16> dout,
                      DeviceSpan<const Bf16> weight, const LinearShape& shape, Into into,
                      StreamView stream) {
    require_supported(shape);
    require_size(din.size, shape.rows, shape.inputs, "gemm: din is not rows * inputs");
    require_size(dout.size, shape.rows, shape.outputs, "gemm: dout is not rows * outputs");
    require_size(weight.size, shape.outputs, shape.inputs, "gemm: weight is not outputs * inputs");
    if (shape.rows == 0) return;
    const Result* const addend = into == Into::add ? din.data : nullptr;
    run(LinearProduct::input_gradient, shape, din.data, addend, dout.data, weight.data, stream);
  }
};

Gemm::Gemm(DeviceSpan<std::byte> workspace, int multiprocessors, GemmChoices* timed) {
  require(workspace.size >= 0, "Gemm: the workspace's size must be >= 0", workspace.size);
  require(address(workspace.data) % 256 == 0, "Gemm: the workspace must be aligned to 256 bytes");
  require(multiprocessors >= 0, "Gemm: multiprocessors must be >= 0", multiprocessors);
  const DeviceProperties device = device_properties();
  require(multiprocessors <= device.multiprocessors,
          "Gemm: the device has fewer multiprocessors than asked for", multiprocessors);
  state_.reset(new State{detail::make_products(workspace, multiprocessors, timed), device.major,
                         device.minor});
}
Gemm::Gemm(Gemm&&) noexcept = default;
Gemm& Gemm::operator=(Gemm&&) noexcept = default;
Gemm::~Gemm() = default;

void Gemm::forward(DeviceSpan<Bf16> out, DeviceSpan<const Bf16> in, DeviceSpan<const Bf16> weight,
                   const LinearShape& shape, StreamView stream) {
  state_->forward<Bf16>(out, nullptr, in, weight, shape, stream);
}
void Gemm::forward(DeviceSpan<float> out, DeviceSpan<const Bf16> in, DeviceSpan<const Bf16> weight,
                   const LinearShape& shape, StreamView stream) {
  state_->forward<float>(out, nullptr, in, weight, shape, stream);
}
void Gemm::forward_add(DeviceSpan<Bf16> out, DeviceSpan<const Bf16> addend,
                       DeviceSpan<const Bf16> in, DeviceSpan<const Bf16> weight,
                       const LinearShape& shape, StreamView stream) {
  state_->forward<Bf16>(out, &addend, in, weight, shape, stream);
}

void Gemm::input_gradient(DeviceSpan<Bf16> din, DeviceSpan<const Bf16> dout,
                          DeviceSpan<const Bf16> weight, const LinearShape& shape, Into into,
                          StreamView stream) {
  state_->input_gradient(din, dout, weight, shape, into, stream);
}
void Gemm::input_gradient(DeviceSpan<float> din, DeviceSpan<const Bf16> dout,
                          DeviceSpan<const Bf16> weight, const LinearShape& shape, Into into,
                          StreamView stream) {
  state_->input_gradient(din, dout, weight, shape, into, stream);
}

void Gemm::weight_gradient(DeviceSpan<float> dweight, DeviceSpan<const Bf16> dout,
                           DeviceSpan<const Bf16> in, const LinearShape& shape, Into into,
                           StreamView stream) {
  state_->require_supported(shape);
  require_size(dweight.size, shape.outputs, shape.inputs, "gemm: dweight is not outputs * inputs");
  require_size(dout.size, shape.rows, shape.outputs, "gemm: dout is not rows * outputs");
  require_size(in.size, shape.rows, shape.inputs, "gemm: in is not rows * inputs");
  if (shape.rows == 0) {  // an empty sum, which cuBLASLt does not take
    if (into == Into::overwrite) {
      detail::fill_bytes(dweight.data, 0, static_cast<std::size_t>(dweight.size) * sizeof(float),
                         stream);
    }
    return;
  }
  const float* const addend = into == Into::add ? dweight.data : nullptr;
  state_->run(LinearProduct::weight_gradient, shape, dweight.data, addend, dout.data, in.data,
              stream);
}

std::int64_t Gemm::choices() const noexcept {
  return state_->products->choices();
}

}  // namespace slimpack::cuda
