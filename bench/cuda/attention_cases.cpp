// SPDX-License-Identifier: Apache-2.0
// Attention: causal documents of all lengths, slices that see a long prefix, packs of many
// documents.
#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cases.hpp"
#include "fill.hpp"
#include "slimpack/core/random.hpp"
#include "slimpack_cuda/attention.hpp"

namespace slimpack::bench {
namespace {

using cuda::AttentionPath;
using cuda::AttentionShape;
using cuda::Bf16;
using cuda::DeviceBuffer;
using cuda::DeviceSpan;

/// The oracle of the other paths is not made to be fast: it is measured where it soon ends.
constexpr double kPlainFlop = 2e10;

template <class Element>
DeviceBuffer<Element> uploaded(const std::vector<Element>& values, cuda::StreamView stream) {
  DeviceBuffer<Element> buffer(static_cast<std::int64_t>(values.size()));
  cuda::upload(buffer.span(), std::span<const Element>(values), stream);
  stream.synchronize();
  return buffer;
}

/// Query rows and keys of all documents; each document's keys begin a page.
struct Sizes {
  std::int64_t rows = 0, key_rows = 0, keys = 0;
  double pairs = 0;  ///< of a query and a key that it sees
};

Sizes sizes_of(const std::vector<Documents>& documents, std::int64_t page_tokens) {
  Sizes sizes;
  for (const Documents& group : documents) {
    const std::int64_t keys = group.prefix + group.rows;
    const auto rows = static_cast<double>(group.rows), prefix = static_cast<double>(group.prefix);
    sizes.rows += group.count * group.rows;
    sizes.keys += group.count * keys;
    sizes.key_rows += group.count * ((keys + page_tokens - 1) / page_tokens * page_tokens);
    sizes.pairs += static_cast<double>(group.count) * rows * (prefix + (rows + 1) / 2);
  }
  return sizes;
}

cuda::AttentionTables tables_of(const std::vector<Documents>& documents,
                                const AttentionShape& shape, AttentionPath path) {
  std::vector<cuda::AttentionSegment> segments;
  std::vector<cuda::KeyPage> pages;
  std::int32_t row = 0, key_row = 0, key = 0;
  for (const Documents& group : documents) {
    const auto rows = static_cast<std::int32_t>(group.rows);
    const auto keys = static_cast<std::int32_t>(group.prefix + group.rows);
    for (std::int64_t i = 0; i < group.count; ++i) {
      cuda::AttentionSegment segment;
      segment.rows = rows;
      segment.position = static_cast<std::int32_t>(group.prefix);
      segment.first_page = static_cast<std::int32_t>(pages.size());
      segment.keys = keys;
      segment.query_row = segment.output_row = segment.log_sum_row = segment.gradient_row = row;
      segment.key_gradient_row = segment.value_gradient_row = key;
      segments.push_back(segment);
      cuda::add_consecutive_pages(pages, key_row, keys, shape.page_tokens);
      row += rows;
      key += keys;
      key_row += (keys + shape.page_tokens - 1) / shape.page_tokens * shape.page_tokens;
    }
  }
  const cuda::AttentionTiles tiles = cuda::attention_tiles(shape, path);
  return cuda::attention_tables(std::move(segments), std::move(pages), shape.page_tokens,
                                tiles.query, tiles.key);
}

struct Work {
  DeviceBuffer<cuda::AttentionSegment> segments;
  DeviceBuffer<cuda::KeyPage> pages;
  DeviceBuffer<cuda::QueryTile> query_tiles;
  DeviceBuffer<cuda::KeyTile> key_tiles;

  Work(const cuda::AttentionTables& tables, cuda::StreamView stream)
      : segments(uploaded(tables.segments, stream)),
        pages(uploaded(tables.pages, stream)),
        query_tiles(uploaded(tables.query_tiles, stream)),
        key_tiles(uploaded(tables.key_tiles, stream)) {}
  [[nodiscard]] cuda::AttentionWork view() const {
    return {segments.span(), pages.span(), query_tiles.span(), key_tiles.span()};
  }
};

struct Set {
  DeviceBuffer<Bf16> query, key, value, output, doutput, dquery;
  DeviceBuffer<float> log_sum, delta, dkey, dvalue;
};

struct All {
  AttentionShape shape;
  AttentionPath path;
  Work work;
  cuda::StreamView stream;
  std::vector<Set> sets;

