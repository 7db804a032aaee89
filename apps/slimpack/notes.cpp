// SPDX-License-Identifier: Apache-2.0
#include "notes.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <iostream>
#include <string_view>

#include "slimpack/io/read_lengths.hpp"

namespace slimpack::app {
namespace {

/// "3 from 'tokens', 4 from 'text'" of the keys that were used.
[[nodiscard]] std::string keys_used(const LengthKeyCounts& counts) {
  std::string used;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] == 0) continue;
    used +=
        fmt::format("{}{} from '{}'", used.empty() ? "" : ", ", counts[i], kWords<LengthKey>[i]);
  }
  return used;
}

[[nodiscard]] double gigabytes(Bytes bytes) {
  return static_cast<double>(bytes.value) * 1e-9;
}

}  // namespace

void tell_on_standard_error(const std::string& line) {
  std::cerr << line << '\n';
}

LengthSet load_lengths(const std::string& path, const Tell& tell) {
  if (!path.ends_with(".jsonl")) return read_lengths(path);
  LengthKeyCounts counts{};
  LengthSet lengths = read_jsonl_lengths(path, &counts);
  if (!tell) return lengths;
  const bool bytes = counts[static_cast<std::size_t>(LengthKey::text)] > 0;
  tell(fmt::format("{}: document lengths: {}{}", path, keys_used(counts),
                   bytes ? "; the UTF-8 bytes of 'text' were counted as tokens, and a "
                           "tokenizer makes fewer of them"
                         : ""));
  return lengths;
}

std::string shape_text(const ModelShape& model, const Cluster& cluster, std::int64_t devices) {
  const std::int64_t tables = model.tied ? 1 : 2;
  const auto parameters =
      static_cast<double>(model.layers) * static_cast<double>(model.layer_weights()) +
      static_cast<double>(model.hidden) * (1 + static_cast<double>(tables * model.vocab));
  const bool billions = parameters >= 1e9;
  const std::int64_t nodes = (devices + cluster.devices_per_node - 1) / cluster.devices_per_node;
  return fmt::format(
      "{}: {} layers, {}/{} heads, {:.2f} {} parameters; {} device{} on {} node{} of {}",
      model.name, model.layers, model.heads, model.kv_heads, parameters * (billions ? 1e-9 : 1e-6),
      billions ? "B" : "M", devices, devices == 1 ? "" : "s", nodes, nodes == 1 ? "" : "s",
      cluster.name);
}

void tell_shape(const planners::PlanRequest& request, std::int64_t devices) {
  tell_on_standard_error(shape_text(request.model, request.cluster, devices));
}

MemoryLimit memory_limit(const planners::PlanRequest& request) {
  return {request.memory.capacity.value_or(request.cluster.memory),
          request.memory.reserved.value_or(request.cluster.reserved)};
}

std::string headroom_hint(Bytes peak, const MemoryLimit& limit) {
  const Bytes available = limit.capacity - limit.reserved;
  if (peak.value < available.value - available.value / 100) return {};
  const std::int64_t less = limit.capacity.value - limit.capacity.value / 10;
  if (less <= limit.reserved.value) return {};
  const bool large = less >= 10'000'000'000;
  return fmt::format("{:.2f} of {:.2f} GB; give --memory {}{} to plan with headroom",
                     gigabytes(peak), gigabytes(available),
                     less / (large ? 1'000'000'000 : 1'000'000), large ? "G" : "M");
}

}  // namespace slimpack::app
