// SPDX-License-Identifier: Apache-2.0
// slimpack._core: planning, simulation and the command line, for the package's own modules.
#include "binding.hpp"
#include "slimpack/core/version.hpp"

NB_MODULE(_core, module) {
  using namespace slimpack::python;  // NOLINT(google-build-using-namespace)
  // Other threads may hold objects when a process ends; its memory goes with it.
  nanobind::set_leak_warnings(false);
  module.doc() = "The compiled part of slimpack. Call slimpack's own functions, not these.";
  module.attr("version") = SLIMPACK_VERSION_TEXT;
  bind_errors(module);
  bind_plan(module);
  bind_search(module);
  bind_simulation(module);
  bind_balance(module);
  bind_program(module);
}
