// SPDX-License-Identifier: Apache-2.0
// The options that every planning subcommand shares, and the request they make.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "notes.hpp"
#include "slimpack/core/error.hpp"
#include "slimpack/data/sample.hpp"
#include "slimpack/io/file.hpp"
#include "slimpack/io/text_lengths.hpp"
#include "slimpack/planners/planner.hpp"
#include "slimpack/report/compare.hpp"

namespace slimpack::app {

/// The options of `slimpack plan --help`, as text until `make_request` checks them.
struct CommonOptions {
  std::string lengths;
  std::string model = "llama-7b";
  std::string cluster = "h100";
  std::string dp = "1", pp = "1", tp = "1";
  std::string chunks = "auto", head = "auto", recompute = "auto", weights = "auto";
  std::string granularity = "128", max_units = "auto", max_cp = "auto";
  std::string optimizer = "sharded", weight_state = "auto", runtime = "any";
  std::string context = "131072", overlong = "error";
  std::string batch_tokens, batch_samples;
  std::uint64_t step = 0;
  std::uint64_t seed = 0;
  bool no_shuffle = false;
  std::string memory, cost;
  std::string effort = "normal", threads = "auto";
  bool quiet = false;  ///< nothing is told about what the length files hold
};

/// Adds an option with a second spelling, which help does not show, and gives the first. Parsing
/// throws InvalidInput where both are given. A subcommand may have one such option.
template <class Value>
CLI::Option* add_with_alias(CLI::App& command, const char* name, const char* alias, Value& value,
                            const char* text) {
  CLI::Option* const shown = command.add_option(name, value, text);
  CLI::Option* const hidden = command.add_option(alias, value)->group("");
  if constexpr (!std::is_same_v<Value, std::string>) {  // a list
    shown->delimiter(',');
    hidden->delimiter(',');
  }
  command.parse_complete_callback([shown, hidden, name, alias] {
    require(shown->count() == 0 || hidden->count() == 0,
            std::string(name) + ", " + alias + ": these are one option; give one of them");
  });
  return shown;
}

/// Adds the options to a subcommand, with their help texts.
void add_common_options(CLI::App& command, CommonOptions& options);

/// Checks every option and the files of model, cluster and cost, but reads no lengths. Throws
/// InvalidInput.
void check_options(const CommonOptions& options);

/// A file that a subcommand writes, or `-`; nothing where the path is empty.
struct Output {
  std::string_view option;
  std::string_view path;
};

/// Checks before any work that all outputs can be written: that their folders are there, that at
/// most one is standard output and that no two are the same file. True if one is standard output.
/// Throws InvalidInput naming the option.
bool check_outputs(std::initializer_list<Output> outputs);

/// Makes requests of options. Each length file is read once, standard input too.
class RequestMaker {
 public:
  /// A maker that says what users should know of their input by `tell`, which is not empty.
  explicit RequestMaker(Tell tell = tell_on_standard_error) : tell_(std::move(tell)) {}

  /// Takes these lengths, at least one, where options name standard input, `-`.
  void put_standard_input(LengthSet lengths);

  /// Checks every option, reads the files they name and draws the batches of `steps` consecutive
  /// steps; the requests differ in these alone. Throws InvalidInput. Documents that the context cut
  /// or dropped are told, once.
  [[nodiscard]] std::vector<planners::PlanRequest> make(const CommonOptions& options,
                                                        std::int64_t steps);

  /// The longest document of a file that requests were made of. O(documents).
  [[nodiscard]] Tokens longest(const std::string& path) const;

 private:
  struct Loaded {
    LengthSet lengths;
    Source source;
  };
  [[nodiscard]] const Loaded& load(const std::string& path, bool quiet);

  Tell tell_;
  std::map<std::string, Loaded> loaded_;
  std::set<std::string> told_;
};

/// The request of one step.
[[nodiscard]] planners::PlanRequest make_request(const CommonOptions& options);

/// The requests of `steps` consecutive steps.
[[nodiscard]] std::vector<planners::PlanRequest> make_requests(const CommonOptions& options,
                                                               std::int64_t steps);

/// What reports repeat of a request.
[[nodiscard]] report::ComparedTask task_of(const CommonOptions& options,
                                           const planners::PlanRequest& request);

/// What reports say of each step: its number, samples and tokens.
[[nodiscard]] std::vector<report::ComparedStep> compared_steps(
    const std::vector<planners::PlanRequest>& requests);

/// The planners of these names, every one where there is none. Throws InvalidInput for a name that
/// is not known or stands twice.
[[nodiscard]] std::vector<planners::PlannerInfo> chosen_planners(
    const std::vector<std::string>& names);

/// Checks all of a request but what the planner alone knows: whether B may leave weights apart is
/// known to the slimpack family. Throws InvalidInput.
void check_request_for(const planners::PlannerInfo& planner, const planners::PlanRequest& request);

/// What `options` say about batches.
[[nodiscard]] BatchOptions batch_options(const CommonOptions& options);

/// Writes what `write(stream)` puts out to `path`, whole or not at all; nothing if `path` is empty.
/// Throws InvalidInput if it cannot be written.
template <class Write>
void write_report(const std::string& path, Write&& write) {
  if (path.empty()) return;
  std::ostringstream text;
  write(text);
  write_file(path, std::move(text).str());
}

}  // namespace slimpack::app
