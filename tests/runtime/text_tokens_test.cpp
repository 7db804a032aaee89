// SPDX-License-Identifier: Apache-2.0
#include "slimpack/runtime/text_tokens.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "support/directory.hpp"
#include "support/temporary.hpp"

namespace text_tokens_test {

using namespace slimpack;

namespace {

void write(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

std::string text_of(const runtime::TokenSource& source, std::size_t document) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(source.length(document).value));
  source.read(document, Tokens{0}, ids, runtime::kByteTokens);
  std::string text;
  for (const std::int32_t id : ids) text += static_cast<char>(static_cast<unsigned char>(id));
  return text;
}

std::vector<std::string> texts_of(const runtime::TokenSource& source) {
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < source.documents(); ++i) texts.push_back(text_of(source, i));
  return texts;
}

}  // namespace

TEST_CASE("text: a folder's files in the order of their paths, bytes as tokens") {
  const test::TemporaryFolder folder;
  write(folder.file("b.txt"), "second \xff");
  write(folder.file("a/z.txt"), "first");
  write(folder.file("c/d/e"), "third");
  write(folder.file("empty.txt"), "");
  write(folder.file("binary"), std::string("bin\0ary", 7));
  write(folder.file(".hidden"), "no");
  write(folder.file(".git/config"), "no");
  const runtime::TokenSource source = runtime::open_text_folder(folder.file(""));
  CHECK(texts_of(source) == std::vector<std::string>{"first", "second \xff", "third"});
  CHECK(source.length(1) == Tokens{8});
}

TEST_CASE("text: a large file stays on the disk and is read the same") {
  const test::TemporaryFolder folder;
  std::string text;
  while (text.size() < (std::size_t{1} << 22U) + 5) text += std::to_string(text.size()) + ",";
  write(folder.file("large"), text);
  const std::vector<std::string> paths{folder.file("large")};
  CHECK(text_of(runtime::open_text_files(paths, "x"), 0) == text);
}

TEST_CASE("text: what holds nothing is refused") {
  const test::TemporaryFolder folder;
  write(folder.file("empty"), "");
  const std::vector<std::string> empty{folder.file("empty")}, none{folder.file("none")};
  CHECK_THROWS_WITH_AS((void)runtime::open_text_files(empty, "x"),
                       (folder.file("empty") + ": must not be empty").c_str(), InvalidInput);
  CHECK_THROWS_WITH_AS((void)runtime::open_text_files(none, "x"),
                       ("cannot open '" + none[0] + "': No such file or directory").c_str(),
                       InvalidInput);
  CHECK_THROWS_WITH_AS((void)runtime::open_text_folder(folder.file("")),
                       (folder.file("") + ": holds no text file").c_str(), InvalidInput);
  CHECK_THROWS_WITH_AS((void)runtime::open_text_folder(none[0]),
                       ("cannot open '" + none[0] + "': No such file or directory").c_str(),
                       InvalidInput);
}

TEST_CASE("repository text: sources and documents, some held out by their path alone") {
  const std::string root = std::filesystem::path(test::directory()).parent_path().string();
  const runtime::TextSplit split = runtime::repository_text(root);
  CHECK(split.training.size() >= 10 * split.held_out.size());
  CHECK(split.held_out.size() >= 5);
  const auto has = [&](const std::string& name) {
    const std::string path = (std::filesystem::path(root) / name).string();
    return std::ranges::count(split.training, path) + std::ranges::count(split.held_out, path);
  };
  CHECK(has("README.md") == 1);
  CHECK(has("include/slimpack/slimpack.hpp") == 1);
  CHECK(has("runtime/include/slimpack/runtime/executor.hpp") == 1);
  CHECK(has("report/include/slimpack/report/summary.hpp") == 1);
  CHECK(has("tests/runtime/text_tokens_test.cpp") == 1);
  CHECK(has("examples/data/wikipedia_en.lengths") == 0);
  for (const auto& list : {split.training, split.held_out}) {
    CHECK(std::ranges::is_sorted(list));
    for (const std::string& path : list) {
      CAPTURE(path);
      const auto name = std::filesystem::path(path).lexically_relative(root).generic_string();
      CHECK(runtime::is_held_out(name) == (std::ranges::count(split.held_out, path) == 1));
      CHECK(name.find("build/") == std::string::npos);
    }
  }
  const runtime::TokenSource source = runtime::open_text_files(split.held_out, "held out");
  CHECK(source.documents() == split.held_out.size());
  const test::TemporaryFolder folder;
  CHECK_THROWS_WITH_AS(
      (void)runtime::repository_text(folder.file("")),
      (folder.file("") + ": include/slimpack/slimpack.hpp must lie in the root of the repository")
          .c_str(),
      InvalidInput);
}

TEST_CASE("repository text: the root is found from inside, and nowhere else") {
  const std::filesystem::path root =
      std::filesystem::canonical(std::filesystem::path(test::directory()).parent_path());
  CHECK(runtime::find_repository(test::directory()) == root.string());
  CHECK(runtime::find_repository(root.string()) == root.string());
  CHECK(runtime::find_repository((root / "tests/data/no/such/file").string()) == root.string());
  const test::TemporaryFolder folder;
  CHECK(runtime::find_repository(folder.file("")) == std::nullopt);
}

TEST_CASE("repository text: a new file moves no other between training and held out") {
  const test::TemporaryFolder folder;
  write(folder.file("include/slimpack/slimpack.hpp"), "x");
  for (int i = 0; i < 60; ++i) write(folder.file("docs/" + std::to_string(i) + ".md"), "text");
  write(folder.file("build/a.cpp"), "x");
  write(folder.file("tests/golden/a.txt"), "x");
  const std::string root = folder.file("");
  const runtime::TextSplit before = runtime::repository_text(root);
  CHECK(before.training.size() + before.held_out.size() == 61);
  CHECK(before.held_out.size() >= 1);
  write(folder.file("docs/005.md"), "text");
  const runtime::TextSplit after = runtime::repository_text(root);
  CHECK(std::ranges::includes(after.training, before.training));
  CHECK(std::ranges::includes(after.held_out, before.held_out));
}

}  // namespace text_tokens_test
