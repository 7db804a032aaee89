// SPDX-License-Identifier: Apache-2.0
// Rows between the tensor-parallel devices of a unit: whole ones, and sums of partial ones.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <type_traits>

#include "slimpack/runtime/transport.hpp"
#include "slimpack_cuda/bf16.hpp"
#include "slimpack_cuda/device.hpp"
#include "slimpack_cuda/rank/memory.hpp"
#include "slimpack_cuda/rank/row_groups.hpp"
#include "slimpack_cuda/rows.hpp"

namespace slimpack::cuda {

/// Queues a copy of all elements. Throws std::logic_error unless both are as large.
template <class Element>
void copy(DeviceSpan<Element> to, std::type_identity_t<DeviceSpan<const Element>> from,
          StreamView stream) {
  if (to.size != from.size) throw std::logic_error("a copy must be as large as what is copied");
  if (to.size == 0) return;
  copy_on_device(to.data, from.data, static_cast<std::size_t>(to.size) * sizeof(Element), stream);
}

/// Room for the whole rows of a group: in the order of devices, as collectives move them, and in
/// that of tokens.
struct WholeRows {
  DeviceSpan<Bf16> by_device, by_token;
};

/// Nothing where the device is alone.
[[nodiscard]] inline WholeRows place_whole_rows(Carver& workspace, const RowGroups& groups,
                                                std::int64_t hidden) {
  if (groups.devices == 1) return {};
  return {workspace.take<Bf16>(groups.most_padded(), hidden),
          workspace.take<Bf16>(groups.most_rows(), hidden)};
}

/// What a device does with the other tensor-parallel ones between the products of a unit, a group
/// of rows at a time. Products that are split by outputs want whole rows, of which each device
/// holds some: `gather`. Those that are split by inputs give each device a part of every sum: `sum`
/// adds the parts up and leaves each device its rows. All devices come to every call alike. Alone a
/// device holds all rows and makes whole sums, and nothing moves.
template <class Link>
class TensorUnit {
 public:
  /// `places` are those of the groups, on the device.
  TensorUnit(const runtime::ProcessGroup& process_group, const RowGroups& groups,
             const WholeRows& whole, DeviceSpan<const std::int32_t> places, std::int64_t hidden,
             Link& link, StreamView stream)
      : process_group_(process_group),
        groups_(groups),
        whole_(whole),
        places_(places),
        hidden_(hidden),
        link_(link),
        stream_(stream) {}

  /// Whether there are several devices.
  [[nodiscard]] bool several() const noexcept { return groups_.devices > 1; }

  /// All rows of a group, of which this device holds those that `bring(place)` copies to `place`.
  /// They stay until the next call. Of several devices alone.
  template <std::invocable<DeviceSpan<Bf16>> Bring>
  [[nodiscard]] DeviceSpan<const Bf16> gather(const RowGroup& group, Bring bring) {
    bring(own(group));
    link_.all_gather(process_group_, host_span(by_device(group)), part(group) * self(),
                     part(group) * (self() + 1));
    const DeviceSpan<Bf16> whole = by_token(group);
    gather_rows(whole, by_device(group), places(group), {group.rows, hidden_}, stream_);
    return whole;
  }
  /// The same of own rows that stand in a matrix of all own rows; alone a device has all of them.
  [[nodiscard]] DeviceSpan<const Bf16> gather(const RowGroup& group, DeviceSpan<const Bf16> rows) {
    const auto mine = rows_at(rows, group.first_own, group.own, hidden_);
    if (!several()) return mine;
    return gather(group, [&](DeviceSpan<Bf16> place) { copy(place, mine, stream_); });
  }

  /// Calls fill(place) for all rows of the group, of which each device makes a part. Gives the sums
  /// of this device's rows, which stay until the next call; alone they are those of `alone`.
  template <std::invocable<DeviceSpan<Bf16>> Fill>
  [[nodiscard]] DeviceSpan<Bf16> sum(const RowGroup& group, DeviceSpan<Bf16> alone, Fill fill) {
    if (!several()) {
      fill(alone);
      return alone;
    }
    const DeviceSpan<Bf16> whole = by_token(group);
    fill(whole);
    scatter_rows(by_device(group), whole, places(group), {group.rows, hidden_}, stream_);
    return reduce(group);
  }
  /// The same where fill(rows in the order of devices) puts the parts there itself. Of several
  /// devices alone.
  template <std::invocable<DeviceSpan<Bf16>> Fill>
  [[nodiscard]] DeviceSpan<Bf16> sum_by_device(const RowGroup& group, Fill fill) {
    fill(by_device(group));
    return reduce(group);
  }
  /// Scratch as large as a group's rows, until the next call.
  [[nodiscard]] DeviceSpan<Bf16> by_token(const RowGroup& group) const {
    return whole_.by_token.subspan(0, group.rows * hidden_);
  }

 private:
  [[nodiscard]] DeviceSpan<Bf16> reduce(const RowGroup& group) {
    link_.reduce_scatter(process_group_, host_span(by_device(group)), part(group) * self(),
                         part(group) * (self() + 1));
    return own(group);
  }
  [[nodiscard]] std::size_t self() const noexcept { return static_cast<std::size_t>(groups_.self); }
  /// Elements of a device.
  [[nodiscard]] std::size_t part(const RowGroup& group) const noexcept {
    return static_cast<std::size_t>(group.padded * hidden_);
  }
  [[nodiscard]] DeviceSpan<Bf16> by_device(const RowGroup& group) const {
    return whole_.by_device.subspan(0, groups_.devices * group.padded * hidden_);
  }
  [[nodiscard]] DeviceSpan<Bf16> own(const RowGroup& group) const {
    return rows_at(whole_.by_device, groups_.self * group.padded, group.own, hidden_);
  }
  [[nodiscard]] DeviceSpan<const std::int32_t> places(const RowGroup& group) const {
    return places_.subspan(group.first, group.rows);
  }

  const runtime::ProcessGroup& process_group_;
  const RowGroups& groups_;
  WholeRows whole_;
  DeviceSpan<const std::int32_t> places_;
  std::int64_t hidden_;
  Link& link_;
  StreamView stream_;
};

}  // namespace slimpack::cuda
