// SPDX-License-Identifier: Apache-2.0
// The transport over NCCL between threads, each an emulated device: what numbers become.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cuda/ranks/by_heads_plans.hpp"
#include "cuda/ranks/rank_plans.hpp"
#include "cuda/ranks/shared_plan.hpp"
#include "runtime/transport_laws.hpp"
#include "slimpack/runtime/executor.hpp"
#include "slimpack/runtime/run_step.hpp"
#include "slimpack_cpu/check_plan.hpp"
#include "slimpack_cuda/emulation.hpp"
#include "slimpack_cuda/nccl/nccl_transport.hpp"
#include "support/random_plan.hpp"

namespace values_test {

using namespace slimpack;
namespace nccl = cuda::nccl;

namespace {

/// What the ranks of a test share.
struct Table {
  explicit Table(std::size_t ranks) : size(ranks) {}
  std::size_t size;
  std::mutex mutex;
  std::condition_variable changed;
  std::size_t come = 0, round = 0;
  std::vector<nccl::Id> ids, agreed;
  std::string cause;  ///< of the first failure
};

class TableControl : public nccl::Control {
 public:
  TableControl(Table& table, std::size_t rank) : table_(table), rank_(rank) {}
  [[nodiscard]] std::size_t rank() const override { return rank_; }
  void check() const override {
    const std::lock_guard lock(table_.mutex);
    if (!table_.cause.empty()) throw runtime::Aborted(table_.cause);
  }
  void abort(const std::string& sentence) override {
    const std::lock_guard lock(table_.mutex);
    if (table_.cause.empty()) table_.cause = sentence;
    table_.changed.notify_all();
  }
  void announce(const std::string&) override {}
  void inside(bool) override {}
  [[nodiscard]] std::vector<nccl::Id> agree(
      std::span<const std::optional<nccl::Id>> mine) override {
    std::unique_lock lock(table_.mutex);
    table_.ids.resize(mine.size());
    for (std::size_t i = 0; i < mine.size(); ++i) {
      if (mine[i]) table_.ids[i] = *mine[i];
    }
    const std::size_t round = table_.round;
    if (++table_.come == table_.size) {
      table_.come = 0;
      ++table_.round;
      table_.agreed = table_.ids;
      table_.changed.notify_all();
    }
    table_.changed.wait(lock, [&] { return table_.round != round || !table_.cause.empty(); });
    if (!table_.cause.empty()) throw runtime::Aborted(table_.cause);
    return table_.agreed;
  }

