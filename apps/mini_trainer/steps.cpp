// SPDX-License-Identifier: Apache-2.0
#include "steps.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <span>
#include <utility>
#include <variant>

#include "slimpack/core/error.hpp"
#include "slimpack/io/cost_json.hpp"
#include "slimpack/io/file.hpp"
#include "slimpack/io/read_lengths.hpp"
#include "slimpack/planners/registry.hpp"
#include "slimpack/planners/search/layout.hpp"
#include "slimpack/runtime/arena_size.hpp"
#include "slimpack/runtime/open_tokens.hpp"
#include "slimpack/runtime/program.hpp"
#include "slimpack/runtime/text_tokens.hpp"
#include "slimpack/sim/simulate_plan.hpp"

namespace slimpack::trainer {
namespace {

/// The token behind the last byte: end of document, for models that have one.
[[nodiscard]] std::optional<std::int32_t> end_of_text(const ModelShape& model) {
  if (model.vocab <= runtime::kByteTokens) return std::nullopt;
  return static_cast<std::int32_t>(runtime::kByteTokens);
}

[[nodiscard]] bool is_lengths(std::string_view path) {
  return path.ends_with(".lengths");
}

/// Whether every token of a source is a byte of a text.
[[nodiscard]] bool is_text(const runtime::TokenSource& source) {
  return source.text_documents() == source.documents();
}

[[nodiscard]] Corpus open_paths(const std::vector<std::string>& paths, const ModelShape& model,
                                std::uint64_t seed) {
  Corpus corpus;
  corpus.rules.vocabulary = model.vocab;
  bool text = true;
  for (const std::string& path : paths) {
    if (is_lengths(path)) {
      corpus.sources.emplace_back(read_lengths(path), model.vocab, seed);
    } else {
      corpus.sources.push_back(runtime::open_tokens(path));
    }
    const runtime::TokenSource& source = corpus.sources.back();
    text = text && is_text(source);
    if (path.ends_with(".jsonl") && source.text_documents() > 0) {
      corpus.notes.push_back(fmt::format(
          "{}: {} of {} documents have the key 'text': its UTF-8 bytes are their tokens "
          "(0 .. 255), whatever the vocabulary ({}); for a tokenizer's ids write the "
          "key 'tokens' or 'input_ids'",
          path, source.text_documents(), source.documents(), model.vocab));
    }
  }
  if (text) corpus.rules.end_of_document = end_of_text(model);
  return corpus;
}

[[nodiscard]] Corpus open_own_files(const std::vector<std::string>& files, const char* name,
                                    const ModelShape& model) {
  Corpus corpus;
  corpus.rules = {model.vocab, end_of_text(model)};
  corpus.sources.push_back(runtime::open_text_files(files, name));
  return corpus;
}

[[nodiscard]] runtime::TextSplit own_text() {
  namespace fs = std::filesystem;
  std::error_code ignored;
  auto root = runtime::find_repository(fs::read_symlink("/proc/self/exe", ignored).string());
  if (!root) root = runtime::find_repository(fs::current_path(ignored).string());
  require(root.has_value(),
          "--data: must be given, for neither the program nor the working folder lies in the "
          "repository");
  return runtime::repository_text(*root);
}

/// What `read` gives. Where the vocabulary lacks a token, the refusal offers the way out.
template <class Read>
[[nodiscard]] auto within_vocabulary(const Options& options, const Read& read) {
  try {
    return read();
  } catch (const runtime::TokenOutsideVocabulary& error) {
    const std::string& folder = options.init.empty() ? options.resume : options.init;
    throw InvalidInput(error.what() +
                       (folder.empty() ? "; --vocabulary auto makes the model large enough for the "
                                         "data, --vocabulary N gives it N tokens"
                                       : "; the model saved in " + folder + " has no more tokens"));
  }
}

/// Buffers of messages are held as the plan's prediction has it. Devices that queue their work in
/// an order made beforehand wait for no late message: it may come behind the wait in that order.
[[nodiscard]] runtime::Program program_of(const Plan& plan, const RankKind& ranks) {
  runtime::Program program = runtime::make_program(plan);
  const sim::PlanSimulation simulation = sim::simulate_plan(plan);
  std::vector<Bytes> peaks;
  if (!ranks.placed) {
    for (const auto& peak : simulation.timeline.peak) peaks.push_back(peak.bytes);
  }
  runtime::keep_sends(program, sim::send_ends(plan, simulation), peaks);
  return program;
}

[[nodiscard]] std::vector<runtime::BufferLayout> arenas(const Plan& plan,
                                                        const runtime::Program& program,
                                                        const RankKind& ranks) {
  std::vector<runtime::BufferLayout> arenas;
  for (std::size_t here = 0; here < ranks.here; ++here) {
    const std::size_t device = ranks.first_here + here;
    if (ranks.placed) {
      arenas.push_back(runtime::buffer_layout(plan, program, device, ranks.element, ranks.alignment,
                                              ranks.behind));
    } else {
      arenas.push_back(
          {runtime::arena_bytes(plan, program, device, ranks.element, ranks.alignment), {}});
    }
  }
  return arenas;
}

/// How many layers fewer than an even part the last virtual stage of the plan holds.
[[nodiscard]] std::int32_t fewer_last_layers_of(const Plan& plan) {
  const bool last = plan.parallel.head == LmHead::last;
  for (std::int32_t fewer_last_layers = 0;
       last && fewer_last_layers <= planners::kMostFewerLastLayers; ++fewer_last_layers) {
    const std::int64_t stages = virtual_stages_of(plan).size();
    if ((plan.model.layers + fewer_last_layers) / stages <= fewer_last_layers) break;
    for (const bool spare : {false, true}) {
      if (planners::spread_layers(plan.model.layers, virtual_stages_of(plan), fewer_last_layers,
                                  spare) == plan.stages) {
        return fewer_last_layers;
      }
    }
  }
  return 0;
}

[[nodiscard]] BatchOptions batches_of(const Corpus& corpus, const Options& options, bool shuffle) {
  BatchOptions batch;
  batch.context = options.context;
  batch.overlong = options.overlong;
  batch.batch_tokens = options.batch_tokens;
  batch.seed = options.seed;
  batch.shuffle = shuffle;
  batch.end_of_document = corpus.rules.end_of_document.has_value();
  return batch;
}

}  // namespace

std::vector<LengthSet> Corpus::lengths() const {
  std::vector<LengthSet> all;
  for (const runtime::TokenSource& source : sources) all.push_back(source.lengths());
  return all;
}

std::int64_t vocabulary_of_data(const Options& options) {
  std::int64_t largest = options.data.empty() ? runtime::kByteTokens : -1;
  for (const auto* paths : {&options.data, &options.eval_data}) {
    bool text = true;
    for (const std::string& path : *paths) {
      if (is_lengths(path)) {
        text = false;
        continue;
      }
      const runtime::TokenSource source = runtime::open_tokens(path);
      largest = std::max(largest, source.largest_token());
      text = text && is_text(source);
    }
    if (text && !paths->empty()) largest = std::max(largest, runtime::kByteTokens);
  }
  require(largest >= 0, "--vocabulary: auto needs data with tokens, and .lengths have none");
  return (largest / kVocabularyMultiple + 1) * kVocabularyMultiple;
}

Corpus open_training(const Options& options, const ModelShape& model) {
  if (!options.data.empty()) return open_paths(options.data, model, options.seed);
  return open_own_files(own_text().training, "the repository's text", model);
}

Corpus open_held_out(const Options& options, const ModelShape& model) {
  if (!options.eval_data.empty()) return open_paths(options.eval_data, model, options.seed);
  if (!options.data.empty()) return {};
  return open_own_files(own_text().held_out, "the repository's text that is held out", model);
}

StepMaker::StepMaker(const Corpus& corpus, const Options& options, planners::PlanRequest request,
                     bool shuffle, RankKind ranks)
    : corpus_(corpus),
      options_(options),
      request_(std::move(request)),
      stream_(corpus.lengths(), batches_of(corpus, options, shuffle)),
      ranks_(std::move(ranks)) {}

void StepMaker::keep_partition(const Plan& plan) {
  request_.chunks = plan.parallel.chunks;
  request_.head = plan.parallel.head;
  request_.fewer_last_layers = fewer_last_layers_of(plan);
  request_.weight_state = plan.memory.weights;
  partitioned_ = true;
}

PreparedStep StepMaker::next() {
  const auto begin = std::chrono::steady_clock::now();
  request_.batch = stream_.next();
  runtime::StepTokens tokens = within_vocabulary(
      options_, [&] { return runtime::read_step(corpus_.sources, request_.batch, corpus_.rules); });
  planners::PlanOutcome outcome =
      planners::plan_step(planners::find_planner(options_.planner), request_);
  if (const auto* none = std::get_if<Infeasible>(&outcome.result)) {
    throw Unplannable(fmt::format("step {}: no feasible plan: {}: needed {}, available {}",
                                  request_.batch.step, none->constraint, none->needed,
                                  none->available));
  }
  PreparedStep step;
  step.plan = *planners::take_plan(std::move(outcome.result));
  if (!partitioned_) keep_partition(step.plan);
  step.program = program_of(step.plan, ranks_);
  step.data = {std::move(tokens.tokens), std::move(tokens.targets)};
  step.arena = arenas(step.plan, step.program, ranks_);
  step.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return step;
}

PreparedStep StepAhead::take() {
  if (!thread_.joinable()) return maker_.next();
  thread_.join();
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  PreparedStep step = std::move(*ready_);
  ready_.reset();
  return step;
}

void StepAhead::begin() {
  thread_ = std::thread([this] {
    try {
      ready_ = maker_.next();
    } catch (...) {
      failure_ = std::current_exception();
    }
  });
}

PreparedStep step_of_plan(const Corpus& corpus, const Options& options, const Plan& plan,
                          const RankKind& ranks) {
  require(plan.sources.size() == corpus.sources.size(),
          *options.plan + ": its sources must be as many as --data has (" +
              std::to_string(corpus.sources.size()) + ")",
          static_cast<std::int64_t>(plan.sources.size()));
  for (std::size_t i = 0; i < plan.sources.size(); ++i) {
    require(plan.sources[i].documents == static_cast<std::int64_t>(corpus.sources[i].documents()),
            *options.plan + ": source " + std::to_string(i) + " must have as many documents as " +
                corpus.sources[i].name() + " (" + std::to_string(corpus.sources[i].documents()) +
                ")",
            plan.sources[i].documents);
  }
  PreparedStep step;
  step.plan = plan;
  runtime::StepTokens tokens = within_vocabulary(options, [&] {
    return runtime::read_step(corpus.sources, plan.origin, plan.samples, corpus.rules);
  });
  // A plan made from lengths counts no end-of-document token.
  step.plan.target_tokens = tokens.target_tokens;
  step.program = program_of(step.plan, ranks);
  step.data = {std::move(tokens.tokens), std::move(tokens.targets)};
  step.arena = arenas(step.plan, step.program, ranks);
  return step;
}

}  // namespace slimpack::trainer
