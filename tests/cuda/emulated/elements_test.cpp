// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <vector>

#include "cuda/op_data.hpp"
#include "kernels/elements.cuh"

namespace elements_test {

using namespace slimpack;

namespace {

using cuda::Bf16;
using cuda::simt::Timing;

float number(Bf16 value) {
  return cuda::to_float(value);
}
float number(float value) {
  return value;
}
void set(Bf16& to, float value) {
  to = cuda::to_bf16(value);
}
void set(float& to, float value) {
  to = value;
}

template <bool kAdd, class To, class From>
void check(std::vector<To> to, const std::vector<From>& from) {
  const auto size = static_cast<std::int64_t>(from.size());
  to.resize(from.size());
  std::vector<To> expected = to;
  for (std::size_t i = 0; i < from.size(); ++i) {
    set(expected[i], kAdd ? number(to[i]) + number(from[i]) : number(from[i]));
  }
  const auto guard = test::poisoned<To>(16);
  to.insert(to.end(), guard.begin(), guard.end());
  expected.insert(expected.end(), guard.begin(), guard.end());
  for (const Timing timing : {Timing::at_once, Timing::late}) {
    auto result = to;
    const auto launch = cuda::kernels::elements_launch<To, From>(size);
    const cuda::kernels::Elements<To, From> work{result.data(), kAdd ? result.data() : nullptr,
                                                 from.data(), size};
    cuda::simt::emulate({launch.blocks, launch.threads, launch.shared_bytes}, timing,
                        [&] { cuda::kernels::write_elements<kAdd>(work); });
    CHECK(test::same_bits(result, expected));
  }
}

}  // namespace

TEST_CASE("elements: a sum may stand apart from what it adds up") {
  for (const std::int64_t size : {1, 8, 4101}) {
    CAPTURE(size);
    const auto left = test::random_bf16(size, 5), right = test::random_bf16(size, 6);
    auto expected = test::poisoned<Bf16>(size + 16), result = expected;
    for (std::size_t i = 0; i < left.size(); ++i) {
      set(expected[i], number(left[i]) + number(right[i]));
    }
    const auto launch = cuda::kernels::elements_launch<Bf16, Bf16>(size);
    const cuda::kernels::Elements<Bf16, Bf16> work{result.data(), left.data(), right.data(), size};
    cuda::simt::emulate({launch.blocks, launch.threads, launch.shared_bytes}, Timing::late,
                        [&] { cuda::kernels::write_elements<true>(work); });
    CHECK(test::same_bits(result, expected));
  }
}

TEST_CASE("elements: sums and conversions of any length, rounded once") {
  for (const std::int64_t size : {1, 7, 8, 4101, 16397}) {
    CAPTURE(size);
    const auto narrow = test::random_bf16(size, 1), other = test::random_bf16(size, 2);
    const auto wide = test::random_floats(size, 3), more = test::random_floats(size, 4);
    check<true>(narrow, other);
    check<true>(wide, more);
    check<true>(wide, narrow);
    check<false>(test::poisoned<Bf16>(size), wide);
    check<false>(test::poisoned<float>(size), narrow);
  }
}

}  // namespace elements_test
