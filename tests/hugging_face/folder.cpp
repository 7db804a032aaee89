// SPDX-License-Identifier: Apache-2.0
// Saves a small Llama, or reads one, and prints the log-probabilities that it gives to a text.
//
//   hugging_face_folder save FOLDER f32|f64|bf16 [tied]
//   hugging_face_folder read FOLDER
#include <cstdint>
#include <cstdio>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "slimpack/runtime/checkpoint_write.hpp"
#include "slimpack/runtime/llama_folder.hpp"
#include "slimpack_cpu/reference.hpp"

using namespace slimpack;

namespace {

constexpr std::int64_t kTokens = 7;

void save(const std::string& folder, runtime::ElementType type, bool tied) {
  const ModelShape model{"small", 2,  24,   4,       2,    6,
                         20,      32, tied, 12345.5, 1e-5, runtime::element_bytes(type)};
  const bool master = type == runtime::ElementType::bf16;
  const runtime::CheckpointForm form{model, type, master ? runtime::ElementType::f32 : type, master,
                                     64};
  runtime::TrainingState state;
  state.step = 3;
  runtime::CheckpointDraft draft(folder, form, state);
  runtime::CheckpointPart part(folder);
  for (const auto& [name, matrix] : cpu::initial_weights(model, 9)) {
    const std::span<const double> values = matrix.values;
    part.write(runtime::Stored::weight, name, 0, values);
    part.write(runtime::Stored::first_moment, name, 0, values);
    part.write(runtime::Stored::second_moment, name, 0, values);
    if (master) part.write(runtime::Stored::master, name, 0, values);
  }
  draft.commit(part.finish());
}

/// The loss of a single target is the negative log-probability of it.
void print(const runtime::LlamaFolder& folder) {
  const ModelShape& model = folder.model();
  cpu::Tensors weights;
  for (const runtime::NamedShape& tensor : folder.tensors()) {
    cpu::Matrix matrix(tensor.shape.size() == 1 ? 1 : tensor.shape.front(), tensor.shape.back());
    folder.read(tensor.name, 0, std::span<double>(matrix.values));
    weights.emplace(tensor.name, std::move(matrix));
  }
  std::vector<std::int32_t> tokens;
  for (std::int64_t i = 0; i < kTokens; ++i) {
    tokens.push_back(static_cast<std::int32_t>((11 * i + 3) % model.vocab));
  }
  std::printf("{\"tokens\": [");
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    std::printf("%s%d", i > 0 ? ", " : "", static_cast<int>(tokens[i]));
  }
  std::printf("],\n \"log_probability\": [");
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    std::printf("%s", i > 0 ? "],\n  [" : "[");
    for (std::int64_t token = 0; token < model.vocab; ++token) {
      runtime::StepData data{{tokens}, {{}}};
      data.targets[0].resize(tokens.size());
      data.targets[0][i] = static_cast<std::int32_t>(token);
      const double loss = cpu::reference_step(model, weights, data).loss;
      std::printf("%s%.17g", token > 0 ? ", " : "", -loss);
    }
  }
  std::printf("]]}\n");
}

}  // namespace

int main(int count, char** values) {
  const std::vector<std::string> arguments(values + 1, values + count);
  try {
    if (arguments.size() >= 3 && arguments[0] == "save") {
      const bool tied = arguments.size() == 4;
      const runtime::ElementType type = arguments[2] == "f64"   ? runtime::ElementType::f64
                                        : arguments[2] == "f32" ? runtime::ElementType::f32
                                                                : runtime::ElementType::bf16;
      save(arguments[1], type, tied);
    } else if (arguments.size() != 2 || arguments[0] != "read") {
      std::fputs("usage: hugging_face_folder save FOLDER f32|f64|bf16 [tied] | read FOLDER\n",
                 stderr);
      return 2;
    }
    print(runtime::LlamaFolder::open(arguments[1]));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
  return 0;
}
