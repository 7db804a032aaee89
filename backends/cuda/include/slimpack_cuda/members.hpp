// SPDX-License-Identifier: Apache-2.0
// What the members of a process group bring becomes one, in their order and so with the same bits
// for all.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "slimpack_cuda/bf16.hpp"
#include "slimpack_cuda/device.hpp"

namespace slimpack::cuda {

/// How many members one launch can combine.
inline constexpr std::size_t kMostMembers = 64;

/// members[m][i] becomes the sum over all members, added up from member 0 on, or their largest, for
/// every m, or for m = `only` alone. The stream's device must reach the memory of all of them.
/// Launchers check that there are 1 to kMostMembers members of one size, `only` among them
/// (InvalidInput), return on empty work and on one member, launch and check the launch (CudaError);
/// they neither allocate nor synchronize.
void sum_members(std::span<const DeviceSpan<float>> members, StreamView stream,
                 std::optional<std::size_t> only = std::nullopt);
void sum_members(std::span<const DeviceSpan<double>> members, StreamView stream,
                 std::optional<std::size_t> only = std::nullopt);
/// The same of bf16: added up in fp32, rounded once.
void sum_members(std::span<const DeviceSpan<Bf16>> members, StreamView stream,
                 std::optional<std::size_t> only = std::nullopt);
void largest_of_members(std::span<const DeviceSpan<float>> members, StreamView stream,
                        std::optional<std::size_t> only = std::nullopt);
void largest_of_members(std::span<const DeviceSpan<double>> members, StreamView stream,
                        std::optional<std::size_t> only = std::nullopt);

}  // namespace slimpack::cuda
