// SPDX-License-Identifier: Apache-2.0
#include "slimpack_cpu/reference.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "cpu/finite_differences.hpp"

using namespace slimpack;

namespace {

ModelShape tiny_model(bool tied) {
  return {"tiny", 2, 6, 4, 2, 4, 7, 9, tied, 100.0, 1e-5, 8};
}

runtime::StepData tiny_data() {
  return {{{1, 5, 2, 8}, {3, 3}}, {{5, 2, std::nullopt, 0}, {std::nullopt, 7}}};
}

}  // namespace

TEST_CASE("reference_step: every gradient of the whole model by finite differences") {
  for (const bool tied : {false, true}) {
    CAPTURE(tied);
    const ModelShape model = tiny_model(tied);
    const runtime::StepData data = tiny_data();
    cpu::Tensors weights = cpu::initial_weights(model, 4);
    CHECK(weights.count("lm_head.weight") == (tied ? 0U : 1U));
    const auto result = cpu::reference_step(model, weights, data);
    for (auto& tensor : weights) {
      CAPTURE(tensor.first);
      const auto& gradient = result.gradients.at(tensor.first).values;
      CHECK(test::difference_of(tensor.second.values, gradient, [&] {
              return cpu::reference_step(model, weights, data).loss;
            }) <= 1e-6);
    }
  }
}

TEST_CASE("reference_step: a model without layers whose logits are zero has loss log(vocab)") {
  ModelShape model = tiny_model(false);
  model.layers = 0;
  cpu::Tensors weights = cpu::initial_weights(model, 1);
  for (double& value : weights.at("lm_head.weight").values) value = 0.0;
  const auto result = cpu::reference_step(model, weights, tiny_data());
  CHECK(result.loss == doctest::Approx(std::log(9.0)));
  CHECK(result.sample_loss[0] == doctest::Approx(3 * std::log(9.0)));
}

TEST_CASE("reference_step: a step without targets is refused") {
  const ModelShape model = tiny_model(false);
  const runtime::StepData data{{{1, 2}}, {{std::nullopt, std::nullopt}}};
  CHECK_THROWS_WITH_AS((void)cpu::reference_step(model, cpu::initial_weights(model, 1), data),
                       "reference_step: the step must have a target", InvalidInput);
}
