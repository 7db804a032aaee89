// SPDX-License-Identifier: Apache-2.0
#include "slimpack_cuda/elements.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "cuda/device_data.hpp"
#include "cuda/op_data.hpp"
#include "slimpack/core/error.hpp"

namespace elements_test {

using namespace slimpack;

TEST_CASE("elements: launchers round once, at any length") {
  using cuda::Bf16;
  using test::OnDevice;
  const cuda::Stream owner;
  const auto stream = owner.view();
  for (const std::int64_t size : {1, 7, 4101, 1'000'003}) {
    CAPTURE(size);
    const auto narrow = test::random_bf16(size, 1), other = test::random_bf16(size, 2);
    const auto wide = test::random_floats(size, 3), more = test::random_floats(size, 4);
    std::vector<Bf16> narrow_sum(narrow.size()), rounded(narrow.size());
    std::vector<float> wide_sum(narrow.size()), mixed_sum(narrow.size()), widened(narrow.size());
    for (std::size_t i = 0; i < narrow.size(); ++i) {
      narrow_sum[i] = cuda::to_bf16(cuda::to_float(narrow[i]) + cuda::to_float(other[i]));
      wide_sum[i] = wide[i] + more[i];
      mixed_sum[i] = wide[i] + cuda::to_float(narrow[i]);
      rounded[i] = cuda::to_bf16(wide[i]);
      widened[i] = cuda::to_float(narrow[i]);
    }
    const OnDevice a(narrow, stream), b(other, stream), into(narrow, stream);
    const OnDevice x(wide, stream), y(more, stream), z(wide, stream);
    cuda::add(into.span(), a.view(), b.view(), stream);
    CHECK(test::same_bits(into.read(), narrow_sum));
    const OnDevice in_place(other, stream);
    cuda::add(in_place.span(), a.view(), in_place.view(), stream);
    CHECK(test::same_bits(in_place.read(), narrow_sum));
    cuda::add(z.span(), y.view(), stream);
    CHECK(test::same_bits(z.read(), wide_sum));
    cuda::convert(z.span(), a.view(), stream);
    CHECK(test::same_bits(z.read(), widened));
    cuda::convert(into.span(), x.view(), stream);
    CHECK(test::same_bits(into.read(), rounded));
    cuda::add(x.span(), a.view(), stream);
    CHECK(test::same_bits(x.read(), mixed_sum));
    cuda::fill_zeros(x.span(), stream);
    CHECK(x.read() == std::vector<float>(narrow.size()));
  }
}

TEST_CASE("copy_all: small and large copies, aligned or not, and nothing beside them") {
  const cuda::Stream owner;
  const auto stream = owner.view();
  constexpr std::int64_t kSize = test::sized(1'500'000, 400'000);
  const auto from = test::random_floats(kSize, 7), before = test::random_floats(kSize, 8);
  for (const std::uint32_t seed : {1U, 2U, 3U}) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const auto below = [&](std::uint32_t most) {
      return static_cast<std::int64_t>(random() % most);
    };
    const test::OnDevice source(from, stream), target(before, stream);
    std::vector<float> expected = before;
    std::vector<cuda::MemoryCopy> copies;
    for (std::int64_t at = 0; at < kSize;) {
      const bool whole = seed != 1 && below(4) != 0;  // multiples of 16 bytes
      std::int64_t count = below(below(50) == 0 ? 80'000 : 2000), first = below(5), gap = below(9);
      if (whole) count = count / 4 * 4, first = 0, gap = gap / 4 * 4, at = (at + 3) / 4 * 4;
      count = std::min(count, kSize - at - first);
      if (count < 0) break;
      copies.push_back({target.span().data + at, source.view().data + at + first,
                        count * std::int64_t{sizeof(float)}});
      std::copy_n(from.begin() + at + first, count, expected.begin() + at);
      at += count + gap;
    }
    CHECK(copies.size() > 130);
    std::shuffle(copies.begin(), copies.end(), random);
    cuda::copy_all(copies, stream);
    CHECK(test::same_bits(target.read(), expected));
  }
  cuda::copy_all({}, stream);
}

TEST_CASE("elements: bad spans are refused") {
  alignas(16) static float numbers[8];
  const cuda::DeviceSpan<float> two{numbers, 2}, crooked{numbers + 1, 2};
  CHECK_THROWS_WITH_AS(cuda::add(two, cuda::DeviceSpan<const float>{numbers, 3}, {}),
                       "elements: both spans must be as long, got 3", InvalidInput);
  CHECK_THROWS_WITH_AS(cuda::add(two, cuda::DeviceSpan<const float>(crooked), {}),
                       "elements: the second span is not aligned to 16 bytes", InvalidInput);
  alignas(16) static cuda::Bf16 narrow[8];
  const cuda::DeviceSpan<cuda::Bf16> sums{narrow, 4};
  CHECK_THROWS_WITH_AS(cuda::add(sums, cuda::DeviceSpan<const cuda::Bf16>{narrow, 3}, sums, {}),
                       "elements: all spans must be as long, got 3", InvalidInput);
  CHECK_NOTHROW(cuda::add(cuda::DeviceSpan<float>{}, cuda::DeviceSpan<const float>{}, {}));
}

}  // namespace elements_test
