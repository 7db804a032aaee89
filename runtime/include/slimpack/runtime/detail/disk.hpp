// SPDX-License-Identifier: Apache-2.0
// Files that outlive a fault: reserved at full size, written in place, made durable, then renamed.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "slimpack/core/error.hpp"

namespace slimpack::runtime::detail {

[[noreturn]] inline void refuse_disk(std::string_view verb, std::string_view path, int code) {
  throw InvalidInput("cannot " + std::string(verb) + " '" + std::string(path) +
                     "': " + std::strerror(code));
}

/// An open file that several threads or processes write at places of their own. Every failure
/// throws InvalidInput with file and cause.
class DiskFile {
 public:
  /// Makes a new file of `bytes` bytes with room on the disk; refuses one that exists.
  [[nodiscard]] static DiskFile create(const std::string& path, std::int64_t bytes) {
    DiskFile file(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC);
    if (bytes > 0) file.reserve(bytes);
    return file;
  }
  [[nodiscard]] static DiskFile open(const std::string& path) {
    return DiskFile(path, O_WRONLY | O_CLOEXEC);
  }

  DiskFile(DiskFile&& other) noexcept
      : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}
  DiskFile& operator=(DiskFile&& other) noexcept {
    std::swap(path_, other.path_);
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  DiskFile(const DiskFile&) = delete;
  DiskFile& operator=(const DiskFile&) = delete;
  ~DiskFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }

  /// Writes all bytes at `offset`. Distinct ranges may be written at the same time.
  void write(std::span<const std::byte> bytes, std::int64_t offset) const {
    while (!bytes.empty()) {
      const auto done = ::pwrite(descriptor_, bytes.data(), bytes.size(), off_t{offset});
      if (done < 0 && errno == EINTR) continue;
      if (done <= 0) refuse_disk("write", path_, done < 0 ? errno : EIO);
      bytes = bytes.subspan(static_cast<std::size_t>(done));
      offset += done;
    }
  }

  /// Waits until what has been written is on the disk, then closes.
  void finish() {
    if (::fsync(descriptor_) != 0) refuse_disk("write", path_, errno);
    if (::close(std::exchange(descriptor_, -1)) != 0) refuse_disk("write", path_, errno);
  }

 private:
  DiskFile(const std::string& path, int flags)
      : path_(path), descriptor_(::open(path.c_str(), flags, 0666)) {
    if (descriptor_ < 0) refuse_disk("write", path, errno);
  }

  void reserve(std::int64_t bytes) const {
#if defined(__linux__)
    // A full disk is told before anything is written.
    const int code = ::posix_fallocate(descriptor_, 0, off_t{bytes});
    if (code == 0) return;
    if (code != EOPNOTSUPP && code != EINVAL) refuse_disk("write", path_, code);
#endif
    if (::ftruncate(descriptor_, off_t{bytes}) != 0) refuse_disk("write", path_, errno);
  }

  std::string path_;
  int descriptor_ = -1;
};

/// Waits until the names in a folder are on the disk.
inline void sync_folder(const std::string& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) refuse_disk("open", folder, errno);
  // File systems without names to be made durable refuse; what they can promise they have done.
  const int code = ::fsync(descriptor) == 0 || errno == EINVAL ? 0 : errno;
  ::close(descriptor);
  if (code != 0) refuse_disk("write", folder, code);
}

inline void rename_over(const std::string& from, const std::string& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0) refuse_disk("write", to, errno);
}

}  // namespace slimpack::runtime::detail
