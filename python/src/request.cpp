// SPDX-License-Identifier: Apache-2.0
#include "request.hpp"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <string_view>
#include <utility>

#include "arrays.hpp"
#include "slimpack/data/lengths.hpp"

namespace slimpack::python {
namespace {

using Options = app::CommonOptions;

struct Word {
  const char* name;
  std::string Options::* text;
};
constexpr std::array kWordArguments{Word{"model", &Options::model},
                                    Word{"cluster", &Options::cluster},
                                    Word{"dp", &Options::dp},
                                    Word{"pp", &Options::pp},
                                    Word{"tp", &Options::tp},
                                    Word{"chunks", &Options::chunks},
                                    Word{"head", &Options::head},
                                    Word{"recompute", &Options::recompute},
                                    Word{"weights", &Options::weights},
                                    Word{"granularity", &Options::granularity},
                                    Word{"max_units", &Options::max_units},
                                    Word{"merge", &Options::max_cp},
                                    Word{"optimizer", &Options::optimizer},
                                    Word{"weight_state", &Options::weight_state},
                                    Word{"runtime", &Options::runtime},
                                    Word{"context", &Options::context},
                                    Word{"overlong", &Options::overlong},
                                    Word{"batch_tokens", &Options::batch_tokens},
                                    Word{"batch_samples", &Options::batch_samples},
                                    Word{"memory", &Options::memory},
                                    Word{"cost", &Options::cost},
                                    Word{"effort", &Options::effort},
                                    Word{"threads", &Options::threads}};

struct Number {
  const char* name;
  std::uint64_t Options::* value;
};
constexpr std::array kNumberArguments{Number{"step", &Options::step},
                                      Number{"seed", &Options::seed}};

[[nodiscard]] std::uint64_t parse_number(const char* name, const std::string& text) {
  std::uint64_t value = 0;
  const char* const last = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), last, value);
  require(error == std::errc{} && rest == last,
          std::string(name) + ": must be a whole number from 0 to 2^64 - 1", text);
  return value;
}

/// The positive integers of an array. Throws InvalidInput. O(elements).
[[nodiscard]] LengthSet lengths_of(const AnyVector& array) {
  LengthSet set{{}, "lengths"};
  set.documents.reserve(array.shape(0));
  std::int64_t total = 0;
  for_each_integer(set.name, array, [&](std::size_t i, auto value) {
    require(append_length(set, positive(set.name, i, value), total),
            "lengths: the sum of all lengths must fit in 63 bits");
  });
  require_some(set);
  return set;
}

}  // namespace

void Arguments::set_lengths(const nb::object& lengths) {
  if (nb::isinstance<nb::str>(lengths)) {
    options.lengths = nb::cast<std::string>(lengths);
    return;
  }
  options.lengths = "-";
  maker.put_standard_input(lengths_of(nb::cast<AnyVector>(lengths)));
}

void Arguments::set_options(const Words& words) {
  for (const auto& [key, value] : words) {
    const auto name = nb::cast<std::string>(key);
    const auto text = nb::cast<std::string>(value);
    const auto named = [&](const auto& entry) { return name == entry.name; };
    const auto word = std::find_if(kWordArguments.begin(), kWordArguments.end(), named);
    const auto number = std::find_if(kNumberArguments.begin(), kNumberArguments.end(), named);
    if (word != kWordArguments.end()) {
      options.*word->text = text;
    } else if (number != kNumberArguments.end()) {
      options.*number->value = parse_number(number->name, text);
    } else {
      require(name == "shuffle", "there is no such option", name);
      require(text == "True" || text == "False", "shuffle: must be True or False", text);
      options.no_shuffle = text == "False";
    }
  }
}

Words default_words(const Options& options) {
  Words words;
  for (const Word& word : kWordArguments) words[word.name] = options.*word.text;
  for (const Number& number : kNumberArguments)
    words[number.name] = std::to_string(options.*number.value);
  words["shuffle"] = options.no_shuffle ? "False" : "True";
  return words;
}

}  // namespace slimpack::python
