// SPDX-License-Identifier: Apache-2.0
#include "slimpack/cost/tabulate.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

#include "cost/shapes.hpp"
#include "slimpack/core/random.hpp"
#include "slimpack/cost/analytic.hpp"

using namespace slimpack;

namespace {

AnalyticModel small_analytic() {
  return {test::llama_7b(), test::h100(), MemorySpec{}};
}

TableModel table_of(const TableCost& cost) {
  return {cost, test::llama_7b(), test::h100(), MemorySpec{}};
}

/// The analytic model whose queries see at most `most` keys, their mean being what counts.
struct BoundedModel {
  AnalyticModel dense = small_analytic();
  std::int64_t most = 4096;

  [[nodiscard]] PackLoad seen(PackLoad load) const noexcept {
    load.pairs2 = load.filled_pairs2 = std::min(load.pairs2, 2 * most * load.tokens.value);
    return load;
  }
  [[nodiscard]] Nanos forward(const PackLoad& load, const StageLoad& stage) const noexcept {
    return dense.forward(seen(load), stage);
  }
  [[nodiscard]] Nanos backward(const PackLoad& load, const StageLoad& stage,
                               Recompute recompute) const noexcept {
    return dense.backward(seen(load), stage, recompute);
  }
  [[nodiscard]] Nanos head(const HeadLoad& load) const noexcept { return dense.head(load); }
  [[nodiscard]] Nanos transfer(Bytes bytes, const Link& link) const noexcept {
    return dense.transfer(bytes, link);
  }
  [[nodiscard]] Nanos reduce(Bytes bytes, std::int64_t ranks, const Link& link) const noexcept {
    return dense.reduce(bytes, ranks, link);
  }
  [[nodiscard]] Nanos optimizer(Bytes touched, Bytes gathered, std::int64_t ranks,
                                const Link& link) const noexcept {
    return dense.optimizer(touched, gathered, ranks, link);
  }
};
static_assert(CostModel<BoundedModel>);

}  // namespace

TEST_CASE("table_grid: lines rise by the steps of an octave, by hand") {
  const TableGrid grid = table_grid({128}, {512}, {300}, 2);
  CHECK(grid.tokens == std::vector<Tokens>{{128}, {192}, {256}, {384}, {512}});
  CHECK(grid.context == std::vector<Tokens>{{0}, {64}, {96}, {128}, {192}, {256}, {384}});
  CHECK(table_grid({1}, {1}, {1}, 4).tokens == std::vector<Tokens>{{1}});
  CHECK_THROWS_WITH_AS(static_cast<void>(table_grid({0}, {1}, {1})),
                       "table_grid: least must be >= 1, got 0", InvalidInput);
  CHECK_THROWS_WITH_AS(static_cast<void>(table_grid({1}, {1}, {1}, 0)),
                       "table_grid: steps must be >= 1, got 0", InvalidInput);
  CHECK_THROWS_WITH_AS(static_cast<void>(tabulate(small_analytic(), {{}, {{0}}})),
                       "tabulate: there must be a line of tokens", InvalidInput);
}

TEST_CASE("tabulate: a model that is linear in tokens and pairs is answered as it is") {
  const TableCost cost = tabulate(small_analytic(), table_grid({128}, {32768}, {131072}));
  const TableModel table = table_of(cost);
  CHECK(table_error(small_analytic(), cost, table).worst < 1e-4);
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const PackLoad load =
        test::whole_slice(random.between(0, 100'000), random.between(256, 20'000));
    const StageLoad stage = test::plain_stage(random.between(1, 8));
    const double forward = seconds(small_analytic().forward(load, stage));
    CHECK(seconds(table.forward(load, stage)) == doctest::Approx(forward).epsilon(1e-4));
    const double backward = seconds(small_analytic().backward(load, stage, Recompute::none));
    CHECK(seconds(table.backward(load, stage, Recompute::none)) ==
          doctest::Approx(backward).epsilon(1e-4));
  }
}

TEST_CASE("tabulate: the error of a bounded context is told, and falls with finer grids") {
  const BoundedModel model;
  double before = 1;
  for (const std::int64_t steps : {1, 2, 4, 8}) {
    const TableCost cost = tabulate(model, table_grid({128}, {32768}, {131072}, steps));
    const TableModel table = table_of(cost);
    const TableError error = table_error(model, cost, table);
    CHECK(error.points == 2 * (cost.tokens.size() - 1) * (cost.context.size() - 1));
    CHECK(error.mean <= error.worst);
    CHECK(error.mean < before);
    before = error.mean;
    // On the grid the table is the model.
    const StageLoad stage = test::plain_stage(64);
    for (const Tokens tokens : cost.tokens) {
      for (const Tokens context : cost.context) {
        const PackLoad load = detail::tabulated_load(tokens, context);
        CHECK(seconds(table.forward(load, stage)) ==
              doctest::Approx(seconds(model.forward(load, stage))).epsilon(1e-6));
      }
    }
  }
  CHECK(before < 0.01);
}
