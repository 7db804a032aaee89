// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "cuda/op_data.hpp"
#include "kernels/cross_entropy.cuh"
#include "slimpack_cpu/ops.hpp"

namespace cross_entropy_test {

using namespace slimpack;

namespace {

using cuda::Bf16;
using cuda::LogitShape;
using cuda::LogitSum;
using cuda::simt::Timing;

std::vector<LogitSum> sums(const Bf16* logits, const std::vector<std::int32_t>& targets,
                           const LogitShape& shape, Timing timing) {
  std::vector<LogitSum> result(static_cast<std::size_t>(shape.rows), LogitSum{7, 7, 7});
  const auto launch = cuda::kernels::logit_launch(shape);
  const cuda::kernels::LogitSums work{result.data(), logits, targets.data(), shape};
  cuda::simt::emulate({launch.blocks, launch.threads, launch.shared_bytes}, timing,
                      [&] { cuda::kernels::logit_sum_of_row(work); });
  return result;
}

void gradients(Bf16* logits, const std::vector<LogitSum>& all,
               const std::vector<std::int32_t>& targets, const LogitShape& shape, float scale,
               Timing timing) {
  const auto launch = cuda::kernels::logit_launch(shape);
  const cuda::kernels::LogitGradients work{logits, all.data(), targets.data(), shape, scale};
  cuda::simt::emulate({launch.blocks, launch.threads, launch.shared_bytes}, timing,
                      [&] { cuda::kernels::logit_gradients_of_row(work); });
}

void merge(std::vector<LogitSum>& into, const std::vector<LogitSum>& more, Timing timing) {
  const auto rows = static_cast<std::int64_t>(into.size());
  const auto launch = cuda::kernels::row_by_row_launch(rows);
  cuda::simt::emulate({launch.blocks, launch.threads, launch.shared_bytes}, timing,
                      [&] { cuda::kernels::merge_logit_sum({into.data(), more.data(), rows}); });
}

std::vector<float> losses(const std::vector<LogitSum>& all,
                          const std::vector<std::int32_t>& targets, Timing timing) {
  const auto rows = static_cast<std::int64_t>(all.size());
  auto result = test::poisoned<float>(rows);
  const auto launch = cuda::kernels::row_by_row_launch(rows);
  cuda::simt::emulate({launch.blocks, launch.threads, launch.shared_bytes}, timing, [&] {
    cuda::kernels::cross_entropy_loss({result.data(), all.data(), targets.data(), rows});
  });
  return result;
}

/// What the whole vocabulary gives in fp64.
struct Expected {
  std::vector<double> losses, gradients;
};
Expected expected(const std::vector<double>& logits, const std::vector<std::int32_t>& targets,
                  std::int64_t vocab, double scale) {
  const auto rows = static_cast<std::int64_t>(targets.size());
  const cpu::LogitShape shape{rows, 0, vocab};
  std::vector<std::optional<std::int32_t>> wanted;
  for (const std::int32_t target : targets) {
    wanted.push_back(target < 0 ? std::nullopt : std::optional(target));
  }
  Expected result{std::vector<double>(targets.size()), logits};
  std::vector<double> maximum(targets.size()), sum(targets.size()), target(targets.size());
  cpu::logit_maximum(maximum, logits, shape);
  cpu::logit_sums(sum, target, logits, maximum, wanted, shape);
  cpu::logit_gradients(result.gradients, maximum, sum, wanted, shape, scale);
  for (std::size_t r = 0; r < targets.size(); ++r) {
    result.losses[r] = wanted[r] ? maximum[r] + std::log(sum[r]) - target[r] : 0.0;
  }
  return result;
}

}  // namespace

TEST_CASE("cross entropy: two shards give the losses and gradients of the whole vocabulary") {
  struct Case {
    std::int64_t vocab, first_size;
  };
  for (const Case one : {Case{5, 3}, Case{64, 8}, Case{1003, 520}, Case{20011, 17003}}) {
    const std::int64_t vocab = one.vocab, first_size = one.first_size;
    CAPTURE(vocab);
    constexpr std::int64_t kRows = 4;
    const std::vector<std::int32_t> targets{0, static_cast<std::int32_t>(vocab - 1),
                                            cuda::kNoTarget, static_cast<std::int32_t>(first_size)};
    auto whole = test::random_bf16(kRows * vocab, 1, 10);
    for (std::int64_t c = 1; c < first_size; c += 2) {  // whoever masks logits
      whole[static_cast<std::size_t>(vocab + c)] =
          cuda::to_bf16(-std::numeric_limits<float>::infinity());
    }
    const Expected exact = expected(test::as_doubles(whole), targets, vocab, 0.25);
    std::vector<std::vector<Bf16>> results;
    for (const Timing timing : {Timing::at_once, Timing::late}) {
      // Rows end in poison that must neither count nor change.
      std::vector<std::vector<Bf16>> shards;
      std::vector<LogitShape> shapes;
      std::vector<LogitSum> all;
      for (const auto& [first, size] :
           {std::pair{std::int64_t{0}, first_size}, std::pair{first_size, vocab - first_size}}) {
        const LogitShape shape{kRows, first, size, (size + 7) / 8 * 8 + 8};
        auto shard = test::poisoned<Bf16>(kRows * shape.stride);
        for (std::int64_t r = 0; r < kRows; ++r) {
          std::copy_n(whole.begin() + r * vocab + first, size, shard.begin() + r * shape.stride);
        }
        const auto here = sums(shard.data(), targets, shape, timing);
        if (all.empty()) {
          all = here;
        } else {
          merge(all, here, timing);
        }
        shards.push_back(std::move(shard));
        shapes.push_back(shape);
      }
      CHECK(test::difference(losses(all, targets, timing), exact.losses, 1e-5, 1e-6) == "");
      std::vector<Bf16> joined(whole.size());
      for (std::size_t s = 0; s < 2; ++s) {
        const LogitShape& shape = shapes[s];
        gradients(shards[s].data(), all, targets, shape, 0.25F, timing);
        for (std::int64_t r = 0; r < kRows; ++r) {
          const auto row = std::span<const Bf16>(shards[s]).subspan(
              static_cast<std::size_t>(r * shape.stride), static_cast<std::size_t>(shape.stride));
          std::copy_n(row.begin(), shape.size, joined.begin() + r * vocab + shape.first);
          CHECK(test::is_poisoned(row.subspan(static_cast<std::size_t>(shape.size))));
        }
      }
      CHECK(test::difference(joined, exact.gradients, 1e-8, test::kBf16Rounding) == "");
      results.push_back(joined);
    }
    CHECK(test::same_bits(results[0], results[1]));
  }
}

TEST_CASE("cross entropy: columns of a wider matrix are left alone beside the part") {
  constexpr std::int64_t kStride = 64;
  const std::vector<std::int32_t> targets{20, 3};
  const auto before = test::random_bf16(2 * kStride, 1);
  auto logits = before;
  const LogitShape part{2, 16, 21, kStride};  // columns 16 to 36 of 64
  const auto here = sums(logits.data() + 16, targets, part, Timing::late);
  CHECK(here[0].target == cuda::to_float(before[20]));
  CHECK(here[1].target == 0);
  gradients(logits.data() + 16, here, targets, part, 1, Timing::late);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const bool inside = i % kStride >= 16 && i % kStride < 37;
    CHECK((logits[i] == before[i]) != inside);
  }
}

