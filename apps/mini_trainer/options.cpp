// SPDX-License-Identifier: Apache-2.0
#include "options.hpp"

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <string_view>

#include "../slimpack/sizes.hpp"
#include "slimpack/core/error.hpp"

namespace slimpack::trainer {
namespace {

using app::parse_count;
using app::parse_size;
using app::parse_word;

[[nodiscard]] double parse_real(std::string_view option, const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || !std::isfinite(value) ||
      value <= 0) {
    throw InvalidInput(std::string(option) + ": '" + text + "' is not a number > 0");
  }
  return value;
}

/// A whole number, 0 too.
[[nodiscard]] std::uint64_t parse_number(std::string_view option, const std::string& text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value > (1ULL << 53U)) {
    throw InvalidInput(std::string(option) + ": '" + text + "' is not a whole number >= 0");
  }
  return value;
}

/// What `parse` makes of the text; nothing where it is empty or `auto`.
template <class Parse>
[[nodiscard]] auto if_given(const std::string& text, Parse parse)
    -> std::optional<decltype(parse(text))> {
  if (text.empty() || text == "auto") return std::nullopt;
  return parse(text);
}

/// Backend, transport and numbers, which belong together. Refuses what other builds of this program
/// have.
void check_devices(const OptionTexts& texts, const Features& built, Options& options) {
  options.backend = parse_word<Backend>("--backend", texts.backend);
  const bool cuda = options.backend == Backend::cuda;
  require(!cuda || built.cuda, "--backend: this program is built for cpu alone", texts.backend);

  options.precision = cuda ? Precision::bf16 : Precision::fp32;
  if (!texts.dtype.empty()) {
    options.precision = parse_word<Precision>("--dtype", texts.dtype);
  }
  const bool bf16 = options.precision == Precision::bf16;
  require(cuda || !bf16, "--dtype: the cpu backend computes in fp32 or fp64", texts.dtype);
  require(!cuda || bf16, "--dtype: the cuda backend computes in bf16, with weights kept in fp32",
          texts.dtype);

  options.transport = parse_word<Transport>("--transport", texts.transport);
  const bool mpi = options.transport == Transport::mpi;
  const bool nccl = options.transport == Transport::nccl;
  require(!mpi || built.mpi, "--transport: this program is built without MPI", texts.transport);
  require(!mpi || !cuda, "--transport: the cuda backend has threads and nccl", texts.transport);
  require(!nccl || built.nccl, "--transport: this program is built without NCCL", texts.transport);
  require(!nccl || cuda, "--transport: nccl needs --backend cuda", texts.transport);

  options.gemm_candidates = parse_count("--gemm-candidates", texts.gemm_candidates);
  require(options.gemm_candidates == 1 || cuda, "--gemm-candidates: needs --backend cuda",
          options.gemm_candidates);
  options.gemm_choices = texts.gemm_choices;
  require(options.gemm_choices.empty() || cuda, "--gemm-choices: needs --backend cuda",
          texts.gemm_choices);
}

}  // namespace

void add_options(CLI::App& program, OptionTexts& texts) {
  const auto add = [&](const char* names, auto& value, const char* text) {
    program.add_option(names, value, text);
  };
  const auto add_default = [&](const char* names, auto& value, const char* text) {
    program.add_option(names, value, text)->capture_default_str();
  };
  add("--data", texts.data,
      "what to train on: .bin/.idx (Megatron), .jsonl with text, text files or folders, or "
      ".lengths "
      "(documents of these lengths with drawn tokens) [this repository's own files]");
  add("--eval-data", texts.eval_data, "what to evaluate on, never trained on [own files held out]");
  add_default("--model", texts.model, "preset, or a Hugging Face config.json");
  add("--vocabulary", texts.vocabulary,
      "tokens that the model has, or auto: the data's largest token and those below it, rounded up "
      "to a multiple of 64 [the model's]");
  add("--plan", texts.plan, "train on the one step of this plan.json, again and again");
  add_default("--planner", texts.planner, "see slimpack --list-planners");
  add("--dp", texts.dp, "data-parallel ranks [devices / pp / tp]");
  add("--pp", texts.pp, "pipeline stages [1]");
  add("--tp", texts.tp, "tensor-parallel devices of a stage [1]");
  add_default("--chunks", texts.chunks, "virtual stages a device, or auto");
  add_default("--head", texts.head, "vocabulary projection and loss: last, shard or auto");
  add_default("--recompute", texts.recompute, "none, light, layer, full or auto");
  add_default("--weight-state", texts.weight_state,
              "weights and gradients of data-parallel ranks: replicated, sharded (with --pp 1 and "
              "one chunk) or auto");
  add_default("--backend", texts.backend,
              "cpu or cuda; on cuda, ranks that are threads take turns on the GPUs there are, rank "
              "r on GPU r modulo their number; ranks of one GPU get equal parts of it");
  add_default("--transport", texts.transport,
              "threads, mpi (cpu; start with mpirun) or nccl (cuda; a process a GPU)");
  add("--dtype", texts.dtype, "fp32 or fp64 [fp32]; on cuda bf16, with weights kept in fp32");
  add_default("--gemm-candidates", texts.gemm_candidates,
              "on cuda, algorithms of a matrix product that are timed when it comes up for the "
              "first time; 1 takes the first that cuBLASLt proposes. With more, another run may "
              "choose otherwise and compute other last bits");
  add("--gemm-choices", texts.gemm_choices,
      "file for what --gemm-candidates above 1 has chosen, written at the end; without these, the "
      "file is read: its products take what it says, others the first, and none is timed");
  add("--cost", texts.cost,
      "a calibrated cost model [constants of a CPU core, or of the GPU's kind]");
  add("--memory", texts.memory, "bytes of a device [the machine's or GPU's, divided by its ranks]");
  add_default("--effort", texts.effort,
              "how many candidates of each step are simulated: fast, normal or thorough");
  add("--steps", texts.steps, "[650; with --plan 1]");
  add("--batch-tokens", texts.batch_tokens, "tokens a step holds at most [4096]");
  add_default("--context", texts.context, "longest sample, in tokens");
  add_default("--overlong", texts.overlong, "documents above the context: split, drop or error");
  add_default("--lr", texts.learning_rate, "learning rate after the warm-up; falls to a tenth");
  add("--warmup", texts.warmup, "steps until then [a twentieth of all]");
  add_default("--clip", texts.clip, "largest norm of the gradients");
  add_default("--seed", texts.seed, "of weights and of the order of documents");
  add("--init", texts.init, "begin with this model, a folder in the Hugging Face layout");
  add("--save", texts.save, "folder to save model and training into, at the end");
  add("--save-every", texts.save_every, "and every so many steps");
  add("--resume", texts.resume, "go on with the training that was saved in this folder");
  add("--log", texts.log, "what is printed, as JSON lines");
  add("--trace", texts.trace, "measured times of the last step; its plan is put beside it");
  program.add_flag("--turns", texts.turns,
                   "begin each step, once it is planned and a line says so, at a line on standard "
                   "input: runs of several planners can take turns, and the plans of --profile");
  program.add_flag("--check", texts.check,
                   "compare one planned step with the unsliced reference, and end");
  add("--profile", texts.profile, "measure what slimpack calibrate fits, and end");
}

