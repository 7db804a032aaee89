// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/random.hpp"
#include "slimpack_cuda/gemm.hpp"

namespace slimpack::cuda::gemm_test {
namespace {

std::vector<Bf16> random_numbers(std::int64_t count, slimpack::Random& random) {
  std::vector<Bf16> numbers;
  numbers.reserve(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    numbers.push_back(to_bf16(static_cast<float>(random.normal())));
  }
  return numbers;
}

template <class Element>
DeviceBuffer<Element> on_device(const std::vector<Element>& values, StreamView stream) {
  DeviceBuffer<Element> buffer(static_cast<std::int64_t>(values.size()));
  upload(buffer.span(), std::span<const Element>(values), stream);
  stream.synchronize();
  return buffer;
}

double number(Bf16 value) {
  return static_cast<double>(to_float(value));
}
double number(float value) {
  return static_cast<double>(value);
}
template <class Element>
Element poison();
template <>
Bf16 poison<Bf16>() {
  return {0x7fff};
}
template <>
float poison<float>() {
  return std::numeric_limits<float>::quiet_NaN();
}

/// left and right as functions of (row or column, k), on as many elements as are looked at: all of
/// a small matrix, random ones of a large one.
template <class Element, class Left, class Right>
void check_product(const std::vector<Element>& found,
                   const std::type_identity_t<std::vector<Element>>* addend, std::int64_t rows,
                   std::int64_t columns, std::int64_t inner, const Left& left, const Right& right) {
  slimpack::Random random(7);
  const std::int64_t all = rows * columns;
  const std::int64_t looked_at = std::min<std::int64_t>(all, 20000);
  const double rounding = sizeof(Element) == 2 ? 0x1p-8 : 0x1p-22;
  double worst = 0, found_there = 0, expected_there = 0;
  for (std::int64_t count = 0; count < looked_at; ++count) {
    const std::int64_t i =
        looked_at == all ? count
                         : static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(all)));
    const double added = addend != nullptr ? number((*addend)[static_cast<std::size_t>(i)]) : 0.0;
    double sum = added;
    double size = std::abs(sum);
    for (std::int64_t k = 0; k < inner; ++k) {
      const double term = left(i / columns, k) * right(i % columns, k);
      sum += term;
      size += std::abs(term);
    }
    // Sums of fp32 in any order err by far less than one rounding a term. cuBLASLt may round a
    // product to bf16 before it adds it in place.
    const double twice = addend != nullptr && sizeof(Element) == 2 ? std::abs(sum - added) : 0.0;
    const double allowed = rounding * (std::abs(sum) + twice) + 0x1p-18 * size;
    const double error = std::abs(number(found[static_cast<std::size_t>(i)]) - sum);
    const double over = std::isnan(error) ? 1e30 : error / allowed;
    if (!(error <= allowed) && over > worst) {
      worst = over;
      found_there = number(found[static_cast<std::size_t>(i)]);
      expected_there = sum;
    }
  }
  CAPTURE(rows);
  CAPTURE(columns);
  CAPTURE(inner);
  CAPTURE(sizeof(Element));
  CAPTURE(addend != nullptr);
  CAPTURE(found_there);
  CAPTURE(expected_there);
  CHECK(worst == 0);
}

struct Layer {
  LinearShape shape;
  std::vector<Bf16> in, weight, dout;
  DeviceBuffer<Bf16> in_there, weight_there, dout_there;

  Layer(const LinearShape& of, StreamView stream) : shape(of) {
    slimpack::Random random(3);
    in = random_numbers(shape.rows * shape.inputs, random);
    weight = random_numbers(shape.outputs * shape.inputs, random);
    dout = random_numbers(shape.rows * shape.outputs, random);
    in_there = on_device(in, stream);
    weight_there = on_device(weight, stream);
    dout_there = on_device(dout, stream);
  }
  [[nodiscard]] double in_at(std::int64_t row, std::int64_t i) const {
    return number(in[static_cast<std::size_t>(row * shape.inputs + i)]);
  }
  [[nodiscard]] double weight_at(std::int64_t o, std::int64_t i) const {
    return number(weight[static_cast<std::size_t>(o * shape.inputs + i)]);
  }
  [[nodiscard]] double dout_at(std::int64_t row, std::int64_t o) const {
    return number(dout[static_cast<std::size_t>(row * shape.outputs + o)]);
  }
};

