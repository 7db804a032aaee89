// SPDX-License-Identifier: Apache-2.0
// Executes plans of real steps, scaled down, and compares loss and gradients with the unsliced
// oracle: the schedule of every device as it was planned, of samples and a model that a CPU can
// compute.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/io/file.hpp"
#include "slimpack/io/plan_json.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/plan/virtual_stages.hpp"
#include "slimpack/validate/validate.hpp"
#include "slimpack_cpu/check_plan.hpp"

using namespace slimpack;

namespace {

constexpr double kAllowed = 1e-10;  // relative, in fp64
constexpr std::int64_t kHidden = 64, kHeads = 8, kHeadDim = 8, kFfn = 96, kVocab = 96;

/// The plan with lengths, cuts, blocks, pages and tiles divided by its granularity, so that cuts
/// fall on every token, and with a model of hidden 64 of as many layers; degrees, groups, packs and
/// device orders stay. Key heads are as many as query heads where they were, else as few as
/// tensor-parallel devices can share.
Plan scaled(Plan plan) {
  const std::int64_t factor = plan.parallel.granularity.value;
  const auto part = [&](Tokens tokens) { return Tokens{(tokens.value + factor - 1) / factor}; };
  plan.target_tokens = 0;
  for (Tokens& length : plan.samples) {
    length = part(length);
    plan.target_tokens += length.value - 1;
  }
  if (plan.target_tokens == 0) plan.target_tokens = 1;  // a last token's own first one
  for (MicroPack& pack : plan.micropacks) {
    for (Slice& slice : pack.slices) slice = {slice.sample, part(slice.begin), part(slice.end)};
  }
  plan.parallel.granularity = Tokens{1};
  plan.memory.page_tokens = part(plan.memory.page_tokens);
  plan.memory.cp_block_tokens = part(plan.memory.cp_block_tokens);
  plan.memory.head_tile = part(plan.memory.head_tile);
  plan.memory.capacity = Bytes{1'000'000'000'000'000};
  plan.memory.gradient_bytes = 8;
  const bool grouped = plan.model.kv_heads < plan.model.heads;
  plan.model.hidden = kHidden;
  plan.model.heads = kHeads;
  plan.model.kv_heads = grouped ? std::max<std::int64_t>(2, plan.parallel.tp) : kHeads;
  plan.model.head_dim = kHeadDim;
  plan.model.ffn = kFfn;
  plan.model.vocab = kVocab;
  plan.model.bytes_per_element = 8;
  plan.version = kUsualPlanVersion;
  return plan;
}

/// Whether all was as it should be.
bool execute(const std::string& path) {
  const Plan plan = scaled(plan_from_json(read_file(path), path));
  const Validation validation = validate(plan);
  if (!validation.valid()) throw InvalidInput(path + ": " + validation.violations.front().message);
  const cpu::PlanCheck found = cpu::check_plan(plan, cpu::random_tokens(plan, 1), 1);
  std::int64_t tokens = 0, cut = 0, shared = 0;
  for (const Tokens length : plan.samples) tokens += length.value;
  for (const MicroPack& pack : plan.micropacks) {
    cut += static_cast<std::int64_t>(std::ranges::count_if(
        pack.slices, [&](const Slice& slice) { return slice.begin > Tokens{}; }));
    shared += plan.groups[index(pack.group)].size() > 1 ? 1 : 0;
  }
  const bool good = found.loss_difference <= kAllowed && found.gradient_difference <= kAllowed;
  std::printf(
      "%s: %zu devices (dp %d, pp %d, tp %d, chunks %d), %lld tokens, %zu MicroPacks (%lld in "
      "groups, %lld slices with a prefix): loss off by %.1e, gradients by %.1e (%s): %s\n",
      path.c_str(), device_count(plan), plan.parallel.dp, plan.parallel.pp, plan.parallel.tp,
      plan.parallel.chunks, static_cast<long long>(tokens), plan.micropacks.size(),
      static_cast<long long>(shared), static_cast<long long>(cut), found.loss_difference,
      found.gradient_difference, found.worst_tensor.c_str(), good ? "equal" : "NOT EQUAL");
  std::fflush(stdout);
  return good;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    require(argc > 1, "execute_scaled: give plan.json files");
    bool good = true;
    for (int i = 1; i < argc; ++i) good = execute(argv[i]) && good;
    return good ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "execute_scaled: %s\n", error.what());
    return 1;
  }
}
