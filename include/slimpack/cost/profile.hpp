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
#include "slimpack/plan/measured_on.hpp"
#include "slimpack/plan/plan.hpp"

namespace slimpack {

/// What a row of a profile measures.
enum class ProfileKind : std::uint8_t {
  layer,
  apart,
  weight,
  embedding,
  head,
  optimizer,
  p2p,
  reduce,
  exchange,
  tensor,
  context,
  light
};

/// The words of ProfileKind in files, in its order.
inline constexpr std::array<std::string_view, 12> kProfileKinds = {
    "layer", "apart",  "weight",   "embedding", "head", "optimizer",
    "p2p",   "reduce", "exchange", "tp",        "cp",   "light"};

/// One measurement; docs/costs.md says what each kind measures and which columns it uses.
struct ProfileRow {
  ProfileKind kind = ProfileKind::layer;  ///< what was measured
  std::optional<Pass> pass;   ///< of layers, groups, `tensor` in units, and the embedding
  Tokens tokens;              ///< of the unit, where it has any
  double pairs = 0;           ///< sum over slices of s (prefix + s/2)
  std::int64_t segments = 0;  ///< of units with attention: runs of query rows
  std::int64_t layers = 0;    ///< of units with layers: how many the unit ran through
  std::int64_t ranks = 1;     ///< that take part in the traffic
  Bytes bytes;                ///< that one device sends, or that the optimizer touches
  double seconds = 0;         ///< above 0
  std::int64_t keys =
      0;  ///< of units with attention: sum over slices of prefix + length; 0: not told
  Bytes accumulator_bytes{};  ///< of B and W: gradients of weights that are read and written
  Bytes weight_bytes{};       ///< of units with attention: weights that the unit reads
  double own_pairs = 0;       ///< of `pairs`, sum over slices of s^2/2; 0: not told
  friend bool operator==(const ProfileRow&, const ProfileRow&) = default;
};

/// A profile.csv: its measurements, and what they were measured on as far as the file tells.
struct Profile {
  MeasuredOn measured;           ///< model and device, where the file tells them
  std::vector<ProfileRow> rows;  ///< in the order of the file
  friend bool operator==(const Profile&, const Profile&) = default;
};

/// The columns of a profile. A file must have the first nine; the others are 0 where it has not.
inline constexpr std::array<std::string_view, 13> kProfileColumns = {
    "kind",     "pass",  "tokens",  "pairs", "segments",          "layers",
    "ranks",    "bytes", "seconds", "keys",  "accumulator_bytes", "weight_bytes",
    "own_pairs"};

/// How many columns every file has.
inline constexpr std::size_t kRequiredProfileColumns = 9;

/// Reads the text of a profile; `name` is the file's name for messages. Lines end in LF or CRLF,
/// blank lines are skipped, nothing is quoted. The header names the columns, in any order. `pass`
/// is `forward` or `backward` for layers, groups and the embedding; the rest have one fit for both,
/// so it may also be `-` or empty there. Lines that begin with `#` are comments, but for `# KEY:
/// VALUE` with the keys that `write_profile` writes. Throws InvalidInput naming file, line, column
/// or key, rule and value. O(text).
[[nodiscard]] Profile parse_profile(std::string_view text, const std::string& name);

/// Writes what `parse_profile` reads back to an equal profile: what was measured on as lines
/// `# KEY: VALUE`, then the header and the rows, with the shortest digits, whatever the locale. A
/// pass that is absent is `-`. Throws InvalidInput where a name has a line feed. O(rows).
void write_profile(std::ostream& out, const Profile& profile);

namespace detail {

/// The lines `# KEY: VALUE` of a profile.
class ProfileOrigin {
 public:
  explicit ProfileOrigin(std::string file) : file_(std::move(file)) {}

  /// Takes a line that begins with `#`; one with another key is a comment. Throws InvalidInput for
  /// a key that was there before, or a value that is none.
  void take(std::string_view line, const std::string& place) {
    const std::string_view text = trim(line.substr(1));
    const std::size_t colon = text.find(':');
    if (colon == std::string_view::npos) return;
    const std::string_view key = trim(text.substr(0, colon)), value = trim(text.substr(colon + 1));
    if (key == "model") return set(model_, key, std::string(value), place);
    if (key == "device") return set(device_, key, std::string(value), place);
    if (key == "cluster") return set(cluster_, key, std::string(value), place);
    if (key == "ranks") return set(ranks_, key, size(key, value, place), place);
    for (std::size_t i = 0; i < kMeasuredSizes.size(); ++i) {
      if (key == kMeasuredSizes[i].name) return set(sizes_[i], key, size(key, value, place), place);
    }
  }

