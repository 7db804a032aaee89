// SPDX-License-Identifier: Apache-2.0
// plan.json: one training step, read with every index checked, written to be read by people too.
#pragma once

#include <string>
#include <string_view>

#include "slimpack/io/detail/plan_read.hpp"
#include "slimpack/io/detail/plan_write.hpp"
#include "slimpack/io/file.hpp"
#include "slimpack/io/json_reader.hpp"
#include "slimpack/plan/plan.hpp"

namespace slimpack {

/// A plan from the text of plan.json. What has been read is safe to index: samples, groups, ranks,
/// MicroPacks and chunks are in range, lists that belong together have one size, there is one stage
/// for each virtual stage and one schedule for each device (an empty one where the file has
/// none), and byte and pair counts fit in 63 bits. It may break any of the validity rules.
/// Throws InvalidInput naming file, key path, rule and value; a newer version is refused by name.
[[nodiscard]] inline Plan plan_from_json(std::string_view text, const std::string& name) {
  const nlohmann::json document = parse_json(text, name);
  return detail::read_plan(JsonReader(document, name));
}

/// The text of plan.json: a line for each MicroPack and each schedule. Reading it gives the same
/// plan, if that one could have been read. Throws InvalidInput for a time beyond 97 days or a
/// number that is not finite.
[[nodiscard]] inline std::string plan_to_json(const Plan& plan) {
  return detail::write_plan(plan);
}

/// Reads a plan from a file; `-` is standard input.
[[nodiscard]] inline Plan read_plan_file(const std::string& path) {
  const FileBytes file = FileBytes::open(path);
  return plan_from_json(file.text(), path == "-" ? "standard input" : path);
}

}  // namespace slimpack
