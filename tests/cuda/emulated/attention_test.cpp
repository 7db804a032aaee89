// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <vector>

#include "cuda/attention_cases.hpp"
#include "kernels/attention_mma_backward_keys.cuh"
#include "kernels/attention_mma_backward_queries.cuh"
#include "kernels/attention_mma_forward.cuh"
#include "kernels/attention_plain.cuh"
#include "kernels/attention_rows.cuh"
#include "kernels/attention_wgmma_backward.cuh"
#include "kernels/attention_wgmma_backward_queries.cuh"
#include "kernels/attention_wgmma_forward.cuh"

namespace attention_test {

using namespace slimpack;
using namespace slimpack::cuda;
using namespace slimpack::cuda::simt;
using namespace slimpack::cuda::test;

namespace {

constexpr double kForward = 5e-3, kBackward = 1e-2, kBackwardRow = 4e-2;

template <class Element>
DeviceSpan<const Element> view(const std::vector<Element>& elements) {
  return {elements.data(), static_cast<std::int64_t>(elements.size())};
}

/// Tables of a case and what kernels are given of it.
struct Inputs {
  AttentionTables tables;
  kernels::AttentionInputs in;

  Inputs(const Case& of, int query_tile, int key_tile)
      : tables(
            attention_tables(of.segments, of.pages, of.shape.page_tokens, query_tile, key_tile)) {
    in.query = of.query.data();
    in.key = of.key.data();
    in.value = of.value.data();
    in.work = {view(tables.segments), view(tables.pages), view(tables.query_tiles),
               view(tables.key_tiles)};
    in.shape = of.shape;
    in.scale = 1.0F / std::sqrt(static_cast<float>(of.shape.head_dim));
  }
  Inputs(const Inputs&) = delete;
  Inputs& operator=(const Inputs&) = delete;

