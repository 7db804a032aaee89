// SPDX-License-Identifier: Apache-2.0
// Products of fp32 matrices out of register tiles, the right factor packed in panels.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>

#include "slimpack_cpu/fast/packet.hpp"

namespace slimpack::cpu::fast {

/// A register tile: so many packets wide and rows high, sums, a row of the right factor and one
/// element of the left one have to fit into the registers (32 with AVX-512, else 16).
inline constexpr std::int64_t kTileVectors = kLanes == 16 ? 4 : 2;
/// Rows of a register tile.
inline constexpr std::int64_t kTileRows = 6;
/// Columns of a register tile: what the right factor is packed by.
inline constexpr std::int64_t kPanel = kTileVectors * kLanes;

/// `count` rounded up to whole packets.
[[nodiscard]] constexpr std::int64_t padded(std::int64_t count) noexcept {
  return (count + kLanes - 1) / kLanes * kLanes;
}

/// Aligned floats of a size that is set once.
class Floats {
 public:
  Floats() = default;
  /// So many zeros.
  explicit Floats(std::int64_t count)
      : size_(count),
        data_(static_cast<float*>(::operator new(static_cast<std::size_t>(count) * sizeof(float),
                                                 std::align_val_t{kAlignment}))) {
    std::fill_n(data_.get(), count, 0.0F);
  }
  /// The first of them, at a multiple of kAlignment; null where the size is not set.
  [[nodiscard]] float* data() const noexcept { return data_.get(); }
  /// How many they are.
  [[nodiscard]] std::int64_t size() const noexcept { return size_; }

