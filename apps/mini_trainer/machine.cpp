// SPDX-License-Identifier: Apache-2.0
// What planners are told about this machine.
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "slimpack/io/cost_file.hpp"
#include "slimpack/io/file.hpp"
#include "slimpack_cpu/profile_cluster.hpp"
#include "steps.hpp"

namespace slimpack::trainer {
namespace {

/// Bytes of this machine's memory, less a fifth for all else.
[[nodiscard]] std::int64_t machine_memory() {
  const std::int64_t pages = ::sysconf(_SC_PHYS_PAGES), size = ::sysconf(_SC_PAGESIZE);
  return pages > 0 && size > 0 ? pages / 5 * 4 * size : std::int64_t{1} << 32U;
}

}  // namespace

Cluster cores_as_cluster(const Options& options, std::size_t devices) {
  const auto ranks = static_cast<std::int64_t>(devices);
  return cpu::cpu_cluster(ranks, options.memory.value_or(Bytes{machine_memory() / ranks}));
}

CostSpec cost_of(const Options& options, const ModelShape& model, const MeasuredDevice& device,
                 std::vector<std::string>& notes) {
  if (options.cost.empty()) return AnalyticCost{};
  CostFile file = cost_file_from_json(read_file(options.cost), options.cost);
  require_measured_for(file, options.cost, model);
  require_measured_on(file, options.cost, device);
  if (std::string note = unknown_origin(file, options.cost); !note.empty()) {
    notes.push_back(std::move(note));
  }
  if (file.measured.device && file.measured.device->ranks != device.ranks) {
    notes.push_back(options.cost + ": ranks that worked at the same time while it was measured: " +
                    std::to_string(file.measured.device->ranks) + ", in this run: " +
                    std::to_string(device.ranks) + "; predicted times may be off");
  }
  return std::move(file.cost);
}

planners::PlanRequest base_request(const Options& options, const ModelShape& model,
                                   const CostSpec& cost, const RankKind& ranks,
                                   const Corpus& corpus) {
  planners::PlanRequest request;
  request.model = model;
  request.cluster = ranks.cluster;
  request.cost = cost;
  request.memory.gradient_bytes = ranks.element.gradient;
  request.memory.head_tile = ranks.head_tile;
  for (const runtime::TokenSource& source : corpus.sources) {
    request.sources.push_back({source.name(), static_cast<std::int64_t>(source.documents()), {}});
  }
  const auto count = static_cast<std::int32_t>(ranks.count);
  request.tp = options.tp;
  request.pp = options.pp.value_or(options.dp ? count / *options.dp / options.tp : 1);
  request.dp = options.dp.value_or(count / request.pp / options.tp);
  request.chunks = options.chunks;
  request.head = options.head;
  request.recompute = options.recompute;
  request.weight_state = options.weight_state;
  request.granularity = ranks.granularity;
  request.context = options.context;
  request.effort = options.effort;
  return request;
}

}  // namespace slimpack::trainer
