// SPDX-License-Identifier: Apache-2.0
#include "slimpack_cpu/fast/attention.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "slimpack/core/random.hpp"
#include "slimpack_cpu/mathematics.hpp"
#include "support/draws.hpp"

using namespace slimpack;
using namespace slimpack::cpu;

namespace {

/// Attention of one random piece in both mathematics.
struct Attended {
  AttentionShape shape;
  std::vector<double> query, key, value, dout, out, log_sum, dquery, dkey, dvalue;

  Attended(Random& random, const AttentionShape& drawn) : shape(drawn) {
    // Numbers that are floats, so that both sides begin alike.
    const auto draw = [&](std::int64_t count) {
      std::vector<double> values(static_cast<std::size_t>(count));
      for (double& number : values) {
        number = static_cast<double>(static_cast<float>(random.normal()));
      }
      return values;
    };
    query = draw(shape.rows * shape.query_width());
    dout = draw(shape.rows * shape.query_width());
    key = draw(shape.keys * shape.key_width());
    value = draw(shape.keys * shape.key_width());
    out.resize(query.size());
    log_sum.resize(static_cast<std::size_t>(shape.rows * shape.heads));
    dquery = draw(shape.rows * shape.query_width());
    dkey = draw(shape.keys * shape.key_width());
    dvalue = draw(shape.keys * shape.key_width());
  }
};

std::vector<float> floats(const std::vector<double>& values) {
  std::vector<float> result;
  for (const double number : values) result.push_back(static_cast<float>(number));
  return result;
}

double apart(const std::vector<float>& got, const std::vector<double>& expected) {
  double largest = 0, found = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (std::isinf(expected[i]) && static_cast<double>(got[i]) == expected[i]) continue;
    const double distance = std::abs(static_cast<double>(got[i]) - expected[i]);
    found = distance <= found ? found : distance;
    largest = std::max(largest, std::abs(expected[i]));
  }
  return found == 0 ? 0 : found / largest;
}

QueryRun<float> rows_of(const AttentionShape& shape, std::span<float> query, std::span<float> out,
                        std::span<float> log_sum, std::span<float> dout = {},
                        std::span<float> delta = {}, std::span<float> dquery = {}) {
  return {shape.first_row, shape.rows, query, out, log_sum, dout, delta, dquery};
}
KeyRun<float> keys_of(const AttentionShape& shape, std::span<float> key, std::span<float> value,
                      std::span<float> dkey = {}, std::span<float> dvalue = {}) {
  return {shape.first_key, shape.keys, key, value, dkey, dvalue, {}};
}
void forward(FastMath& math, const QueryRun<float>& rows, const KeyRun<float>& keys,
             const AttentionShape& heads) {
  math.attention_forward(std::span(&rows, 1), keys, heads);
}
void backward(FastMath& math, const QueryRun<float>& rows, const KeyRun<float>& keys,
              const AttentionShape& heads) {
  math.attention_backward(std::span(&rows, 1), keys, heads);
}

AttentionShape run_at(AttentionShape shape, std::int64_t first, std::int64_t count) {
  shape.first_key = Tokens{first};
  shape.keys = count;
  return shape;
}

