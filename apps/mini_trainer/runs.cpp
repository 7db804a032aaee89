// SPDX-License-Identifier: Apache-2.0
#include "runs.hpp"

#include <algorithm>

#include "slimpack/cost/presets.hpp"
#include "slimpack/io/file.hpp"
#include "slimpack/io/plan_json.hpp"
#include "slimpack/plan/virtual_stages.hpp"
#include "slimpack/runtime/llama_config.hpp"
#include "slimpack/runtime/llama_folder.hpp"
#include "slimpack/runtime/program.hpp"
#include "steps.hpp"

namespace slimpack::trainer {

ModelShape model_of(const Options& options, std::int64_t element) {
  ModelShape model;
  const std::string& folder = options.init.empty() ? options.resume : options.init;
  if (!folder.empty()) {
    model = runtime::LlamaFolder::open(folder).model();
  } else if (auto preset = model_preset(options.model)) {
    model = *preset;
  } else {
    model = runtime::trainable_model(read_file(options.model), options.model);
  }
  std::optional<std::int64_t> vocabulary = options.vocabulary;
  if (options.vocabulary_of_data) vocabulary = vocabulary_of_data(options);
  if (vocabulary && !folder.empty()) {
    require(*vocabulary == model.vocab,
            "--vocabulary: must be that of the model saved in " + folder + " (" +
                std::to_string(model.vocab) + ")",
            *vocabulary);
  }
  model.vocab = vocabulary.value_or(model.vocab);
  model.bytes_per_element = element;
  return model;
}

std::optional<Plan> plan_of(const Options& options) {
  if (!options.plan) return std::nullopt;
  Plan plan = plan_from_json(read_file(*options.plan), *options.plan);
  runtime::check_executable(plan);
  return plan;
}

std::size_t rank_count(const Options& options, const std::optional<Plan>& plan, std::size_t most) {
  if (plan) return device_count(*plan);
  const auto dp = options.dp ? static_cast<std::size_t>(*options.dp) : 0;
  const auto tp = static_cast<std::size_t>(options.tp);
  const std::size_t rank = static_cast<std::size_t>(options.pp.value_or(1)) * tp;
  return rank * (dp > 0 ? dp : std::max<std::size_t>(1, most / rank));
}

}  // namespace slimpack::trainer
