// SPDX-License-Identifier: Apache-2.0
// Operators that memory bounds, in bytes that they have to move, at the sizes of Llama 3.1 8B.
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cases.hpp"
#include "fill.hpp"
#include "slimpack/core/random.hpp"
#include "slimpack_cuda/attention.hpp"
#include "slimpack_cuda/cross_entropy.hpp"
#include "slimpack_cuda/embedding.hpp"
#include "slimpack_cuda/norm.hpp"
#include "slimpack_cuda/optimizer.hpp"
#include "slimpack_cuda/rope.hpp"
#include "slimpack_cuda/swiglu.hpp"

namespace slimpack::bench {
namespace {

using cuda::Bf16;
using cuda::DeviceBuffer;
using cuda::DeviceSpan;

constexpr cuda::AttentionShape kShape{32, 8, 128, 128};
constexpr std::int64_t kRows = 16384, kWidth = 4096, kHidden = 14336, kVocabulary = 128256;

constexpr cuda::RowShape kNorm{kRows, kWidth}, kGated{kRows, kHidden};
constexpr cuda::RopeShape kRope{kRows, kShape.heads, kShape.kv_heads, kShape.head_dim};
constexpr float kEpsilon = 1e-5F;

/// The random numbers of one input set, each buffer with a seed of its own.
class Numbers {
 public:
  Numbers(const Machine& machine, std::int64_t set)
      : stream_(machine.stream), seed_(static_cast<std::uint64_t>(set) * 16) {}
  template <class Element>
  [[nodiscard]] std::shared_ptr<DeviceBuffer<Element>> random(std::int64_t size) {
    return shared(random_buffer<Element>(size, 1.0F, ++seed_, stream_));
  }
  template <class Element>
  [[nodiscard]] std::shared_ptr<DeviceBuffer<Element>> empty(std::int64_t size) {
    return shared(DeviceBuffer<Element>(size));
  }
  /// A buffer with these numbers.
  template <class Element>
  [[nodiscard]] std::shared_ptr<DeviceBuffer<Element>> table(const std::vector<Element>& numbers) {
    const auto buffer = empty<Element>(static_cast<std::int64_t>(numbers.size()));
    upload(buffer->span(), std::span<const Element>(numbers), stream_);
    stream_.synchronize();
    return buffer;
  }

