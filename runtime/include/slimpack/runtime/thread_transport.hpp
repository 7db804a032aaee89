// SPDX-License-Identifier: Apache-2.0
// A transport between threads of one process, one thread a device.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/runtime/detail/mover.hpp"
#include "slimpack/runtime/detail/rendezvous.hpp"
#include "slimpack/runtime/transport.hpp"

namespace slimpack::runtime {

/// One device's end of a rendezvous. Its calls are made by one thread at a time.
///
///     Rendezvous rendezvous(devices, plan.max_in_flight);   // shared, one a step
///     ThreadTransport link(rendezvous, device);             // on the device's thread
///     link.all_reduce(process_group, std::span(values), Reduction::sum);
///     rendezvous.leave(device);                             // the device's step has ended
///
/// It satisfies ScatterTransport. Throws InvalidInput where members disagree on sizes or calls come
/// out of order, Aborted and Deadlock as the rendezvous says.
template <Mover Move>
class BasicThreadTransport {
 public:
  /// What the devices of a step share.
  using RendezvousType = BasicRendezvous<Move>;

  /// `mover` is the device's own. Throws InvalidInput unless the rendezvous has such a device.
  BasicThreadTransport(RendezvousType& rendezvous, std::size_t device, Move mover = {})
      : rendezvous_(&rendezvous), device_(device), mover_(std::move(mover)) {
    require(device < rendezvous.devices_.size(),
            "ThreadTransport: device must be one of the rendezvous",
            static_cast<std::int64_t>(device));
  }

  /// Gives message `message` of the channel a place to arrive at. Throws InvalidInput unless
  /// receives are posted in order, at most `max_in_flight` of them not yet awaited.
  void post_receive(const Channel& channel, std::size_t message, std::span<std::byte> into) {
    Lock lock(rendezvous_->mutex_);
    rendezvous_->check_aborted(lock);
    auto& state = rendezvous_->state_of(channel);
    require(message == state.posted && state.posted - state.awaited < rendezvous_->max_in_flight_,
            "transport: receives must be posted in order and within max_in_flight on " +
                to_string(channel),
            static_cast<std::int64_t>(message));
    auto& slot = state.messages[message % rendezvous_->max_in_flight_];
    slot.into = into;
    slot.posted = mover_.note();
    ++state.posted;
    rendezvous_->transfer(lock, channel, state, mover_);
  }

  /// Waits until the message has arrived. Throws InvalidInput unless receives are awaited in
  /// order.
  void await_receive(const Channel& channel, std::size_t message) {
    Lock lock(rendezvous_->mutex_);
    auto& state = rendezvous_->state_of(channel);
    await_transfer(lock, channel, state, message);
    require(message == state.awaited, "transport: receives must be awaited in order",
            static_cast<std::int64_t>(message));
    ++state.awaited;
    mover_.follow(state.messages[message % rendezvous_->max_in_flight_].moved);
  }

  /// Offers message `message` of the channel to its receiver. Throws InvalidInput unless sends are
  /// queued in order, at most `max_in_flight` of them unfinished.
  void queue_send(const Channel& channel, std::size_t message, std::span<const std::byte> from) {
    Lock lock(rendezvous_->mutex_);
    rendezvous_->check_aborted(lock);
    auto& state = rendezvous_->state_of(channel);
    require(message == state.sent && state.sent - state.ended < rendezvous_->max_in_flight_,
            "transport: sends must be queued in order and within max_in_flight on " +
                to_string(channel),
            static_cast<std::int64_t>(message));
    auto& slot = state.messages[message % rendezvous_->max_in_flight_];
    slot.from = from;
    slot.sent = mover_.note();
    ++state.sent;
    rendezvous_->transfer(lock, channel, state, mover_);
  }