 private:
  Table& table_;
  std::size_t rank_;
};

/// Runs work(rank, link, stream) on a thread a rank, on streams of its own or on those given; gives
/// what each threw, or an empty text.
template <class Work>
std::vector<std::string> on_ranks(std::size_t ranks, const Work& work,
                                  const nccl::NcclOptions& options = {},
                                  const std::vector<cuda::StreamView>& streams = {}) {
  Table table(ranks);
  std::vector<std::string> sentences(ranks);
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      TableControl control(table, rank);
      const auto api = nccl::make_nccl();
      const cuda::Stream own;
      const cuda::StreamView stream = streams.empty() ? own.view() : streams[rank];
      nccl::NcclTransport link(*api, control, stream, options);
      try {
        work(rank, link, stream);
      } catch (const std::exception& error) {
        control.abort("rank " + std::to_string(rank) + " failed");
        sentences[rank] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return sentences;
}

/// Degrees of devices that are stages of one rank.
Parallel stages(std::size_t devices) {
  Parallel parallel;
  parallel.pp = static_cast<std::int32_t>(devices);
  return parallel;
}

/// The turns of an exchange: its acts are the units of all devices, in one order that is possible.
struct ExchangeOrder {
  nccl::StepOrder order;
  std::vector<runtime::Channel> channels;
  std::vector<nccl::CommunicatorKey> communicators;
};

ExchangeOrder order_of(const test::ExchangePlan& plan) {
  using Kind = nccl::Turn::Kind;
  using Use = nccl::CommunicatorKey::Use;
  ExchangeOrder made;
  made.order.devices.resize(plan.devices);
  std::set<nccl::CommunicatorKey> communicators;
  for (const auto& [channel, sizes] : plan.channels) made.channels.push_back(channel);
  std::map<std::size_t, std::size_t> to_queue;  // members of a sum that have not
  const auto pair = [&](std::size_t channel) {
    const runtime::Channel& name = plan.channels[channel].channel;
    return std::vector<std::size_t>{static_cast<std::size_t>(name.from),
                                    static_cast<std::size_t>(name.to)};
  };
  for (std::size_t act = 0; act < plan.acts.size(); ++act) {
    const test::ExchangeAct& one = plan.acts[act];
    for (const std::size_t device : one.devices) {
      made.order.devices[device].push_back({Kind::unit, act, 0, 0});
    }
    if (one.act == test::Act::send) {  // posted before: max_in_flight allows it
      const auto members = pair(one.channel);
      communicators.insert({plan.channels[one.channel].channel.direction == runtime::Direction::down
                                ? Use::down
                                : Use::up,
                            members});
      made.order.devices[members[0]].push_back({Kind::send, one.message, one.channel, 0});
      made.order.devices[members[1]].push_back({Kind::receive, one.message, one.channel, 0});
    } else if (one.act == test::Act::queue) {
      const auto [left, added] = to_queue.try_emplace(one.process_group, one.members.size());
      if (--left->second > 0 || one.members.size() == 1) continue;
      communicators.insert({Use::sum, one.members});
      for (const std::size_t member : one.members) {
        made.order.devices[member].push_back({Kind::sum, 0, 0, made.order.sums.size()});
      }
      made.order.sums.push_back({one.members, static_cast<std::int64_t>(one.process_group)});
    } else if (one.act != test::Act::receive && one.act != test::Act::await &&
               one.members.size() > 1) {
      communicators.insert({Use::process_group, one.members});
    }
  }
  made.communicators.assign(communicators.begin(), communicators.end());
  return made;
}

/// A transport on which every act is a unit, and on which the host waits for the device, so that a
/// test may look at what is there.
template <class Element>
class HostLink {
 public:
  HostLink(nccl::NcclTransport& link, cuda::StreamView stream, std::vector<std::size_t> acts)
      : link_(link), stream_(stream), acts_(std::move(acts)) {}

  void post_receive(const runtime::Channel& channel, std::size_t message,
                    std::span<std::byte> into) {
    link_.post_receive(channel, message, into);
  }
  void await_receive(const runtime::Channel& channel, std::size_t message) {
    link_.await_receive(channel, message);
    wait();
  }
  void queue_send(const runtime::Channel& channel, std::size_t message,
                  std::span<const std::byte> from) {
    link_.queue_send(channel, message, from);
  }
  [[nodiscard]] bool send_ended(const runtime::Channel& channel, std::size_t message) {
    return link_.send_ended(channel, message);
  }
  void await_send(const runtime::Channel& channel, std::size_t message) {
    if (next_ == acts_.size()) link_.begin_unit(std::size_t{1} << 40U);
    link_.await_send(channel, message);
    wait();
  }
  void ring(const runtime::ProcessGroup& process_group, std::size_t hop,
            std::span<const std::byte> from, std::span<std::byte> into) {
    if (process_group.members.size() == 1) {  // a copy on the device, where these spans are not
      std::copy(from.begin(), from.end(), into.begin());
      return;
    }
    link_.ring(process_group, hop, from, into);
    wait();
  }
  void all_to_all(const runtime::ProcessGroup& process_group,
                  std::span<const std::span<const std::byte>> from,
                  std::span<const std::span<std::byte>> into) {
    // The own part is a copy on the device, where these spans are not.
    const std::size_t self = process_group.self;
    std::copy(from[self].begin(), from[self].end(), into[self].begin());
    std::vector<std::span<const std::byte>> others(from.begin(), from.end());
    std::vector<std::span<std::byte>> of_others(into.begin(), into.end());
    others[self] = {};
    of_others[self] = {};
    link_.all_to_all(process_group, others, of_others);
    wait();
  }
  void broadcast(const runtime::ProcessGroup& process_group, std::size_t root,
                 std::span<Element> values) {
    link_.broadcast(process_group, root, values);
    wait();
  }
  void all_reduce(const runtime::ProcessGroup& process_group, std::span<Element> values,
                  runtime::Reduction reduction) {
    link_.all_reduce(process_group, values, reduction);
    wait();
  }
  void all_gather(const runtime::ProcessGroup& process_group, std::span<Element> values,
                  std::size_t first, std::size_t last) {
    link_.all_gather(process_group, values, first, last);
    wait();
  }
  void reduce_scatter(const runtime::ProcessGroup& process_group, std::span<Element> values,
                      std::size_t first, std::size_t last) {
    link_.reduce_scatter(process_group, values, first, last);
    wait();
  }
  void queue_sum(const runtime::ProcessGroup& process_group, std::int64_t tag,
                 std::span<Element> values) {
    link_.queue_sum(process_group, tag, values);
  }
  void await_sum(const runtime::ProcessGroup& process_group, std::int64_t tag) {
    link_.await_sum(process_group, tag);
    wait();
  }
  void announce(const std::string& place) {
    link_.announce(place);
    link_.begin_unit(acts_.at(next_++));
  }
  void abort(const std::string& sentence) { link_.abort(sentence); }

 private:
  void wait() {
    cuda::Event event;
    event.record(stream_);
    link_.await_device(event);
  }

  nccl::NcclTransport& link_;
  cuda::StreamView stream_;
  std::vector<std::size_t> acts_;
  std::size_t next_ = 0;
};

template <class Element>
void exchange(std::uint64_t seed, std::size_t devices) {
  CAPTURE(seed);
  const test::ExchangePlan plan = test::random_exchange(seed, devices);
  const ExchangeOrder made = order_of(plan);
  std::vector<std::string> wrong(devices);
  const auto ends = on_ranks(
      devices,
      [&](std::size_t rank, nccl::NcclTransport& link, cuda::StreamView stream) {
        link.begin_step(made.order, made.channels, made.communicators, stages(devices),
                        static_cast<std::int32_t>(plan.max_in_flight));
        std::vector<std::size_t> acts;
        for (const nccl::Turn& turn : made.order.devices[rank]) {
          if (turn.kind == nccl::Turn::Kind::unit) acts.push_back(turn.number);
        }
        HostLink<Element> host(link, stream, std::move(acts));
        wrong[rank] = test::ExchangeRun<Element, HostLink<Element>>(plan, rank, host).run();
        link.end_step("between exchanges");
      },
      {.bucket = 1000});
  for (const std::string& sentence : ends) CHECK(sentence == "");
  for (const std::string& sentence : wrong) CHECK(sentence == "");
}

Plan plan_of(std::uint64_t seed, bool cp_groups) {
  const bool on_nodes = cp_groups && seed % 2 == 0;
  test::RandomPlanOptions options;
  if (on_nodes) options = test::on_nodes(4, 1);
  options.max_dp = 3;
  options.max_pp = 3;
  options.max_tokens = 40;
  if (cp_groups) options.cp_groups = true;
  options.weights = seed % 2 == 1;
  Plan plan = test::random_plan(seed, options);
  while (on_nodes && !test::rings_node_by_node(plan)) {
    seed += 1000;
    plan = test::random_plan(seed, options);
  }
  return plan;
}

/// A step of ranks on devices over NCCL has the bits of one over streams, whenever these run.
void check_ranks_on_devices(const Plan& plan, std::uint64_t seed) {
  const runtime::StepData data = test::random_data(plan, seed);
  test::RankDevices expected = test::rank_devices(plan, seed);
  const runtime::StepResult there = test::run_ranks(plan, data, std::span(expected));
  for (const auto timing : {cuda::EmulatedTiming::at_once, cuda::EmulatedTiming::late}) {
    const cuda::ScopedEmulation mode({.timing = timing});
    const runtime::Program program = runtime::make_program(plan);
    test::RankDevices devices = test::rank_devices(plan, seed);
    std::vector<cuda::StreamView> streams;
    for (const cuda::RankDevice& device : devices) streams.push_back(device.stream());
    std::vector<runtime::DeviceResult> results(devices.size());
    const auto ends = on_ranks(
        devices.size(),
        [&](std::size_t rank, nccl::NcclTransport& link, cuda::StreamView) {
          link.begin_step(plan, program);
          results[rank] = runtime::DeviceRun<cuda::RankDevice, nccl::NcclTransport>(
                              plan, program, data, rank, devices[rank], link, {})
                              .run();
          link.end_step("between steps");
        },
        {.bucket = 5000}, streams);
    for (const std::string& sentence : ends) CHECK(sentence == "");
    CHECK(runtime::step_result(plan, results).loss == there.loss);
    CHECK(test::state_of(devices) == test::state_of(expected));
  }
}

}  // namespace

TEST_CASE("NcclTransport: random exchanges bring every rank what the others gave") {
  for (const auto timing : {cuda::EmulatedTiming::at_once, cuda::EmulatedTiming::late}) {
    const cuda::ScopedEmulation mode({.timing = timing});
    for (std::uint64_t seed = 0; seed < 12; ++seed) {
      exchange<float>(seed, 1 + seed % 4);
      exchange<double>(seed + 1000, 2 + seed % 3);
    }
  }
}

TEST_CASE("NcclTransport: scattered sums give members their parts, and gathering all of them") {
  for (std::size_t ranks = 1; ranks <= 4; ++ranks) {
    CAPTURE(ranks);
    const runtime::ShardLayout shard_layout{333, ranks, 100};
    const auto drawn = [&](std::size_t rank) {
      Random random(rank);
      std::vector<float> values;
      for (std::size_t i = 0; i < shard_layout.size; ++i) {
        values.push_back(static_cast<float>(random.unit()));
      }
      return values;
    };
    std::vector<float> sum = drawn(0);
    for (std::size_t rank = 1; rank < ranks; ++rank) {
      const std::vector<float> more = drawn(rank);
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += more[i];
    }
    std::vector<std::vector<float>> scattered(ranks), gathered(ranks);
    const auto ends = on_ranks(ranks, [&](std::size_t rank, nccl::NcclTransport& link,
                                          cuda::StreamView stream) {
      runtime::ProcessGroup all{{}, rank};
      for (std::size_t other = 0; other < ranks; ++other) all.members.push_back(other);
      nccl::StepOrder order;
      order.devices.resize(ranks);
      order.sums = {{all.members, 5}};
      for (auto& turns : order.devices) {
        if (ranks == 1) break;  // nothing travels
        turns = {{nccl::Turn::Kind::pass, 0, 0, 0}, {nccl::Turn::Kind::sum, 0, 0, 0}};
      }
      const std::vector<nccl::CommunicatorKey> communicators{
          {nccl::CommunicatorKey::Use::sum, all.members},
          {nccl::CommunicatorKey::Use::process_group, all.members}};
      link.begin_step(order, {}, ranks > 1 ? communicators : std::vector<nccl::CommunicatorKey>{},
                      stages(ranks), 1);
      const cuda::DeviceBuffer<float> values(static_cast<std::int64_t>(shard_layout.size));
      cuda::upload(values.span(), std::span<const float>(drawn(rank)), stream);
      const std::span<float> there(values.span().data, shard_layout.size);
      link.begin_unit(0);
      link.queue_scatter(all, 5, there, shard_layout);  // goes within the unit
      link.await_sum(all, 5);
      scattered[rank] = cuda::download(values.span(), stream);
      link.gather_parts(all, there, shard_layout);
      gathered[rank] = cuda::download(values.span(), stream);
      CHECK_THROWS_AS(link.queue_scatter(all, 6, there, runtime::ShardLayout{1, ranks, 8}),
                      InvalidInput);
      link.end_step("between steps");
    });
    for (const std::string& sentence : ends) CHECK(sentence == "");
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      CHECK(gathered[rank] == sum);
      for (const runtime::ShardPiece& piece : shard_layout.pieces()) {
        const auto [first, last] = piece.of(rank);
        CHECK(std::equal(scattered[rank].begin() + static_cast<std::ptrdiff_t>(first),
                         scattered[rank].begin() + static_cast<std::ptrdiff_t>(last),
                         sum.begin() + static_cast<std::ptrdiff_t>(first)));
      }
    }
  }
}

TEST_CASE("NcclTransport: a ring of one is a copy on the device") {
  const auto ends =
      on_ranks(1, [&](std::size_t, nccl::NcclTransport& link, cuda::StreamView stream) {
        const cuda::DeviceBuffer<float> from(3), into(3);
        const std::vector<float> values{1, 2, 3};
        cuda::upload(from.span(), std::span(values), stream);
        link.ring({{0}, 0}, 0, std::as_bytes(std::span(from.span().data, 3)),
                  std::as_writable_bytes(std::span(into.span().data, 3)));
        CHECK(cuda::download(into.span(), stream) == values);
      });
  CHECK(ends[0] == "");
}

TEST_CASE("NcclTransport: members give each other parts, and themselves on the device") {
  for (std::size_t ranks = 1; ranks <= 4; ++ranks) {
    CAPTURE(ranks);
    // Member i gives j so many numbers, none to the next but one.
    const auto size = [&](std::size_t from, std::size_t to) {
      return from + 2 == to ? std::size_t{0} : 1 + 5 * from + to;
    };
    const auto number = [](std::size_t from, std::size_t to, std::size_t i) {
      return static_cast<float>(100 * from + 10 * to) + static_cast<float>(i) / 64;
    };
    std::vector<std::string> wrong(ranks);
    const auto ends = on_ranks(ranks, [&](std::size_t rank, nccl::NcclTransport& link,
                                          cuda::StreamView stream) {
      runtime::ProcessGroup all{{}, rank};
      for (std::size_t other = 0; other < ranks; ++other) all.members.push_back(other);
      nccl::StepOrder order;
      order.devices.resize(ranks);
      const std::vector<nccl::CommunicatorKey> communicators{
          {nccl::CommunicatorKey::Use::process_group, all.members}};
      link.begin_step(order, {}, ranks > 1 ? communicators : std::vector<nccl::CommunicatorKey>{},
                      stages(ranks), 1);
      std::vector<float> given, expected;
      for (std::size_t other = 0; other < ranks; ++other) {
        for (std::size_t i = 0; i < size(rank, other); ++i) given.push_back(number(rank, other, i));
        for (std::size_t i = 0; i < size(other, rank); ++i) {
          expected.push_back(number(other, rank, i));
        }
      }
      const cuda::DeviceBuffer<float> from(static_cast<std::int64_t>(given.size()));
      const cuda::DeviceBuffer<float> into(static_cast<std::int64_t>(expected.size()));
      cuda::upload(from.span(), std::span<const float>(given), stream);
      std::vector<std::span<const std::byte>> parts;
      std::vector<std::span<std::byte>> places;
      const float* next = from.span().data;
      float* place = into.span().data;
      for (std::size_t other = 0; other < ranks; ++other) {
        parts.push_back(std::as_bytes(std::span(next, size(rank, other))));
        places.push_back(std::as_writable_bytes(std::span(place, size(other, rank))));
        next += size(rank, other);
        place += size(other, rank);
      }
      link.all_to_all(all, parts, places);
      if (cuda::download(into.span(), stream) != expected) wrong[rank] = "other numbers";
      parts.pop_back();
      CHECK_THROWS_AS(link.all_to_all(all, parts, places), InvalidInput);
      link.end_step("between steps");
    });
    for (const std::string& sentence : ends) CHECK(sentence == "");
    for (const std::string& sentence : wrong) CHECK(sentence == "");
  }
}

TEST_CASE("NcclTransport: whole steps have the bits of those between threads") {
  std::size_t cp_groups = 0, node_by_node = 0;
  for (std::uint64_t seed = 0; seed < 24; ++seed) {
    CAPTURE(seed);
    const Plan plan = plan_of(seed, seed % 3 == 0);
    node_by_node += test::rings_node_by_node(plan) ? 1 : 0;
    for (const auto& group : plan.groups) cp_groups += group.size() > 1 ? 1 : 0;
    const runtime::Program program = runtime::make_program(plan);
    const runtime::MemoryObserver observer;
    auto threads = cpu::make_devices<cpu::FastDevice>(plan, 3);
    auto mine = cpu::make_devices<cpu::FastDevice>(plan, 3);
    std::vector<runtime::StepData> data;
    for (std::uint64_t step = 0; step < 2; ++step) {
      data.push_back(cpu::step_data(plan, cpu::random_tokens(plan, step)));
    }
    std::vector<std::vector<runtime::DeviceResult>> results(
        data.size(), std::vector<runtime::DeviceResult>(mine.size()));
    const auto ends =
        on_ranks(mine.size(), [&](std::size_t rank, nccl::NcclTransport& link, cuda::StreamView) {
          for (std::size_t step = 0; step < data.size(); ++step) {
            link.begin_step(plan, program);
            results[step][rank] = runtime::DeviceRun<cpu::FastDevice, nccl::NcclTransport>(
                                      plan, program, data[step], rank, mine[rank], link, observer)
                                      .run();
            link.end_step("between steps");
          }
        });
    for (const std::string& sentence : ends) CHECK(sentence == "");
    runtime::DeviceThreads device_threads(threads.size());
    for (std::size_t step = 0; step < data.size(); ++step) {
      const auto there =
          runtime::run_step(device_threads, plan, program, data[step], std::span(threads));
      const auto here = runtime::step_result(plan, results[step]);
      CHECK(here.loss == there.loss);
      CHECK(here.sample_loss == there.sample_loss);
    }
    for (std::size_t device = 0; device < mine.size(); ++device) {
      for (const auto& tensor : mine[device].tensors()) {
        const auto one = std::as_const(mine[device]).weights(tensor);
        const auto two = std::as_const(threads[device]).weights(tensor);
        CHECK(std::equal(one.begin(), one.end(), two.begin(), two.end()));
      }
    }
  }
  CHECK(cp_groups > 4);
  CHECK(node_by_node >= 4);
}

TEST_CASE(
    "NcclTransport: ranks on devices learn the same bits as over streams, whenever these run") {
  std::size_t cp_groups = 0, sharded = 0;
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    CAPTURE(seed);
    test::RandomPlanOptions options = test::small_plans();
    options.max_tokens = 24;
    options.max_samples = 3;
    if (seed % 2 == 0) options.cp_groups = true;
    if (seed % 4 == 1) {
      options.pp = 2;
      options.head = LmHead::shard;
    }
    if (seed >= 8) {
      options.version = 2;
      options.tp = seed % 2 == 0 ? 2 : 4;
      options.max_dp = options.max_pp = 2;
      options.weights = seed == 9;
    }
    const Plan plan = test::rank_plan(seed, options);
    for (const auto& group : plan.groups) cp_groups += group.size() > 1 ? 1 : 0;
    sharded += plan.parallel.head == LmHead::shard && plan.parallel.pp > 1 ? 1 : 0;
    check_ranks_on_devices(plan, seed);
  }
  CHECK(cp_groups >= 3);
  CHECK(sharded >= 1);
}

