// SPDX-License-Identifier: Apache-2.0
// The fp32 CPU backend: linear layers, attention and whole steps, beside Eigen and plain loops.
#include <benchmark/benchmark.h>

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "slimpack/core/random.hpp"
#include "slimpack/cost/presets.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/runtime/run_step.hpp"
#include "slimpack_cpu/check_plan.hpp"
#include "slimpack_cpu/mathematics.hpp"

using namespace slimpack;

namespace {

using Floats = std::vector<float>;
using Rows = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

Floats random_floats(std::int64_t count, std::uint64_t seed) {
  Random random(seed);
  Floats values(static_cast<std::size_t>(count));
  for (float& value : values) value = static_cast<float>(random.normal());
  return values;
}

Eigen::Map<Rows> map(Floats& values, std::int64_t rows, std::int64_t cols) {
  return {values.data(), rows, cols};
}

void set_rate(benchmark::State& state, double flop) {
  state.counters["GFLOP/s"] = benchmark::Counter(
      flop * 1e-9, benchmark::Counter::kIsIterationInvariantRate, benchmark::Counter::kIs1000);
}

// --- linear layers: rows x in x out ---

void shapes(benchmark::internal::Benchmark* benchmark) {
  benchmark->Args({2048, 128, 128})
      ->Args({2048, 128, 384})
      ->Args({2048, 384, 128})
      ->Args({64, 128, 384})
      ->Args({1024, 1024, 1024})
      ->Args({2048, 2048, 8192});
}

enum class Linear { forward, input, weight };

void linear(benchmark::State& state, Linear which) {
  const cpu::LinearShape shape{state.range(0), state.range(1), state.range(2)};
  Floats in = random_floats(shape.rows * shape.in, 1),
         out = random_floats(shape.rows * shape.out, 2),
         weight = random_floats(shape.in * shape.out, 3);
  cpu::FastMath math;
  for (auto step : state) {
    (void)step;
    math.forget();
    if (which == Linear::forward) math.linear_forward(out, in, weight, shape);
    if (which == Linear::input) math.linear_backward_input(in, out, weight, shape);
    if (which == Linear::weight) math.linear_backward_weight(weight, out, in, shape);
    benchmark::ClobberMemory();
  }
  set_rate(state, 2.0 * static_cast<double>(shape.rows * shape.in * shape.out));
}
BENCHMARK_CAPTURE(linear, forward, Linear::forward)->Apply(shapes);
BENCHMARK_CAPTURE(linear, backward_input, Linear::input)->Apply(shapes);
BENCHMARK_CAPTURE(linear, backward_weight, Linear::weight)->Apply(shapes);

void linear_eigen(benchmark::State& state) {
  const cpu::LinearShape shape{state.range(0), state.range(1), state.range(2)};
  Floats in = random_floats(shape.rows * shape.in, 1),
         out = random_floats(shape.rows * shape.out, 2),
         weight = random_floats(shape.in * shape.out, 3);
  for (auto step : state) {
    (void)step;
    map(out, shape.rows, shape.out).noalias() =
        map(in, shape.rows, shape.in) * map(weight, shape.out, shape.in).transpose();
    benchmark::ClobberMemory();
  }
  set_rate(state, 2.0 * static_cast<double>(shape.rows * shape.in * shape.out));
}
BENCHMARK(linear_eigen)->Apply(shapes);

/// The operator as one writes it first.
void linear_naive(benchmark::State& state) {
  const cpu::LinearShape shape{state.range(0), state.range(1), state.range(2)};
  const Floats in = random_floats(shape.rows * shape.in, 1),
               weight = random_floats(shape.in * shape.out, 3);
  Floats out(static_cast<std::size_t>(shape.rows * shape.out));
  for (auto step : state) {
    (void)step;
    for (std::int64_t r = 0; r < shape.rows; ++r) {
      for (std::int64_t o = 0; o < shape.out; ++o) {
        float sum = 0;
        for (std::int64_t i = 0; i < shape.in; ++i) {
          sum += in[static_cast<std::size_t>(r * shape.in + i)] *
                 weight[static_cast<std::size_t>(o * shape.in + i)];
        }
        out[static_cast<std::size_t>(r * shape.out + o)] = sum;
      }
    }
    benchmark::ClobberMemory();
  }
  set_rate(state, 2.0 * static_cast<double>(shape.rows * shape.in * shape.out));
}
BENCHMARK(linear_naive)->Args({2048, 128, 384})->Args({1024, 1024, 1024});

/// What the machine does with one large product by Eigen: the rate that others are shares of.
void eigen_gemm(benchmark::State& state) {
  const std::int64_t n = state.range(0);
  const Eigen::MatrixXf a = Eigen::MatrixXf::Random(n, n), b = Eigen::MatrixXf::Random(n, n);
  Eigen::MatrixXf c(n, n);
  for (auto step : state) {
    (void)step;
    c.noalias() = a * b;
    benchmark::ClobberMemory();
  }
  set_rate(state, 2.0 * std::pow(static_cast<double>(n), 3));
}
BENCHMARK(eigen_gemm)->Arg(1024)->Arg(2048);

// --- attention: the last `rows` queries of a sample of `length`, heads, key heads, head size ---

struct Attended {
  cpu::AttentionShape shape;
  Floats query, key, value, out, log_sum, dout, dquery, dkey, dvalue;

