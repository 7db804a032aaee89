// SPDX-License-Identifier: Apache-2.0
#include "slimpack_cpu/ops.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "cpu/finite_differences.hpp"

using namespace slimpack;
using namespace slimpack::cpu;
using test::difference_of;
using test::product;
using test::random_values;

namespace {
constexpr double kTolerance = 1e-6;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<double> zeros(std::size_t count) {
  return std::vector<double>(count, 0.0);
}
}  // namespace

TEST_CASE("linear: forward by hand, gradients by finite differences") {
  const std::vector<double> small_in{1, 2, 3, 4}, small_weight{1, 0, -1, 2, 1, 1};
  std::vector<double> small_out(6);
  linear_forward(small_out, small_in, small_weight, {2, 2, 3});
  CHECK(small_out == std::vector<double>{1, 3, 3, 3, 5, 7});

  Random random(1);
  const LinearShape shape{3, 5, 4};
  auto in = random_values(random, 15), weight = random_values(random, 20);
  const auto seen = random_values(random, 12);
  const auto loss = [&] {
    std::vector<double> out(12);
    linear_forward(out, in, weight, shape);
    return product(seen, out);
  };
  auto din = zeros(15), dweight = zeros(20);
  linear_backward_input(din, seen, weight, shape);
  linear_backward_weight(dweight, seen, in, shape);
  CHECK(difference_of(in, din, loss) <= kTolerance);
  CHECK(difference_of(weight, dweight, loss) <= kTolerance);
  const auto once = din;
  linear_backward_input(din, seen, weight, shape);  // backward adds
  for (std::size_t i = 0; i < once.size(); ++i) CHECK(din[i] == doctest::Approx(2 * once[i]));
}

TEST_CASE("rms_norm: forward by hand, gradients by finite differences") {
  std::vector<double> one(2), inverse_one(1);
  rms_norm_forward(one, inverse_one, std::vector<double>{3, 4}, std::vector<double>{1, 2}, {1, 2},
                   0.0);
  CHECK(inverse_one[0] == doctest::Approx(1 / std::sqrt(12.5)));
  CHECK(one[1] == doctest::Approx(8 / std::sqrt(12.5)));

  Random random(2);
  const RowShape shape{4, 6};
  auto in = random_values(random, 24), gain = random_values(random, 6);
  const auto seen = random_values(random, 24);
  std::vector<double> out(24), inverse(4);
  const auto loss = [&] {
    rms_norm_forward(out, inverse, in, gain, shape, 1e-5);
    return product(seen, out);
  };
  (void)loss();
  auto din = zeros(24), dgain = zeros(6);
  rms_norm_backward(din, dgain, seen, in, gain, inverse, shape);
  CHECK(difference_of(in, din, loss) <= kTolerance);
  CHECK(difference_of(gain, dgain, loss) <= kTolerance);
}

TEST_CASE("rotate: keeps lengths, depends on the difference of positions only, turns back") {
  Random random(3);
  const RopeShape shape{5, 2, 6};
  auto values = random_values(random, 60);
  const auto before = values;
  rotate(values, Tokens{7}, shape, 100.0, Rotation::forward);
  CHECK(product(values, values) == doctest::Approx(product(before, before)));
  CHECK(values != before);
  const auto seen = random_values(random, 60);
  auto dvalues = seen;
  rotate(dvalues, Tokens{7}, shape, 100.0, Rotation::inverse);
  auto at = before;
  CHECK(difference_of(at, dvalues, [&] {
          auto turned = at;
          rotate(turned, Tokens{7}, shape, 100.0, Rotation::forward);
          return product(seen, turned);
        }) <= kTolerance);
  rotate(values, Tokens{7}, shape, 100.0, Rotation::inverse);
  for (std::size_t i = 0; i < values.size(); ++i) CHECK(values[i] == doctest::Approx(before[i]));

  // Query at position p and key at position q give the same score as at p + 9 and q + 9.
  const auto score = [&](std::int64_t p, std::int64_t q) {
    auto query = std::vector<double>(before.begin(), before.begin() + 6);
    auto key = std::vector<double>(before.begin() + 6, before.begin() + 12);
    rotate(query, Tokens{p}, {1, 1, 6}, 100.0, Rotation::forward);
    rotate(key, Tokens{q}, {1, 1, 6}, 100.0, Rotation::forward);
    return product(query, key);
  };
  CHECK(score(5, 2) == doctest::Approx(score(14, 11)));
  CHECK(score(5, 2) != doctest::Approx(score(5, 3)));

  // Hugging Face's halves: element 0 turns with element head_dim / 2, by one radian a position.
  std::vector<double> unit{1, 0, 0, 0};
  rotate(unit, Tokens{1}, {1, 1, 4}, 10000.0, Rotation::forward);
  CHECK(unit[0] == doctest::Approx(std::cos(1.0)));
  CHECK(unit[2] == doctest::Approx(std::sin(1.0)));
  CHECK(unit[1] == 0.0);
}

