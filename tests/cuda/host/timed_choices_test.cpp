// SPDX-License-Identifier: Apache-2.0
// Algorithms of matrix products by their times, on the stand-in for cuBLASLt.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "cuda/host/host_blas.hpp"
#include "slimpack_cuda/gemm.hpp"

namespace slimpack::cuda::timed_choices_test {
namespace {

constexpr LinearShape kShape{5, 16, 24};

struct Layer {
  explicit Layer(GemmChoices* choices) : gemm(workspace.span(), 0, choices) {
    std::int64_t next = 0;
    const auto fill = [&](DeviceSpan<Bf16> matrix) {
      for (std::int64_t i = 0; i < matrix.size; ++i) {
        matrix.data[i] = to_bf16(static_cast<float>(next++ % 7 - 3));
      }
    };
    fill(in.span());
    fill(weight.span());
    fill(dout.span());
  }
  void forward() { gemm.forward(out.span(), in.span(), weight.span(), kShape, {}); }
  /// Onto ones.
  [[nodiscard]] std::vector<float> weight_gradient() {
    std::vector<float> ones(static_cast<std::size_t>(dweight.size()), 1);
    upload(dweight.span(), std::span<const float>(ones), {});
    gemm.weight_gradient(dweight.span(), dout.span(), in.span(), kShape, Into::add, {});
    return download(dweight.span(), {});
  }

  DeviceBuffer<std::byte> workspace{1024};
  DeviceBuffer<Bf16> in{5 * 16}, weight{24 * 16}, dout{5 * 24}, out{5 * 24};
  DeviceBuffer<float> dweight{24 * 16};
  Gemm gemm;
};

/// Products by algorithm while `work` runs.
template <class Work>
std::array<std::int64_t, 4> products_of(const Work& work) {
  test::products_of_algorithm = {};
  work();
  return test::products_of_algorithm;
}
using Counts = std::array<std::int64_t, 4>;

}  // namespace

TEST_CASE("fastest_candidate: the shortest, but the first where another gains next to nothing") {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  const auto fastest = [](std::vector<double> times) { return fastest_candidate(times); };
  CHECK(fastest({1}) == 0);
  CHECK(fastest({1, 0.5, 0.5}) == 1);
  CHECK(fastest({1, 0.98}) == 0);
  CHECK(fastest({1, 2, 0.96}) == 2);
  CHECK(fastest({kNever, 7}) == 1);
  CHECK(fastest({kNever, kNever}) == 0);
  CHECK_THROWS_WITH_AS((void)fastest_candidate({}), "fastest_candidate: there must be a candidate",
                       InvalidInput);
  CHECK_THROWS_WITH_AS(GemmChoices(1), "GemmChoices: candidates must be >= 2, got 1", InvalidInput);
}

TEST_CASE("GemmChoices: without them the first that is proposed runs, and nothing is timed") {
  Layer layer(nullptr);
  CHECK(products_of([&] { layer.forward(), layer.forward(); }) == Counts{2, 0, 0, 0});
}

TEST_CASE("GemmChoices: each candidate is timed once for a product, for all Gemm objects") {
  GemmChoices choices(4);
  Layer layer(&choices);
  // One run warms a candidate up, five are timed; then the fastest runs. One cannot run.
  CHECK(products_of([&] { layer.forward(); }) == Counts{6, 0, 7, 6});
  CHECK(products_of([&] { layer.forward(); }) == Counts{0, 0, 1, 0});
  CHECK(choices.counts() == std::pair<std::size_t, std::size_t>{1, 1});
  Layer other(&choices);
  CHECK(products_of([&] { other.forward(); }) == Counts{0, 0, 1, 0});
  GemmChoices two(2);
  Layer few(&two);
  CHECK(products_of([&] { few.forward(), few.forward(); }) == Counts{8, 0, 0, 0});
  CHECK(two.counts() == std::pair<std::size_t, std::size_t>{1, 0});
}

TEST_CASE("Gemm: rows that another number's algorithm does not take get one of their own") {
  const auto forward = [](Gemm& gemm, std::int64_t rows) {
    const DeviceBuffer<Bf16> in(rows * 8), weight(8 * 8), out(rows * 8);
    gemm.forward(out.span(), in.span(), weight.span(), {rows, 8, 8}, {});
  };
  Gemm gemm(DeviceSpan<std::byte>{});
  for (const std::int64_t rows : {18, 17, 18}) forward(gemm, rows);
  CHECK(gemm.choices() == 1);
  test::takes_other_rows = false;
  Gemm strict(DeviceSpan<std::byte>{});
  const Counts counts = products_of([&] {
    for (const std::int64_t rows : {17, 18, 17, 17}) forward(strict, rows);
  });
  test::takes_other_rows = true;
  CHECK(counts == Counts{4, 0, 0, 0});
  CHECK(strict.choices() == 2);
}

TEST_CASE("GemmChoices: what is added up where it stands is added once") {
  Layer plain(nullptr);
  GemmChoices choices(4);
  Layer timed(&choices);
  const std::vector<float> wanted = plain.weight_gradient();
  CHECK(timed.weight_gradient() == wanted);
  CHECK(timed.weight_gradient() == wanted);
  CHECK(choices.counts().first == 1);
}

TEST_CASE("GemmChoices: without room for results the first stays") {
  GemmChoices choices(4);
  Layer layer(&choices);
  test::most_allocated = 64;
  CHECK(products_of([&] { layer.forward(); }) == Counts{1, 0, 0, 0});
  test::most_allocated = std::numeric_limits<std::size_t>::max();
  CHECK(products_of([&] { layer.forward(); }) == Counts{1, 0, 0, 0});
  CHECK(choices.counts() == std::pair<std::size_t, std::size_t>{1, 0});
}

}  // namespace slimpack::cuda::timed_choices_test
