// SPDX-License-Identifier: Apache-2.0
#include "slimpack_cpu/fast/ops.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "slimpack/core/random.hpp"
#include "slimpack_cpu/mathematics.hpp"

using namespace slimpack;
using namespace slimpack::cpu;

namespace {

constexpr double kNumberEpsilon = 6e-8;
const float kPoison = std::numeric_limits<float>::quiet_NaN();

/// The same numbers twice.
struct Both {
  std::vector<float> fast;
  std::vector<double> plain;

  Both() = default;
  Both(Random& random, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
      fast.push_back(static_cast<float>(random.normal()));
      plain.push_back(static_cast<double>(fast.back()));
    }
  }
  /// Outputs that are to be overwritten.
  static Both poisoned(std::int64_t count) {
    Both both;
    both.fast.assign(static_cast<std::size_t>(count), kPoison);
    both.plain.assign(static_cast<std::size_t>(count), 0.0);
    return both;
  }
  /// The largest difference over the largest number.
  [[nodiscard]] double difference() const {
    double largest = 0, found = 0;
    for (std::size_t i = 0; i < fast.size(); ++i) {
      const double apart = std::abs(static_cast<double>(fast[i]) - plain[i]);
      found = apart <= found ? found : apart;
      largest = std::max(largest, std::abs(plain[i]));
    }
    return found == 0 ? 0 : found / largest;
  }
};

struct Size {
  std::int64_t rows, in, out;
};
/// Around the edges of packets, tiles and blocks.
const std::vector<Size> kSizes{{1, 1, 1},    {2, 3, 5},     {5, 16, 17},   {6, 64, 64},
                               {7, 31, 65},  {13, 128, 48}, {48, 33, 129}, {3, 513, 7},
                               {9, 7, 1031}, {515, 5, 6},   {64, 520, 12}, {31, 600, 525}};

}  // namespace

TEST_CASE("fast exp2: two units in the last place over its range, and its limits") {
  using fast::Packet;
  double worst = 0;
  for (double x = -125.5; x < 127.0; x += 0.00731) {
    const auto number = static_cast<float>(x);
    alignas(64) float lanes[fast::kLanes];
    fast::store(lanes, fast::exp2(fast::all(number)));
    const double expected = std::exp2(static_cast<double>(number));
    worst = std::max(worst, std::abs(static_cast<double>(lanes[0]) - expected) / expected);
    CHECK(lanes[fast::kLanes - 1] == lanes[0]);
  }
  CHECK(worst <= 2 * 1.2e-7);
  const auto one = [](float x) {
    alignas(64) float lanes[fast::kLanes];
    fast::store(lanes, fast::exp2(fast::all(x)));
    return lanes[0];
  };
  CHECK(one(0.0F) == 1.0F);
  CHECK(one(-3.0F) == 0.125F);
  CHECK(one(-127.0F) == 0.0F);
  CHECK(one(-126.3F) >= 0.0F);
  CHECK(one(-126.3F) <= 0x1p-125F);
  CHECK(one(-std::numeric_limits<float>::infinity()) == 0.0F);
  CHECK(one(200.0F) == std::exp2(127.0F));
  CHECK(std::isnan(one(kPoison)));
}

TEST_CASE("fast linear: forward and both gradients as in fp64, at sizes around every edge") {
  FastMath math;
  for (const Size& size : kSizes) {
    CAPTURE(size.rows);
    CAPTURE(size.in);
    CAPTURE(size.out);
    Random random(7);
    const LinearShape shape{size.rows, size.in, size.out};
    const Both in(random, size.rows * size.in), weight(random, size.out * size.in),
        dout(random, size.rows * size.out);
    for (int repeat = 0; repeat < 2; ++repeat) {  // the second time with packed weights
      Both out = Both::poisoned(size.rows * size.out);
      math.linear_forward(out.fast, in.fast, weight.fast, shape);
      linear_forward(out.plain, in.plain, weight.plain, shape);
      CHECK(out.difference() <= 20 * kNumberEpsilon);
    }
    Both din(random, size.rows * size.in), dweight(random, size.out * size.in);
    for (int repeat = 0; repeat < 2; ++repeat) {  // backward adds
      math.linear_backward_input(din.fast, dout.fast, weight.fast, shape);
      linear_backward_input(din.plain, dout.plain, weight.plain, shape);
      math.linear_backward_weight(dweight.fast, dout.fast, in.fast, shape);
      linear_backward_weight(dweight.plain, dout.plain, in.plain, shape);
    }
    CHECK(din.difference() <= 30 * kNumberEpsilon);
    CHECK(dweight.difference() <= 30 * kNumberEpsilon);
  }
}

