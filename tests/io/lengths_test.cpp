// SPDX-License-Identifier: Apache-2.0
#include "slimpack/io/text_lengths.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "slimpack/core/random.hpp"

namespace lengths_test {

using namespace slimpack;

namespace {

std::vector<std::int64_t> values(const LengthSet& set) {
  std::vector<std::int64_t> plain;
  for (const Tokens length : set.documents) plain.push_back(length.value);
  return plain;
}

std::vector<std::int64_t> parse(const std::string& text) {
  return values(parse_text_lengths(text, "x.lengths"));
}

}  // namespace

TEST_CASE("text lengths: one a line, blanks and comments aside") {
  using List = std::vector<std::int64_t>;
  CHECK(parse("5\n17\n1\n") == List{5, 17, 1});
  CHECK(parse("5\n17") == List{5, 17});
  CHECK(parse("# a comment\n\n 12 \t\r\n   \n#7\n  # 8\n007\r\n") == List{12, 7});
  CHECK(parse("9223372036854775807") == List{9223372036854775807});
  CHECK(parse_text_lengths("3", "x.lengths").name == "x.lengths");
}

TEST_CASE("text lengths: whatever is written is read back") {
  for (std::uint64_t seed = 0; seed < 32; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    std::vector<std::int64_t> expected;
    std::string text;
    const std::int64_t count = random.between(1, 200);
    for (std::int64_t i = 0; i < count; ++i) {
      expected.push_back(random.between(1, std::int64_t{1} << random.between(1, 50)));
      if (random.chance(1, 8)) text += random.chance(1, 2) ? "# 99\n" : " \t\n";
      text += std::to_string(expected.back()) + (random.chance(1, 4) ? "\r\n" : "\n");
    }
    CHECK(parse(text) == expected);
  }
}

TEST_CASE("text lengths: what is wrong is named with its line") {
  const auto refused = [](const std::string& text, const char* message) {
    CHECK_THROWS_WITH_AS(parse(text), message, InvalidInput);
  };
  refused("1\n\nabc\n", "x.lengths:3: a length must be a positive integer, found 'abc'");
  refused("0", "x.lengths:1: a length must be a positive integer, found '0'");
  refused("-4", "x.lengths:1: a length must be a positive integer, found '-4'");
  refused("+4", "x.lengths:1: a length must be a positive integer, found '+4'");
  refused("4.0", "x.lengths:1: a length must be a positive integer, found '4.0'");
  refused("4 5", "x.lengths:1: a length must be a positive integer, found '4 5'");
  refused("4 # four", "x.lengths:1: a length must be a positive integer, found '4 # four'");
  refused(std::string("1\n2\0", 4),
          "x.lengths:2: a length must be a positive integer, found '2\\x00'");
  refused(
      "\xef\xbb\xbf"
      "1",
      "x.lengths:1: a length must be a positive integer, found '\\xef\\xbb\\xbf1'");
  refused(std::string(50, 'y'),
          "x.lengths:1: a length must be a positive integer, found "
          "'yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy...'");
  refused("9223372036854775808",
          "x.lengths:1: a length must fit in 63 bits, found '9223372036854775808'");
  refused("99999999999999999999999",
          "x.lengths:1: a length must fit in 63 bits, found '99999999999999999999999'");
  refused("9223372036854775807\n1\n",
          "x.lengths:2: the sum of all lengths must fit in 63 bits, found '1' after "
          "9223372036854775807");
  refused("", "x.lengths: holds no length");
  refused("# nothing\n\n", "x.lengths: holds no length");
}

TEST_CASE("text lengths: from a file") {
  const std::string path =
      (std::filesystem::temp_directory_path() / "slimpack_lengths_test.txt").string();
  std::FILE* file = std::fopen(path.c_str(), "wb");
  REQUIRE(file != nullptr);
  std::fputs("3\n4\n", file);
  std::fclose(file);
  CHECK(values(read_text_lengths(path)) == std::vector<std::int64_t>{3, 4});

  file = std::fopen(path.c_str(), "wb");  // an empty file cannot be mapped
  REQUIRE(file != nullptr);
  std::fclose(file);
  CHECK_THROWS_WITH_AS(static_cast<void>(read_text_lengths(path)),
                       (path + ": holds no length").c_str(), InvalidInput);
  std::filesystem::remove(path);
  CHECK_THROWS_WITH_AS(static_cast<void>(read_text_lengths(path)),
                       ("cannot open '" + path + "': No such file or directory").c_str(),
                       InvalidInput);
  const std::string folder = std::filesystem::temp_directory_path().string();
  CHECK_THROWS_WITH_AS(static_cast<void>(read_text_lengths(folder)),
                       ("cannot read '" + folder + "': Is a directory").c_str(), InvalidInput);
}

}  // namespace lengths_test
