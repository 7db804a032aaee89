// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "report/src/text.hpp"
#include "slimpack/core/random.hpp"
#include "slimpack/io/json_writer.hpp"

namespace slimpack {
namespace {

using report::detail::bytes_text;
using report::detail::clipped;
using report::detail::count_text;
using report::detail::decimal;
using report::detail::one_line;
using report::detail::percent;
using report::detail::rate_text;
using report::detail::short_decimal;
using report::detail::shortest;
using report::detail::time_text;
using report::detail::xml_escaped;

std::string random_bytes(Random& random) {
  static const std::string pieces[] = {"\"",
                                       "\\",
                                       "\n",
                                       "\x01",
                                       "\x7f",
                                       "<",
                                       ">",
                                       "&",
                                       "\xC3\xA9",
                                       "\xE2\x82\xAC",
                                       "\xF0\x9F\x98\x80",
                                       "\xED\xA0\x80",  // a surrogate: not UTF-8
                                       "\xFF",
                                       "\xC3",
                                       "\xEF\xBF\xBE",
                                       "a",
                                       "'",
                                       "]]>"};
  std::string text;
  for (std::uint64_t i = random.below(12); i > 0; --i) {
    text += random.chance(1, 3) ? std::string(1, static_cast<char>(random.below(256)))
                                : pieces[random.below(std::size(pieces))];
  }
  return text;
}

TEST_CASE("decimal: exact to the last digit, also at the limits") {
  CHECK(report::detail::decimal(0, 9) == "0.000000000");
  CHECK(report::detail::decimal(1, 9) == "0.000000001");
  CHECK(report::detail::decimal(-1234, 2) == "-12.34");
  CHECK(report::detail::decimal(std::numeric_limits<std::int64_t>::max(), 9) ==
        "9223372036.854775807");
  CHECK(report::detail::decimal(std::numeric_limits<std::int64_t>::min(), 9) ==
        "-9223372036.854775808");
  CHECK(report::detail::decimal(17, 0) == "17");
  CHECK(report::detail::short_decimal(1250, 2) == "12.5");
  CHECK(report::detail::short_decimal(1200, 2) == "12");
  CHECK(report::detail::short_decimal(0, 2) == "0");
  CHECK(report::detail::short_decimal(-50, 2) == "-0.5");
}

TEST_CASE("scaled: four digits and the prefix that fits") {
  CHECK(report::detail::time_text(Nanos{0}) == "0 ns");
  CHECK(report::detail::time_text(Nanos{999}) == "999 ns");
  CHECK(report::detail::time_text(Nanos{1000}) == "1.000 us");
  CHECK(report::detail::time_text(Nanos{12345}) == "12.35 us");
  CHECK(report::detail::time_text(Nanos{999949}) == "999.9 us");
  CHECK(report::detail::time_text(Nanos{999950}) == "1.000 ms");
  CHECK(report::detail::time_text(Nanos{99995000}) == "100.0 ms");
  CHECK(report::detail::time_text(Nanos{1234567890}) == "1.235 s");
  CHECK(report::detail::time_text(Nanos{-1234567890}) == "-1.235 s");
  CHECK(report::detail::time_text(Nanos{999900000000}) == "999.9 s");
  CHECK(report::detail::time_text(Nanos{9928149999999}) == "9928.1 s");
  CHECK(report::detail::time_text(Nanos::max()) == "9223372036.9 s");
  CHECK(report::detail::bytes_text(Bytes{61203283968}) == "61.20 GB");
  CHECK(report::detail::count_text(977) == "977");
  CHECK(report::detail::count_text(104857) == "104.9 K");
  CHECK(report::detail::count_text(std::numeric_limits<std::int64_t>::max()) == "9223.4 P");
  CHECK(report::detail::percent(0.9314) == "93.1 %");
  CHECK(report::detail::percent(std::numeric_limits<double>::infinity()) == "- %");
}

TEST_CASE("shortest: reads back as the same double") {
  Random random(7);
  for (int draw = 0; draw < 1000; ++draw) {
    const double value = random.unit() * static_cast<double>(random.between(-1000000, 1000000));
    CHECK(nlohmann::json::parse(report::detail::shortest(value)).get<double>() == value);
  }
  CHECK(report::detail::shortest(0.5) == "0.5");
  CHECK(report::detail::shortest(std::numeric_limits<double>::quiet_NaN()) == "0");
}

TEST_CASE("json_escaped: any bytes make a valid string, and valid text comes back") {
  Random random(11);
  for (int draw = 0; draw < 2000; ++draw) {
    const std::string text = random_bytes(random);
    CAPTURE(draw);
    const auto parsed = nlohmann::json::parse("\"" + json_escaped(text) + "\"");
    bool valid = true;
    for (std::string_view rest = text; valid && !rest.empty();) {
      const std::size_t length = utf8_length(rest);
      valid = length > 0;
      rest.remove_prefix(valid ? length : 0);
    }
    if (valid) CHECK(parsed.get<std::string>() == text);
  }
  CHECK(json_escaped("a\"\\\n\xFF") == "a\\\"\\\\\\u000a\\ufffd");
}

TEST_CASE("xml_escaped: no markup, no forbidden character") {
  Random random(13);
  for (int draw = 0; draw < 2000; ++draw) {
    const std::string escaped = report::detail::xml_escaped(random_bytes(random));
    for (std::size_t i = 0; i < escaped.size(); ++i) {
      const auto byte = static_cast<unsigned char>(escaped[i]);
      CHECK(byte != '<');
      CHECK(byte != '>');
      CHECK(byte != '"');
      CHECK((byte >= 0x20U || byte == '\t' || byte == '\n'));
      if (byte == '&') CHECK(escaped.find(';', i) <= i + 5);
    }
    for (std::string_view rest = escaped; !rest.empty();) {
      REQUIRE(utf8_length(rest) > 0);
      rest.remove_prefix(utf8_length(rest));
    }
  }
  CHECK(report::detail::xml_escaped("a<b & \"c\">\x02") ==
        "a&lt;b &amp; &quot;c&quot;&gt;\xEF\xBF\xBD");
}

TEST_CASE("JsonWriter: what is told is what a reader reads") {
  std::ostringstream out;
  JsonWriter json(out);
  json.begin_object();
  json.member("odd \"name\"", "a\\b\n");
  json.member("time", Nanos{1500000000});
  json.member("bytes", Bytes{-3});
  json.member("ratio", 0.25);
  json.member("yes", true);
  json.key("rows");
  json.begin_array();
  for (int row = 0; row < 2; ++row) {
    json.begin_array(JsonLayout::flat);
    json.number(row);
    json.text("x");
    json.end_array();
  }
  json.end_array();
  json.key("empty");
  json.begin_object();
  json.end_object();
  json.end_object();
  json.finish();
  CHECK(out.str() ==
        "{\n \"odd \\\"name\\\"\": \"a\\\\b\\u000a\",\n \"time\": 1.500000000,\n \"bytes\": -3,\n"
        " \"ratio\": 0.25,\n \"yes\": true,\n \"rows\": [\n  [0, \"x\"],\n  [1, \"x\"]\n ],\n"
        " \"empty\": {}\n}\n");
  const auto parsed = nlohmann::json::parse(out.str());
  CHECK(parsed["odd \"name\""] == "a\\b\n");
  CHECK(parsed["rows"][1][0] == 1);
}

TEST_CASE("rate_text, clipped, one_line: for tables and titles") {
  CHECK(report::detail::rate_text(0.449) == "0.4");
  CHECK(report::detail::rate_text(152834.3) == "152.8 K");
  CHECK(report::detail::rate_text(-1) == "-");
  CHECK(report::detail::rate_text(1e300) == "-");
  CHECK(report::detail::clipped("abcd", 4) == "abcd");
  CHECK(report::detail::clipped("abcde", 4) == "abc\xE2\x80\xA6");
  CHECK(report::detail::clipped("\xC3\xA9\xC3\xA9\xC3\xA9", 2) == "\xC3\xA9\xE2\x80\xA6");
  CHECK(report::detail::clipped("", 3).empty());
  CHECK(report::detail::one_line("a\nb\tc") == "a b c");
}

}  // namespace
}  // namespace slimpack
