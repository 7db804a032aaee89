// SPDX-License-Identifier: Apache-2.0
#include "slimpack/runtime/detail/jsonl_tokens.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "slimpack/io/detail/jsonl_lengths.hpp"
#include "slimpack/io/file.hpp"
#include "slimpack/runtime/open_tokens.hpp"
#include "support/directory.hpp"
#include "support/temporary.hpp"

namespace jsonl_tokens_test {

using namespace slimpack;

namespace {

using Ids = std::vector<std::int32_t>;

std::vector<Ids> all_of(const runtime::TokenSource& source) {
  std::vector<Ids> documents;
  for (std::size_t i = 0; i < source.documents(); ++i) {
    Ids ids(static_cast<std::size_t>(source.length(i).value));
    source.read(i, Tokens{0}, ids, runtime::kLargestVocabulary);
    documents.push_back(std::move(ids));
  }
  return documents;
}

std::vector<Ids> parse(const std::string& text) {
  return all_of(runtime::parse_jsonl_tokens(text, "x"));
}

void refused(const std::string& text, const char* message) {
  CHECK_THROWS_WITH_AS((void)runtime::parse_jsonl_tokens(text, "x.jsonl"), message, InvalidInput);
}

}  // namespace

TEST_CASE("jsonl tokens: ids of an array, else the bytes of a text") {
  CHECK(parse("{\"tokens\": [1, 2147483647, 0], \"text\": \"a\"}\n\n \r\n{\"input_ids\": [7]}") ==
        std::vector<Ids>{{1, 2147483647, 0}, {7}});
  CHECK(parse("{\"text\": \"a\\u00e9\\n\", \"length\": 99}\n{\"text\": \"b\"}") ==
        std::vector<Ids>{{'a', 0xc3, 0xa9, '\n'}, {'b'}});
}

TEST_CASE("jsonl tokens: documents that are text are counted") {
  const auto source = runtime::parse_jsonl_tokens(
      "{\"tokens\": [1]}\n{\"text\": \"a\"}\n{\"input_ids\": [7]}\n{\"text\": \"b\"}", "x");
  CHECK(source.documents() == 4);
  CHECK(source.text_documents() == 2);
}

TEST_CASE("jsonl tokens: as many as the reader of lengths counts") {
  const std::string path = test::directory() + "/../examples/data/text.jsonl";
  const runtime::TokenSource source = runtime::open_jsonl_tokens(path);
  CHECK(source.lengths() == read_jsonl_lengths(path));
}

TEST_CASE("jsonl tokens: what is wrong is named with its line") {
  refused("{\"text\": \"a\"}\n{\"length\": 5}",
          "x.jsonl:2: the object must have a key tokens, input_ids or text");
  refused("[1]", "x.jsonl:1: each line must be one JSON object, found array");
  refused("{\"text\": 5}", "x.jsonl:1: text must be a string, found number");
  refused("{\"text\": \"\"}", "x.jsonl:1: text must have 1 .. 1073741824 tokens, found 0");
  refused("{\"tokens\": \"a\"}", "x.jsonl:1: tokens must be an array of integers, found string");
  refused("{\"tokens\": [-1]}",
          "x.jsonl:1: tokens must be an array of integers in 0 .. 2147483647, found -1");
  refused("{\"tokens\": [1, 2147483648]}",
          "x.jsonl:1: tokens must be an array of integers in 0 .. 2147483647, found 2147483648");
  refused("{\"input_ids\": [1.5]}",
          "x.jsonl:1: input_ids must be an array of integers in 0 .. 2147483647, found 1.5");
  refused("{\"input_ids\": [[1]]}",
          "x.jsonl:1: input_ids must be an array of integers in 0 .. 2147483647, found array");
  refused("\n\n", "x.jsonl: holds no document");
  CHECK_THROWS_AS((void)runtime::parse_jsonl_tokens("{\"text\": \"a\"", "x"), InvalidInput);
}

TEST_CASE("open_tokens: path and name tell the form") {
  const test::TemporaryFolder folder;
  const std::vector<Ids> expected{{3, 5}};
  std::string index("MMIDIDX\0\0\x01\0\0\0\0\0\0\0\x01", 18);
  index += std::string("\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x02\0\0\0", 20);
  index += std::string(8, '\0') + std::string(8, '\0') + std::string("\x01\0\0\0\0\0\0\0", 8);
  write_file(folder.file("pair.idx"), index);
  write_file(folder.file("pair.bin"), "\x03\x05");
  write_file(folder.file("ids.jsonl"), "{\"tokens\": [3, 5]}");
  write_file(folder.file("text"), "\x03\x05");
  std::filesystem::create_directory(folder.file("folder"));
  write_file(folder.file("folder/a"), "\x03\x05");
  for (const std::string name : {"pair", "pair.idx", "pair.bin", "ids.jsonl", "text", "folder"}) {
    CAPTURE(name);
    CHECK(all_of(runtime::open_tokens(folder.file(name))) == expected);
  }
  const std::string none = folder.file("none");
  CHECK_THROWS_WITH_AS((void)runtime::open_tokens(none),
                       ("cannot open '" + none + "': No such file or directory").c_str(),
                       InvalidInput);
}

}  // namespace jsonl_tokens_test