  [[nodiscard]] unsigned query_blocks() const {
    return static_cast<unsigned>(tables.query_tiles.size()) * static_cast<unsigned>(in.shape.heads);
  }
  [[nodiscard]] unsigned key_blocks() const {
    return static_cast<unsigned>(tables.key_tiles.size()) *
           static_cast<unsigned>(in.shape.kv_heads);
  }
};

struct Forward {
  std::vector<Bf16> output;
  std::vector<float> log_sum;
};

template <int kDim>
void run_forward_mma(const Inputs& inputs, const kernels::AttentionForward& at, Timing timing) {
  emulate({inputs.query_blocks(), kernels::kMmaThreads, kernels::MmaForward<kDim>::kShared}, timing,
          [&] { kernels::attention_forward_mma<kDim>(at); });
}

kernels::wgmma::Work wgmma_work(const Inputs& inputs) {
  kernels::wgmma::Work work;
  work.segments = inputs.tables.segments.data();
  work.pages = inputs.tables.pages.data();
  work.query_tiles = inputs.tables.query_tiles.data();
  work.key_tiles = inputs.tables.key_tiles.data();
  work.heads = inputs.in.shape.heads;
  work.kv_heads = inputs.in.shape.kv_heads;
  work.page_tokens = inputs.in.shape.page_tokens;
  work.scale = inputs.in.scale;
  return work;
}
simt::TileMap query_map(const Case& of, const std::vector<Bf16>& matrix) {
  return {matrix.data(), of.rows, of.width()};
}
simt::TileMap key_map(const Case& of, const std::vector<Bf16>& matrix) {
  return {matrix.data(), of.key_rows, of.key_width()};
}

template <int kDim>
void run_forward_wgmma(const Case& of, Forward& made, Timing timing) {
  using Shared = kernels::wgmma::ForwardShared<kDim>;
  using Size = kernels::wgmma::ForwardSize<kDim>;
  const Inputs inputs(of, Size::kQueryTile, kernels::wgmma::kKeyTile);
  const kernels::wgmma::ForwardTask task{wgmma_work(inputs), made.output.data(),
                                         made.log_sum.data(),
                                         static_cast<int>(inputs.query_blocks())};
  // Once a block for each item, once two blocks for all.
  const unsigned blocks =
      timing == Timing::at_once ? inputs.query_blocks() : std::min(inputs.query_blocks(), 2U);
  emulate({blocks, Size::kThreads, Shared::kBytes}, timing, [&] {
    kernels::wgmma::attention_forward<kDim>(query_map(of, of.query), key_map(of, of.key),
                                            key_map(of, of.value), task);
  });
}

Forward forward(const Case& of, AttentionPath path, Timing timing) {
  const Inputs inputs(of, 128, 128);
  Forward made{std::vector<Bf16>(of.query.size(), kPoison),
               std::vector<float>(static_cast<std::size_t>(of.rows * of.shape.heads), kNan)};
  const kernels::AttentionForward at{inputs.in, made.output.data(), made.log_sum.data()};
  if (path == AttentionPath::plain) {
    const auto parts = static_cast<unsigned>(kernels::plain_parts(of.shape.head_dim));
    emulate({inputs.query_blocks() * parts, kernels::kPlainTile, 0}, timing,
            [&] { kernels::attention_forward_plain(at); });
  } else if (path == AttentionPath::mma) {
    of.shape.head_dim == 64 ? run_forward_mma<64>(inputs, at, timing)
                            : run_forward_mma<128>(inputs, at, timing);
  } else {
    of.shape.head_dim == 64 ? run_forward_wgmma<64>(of, made, timing)
                            : run_forward_wgmma<128>(of, made, timing);
  }
  return made;
}

struct Backward {
  std::vector<Bf16> dquery;
  std::vector<float> dquery_sum, dkey, dvalue;
};

template <int kDim>
void run_backward_mma(const Case& of, kernels::AttentionBackward& at, Timing timing) {
  const Inputs inputs(of, kernels::MmaBackwardQueries<kDim>::kRows,
                      kernels::MmaBackwardKeys<kDim>::kKeys);
  at.in = inputs.in;
  emulate({inputs.key_blocks(), kernels::kMmaThreads, kernels::MmaBackwardKeys<kDim>::kShared},
          timing, [&] { kernels::attention_backward_keys_mma<kDim>(at); });
  emulate({inputs.query_blocks(), kernels::kMmaThreads, kernels::MmaBackwardQueries<kDim>::kShared},
          timing, [&] { kernels::attention_backward_queries_mma<kDim>(at); });
}

template <int kDim>
void run_backward_wgmma(const Case& of, const kernels::AttentionBackward& at, Timing timing) {
  const Inputs inputs(of, kernels::wgmma::ForwardSize<kDim>::kQueryTile, kernels::wgmma::kKeyTile);
  const kernels::wgmma::BackwardTask task{wgmma_work(inputs), at.log_sum, at.delta};
  const simt::TileMap query = query_map(of, of.query), key = key_map(of, of.key),
                      value = key_map(of, of.value), doutput = query_map(of, of.doutput);
  const auto threads = kernels::wgmma::kThreads;
  emulate({inputs.key_blocks(), threads, kernels::wgmma::KeyShared<kDim>::kBytes}, timing, [&] {
    kernels::wgmma::attention_backward_keys<kDim>(at.dkey, at.dvalue, query, key, value, doutput,
                                                  task);
  });
  const unsigned blocks = inputs.query_blocks() * kernels::wgmma::kQueryParts<kDim>;
  emulate({blocks, threads, kernels::wgmma::QueryShared<kDim>::kBytes}, timing, [&] {
    if (at.dquery != nullptr) {
      kernels::wgmma::attention_backward_queries<kDim>(at.dquery, query, key, value, doutput, task);
    } else {
      kernels::wgmma::attention_backward_queries<kDim>(at.dquery_sum, query, key, value, doutput,
                                                       task);
    }
  });
}

/// Gradients with the log-sum-exps and deltas of `given`. With `sum` not empty gradients of queries
/// are added to it.
Backward backward(const Case& of, const Results& given, std::vector<float> sum, AttentionPath path,
                  Timing timing) {
  Backward made{std::vector<Bf16>(of.query.size(), kPoison), std::move(sum), of.dkey, of.dvalue};
  const auto log_sum = narrowed<float>(given.log_sum), delta = narrowed<float>(given.delta);
  kernels::AttentionBackward at;
  at.log_sum = log_sum.data();
  at.delta = delta.data();
  at.doutput = of.doutput.data();
  if (made.dquery_sum.empty()) {
    at.dquery = made.dquery.data();
  } else {
    at.dquery_sum = made.dquery_sum.data();
  }
  at.dkey = made.dkey.data();
  at.dvalue = made.dvalue.data();
  if (path == AttentionPath::mma) {
    of.shape.head_dim == 64 ? run_backward_mma<64>(of, at, timing)
                            : run_backward_mma<128>(of, at, timing);
  } else if (path == AttentionPath::wgmma) {
    of.shape.head_dim == 64 ? run_backward_wgmma<64>(of, at, timing)
                            : run_backward_wgmma<128>(of, at, timing);
  } else {
    const Inputs inputs(of, kernels::kPlainTile, kernels::kPlainTile);
    const auto parts = static_cast<unsigned>(kernels::plain_parts(of.shape.head_dim));
    at.in = inputs.in;
    emulate({inputs.key_blocks() * parts, kernels::kPlainTile, 0}, timing,
            [&] { kernels::attention_backward_keys_plain(at); });
    emulate({inputs.query_blocks() * parts, kernels::kPlainTile, 0}, timing,
            [&] { kernels::attention_backward_queries_plain(at); });
  }
  return made;
}

void check_forward(const Forward& found, const Results& expected) {
  CHECK(difference(found.output, expected.output) < kForward);
  CHECK(difference(found.log_sum, expected.log_sum) < 1e-5);
}
/// Sums to which nothing is added are zero.
std::vector<double> or_zero(std::vector<double> numbers) {
  for (double& number : numbers) {
    if (std::isnan(number)) number = 0;
  }
  return numbers;
}
void check_keys(const Backward& found, const Results& expected, std::int64_t dim) {
  CHECK(difference(found.dkey, expected.dkey) < kBackward);
  CHECK(difference(found.dvalue, expected.dvalue) < kBackward);
  CHECK(row_difference(found.dkey, expected.dkey, dim) < kBackwardRow);
  CHECK(row_difference(found.dvalue, expected.dvalue, dim) < kBackwardRow);
}

/// Checks all kernels of a path with both timings: right, and the same bits each time.
void check_all(const Case& of, AttentionPath path) {
  const Results expected = reference(of);
  const Forward early = forward(of, path, Timing::at_once);
  check_forward(early, expected);
  const Forward late = forward(of, path, Timing::late);
  CHECK(late.output == early.output);
  CHECK(same_bits(late.log_sum, early.log_sum));

  const Backward first = backward(of, expected, {}, path, Timing::at_once);
  check_keys(first, expected, of.shape.head_dim);
  CHECK(difference(first.dquery, expected.dquery) < kBackward);
  CHECK(row_difference(first.dquery, expected.dquery, of.shape.head_dim) < kBackwardRow);
  const Backward second = backward(of, expected, {}, path, Timing::late);
  CHECK(second.dquery == first.dquery);
  CHECK(same_bits(second.dkey, first.dkey));
  CHECK(same_bits(second.dvalue, first.dvalue));
}

/// On both paths with tiles.
void check_tiled(const Case& of) {
  for (const AttentionPath path : {AttentionPath::mma, AttentionPath::wgmma}) {
    CAPTURE(path == AttentionPath::mma);
    check_all(of, path);
  }
}

constexpr AttentionPath kPaths[] = {AttentionPath::plain, AttentionPath::mma, AttentionPath::wgmma};

AttentionShape shape_of(int heads, int kv_heads, int head_dim, int page_tokens) {
  return {heads, kv_heads, head_dim, page_tokens};
}

}  // namespace

TEST_CASE("attention plain: any shape, prefixes, gaps, rows that see nothing") {
  for (const int dim : {1, 24, 33, 80}) {
    CAPTURE(dim);
    const Case of = make_case(shape_of(6, 2, dim, 5),
                              {{{{3, 9}}, 12},
                               {{{0, 1}}, 1},
                               {{{2, 7}, {9, 4}}, 13, 1, 4},
                               {{{4, 6, 10}, {10, 5}}, 15},
                               {{{0, 3}}, 0}},
                              static_cast<std::uint64_t>(dim));
    check_all(of, AttentionPath::plain);
  }
}

TEST_CASE("attention mma, wgmma: long enough to use every buffer twice") {
  for (const int dim : {64, 128}) {
    CAPTURE(dim);
    check_tiled(make_case(shape_of(2, 1, dim, 128), {{{{70, 205}}, 275}}, 1));
  }
}

TEST_CASE("attention mma, wgmma: many short documents, groups of heads") {
  for (const int dim : {64, 128}) {
    CAPTURE(dim);
    const Case of = make_case(
        shape_of(4, 2, dim, 128),
        {{{{0, 1}}, 1}, {{{0, 17}}, 17}, {{{0, 65}}, 65}, {{{40, 3}}, 43}, {{{0, 2}}, 0}}, 2);
    check_tiled(of);
  }
}

TEST_CASE(
    "attention mma, wgmma: pages with gaps between them, keys beyond the queries, two slices") {
  for (const int dim : {64, 128}) {
    CAPTURE(dim);
    // Queries from position 100 on; pages hold positions 64.. and 320..: the first rows see part of
    // one page, later ones part of the other; of the second sample the first rows see nothing.
    const Case of = make_case(shape_of(1, 1, dim, 128),
                              {{{{100, 90}, {300, 70}}, 200, 1, 64}, {{{0, 40}}, 20, 0, 30}}, 3);
    check_tiled(of);
  }
}

TEST_CASE("attention mma, wgmma: a slice lists fewer keys than the one after it") {
  const Case of =
      make_case(shape_of(2, 2, 128, 64), {{{{0, 64, 64}, {64, 64, 128}, {128, 10, 138}}, 138}}, 4);
  check_tiled(of);
}

TEST_CASE("attention wgmma: slices of several key tiles, pages with gaps, any order") {
  slimpack::Random random(17);
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    CAPTURE(seed);
    std::vector<Sample> samples;
    for (std::int64_t count = random.between(1, 3); count > 0; --count) {
      Sample sample;
      sample.keys = static_cast<std::int32_t>(random.between(1, 420));
      sample.gap = static_cast<std::int32_t>(random.below(3));
      sample.first = static_cast<std::int32_t>(random.between(0, 90));
      const bool partial = sample.gap > 0 || sample.first > 0;
      std::int32_t position = static_cast<std::int32_t>(random.between(0, 100));
      for (std::int64_t slice = random.between(1, 3); slice > 0; --slice) {
        const auto rows = static_cast<std::int32_t>(random.between(1, 150));
        const std::int32_t listed = std::min(sample.keys, position + rows);
        const bool all = partial || slice == 1;
        sample.slices.push_back({position, rows, all ? -1 : listed / 64 * 64});
        position += rows;
      }
      samples.push_back(sample);
    }
    const std::int32_t kv_heads = 1 + static_cast<std::int32_t>(random.below(2));
    const int dim = random.chance(1, 2) ? 64 : 128;
    check_all(make_case(shape_of(2, kv_heads, dim, 64), samples, 100 + seed), AttentionPath::wgmma);
  }
}