/// Both passes over runs of the given lengths, against fp64 over all keys at once.
void check_attended(Random& random, const AttentionShape& shape,
                    const std::vector<std::int64_t>& runs, bool by_delta) {
  Attended all(random, shape);
  FastMath math;
  auto query = floats(all.query), key = floats(all.key), value = floats(all.value),
       dout = floats(all.dout);
  auto dquery = floats(all.dquery), dkey = floats(all.dkey), dvalue = floats(all.dvalue);
  const float poison = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> out(query.size(), poison), log_sum(all.log_sum.size(), poison),
      delta(all.log_sum.size(), poison);
  attention_begin(all.out, all.log_sum);
  attention_forward(all.out, all.log_sum, all.query, all.key, all.value, shape);
  attention_backward(all.dquery, all.dkey, all.dvalue, all.query, all.key, all.value, all.out,
                     all.log_sum, all.dout, shape);
  FastMath::attention_begin(out, log_sum);
  const auto each_run = [&](auto visit) {
    std::int64_t first = 0;
    for (const std::int64_t count : runs) {
      const auto part = [&](auto& values) {
        return cpu::detail::rows(std::span(values), first, count, shape.key_width());
      };
      visit(run_at(shape, shape.first_key.value + first, count), part);
      first += count;
    }
  };
  each_run([&](const AttentionShape& run, auto part) {
    forward(math, rows_of(run, query, out, log_sum), keys_of(run, part(key), part(value)), run);
  });
  CHECK(apart(out, all.out) <= 2e-6);
  CHECK(apart(log_sum, all.log_sum) <= 1e-6);
  FastMath::attention_delta(delta, out, dout, shape);
  each_run([&](const AttentionShape& run, auto part) {
    const auto rows = by_delta ? rows_of(run, query, {}, log_sum, dout, delta, dquery)
                               : rows_of(run, query, out, log_sum, dout, {}, dquery);
    backward(math, rows, keys_of(run, part(key), part(value), part(dkey), part(dvalue)), run);
  });
  CHECK(apart(dquery, all.dquery) <= 4e-6);
  CHECK(apart(dkey, all.dkey) <= 4e-6);
  CHECK(apart(dvalue, all.dvalue) <= 4e-6);
}

}  // namespace

TEST_CASE("fast attention: forward and gradients as in fp64, for random prefixes, heads and runs") {
  for (std::uint64_t seed = 0; seed < slimpack::test::draws(120U); ++seed) {
    CAPTURE(seed);
    Random random(seed);
    AttentionShape shape;
    shape.rows = random.between(1, 70);
    shape.first_row = Tokens{random.chance(1, 4) ? 0 : random.between(0, 300)};
    shape.kv_heads = random.between(1, 3);
    shape.heads = shape.kv_heads * random.between(1, 5);
    shape.head_dim = 2 * random.between(1, 20);
    shape.keys = shape.first_row.value + shape.rows;
    if (random.chance(1, 4)) {  // keys of another rank: they may begin and end anywhere
      shape.first_key = Tokens{random.between(0, shape.first_row.value)};
      shape.keys = random.between(1, 400);
    }
    std::vector<std::int64_t> runs;
    for (std::int64_t left = shape.keys; left > 0; left -= runs.back()) {
      runs.push_back(std::min(left, random.between(1, 200)));
    }
    check_attended(random, shape, runs, random.chance(1, 2));
  }
}

TEST_CASE("fast attention: wide heads, and more heads in a group than rows in a tile") {
  Random random(5);
  check_attended(random, {33, 161, Tokens{128}, Tokens{0}, 2, 1, 128}, {128, 33}, false);
  check_attended(random, {5, 20, Tokens{15}, Tokens{0}, 100, 2, 6}, {20}, true);
}

/// Rows of one rank of a group beside keys of another one, in all their runs at once.
template <class Math>
struct Sharded {
  using Number = typename Math::Number;
  std::vector<Number> query, dout, key, value, out, log_sum, delta, dquery, dkey, dvalue;
  std::vector<QueryRun<Number>> rows;
  KeyRun<Number> keys;

