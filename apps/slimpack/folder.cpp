// SPDX-License-Identifier: Apache-2.0
#include "folder.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>

#include "slimpack/core/error.hpp"

namespace slimpack::app {

namespace fs = std::filesystem;

void check_folder(std::string_view option, const std::string& path) {
  std::error_code error;
  require(!fs::exists(path, error) || (fs::is_directory(path, error) && fs::is_empty(path, error)),
          fmt::format("{}: must be a new or an empty folder", option), path);
}

std::string write_folder(std::string_view option, const std::string& path,
                         const std::function<void(const std::string& folder)>& write) {
  std::error_code error;
  const fs::path target = fs::path(path).lexically_normal();
  const fs::path named = target.has_filename() ? target : target.parent_path();
  const fs::path staging = named.string() + fmt::format(".partial.{}", ::getpid());
  require(fs::create_directories(staging, error),
          fmt::format("{}: '{}' cannot be made ({})", option, staging.string(), error.message()));
  try {
    write(staging.string());
    fs::remove(named, error);
    fs::rename(staging, named);
  } catch (...) {
    fs::remove_all(staging, error);
    throw;
  }
  return named.string();
}

}  // namespace slimpack::app
