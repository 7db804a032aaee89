// SPDX-License-Identifier: Apache-2.0
// Fits non-negative cost coefficients to a measured profile.
#pragma once

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/cost/fitted.hpp"
#include "slimpack/cost/profile.hpp"
#include "slimpack/cost/terms.hpp"
#include "slimpack/plan/cost_spec.hpp"
#include "slimpack/plan/plan.hpp"

namespace slimpack {

/// Which rows of a profile are held out to measure the error of the fit.
struct Holdout {
  /// Of each kind and pass, in file order, every `every`-th row is held out; none where there are
  /// fewer rows. At least 2.
  std::size_t every = 5;
};

/// How well one kind was fitted. Errors are |predicted - measured| / measured.
struct KindFit {
  ProfileKind kind = ProfileKind::layer;  ///< of the rows that were fitted together
  std::optional<Pass> pass;               ///< of layers, groups and the embedding alone
  std::size_t rows = 0;                   ///< all rows of this kind and pass
  std::size_t held_out = 0;               ///< of them, those that the errors below are measured on
  std::optional<double> mean_error;       ///< on the rows held out; absent where there is none
  std::optional<double> worst_error;      ///< on the rows held out; absent where there is none
  double fitted_mean_error = 0;           ///< of the final fit, on all rows
  friend bool operator==(const KindFit&, const KindFit&) = default;
};

/// A cost model and its errors.
struct FitResult {
  FittedCost cost;             ///< fitted to all rows; kinds without rows are absent
  std::vector<KindFit> kinds;  ///< of the kinds that have rows, in the order of ProfileKind
};

/// Fits each kind and pass by least squares of relative errors over coefficients >= 0. Squares of
/// layers, alone, in context-parallel groups and with `light`, count by the row's seconds, as a
/// step is a sum of seconds: the sum of (predicted - measured)^2 / measured is least. Those of all
/// other kinds count alike, so that the smallest message tells its fixed cost. Layers, and B and W
/// of weights apart, get the two coefficients of tokens that spill where rows ask for them. Rows of
/// context-parallel groups, of units that tensor-parallel devices split and of `light` are fitted
/// beyond what the layers of their passes were fitted to. Errors come from a fit without the
/// held-out rows, the coefficients from one with all. Throws InvalidInput if `holdout.every` < 2,
/// there is no row, one of the kinds `apart` and `weight` has rows without the other or without B
/// of whole layers, or such units have rows without layers of their passes.
[[nodiscard]] FitResult fit_cost(std::span<const ProfileRow> rows, Holdout holdout = {});

/// The x >= 0 that minimises |Ax - b|: the active-set method of Lawson and Hanson, "Solving Least
/// Squares Problems" (1974), chapter 23, on columns scaled to length one. Among equal gradients the
/// lowest column enters first; a column that depends on earlier ones stays at zero.
/// Throws InvalidInput if the sizes do not fit.
[[nodiscard]] Eigen::VectorXd non_negative_least_squares(const Eigen::MatrixXd& a,
                                                         const Eigen::VectorXd& b);

namespace detail {

/// Least squares on the columns in `passive`, zero elsewhere.
[[nodiscard]] inline Eigen::VectorXd passive_solution(const Eigen::MatrixXd& a,
                                                      const Eigen::VectorXd& b,
                                                      const std::vector<bool>& passive) {
  std::vector<Eigen::Index> columns;
  for (Eigen::Index i = 0; i < a.cols(); ++i) {
    if (passive[static_cast<std::size_t>(i)]) columns.push_back(i);
  }
  Eigen::MatrixXd chosen(a.rows(), static_cast<Eigen::Index>(columns.size()));
  for (std::size_t i = 0; i < columns.size(); ++i) {
    chosen.col(static_cast<Eigen::Index>(i)) = a.col(columns[i]);
  }
  const Eigen::VectorXd solved = chosen.colPivHouseholderQr().solve(b);
  Eigen::VectorXd all = Eigen::VectorXd::Zero(a.cols());
  for (std::size_t i = 0; i < columns.size(); ++i) {
    all(columns[i]) = solved(static_cast<Eigen::Index>(i));
  }
  return all;
}

/// A point and the columns that are not held at zero.
struct ActiveSet {
  Eigen::VectorXd x;
  std::vector<bool> passive;
};

/// Lets a column in and walks to the least-squares point of the passive columns, dropping those
/// that reach zero on the way.
[[nodiscard]] inline ActiveSet let_in(const Eigen::MatrixXd& a, const Eigen::VectorXd& b,
                                      ActiveSet set, std::size_t column) {
  set.passive[column] = true;
  for (;;) {
    const Eigen::VectorXd goal = passive_solution(a, b, set.passive);
    double step = 1;
    std::optional<std::size_t> first;
    for (std::size_t k = 0; k < set.passive.size(); ++k) {
      const auto i = static_cast<Eigen::Index>(k);
      if (!set.passive[k] || goal(i) > 0) continue;
      const double reach = set.x(i) > 0 ? set.x(i) / (set.x(i) - goal(i)) : 0;
      if (first && reach >= step) continue;
      first = k;
      step = reach;
    }
    if (!first) return {goal, set.passive};
    set.x += step * (goal - set.x);
    set.x(static_cast<Eigen::Index>(*first)) = 0;
    set.passive[*first] = false;
  }
}

/// Kinds whose rows go through layers.
[[nodiscard]] constexpr bool has_layers(ProfileKind kind) {
  return kind <= ProfileKind::weight;
}

/// Seconds of layers, of a row of them alone, of a group without its exchange or, on `tp` devices,
/// without collectives.
[[nodiscard]] inline double layer_seconds(const FittedTerms& terms, const ProfileRow& row,
                                          double tp = 1) {
  const auto layers = static_cast<double>(row.layers);
  const auto tokens = static_cast<double>(row.tokens.value);
  const double shared = terms.token * tokens + terms.pair * row.pairs +
                        terms.own_pair * row.own_pairs + terms.key * static_cast<double>(row.keys) +
                        terms.spill_token * std::max(tokens - terms.spill_from * tp, 0.0);
  const double bytes = terms.weight_byte * static_cast<double>(row.weight_bytes.value) +
                       terms.accumulator_byte * static_cast<double>(row.accumulator_bytes.value);
  return terms.unit + bytes / tp +
         layers * (terms.layer + shared / tp + terms.segment * static_cast<double>(row.segments));
}

/// The columns of one kind: what its seconds are a sum of. Those of layers end with the tokens
/// beyond `spill_from` where that is not 0.
[[nodiscard]] inline std::vector<double> features(const ProfileRow& row, std::int64_t spill_from) {
  const auto layers = static_cast<double>(row.layers);
  const auto tokens = static_cast<double>(row.tokens.value);
  if (row.kind == ProfileKind::context) return {layers, static_cast<double>(row.bytes.value)};
  if (row.kind == ProfileKind::light) return {layers, layers * tokens};
  if (row.kind == ProfileKind::tensor) {
    // Those of a unit, with the embedding's, or one by itself.
    const std::int64_t each = row.pass == Pass::forward ? kTensorForward : kTensorBackward;
    const std::int64_t count = row.layers == 0 ? 1 : row.layers * each + 1;
    return {static_cast<double>(count), static_cast<double>(count * row.bytes.value)};
  }
  std::vector<double> columns{1};
  if (has_layers(row.kind)) {
    columns.insert(columns.end(), {layers, layers * tokens});
    if (row.kind != ProfileKind::weight) {
      columns.insert(columns.end(),
                     {layers * row.pairs, layers * static_cast<double>(row.segments),
                      layers * static_cast<double>(row.keys),
                      static_cast<double>(row.weight_bytes.value), layers * row.own_pairs});
    }
    columns.push_back(static_cast<double>(row.accumulator_bytes.value));
    if (spill_from > 0) {
      columns.push_back(layers * std::max(tokens - static_cast<double>(spill_from), 0.0));
    }
  } else if (row.kind == ProfileKind::embedding || row.kind == ProfileKind::head) {
    columns.push_back(tokens);
  } else {
    columns.push_back(static_cast<double>(row.bytes.value));
  }
  return columns;
}

/// The coefficients of one kind's columns.
struct FittedColumns {
  Eigen::VectorXd x;
  std::int64_t spill_from = 0;  ///< of features()
  double squares = 0;           ///< of the relative errors, by fit_weight, their sum
};

/// A row and what of its seconds was fitted before.
struct FitRow {
  ProfileRow row;
  double besides = 0;
};

[[nodiscard]] inline FittedTerms fitted_terms(ProfileKind kind, const FittedColumns& fitted) {
  const Eigen::VectorXd& x = fitted.x;
  FittedTerms terms;
  if (kind == ProfileKind::context) {
    terms.layer = x(0);
    terms.byte = x(1);
    return terms;
  }
  if (kind == ProfileKind::light) {
    terms.layer = x(0);
    terms.token = x(1);
    return terms;
  }
  terms.unit = x(0);
  if (has_layers(kind)) {
    terms.layer = x(1);
    terms.token = x(2);
    if (kind != ProfileKind::weight) {
      terms.pair = x(3);
      terms.segment = x(4);
      terms.key = x(5);
      terms.weight_byte = x(6);
      terms.own_pair = x(7);
    }
    terms.accumulator_byte = x(kind == ProfileKind::weight ? 3 : 8);
    if (fitted.spill_from > 0 && x(x.size() - 1) > 0) {
      terms.spill_token = x(x.size() - 1);
      terms.spill_from = static_cast<double>(fitted.spill_from);
    }
  } else if (kind == ProfileKind::embedding || kind == ProfileKind::head) {
    terms.token = x(1);
  } else {
    terms.byte = x(1);
  }
  return terms;
}

/// (predicted - measured) / measured.
[[nodiscard]] inline double relative_error(const FitRow& one, const FittedColumns& fitted) {
  const ProfileRow& row = one.row;
  const std::vector<double> columns = features(row, fitted.spill_from);
  double predicted = one.besides;
  for (std::size_t i = 0; i < columns.size(); ++i) {
    predicted += columns[i] * fitted.x(static_cast<Eigen::Index>(i));
  }
  return (predicted - row.seconds) / row.seconds;
}

/// What the square of a row's relative error counts among rows of its kind that take so many
/// seconds on average.
[[nodiscard]] inline double fit_weight(const ProfileRow& row, double mean_seconds) {
  const bool by_seconds =
      has_layers(row.kind) || row.kind == ProfileKind::context || row.kind == ProfileKind::light;
  return by_seconds ? row.seconds / mean_seconds : 1;
}

/// Fits some rows of one kind, with tokens that spill beyond `spill_from` where it is not 0.
[[nodiscard]] inline FittedColumns fit_rows(std::span<const FitRow> rows, std::int64_t spill_from) {
  double mean = 0;
  for (const FitRow& one : rows) mean += one.row.seconds / static_cast<double>(rows.size());
  const auto width = static_cast<Eigen::Index>(features(rows.front().row, spill_from).size());
  Eigen::MatrixXd a(static_cast<Eigen::Index>(rows.size()), width);
  Eigen::VectorXd left(a.rows());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const ProfileRow& one = rows[i].row;
    const auto place = static_cast<Eigen::Index>(i);
    const double scale = std::sqrt(fit_weight(one, mean)) / one.seconds;
    left(place) = (one.seconds - rows[i].besides) * scale;
    const std::vector<double> row = features(one, spill_from);
    for (Eigen::Index column = 0; column < width; ++column) {
      a(place, column) = row[static_cast<std::size_t>(column)] * scale;
    }
  }
  FittedColumns fitted{non_negative_least_squares(a, left), spill_from};
  for (const FitRow& row : rows) {
    const double error = relative_error(row, fitted);
    fitted.squares += fit_weight(row.row, mean) * error * error;
  }
  return fitted;
}

/// Fits some rows of one kind. Layers get a second price of tokens where that is worth two
/// coefficients by the Bayesian information criterion (Schwarz, "Estimating the Dimension of a
/// Model", 1978) and there are more rows than coefficients. It begins at the row's tokens, with a
/// quarter of the rows on either side, that leave the least squares; the fewest of equal ones.
[[nodiscard]] inline FittedColumns fit_rows(std::span<const FitRow> rows) {
  // Errors of a millionth are those of the digits in the file.
  constexpr double kExact = 1e-12;
  FittedColumns best = fit_rows(rows, 0);
  const auto count = static_cast<double>(rows.size());
  const bool enough = rows.size() > static_cast<std::size_t>(best.x.size()) + 2;
  if (!has_layers(rows.front().row.kind) || !enough || best.squares <= count * kExact) return best;
  std::vector<std::int64_t> tokens;
  for (const FitRow& row : rows) tokens.push_back(row.row.tokens.value);
  std::ranges::sort(tokens);
  const std::size_t side = (rows.size() + 3) / 4;
  double least = best.squares * std::exp(-2 * std::log(count) / count);
  for (std::size_t i = side - 1; i + side < rows.size(); ++i) {
    if (tokens[i] == tokens[i + 1]) continue;
    FittedColumns fitted = fit_rows(rows, tokens[i]);
    if (fitted.squares >= least) continue;
    least = fitted.squares;
    best = std::move(fitted);
  }
  return best;
}

[[nodiscard]] inline std::optional<FittedTerms>& terms_of(FittedCost& cost, ProfileKind kind,
                                                          std::optional<Pass> pass) {
  const bool back = pass == Pass::backward;
  switch (kind) {
    case ProfileKind::layer:
      return back ? cost.layer_backward : cost.layer_forward;
    case ProfileKind::apart:
      return cost.layer_apart;
    case ProfileKind::weight:
      return cost.layer_weight;
    case ProfileKind::embedding:
      return back ? cost.embedding_backward : cost.embedding_forward;
    case ProfileKind::head:
      return cost.head;
    case ProfileKind::optimizer:
      return cost.optimizer;
    case ProfileKind::p2p:
      return cost.p2p;
    case ProfileKind::reduce:
      return cost.reduce;
    case ProfileKind::exchange:
      return cost.exchange;
    case ProfileKind::tensor:
      return cost.tensor;
    case ProfileKind::light:
      return cost.light;
    default:
      return back ? cost.context_backward : cost.context_forward;
  }
}

/// The pass that a row is fitted with: none where one fit serves both.
[[nodiscard]] inline std::optional<Pass> fitted_pass(const ProfileRow& row) {
  return row.kind == ProfileKind::tensor ? std::nullopt : row.pass;
}

/// What of a row's seconds `cost` tells already: the layers of a group, those that devices split,
/// or both passes of those that are computed again.
[[nodiscard]] inline double fitted_before(FittedCost& cost, const ProfileRow& row) {
  const bool split = row.kind == ProfileKind::tensor && row.layers > 0;
  const bool both = row.kind == ProfileKind::light;
  if (row.kind != ProfileKind::context && !split && !both) return 0;
  double seconds = 0;
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    if (!both && row.pass != pass) continue;
    const auto& layers = terms_of(cost, ProfileKind::layer, pass);
    require(layers.has_value(),
            "fit_cost: rows of kinds tp, in units, cp and light need rows of layers of their pass");
    seconds += layer_seconds(*layers, row, split ? static_cast<double>(row.ranks) : 1);
  }
  return seconds;
}

