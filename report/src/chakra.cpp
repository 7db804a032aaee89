// SPDX-License-Identifier: Apache-2.0
#include "slimpack/report/chakra.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "chakra_graph.hpp"
#include "protobuf.hpp"
#include "slimpack/core/error.hpp"
#include "slimpack/cost/memory_model.hpp"
#include "slimpack/cost/price.hpp"
#include "slimpack/cost/unit_bytes.hpp"
#include "slimpack/io/json_writer.hpp"
#include "slimpack/plan/cp_shard.hpp"
#include "slimpack/plan/memory.hpp"
#include "slimpack/plan/plan_hash.hpp"
#include "slimpack/plan/tensor_rows.hpp"
#include "slimpack/plan/virtual_stages.hpp"
#include "slimpack/sim/dag.hpp"

namespace slimpack::report {

using namespace detail;  // NOLINT(google-build-using-namespace): of this library

namespace {

// The numbers of Chakra's schema, et_def.proto.
enum class NodeType : std::uint8_t { compute = 4, send = 5, receive = 6, collective = 7 };
enum class CommType : std::uint8_t {
  all_reduce = 0,
  all_gather = 2,
  all_to_all = 6,
  reduce_scatter = 7
};

/// What a barrier sends: nothing that a plan counts, but simulators cut collectives into chunks.
constexpr std::int64_t kBarrierBytes = 1024;

/// Part `i` of `parts` of an amount; all parts sum to it.
[[nodiscard]] std::int64_t part_of_bytes(std::int64_t bytes, std::int64_t i, std::int64_t parts) {
  return bytes * (i + 1) / parts - bytes * i / parts;
}

/// The bytes of messages and collectives, as `communication_of` counts them. A collective's size is
/// that of the whole buffer: of n devices each sends (n - 1) / n of it, twice in an all-reduce. An
/// all-to-all's is that of one device, the mean.
class Sizes {
 public:
  explicit Sizes(const Plan& plan)
      : plan_(plan),
        hidden_(plan.model.hidden * plan.model.bytes_per_element),
        head_row_(head_traffic_bytes(plan.model,
                                     element_bytes_of(plan.model, plan.memory.gradient_bytes))) {}

  /// Of a node of device (dp, pp, tp) whose simulated node has this label.
  [[nodiscard]] std::int64_t bytes(LocalKind kind, const sim::NodeLabel& label, std::int32_t dp,
                                   std::int32_t pp, std::int32_t tp) const {
    switch (kind) {
      case LocalKind::send:
      case LocalKind::receive:
        return rows(label.pack, dp, tp) * hidden_;
      case LocalKind::exchange:
        return exchanged(label);
      case LocalKind::heads:
        return by_heads(label);
      case LocalKind::head:
        return rows(label.pack, dp, tp) * head_row_;
      case LocalKind::tensor_gather:
      case LocalKind::tensor_reduce:
        return tokens(label.pack, dp) * hidden_ * collectives(kind, label);
      case LocalKind::reduce:
        return part_of_bytes(bucket(label), tp, plan_.parallel.tp);
      case LocalKind::table:
        return part_of_bytes(plan_.model.vocab * plan_.model.hidden * plan_.memory.gradient_bytes,
                             tp, plan_.parallel.tp);
      case LocalKind::gather:
        return part_of_bytes(device_weights(plan_, pp).total() * plan_.model.bytes_per_element, tp,
                             plan_.parallel.tp);
      case LocalKind::scatter:
        return part_of_bytes(device_weights(plan_, pp).total() * plan_.memory.gradient_bytes, tp,
                             plan_.parallel.tp);
      case LocalKind::barrier:
        return kBarrierBytes;
      case LocalKind::compute:
        break;
    }
    return 0;
  }

