// SPDX-License-Identifier: Apache-2.0
#include "slimpack_cuda/cross_entropy.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <optional>
#include <vector>

#include "cuda/device_data.hpp"
#include "cuda/op_data.hpp"
#include "slimpack/core/error.hpp"
#include "slimpack_cpu/ops.hpp"

namespace cross_entropy_test {

using namespace slimpack;

TEST_CASE("cross entropy: launchers on shards give the losses and gradients of fp64") {
  using cuda::Bf16;
  using cuda::LogitShape;
  using cuda::LogitSum;
  using test::OnDevice;
  const cuda::Stream owner;
  const auto stream = owner.view();
  constexpr std::int64_t kRows = 67;
  constexpr float kScale = 0.125F;
  for (const std::int64_t vocab : {17, 1003, 50257}) {
    CAPTURE(vocab);
    const auto whole = test::random_bf16(kRows * vocab, 1, 10);
    std::vector<std::int32_t> targets;
    std::vector<std::optional<std::int32_t>> wanted;
    for (std::int32_t r = 0; r < kRows; ++r) {
      const auto target = static_cast<std::int32_t>(r * std::int64_t{7919} % vocab);
      targets.push_back(r % 5 == 4 ? cuda::kNoTarget : target);
      wanted.push_back(r % 5 == 4 ? std::nullopt : std::optional(target));
    }
    auto gradients = test::as_doubles(whole);
    std::vector<double> maximum(kRows), sum(kRows), target(kRows), losses(kRows);
    const cpu::LogitShape all_columns{kRows, 0, vocab};
    cpu::logit_maximum(maximum, gradients, all_columns);
    cpu::logit_sums(sum, target, gradients, maximum, wanted, all_columns);
    cpu::logit_gradients(gradients, maximum, sum, wanted, all_columns, kScale);
    for (std::size_t r = 0; r < kRows; ++r) {
      losses[r] = wanted[r] ? maximum[r] + std::log(sum[r]) - target[r] : 0.0;
    }

    const OnDevice wanted_device(targets, stream);
    const OnDevice merged(std::vector<LogitSum>(kRows), stream);
    const OnDevice here(std::vector<LogitSum>(kRows), stream);
    std::vector<OnDevice<Bf16>> shards;
    std::vector<LogitShape> shapes;
    for (std::int64_t shard = 0; shard < 3; ++shard) {
      const std::int64_t first = shard * vocab / 3, size = (shard + 1) * vocab / 3 - first;
      const LogitShape shape{kRows, first, size, (size + 7) / 8 * 8};
      auto logits = test::poisoned<Bf16>(kRows * shape.stride);
      for (std::int64_t r = 0; r < kRows; ++r) {
        std::copy_n(whole.begin() + r * vocab + first, size, logits.begin() + r * shape.stride);
      }
      shards.emplace_back(logits, stream);
      shapes.push_back(shape);
      cuda::logit_sums(here.span(), shards.back().view(), wanted_device.view(), shape, stream);
      cuda::merge_logit_sums(merged.span(), here.view(), stream);
    }
    const OnDevice lost(test::poisoned<float>(kRows), stream);
    cuda::cross_entropy_losses(lost.span(), merged.view(), wanted_device.view(), stream);
    CHECK(test::difference(lost.read(), losses, 1e-5, 1e-5) == "");
    std::vector<Bf16> joined(whole.size());
    bool beyond = true;
    for (std::size_t s = 0; s < 3; ++s) {
      const LogitShape& shape = shapes[s];
      cuda::logit_gradients(shards[s].span(), merged.view(), wanted_device.view(), shape, kScale,
                            stream);
      const auto result = shards[s].read();
      for (std::int64_t r = 0; r < kRows; ++r) {
        const auto row = std::span<const Bf16>(result).subspan(
            static_cast<std::size_t>(r * shape.stride), static_cast<std::size_t>(shape.stride));
        std::copy_n(row.begin(), shape.size, joined.begin() + r * vocab + shape.first);
        beyond &= test::is_poisoned(row.subspan(static_cast<std::size_t>(shape.size)));
      }
    }
    CHECK(test::difference(joined, gradients, 1e-8, test::kBf16Rounding) == "");
    CHECK(beyond);
  }
}

TEST_CASE("cross entropy: bad shapes are refused") {
  CHECK_THROWS_WITH_AS(cuda::logit_sums({}, {}, {}, {0, 0, 5, 5}, {}),
                       "cross_entropy: stride must be a multiple of 8 and >= size, got 5",
                       InvalidInput);
  CHECK_THROWS_WITH_AS(cuda::logit_gradients({}, {}, {}, {2, 0, 5, 8}, 1, {}),
                       "cross_entropy: logits is smaller than rows * stride, got 0", InvalidInput);
  CHECK_THROWS_WITH_AS(cuda::logit_sums({}, {}, {}, {2, 0, 0, 0}, {}),
                       "cross_entropy: sums are not one a row, got 0", InvalidInput);
  CHECK_NOTHROW(cuda::logit_sums({}, {}, {}, {0, 0, 5, 8}, {}));
}

}  // namespace cross_entropy_test
