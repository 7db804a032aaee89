// SPDX-License-Identifier: Apache-2.0
// The training run on its ranks: plan, step, report, save.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

#include "check_step.hpp"
#include "checkpoints.hpp"
#include "options.hpp"
#include "report.hpp"
#include "slimpack/cost/presets.hpp"
#include "slimpack/io/file.hpp"
#include "slimpack/io/plan_json.hpp"
#include "slimpack/report/metrics.hpp"
#include "slimpack/report/trace.hpp"
#include "slimpack/runtime/learning_rate.hpp"
#include "slimpack/runtime/llama_config.hpp"
#include "steps.hpp"
#include "turns.hpp"

namespace slimpack::trainer {

/// Everything between the first plan and the last save, on any kind of ranks (ranks.hpp).
template <class Ranks>
class Run {
 public:
  using Device = typename Ranks::Device;

  Run(Ranks& ranks, const Options& options, std::optional<Plan> plan)
      : ranks_(ranks),
        options_(options),
        fixed_(std::move(plan)),
        model_(model_of(options, Device::element_sizes().element)),
        training_(open_training(options, model_)),
        held_out_(open_held_out(options, model_)),
        report_(ranks.is_root(), options.log, !options.resume.empty()) {
    std::vector<std::string> notes = training_.notes;
    notes.insert(notes.end(), held_out_.notes.begin(), held_out_.notes.end());
    cost_ = cost_of(options, model_, ranks.device(), notes);
    for (const std::string& note : notes) report_.warn(note);
    if (fixed_) {
      require(fixed_->model == model_,
              *options.plan + ": must be of the model of this run (" + model_.name + ", " +
                  std::to_string(model_.bytes_per_element) + " bytes an element)");
    }
  }

  /// The exit status.
  int go() {
    begin();
    if (options_.check) return check();
    for (std::int64_t step = done_ + 1; step <= options_.steps; ++step) {
      const double waited = take_step(step);
      if (options_.turns) await_turn(step);
      train(step, waited);
      const bool last = step == options_.steps;
      if (last && !options_.trace.empty()) write_trace();
      const bool save = options_.save_every > 0 && step % options_.save_every == 0;
      if (!options_.save.empty() && (save || last)) save_run(step);
      if (last || save) evaluate(step);
    }
    return 0;
  }

 private:
  using Clock = std::chrono::steady_clock;
  [[nodiscard]] static double since(Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  }

  /// Documents and tokens.
  [[nodiscard]] static std::pair<std::int64_t, std::int64_t> size_of(const Corpus& corpus) {
    std::int64_t documents = 0, tokens = 0;
    for (const runtime::TokenSource& source : corpus.sources) {
      documents += static_cast<std::int64_t>(source.documents());
      for (std::size_t i = 0; i < source.documents(); ++i) tokens += source.length(i).value;
    }
    return {documents, tokens};
  }

  [[nodiscard]] StepMaker maker(const Corpus& corpus, bool shuffle) {
    RankKind kind = rank_kind();
    planners::PlanRequest request = base_request(options_, model_, cost_, kind, corpus);
    const std::int64_t devices = planners::all_devices(request);
    require(devices == static_cast<std::int64_t>(ranks_.size()),
            std::string("--dp x --pp") + (request.tp > 1 ? " x --tp" : "") +
                " must be the number of devices (" + std::to_string(ranks_.size()) + ")",
            devices);
    return {corpus, options_, std::move(request), shuffle, std::move(kind)};
  }
  [[nodiscard]] RankKind rank_kind() {
    const ModelShape part = runtime::part_of(model_, fixed_ ? fixed_->parallel.tp : options_.tp);
    return {ranks_.cluster(options_, model_),
            Device::element_sizes(),
            Device::alignment(part),
            Device::behind(part),
            Device::kPlaced,
            Device::kGranularity,
            Device::kHeadTile,
            ranks_.size(),
            ranks_.first(),
            ranks_.here()};
  }

  void begin() {
    std::optional<runtime::Checkpoint> saved;
    std::optional<runtime::LlamaFolder> weights;
    if (!options_.resume.empty()) saved = runtime::Checkpoint::open(options_.resume);
    if (!options_.init.empty()) weights = runtime::LlamaFolder::open(options_.init);
    if (saved) {
      runtime::require_same_settings(saved->state(), settings(), options_.resume);
      state_ = saved->state();
      done_ = state_.step;
    }
    check_results();
    if (fixed_) {
      current_ = step_of_plan(training_, options_, *fixed_, rank_kind());
    } else {
      ahead_.emplace(maker(training_, true));
      current_ = ahead_->take();
      if (state_.batches > 0) {
        // A resumed run has the partition that the first step gave to the run, hence the same
        // plans.
        ahead_->maker().skip(state_.batches - 1);
        current_ = ahead_->take();
      }
      report_.say(describe(current_.plan));
    }
    ranks_.make_devices(current_.plan, options_.seed, adamw(std::max<std::int64_t>(done_, 1)));
    if (saved) load_training(ranks_, *saved);
    if (weights) load_weights(ranks_, *weights);
  }

