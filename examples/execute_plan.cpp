// SPDX-License-Identifier: Apache-2.0
// Executes a plan on the text that it was made for, in double precision with a thread a device, and
// compares loss, gradients, new weights and bytes with the unsliced step and the simulator:
//   execute_plan plan.json [SEED]    the plan's sources are JSON lines with `text`, bytes are
//   tokens
// Ends with 1 if the step differs by more than 1e-10, with 2 on bad input.
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "slimpack/cost/price.hpp"
#include "slimpack/io/file_bytes.hpp"
#include "slimpack/io/plan_json.hpp"
#include "slimpack/plan/virtual_stages.hpp"
#include "slimpack/sim/simulate_plan.hpp"
#include "slimpack/validate/validate.hpp"
#include "slimpack_cpu/check_plan.hpp"

namespace {

using slimpack::Plan;

constexpr double kTolerance = 1e-10;

/// The texts of a file of JSON lines, in its order.
std::vector<std::string> read_texts(const std::string& path) {
  const slimpack::FileBytes file = slimpack::FileBytes::open(path);
  std::istringstream lines{std::string(file.text())};
  std::vector<std::string> texts;
  for (std::string line; std::getline(lines, line);) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const nlohmann::json object = nlohmann::json::parse(line, nullptr, false);
    slimpack::require(object.is_object() && object.contains("text") && object["text"].is_string(),
                      path + ": every line must be an object with a string 'text', not document",
                      static_cast<std::int64_t>(texts.size()));
    texts.push_back(object["text"].get<std::string>());
  }
  return texts;
}

/// The bytes of each sample, and for each byte the next one of its document.
slimpack::runtime::StepData read_step(const Plan& plan) {
  std::vector<std::vector<std::string>> texts;
  for (const slimpack::Source& source : plan.sources) texts.push_back(read_texts(source.path));
  const auto byte = [](char letter) {
    return static_cast<std::int32_t>(static_cast<unsigned char>(letter));
  };
  slimpack::runtime::StepData data;
  for (std::size_t sample = 0; sample < plan.samples.size(); ++sample) {
    const slimpack::Origin& origin = plan.origin[sample];
    const std::vector<std::string>& documents = texts[static_cast<std::size_t>(origin.source)];
    const auto number = static_cast<std::size_t>(origin.document);
    const auto first = static_cast<std::size_t>(origin.first.value);
    const auto length = static_cast<std::size_t>(plan.samples[sample].value);
    slimpack::require(number < documents.size() && first + length <= documents[number].size(),
                      "the plan was made for other texts: they do not hold sample",
                      static_cast<std::int64_t>(sample));
    const std::string& text = documents[number];
    auto& tokens = data.tokens.emplace_back();
    auto& targets = data.targets.emplace_back();
    for (std::size_t i = first; i < first + length; ++i) {
      tokens.push_back(byte(text[i]));
      targets.push_back(i + 1 < text.size() ? std::optional(byte(text[i + 1])) : std::nullopt);
    }
  }
  return data;
}

/// Packs of a pass, and how many slices they hold.
void print_packs(const Plan& plan, slimpack::Pass pass, const char* name) {
  std::size_t packs = 0, slices = 0;
  for (const slimpack::MicroPack& pack : plan.micropacks) {
    if (pack.pass != pass) continue;
    ++packs;
    slices += pack.slices.size();
  }
  std::printf("  %-9s %3zu MicroPacks of %zu slices\n", name, packs, slices);
}

int run(const std::string& path, std::uint64_t seed) {
  Plan plan = slimpack::read_plan_file(path);
  // The backend computes in double precision: so are the bytes that it is compared with.
  plan.model.bytes_per_element = 8;
  plan.memory.gradient_bytes = 8;
  if (const auto checked = slimpack::validate(plan); !checked.valid()) {
    std::fprintf(stderr, "execute_plan: %s: %s\n", path.c_str(),
                 checked.violations.front().message.c_str());
    return 1;
  }
  const slimpack::runtime::StepData data = read_step(plan);
  std::int64_t tokens = 0;
  for (const slimpack::Tokens length : plan.samples) tokens += length.value;
  std::printf("%s by %s: %zu samples, %lld tokens, %lld targets, dp %d, pp %d, %d chunks\n",
              path.c_str(), plan.planner.c_str(), plan.samples.size(),
              static_cast<long long>(tokens), static_cast<long long>(plan.target_tokens),
              plan.parallel.dp, plan.parallel.pp, plan.parallel.chunks);
  print_packs(plan, slimpack::Pass::forward, "forward");
  print_packs(plan, slimpack::Pass::backward, "backward");

  const auto began = std::chrono::steady_clock::now();
  const slimpack::cpu::PlanCheck check = slimpack::cpu::check_plan(plan, data, seed);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  std::printf("executed on %zu threads and once unsliced, %.1f s\n", device_count(plan),
              took.count());
  std::printf("  loss      %.15f\n  unsliced  %.15f   relative difference %.1e\n", check.loss,
              check.reference, check.loss_difference);
  std::printf("  gradients: largest relative difference %.1e (%s)\n", check.gradient_difference,
              check.worst_tensor.c_str());
  std::printf("  weights after the optimizer: %.1e\n", check.weight_difference);

  const slimpack::sim::PlanSimulation simulation =
      slimpack::sim::simulate_plan(plan, slimpack::PricedPlan(plan));
  // The simulator also times transfers: a send buffer may live longer there than here.
  std::printf("bytes at the peak   counted by the executor   predicted by the simulator\n");
  for (std::size_t device = 0; device < check.peak.size(); ++device) {
    std::printf("  rank %d, stage %d %26lld %28lld\n", plan.schedule[device].dp,
                plan.schedule[device].pp, static_cast<long long>(check.peak[device].value),
                static_cast<long long>(simulation.timeline.peak[device].bytes.value));
  }
  if (!(check.worst() <= kTolerance)) {
    std::printf("differs by %.1e, more than %.0e\n", check.worst(), kTolerance);
    return 1;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::uint64_t seed = 1;
  const char* const last = argc == 3 ? argv[2] + std::strlen(argv[2]) : nullptr;
  const bool bad_seed = argc == 3 && std::from_chars(argv[2], last, seed).ptr != last;
  if (argc < 2 || argc > 3 || bad_seed) {
    std::fprintf(stderr, "usage: execute_plan plan.json [SEED]\n");
    return 2;
  }
  try {
    return run(argv[1], seed);
  } catch (const slimpack::InvalidInput& error) {
    std::fprintf(stderr, "execute_plan: %s\n", error.what());
    return 2;
  }
}
