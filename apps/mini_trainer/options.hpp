// SPDX-License-Identifier: Apache-2.0
// What the mini-trainer is asked to do.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/data/sample.hpp"
#include "slimpack/plan/names.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/planners/planner.hpp"

namespace CLI {  // NOLINT(readability-identifier-naming)
class App;
}

namespace slimpack::trainer {

/// What computes.
enum class Backend : std::uint8_t { cpu, cuda };
/// What carries messages between ranks.
enum class Transport : std::uint8_t { threads, mpi, nccl };
/// The numbers that devices compute with.
enum class Precision : std::uint8_t { fp32, fp64, bf16 };

}  // namespace slimpack::trainer

namespace slimpack {
template <>
inline constexpr std::array<std::string_view, 2> kWords<trainer::Backend>{"cpu", "cuda"};
template <>
inline constexpr std::array<std::string_view, 3> kWords<trainer::Transport>{"threads", "mpi",
                                                                            "nccl"};
template <>
inline constexpr std::array<std::string_view, 3> kWords<trainer::Precision>{"fp32", "fp64", "bf16"};
}  // namespace slimpack

namespace slimpack::trainer {

/// The backends and transports that this program was built with.
struct Features {
  bool cuda = false, mpi = false, nccl = false;
};

/// The options of `mini_trainer --help` as text; `check` makes values of them.
struct OptionTexts {
  std::vector<std::string> data, eval_data;
  std::string model = "tiny", vocabulary;
  std::string plan, planner = "slimpack";
  std::string dp, pp, tp, chunks = "auto", head = "auto", recompute = "auto";
  std::string weight_state = "auto";
  std::string backend = "cpu", transport = "threads", dtype, gemm_candidates = "1", gemm_choices;
  std::string cost, memory;
  std::string effort = "fast", steps, batch_tokens, context = "1024", overlong = "split";
  std::string learning_rate = "4e-3", warmup, clip = "1", seed = "0";
  std::string init, save, save_every, resume, log, trace, profile;
  bool turns = false, check = false;
};

/// The same as checked values. Where a model is saved that a run begins from, `model` is ignored.
struct Options {
  std::vector<std::string> data, eval_data;
  std::string model;
  std::optional<std::int64_t> vocabulary;  ///< in place of the model's
  bool vocabulary_of_data = false;         ///< as many as the data need, in place of the model's
  std::optional<std::string> plan;
  std::string planner;
  std::optional<std::int32_t> dp, pp, chunks;
  std::int32_t tp = 1;
  std::optional<LmHead> head;
  std::optional<Recompute> recompute;
  std::optional<WeightState> weight_state;
  Backend backend = Backend::cpu;
  Transport transport = Transport::threads;
  Precision precision = Precision::fp32;
  int gemm_candidates = 1;   ///< of proposed algorithms that are timed; 1: the first is taken
  std::string gemm_choices;  ///< file of choices: written where any are timed, else read
  std::string cost;
  std::optional<Bytes> memory;
  planners::Effort effort = planners::Effort::fast;
  std::int64_t steps = 1;
  Tokens batch_tokens, context;
  Overlong overlong = Overlong::split;
  double learning_rate = 0, clip = 0;
  std::int64_t warmup = 0;
  std::uint64_t seed = 0;
  std::string init, save, resume, log, trace, profile;
  std::int64_t save_every = 0;  ///< 0: at the end alone
  bool turns = false;           ///< a line on standard input begins each step
  bool check = false;
};

/// Adds all options to the parser, with their help texts and defaults.
void add_options(CLI::App& program, OptionTexts& texts);

/// Makes values of texts. Throws InvalidInput naming option, rule and value, also for a backend or
/// transport that `built` does not have.
[[nodiscard]] Options check(const OptionTexts& texts, const Features& built);

}  // namespace slimpack::trainer