  /// Refuses before the first step what could not be written after the last.
  void check_results() {
    if (!ranks_.is_root() || options_.check) return;
    if (!options_.save.empty()) {
      std::error_code error;
      const bool there = std::filesystem::exists(options_.save, error);
      {  // whether a checkpoint finds a folder that takes it, and room; it is taken back at once
        const runtime::CheckpointDraft draft(
            options_.save, form_of<Ranks>(model_, options_.context.value), state_);
      }
      if (!there) std::filesystem::remove_all(options_.save, error);
    }
    if (!options_.trace.empty()) {
      check_writable(options_.trace);
      check_writable(plan_beside(options_.trace));
    }
  }

  [[nodiscard]] static std::string plan_beside(const std::string& trace) {
    return std::filesystem::path(trace).replace_extension(".plan.json").string();
  }

  [[nodiscard]] typename Device::Settings adamw(std::int64_t step) const {
    typename Device::Settings settings;
    settings.learning_rate = runtime::learning_rate(
        {options_.learning_rate, options_.learning_rate / 10, options_.warmup, options_.steps},
        std::min(step, options_.steps));
    settings.largest_norm = options_.clip;
    return settings;
  }

  /// What must be equal in a resumed run, so that it has the same bits on the same backend. The
  /// type is that of saved weights and moments: fp32 of the CPU goes on in bf16 on a GPU, and back.
  [[nodiscard]] std::map<std::string, std::string> settings() const {
    std::map<std::string, std::string> all{
        {"steps", std::to_string(options_.steps)},
        {"batch-tokens", std::to_string(options_.batch_tokens.value)},
        {"context", std::to_string(options_.context.value)},
        {"overlong", std::to_string(static_cast<int>(options_.overlong))},
        {"lr", fmt::format("{}", options_.learning_rate)},
        {"warmup", std::to_string(options_.warmup)},
        {"clip", fmt::format("{}", options_.clip)},
        {"seed", std::to_string(options_.seed)},
        {"dtype", Device::kStored == runtime::ElementType::f32 ? "fp32" : "fp64"}};
    const auto [documents, tokens] = size_of(training_);
    all.emplace("documents", std::to_string(documents));
    all.emplace("tokens of all documents", std::to_string(tokens));
    return all;
  }

  [[nodiscard]] std::string describe(const Plan& plan) const {
    std::int64_t weights = 0;
    for (const runtime::NamedShape& tensor : runtime::llama_tensors(model_))
      weights += tensor.elements();
    const auto [documents, tokens] = size_of(training_);
    return fmt::format(
        "{}, {} weights in {}, vocabulary {}; {} documents, {} tokens; {} ranks (dp {}, pp {}, {}"
        "chunks {}, head {}{}), planner {}{}",
        model_.name, weights, Device::kNumbers, model_.vocab, documents, tokens, ranks_.size(),
        plan.parallel.dp, plan.parallel.pp,
        plan.parallel.tp > 1 ? fmt::format("tp {}, ", plan.parallel.tp) : "", plan.parallel.chunks,
        plan.parallel.head == LmHead::shard ? "on all stages" : "on the last stage",
        plan.memory.weights == WeightState::sharded ? ", weights sharded" : "", plan.planner,
        Device::describe(plan));
  }

  /// Buffers come from arenas that grow with the largest step so far.
  void prepare(const PreparedStep& step) {
    std::size_t i = 0;
    ranks_.each([&](Device& device) { device.prepare(step.arena[i++]); });
  }

  /// Makes `current_` the step that is next, and gives the seconds that it was waited for.
  double take_step(std::int64_t step) {
    const auto begin = Clock::now();
    if (!fixed_ && step > done_ + 1) current_ = ahead_->take();
    return since(begin);
  }

  /// Returns when another process gives this one the cores.
  void await_turn(std::int64_t step) {
    const std::string what = "step " + std::to_string(step);
    report_.say("ready for " + what);
    await_line(what);
  }

  void train(std::int64_t step, double waited) {
    StepReport line;
    line.waited = waited;
    line.planning = current_.seconds;
    // Where runs take turns nobody plans while another one is measured.
    if (!fixed_ && !options_.turns && step < options_.steps) ahead_->begin();
    const Plan& plan = current_.plan;
    ranks_.check_same_plan(plan);
    prepare(current_);
    for (auto& device : ranks_.local()) device.set_settings(adamw(step));
    const auto begin = Clock::now();
    const runtime::StepResult result = ranks_.run(plan, current_.program, current_.data);
    line.measured = since(begin);
    line.step = step;
    line.steps = options_.steps;
    line.loss = result.loss;
    line.gradient_norm = ranks_.local().front().gradient_norm();
    line.learning_rate = ranks_.local().front().settings().learning_rate;
    for (const Tokens length : plan.samples) line.tokens += length.value;
    line.targets = plan.target_tokens;
    line.samples = static_cast<std::int64_t>(plan.samples.size());
    line.micropacks = static_cast<std::int64_t>(plan.micropacks.size());
    line.predicted = seconds(plan.prediction.iteration);
    line.mfu = report::model_flops(plan) /
               (plan.cluster.peak_flops * line.measured * static_cast<double>(ranks_.size()));
    for (const Bytes peak : result.peak) line.peak = std::max(line.peak, peak.value);
    for (const DevicePrediction& device : plan.prediction.devices) {
      line.predicted_peak = std::max(line.predicted_peak, device.peak.value);
    }
    state_.step = step;
    state_.batches = step;
    state_.tokens += line.tokens;
    state_.seed = options_.seed;
    state_.loss = result.loss;
    state_.loss_sum += result.loss;
    report_.step(line);
  }