TEST_CASE("NcclTransport: ranks that share weights learn the same bits as over streams") {
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    CAPTURE(seed);
    test::SharedPlanOptions options;
    if (seed % 3 == 2) {
      options.tp = 2;
      options.dp = 2;
    }
    check_ranks_on_devices(test::shared_plan(seed, options), seed);
  }
}

TEST_CASE("NcclTransport: slices by heads teach ranks the same bits as over streams") {
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    CAPTURE(seed);
    test::ByHeadsOptions options;
    options.ranks = seed % 2 == 0 ? 2 : 4;
    options.mixed = seed == 1;
    options.heads = 1 + static_cast<std::int64_t>(seed % 5);  // up to four pieces of them
    options.plans.max_tokens = 24;
    options.plans.max_samples = 3;
    options.plans.max_pp = 2;
    if (seed == 2) options.plans.tp = 2;
    check_ranks_on_devices(test::by_heads_plan(seed, options), seed);
  }
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    CAPTURE(seed);
    test::SharedPlanOptions options;
    options.dp = 2;
    options.tp = seed == 2 ? 2 : 1;
    Plan plan = test::shared_plan(seed, options);
    test::give_heads(plan.model, 2, options.tp, 2, 1, seed == 1 ? 2 : 1);
    test::exchange_by_heads(plan, seed, false);
    check_ranks_on_devices(plan, seed);
  }
}

