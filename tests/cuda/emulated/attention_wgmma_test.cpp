// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "cuda/support/attention_case.hpp"
#include "kernels/attention_wgmma_backward.cuh"
#include "kernels/attention_wgmma_backward_queries.cuh"
#include "kernels/attention_wgmma_forward.cuh"

using namespace slimpack;
using namespace slimpack::cuda;
using simt::Timing;
using test::AttentionCase;
using test::plain_sample;
namespace wgmma = kernels::wgmma;

namespace {

wgmma::Work work_of(const AttentionCase& given, const AttentionTables& tables) {
  wgmma::Work work;
  work.segments = tables.segments.data(), work.pages = tables.pages.data();
  work.query_tiles = tables.query_tiles.data(), work.key_tiles = tables.key_tiles.data();
  work.heads = given.shape.heads, work.kv_heads = given.shape.kv_heads;
  work.page_tokens = given.shape.page_tokens;
  work.scale = 1.0F / std::sqrt(static_cast<float>(given.shape.head_dim));
  return work;
}
simt::TileMap map_of(const std::vector<Bf16>& matrix, std::int64_t rows) {
  return {matrix.data(), rows, static_cast<std::int64_t>(matrix.size()) / rows};
}

struct Forward {
  std::vector<Bf16> out;
  std::vector<float> log_sum;
  friend bool operator==(const Forward& a, const Forward& b) {
    return a.out == b.out &&
           std::memcmp(a.log_sum.data(), b.log_sum.data(), a.log_sum.size() * sizeof(float)) == 0;
  }
};

template <int kHeadDim>
Forward forward(const AttentionCase& given, Timing timing) {
  const AttentionTables tables = given.tables(wgmma::kQueryTile, wgmma::kKeyTile);
  Forward result{std::vector<Bf16>(given.query.size(), Bf16{0x7fff}),
                 std::vector<float>(given.log_sum.size(), NAN)};
  const wgmma::ForwardTask task{work_of(given, tables), result.out.data(), result.log_sum.data()};
  const auto blocks =
      static_cast<unsigned>(tables.query_tiles.size()) * static_cast<unsigned>(given.shape.heads);
  simt::emulate({blocks, wgmma::kThreads, wgmma::ForwardShared<kHeadDim>::kBytes}, timing, [&] {
    wgmma::attention_forward<kHeadDim>(map_of(given.query, given.query_rows),
                                       map_of(given.key, given.key_rows),
                                       map_of(given.value, given.key_rows), task);
  });
  return result;
}

template <int kHeadDim>
void check_forward(const AttentionCase& given) {
  const Forward early = forward<kHeadDim>(given, Timing::at_once);
  CHECK(forward<kHeadDim>(given, Timing::late) == early);
  const std::size_t width = given.query.size() / static_cast<std::size_t>(given.query_rows);
  const auto heads = static_cast<std::size_t>(given.shape.heads);
  double worst = 0, worst_sum = 0;
  std::int64_t touched = 0;
  for (std::int64_t row = 0; row < given.query_rows; ++row) {
    const bool used = given.query_used(row);
    for (std::size_t at = static_cast<std::size_t>(row) * width, i = 0; i < width; ++i, ++at) {
      if (!used) {
        touched += early.out[at] == Bf16{0x7fff} ? 0 : 1;
        continue;
      }
      const double error =
          std::abs(static_cast<double>(to_float(early.out[at])) - given.expected_out[at]);
      worst = std::isnan(error) ? INFINITY : std::max(worst, error);
    }
    for (std::size_t at = static_cast<std::size_t>(row) * heads, i = 0; i < heads; ++i, ++at) {
      if (!used) {
        touched += std::isnan(early.log_sum[at]) ? 0 : 1;
        continue;
      }
      const auto got = static_cast<double>(early.log_sum[at]);
      if (std::isinf(given.expected_log_sum[at])) {
        CHECK(got == given.expected_log_sum[at]);
        continue;
      }
      const double error = std::abs(got - given.expected_log_sum[at]);
      worst_sum = std::isnan(error) ? INFINITY : std::max(worst_sum, error);
    }
  }
  CHECK(touched == 0);
  CHECK(worst < 0.02);
  CHECK(worst_sum < 1e-4);
}

struct Backward {
  std::vector<Bf16> dquery;
  std::vector<float> dquery_sum, dkey, dvalue;
};
bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}
bool same(const Backward& a, const Backward& b) {
  return a.dquery == b.dquery && same(a.dquery_sum, b.dquery_sum) && same(a.dkey, b.dkey) &&
         same(a.dvalue, b.dvalue);
}

