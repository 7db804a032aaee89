// SPDX-License-Identifier: Apache-2.0
// The norm of the whole model's gradients, and the factor that clips them, on every device.
#pragma once

#include <cstdint>
#include <span>

#include "slimpack/runtime/process_groups.hpp"
#include "slimpack/runtime/transport.hpp"
#include "slimpack_cuda/device.hpp"
#include "slimpack_cuda/optimizer.hpp"
#include "slimpack_cuda/rank/memory.hpp"

namespace slimpack::cuda {

class GradientNorm {
 public:
  /// The norm of a device whose gradients give so many sums of squares. Throws CudaError.
  explicit GradientNorm(std::int64_t sums) : sums_(sums), total_(1), clipping_(1), here_(1) {}

  /// Queues the norm of all that is counted, which every stage of a rank and each of its
  /// tensor-parallel devices has a part of, where it is `sharded` every rank of a stage too, and
  /// its copy to the host.
  template <class Link>
  void queue(std::span<const DeviceSpan<const float>> counted, bool sharded, double largest_norm,
             const runtime::StageProcessGroups& process_groups, Link& link, StreamView stream) {
    std::int64_t count = 0;
    for (const DeviceSpan<const float>& part : counted) {
      const std::int64_t more = square_sums_count(part.size);
      square_sums(sums_.span().subspan(count, more), part, stream);
      count += more;
    }
    ordered_sum(total_.span(), sums_.span().subspan(0, count), stream);
    if (process_groups.parallel.tp > 1) {
      link.all_reduce(process_groups.tensor(), host_span(total_.span()), runtime::Reduction::sum);
    }
    if (process_groups.parallel.pp > 1) {
      link.all_reduce(process_groups.stages(), host_span(total_.span()), runtime::Reduction::sum);
    }
    if (sharded) {
      link.all_reduce(process_groups.ranks(), host_span(total_.span()), runtime::Reduction::sum);
    }
    clip_by_norm(clipping_.span(), total_.span(), largest_norm, stream);
    copy_to_host(here_.span(), clipping_.span(), stream);
  }
  [[nodiscard]] DeviceSpan<const Clipping> clipping() const noexcept { return clipping_.span(); }
  /// The norm, once the device has done what was queued.
  [[nodiscard]] double value() const noexcept { return here_.span().front().norm; }

  /// A barrier of all devices. A rank that has an error to tell of ends the step before.
  template <class Link>
  void meet(const runtime::StageProcessGroups& process_groups, Link& link) {
    for (const runtime::ProcessGroup& process_group :
         {process_groups.ranks(), process_groups.stages(), process_groups.tensor()}) {
      link.all_reduce(process_group, host_span(total_.span()), runtime::Reduction::maximum);
    }
  }

 private:
  DeviceBuffer<double> sums_, total_;
  DeviceBuffer<Clipping> clipping_;
  PinnedBuffer<Clipping> here_;
};

}  // namespace slimpack::cuda