  Sharded(const CpShard& of_rows, const CpShard& of_keys, Tokens begin, Tokens end, bool by_delta,
          const AttentionShape& heads) {
    Random random(9);
    const auto draw = [&](std::vector<Number>& into, std::int64_t count, std::int64_t width) {
      for (std::int64_t i = 0; i < count * width; ++i) {
        into.push_back(static_cast<Number>(static_cast<float>(random.normal())));
      }
    };
    const std::int64_t mine = of_rows.between(begin, end).value, q = heads.query_width();
    const Tokens first = of_keys.token(of_keys.before(end).value / 5);
    const std::int64_t there = of_keys.between(first, end).value;
    for (auto* all : {&query, &dout, &dquery}) draw(*all, mine, q);
    for (auto* all : {&key, &value, &dkey, &dvalue}) draw(*all, there, heads.key_width());
    out.resize(query.size());
    log_sum.resize(static_cast<std::size_t>(mine * heads.heads));
    delta.resize(log_sum.size());
    Math::attention_begin(out, log_sum);
    const QueryRun<Number> all{begin, mine, query, out, log_sum, dout, delta, dquery};
    of_rows.for_each_run(begin, end, [&](Tokens from, Tokens to) {
      rows.push_back(all.part(of_rows.between(begin, from).value, (to - from).value));
      rows.back().first = from;
    });
    keys = {first, there, key, value, dkey, dvalue, of_keys};
    Math math;
    math.attention_forward(rows, keys, heads);
    AttentionShape shape = heads;
    shape.rows = mine;
    Math::attention_delta(delta, out, dout, shape);
    for (auto& run : rows) (by_delta ? run.attention : run.delta) = {};
    math.attention_backward(rows, keys, heads);
  }
};

TEST_CASE("fast attention: rows and keys of ranks of a group, all runs at once, as in fp64") {
  for (std::uint64_t seed = 0; seed < slimpack::test::draws(60U); ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const std::int64_t ranks = random.between(1, 4);
    const Tokens block{random.between(1, 40)};
    const CpShard owner{0, ranks, block, random.between(0, ranks - 1)};
    const CpShard rows = owner.of(random.between(0, ranks - 1)),
                  keys = owner.of(random.between(0, ranks - 1));
    const Tokens begin{random.between(0, 200)}, end = begin + Tokens{random.between(1, 300)};
    AttentionShape heads;
    heads.kv_heads = random.between(1, 2);
    heads.heads = heads.kv_heads * random.between(1, 3);
    heads.head_dim = 2 * random.between(1, 20);
    const bool by_delta = random.chance(1, 2);
    if (keys.before(end) == Tokens{}) continue;
    const Sharded<FastMath> fast(rows, keys, begin, end, by_delta, heads);
    const Sharded<PlainMath> plain(rows, keys, begin, end, by_delta, heads);
    CHECK(apart(fast.out, plain.out) <= 2e-6);
    CHECK(apart(fast.log_sum, plain.log_sum) <= 1e-6);
    CHECK(apart(fast.dquery, plain.dquery) <= 4e-6);
    CHECK(apart(fast.dkey, plain.dkey) <= 4e-6);
    CHECK(apart(fast.dvalue, plain.dvalue) <= 4e-6);
  }
}

TEST_CASE("fast attention: many short documents") {
  Random random(6);
  for (std::int64_t length = 1; length <= 40; ++length) {
    CAPTURE(length);
    check_attended(random, {length, length, Tokens{0}, Tokens{0}, 4, 2, 32}, {length}, false);
  }
}

TEST_CASE("fast attention: a row's result has the same bits whatever rows are computed with it") {
  Random random(7);
  const AttentionShape shape{50, 150, Tokens{100}, Tokens{0}, 4, 2, 10};
  const Attended all(random, shape);
  FastMath math;
  auto query = floats(all.query), key = floats(all.key), value = floats(all.value);
  std::vector<float> out(query.size()), log_sum(200), one(40), one_log(4);
  FastMath::attention_begin(out, log_sum);
  forward(math, rows_of(shape, query, out, log_sum), keys_of(shape, key, value), shape);
  for (std::int64_t row = 0; row < 50; ++row) {
    AttentionShape single = shape;
    single.rows = 1;
    single.first_row = Tokens{100 + row};
    FastMath::attention_begin(one, one_log);
    const auto alone = std::span(query).subspan(static_cast<std::size_t>(row) * 40, 40);
    forward(math, rows_of(single, alone, one, one_log), keys_of(single, key, value), single);
    CHECK(std::equal(one.begin(), one.end(), out.begin() + row * 40));
    CHECK(std::equal(one_log.begin(), one_log.end(), log_sum.begin() + row * 4));
  }
}

