// SPDX-License-Identifier: Apache-2.0
// Where a training run stands, apart from its tensors: what a resumed run has to know.
#pragma once

#include <charconv>
#include <cstdint>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <system_error>

#include "slimpack/core/error.hpp"
#include "slimpack/io/bytes.hpp"
#include "slimpack/io/json_reader.hpp"
#include "slimpack/io/json_writer.hpp"

namespace slimpack::runtime {

/// A run after some steps. What is random in a run is told by its seed, the step and names, so that
/// no generator's state has to live from step to step; one that does can be kept in `random`.
struct TrainingState {
  std::int64_t step = 0;     ///< optimizer steps done; the next one has this number
  std::int64_t batches = 0;  ///< the data's position: batches drawn (BatchStream::skip)
  std::int64_t tokens = 0;   ///< learned from so far
  std::uint64_t seed = 0;    ///< of the run, from which each step's random draws follow
  std::uint64_t random = 0;  ///< state of a generator of the run's own, if it has one
  double loss = 0;           ///< of the last step
  double loss_sum = 0;       ///< of all steps so far
  /// What must stay the same for the same bits: by name, such as context or learning rate.
  std::map<std::string, std::string> settings;
  friend bool operator==(const TrainingState&, const TrainingState&) = default;
};

namespace detail {

[[nodiscard]] inline std::uint64_t read_bits(const JsonReader& value) {
  const std::string& text = value.text();
  std::uint64_t bits = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), bits);
  value.check(error == std::errc() && end == text.data() + text.size(),
              "must be a decimal integer of 64 bits in quotes");
  return bits;
}

}  // namespace detail

/// One JSON object; 64-bit patterns are strings, and numbers read back exactly.
[[nodiscard]] inline std::string training_state_json(const TrainingState& state) {
  JsonWriter out;
  out.begin_object(JsonLayout::flat)
      .key("step")
      .number(state.step)
      .key("batches")
      .number(state.batches);
  out.key("tokens").number(state.tokens).key("seed").text(std::to_string(state.seed));
  out.key("random").text(std::to_string(state.random));
  out.key("loss").number(state.loss).key("loss_sum").number(state.loss_sum);
  out.key("settings").begin_object();
  for (const auto& [key, value] : state.settings) out.key(key).text(value);
  return out.end_object().end_object().take();
}

/// Throws InvalidInput naming file, key, rule and value.
[[nodiscard]] inline TrainingState training_state_from_json(std::string_view text,
                                                            const std::string& name) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  constexpr double kLargest = std::numeric_limits<double>::max();
  const nlohmann::json document = parse_json(text, name);
  const JsonReader object(document, name);
  TrainingState state;
  state.step = object.at("step").integer(0, kMost);
  state.batches = object.at("batches").integer(0, kMost);
  state.tokens = object.at("tokens").integer(0, kMost);
  state.seed = detail::read_bits(object.at("seed"));
  state.random = detail::read_bits(object.at("random"));
  state.loss = object.at("loss").real(-kLargest, kLargest);
  state.loss_sum = object.at("loss_sum").real(-kLargest, kLargest);
  const JsonReader settings = object.at("settings");
  settings.check(settings.is_object(), "must be an object");
  for (const auto& [key, unused] : document.at("settings").items()) {
    static_cast<void>(unused);
    state.settings.emplace(key, settings.at(key).text());
  }
  return state;
}

/// Throws InvalidInput naming `folder` and the first setting, by name, that is not as it was saved.
inline void require_same_settings(const TrainingState& saved,
                                  const std::map<std::string, std::string>& now,
                                  const std::string& folder) {
  const auto differ = [&folder](const std::string& key, const std::string& was,
                                const std::string& is) {
    throw InvalidInput(folder + ": " + key + " must be as it was saved, " + in_quotes(was) +
                       ", to resume, found " + in_quotes(is));
  };
  for (const auto& [key, was] : saved.settings) {
    const auto is = now.find(key);
    if (is == now.end()) differ(key, was, "");
    if (is->second != was) differ(key, was, is->second);
  }
  for (const auto& [key, is] : now) {
    if (!saved.settings.contains(key)) differ(key, "", is);
  }
}

}  // namespace slimpack::runtime
