// SPDX-License-Identifier: Apache-2.0
// Plans: their figures, files and arrays.
#include <nanobind/stl/map.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "arrays.hpp"
#include "binding.hpp"
#include "slimpack/io/file.hpp"
#include "slimpack/io/plan_json.hpp"
#include "slimpack/plan/cp_shard.hpp"
#include "slimpack/plan/names.hpp"
#include "slimpack/plan/plan_hash.hpp"
#include "slimpack/plan/structure.hpp"
#include "slimpack/validate/validate.hpp"

namespace slimpack::python {
namespace {

static_assert(sizeof(Tokens) == sizeof(std::int64_t));

/// Keeps a plan alive as long as an array looks into it.
[[nodiscard]] nb::capsule owner_of(const SharedPlan& plan) {
  auto held = std::make_unique<SharedPlan>(plan);
  nb::capsule owner(held.get(), [](void* memory) noexcept {
    delete static_cast<SharedPlan*>(memory);  // NOLINT(cppcoreguidelines-owning-memory)
  });
  static_cast<void>(held.release());
  return owner;
}

[[nodiscard]] nb::ndarray<nb::numpy, const std::int64_t, nb::device::cpu> samples(
    const SharedPlan& plan) {
  const std::vector<Tokens>& lengths = plan->plan.samples;
  return {reinterpret_cast<const std::int64_t*>(lengths.data()),  // NOLINT: one 64-bit member
          {lengths.size()},
          owner_of(plan)};
}

[[nodiscard]] NumpyArray<std::int64_t> origin(const SharedPlan& plan) {
  std::vector<std::int64_t> rows;
  rows.reserve(3 * plan->plan.origin.size());
  for (const Origin& one : plan->plan.origin) {
    rows.insert(rows.end(), {one.source, one.document, one.first.value});
  }
  return array_of(std::move(rows), {plan->plan.origin.size(), 3});
}

/// Pass, group, recompute and weights of each MicroPack as a tuple; where the slices of each end;
/// and all slices.
[[nodiscard]] nb::tuple packs(const SharedPlan& plan) {
  nb::list heads;
  std::vector<std::int64_t> ends, rows;
  const auto word = [](auto value) {
    const auto text = to_string(value);
    return nb::str(text.data(), text.size());
  };
  for (const MicroPack& pack : plan->plan.micropacks) {
    const bool backward = pack.pass == Pass::backward;
    heads.append(nb::make_tuple(word(pack.pass), index(pack.group),
                                backward ? nb::object(word(pack.recompute)) : nb::none(),
                                backward ? nb::object(word(pack.weights)) : nb::none()));
    for (const Slice& slice : pack.slices) {
      rows.insert(rows.end(), {static_cast<std::int64_t>(index(slice.sample)), slice.begin.value,
                               slice.end.value});
    }
    ends.push_back(static_cast<std::int64_t>(rows.size() / 3));
  }
  const std::size_t count = rows.size() / 3;
  return nb::make_tuple(heads, array_of(std::move(ends)), array_of(std::move(rows), {count, 3}));
}

[[nodiscard]] nb::list order(const SharedPlan& plan, std::int32_t dp, std::int32_t pp) {
  const Parallel& parallel = plan->plan.parallel;
  require(dp >= 0 && dp < parallel.dp, "dp: must be a rank of the plan", dp);
  require(pp >= 0 && pp < parallel.pp, "pp: must be a stage of the plan", pp);
  nb::list units;
  for (const Unit& unit : plan->plan.schedule[device_index(plan->plan, dp, pp)].order) {
    nb::list entry;
    const auto kind = to_string(unit.kind);
    entry.append(nb::str(kind.data(), kind.size()));
    if (names_pack(unit.kind)) entry.append(index(unit.pack));
    if (names_chunk(unit.kind)) entry.append(unit.chunk);
    units.append(nb::tuple(entry));
  }
  return units;
}

/// Cumulative lengths of queries or keys, as kernels count them.
class Cumulative {
 public:
  void append(Tokens more) {
    const std::int64_t next = sums_.back() + more.value;
    require(next <= std::numeric_limits<std::int32_t>::max(),
            "a MicroPack has more tokens than a 32-bit cu_seqlens can count", next);
    sums_.push_back(static_cast<std::int32_t>(next));
    most_ = std::max(most_, more.value);
  }
  [[nodiscard]] std::int64_t most() const noexcept { return most_; }
  [[nodiscard]] std::vector<std::int32_t> take() noexcept { return std::move(sums_); }