/// Gradients of keys, of values and fp32 ones of queries are added to 1 where somebody owns the
/// row.
template <int kHeadDim>
Backward backward(const AttentionCase& given, Timing timing) {
  const AttentionTables tables = given.tables(wgmma::kQueryTile, wgmma::kKeyTile);
  Backward result;
  result.dquery.assign(given.query.size(), Bf16{0x7fff});
  result.dquery_sum.assign(given.query.size(), NAN);
  result.dkey.assign(given.expected_dkey.size(), NAN);
  const std::size_t width = given.query.size() / static_cast<std::size_t>(given.query_rows);
  const auto key_width = static_cast<std::size_t>(given.shape.kv_heads * kHeadDim);
  for (std::size_t at = 0; at < result.dquery_sum.size(); ++at) {
    if (given.query_used(static_cast<std::int64_t>(at / width))) result.dquery_sum[at] = 1;
  }
  for (std::size_t at = 0; at < result.dkey.size(); ++at) {
    if (given.gradient_used(static_cast<std::int64_t>(at / key_width))) result.dkey[at] = 1;
  }
  result.dvalue = result.dkey;
  const wgmma::BackwardTask task{work_of(given, tables), given.log_sum.data(), given.delta.data()};
  const simt::TileMap query = map_of(given.query, given.query_rows),
                      key = map_of(given.key, given.key_rows),
                      value = map_of(given.value, given.key_rows),
                      dout = map_of(given.dout, given.query_rows);
  const auto key_blocks =
      static_cast<unsigned>(tables.key_tiles.size()) * static_cast<unsigned>(given.shape.kv_heads);
  simt::emulate({key_blocks, wgmma::kThreads, wgmma::KeyShared<kHeadDim>::kBytes}, timing, [&] {
    wgmma::attention_backward_keys<kHeadDim>(result.dkey.data(), result.dvalue.data(), query, key,
                                             value, dout, task);
  });
  const auto blocks =
      static_cast<unsigned>(tables.query_tiles.size()) * static_cast<unsigned>(given.shape.heads);
  const simt::Grid grid{blocks, wgmma::kThreads, wgmma::QueryShared<kHeadDim>::kBytes};
  simt::emulate(grid, timing, [&] {
    wgmma::attention_backward_queries<kHeadDim>(result.dquery.data(), query, key, value, dout,
                                                task);
  });
  simt::emulate(grid, timing, [&] {
    wgmma::attention_backward_queries<kHeadDim>(result.dquery_sum.data(), query, key, value, dout,
                                                task);
  });
  return result;
}

/// The largest error, as a part of the largest number; NaN must be where nobody owns a row.
template <class Owned>
double worst_error(const std::vector<float>& got, const std::vector<double>& expected,
                   std::size_t width, const Owned& owned) {
  double worst = 0, largest = 0;
  for (std::size_t at = 0; at < got.size(); ++at) {
    if (!owned(static_cast<std::int64_t>(at / width))) {
      if (!std::isnan(got[at])) return INFINITY;
      continue;
    }
    if (std::isnan(got[at])) return INFINITY;
    worst = std::max(worst, std::abs(static_cast<double>(got[at]) - expected[at]));
    largest = std::max(largest, std::abs(expected[at]));
  }
  return worst / largest;
}

