// SPDX-License-Identifier: Apache-2.0
#include "slimpack/data/sample.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace sample_test {

using namespace slimpack;

namespace {

LengthSet set_of(std::initializer_list<std::int64_t> lengths) {
  LengthSet set;
  for (const std::int64_t length : lengths) set.documents.push_back(Tokens{length});
  return set;
}

/// Random sources and options, most of them with documents longer than the context.
struct Case {
  std::vector<LengthSet> sources;
  BatchOptions options;
  std::int64_t tokens = 0;  ///< of all documents that are drawn
  std::set<std::pair<std::int64_t, std::int64_t>> documents;

  explicit Case(std::uint64_t seed) {
    Random random(seed);
    options.context = Tokens{random.between(1, 40)};
    options.overlong = random.chance(1, 2) ? Overlong::split : Overlong::drop;
    options.seed = random.bits();
    options.shuffle = random.chance(3, 4);
    options.end_of_document = random.chance(1, 4);
    if (random.chance(1, 2)) options.batch_tokens = Tokens{random.between(1, 120)};
    if (random.chance(1, 3)) options.batch_samples = random.between(1, 12);
    sources.resize(static_cast<std::size_t>(random.between(1, 3)));
    for (std::size_t source = 0; source < sources.size(); ++source) {
      const std::int64_t count = random.between(1, 25);
      for (std::int64_t document = 0; document < count; ++document) {
        // The first fits, so that dropping leaves something; two tokens have a target.
        const std::int64_t length = document == 0 ? std::min<std::int64_t>(2, options.context.value)
                                                  : random.between(1, 90);
        sources[source].documents.push_back(Tokens{length});
        if (options.overlong == Overlong::drop && Tokens{length} > options.context) continue;
        tokens += length;
        documents.insert({static_cast<std::int64_t>(source), document});
      }
    }
  }
};

}  // namespace

TEST_CASE("batches: in file order, a hand-solved case") {
  BatchOptions options;
  options.context = Tokens{10};
  options.overlong = Overlong::split;
  options.batch_tokens = Tokens{16};
  options.shuffle = false;
  const LengthSet lengths = set_of({4, 23, 6, 1});
  // Samples: 4 | 10 10 3 | 6 | 1, and again.
  Batch batch = draw_batch(lengths, options, 0);
  CHECK(batch.step == 0);
  CHECK(batch.samples == std::vector<Tokens>{Tokens{4}, Tokens{10}});
  CHECK(batch.origin == std::vector<Origin>{{0, 0, Tokens{0}}, {0, 1, Tokens{0}}});
  CHECK(batch.target_tokens == 3 + 10);
  batch = draw_batch(lengths, options, 1);
  CHECK(batch.samples == std::vector<Tokens>{Tokens{10}, Tokens{3}});
  CHECK(batch.origin == std::vector<Origin>{{0, 1, Tokens{10}}, {0, 1, Tokens{20}}});
  CHECK(batch.target_tokens == 10 + 2);
  batch = draw_batch(lengths, options, 2);
  CHECK(batch.samples == std::vector<Tokens>{Tokens{6}, Tokens{1}, Tokens{4}});
  CHECK(batch.origin ==
        std::vector<Origin>{{0, 2, Tokens{0}}, {0, 3, Tokens{0}}, {0, 0, Tokens{0}}});
  CHECK(batch.target_tokens == 5 + 0 + 3);
  options.batch_samples = 2;
  CHECK(draw_batch(lengths, options, 2).samples.size() == 2);
  options.end_of_document = true;
  CHECK(draw_batch(lengths, options, 2).target_tokens == 6 + 1);
}

TEST_CASE("batches: a sample longer than the batch is a step of its own") {
  BatchOptions options;
  options.batch_tokens = Tokens{5};
  options.shuffle = false;
  const LengthSet lengths = set_of({3, 9, 2});
  CHECK(draw_batch(lengths, options, 0).samples == std::vector<Tokens>{Tokens{3}});
  CHECK(draw_batch(lengths, options, 1).samples == std::vector<Tokens>{Tokens{9}});
  CHECK(draw_batch(lengths, options, 2).samples == std::vector<Tokens>{Tokens{2}, Tokens{3}});
}

TEST_CASE("batches: without a limit a step is the whole file") {
  BatchOptions options;
  const LengthSet lengths = set_of({3, 9, 2, 7, 5, 5, 1, 8});
  for (std::int64_t step = 0; step < 5; ++step) {
    const Batch batch = draw_batch(lengths, options, step);
    CHECK(batch.step == step);
    CHECK(batch.samples.size() == 8);
    CHECK(batch.target_tokens == 40 - 8);
  }
  CHECK(draw_batch(lengths, options, 0).origin != draw_batch(lengths, options, 1).origin);
}

