// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "slimpack/io/file.hpp"
#include "slimpack/io/json_reader.hpp"
#include "slimpack/runtime/detail/safetensors.hpp"
#include "slimpack/runtime/llama_folder.hpp"
#include "slimpack_cpu/reference.hpp"
#include "support/directory.hpp"

namespace golden_llama_test {

using namespace slimpack;

namespace {

const std::string& golden() {
  static const std::string folder = test::directory() + "/golden/llama";
  return folder;
}

cpu::Tensors weights_of(const runtime::LlamaFolder& folder) {
  cpu::Tensors weights;
  for (const runtime::NamedShape& tensor : folder.tensors()) {
    cpu::Matrix matrix(tensor.shape.size() == 1 ? 1 : tensor.shape.front(), tensor.shape.back());
    folder.read(tensor.name, 0, std::span<double>(matrix.values));
    weights.emplace(tensor.name, std::move(matrix));
  }
  return weights;
}

std::vector<double> expected_values(const runtime::SafetensorsFile& file, const std::string& name) {
  std::vector<double> values(static_cast<std::size_t>(file.find(name)->elements()));
  file.read(name, 0, std::span<double>(values));
  return values;
}

/// Largest difference over the largest value.
double relative(const std::vector<double>& a, const std::vector<double>& b) {
  double worst = 0, size = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    worst = std::max(worst, std::abs(a[i] - b[i]));
    size = std::max(size, std::abs(b[i]));
  }
  return worst / size;
}

runtime::StepData step_of(const std::vector<std::vector<std::int32_t>>& documents) {
  runtime::StepData data;
  for (const auto& document : documents) {
    data.tokens.push_back(document);
    data.targets.emplace_back(document.begin() + 1, document.end());
    data.targets.back().emplace_back(std::nullopt);
  }
  return data;
}

}  // namespace

TEST_CASE("golden Llama: loss and every gradient as PyTorch computes them") {
  const runtime::LlamaFolder folder = runtime::LlamaFolder::open(golden());
  const nlohmann::json expected = parse_json(read_file(golden() + "/expected.json"), "expected");
  const runtime::SafetensorsFile values =
      runtime::SafetensorsFile::open(golden() + "/expected.safetensors");
  const auto documents = expected.at("documents").get<std::vector<std::vector<std::int32_t>>>();
  const auto result = cpu::reference_step(folder.model(), weights_of(folder), step_of(documents));
  CHECK(std::abs(result.loss - expected.at("loss").get<double>()) <= 1e-12);
  CHECK(relative(result.sample_loss, expected.at("sample_loss").get<std::vector<double>>()) <=
        1e-12);
  CHECK(result.gradients.size() == folder.tensors().size());
  for (const auto& gradient : result.gradients) {
    CAPTURE(gradient.first);
    CHECK(relative(gradient.second.values, expected_values(values, "gradient." + gradient.first)) <=
          1e-11);
  }
}

TEST_CASE("golden Llama: log-probabilities of a document as PyTorch's logits give them") {
  const runtime::LlamaFolder folder = runtime::LlamaFolder::open(golden());
  const nlohmann::json expected = parse_json(read_file(golden() + "/expected.json"), "expected");
  const runtime::SafetensorsFile values =
      runtime::SafetensorsFile::open(golden() + "/expected.safetensors");
  const auto documents = expected.at("documents").get<std::vector<std::vector<std::int32_t>>>();
  const cpu::Tensors weights = weights_of(folder);
  const std::size_t document = 3;
  const auto length = documents[document].size();
  const auto vocab = static_cast<std::size_t>(folder.model().vocab);
  const std::vector<double> logits = expected_values(values, "logits.3");
  REQUIRE(logits.size() == length * vocab);
  for (std::size_t i = 0; i < length; ++i) {
    const auto row = std::span(logits).subspan(i * vocab, vocab);
    double sum = 0;
    for (const double logit : row) sum += std::exp(logit);
    for (std::size_t token = 0; token < vocab; ++token) {
      runtime::StepData data{{documents[document]}, {{}}};
      data.targets[0].resize(length);
      data.targets[0][i] = static_cast<std::int32_t>(token);
      const double loss = cpu::reference_step(folder.model(), weights, data).loss;
      CHECK(std::abs(loss - (std::log(sum) - row[token])) <= 1e-11);
    }
  }
}

}  // namespace golden_llama_test
