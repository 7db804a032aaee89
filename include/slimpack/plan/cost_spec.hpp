// SPDX-License-Identifier: Apache-2.0
// Where the seconds of a plan come from: the `cost` object of plan.json.
#pragma once

#include <optional>
#include <variant>
#include <vector>

#include "slimpack/core/units.hpp"

namespace slimpack {

/// FLOPs and bytes over the cluster's achieved rates.
struct AnalyticCost {
  friend bool operator==(const AnalyticCost&, const AnalyticCost&) = default;
};

/// seconds = unit + layers (layer + token tokens + pair pairs + segment segments) + byte bytes,
/// with layers = 1 for everything but layers. Every coefficient is >= 0.
struct FittedTerms {
  double unit = 0;
  double layer = 0;
  double token = 0;
  double pair = 0;
  double segment = 0;
  double byte = 0;
  friend bool operator==(const FittedTerms&, const FittedTerms&) = default;
};

/// Non-negative coefficients fitted to a measured profile. What was not measured is absent (in
/// JSON: the key is missing) and keeps the analytic value. `head` is projection, loss and both
/// gradients with the whole vocabulary; `p2p`, `reduce` and `exchange` count the bytes that one
/// device sends, between devices of one node.
struct FittedCost {
  std::optional<FittedTerms> layer_forward, layer_backward;
  std::optional<FittedTerms> embedding_forward, embedding_backward;
  std::optional<FittedTerms> head;
  std::optional<FittedTerms> optimizer, p2p, reduce, exchange;
  friend bool operator==(const FittedCost&, const FittedCost&) = default;
};

/// Seconds of one layer on a grid of pack tokens (rows) and mean keys a query sees (columns),
/// interpolated linearly in tokens and in pairs (tokens times context); links, embedding, head and
/// optimizer as in the analytic model. Seconds do not fall along a row.
struct TableCost {
  std::vector<Tokens> tokens;                 ///< ascending, at least one, > 0
  std::vector<Tokens> context;                ///< ascending, at least one, >= 0
  std::vector<double> forward_s, backward_s;  ///< tokens.size() * context.size(), row by row
  friend bool operator==(const TableCost&, const TableCost&) = default;
};

/// One of the three; which one, plan.json names.
using CostSpec = std::variant<AnalyticCost, FittedCost, TableCost>;

}  // namespace slimpack
