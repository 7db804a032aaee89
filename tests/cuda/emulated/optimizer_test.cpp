// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "cuda/op_data.hpp"
#include "kernels/optimizer.cuh"
#include "slimpack_cpu/ops.hpp"

namespace optimizer_test {

using namespace slimpack;

namespace {

using cuda::Bf16;
using cuda::Clipping;
using cuda::simt::Timing;

std::vector<double> squares(const std::vector<float>& values, Timing timing) {
  const auto size = static_cast<std::int64_t>(values.size());
  const auto launch = cuda::kernels::square_sums_launch(size);
  auto sums = test::poisoned<double>(launch.blocks);
  const cuda::kernels::SquareSums work{sums.data(), values.data(), size};
  cuda::simt::emulate({launch.blocks, launch.threads, launch.shared_bytes}, timing,
                      [&] { cuda::kernels::square_sum_of_part(work); });
  return sums;
}

template <bool kAdd, class Number>
double ordered_sum(double total, const std::vector<Number>& values, Timing timing) {
  const auto launch = cuda::kernels::ordered_sum_launch();
  const cuda::kernels::OrderedSum<Number> work{&total, values.data(),
                                               static_cast<std::int64_t>(values.size())};
  cuda::simt::emulate({launch.blocks, launch.threads, launch.shared_bytes}, timing,
                      [&] { cuda::kernels::sum_in_order<kAdd>(work); });
  return total;
}

struct State {
  std::vector<float> weights, first, second;
  std::vector<Bf16> copy;
};
void step(State& state, const std::vector<float>& gradients, const Clipping* clipping,
          const cuda::AdamW& settings, std::int64_t i, Timing timing) {
  const auto size = static_cast<std::int64_t>(gradients.size());
  const auto launch = cuda::kernels::adamw_launch(size);
  const cuda::kernels::AdamWUpdate work{state.weights.data(),
                                        state.copy.data(),
                                        state.first.data(),
                                        state.second.data(),
                                        gradients.data(),
                                        clipping,
                                        size,
                                        cuda::kernels::adamw_constants(settings, i)};
  cuda::simt::emulate({launch.blocks, launch.threads, launch.shared_bytes}, timing,
                      [&] { cuda::kernels::adamw_part(work); });
}

}  // namespace

TEST_CASE("square sums: follow fp64 for any length, twice the same bits") {
  for (const std::int64_t size : {1, 6, 1027, 32768, 70001}) {
    CAPTURE(size);
    const auto values = test::random_floats(size, 1, 3);
    double exact = 0;
    for (const float value : values) exact += test::as_double(value) * test::as_double(value);
    const auto once = squares(values, Timing::at_once), again = squares(values, Timing::late);
    CHECK(test::same_bits(once, again));
    const double total = ordered_sum<false>(std::nan(""), once, Timing::late);
    CHECK(total == doctest::Approx(exact).epsilon(1e-6));
  }
  CHECK(ordered_sum<false>(5, std::vector<double>{}, Timing::late) == 0);
}

TEST_CASE("square sums: what is not finite shows in the clipping") {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    auto values = test::random_floats(5000, 1);
    values[4321] = bad;
    const double total = ordered_sum<false>(0, squares(values, Timing::late), Timing::late);
    Clipping clipping;
    cuda::simt::emulate({1, 32, 0}, Timing::late,
                        [&] { cuda::kernels::write_clipping({&clipping, &total, 1.0}); });
    CHECK(std::isnan(clipping.factor));
    CHECK(std::isnan(clipping.norm));
  }
}

TEST_CASE("ordered sum: adds numbers in fp32 to a total in fp64") {
  const auto values = test::random_floats(5003, 2);
  double exact = 100;
  for (const float value : values) exact += test::as_double(value);
  const double total = ordered_sum<true>(100, values, Timing::late);
  CHECK(total == doctest::Approx(exact).epsilon(1e-12));
  CHECK(total == ordered_sum<true>(100, values, Timing::at_once));
}

TEST_CASE("adamw: steps of any length follow fp64, clipped and not") {
  const cpu::AdamW exact{.learning_rate = 1e-2, .largest_norm = 0.5};
  const cuda::AdamW settings{.learning_rate = 1e-2, .largest_norm = 0.5};
  for (const std::int64_t size : {1, 5, 2048, 4099}) {
    CAPTURE(size);
    for (const bool clipped : {false, true}) {
      const Clipping clipping{1.0, 0.5F};
      State state{test::random_floats(size + 16, 1),
                  std::vector<float>(static_cast<std::size_t>(size + 16)),
                  std::vector<float>(static_cast<std::size_t>(size + 16)),
                  test::poisoned<Bf16>(size + 16)};
      State again = state;
      std::vector<double> weights = test::as_doubles(state.weights);
      weights.resize(static_cast<std::size_t>(size));
      std::vector<double> first(weights.size()), second(weights.size());
      const auto beyond = state.weights;
      for (std::int64_t k = 1; k <= 3; ++k) {
        const auto gradients = test::random_floats(size, static_cast<std::uint32_t>(10 + k));
        cpu::adamw_step(weights, first, second, test::as_doubles(gradients), exact, k,
                        clipped ? cpu::clipping_factor(exact, 1.0) : 1.0);
        step(state, gradients, clipped ? &clipping : nullptr, settings, k, Timing::at_once);
        step(again, gradients, clipped ? &clipping : nullptr, settings, k, Timing::late);
      }
      CHECK(test::difference(state.weights, weights, 1e-6, 1e-6) == "");
      CHECK(test::difference(state.first, first, 1e-7, 1e-6) == "");
      CHECK(test::difference(state.second, second, 1e-7, 1e-6) == "");
      for (std::size_t i = 0; i < weights.size(); ++i) {
        CHECK(state.copy[i] == cuda::to_bf16(state.weights[i]));
      }
      CHECK(std::equal(state.weights.begin() + size, state.weights.end(), beyond.begin() + size));
      CHECK(test::is_poisoned(std::span<const Bf16>(state.copy).last(16)));
      CHECK(test::same_bits(state.weights, again.weights));
      CHECK(test::same_bits(state.copy, again.copy));
    }
  }
}

TEST_CASE("adamw: a factor of NaN leaves everything as it was") {
  const Clipping clipping{std::nan(""), std::nanf("")};
  const State before{test::random_floats(11, 1), test::random_floats(11, 2),
                     test::random_floats(11, 3), test::random_bf16(11, 4)};
  State state = before;
  step(state, test::random_floats(11, 5), &clipping, cuda::AdamW{}, 1, Timing::late);
  CHECK(test::same_bits(state.weights, before.weights));
  CHECK(test::same_bits(state.first, before.first));
  CHECK(test::same_bits(state.second, before.second));
  CHECK(test::same_bits(state.copy, before.copy));
}

}  // namespace optimizer_test
