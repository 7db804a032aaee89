// SPDX-License-Identifier: Apache-2.0
// Rows whose columns are shared out between members, as heads are: cut up for an exchange, and put
// together again.
#pragma once

#include <cstdint>

#include "slimpack_cuda/bf16.hpp"
#include "slimpack_cuda/device.hpp"

/// `whole` is row by row, `shape.cols` wide. Of each row member m has columns [m * cols / members,
/// (m + 1) * cols / members), which are those of its `heads` heads; heads [first, first + count) of
/// each member move. `parts` has the rows of each such head row by row, those of member m's i-th
/// from element m * stride + i * head_stride on; between them may be anything. Where a head's
/// columns, the strides, `whole` and `parts` are multiples of 16 bytes, 16 are moved at a time,
/// elsewhere an element. `table` names a row of `whole` for each row moved, an empty one the first
/// rows in order; it is on the device, where its entries are not checked. Launchers check shapes
/// and sizes (InvalidInput), return on empty work, launch and check the launch (CudaError); they
/// neither allocate nor synchronize.
namespace slimpack::cuda {

struct ColumnShape {
  std::int64_t rows = 0, cols = 0;    ///< moved rows, and columns of all members
  std::int64_t members = 1;           ///< at least 1, with `heads` a divisor of cols
  std::int64_t stride = 0;            ///< elements from a member's part to that of the next
  std::int64_t heads = 1;             ///< of a member, at least 1
  std::int64_t first = 0, count = 1;  ///< which of them move: at least one
  std::int64_t head_stride = 0;       ///< elements from a head's rows to those of the next
};

/// With w = cols / members / heads and h = first + i, for each member m, head i < count and c < w:
/// parts[m * stride + i * head_stride + r * w + c] = whole[table[r]][(m * heads + h) * w + c].
void split_columns(DeviceSpan<Bf16> parts, DeviceSpan<const Bf16> whole,
                   DeviceSpan<const std::int32_t> table, ColumnShape shape, StreamView stream);
void split_columns(DeviceSpan<float> parts, DeviceSpan<const float> whole,
                   DeviceSpan<const std::int32_t> table, ColumnShape shape, StreamView stream);

/// The other way, rows of the table distinct.
void join_columns(DeviceSpan<Bf16> whole, DeviceSpan<const Bf16> parts,
                  DeviceSpan<const std::int32_t> table, ColumnShape shape, StreamView stream);
void join_columns(DeviceSpan<float> whole, DeviceSpan<const float> parts,
                  DeviceSpan<const std::int32_t> table, ColumnShape shape, StreamView stream);

/// The same with no table, adding to whole[r]. A head's columns and the strides are multiples of 8,
/// matrices and parts aligned to 16 bytes.
void add_columns(DeviceSpan<float> whole, DeviceSpan<const Bf16> parts, ColumnShape shape,
                 StreamView stream);

/// Where a token's row of keys or values, or of their gradients, lies in a memory in which heads
/// have their rows apart: that of layer l and head h from element
/// at + (l * layer_rows + h * head_rows) * head_dim on, that of values as if it was `heads` heads
/// behind. Below zero: nowhere.
struct KeyRow {
  std::int64_t at = -1;
  std::int32_t head_rows = 0, layer_rows = 0;
  friend bool operator==(const KeyRow&, const KeyRow&) = default;
};

/// Heads [first, first + count) of a memory's `heads`, in a message: row r of the i-th from element
/// i * head_stride + r * head_dim on, that of values `value` elements behind.
struct KeyRowShape {
  std::int64_t rows = 0, head_dim = 0;  ///< head_dim: a positive multiple of 8
  std::int64_t heads = 1, first = 0, count = 1;
  std::int64_t head_stride = 0, value = 0;  ///< multiples of 8
  std::int64_t layer = 0;
};

/// Rows of a message to the places in `memory` that the table names, on the device and unchecked,
/// as are those of the other way. Both are aligned to 16 bytes.
void store_keys(DeviceSpan<Bf16> memory, DeviceSpan<const Bf16> message,
                DeviceSpan<const KeyRow> table, KeyRowShape shape, StreamView stream);

/// Rows of `memory` to a message, rounded to the nearest number, of two the even one.
void load_key_gradients(DeviceSpan<Bf16> message, DeviceSpan<const float> memory,
                        DeviceSpan<const KeyRow> table, KeyRowShape shape, StreamView stream);

}  // namespace slimpack::cuda
