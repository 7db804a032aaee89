// SPDX-License-Identifier: Apache-2.0
// The bytes of a whole file: mapped into memory where the system can, else read; or standard input.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"

#if defined(__unix__) || defined(__APPLE__)
#define SLIMPACK_HAS_MMAP 1
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#endif

namespace slimpack {

/// Owns the content of a file. A regular file is mapped, so that a large one costs no copy; pipes
/// and other systems are read to their end.
class FileBytes {
 public:
  /// Throws InvalidInput naming file and cause where it cannot be opened or read. `-` is standard
  /// input.
  [[nodiscard]] static FileBytes open(const std::string& path) {
    FileBytes file;
    if (path == "-") {
      file.read_all(stdin, "standard input");
      return file;
    }
    if (file.map(path)) return file;
    std::FILE* stream = std::fopen(path.c_str(), "rb");
    if (stream == nullptr) fail(path, "open", errno);
    try {
      file.read_all(stream, path);
    } catch (...) {
      std::fclose(stream);
      throw;
    }
    std::fclose(stream);
    return file;
  }

  /// Takes the content over; `other` is empty afterwards.
  FileBytes(FileBytes&& other) noexcept
      : owned_(std::move(other.owned_)),
        mapped_(std::exchange(other.mapped_, nullptr)),
        size_(std::exchange(other.size_, 0)) {}
  /// Swaps the contents.
  FileBytes& operator=(FileBytes&& other) noexcept {
    std::swap(owned_, other.owned_);
    std::swap(mapped_, other.mapped_);
    std::swap(size_, other.size_);
    return *this;
  }
  FileBytes(const FileBytes&) = delete;
  FileBytes& operator=(const FileBytes&) = delete;
  ~FileBytes() {
#if defined(SLIMPACK_HAS_MMAP)
    if (mapped_ != nullptr) ::munmap(mapped_, size_);
#endif
  }

  /// The content as text, which lives as long as this object is neither moved nor assigned to.
  [[nodiscard]] std::string_view text() const noexcept {
    return mapped_ != nullptr ? std::string_view(static_cast<const char*>(mapped_), size_)
                              : std::string_view(owned_);
  }
  /// The same content as bytes.
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept {
    return std::as_bytes(std::span(text()));
  }

 private:
  FileBytes() = default;

  [[noreturn]] static void fail(const std::string& path, std::string_view verb, int code) {
    throw InvalidInput("cannot " + std::string(verb) + " '" + path + "': " + std::strerror(code));
  }

  /// False where `path` is no regular file with content; the caller then reads it.
  bool map([[maybe_unused]] const std::string& path) {
#if defined(SLIMPACK_HAS_MMAP)
    const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) fail(path, "open", errno);
    struct stat status{};
    const bool regular =
        ::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode) && status.st_size > 0;
    if (regular) {
      const auto size = static_cast<std::size_t>(status.st_size);
      void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor, 0);
      if (address != MAP_FAILED) {
        mapped_ = address;
        size_ = size;
      }
    }
    ::close(descriptor);
#endif
    return mapped_ != nullptr;
  }

  void read_all(std::FILE* stream, const std::string& name) {
    std::vector<char> block(std::size_t{1} << 20U);
    while (true) {
      const std::size_t got = std::fread(block.data(), 1, block.size(), stream);
      owned_.append(block.data(), got);
      if (got < block.size()) break;
    }
    if (std::ferror(stream) != 0) fail(name, "read", errno);
  }

  std::string owned_;
  void* mapped_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace slimpack
