// SPDX-License-Identifier: Apache-2.0
#include "slimpack_cuda/optimizer.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "cuda/device_data.hpp"
#include "cuda/op_data.hpp"
#include "slimpack/core/error.hpp"
#include "slimpack_cpu/ops.hpp"

namespace optimizer_test {

using namespace slimpack;

TEST_CASE("optimizer: norm, clipping and steps on the device follow fp64, twice the same bits") {
  using cuda::Bf16;
  using cuda::Clipping;
  using test::OnDevice;
  const cuda::Stream owner;
  const auto stream = owner.view();
  const cpu::AdamW exact{.learning_rate = 1e-2, .largest_norm = 10};
  const cuda::AdamW settings{.learning_rate = 1e-2, .largest_norm = 10};
  for (const std::int64_t size : {3, 4099, 1'000'003}) {
    CAPTURE(size);
    const auto start = test::random_floats(size, 1);
    auto weights = test::as_doubles(start);
    std::vector<double> first(weights.size()), second(weights.size());
    std::vector<std::vector<float>> results;
    for (int run = 0; run < 2; ++run) {
      const OnDevice master(start, stream);
      const OnDevice m(std::vector<float>(start.size()), stream),
          v(std::vector<float>(start.size()), stream);
      const OnDevice copy(test::poisoned<Bf16>(size), stream);
      const OnDevice sums(test::poisoned<double>(cuda::square_sums_count(size)), stream);
      const OnDevice total(test::poisoned<double>(1), stream);
      const OnDevice clipping(std::vector<Clipping>(1), stream);
      for (std::int64_t step = 1; step <= 3; ++step) {
        const auto gradient = test::random_floats(size, static_cast<std::uint32_t>(10 + step));
        const OnDevice gradients(gradient, stream);
        cuda::square_sums(sums.span(), gradients.view(), stream);
        cuda::ordered_sum(total.span(), sums.view(), stream);
        cuda::clip_by_norm(clipping.span(), total.view(), settings.largest_norm, stream);
        cuda::adamw_step(master.span(), copy.span(), m.span(), v.span(), gradients.view(),
                         clipping.view(), settings, step, stream);
        stream.synchronize();
        if (run > 0) continue;
        double squares = 0;
        for (const float g : gradient) squares += test::as_double(g) * test::as_double(g);
        const double norm = std::sqrt(squares);
        const Clipping found = clipping.read()[0];
        CHECK(found.norm == doctest::Approx(norm).epsilon(1e-6));
        CHECK(static_cast<double>(found.factor) ==
              doctest::Approx(cpu::clipping_factor(exact, norm)).epsilon(1e-6));
        cpu::adamw_step(weights, first, second, test::as_doubles(gradient), exact, step,
                        cpu::clipping_factor(exact, norm));
      }
      results.push_back(master.read());
      CHECK(test::difference(results.back(), weights, 2e-6, 1e-6) == "");
      CHECK(test::difference(copy.read(), weights, 2e-6, test::kBf16Rounding) == "");
    }
    CHECK(test::same_bits(results[0], results[1]));
  }
}

TEST_CASE("optimizer: a gradient that is not finite leaves the weights as they were") {
  using cuda::Bf16;
  using cuda::Clipping;
  using test::OnDevice;
  const cuda::Stream owner;
  const auto stream = owner.view();
  constexpr std::int64_t kSize = 70001;
  auto gradient = test::random_floats(kSize, 1);
  gradient[65000] = std::numeric_limits<float>::infinity();
  const auto start = test::random_floats(kSize, 2);
  const OnDevice gradients(gradient, stream), master(start, stream), m(start, stream),
      v(start, stream);
  const OnDevice copy(test::poisoned<Bf16>(kSize), stream);
  const OnDevice sums(test::poisoned<double>(cuda::square_sums_count(kSize)), stream);
  const OnDevice total(test::poisoned<double>(1), stream);
  const OnDevice clipping(std::vector<Clipping>(1), stream);
  cuda::square_sums(sums.span(), gradients.view(), stream);
  cuda::ordered_sum(total.span(), sums.view(), stream);
  cuda::clip_by_norm(clipping.span(), total.view(), 1.0, stream);
  cuda::adamw_step(master.span(), copy.span(), m.span(), v.span(), gradients.view(),
                   clipping.view(), {}, 1, stream);
  CHECK(std::isnan(clipping.read()[0].norm));
  CHECK(test::same_bits(master.read(), start));
  CHECK(test::same_bits(m.read(), start));
}

TEST_CASE("add_ordered_sum: a sum in fp64 of numbers in fp32") {
  const cuda::Stream owner;
  const auto stream = owner.view();
  const auto values = test::random_floats(100'003, 1);
  double expected = 2;
  for (const float value : values) expected += test::as_double(value);
  const test::OnDevice numbers(values, stream);
  const test::OnDevice total(std::vector<double>{2.0}, stream);
  cuda::add_ordered_sum(total.span(), numbers.view(), stream);
  CHECK(total.read()[0] == doctest::Approx(expected).epsilon(1e-12));
}

TEST_CASE("optimizer: bad spans and settings are refused") {
  CHECK_THROWS_WITH_AS(cuda::adamw_step({}, {}, {}, {}, {}, {}, {}, 0, {}),
                       "adamw_step: step must be >= 1, got 0", InvalidInput);
  CHECK_THROWS_WITH_AS(cuda::ordered_sum({}, {}, {}), "ordered_sum: total is not one number, got 0",
                       InvalidInput);
  CHECK_THROWS_WITH_AS((void)cuda::square_sums_count(-1),
                       "square_sums_count: size must be >= 0, got -1", InvalidInput);
  CHECK(cuda::square_sums_count(0) == 0);
  CHECK_NOTHROW(cuda::adamw_step({}, {}, {}, {}, {}, {}, {}, 1, {}));
}

}  // namespace optimizer_test
