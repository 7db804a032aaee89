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
/// of rows after the other. Products that are split by outputs want whole rows, of which each
/// device holds some: `gather_each`. Those that are split by inputs give each device a part of
/// every sum: `sum_each` adds the parts up and leaves each device its rows. Products have the rows
/// in the order of tokens, collectives in that of devices: while those of one group are read or
/// made, those of another travel, beside the compute stream. All devices come to every call alike,
/// with the same groups. Alone a device holds all rows and makes whole sums: it calls neither.
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

  /// For i from 0 to count - 1: queues use(i, all rows of group_of(i)), of which this device holds
  /// those that bring(i, place) copies to `place`. Rows of i + 1 travel beside what use(i) queues,
  /// so bring(i + 1) comes before use(i) and reads nothing that this makes. The rows are there for
  /// what `use` queues.
  template <std::invocable<std::size_t> GroupOf,
            std::invocable<std::size_t, DeviceSpan<Bf16>> Bring,
            std::invocable<std::size_t, DeviceSpan<const Bf16>> Use>
  void gather_each(std::size_t count, GroupOf group_of, Bring bring, Use use) {
    const auto begin = [&](std::size_t i) {
      const RowGroup& group = group_of(i);
      bring(i, own(group));
      link_.begin_all_gather(process_group_, host_span(by_device(group)), part(group) * self(),
                             part(group) * (self() + 1));
    };
    if (count > 0) begin(0);
    for (std::size_t i = 0; i < count; ++i) {
      const RowGroup& group = group_of(i);
      const DeviceSpan<Bf16> whole = by_token(group);
      link_.end_collective();
      gather_rows(whole, by_device(group), places(group), {group.rows, hidden_}, stream_);
      if (i + 1 < count) begin(i + 1);
      use(i, whole);
    }
  }

  /// For i from 0 to count - 1: fill(i, place) queues what makes this device's part of all rows of
  /// group_of(i), then take(i, sums) what reads the sums of its own rows. Sums of i travel beside
  /// what fill(i + 1, place) queues, so this comes before take(i) and reads nothing that it makes.
  template <std::invocable<std::size_t> GroupOf, std::invocable<std::size_t, DeviceSpan<Bf16>> Fill,
            std::invocable<std::size_t, DeviceSpan<const Bf16>> Take>
  void sum_each(std::size_t count, GroupOf group_of, Fill fill, Take take) {
    sum_placed_each(
        count, group_of, fill,
        [&](std::size_t i, DeviceSpan<Bf16> rows) {
          const RowGroup& group = group_of(i);
          scatter_rows(rows, by_token(group), places(group), {group.rows, hidden_}, stream_);
        },
        take);
  }
  /// The same where place(i, rows) puts what `fill` has made to the group's rows in the order of
  /// devices.
  template <class GroupOf, class Fill, std::invocable<std::size_t, DeviceSpan<Bf16>> Place,
            class Take>
  void sum_placed_each(std::size_t count, GroupOf group_of, Fill fill, Place place, Take take) {
    const auto end = [&](std::size_t i) {
      link_.end_collective();
      take(i, DeviceSpan<const Bf16>(own(group_of(i))));
    };
    for (std::size_t i = 0; i < count; ++i) {
      const RowGroup& group = group_of(i);
      fill(i, by_token(group));
      if (i > 0) end(i - 1);
      place(i, by_device(group));
      link_.begin_reduce_scatter(process_group_, host_span(by_device(group)), part(group) * self(),
                                 part(group) * (self() + 1));
    }
    if (count > 0) end(count - 1);
  }

 private:
  [[nodiscard]] DeviceSpan<Bf16> by_token(const RowGroup& group) const {
    return whole_.by_token.subspan(0, group.rows * hidden_);
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