  /// What the lines tell. Throws InvalidInput where a part of a shape or a device is missing.
  [[nodiscard]] MeasuredOn measured() const {
    MeasuredOn measured;
    if (model_ || std::ranges::any_of(sizes_, [](const auto& size) { return size.has_value(); })) {
      MeasuredShape& shape = measured.shape.emplace();
      shape.model = model_.value_or("");
      for (std::size_t i = 0; i < kMeasuredSizes.size(); ++i) {
        shape.*kMeasuredSizes[i].measured = needed(sizes_[i], kMeasuredSizes[i].name);
      }
    }
    if (device_ || cluster_ || ranks_) {
      measured.device = MeasuredDevice{needed(device_, "device"), needed(cluster_, "cluster"),
                                       needed(ranks_, "ranks")};
    }
    return measured;
  }

 private:
  [[nodiscard]] static std::string_view trim(std::string_view text) {
    constexpr std::string_view kBlanks = " \t\r";
    const std::size_t begin = std::min(text.find_first_not_of(kBlanks), text.size());
    return text.substr(begin, text.find_last_not_of(kBlanks) + 1 - begin);
  }
  template <class Value>
  static void set(std::optional<Value>& slot, std::string_view key, Value value,
                  const std::string& place) {
    require(!slot, place + ": the key must be there once", key);
    slot = std::move(value);
  }
  [[nodiscard]] static std::int64_t size(std::string_view key, std::string_view text,
                                         const std::string& place) {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    require(error == std::errc{} && end == text.data() + text.size() && value >= 1 &&
                value <= std::int64_t{1} << 40U,
            place + ": '" + std::string(key) + "' must be an integer in 1 .. 2^40", text);
    return value;
  }
  template <class Value>
  [[nodiscard]] const Value& needed(const std::optional<Value>& slot, std::string_view key) const {
    require(slot.has_value(), file_ + ": the line '# " + std::string(key) +
                                  ": VALUE' is missing beside the others of its kind");
    return *slot;
  }

  std::string file_;
  std::optional<std::string> model_, device_, cluster_;
  std::array<std::optional<std::int64_t>, kMeasuredSizes.size()> sizes_;
  std::optional<std::int64_t> ranks_;
};

/// One line of a profile, cut into columns, with the place for messages.
class ProfileLine {
 public:
  /// `columns` says which of kProfileColumns each field is of.
  ProfileLine(std::string_view line, std::span<const std::size_t> columns, std::string place)
      : place_(std::move(place)) {
    fields_.fill("0");
    std::size_t field = 0;
    for (;;) {
      const std::size_t comma = line.find(',');
      if (field < columns.size()) fields_[columns[field]] = line.substr(0, comma);
      ++field;
      if (comma == std::string_view::npos) break;
      line.remove_prefix(comma + 1);
    }
    require(field == columns.size(),
            place_ + ": a line must have " + std::to_string(columns.size()) + " columns",
            static_cast<std::int64_t>(field));
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
    require(condition,
            place_ + ": column '" + std::string(kProfileColumns[column]) + "' must be " + rule,
            fields_[column]);
  }

