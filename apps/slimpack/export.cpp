// SPDX-License-Identifier: Apache-2.0
// slimpack export: what the variable-length attention of each MicroPack of a device reads, one
// array of each kind for the whole device (docs/export.md).
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iostream>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "command.hpp"
#include "progress.hpp"
#include "sizes.hpp"
#include "slimpack/io/file.hpp"
#include "slimpack/io/npy.hpp"
#include "slimpack/io/plan_json.hpp"
#include "slimpack/plan/cp_shard.hpp"
#include "slimpack/plan/names.hpp"
#include "slimpack/plan/plan_hash.hpp"
#include "slimpack/plan/virtual_stages.hpp"
#include "slimpack/validate/validate.hpp"

namespace slimpack::app {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

/// The arrays of a device: those of its MicroPacks one after the other. A segment is a run of
/// consecutive query rows of a sample; row i of a segment of n rows and m keys sees keys
/// 0 .. m - n + i.
struct DeviceArrays {
  std::vector<std::int32_t> cu_seqlens_q, cu_seqlens_k;  ///< begin at 0 in each MicroPack
  std::vector<std::int32_t> segment_sample;
  std::vector<std::int32_t> position_ids;
  std::vector<std::int64_t> token_source, token_document, token_offset;
};

/// Calls visit(name, the key of a MicroPack's range, values) for each array.
template <class Visit>
void for_each_array(const DeviceArrays& arrays, const Visit& visit) {
  visit("cu_seqlens_q", "cu_seqlens", arrays.cu_seqlens_q);
  visit("cu_seqlens_k", "cu_seqlens", arrays.cu_seqlens_k);
  visit("segment_sample", "segments", arrays.segment_sample);
  visit("position_ids", "tokens", arrays.position_ids);
  visit("token_source", "tokens", arrays.token_source);
  visit("token_document", "tokens", arrays.token_document);
  visit("token_offset", "tokens", arrays.token_offset);
}

/// Appends the next cumulative count. Throws InvalidInput beyond 32 bits, which is what
/// variable-length attention kernels count with.
void append(std::vector<std::int32_t>& cumulative, Tokens more) {
  const std::int64_t next = cumulative.back() + more.value;
  require(next <= std::numeric_limits<std::int32_t>::max(),
          "a MicroPack has more tokens than a 32-bit cu_seqlens can count", next);
  cumulative.push_back(static_cast<std::int32_t>(next));
}

/// Appends what one rank of the group computes of a MicroPack.
void append_pack(const Plan& plan, const MicroPack& pack, const CpShard& shard,
                 DeviceArrays& arrays) {
  arrays.cu_seqlens_q.push_back(0);
  arrays.cu_seqlens_k.push_back(0);
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
}

/// Appends the arrays of one MicroPack and gives its entry in index.json.
[[nodiscard]] Json add_pack(const Plan& plan, PackId id, std::int32_t dp, DeviceArrays& arrays) {
  const MicroPack& pack = plan.micropacks[index(id)];
  const std::vector<std::int32_t>& group = plan.groups[index(pack.group)];
  const auto rank = static_cast<std::size_t>(std::ranges::find(group, dp) - group.begin());
  const std::array<std::size_t, 3> begin{arrays.position_ids.size(), arrays.segment_sample.size(),
                                         arrays.cu_seqlens_q.size()};
  append_pack(plan, pack, cp_shard_of(plan, pack.group, rank), arrays);

  Json entry{{"id", index(id)},
             {"pass", to_string(pack.pass)},
             {"group", group},
             {"tokens", {begin[0], arrays.position_ids.size()}},
             {"segments", {begin[1], arrays.segment_sample.size()}},
             {"cu_seqlens", {begin[2], arrays.cu_seqlens_q.size()}}};
  if (pack.pass == Pass::backward) entry["recompute"] = to_string(pack.recompute);
  if (!pack.exchange.empty()) {
    entry["slices"] = Json::array();
    for (const Slice& slice : pack.slices) {
      entry["slices"].push_back({index(slice.sample), slice.begin.value, slice.end.value});
    }
    entry["exchange"] = Json::array();
    for (const RingMode mode : pack.exchange) entry["exchange"].push_back(to_string(mode));
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

/// What does not depend on the device.
[[nodiscard]] Json step_entry(const Plan& plan) {
  Json sources = Json::array();
  for (const Source& source : plan.sources) sources.push_back(source.path);
  Json placement = Json::array();
  for (const Placement& place : plan.placement) {
    placement.push_back({place.dp, place.pp, place.tp, place.device});
  }
  return {{"format", "slimpack-export"},
          {"version", 2},
          {"plan_hash", to_string(plan_hash(plan))},
          {"step", plan.step_index},
          {"target_tokens", plan.target_tokens},
          {"sources", std::move(sources)},
          {"parallel",
           {{"dp", plan.parallel.dp},
            {"pp", plan.parallel.pp},
            {"tp", plan.parallel.tp},
            {"chunks", plan.parallel.chunks},
            {"head", to_string(plan.parallel.head)}}},
          {"placement", std::move(placement)}};
}

/// The layers and the part of the vocabulary that the device holds.
void add_parts(const Plan& plan, const DeviceSchedule& device, Json& document) {
  document["stages"] = Json::array();
  for (const Stage& stage : plan.stages) {
    if (stage.pp == device.pp) {
      document["stages"].push_back({{"chunk", stage.chunk},
                                    {"layers", {stage.first_layer, stage.end_layer}},
                                    {"embedding", stage.embedding}});
    }
  }
  if (plan.parallel.head == LmHead::shard) {
    const VocabularyShard shard = vocabulary_shard(plan.model.vocab, device.pp, plan.parallel.pp);
    document["head_vocabulary"] = {shard.first, shard.last};
  } else if (device.pp == plan.parallel.pp - 1) {
    document["head_vocabulary"] = {0, plan.model.vocab};
  }
}

/// Writes the device's arrays and index.json into an empty folder.
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

  Json document = step_entry(plan);
  document["dp"] = device.dp;
  document["pp"] = device.pp;
  add_parts(plan, device, document);
  DeviceArrays arrays;
  Json entries = Json::array();
  Progress progress("exporting");
  for (const PackId pack : packs) {
    entries.push_back(add_pack(plan, pack, device.dp, arrays));
    progress(static_cast<std::int64_t>(entries.size()), static_cast<std::int64_t>(packs.size()));
  }
  document["arrays"] = Json::object();
  for_each_array(arrays, [&](const char* name, const char* range, const auto& values) {
    using Integer = typename std::decay_t<decltype(values)>::value_type;
    write_file((root / (std::string(name) + ".npy")).string(),
               npy_bytes(std::span<const Integer>(values)));
    document["arrays"][name] = {{"dtype", sizeof(Integer) == 4 ? "int32" : "int64"},
                                {"range", range},
                                {"length", values.size()}};
  });
  document["micropacks"] = std::move(entries);
  document["order"] = std::move(order);
  write_file((root / "index.json").string(), document.dump(1) + "\n");
}

/// Exports device (dp, pp) of a plan and gives the exit status.
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