 private:
  [[nodiscard]] std::size_t rank_of(PackId pack, std::int32_t dp) const {
    const GroupId group = plan_.micropacks[index(pack)].group;
    std::size_t rank = 0;
    while (plan_.groups[index(group)][rank] != dp) ++rank;
    return rank;
  }
  /// Tokens of a pack that one rank owns.
  [[nodiscard]] std::int64_t tokens(PackId pack, std::int32_t dp) const {
    const std::size_t rank = rank_of(pack, dp);
    Tokens sum;
    for (const Slice& slice : plan_.micropacks[index(pack)].slices) {
      sum += cp_shard_of(plan_, slice.sample, rank).between(slice.begin, slice.end);
    }
    return sum.value;
  }
  /// Of those the rows of one tensor-parallel device.
  [[nodiscard]] std::int64_t rows(PackId pack, std::int32_t dp, std::int32_t tp) const {
    const std::size_t rank = rank_of(pack, dp);
    const TensorRows device{tp, plan_.parallel.tp};
    Tokens sum;
    for (const Slice& slice : plan_.micropacks[index(pack)].slices) {
      const CpShard own = cp_shard_of(plan_, slice.sample, rank);
      own.for_each_run(slice.begin, slice.end, [&](Tokens first, Tokens last) {
        sum += device.between(slice.sample, first, last);
      });
    }
    return sum.value;
  }
  [[nodiscard]] std::int64_t layers(const sim::NodeLabel& label) const {
    return chunk_layers(plan_, label.pp, label.chunk);
  }
  /// The keys and values, or queries and results, of all ranks: heads are split over devices.
  [[nodiscard]] std::int64_t exchanged(const sim::NodeLabel& label) const {
    const MicroPack& pack = plan_.micropacks[index(label.pack)];
    const ExchangeBytes each = exchange_bytes(plan_, pack);
    std::int64_t bytes = 0;
    for (std::size_t slot = 0; slot < pack.slices.size(); ++slot) {
      const Slice& slice = pack.slices[slot];
      if (pack.exchange[slot] == RingMode::by_heads) continue;
      if (plan_.version >= 3 && cp_shard_of(plan_, slice.sample, 0).undivided(slice.end)) continue;
      bytes += pack.exchange[slot] == RingMode::pass_kv ? slice.end.value * each.kv
                                                        : slice.length().value * each.q;
    }
    return bytes * layers(label) / plan_.parallel.tp;
  }
  /// What a rank has to pass to parts of heads and gets back, in the mean of the group's.
  [[nodiscard]] std::int64_t by_heads(const sim::NodeLabel& label) const {
    const MicroPack& pack = plan_.micropacks[index(label.pack)];
    const ExchangeBytes each = exchange_bytes(plan_, pack);
    std::int64_t tokens = 0;
    for (std::size_t slot = 0; slot < pack.slices.size(); ++slot) {
      const Slice& slice = pack.slices[slot];
      if (is_by_heads(plan_, slice, pack.exchange[slot])) tokens += slice.length().value;
    }
    const auto ranks = static_cast<std::int64_t>(plan_.groups[index(pack.group)].size());
    return tokens * each.heads * layers(label) / (ranks * plan_.parallel.tp);
  }
  /// How often all rows are gathered or reduced in a unit: in each layer and in the embedding,
  /// whose sums F reduces and whose gradients B gathers, or once in H.
  [[nodiscard]] std::int64_t collectives(LocalKind kind, const sim::NodeLabel& label) const {
    if (label.kind == sim::NodeKind::head) return 1;
    const MicroPack& pack = plan_.micropacks[index(label.pack)];
    const std::int64_t reductions = tensor_reductions(pack);
    const Pass of_embedding = kind == LocalKind::tensor_reduce ? Pass::forward : Pass::backward;
    const bool embedding = label.pp == 0 && label.chunk == 0 && pack.pass == of_embedding;
    return layers(label) * (kind == LocalKind::tensor_reduce
                                ? reductions
                                : tensor_collectives(pack) - reductions) +
           (embedding ? 1 : 0);
  }
  /// Of the collectives of a layer, those that are reductions: two in F, two in B, none in W. B
  /// that computes a layer again has one more, that of attention's output.
  [[nodiscard]] static std::int64_t tensor_reductions(const MicroPack& pack) {
    if (pack.pass == Pass::weight) return 0;
    const bool again = pack.recompute == Recompute::layer || pack.recompute == Recompute::full;
    return pack.pass == Pass::backward && again ? 3 : 2;
  }
  /// A layer's gradients; the last bucket of a chunk has what is left.
  [[nodiscard]] std::int64_t bucket(const sim::NodeLabel& label) const {
    const std::int64_t all =
        reduced_weights(plan_, label.pp, label.chunk) * plan_.memory.gradient_bytes;
    const std::int64_t layer = plan_.model.layer_weights() * plan_.memory.gradient_bytes;
    const std::int64_t last = buckets.at({label.pp, label.chunk}) - 1;
    return label.bucket < last ? layer : all - layer * last;
  }

