// SPDX-License-Identifier: Apache-2.0
// That what parts a device's gradients from the oracle's is the rounding of what it stores.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <utility>

#include "cuda/ranks/rank_plans.hpp"
#include "cuda/ranks/rounded_math.hpp"
#include "slimpack/cost/presets.hpp"

namespace rounding_test {

using namespace slimpack;

namespace {

/// A step of the model that the trainer begins with, on one rank.
Plan tiny_step(std::uint64_t seed, std::int64_t tokens) {
  test::RandomPlanOptions options;
  options.dp = options.pp = options.chunks = 1;
  options.cp_groups = options.tied = false;
  options.min_samples = options.max_samples = 2;
  options.min_tokens = tokens * 3 / 8;
  options.max_tokens = tokens / 2;
  options.recompute = Recompute::none;
  options.bytes_per_element = 2;
  options.gradient_bytes = 4;
  Plan plan = test::random_plan(seed, options);
  plan.model = *model_preset("tiny");
  plan.stages = {{0, 0, 0, plan.model.layers, true}};
  return plan;
}

/// Differences of all gradients from the oracle's.
class Differences {
 public:
  /// Elements of a tensor from `first` on.
  template <class Values>
  void add(const cpu::Matrix& expected, std::size_t first, const Values& values) {
    double most = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double want = expected.values[first + i];
      const double off = static_cast<double>(values[i]) - want;
      most = std::max(most, std::abs(off));
      squares_ += off * off;
      all_ += want * want;
    }
    largest = std::max(largest, most / cpu::detail::largest_value(expected));
  }
  [[nodiscard]] double norm() const { return std::sqrt(squares_ / all_); }
  double largest = 0;  ///< over its tensor's largest value

 private:
  double squares_ = 0, all_ = 0;
};

}  // namespace

TEST_CASE(
    "ranks: gradients are as near to the oracle as rounding to bf16 lets any computation be") {
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    CAPTURE(seed);
    const Plan plan = tiny_step(seed, std::int64_t{64} << seed);
    const runtime::StepData data = test::random_data(plan, seed);
    cpu::Tensors weights = cpu::initial_weights(plan.model, seed);
    for (auto& [name, weight] : weights) test::RoundedMath::round(weight.values);
    const cpu::ReferenceResult reference = cpu::reference_step(plan.model, weights, data);

    auto rounded = cpu::make_devices<test::RoundedDevice>(plan, seed);
    test::RankDevices ranks;
    ranks.emplace_back(plan, 0, seed, cuda::AdamW{}, test::plain_path());
    for (const runtime::HeldTensor& tensor : ranks.front().tensors()) {
      const cpu::Matrix& weight = weights.at(tensor.shape.name);
      std::ranges::copy(weight.values, rounded.front().weights(tensor).begin());
      ranks.front().set_weights(tensor, test::held(weight, tensor));
    }
    (void)runtime::run_step(plan, data, std::span(rounded));
    (void)test::run_ranks(plan, data, std::span(ranks));

    Differences by_rounding, found;
    for (const runtime::HeldTensor& tensor : rounded.front().tensors()) {
      by_rounding.add(reference.gradients.at(tensor.shape.name), 0,
                      std::as_const(rounded).front().gradients(tensor));
    }
    for (const cuda::TensorPart& part : ranks.front().gradient_parts()) {
      found.add(reference.gradients.at(part.tensor), part.first, part.values);
    }
    std::printf("  %lld tokens: by rounding alone %.1e, norm %.1e; on a device %.1e, norm %.1e\n",
                static_cast<long long>(plan.samples[0].value + plan.samples[1].value),
                by_rounding.largest, by_rounding.norm(), found.largest, found.norm());
    CHECK(found.norm() <= 1.1 * by_rounding.norm());
    CHECK(found.largest <= 2 * by_rounding.largest);
    CHECK(by_rounding.norm() > 5e-3);
  }
}

}  // namespace rounding_test
