// SPDX-License-Identifier: Apache-2.0
// Results of an evaluation in a file of JSON lines that survives being killed at any moment.
#pragma once

#include <cstddef>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "slimpack/core/error.hpp"

namespace slimpack::app {

/// One line a result, appended when it is there and never changed. The file is locked while it is
/// open. Not for use by several threads at once.
class ResultStore {
 public:
  /// Opens or creates. A last line without its end is what a killed run left: it is cut off, and
  /// `dropped_torn` says so. Throws InvalidInput, naming file and line, for a line that is no
  /// result, results of another version, and a file that another run has open.
  explicit ResultStore(const std::string& path);
  ResultStore(const ResultStore&) = delete;
  ResultStore& operator=(const ResultStore&) = delete;
  ~ResultStore();

  [[nodiscard]] bool dropped_torn() const noexcept { return dropped_torn_; }
  [[nodiscard]] bool has(const std::string& key) const { return results_.contains(key); }
  /// A result by its key, or null.
  [[nodiscard]] const nlohmann::json* find(const std::string& key) const;
  /// Appends a result and waits until it is on disk. `line` is one JSON object without line feed
  /// that has `version` and `key`. Throws InvalidInput if it cannot be written.
  void append(const std::string& line);
  /// Appends the matrix that is worked on, unless the last one in the file is the same.
  void describe(const std::string& line);

 private:
  void take(std::string_view line, std::size_t number);
  void write(const std::string& line);

  std::string path_;
  int file_ = -1;
  bool dropped_torn_ = false;
  std::string matrix_;  ///< the last line that describes one
  std::map<std::string, nlohmann::json> results_;
};

}  // namespace slimpack::app