 private:
  struct Release {
    void operator()(float* data) const noexcept {
      ::operator delete(data, std::align_val_t{kAlignment});
    }
  };
  std::int64_t size_ = 0;
  std::unique_ptr<float, Release> data_;
};

/// A left factor: element (row, col) is data[row * row_stride + col * col_stride].
struct Left {
  const float* data = nullptr;  ///< element (0, 0)
  std::int64_t row_stride = 0;  ///< floats from one row to the next; 1 in a transposed factor
  std::int64_t col_stride = 1;  ///< floats from one column to the next
};

/// A right factor of `depth` rows. Columns [p * kPanel, (p + 1) * kPanel) are panel p, row by row,
/// the last one only as wide as the columns that are left, in whole packets.
struct Panels {
  float* data = nullptr;   ///< `size(depth, cols)` floats, not owned
  std::int64_t depth = 0;  ///< rows of the factor
  std::int64_t cols = 0;   ///< columns of the factor, without padding
  /// Floats that the panels of depth x cols elements take, padding included.
  [[nodiscard]] static constexpr std::int64_t size(std::int64_t depth, std::int64_t cols) noexcept {
    return depth * padded(cols);
  }
  /// Floats in a row of the panel that begins at column `col`, padding included.
  [[nodiscard]] std::int64_t width(std::int64_t col) const noexcept {
    return std::min(kPanel, padded(cols) - col);
  }
};

/// Packs depth x cols elements that lie row by row.
inline void pack(const Panels& into, const float* from, std::int64_t stride) {
  for (std::int64_t col = 0; col < into.cols; col += kPanel) {
    const std::int64_t width = into.width(col);
    const std::int64_t valid = std::min(width, into.cols - col);
    float* panel = into.data + col * into.depth;
    for (std::int64_t row = 0; row < into.depth; ++row, panel += width) {
      std::memcpy(panel, from + row * stride + col,
                  static_cast<std::size_t>(valid) * sizeof(float));
      std::fill(panel + valid, panel + width, 0.0F);
    }
  }
}

/// Packs the transpose: `from` has `cols` rows of `depth` elements.
inline void pack_transposed(const Panels& into, const float* from, std::int64_t stride) {
  for (std::int64_t col = 0; col < into.cols; col += kPanel) {
    const std::int64_t width = into.width(col);
    float* panel = into.data + col * into.depth;
    for (std::int64_t lane = 0; lane < width; lane += kLanes) {
      const std::int64_t valid = std::min(kLanes, into.cols - col - lane);
      const float* rows = from + (col + lane) * stride;
      std::int64_t row = 0;
      if (valid == kLanes) {
        for (; row + kLanes <= into.depth; row += kLanes) {
          transpose_square(panel + row * width + lane, width, rows + row, stride);
        }
      }
      for (; row < into.depth; ++row) {
        float* line = panel + row * width + lane;
        for (std::int64_t i = 0; i < valid; ++i) line[i] = rows[i * stride + row];
        std::fill(line + valid, line + kLanes, 0.0F);
      }
    }
  }
}

namespace detail {

/// One register tile: Rows x (Vectors * kLanes) elements, summed over `depth` in order.
template <std::int64_t Rows, std::int64_t Vectors>
inline void tile(float* out, std::int64_t stride, const Left& left, const float* panel,
                 std::int64_t width, std::int64_t depth, std::int64_t cols, bool add) {
  Packet sums[static_cast<std::size_t>(Rows)][static_cast<std::size_t>(Vectors)];
  for (std::int64_t r = 0; r < Rows; ++r) {
    for (std::int64_t v = 0; v < Vectors; ++v) sums[r][v] = all(0.0F);
  }
  const float* a = left.data;
  for (std::int64_t k = 0; k < depth; ++k, a += left.col_stride, panel += width) {
    Packet right[static_cast<std::size_t>(Vectors)];
    for (std::int64_t v = 0; v < Vectors; ++v) right[v] = load(panel + v * kLanes);
    for (std::int64_t r = 0; r < Rows; ++r) {
      const Packet element = all(a[r * left.row_stride]);
      for (std::int64_t v = 0; v < Vectors; ++v) {
        sums[r][v] = multiply_add(element, right[v], sums[r][v]);
      }
    }
  }
  const auto last = static_cast<std::size_t>(cols - (Vectors - 1) * kLanes);
  for (std::int64_t r = 0; r < Rows; ++r, out += stride) {
    for (std::int64_t v = 0; v < Vectors; ++v) {
      float* at = out + v * kLanes;
      if (v + 1 < Vectors || last == static_cast<std::size_t>(kLanes)) {
        store(at, add ? sum(load(at), sums[r][v]) : sums[r][v]);
      } else {
        const Part part{last};
        part.store(at, add ? sum(part.load(at), sums[r][v]) : sums[r][v]);
      }
    }
  }
}

template <std::int64_t Vectors>
inline void panel_rows(float* out, std::int64_t stride, std::int64_t rows, Left left,
                       const float* panel, std::int64_t width, std::int64_t depth,
                       std::int64_t cols, bool add) {
  for (; rows >= kTileRows; rows -= kTileRows) {
    tile<kTileRows, Vectors>(out, stride, left, panel, width, depth, cols, add);
    out += kTileRows * stride;
    left.data += kTileRows * left.row_stride;
  }
  switch (rows) {
    case 5:
      return tile<5, Vectors>(out, stride, left, panel, width, depth, cols, add);
    case 4:
      return tile<4, Vectors>(out, stride, left, panel, width, depth, cols, add);
    case 3:
      return tile<3, Vectors>(out, stride, left, panel, width, depth, cols, add);
    case 2:
      return tile<2, Vectors>(out, stride, left, panel, width, depth, cols, add);
    case 1:
      return tile<1, Vectors>(out, stride, left, panel, width, depth, cols, add);
    default:
      return;
  }
}

}  // namespace detail

/// out[rows, cols] (rows `stride` apart) = left[rows, depth] * right[depth, cols], or += it. Only
/// the first `depth` rows and `cols` columns of the panels take part. An element is the sum over
/// its depth in order, whatever else is computed with it.
inline void multiply(float* out, std::int64_t stride, std::int64_t rows, std::int64_t cols,
                     const Left& left, const Panels& right, std::int64_t depth, bool add) {
  for (std::int64_t col = 0; col < cols; col += kPanel) {
    const float* panel = right.data + col * right.depth;
    const std::int64_t width = right.width(col);
    const std::int64_t valid = std::min(kPanel, cols - col);
    const std::int64_t vectors = (valid + kLanes - 1) / kLanes;
    if (vectors == 1) {
      detail::panel_rows<1>(out + col, stride, rows, left, panel, width, depth, valid, add);
    } else if (vectors == 2) {
      detail::panel_rows<2>(out + col, stride, rows, left, panel, width, depth, valid, add);
    } else if constexpr (kTileVectors > 2) {
      if (vectors == 3) {
        detail::panel_rows<3>(out + col, stride, rows, left, panel, width, depth, valid, add);
      } else {
        detail::panel_rows<4>(out + col, stride, rows, left, panel, width, depth, valid, add);
      }
    }
  }
}

/// Packs right factors block by block, and keeps the last one that was a single block: pieces of a
/// pack are multiplied by the same weights one after the other.
class Multiplier {
 public:
  /// Most rows, and most columns, of a right factor that are packed at one time.
  static constexpr std::int64_t kBlock = 512;

