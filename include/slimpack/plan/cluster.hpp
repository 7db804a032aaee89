// SPDX-License-Identifier: Apache-2.0
// A cluster of equal devices: memory, achieved rates, links, fixed costs.
#pragma once

#include <cstdint>
#include <string>

#include "slimpack/core/units.hpp"

namespace slimpack {

/// One direction of a link as one device sees it: bytes a second, and seconds before the first.
struct Link {
  double bytes_per_s = 0;
  double latency_s = 0;
  friend bool operator==(const Link&, const Link&) = default;
};

/// A cluster. Devices are numbered node by node. Rates are achieved ones, per device.
struct Cluster {
  std::string name;
  std::int64_t devices_per_node = 8;
  Bytes memory;
  Bytes reserved;                      ///< not available to a plan: context, fragmentation
  double peak_flops = 0;               ///< for MFU only
  double matrix_flops = 0;             ///< FLOP/s of matrix products
  double attention_forward_flops = 0;  ///< FLOP/s of attention
  double attention_backward_flops = 0;
  double memory_bytes_per_s = 0;
  Link inside;                        ///< between devices of one node
  Link between;                       ///< between nodes
  double kernel_s = 0;                ///< cost of a kernel beyond its work
  double segment_s = 0;               ///< further cost of a segment, per layer, in attention
  std::int64_t tile_tokens = 128;     ///< query tiles are filled up to this many rows
  std::int64_t forward_kernels = 10;  ///< per layer and unit
  std::int64_t backward_kernels = 20;
  std::int64_t head_kernels = 10;  ///< per unit
  std::int64_t embedding_kernels = 2;

  friend bool operator==(const Cluster&, const Cluster&) = default;

  /// The link between two devices: inside a node where both share one.
  [[nodiscard]] constexpr const Link& link(std::int64_t a, std::int64_t b) const noexcept {
    return a / devices_per_node == b / devices_per_node ? inside : between;
  }
};

}  // namespace slimpack