  /// Whether the message has been taken, so that its bytes are free. Never blocks.
  [[nodiscard]] bool send_ended(const Channel& channel, std::size_t message) {
    Lock lock(rendezvous_->mutex_);
    rendezvous_->check_aborted(lock);
    const auto& state = rendezvous_->state_of(channel);
    return state.ended > message && mover_.reached(moved(state, message));
  }

  /// Waits until the message has been taken.
  void await_send(const Channel& channel, std::size_t message) {
    Lock lock(rendezvous_->mutex_);
    const auto& state = rendezvous_->state_of(channel);
    await_transfer(lock, channel, state, message);
    mover_.follow(moved(state, message));
  }

  /// Hands `from` to the next member and fills `into` from the one before, with a hop of the
  /// process group's ring. The last member to come moves the bytes of all.
  void ring(const ProcessGroup& process_group, std::size_t hop, std::span<const std::byte> from,
            std::span<std::byte> into) {
    begin_ring(process_group, hop, from, into);
    end_ring();
  }
  /// The beginning of `ring`, and what makes the bytes be there: between both nobody writes to
  /// `from` or touches `into`, and no other ring begins.
  void begin_ring(const ProcessGroup& process_group, std::size_t hop,
                  std::span<const std::byte> from, std::span<std::byte> into) {
    const auto check = [&](Contributions all) {
      for (std::size_t member = 0; member < all.size(); ++member) {
        const auto& next = all[process_group.next(member, hop)];
        require(all[member].from.size() == next.into.size(),
                "transport: ring members must agree on bytes",
                static_cast<std::int64_t>(next.into.size()));
      }
    };
    ringed_ = meet(process_group, {from, into}, check, [&](Lane lane, Contributions all) {
      for (std::size_t member = 0; member < all.size(); ++member) {
        mover_.copy(lane, all[member].from, all[process_group.next(member, hop)].into);
      }
    });
  }
  /// The ring that began last has moved its bytes for whatever comes next.
  void end_ring() { mover_.follow(ringed_); }

  /// Gives from[i] to member i and fills into[i] with what member i gives this one, its own part
  /// included. The last member to come moves the bytes of all.
  void all_to_all(const ProcessGroup& process_group,
                  std::span<const std::span<const std::byte>> from,
                  std::span<const std::span<std::byte>> into) {
    require(given_.empty(), "transport: an all_to_all is under way");
    begin_all_to_all(process_group, from, into);
    end_all_to_all();
  }
  /// The beginning of `all_to_all`: until its end nobody writes to what is given or touches what is
  /// filled. Others may begin before it ends, which they do in the order in which they began.
  void begin_all_to_all(const ProcessGroup& process_group,
                        std::span<const std::span<const std::byte>> from,
                        std::span<const std::span<std::byte>> into) {
    check_all_to_all(process_group, from.size(), into.size());
    Contribution contribution;
    contribution.from_each = from;
    contribution.into_each = into;
    const auto check = [](Contributions all) {
      for (std::size_t giver = 0; giver < all.size(); ++giver) {
        for (std::size_t taker = 0; taker < all.size(); ++taker) {
          const std::size_t taken = all[taker].into_each[giver].size();
          require(all[giver].from_each[taker].size() == taken,
                  "transport: members of all_to_all must agree on bytes",
                  static_cast<std::int64_t>(taken));
        }
      }
    };
    given_.push_back(meet(process_group, contribution, check, [this](Lane lane, Contributions all) {
      for (std::size_t giver = 0; giver < all.size(); ++giver) {
        for (std::size_t taker = 0; taker < all.size(); ++taker) {
          mover_.copy(lane, all[giver].from_each[taker], all[taker].into_each[giver]);
        }
      }
    }));
  }
  /// What the first all_to_all under way moves is there for whatever comes next.
  void end_all_to_all() {
    require(!given_.empty(), "transport: no all_to_all is under way");
    mover_.follow(given_.front());
    given_.pop_front();
  }

