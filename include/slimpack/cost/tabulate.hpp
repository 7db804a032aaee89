// SPDX-License-Identifier: Apache-2.0
// Samples any cost model's layers into a table, so that planners can plan with it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/cost/cost_model.hpp"
#include "slimpack/cost/table.hpp"
#include "slimpack/plan/cost_spec.hpp"

namespace slimpack {

/// Where a cost model is sampled: all combinations of both lists.
struct TableGrid {
  std::vector<Tokens> tokens;   ///< of a pack: ascending, > 0
  std::vector<Tokens> context;  ///< mean keys that a query sees: ascending, >= 0
};

/// How far a table is from the model it was sampled from, at points between those of its grid. An
/// error is |table - model| / model, of layers forward or backward.
struct TableError {
  double mean = 0;         ///< over all points; 0 where there is none
  double worst = 0;        ///< the largest
  std::size_t points = 0;  ///< errors measured: two a cell, less those of a price of 0
};

/// A grid from `least` to at least `most` tokens and contexts of 0 and 1/2 `least` to at least
/// `longest`, each next line about 2^(1/steps) times the one before. Throws InvalidInput if a
/// number is < 1.
[[nodiscard]] inline TableGrid table_grid(Tokens least, Tokens most, Tokens longest,
                                          std::int64_t steps = 2);

/// The table of a model's layers: `forward` and `backward` (nothing recomputed) of one segment
/// without embedding and tensor parallelism, on the grid. What a plan says of everything else is
/// then analytic: links, head, optimizer, embedding, further segments. Seconds that fall along a
/// row, which a model's laws exclude but for rounding, are raised to those before. Throws
/// InvalidInput if the grid is empty. O(points) prices.
template <CostModel Model>
[[nodiscard]] TableCost tabulate(const Model& model, const TableGrid& grid);

/// Compares table and model in the middle of every cell of the table's grid. `table` is
/// TableModel(cost, ...) for the cluster that the model has. O(cells) prices.
template <CostModel Model>
[[nodiscard]] TableError table_error(const Model& model, const TableCost& cost,
                                     const TableModel& table);

namespace detail {

/// Layers that are asked for at once: a price is rounded to nanoseconds.
inline constexpr std::int64_t kTabulatedLayers = 64;

[[nodiscard]] inline StageLoad tabulated_stage() {
  StageLoad stage;
  stage.layers = kTabulatedLayers;
  stage.tensor_link = stage.exchange_link = Link{1e12, 0};
  return stage;
}

/// A pack of so many tokens whose queries see `context` keys in the mean. Fewer than half its
/// tokens take several segments: what those cost is left out, because a table adds it.
[[nodiscard]] inline PackLoad tabulated_load(Tokens tokens, Tokens context) {
  PackLoad load;
  load.tokens = tokens;
  load.pairs2 = load.filled_pairs2 = 2 * tokens.value * context.value;
  load.own_pairs2 = std::min(tokens.value * tokens.value, load.pairs2);
  load.segments = load.runs = 1;
  return load;
}

template <CostModel Model>
[[nodiscard]] std::pair<Nanos, Nanos> layer_times(const Model& model, Tokens tokens,
                                                  Tokens context) {
  const StageLoad stage = tabulated_stage();
  const PackLoad load = tabulated_load(tokens, context);
  return {model.forward(load, stage), model.backward(load, stage, Recompute::none)};
}

/// Rising lines from `first` to at least `last`.
[[nodiscard]] inline std::vector<Tokens> grid_lines(Tokens first, Tokens last, std::int64_t steps) {
  std::vector<Tokens> lines;
  for (Tokens line = first;; line = line * 2) {
    for (std::int64_t step = 0; step < steps; ++step) {
      // Even steps inside an octave: no root that compilers could round differently.
      const Tokens position{line.value + line.value * step / steps};
      if (lines.empty() || position > lines.back()) lines.push_back(position);
      if (position >= last) return lines;
    }
  }
}

}  // namespace detail

inline TableGrid table_grid(Tokens least, Tokens most, Tokens longest, std::int64_t steps) {
  require(least.value >= 1, "table_grid: least must be >= 1", least.value);
  require(most.value >= 1, "table_grid: most must be >= 1", most.value);
  require(longest.value >= 1, "table_grid: longest must be >= 1", longest.value);
  require(steps >= 1, "table_grid: steps must be >= 1", steps);
  TableGrid grid{
      detail::grid_lines(least, most, steps),
      detail::grid_lines(Tokens{std::max<std::int64_t>(1, least.value / 2)}, longest, steps)};
  grid.context.insert(grid.context.begin(), Tokens{});
  return grid;
}

template <CostModel Model>
TableCost tabulate(const Model& model, const TableGrid& grid) {
  require(!grid.tokens.empty(), "tabulate: there must be a line of tokens");
  require(!grid.context.empty(), "tabulate: there must be a line of context");
  TableCost cost{grid.tokens, grid.context, {}, {}};
  for (const Tokens tokens : grid.tokens) {
    Nanos forward, backward;
    for (const Tokens context : grid.context) {
      const auto times = detail::layer_times(model, tokens, context);
      forward = context == grid.context.front() ? times.first : std::max(forward, times.first);
      backward = context == grid.context.front() ? times.second : std::max(backward, times.second);
      const auto layers = static_cast<double>(detail::kTabulatedLayers);
      cost.forward_s.push_back(static_cast<double>(forward.value) / (1e9 * layers));
      cost.backward_s.push_back(static_cast<double>(backward.value) / (1e9 * layers));
    }
  }
  return cost;
}

template <CostModel Model>
TableError table_error(const Model& model, const TableCost& cost, const TableModel& table) {
  TableError error;
  double sum = 0;
  const auto add = [&](Nanos exact, Nanos answered) {
    if (exact.value <= 0) return;
    const double off =
        static_cast<double>(std::max(exact, answered).value - std::min(exact, answered).value) /
        static_cast<double>(exact.value);
    error.worst = std::max(error.worst, off);
    sum += off;
    ++error.points;
  };
  for (std::size_t row = 0; row + 1 < cost.tokens.size(); ++row) {
    for (std::size_t column = 0; column + 1 < cost.context.size(); ++column) {
      const Tokens tokens{(cost.tokens[row] + cost.tokens[row + 1]).value / 2};
      const Tokens context{(cost.context[column] + cost.context[column + 1]).value / 2};
      const auto exact = detail::layer_times(model, tokens, context);
      const auto answered = detail::layer_times(table, tokens, context);
      add(exact.first, answered.first);
      add(exact.second, answered.second);
    }
  }
  if (error.points > 0) error.mean = sum / static_cast<double>(error.points);
  return error;
}

}  // namespace slimpack
