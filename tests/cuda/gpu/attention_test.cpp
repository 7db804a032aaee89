// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cuda/attention_cases.hpp"
#include "cuda/op_data.hpp"
#include "slimpack/core/error.hpp"
#include "slimpack_cuda/attention.hpp"
#include "slimpack_cuda/device.hpp"
#include "support/skip.hpp"

namespace attention_test {

using namespace slimpack;
using namespace slimpack::cuda;
using namespace slimpack::cuda::test;

namespace {

using slimpack::test::sized;

constexpr double kForward = 5e-3, kBackward = 1e-2, kBackwardRow = 4e-2;

template <class Element>
DeviceBuffer<Element> to_device(const std::vector<Element>& elements, StreamView stream) {
  DeviceBuffer<Element> buffer(static_cast<std::int64_t>(elements.size()));
  upload(buffer.span(), std::span<const Element>(elements), stream);
  stream.synchronize();
  return buffer;
}

/// A case in device memory, with its tables for one path.
struct OnDevice {
  DeviceBuffer<AttentionSegment> segments;
  DeviceBuffer<KeyPage> pages;
  DeviceBuffer<QueryTile> query_tiles;
  DeviceBuffer<KeyTile> key_tiles;
  DeviceBuffer<Bf16> query, key, value, doutput;
  AttentionWork work;

