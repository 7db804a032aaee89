// SPDX-License-Identifier: Apache-2.0
#include "common.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <thread>
#include <utility>

#include "notes.hpp"
#include "sha256.hpp"
#include "sizes.hpp"
#include "slimpack/cost/presets.hpp"
#include "slimpack/data/sample.hpp"
#include "slimpack/io/cluster_json.hpp"
#include "slimpack/io/cost_file.hpp"
#include "slimpack/io/file.hpp"
#include "slimpack/io/model_json.hpp"
#include "slimpack/planners/check_request.hpp"
#include "slimpack/planners/registry.hpp"
#include "slimpack/planners/slimpack/slimpack.hpp"

namespace slimpack::app {
namespace {

template <class Value>
[[nodiscard]] std::string names_of(const std::vector<Value>& presets) {
  std::string names;
  for (const Value& preset : presets) names += (names.empty() ? "" : ", ") + preset.name;
  return names;
}

/// A preset by name, else the file of that path.
template <class Value, class Parse>
[[nodiscard]] Value preset_or_file(std::string_view option, const std::string& text,
                                   std::optional<Value> preset, const std::vector<Value>& presets,
                                   Parse&& parse) {
  if (preset) return *std::move(preset);
  std::error_code ignored;
  require(
      std::filesystem::exists(text, ignored),
      fmt::format("{}: '{}' is neither a preset ({}) nor a file", option, text, names_of(presets)));
  return parse(read_file(text), text);
}

/// nullopt for `automatic`, else what `parse` makes of the text.
template <class Parse>
[[nodiscard]] auto unless(std::string_view automatic, const std::string& text, Parse&& parse)
    -> std::optional<decltype(parse(text))> {
  if (text == automatic) return std::nullopt;
  return parse(text);
}

}  // namespace

BatchOptions batch_options(const CommonOptions& options) {
  BatchOptions batch;
  batch.context = {parse_size("--context", options.context)};
  batch.overlong = parse_word<Overlong>("--overlong", options.overlong);
  if (!options.batch_tokens.empty()) {
    batch.batch_tokens = Tokens{parse_size("--batch-tokens", options.batch_tokens)};
  }
  if (!options.batch_samples.empty()) {
    batch.batch_samples = parse_size("--batch-samples", options.batch_samples);
  }
  batch.seed = options.seed;
  batch.shuffle = !options.no_shuffle;
  return batch;
}

void add_common_options(CLI::App& command, CommonOptions& options) {
  command
      .add_option("LENGTHS", options.lengths,
                  "document lengths: text, .idx (Megatron), .npy, .jsonl, or - for standard input")
      ->required();
  const auto add = [&](const char* names, auto& value, const char* text) {
    command.add_option(names, value, text)->capture_default_str();
  };
  add("--model", options.model, "preset, or a Hugging Face config.json");
  add("--cluster", options.cluster, "preset, or a JSON file");
  add("--dp", options.dp, "data-parallel ranks");
  add("--pp", options.pp, "pipeline stages");
  add("--tp", options.tp, "tensor-parallel devices");
  add("--chunks", options.chunks, "virtual stages a device, or auto");
  add("--head", options.head, "vocabulary projection and loss: last, shard or auto");
  add("--recompute", options.recompute, "none, light, layer, full or auto");
  add("--weights", options.weights, "gradients of weights in B or after it: with, apart or auto");
  add("--granularity", options.granularity, "slice boundaries fall on multiples of it");
  add("--max-units", options.max_units, "most MicroPacks a pass and rank, or auto");
  add("--max-cp,--merge", options.max_cp,
      "most ranks a context-parallel group may have: auto, off or a number");
  add("--optimizer", options.optimizer, "optimizer state: sharded or replicated");
  add("--weight-state", options.weight_state,
      "weights and gradients: replicated, sharded (on one stage) or auto");
  add("--runtime", options.runtime,
      "what executes the plan: any, or torch, PyTorch's pipeline runtime");
  add("--context", options.context, "longest sample, in tokens");
  add("--overlong", options.overlong, "documents above the context: split, drop or error");
  command.add_option("--batch-tokens", options.batch_tokens,
                     "tokens a step holds at most [the whole file, one step]");
  command.add_option("--batch-samples", options.batch_samples, "samples a step holds at most");
  add("--step", options.step, "which step, from 0");
  add("--seed", options.seed, "of the shuffle");
  command.add_flag("--no-shuffle", options.no_shuffle, "take documents in file order");
  command.add_option("--memory", options.memory,
                     "capacity of a device in bytes, as in 80G [the cluster's]");
  command.add_option("--cost", options.cost, "a calibrated cost model [analytic]");
  add("--effort", options.effort, "how many candidates are simulated: fast, normal or thorough");
  add("--threads", options.threads, "never changes the answer; auto: all cores");
}

planners::PlanRequest make_request(const CommonOptions& options) {
  return std::move(make_requests(options, 1).front());
}

std::vector<planners::PlanRequest> make_requests(const CommonOptions& options, std::int64_t steps) {
  return RequestMaker().make(options, steps);
}

report::ComparedTask task_of(const CommonOptions& options, const planners::PlanRequest& request) {
  const BatchOptions batch = batch_options(options);
  report::ComparedTask task;
  task.sources = request.sources;
  task.context = batch.context;
  task.overlong = options.overlong;
  task.batch_tokens = batch.batch_tokens;
  task.batch_samples = batch.batch_samples;
  task.seed = batch.seed;
  task.shuffle = batch.shuffle;
  task.model = request.model.name;
  task.cluster = request.cluster.name;
  task.dp = request.dp;
  task.pp = request.pp;
  task.tp = request.tp;
  task.chunks = request.chunks;
  task.head = request.head;
  task.recompute = request.recompute;
  task.granularity = request.granularity;
  task.max_cp = request.max_cp;
  task.evaluations = planners::evaluations(request);
  return task;
}

std::vector<report::ComparedStep> compared_steps(
    const std::vector<planners::PlanRequest>& requests) {
  std::vector<report::ComparedStep> steps;
  for (const planners::PlanRequest& request : requests) {
    report::ComparedStep step{
        request.batch.step, static_cast<std::int64_t>(request.batch.samples.size()), {}};
    for (const Tokens length : request.batch.samples) step.tokens += length;
    steps.push_back(step);
  }
  return steps;
}

std::vector<planners::PlannerInfo> chosen_planners(const std::vector<std::string>& names) {
  if (names.empty()) return {planners::registry().begin(), planners::registry().end()};
  std::vector<planners::PlannerInfo> chosen;
  for (const std::string& name : names) {
    const planners::PlannerInfo& planner = planners::find_planner(name);
    for (const planners::PlannerInfo& other : chosen) {
      require(other.name != planner.name, "--planners: a planner must be listed once", name);
    }
    chosen.push_back(planner);
  }
  return chosen;
}

void check_request_for(const planners::PlannerInfo& planner, const planners::PlanRequest& request) {
  const auto splits = [&](const planners::SlimpackVariant& variant) {
    return variant.name == planner.name && variant.options.weights;
  };
  planners::check_request(request, std::ranges::any_of(planners::kSlimpackVariants, splits),
                          planner.name == planners::kSlimpackVariants.front().name);
}

namespace {

/// The capacity of a device. Throws InvalidInput where nothing of it is left for a plan.
[[nodiscard]] Bytes parse_memory(const std::string& text, const Cluster& cluster) {
  const std::int64_t bytes = parse_size("--memory", text);
  if (bytes > cluster.reserved.value) return Bytes{bytes};
  const std::string hint = bytes < 10'000 ? fmt::format("for {0} GB write {0}G", bytes)
                                          : "give the bytes of a whole device, such as 80G";
  throw InvalidInput(fmt::format(
      "--memory: {} byte{} not more than the {} that are reserved on a device of {}, so nothing is "
      "left for a plan; {}",
      bytes, bytes == 1 ? " is" : "s are", cluster.reserved.value, cluster.name, hint));
}

/// Refuses documents that are longer than the context, with the options that allow them.
void refuse_overlong(const LengthSet& lengths, Tokens context) {
  std::int64_t longer = 0;
  std::size_t first = 0;
  Tokens longest;
  for (std::size_t i = 0; i < lengths.documents.size(); ++i) {
    if (lengths.documents[i] <= context) continue;
    if (longer++ == 0) first = i;
    longest = std::max(longest, lengths.documents[i]);
  }
  if (longer == 0) return;
  const std::string others = longer == 1 ? ""
                                         : fmt::format(", and so have {} others, the longest of {}",
                                                       longer - 1, longest.value);
  throw InvalidInput(
      fmt::format("{}: document {} (from 0) has {} tokens, more than the context of {}{}; "
                  "--overlong split cuts "
                  "such documents, --overlong drop leaves them out",
                  lengths.name, first, lengths.documents[first].value, context.value, others));
}

/// The cost model of --cost, which must have been measured for the request's model on its cluster.
/// `warning` becomes what its file does not tell.
[[nodiscard]] CostSpec cost_of(const std::string& path, const planners::PlanRequest& request,
                               std::string& warning) {
  CostFile file = cost_file_from_json(read_file(path), path);
  require_measured_for(file, path, request.model);
  require_measured_on(file, path, request.cluster);
  warning = unknown_origin(file, path);
  return std::move(file.cost);
}

/// The request of the options without its batch, and what the user should know of it.
[[nodiscard]] planners::PlanRequest request_without_batch(const CommonOptions& options,
                                                          std::string& warning) {
  planners::PlanRequest request;
  request.model = preset_or_file("--model", options.model, model_preset(options.model),
                                 model_presets(), model_from_json);
  const std::vector<Cluster> clusters = cluster_presets();
  request.cluster = preset_or_file(
      "--cluster", options.cluster, cluster_preset(options.cluster), clusters,
      [&](const auto& text, const auto& name) { return cluster_from_json(text, name, clusters); });
  if (!options.cost.empty()) request.cost = cost_of(options.cost, request, warning);
  request.dp = parse_count("--dp", options.dp);
  request.pp = parse_count("--pp", options.pp);
  request.tp = parse_count("--tp", options.tp);
  request.chunks = unless("auto", options.chunks,
                          [](const auto& text) { return parse_count("--chunks", text); });
  request.head = unless("auto", options.head, [](const auto& text) {
    return parse_word<LmHead>("--head", text, "auto");
  });
  request.recompute = unless("auto", options.recompute, [](const auto& text) {
    return parse_word<Recompute>("--recompute", text, "auto");
  });
  request.weights = unless("auto", options.weights, [](const auto& text) {
    return parse_word<WeightGradients>("--weights", text, "auto");
  });
  request.granularity = {parse_size("--granularity", options.granularity)};
  request.max_units = unless("auto", options.max_units,
                             [](const auto& text) { return parse_size("--max-units", text); });
  request.max_cp = unless("auto", options.max_cp, [](const auto& text) {
    return text == "off" ? std::int32_t{1} : parse_count("--max-cp", text);
  });
  request.optimizer = parse_word<OptimizerState>("--optimizer", options.optimizer);
  request.weight_state = unless("auto", options.weight_state, [](const auto& text) {
    return parse_word<WeightState>("--weight-state", text, "auto");
  });
  request.runtime = parse_word<planners::Runtime>("--runtime", options.runtime);
  if (request.runtime == planners::Runtime::torch) {
    require(request.tp == 1, "--tp: must be 1 with --runtime torch", request.tp);
    require(request.head != LmHead::shard, "--head: must be last with --runtime torch");
    request.head = LmHead::last;
    request.fewer_last_layers = 0;
    request.cluster.small.run_graphs = true;
  }
  if (!options.memory.empty()) {
    request.memory.capacity = parse_memory(options.memory, request.cluster);
  }
  request.effort = parse_word<planners::Effort>("--effort", options.effort);
  request.threads =
      options.threads == "auto"
          ? std::max(1, static_cast<std::int32_t>(std::thread::hardware_concurrency()))
          : parse_count("--threads", options.threads);
  require(options.step <= (std::uint64_t{1} << 40U), "--step: must be at most 2^40");
  return request;
}

}  // namespace

bool check_outputs(std::initializer_list<Output> outputs) {
  std::string names;
  for (const Output& output : outputs) {
    names.append(names.empty() ? "" : ", ").append(output.option);
  }
  std::map<std::string, std::string_view> files;
  bool standard = false;
  for (const Output& output : outputs) {
    if (output.path.empty()) continue;
    if (output.path == "-") {
      require(!standard, names + ": only one of them can go to standard output");
      standard = true;
      continue;
    }
    const std::string path(output.path);
    std::error_code ignored;
    const bool special =
        std::filesystem::exists(path, ignored) && !std::filesystem::is_regular_file(path, ignored);
    const auto [other, is_new] =
        files.emplace(special ? path + " of " + std::string(output.option)
                              : std::filesystem::absolute(path).lexically_normal().string(),
                      output.option);
    require(is_new,
            fmt::format("{}, {}: both would write '{}'", other->second, output.option, path));
    try {
      check_writable(path);
    } catch (const InvalidInput& error) {
      throw InvalidInput(fmt::format("{}: {}", output.option, error.what()));
    }
  }
  return standard;
}

void check_options(const CommonOptions& options) {
  std::string ignored;
  static_cast<void>(request_without_batch(options, ignored));
  static_cast<void>(batch_options(options));
}

void RequestMaker::put_standard_input(LengthSet lengths) {
  require_some(lengths);
  const auto documents = static_cast<std::int64_t>(lengths.documents.size());
  loaded_["-"] = {std::move(lengths), {"-", documents, {}}};
}

const RequestMaker::Loaded& RequestMaker::load(const std::string& path, bool quiet) {
  const auto found = loaded_.find(path);
  if (found != loaded_.end()) return found->second;
  Loaded loaded{load_lengths(path, quiet ? Tell{} : tell_), {}};
  loaded.source = {path, static_cast<std::int64_t>(loaded.lengths.documents.size()), {}};
  if (path != "-") loaded.source.sha256 = sha256_of_file(path);
  return loaded_.emplace(path, std::move(loaded)).first->second;
}

Tokens RequestMaker::longest(const std::string& path) const {
  return std::ranges::max(loaded_.at(path).lengths.documents);
}

std::vector<planners::PlanRequest> RequestMaker::make(const CommonOptions& options,
                                                      std::int64_t steps) {
  std::string warning;
  planners::PlanRequest request = request_without_batch(options, warning);
  if (!warning.empty() && told_.insert(warning).second) {
    tell_("slimpack: " + warning);
  }
  const BatchOptions batch = batch_options(options);
  request.context = batch.context;
  const Loaded& loaded = load(options.lengths, options.quiet);
  if (batch.overlong == Overlong::error) refuse_overlong(loaded.lengths, batch.context);
  request.sources.push_back(loaded.source);
  BatchStream stream(std::span(&loaded.lengths, 1), batch);
  const std::string what =
      fmt::format("{} {} {}", options.lengths, batch.context.value, options.overlong);
  if (stream.overlong().documents > 0 && !options.quiet && told_.insert(what).second) {
    tell_(fmt::format("{}: {} documents ({} tokens) longer than {} tokens were {}",
                      loaded.lengths.name, stream.overlong().documents,
                      stream.overlong().tokens.value, batch.context.value,
                      batch.overlong == Overlong::drop ? "dropped" : "cut"));
  }
  stream.skip(static_cast<std::int64_t>(options.step));
  std::vector<planners::PlanRequest> requests(static_cast<std::size_t>(steps), request);
  for (planners::PlanRequest& one : requests) one.batch = stream.next();
  return requests;
}

}  // namespace slimpack::app
