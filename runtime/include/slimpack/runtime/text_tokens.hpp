// SPDX-License-Identifier: Apache-2.0
// Text as tokens: files and folders whose bytes are the tokens, and this repository's own files.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/io/file_bytes.hpp"
#include "slimpack/runtime/token_source.hpp"

namespace slimpack::runtime {

/// Tokens of the byte tokenizer: each byte is the token of its value.
inline constexpr std::int64_t kByteTokens = 256;

namespace detail {

/// Appends a document; false where it is empty.
inline bool append_text(TokenStore& store, TokenBlock block) {
  const std::size_t size = block.bytes().size();
  if (size == 0) return false;
  constexpr std::size_t kMost = std::size_t{1} << 30U;  // a run counts in 31 bits
  const auto number = static_cast<std::uint32_t>(store.blocks.size());
  for (std::size_t i = 0; i < size; i += kMost) {
    store.runs.push_back({number, static_cast<std::int32_t>(std::min(kMost, size - i)),
                          static_cast<std::int64_t>(i)});
  }
  store.blocks.push_back(std::move(block));
  store.end_document();
  ++store.text_documents;
  return true;
}

/// A large file stays mapped; a small one is copied, so that an editor that shortens it while it is
/// being learned from does no harm, and so that many files need no mapping each.
[[nodiscard]] inline TokenBlock text_block(const std::string& path) {
  constexpr std::size_t kSmall = std::size_t{1} << 22U;
  FileBytes file = FileBytes::open(path);
  if (file.text().size() > kSmall) return {TokenType::u8, std::move(file)};
  return {TokenType::u8, std::string(file.text())};
}

/// Whether the file's beginning looks like text: no byte of it is zero.
[[nodiscard]] inline bool looks_like_text(const TokenBlock& block) {
  constexpr std::size_t kLook = 8192;
  const auto head = block.bytes();
  const auto part = head.first(std::min(kLook, head.size()));
  return std::ranges::find(part, std::byte{0}) == part.end();
}

/// Regular files under a folder, of every depth, without those whose name or folder begins with a
/// dot; '/'-separated paths relative to it, sorted by their bytes.
[[nodiscard]] inline std::vector<std::string> files_below(const std::string& folder) {
  namespace fs = std::filesystem;
  std::error_code error;
  std::vector<std::string> files;
  fs::recursive_directory_iterator entry(folder, error), end;
  if (error) throw InvalidInput("cannot open '" + folder + "': " + error.message());
  while (entry != end) {
    if (entry->path().filename().string().starts_with('.')) {
      entry.disable_recursion_pending();
    } else if (entry->is_regular_file(error)) {
      files.push_back(entry->path().lexically_relative(folder).generic_string());
    }
    entry.increment(error);
    if (error) throw InvalidInput("cannot read '" + folder + "': " + error.message());
  }
  std::ranges::sort(files);
  return files;
}

}  // namespace detail

/// Files of text in the order given, one document each, bytes as tokens. Throws InvalidInput where
/// one cannot be read or is empty. `name` stands for all of them in messages. O(bytes of the small
/// files + files).
[[nodiscard]] inline TokenSource open_text_files(std::span<const std::string> paths,
                                                 std::string name) {
  TokenStore store;
  store.name = std::move(name);
  for (const std::string& path : paths) {
    require(detail::append_text(store, detail::text_block(path)), path + ": must not be empty");
  }
  return TokenSource(std::move(store));
}

/// The files of a folder and of the folders in it, in the order of their paths' bytes, one document
/// each. Passed over: names that begin with a dot, empty files, and files with a zero byte among
/// their first 8192. Throws InvalidInput where none is left.
[[nodiscard]] inline TokenSource open_text_folder(const std::string& folder) {
  TokenStore store;
  store.name = folder;
  for (const std::string& file : detail::files_below(folder)) {
    TokenBlock block = detail::text_block((std::filesystem::path(folder) / file).string());
    if (detail::looks_like_text(block)) detail::append_text(store, std::move(block));
  }
  require(!store.blocks.empty(), folder + ": holds no text file");
  return TokenSource(std::move(store));
}

/// Paths of files to train on and of files that are never trained on.
struct TextSplit {
  std::vector<std::string> training;  ///< files to train on
  std::vector<std::string> held_out;  ///< files to measure the loss on, by is_held_out
};

/// Whether a file is held out, told by its path alone ('/'-separated, relative to the root): about
/// one of sixteen, and none moves when others come or go. FNV-1a of the path, modulo 16, is 0.
[[nodiscard]] inline bool is_held_out(std::string_view relative_path) noexcept {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const char character : relative_path) {
    hash = (hash ^ static_cast<unsigned char>(character)) * 0x100000001b3U;
  }
  return hash % 16 == 0;
}

/// The nearest folder that is the root of this repository: `path` or one it lies in. A program
/// looks from its own file and from the working folder.
[[nodiscard]] inline std::optional<std::string> find_repository(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  fs::path place = fs::weakly_canonical(path, ignored);
  while (!place.empty()) {
    if (fs::is_regular_file(place / "include/slimpack/slimpack.hpp", ignored) &&
        fs::is_regular_file(place / "CMakeLists.txt", ignored)) {
      return place.string();
    }
    if (place == place.parent_path()) break;
    place = place.parent_path();
  }
  return std::nullopt;
}

/// The text of this repository under its root: sources, scripts and documents, sorted, no build
/// folder and no data. Throws InvalidInput where `root` is no such folder.
[[nodiscard]] inline TextSplit repository_text(const std::string& root) {
  namespace fs = std::filesystem;
  static constexpr std::array<std::string_view, 12> kFolders{
      "apps",     "backends", "bench",  "cmake",   "compiled", "docs",
      "examples", "include",  "report", "runtime", "scripts",  "tests"};
  static constexpr std::array<std::string_view, 11> kEndings{
      ".hpp", ".cpp", ".cu", ".cuh", ".js", ".css", ".md", ".py", ".sh", ".cmake", ".txt"};
  std::error_code ignored;
  require(fs::is_regular_file(fs::path(root) / "include/slimpack/slimpack.hpp", ignored),
          root + ": include/slimpack/slimpack.hpp must lie in the root of the repository");
  const auto is_text = [](std::string_view path) {
    return std::ranges::any_of(kEndings, [path](auto ending) { return path.ends_with(ending); }) &&
           path.find("/golden/") == std::string_view::npos &&
           path.find("/corpus/") == std::string_view::npos;
  };
  std::vector<std::string> files;
  for (const auto& entry : fs::directory_iterator(root, ignored)) {
    const std::string name = entry.path().filename().string();
    if (entry.is_regular_file(ignored) && is_text(name)) files.push_back(name);
  }
  for (const std::string_view folder : kFolders) {
    const std::string inside = (fs::path(root) / folder).string();
    if (!fs::is_directory(inside, ignored)) continue;
    for (const std::string& file : detail::files_below(inside)) {
      std::string path = std::string(folder) + "/" + file;
      if (is_text(path)) files.push_back(std::move(path));
    }
  }
  std::ranges::sort(files);
  TextSplit split;
  for (const std::string& file : files) {
    const fs::path path = fs::path(root) / file;
    if (fs::file_size(path, ignored) == 0) continue;
    (is_held_out(file) ? split.held_out : split.training).push_back(path.string());
  }
  return split;
}

}  // namespace slimpack::runtime
