// SPDX-License-Identifier: Apache-2.0
// Attention of three documents of different lengths in one launch, forward and backward, from a
// program that has its own memory and stream: of slimpack only the launchers are used. The answer
// is compared with plain loops on the host.
//   cuda_attention
// Ends with 1 if the answers differ, or if there is no device.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "slimpack_cuda/attention.hpp"

namespace sp = slimpack::cuda;

namespace {

constexpr int kHeads = 4, kKeyHeads = 2, kWidth = 64;  // two heads share the keys of one
constexpr int kLengths[] = {77, 200, 1};

void check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "cuda_attention: %s\n", cudaGetErrorString(error));
  std::exit(1);
}

/// Memory of the device, released at the end of the program.
template <class Element>
sp::DeviceSpan<Element> allocate(std::size_t count) {
  void* memory = nullptr;
  check(cudaMalloc(&memory, count * sizeof(Element)));
  check(cudaMemset(memory, 0, count * sizeof(Element)));
  return {static_cast<Element*>(memory), static_cast<std::int64_t>(count)};
}
template <class Element>
sp::DeviceSpan<Element> to_device(const std::vector<Element>& values) {
  const sp::DeviceSpan<Element> span = allocate<Element>(values.size());
  check(cudaMemcpy(span.data, values.data(), values.size() * sizeof(Element),
                   cudaMemcpyHostToDevice));
  return span;
}
template <class Element>
std::vector<Element> to_host(sp::DeviceSpan<Element> span) {
  std::vector<Element> values(static_cast<std::size_t>(span.size));
  check(cudaMemcpy(values.data(), span.data, values.size() * sizeof(Element),
                   cudaMemcpyDeviceToHost));
  return values;
}

std::vector<sp::Bf16> random_numbers(int count, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<sp::Bf16> numbers;
  for (int at = 0; at < count; ++at) numbers.push_back(sp::to_bf16(normal(random)));
  return numbers;
}

/// Rows of a matrix on the host, as numbers.
double number(const std::vector<sp::Bf16>& matrix, int row, int width, int column) {
  return static_cast<double>(sp::to_float(matrix[static_cast<std::size_t>(row * width + column)]));
}

struct Answer {
  std::vector<double> output, dquery, dkey, dvalue;
};

/// One document after the other, one query after the other, in double precision.
Answer on_host(const std::vector<sp::Bf16>& query, const std::vector<sp::Bf16>& key,
               const std::vector<sp::Bf16>& value, const std::vector<sp::Bf16>& doutput) {
  constexpr int kWide = kHeads * kWidth, kNarrow = kKeyHeads * kWidth;
  Answer answer{std::vector<double>(query.size()), std::vector<double>(query.size()),
                std::vector<double>(key.size()), std::vector<double>(key.size())};
  const double scale = 1 / std::sqrt(static_cast<double>(kWidth));
  int first = 0;
  for (const int length : kLengths) {
    for (int head = 0; head < kHeads; ++head) {
      const int wide = head * kWidth, narrow = head / (kHeads / kKeyHeads) * kWidth;
      for (int row = first; row < first + length; ++row) {
        std::vector<double> weight;
        double most = -1e300, sum = 0, delta = 0;
        for (int other = first; other <= row; ++other) {
          double score = 0;
          for (int i = 0; i < kWidth; ++i) {
            score += number(query, row, kWide, wide + i) * number(key, other, kNarrow, narrow + i);
          }
          weight.push_back(score * scale);
          most = std::max(most, weight.back());
        }
        for (double& one : weight) sum += one = std::exp(one - most);
        std::vector<double> dweight;
        for (int other = first; other <= row; ++other) {
          double& one = weight[static_cast<std::size_t>(other - first)];
          one /= sum;
          double product = 0;
          for (int i = 0; i < kWidth; ++i) {
            const double dout = number(doutput, row, kWide, wide + i);
            const double seen = number(value, other, kNarrow, narrow + i);
            answer.output[static_cast<std::size_t>(row * kWide + wide + i)] += one * seen;
            answer.dvalue[static_cast<std::size_t>(other * kNarrow + narrow + i)] += one * dout;
            product += dout * seen;
          }
          dweight.push_back(product);
          delta += one * product;
        }
        for (int other = first; other <= row; ++other) {
          const auto at = static_cast<std::size_t>(other - first);
          const double dscore = weight[at] * (dweight[at] - delta) * scale;
          for (int i = 0; i < kWidth; ++i) {
            answer.dquery[static_cast<std::size_t>(row * kWide + wide + i)] +=
                dscore * number(key, other, kNarrow, narrow + i);
            answer.dkey[static_cast<std::size_t>(other * kNarrow + narrow + i)] +=
                dscore * number(query, row, kWide, wide + i);
          }
        }
      }
    }
    first += length;
  }
  return answer;
}