TEST_CASE("fast attention: rows that see no key stay as they are; what is no number shows") {
  Random random(8);
  const AttentionShape shape{3, 4, Tokens{0}, Tokens{3}, 2, 1, 4};
  const Attended all(random, shape);
  FastMath math;
  auto query = floats(all.query), key = floats(all.key), value = floats(all.value);
  std::vector<float> out(24), log_sum(6);
  FastMath::attention_begin(out, log_sum);
  forward(math, rows_of(shape, query, out, log_sum), keys_of(shape, key, value), shape);
  for (const float element : out) CHECK(element == 0.0F);
  for (const float log : log_sum) CHECK((std::isinf(log) && log < 0));
  query[0] = std::numeric_limits<float>::quiet_NaN();
  AttentionShape seen = shape;
  seen.first_key = Tokens{0};
  forward(math, rows_of(seen, query, out, log_sum), keys_of(seen, key, value), seen);
  CHECK(std::isnan(out[0]));
  CHECK(std::isnan(log_sum[0]));
  CHECK(std::isfinite(out[4]));
}

TEST_CASE("fast attention: spans of a wrong size are refused by name") {
  FastMath math;
  const AttentionShape shape{1, 1, Tokens{0}, Tokens{0}, 2, 1, 2};
  AttentionShape odd = shape;
  odd.kv_heads = 3;
  std::vector<float> four(4), two(2), wrong(5);
  const auto keys = keys_of(shape, two, two, two, two);
#define CHECK_ATTENTION_SIZE(call, sentence) CHECK_THROWS_WITH_AS(call, sentence, InvalidInput)
  CHECK_ATTENTION_SIZE(forward(math, rows_of(shape, four, four, two), keys, odd),
                       "attention: kv_heads must divide heads, got 3");
  CHECK_ATTENTION_SIZE(forward(math, rows_of(shape, four, wrong, two), keys, shape),
                       "fast attention: size of out must be as the shape says, got 5");
  CHECK_ATTENTION_SIZE(forward(math, rows_of(shape, four, four, wrong), keys, shape),
                       "fast attention: size of log_sum must be as the shape says, got 5");
  CHECK_ATTENTION_SIZE(forward(math, rows_of(shape, wrong, four, two), keys, shape),
                       "fast attention: size of query must be as the shape says, got 5");
  CHECK_ATTENTION_SIZE(
      forward(math, rows_of(shape, four, four, two), keys_of(shape, two, wrong), shape),
      "fast attention: size of keys and values must be as the shape says, got 5");
  CHECK_ATTENTION_SIZE(
      backward(math, rows_of(shape, four, four, two, four, {}, wrong), keys, shape),
      "fast attention: size of dquery must be as the shape says, got 5");
  CHECK_ATTENTION_SIZE(
      backward(math, rows_of(shape, four, wrong, two, four, {}, four), keys, shape),
      "fast attention: size of out or delta must be as the shape says, got 5");
  CHECK_ATTENTION_SIZE(
      backward(math, rows_of(shape, four, four, two, wrong, {}, four), keys, shape),
      "fast attention: size of dout must be as the shape says, got 5");
  CHECK_ATTENTION_SIZE(
      backward(math, rows_of(shape, four, {}, two, four, wrong, four), keys, shape),
      "fast attention: size of out or delta must be as the shape says, got 5");
  CHECK_ATTENTION_SIZE(FastMath::attention_delta(wrong, four, four, shape),
                       "fast attention_delta: size of delta must be as the shape says, got 5");
#undef CHECK_ATTENTION_SIZE
}
