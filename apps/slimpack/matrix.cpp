// SPDX-License-Identifier: Apache-2.0
#include "matrix.hpp"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "sha256.hpp"
#include "slimpack/core/error.hpp"
#include "slimpack/cost/presets.hpp"
#include "slimpack/io/cluster_json.hpp"
#include "slimpack/io/json_reader.hpp"
#include "slimpack/io/known_keys.hpp"
#include "slimpack/io/model_json.hpp"
#include "slimpack/planners/registry.hpp"

namespace slimpack::app {
namespace {

constexpr std::int64_t kMostCells = 100'000;

[[nodiscard]] constexpr std::size_t axis_at(std::string_view key) {
  for (std::size_t i = 0; i < kAxes.size(); ++i) {
    if (kAxes[i].key == key) return i;
  }
  return kAxes.size();
}

/// The list of planners under a key; absent where there is none.
[[nodiscard]] std::optional<std::vector<std::string>> read_planners(const JsonReader& object,
                                                                    std::string_view key) {
  const auto list = object.find_value(key);
  if (!list) return std::nullopt;
  std::vector<std::string> names;
  list->check(list->size() > 0, "must have an element");
  for (std::size_t i = 0; i < list->size(); ++i) {
    const JsonReader item = list->item(i);
    const std::string& name = item.text();
    const auto named = [&](const planners::PlannerInfo& info) { return info.name == name; };
    item.check(std::ranges::any_of(planners::registry(), named) ||
                   std::ranges::any_of(planners::published_forms(), named),
               "must be one of slimpack --list-planners");
    item.check(std::find(names.begin(), names.end(), name) == names.end(), "must be listed once");
    names.push_back(name);
  }
  return names;
}

[[nodiscard]] std::string axis_value(const Axis& axis, const JsonReader& value) {
  if (!axis.number) return value.text();
  const bool from_zero = axis.key == "seed";
  return std::to_string(value.integer(from_zero ? 0 : 1, std::numeric_limits<std::int32_t>::max()));
}

/// The values of an axis in a group, one or several, none twice.
[[nodiscard]] std::vector<std::string> axis_values(const Axis& axis, const JsonReader& group) {
  const auto given = group.find(axis.key);
  if (!given) {
    if (axis.standard.empty()) static_cast<void>(group.at(axis.key));
    return {std::string(axis.standard)};
  }
  if (given->is_string() || given->is_number()) return {axis_value(axis, *given)};
  std::vector<std::string> values;
  given->check(given->size() > 0, "must have an element");
  for (std::size_t i = 0; i < given->size(); ++i) {
    const JsonReader item = given->item(i);
    values.push_back(axis_value(axis, item));
    item.check(std::count(values.begin(), values.end(), values.back()) == 1, "must be listed once");
  }
  return values;
}

struct LengthFile {
  std::string path;
  std::string sha256;
  std::string kind;
};
using LengthFiles = std::map<std::string, LengthFile, std::less<>>;

[[nodiscard]] LengthFiles read_sets(const JsonReader& matrix, const std::string& path) {
  LengthFiles files;
  const JsonReader sets = matrix.at("sets");
  sets.check(sets.is_object(), "must be an object of names and paths");
  for (const std::string& name : sets.keys()) {
    const JsonReader entry = sets.at(name);
    entry.check(entry.is_object(), "must be an object with 'path' and 'kind'");
    static constexpr std::array<std::string_view, 2> kKeys{"path", "kind"};
    check_known_keys(entry, kKeys);
    const std::string& kind = entry.at("kind").text();
    entry.at("kind").check(kind == "measured" || kind == "mixed" || kind == "drawn",
                           "must be measured, mixed or drawn");
    const JsonReader file = entry.at("path");
    const std::filesystem::path found =
        std::filesystem::path(path).parent_path() / std::filesystem::path(file.text());
    try {
      files[name] = {found.lexically_normal().string(), sha256_of_file(found.string()), kind};
    } catch (const InvalidInput& error) {
      file.fail(error.what());
    }
  }
  return files;
}

using Clusters = std::map<std::string, Cluster, std::less<>>;

/// The matrix's own clusters, each an object of a cluster file.
[[nodiscard]] Clusters read_clusters(const nlohmann::json& matrix, const JsonReader& reader,
                                     const std::string& path) {
  Clusters clusters;
  const auto own = reader.find("clusters");
  if (!own) return clusters;
  own->check(own->is_object(), "must be an object of names and clusters");
  for (const std::string& name : own->keys()) {
    if (cluster_preset(name)) own->at(name).fail("'" + name + "' is the name of a preset");
    Cluster cluster = cluster_from_json(matrix.at("clusters").at(name).dump(),
                                        path + ": clusters." + name, cluster_presets());
    cluster.name = name;
    clusters.emplace(name, std::move(cluster));
  }
  return clusters;
}

/// Fills in what follows from the values. Throws as `make_requests` does.
void complete(EvaluationCell& cell, const LengthFile& lengths, const Clusters& clusters,
              RequestMaker& maker) {
  CommonOptions options;
  options.lengths = lengths.path;
  options.quiet = true;
  options.threads = "1";
  for (std::size_t i = 0; i < kAxes.size(); ++i) {
    if (kAxes[i].option != nullptr) options.*kAxes[i].option = cell.values[i];
  }
  const auto own = clusters.find(options.cluster);
  if (own != clusters.end()) options.cluster = "h100";  // replaced below
  options.seed = std::stoull(cell.value("seed"));
  cell.gpus = std::stoi(cell.value("gpus"));
  cell.finalists = std::stoi(cell.value("finalists"));
  cell.lengths = lengths.kind;
  cell.requests = maker.make(options, std::stoll(cell.value("steps")));
  if (own != clusters.end()) {
    for (planners::PlanRequest& request : cell.requests) request.cluster = own->second;
  }
  const planners::PlanRequest& request = cell.requests.front();
  std::string inputs = "results " + std::to_string(kResultsVersion) + "\n";
  for (std::size_t i = 0; i < kAxes.size(); ++i) {
    inputs.append(kAxes[i].key).append("=").append(cell.values[i]).append("\n");
  }
  inputs += lengths.sha256 + "\n" + model_to_json(request.model) + "\n" +
            cluster_to_json(request.cluster) + "\n";
  cell.key = sha256_of(inputs).substr(0, 16);
}

/// All that planners are given, whatever it is called: equal for cells that are one workload.
[[nodiscard]] std::string workload_of(const EvaluationCell& cell) {
  const planners::PlanRequest& request = cell.requests.front();
  Cluster cluster = request.cluster;
  cluster.name.clear();
  std::string text = model_to_json(request.model) + cluster_to_json(cluster);
  for (std::size_t i = axis_at("gpus"); i < kAxes.size(); ++i) {
    const std::string_view key = kAxes[i].key;
    if (key == "context" || key == "overlong" || key == "seed") continue;
    text.append(key).append("=").append(cell.values[i]).append("\n");
  }
  for (const planners::PlanRequest& step : cell.requests) {
    for (const Tokens length : step.batch.samples) {
      text.append(std::to_string(length.value)).append(" ");
    }
    text += '\n';
  }
  return sha256_of(text);
}

/// What a cell and those have in common that are compared with it.
[[nodiscard]] std::string family_of(const EvaluationCell& cell) {
  std::string text;
  for (std::size_t i = 0; i < kAxes.size(); ++i) {
    if (kAxes[i].key == "cluster" || kAxes[i].key == "seed") continue;
    text.append(kAxes[i].key).append("=").append(cell.values[i]).append("\n");
  }
  return sha256_of(text);
}

class MatrixFile {
 public:
  explicit MatrixFile(const std::string& path)
      : path_(path), document_(parse_json(read_file(path), path)), top_(document_, path_) {}

