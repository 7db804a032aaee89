// SPDX-License-Identifier: Apache-2.0
// The laws of a transport as random exchanges, the same for every transport.
#pragma once

#include <algorithm>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "slimpack/core/random.hpp"
#include "slimpack/runtime/transport.hpp"

namespace slimpack::test {

enum class Act : std::uint8_t {
  send,
  receive,
  ring,
  reduce,
  broadcast,
  gather,
  scatter,
  all_to_all,
  queue,
  await
};

/// Something that `devices` do: both ends of a message at two acts, process groups together,
/// members of a sum one by one.
struct ExchangeAct {
  Act act{};
  std::vector<std::size_t> devices;  ///< who does it
  std::size_t channel = 0, message = 0;
  std::size_t process_group = 0;  ///< number of the process group or sum
  std::vector<std::size_t> members;
  runtime::Reduction reduction = runtime::Reduction::sum;
  std::size_t root = 0;
  std::size_t per_node = 0, hop = 0;  ///< of a ring
  friend bool operator==(const ExchangeAct&, const ExchangeAct&) = default;
};

struct ExchangeChannel {
  runtime::Channel channel;
  std::vector<std::size_t> sizes;  ///< of its messages, in elements
};

/// What devices do, in one order in which it is possible: each in that order alone, it ends.
struct ExchangePlan {
  std::uint64_t seed = 0;
  std::size_t devices = 1, max_in_flight = 1;
  std::vector<ExchangeChannel> channels;
  std::vector<std::size_t> process_group_sizes;
  std::vector<ExchangeAct> acts;
};

namespace detail {

class ExchangeDraw {
 public:
  ExchangeDraw(std::uint64_t seed, std::size_t devices, std::size_t acts) : random_(seed) {
    plan_.seed = seed;
    plan_.devices = devices;
    plan_.max_in_flight = 1 + random_.below(3);
    while (devices > 1 && plan_.channels.size() < 1 + 2 * devices) add_channel();
    sent_.resize(plan_.channels.size());
    taken_.resize(plan_.channels.size());
    while (plan_.acts.size() < acts) step();
    for (std::size_t channel = 0; channel < sent_.size(); ++channel) {
      while (taken_[channel] < sent_[channel]) receive(channel);
    }
    while (!sums_.empty()) advance(random_.below(sums_.size()));
  }
  [[nodiscard]] ExchangePlan take() { return std::move(plan_); }

 private:
  struct OpenSum {
    ExchangeAct act;
    std::vector<std::size_t> to_queue, to_await;  ///< members, in the order of their turns
  };

  std::size_t draw_size() {
    const std::uint64_t kind = random_.below(16);
    if (kind == 0) return 0;
    return kind == 1 ? 3000 + random_.below(30000) : 1 + random_.below(40);
  }

  void add_channel() {
    runtime::Channel channel;
    channel.group = static_cast<GroupId>(random_.below(3));
    channel.direction = random_.chance(1, 2) ? runtime::Direction::up : runtime::Direction::down;
    channel.from = static_cast<std::int32_t>(random_.below(plan_.devices));
    channel.to = static_cast<std::int32_t>(random_.below(plan_.devices));
    const bool known =
        std::any_of(plan_.channels.begin(), plan_.channels.end(),
                    [&](const ExchangeChannel& other) { return other.channel == channel; });
    if (channel.from != channel.to && !known) plan_.channels.push_back({channel, {}});
  }

  std::vector<std::size_t> draw_members() {
    std::vector<std::size_t> members;
    while (members.empty()) {
      for (std::size_t device = 0; device < plan_.devices; ++device) {
        if (random_.chance(2, 3)) members.push_back(device);
      }
    }
    return members;
  }

  void receive(std::size_t channel) {
    const auto to = static_cast<std::size_t>(plan_.channels[channel].channel.to);
    plan_.acts.push_back({Act::receive, {to}, channel, taken_[channel]++, 0, {}, {}, 0});
  }

  /// The next member queues a sum, or where all have, the next one awaits it.
  void advance(std::size_t place) {
    OpenSum& sum = sums_[place];
    auto& turns = sum.to_queue.empty() ? sum.to_await : sum.to_queue;
    ExchangeAct act = sum.act;
    act.act = sum.to_queue.empty() ? Act::await : Act::queue;
    act.devices = {turns.back()};
    turns.pop_back();
    plan_.acts.push_back(std::move(act));
    if (sum.to_await.empty()) sums_.erase(sums_.begin() + static_cast<std::ptrdiff_t>(place));
  }

