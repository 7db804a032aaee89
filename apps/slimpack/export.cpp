// SPDX-License-Identifier: Apache-2.0
// slimpack export: what the variable-length attention of each MicroPack of a device reads.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "command.hpp"
#include "progress.hpp"
#include "sizes.hpp"
#include "slimpack/io/file.hpp"
#include "slimpack/io/npy.hpp"
#include "slimpack/io/plan_json.hpp"
#include "slimpack/plan/cp_shard.hpp"
#include "slimpack/plan/virtual_stages.hpp"
#include "slimpack/validate/validate.hpp"

namespace slimpack::app {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

/// The arrays of one MicroPack on one rank of its group. A segment is a run of consecutive query
/// rows of a sample; row i of a segment of n rows and m keys sees keys 0 .. m - n + i.
struct PackArrays {
  std::vector<std::int32_t> cu_seqlens_q{0};
  std::vector<std::int32_t> cu_seqlens_k{0};
  std::vector<std::int32_t> segment_sample;
  std::vector<std::int32_t> position_ids;
  std::vector<std::int64_t> token_source, token_document, token_offset;
};

/// Appends the next cumulative count. Throws InvalidInput beyond 32 bits, which is what
/// variable-length attention kernels count with.
void append(std::vector<std::int32_t>& cumulative, Tokens more) {
  const std::int64_t next = cumulative.back() + more.value;
  require(next <= std::numeric_limits<std::int32_t>::max(),
          "a MicroPack has more tokens than a 32-bit cu_seqlens can count", next);
  cumulative.push_back(static_cast<std::int32_t>(next));
}

[[nodiscard]] PackArrays arrays_of(const Plan& plan, const MicroPack& pack, const CpShard& shard) {
  PackArrays arrays;
  for (const Slice& slice : pack.slices) {
    const Origin& origin = plan.origin[index(slice.sample)];
    shard.for_each_run(slice.begin, slice.end, [&](Tokens first, Tokens last) {
      append(arrays.cu_seqlens_q, last - first);
      append(arrays.cu_seqlens_k, last);
      arrays.segment_sample.push_back(static_cast<std::int32_t>(index(slice.sample)));
      for (Tokens position = first; position < last; position += Tokens{1}) {
        arrays.position_ids.push_back(static_cast<std::int32_t>(position.value));
        arrays.token_source.push_back(origin.source);
        arrays.token_document.push_back(origin.document);
        arrays.token_offset.push_back((origin.first + position).value);
      }
    });
  }
  return arrays;
}

template <class Integer>
void write_array(const fs::path& folder, const char* name, const std::vector<Integer>& values) {
  write_file((folder / (std::string(name) + ".npy")).string(),
             npy_bytes(std::span<const Integer>(values)));
}

[[nodiscard]] const char* to_string(Recompute mode) {
  switch (mode) {
    case Recompute::none:
      return "none";
    case Recompute::light:
      return "light";
    case Recompute::layer:
      return "layer";
    case Recompute::full:
      return "full";
  }
  return "none";
}

/// Writes the arrays of one MicroPack and gives its entry in index.json.
[[nodiscard]] Json export_pack(const Plan& plan, PackId id, std::int32_t dp, const fs::path& root) {
  const MicroPack& pack = plan.micropacks[index(id)];
  const std::vector<std::int32_t>& group = plan.groups[index(pack.group)];
  const auto rank = static_cast<std::size_t>(std::ranges::find(group, dp) - group.begin());
  const PackArrays arrays = arrays_of(plan, pack, cp_shard_of(plan, pack.group, rank));

  const std::string name = fmt::format("pack{:06}", index(id));
  const fs::path folder = root / name;
  fs::create_directory(folder);
  write_array(folder, "cu_seqlens_q", arrays.cu_seqlens_q);
  write_array(folder, "cu_seqlens_k", arrays.cu_seqlens_k);
  write_array(folder, "segment_sample", arrays.segment_sample);
  write_array(folder, "position_ids", arrays.position_ids);
  write_array(folder, "token_source", arrays.token_source);
  write_array(folder, "token_document", arrays.token_document);
  write_array(folder, "token_offset", arrays.token_offset);

  const bool forward = pack.pass == Pass::forward;
  Json entry{{"id", index(id)},
             {"folder", name},
             {"pass", forward ? "forward" : "backward"},
             {"group", group},
             {"tokens", arrays.position_ids.size()},
             {"segments", arrays.segment_sample.size()}};
  if (!forward) entry["recompute"] = to_string(pack.recompute);
  if (!pack.exchange.empty()) {
    entry["exchange"] = Json::array();
    for (const RingMode mode : pack.exchange) {
      entry["exchange"].push_back(mode == RingMode::pass_kv ? "kv" : "q");
    }
  }
  return entry;
}

[[nodiscard]] Json unit_entry(const Unit& unit) {
  switch (unit.kind) {
    case UnitKind::forward:
      return {"F", index(unit.pack), unit.chunk};
    case UnitKind::backward:
      return {"B", index(unit.pack), unit.chunk};
    case UnitKind::head:
      return {"H", index(unit.pack)};
    case UnitKind::reduce:
      return {"R", unit.chunk};
    case UnitKind::optimizer:
      return Json::array({"O"});
  }
  return nullptr;
}

void write_all(const Plan& plan, const DeviceSchedule& device, const fs::path& root) {
  std::vector<PackId> packs;
  Json order = Json::array();
  for (const Unit& unit : device.order) {
    order.push_back(unit_entry(unit));
    if (unit.kind == UnitKind::forward || unit.kind == UnitKind::backward) {
      packs.push_back(unit.pack);
    }
  }
  std::ranges::sort(packs);
  packs.erase(std::unique(packs.begin(), packs.end()), packs.end());

  Json entries = Json::array();
  Progress progress("exporting");
  for (const PackId pack : packs) {
    entries.push_back(export_pack(plan, pack, device.dp, root));
    progress(static_cast<std::int64_t>(entries.size()), static_cast<std::int64_t>(packs.size()));
  }
  Json stages = Json::array();
  for (const Stage& stage : plan.stages) {
    if (stage.pp == device.pp) {
      stages.push_back({{"chunk", stage.chunk},
                        {"layers", {stage.first_layer, stage.end_layer}},
                        {"embedding", stage.embedding}});
    }
  }
  const Json document{{"format", "slimpack-export"},
                      {"version", 1},
                      {"dp", device.dp},
                      {"pp", device.pp},
                      {"stages", std::move(stages)},
                      {"micropacks", std::move(entries)},
                      {"order", std::move(order)}};
  write_file((root / "index.json").string(), document.dump(1) + "\n");
}

int run(const std::string& path, const std::string& dp_text, const std::string& pp_text,
        const std::string& output) {
  const Plan plan = read_plan_file(path);
  const auto rank = [](std::string_view option, const std::string& text, std::int32_t degree) {
    const std::int32_t value = text == "0" ? 0 : parse_count(option, text);
    require(value < degree, fmt::format("{}: must be below the plan's {}", option, degree), value);
    return value;
  };
  const std::int32_t dp = rank("--dp", dp_text, plan.parallel.dp);
  const std::int32_t pp = rank("--pp", pp_text, plan.parallel.pp);
  const Validation validation = validate(plan);
  if (!validation.valid()) {
    std::cerr << fmt::format("slimpack: {}: is not valid (rule {}: {}), nothing was exported\n",
                             path, validation.violations.front().rule,
                             validation.violations.front().message);
    return 1;
  }
  std::error_code error;
  require(!fs::exists(output, error) ||
              (fs::is_directory(output, error) && fs::is_empty(output, error)),
          "-o: must be a new or an empty folder", output);
  // Written beside the folder and renamed, so that no half-written export is ever found there.
  const fs::path target = fs::path(output).lexically_normal();
  const fs::path named = target.has_filename() ? target : target.parent_path();
  const fs::path staging = named.string() + fmt::format(".partial.{}", ::getpid());
  require(fs::create_directories(staging, error),
          fmt::format("-o: '{}' cannot be made ({})", staging.string(), error.message()));
  try {
    write_all(plan, plan.schedule[device_index(plan, dp, pp)], staging);
    fs::remove(named, error);
    fs::rename(staging, named);
  } catch (...) {
    fs::remove_all(staging, error);
    throw;
  }
  std::cout << fmt::format("{}: device dp {} pp {} of {}\n", named.string(), dp, pp, path);
  return 0;
}

}  // namespace

Run add_export(CLI::App& command) {
  struct Options {
    std::string plan, dp = "0", pp = "0", output;
  };
  auto options = std::make_shared<Options>();
  command.add_option("PLAN", options->plan, "plan.json, or - for standard input")->required();
  command.add_option("--dp", options->dp, "data-parallel rank")->required();
  command.add_option("--pp", options->pp, "pipeline stage")->required();
  command.add_option("-o,--output", options->output, "a new or empty folder")->required();
  return [options] { return run(options->plan, options->dp, options->pp, options->output); };
}

}  // namespace slimpack::app