TEST_CASE("NcclTransport: a tensor-parallel rank that ends before its time ends all others") {
  test::RandomPlanOptions options = test::small_plans();
  options.version = 2;
  options.tp = 2;
  options.dp = options.pp = 2;
  const Plan plan = test::rank_plan(3, options);
  const runtime::Program program = runtime::make_program(plan);
  const runtime::StepData data = test::random_data(plan, 1);
  test::RankDevices devices = test::rank_devices(plan, 1);
  std::vector<cuda::StreamView> streams;
  for (const cuda::RankDevice& device : devices) streams.push_back(device.stream());
  const auto ends = on_ranks(
      devices.size(),
      [&](std::size_t rank, nccl::NcclTransport& link, cuda::StreamView) {
        link.begin_step(plan, program);
        if (rank == 3) {
          link.abort("rank 3 is out of luck");
          throw std::runtime_error("out of luck");
        }
        static_cast<void>(runtime::DeviceRun<cuda::RankDevice, nccl::NcclTransport>(
                              plan, program, data, rank, devices[rank], link, {})
                              .run());
        link.end_step("between steps");
      },
      {}, streams);
  for (std::size_t rank = 0; rank < ends.size(); ++rank) {
    CAPTURE(rank);
    CHECK(ends[rank] == (rank == 3 ? "out of luck" : "rank 3 is out of luck"));
  }
}

