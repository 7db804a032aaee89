// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>
#include <numbers>
#include <vector>

#include "cuda/op_data.hpp"
#include "kernels/functors.hpp"
#include "kernels/optimizer.cuh"
#include "slimpack_cpu/ops.hpp"
#include "slimpack_cuda/rope_tables.hpp"

namespace functors_test {

using namespace slimpack;

namespace {

struct Swiglu {
  double product = 0, dgate = 0, dup = 0;
};
Swiglu reference(double dproduct, double gate, double up) {
  Swiglu result;
  cpu::swiglu_forward({&result.product, 1}, {&gate, 1}, {&up, 1});
  cpu::swiglu_backward({&result.dgate, 1}, {&result.dup, 1}, {&dproduct, 1}, {&gate, 1}, {&up, 1});
  return result;
}

}  // namespace

TEST_CASE("swiglu: values and gradients over all of the range") {
  for (int i = -4000; i <= 4000; ++i) {
    const float gate = static_cast<float>(i) / 32, up = 1.5F, dproduct = -0.75F;
    CAPTURE(gate);
    const auto expected = functors_test::reference(-0.75, static_cast<double>(gate), 1.5);
    const float product = cuda::kernels::swiglu(gate, up);
    const auto gradient = cuda::kernels::swiglu_gradient(dproduct, gate, up);
    // The exponent is rounded relative to its size.
    const double relative = 1e-6 * (1 + std::abs(static_cast<double>(gate)));
    const auto near = [&](float value, double exact) {
      return std::abs(static_cast<double>(value) - exact) <= 1e-6 + relative * std::abs(exact);
    };
    CHECK(near(product, expected.product));
    CHECK(near(gradient.dgate, expected.dgate));
    CHECK(near(gradient.dup, expected.dup));
  }
}

TEST_CASE("turn_at: angles are as good at a position of a million as at one") {
  double worst = 0;
  for (const double theta : {10000.0, 500000.0}) {
    for (const std::int32_t head_dim : {16, 96, 128}) {
      const auto frequencies = cuda::rope_frequencies(head_dim, theta);
      REQUIRE(frequencies.size() == static_cast<std::size_t>(head_dim / 2));
      for (std::int32_t i = 0; i < head_dim / 2; ++i) {
        for (const std::int32_t position : {0, 1, 2, 3, 77, 4095, 131071, 999'999, 1'000'000}) {
          const double angle = static_cast<double>(position) /
                               std::pow(theta, static_cast<double>(2 * i) / head_dim);
          const auto turn =
              cuda::kernels::turn_at(position, frequencies[static_cast<std::size_t>(i)]);
          worst = std::max({worst, std::abs(static_cast<double>(turn.cosine) - std::cos(angle)),
                            std::abs(static_cast<double>(turn.sine) - std::sin(angle))});
        }
      }
    }
  }
  CHECK(worst < 2e-7);
}

TEST_CASE("turn_at: all of the circle") {
  double worst = 0;
  for (std::uint64_t part = 0; part < 4099; ++part) {
    const auto turn = cuda::kernels::turn_at(1, part * (~std::uint64_t{0} / 4099));
    const double angle = 2 * std::numbers::pi * static_cast<double>(part) / 4099;
    worst = std::max({worst, std::abs(static_cast<double>(turn.cosine) - std::cos(angle)),
                      std::abs(static_cast<double>(turn.sine) - std::sin(angle))});
  }
  CHECK(worst < 2e-7);
}

TEST_CASE("rope_frequencies: bad input is refused") {
  CHECK_THROWS_WITH_AS((void)cuda::rope_frequencies(7, 1e4),
                       "rope_frequencies: head_dim must be even, got 7", InvalidInput);
  CHECK_THROWS_WITH_AS((void)cuda::rope_frequencies(8, 0.5), "rope_frequencies: theta must be >= 1",
                       InvalidInput);
}

TEST_CASE("merge of logit sums: no logits change nothing, infinities stay out of differences") {
  using cuda::LogitSum;
  using cuda::kernels::merge;
  const LogitSum some{2, 3, 1};
  for (const LogitSum& merged : {merge(some, LogitSum{}), merge(LogitSum{}, some)}) {
    CHECK(merged.maximum == 2);
    CHECK(merged.sum == 3);
    CHECK(merged.target == 1);
  }
  CHECK(merge(LogitSum{}, LogitSum{}).sum == 0);
  const LogitSum both = merge(some, LogitSum{3, 2, 0});
  CHECK(both.maximum == 3);
  CHECK(static_cast<double>(both.sum) == doctest::Approx(2 + 3 * std::exp(-1.0)));
}

TEST_CASE("adamw_update: thirty steps follow fp64") {
  const cpu::AdamW exact{
      .learning_rate = 3e-3, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1};
  const cuda::AdamW settings{
      .learning_rate = 3e-3, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1};
  double weight = 0.5, first = 0, second = 0;
  cuda::kernels::AdamWState state{0.5F, 0, 0};
  const auto gradients = test::random_floats(30, 5);
  for (std::int64_t step = 1; step <= 30; ++step) {
    const float gradient = gradients[static_cast<std::size_t>(step - 1)];
    const auto g = static_cast<double>(gradient);
    cpu::adamw_step({&weight, 1}, {&first, 1}, {&second, 1}, {&g, 1}, exact, step);
    state = cuda::kernels::adamw_update(cuda::kernels::adamw_constants(settings, step), state,
                                        gradient);
    CHECK(static_cast<double>(state.weight) == doctest::Approx(weight).epsilon(1e-6));
    CHECK(std::abs(static_cast<double>(state.first_moment) - first) < 1e-6);
    CHECK(std::abs(static_cast<double>(state.second_moment) - second) < 1e-6);
  }
}

TEST_CASE("clipping_of: the factor of fp64, and NaN where there is no norm") {
  using cuda::kernels::clipping_of;
  const cpu::AdamW exact{.largest_norm = 2};
  for (const double norm : {0.0, 1.0, 2.0, 3.0, 1e30}) {
    CHECK(clipping_of(norm * norm, 2).norm == doctest::Approx(norm));
    CHECK(static_cast<double>(clipping_of(norm * norm, 2).factor) ==
          doctest::Approx(cpu::clipping_factor(exact, norm)));
  }
  const double infinity = std::numeric_limits<double>::infinity();
  CHECK(clipping_of(1e20, infinity).factor == 1.0F);
  CHECK(std::isnan(clipping_of(infinity, 2).factor));
  CHECK(std::isnan(clipping_of(infinity, 2).norm));
  CHECK(std::isnan(clipping_of(std::nan(""), 2).factor));
}

}  // namespace functors_test