TEST_CASE("cross entropy: a row's sum does not depend on its neighbours, no columns give none") {
  const auto logits = test::random_bf16(3 * 2048, 1, 5);
  const std::vector<std::int32_t> targets{1, 2, 3};
  const auto all = sums(logits.data(), targets, {3, 0, 2045, 2048}, Timing::late);
  const auto one = sums(logits.data() + 2048, {2}, {1, 0, 2045, 2048}, Timing::late);
  CHECK(one[0].sum == all[1].sum);
  CHECK(one[0].maximum == all[1].maximum);
  const auto none = sums(logits.data(), targets, {3, 0, 0, 2048}, Timing::late);
  CHECK(none[0].sum == 0);
  CHECK(none[0].maximum == -std::numeric_limits<float>::infinity());
  CHECK(none[0].target == 0);
}

TEST_CASE("cross entropy: a NaN shows, except in rows that do not count") {
  auto logits = test::random_bf16(2 * 16, 1);
  logits[3] = logits[19] = Bf16{0x7fff};
  const std::vector<std::int32_t> targets{5, cuda::kNoTarget};
  const LogitShape shape{2, 0, 16, 16};
  const auto all = sums(logits.data(), targets, shape, Timing::late);
  const auto lost = losses(all, targets, Timing::late);
  CHECK(std::isnan(lost[0]));
  CHECK(lost[1] == 0);
  gradients(logits.data(), all, targets, shape, 1, Timing::late);
  CHECK(std::isnan(cuda::to_float(logits[0])));
  CHECK(std::ranges::count(std::span(logits).last(16), Bf16{0}) == 16);
}

}  // namespace cross_entropy_test
