// SPDX-License-Identifier: Apache-2.0
#include "slimpack/report/tables.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "slimpack/core/units.hpp"
#include "text.hpp"

namespace slimpack::report {

namespace {

/// One field, quoted where it has to be.
[[nodiscard]] std::string csv_field(std::string_view text) {
  if (text.find_first_of(",\"\r\n") == std::string_view::npos) return std::string(text);
  std::string quoted = "\"";
  for (const char character : text) {
    if (character == '"') quoted += '"';
    quoted += character;
  }
  return quoted + '"';
}

}  // namespace

TextTable::TextTable(std::vector<std::string> header) {
  add(std::move(header));
}

void TextTable::add(std::vector<std::string> row) {
  if (width_.size() < row.size()) width_.resize(row.size());
  for (std::size_t i = 0; i < row.size(); ++i) width_[i] = std::max(width_[i], row[i].size());
  rows_.push_back({std::move(row), {}});
}

void TextTable::remark(std::vector<std::string> cells, std::string text) {
  add(std::move(cells));
  rows_.back().remark = std::move(text);
}

std::string TextTable::text() const {
  std::string text;
  for (const Row& row : rows_) {
    std::string line;
    for (std::size_t i = 0; i < row.cells.size(); ++i) {
      const std::string space(width_[i] - row.cells[i].size(), ' ');
      line += i == 0 ? row.cells[i] + space : "  " + space + row.cells[i];
    }
    if (!row.remark.empty()) line += "  " + row.remark;
    while (!line.empty() && line.back() == ' ') line.pop_back();
    text += line + '\n';
  }
  return text;
}

CsvRow& CsvRow::add(std::string_view field) {
  if (!first_) text_ += ',';
  text_ += csv_field(field);
  first_ = false;
  return *this;
}

CsvRow& CsvRow::add(Nanos time) {
  return add(detail::seconds_text(time));
}

CsvRow& CsvRow::add(double value) {
  return add(detail::shortest(value));
}

CsvRow& CsvRow::add(std::int64_t value) {
  return add(std::to_string(value));
}

}  // namespace slimpack::report
