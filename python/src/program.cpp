// SPDX-License-Identifier: Apache-2.0
// The command line, and what it lists.
#include "program.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

#include "binding.hpp"
#include "request.hpp"
#include "slimpack/cost/presets.hpp"
#include "slimpack/io/cluster_json.hpp"
#include "slimpack/io/model_json.hpp"
#include "slimpack/planners/registry.hpp"

namespace slimpack::python {

void bind_program(nb::module_& module) {
  using namespace nb::literals;  // NOLINT(google-build-using-namespace)
  module.def(
      "run_program",
      [](const std::vector<std::string>& words) {
        std::vector<const char*> pointers;
        for (const std::string& word : words) pointers.push_back(word.c_str());
        pointers.push_back(nullptr);
        return app::run_program(static_cast<int>(words.size()), pointers.data());
      },
      "words"_a, nb::call_guard<nb::gil_scoped_release>(),
      "Runs the command line, the program's name first, and gives its exit status.");
  module.def(
      "planners",
      [] {
        Words planners;
        for (const planners::PlannerInfo& info : planners::registry()) {
          planners[nb::str(info.name.data(), info.name.size())] =
              nb::str(info.description.data(), info.description.size());
        }
        return planners;
      },
      "Every planner with a line on what it does.");
  module.def(
      "models",
      [] {
        Words models;
        for (const ModelShape& model : model_presets()) {
          models[model.name.c_str()] = model_to_json(model);
        }
        return models;
      },
      "The models that are compiled in, as JSON.");
  module.def(
      "clusters",
      [] {
        Words clusters;
        for (const Cluster& cluster : cluster_presets()) {
          clusters[cluster.name.c_str()] = cluster_to_json(cluster);
        }
        return clusters;
      },
      "The clusters that are compiled in, as JSON.");
}

}  // namespace slimpack::python
