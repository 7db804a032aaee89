// SPDX-License-Identifier: Apache-2.0
#include "slimpack/io/detail/npy_lengths.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace npy_test {

using namespace slimpack;

namespace {

std::string little(std::uint64_t value, std::size_t width) {
  std::string bytes;
  for (std::size_t i = 0; i < width; ++i) {
    bytes += static_cast<char>(static_cast<unsigned char>(value >> (8 * i)));
  }
  return bytes;
}

std::string npy(const std::string& header, const std::string& data, int major = 1, int minor = 0) {
  return "\x93NUMPY" + little(static_cast<std::uint64_t>(major), 1) +
         little(static_cast<std::uint64_t>(minor), 1) + little(header.size(), major == 1 ? 2 : 4) +
         header + data;
}

std::string header(const std::string& descr, const std::string& shape) {
  return "{'descr': '" + descr + "', 'fortran_order': False, 'shape': " + shape + ", }   \n";
}

std::string data(std::size_t width, const std::vector<std::uint64_t>& values) {
  std::string bytes;
  for (const std::uint64_t value : values) bytes += little(value, width);
  return bytes;
}

LengthSet parse(const std::string& bytes) {
  return parse_npy_lengths(std::as_bytes(std::span(bytes)), "x.npy");
}

void refused(const std::string& bytes, const char* message) {
  CHECK_THROWS_WITH_AS(parse(bytes), message, InvalidInput);
}

}  // namespace

TEST_CASE("npy: every integer type, both formats") {
  const std::vector<Tokens> expected{Tokens{1}, Tokens{70000}, Tokens{2147483647}};
  for (const std::string descr : {"<i4", "<i8", "<u4", "<u8"}) {
    for (const int major : {1, 2}) {
      const std::size_t width = descr.back() == '4' ? 4 : 8;
      CHECK(
          parse(npy(header(descr, "(3,)"), data(width, {1, 70000, 2147483647}), major)).documents ==
          expected);
    }
  }
  CHECK(parse(npy(header("<u4", "(1,)"), data(4, {4294967295}))).documents ==
        std::vector<Tokens>{Tokens{4294967295}});
  CHECK(parse(npy(header("<u8", "(1,)"), data(8, {9223372036854775807U}))).documents ==
        std::vector<Tokens>{Tokens{9223372036854775807}});
}

TEST_CASE("npy: keys in any order, either quote, the order flag without meaning") {
  const std::string body = data(4, {5, 6});
  const std::vector<Tokens> expected{Tokens{5}, Tokens{6}};
  CHECK(parse(npy("{\"shape\":(2,),\"fortran_order\":True,\"descr\":\"<i4\"}", body)).documents ==
        expected);
  CHECK(
      parse(npy("{'fortran_order': True, 'shape': ( 2 , ), 'descr': '<i4', }\n", body)).documents ==
      expected);
}

TEST_CASE("npy: a file cut anywhere is refused") {
  const std::string whole = npy(header("<i4", "(2,)"), data(4, {5, 6}));
  for (std::size_t size = 0; size < whole.size(); ++size) {
    CAPTURE(size);
    CHECK_THROWS_AS(parse(whole.substr(0, size)), InvalidInput);
  }
  refused(whole.substr(0, 4),
          "x.npy: byte 4: truncated: the start of an .npy ends at byte 10, found 4 bytes");
  refused(whole.substr(0, 20), ("x.npy: byte 20: truncated: the header ends at byte " +
                                std::to_string(whole.size() - 8) + ", found 20 bytes")
                                   .c_str());
  refused(npy(header("<i4", "(2,)"), data(4, {5, 6}), 2).substr(0, 11),
          "x.npy: byte 11: truncated: the start of an .npy ends at byte 12, found 11 bytes");
}

