// SPDX-License-Identifier: Apache-2.0
// Choices of algorithms that one run writes and others read, on the stand-in for cuBLASLt.
#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cuda/host/host_blas.hpp"
#include "slimpack/core/random.hpp"
#include "slimpack_cuda/gemm.hpp"
#include "slimpack_cuda/gemm_choices_file.hpp"

namespace slimpack::cuda::choices_file_test {
namespace {

constexpr LinearShape kShape{5, 16, 24};

using Counts = std::array<std::int64_t, 4>;

/// Products by algorithm of two forward passes of so many rows.
Counts products_of(GemmChoices* choices, std::int64_t rows = kShape.rows) {
  const DeviceBuffer<std::byte> workspace(1024);
  const DeviceBuffer<Bf16> in(rows * 16), weight(24 * 16), out(rows * 24);
  for (const auto& matrix : {in.span(), weight.span()}) {
    for (std::int64_t i = 0; i < matrix.size; ++i) matrix.data[i] = to_bf16(1);
  }
  Gemm gemm(workspace.span(), 0, choices);
  test::products_of_algorithm = {};
  for (int i = 0; i < 2; ++i) {
    gemm.forward(out.span(), in.span(), weight.span(), {rows, 16, 24}, {});
  }
  return test::products_of_algorithm;
}

const GemmOrigin kHere{"GPU of a test", 130100};

GemmChoicesFile parsed(const std::string& text) {
  return parse_gemm_choices(text, "c.csv", kHere);
}
std::string refused(const std::string& text) {
  try {
    (void)parsed(text);
  } catch (const InvalidInput& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("gemm choices: a run that reads those of another takes the same and times nothing") {
  GemmChoices timed(4);
  CHECK(products_of(&timed) == Counts{6, 0, 8, 6});
  const GemmChoicesFile written{kHere, timed.candidates(), timed.made()};
  const GemmChoicesFile read = parsed(gemm_choices_text(written));
  CHECK(read == written);
  for (int rank = 0; rank < 2; ++rank) {
    GemmChoices rank_of_it(read.candidates, read.choices);
    CHECK(products_of(&rank_of_it) == Counts{0, 0, 2, 0});
    CHECK(products_of(&rank_of_it, 6) == Counts{2, 0, 0, 0});  // not in the file: the first
    CHECK(rank_of_it.made() == written.choices);
  }
}

TEST_CASE("gemm choices: without an object nothing is asked for but the first") {
  CHECK(products_of(nullptr) == Counts{2, 0, 0, 0});
}

TEST_CASE("gemm choices: one that is not proposed is refused") {
  std::vector<GemmChoice> made = [] {
    GemmChoices timed(4);
    (void)products_of(&timed);
    return timed.made();
  }();
  made.front().choice = 4;
  GemmChoices choices(9, made);
  CHECK_THROWS_WITH_AS(
      (void)products_of(&choices),
      "gemm: the choice for the forward of 5 rows, 16 inputs, 24 outputs must be one of "
      "the 4 that cuBLASLt proposes, counted from 0, got 4",
      InvalidInput);
}

TEST_CASE("gemm choices: random files are read as they were written") {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    GemmChoices choices(static_cast<int>(random.between(2, 20)));
    for (std::int64_t i = random.between(0, 30); i > 0; --i) {
      GemmKey key;
      key.product = static_cast<LinearProduct>(random.below(3));
      key.shape = {random.between(1, 9999), random.between(1, 9999), random.between(1, 9999)};
      key.single = random.chance(1, 2);
      key.adds = random.chance(1, 2);
      key.aligned = 1 << random.below(5);
      choices.keep(static_cast<int>(random.between(0, 132)), key,
                   random.below(static_cast<std::uint64_t>(choices.candidates())));
    }
    const GemmChoicesFile file{kHere, choices.candidates(), choices.made()};
    const std::string text = gemm_choices_text(file);
    CHECK(parsed(text) == file);
    CHECK(gemm_choices_text(parsed(text)) == text);
  }
}

TEST_CASE("gemm choices: a bad file is refused in one sentence") {
  const std::string heading =
      "# device: GPU of a test\n# cublaslt: 130100\n# candidates: 8\n"
      "product,rows,inputs,outputs,result,adds,aligned,multiprocessors,choice\n";
  const std::string line = "forward,5,16,24,bf16,0,16,0,2\n";
  CHECK(refused(heading) == "");
  CHECK(refused(heading + line) == "");
  const std::pair<std::string, std::string> cases[] = {
      {"", "c.csv: choices of products must begin with 4 lines of heading, got 0"},
      {heading.substr(0, heading.find("# cand")),
       "c.csv: choices of products must begin with 4 lines of heading, got 2"},
      {"kind,pass\n", "c.csv:1: the line must be '# device: VALUE', got 'kind,pass'"},
      {"# device: another\n",
       "c.csv:1: choices must be of this device, 'GPU of a test', got 'another'"},
      {"# device: GPU of a test\n# cublaslt: 120000\n",
       "c.csv:2: choices must be of this version of cuBLASLt, 130100, got '120000'"},
      {"# device: GPU of a test\n# cublaslt: 130100\n# candidates: 1\n",
       "c.csv:3: candidates must be an integer in 2 .. 1000, got '1'"},
      {"# device: GPU of a test\n# cublaslt: 130100\n# candidates: 8\nproduct\n",
       "c.csv:4: the header must be 'product,rows,inputs,outputs,result,adds,aligned,"
       "multiprocessors,choice', got 'product'"},
      {heading + "forward,5,16,24,bf16,0,16,0\n", "c.csv:5: a line must have 9 columns, got 8"},
      {heading + "backward,5,16,24,bf16,0,16,0,2\n",
       "c.csv:5: column 'product' must be one of forward input_gradient weight_gradient, got "
       "'backward'"},
      {heading + "forward,0,16,24,bf16,0,16,0,2\n",
       "c.csv:5: column 'rows' must be an integer in 1 .. 2147483647, got '0'"},
      {heading + "forward,5,16,24,fp16,0,16,0,2\n",
       "c.csv:5: column 'result' must be one of bf16 fp32, got 'fp16'"},
      {heading + "forward,5,16,24,bf16,0,16,0,8\n",
       "c.csv:5: column 'choice' must be an integer in 0 .. 7, got '8'"},
      {heading + line + line,
       "c.csv:6: a product must be there once, got 'forward,5,16,24,bf16,0,16,0,2'"},
  };
  for (const auto& [text, sentence] : cases) CHECK(refused(text) == sentence);
}

}  // namespace slimpack::cuda::choices_file_test