/// Three products, each from poisoned memory or onto random numbers, twice, with equal bits.
template <class Element, class Call>
std::vector<Element> run_twice(std::int64_t size,
                               const std::type_identity_t<std::vector<Element>>* start,
                               StreamView stream, const Call& call) {
  std::vector<std::vector<Element>> found;
  for (int time = 0; time < 2; ++time) {
    const std::vector<Element> before =
        start != nullptr ? *start
                         : std::vector<Element>(static_cast<std::size_t>(size), poison<Element>());
    const DeviceBuffer<Element> buffer = on_device(before, stream);
    call(buffer.span());
    found.push_back(download(buffer.span(), stream));
  }
  bool equal = true;
  for (std::size_t i = 0; i < found[0].size(); ++i) {
    equal = equal && std::bit_cast<std::array<std::byte, sizeof(Element)>>(found[0][i]) ==
                         std::bit_cast<std::array<std::byte, sizeof(Element)>>(found[1][i]);
  }
  CHECK(equal);
  return found[0];
}

template <class Element>
void check_layer(Gemm& gemm, const Layer& layer, StreamView stream) {
  const auto [rows, inputs, outputs] = layer.shape;
  const auto in = [&](std::int64_t row, std::int64_t i) { return layer.in_at(row, i); };
  const auto weight = [&](std::int64_t o, std::int64_t i) { return layer.weight_at(o, i); };
  const auto dout = [&](std::int64_t row, std::int64_t o) { return layer.dout_at(row, o); };
  slimpack::Random random(5);

  const std::vector<Element> out =
      run_twice<Element>(rows * outputs, nullptr, stream, [&](DeviceSpan<Element> to) {
        gemm.forward(to, layer.in_there.span(), layer.weight_there.span(), layer.shape, stream);
      });
  check_product(out, nullptr, rows, outputs, inputs, in, weight);

  std::vector<Element> before;
  for (const Bf16 value : random_numbers(rows * inputs, random)) {
    if constexpr (sizeof(Element) == 2) {
      before.push_back(value);
    } else {
      before.push_back(to_float(value));
    }
  }
  const auto weight_by_input = [&](std::int64_t i, std::int64_t o) {
    return layer.weight_at(o, i);
  };
  for (const Into into : {Into::overwrite, Into::add}) {
    const std::vector<Element>* const start = into == Into::add ? &before : nullptr;
    const std::vector<Element> din =
        run_twice<Element>(rows * inputs, start, stream, [&](DeviceSpan<Element> to) {
          gemm.input_gradient(to, layer.dout_there.span(), layer.weight_there.span(), layer.shape,
                              into, stream);
        });
    check_product(din, start, rows, inputs, outputs, dout, weight_by_input);
  }
}

void check_weight_gradient(Gemm& gemm, const Layer& layer, StreamView stream) {
  const auto [rows, inputs, outputs] = layer.shape;
  slimpack::Random random(6);
  std::vector<float> before;
  for (std::int64_t i = 0; i < outputs * inputs; ++i) {
    before.push_back(static_cast<float>(random.normal()));
  }
  for (const Into into : {Into::overwrite, Into::add}) {
    const std::vector<float>* const start = into == Into::add ? &before : nullptr;
    const std::vector<float> dweight =
        run_twice<float>(outputs * inputs, start, stream, [&](DeviceSpan<float> to) {
          gemm.weight_gradient(to, layer.dout_there.span(), layer.in_there.span(), layer.shape,
                               into, stream);
        });
    check_product(
        dweight, start, outputs, inputs, rows,
        [&](std::int64_t o, std::int64_t row) { return layer.dout_at(row, o); },
        [&](std::int64_t i, std::int64_t row) { return layer.in_at(row, i); });
  }
}