TEST_CASE("swiglu: gradients by finite differences") {
  Random random(4);
  auto gate = random_values(random, 20), up = random_values(random, 20);
  const auto seen = random_values(random, 20);
  const auto loss = [&] {
    std::vector<double> out(20);
    swiglu_forward(out, gate, up);
    return product(seen, out);
  };
  auto dgate = zeros(20), dup = zeros(20);
  swiglu_backward(dgate, dup, seen, gate, up);
  CHECK(difference_of(gate, dgate, loss) <= kTolerance);
  CHECK(difference_of(up, dup, loss) <= kTolerance);
}

TEST_CASE("embedding: gradients by finite differences, repeated tokens add up") {
  Random random(5);
  const std::vector<std::int32_t> tokens{3, 1, 3, 0};
  auto table = random_values(random, 15);
  const auto seen = random_values(random, 12);
  const auto loss = [&] {
    std::vector<double> out(12);
    embedding_forward(out, table, tokens, 5, 3);
    return product(seen, out);
  };
  auto dtable = zeros(15);
  embedding_backward(dtable, seen, tokens, 5, 3);
  CHECK(difference_of(table, dtable, loss) <= kTolerance);
}

TEST_CASE("cross-entropy: over any shards the same loss, gradients by finite differences") {
  Random random(6);
  const std::vector<std::optional<std::int32_t>> targets{2, std::nullopt, 0, 6};
  auto logits = random_values(random, 28);
  const double scale = 0.25;
  /// Loss and gradient with the columns cut at `cut`.
  const auto run = [&](std::int64_t cut, std::vector<double>& gradient) {
    std::vector<std::vector<double>> parts;
    std::vector<LogitShape> shapes{{4, 0, cut}, {4, cut, 7 - cut}};
    std::vector<double> maximum(4, -kInfinity), sum(4, 0.0), target(4, 0.0);
    for (const LogitShape& shape : shapes) {
      parts.emplace_back();
      for (std::int64_t r = 0; r < 4; ++r) {
        const In row = cpu::detail::row(In(logits), r, 7);
        for (std::int64_t c = 0; c < shape.size; ++c) {
          parts.back().push_back(row[static_cast<std::size_t>(shape.first + c)]);
        }
      }
      std::vector<double> part(4);
      logit_maximum(part, parts.back(), shape);
      for (std::size_t r = 0; r < 4; ++r) maximum[r] = std::max(maximum[r], part[r]);
    }
    for (std::size_t i = 0; i < 2; ++i) {
      std::vector<double> part_sum(4), part_target(4);
      logit_sums(part_sum, part_target, parts[i], maximum, targets, shapes[i]);
      add(sum, part_sum);
      add(target, part_target);
    }
    gradient.assign(28, 0.0);
    for (std::size_t i = 0; i < 2; ++i) {
      logit_gradients(parts[i], maximum, sum, targets, shapes[i], scale);
      for (std::int64_t r = 0; r < 4; ++r) {
        std::ranges::copy(cpu::detail::row(In(parts[i]), r, shapes[i].size),
                          cpu::detail::row(Out(gradient), r, 7).begin() + shapes[i].first);
      }
    }
    double loss = 0;
    for (std::size_t r = 0; r < 4; ++r) {
      if (targets[r]) loss += scale * (maximum[r] + std::log(sum[r]) - target[r]);
    }
    return loss;
  };
  std::vector<double> whole, gradient, ignored;
  const double loss = run(7, whole);
  for (std::int64_t cut = 0; cut <= 7; ++cut) {
    CHECK(run(cut, gradient) == doctest::Approx(loss).epsilon(1e-14));
    for (std::size_t i = 0; i < 28; ++i) {
      CHECK(gradient[i] == doctest::Approx(whole[i]).epsilon(1e-13));
    }
  }
  CHECK(difference_of(logits, whole, [&] { return run(7, ignored); }) <= kTolerance);
  for (std::size_t i = 7; i < 14; ++i) CHECK(whole[i] == 0.0);  // the row without target
}