TEST_CASE("npy: a wrong start or header is named with its byte") {
  refused("\x93NUMPZ\x01\x01\x01\x01",
          "x.npy: byte 0: the magic must be '\\x93NUMPY', found '\\x93NUMPZ'");
  refused(npy(header("<i4", "(1,)"), data(4, {5}), 3),
          "x.npy: byte 6: the format must be 1.0 or 2.0, found 3.0");
  refused(npy(header("<i4", "(1,)"), data(4, {5}), 1, 1),
          "x.npy: byte 6: the format must be 1.0 or 2.0, found 1.1");
  for (const std::string descr : {">i4", "<f8", "|u1", "<i2", "=i4", ""}) {
    refused(npy(header(descr, "(1,)"), data(4, {5})),
            ("x.npy: byte " + std::to_string(22 + descr.size()) +
             ": descr must be '<i4', '<i8', '<u4' or '<u8', found '" + descr + "'")
                .c_str());
  }
  refused(npy(header("<i4", "()"), data(4, {5})),
          "x.npy: byte 61: shape must have one dimension, found '), }   \\x0a'");
  refused(npy(header("<i4", "(1, 1)"), data(4, {5})),
          "x.npy: byte 64: shape must have one dimension, found '1), }   \\x0a'");
  refused(npy(header("<i4", "(1)"), data(4, {5})),
          "x.npy: byte 62: the header must have ',' here, found '), }   \\x0a'");
  refused(npy(header("<i4", "(-1,)"), data(4, {5})),
          "x.npy: byte 61: shape must be a count, found '-1,), }   \\x0a'");
  refused(npy(header("<i4", "(99999999999999999999,)"), data(4, {5})),
          "x.npy: byte 79: shape must fit in 63 bits, found '99,), }   \\x0a'");
  refused(npy("{'descr': '<i4', 'shape': (1,)}", data(4, {5})),
          "x.npy: byte 41: the header must have the keys 'descr', 'fortran_order' and 'shape', "
          "found ''");
  refused(npy("{'descr': '<i4', 'descr': '<i4'}", data(4, {5})),
          "x.npy: byte 35: the header must have the keys 'descr', 'fortran_order' and 'shape' once "
          "each, found 'descr'");
  refused(npy("{'kind': 1}", ""),
          "x.npy: byte 18: the header must have the keys 'descr', 'fortran_order' and 'shape' once "
          "each, found 'kind'");
  refused(npy("{'fortran_order': 0}", ""),
          "x.npy: byte 28: fortran_order must be True or False, found '0}'");
  refused(npy("{'descr", ""), "x.npy: byte 11: the header's string must end, found ''descr'");
  refused(npy("{descr", ""),
          "x.npy: byte 11: the header must have a quoted string here, found 'descr'");
  refused(npy("[]", ""), "x.npy: byte 10: the header must have '{' here, found '[]'");
  refused(npy(header("<i4", "(1,)") + "x", data(4, {5})),
          "x.npy: byte 71: the header must end after its dictionary, found 'x'");
}

TEST_CASE("npy: the elements are checked") {
  const auto at = std::to_string(npy(header("<i4", "(2,)"), "").size());
  refused(
      npy(header("<i4", "(2,)"), data(4, {5})),
      ("x.npy: byte " + at + ": 2 elements of 4 bytes must end the file, found 4 bytes").c_str());
  refused(
      npy(header("<i4", "(2,)"), data(4, {5, 6, 7})),
      ("x.npy: byte " + at + ": 2 elements of 4 bytes must end the file, found 12 bytes").c_str());
  refused(
      npy(header("<i4", "(2,)"), data(4, {5, 6}) + "z"),
      ("x.npy: byte " + at + ": 2 elements of 4 bytes must end the file, found 9 bytes").c_str());
  refused(
      npy(header("<i4", "(9223372036854775807,)"), data(4, {5, 6})),
      "x.npy: byte 89: 9223372036854775807 elements of 4 bytes must end the file, found 8 bytes");
  refused(npy(header("<i4", "(0,)"), ""), "x.npy: holds no length");

  const auto second = std::to_string(npy(header("<i4", "(2,)"), "").size() + 4);
  refused(npy(header("<i4", "(2,)"), data(4, {5, 0})),
          ("x.npy: byte " + second + ": element 1 must be in 1 .. 9223372036854775807, found 0")
              .c_str());
  refused(npy(header("<i4", "(2,)"), data(4, {5, 0xffffffff})),
          ("x.npy: byte " + second + ": element 1 must be in 1 .. 9223372036854775807, found -1")
              .c_str());
  refused(
      npy(header("<i8", "(1,)"), data(8, {~std::uint64_t{0}})),
      ("x.npy: byte " + at + ": element 0 must be in 1 .. 9223372036854775807, found -1").c_str());
  refused(npy(header("<u8", "(1,)"), data(8, {~std::uint64_t{0}})),
          ("x.npy: byte " + at +
           ": element 0 must be in 1 .. 9223372036854775807, found 18446744073709551615")
              .c_str());
  const auto eighth = std::to_string(npy(header("<i8", "(2,)"), "").size() + 8);
  refused(npy(header("<i8", "(2,)"), data(8, {9223372036854775807U, 2})),
          ("x.npy: byte " + eighth +
           ": the sum of all lengths must fit in 63 bits, found 2 after 9223372036854775807")
              .c_str());
}

}  // namespace npy_test