  const Plan& plan_;
  std::int64_t hidden_, head_row_;

 public:
  /// How many buckets R of (pp, chunk) is cut into.
  std::map<std::pair<std::int32_t, std::int32_t>, std::int64_t> buckets;
};

/// Devices that meet, numbered in the order in which they are first asked for, from 1: simulators
/// take 0 for all devices.
class ProcessGroups {
 public:
  [[nodiscard]] std::size_t number(const std::vector<std::int64_t>& devices) {
    return numbers_.emplace(devices, numbers_.size() + 1).first->second;
  }
  /// An object with an array of devices for each number.
  [[nodiscard]] std::string json() const {
    std::vector<const std::vector<std::int64_t>*> groups(numbers_.size());
    for (const auto& [devices, number] : numbers_) groups[number - 1] = &devices;
    JsonWriter out;
    out.begin_object();
    for (std::size_t i = 0; i < groups.size(); ++i) {
      out.key(std::to_string(i + 1)).begin_array(JsonLayout::flat);
      for (const std::int64_t device : *groups[i]) out.number(device);
      out.end_array();
    }
    out.end_object();
    return out.take() + "\n";
  }

 private:
  std::map<std::vector<std::int64_t>, std::size_t> numbers_;
};

/// Fields of the messages, by their numbers in the schema.
void add_attribute(ProtobufMessage& node, std::uint32_t field, std::string_view name,
                   std::uint32_t type, std::uint64_t value) {
  ProtobufMessage attribute;
  attribute.piece(1, name).number(type, value);
  node.piece(field, attribute.bytes());
}
void add_attribute(ProtobufMessage& node, std::uint32_t field, std::string_view name,
                   std::string_view value) {
  constexpr std::uint32_t kString = 29;
  ProtobufMessage attribute;
  attribute.piece(1, name).piece(kString, value);
  node.piece(field, attribute.bytes());
}

class ChakraWriter {
 public:
  ChakraWriter(const Plan& plan, const sim::PlanSimulation& simulation)
      : plan_(plan), dag_(simulation.dag), sizes_(plan), tied_(tied_stages(plan)) {
    devices_.resize(device_count(plan));
    for (const Placement& place : plan.placement) {
      devices_[device_number(plan, place.dp, place.pp, place.tp)] = place.device;
    }
    for (const sim::NodeLabel& label : dag_.label) {
      if (label.kind == sim::NodeKind::reduce) ++sizes_.buckets[{label.pp, label.chunk}];
    }
  }

  void write(const sim::PlanSimulation& simulation, const TakeFile& take) {
    const std::vector<std::vector<LocalNode>> graphs = device_graphs(plan_, simulation);
    number_messages(graphs);
    for (std::size_t i = 0; i < graphs.size(); ++i) {
      dp_ = plan_.schedule[i].dp;
      pp_ = plan_.schedule[i].pp;
      for (tp_ = 0; tp_ < plan_.parallel.tp; ++tp_) {
        take("rank." + std::to_string(device(dp_, pp_, tp_)) + ".et", trace(graphs[i]));
      }
    }
    take("comm_groups.json", groups_.json());
  }

 private:
  [[nodiscard]] std::int64_t device(std::int32_t dp, std::int32_t pp, std::int32_t tp) const {
    return devices_[device_number(plan_, dp, pp, tp)];
  }

  /// Tags count the messages from a device to another one, from 0.
  void number_messages(const std::vector<std::vector<LocalNode>>& graphs) {
    tags_.assign(dag_.size(), 0);
    std::map<std::pair<std::size_t, std::int32_t>, std::uint32_t> sent;
    for (std::size_t i = 0; i < graphs.size(); ++i) {
      for (const LocalNode& node : graphs[i]) {
        if (node.kind == LocalKind::send) tags_[index(node.of)] = sent[{i, receiver(node)}]++;
      }
    }
  }
  [[nodiscard]] std::int32_t receiver(const LocalNode& node) const {
    return dag_.channels[index(dag_.label[index(node.of)].channel)].to_pp;
  }

