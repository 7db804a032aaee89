// SPDX-License-Identifier: Apache-2.0
#include "slimpack/io/detail/jsonl_lengths.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace jsonl_test {

using namespace slimpack;

namespace {

std::vector<std::int64_t> parse(const std::string& text) {
  std::vector<std::int64_t> plain;
  for (const Tokens length : parse_jsonl_lengths(text, "x.jsonl").documents) {
    plain.push_back(length.value);
  }
  return plain;
}

void refused(const std::string& text, const char* message) {
  CHECK_THROWS_WITH_AS(parse(text), message, InvalidInput);
}

}  // namespace

TEST_CASE("json lines: a length, an array's size, or a text's bytes") {
  using List = std::vector<std::int64_t>;
  CHECK(parse("{\"length\": 12}\n\n  \r\n{\"tokens\": [1, -2, 3]}\r\n") == List{12, 3});
  CHECK(parse("{\"input_ids\": [0], \"labels\": [1, 2]}") == List{1});
  CHECK(parse("{\"text\": \"a\\u00e9\\n\\ud83d\\ude00\"}\n{\"text\": \"\xc3\xa9\"}") == List{8, 2});
  CHECK(parse("{\"tokens\": [18446744073709551615, 9223372036854775808]}") == List{2});
}

TEST_CASE("json lines: length goes before tokens, input_ids and text, whatever their order") {
  using List = std::vector<std::int64_t>;
  CHECK(parse("{\"text\": \"abcd\", \"input_ids\": [1, 2], \"tokens\": [1], \"length\": 7}") ==
        List{7});
  CHECK(parse("{\"text\": \"abcd\", \"input_ids\": [1, 2], \"tokens\": [1]}") == List{1});
  CHECK(parse("{\"text\": \"abcd\", \"input_ids\": [1, 2]}") == List{2});
}

TEST_CASE("json lines: which key gave the length of how many documents") {
  LengthKeyCounts counts{9, 9, 9, 9};
  const std::string text =
      "{\"length\": 7, \"text\": \"abcd\"}\n{\"tokens\": [1], \"text\": \"abcd\"}\n"
      "{\"input_ids\": [1], \"text\": \"abcd\"}\n{\"text\": \"ab\"}\n\n{\"text\": \"c\"}\n";
  static_cast<void>(parse_jsonl_lengths(text, "x.jsonl", &counts));
  CHECK(counts == LengthKeyCounts{1, 1, 1, 2});
  CHECK(to_string(LengthKey::input_ids) == "input_ids");
}

TEST_CASE("json lines: what else an object holds is ignored, keys of inner objects too") {
  using List = std::vector<std::int64_t>;
  CHECK(
      parse("{\"meta\": {\"length\": \"x\", \"tokens\": [{\"text\": 1}], \"a\": [[1, 2.5], null]}, "
            "\"id\": 1.5, \"ok\": true, \"no\": null, \"text\": \"ab\"}") == List{2});
  const std::string deep = std::string(100000, '[') + std::string(100000, ']');
  CHECK(parse("{\"a\": " + deep + ", \"length\": 5}") == List{5});
}

TEST_CASE("json lines: what is wrong is named with its line") {
  refused("{\"length\": 1}\n[1]\n", "x.jsonl:2: each line must be one JSON object, found an array");
  refused("5", "x.jsonl:1: each line must be one JSON object, found 5");
  refused("\"a\"", "x.jsonl:1: each line must be one JSON object, found a string");
  refused("{\"length\": 1",
          "x.jsonl:1: each line must be one JSON object, found a fault at byte 13 of the line");
  refused("{\"length\": 1} {}",
          "x.jsonl:1: each line must be one JSON object, found a fault at byte 15 of the line");
  refused("{\"text\": \"\xff\"}",
          "x.jsonl:1: each line must be one JSON object, found a fault at byte 11 of the line");
  refused("{\"length\": 1e999}",
          "x.jsonl:1: each line must be one JSON object, found a number that no double holds");
  refused("{\"id\": 1}", "x.jsonl:1: the object must have a key length, tokens, input_ids or text");
  refused("{}", "x.jsonl:1: the object must have a key length, tokens, input_ids or text");
  refused("{\"length\": 0}", "x.jsonl:1: the length must be positive, found 0");
  refused("{\"length\": -7}", "x.jsonl:1: the length must be positive, found -7");
  refused("{\"tokens\": []}", "x.jsonl:1: the length must be positive, found 0");
  refused("{\"text\": \"\"}", "x.jsonl:1: the length must be positive, found 0");
  refused("{\"length\": 4.0}", "x.jsonl:1: length must be an integer, found 4.0");
  refused("{\"length\": \"4\"}", "x.jsonl:1: length must be an integer, found a string");
  refused("{\"length\": null}", "x.jsonl:1: length must be an integer, found null");
  refused("{\"length\": [4]}", "x.jsonl:1: length must be an integer, found an array");
  refused("{\"length\": 9223372036854775808}",
          "x.jsonl:1: length must fit in 63 bits, found 9223372036854775808");
  refused("{\"tokens\": 4}", "x.jsonl:1: tokens must be an array of integers, found 4");
  refused("{\"tokens\": {\"a\": 1}}",
          "x.jsonl:1: tokens must be an array of integers, found an object");
  refused("{\"tokens\": [1, [2]]}",
          "x.jsonl:1: tokens must be an array of integers, found an array");
  refused("{\"input_ids\": [1, 2.5]}",
          "x.jsonl:1: input_ids must be an array of integers, found 2.5");
  refused("{\"input_ids\": [true]}",
          "x.jsonl:1: input_ids must be an array of integers, found true");
  refused("{\"text\": 5}", "x.jsonl:1: text must be a string, found 5");
  refused("{\"text\": [\"a\"]}", "x.jsonl:1: text must be a string, found an array");
  refused("{\"length\": 4, \"length\": 5}", "x.jsonl:1: a key may be given once, found 'length'");
  refused("{\"length\": 9223372036854775807}\n{\"length\": 1}",
          "x.jsonl:2: the sum of all lengths must fit in 63 bits, found 1 after "
          "9223372036854775807");
  refused("\n \n", "x.jsonl: holds no length");
}

}  // namespace jsonl_test