  ExchangeAct new_process_group(Act act) {
    ExchangeAct process_group{act, {}, 0, 0, plan_.process_group_sizes.size(), draw_members(),
                              {},  0};
    process_group.devices = process_group.members;
    process_group.root = random_.below(process_group.members.size());
    process_group.reduction =
        random_.chance(1, 2) ? runtime::Reduction::sum : runtime::Reduction::maximum;
    plan_.process_group_sizes.push_back(draw_size());
    if (act == Act::ring) {
      const std::size_t members = process_group.members.size();
      process_group.per_node = random_.below(members + 1);
      if (process_group.per_node > 0 && members % process_group.per_node != 0) {
        process_group.per_node = 1;
      }
      process_group.hop = random_.below(2 * members);
    }
    return process_group;
  }

  void step() {
    const std::uint64_t kind = random_.below(12);
    if (kind < 6 && !plan_.channels.empty()) {
      const auto channel = static_cast<std::size_t>(random_.below(plan_.channels.size()));
      auto& [name, sizes] = plan_.channels[channel];
      if (kind < 3 && sent_[channel] - taken_[channel] < plan_.max_in_flight) {
        sizes.push_back(draw_size());
        plan_.acts.push_back({Act::send,
                              {static_cast<std::size_t>(name.from)},
                              channel,
                              sent_[channel]++,
                              0,
                              {},
                              {},
                              0});
      } else if (taken_[channel] < sent_[channel]) {
        receive(channel);
      }
    } else if (kind < 8 && !sums_.empty()) {
      advance(random_.below(sums_.size()));
    } else if (kind == 8) {
      OpenSum sum{new_process_group(Act::queue), {}, {}};
      sum.to_queue = sum.to_await = sum.act.members;
      random_.shuffle(std::span(sum.to_queue));
      random_.shuffle(std::span(sum.to_await));
      sums_.push_back(std::move(sum));
    } else {
      constexpr Act kProcessGroups[] = {Act::ring,   Act::reduce,  Act::broadcast,
                                        Act::gather, Act::scatter, Act::all_to_all};
      plan_.acts.push_back(new_process_group(kProcessGroups[random_.below(6)]));
    }
  }

  Random random_;
  ExchangePlan plan_;
  std::vector<std::size_t> sent_, taken_;
  std::vector<OpenSum> sums_;
};

}  // namespace detail

[[nodiscard]] inline ExchangePlan random_exchange(std::uint64_t seed, std::size_t devices,
                                                  std::size_t acts = 80) {
  return detail::ExchangeDraw(seed, devices, acts).take();
}

/// Memory of a device in an exchange, in the order of the device's own work: written, read and
/// freed as a backend does. `expect` compares, at once or by `end`, which says what was wrong
/// first.
template <class Candidate, class Element>
concept ExchangeMemory = requires(Candidate& memory, typename Candidate::Buffer& buffer,
                                  const std::vector<Element>& values, const std::string& text) {
  { memory.write(values) } -> std::same_as<typename Candidate::Buffer>;
  { memory.span(buffer) } -> std::same_as<std::span<Element>>;
  memory.expect(buffer, values, text);
  memory.free(std::move(buffer));
  { memory.end() } -> std::same_as<std::string>;
};

template <std::floating_point Element>
class HostExchange {
 public:
  using Buffer = std::vector<Element>;
  [[nodiscard]] static Buffer write(const std::vector<Element>& values) { return values; }
  [[nodiscard]] static std::span<Element> span(Buffer& buffer) { return buffer; }
  void expect(const Buffer& got, const std::vector<Element>& want, const std::string& what) {
    const bool equal =
        got.size() == want.size() &&
        (got.empty() || std::memcmp(got.data(), want.data(), got.size() * sizeof(Element)) == 0);
    if (!equal && wrong_.empty()) wrong_ = what;
  }
  static void free(Buffer&&) {}
  [[nodiscard]] std::string end() { return wrong_; }

 private:
  std::string wrong_;
};

/// Runs one device's acts and compares all that it gets with what it has to be.
template <std::floating_point Element, class Link, class Memory = HostExchange<Element>>
  requires runtime::Transport<Link, Element> && ExchangeMemory<Memory, Element>
class ExchangeRun {
 public:
  ExchangeRun(const ExchangePlan& plan, std::size_t device, Link& link, Memory memory = {})
      : plan_(plan),
        device_(device),
        link_(link),
        memory_(std::move(memory)),
        random_(plan.seed + 77 * device) {}

  /// What was wrong; empty for nothing.
  [[nodiscard]] std::string run() {
    for (std::size_t channel = 0; channel < plan_.channels.size(); ++channel) {
      for (std::size_t message = 0; message < plan_.max_in_flight; ++message)
        post(channel, message);
    }
    for (const ExchangeAct& act : plan_.acts) {
      if (std::find(act.devices.begin(), act.devices.end(), device_) == act.devices.end()) continue;
      if (random_.chance(1, 16)) std::this_thread::sleep_for(std::chrono::microseconds(100));
      act_of(act);
    }
    for (auto& [key, values] : sends_) {
      link_.await_send(plan_.channels[key.first].channel, key.second);
    }
    const std::string wrong = memory_.end();
    for (auto& [key, values] : sends_) {
      if (link_.send_ended(plan_.channels[key.first].channel, key.second)) continue;
      return "device " + std::to_string(device_) + ": a send's end";
    }
    return wrong;
  }

