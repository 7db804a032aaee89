// SPDX-License-Identifier: Apache-2.0
// What a planner decides by search: settings as records, and candidates as points of their space.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <functional>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "slimpack/core/units.hpp"
#include "slimpack/plan/names.hpp"

namespace slimpack::planners {

/// A candidate: of each setting the index of its value, from 0.
using SettingPoint = std::vector<std::size_t>;

/// Settings as text, by name.
using SettingTexts = std::map<std::string, std::string>;

/// What a search has to know about a setting.
template <class Settings>
struct SettingTraits {
  bool ordered = false;  ///< neighbouring values are alike
  bool shared = false;   ///< all components of ranks have the same value
  /// Whether the setting means anything beside the others; always where absent. Where it does not,
  /// it is not described, and with `first_only` only its first value makes a candidate.
  std::function<bool(const Settings&)> applies = {};
  bool first_only = false;  ///< see `applies`, which must be given with it
  /// With `applies`: the index of the value that a point gets by `canonical` where the setting
  /// means nothing, so that points of one candidate become one.
  std::optional<std::size_t> neutral = {};
  bool memory = false;  ///< higher values need less memory; of one setting at most
  bool late = false;    ///< a search varies it at its end alone, from the best point
};

/// The text of a value, as outcomes print it.
struct SettingText {
  /// "yes" or "no".
  [[nodiscard]] std::string operator()(bool value) const { return value ? "yes" : "no"; }
  /// Decimal digits.
  [[nodiscard]] std::string operator()(std::integral auto value) const {
    return std::to_string(value);
  }
  /// The number of tokens in decimal digits.
  [[nodiscard]] std::string operator()(Tokens value) const { return std::to_string(value.value); }
  /// The word of the value.
  template <NamedEnumeration Enumeration>
  [[nodiscard]] std::string operator()(Enumeration value) const {
    return std::string(slimpack::to_string(value));
  }
};

/// The settings of a search and the values that each may take. Sizes, candidates and their texts
/// follow from the records:
///
///     struct Settings { Recompute recompute; std::int32_t chunks; };
///     SettingSpace<Settings> space;
///     space.add("recompute", &Settings::recompute, {Recompute::none, Recompute::full});
///     const auto chunks = space.add("chunks", &Settings::chunks, {1, 2, 4}, {.ordered = true});
///     space.start({});                      // the first values, where the search begins
///     space.start({{chunks, 2}});           // and then at four chunks
///     space.at({1, 0});                     // full recomputation, one chunk
///     space.describe(space.at({1, 0}));     // {"chunks": "1", "recompute": "full"}
///
/// Searches prefer the earlier setting and the earlier value among equals.
template <class Settings>
class SettingSpace {
 public:
  /// What is known of each setting.
  using Traits = SettingTraits<Settings>;

  /// Adds a setting and returns its position in a point. `values` may not be empty. `text(value)`
  /// is its text; a value that has several has a `describe(texts)`; without a name there is none.
  template <class Owner, class Value, class Text = SettingText>
  std::size_t add(std::string_view name, Value Owner::* member,
                  std::vector<std::type_identity_t<Value>> values, const Traits& traits = {},
                  Text text = {}) {
    Record record{values.size(), traits, {}, {}};
    record.set = [member, values = std::move(values)](Settings& settings, std::size_t value) {
      settings.*member = values.at(value);
    };
    record.describe = [=](const Settings& settings, SettingTexts& texts) {
      if constexpr (requires { (settings.*member).describe(texts); }) {
        (settings.*member).describe(texts);
      } else if constexpr (std::invocable<Text, Value>) {
        if (!name.empty()) texts[std::string(name)] = text(settings.*member);
      }
    };
    records_.push_back(std::move(record));
    return records_.size() - 1;
  }

  /// Makes candidates of those settings only that pass `rule`, and all rules before it.
  void require_that(std::function<bool(const Settings&)> rule) {
    rules_.push_back(std::move(rule));
  }

