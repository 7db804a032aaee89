// SPDX-License-Identifier: Apache-2.0
// Matrix products: the card's peak, and the linear layers of Llama 3.1 8B.
#include <memory>
#include <string>
#include <vector>

#include "cases.hpp"
#include "fill.hpp"

namespace slimpack::bench {
namespace {

using cuda::Bf16;
using cuda::DeviceBuffer;
using cuda::LinearProduct;
using cuda::LinearShape;

struct Layer {
  const char* name;
  std::int64_t inputs, outputs;
};
constexpr Layer kLayers[] = {{"qkv", 4096, 6144},
                             {"attention output", 4096, 4096},
                             {"gate and up", 4096, 28672},
                             {"down", 14336, 4096},
                             {"head", 4096, 128256}};

struct Set {
  DeviceBuffer<Bf16> in, weight, dout, result;
  DeviceBuffer<float> gradient;
};

Launch prepare(LinearProduct product, const LinearShape& shape, bool adds, const Machine& machine,
               std::int64_t sets) {
  auto all = std::make_shared<std::vector<Set>>();
  for (std::int64_t i = 0; i < sets; ++i) {
    const auto seed = static_cast<std::uint64_t>(i) * 16;
    const auto buffer = [&](std::int64_t size, std::uint64_t which) {
      return random_buffer<Bf16>(size, 1.0F, seed + which, machine.stream);
    };
    Set set;
    const std::int64_t in = shape.rows * shape.inputs, out = shape.rows * shape.outputs;
    const std::int64_t weight = shape.inputs * shape.outputs;
    if (product != LinearProduct::input_gradient) set.in = buffer(in, 1);
    if (product != LinearProduct::weight_gradient) set.weight = buffer(weight, 2);
    if (product != LinearProduct::forward) set.dout = buffer(out, 3);
    if (product == LinearProduct::forward) set.result = buffer(out, 4);
    if (product == LinearProduct::input_gradient) set.result = buffer(in, 4);
    if (product == LinearProduct::weight_gradient) {
      set.gradient = random_buffer<float>(weight, 1.0F, seed + 5, machine.stream);
    }
    all->push_back(std::move(set));
  }
  return [all, product, shape, adds, machine](std::int64_t i) {
    const Set& set = (*all)[static_cast<std::size_t>(i)];
    cuda::Gemm& gemm = *machine.gemm;
    switch (product) {
      case LinearProduct::forward:
        if (adds) {
          gemm.forward_add(set.result.span(), set.result.span(), set.in.span(), set.weight.span(),
                           shape, machine.stream);
        } else {
          gemm.forward(set.result.span(), set.in.span(), set.weight.span(), shape, machine.stream);
        }
        break;
      case LinearProduct::input_gradient:
        gemm.input_gradient(set.result.span(), set.dout.span(), set.weight.span(), shape,
                            cuda::Into::overwrite, machine.stream);
        break;
      case LinearProduct::weight_gradient:
        gemm.weight_gradient(set.gradient.span(), set.dout.span(), set.in.span(), shape,
                             cuda::Into::add, machine.stream);
        break;
    }
  };
}

Case gemm_case(LinearProduct product, std::string name, const LinearShape& shape,
               bool adds = false) {
  constexpr const char* kOperations[] = {"gemm.forward", "gemm.input_gradient",
                                         "gemm.weight_gradient"};
  Case gemm;
  gemm.operation = adds ? "gemm.forward_add" : kOperations[static_cast<int>(product)];
  gemm.name = std::move(name);
  gemm.path = "cuBLASLt";
  gemm.shape = {{"rows", shape.rows}, {"inputs", shape.inputs}, {"outputs", shape.outputs}};
  gemm.flop = cuda::linear_flop(shape);
  const auto in = static_cast<double>(shape.rows * shape.inputs);
  const auto out = static_cast<double>(shape.rows * shape.outputs);
  const auto weight = static_cast<double>(shape.inputs * shape.outputs);
  gemm.bytes = 2 * (in + out + weight);
  if (adds) gemm.bytes += 2 * out;
  if (product == LinearProduct::weight_gradient) gemm.bytes = 2 * (in + out) + 8 * weight;
  gemm.set_bytes = gemm.bytes;
  gemm.prepare = [product, shape, adds](const Machine& machine, std::int64_t sets) {
    return prepare(product, shape, adds, machine, sets);
  };
  return gemm;
}

}  // namespace

std::vector<Case> gemm_cases() {
  std::vector<Case> cases;
  cases.push_back(gemm_case(LinearProduct::forward, kPeakName, {8192, 8192, 8192}));
  for (const Layer& layer : kLayers) {
    for (const std::int64_t rows : {512, 8192}) {
      const LinearShape shape{rows, layer.inputs, layer.outputs};
      const std::string name = std::string(layer.name) + ", " + std::to_string(rows) + " rows";
      cases.push_back(gemm_case(LinearProduct::forward, name, shape));
      cases.push_back(gemm_case(LinearProduct::input_gradient, name, shape));
      cases.push_back(gemm_case(LinearProduct::weight_gradient, name, shape));
    }
  }
  for (const std::int64_t rows : {512, 8192}) {
    cases.push_back(
        gemm_case(LinearProduct::forward,
                  "attention output onto the residual, " + std::to_string(rows) + " rows",
                  {rows, 4096, 4096}, true));
  }
  return cases;
}

}  // namespace slimpack::bench