  /// Fills the `values` of all members with those of member `root`.
  template <class Element>
    requires std::is_trivially_copyable_v<Element>
  void broadcast(const ProcessGroup& process_group, std::size_t root, std::span<Element> values) {
    run_collective(process_group, whole(values), check_equal_sizes,
                   [this, root](Lane lane, Contributions all) {
                     for (std::size_t member = 0; member < all.size(); ++member) {
                       if (member != root) mover_.copy(lane, all[root].from, all[member].into);
                     }
                   });
  }

  /// Fills the `values` of all members with their sum or maximum, combined in the order of members.
  template <std::floating_point Element>
  void all_reduce(const ProcessGroup& process_group, std::span<Element> values,
                  Reduction reduction) {
    run_collective(process_group, whole(values), check_equal_sizes,
                   [this, reduction](Lane lane, Contributions all) {
                     mover_.template reduce<Element>(lane, all, reduction);
                   });
  }

  /// Gives all members what each holds of its own [first, last).
  template <class Element>
    requires std::is_trivially_copyable_v<Element>
  void all_gather(const ProcessGroup& process_group, std::span<Element> values, std::size_t first,
                  std::size_t last) {
    begin_all_gather(process_group, values, first, last);
    end_collective();
  }
  /// The beginning of `all_gather`: until end_collective nobody touches `values`, and no other
  /// collective of this kind, or of reduce_scatter, begins.
  template <class Element>
    requires std::is_trivially_copyable_v<Element>
  void begin_all_gather(const ProcessGroup& process_group, std::span<Element> values,
                        std::size_t first, std::size_t last) {
    require(first <= last && last <= values.size(), "transport: all_gather past the end",
            static_cast<std::int64_t>(last));
    auto contribution = whole(values);
    contribution.first = first * sizeof(Element);
    contribution.last = last * sizeof(Element);
    began_ =
        meet(process_group, contribution, check_equal_sizes, [this](Lane lane, Contributions all) {
          for (const auto& source : all) {
            const std::size_t bytes = source.last - source.first;
            for (const auto& target : all) {
              if (&source == &target) continue;
              mover_.copy(lane, source.from.subspan(source.first, bytes),
                          target.into.subspan(source.first, bytes));
            }
          }
        });
  }

  /// Leaves the sum of all members in the [first, last) of each, of any type that the mover adds
  /// up.
  template <class Element>
    requires std::is_trivially_copyable_v<Element>
  void reduce_scatter(const ProcessGroup& process_group, std::span<Element> values,
                      std::size_t first, std::size_t last) {
    begin_reduce_scatter(process_group, values, first, last);
    end_collective();
  }
  /// The beginning of `reduce_scatter`, as begin_all_gather is of all_gather.
  template <class Element>
    requires std::is_trivially_copyable_v<Element>
  void begin_reduce_scatter(const ProcessGroup& process_group, std::span<Element> values,
                            std::size_t first, std::size_t last) {
    require(first <= last && last <= values.size(), "transport: reduce_scatter past the end",
            static_cast<std::int64_t>(last));
    auto contribution = whole(values);
    contribution.first = first * sizeof(Element);
    contribution.last = last * sizeof(Element);
    began_ =
        meet(process_group, contribution, check_equal_sizes, [this](Lane lane, Contributions all) {
          std::vector<Contribution> part(all.size());
          for (std::size_t member = 0; member < all.size(); ++member) {
            const std::size_t i = all[member].first, size = all[member].last - i;
            if (size == 0) continue;
            for (std::size_t other = 0; other < all.size(); ++other) {
              part[other] = {all[other].from.subspan(i, size), all[other].into.subspan(i, size)};
            }
            mover_.template reduce<Element>(lane, part, Reduction::sum, member);
          }
        });
  }

  /// The collective that began last has moved its bytes for whatever comes next.
  void end_collective() { mover_.follow(began_); }

