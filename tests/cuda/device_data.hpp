// SPDX-License-Identifier: Apache-2.0
// Data of tests in device memory.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "slimpack_cuda/device.hpp"

namespace slimpack::test {

/// A copy of host data on the device, read back as a whole.
template <class Element>
class OnDevice {
 public:
  OnDevice(const std::vector<Element>& values, cuda::StreamView stream)
      : stream_(stream), buffer_(static_cast<std::int64_t>(values.size())) {
    cuda::upload(buffer_.span(), std::span<const Element>(values), stream);
    stream.synchronize();
  }

  [[nodiscard]] cuda::DeviceSpan<Element> span() const { return buffer_.span(); }
  [[nodiscard]] cuda::DeviceSpan<const Element> view() const { return buffer_.span(); }
  /// Without what stands behind the first `count`.
  [[nodiscard]] cuda::DeviceSpan<Element> first(std::int64_t count) const {
    return buffer_.span().subspan(0, count);
  }
  [[nodiscard]] std::vector<Element> read() const { return cuda::download(view(), stream_); }

 private:
  cuda::StreamView stream_;
  cuda::DeviceBuffer<Element> buffer_;
};

}  // namespace slimpack::test
