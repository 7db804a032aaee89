// SPDX-License-Identifier: Apache-2.0
#include "slimpack/io/file.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "slimpack/io/npy.hpp"
#include "slimpack/io/read_lengths.hpp"
#include "support/temporary.hpp"

namespace file_test {

using namespace slimpack;

TEST_CASE("files: what is written is read, over an old file and beside nothing") {
  const test::TemporaryFolder folder;
  const std::string path = folder.file("a.json");
  for (const std::string& content : {std::string("first"), std::string(), std::string(3000000, 'x'),
                                     std::string("nul \0 inside", 12)}) {
    write_file(path, content);
    CHECK(read_file(path) == content);
    CHECK(folder.entries() == 1);
  }
}

TEST_CASE("files: a failure names file and cause and leaves nothing behind") {
  const test::TemporaryFolder folder;
  const std::string inside = folder.file("missing/a.json");
  CHECK_THROWS_WITH_AS(write_file(inside, "x"),
                       ("cannot write '" + inside + "': No such file or directory").c_str(),
                       InvalidInput);
  const std::string taken = folder.file("taken");
  std::filesystem::create_directory(taken);
  CHECK_THROWS_WITH_AS(write_file(taken, "x"),
                       ("cannot write '" + taken + "': Is a directory").c_str(), InvalidInput);
  CHECK(folder.entries() == 1);
  const std::string missing = folder.file("none");
  CHECK_THROWS_WITH_AS(static_cast<void>(read_file(missing)),
                       ("cannot open '" + missing + "': No such file or directory").c_str(),
                       InvalidInput);
}

TEST_CASE("files: what can be written is told beforehand and stays as it is") {
  const test::TemporaryFolder folder;
  const std::string path = folder.file("a.json");
  check_writable(path);
  CHECK(folder.entries() == 0);
  write_file(path, "content");
  check_writable(path);
  CHECK(read_file(path) == "content");
  check_writable("-");
  const std::string taken = folder.file("taken");
  std::filesystem::create_directory(taken);
  for (const std::string& refused : {folder.file("missing/a.json"), taken}) {
    CHECK_THROWS_AS(check_writable(refused), InvalidInput);
  }
  CHECK(folder.entries() == 2);
}

TEST_CASE("files: a full device is reported") {
  if (!std::filesystem::is_character_file("/dev/full")) return;
  CHECK_THROWS_WITH_AS(write_file("/dev/full", "x"),
                       "cannot write '/dev/full': No space left on device", InvalidInput);
  CHECK(std::filesystem::is_character_file("/dev/full"));
  write_file("/dev/null", "x");
  CHECK(std::filesystem::is_character_file("/dev/null"));
}

TEST_CASE("files: a link stays a link, a stale temporary is passed by") {
  const test::TemporaryFolder folder;
  const std::string real = folder.file("real");
  const std::string link = folder.file("link");
  write_file(real, "old");
  std::filesystem::create_symlink("real", link);
  write_file(real + ".part0", "stale");
  write_file(link, "new");
  CHECK(std::filesystem::is_symlink(link));
  CHECK(read_file(real) == "new");
  CHECK(read_file(real + ".part0") == "stale");
  CHECK(folder.entries() == 3);
}

TEST_CASE("npy: what is written has the bytes of the format and is read back") {
  const std::vector<std::int32_t> small{1, -2, 2147483647};
  const std::string bytes = npy_bytes(std::span(small));
  CHECK(bytes.size() == 128 + 12);
  CHECK(bytes.substr(0, 10) == std::string("\x93NUMPY\x01\x00\x76\x00", 10));
  CHECK(bytes.substr(10, 55) == "{'descr': '<i4', 'fortran_order': False, 'shape': (3,),");
  CHECK(bytes[127] == '\n');
  CHECK(bytes.substr(128) == std::string("\x01\0\0\0\xfe\xff\xff\xff\xff\xff\xff\x7f", 12));
  for (const std::size_t size :
       {std::size_t{1}, std::size_t{9}, std::size_t{100}, std::size_t{12345}}) {
    std::vector<std::int64_t> values(size);
    for (std::size_t i = 0; i < size; ++i) {
      values[i] = static_cast<std::int64_t>(i * i * 1000003 + 1);
    }
    const std::string text = npy_bytes(std::span<const std::int64_t>(values));
    CHECK((text.size() - 8 * size) % 64 == 0);
    const LengthSet read = parse_npy_lengths(std::as_bytes(std::span(text)), "x.npy");
    REQUIRE(read.documents.size() == size);
    for (std::size_t i = 0; i < size; ++i) CHECK(read.documents[i].value == values[i]);
  }
}

TEST_CASE("read_lengths: the name tells the form") {
  const test::TemporaryFolder folder;
  const std::vector<Tokens> expected{Tokens{3}, Tokens{5}};
  write_file(folder.file("a.lengths"), "3\n5\n");
  write_file(folder.file("a"), "3\n5\n");
  write_file(folder.file("a.jsonl"), "{\"length\": 3}\n{\"text\": \"abcde\"}\n");
  const std::vector<std::int64_t> values{3, 5};
  write_file(folder.file("a.npy"), npy_bytes(std::span<const std::int64_t>(values)));
  std::string index("MMIDIDX\0\0\x01\0\0\0\0\0\0\0\x04", 18);
  index += std::string("\x02\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\x03\0\0\0\x05\0\0\0", 24);
  index += std::string(8, '\0') + std::string("\x0c\0\0\0\0\0\0\0", 8) + std::string(8, '\0');
  index += std::string("\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0", 16);
  write_file(folder.file("a.idx"), index);
  for (const std::string name : {"a.lengths", "a", "a.jsonl", "a.npy", "a.idx"}) {
    CAPTURE(name);
    const LengthSet read = read_lengths(folder.file(name));
    CHECK(read.documents == expected);
    CHECK(read.name == folder.file(name));
  }
  const std::string wrong = folder.file("b.idx");
  write_file(wrong, "3\n5\n");
  CHECK_THROWS_WITH_AS(
      static_cast<void>(read_lengths(wrong)),
      (wrong + ": byte 4: truncated: the header of an .idx has 34 bytes, found 4").c_str(),
      InvalidInput);
}

}  // namespace file_test