  /// Gives all members the parts that each owns by the layout.
  template <class Element>
    requires std::is_trivially_copyable_v<Element>
  void gather_parts(const ProcessGroup& process_group, std::span<Element> values,
                    const ShardLayout& shard_layout) {
    begin_gather(process_group, values, shard_layout);
    end_gathers();
  }
  /// The beginning of `gather_parts`, and what makes all that have begun be there: between both
  /// nobody touches `values`.
  template <class Element>
    requires std::is_trivially_copyable_v<Element>
  void begin_gather(const ProcessGroup& process_group, std::span<Element> values,
                    const ShardLayout& shard_layout) {
    check_shard_layout(process_group, values.size(), shard_layout);
    const auto work = [&](Lane lane, Contributions all) {
      for_each_part(shard_layout, sizeof(Element),
                    [&](std::size_t member, std::size_t i, std::size_t size) {
                      for (std::size_t other = 0; other < all.size(); ++other) {
                        if (other == member) continue;
                        mover_.copy(lane, all[member].from.subspan(i, size),
                                    all[other].into.subspan(i, size));
                      }
                    });
    };
    // Rings and collectives that come next need not wait for it.
    gathered_.push_back(meet(process_group, whole(values), check_equal_sizes, work, Lane::sums));
  }
  /// All gathers that have begun have moved their bytes for whatever comes next.
  void end_gathers() {
    for (const auto& mark : gathered_) mover_.follow(mark);
    gathered_.clear();
  }

  /// As queue_sum, but only the parts that this member owns by the layout become the sum.
  template <std::floating_point Element>
  void queue_scatter(const ProcessGroup& process_group, std::int64_t tag, std::span<Element> values,
                     const ShardLayout& shard_layout) {
    check_shard_layout(process_group, values.size(), shard_layout);
    queue(process_group, tag, values, [&](Lane lane, Contributions all) {
      for_each_part(shard_layout, sizeof(Element),
                    [&](std::size_t member, std::size_t i, std::size_t size) {
                      std::vector<Contribution> part;
                      for (const Contribution& one : all) {
                        part.push_back({one.from.subspan(i, size), one.into.subspan(i, size)});
                      }
                      mover_.template reduce<Element>(lane, part, Reduction::sum, member);
                    });
    });
  }

  /// Begins the sum `tag` of the members. Never blocks; `values` is the sum after await_sum.
  template <std::floating_point Element>
  void queue_sum(const ProcessGroup& process_group, std::int64_t tag, std::span<Element> values) {
    queue(process_group, tag, values, [this](Lane lane, Contributions all) {
      mover_.template reduce<Element>(lane, all, Reduction::sum);
    });
  }

  /// Waits until the sum is there. Throws InvalidInput where it was not queued.
  void await_sum(const ProcessGroup& process_group, std::int64_t tag) {
    Lock lock(rendezvous_->mutex_);
    auto& sums = rendezvous_->groups_[process_group.members].sums;
    const auto found = sums.find(tag);
    require(found != sums.end(), "transport: a sum must be queued before it is awaited", tag);
    Wait wait;
    wait.gathering = &found->second;
    wait.process_group = &process_group;
    wait.tag = tag;
    block(lock, wait);
    mover_.follow(found->second.done);
    if (++found->second.departed == process_group.members.size()) sums.erase(found);
  }

  /// Says what the device is about to do. Throws Aborted after an `abort`, so that a device that
  /// waits for no other ends at its next unit too.
  void announce(const std::string& place) {
    Lock lock(rendezvous_->mutex_);
    rendezvous_->check_aborted(lock);
    rendezvous_->devices_[device_].place = place;
  }

  /// Makes every blocked or later call of every other device throw Aborted with this sentence.
  void abort(const std::string& sentence) { rendezvous_->abort(sentence); }

 private:
  using Lock = typename RendezvousType::Lock;
  using Wait = typename RendezvousType::Wait;

