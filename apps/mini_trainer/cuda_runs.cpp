// SPDX-License-Identifier: Apache-2.0
// Training and profiles on GPUs.
#include <cstdlib>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>

#include "cuda_profile.hpp"
#include "cuda_ranks.hpp"
#include "runs.hpp"
#include "train.hpp"

namespace slimpack::trainer {

int run_on_cuda(const Options& options, [[maybe_unused]] int argc, [[maybe_unused]] char** argv) {
  // Streams of several ranks get hardware queues of their own, unless somebody has chosen.
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
#ifdef SLIMPACK_HAS_NCCL
  if (options.transport == Transport::nccl) return train_with_nccl(options);
#endif
  if (const auto why = cuda::why_no_device()) throw std::runtime_error("--backend cuda: " + *why);
  const auto gpus = static_cast<std::size_t>(cuda::device_count());
  std::optional<Plan> plan = plan_of(options);
  CudaThreadRanks ranks(rank_count(options, plan, gpus),
                        gemm_choices(options, gemm_choices_text_of(options)));
  const int status = options.profile.empty()
                         ? Run<CudaThreadRanks>(ranks, options, std::move(plan)).go()
                         : profile_on_cuda(options, ranks);
  const std::string chosen = chosen_text(ranks.gemm_choices());
  save_gemm_choices(options, std::span(&chosen, 1));
  return status;
}

}  // namespace slimpack::trainer
