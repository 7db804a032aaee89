// SPDX-License-Identifier: Apache-2.0
// A cluster of equal devices: memory, achieved rates, links, fixed costs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "slimpack/core/units.hpp"

namespace slimpack {

/// One direction of a link as one device sees it.
struct Link {
  double bytes_per_s = 0;  ///< achieved rate
  double latency_s = 0;    ///< seconds of each message before its first byte
  friend bool operator==(const Link&, const Link&) = default;
};

/// How attention's rates at another head dimension compare with the cluster's.
struct HeadDimRate {
  std::int64_t head_dim = 0;  ///< of the model, > 0
  double forward = 1;         ///< times `attention_forward_flops`
  double backward = 1;        ///< times `attention_backward_flops`
  friend bool operator==(const HeadDimRate&, const HeadDimRate&) = default;
};

/// Prices that small units pay beyond FLOPs and launches (docs/costs.md). All zero: they pay none,
/// as in version 1 of plan.json.
struct SmallUnitPrices {
  /// Rows of matrix products are filled up to multiples of it; 0: they are not.
  std::int64_t matrix_tile_rows = 0;
  /// How often a unit reads the weights of its layers, for each product that uses them.
  double weight_traffic = 0;
  /// How often a backward unit reads and writes the accumulators of its weights' gradients.
  double accumulator_traffic = 0;
  /// How often a slice reads keys and values before its end, and in the backward pass reads and
  /// writes their gradients.
  double prefix_traffic = 0;
  /// Of arithmetic and memory traffic of the same kernels, the share of the shorter that hides
  /// behind the longer, in [0, 1].
  double memory_overlap = 0;
  /// Share of tensor-parallel traffic that hides behind the unit's own arithmetic, in [0, 1].
  double tp_overlap = 0;
  /// Share of a device's compute that a running collective takes, in [0, 1].
  double collective_compute = 0;
  /// Whether all that a device sends over links of one class takes turns: messages between stages
  /// go first come, first served, and other traffic takes what they leave.
  bool shared_links = false;
  /// Whether the rows that a backward pack has of one forward pack, a run, are a graph of their
  /// own, whose kernels are launched apart in both passes, as in PyTorch.
  bool run_graphs = false;
  /// By ascending head dimension; rates between two are interpolated, beyond them constant. Empty:
  /// the cluster's rates hold for all.
  std::vector<HeadDimRate> head_dims;
  friend bool operator==(const SmallUnitPrices&, const SmallUnitPrices&) = default;
};

/// A cluster of equal devices, numbered node by node. Rates are those that one device achieves;
/// fixed costs are seconds. What each member does to a price is in docs/costs.md.
struct Cluster {
  std::string name;  ///< of a preset or of its user's choice; decides nothing in a plan
  std::int64_t devices_per_node = 8;    ///< at least 1
  Bytes memory;                         ///< of one device
  Bytes reserved;                       ///< of them not for a plan: driver's context, fragmentation
  double peak_flops = 0;                ///< for MFU only
  double matrix_flops = 0;              ///< FLOP/s of matrix products
  double attention_forward_flops = 0;   ///< FLOP/s of attention in the forward pass
  double attention_backward_flops = 0;  ///< the same in the backward pass
  double memory_bytes_per_s = 0;        ///< rate at which kernels read and write device memory
  Link inside;                          ///< between devices of one node
  Link between;                         ///< between nodes
  double kernel_s = 0;                  ///< cost of a kernel beyond its work
  double segment_s = 0;                 ///< further cost of a segment, per layer, in attention
  std::int64_t tile_tokens = 128;       ///< query tiles are filled up to this many rows
  std::int64_t forward_kernels = 10;    ///< per layer of an F
  std::int64_t backward_kernels = 20;   ///< per layer of a B that recomputes nothing
  std::int64_t head_kernels = 10;       ///< per H
  std::int64_t embedding_kernels = 2;   ///< per F or B of the first virtual stage
  SmallUnitPrices small;                ///< what small units pay besides

  friend bool operator==(const Cluster&, const Cluster&) = default;

  /// The link between two devices: inside a node where both share one.
  [[nodiscard]] constexpr const Link& link(std::int64_t a, std::int64_t b) const noexcept {
    return a / devices_per_node == b / devices_per_node ? inside : between;
  }
};

}  // namespace slimpack