TEST_CASE("adamw_step: the first step by hand, decay without gradient") {
  const AdamW settings{0.1, 0.9, 0.99, 0.0, 0.5};
  std::vector<double> weights{2.0, 2.0}, first(2), second(2);
  adamw_step(weights, first, second, std::vector<double>{3.0, -7.0}, settings, 1);
  // Bias correction makes the first step learning_rate * sign of the gradient, plus the decay.
  CHECK(weights[0] == doctest::Approx(2.0 - 0.1 - 0.1 * 0.5 * 2.0));
  CHECK(weights[1] == doctest::Approx(2.0 + 0.1 - 0.1 * 0.5 * 2.0));
  CHECK(first[0] == doctest::Approx(0.3));
  CHECK(second[1] == doctest::Approx(0.49));
}

TEST_CASE("operators: spans of a wrong size are refused by name") {
  std::vector<double> two(2), three(3), six(6);
  const std::vector<std::int32_t> tokens{0, 1}, beyond{0, 9};
  const std::vector<std::optional<std::int32_t>> targets(2);
#define CHECK_REFUSED(call, sentence) CHECK_THROWS_WITH_AS(call, sentence, InvalidInput)
  CHECK_REFUSED(add(two, three), "add: values is not as long as into, got 3");
  CHECK_REFUSED(linear_forward(six, six, two, {3, 2, 1}),
                "linear_forward: out is not rows * out, got 6");
  CHECK_REFUSED(linear_forward(three, two, two, {3, 2, 1}),
                "linear_forward: in is not rows * in, got 2");
  CHECK_REFUSED(linear_forward(three, six, three, {3, 2, 1}),
                "linear_forward: weight is not out * in, got 3");
  CHECK_REFUSED(linear_forward(three, six, two, {-3, 2, 1}),
                "linear_forward: out is not rows * out, got -3");
  CHECK_REFUSED(linear_backward_input(two, three, two, {3, 2, 1}),
                "linear_backward_input: din is not rows * in, got 2");
  CHECK_REFUSED(linear_backward_input(six, two, two, {3, 2, 1}),
                "linear_backward_input: dout is not rows * out, got 2");
  CHECK_REFUSED(linear_backward_input(six, three, three, {3, 2, 1}),
                "linear_backward_input: weight is not out * in, got 3");
  CHECK_REFUSED(linear_backward_weight(three, three, six, {3, 2, 1}),
                "linear_backward_weight: dweight is not out * in, got 3");
  CHECK_REFUSED(linear_backward_weight(two, two, six, {3, 2, 1}),
                "linear_backward_weight: dout is not rows * out, got 2");
  CHECK_REFUSED(linear_backward_weight(two, three, two, {3, 2, 1}),
                "linear_backward_weight: in is not rows * in, got 2");
  CHECK_REFUSED(rms_norm_forward(six, two, six, three, {2, 0}, 1e-5),
                "rms_norm_forward: cols must be > 0, got 0");
  CHECK_REFUSED(rms_norm_forward(two, two, six, three, {2, 3}, 1e-5),
                "rms_norm_forward: out is not rows * cols, got 2");
  CHECK_REFUSED(rms_norm_forward(six, two, two, three, {2, 3}, 1e-5),
                "rms_norm_forward: in is not rows * cols, got 2");
  CHECK_REFUSED(rms_norm_forward(six, three, six, three, {2, 3}, 1e-5),
                "rms_norm_forward: inverse_rms is not one a row, got 3");
  CHECK_REFUSED(rms_norm_forward(six, two, six, two, {2, 3}, 1e-5),
                "rms_norm_forward: gain is not one a column, got 2");
  CHECK_REFUSED(rms_norm_backward(six, three, six, six, three, two, {2, 0}),
                "rms_norm_backward: cols must be > 0, got 0");
  CHECK_REFUSED(rms_norm_backward(two, three, six, six, three, two, {2, 3}),
                "rms_norm_backward: din is not rows * cols, got 2");
  CHECK_REFUSED(rms_norm_backward(six, three, two, six, three, two, {2, 3}),
                "rms_norm_backward: dout is not rows * cols, got 2");
  CHECK_REFUSED(rms_norm_backward(six, three, six, two, three, two, {2, 3}),
                "rms_norm_backward: in is not rows * cols, got 2");
  CHECK_REFUSED(rms_norm_backward(six, three, six, six, three, three, {2, 3}),
                "rms_norm_backward: inverse_rms is not one a row, got 3");
  CHECK_REFUSED(rms_norm_backward(six, three, six, six, two, two, {2, 3}),
                "rms_norm_backward: gain is not one a column, got 2");
  CHECK_REFUSED(rms_norm_backward(six, two, six, six, three, two, {2, 3}),
                "rms_norm_backward: dgain is not one a column, got 2");
  CHECK_REFUSED(rotate(six, Tokens{0}, {2, 1, 3}, 1e4, Rotation::forward),
                "rotate: head_dim must be even, got 3");
  CHECK_REFUSED(rotate(six, Tokens{0}, {2, 1, 2}, 1e4, Rotation::forward),
                "rotate: values is not rows * heads * head_dim, got 6");
  CHECK_REFUSED(swiglu_forward(two, three, two),
                "swiglu_forward: gate is not as long as product, got 3");
  CHECK_REFUSED(swiglu_forward(two, two, three),
                "swiglu_forward: up is not as long as product, got 3");
  CHECK_REFUSED(swiglu_backward(two, three, two, two, two),
                "swiglu_backward: all spans must be as long as dproduct, got 3");
  CHECK_REFUSED(embedding_forward(three, six, tokens, 2, 3),
                "embedding_forward: out is not tokens * hidden, got 3");
  CHECK_REFUSED(embedding_forward(six, three, tokens, 2, 3),
                "embedding_forward: table is not vocab * hidden, got 3");
  CHECK_REFUSED(embedding_forward(six, six, beyond, 2, 3),
                "embedding_forward: tokens must be below vocab, got 9");
  CHECK_REFUSED(embedding_backward(six, three, tokens, 2, 3),
                "embedding_backward: dout is not tokens * hidden, got 3");
  CHECK_REFUSED(embedding_backward(three, six, tokens, 2, 3),
                "embedding_backward: dtable is not vocab * hidden, got 3");
  CHECK_REFUSED(embedding_backward(six, six, beyond, 2, 3),
                "embedding_backward: tokens must be below vocab, got 9");
  CHECK_REFUSED(logit_maximum(two, three, {2, 0, 3}),
                "logit_maximum: logits is not rows * size, got 3");
  CHECK_REFUSED(logit_maximum(three, six, {2, 0, 3}),
                "logit_maximum: maximum is not one a row, got 3");
  CHECK_REFUSED(logit_sums(two, two, three, two, targets, {2, 0, 3}),
                "logit_sums: logits is not rows * size, got 3");
  CHECK_REFUSED(logit_sums(three, two, six, two, targets, {2, 0, 3}),
                "logit_sums: sum is not one a row, got 3");
  CHECK_REFUSED(logit_sums(two, three, six, two, targets, {2, 0, 3}),
                "logit_sums: target_logit is not one a row, got 3");
  CHECK_REFUSED(logit_sums(two, two, six, three, targets, {2, 0, 3}),
                "logit_sums: maximum is not one a row, got 3");
  CHECK_REFUSED(logit_sums(three, three, six, three, targets, {3, 0, 2}),
                "logit_sums: targets is not one a row, got 2");
  CHECK_REFUSED(logit_gradients(three, two, two, targets, {2, 0, 3}, 1.0),
                "logit_gradients: logits is not rows * size, got 3");
  CHECK_REFUSED(logit_gradients(six, three, two, targets, {2, 0, 3}, 1.0),
                "logit_gradients: maximum is not one a row, got 3");
  CHECK_REFUSED(logit_gradients(six, two, three, targets, {2, 0, 3}, 1.0),
                "logit_gradients: sum is not one a row, got 3");
  CHECK_REFUSED(logit_gradients(six, three, three, targets, {3, 0, 2}, 1.0),
                "logit_gradients: targets is not one a row, got 2");
  CHECK_REFUSED(adamw_step(two, two, two, two, {}, 0), "adamw_step: step must be >= 1, got 0");
  CHECK_REFUSED(adamw_step(two, two, two, three, {}, 1),
                "adamw_step: all spans must be as long as weights, got 3");
#undef CHECK_REFUSED
}
