// SPDX-License-Identifier: Apache-2.0
// The mini-trainer: trains a Llama-style model on plans, on ranks that are threads or processes.
#include <csignal>
#include <exception>
#include <iostream>
#include <new>
#include <string>
#include <thread>

#include "options.hpp"
#include "ranks.hpp"
#include "slimpack/core/error.hpp"
#include "slimpack/cost/profile.hpp"
#include "slimpack/exec/executor.hpp"
#include "slimpack_cpu/profile.hpp"
#include "slimpack_cpu/profile_cluster.hpp"
#include "train.hpp"

namespace slimpack::trainer {

ModelShape model_of(const Options& options, std::int64_t element) {
  ModelShape model;
  const std::string& folder = options.init.empty() ? options.resume : options.init;
  if (!folder.empty()) {
    model = LlamaFolder::open(folder).model();
  } else if (auto preset = model_preset(options.model)) {
    model = *preset;
  } else {
    model = trainable_model(read_file(options.model), options.model);
  }
  model.bytes_per_element = element;
  return model;
}

namespace {

int fail(const std::string& sentence, int status) {
  std::cout.flush();
  std::cerr << "mini_trainer: " << sentence << '\n';
  return status;
}

/// The status of what `work` throws, after one sentence.
template <class Work>
int guarded(const Work& work) {
  try {
    return work();
  } catch (const InvalidInput& error) {
    return fail(error.what(), 2);
  } catch (const std::bad_alloc&) {
    return fail("out of memory", 1);
  } catch (const std::exception& error) {
    return fail(error.what(), 1);
  }
}

[[nodiscard]] std::optional<Plan> plan_of(const Options& options) {
  if (!options.plan) return std::nullopt;
  Plan plan = plan_from_json(read_file(*options.plan), *options.plan);
  exec::check_executable(plan);
  return plan;
}

/// Devices on threads: those of the plan or of the degrees, else one a core.
[[nodiscard]] std::size_t device_count(const Options& options, const std::optional<Plan>& plan) {
  if (plan) return plan->schedule.size();
  const std::size_t cores = std::max<std::size_t>(1, exec::allowed_cores().size());
  const auto dp = options.dp ? static_cast<std::size_t>(*options.dp) : 0;
  const auto pp = options.pp ? static_cast<std::size_t>(*options.pp) : 0;
  if (dp > 0) return dp * std::max<std::size_t>(pp, 1);
  return pp > 0 ? pp * std::max<std::size_t>(1, cores / pp) : cores;
}

/// --profile: what every rank takes while all of them work.
template <cpu::Mathematics Math>
int profile(const Options& options) {
  require(options.transport == Transport::threads,
          "--profile: ranks are threads while it measures; leave --transport out");
  const ModelShape model = model_of(options, sizeof(typename Math::Number));
  const std::size_t ranks = device_count(options, std::nullopt);
  const auto rows = cpu::measure_profile<Math>(model, cpu::profile_options(ranks, options.context));
  std::ostringstream text;
  write_profile(text, rows);
  write_file(options.profile, std::move(text).str());
  fmt::print("{}: {} measurements on {} ranks; next: slimpack calibrate {} -o cost.json\n",
             options.profile, rows.size(), ranks, options.profile);
  return 0;
}

template <cpu::Mathematics Math>
int train_on_threads(const Options& options) {
  std::optional<Plan> plan = plan_of(options);
  ThreadRanks<Math> ranks(device_count(options, plan));
  return Run<ThreadRanks<Math>>(ranks, options, std::move(plan)).go();
}

#ifdef SLIMPACK_HAS_MPI
template <cpu::Mathematics Math>
int train_on_processes(const Options& options, mpi::Session& session) {
  MpiRanks<Math> ranks(session);
  return Run<MpiRanks<Math>>(ranks, options, plan_of(options)).go();
}
#endif

int run(const Options& options, [[maybe_unused]] int argc, [[maybe_unused]] char** argv) {
  const bool fp32 = options.precision == Precision::fp32;
  if (!options.profile.empty()) {
    return fp32 ? profile<cpu::FastMath>(options) : profile<cpu::PlainMath>(options);
  }
#ifdef SLIMPACK_HAS_MPI
  if (options.transport == Transport::mpi) {
    return mpi::run(argc, argv, {}, [&](mpi::Session& session) {
      return fp32 ? train_on_processes<cpu::FastMath>(options, session)
                  : train_on_processes<cpu::PlainMath>(options, session);
    });
  }
#endif
  return fp32 ? train_on_threads<cpu::FastMath>(options)
              : train_on_threads<cpu::PlainMath>(options);
}

}  // namespace
}  // namespace slimpack::trainer

int main(int argc, char** argv) {
  namespace trainer = slimpack::trainer;
  // Without this a limit on the size of files ends the process without a word.
  std::signal(SIGXFSZ, SIG_IGN);
  CLI::App program{"Trains a small Llama-style model, step by planned step."};
  program.set_version_flag("--version", "mini_trainer " SLIMPACK_VERSION);
  trainer::OptionTexts texts;
  trainer::add_options(program, texts);
  try {
    program.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return program.exit(error);  // --help, --version
    return trainer::fail(std::string(error.what()) + " (see mini_trainer --help)", 2);
  }
  return trainer::guarded([&] { return trainer::run(trainer::check(texts), argc, argv); });
}
