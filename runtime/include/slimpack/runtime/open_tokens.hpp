// SPDX-License-Identifier: Apache-2.0
// The tokens of documents from a path of any supported form, told by its name and what it is.
#pragma once

#include <array>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>

#include "slimpack/runtime/detail/jsonl_tokens.hpp"
#include "slimpack/runtime/detail/megatron_tokens.hpp"
#include "slimpack/runtime/text_tokens.hpp"
#include "slimpack/runtime/token_source.hpp"

namespace slimpack::runtime {

/// A folder is text files; `.idx`, `.bin`, or the common prefix of both where nothing else has that
/// name, a Megatron indexed dataset; `.jsonl` JSON lines; any other file one document of text.
/// Throws InvalidInput.
[[nodiscard]] inline TokenSource open_tokens(const std::string& path) {
  namespace fs = std::filesystem;
  const std::string_view name = path;
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) return open_text_folder(path);
  if (name.ends_with(".idx") || name.ends_with(".bin")) return open_megatron_tokens(path);
  if (name.ends_with(".jsonl")) return open_jsonl_tokens(path);
  if (!fs::exists(path, ignored) && fs::exists(path + ".idx", ignored)) {
    return open_megatron_tokens(path);
  }
  const std::array<std::string, 1> files{path};
  return open_text_files(files, path);
}

}  // namespace slimpack::runtime