/// Fits the rows of one kind and pass, and measures the error on those that are held out.
inline void fit_kind(std::span<const FitRow> rows, Holdout holdout, FitResult& result) {
  KindFit fit;
  fit.kind = rows.front().row.kind;
  fit.pass = fitted_pass(rows.front().row);
  fit.rows = rows.size();
  std::vector<FitRow> kept, held_out;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    ((i + 1) % holdout.every == 0 ? held_out : kept).push_back(rows[i]);
  }
  fit.held_out = held_out.size();
  if (!held_out.empty()) {
    const FittedColumns fitted = fit_rows(kept);
    double sum = 0, worst = 0;
    for (const FitRow& row : held_out) {
      const double error = std::abs(relative_error(row, fitted));
      sum += error;
      worst = std::max(worst, error);
    }
    fit.mean_error = sum / static_cast<double>(held_out.size());
    fit.worst_error = worst;
  }
  const FittedColumns fitted = fit_rows(rows);
  for (const FitRow& row : rows) {
    fit.fitted_mean_error += std::abs(relative_error(row, fitted));
  }
  fit.fitted_mean_error /= static_cast<double>(rows.size());
  terms_of(result.cost, fit.kind, fit.pass) = fitted_terms(fit.kind, fitted);
  result.kinds.push_back(fit);
}

}  // namespace detail