TEST_CASE("attention wgmma: without fences the emulator refuses zeros behind a last key or query") {
  const Case of = make_case(shape_of(1, 1, 64, 64), {{{{0, 70}}, 70}}, 9);
  const Results expected = reference(of);
  Emulator::fences_lost() = true;
  CHECK_THROWS_WITH_AS((void)forward(of, AttentionPath::wgmma, Timing::late),
                       doctest::Contains("without a fence since"), std::logic_error);
  CHECK_THROWS_WITH_AS((void)backward(of, expected, {}, AttentionPath::wgmma, Timing::late),
                       doctest::Contains("without a fence since"), std::logic_error);
  Emulator::fences_lost() = false;
  check_all(of, AttentionPath::wgmma);
}

TEST_CASE("attention forward: rows have the same bits however a sample is sliced") {
  const AttentionShape shape = shape_of(1, 1, 128, 128);
  const Case whole = make_case(shape, {{{{30, 150}}, 180}}, 5);
  Case parts = whole;
  const AttentionSegment one = whole.segments[0];
  parts.segments.clear();
  for (std::int32_t first = 0; first < one.rows;) {
    const std::int32_t rows = std::min(first == 0 ? 37 : 64, one.rows - first);
    AttentionSegment part = one;
    part.rows = rows;
    part.position += first;
    part.query_row += first;
    part.output_row += first;
    part.log_sum_row += first;
    part.gradient_row += first;
    parts.segments.push_back(part);
    first += rows;
  }
  for (const AttentionPath path : kPaths) {
    const Forward a = forward(whole, path, Timing::late);
    const Forward b = forward(parts, path, Timing::late);
    CHECK(a.output == b.output);
    CHECK(same_bits(a.log_sum, b.log_sum));
  }
}

