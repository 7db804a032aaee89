// SPDX-License-Identifier: Apache-2.0
// Arguments of Python as the options of the command line.
#pragma once

#include <string>
#include <vector>

#include "binding.hpp"
#include "common.hpp"

namespace slimpack::python {

/// Values by name, as Python has them.
using Words = nb::typed<nb::dict, nb::str, nb::str>;

/// What the command line would be given, and the requests it makes of that.
struct Arguments {
  Arguments() = default;
  Arguments(const Arguments&) = delete;
  Arguments& operator=(const Arguments&) = delete;
  ~Arguments() = default;

  app::CommonOptions options;
  std::vector<std::string> notes;  ///< what users should know of their input
  app::RequestMaker maker{[this](const std::string& line) { notes.push_back(line); }};

  /// Takes a path, or an array of integers as standard input. Throws InvalidInput.
  void set_lengths(const nb::object& lengths);
  /// Takes words by the names of arguments (slimpack.plan). Throws InvalidInput for one that is
  /// not known.
  void set_options(const Words& words);
};

/// The defaults of all arguments, as words.
[[nodiscard]] Words default_words(const app::CommonOptions& options);

}  // namespace slimpack::python
