// SPDX-License-Identifier: Apache-2.0
#include "slimpack/runtime/parameters.hpp"

#include <doctest/doctest.h>

#include <algorithm>
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

TEST_CASE("initialise: a tensor that is drawn by several threads is the same row by row") {
  const runtime::TensorShape shape{"large.weight", 300, 1000};
  std::vector<double> whole(300'000), row(1000);
  runtime::initialise(whole, shape, 0, 5);
  for (const std::int64_t i : {0, 64, 65, 66, 131, 299}) {
    runtime::initialise(row, shape, i, 5);
    CHECK(std::equal(row.begin(), row.end(), whole.begin() + i * 1000));
  }
}

TEST_CASE("initialise: columns of a tensor are those of the whole one") {
  const runtime::TensorShape shape{"some.weight", 5, 12};
  std::vector<double> whole(60), part(2 * 4);
  runtime::initialise(whole, shape, 0, 3);
  runtime::initialise(part, shape, 2, 3, 8, 4);
  for (std::size_t i = 0; i < part.size(); ++i) {
    CHECK(part[i] == whole[(2 + i / 4) * 12 + 8 + i % 4]);
  }
}

TEST_CASE("HeldTensor: runs are the elements of the named tensor, for any range of the part") {
  const runtime::HeldTensor part{{"some.weight", 3, 4}, 2, 7, 0, 5, 11};
  for (std::size_t from = 0; from <= part.size(); ++from) {
    for (std::size_t to = from; to <= part.size(); ++to) {
      std::size_t next = from;
      part.for_each_run(from, to, [&](std::size_t first, std::size_t i, std::size_t count) {
        CHECK(i == next);
        next += count;
        for (std::size_t k = 0; k < count; ++k) {
          CHECK(first + k == (2 + (i + k) / 4) * 11 + 5 + (i + k) % 4);
        }
      });
      CHECK(next == to);
    }
  }
}

TEST_CASE("layout_of: the devices of a rank hold every element of every tensor once") {
  test::RandomPlanOptions options;
  options.max_tp = 3;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    CAPTURE(seed);
    const Plan plan = test::random_plan(seed, options);
    const bool shard = plan.parallel.head == LmHead::shard;
    std::map<std::string, std::vector<int>> held;  // times, by row; tied tables once more
    for (std::int32_t device = 0; device < plan.parallel.pp * plan.parallel.tp; ++device) {
      const runtime::ParameterLayout layout =
          runtime::layout_of(plan, device / plan.parallel.tp, device % plan.parallel.tp);
      std::size_t end = 0;
      for (const runtime::HeldTensor& tensor : layout.tensors) {
        CHECK(tensor.offset == end);
        end += tensor.size();
        const auto cols = static_cast<std::size_t>(tensor.whole_cols);
        std::vector<int>& times = held[tensor.shape.name];
        times.resize(static_cast<std::size_t>(tensor.whole_rows) * cols);
        tensor.for_each_run(0, tensor.size(),
                            [&](std::size_t first, std::size_t, std::size_t count) {
                              for (std::size_t i = first; i < first + count; ++i) ++times[i];
                            });
      }
      CHECK(layout.size() == end);
      CHECK(layout.chunk_begin.size() == static_cast<std::size_t>(plan.parallel.chunks) + 1);
    }
    // Rows of a tied table that stage 0 alone has: its shards of the head.
    const auto own = [&](std::size_t row) {
      for (std::int32_t tp = 0; tp < plan.parallel.tp; ++tp) {
        const VocabularyShard rows = head_shard(plan.model.vocab, plan.parallel, 0, tp);
        const auto at = static_cast<std::int64_t>(row);
        if (at >= rows.first && at < rows.last) return true;
      }
      return false;
    };
    std::size_t tensors = 0;
    for (const runtime::TensorShape& tensor : runtime::model_tensors(plan.model)) {
      const auto found = held.find(tensor.name);
      REQUIRE(found != held.end());
      ++tensors;
      const auto cols = static_cast<std::size_t>(tensor.cols);
      for (std::size_t i = 0; i < found->second.size(); ++i) {
        const bool twice = plan.model.tied && tensor.name == runtime::kEmbedding &&
                           plan.parallel.pp > 1 && (!shard || !own(i / cols));
        const int gains = tensor.rows == 1 ? plan.parallel.tp : 1;
        CHECK(found->second[i] == (twice ? 2 : gains));
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
