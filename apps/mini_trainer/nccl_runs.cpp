// SPDX-License-Identifier: Apache-2.0
// Training on GPUs with a process each.
#include <cstddef>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "nccl_ranks.hpp"
#include "runs.hpp"
#include "slimpack_processes/launch.hpp"
#include "train.hpp"

namespace slimpack::trainer {
namespace {

/// What a rank says of its GPU: the machine and the GPU's number there as the launcher has it.
[[nodiscard]] std::string name_of_gpu(const processes::Session& session, int gpu) {
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  std::string_view list = visible == nullptr ? std::string_view{} : visible;
  std::string number = std::to_string(gpu);
  for (int i = 0; !list.empty(); ++i) {
    const std::size_t comma = std::min(list.find(','), list.size());
    if (i == gpu) number = list.substr(0, comma);
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return "GPU " + number + " of " + session.hosts()[session.rank()];
}

}  // namespace

void choose_gpu(processes::Session& session) {
  const std::size_t local = session.launch().local_rank;
  const auto why = cuda::why_no_device();
  if (why) throw std::runtime_error("--backend cuda: " + *why);
  const auto gpus = static_cast<std::size_t>(cuda::device_count());
  const bool own = gpus == 1 && std::getenv("CUDA_VISIBLE_DEVICES") != nullptr;
  if (local >= gpus && !own) {
    throw std::runtime_error("--transport nccl: " + session.hosts()[session.rank()] + " has " +
                             std::to_string(gpus) + (gpus == 1 ? " GPU" : " GPUs") +
                             ", but this is its rank " + std::to_string(local) +
                             " (counted from 0); each rank needs a GPU of its own");
  }
  const int gpu = own ? 0 : static_cast<int>(local);
  const std::string mine = name_of_gpu(session, gpu);
  std::string said;
  const auto all = session.gather(std::as_bytes(std::span(mine)));
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    for (std::size_t other = 0; other < rank && said.empty(); ++other) {
      if (all[rank] != all[other]) continue;
      said = "--transport nccl: ranks " + std::to_string(other) + " and " + std::to_string(rank) +
             " have the same " +
             std::string(reinterpret_cast<const char*>(all[rank].data()), all[rank].size()) +
             "; each rank needs one of its own";
    }
  }
  const auto shared = session.share(processes::bytes_of(std::span<const char>(said)));
  if (!shared.empty()) {
    throw std::runtime_error(
        std::string(reinterpret_cast<const char*>(shared.data()), shared.size()));
  }
  cuda::set_device(gpu);
}

int train_with_nccl(const Options& options) {
  require(options.profile.empty(),
          "--profile: ranks are threads while it measures; leave --transport out");
  processes::Session session(processes::launch_of(processes::environment()));
  return processes::run(session, [&](processes::Session& here) {
    NcclRanks ranks(here, options);
    const int status = Run<NcclRanks>(ranks, options, plan_of(options)).go();
    ranks.save_choices(options);
    return status;
  });
}

}  // namespace slimpack::trainer
