// SPDX-License-Identifier: Apache-2.0
// Where the seconds of a plan come from: the `cost` object of plan.json.
#pragma once

#include <optional>
#include <variant>
#include <vector>

#include "slimpack/core/units.hpp"

namespace slimpack {

/// Prices are FLOPs and bytes over the cluster's achieved rates; there is nothing to choose.
struct AnalyticCost {
  friend bool operator==(const AnalyticCost&, const AnalyticCost&) = default;
};

/// The fitted time of one kind of work, in seconds:
/// unit + layers (layer + token tokens + pair pairs + own_pair own_pairs + key keys +
/// segment segments) + byte bytes +
/// weight_byte weight_bytes + accumulator_byte accumulator_bytes +
/// layers spill_token max(0, tokens - spill_from),
/// with layers = 1 for everything but layers. Every coefficient is >= 0.
struct FittedTerms {
  double unit = 0;              ///< seconds of a unit, whatever it holds
  double layer = 0;             ///< seconds per layer
  double token = 0;             ///< seconds per token and layer
  double pair = 0;              ///< seconds per (query, key) pair and layer
  double segment = 0;           ///< seconds per segment and layer
  double byte = 0;              ///< seconds per byte, of traffic and of the optimizer
  double key = 0;               ///< seconds per key that slices read and layer
  double weight_byte = 0;       ///< seconds per byte of weights that a unit reads
  double accumulator_byte = 0;  ///< seconds per byte of weights' gradients read and written
  double spill_token = 0;       ///< seconds more per token beyond `spill_from` and layer
  double spill_from = 0;        ///< tokens of a unit whose rows fit into the caches
  double own_pair = 0;          ///< seconds more per pair of a query with a key of its own slice
  friend bool operator==(const FittedTerms&, const FittedTerms&) = default;
};

/// Non-negative coefficients fitted to a measured profile. What was not measured is absent (in
/// JSON: the key is missing) and keeps the analytic value.
struct FittedCost {
  std::optional<FittedTerms> layer_forward;   ///< F of layers, no traffic
  std::optional<FittedTerms> layer_backward;  ///< B of layers that kept everything, no traffic
  /// The same of B that leaves the gradients of weights apart, and W. Both are there beside
  /// `layer_backward`, or neither: then that is divided between them.
  std::optional<FittedTerms> layer_apart;
  std::optional<FittedTerms> layer_weight;        ///< W of layers; see `layer_apart`
  std::optional<FittedTerms> embedding_forward;   ///< lookup of rows of the table
  std::optional<FittedTerms> embedding_backward;  ///< adding up of the table's gradients
  /// Final norm, projection onto the whole vocabulary, loss and both gradients.
  std::optional<FittedTerms> head;
  std::optional<FittedTerms> optimizer;  ///< by the bytes that the update reads and writes
  std::optional<FittedTerms> p2p;        ///< one message inside a node, by its bytes
  std::optional<FittedTerms> reduce;     ///< one ring collective inside a node, by bytes sent
  std::optional<FittedTerms> exchange;   ///< one layer's ring inside a node, by bytes sent
  std::optional<FittedTerms> tensor;     ///< one tensor-parallel collective there, by bytes sent
  /// What F of layers in a context-parallel group inside a node takes beyond the work of one of its
  /// ranks: `layer` for each layer and `byte` for each byte that a rank sends in all of them. Where
  /// it is there, it prices exchanges of F in place of `exchange`, and nothing hides them.
  std::optional<FittedTerms> context_forward;
  std::optional<FittedTerms> context_backward;  ///< the same of B, beside weights or apart
  /// What recomputation `light` adds to F and B together, `layer` and `token` for each layer. B is
  /// priced with all of it.
  std::optional<FittedTerms> light;
  friend bool operator==(const FittedCost&, const FittedCost&) = default;
};

/// Seconds of one layer on a grid of pack tokens (rows) and mean keys a query sees (columns),
/// interpolated linearly in tokens and in pairs (tokens times context); links, embedding, head and
/// optimizer as in the analytic model. Seconds do not fall along a row.
struct TableCost {
  std::vector<Tokens> tokens;      ///< ascending, at least one, > 0
  std::vector<Tokens> context;     ///< ascending, at least one, >= 0
  std::vector<double> forward_s;   ///< tokens.size() * context.size(), row by row
  std::vector<double> backward_s;  ///< the same of B with nothing recomputed
  friend bool operator==(const TableCost&, const TableCost&) = default;
};

/// How the units of a plan are priced. `make_model` (cost/any_model.hpp) makes the cost model.
using CostSpec = std::variant<AnalyticCost, FittedCost, TableCost>;

}  // namespace slimpack
