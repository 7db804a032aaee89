// SPDX-License-Identifier: Apache-2.0
// Cost models as JSON: the `cost` object of plan.json, and what calibration writes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/io/json_reader.hpp"
#include "slimpack/io/json_writer.hpp"
#include "slimpack/io/known_keys.hpp"
#include "slimpack/plan/cost_spec.hpp"

namespace slimpack {

/// A cost model from the JSON text of a file; its key `kind` is `analytic`, `fitted` or `table`.
/// `shape` and `device`, which say what was measured, are passed over; any other unknown key is
/// refused. Throws InvalidInput naming file, key, rule and value.
[[nodiscard]] CostSpec cost_from_json(std::string_view text, const std::string& name);

/// The `cost` object of plan.json.
[[nodiscard]] std::string cost_to_json(const CostSpec& cost);

namespace detail {

inline constexpr double kLargestCost = 1e9;

/// A part of a fitted cost by the key that files give it.
struct FittedMember {
  using Pointer = std::optional<FittedTerms> FittedCost::*;
  std::string_view key;
  Pointer terms;
};
inline constexpr std::array<FittedMember, 15> kFittedMembers{{
    {"layer_forward", &FittedCost::layer_forward},
    {"layer_backward", &FittedCost::layer_backward},
    {"layer_apart", &FittedCost::layer_apart},
    {"layer_weight", &FittedCost::layer_weight},
    {"embedding_forward", &FittedCost::embedding_forward},
    {"embedding_backward", &FittedCost::embedding_backward},
    {"head", &FittedCost::head},
    {"optimizer", &FittedCost::optimizer},
    {"p2p", &FittedCost::p2p},
    {"reduce", &FittedCost::reduce},
    {"exchange", &FittedCost::exchange},
    {"tp", &FittedCost::tensor},
    {"cp_forward", &FittedCost::context_forward},
    {"cp_backward", &FittedCost::context_backward},
    {"light", &FittedCost::light},
}};

/// A coefficient of a part by the key that files give it.
struct FittedTerm {
  using Pointer = double FittedTerms::*;
  std::string_view key;
  Pointer value;
};
inline constexpr std::array<FittedTerm, 12> kFittedTerms{{
    {"unit", &FittedTerms::unit},
    {"layer", &FittedTerms::layer},
    {"token", &FittedTerms::token},
    {"pair", &FittedTerms::pair},
    {"segment", &FittedTerms::segment},
    {"byte", &FittedTerms::byte},
    {"key", &FittedTerms::key},
    {"weight_byte", &FittedTerms::weight_byte},
    {"accumulator_byte", &FittedTerms::accumulator_byte},
    {"spill_token", &FittedTerms::spill_token},
    {"spill_from", &FittedTerms::spill_from},
    {"own_pair", &FittedTerms::own_pair},
}};

/// The first terms, which every file has; the others are written where they are not zero.
inline constexpr std::size_t kTermsOfVersion1 = 6;

[[nodiscard]] inline FittedCost read_fitted(const JsonReader& object) {
  FittedCost cost;
  for (const FittedMember& member : kFittedMembers) {
    const auto terms = object.find(member.key);
    if (!terms) continue;
    FittedTerms& read = (cost.*member.terms).emplace();
    for (std::size_t i = 0; i < kFittedTerms.size(); ++i) {
      const FittedTerm& term = kFittedTerms[i];
      const auto value =
          i < kTermsOfVersion1 ? std::optional(terms->at(term.key)) : terms->find(term.key);
      if (value) read.*term.value = value->real(0, kLargestCost);
    }
  }
  return cost;
}

[[nodiscard]] inline std::vector<Tokens> read_axis(const JsonReader& array, std::int64_t low) {
  constexpr std::int64_t kHighest = std::int64_t{1} << 40U;
  std::vector<Tokens> axis;
  axis.reserve(array.size());
  array.check(array.size() > 0, "must have at least one value");
  for (std::size_t i = 0; i < array.size(); ++i) {
    const JsonReader value = array.item(i);
    axis.push_back(Tokens{value.integer(low, kHighest)});
    value.check(i == 0 || axis[i - 1] < axis[i], "must be greater than the value before");
  }
  return axis;
}

[[nodiscard]] inline std::vector<double> read_grid(const JsonReader& array, std::size_t rows,
                                                   std::size_t columns) {
  array.check(
      array.size() / columns == rows && array.size() % columns == 0,
      "must have " + std::to_string(rows) + " rows of " + std::to_string(columns) + " values");
  std::vector<double> grid;
  grid.reserve(array.size());
  for (std::size_t i = 0; i < array.size(); ++i) {
    const JsonReader value = array.item(i);
    grid.push_back(value.real(0, kLargestCost));
    value.check(i % columns == 0 || grid[i - 1] <= grid[i],
                "must not be less than the value before it in its row");
  }
  return grid;
}

[[nodiscard]] inline TableCost read_table(const JsonReader& object) {
  TableCost cost;
  cost.tokens = read_axis(object.at("tokens"), 1);
  cost.context = read_axis(object.at("context"), 0);
  cost.forward_s = read_grid(object.at("forward_s"), cost.tokens.size(), cost.context.size());
  cost.backward_s = read_grid(object.at("backward_s"), cost.tokens.size(), cost.context.size());
  return cost;
}

/// The `cost` object of plan.json; other keys are ignored.
[[nodiscard]] inline CostSpec read_cost(const JsonReader& object) {
  enum class Kind : std::uint8_t { analytic, fitted, table };
  static constexpr std::array<std::pair<std::string_view, Kind>, 3> kKinds{
      {{"analytic", Kind::analytic}, {"fitted", Kind::fitted}, {"table", Kind::table}}};
  switch (object.at("kind").choice(kKinds)) {
    case Kind::fitted:
      return read_fitted(object);
    case Kind::table:
      return read_table(object);
    case Kind::analytic:
      break;
  }
  return AnalyticCost{};
}

/// Refuses what a cost file cannot have: keys of another kind and misspelt ones. For an object that
/// `read_cost` takes.
inline void check_cost_keys(const JsonReader& object, const CostSpec& cost) {
  std::vector<std::string_view> known{"kind", "shape", "device"};
  if (std::holds_alternative<TableCost>(cost)) {
    known.insert(known.end(), {"tokens", "context", "forward_s", "backward_s"});
  } else if (std::holds_alternative<FittedCost>(cost)) {
    std::vector<std::string_view> terms;
    for (const FittedTerm& term : kFittedTerms) terms.push_back(term.key);
    for (const FittedMember& member : kFittedMembers) {
      known.push_back(member.key);
      if (const auto value = object.find(member.key)) check_known_keys(*value, terms);
    }
  }
  check_known_keys(object, known);
}

inline void write_cost_keys(JsonWriter& out, const AnalyticCost& /*cost*/) {
  out.key("kind").text("analytic");
}

inline void write_cost_keys(JsonWriter& out, const FittedCost& cost) {
  out.key("kind").text("fitted");
  for (const FittedMember& member : kFittedMembers) {
    const std::optional<FittedTerms>& terms = cost.*member.terms;
    if (!terms) continue;
    out.line(4).key(member.key).begin_object();
    for (std::size_t i = 0; i < kFittedTerms.size(); ++i) {
      const double value = (*terms).*kFittedTerms[i].value;
      if (i < kTermsOfVersion1 || value != 0) out.key(kFittedTerms[i].key).number(value);
    }
    out.end_object();
  }
}

inline void write_cost_keys(JsonWriter& out, const TableCost& cost) {
  out.key("kind").text("table");
  const auto write_axis = [&out](std::string_view key, const std::vector<Tokens>& axis) {
    out.line(4).key(key).begin_array();
    for (const Tokens value : axis) out.number(value.value);
    out.end_array();
  };
  const auto write_grid = [&out](std::string_view key, const std::vector<double>& grid) {
    out.line(4).key(key).begin_array();
    for (const double value : grid) out.number(value);
    out.end_array();
  };
  write_axis("tokens", cost.tokens);
  write_axis("context", cost.context);
  write_grid("forward_s", cost.forward_s);
  write_grid("backward_s", cost.backward_s);
}

inline void write_cost(JsonWriter& out, const CostSpec& cost) {
  out.begin_object(JsonLayout::flat);
  std::visit([&out](const auto& kind) { write_cost_keys(out, kind); }, cost);
  out.end_object();
}

}  // namespace detail

inline CostSpec cost_from_json(std::string_view text, const std::string& name) {
  const nlohmann::json document = parse_json(text, name);
  const JsonReader object(document, name);
  CostSpec cost = detail::read_cost(object);
  detail::check_cost_keys(object, cost);
  return cost;
}

inline std::string cost_to_json(const CostSpec& cost) {
  JsonWriter out;
  detail::write_cost(out, cost);
  return out.take() + "\n";
}

}  // namespace slimpack
