// SPDX-License-Identifier: Apache-2.0
// Training and profiles on the cores of CPUs, by threads or processes.
#include <algorithm>
#include <sstream>
#include <utility>

#include "ranks.hpp"
#include "runs.hpp"
#include "slimpack/cost/profile.hpp"
#include "slimpack_cpu/profile.hpp"
#include "slimpack_cpu/profile_cluster.hpp"
#include "train.hpp"
#include "turns.hpp"

namespace slimpack::trainer {
namespace {

[[nodiscard]] std::size_t cores() {
  return std::max<std::size_t>(1, runtime::allowed_cores().size());
}

/// The least share of its cores' time with which a profile is trusted.
constexpr double kQuietShare = 0.9;

/// --profile: what every rank takes while all of them work.
template <cpu::Mathematics Math>
int profile(const Options& options) {
  require(options.transport == Transport::threads,
          "--profile: ranks are threads while it measures; leave --transport out");
  check_writable(options.profile);
  const ModelShape model = model_of(options, sizeof(typename Math::Number));
  const std::size_t ranks = rank_count(options, std::nullopt, cores());
  cpu::ProfileOptions asked = cpu::profile_options(ranks, options.context);
  asked.tensor_parallel = static_cast<std::size_t>(options.tp);
  asked.before_each = profile_turns(options);
  const cpu::MeasuredProfile measured = cpu::measure_profile<Math>(model, asked);
  std::ostringstream text;
  write_profile(text, {{measured_shape(model), cpu::measured_device(ranks)}, measured.rows});
  write_file(options.profile, std::move(text).str());
  const double percent = 100 * measured.core_share;
  fmt::print(
      "{}: {} measurements on {} ranks, which had {:.1f} % of their cores' time; next: "
      "slimpack calibrate {} -o cost.json\n",
      options.profile, measured.rows.size(), ranks, percent, options.profile);
  if (measured.core_share < kQuietShare) {
    std::fflush(stdout);
    fmt::print(stderr,
               "mini_trainer: --profile: other work took {:.1f} % of the cores' time, so predicted "
               "times may be off; measure again when less than {:.0f} % is taken\n",
               100 - percent, 100 - 100 * kQuietShare);
  }
  return 0;
}

template <cpu::Mathematics Math>
int train(const Options& options, [[maybe_unused]] int argc, [[maybe_unused]] char** argv) {
#ifdef SLIMPACK_HAS_MPI
  if (options.transport == Transport::mpi) {
    return mpi::run(argc, argv, {}, [&](mpi::Session& session) {
      MpiRanks<Math> ranks(session);
      return Run<CpuRanks<Math>>(ranks, options, plan_of(options)).go();
    });
  }
#endif
  std::optional<Plan> plan = plan_of(options);
  ThreadRanks<Math> ranks(rank_count(options, plan, cores()));
  return Run<CpuRanks<Math>>(ranks, options, std::move(plan)).go();
}

}  // namespace

int run_on_cpu(const Options& options, int argc, char** argv) {
  const bool fp32 = options.precision == Precision::fp32;
  if (!options.profile.empty()) {
    return fp32 ? profile<cpu::FastMath>(options) : profile<cpu::PlainMath>(options);
  }
  return fp32 ? train<cpu::FastMath>(options, argc, argv)
              : train<cpu::PlainMath>(options, argc, argv);
}

}  // namespace slimpack::trainer