TEST_CASE("fast linear: a row's result has the same bits whatever rows are computed with it") {
  Random random(9);
  const Both in(random, 29 * 130), weight(random, 70 * 130);
  FastMath math;
  std::vector<float> all(29 * 70), one(70);
  math.linear_forward(all, in.fast, weight.fast, {29, 130, 70});
  for (std::size_t row = 0; row < 29; ++row) {
    math.linear_forward(one, std::span(in.fast).subspan(row * 130, 130), weight.fast, {1, 130, 70});
    CHECK(std::equal(one.begin(), one.end(), all.begin() + static_cast<std::ptrdiff_t>(row * 70)));
  }
}

TEST_CASE("fast linear: packed weights are dropped by forget") {
  Random random(10);
  const Both in(random, 4 * 8);
  Both weight(random, 5 * 8);
  FastMath math;
  std::vector<float> before(20), after(20);
  math.linear_forward(before, in.fast, weight.fast, {4, 8, 5});
  for (float& value : weight.fast) value *= 2;
  math.forget();
  math.linear_forward(after, in.fast, weight.fast, {4, 8, 5});
  for (std::size_t i = 0; i < 20; ++i) CHECK(after[i] == 2 * before[i]);
  // The same memory in another shape is another matrix.
  std::vector<float> reshaped(8 * 8), expected(8 * 8);
  const std::span<const float> some = std::span(weight.fast).first(8 * 4);
  math.linear_forward(reshaped, in.fast, some, {8, 4, 8});
  math.forget();
  math.linear_forward(expected, in.fast, some, {8, 4, 8});
  CHECK(reshaped == expected);
}

TEST_CASE("fast rms_norm: forward and gradients as in fp64") {
  for (const Size& size : kSizes) {
    CAPTURE(size.rows);
    CAPTURE(size.in);
    Random random(11);
    const RowShape shape{size.rows, size.in};
    const std::int64_t count = size.rows * size.in;
    const Both in(random, count), gain(random, size.in), dout(random, count);
    Both out = Both::poisoned(count), inverse = Both::poisoned(size.rows);
    FastMath::rms_norm_forward(out.fast, inverse.fast, in.fast, gain.fast, shape, 1e-5);
    rms_norm_forward(out.plain, inverse.plain, in.plain, gain.plain, shape, 1e-5);
    CHECK(out.difference() <= 10 * kNumberEpsilon);
    CHECK(inverse.difference() <= 10 * kNumberEpsilon);
    Both din(random, count), dgain(random, size.in);
    FastMath::rms_norm_backward(din.fast, dgain.fast, dout.fast, in.fast, gain.fast, inverse.fast,
                                shape);
    rms_norm_backward(din.plain, dgain.plain, dout.plain, in.plain, gain.plain, inverse.plain,
                      shape);
    CHECK(din.difference() <= 50 * kNumberEpsilon);
    CHECK(dgain.difference() <= 50 * kNumberEpsilon);
  }
}

TEST_CASE("fast rotate: as in fp64 at any position, and turned back") {
  FastMath math;
  for (const std::int64_t first : {0, 1, 62, 63, 64, 5000, 131071}) {
    for (const std::int64_t dim : {2, 6, 32, 34, 128}) {
      CAPTURE(first);
      CAPTURE(dim);
      Random random(12);
      const RopeShape shape{70, 3, dim};
      Both values(random, 70 * 3 * dim);
      const std::vector<float> before = values.fast;
      math.rotate(values.fast, Tokens{first}, shape, 1e4, Rotation::forward);
      rotate(values.plain, Tokens{first}, shape, 1e4, Rotation::forward);
      CHECK(values.difference() <= 10 * kNumberEpsilon);
      math.rotate(values.fast, Tokens{first}, shape, 1e4, Rotation::inverse);
      for (std::size_t i = 0; i < before.size(); ++i) {
        CHECK(std::abs(values.fast[i] - before[i]) <= 2e-6F);
      }
    }
  }
}

