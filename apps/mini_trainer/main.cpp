// SPDX-License-Identifier: Apache-2.0
// The mini-trainer: trains a Llama-style model on plans, on ranks that are threads or processes.
#include <CLI/CLI.hpp>
#include <csignal>
#include <exception>
#include <iostream>
#include <new>
#include <string>

#include "commit.hpp"
#include "options.hpp"
#include "runs.hpp"
#include "slimpack/core/error.hpp"

namespace slimpack::trainer {
namespace {

[[nodiscard]] Features built() {
  Features features;
#ifdef SLIMPACK_HAS_CUDA
  features.cuda = true;
#endif
#ifdef SLIMPACK_HAS_MPI
  features.mpi = true;
#endif
#ifdef SLIMPACK_HAS_NCCL
  features.nccl = true;
#endif
  return features;
}

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

int run(const Options& options, int argc, char** argv) {
#ifdef SLIMPACK_HAS_CUDA
  if (options.backend == Backend::cuda) return run_on_cuda(options, argc, argv);
#endif
  return run_on_cpu(options, argc, argv);
}

}  // namespace
}  // namespace slimpack::trainer

int main(int argc, char** argv) {
  namespace trainer = slimpack::trainer;
  // Without this a limit on the size of files ends the process without a word.
  std::signal(SIGXFSZ, SIG_IGN);
  CLI::App program{"Trains a small Llama-style model, step by planned step."};
  program.set_version_flag("--version", slimpack::version_line("mini_trainer"));
  trainer::OptionTexts texts;
  trainer::add_options(program, texts);
  try {
    program.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return program.exit(error);  // --help, --version
    return trainer::fail(std::string(error.what()) + " (see mini_trainer --help)", 2);
  }
  return trainer::guarded(
      [&] { return trainer::run(trainer::check(texts, trainer::built()), argc, argv); });
}