  template <class Element>
  static Contribution whole(std::span<Element> values) {
    const auto bytes = std::as_writable_bytes(values);
    return {bytes, bytes};
  }

  static void check_equal_sizes(Contributions all) {
    for (const auto& one : all) {
      require(one.from.size() == all.front().from.size(), "transport: members must agree on bytes",
              static_cast<std::int64_t>(one.from.size()));
    }
  }

  /// visit(member, first byte, bytes) for every part.
  template <std::invocable<std::size_t, std::size_t, std::size_t> Visit>
  static void for_each_part(const ShardLayout& shard_layout, std::size_t element, Visit visit) {
    for (const ShardPiece& piece : shard_layout.pieces()) {
      for (std::size_t member = 0; member < shard_layout.members; ++member) {
        const auto [first, last] = piece.of(member);
        if (first < last) visit(member, first * element, (last - first) * element);
      }
    }
  }

  template <class Element, std::invocable<Lane, Contributions> Work>
  void queue(const ProcessGroup& process_group, std::int64_t tag, std::span<Element> values,
             Work work) {
    Lock lock(rendezvous_->mutex_);
    rendezvous_->check_aborted(lock);
    rendezvous_->arrive(lock, process_group, rendezvous_->groups_[process_group.members].sums[tag],
                        whole(values), mover_, Lane::sums, check_equal_sizes, work);
  }

  /// The mark of a message that has ended, or of a later one in its place.
  [[nodiscard]] const typename Move::Mark& moved(const typename RendezvousType::ChannelState& state,
                                                 std::size_t message) const {
    return state.messages[message % rendezvous_->max_in_flight_].moved;
  }

  void block(Lock& lock, const Wait& wait) {
    if (wait.over()) return rendezvous_->check_aborted(lock);
    rendezvous_->wait_for(lock, device_, wait);
  }

  void await_transfer(Lock& lock, const Channel& channel,
                      const typename RendezvousType::ChannelState& state, std::size_t message) {
    Wait wait;
    wait.channel = &state;
    wait.name = &channel;
    wait.number = message;
    block(lock, wait);
  }

  /// Waits on the host until all members have come; gives the mark of what was then done.
  template <std::invocable<Contributions> Check, std::invocable<Lane, Contributions> Work>
  [[nodiscard]] typename Move::Mark meet(const ProcessGroup& process_group,
                                         const Contribution& contribution, Check check, Work work,
                                         Lane lane = Lane::collectives) {
    Lock lock(rendezvous_->mutex_);
    rendezvous_->check_aborted(lock);
    auto& gathering = rendezvous_->groups_[process_group.members].collective;
    Wait wait;
    wait.gathering = &gathering;
    wait.process_group = &process_group;
    wait.number = gathering.ended;
    rendezvous_->arrive(lock, process_group, gathering, contribution, mover_, lane, check, work);
    block(lock, wait);
    return gathering.done;
  }
  template <std::invocable<Contributions> Check, std::invocable<Lane, Contributions> Work>
  void run_collective(const ProcessGroup& process_group, const Contribution& contribution,
                      Check check, Work work) {
    mover_.follow(meet(process_group, contribution, check, work));
  }

  typename Move::Mark ringed_{};           ///< the end of the ring that has begun
  std::deque<typename Move::Mark> given_;  ///< all_to_all under way, in the order of beginnings
  typename Move::Mark began_{};            ///< of the other collective that has
  std::vector<typename Move::Mark> gathered_{};  ///< of gatherings
  RendezvousType* rendezvous_;
  std::size_t device_;
  [[no_unique_address]] Move mover_;
};

/// Between devices whose memory is the host's.
using ThreadTransport = BasicThreadTransport<HostMover>;

static_assert(ScatterTransport<ThreadTransport, double> &&
              ScatterTransport<ThreadTransport, float> && !Transport<Rendezvous, double>);

}  // namespace slimpack::runtime
