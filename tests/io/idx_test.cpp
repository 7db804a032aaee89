// SPDX-License-Identifier: Apache-2.0
#include "slimpack/io/idx.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "slimpack/core/random.hpp"

namespace idx_test {

using namespace slimpack;

namespace {

/// Little-endian bytes of an integer.
std::string little(std::uint64_t value, std::size_t width) {
  std::string bytes;
  for (std::size_t i = 0; i < width; ++i) {
    bytes += static_cast<char>(static_cast<unsigned char>(value >> (8 * i)));
  }
  return bytes;
}

/// An index file as the format describes it, with every part open to mischief.
struct Index {
  std::string magic{"MMIDIDX\0\0", 9};
  std::uint64_t version = 1;
  int dtype = 4;
  std::vector<std::int32_t> lengths{3, 4, 5};
  std::vector<std::int64_t> documents{0, 2, 3};
  std::vector<std::int8_t> modes;
  std::string tail;

  [[nodiscard]] std::string bytes() const {
    std::string text = magic + little(version, 8) + little(static_cast<std::uint64_t>(dtype), 1);
    text += little(lengths.size(), 8) + little(documents.size(), 8);
    for (const std::int32_t length : lengths) text += little(static_cast<std::uint32_t>(length), 4);
    std::int64_t pointer = 0;
    for (const std::int32_t length : lengths) {
      text += little(static_cast<std::uint64_t>(pointer), 8);
      pointer += std::int64_t{length} * 4;
    }
    for (const std::int64_t document : documents) {
      text += little(static_cast<std::uint64_t>(document), 8);
    }
    for (const std::int8_t mode : modes) text += static_cast<char>(mode);
    return text + tail;
  }
};

LengthSet parse(const std::string& bytes) {
  return parse_idx_lengths(std::as_bytes(std::span(bytes)), "x.idx");
}

void refused(const std::string& bytes, const char* message) {
  CHECK_THROWS_WITH_AS(parse(bytes), message, InvalidInput);
}

}  // namespace

TEST_CASE("idx: a document is as long as its sequences together") {
  CHECK(parse(Index{}.bytes()).documents == std::vector<Tokens>{Tokens{7}, Tokens{5}});
  Index index;
  index.lengths = {2147483647, 2147483647, 2147483647};
  index.documents = {0, 3};
  CHECK(parse(index.bytes()).documents == std::vector<Tokens>{Tokens{6442450941}});
}

TEST_CASE("idx: every dtype code, modes, and unaligned bytes") {
  constexpr std::array<std::int64_t, 9> kBytes{0, 1, 1, 2, 4, 8, 8, 4, 2};
  for (int code = 1; code <= 8; ++code) {
    for (const bool modes : {false, true}) {
      for (std::size_t shift = 0; shift < 8; ++shift) {
        CAPTURE(code);
        CAPTURE(shift);
        Index index;
        index.dtype = code;
        if (modes) index.modes = {0, -1, 2};
        const std::string bytes = std::string(shift, '!') + index.bytes();
        const auto part = std::as_bytes(std::span(bytes)).subspan(shift);
        const MegatronIndex read(part, "x.idx");
        CHECK(static_cast<int>(read.type()) == code);
        CHECK(token_bytes(read.type()) == kBytes[static_cast<std::size_t>(code)]);
        CHECK(read.sequences() == 3);
        CHECK(read.documents() == 2);
        CHECK(read.length(2) == Tokens{5});
        CHECK(read.pointer(2) == 28);
        CHECK(read.first_sequence(1) == 2);
        CHECK(read.first_sequence(2) == 3);
        CHECK(read.has_modes() == modes);
        CHECK(read.mode(1) == (modes ? -1 : 0));
      }
    }
  }
}

TEST_CASE("idx: sums over random documents") {
  for (std::uint64_t seed = 0; seed < 64; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    Index index;
    index.lengths.clear();
    index.documents = {0};
    std::vector<Tokens> expected;
    for (std::int64_t document = random.between(1, 20); document > 0; --document) {
      Tokens sum;
      for (std::int64_t sequence = random.between(1, 4); sequence > 0; --sequence) {
        index.lengths.push_back(static_cast<std::int32_t>(random.between(1, 100000)));
        sum += Tokens{index.lengths.back()};
      }
      expected.push_back(sum);
      index.documents.push_back(static_cast<std::int64_t>(index.lengths.size()));
    }
    if (random.chance(1, 2)) index.modes.assign(index.lengths.size(), 1);
    CHECK(parse(index.bytes()).documents == expected);
  }
}

TEST_CASE("idx: a file cut anywhere is refused") {
  const std::string whole = Index{}.bytes();
  for (std::size_t size = 0; size < whole.size(); ++size) {
    CAPTURE(size);
    CHECK_THROWS_AS(parse(whole.substr(0, size)), InvalidInput);
  }
  refused("MMIDIDX", "x.idx: byte 7: truncated: the header of an .idx has 34 bytes, found 7");
  refused(
      whole.substr(0, 80),
      "x.idx: byte 80: truncated: 3 sequences and 3 document indices need more bytes, found 80");
}

TEST_CASE("idx: a wrong header is named with its byte") {
  Index index;
  index.magic = std::string("MMIDIDY\0\0", 9);
  refused(index.bytes(),
          "x.idx: byte 0: the magic must be 'MMIDIDX\\x00\\x00', found 'MMIDIDY\\x00\\x00'");
  index = {};
  index.version = 2;
  refused(index.bytes(), "x.idx: byte 9: version must be 1, found 2");
  index.version = std::uint64_t{1} << 56U;  // big endian
  refused(index.bytes(), "x.idx: byte 9: version must be 1, found 72057594037927936");
  for (const int code : {0, 9, 255}) {
    index = {};
    index.dtype = code;
    refused(index.bytes(),
            ("x.idx: byte 17: the dtype code must be in 1 .. 8, found " + std::to_string(code))
                .c_str());
  }
  index = {};
  index.lengths.clear();
  index.documents = {0};
  refused(index.bytes(), "x.idx: byte 18: an .idx must hold at least one sequence, found 0");
  index = {};
  index.documents = {0};
  refused(index.bytes(),
          "x.idx: byte 26: an .idx must hold at least two document indices, found 1");
}

TEST_CASE("idx: counts that overflow are refused, not multiplied") {
  for (const std::uint64_t count :
       {std::uint64_t{1} << 62U, ~std::uint64_t{0}, ~std::uint64_t{0} / 12 + 2}) {
    std::string bytes = Index{}.bytes();
    bytes.replace(18, 8, little(count, 8));
    refused(bytes, ("x.idx: byte 94: truncated: " + std::to_string(count) +
                    " sequences and 3 document indices need more bytes, found 94")
                       .c_str());
    bytes = Index{}.bytes();
    bytes.replace(26, 8, little(count, 8));
    refused(bytes, ("x.idx: byte 94: truncated: 3 sequences and " + std::to_string(count) +
                    " document indices need more bytes, found 94")
                       .c_str());
  }
}

TEST_CASE("idx: lengths, document indices and the end are checked") {
  Index index;
  index.lengths = {3, -4, 5};
  refused(index.bytes(), "x.idx: byte 38: the length of sequence 1 must be > 0, found -4");
  index.lengths = {3, 4, 0};
  refused(index.bytes(), "x.idx: byte 42: the length of sequence 2 must be > 0, found 0");
  index = {};
  index.documents = {1, 2, 3};
  refused(index.bytes(), "x.idx: byte 70: the first document index must be 0, found 1");
  index.documents = {0, 2, 2};
  refused(index.bytes(),
          "x.idx: byte 86: document index 2 must be greater than the one before, 2 (a document "
          "without a sequence has no length), found 2");
  index.documents = {0, 5, 3};
  refused(index.bytes(),
          "x.idx: byte 86: document index 2 must be greater than the one before, 5 (a document "
          "without a sequence has no length), found 3");
  index.documents = {0, -1, 3};
  refused(index.bytes(),
          "x.idx: byte 78: document index 1 must be greater than the one before, 0 (a document "
          "without a sequence has no length), found -1");
  index.documents = {0, 1, 2};
  refused(index.bytes(),
          "x.idx: byte 86: the last document index must be the number of sequences, 3, found 2");
  index.documents = {0, 1, 4};
  refused(index.bytes(),
          "x.idx: byte 86: the last document index must be the number of sequences, 3, found 4");
  index = {};
  index.tail = "zz";
  refused(index.bytes(),
          "x.idx: byte 94: after the document indices must come nothing or 3 modes, found 2 bytes");
}

}  // namespace idx_test
