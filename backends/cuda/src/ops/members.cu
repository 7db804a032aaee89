// SPDX-License-Identifier: Apache-2.0
#include "slimpack_cuda/members.hpp"

#include <cstddef>
#include <cstdint>

#include "kernels/members.cuh"
#include "ops/launch.hpp"
#include "slimpack/core/error.hpp"

namespace slimpack::cuda {
namespace {

using namespace kernels;

template <bool kLargest, class Number>
__global__ void __launch_bounds__(kMemberThreads)
    members_kernel(const __grid_constant__ Members<Number> work) {
  combine_members<kLargest>(work);
}

template <bool kLargest, class Number>
void launch_members(std::span<const DeviceSpan<Number>> members, StreamView stream,
                    std::optional<std::size_t> only) {
  require(!members.empty() && members.size() <= kMostMembers,
          "members: there must be 1 to " + std::to_string(kMostMembers) + " of them",
          static_cast<std::int64_t>(members.size()));
  Members<Number> work;
  work.size = members.front().size;
  for (const DeviceSpan<Number>& member : members) {
    require(member.size == work.size, "members: all spans must be as long", member.size);
    work.values[work.count++] = member.data;
  }
  require(!only || *only < members.size(), "members: `only` must be one of them",
          static_cast<std::int64_t>(only.value_or(0)));
  work.first_taker = static_cast<unsigned>(only.value_or(0));
  work.end_taker = only ? work.first_taker + 1 : work.count;
  if (work.size == 0 || work.count == 1) return;
  detail::start(members_kernel<kLargest, Number>, members_launch(work.size), stream, work);
}

}  // namespace

void sum_members(std::span<const DeviceSpan<float>> members, StreamView stream,
                 std::optional<std::size_t> only) {
  launch_members<false>(members, stream, only);
}
void sum_members(std::span<const DeviceSpan<double>> members, StreamView stream,
                 std::optional<std::size_t> only) {
  launch_members<false>(members, stream, only);
}
void sum_members(std::span<const DeviceSpan<Bf16>> members, StreamView stream,
                 std::optional<std::size_t> only) {
  launch_members<false>(members, stream, only);
}
void largest_of_members(std::span<const DeviceSpan<float>> members, StreamView stream,
                        std::optional<std::size_t> only) {
  launch_members<true>(members, stream, only);
}
void largest_of_members(std::span<const DeviceSpan<double>> members, StreamView stream,
                        std::optional<std::size_t> only) {
  launch_members<true>(members, stream, only);
}

}  // namespace slimpack::cuda
