// SPDX-License-Identifier: Apache-2.0
// Reads dag.txt by the words of its format alone and runs it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace slimpack::test {

struct DagFile {
  std::vector<std::optional<std::size_t>> resource;        // one a node
  std::vector<std::int64_t> nanos;                         // one a node
  std::vector<std::pair<std::size_t, std::size_t>> edges;  // from, to
  std::vector<std::vector<std::size_t>> order;             // nodes of each resource as listed
};

/// Throws std::runtime_error naming the first line that breaks the format.
inline DagFile read_dag(const std::string& text) {
  DagFile dag;
  std::istringstream lines(text);
  std::map<std::size_t, std::pair<std::optional<std::size_t>, std::int64_t>> nodes;
  std::map<std::size_t, std::vector<std::size_t>> order;
  for (std::string line; std::getline(lines, line);) {
    const auto fail = [&] { throw std::runtime_error("dag.txt: " + line); };
    if (line.empty() || line.front() == '#') continue;
    std::istringstream words(line);
    std::string word, resource, duration;
    std::size_t id = 0, to = 0;
    words >> word >> id;
    if (word == "edge") {
      if (!(words >> to)) fail();
      dag.edges.emplace_back(id, to);
      continue;
    }
    if (word != "node" || !(words >> resource >> duration)) fail();
    const std::size_t point = duration.find('.');
    if (point == std::string::npos || duration.size() - point - 1 != 9) fail();
    const std::int64_t nanos =
        std::stoll(duration.substr(0, point)) * 1000000000 + std::stoll(duration.substr(point + 1));
    std::optional<std::size_t> place;
    if (resource != "-") place = std::stoul(resource);
    if (!nodes.emplace(id, std::pair(place, nanos)).second) fail();
    if (place) order[*place].push_back(id);
    if (words >> word) fail();
  }
  for (const auto& [id, facts] : nodes) {
    if (id != dag.nanos.size()) throw std::runtime_error("dag.txt: node ids are not dense");
    dag.resource.push_back(facts.first);
    dag.nanos.push_back(facts.second);
  }
  for (auto& [id, list] : order) {
    if (id != dag.order.size()) throw std::runtime_error("dag.txt: resource ids are not dense");
    dag.order.push_back(std::move(list));
  }
  return dag;
}

/// The makespan when each resource takes its nodes one at a time as listed; nothing if it never
/// ends.
inline std::optional<std::int64_t> makespan_of(const DagFile& dag) {
  const std::size_t nodes = dag.nanos.size();
  std::vector<std::vector<std::size_t>> next(nodes);
  std::vector<std::size_t> waiting(nodes, 0);
  const auto join = [&](std::size_t from, std::size_t to) {
    next.at(from).push_back(to);
    ++waiting.at(to);
  };
  for (const auto& [from, to] : dag.edges) join(from, to);
  for (const auto& list : dag.order) {
    for (std::size_t i = 1; i < list.size(); ++i) join(list[i - 1], list[i]);
  }
  std::vector<std::int64_t> start(nodes, 0);
  std::deque<std::size_t> ready;
  for (std::size_t node = 0; node < nodes; ++node) {
    if (waiting[node] == 0) ready.push_back(node);
  }
  std::size_t done = 0;
  std::int64_t makespan = 0;
  for (; !ready.empty(); ready.pop_front()) {
    const std::size_t node = ready.front();
    ++done;
    const std::int64_t end = start[node] + dag.nanos[node];
    makespan = std::max(makespan, end);
    for (const std::size_t to : next[node]) {
      start[to] = std::max(start[to], end);
      if (--waiting[to] == 0) ready.push_back(to);
    }
  }
  if (done != nodes) return std::nullopt;
  return makespan;
}

}  // namespace slimpack::test
