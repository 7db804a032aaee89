// SPDX-License-Identifier: Apache-2.0
#include "slimpack_cuda/members.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "cuda/op_data.hpp"
#include "slimpack/core/error.hpp"
#include "slimpack_cuda/device.hpp"

namespace members_test {

using namespace slimpack;

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

}  // namespace members_test