TEST_CASE("fast swiglu: forward and gradients as in fp64, at large gates too") {
  for (const std::int64_t count : {1, 15, 16, 17, 100}) {
    CAPTURE(count);
    Random random(13);
    Both gate(random, count);
    const Both up(random, count), dout(random, count);
    for (std::size_t i = 1; i < gate.fast.size(); i += 7) {
      gate.fast[i] *= 60;
      gate.plain[i] = static_cast<double>(gate.fast[i]);
    }
    Both out = Both::poisoned(count);
    FastMath::swiglu_forward(out.fast, gate.fast, up.fast);
    swiglu_forward(out.plain, gate.plain, up.plain);
    CHECK(out.difference() <= 10 * kNumberEpsilon);
    Both dgate(random, count), dup(random, count);
    FastMath::swiglu_backward(dgate.fast, dup.fast, dout.fast, gate.fast, up.fast);
    swiglu_backward(dgate.plain, dup.plain, dout.plain, gate.plain, up.plain);
    CHECK(dgate.difference() <= 20 * kNumberEpsilon);
    CHECK(dup.difference() <= 20 * kNumberEpsilon);
  }
}

TEST_CASE("fast embedding and add: as in fp64") {
  Random random(14);
  const std::int64_t hidden = 21, vocab = 9;
  const Both table(random, vocab * hidden), dout(random, 5 * hidden);
  const std::vector<std::int32_t> tokens{3, 0, 8, 3, 3};
  Both out = Both::poisoned(5 * hidden);
  FastMath::embedding_forward(out.fast, table.fast, tokens, vocab, hidden);
  embedding_forward(out.plain, table.plain, tokens, vocab, hidden);
  CHECK(out.difference() == 0);
  Both dtable(random, vocab * hidden);
  FastMath::embedding_backward(dtable.fast, dout.fast, tokens, vocab, hidden);
  embedding_backward(dtable.plain, dout.plain, tokens, vocab, hidden);
  CHECK(dtable.difference() <= 4 * kNumberEpsilon);
  FastMath::add(out.fast, dout.fast);
  add(out.plain, dout.plain);
  CHECK(out.difference() <= 2 * kNumberEpsilon);
  const std::vector<std::int32_t> unknown{9};
  std::vector<float> row(21);
  CHECK_THROWS_WITH_AS(FastMath::embedding_forward(row, table.fast, unknown, vocab, hidden),
                       "fast embedding_forward: tokens must be below vocab, got 9", InvalidInput);
  CHECK_THROWS_WITH_AS(FastMath::embedding_backward(dtable.fast, row, unknown, vocab, hidden),
                       "fast embedding_backward: tokens must be below vocab, got 9", InvalidInput);
}

TEST_CASE("fast logits: maximum, sums and gradients as in fp64, whole and in shards") {
  for (const std::int64_t vocab : {1, 15, 16, 257, 1000}) {
    for (const std::int64_t first : {0, 40}) {
      CAPTURE(vocab);
      CAPTURE(first);
      Random random(15);
      const LogitShape shape{6, first, vocab};
      Both logits(random, 6 * vocab);
      const std::vector<std::optional<std::int32_t>> targets{
          0, {}, static_cast<std::int32_t>(vocab - 1), 40, 45, {}};
      Both largest = Both::poisoned(6), sum = Both::poisoned(6), target = Both::poisoned(6);
      FastMath::logit_maximum(largest.fast, logits.fast, shape);
      logit_maximum(largest.plain, logits.plain, shape);
      CHECK(largest.difference() == 0);
      FastMath::logit_sums(sum.fast, target.fast, logits.fast, largest.fast, targets, shape);
      logit_sums(sum.plain, target.plain, logits.plain, largest.plain, targets, shape);
      CHECK(sum.difference() <= 10 * kNumberEpsilon);
      CHECK(target.difference() == 0);
      FastMath::logit_gradients(logits.fast, largest.fast, sum.fast, targets, shape, 0.25);
      logit_gradients(logits.plain, largest.plain, sum.plain, targets, shape, 0.25);
      CHECK(logits.difference() <= 10 * kNumberEpsilon);
    }
  }
  std::vector<float> none, largest(2);
  FastMath::logit_maximum(largest, none, {2, 0, 0});
  CHECK((std::isinf(largest[0]) && largest[0] < 0));
}

