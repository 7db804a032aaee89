// SPDX-License-Identifier: Apache-2.0
// What nodes are called in messages and lists.
#pragma once

#include <cstdint>
#include <string>

#include "slimpack/sim/dag.hpp"

namespace slimpack::sim {

/// "dp 0 pp 1".
[[nodiscard]] inline std::string device_name(std::int32_t dp, std::int32_t pp) {
  return "dp " + std::to_string(dp) + " pp " + std::to_string(pp);
}

/// "F 3 chunk 0", "H 3", "R chunk 0", "O".
[[nodiscard]] inline std::string unit_name(const Unit& unit) {
  const std::string pack = std::to_string(index(unit.pack));
  const std::string chunk = "chunk " + std::to_string(unit.chunk);
  switch (unit.kind) {
    case UnitKind::forward:
      return "F " + pack + " " + chunk;
    case UnitKind::backward:
      return "B " + pack + " " + chunk;
    case UnitKind::head:
      return "H " + pack;
    case UnitKind::reduce:
      return "R " + chunk;
    case UnitKind::optimizer:
      break;
  }
  return "O";
}

namespace detail {
/// The unit that a node or its message belongs to.
[[nodiscard]] inline std::string labelled_unit(const NodeLabel& label, UnitKind kind) {
  return unit_name({kind, label.pack, label.chunk});
}
}  // namespace detail

/// "dp 0 pp 1 F 3 chunk 0"; "message 2 from dp 0 pp 0 to pp 1, group 0 (F 3 chunk 0)";
/// "pp 1 R chunk 0 bucket 2".
[[nodiscard]] inline std::string node_name(const Dag& dag, NodeId node) {
  const NodeLabel& label = dag.label[index(node)];
  const std::string device = device_name(label.dp, label.pp);
  switch (label.kind) {
    case NodeKind::forward:
      return device + " " + detail::labelled_unit(label, UnitKind::forward);
    case NodeKind::backward:
      return device + " " + detail::labelled_unit(label, UnitKind::backward);
    case NodeKind::head:
      return device + " " + detail::labelled_unit(label, UnitKind::head);
    case NodeKind::optimizer:
      return device + " O";
    case NodeKind::transfer: {
      std::string name = "message " + std::to_string(label.message) + " from " + device;
      if (index(label.channel) >= dag.channels.size()) return name;
      const Channel& channel = dag.channels[index(label.channel)];
      const UnitKind kind = channel.pass == Pass::forward ? UnitKind::forward : UnitKind::backward;
      return name + " to pp " + std::to_string(channel.to_pp) + ", group " +
             std::to_string(index(channel.group)) + " (" + detail::labelled_unit(label, kind) + ")";
    }
    case NodeKind::reduce:
      return "pp " + std::to_string(label.pp) + " R chunk " + std::to_string(label.chunk) +
             " bucket " + std::to_string(label.bucket);
    case NodeKind::join:
      return "the start of a meeting on " + device;
    case NodeKind::release:
      break;
  }
  return "bucket " + std::to_string(label.bucket) + " of " + device + " " +
         detail::labelled_unit(label, UnitKind::backward);
}

}  // namespace slimpack::sim