 private:
  using Values = std::vector<Element>;
  using Buffer = typename Memory::Buffer;
  using Key = std::pair<std::size_t, std::size_t>;

  Values drawn(std::size_t kind, std::size_t a, std::size_t b, std::size_t size) const {
    Random random(plan_.seed * 1000003 + kind * 7919 + a * 104729 + b * 31);
    Values values(size);
    for (Element& value : values) value = static_cast<Element>(random.unit() * 2 - 1);
    return values;
  }
  Values message_values(std::size_t channel, std::size_t message) const {
    return drawn(1, channel, message, plan_.channels[channel].sizes[message]);
  }
  Values member_values(const ExchangeAct& act, std::size_t member) const {
    const std::size_t extra = act.act == Act::ring ? member : 0;  // members' sizes may differ
    return drawn(2, act.process_group, act.members[member],
                 plan_.process_group_sizes[act.process_group] + extra);
  }

  void expect(Buffer& got, const Values& want, const char* what, std::size_t number) {
    memory_.expect(
        got, want,
        "device " + std::to_string(device_) + ": " + what + " " + std::to_string(number));
  }
  std::span<std::byte> bytes(Buffer& buffer) {
    return std::as_writable_bytes(memory_.span(buffer));
  }

  void post(std::size_t channel, std::size_t message) {
    const ExchangeChannel& one = plan_.channels[channel];
    if (one.channel.to != static_cast<std::int32_t>(device_) || message >= one.sizes.size()) return;
    const auto into = receives_.emplace(Key{channel, message},
                                        memory_.write(Values(one.sizes[message], Element{-9})));
    link_.post_receive(one.channel, message, bytes(into.first->second));
  }

  runtime::ProcessGroup process_group_of(const ExchangeAct& act) const {
    const auto self = std::find(act.members.begin(), act.members.end(), device_);
    return {act.members, static_cast<std::size_t>(self - act.members.begin()), act.per_node};
  }

  Values reduced(const ExchangeAct& act, runtime::Reduction reduction) const {
    Values sum = member_values(act, 0);
    for (std::size_t member = 1; member < act.members.size(); ++member) {
      const Values other = member_values(act, member);
      for (std::size_t i = 0; i < sum.size(); ++i) {
        sum[i] =
            reduction == runtime::Reduction::sum ? sum[i] + other[i] : std::max(sum[i], other[i]);
      }
    }
    return sum;
  }

  void act_of(const ExchangeAct& act) {
    link_.announce("device " + std::to_string(device_) + ", act " +
                   std::to_string(act.process_group));
    if (act.act == Act::send) return send(act);
    if (act.act == Act::receive) {
      link_.await_receive(plan_.channels[act.channel].channel, act.message);
      const auto got = receives_.find({act.channel, act.message});
      expect(got->second, message_values(act.channel, act.message), "message", act.message);
      memory_.free(std::move(got->second));
      receives_.erase(got);
      post(act.channel, act.message + plan_.max_in_flight);
      return;
    }
    meet(act, process_group_of(act));
  }

  void send(const ExchangeAct& act) {
    const runtime::Channel& channel = plan_.channels[act.channel].channel;
    if (act.message >= plan_.max_in_flight) {
      const auto last = sends_.find({act.channel, act.message - plan_.max_in_flight});
      link_.await_send(channel, act.message - plan_.max_in_flight);
      memory_.free(std::move(last->second));
      sends_.erase(last);
    }
    const auto from = sends_.emplace(Key{act.channel, act.message},
                                     memory_.write(message_values(act.channel, act.message)));
    link_.queue_send(channel, act.message, bytes(from.first->second));
  }

  /// The member that hands this one something, by its own account.
  [[nodiscard]] static std::size_t sender(const ExchangeAct& act,
                                          const runtime::ProcessGroup& process_group) {
    std::vector<std::size_t> found;
    for (std::size_t member = 0; member < act.members.size(); ++member) {
      if (process_group.next(member, act.hop) == process_group.self) found.push_back(member);
    }
    SLIMPACK_ASSERT(found.size() == 1);
    return found.front();
  }

