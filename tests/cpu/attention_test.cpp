// SPDX-License-Identifier: Apache-2.0
#include "slimpack_cpu/attention.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "cpu/finite_differences.hpp"

using namespace slimpack;
using namespace slimpack::cpu;
using test::difference_of;
using test::product;
using test::random_values;

namespace {

/// Queries [4, 7) of a sample and all keys [0, 7), four query heads on two key heads.
struct Case {
  std::int64_t rows = 3, keys = 7;
  AttentionShape shape{3, 7, Tokens{4}, Tokens{0}, 4, 2, 6};
  Random random{11};
  std::vector<double> query = random_values(random, 3 * 24);
  std::vector<double> key = random_values(random, 7 * 12);
  std::vector<double> value = random_values(random, 7 * 12);
  std::vector<double> seen = random_values(random, 3 * 24);
  std::vector<double> out = std::vector<double>(3 * 24), log_sum = std::vector<double>(3 * 4);

  void forward() {
    attention_begin(out, log_sum);
    attention_forward(out, log_sum, query, key, value, shape);
  }
};

/// Keys [first, first + count) of the case.
AttentionShape run_of(const Case& all, std::int64_t first, std::int64_t count) {
  AttentionShape shape = all.shape;
  shape.keys = count;
  shape.first_key = Tokens{first};
  return shape;
}

}  // namespace

TEST_CASE("attention: against softmax over the whole score matrix") {
  Case all;
  all.forward();
  for (std::int64_t r = 0; r < 3; ++r) {
    for (std::int64_t head = 0; head < 4; ++head) {
      std::vector<double> weight;
      double sum = 0;
      for (std::int64_t j = 0; j <= 4 + r; ++j) {
        double score = 0;
        for (std::int64_t i = 0; i < 6; ++i) {
          score += all.query[static_cast<std::size_t>(r * 24 + head * 6 + i)] *
                   all.key[static_cast<std::size_t>(j * 12 + head / 2 * 6 + i)];
        }
        weight.push_back(std::exp(score / std::sqrt(6.0)));
        sum += weight.back();
      }
      CHECK(all.log_sum[static_cast<std::size_t>(r * 4 + head)] == doctest::Approx(std::log(sum)));
      for (std::int64_t i = 0; i < 6; ++i) {
        double expected = 0;
        for (std::int64_t j = 0; j <= 4 + r; ++j) {
          expected += weight[static_cast<std::size_t>(j)] / sum *
                      all.value[static_cast<std::size_t>(j * 12 + head / 2 * 6 + i)];
        }
        CHECK(all.out[static_cast<std::size_t>(r * 24 + head * 6 + i)] ==
              doctest::Approx(expected));
      }
    }
  }
}

TEST_CASE("attention: runs of keys in any order give the result over all of them") {
  Case all;
  all.forward();
  Case parts;
  attention_begin(parts.out, parts.log_sum);
  for (const auto& [first, count] :
       std::vector<std::pair<std::int64_t, std::int64_t>>{{5, 2}, {0, 1}, {3, 2}, {1, 2}}) {
    attention_forward(
        parts.out, parts.log_sum, parts.query, cpu::detail::rows(In(parts.key), first, count, 12),
        cpu::detail::rows(In(parts.value), first, count, 12), run_of(parts, first, count));
  }
  for (std::size_t i = 0; i < all.out.size(); ++i) {
    CHECK(parts.out[i] == doctest::Approx(all.out[i]).epsilon(1e-13));
  }
  for (std::size_t i = 0; i < all.log_sum.size(); ++i) {
    CHECK(parts.log_sum[i] == doctest::Approx(all.log_sum[i]).epsilon(1e-13));
  }
}

TEST_CASE("attention: rows that see no key of a run stay as they are") {
  Case all;
  attention_begin(all.out, all.log_sum);
  attention_forward(all.out, all.log_sum, all.query, cpu::detail::rows(In(all.key), 0, 2, 12),
                    cpu::detail::rows(In(all.value), 0, 2, 12), run_of(all, 7, 2));
  for (const double element : all.out) CHECK(element == 0.0);
  for (const double log : all.log_sum) CHECK((std::isinf(log) && log < 0));
}

