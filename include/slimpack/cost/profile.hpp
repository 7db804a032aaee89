// SPDX-License-Identifier: Apache-2.0
// Reads and writes profile.csv: measured times of layers, embedding, head, optimizer and traffic.
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/plan/plan.hpp"

namespace slimpack {

enum class ProfileKind : std::uint8_t { layer, embedding, head, optimizer, p2p, reduce, exchange };

inline constexpr std::array<std::string_view, 7> kProfileKinds = {
    "layer", "embedding", "head", "optimizer", "p2p", "reduce", "exchange"};

/// One measurement. `pass` is there for layers and the embedding alone; docs/costs.md says what
/// each kind measures and which columns it uses.
struct ProfileRow {
  ProfileKind kind = ProfileKind::layer;
  std::optional<Pass> pass;
  Tokens tokens;
  double pairs = 0;  ///< sum over slices of s (prefix + s/2)
  std::int64_t segments = 0;
  std::int64_t layers = 0;
  std::int64_t ranks = 1;
  Bytes bytes;
  double seconds = 0;
  friend bool operator==(const ProfileRow&, const ProfileRow&) = default;
};

inline constexpr std::string_view kProfileHeader =
    "kind,pass,tokens,pairs,segments,layers,ranks,bytes,seconds";

/// Reads the text of a profile; `name` is the file's name for messages. Lines end in LF or CRLF;
/// blank lines are skipped; no quoting. `pass` is `forward` or `backward` for layers and the
/// embedding; the rest have one fit for both, so it may also be `-` or empty there.
/// Throws InvalidInput naming file, line, column, rule and value. O(text).
[[nodiscard]] std::vector<ProfileRow> parse_profile(std::string_view text, const std::string& name);

/// Writes what `parse_profile` reads back to equal rows: shortest digits, whatever the locale.
/// A pass that is absent is `-`. O(rows).
void write_profile(std::ostream& out, std::span<const ProfileRow> rows);

namespace detail {

/// One line of a profile, cut into columns, with the place for messages.
class ProfileLine {
 public:
  static constexpr std::size_t kColumns = 9;
  static constexpr std::array<std::string_view, kColumns> kNames = {
      "kind", "pass", "tokens", "pairs", "segments", "layers", "ranks", "bytes", "seconds"};

  ProfileLine(std::string_view line, std::string place) : place_(std::move(place)) {
    std::size_t column = 0;
    for (;;) {
      const std::size_t comma = line.find(',');
      if (column < kColumns) fields_[column] = line.substr(0, comma);
      ++column;
      if (comma == std::string_view::npos) break;
      line.remove_prefix(comma + 1);
    }
    require(column == kColumns, place_ + ": a line must have 9 columns",
            static_cast<std::int64_t>(column));
  }

  [[nodiscard]] std::string_view text(std::size_t column) const { return fields_[column]; }

  [[nodiscard]] std::int64_t integer(std::size_t column, std::int64_t least) const {
    const std::string_view field = fields_[column];
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), value);
    const bool read = error == std::errc{} && end == field.data() + field.size();
    check(read && value >= least, column, "an integer >= " + std::to_string(least));
    return value;
  }

  [[nodiscard]] double number(std::size_t column, bool positive) const {
    const std::string_view field = fields_[column];
    double value = 0;
    const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), value);
    const bool read = error == std::errc{} && end == field.data() + field.size();
    check(read && std::isfinite(value) && (positive ? value > 0 : value >= 0), column,
          positive ? "a finite number > 0" : "a finite number >= 0");
    return value;
  }

  void check(bool condition, std::size_t column, const std::string& rule) const {
    require(condition, place_ + ": column '" + std::string(kNames[column]) + "' must be " + rule,
            fields_[column]);
  }

 private:
  std::string place_;
  std::array<std::string_view, kColumns> fields_{};
};

[[nodiscard]] inline ProfileRow profile_row(const ProfileLine& line) {
  ProfileRow row;
  const auto* kind = std::find(kProfileKinds.begin(), kProfileKinds.end(), line.text(0));
  line.check(kind != kProfileKinds.end(), 0,
             "layer, embedding, head, optimizer, p2p, reduce or exchange");
  row.kind = static_cast<ProfileKind>(kind - kProfileKinds.begin());
  const std::string_view pass = line.text(1);
  if (row.kind == ProfileKind::layer || row.kind == ProfileKind::embedding) {
    line.check(pass == "forward" || pass == "backward", 1, "forward or backward");
    row.pass = pass == "forward" ? Pass::forward : Pass::backward;
  } else {
    line.check(pass.empty() || pass == "-" || pass == "forward" || pass == "backward", 1,
               "forward, backward, - or empty");
  }
  const bool by_tokens = row.kind <= ProfileKind::head;
  const bool layer = row.kind == ProfileKind::layer;
  row.tokens = {line.integer(2, by_tokens ? 1 : 0)};
  row.pairs = line.number(3, layer);
  row.segments = line.integer(4, layer ? 1 : 0);
  row.layers = line.integer(5, layer ? 1 : 0);
  row.ranks = line.integer(6, 1);
  line.check(!by_tokens || row.ranks == 1, 6, "1 for layer, embedding and head");
  row.bytes = {line.integer(7, 0)};
  row.seconds = line.number(8, true);
  return row;
}

}  // namespace detail

inline std::vector<ProfileRow> parse_profile(std::string_view text, const std::string& name) {
  std::vector<ProfileRow> rows;
  bool header = false;
  for (std::int64_t number = 1; !text.empty(); ++number) {
    const std::size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    const std::string place = name + ":" + std::to_string(number);
    if (!header) {
      require(line == kProfileHeader, place + ": the header must be " + std::string(kProfileHeader),
              line);
      header = true;
      continue;
    }
    rows.push_back(detail::profile_row(detail::ProfileLine(line, place)));
  }
  require(!rows.empty(), name + ": no measurement");
  return rows;
}

inline void write_profile(std::ostream& out, std::span<const ProfileRow> rows) {
  const auto digits = [](auto value) {
    std::array<char, 32> text{};
    return std::string(text.data(),
                       std::to_chars(text.data(), text.data() + text.size(), value).ptr);
  };
  std::string text(kProfileHeader);
  for (const ProfileRow& row : rows) {
    text += '\n';
    text += kProfileKinds[static_cast<std::size_t>(row.kind)];
    text += !row.pass ? ",-" : row.pass == Pass::forward ? ",forward" : ",backward";
    for (const std::string& column :
         {digits(row.tokens.value), digits(row.pairs), digits(row.segments), digits(row.layers),
          digits(row.ranks), digits(row.bytes.value), digits(row.seconds)}) {
      text += ',' + column;
    }
  }
  out << text << '\n';
}

}  // namespace slimpack
