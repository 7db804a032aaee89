// SPDX-License-Identifier: Apache-2.0
// The results of a matrix, in its order, as JSON, CSV and a short table.
#pragma once

#include <cstddef>
#include <ostream>

#include "matrix.hpp"
#include "result_store.hpp"

namespace slimpack::app {

/// One object, `"format": "slimpack-evaluation"`: the lines of the store that the matrix asks for.
void write_evaluation_json(std::ostream& out, const EvaluationMatrix& matrix,
                           const ResultStore& store);

/// A header and a row a result.
void write_evaluation_csv(std::ostream& out, const EvaluationMatrix& matrix,
                          const ResultStore& store);

/// A row a planner: how many cells are there and feasible, and how much faster `slimpack` is.
void write_evaluation_text(std::ostream& out, const EvaluationMatrix& matrix,
                           const ResultStore& store, std::size_t computed);

}  // namespace slimpack::app
