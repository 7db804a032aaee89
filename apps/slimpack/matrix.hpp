// SPDX-License-Identifier: Apache-2.0
// A matrix of the evaluation: which cells there are, read from a file that is checked whole.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common.hpp"
#include "slimpack/planners/planner.hpp"

namespace slimpack::app {

/// Rises when results are no longer comparable with stored ones: other prices, other planners under
/// the same names, figures that mean something else. A store holds results of one version.
inline constexpr std::int64_t kResultsVersion = 2;

/// What a cell is told by. A group of the file gives each one value or a list of them.
struct Axis {
  std::string_view key;
  bool number = false;                            ///< a whole number in JSON, else a word
  std::string_view standard;                      ///< where a group does not say; empty: it must
  std::string CommonOptions::* option = nullptr;  ///< what it sets, if it is that simple
};
inline constexpr std::array kAxes{
    Axis{"set", false, "", nullptr},
    Axis{"model", false, "", &CommonOptions::model},
    Axis{"cluster", false, "", &CommonOptions::cluster},
    Axis{"gpus", true, "", nullptr},
    Axis{"context", true, "", &CommonOptions::context},
    Axis{"samples", true, "", &CommonOptions::batch_samples},
    Axis{"steps", true, "1", nullptr},
    Axis{"seed", true, "0", nullptr},
    Axis{"overlong", false, "split", &CommonOptions::overlong},
    Axis{"effort", false, "fast", &CommonOptions::effort},
    Axis{"finalists", true, "1", nullptr},
    Axis{"recompute", false, "auto", &CommonOptions::recompute},
    Axis{"head", false, "auto", &CommonOptions::head},
    Axis{"chunks", false, "auto", &CommonOptions::chunks},
    Axis{"merge", false, "auto", &CommonOptions::max_cp},
    Axis{"granularity", true, "128", &CommonOptions::granularity},
};

/// One value for each of kAxes: the inputs of a result but the planner.
struct EvaluationCell {
  std::array<std::string, kAxes.size()> values;
  std::string key;             ///< 16 hexadecimal digits of all inputs and kResultsVersion
  std::int32_t gpus = 1;       ///< devices, for planners to divide
  std::int32_t finalists = 1;  ///< degrees that are planned again with more effort
  std::vector<planners::PlanRequest> requests;  ///< one a step, of one device
  std::string lengths;  ///< kind of its length set: measured, mixed or drawn
  [[nodiscard]] const std::string& value(std::string_view axis) const;
};

/// Cells that one entry of the file asks for; several entries may have one name.
struct EvaluationGroup {
  std::string name;
  std::vector<std::string> planners;
  std::vector<std::size_t> cells;  ///< in EvaluationMatrix::cells
};

struct EvaluationMatrix {
  std::string name;
  std::vector<EvaluationGroup> groups;
  std::vector<EvaluationCell> cells;  ///< each once, in the order of the file
};

/// Reads a matrix (docs/schemas.md) and draws the batches of every cell. Length files are found
/// from the matrix's folder. A context beyond the longest document of its set is refused, and so
/// are two cells that differ in name, set or context alone and have the same samples. Throws
/// InvalidInput naming file, place, rule and value, before any work.
[[nodiscard]] EvaluationMatrix read_matrix(const std::string& path);

/// For each of `matrix.groups` which of its cells a sample of one in `every` has. Cells that differ
/// in cluster or seed alone are a family, which comes whole, so that what they are compared for can
/// be compared. Of the families of all groups of one name those with the smallest digests of their
/// values are in, rounded up, so that there are cells of every name; neither prices nor the order
/// of the file change the choice. `every` >= 1. O(cells log cells).
[[nodiscard]] std::vector<std::vector<bool>> sampled_cells(const EvaluationMatrix& matrix,
                                                           std::int64_t every);

}  // namespace slimpack::app
