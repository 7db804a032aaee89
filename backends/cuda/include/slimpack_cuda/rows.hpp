// SPDX-License-Identifier: Apache-2.0
// Moves rows between matrices by a table of rows, and looks at what stands in them.
#pragma once

#include <cstdint>

#include "slimpack_cuda/bf16.hpp"
#include "slimpack_cuda/device.hpp"
#include "slimpack_cuda/row_shape.hpp"

/// Matrices are row by row, aligned to 16 bytes, and a row is a multiple of 16 bytes. `shape.rows`
/// is the number of rows moved, the length of the table. Tables are on the device, where their
/// entries are not checked (see check_row_table). Launchers check shapes and sizes (InvalidInput),
/// return on empty work, launch and check the launch (CudaError); they neither allocate nor
/// synchronize.
namespace slimpack::cuda {

/// to[r] = from[table[r]].
void gather_rows(DeviceSpan<Bf16> to, DeviceSpan<const Bf16> from,
                 DeviceSpan<const std::int32_t> table, RowShape shape, StreamView stream);
void gather_rows(DeviceSpan<float> to, DeviceSpan<const float> from,
                 DeviceSpan<const std::int32_t> table, RowShape shape, StreamView stream);

/// to[table[r]] = from[r], rows of the table distinct.
void scatter_rows(DeviceSpan<Bf16> to, DeviceSpan<const Bf16> from,
                  DeviceSpan<const std::int32_t> table, RowShape shape, StreamView stream);
void scatter_rows(DeviceSpan<float> to, DeviceSpan<const float> from,
                  DeviceSpan<const std::int32_t> table, RowShape shape, StreamView stream);

/// to[table[r]] += from[r], rows of the table distinct.
void scatter_add_rows(DeviceSpan<float> to, DeviceSpan<const float> from,
                      DeviceSpan<const std::int32_t> table, RowShape shape, StreamView stream);

/// largest[r] = the largest magnitude of row r of `shape.rows`: infinite where a number is, NaN
/// where one is NaN; zero of an empty row.
void largest_by_row(DeviceSpan<float> largest, DeviceSpan<const Bf16> rows, RowShape shape,
                    StreamView stream);

}  // namespace slimpack::cuda