  void forward(const Set& set) const {
    cuda::attention_forward(set.output.span(), set.log_sum.span(), set.query.span(), set.key.span(),
                            set.value.span(), work.view(), shape, path, stream);
  }
  void delta(const Set& set) const {
    cuda::attention_delta(set.delta.span(), set.output.span(), set.doutput.span(), work.view(),
                          shape, path, stream);
  }
  void backward(const Set& set) const {
    delta(set);
    cuda::attention_backward(set.dquery.span(), set.dkey.span(), set.dvalue.span(),
                             set.query.span(), set.key.span(), set.value.span(), set.log_sum.span(),
                             set.delta.span(), set.doutput.span(), work.view(), shape, path,
                             stream);
  }
};

enum class Part : std::uint8_t { forward, delta, backward };

Launch prepare(const std::vector<Documents>& documents, const AttentionShape& shape,
               AttentionPath path, Part part, const Machine& machine, std::int64_t count) {
  const Sizes sizes = sizes_of(documents, shape.page_tokens);
  const std::int64_t wide = std::int64_t{shape.heads} * shape.head_dim;
  const std::int64_t narrow = std::int64_t{shape.kv_heads} * shape.head_dim;
  auto all = std::make_shared<All>(All{
      shape, path, Work(tables_of(documents, shape, path), machine.stream), machine.stream, {}});
  for (std::int64_t i = 0; i < count; ++i) {
    const auto seed = static_cast<std::uint64_t>(i) * 16;
    const auto buffer = [&](std::int64_t size, std::uint64_t which) {
      return random_buffer<Bf16>(size, 1.0F, seed + which, machine.stream);
    };
    Set set;
    set.query = buffer(sizes.rows * wide, 1);
    set.key = buffer(sizes.key_rows * narrow, 2);
    set.value = buffer(sizes.key_rows * narrow, 3);
    set.output = buffer(sizes.rows * wide, 4);
    set.log_sum = DeviceBuffer<float>(sizes.rows * shape.heads);
    if (part != Part::forward) {
      set.doutput = buffer(sizes.rows * wide, 5);
      set.delta = DeviceBuffer<float>(sizes.rows * shape.heads);
    }
    if (part == Part::backward) {
      set.dquery = buffer(sizes.rows * wide, 6);
      set.dkey = random_buffer<float>(sizes.keys * narrow, 1.0F, seed + 7, machine.stream);
      set.dvalue = random_buffer<float>(sizes.keys * narrow, 1.0F, seed + 8, machine.stream);
      all->forward(set);  // gradients of another softmax would overflow
    }
    all->sets.push_back(std::move(set));
  }
  return [all, part](std::int64_t i) {
    const Set& set = all->sets[static_cast<std::size_t>(i)];
    if (part == Part::forward) all->forward(set);
    if (part == Part::delta) all->delta(set);
    if (part == Part::backward) all->backward(set);
  };
}

struct Shape {
  std::string name;
  std::vector<Documents> documents;
  AttentionShape shape;
};

constexpr std::int64_t kTokens = 131072;
constexpr AttentionShape kLlama{32, 8, 128, 128};
constexpr AttentionShape kSmallHeads{32, 8, 64, 128};

/// Documents of log-normal length, at most 64K tokens, until there are kTokens.
std::vector<Documents> drawn_documents(double mu, double sigma) {
  Random random(1);
  std::vector<Documents> documents;
  for (std::int64_t left = kTokens; left > 0;) {
    const double drawn = std::clamp(std::exp(mu + sigma * random.normal()), 16.0, 65536.0);
    const std::int64_t rows = std::min(left, static_cast<std::int64_t>(drawn));
    documents.push_back({0, rows, 1});
    left -= rows;
  }
  return documents;
}

std::string in_thousands(std::int64_t tokens) {
  return tokens > 0 && tokens % 1024 == 0 ? std::to_string(tokens / 1024) + "K"
                                          : std::to_string(tokens);
}

std::vector<Shape> shapes() {
  std::vector<Shape> all;
  for (std::int64_t length = 1024; length <= kTokens; length *= 2) {
    all.push_back({"causal, " + std::to_string(kTokens / length) + " x " + in_thousands(length),
                   {{0, length, kTokens / length}},
                   kLlama});
  }
  for (const std::int64_t prefix : {0, 4096, 16384, 65536, 131072}) {
    all.push_back({"1K after " + in_thousands(prefix), {{prefix, 1024, 1}}, kLlama});
  }
  const auto add_pack = [&](const char* name, double mu, double sigma,
                            const AttentionShape& shape) {
    std::vector<Documents> documents = drawn_documents(mu, sigma);
    const std::string count = std::to_string(documents.size());
    all.push_back({count + " documents, " + name, std::move(documents), shape});
  };
  add_pack("log-normal(7.0, 1.3)", 7.0, 1.3, kLlama);
  add_pack("log-normal(9.0, 1.3)", 9.0, 1.3, kLlama);
  all.push_back({"causal, 16 x 8K, heads of 64", {{0, 8192, 16}}, kSmallHeads});
  add_pack("log-normal(7.0, 1.3), heads of 64", 7.0, 1.3, kSmallHeads);
  return all;
}

const char* to_string(AttentionPath path) {
  switch (path) {
    case AttentionPath::plain:
      return "plain";
    case AttentionPath::mma:
      return "mma";
    case AttentionPath::wgmma:
      return "wgmma";
  }
  return "";
}

Case attention_case(const Shape& of, AttentionPath path, Part part, int major, int minor) {
  constexpr const char* kOperations[] = {"attention.forward", "attention.delta",
                                         "attention.backward"};
  const AttentionShape shape = of.shape;
  const Sizes sizes = sizes_of(of.documents, shape.page_tokens);
  const auto wide = static_cast<double>(sizes.rows * shape.heads * shape.head_dim);
  const auto narrow = static_cast<double>(sizes.keys * shape.kv_heads * shape.head_dim);
  const auto numbers = static_cast<double>(sizes.rows * shape.heads);
  Case made;
  made.operation = kOperations[static_cast<int>(part)];
  made.name = of.name;
  made.path = part == Part::delta ? "slimpack" : to_string(path);
  made.shape = {{"heads", shape.heads},
                {"kv_heads", shape.kv_heads},
                {"head_dim", shape.head_dim},
                {"rows", sizes.rows}};
  made.documents = of.documents;
  const double pairs = sizes.pairs * shape.heads * shape.head_dim;
  if (part == Part::forward) {
    made.flop = 4 * pairs;
    made.bytes = 2 * (2 * wide + 2 * narrow) + 4 * numbers;
  } else if (part == Part::delta) {
    made.bytes = 2 * 2 * wide + 4 * numbers;
  } else {
    made.flop = 10 * pairs;
    made.bytes = 2 * (4 * wide + 2 * narrow) + 2 * 4 * 2 * narrow + 4 * 4 * numbers;
  }
  made.set_bytes = made.bytes;
  if (part != Part::delta) {
    made.why_not = cuda::why_not(shape, path, major, minor);
    if (!made.why_not && path == AttentionPath::plain && made.flop > kPlainFlop) {
      made.why_not = "the plain path is measured on small work only";
    }
  }
  made.prepare = [documents = of.documents, shape, path, part](const Machine& machine,
                                                               std::int64_t sets) {
    return prepare(documents, shape, path, part, machine, sets);
  };
  return made;
}

}  // namespace

std::vector<Case> attention_cases(int major, int minor) {
  std::vector<Case> cases;
  for (const Part part : {Part::forward, Part::backward}) {
    for (const Shape& shape : shapes()) {
      for (const AttentionPath path :
           {AttentionPath::wgmma, AttentionPath::mma, AttentionPath::plain}) {
        cases.push_back(attention_case(shape, path, part, major, minor));
      }
    }
  }
  const Shape pack{"128K rows", {{0, kTokens, 1}}, kLlama};
  cases.push_back(attention_case(pack, AttentionPath::plain, Part::delta, major, minor));
  return cases;
}

}  // namespace slimpack::bench
