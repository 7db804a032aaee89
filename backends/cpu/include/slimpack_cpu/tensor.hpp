// SPDX-License-Identifier: Apache-2.0
// Rows between the tensor-parallel devices of a stage: whole ones, and sums of partial ones.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "slimpack/plan/tensor_rows.hpp"
#include "slimpack/runtime/transport.hpp"
#include "slimpack_cpu/mathematics.hpp"
#include "slimpack_cpu/ops.hpp"
#include "slimpack_cpu/workspace.hpp"

namespace slimpack::cpu {

/// Tokens that follow each other, whose rows the tensor-parallel devices take in turn.
struct RowRun {
  std::int64_t rows = 0;   ///< tokens
  std::int64_t first = 0;  ///< the device that holds the first row
};

/// What a device's tensor-parallel group does between the products of a layer, a run of tokens for
/// each piece of a group of pieces at a time. The products before attention and before the
/// activation want all rows, of which each device holds some: `gather`. Those behind them give each
/// device a part of every sum: `sum` adds the parts up and leaves each device its rows. Alone, a
/// device holds all rows and makes whole sums, and nothing moves.
template <std::floating_point Number, runtime::Transport<Number> Link>
class TensorGroup {
 public:
  /// Numbers that are read.
  using In = InOf<Number>;
  /// Numbers that are written.
  using Out = OutOf<Number>;
  /// The runs of a group of pieces.
  using Runs = std::span<const RowRun>;

  /// `rows` tokens at most are gathered or summed at once, rows of `hidden` numbers. What is passed
  /// by reference must outlive this.
  TensorGroup(const runtime::ProcessGroup& process_group, TensorRows own, std::int64_t rows,
              std::int64_t hidden, Workspace<Number>& workspace, Link& link)
      : process_group_(process_group), own_(own), hidden_(hidden), link_(link) {
    if (!several()) return;
    by_device_ = workspace.take(rows, hidden);
    by_token_ = workspace.take(rows, hidden);
  }

  /// Whether there are several devices.
  [[nodiscard]] bool several() const noexcept { return own_.devices > 1; }

  /// All rows of the runs, of which this device holds `own`, run by run. They stay until the next
  /// call.
  [[nodiscard]] std::vector<In> gather(Runs runs, std::span<const Out> own) {
    if (!several()) return {own.begin(), own.end()};
    const auto [first, last] = lay_out(runs);
    auto into = by_device_.begin() + static_cast<std::ptrdiff_t>(first);
    for (const Out rows : own) into = std::ranges::copy(rows, into).out;
    link_.all_gather(process_group_, all(runs), first, last);
    for_each_row(runs, [&](std::size_t token, std::size_t device_row) {
      std::ranges::copy(row(by_device_, device_row), row(by_token_, token).begin());
    });
    const std::vector<Out> whole = by_run(runs);
    return {whole.begin(), whole.end()};
  }

  /// Calls fill(places), one place a run, of any content, for all its rows: what each device makes
  /// of them is a part. Then leaves the sums of this device's rows in `own`. Where it is alone the
  /// places are those of `own`.
  template <std::invocable<std::span<const Out>> Fill>
  void sum(Runs runs, std::span<const Out> own, Fill fill) {
    if (!several()) return fill(own);
    const std::vector<Out> whole = by_run(runs);
    fill(std::span<const Out>(whole));
    const auto [first, last] = lay_out(runs);
    for_each_row(runs, [&](std::size_t token, std::size_t device_row) {
      std::ranges::copy(row(by_token_, token), row(by_device_, device_row).begin());
    });
    link_.reduce_scatter(process_group_, all(runs), first, last);
    auto from = by_device_.begin() + static_cast<std::ptrdiff_t>(first);
    for (const Out rows : own) {
      const auto end = from + static_cast<std::ptrdiff_t>(rows.size());
      std::copy(from, end, rows.begin());
      from = end;
    }
  }

 private:
  [[nodiscard]] Out row(Out matrix, std::size_t i) const {
    return detail::row(matrix, static_cast<std::int64_t>(i), hidden_);
  }

  /// The buffer in the order of devices, as far as the runs fill it.
  [[nodiscard]] Out all(Runs runs) const {
    std::int64_t rows = 0;
    for (const RowRun& run : runs) rows += run.rows;
    return by_device_.first(static_cast<std::size_t>(rows * hidden_));
  }
  /// Places of the runs in the order of tokens.
  [[nodiscard]] std::vector<Out> by_run(Runs runs) const {
    std::vector<Out> places;
    std::int64_t done = 0;
    for (const RowRun& run : runs) {
      places.push_back(detail::rows(by_token_, done, run.rows, hidden_));
      done += run.rows;
    }
    return places;
  }

  /// Where each device's rows begin in the order of devices; the elements that are this device's.
  [[nodiscard]] std::pair<std::size_t, std::size_t> lay_out(Runs runs) {
    begin_.assign(static_cast<std::size_t>(own_.devices) + 1, 0);
    for (std::int64_t device = 0; device < own_.devices; ++device) {
      const auto i = static_cast<std::size_t>(device);
      begin_[i + 1] = begin_[i];
      for (const RowRun& run : runs) {
        begin_[i + 1] +=
            static_cast<std::size_t>(TensorRows{device, own_.devices}.among(run.first, run.rows));
      }
    }
    const auto mine = static_cast<std::size_t>(own_.device);
    const auto hidden = static_cast<std::size_t>(hidden_);
    return {begin_[mine] * hidden, begin_[mine + 1] * hidden};
  }

  /// Calls visit(row in the order of tokens, row in the order of devices).
  template <std::invocable<std::size_t, std::size_t> Visit>
  void for_each_row(Runs runs, Visit visit) const {
    std::vector<std::size_t> next = begin_;
    std::size_t token = 0;
    for (const RowRun& run : runs) {
      auto device = static_cast<std::size_t>(run.first);
      for (std::int64_t i = 0; i < run.rows; ++i) {
        visit(token++, next[device]++);
        device = device + 1 == static_cast<std::size_t>(own_.devices) ? 0 : device + 1;
      }
    }
  }

  const runtime::ProcessGroup& process_group_;
  TensorRows own_;
  std::int64_t hidden_;
  Link& link_;
  Out by_device_, by_token_;
  std::vector<std::size_t> begin_;  ///< row, by device, and the end
};

}  // namespace slimpack::cpu
