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
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/cost/fitted.hpp"
#include "slimpack/cost/profile.hpp"
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
  std::optional<Pass> pass;               ///< of layers and the embedding alone
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

/// Fits each kind and pass by least squares over coefficients >= 0, each row divided by its
/// measured seconds, so that a small kernel counts as much as a large one. Errors come from a fit
/// without the held-out rows, the coefficients from one with all. Throws InvalidInput if
/// `holdout.every` < 2, there is no row, or one of the kinds `apart` and `weight` has rows without
/// the other or without B of whole layers.
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

/// The columns of one kind: what its seconds are a sum of.
[[nodiscard]] inline std::vector<double> features(const ProfileRow& row) {
  const auto layers = static_cast<double>(row.layers);
  const auto tokens = static_cast<double>(row.tokens.value);
  switch (row.kind) {
    case ProfileKind::layer:
    case ProfileKind::apart:
      return {1,
              layers,
              layers * tokens,
              layers * row.pairs,
              layers * static_cast<double>(row.segments),
              layers * static_cast<double>(row.keys),
              static_cast<double>(row.weight_bytes.value),
              static_cast<double>(row.accumulator_bytes.value)};
    case ProfileKind::weight:
      return {1, layers, layers * tokens, static_cast<double>(row.accumulator_bytes.value)};
    case ProfileKind::embedding:
    case ProfileKind::head:
      return {1, tokens};
    default:
      return {1, static_cast<double>(row.bytes.value)};
  }
}

[[nodiscard]] inline FittedTerms fitted_terms(ProfileKind kind, const Eigen::VectorXd& x) {
  FittedTerms terms;
  terms.unit = x(0);
  if (kind <= ProfileKind::apart) {
    terms.layer = x(1);
    terms.token = x(2);
    terms.pair = x(3);
    terms.segment = x(4);
    terms.key = x(5);
    terms.weight_byte = x(6);
    terms.accumulator_byte = x(7);
  } else if (kind == ProfileKind::weight) {
    terms.layer = x(1);
    terms.token = x(2);
    terms.accumulator_byte = x(3);
  } else if (kind == ProfileKind::embedding || kind == ProfileKind::head) {
    terms.token = x(1);
  } else {
    terms.byte = x(1);
  }
  return terms;
}

/// Fits some rows of one kind.
[[nodiscard]] inline Eigen::VectorXd fit_rows(std::span<const ProfileRow> rows) {
  const auto width = static_cast<Eigen::Index>(features(rows.front()).size());
  Eigen::MatrixXd a(static_cast<Eigen::Index>(rows.size()), width);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::vector<double> row = features(rows[i]);
    for (Eigen::Index column = 0; column < width; ++column) {
      a(static_cast<Eigen::Index>(i), column) =
          row[static_cast<std::size_t>(column)] / rows[i].seconds;
    }
  }
  return non_negative_least_squares(a, Eigen::VectorXd::Ones(a.rows()));
}

[[nodiscard]] inline double relative_error(const ProfileRow& row, const Eigen::VectorXd& x) {
  const std::vector<double> row_features = features(row);
  double predicted = 0;
  for (std::size_t i = 0; i < row_features.size(); ++i) {
    predicted += row_features[i] * x(static_cast<Eigen::Index>(i));
  }
  return std::abs(predicted - row.seconds) / row.seconds;
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
    default:
      return cost.tensor;
  }
}

/// Fits the rows of one kind and pass, and measures the error on those that are held out.
inline void fit_kind(std::span<const ProfileRow> rows, Holdout holdout, FitResult& result) {
  KindFit fit;
  fit.kind = rows.front().kind;
  fit.pass = rows.front().pass;
  fit.rows = rows.size();
  std::vector<ProfileRow> kept, held_out;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    ((i + 1) % holdout.every == 0 ? held_out : kept).push_back(rows[i]);
  }
  fit.held_out = held_out.size();
  if (!held_out.empty()) {
    const Eigen::VectorXd x = fit_rows(kept);
    double sum = 0, worst = 0;
    for (const ProfileRow& row : held_out) {
      const double error = relative_error(row, x);
      sum += error;
      worst = std::max(worst, error);
    }
    fit.mean_error = sum / static_cast<double>(held_out.size());
    fit.worst_error = worst;
  }
  const Eigen::VectorXd x = fit_rows(rows);
  for (const ProfileRow& row : rows) fit.fitted_mean_error += relative_error(row, x);
  fit.fitted_mean_error /= static_cast<double>(rows.size());
  terms_of(result.cost, fit.kind, fit.pass) = fitted_terms(fit.kind, x);
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
      std::vector<ProfileRow> same;
      for (const ProfileRow& row : rows) {
        if (row.kind == static_cast<ProfileKind>(kind) && row.pass == pass) same.push_back(row);
      }
      if (!same.empty()) detail::fit_kind(same, holdout, result);
    }
  }
  require_whole(result.cost);
  return result;
}

}  // namespace slimpack
