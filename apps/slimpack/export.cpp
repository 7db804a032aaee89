// SPDX-License-Identifier: Apache-2.0
// slimpack export: what the variable-length attention of each MicroPack of a device reads, one
// array of each kind for the whole device (docs/export.md).
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <iostream>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "command.hpp"
#include "folder.hpp"
#include "progress.hpp"
#include "sizes.hpp"
#include "slimpack/io/file.hpp"
#include "slimpack/io/json_writer.hpp"
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
void append_pack(const Plan& plan, const MicroPack& pack, std::size_t rank, DeviceArrays& arrays) {
  arrays.cu_seqlens_q.push_back(0);
  arrays.cu_seqlens_k.push_back(0);
  for (const Slice& slice : pack.slices) {
    const Origin& origin = plan.origin[index(slice.sample)];
    const CpShard shard = cp_shard_of(plan, slice.sample, rank);
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

/// Numbers that are written on one line.
using Numbers = std::initializer_list<std::int64_t>;

void write_numbers(JsonWriter& out, Numbers numbers) {
  out.begin_array(JsonLayout::flat);
  for (const std::int64_t number : numbers) out.number(number);
  out.end_array();
}

template <class Size>
[[nodiscard]] std::int64_t count(Size size) {
  return static_cast<std::int64_t>(size);
}

/// Appends the arrays of one MicroPack and writes its entry of index.json.
void add_pack(const Plan& plan, PackId id, std::int32_t dp, DeviceArrays& arrays, JsonWriter& out) {
  const MicroPack& pack = plan.micropacks[index(id)];
  const std::vector<std::int32_t>& group = plan.groups[index(pack.group)];
  const auto rank = static_cast<std::size_t>(std::ranges::find(group, dp) - group.begin());
  const std::int64_t token = count(arrays.position_ids.size());
  const std::int64_t segment = count(arrays.segment_sample.size());
  const std::int64_t cu_seqlen = count(arrays.cu_seqlens_q.size());
  append_pack(plan, pack, rank, arrays);

  out.begin_object(JsonLayout::flat).member("id", index(id)).member("pass", to_string(pack.pass));
  out.key("group").begin_array();
  for (const std::int32_t member : group) out.number(member);
  out.end_array();
  write_numbers(out.key("tokens"), {token, count(arrays.position_ids.size())});
  write_numbers(out.key("segments"), {segment, count(arrays.segment_sample.size())});
  write_numbers(out.key("cu_seqlens"), {cu_seqlen, count(arrays.cu_seqlens_q.size())});
  if (pack.pass == Pass::backward) out.member("recompute", to_string(pack.recompute));
  if (pack.weights == WeightGradients::apart) out.member("weights", to_string(pack.weights));
  if (!pack.exchange.empty()) {
    out.key("slices").begin_array();
    for (const Slice& slice : pack.slices) {
      write_numbers(out, {count(index(slice.sample)), slice.begin.value, slice.end.value});
    }
    out.end_array().key("exchange").begin_array();
    for (const RingMode mode : pack.exchange) out.text(to_string(mode));
    out.end_array();
  }
  out.end_object();
}

/// A unit as plan.json has it.
void write_unit(const Unit& unit, JsonWriter& out) {
  out.begin_array(JsonLayout::flat).text(to_string(unit.kind));
  if (names_pack(unit.kind)) out.number(index(unit.pack));
  if (names_chunk(unit.kind)) out.number(unit.chunk);
  out.end_array();
}

/// What does not depend on the device.
void write_step(const Plan& plan, JsonWriter& out) {
  // Who does not know of weights apart would compute their gradients twice, or never.
  const bool apart = std::ranges::any_of(plan.micropacks, [](const MicroPack& pack) {
    return pack.weights == WeightGradients::apart;
  });
  out.member("format", "slimpack-export").member("version", apart ? 3 : 2);
  out.member("plan_hash", to_string(plan_hash(plan))).member("step", plan.step_index);
  out.member("target_tokens", plan.target_tokens).key("sources").begin_array();
  for (const Source& source : plan.sources) out.text(source.path);
  out.end_array().key("parallel").begin_object(JsonLayout::flat);
  out.member("dp", plan.parallel.dp).member("pp", plan.parallel.pp).member("tp", plan.parallel.tp);
  out.member("chunks", plan.parallel.chunks).member("head", to_string(plan.parallel.head));
  out.end_object().key("placement").begin_array();
  for (const Placement& place : plan.placement) {
    write_numbers(out, {place.dp, place.pp, place.tp, place.device});
  }
  out.end_array();
}

/// The layers and the part of the vocabulary that the device holds.
void write_parts(const Plan& plan, const DeviceSchedule& device, JsonWriter& out) {
  out.member("dp", device.dp).member("pp", device.pp).key("stages").begin_array();
  for (const Stage& stage : plan.stages) {
    if (stage.pp != device.pp) continue;
    out.begin_object(JsonLayout::flat).member("chunk", stage.chunk);
    write_numbers(out.key("layers"), {stage.first_layer, stage.end_layer});
    out.member("embedding", stage.embedding).end_object();
  }
  out.end_array();
  if (plan.parallel.head == LmHead::shard) {
    const VocabularyShard shard = vocabulary_shard(plan.model.vocab, device.pp, plan.parallel.pp);
    write_numbers(out.key("head_vocabulary"), {shard.first, shard.last});
  } else if (device.pp == plan.parallel.pp - 1) {
    write_numbers(out.key("head_vocabulary"), {0, plan.model.vocab});
  }
}

/// The MicroPacks of a device, each once, in the order of their numbers.
[[nodiscard]] std::vector<PackId> packs_of(const DeviceSchedule& device) {
  std::vector<PackId> packs;
  for (const Unit& unit : device.order) {
    if (runs_layers(unit.kind)) packs.push_back(unit.pack);
  }
  std::ranges::sort(packs);
  packs.erase(std::unique(packs.begin(), packs.end()), packs.end());
  return packs;
}

/// Writes the device's arrays and index.json into an empty folder.
void write_all(const Plan& plan, const DeviceSchedule& device, const fs::path& root) {
  JsonWriter out;
  out.begin_object();
  write_step(plan, out);
  write_parts(plan, device, out);

  DeviceArrays arrays;
  const std::vector<PackId> packs = packs_of(device);
  std::int64_t done = 0;
  Progress progress("exporting");
  out.key("micropacks").begin_array();
  for (const PackId pack : packs) {
    add_pack(plan, pack, device.dp, arrays, out);
    progress(++done, count(packs.size()));
  }
  out.end_array().key("arrays").begin_object();
  for_each_array(arrays, [&](const char* name, const char* range, const auto& values) {
    using Integer = typename std::decay_t<decltype(values)>::value_type;
    write_file((root / (std::string(name) + ".npy")).string(),
               npy_bytes(std::span<const Integer>(values)));
    out.key(name).begin_object(JsonLayout::flat);
    out.member("dtype", sizeof(Integer) == 4 ? "int32" : "int64").member("range", range);
    out.member("length", values.size()).end_object();
  });
  out.end_object().key("order").begin_array();
  for (const Unit& unit : device.order) write_unit(unit, out);
  out.end_array().end_object();
  write_file((root / "index.json").string(), out.take() + "\n");
}

/// Exports device (dp, pp) of a plan and gives the exit status.
int run(const std::string& path, const std::string& dp_text, const std::string& pp_text,
        const std::string& output) {
  check_folder("-o", output);
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
  const std::string named = write_folder("-o", output, [&](const std::string& folder) {
    write_all(plan, plan.schedule[device_index(plan, dp, pp)], folder);
  });
  std::cout << fmt::format("{}: device dp {} pp {} of {}\n", named, dp, pp, path);
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
