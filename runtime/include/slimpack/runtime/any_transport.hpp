// SPDX-License-Identifier: Apache-2.0
// One type for transports of any: executor and backend are compiled once for all of them.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "slimpack/runtime/thread_transport.hpp"
#include "slimpack/runtime/transport.hpp"

namespace slimpack::runtime {

/// A Transport for both element types whose calls are virtual, which a unit of work does not
/// notice. A program that has several transports instantiates executor and backend for this one
/// alone:
///
///     ErasedTransport link(transport);
///     DeviceRun<Device, AnyTransport> run(plan, program, data, device, backend, link, observer);
class AnyTransport {
 public:
  AnyTransport() = default;
  AnyTransport(const AnyTransport&) = delete;
  AnyTransport& operator=(const AnyTransport&) = delete;
  virtual ~AnyTransport() = default;

  /// Posts a receive: the message may arrive in `into` from now on.
  virtual void post_receive(const Channel& channel, std::size_t message,
                            std::span<std::byte> into) = 0;
  /// Waits until a message that was posted is there.
  virtual void await_receive(const Channel& channel, std::size_t message) = 0;
  /// Queues a send; `from` must stay as it is until the send has ended.
  virtual void queue_send(const Channel& channel, std::size_t message,
                          std::span<const std::byte> from) = 0;
  /// Whether a send has ended, without waiting.
  [[nodiscard]] virtual bool send_ended(const Channel& channel, std::size_t message) = 0;
  /// Waits until a send has ended.
  virtual void await_send(const Channel& channel, std::size_t message) = 0;
  /// Gives `from` to the next rank of the group and takes `into` from the one before, with one hop
  /// of the ring.
  virtual void ring(const ProcessGroup& process_group, std::size_t hop,
                    std::span<const std::byte> from, std::span<std::byte> into) = 0;
  /// Gives from[i] to rank i of the group and fills into[i] with what rank i gives this one.
  virtual void all_to_all(const ProcessGroup& process_group,
                          std::span<const std::span<const std::byte>> from,
                          std::span<const std::span<std::byte>> into) = 0;
  /// Gives the values of rank `root` of the group to all of its ranks.
  virtual void broadcast(const ProcessGroup& process_group, std::size_t root,
                         std::span<float> values) = 0;
  /// Gives the values of rank `root` of the group to all of its ranks.
  virtual void broadcast(const ProcessGroup& process_group, std::size_t root,
                         std::span<double> values) = 0;
  /// Reduces values of the same size over the ranks of the group, in place, on all of them.
  virtual void all_reduce(const ProcessGroup& process_group, std::span<float> values,
                          Reduction reduction) = 0;
  /// Reduces values of the same size over the ranks of the group, in place, on all of them.
  virtual void all_reduce(const ProcessGroup& process_group, std::span<double> values,
                          Reduction reduction) = 0;
  /// Gathers the parts of all ranks in `values`; this one has [first, last).
  virtual void all_gather(const ProcessGroup& process_group, std::span<float> values,
                          std::size_t first, std::size_t last) = 0;
  /// Gathers the parts of all ranks in `values`; this one has [first, last).
  virtual void all_gather(const ProcessGroup& process_group, std::span<double> values,
                          std::size_t first, std::size_t last) = 0;
  /// Leaves the sum over the ranks of the group in the [first, last) of each.
  virtual void reduce_scatter(const ProcessGroup& process_group, std::span<float> values,
                              std::size_t first, std::size_t last) = 0;
  /// Leaves the sum over the ranks of the group in the [first, last) of each.
  virtual void reduce_scatter(const ProcessGroup& process_group, std::span<double> values,
                              std::size_t first, std::size_t last) = 0;
  /// Queues a sum over the ranks of the group, in place, which runs beside units.
  virtual void queue_sum(const ProcessGroup& process_group, std::int64_t tag,
                         std::span<float> values) = 0;
  /// Queues a sum over the ranks of the group, in place, which runs beside units.
  virtual void queue_sum(const ProcessGroup& process_group, std::int64_t tag,
                         std::span<double> values) = 0;
  /// Waits for the sum that was queued under `tag`.
  virtual void await_sum(const ProcessGroup& process_group, std::int64_t tag) = 0;
  /// Says what the device is about to do, for the sentences of errors.
  virtual void announce(const std::string& place) = 0;
  /// Ends all devices of the step with `sentence`.
  virtual void abort(const std::string& sentence) = 0;
};

/// What can be an AnyTransport.
template <class Candidate>
concept ErasableTransport = Transport<Candidate, float> && Transport<Candidate, double>;

/// A transport as AnyTransport, with its laws and exceptions. It refers to the transport where it
/// is made of an lvalue (`Link` is a reference), which then has to outlive it; else it keeps it.
template <class Link>
  requires ErasableTransport<std::remove_reference_t<Link>>
class ErasedTransport final : public AnyTransport {
 public:
  /// Refers to an lvalue, keeps anything else.
  explicit ErasedTransport(Link&& link) : link_(std::forward<Link>(link)) {}