  explicit Attended(const benchmark::State& state) {
    const std::int64_t length = state.range(0), rows = state.range(1);
    shape = {rows,           length,         Tokens{length - rows}, Tokens{0},
             state.range(2), state.range(3), state.range(4)};
    query = random_floats(rows * shape.query_width(), 1);
    key = random_floats(length * shape.key_width(), 2);
    value = random_floats(length * shape.key_width(), 3);
    dout = random_floats(rows * shape.query_width(), 4);
    out = dquery = Floats(query.size());
    dkey = dvalue = Floats(key.size());
    log_sum = Floats(static_cast<std::size_t>(rows * shape.heads));
  }
  [[nodiscard]] cpu::QueryRun<float> rows() {
    return {shape.first_row, shape.rows, query, out, log_sum, dout, {}, dquery};
  }
  [[nodiscard]] cpu::KeyRun<float> keys() {
    return {shape.first_key, shape.keys, key, value, dkey, dvalue, {}};
  }
  /// Visible pairs times heads times sizes: a product of scores and one of values.
  [[nodiscard]] double forward_flop() const {
    const auto rows = static_cast<double>(shape.rows);
    const double pairs = rows * static_cast<double>(shape.first_row.value) + rows * (rows + 1) / 2;
    return 4.0 * pairs * static_cast<double>(shape.query_width());
  }
};

void lengths(benchmark::internal::Benchmark* benchmark) {
  for (const std::int64_t length : {1024, 2048, 8192, 32768}) {
    benchmark->Args({length, std::min<std::int64_t>(length, 1024), 4, 2, 32});
  }
  benchmark->Args({8192, 1024, 8, 2, 128})->Args({8192, 1024, 4, 4, 64});
}

void attention_forward(benchmark::State& state) {
  Attended all(state);
  const cpu::QueryRun<float> rows = all.rows();
  cpu::FastMath math;
  for (auto step : state) {
    (void)step;
    cpu::FastMath::attention_begin(all.out, all.log_sum);
    math.attention_forward(std::span(&rows, 1), all.keys(), all.shape);
    benchmark::ClobberMemory();
  }
  set_rate(state, all.forward_flop());
}
BENCHMARK(attention_forward)->Apply(lengths);

void attention_backward(benchmark::State& state) {
  Attended all(state);
  const cpu::QueryRun<float> rows = all.rows();
  cpu::FastMath math;
  cpu::FastMath::attention_begin(all.out, all.log_sum);
  math.attention_forward(std::span(&rows, 1), all.keys(), all.shape);
  for (auto step : state) {
    (void)step;
    math.attention_backward(std::span(&rows, 1), all.keys(), all.shape);
    benchmark::ClobberMemory();
  }
  set_rate(state, 2.5 * all.forward_flop());
}
BENCHMARK(attention_backward)->Apply(lengths);

/// The whole score matrix of a head, by Eigen's products.
void attention_forward_naive(benchmark::State& state) {
  Attended all(state);
  const cpu::AttentionShape& shape = all.shape;
  const std::int64_t dim = shape.head_dim;
  Rows scores(shape.rows, shape.keys);
  const float scale = 1.0F / std::sqrt(static_cast<float>(dim));
  for (auto step : state) {
    (void)step;
    for (std::int64_t head = 0; head < shape.heads; ++head) {
      const std::int64_t kv = head / (shape.heads / shape.kv_heads);
      const auto query =
          map(all.query, shape.rows, shape.query_width()).middleCols(head * dim, dim);
      const auto key = map(all.key, shape.keys, shape.key_width()).middleCols(kv * dim, dim);
      const auto value = map(all.value, shape.keys, shape.key_width()).middleCols(kv * dim, dim);
      scores.noalias() = query * key.transpose() * scale;
      for (std::int64_t row = 0; row < shape.rows; ++row) {
        const std::int64_t seen = shape.visible(row);
        auto line = scores.row(row);
        line.tail(shape.keys - seen).setZero();
        auto part = line.head(seen).array();
        part = (part - part.maxCoeff()).exp();
        part /= part.sum();
      }
      map(all.out, shape.rows, shape.query_width()).middleCols(head * dim, dim).noalias() =
          scores * value;
    }
    benchmark::ClobberMemory();
  }
  set_rate(state, all.forward_flop());
}
BENCHMARK(attention_forward_naive)->Apply(lengths);

// --- a whole step of the preset `tiny` on one device ---

/// One stage, one rank: every sample is a forward pack and a backward pack.
Plan step_plan(std::int64_t samples, std::int64_t length) {
  Plan plan;
  plan.planner = "bench";
  plan.model = *model_preset("tiny");
  plan.memory.capacity = Bytes{1'000'000'000'000};
  plan.memory.gradient_bytes = 4;
  plan.parallel.granularity = Tokens{1};
  plan.stages = {{0, 0, 0, plan.model.layers, true}};
  plan.groups = {{0}};
  plan.placement.push_back({0, 0, 0, 0});
  plan.schedule.push_back({0, 0, {}});
  auto& order = plan.schedule.front().order;
  for (std::int64_t sample = 0; sample < samples; ++sample) {
    const Slice slice{static_cast<SampleId>(sample), Tokens{0}, Tokens{length}};
    plan.samples.push_back(slice.end);
    plan.origin.push_back({0, sample, Tokens{0}});
    plan.target_tokens += length - 1;
    plan.sample_group.push_back(GroupId{0});
    const auto pack = static_cast<std::uint32_t>(plan.micropacks.size());
    plan.micropacks.push_back({Pass::forward, GroupId{0}, {slice}, {}, Recompute::none});
    plan.micropacks.push_back({Pass::backward, GroupId{0}, {slice}, {}, Recompute::none});
    order.push_back({UnitKind::forward, PackId{pack}, 0});
    order.push_back({UnitKind::head, PackId{pack}, 0});
    order.push_back({UnitKind::backward, PackId{pack + 1}, 0});
  }
  order.push_back({UnitKind::reduce, {}, 0});
  order.push_back({UnitKind::optimizer, {}, 0});
  return plan;
}

/// Forward and backward of all products, as the backend does them (scores twice).
double step_flop(const Plan& plan) {
  const ModelShape& model = plan.model;
  const double h = static_cast<double>(model.hidden), q = static_cast<double>(model.query_width()),
               k = static_cast<double>(model.key_width()), f = static_cast<double>(model.ffn);
  const double weights = static_cast<double>(model.layers) * (2 * h * q + 2 * h * k + 3 * h * f) +
                         h * static_cast<double>(model.vocab);
  double flop = 0;
  for (const Tokens sample : plan.samples) {
    const auto n = static_cast<double>(sample.value);
    flop += 6 * weights * n + 7 * n * (n + 1) * q * static_cast<double>(model.layers);
  }
  return flop;
}

void step(benchmark::State& state) {
  const Plan plan = step_plan(16384 / state.range(0), state.range(0));
  const auto data = cpu::step_data(plan, cpu::random_tokens(plan, 1));
  auto devices = cpu::make_devices<cpu::FastDevice>(plan, 1);
  devices.front().reserve(Bytes{500'000'000});
  for (auto round : state) {
    (void)round;
    benchmark::DoNotOptimize(runtime::run_step(plan, data, std::span(devices)).loss);
  }
  set_rate(state, step_flop(plan));
  state.counters["tokens/s"] =
      benchmark::Counter(16384, benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(step)
    ->Arg(64)
    ->Arg(512)
    ->Arg(2048)
    ->Arg(8192)
    ->Unit(benchmark::kMillisecond)
    ->MeasureProcessCPUTime();

}  // namespace

BENCHMARK_MAIN();