  /// Adds a point where searches begin: of the settings given, by position, the value with this
  /// index (the last one where there are fewer), of all others, also of later ones, the first. A
  /// published system's own defaults come first.
  void start(std::initializer_list<std::pair<std::size_t, std::size_t>> values) {
    SettingPoint point(records_.size());
    for (const auto& [setting, value] : values) {
      point.at(setting) = std::min(value, records_.at(setting).size - 1);
    }
    starts_.push_back(std::move(point));
  }
  /// The same with the index of each setting's value.
  void start_at(SettingPoint point) { starts_.push_back(std::move(point)); }
  /// Any start before here is good enough for a search of few candidates where it takes no longer.
  void enough(Nanos time) { enough_ = {starts_.size(), time}; }
  /// Starts that are added from here on are for where none before them fits.
  void fall_back() { first_ = starts_.size(); }
  /// Where searches begin, in this order, each once; at the first value of every setting if nothing
  /// was said.
  [[nodiscard]] std::vector<SettingPoint> starts() const {
    std::vector<SettingPoint> starts = distinct(starts_.size());
    if (starts.empty()) starts.emplace_back(records_.size());
    return starts;
  }
  /// How many of these come before those to fall back on; all where there are none of these.
  [[nodiscard]] std::size_t first_starts() const {
    return first_ ? distinct(*first_).size() : starts().size();
  }
  /// First starts that are good enough where they take no longer than a time.
  struct Enough {
    std::size_t starts = 0;  ///< how many; none where nothing was said
    Nanos time;              ///< of a step
  };
  /// Which of the starts these are.
  [[nodiscard]] Enough enough() const { return {distinct(enough_.starts).size(), enough_.time}; }

  /// How many values each setting has.
  [[nodiscard]] std::vector<std::size_t> sizes() const {
    std::vector<std::size_t> sizes;
    for (const Record& record : records_) sizes.push_back(record.size);
    return sizes;
  }
  /// A trait of each setting.
  [[nodiscard]] std::vector<bool> flags(bool Traits::* trait) const {
    std::vector<bool> flags;
    for (const Record& record : records_) flags.push_back(record.traits.*trait);
    return flags;
  }

  /// The settings of a point; those that the space does not hold have their defaults.
  [[nodiscard]] Settings at(const SettingPoint& point) const {
    Settings settings;
    for (std::size_t i = 0; i < records_.size(); ++i) records_[i].set(settings, point.at(i));
    return settings;
  }

  /// Whether a point makes a candidate.
  [[nodiscard]] bool exists(const SettingPoint& point) const {
    const Settings settings = at(point);
    for (std::size_t i = 0; i < records_.size(); ++i) {
      const Traits& traits = records_[i].traits;
      if (point[i] > 0 && traits.first_only && !traits.applies(settings)) return false;
    }
    return std::all_of(rules_.begin(), rules_.end(),
                       [&](const auto& rule) { return rule(settings); });
  }

  /// The point of the same candidate that has the neutral value of each setting with one that does
  /// not apply.
  [[nodiscard]] SettingPoint canonical(SettingPoint point) const {
    const Settings settings = at(point);
    for (std::size_t i = 0; i < records_.size(); ++i) {
      const Traits& traits = records_[i].traits;
      if (traits.neutral && !traits.applies(settings)) point[i] = *traits.neutral;
    }
    return point;
  }

  /// The texts of all settings that apply.
  [[nodiscard]] SettingTexts describe(const Settings& settings) const {
    SettingTexts texts;
    for (const Record& record : records_) {
      if (record.traits.applies && !record.traits.applies(settings)) continue;
      record.describe(settings, texts);
    }
    return texts;
  }

 private:
  struct Record {
    std::size_t size;
    Traits traits;
    std::function<void(Settings&, std::size_t)> set;
    std::function<void(const Settings&, SettingTexts&)> describe;
  };
  /// The first so many starts, each once.
  [[nodiscard]] std::vector<SettingPoint> distinct(std::size_t count) const {
    std::vector<SettingPoint> starts;
    for (std::size_t i = 0; i < count; ++i) {
      SettingPoint point = starts_[i];
      point.resize(records_.size());
      if (std::find(starts.begin(), starts.end(), point) == starts.end()) starts.push_back(point);
    }
    return starts;
  }

  std::vector<Record> records_;
  std::vector<std::function<bool(const Settings&)>> rules_;
  std::vector<SettingPoint> starts_;
  Enough enough_;                     // of the points in `starts_`
  std::optional<std::size_t> first_;  // starts before those to fall back on
};

}  // namespace slimpack::planners