  void post_receive(const Channel& channel, std::size_t message,
                    std::span<std::byte> into) override {
    link_.post_receive(channel, message, into);
  }
  void await_receive(const Channel& channel, std::size_t message) override {
    link_.await_receive(channel, message);
  }
  void queue_send(const Channel& channel, std::size_t message,
                  std::span<const std::byte> from) override {
    link_.queue_send(channel, message, from);
  }
  [[nodiscard]] bool send_ended(const Channel& channel, std::size_t message) override {
    return link_.send_ended(channel, message);
  }
  void await_send(const Channel& channel, std::size_t message) override {
    link_.await_send(channel, message);
  }
  void ring(const ProcessGroup& process_group, std::size_t hop, std::span<const std::byte> from,
            std::span<std::byte> into) override {
    link_.ring(process_group, hop, from, into);
  }
  void all_to_all(const ProcessGroup& process_group,
                  std::span<const std::span<const std::byte>> from,
                  std::span<const std::span<std::byte>> into) override {
    link_.all_to_all(process_group, from, into);
  }
  void broadcast(const ProcessGroup& process_group, std::size_t root,
                 std::span<float> values) override {
    link_.broadcast(process_group, root, values);
  }
  void broadcast(const ProcessGroup& process_group, std::size_t root,
                 std::span<double> values) override {
    link_.broadcast(process_group, root, values);
  }
  void all_reduce(const ProcessGroup& process_group, std::span<float> values,
                  Reduction reduction) override {
    link_.all_reduce(process_group, values, reduction);
  }
  void all_reduce(const ProcessGroup& process_group, std::span<double> values,
                  Reduction reduction) override {
    link_.all_reduce(process_group, values, reduction);
  }
  void all_gather(const ProcessGroup& process_group, std::span<float> values, std::size_t first,
                  std::size_t last) override {
    link_.all_gather(process_group, values, first, last);
  }
  void all_gather(const ProcessGroup& process_group, std::span<double> values, std::size_t first,
                  std::size_t last) override {
    link_.all_gather(process_group, values, first, last);
  }
  void reduce_scatter(const ProcessGroup& process_group, std::span<float> values, std::size_t first,
                      std::size_t last) override {
    link_.reduce_scatter(process_group, values, first, last);
  }
  void reduce_scatter(const ProcessGroup& process_group, std::span<double> values,
                      std::size_t first, std::size_t last) override {
    link_.reduce_scatter(process_group, values, first, last);
  }
  void queue_sum(const ProcessGroup& process_group, std::int64_t tag,
                 std::span<float> values) override {
    link_.queue_sum(process_group, tag, values);
  }
  void queue_sum(const ProcessGroup& process_group, std::int64_t tag,
                 std::span<double> values) override {
    link_.queue_sum(process_group, tag, values);
  }
  void await_sum(const ProcessGroup& process_group, std::int64_t tag) override {
    link_.await_sum(process_group, tag);
  }
  void announce(const std::string& place) override { link_.announce(place); }
  void abort(const std::string& sentence) override { link_.abort(sentence); }

 private:
  Link link_;
};

/// `Link` is a reference where the transport is an lvalue.
template <class Link>
ErasedTransport(Link&&) -> ErasedTransport<Link>;

static_assert(ErasableTransport<ThreadTransport> && !ErasableTransport<Rendezvous>);
static_assert(Transport<AnyTransport, float> && Transport<AnyTransport, double> &&
              !ScatterTransport<AnyTransport, float>);

}  // namespace slimpack::runtime
