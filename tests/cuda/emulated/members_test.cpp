// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "cuda/op_data.hpp"
#include "kernels/members.cuh"
#include "slimpack/runtime/transport.hpp"

namespace members_test {

using namespace slimpack;

namespace {

using cuda::simt::Timing;

template <class Number>
std::vector<Number> drawn(std::int64_t size, std::uint32_t seed) {
  const auto floats = test::random_floats(size, seed);
  return {floats.begin(), floats.end()};
}

template <bool kLargest, class Number>
void check(std::size_t count, std::int64_t size, std::optional<std::size_t> only = std::nullopt) {
  std::vector<std::vector<Number>> members;
  for (std::size_t member = 0; member < count; ++member) {
    members.push_back(drawn<Number>(size, static_cast<std::uint32_t>(member + 1)));
  }
  std::vector<Number> expected = members.front();
  for (std::size_t member = 1; member < count; ++member) {
    runtime::combine(std::span(expected), std::span<const Number>(members[member]),
                     kLargest ? runtime::Reduction::maximum : runtime::Reduction::sum);
  }
  const auto guard = test::poisoned<Number>(16);
  expected.insert(expected.end(), guard.begin(), guard.end());
  cuda::kernels::Members<Number> work;
  work.size = size;
  for (auto& member : members) {
    member.insert(member.end(), guard.begin(), guard.end());
    work.values[work.count++] = member.data();
  }
  work.first_taker = only ? static_cast<unsigned>(*only) : 0;
  work.end_taker = only ? work.first_taker + 1 : work.count;
  const auto launch = cuda::kernels::members_launch(size);
  cuda::simt::emulate({launch.blocks, launch.threads, launch.shared_bytes}, Timing::late,
                      [&] { cuda::kernels::combine_members<kLargest>(work); });
  for (std::size_t member = 0; member < count; ++member) {
    std::vector<Number> own = drawn<Number>(size, static_cast<std::uint32_t>(member + 1));
    own.insert(own.end(), guard.begin(), guard.end());
    CHECK(test::same_bits(members[member], !only || *only == member ? expected : own));
  }
}

/// Members as bf16: their sum in fp32 is rounded once.
void check_bf16(std::size_t count, std::int64_t size) {
  std::vector<std::vector<cuda::Bf16>> members(count);
  std::vector<float> sum(static_cast<std::size_t>(size));
  cuda::kernels::Members<cuda::Bf16> work;
  work.size = size;
  for (std::size_t member = 0; member < count; ++member) {
    const auto values = drawn<float>(size, static_cast<std::uint32_t>(member + 1));
    for (std::size_t i = 0; i < values.size(); ++i) {
      members[member].push_back(cuda::to_bf16(values[i]));
      sum[i] += cuda::to_float(members[member].back());
    }
    work.values[work.count++] = members[member].data();
  }
  const std::vector<cuda::Bf16> first = members.front();
  work.first_taker = work.count - 1;
  work.end_taker = work.count;
  const auto launch = cuda::kernels::members_launch(size);
  cuda::simt::emulate({launch.blocks, launch.threads, launch.shared_bytes}, Timing::late,
                      [&] { cuda::kernels::combine_members<false>(work); });
  for (std::size_t i = 0; i < sum.size(); ++i) {
    CHECK(members.back()[i] == cuda::to_bf16(sum[i]));
  }
  CHECK(members.front() == first);
}

}  // namespace

TEST_CASE("members: bf16 is added up in fp32 and rounded once") {
  for (const std::size_t count : {2U, 3U, 8U}) {
    for (const std::int64_t size : {1, 255, 1025}) check_bf16(count, size);
  }
}

TEST_CASE("members: every one gets the sum or the largest, combined in the order of members") {
  for (const std::size_t count : {2U, 3U, 8U, 64U}) {
    for (const std::int64_t size : {1, 255, 1025}) {
      CAPTURE(count);
      CAPTURE(size);
      check<false, float>(count, size);
      check<true, float>(count, size);
      check<false, double>(count, size);
      check<true, double>(count, size);
      check<false, float>(count, size, count - 1);
    }
  }
}

}  // namespace members_test