 private:
  std::vector<std::int32_t> sums_{0};
  std::int64_t most_ = 0;
};

/// Of queries and of keys: cumulative lengths, then the longest segment.
using CuSeqlens = nb::typed<nb::tuple, NumpyArray<std::int32_t>, NumpyArray<std::int32_t>,
                            std::int64_t, std::int64_t>;

[[nodiscard]] CuSeqlens cu_seqlens(const SharedPlan& shared, std::int64_t number,
                                   std::int64_t rank) {
  const Plan& plan = shared->plan;
  require(number >= 0 && number < static_cast<std::int64_t>(plan.micropacks.size()),
          "pack: must be the number of a MicroPack", number);
  const MicroPack& pack = plan.micropacks[static_cast<std::size_t>(number)];
  const auto ranks = static_cast<std::int64_t>(plan.groups[index(pack.group)].size());
  require(rank >= 0 && rank < ranks,
          "rank: must be from 0 to " + std::to_string(ranks - 1) + ", a place in the pack's group",
          rank);
  Cumulative queries, keys;
  for (const Slice& slice : pack.slices) {
    const CpShard shard = cp_shard_of(plan, slice.sample, static_cast<std::size_t>(rank));
    shard.for_each_run(slice.begin, slice.end, [&](Tokens first, Tokens last) {
      queries.append(last - first);
      keys.append(last);
    });
  }
  return nb::make_tuple(array_of(queries.take()), array_of(keys.take()), queries.most(),
                        keys.most());
}

[[nodiscard]] std::vector<std::int32_t> sample_first(const SharedPlan& plan) {
  return plan->plan.sample_first;
}

[[nodiscard]] std::vector<std::string> violations(const SharedPlan& plan) {
  std::vector<std::string> sentences;
  for (const Violation& one : validate(plan->plan).violations) {
    sentences.push_back("rule " + std::to_string(one.rule) + ": " + one.message);
  }
  return sentences;
}

[[nodiscard]] SharedPlan shared(Plan plan, std::map<std::string, std::string> settings = {}) {
  return std::make_shared<PlanObject>(PlanObject{std::move(plan), std::move(settings)});
}

}  // namespace

void bind_plan(nb::module_& module) {
  using namespace nb::literals;  // NOLINT(google-build-using-namespace)
  using Released = nb::call_guard<nb::gil_scoped_release>;
  nb::class_<PlanObject> plan(module, "PlanObject", "A plan; slimpack.Plan holds one.");
  const auto figure = [&](const char* name, auto get) {
    plan.def_prop_ro(name, [get](const PlanObject& self) { return get(self.plan); });
  };
  figure("iteration_s", [](const Plan& one) { return seconds(one.prediction.iteration); });
  figure("ideal_s", [](const Plan& one) { return seconds(one.prediction.ideal); });
  figure("lower_bound_s", [](const Plan& one) { return seconds(one.prediction.lower_bound); });
  figure("hash", [](const Plan& one) { return to_string(plan_hash(one)); });
  figure("planner", [](const Plan& one) { return one.planner; });
  figure("step", [](const Plan& one) { return one.step_index; });
  figure("target_tokens", [](const Plan& one) { return one.target_tokens; });
  figure("dp", [](const Plan& one) { return one.parallel.dp; });
  figure("pp", [](const Plan& one) { return one.parallel.pp; });
  figure("tp", [](const Plan& one) { return one.parallel.tp; });
  figure("chunks", [](const Plan& one) { return one.parallel.chunks; });
  figure("groups", [](const Plan& one) { return one.groups; });
  plan.def_prop_ro("settings", [](const PlanObject& self) { return self.settings; });

  module.def(
      "plan_from_json",
      [](const std::string& text, const std::string& name,
         std::map<std::string, std::string> settings) {
        return shared(plan_from_json(text, name), std::move(settings));
      },
      "text"_a, "name"_a, "settings"_a, Released(), "A plan of the text of plan.json.");
  module.def(
      "read_plan", [](const std::string& path) { return shared(read_plan_file(path)); }, "path"_a,
      Released(), "A plan of a file.");
  module.def(
      "plan_to_json", [](const SharedPlan& one) { return plan_to_json(one->plan); }, "plan"_a,
      Released(), "The text of plan.json.");
  module.def(
      "write_plan",
      [](const SharedPlan& one, const std::string& path) {
        write_file(path, plan_to_json(one->plan));
      },
      "plan"_a, "path"_a, Released(), "Writes plan.json, whole or not at all.");
  module.def("samples", &samples, "plan"_a, "Lengths in tokens, int64 [samples]; a view.");
  module.def("sample_first", &sample_first, "plan"_a,
             "Place in its group of the rank with each sample's first block; empty: the first.");
  module.def("origin", &origin, "plan"_a, "Source, document, first token: int64 [samples, 3].");
  module.def("packs", &packs, "plan"_a, "All MicroPacks, as tuples and two arrays.");
  module.def("order", &order, "plan"_a, "dp"_a, "pp"_a, "The units of a device, in order.");
  module.def("cu_seqlens", &cu_seqlens, "plan"_a, "pack"_a, "rank"_a,
             "What variable-length attention reads of a MicroPack.");
  module.def("violations", &violations, "plan"_a, Released(), "One sentence for each violation.");
}

}  // namespace slimpack::python
