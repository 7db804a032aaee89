// SPDX-License-Identifier: Apache-2.0
#include "result_store.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "matrix.hpp"
#include "slimpack/io/file.hpp"
#include "slimpack/io/json_reader.hpp"

namespace slimpack::app {

ResultStore::ResultStore(const std::string& path) : path_(path) {
  file_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  require(file_ >= 0, "--store: cannot open '" + path + "': " + std::strerror(errno));
  try {
    require(::flock(file_, LOCK_EX | LOCK_NB) == 0,
            "--store: '" + path + "' is in use by another run");
    const std::string content = read_file(path);
    const std::size_t whole =
        content.rfind('\n') == std::string::npos ? 0 : content.rfind('\n') + 1;
    std::size_t number = 0;
    for (std::size_t i = 0; i < whole;) {
      const std::size_t end = content.find('\n', i);
      take(std::string_view(content).substr(i, end - i), ++number);
      i = end + 1;
    }
    if (whole < content.size()) {
      dropped_torn_ = true;
      require(::ftruncate(file_, static_cast<off_t>(whole)) == 0,
              "--store: cannot write '" + path + "': " + std::strerror(errno));
    }
  } catch (...) {
    ::close(file_);
    throw;
  }
}

ResultStore::~ResultStore() {
  ::close(file_);
}

const nlohmann::json* ResultStore::find(const std::string& key) const {
  const auto found = results_.find(key);
  return found == results_.end() ? nullptr : &found->second;
}

void ResultStore::take(std::string_view line, std::size_t number) {
  const std::string place = path_ + ": line " + std::to_string(number);
  nlohmann::json value = parse_json(line, place);
  const JsonReader reader(value, place);
  reader.at("version").check(
      reader.at("version").integer(1, 1 << 30) == kResultsVersion,
      "must be " + std::to_string(kResultsVersion) +
          ": results of several versions are not kept in one store; give a new file");
  if (reader.find("matrix")) {
    matrix_ = line;
    return;
  }
  const std::string key = reader.at("key").text();
  require(results_.emplace(key, std::move(value)).second,
          place + ": is there twice: '" + key + "'");
}

void ResultStore::write(const std::string& line) {
  const std::string whole = line + '\n';
  std::size_t i = 0;
  while (i < whole.size()) {
    const ssize_t written = ::write(file_, whole.data() + i, whole.size() - i);
    if (written < 0 && errno == EINTR) continue;
    require(written > 0, "--store: cannot write '" + path_ + "': " + std::strerror(errno));
    i += static_cast<std::size_t>(written);
  }
  require(::fsync(file_) == 0 || errno == EINVAL,  // a pipe or device has nothing to wait for
          "--store: cannot write '" + path_ + "': " + std::strerror(errno));
}

void ResultStore::append(const std::string& line) {
  nlohmann::json value = nlohmann::json::parse(line);
  std::string key = value.at("key").get<std::string>();
  write(line);
  results_.emplace(std::move(key), std::move(value));
}

void ResultStore::describe(const std::string& line) {
  if (line == matrix_) return;
  write(line);
  matrix_ = line;
}

}  // namespace slimpack::app