  void meet(const ExchangeAct& act, const runtime::ProcessGroup& process_group) {
    const auto tag = static_cast<std::int64_t>(act.process_group);
    if (act.act == Act::await) {
      link_.await_sum(process_group, tag);
      const auto sum = sums_.find(act.process_group);
      expect(sum->second, reduced(act, runtime::Reduction::sum), "sum", act.process_group);
      memory_.free(std::move(sum->second));
      sums_.erase(sum);
      return;
    }
    if (act.act == Act::gather) return gather(act, process_group);
    if (act.act == Act::scatter) return scatter(act, process_group);
    if (act.act == Act::all_to_all) return all_to_all(act, process_group);
    Buffer own = memory_.write(member_values(act, process_group.self));
    switch (act.act) {
      case Act::ring: {
        // Nothing is taken for granted of the order but that each hop has one sender and one taker.
        const Values before = member_values(act, sender(act, process_group));
        Buffer into = memory_.write(Values(before.size(), Element{-9}));
        link_.ring(process_group, act.hop, bytes(own), bytes(into));
        expect(into, before, "ring", act.process_group);
        memory_.free(std::move(into));
        break;
      }
      case Act::reduce:
        link_.all_reduce(process_group, memory_.span(own), act.reduction);
        expect(own, reduced(act, act.reduction), "reduction", act.process_group);
        break;
      case Act::broadcast:
        link_.broadcast(process_group, act.root, memory_.span(own));
        expect(own, member_values(act, act.root), "broadcast", act.process_group);
        break;
      case Act::queue: {
        const auto sum = sums_.emplace(act.process_group, std::move(own)).first;
        return link_.queue_sum(process_group, tag, memory_.span(sum->second));
      }
      case Act::await:
      case Act::gather:
      case Act::scatter:
      case Act::all_to_all:
      case Act::send:
      case Act::receive:
        break;
    }
    memory_.free(std::move(own));
  }

  void gather(const ExchangeAct& act, const runtime::ProcessGroup& process_group) {
    const std::size_t members = act.members.size();
    const std::size_t size = plan_.process_group_sizes[act.process_group];
    const auto first = [&](std::size_t member) { return size * member / members; };
    Values whole(size, Element{-9}), want(size);
    for (std::size_t member = 0; member < members; ++member) {
      const Values part = member_values(act, member);
      for (std::size_t i = first(member); i < first(member + 1); ++i) {
        want[i] = part[i];
        if (member == process_group.self) whole[i] = part[i];
      }
    }
    Buffer values = memory_.write(whole);
    link_.all_gather(process_group, memory_.span(values), first(process_group.self),
                     first(process_group.self + 1));
    expect(values, want, "gathering", act.process_group);
    memory_.free(std::move(values));
  }

  /// What the members are left with, together.
  void scatter(const ExchangeAct& act, const runtime::ProcessGroup& process_group) {
    const std::size_t members = act.members.size();
    const std::size_t size = plan_.process_group_sizes[act.process_group];
    const std::size_t first = size * process_group.self / members;
    const std::size_t last = size * (process_group.self + 1) / members;
    Buffer values = memory_.write(member_values(act, process_group.self));
    link_.reduce_scatter(process_group, memory_.span(values), first, last);
    link_.all_gather(process_group, memory_.span(values), first, last);
    expect(values, reduced(act, runtime::Reduction::sum), "scattering", act.process_group);
    memory_.free(std::move(values));
  }

  /// What one member gives another: no two sizes need be alike, and every third part is empty.
  [[nodiscard]] Values part_values(const ExchangeAct& act, std::size_t giver,
                                   std::size_t taker) const {
    const std::size_t from = act.members[giver], to = act.members[taker];
    const std::size_t size = plan_.process_group_sizes[act.process_group];
    return drawn(3, act.process_group, from * plan_.devices + to,
                 (from + 2 * to) % 3 == 0 ? 0 : size / 2 + from + 3 * to);
  }

  void all_to_all(const ExchangeAct& act, const runtime::ProcessGroup& process_group) {
    std::vector<Buffer> given, taken;
    std::vector<std::span<const std::byte>> from;
    std::vector<std::span<std::byte>> into;
    for (std::size_t member = 0; member < act.members.size(); ++member) {
      given.push_back(memory_.write(part_values(act, process_group.self, member)));
      const std::size_t size = part_values(act, member, process_group.self).size();
      taken.push_back(memory_.write(Values(size, Element{-9})));
    }
    for (Buffer& buffer : given) from.push_back(bytes(buffer));
    for (Buffer& buffer : taken) into.push_back(bytes(buffer));
    link_.all_to_all(process_group, from, into);
    for (std::size_t member = 0; member < act.members.size(); ++member) {
      expect(taken[member], part_values(act, member, process_group.self), "all to all",
             act.process_group);
      memory_.free(std::move(taken[member]));
      memory_.free(std::move(given[member]));
    }
  }

  const ExchangePlan& plan_;
  std::size_t device_;
  Link& link_;
  Memory memory_;
  Random random_;
  std::map<Key, Buffer> sends_, receives_;
  std::map<std::size_t, Buffer> sums_;
};

}  // namespace slimpack::test
