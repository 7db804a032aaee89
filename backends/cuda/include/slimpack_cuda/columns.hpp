// SPDX-License-Identifier: Apache-2.0
// Rows whose columns are shared out between members, as heads are: cut up for an exchange, and put
// together again.
#pragma once

#include <cstdint>

#include "slimpack_cuda/bf16.hpp"
#include "slimpack_cuda/device.hpp"
#include "slimpack_cuda/row_shape.hpp"

/// `whole` is row by row, `shape.cols` wide. Of each row member m has columns [m * cols / members,
/// (m + 1) * cols / members). `parts` has the rows of each member row by row, those of member m
/// from element m * stride on; between them may be anything. Where a member's columns, the stride,
/// `whole` and `parts` are multiples of 16 bytes, 16 are moved at a time, elsewhere an element.
/// `table` names a row of `whole` for each row moved, an empty one the first rows in order; it is
/// on the device, where its entries are not checked. Launchers check shapes and sizes
/// (InvalidInput), return on empty work, launch and check the launch (CudaError); they neither
/// allocate nor synchronize.
namespace slimpack::cuda {

struct ColumnShape {
  std::int64_t rows = 0, cols = 0;  ///< moved rows, and columns of all members
  std::int64_t members = 1;         ///< at least 1, a divisor of cols
  std::int64_t stride = 0;          ///< elements from a member's part to that of the next
};

/// parts[m * stride + r * cols / members + c] = whole[table[r]][m * cols / members + c].
void split_columns(DeviceSpan<Bf16> parts, DeviceSpan<const Bf16> whole,
                   DeviceSpan<const std::int32_t> table, ColumnShape shape, StreamView stream);
void split_columns(DeviceSpan<float> parts, DeviceSpan<const float> whole,
                   DeviceSpan<const std::int32_t> table, ColumnShape shape, StreamView stream);

/// whole[table[r]][m * cols / members + c] = parts[m * stride + r * cols / members + c], rows of
/// the table distinct.
void join_columns(DeviceSpan<Bf16> whole, DeviceSpan<const Bf16> parts,
                  DeviceSpan<const std::int32_t> table, ColumnShape shape, StreamView stream);
void join_columns(DeviceSpan<float> whole, DeviceSpan<const float> parts,
                  DeviceSpan<const std::int32_t> table, ColumnShape shape, StreamView stream);

/// whole[r][m * cols / members + c] += parts[m * stride + r * cols / members + c]. A member's
/// columns and the stride are multiples of 8, matrices and parts aligned to 16 bytes.
void add_columns(DeviceSpan<float> whole, DeviceSpan<const Bf16> parts, ColumnShape shape,
                 StreamView stream);

/// to[r] = from[table[r]], rounded to the nearest number, of two the even one. Rows are multiples
/// of 8 numbers, matrices aligned to 16 bytes.
void gather_converted(DeviceSpan<Bf16> to, DeviceSpan<const float> from,
                      DeviceSpan<const std::int32_t> table, RowShape shape, StreamView stream);

}  // namespace slimpack::cuda
