// SPDX-License-Identifier: Apache-2.0
#include "slimpack_cuda/members.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cuda/op_data.hpp"
#include "kernels/members.cuh"
#include "slimpack/core/error.hpp"
#include "slimpack/exec/reduction.hpp"

using namespace slimpack;

namespace members_test {

using cuda::simt::Timing;

template <class Number>
std::vector<Number> drawn(std::int64_t size, std::uint32_t seed) {
  const auto floats = test::random_floats(size, seed);
  return {floats.begin(), floats.end()};
}

template <bool kLargest, class Number>
void check(std::size_t count, std::int64_t size) {
  std::vector<std::vector<Number>> members;
  for (std::size_t member = 0; member < count; ++member) {
    members.push_back(drawn<Number>(size, static_cast<std::uint32_t>(member + 1)));
  }
  std::vector<Number> expected = members.front();
  for (std::size_t member = 1; member < count; ++member) {
    exec::combine(std::span(expected), std::span<const Number>(members[member]),
                  kLargest ? exec::Reduction::maximum : exec::Reduction::sum);
  }
  const auto guard = test::poisoned<Number>(16);
  expected.insert(expected.end(), guard.begin(), guard.end());
  cuda::kernels::Members<Number> work;
  work.size = size;
  for (auto& member : members) {
    member.insert(member.end(), guard.begin(), guard.end());
    work.values[work.count++] = member.data();
  }
  const auto launch = cuda::kernels::members_launch(size);
  cuda::simt::emulate({launch.blocks, launch.threads, launch.shared_bytes}, Timing::late,
                      [&] { cuda::kernels::combine_members<kLargest>(work); });
  for (const auto& member : members) CHECK(test::same_bits(member, expected));
}

}  // namespace members_test

TEST_CASE("members: every one gets the sum or the largest, combined in the order of members") {
  using namespace members_test;
  for (const std::size_t count : {2U, 3U, 8U, 64U}) {
    for (const std::int64_t size : {1, 255, 1025}) {
      CAPTURE(count);
      CAPTURE(size);
      check<false, float>(count, size);
      check<true, float>(count, size);
      check<false, double>(count, size);
      check<true, double>(count, size);
    }
  }
}

TEST_CASE("members: the launchers take members wherever they lie, and refuse what does not fit") {
  using cuda::DeviceSpan;
  const cuda::Stream owner;
  const cuda::StreamView stream = owner.view();
  const auto a = test::random_floats(100, 1), b = test::random_floats(100, 2);
  const cuda::DeviceBuffer<float> memory(300);
  const DeviceSpan<float> first = memory.span().subspan(0, 100);
  const DeviceSpan<float> second = memory.span().subspan(101, 100);  // aligned otherwise
  cuda::upload(first, std::span<const float>(a), stream);
  cuda::upload(second, std::span<const float>(b), stream);
  cuda::sum_members(std::vector<DeviceSpan<float>>{first, second}, stream);
  std::vector<float> sum(a);
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += b[i];
  CHECK(cuda::download(first, stream) == sum);
  CHECK(cuda::download(second, stream) == sum);
  cuda::upload(first, std::span<const float>(a), stream);
  cuda::largest_of_members(std::vector<DeviceSpan<float>>{first, second}, stream);
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = std::max(a[i], sum[i]);
  CHECK(cuda::download(second, stream) == sum);
  cuda::sum_members(std::vector<DeviceSpan<float>>{second}, stream);
  CHECK(cuda::download(second, stream) == sum);
  CHECK_THROWS_WITH_AS(cuda::sum_members(std::vector<DeviceSpan<float>>{}, stream),
                       "members: there must be 1 to 64 of them, got 0", InvalidInput);
  CHECK_THROWS_WITH_AS(cuda::sum_members(std::vector<DeviceSpan<float>>(65, first), stream),
                       "members: there must be 1 to 64 of them, got 65", InvalidInput);
  CHECK_THROWS_WITH_AS(
      cuda::sum_members(std::vector<DeviceSpan<float>>{first, second.subspan(0, 99)}, stream),
      "members: all spans must be as long, got 99", InvalidInput);
}