TEST_CASE("attention: gradients by finite differences, in one run and in two") {
  Case all;
  const auto loss = [&] {
    all.forward();
    return product(all.seen, all.out);
  };
  (void)loss();
  std::vector<double> dquery(72), dkey(84), dvalue(84);
  attention_backward(dquery, dkey, dvalue, all.query, all.key, all.value, all.out, all.log_sum,
                     all.seen, all.shape);
  std::vector<double> delta(12), dquery2(72), dkey2(84), dvalue2(84);
  attention_delta(delta, all.out, all.seen, all.shape);
  for (const std::int64_t first : {std::int64_t{4}, std::int64_t{0}}) {
    const std::int64_t count = first == 0 ? 4 : 3;
    attention_backward_from(dquery2, cpu::detail::rows(Out(dkey2), first, count, 12),
                            cpu::detail::rows(Out(dvalue2), first, count, 12), all.query,
                            cpu::detail::rows(In(all.key), first, count, 12),
                            cpu::detail::rows(In(all.value), first, count, 12), delta, all.log_sum,
                            all.seen, run_of(all, first, count));
  }
  for (std::size_t i = 0; i < 72; ++i) {
    CHECK(dquery2[i] == doctest::Approx(dquery[i]).epsilon(1e-12));
  }
  CHECK(dkey2 == dkey);
  CHECK(dvalue2 == dvalue);
  CHECK(difference_of(all.query, dquery, loss) <= 1e-6);
  CHECK(difference_of(all.key, dkey, loss) <= 1e-6);
  CHECK(difference_of(all.value, dvalue, loss) <= 1e-6);
}

TEST_CASE("attention: spans of a wrong size are refused by name") {
  Case all;
  std::vector<double> wrong(5), dquery(72), dkey(84), delta(12);
  AttentionShape odd = all.shape, flat = all.shape;
  odd.kv_heads = 3;
  flat.head_dim = 0;
#define CHECK_REFUSED(call, sentence) CHECK_THROWS_WITH_AS(call, sentence, InvalidInput)
  const auto forward = [&](Out out, Out log_sum, In query, In key, In value,
                           const AttentionShape& shape) {
    attention_forward(out, log_sum, query, key, value, shape);
  };
  CHECK_REFUSED(forward(all.out, all.log_sum, all.query, all.key, all.value, odd),
                "attention: kv_heads must divide heads, got 3");
  CHECK_REFUSED(forward(all.out, all.log_sum, all.query, all.key, all.value, flat),
                "attention: head_dim must be > 0, got 0");
  CHECK_REFUSED(forward(wrong, all.log_sum, all.query, all.key, all.value, all.shape),
                "attention_forward: out is not rows * heads * head_dim, got 5");
  CHECK_REFUSED(forward(all.out, wrong, all.query, all.key, all.value, all.shape),
                "attention_forward: log_sum is not rows * heads, got 5");
  CHECK_REFUSED(forward(all.out, all.log_sum, wrong, all.key, all.value, all.shape),
                "attention_forward: query is not rows * heads * head_dim, got 5");
  CHECK_REFUSED(forward(all.out, all.log_sum, all.query, wrong, all.value, all.shape),
                "attention_forward: keys and values are not keys * kv_heads * head_dim, got 5");
  CHECK_REFUSED(forward(all.out, all.log_sum, all.query, all.key, wrong, all.shape),
                "attention_forward: keys and values are not keys * kv_heads * head_dim, got 5");
  const auto backward = [&](Out dq, Out dk, In query, In out, In log_sum, In dout) {
    attention_backward(dq, dk, dkey, query, all.key, all.value, out, log_sum, dout, all.shape);
  };
  CHECK_REFUSED(backward(wrong, dkey, all.query, all.out, all.log_sum, all.seen),
                "attention_backward: dquery is not rows * heads * head_dim, got 5");
  CHECK_REFUSED(backward(dquery, wrong, all.query, all.out, all.log_sum, all.seen),
                "attention_backward: keys and values are not keys * kv_heads * head_dim, got 5");
  CHECK_REFUSED(backward(dquery, dkey, wrong, all.out, all.log_sum, all.seen),
                "attention_backward: query is not rows * heads * head_dim, got 5");
  CHECK_REFUSED(backward(dquery, dkey, all.query, wrong, all.log_sum, all.seen),
                "attention_backward: out is not rows * heads * head_dim, got 5");
  CHECK_REFUSED(backward(dquery, dkey, all.query, all.out, wrong, all.seen),
                "attention_backward: log_sum is not rows * heads, got 5");
  CHECK_REFUSED(backward(dquery, dkey, all.query, all.out, all.log_sum, wrong),
                "attention_backward: dout is not rows * heads * head_dim, got 5");
  CHECK_REFUSED(attention_delta(wrong, all.out, all.seen, all.shape),
                "attention_delta: delta is not rows * heads, got 5");
  CHECK_REFUSED(attention_delta(delta, wrong, all.seen, all.shape),
                "attention_delta: out is not rows * heads * head_dim, got 5");
  CHECK_REFUSED(attention_delta(delta, all.out, wrong, all.shape),
                "attention_delta: dout is not rows * heads * head_dim, got 5");
  CHECK_REFUSED(attention_backward_from(dquery, dkey, dkey, all.query, all.key, all.value, wrong,
                                        all.log_sum, all.seen, all.shape),
                "attention_backward_from: delta is not rows * heads, got 5");
#undef CHECK_REFUSED
}