  [[nodiscard]] EvaluationMatrix read() {
    top_.check(top_.is_object(), "must be an object");
    top_.at("format").check(top_.at("format").text() == "slimpack-matrix",
                            "must be 'slimpack-matrix'");
    top_.at("version").check(top_.at("version").integer(1, 1 << 30) == 1,
                             "must be 1: this program reads no newer matrix");
    static constexpr std::array<std::string_view, 8> kKeys{
        "format", "version", "name", "sets", "clusters", "planners", "without", "groups"};
    check_known_keys(top_, kKeys);
    matrix_.name = top_.at("name").text();
    for (const planners::PlannerInfo& planner : planners::registry())
      planners_.emplace_back(planner.name);
    planners_ = chosen_planners(top_);
    files_ = read_sets(top_, path_);
    clusters_ = read_clusters(document_, top_, path_);
    const JsonReader groups = top_.at("groups");
    groups.check(groups.size() > 0, "must have an element");
    for (std::size_t i = 0; i < groups.size(); ++i) {
      read_group(groups.item(i));
    }
    return std::move(matrix_);
  }

 private:
  void read_group(const JsonReader& group) {
    group.check(group.is_object(), "must be an object");
    std::vector<std::string_view> known{"name", "planners", "without"};
    for (const Axis& axis : kAxes) known.push_back(axis.key);
    check_known_keys(group, known);
    EvaluationGroup made{group.at("name").text(), chosen_planners(group), {}};
    std::array<std::vector<std::string>, kAxes.size()> values;
    std::int64_t cells = 1;
    for (std::size_t i = 0; i < kAxes.size(); ++i) {
      values[i] = axis_values(kAxes[i], group);
      cells *= static_cast<std::int64_t>(values[i].size());
      group.check(cells <= kMostCells, "must have at most 100000 cells");
    }
    for (const std::string& set : values[axis_at("set")]) {
      if (files_.find(set) == files_.end()) {
        group.at("set").fail("'" + set + "' is none of the matrix's sets");
      }
    }
    for (std::int64_t number = 0; number < cells; ++number) {
      EvaluationCell cell;
      std::int64_t rest = number;
      for (std::size_t i = kAxes.size(); i-- > 0;) {  // the first axis varies slowest
        const auto count = static_cast<std::int64_t>(values[i].size());
        cell.values[i] = values[i][static_cast<std::size_t>(rest % count)];
        rest /= count;
      }
      made.cells.push_back(place_of(std::move(cell), group));
    }
    matrix_.groups.push_back(std::move(made));
  }