TEST_CASE("fast AdamW and squares: as in fp64 over steps, clipped or not") {
  for (const double factor : {1.0, 0.37}) {
    Random random(16);
    Both weights(random, 77), first(random, 77), second(random, 77);
    std::fill(first.fast.begin(), first.fast.end(), 0.0F);
    std::fill(first.plain.begin(), first.plain.end(), 0.0);
    second = first;
    AdamW settings;
    settings.learning_rate = 0.05;
    for (std::int64_t step = 1; step <= 5; ++step) {
      const Both gradients(random, 77);
      FastMath::adamw_step(weights.fast, first.fast, second.fast, gradients.fast, settings, step,
                           factor);
      adamw_step(weights.plain, first.plain, second.plain, gradients.plain, settings, step, factor);
      CHECK(weights.difference() <= 20 * kNumberEpsilon);
      CHECK(first.difference() <= 20 * kNumberEpsilon);
      CHECK(second.difference() <= 20 * kNumberEpsilon);
      CHECK(FastMath::squares(gradients.fast) ==
            doctest::Approx(PlainMath::squares(gradients.plain)).epsilon(1e-14));
    }
  }
}

TEST_CASE("fast operators: spans of a wrong size are refused by name") {
  FastMath math;
  std::vector<float> four(4), five(5), two(2);
  const std::vector<std::optional<std::int32_t>> targets(2);
#define CHECK_WRONG_SIZE(call, sentence) CHECK_THROWS_WITH_AS(call, sentence, InvalidInput)
  CHECK_WRONG_SIZE(math.linear_forward(five, four, four, {2, 2, 2}),
                   "fast linear_forward: size of out must be as the shape says, got 5");
  CHECK_WRONG_SIZE(math.linear_backward_input(five, four, four, {2, 2, 2}),
                   "fast linear_backward_input: size of in must be as the shape says, got 5");
  CHECK_WRONG_SIZE(math.linear_backward_weight(five, four, four, {2, 2, 2}),
                   "fast linear_backward_weight: size of weight must be as the shape says, got 5");
  CHECK_WRONG_SIZE(FastMath::rms_norm_forward(four, two, four, five, {2, 2}, 0),
                   "fast rms_norm_forward: size of gain must be as the shape says, got 5");
  CHECK_WRONG_SIZE(FastMath::rms_norm_backward(four, five, four, four, two, two, {2, 2}),
                   "fast rms_norm_backward: size of dgain must be as the shape says, got 5");
  CHECK_WRONG_SIZE(math.rotate(five, Tokens{0}, {2, 1, 2}, 1e4, Rotation::forward),
                   "fast rotate: size of values must be as the shape says, got 5");
  CHECK_WRONG_SIZE(math.rotate(four, Tokens{0}, {2, 1, 3}, 1e4, Rotation::forward),
                   "fast rotate: head_dim must be even, got 3");
  CHECK_WRONG_SIZE(FastMath::swiglu_forward(four, four, five),
                   "fast swiglu_forward: size of up must be as the shape says, got 5");
  CHECK_WRONG_SIZE(FastMath::swiglu_backward(four, five, four, four, four),
                   "fast swiglu_backward: size of each span must be as the shape says, got 5");
  CHECK_WRONG_SIZE(FastMath::logit_maximum(five, four, {2, 0, 2}),
                   "fast logit_maximum: size of maximum must be as the shape says, got 5");
  CHECK_WRONG_SIZE(FastMath::logit_sums(two, five, four, two, targets, {2, 0, 2}),
                   "fast logit_sums: size of target_logit must be as the shape says, got 5");
  CHECK_WRONG_SIZE(FastMath::logit_gradients(five, two, two, targets, {2, 0, 2}, 1),
                   "fast logit_gradients: size of logits must be as the shape says, got 5");
  CHECK_WRONG_SIZE(FastMath::add(four, five),
                   "fast add: size of values must be as the shape says, got 5");
  CHECK_WRONG_SIZE(FastMath::adamw_step(four, four, five, four, {}, 1, 1),
                   "fast adamw_step: size of each span must be as the shape says, got 5");
  CHECK_WRONG_SIZE(FastMath::adamw_step(four, four, four, four, {}, 0, 1),
                   "fast adamw_step: step must be >= 1, got 0");
#undef CHECK_WRONG_SIZE
}
