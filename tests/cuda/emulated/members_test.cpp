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

}  // namespace

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