TEST_CASE(
    "batches: no token is lost or doubled, pieces stay in order, each pass is a permutation") {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    const Case test(seed);
    BatchStream stream(test.sources, test.options);
    std::vector<std::pair<Origin, Tokens>> pass;
    std::vector<std::vector<std::pair<std::int64_t, std::int64_t>>> orders;
    std::int64_t tokens = 0;
    for (int step = 0; orders.size() < 4 && step < 4000; ++step) {
      Batch batch;
      try {
        batch = stream.next();
      } catch (const InvalidInput&) {
        pass.clear();  // a step of one-token documents; what follows is not counted
        break;
      }
      REQUIRE(batch.step == step);
      REQUIRE(batch.samples.size() == batch.origin.size());
      REQUIRE(!batch.samples.empty());
      for (std::size_t i = 0; i < batch.samples.size(); ++i) {
        pass.emplace_back(batch.origin[i], batch.samples[i]);
        tokens += batch.samples[i].value;
        if (tokens < test.tokens) continue;
        REQUIRE(tokens == test.tokens);
        // One pass is complete: walk it document by document.
        std::vector<std::pair<std::int64_t, std::int64_t>> order;
        Tokens expected_first;
        for (const auto& [origin, length] : pass) {
          const Tokens whole = test.sources[static_cast<std::size_t>(origin.source)]
                                   .documents[static_cast<std::size_t>(origin.document)];
          if (expected_first == Tokens{}) order.emplace_back(origin.source, origin.document);
          CHECK(order.back() == std::pair(origin.source, origin.document));
          CHECK(origin.first == expected_first);
          CHECK(length == std::min(test.options.context, whole - origin.first));
          expected_first = origin.first + length == whole ? Tokens{} : origin.first + length;
        }
        CHECK(expected_first == Tokens{});
        CHECK(order.size() == test.documents.size());
        CHECK(std::set(order.begin(), order.end()) == test.documents);
        if (!test.options.shuffle) CHECK(std::is_sorted(order.begin(), order.end()));
        orders.push_back(std::move(order));
        pass.clear();
        tokens = 0;
      }
    }
  }
}

TEST_CASE("batches: a step ends where the next sample would exceed a limit, and only there") {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    Case test(seed);
    test.options.end_of_document = true;  // every step has a target
    BatchOptions single = test.options;
    single.batch_tokens.reset();
    single.batch_samples = 1;
    BatchStream one_by_one(test.sources, single);
    BatchStream stream(test.sources, test.options);
    const bool whole = !test.options.batch_tokens && !test.options.batch_samples;
    Batch ahead = one_by_one.next();
    for (int step = 0; step < 30; ++step) {
      const Batch batch = stream.next();
      std::int64_t tokens = 0;
      for (std::size_t i = 0; i < batch.samples.size(); ++i) {
        REQUIRE(batch.samples[i] == ahead.samples[0]);
        REQUIRE(batch.origin[i] == ahead.origin[0]);
        tokens += batch.samples[i].value;
        ahead = one_by_one.next();
      }
      if (whole) {
        CHECK(tokens == test.tokens);
        continue;
      }
      const auto count = static_cast<std::int64_t>(batch.samples.size());
      const bool tokens_full = test.options.batch_tokens &&
                               tokens + ahead.samples[0].value > test.options.batch_tokens->value;
      const bool samples_full = test.options.batch_samples && count == *test.options.batch_samples;
      CHECK((tokens_full || samples_full));
      if (count > 1 && test.options.batch_tokens) CHECK(tokens <= test.options.batch_tokens->value);
      if (test.options.batch_samples) CHECK(count <= *test.options.batch_samples);
    }
  }
}

TEST_CASE("batches: targets by brute force, token by token") {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    const Case test(seed);
    BatchStream stream(test.sources, test.options);
    for (int step = 0; step < 20; ++step) {
      Batch batch;
      std::int64_t expected = 0;
      try {
        batch = stream.next();
      } catch (const InvalidInput&) {
        break;
      }
      for (std::size_t i = 0; i < batch.samples.size(); ++i) {
        const Origin& origin = batch.origin[i];
        const Tokens whole = test.sources[static_cast<std::size_t>(origin.source)]
                                 .documents[static_cast<std::size_t>(origin.document)];
        for (Tokens token = origin.first; token < origin.first + batch.samples[i];
             token += Tokens{1}) {
          const bool is_last = token + Tokens{1} == whole;
          if (!is_last || test.options.end_of_document) ++expected;
        }
      }
      CHECK(batch.target_tokens == expected);
    }
  }
}

