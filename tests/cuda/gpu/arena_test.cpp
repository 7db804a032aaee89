// SPDX-License-Identifier: Apache-2.0
// Attention whose matrices lie here and there in one piece of memory: each is named by the
// beginning of the memory and by rows of its own width.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "cuda/attention_cases.hpp"
#include "slimpack_cuda/attention.hpp"
#include "slimpack_cuda/device.hpp"

namespace arena_test {

using namespace slimpack::cuda;
using namespace slimpack::cuda::test;

namespace {

constexpr std::int64_t kUnit = 512;  // a multiple of the rows of all matrices below, in bytes

/// Bytes of an arena on the host; what nobody wrote is NaN.
class Layout {
 public:
  template <class Element>
  std::int64_t add(const std::vector<Element>& matrix) {
    const auto i = static_cast<std::int64_t>(bytes_.size());
    const std::size_t size = matrix.size() * sizeof(Element);
    bytes_.resize(bytes_.size() + (size + kUnit - 1) / kUnit * kUnit + kUnit, std::byte{0xff});
    std::memcpy(bytes_.data() + i, matrix.data(), size);
    return i;
  }
  [[nodiscard]] std::vector<std::byte>& bytes() { return bytes_; }

 private:
  std::vector<std::byte> bytes_ = std::vector<std::byte>(kUnit, std::byte{0xff});
};

template <class Element>
std::vector<Element> taken(const std::vector<std::byte>& bytes, std::int64_t i, std::size_t count) {
  std::vector<Element> matrix(count);
  std::memcpy(matrix.data(), bytes.data() + i, count * sizeof(Element));
  return matrix;
}

}  // namespace

TEST_CASE("attention: all matrices in one arena, values of a page after its keys") {
  // Rows: queries and outputs 512 bytes, keys and values 256, their gradients 512, log-sum-exps 16.
  const Case of = make_case({4, 2, 64, 128}, {{{{0, 70}}, 70}, {{{100, 60}, {160, 9}}, 169}}, 21);
  const Results expected = reference(of);
  const DeviceProperties properties = device_properties();
  for (const AttentionPath path :
       {AttentionPath::plain, AttentionPath::mma, AttentionPath::wgmma}) {
    CAPTURE(static_cast<int>(path));
    if (!supports(of.shape, path, properties.major, properties.minor)) continue;
    Layout layout;
    const std::int64_t query = layout.add(of.query),
                       output = layout.add(std::vector<Bf16>(of.query.size(), kPoison));
    const std::int64_t dvalue = layout.add(of.dvalue);
    const std::int64_t log_sum =
        layout.add(std::vector<float>(static_cast<std::size_t>(of.rows * of.shape.heads), kNan));
    std::vector<KeyPage> pages;
    const auto page_size = static_cast<std::size_t>(of.shape.page_tokens * of.key_width());
    for (const KeyPage& page : of.pages) {
      std::vector<Bf16> both;
      for (const auto* matrix : {&of.key, &of.value}) {
        const auto first = matrix->begin() + page.row * of.key_width();
        both.insert(both.end(), first, first + static_cast<std::ptrdiff_t>(page_size));
      }
      pages.push_back({static_cast<std::int32_t>(layout.add(both) / 256), page.position});
    }
    const std::int64_t dkey = layout.add(of.dkey);
    std::vector<AttentionSegment> segments = of.segments;
    for (AttentionSegment& segment : segments) {
      segment.query_row += static_cast<std::int32_t>(query / 512);
      segment.output_row += static_cast<std::int32_t>(output / 512);
      segment.log_sum_row += static_cast<std::int32_t>(log_sum / 16);
      segment.key_gradient_row += static_cast<std::int32_t>(dkey / 512);
      segment.value_gradient_row += static_cast<std::int32_t>(dvalue / 512);
    }

    const Stream owner;
    const StreamView stream = owner.view();
    const auto there = [&]<class Element>(const std::vector<Element>& values) {
      DeviceBuffer<Element> buffer(static_cast<std::int64_t>(values.size()));
      upload(buffer.span(), std::span<const Element>(values), stream);
      stream.synchronize();
      return buffer;
    };
    const AttentionTiles tiles = attention_tiles(of.shape, path);
    const AttentionTables tables =
        attention_tables(segments, pages, of.shape.page_tokens, tiles.query, tiles.key);
    const auto segments_there = there(tables.segments);
    const auto pages_there = there(tables.pages);
    const auto query_tiles = there(tables.query_tiles);
    const auto key_tiles = there(tables.key_tiles);
    const AttentionWork work{segments_there.span(), pages_there.span(), query_tiles.span(),
                             key_tiles.span()};
    const auto arena = there(layout.bytes());
    const auto doutput = there(of.doutput);
    const auto dquery = there(std::vector<Bf16>(of.query.size(), kPoison));
    const auto delta =
        there(std::vector<float>(static_cast<std::size_t>(of.rows * of.shape.heads), kNan));
    const std::int64_t whole = arena.size() / kUnit * kUnit;
    const auto halves = reinterpret_cast<Bf16*>(arena.span().data);
    const auto singles = reinterpret_cast<float*>(arena.span().data);
    const DeviceSpan<Bf16> as_bf16{halves, whole / 2};
    const DeviceSpan<float> as_float{singles, whole / 4};
    const auto behind = static_cast<std::int64_t>(page_size);  // from a page's keys to its values
    const DeviceSpan<const Bf16> keys{halves, whole / 2 - behind};
    const DeviceSpan<const Bf16> values{halves + behind, whole / 2 - behind};
    attention_forward(as_bf16, as_float, as_bf16, keys, values, work, of.shape, path, stream);
    attention_delta(delta.span(), as_bf16, doutput.span(), work, of.shape, path, stream);
    attention_backward(dquery.span(), as_float, as_float, as_bf16, keys, values, as_float,
                       delta.span(), doutput.span(), work, of.shape, path, stream);

    const std::vector<std::byte> bytes = download(arena.span(), stream);
    CHECK(difference(taken<Bf16>(bytes, output, of.query.size()), expected.output) < 5e-3);
    CHECK(
        difference(taken<float>(bytes, log_sum, static_cast<std::size_t>(of.rows * of.shape.heads)),
                   expected.log_sum) < 1e-5);
    CHECK(difference(taken<float>(bytes, dkey, of.dkey.size()), expected.dkey) < 1e-2);
    CHECK(difference(taken<float>(bytes, dvalue, of.dvalue.size()), expected.dvalue) < 1e-2);
    CHECK(difference(download(dquery.span(), stream), expected.dquery) < 1e-2);
  }
}

}  // namespace arena_test