 private:
  std::string place_;
  std::array<std::string_view, kProfileColumns.size()> fields_{};
};

/// Which of kProfileColumns each field of the header names. Throws InvalidInput for a column that
/// is unknown, missing or there twice.
[[nodiscard]] inline std::vector<std::size_t> profile_columns(std::string_view line,
                                                              const std::string& place) {
  std::vector<std::size_t> columns;
  for (std::string_view rest = line;;) {
    const std::size_t comma = rest.find(',');
    const auto* const known =
        std::find(kProfileColumns.begin(), kProfileColumns.end(), rest.substr(0, comma));
    const auto column = static_cast<std::size_t>(known - kProfileColumns.begin());
    const bool again = std::find(columns.begin(), columns.end(), column) != columns.end();
    require(known != kProfileColumns.end() && !again,
            place + ": the header must name columns of a profile, each once",
            rest.substr(0, comma));
    columns.push_back(column);
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  for (std::size_t column = 0; column < kRequiredProfileColumns; ++column) {
    require(
        std::find(columns.begin(), columns.end(), column) != columns.end(),
        place + ": the header must have the column '" + std::string(kProfileColumns[column]) + "'",
        line);
  }
  return columns;
}

[[nodiscard]] inline ProfileRow profile_row(const ProfileLine& line) {
  ProfileRow row;
  const auto* kind = std::find(kProfileKinds.begin(), kProfileKinds.end(), line.text(0));
  line.check(
      kind != kProfileKinds.end(), 0,
      "layer, apart, weight, embedding, head, optimizer, p2p, reduce, exchange, tp, cp or light");
  row.kind = static_cast<ProfileKind>(kind - kProfileKinds.begin());
  const std::string_view pass = line.text(1);
  const bool group = row.kind == ProfileKind::context;
  if (row.kind == ProfileKind::layer || row.kind == ProfileKind::embedding || group) {
    line.check(pass == "forward" || pass == "backward", 1, "forward or backward");
    row.pass = pass == "forward" ? Pass::forward : Pass::backward;
  } else {
    line.check(pass.empty() || pass == "-" || pass == "forward" || pass == "backward", 1,
               "forward, backward, - or empty");
    if (row.kind == ProfileKind::tensor && (pass == "forward" || pass == "backward")) {
      row.pass = pass == "forward" ? Pass::forward : Pass::backward;
    }
  }
  const bool light = row.kind == ProfileKind::light;
  const bool by_tokens = row.kind <= ProfileKind::head || light;
  const bool attends = row.kind <= ProfileKind::apart || group || light;
  const bool layers = row.kind <= ProfileKind::weight || group || light;
  row.tokens = {line.integer(2, by_tokens || group ? 1 : 0)};
  row.pairs = line.number(3, attends);
  row.segments = line.integer(4, attends ? 1 : 0);
  row.layers = line.integer(5, layers ? 1 : 0);
  row.ranks = line.integer(6, group ? 2 : 1);
  line.check(row.kind != ProfileKind::tensor || row.layers == 0 || row.pass, 1,
             "forward or backward where there are layers");
  line.check(!by_tokens || row.ranks == 1, 6,
             "1 for layer, apart, weight, embedding, head and light");
  row.bytes = {line.integer(7, 0)};
  row.seconds = line.number(8, true);
  row.keys = line.integer(9, 0);
  row.accumulator_bytes = {line.integer(10, 0)};
  row.weight_bytes = {line.integer(11, 0)};
  row.own_pairs = line.number(12, false);
  line.check(row.own_pairs <= row.pairs, 12, "at most those of column 'pairs'");
  return row;
}

}  // namespace detail

inline Profile parse_profile(std::string_view text, const std::string& name) {
  Profile profile;
  detail::ProfileOrigin origin(name);
  std::vector<std::size_t> columns;
  for (std::int64_t number = 1; !text.empty(); ++number) {
    const std::size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    const std::string place = name + ":" + std::to_string(number);
    if (line.starts_with('#')) {
      origin.take(line, place);
    } else if (columns.empty()) {
      columns = detail::profile_columns(line, place);
    } else {
      profile.rows.push_back(detail::profile_row(detail::ProfileLine(line, columns, place)));
    }
  }
  require(!profile.rows.empty(), name + ": no measurement");
  profile.measured = origin.measured();
  return profile;
}

inline void write_profile(std::ostream& out, const Profile& profile) {
  const auto digits = [](auto value) {
    std::array<char, 32> text{};
    return std::string(text.data(),
                       std::to_chars(text.data(), text.data() + text.size(), value).ptr);
  };
  std::string text;
  const auto tell = [&text](std::string_view key, const std::string& value) {
    require(value.find('\n') == std::string::npos,
            "write_profile: '" + std::string(key) + "' must be one line", value);
    text += "# " + std::string(key) + ": " + value + '\n';
  };
  if (const auto& shape = profile.measured.shape) {
    tell("model", shape->model);
    for (const MeasuredSize& size : kMeasuredSizes) {
      tell(size.name, std::to_string((*shape).*size.measured));
    }
  }
  if (const auto& device = profile.measured.device) {
    tell("device", device->name);
    tell("cluster", device->cluster);
    tell("ranks", std::to_string(device->ranks));
  }
  for (const std::string_view column : kProfileColumns) {
    if (column != kProfileColumns.front()) text += ',';
    text += column;
  }
  for (const ProfileRow& row : profile.rows) {
    text += '\n';
    text += kProfileKinds[static_cast<std::size_t>(row.kind)];
    text += !row.pass ? ",-" : row.pass == Pass::forward ? ",forward" : ",backward";
    for (const std::string& column :
         {digits(row.tokens.value), digits(row.pairs), digits(row.segments), digits(row.layers),
          digits(row.ranks), digits(row.bytes.value), digits(row.seconds), digits(row.keys),
          digits(row.accumulator_bytes.value), digits(row.weight_bytes.value),
          digits(row.own_pairs)}) {
      text += ',' + column;
    }
  }
  out << text << '\n';
}

}  // namespace slimpack