TEST_CASE("batches: step K is the K-th of the stream, and a skip may come at any time") {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    CAPTURE(seed);
    Case test(seed);
    test.options.end_of_document = true;
    BatchStream stream(test.sources, test.options);
    std::vector<Batch> steps;
    for (int step = 0; step < 12; ++step) steps.push_back(stream.next());
    for (const std::int64_t step : {0, 1, 2, 7, 11}) {
      CHECK(draw_batch(test.sources, test.options, step) == steps[static_cast<std::size_t>(step)]);
    }
    BatchStream hopping(test.sources, test.options);
    CHECK(hopping.next() == steps[0]);
    hopping.skip(0);
    CHECK(hopping.next() == steps[1]);
    hopping.skip(3);
    CHECK(hopping.next() == steps[5]);
    hopping.skip(1);
    hopping.skip(2);
    CHECK(hopping.next() == steps[9]);
  }
}

TEST_CASE("batches: the seed tells the order, and only the seed") {
  LengthSet lengths;
  for (std::int64_t length = 1; length <= 60; ++length) lengths.documents.push_back(Tokens{length});
  BatchOptions options;
  const Batch zero = draw_batch(lengths, options, 0);
  CHECK(zero == draw_batch(lengths, options, 0));
  options.seed = 1;
  CHECK(zero.origin != draw_batch(lengths, options, 0).origin);
  // Pinned: the order is part of every plan's meaning.
  options.seed = 0;
  options.batch_samples = 6;
  std::vector<std::int64_t> first;
  for (const Tokens length : draw_batch(lengths, options, 0).samples) first.push_back(length.value);
  CHECK(first == std::vector<std::int64_t>{37, 27, 56, 51, 21, 48});
}

TEST_CASE("batches: overlong documents are counted or refused by name") {
  LengthSet lengths = set_of({5, 12, 3, 30});
  BatchOptions options;
  options.context = Tokens{10};
  CHECK_THROWS_WITH_AS(static_cast<void>(draw_batch(lengths, options, 0)),
                       "source 0: document 1 (from 0) has 12 tokens, more than the context of 10; "
                       "overlong documents "
                       "may be split or dropped",
                       InvalidInput);
  lengths.name = "x.lengths";
  CHECK_THROWS_WITH_AS(static_cast<void>(draw_batch(lengths, options, 0)),
                       "x.lengths: document 1 (from 0) has 12 tokens, more than the context of 10; "
                       "overlong documents "
                       "may be split or dropped",
                       InvalidInput);
  for (const Overlong overlong : {Overlong::drop, Overlong::split}) {
    options.overlong = overlong;
    BatchStream stream(std::span(&lengths, 1), options);
    CHECK(stream.overlong() == OverlongCount{2, Tokens{42}});
    CHECK(stream.next().samples.size() == (overlong == Overlong::drop ? 2 : 7));
  }
}

TEST_CASE("batches: what cannot be drawn is refused") {
  const LengthSet lengths = set_of({5, 1});
  BatchOptions options;
  options.context = Tokens{0};
  CHECK_THROWS_WITH_AS(static_cast<void>(draw_batch(lengths, options, 0)),
                       "context must be in 1 .. 1073741824, got 0", InvalidInput);
  options.context = Tokens{(std::int64_t{1} << 30U) + 1};
  CHECK_THROWS_WITH_AS(static_cast<void>(draw_batch(lengths, options, 0)),
                       "context must be in 1 .. 1073741824, got 1073741825", InvalidInput);
  options = {};
  options.batch_tokens = Tokens{0};
  CHECK_THROWS_WITH_AS(static_cast<void>(draw_batch(lengths, options, 0)),
                       "batch tokens must be >= 1, got 0", InvalidInput);
  options = {};
  options.batch_samples = 0;
  CHECK_THROWS_WITH_AS(static_cast<void>(draw_batch(lengths, options, 0)),
                       "batch samples must be in 1 .. 67108864, got 0", InvalidInput);
  options = {};
  CHECK_THROWS_WITH_AS(static_cast<void>(draw_batch(lengths, options, -1)),
                       "step must be >= 0, got -1", InvalidInput);
  CHECK_THROWS_WITH_AS(static_cast<void>(draw_batch(LengthSet{}, options, 0)),
                       "there is no document to draw from", InvalidInput);
  CHECK_THROWS_WITH_AS(static_cast<void>(draw_batch(set_of({4, 0}), options, 0)),
                       "source 0: document 1 must have tokens, got 0", InvalidInput);
  CHECK_THROWS_WITH_AS(static_cast<void>(draw_batch(set_of({1, 1}), options, 3)),
                       "step 3 has no target: every document in it is a single token",
                       InvalidInput);
  options.context = Tokens{4};
  options.overlong = Overlong::drop;
  CHECK_THROWS_WITH_AS(static_cast<void>(draw_batch(set_of({9, 5}), options, 0)),
                       "every document is longer than the context of 4 tokens, and dropped",
                       InvalidInput);
  BatchStream stream(std::span(&lengths, 1), BatchOptions{});
  CHECK_THROWS_WITH_AS(stream.skip(-2), "steps to skip must be >= 0, got -2", InvalidInput);
}

}  // namespace sample_test