TEST_CASE("NcclTransport: a rank that fails ends all others with the first cause") {
  const Plan plan = plan_of(6, true);
  const runtime::Program program = runtime::make_program(plan);
  const auto ends = on_ranks(
      program.devices.size(), [&](std::size_t rank, nccl::NcclTransport& link, cuda::StreamView) {
        link.begin_step(plan, program);
        if (rank == 0) {
          link.abort("rank 0 is out of luck");
          throw std::runtime_error("out of luck");
        }
        cpu::FastDevice device(plan, rank, 3);
        const auto data = cpu::step_data(plan, cpu::random_tokens(plan, 1));
        static_cast<void>(runtime::DeviceRun<cpu::FastDevice, nccl::NcclTransport>(
                              plan, program, data, rank, device, link, {})
                              .run());
        link.end_step("between steps");
      });
  REQUIRE(ends.size() > 1);
  for (std::size_t rank = 1; rank < ends.size(); ++rank)
    CHECK(ends[rank] == "rank 0 is out of luck");
}

TEST_CASE("NcclTransport: members that do not come are waited for no longer than is allowed") {
  const auto begin = std::chrono::steady_clock::now();
  nccl::NcclOptions options;
  options.join = std::chrono::milliseconds(1000);
  const auto ends = on_ranks(
      2,
      [&](std::size_t rank, nccl::NcclTransport& link, cuda::StreamView) {
        nccl::StepOrder order;
        order.devices.resize(2);
        const std::vector<nccl::CommunicatorKey> communicators{
            {nccl::CommunicatorKey::Use::process_group, {0, 1}}};
        link.begin_step(order, {}, communicators, stages(2), 1);
        std::vector<float> values{1, 2, 3};
        if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(1500));
        link.all_reduce({{0, 1}, rank}, std::span(values), runtime::Reduction::sum);
      },
      options);
  CHECK(ends[0] == "NCCL has waited 1 s for the other side");
  CHECK_FALSE(ends[1].empty());
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(5));
}

