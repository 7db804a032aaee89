// SPDX-License-Identifier: Apache-2.0
// trace.json read back: when each unit of a step ran, as simulated or measured.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "slimpack/core/units.hpp"
#include "slimpack/io/file_bytes.hpp"
#include "slimpack/io/json_reader.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/plan/step_trace.hpp"

namespace slimpack {

namespace detail {

class TraceReader {
 public:
  explicit TraceReader(const JsonReader& document) : document_(document) {}

  [[nodiscard]] StepTrace read() {
    const JsonReader events = document_.at("traceEvents");
    const std::size_t count = events.size();
    for (std::size_t i = 0; i < count; ++i) read_event(events.item(i), i);
    if (trace_.units.empty()) events.fail("there must be an event of a unit");
    read_about();
    return std::move(trace_);
  }

 private:
  /// Microseconds, kept to the nearest nanosecond; below 2^51 ns the one that was written.
  [[nodiscard]] static Nanos micros(const JsonReader& value) {
    constexpr double kMost = 2e12;  // 23 days
    return {std::llround(value.real(0, kMost) * 1000)};
  }

  /// Other phases, and spans of other categories, are no units.
  void read_event(const JsonReader& event, std::size_t i) {
    if (event.at("ph").text() != "X") return;
    const auto category = event.find("cat");
    if (!category) return;
    constexpr std::array<std::pair<std::string_view, UnitKind>, 6> kCategories{
        {{"forward", UnitKind::forward},
         {"backward", UnitKind::backward},
         {"head", UnitKind::head},
         {"reduce", UnitKind::reduce},
         {"optimizer", UnitKind::optimizer},
         {"weight", UnitKind::weight}}};
    const auto known = std::find_if(kCategories.begin(), kCategories.end(), [&](const auto& entry) {
      return entry.first == category->text();
    });
    if (known == kCategories.end()) return;
    add(event, known->second, i);
  }

  void add(const JsonReader& event, UnitKind kind, std::size_t i) {
    constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max() - 1;
    constexpr auto kMostPacks = std::int64_t{std::numeric_limits<std::uint32_t>::max()} - 1;
    const JsonReader arguments = event.at("args");
    TracedUnit traced;
    traced.unit.kind = kind;
    const auto dp = arguments.find("dp");  // a reduction has it from its process alone
    traced.dp = dp ? dp->integer32(0, kMost) : event.at("pid").integer32(1, kMost) - 1;
    traced.pp = arguments.at("stage").integer32(0, kMost);
    if (names_pack(kind)) {
      traced.unit.pack =
          PackId{static_cast<std::uint32_t>(arguments.at("pack").integer(0, kMostPacks))};
      if (const auto tokens = arguments.find("tokens")) {
        traced.tokens = Tokens{tokens->integer(0, std::numeric_limits<std::int64_t>::max())};
      }
      traced.in_cp_group = arguments.find("merged_ranks").has_value();
    }
    if (names_chunk(kind)) {
      traced.unit.chunk = arguments.at("chunk").integer32(0, kMost);
    }
    if (kind == UnitKind::reduce) {
      if (const auto bucket = arguments.find("bucket")) {
        traced.bucket = static_cast<std::uint32_t>(bucket->integer(0, kMostPacks));
      }
    }
    const auto [place, is_new] =
        seen_.emplace(std::tuple(traced.dp, traced.pp, traced.unit, traced.bucket), i);
    if (!is_new) {
      event.fail("a unit must be there once, but traceEvents[" + std::to_string(place->second) +
                 "] is of the same unit and device");
    }
    traced.begin = micros(event.at("ts"));
    const Nanos duration = micros(event.at("dur"));
    event.at("dur").check(duration <= Nanos::max() - spent_,
                          "the durations of all units must sum up within 63 bits of nanoseconds");
    spent_ += duration;
    traced.end = traced.begin + duration;
    last_ = std::max(last_, traced.end);
    trace_.units.push_back(traced);
  }

  void read_about() {
    trace_.iteration = last_;
    const auto about = document_.find_value("otherData");
    if (!about) return;
    if (const auto planner = about->find_value("planner")) trace_.planner = planner->text();
    if (const auto step = about->find_value("step")) {
      trace_.step = step->integer(0, std::numeric_limits<std::int64_t>::max());
    }
    if (const auto iteration = about->find_value("iteration_ns")) {
      // No earlier than the last unit's end, no later than any time that is read.
      trace_.iteration = Nanos{iteration->integer(last_.value, 4'000'000'000'000'000)};
    }
  }

  JsonReader document_;
  StepTrace trace_;
  Nanos last_, spent_;
  std::map<std::tuple<std::int32_t, std::int32_t, Unit, std::optional<std::uint32_t>>, std::size_t>
      seen_;
};

}  // namespace detail

/// The units of a trace that `slimpack simulate --trace` or a trainer wrote, in the order of its
/// events; transfers, gaps, counters and whatever else it has are passed over. Without
/// `iteration_ns` the step ends with its last unit; planner and step are empty and 0 where they are
/// not told. Throws InvalidInput naming file, key path, rule and value; also where a unit is there
/// twice or none is. O(bytes + units log units).
[[nodiscard]] inline StepTrace trace_from_json(std::string_view text, const std::string& name) {
  const nlohmann::json document = parse_json(text, name);
  return detail::TraceReader(JsonReader(document, name)).read();
}

/// Reads a trace from a file; `-` is standard input.
[[nodiscard]] inline StepTrace read_trace_file(const std::string& path) {
  const FileBytes file = FileBytes::open(path);
  return trace_from_json(file.text(), path == "-" ? "standard input" : path);
}

}  // namespace slimpack