double value_of(sp::Bf16 number) {
  return static_cast<double>(sp::to_float(number));
}
double value_of(float number) {
  return static_cast<double>(number);
}

/// The largest difference over the largest number; prints it.
template <class Element>
bool agree(const char* name, const std::vector<Element>& found,
           const std::vector<double>& expected) {
  constexpr double kTolerance = 2e-2;  // of bf16
  double difference = 0, largest = 0;
  for (std::size_t at = 0; at < expected.size(); ++at) {
    const double error = std::abs(value_of(found[at]) - expected[at]);
    difference = error <= difference ? difference : error;  // takes over NaN
    largest = std::max(largest, std::abs(expected[at]));
  }
  std::printf("  %-7s %.1e\n", name, difference / largest);
  return difference <= kTolerance * largest;
}

}  // namespace

int main() {
  if (const auto why = sp::why_no_device()) {
    std::fprintf(stderr, "cuda_attention: %s\n", why->c_str());
    return 1;
  }
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  const sp::DeviceProperties device = sp::device_properties();
  const sp::AttentionShape shape{kHeads, kKeyHeads, kWidth, 128};
  const sp::AttentionPath path = sp::best_path(shape, device.major, device.minor);

  // Rows of all matrices stand one after the other, document by document. The keys of a document
  // are listed by pages of 128 rows, which could lie anywhere.
  std::vector<sp::AttentionSegment> segments;
  std::vector<sp::KeyPage> pages;
  int tokens = 0;
  for (const int length : kLengths) {
    sp::AttentionSegment segment;
    segment.rows = segment.keys = length;
    segment.first_page = static_cast<std::int32_t>(pages.size());
    segment.query_row = segment.output_row = segment.log_sum_row = tokens;
    segment.gradient_row = tokens;
    segment.key_gradient_row = segment.value_gradient_row = tokens;
    sp::add_consecutive_pages(pages, tokens, length, shape.page_tokens);
    segments.push_back(segment);
    tokens += length;
  }
  const sp::AttentionTiles tiles = sp::attention_tiles(shape, path);
  const sp::AttentionTables tables =
      sp::attention_tables(segments, pages, shape.page_tokens, tiles.query, tiles.key);
  const sp::AttentionWork work{to_device(tables.segments), to_device(tables.pages),
                               to_device(tables.query_tiles), to_device(tables.key_tiles)};

  std::mt19937 random(1);
  const std::vector<sp::Bf16> query = random_numbers(tokens * kHeads * kWidth, random);
  const std::vector<sp::Bf16> key = random_numbers(tokens * kKeyHeads * kWidth, random);
  const std::vector<sp::Bf16> value = random_numbers(tokens * kKeyHeads * kWidth, random);
  const std::vector<sp::Bf16> doutput = random_numbers(tokens * kHeads * kWidth, random);
  const auto query_there = to_device(query), key_there = to_device(key);
  const auto value_there = to_device(value), doutput_there = to_device(doutput);
  const auto output = allocate<sp::Bf16>(query.size()), dquery = allocate<sp::Bf16>(query.size());
  const auto log_sum = allocate<float>(static_cast<std::size_t>(tokens * kHeads));
  const auto delta = allocate<float>(static_cast<std::size_t>(tokens * kHeads));
  const auto dkey = allocate<float>(key.size()), dvalue = allocate<float>(key.size());
  check(cudaDeviceSynchronize());  // the zeros, which went another way than the stream

  try {
    sp::attention_forward(output, log_sum, query_there, key_there, value_there, work, shape, path,
                          stream);
    sp::attention_delta(delta, output, doutput_there, work, shape, path, stream);
    sp::attention_backward(dquery, dkey, dvalue, query_there, key_there, value_there, log_sum,
                           delta, doutput_there, work, shape, path, stream);
  } catch (const std::runtime_error& error) {
    std::fprintf(stderr, "cuda_attention: %s\n", error.what());
    return 1;
  }
  check(cudaStreamSynchronize(stream));

  const Answer expected = on_host(query, key, value, doutput);
  std::printf("%d tokens of %zu documents on %s; largest difference from the host's loops:\n",
              tokens, segments.size(), device.name.c_str());
  bool same = agree("output", to_host(output), expected.output);
  same = agree("dquery", to_host(dquery), expected.dquery) && same;
  same = agree("dkey", to_host(dkey), expected.dkey) && same;
  same = agree("dvalue", to_host(dvalue), expected.dvalue) && same;
  check(cudaStreamDestroy(stream));
  return same ? 0 : 1;
}