void check_residual(Gemm& gemm, const Layer& layer, StreamView stream) {
  const auto [rows, inputs, outputs] = layer.shape;
  slimpack::Random random(8);
  const std::vector<Bf16> residual = random_numbers(rows * outputs, random);
  const DeviceBuffer<Bf16> there = on_device(residual, stream);
  const auto in = [&](std::int64_t row, std::int64_t i) { return layer.in_at(row, i); };
  const auto weight = [&](std::int64_t o, std::int64_t i) { return layer.weight_at(o, i); };
  for (const bool in_place : {false, true}) {
    const std::vector<Bf16> out = run_twice<Bf16>(
        rows * outputs, in_place ? &residual : nullptr, stream, [&](DeviceSpan<Bf16> to) {
          gemm.forward_add(to, in_place ? to : there.span(), layer.in_there.span(),
                           layer.weight_there.span(), layer.shape, stream);
        });
    check_product(out, &residual, rows, outputs, inputs, in, weight);
  }
}

}  // namespace

TEST_CASE("Gemm: the three products are those of double precision, at widths of every alignment") {
  const Stream stream;
  const DeviceBuffer<std::byte> workspace(kGemmWorkspaceBytes);
  Gemm gemm(workspace.span());
  for (const LinearShape shape :
       {LinearShape{1, 8, 8}, {67, 136, 264}, {128, 256, 384}, {130, 31, 45}, {5, 1000, 6}}) {
    CAPTURE(shape.rows);
    const Layer layer(shape, stream.view());
    check_layer<Bf16>(gemm, layer, stream.view());
    check_layer<float>(gemm, layer, stream.view());
    check_weight_gradient(gemm, layer, stream.view());
    check_residual(gemm, layer, stream.view());
  }
}

TEST_SUITE("large") {
  TEST_CASE("Gemm: a layer of a real model, on the whole card and chosen for a part of it") {
    const Stream stream;
    const DeviceBuffer<std::byte> workspace(kGemmWorkspaceBytes);
    const Layer layer({1536, 4096, 2048}, stream.view());
    for (const int multiprocessors : {0, 32}) {
      CAPTURE(multiprocessors);
      Gemm gemm(workspace.span(), multiprocessors);
      check_layer<Bf16>(gemm, layer, stream.view());
      check_weight_gradient(gemm, layer, stream.view());
      check_residual(gemm, layer, stream.view());
    }
  }
}

TEST_CASE("Gemm: matrices may begin at any element") {
  const Stream stream;
  const DeviceBuffer<std::byte> workspace(kGemmWorkspaceBytes);
  Gemm gemm(workspace.span());
  const Layer layer({24, 64, 40}, stream.view());
  const auto in = [&](std::int64_t row, std::int64_t i) { return layer.in_at(row, i); };
  const auto weight = [&](std::int64_t o, std::int64_t i) { return layer.weight_at(o, i); };
  const auto shifted = [&](const std::vector<Bf16>& values, bool shift) {
    std::vector<Bf16> moved(values.size() + 1);
    std::ranges::copy(values, moved.begin() + (shift ? 1 : 0));
    return on_device(moved, stream.view());
  };
  for (int which = 0; which < 3; ++which) {
    CAPTURE(which);
    const auto part = [&](const DeviceBuffer<Bf16>& buffer, int of) {
      return buffer.span().subspan(which == of ? 1 : 0, buffer.size() - 1);
    };
    const DeviceBuffer<Bf16> from = shifted(layer.in, which == 0);
    const DeviceBuffer<Bf16> by = shifted(layer.weight, which == 1);
    const DeviceBuffer<Bf16> to(24 * 40 + 1);
    gemm.forward(part(to, 2), part(from, 0), part(by, 1), layer.shape, stream.view());
    check_product(download(part(to, 2), stream.view()), nullptr, 24, 40, 64, in, weight);
  }
  CHECK(gemm.choices() == 1);  // all of them are aligned to 2 bytes
}

