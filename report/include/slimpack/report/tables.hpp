// SPDX-License-Identifier: Apache-2.0
// Tables as text: columns to read, and rows of CSV.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "slimpack/core/units.hpp"

namespace slimpack::report {

/// Rows of cells under a header, in columns as wide as their widest cell: the first column stands
/// to the left, the others to the right.
///
///     TextTable table({"planner", "iteration s"});
///     table.add({"megatron", "3.9900"});
///     table.remark({"bfd"}, "infeasible: bytes of memory on device dp 0, pp 0");
///     out << table.text();
class TextTable {
 public:
  /// A table without rows.
  explicit TextTable(std::vector<std::string> header);
  /// A row; it may have more or fewer cells than the header.
  void add(std::vector<std::string> row);
  /// A row of the first cells and a remark that may reach across all other columns.
  void remark(std::vector<std::string> cells, std::string text);
  /// All rows, each with a line feed and without blanks at its end. Widths are in bytes.
  [[nodiscard]] std::string text() const;

 private:
  struct Row {
    std::vector<std::string> cells;
    std::string remark;
  };
  std::vector<std::size_t> width_;
  std::vector<Row> rows_;
};

/// Fields of one row of CSV, quoted where they have to be (RFC 4180, but lines end in one line
/// feed). Times are seconds with nine decimals, doubles the shortest decimals that read back.
class CsvRow {
 public:
  /// A field of text.
  CsvRow& add(std::string_view field);
  /// A time, in seconds.
  CsvRow& add(Nanos time);
  /// A number with a fraction.
  CsvRow& add(double value);
  /// A whole number.
  CsvRow& add(std::int64_t value);
  /// An empty field, for what does not exist.
  CsvRow& none() { return add(std::string_view{}); }
  /// The fields so far, without a line feed.
  [[nodiscard]] const std::string& fields() const noexcept { return text_; }
  /// The row with its line feed.
  [[nodiscard]] std::string text() const { return text_ + '\n'; }

 private:
  std::string text_;
  bool first_ = true;
};

}  // namespace slimpack::report
