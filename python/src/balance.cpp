// SPDX-License-Identifier: Apache-2.0
// Balanced parts and bins, for slimpack.balance.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "arrays.hpp"
#include "binding.hpp"
#include "slimpack/cost/presets.hpp"
#include "slimpack/io/file.hpp"
#include "slimpack/io/model_json.hpp"
#include "slimpack/schedule/bins.hpp"
#include "slimpack/schedule/ranks.hpp"

namespace slimpack::python {
namespace {

[[nodiscard]] schedule::ShardLayout karmarkar_karp(const AnyVector& costs, std::size_t parts,
                                                   bool equal) {
  std::vector<Int128> work;
  for_each_integer("costs", costs,
                   [&](std::size_t i, auto cost) { work.push_back(positive("costs", i, cost)); });
  const nb::gil_scoped_release released;
  return schedule::assign_karmarkar_karp(
      work, parts, equal ? schedule::PartSizes::equal : schedule::PartSizes::free);
}

[[nodiscard]] schedule::Bins best_fit(const AnyVector& lengths, std::int64_t capacity) {
  std::vector<Tokens> items;
  for_each_integer("lengths", lengths, [&](std::size_t i, auto length) {
    items.push_back({positive("lengths", i, length)});
  });
  const nb::gil_scoped_release released;
  return schedule::pack_best_fit_decreasing(items, {capacity});
}

[[nodiscard]] NumpyArray<std::int64_t> sample_work(const std::string& model,
                                                   const AnyVector& lengths) {
  const auto preset = model_preset(model);
  const ModelShape shape = preset ? *preset : model_from_json(read_file(model), model);
  std::vector<std::int64_t> work;
  for_each_integer("lengths", lengths, [&](std::size_t i, auto length) {
    const Int128 one = schedule::sample_work(shape, {positive("lengths", i, length)});
    require(one <= Int128{std::numeric_limits<std::int64_t>::max()},
            "lengths: the work of element " + std::to_string(i) + " must fit in 63 bits");
    work.push_back(static_cast<std::int64_t>(one));
  });
  return array_of(std::move(work));
}

}  // namespace

void bind_balance(nb::module_& module) {
  using namespace nb::literals;  // NOLINT(google-build-using-namespace)
  module.def("karmarkar_karp", &karmarkar_karp, "costs"_a, "parts"_a, "equal"_a,
             "Indices of each part, ascending; the part of the largest sum first.");
  module.def("best_fit", &best_fit, "lengths"_a, "capacity"_a,
             "Indices of each bin, ascending: best fit, longest first.");
  module.def("sample_work", &sample_work, "model"_a, "lengths"_a,
             "Half the forward FLOPs of a layer on each sample.");
}

}  // namespace slimpack::python