  [[nodiscard]] std::string trace(const std::vector<LocalNode>& graph) {
    constexpr std::uint32_t kAttributes = 2;
    ProtobufMessage metadata, file;
    metadata.piece(1, "0.0.4");  // of the schema
    add_attribute(metadata, kAttributes, "made_by", "slimpack");
    add_attribute(metadata, kAttributes, "plan_hash", to_string(plan_hash_));
    file.append_with_length(metadata.bytes());
    for (std::size_t i = 0; i < graph.size(); ++i) {
      file.append_with_length(message(graph[i], i).bytes());
    }
    return file.bytes();
  }

  [[nodiscard]] ProtobufMessage message(const LocalNode& node, std::size_t number) {
    // Field numbers of Node; attributes have the types that Chakra's own readers expect.
    constexpr std::uint32_t kId = 1, kName = 2, kType = 3, kDataDependencies = 5, kStart = 6,
                            kDuration = 7;
    ProtobufMessage out;
    out.number(kId, number)
        .piece(kName, name(node))
        .number(kType, static_cast<std::uint64_t>(type(node)));
    out.numbers(kDataDependencies, node.after);
    const auto micros = [](Nanos time) { return static_cast<std::uint64_t>(time.value / 1000); };
    out.number(kStart, micros(node.start));
    out.number(kDuration, micros(node.start + node.duration) - micros(node.start));
    flag(out, "is_cpu_op", false);
    int64(out, "start_nanos", node.start.value);
    int64(out, "duration_nanos", node.duration.value);
    if (node.kind == LocalKind::compute) {
      int64(out, "part", node.part);
      int64(out, "parts", node.parts);
      return out;
    }
    const sim::NodeLabel& label = dag_.label[index(node.of)];
    int64(out, "comm_size", sizes_.bytes(node.kind, label, dp_, pp_, tp_));
    if (is_collective(node.kind)) {
      int64(out, "comm_type", static_cast<std::int64_t>(comm_type(node.kind)));
      add_attribute(out, kNodeAttributes, "pg_name", std::to_string(groups_.number(members(node))));
      add_attribute(out, kNodeAttributes, "purpose", purpose(node.kind));
      return out;
    }
    int32(out, "comm_src", device(dp_, label.pp, tp_));
    int32(out, "comm_dst", device(dp_, receiver(node), tp_));
    int32(out, "comm_tag", tags_[index(node.of)]);
    return out;
  }

  static constexpr std::uint32_t kNodeAttributes = 10;
  static void int32(ProtobufMessage& node, std::string_view name, std::int64_t value) {
    add_attribute(node, kNodeAttributes, name, 7, static_cast<std::uint64_t>(value));
  }
  static void int64(ProtobufMessage& node, std::string_view name, std::int64_t value) {
    add_attribute(node, kNodeAttributes, name, 9, static_cast<std::uint64_t>(value));
  }
  static void flag(ProtobufMessage& node, std::string_view name, bool value) {
    add_attribute(node, kNodeAttributes, name, 27, value ? 1U : 0U);
  }

  [[nodiscard]] static NodeType type(const LocalNode& node) {
    if (node.kind == LocalKind::compute) return NodeType::compute;
    if (node.kind == LocalKind::send) return NodeType::send;
    return node.kind == LocalKind::receive ? NodeType::receive : NodeType::collective;
  }

  [[nodiscard]] CommType comm_type(LocalKind kind) const {
    const bool sharded = plan_.memory.optimizer == OptimizerState::sharded;
    switch (kind) {
      case LocalKind::barrier:
        return CommType::all_reduce;
      case LocalKind::heads:
        return CommType::all_to_all;
      case LocalKind::tensor_reduce:
      case LocalKind::scatter:
        return CommType::reduce_scatter;
      case LocalKind::reduce:
      case LocalKind::table:
        return sharded ? CommType::reduce_scatter : CommType::all_reduce;
      default:
        return CommType::all_gather;
    }
  }

