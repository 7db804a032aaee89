// SPDX-License-Identifier: Apache-2.0
#include "slimpack/runtime/token_source.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <fstream>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "slimpack/core/random.hpp"
#include "slimpack/runtime/detail/megatron_tokens.hpp"
#include "support/directory.hpp"
#include "support/temporary.hpp"

namespace token_source_test {

using namespace slimpack;

namespace {

using Ids = std::vector<std::int32_t>;

std::string little(std::uint64_t value, std::size_t width) {
  std::string bytes;
  for (std::size_t i = 0; i < width; ++i) {
    bytes += static_cast<char>(static_cast<unsigned char>(value >> (8 * i)));
  }
  return bytes;
}

void write(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

/// A pair of files as the format describes them: sequences in any order of the data.
struct Dataset {
  int code = 4;
  std::vector<std::vector<std::int64_t>> sequences;
  std::vector<std::size_t> first{0};  ///< sequence of each document, and the end
  std::string data;
  std::vector<std::uint64_t> pointers;

  void lay_out(bool backwards) {
    const auto width = static_cast<std::size_t>(token_bytes(static_cast<TokenType>(code)));
    pointers.resize(sequences.size());
    for (std::size_t step = 0; step < sequences.size(); ++step) {
      const std::size_t i = backwards ? sequences.size() - 1 - step : step;
      pointers[i] = data.size();
      for (const std::int64_t token : sequences[i]) {
        data += little(static_cast<std::uint64_t>(token), width);
      }
    }
  }
  void write_to(const std::string& prefix) const {
    std::string index("MMIDIDX\0\0", 9);
    index += little(1, 8) + little(static_cast<std::uint64_t>(code), 1);
    index += little(sequences.size(), 8) + little(first.size(), 8);
    for (const auto& sequence : sequences) index += little(sequence.size(), 4);
    for (const std::uint64_t pointer : pointers) index += little(pointer, 8);
    for (const std::size_t document : first) index += little(document, 8);
    write(prefix + ".idx", index);
    write(prefix + ".bin", data);
  }
  [[nodiscard]] Ids document(std::size_t i) const {
    Ids ids;
    for (std::size_t sequence = first[i]; sequence < first[i + 1]; ++sequence) {
      for (const std::int64_t id : sequences[sequence])
        ids.push_back(static_cast<std::int32_t>(id));
    }
    return ids;
  }
};

Ids all_of(const runtime::TokenSource& source, std::size_t document, std::int64_t vocabulary) {
  Ids ids(static_cast<std::size_t>(source.length(document).value));
  source.read(document, Tokens{0}, ids, vocabulary);
  return ids;
}

}  // namespace

TEST_CASE("megatron tokens: every integer type, several sequences a document, any order of data") {
  constexpr std::array<std::pair<int, std::int64_t>, 6> kLargest{
      {{1, 255}, {2, 127}, {3, 32767}, {4, 2147483647}, {5, 2147483647}, {8, 65535}}};
  const test::TemporaryFolder folder;
  for (const auto& [type, most] : kLargest) {
    const int code = type;
    const std::int64_t largest = most;
    for (std::uint64_t seed = 0; seed < 8; ++seed) {
      CAPTURE(code);
      CAPTURE(seed);
      Random random(seed);
      Dataset set;
      set.code = code;
      for (std::int64_t document = random.between(1, 6); document > 0; --document) {
        for (std::int64_t sequence = random.between(1, 4); sequence > 0; --sequence) {
          std::vector<std::int64_t> tokens{largest, 0};
          for (std::int64_t more = random.between(0, 9); more > 0; --more) {
            tokens.push_back(random.between(0, largest));
          }
          set.sequences.push_back(std::move(tokens));
        }
        set.first.push_back(set.sequences.size());
      }
      set.lay_out(seed % 2 == 1);
      const std::string prefix = folder.file("set" + std::to_string(code));
      set.write_to(prefix);
      const std::array<std::string, 3> names{prefix, prefix + ".idx", prefix + ".bin"};
      const runtime::TokenSource source = runtime::open_megatron_tokens(names[seed % 3]);
      CHECK(source.lengths().documents == read_idx_lengths(prefix + ".idx").documents);
      REQUIRE(source.documents() == set.first.size() - 1);
      for (std::size_t document = 0; document < source.documents(); ++document) {
        const Ids expected = set.document(document);
        CHECK(all_of(source, document, runtime::kLargestVocabulary) == expected);
        const auto size = static_cast<std::int64_t>(expected.size());
        for (int draw = 0; draw < 10; ++draw) {
          const std::int64_t begin = random.between(0, size), end = random.between(begin, size);
          Ids part(static_cast<std::size_t>(end - begin), -1);
          source.read(document, Tokens{begin}, part, runtime::kLargestVocabulary);
          CHECK(part == Ids(expected.begin() + begin, expected.begin() + end));
        }
      }
    }
  }
}

TEST_CASE("megatron tokens: as Megatron's own writer writes each type") {
  // Written by scripts/golden_megatron.py, which says what they hold.
  const std::vector<std::vector<std::int32_t>> lengths{{3}, {1, 4}, {2, 1, 5}};
  const std::vector<std::pair<std::string, std::int32_t>> types{
      {"u8", 255},         {"i8", 127},    {"i16", 32767},
      {"i32", 2147483647}, {"u16", 65535}, {"i64", 2147483647}};
  for (const auto& type : types) {
    CAPTURE(type.first);
    const runtime::TokenSource source =
        runtime::open_megatron_tokens(test::directory() + "/golden/megatron/" + type.first);
    REQUIRE(source.documents() == lengths.size());
    std::int32_t number = 0;
    for (std::size_t document = 0; document < lengths.size(); ++document) {
      Ids expected;
      for (const std::int32_t length : lengths[document]) {
        for (std::int32_t i = 0; i + 1 < length; ++i) expected.push_back(number + i);
        expected.push_back(type.second);
        number += length;
      }
      CHECK(all_of(source, document, runtime::kLargestVocabulary) == expected);
    }
  }
}

TEST_CASE("megatron tokens: an id beyond the vocabulary is named with document and position") {
  const test::TemporaryFolder folder;
  Dataset set;
  set.code = 5;
  set.sequences = {{1, 2}, {3}, {4, 5, 9000000000, -6}};
  set.first = {0, 1, 3};
  set.lay_out(false);
  set.write_to(folder.file("a"));
  const runtime::TokenSource source = runtime::open_megatron_tokens(folder.file("a"));
  const std::string name = folder.file("a.bin");
  CHECK(all_of(source, 0, 3) == Ids{1, 2});
  CHECK_THROWS_WITH_AS(all_of(source, 0, 2),
                       (name + ": document 0 (from 0): the token at position 1 (from 0) must be in "
                               "0 .. 1, the vocabulary, found 2")
                           .c_str(),
                       runtime::TokenOutsideVocabulary);
  Ids rest(3);
  CHECK_THROWS_WITH_AS(source.read(1, Tokens{1}, rest, runtime::kLargestVocabulary),
                       (name + ": document 1 (from 0): the token at position 3 (from 0) must be in "
                               "0 .. 2147483647, the vocabulary, found 9000000000")
                           .c_str(),
                       InvalidInput);
  CHECK_THROWS_WITH_AS((void)source.token(1, Tokens{4}, 10),
                       (name + ": document 1 (from 0): the token at position 4 (from 0) must be in "
                               "0 .. 9, the vocabulary, found -6")
                           .c_str(),
                       InvalidInput);
  CHECK(source.token(1, Tokens{2}, 6) == 5);
  CHECK_THROWS_AS((void)source.largest_token(), runtime::TokenOutsideVocabulary);
}

TEST_CASE("megatron tokens: the largest of all documents is found") {
  const test::TemporaryFolder folder;
  const auto written = [&](const std::string& name, std::vector<std::vector<std::int64_t>> all) {
    Dataset set;
    set.code = 8;
    set.sequences = std::move(all);
    set.first = {0, 1, set.sequences.size()};
    set.lay_out(false);
    set.write_to(folder.file(name));
    return runtime::open_megatron_tokens(folder.file(name));
  };
  std::vector<std::int64_t> many(200'000, 7);
  many[131'071] = 800;
  CHECK(written("a", {{1, 2}, many}).largest_token() == 800);
  const runtime::TokenSource source = written("b", {{1, 2}, {3}, {4, 65535, 5}});
  CHECK(source.largest_token() == 65535);
  CHECK(source.text_documents() == 0);
  const LengthSet lengths{{Tokens{3}}, "drawn"};
  CHECK(runtime::TokenSource(lengths, 257, 1).largest_token() == 256);
}

TEST_CASE("megatron tokens: what does not fit together is refused") {
  const test::TemporaryFolder folder;
  Dataset set;
  set.sequences = {{1, 2}, {3}};
  set.first = {0, 1, 2};
  set.lay_out(false);
  const std::string prefix = folder.file("a"), name = prefix + ".bin";
  const auto refused = [&](const Dataset& wrong, const std::string& message) {
    wrong.write_to(prefix);
    CHECK_THROWS_WITH_AS((void)runtime::open_megatron_tokens(prefix), message.c_str(),
                         InvalidInput);
  };
  Dataset cut = set;
  cut.data.pop_back();
  refused(cut, name +
                   ": document 1 (from 0): its 1 tokens from byte 8 on must lie in the file of "
                   "11 bytes");
  Dataset before = set;
  before.pointers[0] = ~std::uint64_t{0};
  refused(before, name +
                      ": document 0 (from 0): its 2 tokens from byte -1 on must lie in the file "
                      "of 12 bytes");
  Dataset beyond = set;
  beyond.pointers[1] = std::uint64_t{1} << 62U;
  refused(beyond, name +
                      ": document 1 (from 0): its 1 tokens from byte 4611686018427387904 on "
                      "must lie in the file of 12 bytes");
  for (const int code : {6, 7}) {
    Dataset floats = set;
    floats.code = code;
    refused(floats, prefix +
                        ".idx: byte 17: tokens must be integers (dtype code 1 .. 5 or 8), "
                        "found " +
                        std::to_string(code));
  }
  set.write_to(prefix);
  std::filesystem::remove(name);
  CHECK_THROWS_WITH_AS((void)runtime::open_megatron_tokens(prefix + ".idx"),
                       ("cannot open '" + name + "': No such file or directory").c_str(),
                       InvalidInput);
}

TEST_CASE("megatron tokens: data larger than memory are not loaded") {
  // A file of 64 GiB without blocks: only the page that is read exists.
  const test::TemporaryFolder folder;
  constexpr std::int64_t kSize = std::int64_t{1} << 36U;
  Dataset set;
  set.sequences = {{7, 8}, {5, 6}};
  set.first = {0, 2};
  set.pointers = {0, static_cast<std::uint64_t>(kSize) - 8};
  set.data = little(7, 4) + little(8, 4);
  set.write_to(folder.file("big"));
  std::error_code error;
  std::filesystem::resize_file(folder.file("big.bin"), kSize - 8, error);
  if (error) return;  // a file system without files of that size
  std::ofstream(folder.file("big.bin"), std::ios::binary | std::ios::app)
      << little(5, 4) << little(6, 4);
  const runtime::TokenSource source = runtime::open_megatron_tokens(folder.file("big"));
  CHECK(all_of(source, 0, 10) == Ids{7, 8, 5, 6});
}

TEST_CASE("TokenSource: ranges and vocabularies out of bounds are refused") {
  runtime::TokenStore store;
  store.name = "x";
  store.blocks.push_back({TokenType::u8, std::string("abc")});
  store.runs.push_back({0, 3, 0});
  store.end_document();
  const runtime::TokenSource source(std::move(store));
  Ids two(2);
  CHECK_THROWS_WITH_AS(source.read(0, Tokens{2}, two, 256),
                       "x: document 0 (from 0): tokens 2 .. 4 are not within its 3", InvalidInput);
  CHECK_THROWS_WITH_AS(source.read(0, Tokens{-1}, two, 256),
                       "x: document 0 (from 0): tokens -1 .. 1 are not within its 3", InvalidInput);
  CHECK_THROWS_WITH_AS(source.read(1, Tokens{0}, two, 256), "x: there is no document, got 1",
                       InvalidInput);
  CHECK_THROWS_WITH_AS(source.read(0, Tokens{0}, two, 0),
                       "a vocabulary must have 1 .. 2147483648 tokens, got 0", InvalidInput);
  source.read(0, Tokens{3}, std::span<std::int32_t>(), 256);
  CHECK_THROWS_WITH_AS(runtime::TokenSource(runtime::TokenStore{"y", {}, {}, {0}}),
                       "y: holds no document", InvalidInput);
  CHECK_THROWS_WITH_AS(runtime::TokenSource(runtime::TokenStore{"y", {}, {}, {0, 0}}),
                       "y: document 0 (from 0) must have a token", InvalidInput);
}

TEST_CASE("TokenSource: drawn tokens are told by seed, document and position, and uniform") {
  const LengthSet lengths{{Tokens{5000}, Tokens{3}, Tokens{5000}}, "drawn"};
  const runtime::TokenSource a(lengths, 257, 1), again(lengths, 257, 1), other(lengths, 257, 2);
  CHECK(all_of(a, 0, 257) == all_of(again, 0, 257));
  CHECK(all_of(a, 0, 257) != all_of(other, 0, 257));
  CHECK(all_of(a, 0, 257) != all_of(a, 2, 257));
  const Ids whole = all_of(a, 2, 257);
  Ids part(100);
  a.read(2, Tokens{4321}, part, 257);
  CHECK(part == Ids(whole.begin() + 4321, whole.begin() + 4421));
  CHECK(std::ranges::min(whole) >= 0);
  CHECK(std::ranges::max(whole) <= 256);
  std::vector<int> seen(257, 0);
  for (const std::int32_t id : whole) ++seen[static_cast<std::size_t>(id)];
  for (const int count : seen) CHECK((count >= 1 && count <= 60));  // mean 19.5
  CHECK_THROWS_WITH_AS(runtime::TokenSource(lengths, 0, 1),
                       "a vocabulary must have 1 .. 2147483648 tokens, got 0", InvalidInput);
  CHECK_THROWS_AS(all_of(a, 0, 100), InvalidInput);
  const runtime::TokenSource largest(lengths, runtime::kLargestVocabulary, 3);
  const Ids high = all_of(largest, 0, runtime::kLargestVocabulary);
  CHECK(std::ranges::min(high) >= 0);
  CHECK(std::ranges::max(high) > (1 << 30));
}

}  // namespace token_source_test