Options check(const OptionTexts& texts, const Features& built) {
  Options options;
  check_devices(texts, built, options);
  options.data = texts.data;
  options.eval_data = texts.eval_data;
  options.model = texts.model;
  options.vocabulary_of_data = texts.vocabulary == "auto";
  options.vocabulary = if_given(texts.vocabulary, [](const std::string& text) {
    return std::int64_t{parse_count("--vocabulary", text)};
  });
  if (!texts.plan.empty()) options.plan = texts.plan;
  options.planner = texts.planner;
  const auto count = [](std::string_view name) {
    return [name](const std::string& text) { return parse_count(name, text); };
  };
  options.dp = if_given(texts.dp, count("--dp"));
  options.pp = if_given(texts.pp, count("--pp"));
  options.tp = if_given(texts.tp, count("--tp")).value_or(1);
  options.chunks = if_given(texts.chunks, count("--chunks"));
  options.head = if_given(
      texts.head, [](const std::string& text) { return parse_word<LmHead>("--head", text); });
  options.recompute = if_given(texts.recompute, [](const std::string& text) {
    return parse_word<Recompute>("--recompute", text);
  });
  options.weight_state = if_given(texts.weight_state, [](const std::string& text) {
    return parse_word<WeightState>("--weight-state", text);
  });
  options.cost = texts.cost;
  if (!texts.memory.empty()) options.memory = Bytes{parse_size("--memory", texts.memory)};
  options.effort = parse_word<planners::Effort>("--effort", texts.effort);
  options.steps =
      texts.steps.empty() ? (options.plan ? 1 : 650) : parse_size("--steps", texts.steps);
  options.batch_tokens = {
      texts.batch_tokens.empty() ? 4096 : parse_size("--batch-tokens", texts.batch_tokens)};
  options.context = {parse_size("--context", texts.context)};
  options.overlong = parse_word<Overlong>("--overlong", texts.overlong);
  options.learning_rate = parse_real("--lr", texts.learning_rate);
  options.clip = parse_real("--clip", texts.clip);
  options.warmup = texts.warmup.empty()
                       ? options.steps / 20
                       : static_cast<std::int64_t>(parse_number("--warmup", texts.warmup));
  require(options.warmup <= options.steps,
          "--warmup: must be at most --steps (" + std::to_string(options.steps) + ")",
          options.warmup);
  options.seed = parse_number("--seed", texts.seed);
  options.init = texts.init;
  options.save = texts.save;
  options.resume = texts.resume;
  require(options.init.empty() || options.resume.empty(),
          "--init: cannot be given beside --resume, which has weights of its own");
  if (!texts.save_every.empty()) {
    options.save_every = parse_size("--save-every", texts.save_every);
    require(!options.save.empty(), "--save-every: needs --save");
  }
  options.log = texts.log;
  options.trace = texts.trace;
  options.profile = texts.profile;
  options.turns = texts.turns;
  require(!options.turns || options.transport == Transport::threads,
          "--turns: ranks must be threads", texts.transport);
  options.check = texts.check;
  return options;
}

}  // namespace slimpack::trainer