  /// How a right factor lies in memory: depth x cols row by row, or its transpose, cols x depth.
  enum class Order : std::uint8_t { rows, transposed };

  Multiplier() : packed_(kBlock * (kBlock + kLanes)), columns_(kBlock * kTileRows) {}

  /// Drops what is kept. To be called before memory that was packed may change.
  void forget() noexcept { kept_ = nullptr; }

  /// out[rows, cols] (row by row) = left * right, or += it. The right factor lies row by row,
  /// depth x cols, or its transpose does, cols x depth. It is packed anew unless `keep` says that
  /// what was packed of it since `forget` still holds.
  void run(float* out, std::int64_t rows, std::int64_t cols, const Left& left, const float* right,
           std::int64_t depth, Order order, bool add, bool keep) {
    if (rows == 0) return;
    const std::int64_t right_stride = order == Order::rows ? cols : depth;
    const bool single = cols <= kBlock && depth <= kBlock;
    if (depth == 0 && !add) std::fill_n(out, rows * cols, 0.0F);
    for (std::int64_t k = 0; k < depth; k += kBlock) {
      for (std::int64_t col = 0; col < cols; col += kBlock) {
        const Panels panels{packed_.data(), std::min(kBlock, depth - k),
                            std::min(kBlock, cols - col)};
        if (!(keep && single && kept_ == right && kept_order_ == order && kept_depth_ == depth &&
              kept_cols_ == cols)) {
          if (order == Order::rows) {
            pack(panels, right + k * right_stride + col, right_stride);
          } else {
            pack_transposed(panels, right + col * right_stride + k, right_stride);
          }
          kept_ = keep && single ? right : nullptr;
          kept_order_ = order;
          kept_depth_ = depth;
          kept_cols_ = cols;
        }
        const Left block{left.data + k * left.col_stride, left.row_stride, left.col_stride};
        if (left.row_stride == 1) {
          multiply_columns(out + col, cols, rows, block, panels, add || k > 0);
        } else {
          multiply(out + col, cols, rows, panels.cols, block, panels, panels.depth, add || k > 0);
        }
      }
    }
  }

 private:
  /// The same of a left factor that lies column by column: rows of a tile are packed side by side,
  /// because columns far apart share few places of a cache.
  void multiply_columns(float* out, std::int64_t stride, std::int64_t rows, const Left& left,
                        const Panels& right, bool add) const {
    for (std::int64_t row = 0; row < rows; row += kTileRows) {
      const std::int64_t count = std::min(kTileRows, rows - row);
      const float* from = left.data + row;
      float* into = columns_.data();
      for (std::int64_t k = 0; k < right.depth; ++k, from += left.col_stride, into += kTileRows) {
        for (std::int64_t r = 0; r < count; ++r) into[r] = from[r];
      }
      multiply(out + row * stride, stride, count, right.cols, {columns_.data(), 1, kTileRows},
               right, right.depth, add);
    }
  }

  Floats packed_;
  Floats columns_;
  const float* kept_ = nullptr;
  Order kept_order_ = Order::rows;
  std::int64_t kept_depth_ = 0, kept_cols_ = 0;
};

}  // namespace slimpack::cpu::fast