inline Eigen::VectorXd non_negative_least_squares(const Eigen::MatrixXd& a,
                                                  const Eigen::VectorXd& b) {
  require(a.rows() == b.size() && a.rows() > 0 && a.cols() > 0,
          "non_negative_least_squares: rows of A must equal the size of b and be > 0", a.rows());
  const auto columns = static_cast<std::size_t>(a.cols());
  Eigen::MatrixXd scaled = a;
  Eigen::VectorXd scale = a.colwise().norm().transpose();
  for (Eigen::Index i = 0; i < a.cols(); ++i) {
    if (scale(i) <= 0) scale(i) = 1;
    scaled.col(i) /= scale(i);
  }
  const double least = 1e-11 * b.norm();
  detail::ActiveSet best{Eigen::VectorXd::Zero(a.cols()), std::vector<bool>(columns, false)};
  double error = b.norm();
  std::vector<bool> useless(columns, false);
  for (;;) {
    const Eigen::VectorXd descent = scaled.transpose() * (b - scaled * best.x);
    std::optional<std::size_t> entering;
    for (std::size_t i = 0; i < columns; ++i) {
      const double slope = descent(static_cast<Eigen::Index>(i));
      if (best.passive[i] || useless[i] || slope <= least) continue;
      if (!entering || slope > descent(static_cast<Eigen::Index>(*entering))) entering = i;
    }
    if (!entering) break;
    const detail::ActiveSet next = detail::let_in(scaled, b, best, *entering);
    const double next_error = (b - scaled * next.x).norm();
    // In exact arithmetic the error falls with every column let in. Where rounding stops that, the
    // column stays out until another one has helped, so that no set of columns comes twice.
    if (next_error < error) {
      best = next;
      error = next_error;
      useless.assign(columns, false);
    } else {
      useless[*entering] = true;
    }
  }
  return best.x.cwiseQuotient(scale);
}

inline FitResult fit_cost(std::span<const ProfileRow> rows, Holdout holdout) {
  require(holdout.every >= 2, "fit_cost: one row in `every` >= 2 is held out",
          static_cast<std::int64_t>(holdout.every));
  require(!rows.empty(), "fit_cost: no measurement");
  FitResult result;
  for (std::size_t kind = 0; kind < kProfileKinds.size(); ++kind) {
    for (const std::optional<Pass> pass :
         {std::optional<Pass>{}, std::optional{Pass::forward}, std::optional{Pass::backward}}) {
      std::vector<detail::FitRow> same;
      for (const ProfileRow& row : rows) {
        if (row.kind != static_cast<ProfileKind>(kind) || detail::fitted_pass(row) != pass)
          continue;
        same.push_back({row, detail::fitted_before(result.cost, row)});
      }
      if (!same.empty()) detail::fit_kind(same, holdout, result);
    }
  }
  require_whole(result.cost);
  return result;
}

}  // namespace slimpack