 private:
  cuda::StreamView stream_;
  std::uint64_t seed_;
};

/// Two partial results of attention become one.
Case merge_case(std::int64_t rows) {
  const std::int64_t columns = std::int64_t{kShape.heads} * kShape.head_dim;
  const auto outputs = static_cast<double>(rows * columns);
  const auto sums = static_cast<double>(rows * kShape.heads);
  return row_case("attention.merge", rows, columns, 3 * 2 * outputs + 3 * 4 * sums,
                  [rows, columns](const Machine& machine, std::int64_t set) {
                    Numbers numbers(machine, set);
                    const auto output = numbers.random<Bf16>(rows * columns);
                    const auto more = numbers.random<Bf16>(rows * columns);
                    const auto sum = numbers.random<float>(rows * kShape.heads);
                    const auto more_sum = numbers.random<float>(rows * kShape.heads);
                    return [=, stream = machine.stream] {
                      cuda::attention_merge(output->span(), sum->span(), more->span(),
                                            more_sum->span(), rows, kShape, stream);
                    };
                  });
}

std::vector<Case> norm_cases() {
  const auto all = static_cast<double>(kRows * kWidth);
  const Case forward = row_case("rms_norm.forward", kRows, kWidth, 4 * all,
                                [](const Machine& machine, std::int64_t set) {
                                  Numbers numbers(machine, set);
                                  const auto in = numbers.random<Bf16>(kRows * kWidth);
                                  const auto gain = numbers.random<Bf16>(kWidth);
                                  const auto out = numbers.random<Bf16>(kRows * kWidth);
                                  const auto inverse = numbers.empty<float>(kRows);
                                  return [=, stream = machine.stream] {
                                    cuda::rms_norm_forward(out->span(), inverse->span(), in->span(),
                                                           gain->span(), kNorm, kEpsilon, stream);
                                  };
                                });
  const Case backward = row_case(
      "rms_norm.backward", kRows, kWidth, 6 * all, [](const Machine& machine, std::int64_t set) {
        Numbers numbers(machine, set);
        const auto in = numbers.random<Bf16>(kRows * kWidth);
        const auto gain = numbers.random<Bf16>(kWidth);
        const auto dout = numbers.random<Bf16>(kRows * kWidth);
        const auto din = numbers.random<Bf16>(kRows * kWidth);
        const auto dgain = numbers.random<float>(kWidth);
        const auto inverse = numbers.empty<float>(kRows);
        const auto work = numbers.empty<float>(cuda::rms_norm_backward_workspace(kNorm));
        cuda::rms_norm_forward(din->span(), inverse->span(), in->span(), gain->span(), kNorm,
                               kEpsilon, machine.stream);
        return [=, stream = machine.stream] {
          cuda::rms_norm_backward(din->span(), dgain->span(), work->span(), dout->span(), {},
                                  in->span(), gain->span(), inverse->span(), kNorm, stream);
        };
      });
  return {forward, backward};
}

std::vector<Case> swiglu_cases() {
  const auto all = static_cast<double>(kRows * kHidden);
  const Case forward = row_case(
      "swiglu.forward", kRows, kHidden, 6 * all, [](const Machine& machine, std::int64_t set) {
        Numbers numbers(machine, set);
        const auto gate_up = numbers.random<Bf16>(2 * kRows * kHidden);
        const auto product = numbers.random<Bf16>(kRows * kHidden);
        return [=, stream = machine.stream] {
          cuda::swiglu_forward(product->span(), gate_up->span(), kGated, stream);
        };
      });
  const Case backward = row_case("swiglu.backward", kRows, kHidden, 10 * all,
                                 [](const Machine& machine, std::int64_t set) {
                                   Numbers numbers(machine, set);
                                   const auto gate_up = numbers.random<Bf16>(2 * kRows * kHidden);
                                   const auto dproduct = numbers.random<Bf16>(kRows * kHidden);
                                   const auto dgate_up = numbers.random<Bf16>(2 * kRows * kHidden);
                                   return [=, stream = machine.stream] {
                                     cuda::swiglu_backward(dgate_up->span(), dproduct->span(),
                                                           gate_up->span(), kGated, stream);
                                   };
                                 });
  return {forward, backward};
}

/// One document: queries in order, keys in consecutive rows.
std::vector<cuda::RopeRow> rope_rows() {
  std::vector<cuda::RopeRow> rows;
  for (std::int32_t i = 0; i < kRows; ++i) rows.push_back({i, i, i, i});
  return rows;
}

std::vector<Case> rope_cases() {
  constexpr std::int64_t kQuery = std::int64_t{kShape.heads} * kShape.head_dim;
  constexpr std::int64_t kKey = std::int64_t{kShape.kv_heads} * kShape.head_dim;
  constexpr std::int64_t kAll = kQuery + 2 * kKey;
  const auto rows = static_cast<double>(kRows);
  const Case forward =
      row_case("rope.forward", kRows, kAll, rows * (4 * kAll + sizeof(cuda::RopeRow)),
               [](const Machine& machine, std::int64_t set) {
                 Numbers numbers(machine, set);
                 const auto qkv = numbers.random<Bf16>(kRows * kAll);
                 const auto query = numbers.empty<Bf16>(kRows * kQuery);
                 const auto key = numbers.empty<Bf16>(kRows * kKey);
                 const auto value = numbers.empty<Bf16>(kRows * kKey);
                 const auto places = numbers.table(rope_rows());
                 const auto turns = numbers.table(cuda::rope_frequencies(kShape.head_dim, 5e5));
                 return [=, stream = machine.stream] {
                   cuda::rope_forward(query->span(), key->span(), value->span(), qkv->span(),
                                      places->span(), turns->span(), kRope, stream);
                 };
               });
  const Case backward =
      row_case("rope.backward", kRows, kAll,
               rows * (2 * kQuery + 8 * kKey + 2 * kAll + sizeof(cuda::RopeRow)),
               [](const Machine& machine, std::int64_t set) {
                 Numbers numbers(machine, set);
                 const auto dqkv = numbers.empty<Bf16>(kRows * kAll);
                 const auto dquery = numbers.random<Bf16>(kRows * kQuery);
                 const auto dkey = numbers.random<float>(kRows * kKey);
                 const auto dvalue = numbers.random<float>(kRows * kKey);
                 const auto places = numbers.table(rope_rows());
                 const auto turns = numbers.table(cuda::rope_frequencies(kShape.head_dim, 5e5));
                 return [=, stream = machine.stream] {
                   cuda::rope_backward(dqkv->span(), dquery->span(), dkey->span(), dvalue->span(),
                                       places->span(), turns->span(), kRope, stream);
                 };
               });
  return {forward, backward};
}

/// Uniform tokens. Real ones repeat more: some rows of the table then come from the cache.
std::vector<std::int32_t> tokens() {
  Random random(7);
  std::vector<std::int32_t> drawn;
  for (std::int64_t i = 0; i < kRows; ++i) {
    drawn.push_back(static_cast<std::int32_t>(random.between(0, kVocabulary - 1)));
  }
  return drawn;
}

std::vector<Case> embedding_cases() {
  const auto all = static_cast<double>(kRows * kWidth);
  const Case forward = row_case(
      "embedding.forward", kRows, kWidth, 4 * all, [](const Machine& machine, std::int64_t set) {
        Numbers numbers(machine, set);
        const auto weights = numbers.random<Bf16>(kVocabulary * kWidth);
        const auto out = numbers.empty<Bf16>(kRows * kWidth);
        const auto drawn = numbers.table(tokens());
        return [=, stream = machine.stream] {
          cuda::embedding_forward(out->span(), weights->span(), drawn->span(), kVocabulary, kWidth,
                                  stream);
        };
      });
  const cuda::TokenRows order = cuda::token_rows(tokens(), kVocabulary);
  const auto distinct = static_cast<double>(order.tokens.size());
  const Case backward = row_case(
      "embedding.backward", kRows, kWidth, 2 * all + 8 * distinct * static_cast<double>(kWidth),
      [order](const Machine& machine, std::int64_t set) {
        Numbers numbers(machine, set);
        const auto gradients = numbers.random<float>(kVocabulary * kWidth);
        const auto dout = numbers.random<Bf16>(kRows * kWidth);
        const auto which = numbers.table(order.tokens), begin = numbers.table(order.begin),
                   rows = numbers.table(order.rows);
        return [=, stream = machine.stream] {
          cuda::embedding_backward(gradients->span(), dout->span(),
                                   {which->span(), begin->span(), rows->span()}, kVocabulary,
                                   kWidth, stream);
        };
      });
  return {forward, backward};
}

/// Loss and gradient: logits are read twice and written once.
Case cross_entropy_case(std::int64_t rows) {
  return row_case(
      "cross_entropy", rows, kVocabulary, 6.0 * static_cast<double>(rows * kVocabulary),
      [rows](const Machine& machine, std::int64_t set) {
        Numbers numbers(machine, set);
        const auto logits = numbers.random<Bf16>(rows * kVocabulary);
        const auto targets = numbers.empty<std::int32_t>(rows);
        const auto losses = numbers.empty<float>(rows);
        const auto sums = numbers.empty<cuda::LogitSum>(rows);
        fill_below(targets->span(), static_cast<std::int32_t>(kVocabulary), 3, machine.stream);
        const cuda::LogitShape shape{rows, 0, kVocabulary, kVocabulary};
        return [=, stream = machine.stream] {
          cuda::logit_sums(sums->span(), logits->span(), targets->span(), shape, stream);
          cuda::cross_entropy_losses(losses->span(), sums->span(), targets->span(), stream);
          cuda::logit_gradients(logits->span(), sums->span(), targets->span(), shape, 1.0F, stream);
        };
      });
}

/// Weights, two moments read and written, gradients read, a copy in bf16 written.
Case adamw_case() {
  const auto size = static_cast<double>(kHidden * kWidth);
  return row_case("adamw", kHidden, kWidth, 30 * size,
                  [](const Machine& machine, std::int64_t set) {
                    constexpr std::int64_t kSize = kHidden * kWidth;
                    Numbers numbers(machine, set);
                    const auto weights = numbers.random<float>(kSize);
                    const auto copy = numbers.random<Bf16>(kSize);
                    const auto first = numbers.random<float>(kSize);
                    const auto second = numbers.empty<float>(kSize);
                    // The bits of numbers in [0, 1): a mean of squares is not negative.
                    fill_below({reinterpret_cast<std::int32_t*>(second->span().data), kSize},
                               0x3f80'0000, 5, machine.stream);
                    const auto gradients = numbers.random<float>(kSize);
                    return [=, stream = machine.stream] {
                      cuda::adamw_step(weights->span(), copy->span(), first->span(), second->span(),
                                       gradients->span(), {}, cuda::AdamW{}, 1, stream);
                    };
                  });
}

}  // namespace

std::vector<Case> row_cases() {
  std::vector<Case> cases{merge_case(kRows)};
  for (const auto& more : {norm_cases(), rope_cases(), swiglu_cases(), embedding_cases()}) {
    cases.insert(cases.end(), more.begin(), more.end());
  }
  cases.push_back(cross_entropy_case(4096));
  cases.push_back(adamw_case());
  return cases;
}

}  // namespace slimpack::bench
