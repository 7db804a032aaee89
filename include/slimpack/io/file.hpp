// SPDX-License-Identifier: Apache-2.0
// Whole files in and out: read with a clear message, written beside their name and renamed.
#pragma once

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>

#include "slimpack/core/error.hpp"
#include "slimpack/io/file_bytes.hpp"

namespace slimpack {

/// The content of a file; `-` is standard input. Throws InvalidInput naming file and cause.
[[nodiscard]] inline std::string read_file(const std::string& path) {
  return std::string(FileBytes::open(path).text());
}

namespace detail {

/// Writes all of `content` and closes. 0, or the error number.
[[nodiscard]] inline int write_and_close(std::FILE* stream, std::string_view content) noexcept {
  errno = 0;
  const bool written = std::fwrite(content.data(), 1, content.size(), stream) == content.size();
  const int write_error = errno;
  const bool closed = std::fclose(stream) == 0;
  if (!written) return write_error != 0 ? write_error : EIO;
  if (!closed) return errno != 0 ? errno : EIO;
  return 0;
}

[[noreturn]] inline void refuse_write(const std::string& path, int code) {
  throw InvalidInput("cannot write '" + path + "': " + std::strerror(code));
}

/// A new file beside `path`, or beside what `path` links to.
struct FileBeside {
  std::string target, name;
  std::FILE* stream = nullptr;

  explicit FileBeside(const std::string& path) {
    std::error_code ignored;
    const bool there = std::filesystem::exists(path, ignored);
    target = there ? std::filesystem::canonical(path, ignored).string() : path;
    // Exclusive creation: two writers of one name never share a temporary.
    for (int attempt = 0; stream == nullptr; ++attempt) {
      name = target + ".part" + std::to_string(attempt);
      stream = std::fopen(name.c_str(), "wbx");
      if (stream == nullptr && (errno != EEXIST || attempt == 999)) refuse_write(path, errno);
    }
  }
};

}  // namespace detail

/// Throws what `write_file` would throw now, and leaves everything as it is: for work that is long
/// before its result is written.
inline void check_writable(const std::string& path) {
  std::error_code ignored;
  const std::filesystem::file_status status = std::filesystem::status(path, ignored);
  if (std::filesystem::is_directory(status)) detail::refuse_write(path, EISDIR);
  if (path == "-") return;
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) return;
  const detail::FileBeside beside(path);
  std::fclose(beside.stream);
  std::remove(beside.name.c_str());
}

/// Writes a file so that nobody ever sees a part of it: beside its name, then renamed over it; the
/// temporary is removed if anything fails. `-` is standard output; devices and pipes are written to
/// directly; a symbolic link keeps pointing at the file that is replaced.
/// Throws InvalidInput naming file and cause.
inline void write_file(const std::string& path, std::string_view content) {
  namespace fs = std::filesystem;
  if (path == "-") {
    const bool written = std::fwrite(content.data(), 1, content.size(), stdout) == content.size() &&
                         std::fflush(stdout) == 0;
    if (!written) detail::refuse_write("standard output", errno);
    return;
  }
  std::error_code ignored;
  const fs::file_status status = fs::status(path, ignored);
  if (fs::is_directory(status)) detail::refuse_write(path, EISDIR);
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    std::FILE* stream = std::fopen(path.c_str(), "wb");
    const int code = stream == nullptr ? errno : detail::write_and_close(stream, content);
    if (code != 0) detail::refuse_write(path, code);
    return;
  }
  const detail::FileBeside beside(path);
  int code = detail::write_and_close(beside.stream, content);
  if (code == 0 && std::rename(beside.name.c_str(), beside.target.c_str()) != 0) code = errno;
  if (code != 0) {
    std::remove(beside.name.c_str());
    detail::refuse_write(path, code);
  }
}

}  // namespace slimpack