TEST_CASE(
    "NcclTransport: violations of order and of messages in flight are refused before anything is "
    "sent") {
  const auto ends = on_ranks(1, [&](std::size_t, nccl::NcclTransport& link, cuda::StreamView) {
    nccl::StepOrder order;
    order.devices.resize(1);
    link.begin_step(order, {}, {}, stages(1), 1);
    const runtime::Channel channel{GroupId{0}, 0, runtime::Direction::down, 0, 0};
    const std::string name =
        "the channel of group 0, rank 0, activations from stage 0 to stage 0, got ";
    std::vector<double> values{1, 2};
    const auto bytes = std::as_writable_bytes(std::span(values));
    CHECK_THROWS_WITH_AS(
        link.queue_send(channel, 1, bytes),
        ("transport: sends must be queued in order and within max_in_flight on " + name + "1")
            .c_str(),
        InvalidInput);
    link.queue_send(channel, 0, bytes);
    CHECK_THROWS_AS(link.queue_send(channel, 1, bytes), InvalidInput);
    CHECK_THROWS_AS(link.await_send(channel, 0), runtime::ExecutionError);  // not in the order
    link.post_receive(channel, 0, bytes);
    CHECK_THROWS_AS(link.post_receive(channel, 1, bytes), InvalidInput);
    CHECK_THROWS_AS(link.await_receive(channel, 0), runtime::ExecutionError);
    CHECK_THROWS_AS(link.end_step("the end"), runtime::ExecutionError);
    CHECK_THROWS_WITH_AS(link.await_sum({{0}, 0}, 7),
                         "transport: a sum must be queued before it is awaited, got 7",
                         InvalidInput);
    CHECK_THROWS_AS(link.broadcast({{0, 3}, 0}, 0, std::span(values)), InvalidInput);
  });
  CHECK(ends[0] == "");
}

}  // namespace values_test
