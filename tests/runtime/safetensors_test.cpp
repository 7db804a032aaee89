// SPDX-License-Identifier: Apache-2.0
#include "slimpack/runtime/detail/safetensors.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "slimpack/core/random.hpp"
#include "slimpack/io/file.hpp"
#include "support/temporary.hpp"

namespace safetensors_test {

using namespace slimpack;

namespace {

std::string little(std::uint64_t value) {
  std::string bytes;
  for (unsigned shift = 0; shift < 64; shift += 8) {
    bytes += static_cast<char>(static_cast<unsigned char>(value >> shift));
  }
  return bytes;
}

/// A file with this header text and so many bytes of data.
std::string file_of(const std::string& header, std::size_t data) {
  return little(header.size()) + header + std::string(data, '\x01');
}

runtime::SafetensorsHeader parse(const std::string& bytes) {
  return runtime::parse_safetensors(std::as_bytes(std::span(bytes)), "x");
}

void refused(const std::string& bytes, const std::string& message) {
  CHECK_THROWS_WITH_AS((void)parse(bytes), message.c_str(), InvalidInput);
}

std::string entry(const std::string& type, const std::string& shape, const std::string& offsets) {
  return R"({"dtype":")" + type + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

}  // namespace

TEST_CASE("safetensors: tensors in the order of their data, metadata, empty and single numbers") {
  const std::string header = R"({"b":)" + entry("BF16", "[2,3]", "[4,16]") + R"(,"a":)" +
                             entry("F32", "[]", "[0,4]") + R"(,"c":)" +
                             entry("I8", "[0,9]", "[16,16]") + R"(,"__metadata__":{"k":"v"}}   )";
  const runtime::SafetensorsHeader read = parse(file_of(header, 16));
  REQUIRE(read.tensors.size() == 3);
  CHECK(read.tensors[0] == runtime::TensorEntry{"a", "F32", {}, 0, 4});
  CHECK(read.tensors[1] == runtime::TensorEntry{"b", "BF16", {2, 3}, 4, 12});
  CHECK(read.tensors[2] == runtime::TensorEntry{"c", "I8", {0, 9}, 16, 0});
  CHECK(read.tensors[0].elements() == 1);
  CHECK(read.tensors[2].elements() == 0);
  CHECK(read.metadata == std::map<std::string, std::string>{{"k", "v"}});
  CHECK(read.data_begin == static_cast<std::int64_t>(8 + header.size()));
  CHECK(parse(file_of("{}", 0)).tensors.empty());
}

TEST_CASE("safetensors: what is written is read back, data at a multiple of 8") {
  Random random(5);
  for (int draw = 0; draw < 50; ++draw) {
    runtime::SafetensorsHeader header;
    for (std::int64_t count = random.between(0, 6); count > 0; --count) {
      runtime::TensorEntry tensor{
          "t\"\n" + std::to_string(count), "F32", {}, header.data_bytes(), 4};
      for (std::int64_t dimension = random.between(0, 3); dimension > 0; --dimension) {
        tensor.shape.push_back(random.between(1, 9));
        tensor.bytes *= tensor.shape.back();
      }
      header.tensors.push_back(tensor);
    }
    if (random.chance(1, 2)) header.metadata = {{"a", "\xc3\xa9"}, {"", ""}};
    const std::string text = runtime::safetensors_header(header);
    CHECK(text.size() % 8 == 0);
    header.data_begin = static_cast<std::int64_t>(text.size());
    CHECK(parse(text + std::string(static_cast<std::size_t>(header.data_bytes()), 'x')) == header);
  }
}

TEST_CASE("safetensors: broken files are refused with file, place, rule and value") {
  refused("1234", "x: byte 4: truncated: a safetensors file begins with 8 bytes, found 4");
  refused(little(3) + "{}",
          "x: byte 0: truncated: the header must end within the file, found 3 of 2");
  refused(little(~std::uint64_t{0}) + "{}",
          "x: byte 0: the header must have at most 100000000 bytes, found 18446744073709551615");
  refused(little(100000001) + "{}",
          "x: byte 0: the header must have at most 100000000 bytes, found 100000001");
  refused(file_of("", 0), "x: byte 8: the header must begin with '{', found ''");
  refused(file_of(" {}", 0), "x: byte 8: the header must begin with '{', found ' '");
  CHECK_THROWS_AS((void)parse(file_of("{\"a\":", 0)), InvalidInput);
  CHECK_THROWS_AS((void)parse(file_of("{} {}", 0)), InvalidInput);
  refused(file_of("{\"a\":5}", 0), "x: a: must be an object, found 5");
  refused(file_of(R"({"a":{"shape":[1],"data_offsets":[0,4]}})", 4),
          "x: a: the key 'dtype' is missing");
  const auto tensor = [](const std::string& inside) { return "{\"a\":" + inside + "}"; };
  refused(file_of(tensor(entry("F99", "[1]", "[0,4]")), 4),
          "x: a.dtype: must be a type of whole bytes that the format names, found 'F99'");
  refused(file_of(tensor(entry("F32", "[-1]", "[0,4]")), 4),
          "x: a.shape[0]: must be an integer in 0 .. 9223372036854775807, found -1");
  refused(file_of(tensor(entry("F32", "4", "[0,4]")), 4), "x: a.shape: must be an array, found 4");
  refused(file_of(tensor(entry("F32", "[4294967296,4294967296]", "[0,4]")), 4),
          "x: a.shape: the tensor must have fewer than 2^63 bytes");
  refused(file_of(tensor(entry("F32", "[2]", "[0,4]")), 4),
          "x: a.data_offsets: dtype and shape need 8 bytes, found 0 .. 4");
  refused(file_of(tensor(entry("F32", "[1]", "[4,0]")), 4),
          "x: a.data_offsets: dtype and shape need 4 bytes, found 4 .. 0");
  refused(file_of(tensor(entry("F32", "[1]", "[0,4,8]")), 4),
          "x: a.data_offsets: must be the first byte and the one after the last, found an array of "
          "3");
  refused(file_of(tensor(entry("F32", "[2]", "[0,8]")), 4),
          "x: a: its data must end within the 4 bytes after the header, found 0 .. 8");
  refused(file_of(tensor(entry("F32", "[1]", "[4,8]")), 8),
          "x: a: its data must begin where those before end, at 0, found 4");
  refused(file_of(tensor(entry("F32", "[1]", "[9223372036854775803,9223372036854775807]")), 8),
          "x: a: its data must begin where those before end, at 0, found 9223372036854775803");
  refused(file_of(tensor(entry("F32", "[1]", "[0,4]")), 5),
          "x: the tensors must fill the 5 bytes after the header, found 4");
  refused(file_of("{\"a\":" + entry("F32", "[2]", "[0,8]") +
                      ",\"b\":" + entry("F32", "[2]", "[4,12]") + "}",
                  12),
          "x: b: its data must begin where those before end, at 8, found 4");
  // Of a name given twice the last counts, and what the first had is then a gap.
  refused(file_of("{\"a\":" + entry("F32", "[1]", "[0,4]") +
                      ",\"a\":" + entry("F32", "[1]", "[4,8]") + "}",
                  8),
          "x: a: its data must begin where those before end, at 0, found 4");
  refused(file_of(R"({"__metadata__":{"k":5}})", 0),
          "x: __metadata__.k: must be a string, found 5");
}

TEST_CASE("SafetensorsFile: elements by range in every floating-point type") {
  const test::TemporaryFolder folder;
  const std::vector<float> values{1, -2, 0.5F, 8, -0.25F, 3};
  for (const runtime::ElementType type :
       {runtime::ElementType::f64, runtime::ElementType::f32, runtime::ElementType::bf16}) {
    runtime::SafetensorsHeader header;
    header.tensors.push_back({"pad", "U8", {3}, 0, 3});
    header.tensors.push_back(
        {"a", std::string(runtime::to_string(type)), {2, 3}, 3, 6 * runtime::element_bytes(type)});
    std::string bytes = runtime::safetensors_header(header) + "xyz";
    std::vector<std::byte> data(static_cast<std::size_t>(6 * runtime::element_bytes(type)));
    runtime::store_elements(std::span(data), std::span<const float>(values), type);
    bytes.append(reinterpret_cast<const char*>(data.data()), data.size());
    const std::string path = folder.file("a.safetensors");
    write_file(path, bytes);
    const runtime::SafetensorsFile file = runtime::SafetensorsFile::open(path);
    std::array<float, 3> row{};
    file.read("a", 3, std::span<float>(row));
    CHECK(row == std::array<float, 3>{8, -0.25F, 3});
    std::array<double, 2> two{};
    file.read("a", 1, std::span<double>(two));
    CHECK(two == std::array<double, 2>{-2, 0.5});
    file.read("a", 6, std::span<double>());
    CHECK_THROWS_WITH_AS(file.read("a", 5, std::span<double>(two)),
                         (path + ": a: elements 5 .. 7 are not within its 6").c_str(),
                         InvalidInput);
    CHECK_THROWS_WITH_AS(file.read("b", 0, std::span<double>(two)),
                         (path + ": the tensor 'b' is missing").c_str(), InvalidInput);
    CHECK_THROWS_WITH_AS(file.read("pad", 0, std::span<double>(two)),
                         (path + ": pad: dtype must be F64, F32, F16 or BF16, found U8").c_str(),
                         InvalidInput);
    const std::array<std::int64_t, 2> right{2, 3}, wrong{3, 2};
    CHECK(file.require_tensor("a", right).name == "a");
    CHECK_THROWS_WITH_AS((void)file.require_tensor("a", wrong),
                         (path + ": a: shape must be [3, 2], found [2, 3]").c_str(), InvalidInput);
  }
}

}  // namespace safetensors_test
