// SPDX-License-Identifier: Apache-2.0
// A folder for a test's files, gone with the test.
#pragma once

#include <filesystem>
#include <random>
#include <string>

namespace slimpack::test {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::random_device device;
    do {
      path_ =
          std::filesystem::temp_directory_path() / ("slimpack_io_test_" + std::to_string(device()));
    } while (!std::filesystem::create_directory(path_));
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  [[nodiscard]] std::string file(const std::string& name) const { return (path_ / name).string(); }
  [[nodiscard]] std::size_t entries() const {
    std::size_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      static_cast<void>(entry);
      ++count;
    }
    return count;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace slimpack::test