TEST_CASE("attention backward: gradients of keys gather over launches of a sample's slices") {
  const AttentionShape shape = shape_of(2, 1, 64, 128);
  const Case whole = make_case(shape, {{{{0, 90, 90}, {90, 71, 161}}, 161}}, 6);
  const Results expected = reference(whole);
  for (const AttentionPath path : kPaths) {
    Case last = whole, first = whole;
    last.segments = {whole.segments[1]};
    first.segments = {whole.segments[0]};
    const Backward after = backward(last, expected, {}, path, Timing::late);
    first.dkey = after.dkey;
    first.dvalue = after.dvalue;
    check_keys(backward(first, expected, {}, path, Timing::late), expected, 64);
  }
}

TEST_CASE("attention: partial results over two ranks' pages make the whole") {
  // Ranks hold pages in turn.
  const std::int32_t page = 64, keys = 230;
  Case whole = make_case(shape_of(2, 1, 128, page), {{{{150, 80}}, keys}}, 7);
  whole.segments[0].output_row = whole.segments[0].log_sum_row;  // what attention_merge asks for
  const Results expected = reference(whole);
  std::vector<Case> ranks;
  for (std::size_t rank = 0; rank < 2; ++rank) {
    Case part = whole;
    part.pages.clear();
    for (std::size_t i = rank; i < whole.pages.size(); i += 2) {
      part.pages.push_back(whole.pages[i]);
    }
    part.segments[0].keys = rank == 0 ? 2 * page : page + keys % page;
    part.segments[0].key_gradient_row = part.segments[0].value_gradient_row = 0;
    std::ranges::fill(part.dkey, 0.0F);
    std::ranges::fill(part.dvalue, 0.0F);
    ranks.push_back(part);
  }
  for (const AttentionPath path : kPaths) {
    Forward sum = forward(ranks[0], path, Timing::late);
    const Forward more = forward(ranks[1], path, Timing::late);
    const std::int64_t rows = whole.rows;
    emulate({3, kernels::kRowThreads, 0}, Timing::late, [&] {
      kernels::attention_merge<16>(sum.output.data(), sum.log_sum.data(), more.output.data(),
                                   more.log_sum.data(), rows * 2, 128);
    });
    check_forward(sum, expected);

    std::vector<float> dquery(whole.query.size(), 0.0F);
    for (const Case& rank : ranks) {
      const Backward part = backward(rank, expected, dquery, path, Timing::late);
      check_keys(part, reference(rank, &expected), 128);
      CHECK(part.dquery == std::vector<Bf16>(whole.query.size(), kPoison));
      dquery = part.dquery_sum;
    }
    const std::vector<double> all = or_zero(expected.dquery);
    CHECK(difference(dquery, all) < kBackward);
    CHECK(row_difference(dquery, all, 128) < kBackwardRow);
  }
}

