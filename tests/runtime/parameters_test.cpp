// SPDX-License-Identifier: Apache-2.0
#include "slimpack/runtime/parameters.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "slimpack_cpu/check_plan.hpp"
#include "support/random_plan.hpp"

using namespace slimpack;

TEST_CASE("initialise: any rows of a tensor are those of the whole, and seeds and names differ") {
  const runtime::TensorShape shape{"a.weight", 40, 30};
  std::vector<double> whole(1200), part(300), other(1200);
  runtime::initialise(whole, shape, 0, 7);
  runtime::initialise(part, shape, 20, 7);
  CHECK(part == std::vector<double>(whole.begin() + 600, whole.begin() + 900));
  runtime::initialise(other, shape, 0, 8);
  CHECK(other != whole);
  runtime::initialise(other, {"b.weight", 40, 30}, 0, 7);
  CHECK(other != whole);
  double squares = 0;
  for (const double value : whole) squares += value * value;
  CHECK(squares == doctest::Approx(40.0).epsilon(0.15));  // variance 1 / cols
  std::vector<double> gain(30);
  runtime::initialise(gain, {"norm.weight", 1, 30}, 0, 7);
  for (const double value : gain) CHECK((value >= 0.9 && value < 1.1));
}

TEST_CASE("layout_of: the stages of a rank hold every row of every tensor, tied tables once more") {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    CAPTURE(seed);
    const Plan plan = test::random_plan(seed);
    const bool shard = plan.parallel.head == LmHead::shard;
    std::map<std::string, std::vector<int>> held;
    for (std::int32_t pp = 0; pp < plan.parallel.pp; ++pp) {
      const runtime::ParameterLayout layout = runtime::layout_of(plan, pp);
      std::size_t end = 0;
      for (const runtime::HeldTensor& tensor : layout.tensors) {
        CHECK(tensor.offset == end);
        end += tensor.size();
        auto& rows = held[tensor.shape.name];
        rows.resize(static_cast<std::size_t>(tensor.whole_rows));
        for (std::int64_t row = 0; row < tensor.shape.rows; ++row) {
          ++rows[static_cast<std::size_t>(tensor.first_row + row)];
        }
      }
      CHECK(layout.size() == end);
      CHECK(layout.chunk_begin.size() == static_cast<std::size_t>(plan.parallel.chunks) + 1);
    }
    const auto own =
        static_cast<std::size_t>(vocabulary_shard(plan.model.vocab, 0, plan.parallel.pp).last);
    std::size_t tensors = 0;
    for (const runtime::TensorShape& tensor : runtime::model_tensors(plan.model)) {
      const auto found = held.find(tensor.name);
      REQUIRE(found != held.end());
      ++tensors;
      for (std::size_t row = 0; row < found->second.size(); ++row) {
        const bool twice = plan.model.tied && tensor.name == runtime::kEmbedding &&
                           plan.parallel.pp > 1 && (!shard || row >= own);
        CHECK(found->second[row] == (twice ? 2 : 1));
      }
    }
    CHECK(held.size() == tensors);
  }
}

TEST_CASE("Device: models that do not fit are refused") {
  test::RandomPlanOptions options;
  options.max_dp = options.max_pp = 1;
  const Plan good = test::random_plan(5, options);
  Plan plan = good;
  plan.model.head_dim = 3;
  CHECK_THROWS_WITH_AS((void)cpu::make_devices(plan, 1), "Device: head_dim must be even, got 3",
                       InvalidInput);
  plan = good;
  plan.model.heads = 4;
  plan.model.kv_heads = 3;
  CHECK_THROWS_WITH_AS((void)cpu::make_devices(plan, 1),
                       "Device: kv_heads must divide heads, got 3", InvalidInput);
  plan = good;
  plan.model.ffn = 0;
  CHECK_THROWS_WITH_AS((void)cpu::make_devices(plan, 1),
                       "Device: hidden, heads, ffn and vocab must be > 0", InvalidInput);
  CHECK_THROWS_WITH_AS(cpu::Device(good, 1, 1), "Device: device must be one of the plan, got 1",
                       InvalidInput);
  plan = good;
  plan.model.norm_eps = 0.5;
  cpu::Device device(good, 0, 1);
  const runtime::StepData data;
  CHECK_THROWS_WITH_AS(device.begin_step(plan, data),
                       "Device: model and partition must stay from step to step", InvalidInput);
}

TEST_CASE("Workspace: more than the workspace is a fault, not a write behind it") {
  std::vector<double> memory(10);
  cpu::Workspace<double> workspace{cpu::Out(memory)};
  CHECK(workspace.take(2, 3).size() == 6);
  CHECK_THROWS_WITH_AS((void)workspace.take(1, 5), "the unit's workspace is too small",
                       std::logic_error);
  workspace.rewind(0);
  CHECK(workspace.take(2, 5).size() == 10);
}

TEST_CASE("step_data: as many targets as the plan divides by") {
  test::RandomPlanOptions options;
  options.min_samples = 3;
  Plan plan = test::random_plan(2, options);
  const auto tokens = cpu::random_tokens(plan, 1);
  std::int64_t all = 0;
  for (const Tokens length : plan.samples) all += length.value;
  for (plan.target_tokens = 1; plan.target_tokens <= all; ++plan.target_tokens) {
    const auto data = cpu::step_data(plan, tokens);
    std::int64_t count = 0;
    for (std::size_t sample = 0; sample < tokens.size(); ++sample) {
      for (std::size_t t = 0; t < tokens[sample].size(); ++t) {
        if (!data.targets[sample][t]) continue;
        ++count;
        if (t + 1 < tokens[sample].size()) {
          CHECK(*data.targets[sample][t] == tokens[sample][t + 1]);
        }
      }
    }
    CHECK(count == plan.target_tokens);
  }
  CHECK_THROWS_WITH_AS(
      (void)cpu::step_data(plan, tokens),
      ("step_data: step.target_tokens must be in [1, tokens], got " + std::to_string(all + 1))
          .c_str(),
      InvalidInput);
}
