// SPDX-License-Identifier: Apache-2.0
// A reduction between processes that goes on by itself, with the bits of the one between threads.
#pragma once

#include <mpi.h>

#include <concepts>
#include <cstddef>
#include <span>
#include <vector>

#include "slimpack/runtime/transport.hpp"
#include "slimpack_mpi/flight.hpp"

namespace slimpack::mpi {

/// A reduction of the members' values in the order of members. Large ones are cut into one block a
/// member: each gets its block of all others, reduces it, and gives the others the result; small
/// ones go from all to all at once. Both reduce every element in the same order, so bits do not
/// depend on that. The ranks of members are their numbers.
class Sum {
 public:
  using Combine = void (*)(std::span<std::byte>, std::span<const std::byte>, runtime::Reduction);

  /// Begins. `staging` is memory that it may use; `values` must stay untouched until `ended`.
  template <std::floating_point Element>
  Sum(MPI_Comm comm, int tag, const runtime::ProcessGroup& process_group, std::span<Element> values,
      runtime::Reduction reduction, std::vector<std::byte> staging)
      : comm_(comm),
        tag_(tag),
        process_group_(process_group),
        values_(std::as_writable_bytes(values)),
        element_(sizeof(Element)),
        combine_(
            [](std::span<std::byte> into, std::span<const std::byte> from, runtime::Reduction how) {
              runtime::combine(
                  std::span(reinterpret_cast<Element*>(into.data()), into.size() / sizeof(Element)),
                  std::span(reinterpret_cast<const Element*>(from.data()),
                            from.size() / sizeof(Element)),
                  how);
            }),
        reduction_(reduction),
        staging_(std::move(staging)) {
    direct_ = values_.size() <= kDirect;
    own_ = block(process_group_.self);
    const std::size_t others = process_group_.members.size() - 1;
    if (staging_.size() < others * own_.size()) staging_.resize(others * own_.size());
    for (std::size_t member = 0; member <= others; ++member) {
      if (member == process_group_.self) continue;
      flight_.receive(comm_, process_group_.members[member], tag_, staged(member));
    }
    for (std::size_t member = 0; member <= others; ++member) {
      if (member == process_group_.self) continue;
      flight_.send(comm_, process_group_.members[member], tag_, block(member));
    }
  }

  /// Goes on as far as it can. True when `values` is the result.
  [[nodiscard]] bool ended() {
    if (done_) return true;
    if (!flight_.ended()) return false;
    if (!reduced_) {
      reduce();
      reduced_ = true;
      if (!direct_) share();
      if (!flight_.ended()) return false;
    }
    done_ = true;
    return true;
  }

  /// The staging buffer, for the next sum to use again. This one must have ended.
  [[nodiscard]] std::vector<std::byte> take_staging() { return std::move(staging_); }

 private:
  /// Bytes up to which one exchange costs less than two rounds.
  static constexpr std::size_t kDirect = 16384;

  /// What member `member` reduces.
  [[nodiscard]] std::span<std::byte> block(std::size_t member) const {
    if (direct_) return values_;
    const std::size_t members = process_group_.members.size();
    const std::size_t count = values_.size() / element_;
    const std::size_t first = count * member / members, last = count * (member + 1) / members;
    return values_.subspan(first * element_, (last - first) * element_);
  }
  /// Where the own block of another member lies.
  [[nodiscard]] std::span<std::byte> staged(std::size_t member) {
    const std::size_t place = member - (member > process_group_.self ? 1 : 0);
    return std::span(staging_).subspan(place * own_.size(), own_.size());
  }

  void reduce() {
    const std::size_t members = process_group_.members.size();
    if (members == 1) return;
    const auto contribution = [&](std::size_t member) {
      return member == process_group_.self ? own_ : staged(member);
    };
    const std::span<std::byte> sum = contribution(0);
    for (std::size_t member = 1; member < members; ++member) {
      combine_(sum, contribution(member), reduction_);
    }
    if (process_group_.self != 0) std::copy(sum.begin(), sum.end(), own_.begin());
  }

  void share() {
    for (std::size_t member = 0; member < process_group_.members.size(); ++member) {
      if (member == process_group_.self) continue;
      flight_.receive(comm_, process_group_.members[member], tag_, block(member));
      flight_.send(comm_, process_group_.members[member], tag_, own_);
    }
  }

  MPI_Comm comm_;
  int tag_;
  runtime::ProcessGroup process_group_;
  std::span<std::byte> values_, own_;
  std::size_t element_;
  Combine combine_;
  runtime::Reduction reduction_;
  std::vector<std::byte> staging_;
  Flight flight_;
  bool direct_ = false, reduced_ = false, done_ = false;
};

}  // namespace slimpack::mpi