template <int kHeadDim>
void check_backward(const AttentionCase& given) {
  const Backward early = backward<kHeadDim>(given, Timing::at_once);
  CHECK(same(backward<kHeadDim>(given, Timing::late), early));
  const std::size_t width = given.query.size() / static_cast<std::size_t>(given.query_rows);
  const auto key_width = static_cast<std::size_t>(given.shape.kv_heads * kHeadDim);
  const auto query_owned = [&](std::int64_t row) { return given.query_used(row); };
  const auto key_owned = [&](std::int64_t row) { return given.gradient_used(row); };
  const auto less_one = [](std::vector<float> values) {
    for (float& value : values) value -= 1;
    return values;
  };
  std::vector<float> dquery;
  for (const Bf16 value : early.dquery) dquery.push_back(to_float(value));
  CHECK(worst_error(dquery, given.expected_dquery, width, query_owned) < 0.01);
  CHECK(worst_error(less_one(early.dquery_sum), given.expected_dquery, width, query_owned) < 0.01);
  CHECK(worst_error(less_one(early.dkey), given.expected_dkey, key_width, key_owned) < 0.01);
  CHECK(worst_error(less_one(early.dvalue), given.expected_dvalue, key_width, key_owned) < 0.01);
}

AttentionCase mixed(int head_dim, int page_tokens) {
  // A long document, a middle slice with a prefix and short documents.
  return {{2, 1, head_dim, page_tokens},
          {plain_sample(page_tokens, {{0, 293, 293}}), plain_sample(page_tokens, {{200, 70, 270}}),
           plain_sample(page_tokens, {{0, 7, 7}}), plain_sample(page_tokens, {{0, 64, 64}})},
          7};
}
AttentionCase gaps(int head_dim) {
  // Blocks of a sample as a rank of a merged group lists them; the first rows see no key at all,
  // and the segments list different numbers of keys.
  return {{4, 2, head_dim, 128},
          {{{128, 384, 512}, {{90, 150, 128}, {400, 50, 256}, {512, 130, 300}}}},
          8};
}

}  // namespace

TEST_CASE("attention_forward, wgmma: documents, prefixes and pages out of order") {
  check_forward<64>(mixed(64, 128));
  check_forward<128>(mixed(128, 64));
}

TEST_CASE("attention_forward, wgmma: gaps of positions, key heads shared, rows without keys") {
  check_forward<64>(gaps(64));
  check_forward<128>(gaps(128));
}

TEST_CASE("attention, wgmma: a row's bits do not depend on how its sample is cut") {
  const AttentionShape shape{1, 1, 64, 128};
  const AttentionCase whole(shape, {plain_sample(128, {{0, 300, 300}})}, 9);
  AttentionCase cut = whole;
  cut.segments.clear();
  int rows = 0;
  for (const int end : {37, 165, 300}) {
    AttentionSegment part = whole.segments[0];
    part.position = rows, part.rows = end - rows, part.keys = end;
    part.query_row += rows, part.output_row += rows;
    part.log_sum_row += rows, part.gradient_row += rows;
    cut.segments.push_back(part);
    rows = end;
  }
  CHECK(forward<64>(cut, Timing::late) == forward<64>(whole, Timing::late));
  const Backward of_whole = backward<64>(whole, Timing::late),
                 of_cut = backward<64>(cut, Timing::late);
  CHECK(of_cut.dquery == of_whole.dquery);
  CHECK(same(of_cut.dquery_sum, of_whole.dquery_sum));
  check_backward<64>(cut);
}

TEST_CASE("attention_backward, wgmma: documents, prefixes and pages out of order") {
  check_backward<64>(mixed(64, 128));
  check_backward<128>(mixed(128, 64));
}

TEST_CASE("attention_backward, wgmma: gaps of positions, key heads shared, rows without keys") {
  check_backward<64>(gaps(64));
  check_backward<128>(gaps(128));
}
