// SPDX-License-Identifier: Apache-2.0
// Errors of slimpack as exceptions of the package.
#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "binding.hpp"

namespace slimpack::python {
namespace {

/// Options of the command line that are arguments here, without their hyphens.
constexpr std::array<std::string_view, 31> kArguments{
    "model",       "cluster",       "dp",      "pp",          "tp",        "chunks",
    "head",        "recompute",     "weights", "granularity", "max-cp",    "max-units",
    "merge",       "optimizer",     "context", "overlong",    "step",      "batch-tokens",
    "seed",        "batch-samples", "memory",  "cost",        "effort",    "threads",
    "planner",     "planners",      "steps",   "gpus",        "finalists", "runtime",
    "weight-state"};

/// The sentence with options spelled as arguments: `--batch-tokens` as `batch_tokens`.
[[nodiscard]] std::string with_arguments(std::string_view sentence) {
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz-";
  std::string text;
  while (!sentence.empty()) {
    const std::size_t start = sentence.find("--");
    text += sentence.substr(0, start);
    if (start == std::string_view::npos) break;
    sentence.remove_prefix(start + 2);
    std::string word(sentence.substr(0, sentence.find_first_not_of(kLetters)));
    sentence.remove_prefix(word.size());
    const bool known = std::find(kArguments.begin(), kArguments.end(), word) != kArguments.end();
    if (!known) {
      text += "--" + word;
      continue;
    }
    if (word == "max-cp") word = "merge";
    std::replace(word.begin(), word.end(), '-', '_');
    text += word;
  }
  return text;
}

void raise(const char* type, const nb::tuple& arguments) {
  const nb::object raised = nb::module_::import_("slimpack._errors").attr(type);
  const nb::object error = raised(*arguments);
  PyErr_SetObject(raised.ptr(), error.ptr());
}

}  // namespace

void bind_errors(nb::module_& module) {
  static_cast<void>(module);
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const InvalidInput& error) {
      raise("InvalidInput", nb::make_tuple(with_arguments(error.what())));
    } catch (const NoFeasiblePlan& error) {
      raise("Infeasible",
            nb::make_tuple(error.why.constraint, error.why.needed, error.why.available));
    }
  });
}

}  // namespace slimpack::python
