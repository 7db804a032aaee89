// SPDX-License-Identifier: Apache-2.0
#include "slimpack/runtime/sample_tokens.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "slimpack/core/random.hpp"
#include "slimpack/data/sample.hpp"

namespace sample_tokens_test {

using namespace slimpack;

namespace {

using Ids = std::vector<std::int32_t>;
using Targets = std::vector<std::optional<std::int32_t>>;

/// Documents of bytes.
runtime::TokenSource source_of(const std::vector<std::string>& documents,
                               const std::string& name = "x") {
  runtime::TokenStore store;
  store.name = name;
  for (const std::string& document : documents) {
    store.runs.push_back({static_cast<std::uint32_t>(store.blocks.size()),
                          static_cast<std::int32_t>(document.size()), 0});
    store.blocks.push_back({TokenType::u8, document});
    store.end_document();
  }
  return runtime::TokenSource(std::move(store));
}

}  // namespace

TEST_CASE("read_sample: the target of a token is the next of its document, across pieces too") {
  std::vector<runtime::TokenSource> sources;
  sources.push_back(source_of({"abcde", "q"}));
  const auto read = [&](std::int64_t document, std::int64_t first, std::int64_t length,
                        std::optional<std::int32_t> end) {
    return runtime::read_sample(sources, {0, document, Tokens{first}}, Tokens{length}, {257, end});
  };
  CHECK(read(0, 0, 5, {}).tokens == Ids{'a', 'b', 'c', 'd', 'e'});
  CHECK(read(0, 0, 5, {}).targets == Targets{'b', 'c', 'd', 'e', std::nullopt});
  CHECK(read(0, 0, 5, 256).targets == Targets{'b', 'c', 'd', 'e', 256});
  CHECK(read(0, 0, 2, {}).tokens == Ids{'a', 'b'});
  CHECK(read(0, 0, 2, {}).targets == Targets{'b', 'c'});
  CHECK(read(0, 2, 3, {}).targets == Targets{'d', 'e', std::nullopt});
  CHECK(read(0, 2, 2, 256).targets == Targets{'d', 'e'});
  // A document that ends in its end-of-document token has none twice.
  CHECK(read(0, 0, 5, 'e').targets == Targets{'b', 'c', 'd', 'e', std::nullopt});
  CHECK(read(0, 0, 4, 'e').targets == Targets{'b', 'c', 'd', 'e'});
  CHECK(read(1, 0, 1, {}).targets == Targets{std::nullopt});
  CHECK(read(1, 0, 1, 256).targets == Targets{256});
}

TEST_CASE("read_step: a pass over split documents holds every token and every target once") {
  for (std::uint64_t seed = 0; seed < 32; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    std::vector<runtime::TokenSource> sources;
    std::vector<std::vector<std::string>> texts;
    for (int source = 0; source < 2; ++source) {
      std::vector<std::string> documents;
      for (std::int64_t document = random.between(1, 5); document > 0; --document) {
        std::string text;
        for (std::int64_t length = random.between(1, 40); length > 0; --length) {
          text += static_cast<char>(random.between('a', 'e'));
        }
        documents.push_back(text);
      }
      texts.push_back(documents);
      sources.push_back(source_of(documents));
    }
    const bool ends = random.chance(1, 2);
    BatchOptions options;
    options.context = Tokens{random.between(1, 12)};
    options.overlong = Overlong::split;
    options.seed = seed;
    options.end_of_document = ends;
    const std::vector<LengthSet> lengths{sources[0].lengths(), sources[1].lengths()};
    Batch batch;
    try {
      batch = draw_batch(lengths, options, 0);
    } catch (const InvalidInput&) {
      continue;  // single tokens only
    }
    const std::optional<std::int32_t> end = ends ? std::optional('a') : std::nullopt;
    const std::int64_t counted = batch.target_tokens;
    const runtime::StepTokens step = runtime::read_step(sources, batch, {256, end});
    std::int64_t already_ended = 0;
    for (const auto& documents : texts) {
      for (const std::string& text : documents) already_ended += text.back() == 'a' ? 1 : 0;
    }
    CHECK(step.target_tokens == batch.target_tokens);
    CHECK(step.target_tokens == counted - (ends ? already_ended : 0));
    REQUIRE(step.tokens.size() == batch.samples.size());
    for (std::size_t sample = 0; sample < step.tokens.size(); ++sample) {
      const Origin& origin = batch.origin[sample];
      const std::string& text =
          texts[static_cast<std::size_t>(origin.source)][static_cast<std::size_t>(origin.document)];
      REQUIRE(step.tokens[sample].size() == static_cast<std::size_t>(batch.samples[sample].value));
      REQUIRE(step.targets[sample].size() == step.tokens[sample].size());
      for (std::size_t i = 0; i < step.tokens[sample].size(); ++i) {
        const std::size_t place = static_cast<std::size_t>(origin.first.value) + i;
        CHECK(step.tokens[sample][i] == text[place]);
        const auto next = place + 1 < text.size() ? std::optional<std::int32_t>(text[place + 1])
                          : text.back() == 'a'    ? std::nullopt
                                                  : end;
        CHECK(step.targets[sample][i] == next);
      }
    }
  }
}

TEST_CASE("read_step: what is wrong is refused") {
  std::vector<runtime::TokenSource> sources;
  sources.push_back(source_of({"abc", "q"}));
  const auto refused = [&](const Origin& origin, std::int64_t length,
                           const runtime::TokenRules& rules, const char* message) {
    const std::vector<Origin> origins{origin};
    const std::vector<Tokens> samples{Tokens{length}};
    CHECK_THROWS_WITH_AS((void)runtime::read_step(sources, origins, samples, rules), message,
                         InvalidInput);
  };
  refused({1, 0, Tokens{}}, 1, {256, {}}, "read_sample: there is no source, got 1");
  refused({0, 2, Tokens{}}, 1, {256, {}}, "x: there is no document, got 2");
  refused({0, 0, Tokens{}}, 0, {256, {}}, "x: a sample must have tokens, got 0");
  refused({0, 0, Tokens{2}}, 2, {256, {}},
          "x: document 0 (from 0): tokens 2 .. 5 are not within its 3");
  refused({0, 1, Tokens{}}, 1, {256, {}},
          "the step has no target: every document in it is a single token");
  refused({0, 0, Tokens{}}, 3, {256, 256},
          "the end-of-document token must be in 0 .. 255, got 256");
  refused({0, 0, Tokens{}}, 3, {99, {}},
          "x: document 0 (from 0): the token at position 2 (from 0) must be in 0 .. 98, the "
          "vocabulary, found 99");
  // The target beyond the sample counts too.
  refused({0, 0, Tokens{}}, 2, {99, {}},
          "x: document 0 (from 0): the token at position 2 (from 0) must be in 0 .. 98, the "
          "vocabulary, found 99");
}

}  // namespace sample_tokens_test
