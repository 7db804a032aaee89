// SPDX-License-Identifier: Apache-2.0
// What a batch learns from: the tokens of its samples and the token that each is to predict.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/plan/batch.hpp"
#include "slimpack/plan/plan.hpp"
#include "slimpack/runtime/token_source.hpp"

namespace slimpack::runtime {

/// What token ids mean. The vocabulary is the model's.
struct TokenRules {
  std::int64_t vocabulary = 0;                  ///< token ids are in [0, vocabulary)
  std::optional<std::int32_t> end_of_document;  ///< target of a document's last token
};

/// Tokens of one sample and their targets, equally many.
struct SampleTokens {
  std::vector<std::int32_t> tokens;  ///< ids, by position in the sample
  /// What each token is to predict; only the last token of a document can have none.
  std::vector<std::optional<std::int32_t>> targets;
};

/// Tokens and targets by sample, and how many targets there are: the divisor of the loss.
struct StepTokens {
  std::vector<std::vector<std::int32_t>> tokens;                  ///< as SampleTokens::tokens
  std::vector<std::vector<std::optional<std::int32_t>>> targets;  ///< as SampleTokens::targets
  std::int64_t target_tokens = 0;                                 ///< of all samples, > 0
};

/// The sample of `length` tokens that begins at `origin`. A token's target is the next token of its
/// document, beyond the sample too; the document's last token has the end-of-document token, if
/// there is one and the document does not end in it, else none. Throws InvalidInput naming source,
/// document and position. O(length). Thread-safe.
[[nodiscard]] inline SampleTokens read_sample(std::span<const TokenSource> sources,
                                              const Origin& origin, Tokens length,
                                              const TokenRules& rules) {
  require(origin.source >= 0 && origin.source < static_cast<std::int64_t>(sources.size()),
          "read_sample: there is no source", origin.source);
  const TokenSource& source = sources[static_cast<std::size_t>(origin.source)];
  require(origin.document >= 0 && origin.document < static_cast<std::int64_t>(source.documents()),
          source.name() + ": there is no document", origin.document);
  require(length > Tokens{}, source.name() + ": a sample must have tokens", length.value);
  const auto document = static_cast<std::size_t>(origin.document);
  const Tokens end = origin.first + length;
  const bool last = end == source.length(document);

  SampleTokens sample;
  // One more than the sample: the first token of the document's next piece is a target.
  sample.tokens.resize(static_cast<std::size_t>(length.value) + (last ? 0 : 1));
  source.read(document, origin.first, sample.tokens, rules.vocabulary);
  sample.targets.reserve(static_cast<std::size_t>(length.value));
  for (std::size_t i = 1; i < sample.tokens.size(); ++i) {
    sample.targets.emplace_back(sample.tokens[i]);
  }
  if (last) {
    const bool ended = rules.end_of_document == sample.tokens.back();
    sample.targets.push_back(ended ? std::nullopt : rules.end_of_document);
  } else {
    sample.tokens.pop_back();
  }
  return sample;
}

/// All samples of a step. Throws InvalidInput, also where an end-of-document token is not in the
/// vocabulary and where no token has a target. O(tokens).
[[nodiscard]] inline StepTokens read_step(std::span<const TokenSource> sources,
                                          std::span<const Origin> origin,
                                          std::span<const Tokens> samples,
                                          const TokenRules& rules) {
  require(origin.size() == samples.size(), "read_step: one origin a sample",
          static_cast<std::int64_t>(origin.size()));
  if (rules.end_of_document) {
    require(*rules.end_of_document >= 0 && *rules.end_of_document < rules.vocabulary,
            "the end-of-document token must be in 0 .. " + std::to_string(rules.vocabulary - 1),
            *rules.end_of_document);
  }
  StepTokens step;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    SampleTokens sample = read_sample(sources, origin[i], samples[i], rules);
    for (const auto& target : sample.targets) step.target_tokens += target.has_value() ? 1 : 0;
    step.tokens.push_back(std::move(sample.tokens));
    step.targets.push_back(std::move(sample.targets));
  }
  require(step.target_tokens > 0, "the step has no target: every document in it is a single token");
  return step;
}

/// The same for a batch; its count of targets is set to the one found, which can be lower where a
/// document ends in its end-of-document token already.
[[nodiscard]] inline StepTokens read_step(std::span<const TokenSource> sources, Batch& batch,
                                          const TokenRules& rules) {
  StepTokens step = read_step(sources, batch.origin, batch.samples, rules);
  batch.target_tokens = step.target_tokens;
  return step;
}

}  // namespace slimpack::runtime