  /// What an object says about planners, else those of the matrix, else all.
  [[nodiscard]] std::vector<std::string> chosen_planners(const JsonReader& object) const {
    std::vector<std::string> names = read_planners(object, "planners").value_or(planners_);
    const std::vector<std::string> less =
        read_planners(object, "without").value_or(std::vector<std::string>{});
    std::erase_if(names, [&](const std::string& name) {
      return std::find(less.begin(), less.end(), name) != less.end();
    });
    if (names.empty()) object.fail("there must be a planner left");
    return names;
  }

  void refuse_same_workload(const EvaluationCell& cell) {
    const auto [other, is_new] = workloads_.emplace(workload_of(cell), matrix_.cells.size());
    if (is_new) return;
    const auto named = [](const EvaluationCell& one) {
      return "context " + one.value("context") + " of '" + one.value("set") + "'";
    };
    throw InvalidInput(named(cell) + ": the same samples as " +
                       named(matrix_.cells[other->second]) + ", so both are one setting");
  }

  [[nodiscard]] std::size_t place_of(EvaluationCell cell, const JsonReader& group) {
    const auto found = known_.find(cell.values);
    if (found != known_.end()) return found->second;
    try {
      complete(cell, files_.at(cell.value("set")), clusters_, maker_);
      const Tokens longest = maker_.longest(files_.at(cell.value("set")).path);
      require(cell.requests.front().context <= longest,
              "context: must be at most the longest document of '" + cell.value("set") + "', " +
                  std::to_string(longest.value) + " tokens",
              cell.requests.front().context.value);
      refuse_same_workload(cell);
    } catch (const InvalidInput& error) {
      std::string said = error.what();
      if (said.starts_with("--")) said.erase(0, 2);  // an axis is the option of its name
      group.fail(said);
    }
    const std::size_t place = matrix_.cells.size();
    known_.emplace(cell.values, place);
    matrix_.cells.push_back(std::move(cell));
    return place;
  }

  std::string path_;
  nlohmann::json document_;
  JsonReader top_;
  LengthFiles files_;
  Clusters clusters_;
  RequestMaker maker_;
  std::map<std::string, std::size_t, std::less<>> workloads_;  ///< first cell of each
  std::vector<std::string> planners_;
  EvaluationMatrix matrix_;
  std::map<std::array<std::string, kAxes.size()>, std::size_t> known_;
};

}  // namespace

const std::string& EvaluationCell::value(std::string_view axis) const {
  const std::size_t i = axis_at(axis);
  SLIMPACK_ASSERT(i < kAxes.size());
  return values[i];
}

EvaluationMatrix read_matrix(const std::string& path) {
  return MatrixFile(path).read();
}

std::vector<std::vector<bool>> sampled_cells(const EvaluationMatrix& matrix, std::int64_t every) {
  std::map<std::string, std::set<std::string>> families;  // by the name of the group
  for (const EvaluationGroup& group : matrix.groups) {
    for (const std::size_t i : group.cells) {
      families[group.name].insert(family_of(matrix.cells[i]));
    }
  }
  std::vector<std::vector<bool>> sampled;
  for (const EvaluationGroup& group : matrix.groups) {
    const std::set<std::string>& all = families.at(group.name);
    const auto count = static_cast<std::int64_t>(all.size());
    const std::string& last = *std::next(all.begin(), (count + every - 1) / every - 1);
    std::vector<bool>& chosen = sampled.emplace_back();
    for (const std::size_t i : group.cells) {
      chosen.push_back(family_of(matrix.cells[i]) <= last);
    }
  }
  return sampled;
}

}  // namespace slimpack::app