TEST_CASE("attention_delta: sums of output * gradient by the rows of each") {
  for (const int dim : {24, 64, 128}) {
    CAPTURE(dim);
    const Case of = make_case(shape_of(3, 1, dim, 16), {{{{3, 139}}, 142}, {{{0, 5}}, 5}}, 8);
    Results expected = reference(of);
    const std::vector<Bf16> output = narrowed<Bf16>(expected.output);
    const Inputs inputs(of, 128, 128);
    std::vector<float> delta(expected.delta.size(), kNan);
    const kernels::AttentionDelta at{delta.data(),   output.data(), of.doutput.data(),
                                     inputs.in.work, of.shape,      128};
    emulate({inputs.query_blocks(), kernels::kRowThreads, 0}, Timing::late, [&] {
      if (dim == 64) {
        kernels::attention_delta<8>(at);
      } else if (dim == 128) {
        kernels::attention_delta<16>(at);
      } else {
        kernels::attention_delta<1>(at);
      }
    });
    CHECK(difference(delta, expected.delta) < kForward);
  }
}

TEST_CASE("attention_merge: no keys on either side, any head_dim") {
  const float none = -std::numeric_limits<float>::infinity();
  const auto one = to_bf16(1.0F), two = to_bf16(2.0F);
  for (const int dim : {5, 64, 128}) {
    CAPTURE(dim);
    const auto size = static_cast<std::size_t>(dim);
    std::vector<Bf16> output, more;
    for (std::size_t row = 0; row < 4; ++row) {
      output.insert(output.end(), size, row % 2 == 0 ? one : kPoison);
      more.insert(more.end(), size, row < 2 ? two : kPoison);
    }
    std::vector<float> log_sum{0.0F, none, 3.0F, none};
    const std::vector<float> more_log_sum{0.0F, 4.0F, none, none};
    emulate({2, kernels::kRowThreads, 0}, Timing::late, [&] {
      const auto run = [&]<int kLanes>(std::integral_constant<int, kLanes>) {
        kernels::attention_merge<kLanes>(output.data(), log_sum.data(), more.data(),
                                         more_log_sum.data(), 4, dim);
      };
      if (dim == 64) {
        run(std::integral_constant<int, 8>());
      } else if (dim == 128) {
        run(std::integral_constant<int, 16>());
      } else {
        run(std::integral_constant<int, 1>());
      }
    });
    CHECK(to_float(output[0]) == 1.5F);
    CHECK(output[size] == two);
    CHECK(output[3 * size - 1] == one);
    CHECK(output[3 * size].bits == 0);
    CHECK(std::abs(log_sum[0] - std::log(2.0F)) < 1e-6F);
    CHECK(log_sum[1] == doctest::Approx(4.0));
    CHECK(log_sum[2] == doctest::Approx(3.0));
    CHECK(log_sum[3] == none);
  }
}

}  // namespace attention_test