TEST_CASE("Gemm: an algorithm is chosen once a shape, and no workspace is enough") {
  const Stream stream;
  Gemm gemm(DeviceSpan<std::byte>{});
  const Layer layer({64, 128, 256}, stream.view());
  const DeviceBuffer<Bf16> out(64 * 256);
  for (int time = 0; time < 3; ++time) {
    gemm.forward(out.span(), layer.in_there.span(), layer.weight_there.span(), layer.shape,
                 stream.view());
    CHECK(gemm.choices() == 1);
  }
  gemm.forward_add(out.span(), out.span(), layer.in_there.span(), layer.weight_there.span(),
                   layer.shape, stream.view());
  CHECK(gemm.choices() == 2);
  stream.view().synchronize();
}

TEST_CASE("Gemm: numbers of rows that are near each other run one algorithm") {
  CHECK(rounded_rows(0) == 0);
  std::int64_t before = 0, different = 0;
  for (std::int64_t rows = 1; rows <= 4096; ++rows) {
    const std::int64_t rounded = rounded_rows(rows);
    CHECK(rounded >= rows);
    CHECK(8 * (rounded - rows) <= rows);
    CHECK(rounded_rows(rounded) == rounded);
    CHECK(rounded >= before);
    different += rounded > before ? 1 : 0;
    before = rounded;
  }
  CHECK(different == 8 + 8 * 9);  // to 8, then to 4096
  const Stream stream;
  const DeviceBuffer<std::byte> workspace(kGemmWorkspaceBytes);
  Gemm gemm(workspace.span());
  for (const std::int64_t rows : {144, 143, 129, 137}) {
    CAPTURE(rows);
    check_layer<Bf16>(gemm, Layer({rows, 64, 48}, stream.view()), stream.view());
    CHECK(gemm.choices() == 3);  // out, din, din on top of what is there
  }
}

TEST_CASE("Gemm: of no rows there is nothing to do, but a weight gradient is zero") {
  const Stream stream;
  Gemm gemm(DeviceSpan<std::byte>{});
  const LinearShape none{0, 8, 16};
  const Layer layer(none, stream.view());
  const DeviceBuffer<float> dweight = on_device(std::vector<float>(8 * 16, 2.0F), stream.view());
  gemm.forward(DeviceSpan<Bf16>{}, {}, on_device(layer.weight, stream.view()).span(), none,
               stream.view());
  gemm.weight_gradient(dweight.span(), {}, {}, none, Into::add, stream.view());
  CHECK(download(dweight.span(), stream.view()) == std::vector<float>(8 * 16, 2.0F));
  gemm.weight_gradient(dweight.span(), {}, {}, none, Into::overwrite, stream.view());
  CHECK(download(dweight.span(), stream.view()) == std::vector<float>(8 * 16, 0.0F));
  CHECK(gemm.choices() == 0);
}

TEST_CASE("Gemm: spans of another size and impossible shapes are refused") {
  const Stream stream;
  Gemm gemm(DeviceSpan<std::byte>{});
  const Layer layer({4, 8, 16}, stream.view());
  const DeviceBuffer<Bf16> out(4 * 16);
  CHECK_THROWS_WITH_AS(gemm.forward(out.span().subspan(0, 63), layer.in_there.span(),
                                    layer.weight_there.span(), layer.shape, stream.view()),
                       "gemm: out is not rows * outputs, got 63", slimpack::InvalidInput);
  CHECK_THROWS_WITH_AS(gemm.forward(out.span(), layer.in_there.span().subspan(0, 31),
                                    layer.weight_there.span(), layer.shape, stream.view()),
                       "gemm: in is not rows * inputs, got 31", slimpack::InvalidInput);
  CHECK_THROWS_WITH_AS(
      gemm.forward(out.span(), layer.in_there.span(), layer.weight_there.span().subspan(0, 1),
                   layer.shape, stream.view()),
      "gemm: weight is not outputs * inputs, got 1", slimpack::InvalidInput);
  CHECK_THROWS_WITH_AS(gemm.forward(out.span(), layer.in_there.span(), layer.weight_there.span(),
                                    {4, 0, 16}, stream.view()),
                       "gemm: inputs and outputs must be within 1 and 2^31 - 1, got 0",
                       slimpack::InvalidInput);
  CHECK_THROWS_AS(Gemm(DeviceSpan<std::byte>{}, -1), slimpack::InvalidInput);
}

}  // namespace slimpack::cuda::gemm_test
