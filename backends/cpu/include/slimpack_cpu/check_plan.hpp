// SPDX-License-Identifier: Apache-2.0
// Executes a plan on CPU devices and compares loss, gradients and new weights with the oracle.
#pragma once

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/random.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/runtime/run_step.hpp"
#include "slimpack_cpu/device.hpp"
#include "slimpack_cpu/reference.hpp"

namespace slimpack::cpu {

/// One backend a device of the plan, by dp, pp, tp, with weights drawn from `seed`.
template <class Candidate = Device>
  requires std::constructible_from<Candidate, const Plan&, std::size_t, std::uint64_t, AdamW>
[[nodiscard]] std::vector<Candidate> make_devices(const Plan& plan, std::uint64_t seed,
                                                  AdamW settings = {}) {
  std::vector<Candidate> devices;
  devices.reserve(device_count(plan));
  for (std::size_t device = 0; device < device_count(plan); ++device) {
    devices.emplace_back(plan, device, seed, settings);
  }
  return devices;
}

/// Step data of the given tokens with exactly `plan.target_tokens` targets: the next token of the
/// sample; where more are asked for, samples' last tokens get their own first one, in the order of
/// samples (a cut document goes on in another sample); where fewer, the last targets are left out.
/// Throws InvalidInput unless the plan asks for 1 to all tokens.
[[nodiscard]] inline runtime::StepData step_data(const Plan& plan,
                                                 std::vector<std::vector<std::int32_t>> tokens) {
  std::int64_t inner = 0, all = 0;
  for (const auto& sample : tokens) {
    inner += static_cast<std::int64_t>(sample.size()) - (sample.empty() ? 0 : 1);
    all += static_cast<std::int64_t>(sample.size());
  }
  require(plan.target_tokens >= 1 && plan.target_tokens <= all,
          "step_data: step.target_tokens must be in [1, tokens]", plan.target_tokens);
  std::int64_t beyond = std::max<std::int64_t>(0, plan.target_tokens - inner);
  std::int64_t left = plan.target_tokens;
  runtime::StepData data;
  for (const auto& sample : tokens) {
    std::vector<std::optional<std::int32_t>> targets(sample.size());
    for (std::size_t t = 0; t < sample.size() && left > 0; ++t) {
      const bool last = t + 1 == sample.size();
      if (last && beyond == 0) continue;
      targets[t] = last ? sample.front() : sample[t + 1];
      beyond -= last ? 1 : 0;
      --left;
    }
    data.targets.push_back(std::move(targets));
  }
  data.tokens = std::move(tokens);
  return data;
}

/// Tokens drawn uniformly for every sample of the plan.
[[nodiscard]] inline std::vector<std::vector<std::int32_t>> random_tokens(const Plan& plan,
                                                                          std::uint64_t seed) {
  Random random(seed);
  std::vector<std::vector<std::int32_t>> tokens;
  for (const Tokens length : plan.samples) {
    tokens.emplace_back();
    for (std::int64_t t = 0; t < length.value; ++t) {
      tokens.back().push_back(static_cast<std::int32_t>(random.between(0, plan.model.vocab - 1)));
    }
  }
  return tokens;
}

namespace detail {

/// The larger of both, a NaN above all.
inline double worse(double a, double b) {
  return std::isnan(a) || b <= a ? a : b;
}

}  // namespace detail

/// How far an execution is from the oracle. A difference is relative: the largest absolute one over
/// the tensor's largest absolute value.
struct PlanCheck {
  double loss = 0;                 ///< the executed one
  double reference = 0;            ///< the oracle's
  double loss_difference = 0;      ///< of the two losses, over the oracle's
  double gradient_difference = 0;  ///< the largest of all tensors and devices, after reduction
  double weight_difference = 0;    ///< the largest of all tensors and devices, after AdamW
  std::string worst_tensor;        ///< with the largest gradient difference
  std::map<std::string, double> gradient_by_tensor;  ///< largest difference of all devices, by name
  std::vector<Bytes> peak;                           ///< one a device
  /// The largest of the three differences.
  [[nodiscard]] double worst() const noexcept {
    return detail::worse(detail::worse(loss_difference, gradient_difference), weight_difference);
  }
};

namespace detail {

/// The largest |got - expected| over what a device holds of a tensor, of that from element `from`
/// on.
template <std::floating_point Element>
double largest_difference(std::span<const Element> got, const Matrix& expected,
                          const runtime::HeldTensor& tensor, std::size_t from = 0) {
  double largest = 0;
  const auto compare = [&](std::size_t first, std::size_t i, std::size_t count) {
    for (std::size_t k = 0; k < count; ++k) {
      const auto value = static_cast<double>(got[i - from + k]);
      largest = worse(largest, std::abs(value - expected.values[first + k]));
    }
  };
  tensor.for_each_run(from, from + got.size(), compare);
  return largest;
}

inline double largest_value(const Matrix& matrix) {
  double largest = 0;
  for (const double value : matrix.values) largest = std::max(largest, std::abs(value));
  return largest;
}

inline double relative(double difference, double scale) {
  return difference == 0 ? 0.0 : difference / scale;
}

}  // namespace detail

/// Executes one step of the plan on fresh devices of one mathematics and compares every device with
/// the oracle: loss, every gradient after reduction, every weight after AdamW. Throws as run_step.
template <Mathematics Math = PlainMath>
[[nodiscard]] PlanCheck check_plan(const Plan& plan, const runtime::StepData& data,
                                   std::uint64_t seed, AdamW settings = {},
                                   const runtime::MemoryObserver& observer = {}) {
  using Number = typename Math::Number;
  auto devices = make_devices<BasicDevice<Math>>(plan, seed, settings);
  const runtime::StepResult step = runtime::run_step(plan, data, std::span(devices), observer);
  Tensors weights = initial_weights(plan.model, seed);
  for (auto& [name, weight] : weights) {  // the oracle begins with the devices' weights
    for (double& value : weight.values) value = static_cast<double>(static_cast<Number>(value));
  }
  const ReferenceResult reference = reference_step(plan.model, weights, data);
  ReferenceOptimizer(settings).update(weights, reference.gradients);

  PlanCheck check;
  check.loss = step.loss;
  check.reference = reference.loss;
  check.loss_difference = std::abs(step.loss - reference.loss) / std::abs(reference.loss);
  check.peak = step.peak;
  for (const BasicDevice<Math>& device : devices) {
    for (const runtime::HeldTensor& tensor : device.tensors()) {
      const std::string& name = tensor.shape.name;
      const Matrix& expected = reference.gradients.at(name);
      const std::size_t from = device.here(tensor).begin;
      const double gradient = detail::relative(
          detail::largest_difference<Number>(device.gradients(tensor), expected, tensor, from),
          detail::largest_value(expected));
      double& worst = check.gradient_by_tensor[name];
      worst = detail::worse(worst, gradient);
      if (!(gradient <= check.gradient_difference)) check.worst_tensor = name;
      check.gradient_difference = detail::worse(check.gradient_difference, gradient);
      const Matrix& updated = weights.at(name);
      const double weight = detail::relative(
          detail::largest_difference<Number>(device.weights(tensor), updated, tensor, from),
          detail::largest_value(updated));
      check.weight_difference = detail::worse(check.weight_difference, weight);
    }
  }
  return check;
}

/// The same of given tokens.
template <Mathematics Math = PlainMath>
[[nodiscard]] PlanCheck check_plan(const Plan& plan,
                                   const std::vector<std::vector<std::int32_t>>& tokens,
                                   std::uint64_t seed, AdamW settings = {}) {
  return check_plan<Math>(plan, step_data(plan, tokens), seed, settings);
}

}  // namespace slimpack::cpu