  void save_run(std::int64_t step) {
    runtime::TrainingState state = state_;
    state.settings = settings();
    save_training(ranks_, options_.save, current_.plan, options_.context.value, state);
    report_.saved(step, options_.save);
  }

  /// The mean loss over files that are never trained on, each token once, of at most
  /// kHeldOutTokens.
  void evaluate(std::int64_t step) {
    if (held_out_.sources.empty()) return;
    const auto begin = Clock::now();
    const std::int64_t all = std::min(size_of(held_out_).second, kHeldOutTokens);
    StepMaker steps = maker(held_out_, false);
    steps.keep_partition(current_.plan);
    for (auto& device : ranks_.local()) device.set_evaluating(true);
    double loss = 0;
    std::int64_t targets = 0, tokens = 0;
    std::set<std::tuple<std::int64_t, std::int64_t, std::int64_t>> seen;
    while (tokens < all) {
      const PreparedStep one = steps.next();
      prepare(one);
      const runtime::StepResult result = ranks_.run(one.plan, one.program, one.data);
      for (std::size_t sample = 0; sample < one.plan.samples.size(); ++sample) {
        const Origin& origin = one.plan.origin[sample];
        tokens += one.plan.samples[sample].value;
        if (!seen.emplace(origin.source, origin.document, origin.first.value).second) continue;
        loss += result.sample_loss[sample];
        for (const auto& target : one.data.targets[sample]) targets += target ? 1 : 0;
      }
    }
    for (auto& device : ranks_.local()) device.set_evaluating(false);
    report_.held_out(step, loss / static_cast<double>(targets), targets, since(begin));
  }

  int check() {
    cpu::Tensors weights = cpu::initial_weights(model_, options_.seed);
    if (!options_.init.empty() || !options_.resume.empty()) {
      const runtime::LlamaFolder folder =
          runtime::LlamaFolder::open(options_.init.empty() ? options_.resume : options_.init);
      for (auto& [name, weight] : weights) folder.read(name, 0, std::span(weight.values));
    }
    for (auto& [name, weight] : weights) {
      for (double& value : weight.values) value = Device::rounded(value);
    }
    ranks_.check_same_plan(current_.plan);
    prepare(current_);
    const runtime::StepResult result = ranks_.run(current_.plan, current_.program, current_.data);
    const cpu::ReferenceResult reference = cpu::reference_step(model_, weights, current_.data);
    std::string tensor;
    const double gradients = ranks_.most(gradient_difference(ranks_, reference, tensor));
    const double loss = std::abs(result.loss - reference.loss) / std::abs(reference.loss);
    const double allowed = Device::kTolerance;
    const bool good = gradients <= allowed && loss <= allowed;
    report_.say(fmt::format(
        "check: loss {:.9g}, reference {:.9g}, relative difference {:.2e}; largest difference of a "
        "gradient {:.2e} in {} (over the tensor's largest value); allowed {:.0e}: {}",
        result.loss, reference.loss, loss, gradients, tensor, allowed, good ? "passed" : "failed"));
    return good ? 0 : 1;
  }

  void write_trace();

  static constexpr std::int64_t kHeldOutTokens = 65'536;

  Ranks& ranks_;
  const Options& options_;
  std::optional<Plan> fixed_;
  ModelShape model_;
  Corpus training_, held_out_;
  Reporter report_;
  CostSpec cost_;
  std::optional<StepAhead> ahead_;
  PreparedStep current_;
  runtime::TrainingState state_;
  std::int64_t done_ = 0;  ///< steps of the run that is resumed
};

template <class Ranks>
void Run<Ranks>::write_trace() {
  const auto times = ranks_.times();
  if (!ranks_.is_root()) return;
  // Tensor-parallel devices run in step; the first shows what a stage does.
  const auto parts = static_cast<std::size_t>(current_.plan.parallel.tp);
  std::vector<report::MeasuredUnit> units;
  for (std::size_t device = 0; device < times.size(); device += parts) {
    for (std::size_t unit = 0; unit < times[device].size(); ++unit) {
      units.push_back({device / parts, unit, times[device][unit].begin, times[device][unit].end});
    }
  }
  std::ostringstream trace;
  report::write_measured_trace(trace, current_.plan, units);
  write_file(options_.trace, std::move(trace).str());
  const std::string plan = plan_beside(options_.trace);
  write_file(plan, plan_to_json(current_.plan));
  report_.say(
      fmt::format("measured times of the last step: {}, its plan: {}", options_.trace, plan));
}

}  // namespace slimpack::trainer