  [[nodiscard]] static std::string_view purpose(LocalKind kind) {
    switch (kind) {
      case LocalKind::barrier:
        return "barrier";
      case LocalKind::exchange:
      case LocalKind::heads:
        return "exchange";
      case LocalKind::head:
        return "head";
      case LocalKind::reduce:
      case LocalKind::table:
      case LocalKind::scatter:
        return "reduction";
      case LocalKind::gather:
        return "gathering";
      default:
        return "tensor_parallel";
    }
  }

  [[nodiscard]] std::string name(const LocalNode& node) const {
    std::string of = node_name(dag_, node.of);
    switch (node.kind) {
      case LocalKind::compute:
        if (node.parts == 1) return of;
        return of + ", part " + std::to_string(node.part) + " of " + std::to_string(node.parts);
      case LocalKind::send:
        return "send " + of;
      case LocalKind::receive:
        return "receive " + of;
      case LocalKind::barrier:
        return of;
      case LocalKind::exchange:
        return "exchange of " + of;
      case LocalKind::heads:
        return "exchange by heads of " + of;
      case LocalKind::head:
        return "sharded head of " + of;
      case LocalKind::tensor_gather:
        return "tensor-parallel gathers of " + of;
      case LocalKind::tensor_reduce:
        return "tensor-parallel reductions of " + of;
      case LocalKind::reduce:
        return of;
      case LocalKind::table:
        return "tied table of " + of;
      case LocalKind::gather:
        return (dag_.label[index(node.of)].kind == sim::NodeKind::optimizer ? "weights after "
                                                                            : "weights of ") +
               of;
      case LocalKind::scatter:
        return "gradients of " + of;
    }
    return of;
  }

  /// The devices of a collective, in the order of their ranks.
  [[nodiscard]] std::vector<std::int64_t> members(const LocalNode& node) const {
    const sim::NodeLabel& label = dag_.label[index(node.of)];
    std::vector<std::int64_t> devices;
    const auto stages = [&](std::int32_t dp, std::int32_t first, std::int32_t last) {
      for (std::int32_t pp = first; pp < last; ++pp) devices.push_back(device(dp, pp, tp_));
    };
    const auto ranks = [&](const std::vector<std::int32_t>& all) {
      for (const std::int32_t dp : all) devices.push_back(device(dp, pp_, tp_));
    };
    switch (node.kind) {
      case LocalKind::tensor_gather:
      case LocalKind::tensor_reduce:
        for (std::int32_t tp = 0; tp < plan_.parallel.tp; ++tp) {
          devices.push_back(device(dp_, pp_, tp));
        }
        break;
      case LocalKind::exchange:
      case LocalKind::heads:
        ranks(plan_.groups[index(plan_.micropacks[index(label.pack)].group)]);
        break;
      case LocalKind::head:
        stages(dp_, 0, plan_.parallel.pp);
        break;
      case LocalKind::reduce:
      case LocalKind::gather:
      case LocalKind::scatter:
        for (std::int32_t dp = 0; dp < plan_.parallel.dp; ++dp) {
          devices.push_back(device(dp, pp_, tp_));
        }
        break;
      case LocalKind::table:
        for (const std::int32_t pp : tied_) devices.push_back(device(dp_, pp, tp_));
        break;
      default:
        for (const auto& [dp, pp] : places_that_meet(plan_, dag_, node.of)) {
          devices.push_back(device(dp, pp, tp_));
        }
        break;
    }
    return devices;
  }

  const Plan& plan_;
  const sim::Dag& dag_;
  Sizes sizes_;
  std::vector<std::int32_t> tied_;
  std::vector<std::int64_t> devices_;  // by dp, pp, tp: its number in the cluster
  std::vector<std::uint32_t> tags_;    // by simulated node, of messages
  ProcessGroups groups_;
  PlanHash plan_hash_ = plan_hash(plan_);
  std::int32_t dp_ = 0, pp_ = 0, tp_ = 0;  // of the device at hand
};

}  // namespace

void write_chakra(const Plan& plan, const sim::PlanSimulation& simulation, const TakeFile& take) {
  ChakraWriter(plan, simulation).write(simulation, take);
}

}  // namespace slimpack::report