  OnDevice(const Case& of, AttentionPath path, StreamView stream)
      : query(to_device(of.query, stream)),
        key(to_device(of.key, stream)),
        value(to_device(of.value, stream)),
        doutput(to_device(of.doutput, stream)) {
    const AttentionTiles tiles = attention_tiles(of.shape, path);
    const AttentionTables tables =
        attention_tables(of.segments, of.pages, of.shape.page_tokens, tiles.query, tiles.key);
    segments = to_device(tables.segments, stream);
    pages = to_device(tables.pages, stream);
    query_tiles = to_device(tables.query_tiles, stream);
    key_tiles = to_device(tables.key_tiles, stream);
    work = {segments.span(), pages.span(), query_tiles.span(), key_tiles.span()};
  }
};

struct Found {
  std::vector<Bf16> output, dquery;
  std::vector<float> log_sum, delta, dkey, dvalue;
};
bool same(const Found& a, const Found& b) {
  return a.output == b.output && a.dquery == b.dquery && same_bits(a.log_sum, b.log_sum) &&
         same_bits(a.delta, b.delta) && same_bits(a.dkey, b.dkey) && same_bits(a.dvalue, b.dvalue);
}

/// Forward, delta and backward as a training step launches them. Where `given` is not null, delta
/// and backward are of its outputs: those of two paths differ by a rounding, which the delta of a
/// row with few keys multiplies.
Found run(const Case& of, AttentionPath path, const Found* given = nullptr) {
  const Stream owner;
  const StreamView stream = owner.view();
  const OnDevice device(of, path, stream);
  const std::vector<Bf16> poison(of.query.size(), kPoison);
  const std::vector<float> nan(static_cast<std::size_t>(of.rows * of.shape.heads), kNan);
  const auto output = to_device(poison, stream), dquery = to_device(poison, stream);
  const auto log_sum = to_device(nan, stream), delta = to_device(nan, stream);
  const auto dkey = to_device(of.dkey, stream), dvalue = to_device(of.dvalue, stream);
  attention_forward(output.span(), log_sum.span(), device.query.span(), device.key.span(),
                    device.value.span(), device.work, of.shape, path, stream);
  Found found;
  found.output = download(output.span(), stream);
  found.log_sum = download(log_sum.span(), stream);
  if (given != nullptr) {
    upload(output.span(), std::span(given->output), stream);
    upload(log_sum.span(), std::span(given->log_sum), stream);
  }
  attention_delta(delta.span(), output.span(), device.doutput.span(), device.work, of.shape, path,
                  stream);
  attention_backward(dquery.span(), dkey.span(), dvalue.span(), device.query.span(),
                     device.key.span(), device.value.span(), log_sum.span(), delta.span(),
                     device.doutput.span(), device.work, of.shape, path, stream);
  found.dquery = download(dquery.span(), stream);
  found.delta = download(delta.span(), stream);
  found.dkey = download(dkey.span(), stream);
  found.dvalue = download(dvalue.span(), stream);
  return found;
}

void check(const Found& found, const Results& expected, std::int64_t dim) {
  CHECK(difference(found.output, expected.output) < kForward);
  CHECK(difference(found.log_sum, expected.log_sum) < 1e-5);
  CHECK(difference(found.delta, expected.delta) < kBackward);
  CHECK(difference(found.dquery, expected.dquery) < kBackward);
  CHECK(row_difference(found.dquery, expected.dquery, dim) < kBackwardRow);
  CHECK(difference(found.dkey, expected.dkey) < kBackward);
  CHECK(row_difference(found.dkey, expected.dkey, dim) < kBackwardRow);
  CHECK(difference(found.dvalue, expected.dvalue) < kBackward);
  CHECK(row_difference(found.dvalue, expected.dvalue, dim) < kBackwardRow);
}

/// The paths that every device has, and the one that Hopper adds.
using Paths = std::span<const AttentionPath>;
constexpr AttentionPath kPaths[] = {AttentionPath::plain, AttentionPath::mma};
constexpr AttentionPath kHopperPaths[] = {AttentionPath::wgmma};

AttentionShape shape_of(int heads, int kv_heads, int head_dim) {
  return {heads, kv_heads, head_dim, 128};
}

/// Whether the device has Hopper's path; says why not, and skips the case, where it has not.
bool has_hopper_path() {
  const DeviceProperties properties = device_properties();
  const auto why =
      why_not(shape_of(2, 1, 128), AttentionPath::wgmma, properties.major, properties.minor);
  if (why) slimpack::test::skip("hopper", *why);
  return !why;
}

void check_against_fp64(Paths paths) {
  for (const int dim : {64, 128}) {
    const Case of = make_case(
        shape_of(4, 2, dim),
        {{{{0, sized(700, 100)}}, sized(700, 100)},
         {{{0, 1}}, 1},
         {{{sized(300, 70), sized(129, 60)}, {sized(429, 130), sized(200, 20)}}, sized(629, 150)},
         {{{100, sized(90, 30)}, {300, sized(200, 40)}}, sized(400, 200), 1, 64},
         {{{0, 2}}, 0},
         {{{50, 64, 114}, {114, 5}}, 119}},
        11);
    const Results expected = reference(of);
    for (const AttentionPath path : paths) {
      CAPTURE(dim);
      CAPTURE(static_cast<int>(path));
      const Found found = run(of, path);
      check(found, expected, dim);
      CHECK(same(run(of, path), found));
    }
  }
}

void check_at_training_sizes(Paths paths) {
  for (const int dim : {64, 128}) {
    for (const Case& of :
         {make_case(shape_of(8, 2, dim), {{{{0, 4096}}, 4096}, {{{0, 1000}}, 1000}}, 12),
          make_case(shape_of(8, 2, dim), {{{{32768, 100}}, 32868}}, 13)}) {
      const Found plain = run(of, AttentionPath::plain);
      for (const AttentionPath path : paths) {
        CAPTURE(dim);
        CAPTURE(static_cast<int>(path));
        const Found found = run(of, path, &plain);
        CHECK(difference(found.output, widened(plain.output)) < kForward);
        CHECK(difference(found.log_sum, widened(plain.log_sum)) < 1e-5);
        CHECK(difference(found.dquery, widened(plain.dquery)) < kBackward);
        CHECK(row_difference(found.dquery, widened(plain.dquery), dim) < kBackwardRow);
        CHECK(difference(found.dkey, widened(plain.dkey)) < kBackward);
        CHECK(row_difference(found.dkey, widened(plain.dkey), dim) < kBackwardRow);
        CHECK(difference(found.dvalue, widened(plain.dvalue)) < kBackward);
        CHECK(row_difference(found.dvalue, widened(plain.dvalue), dim) < kBackwardRow);
      }
    }
  }
}

void check_sliced(Paths paths) {
  constexpr std::int32_t kRows = sized(1500, 130), kSlice = sized(333, 50);
  for (const int dim : {64, 128}) {
    const Case whole = make_case(shape_of(2, 1, dim), {{{{30, kRows}}, 30 + kRows}}, 14);
    Case parts = whole;
    parts.segments.clear();
    const AttentionSegment one = whole.segments[0];
    for (std::int32_t first = 0; first < one.rows; first += kSlice) {
      AttentionSegment part = one;
      part.rows = std::min(kSlice, one.rows - first);
      for (std::int32_t* at : {&part.position, &part.query_row, &part.output_row, &part.log_sum_row,
                               &part.gradient_row}) {
        *at += first;
      }
      parts.segments.push_back(part);
    }
    for (const AttentionPath path : paths) {
      CAPTURE(dim);
      CAPTURE(static_cast<int>(path));
      const Found a = run(whole, path), b = run(parts, path);
      CHECK(a.output == b.output);
      CHECK(same_bits(a.log_sum, b.log_sum));
    }
  }
}

void check_partial(Paths paths) {
  constexpr std::int32_t kKeys = sized(900, 300), kPage = 128, kPages = (kKeys + kPage - 1) / kPage;
  for (const AttentionPath path : paths) {
    CAPTURE(static_cast<int>(path));
    Case whole = make_case(shape_of(sized(4, 2), sized(2, 1), 128),
                           {{{{kKeys - sized(200, 60), sized(200, 60)}}, kKeys}}, 15);
    whole.segments[0].output_row = whole.segments[0].log_sum_row;
    const Results expected = reference(whole);
    const Stream owner;
    const StreamView stream = owner.view();
    const auto log_sum = to_device(narrowed<float>(expected.log_sum), stream);
    const auto delta = to_device(narrowed<float>(expected.delta), stream);
    const DeviceBuffer<float> dquery =
        to_device(std::vector<float>(whole.query.size(), 0.0F), stream);
    const std::vector<Bf16> poison(whole.query.size(), kPoison);
    const std::vector<float> nan(static_cast<std::size_t>(whole.rows * whole.shape.heads), kNan);
    std::vector<DeviceBuffer<Bf16>> outputs;
    std::vector<DeviceBuffer<float>> log_sums;
    for (std::size_t rank = 0; rank < 2; ++rank) {
      Case part = whole;
      part.pages.clear();
      for (std::size_t i = rank; i < whole.pages.size(); i += 2) {
        part.pages.push_back(whole.pages[i]);
      }
      // Of its pages one rank has the last of all, which may be partly filled.
      const bool last = rank == (kPages - 1) % 2;
      const auto pages = static_cast<std::int32_t>(part.pages.size());
      part.segments[0].keys = last ? (pages - 1) * kPage + kKeys % kPage : pages * kPage;
      part.segments[0].key_gradient_row = part.segments[0].value_gradient_row = 0;
      std::ranges::fill(part.dkey, 0.0F);
      std::ranges::fill(part.dvalue, 0.0F);
      const OnDevice device(part, path, stream);
      const auto dkey = to_device(part.dkey, stream), dvalue = to_device(part.dvalue, stream);
      outputs.push_back(to_device(poison, stream));
      log_sums.push_back(to_device(nan, stream));
      attention_forward(outputs[rank].span(), log_sums[rank].span(), device.query.span(),
                        device.key.span(), device.value.span(), device.work, part.shape, path,
                        stream);
      attention_backward_partial(dquery.span(), dkey.span(), dvalue.span(), device.query.span(),
                                 device.key.span(), device.value.span(), log_sum.span(),
                                 delta.span(), device.doutput.span(), device.work, part.shape, path,
                                 stream);
      const Results of_part = reference(part, &expected);
      CHECK(difference(download(dkey.span(), stream), of_part.dkey) < kBackward);
      CHECK(difference(download(dvalue.span(), stream), of_part.dvalue) < kBackward);
    }
    attention_merge(outputs[0].span(), log_sums[0].span(), outputs[1].span(), log_sums[1].span(),
                    whole.rows, whole.shape, stream);
    CHECK(difference(download(outputs[0].span(), stream), expected.output) < kForward);
    CHECK(difference(download(log_sums[0].span(), stream), expected.log_sum) < 1e-5);
    std::vector<double> all = expected.dquery;
    for (double& number : all) {
      if (std::isnan(number)) number = 0;
    }
    CHECK(difference(download(dquery.span(), stream), all) < kBackward);
    CHECK(row_difference(download(dquery.span(), stream), all, 128) < kBackwardRow);
  }
}

}  // namespace

TEST_CASE("attention: plain and mma give what fp64 gives, and the same bits again") {
  check_against_fp64(kPaths);
}
TEST_CASE("attention: wgmma gives what fp64 gives, and the same bits again" *
          doctest::test_suite("needs-hopper")) {
  if (has_hopper_path()) check_against_fp64(kHopperPaths);
}

TEST_CASE("attention: mma agrees with the plain path at training sizes" *
          doctest::test_suite("large")) {
  check_at_training_sizes(std::span(kPaths).subspan<1>());
}
TEST_CASE("attention: wgmma agrees with the plain path at training sizes" *
          doctest::test_suite("large-needs-hopper")) {
  if (has_hopper_path()) check_at_training_sizes(kHopperPaths);
}

TEST_CASE("attention_forward: rows have the same bits however a sample is sliced") {
  check_sliced(kPaths);
}
TEST_CASE("attention_forward: rows of wgmma have the same bits however a sample is sliced" *
          doctest::test_suite("needs-hopper")) {
  if (has_hopper_path()) check_sliced(kHopperPaths);
}

TEST_CASE("attention: partial results over two ranks' pages make the whole") {
  check_partial(kPaths);
}
TEST_CASE("attention: partial results of wgmma over two ranks' pages make the whole" *
          doctest::test_suite("needs-hopper")) {
  if (has_hopper_path()) check_partial(kHopperPaths);
}

TEST_CASE("attention_forward: bad shapes and sizes are refused before any work") {
  const AttentionWork none;
  const auto refused = [&](const AttentionShape& shape, AttentionPath path,
                           const std::string& rule) {
    try {
      attention_forward({}, {}, {}, {}, {}, none, shape, path, {});
    } catch (const InvalidInput& error) {
      CHECK(std::string(error.what()).find(rule) != std::string::npos);
      return;
    }
    FAIL("not refused: " << rule);
  };
  refused({4, 3, 64, 128}, AttentionPath::plain, "kv_heads must divide heads");
  refused({4, 2, 0, 128}, AttentionPath::plain, "head_dim must be >= 1");
  refused({4, 2, 96, 128}, AttentionPath::mma, "needs head_dim 64 or 128, not 96");
  refused({4, 2, 128, 96}, AttentionPath::mma, "page_tokens in multiples of 64");
}

}  // namespace attention_test
