// SPDX-License-Identifier: Apache-2.0
// Memory, streams and events of a CUDA device: views that launchers take, and their owners. Needs
// no CUDA header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

struct CUstream_st;
struct CUevent_st;

namespace slimpack::cuda {

/// A CUDA call that failed: what() names the call, the place and CUDA's own words.
class CudaError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// `size` elements at `data` in device memory. Not to be dereferenced on the host.
template <class Element>
struct DeviceSpan {
  Element* data = nullptr;
  std::int64_t size = 0;

  constexpr DeviceSpan() = default;
  constexpr DeviceSpan(Element* first, std::int64_t count) noexcept : data(first), size(count) {}
  /// A view of the same elements that does not write.
  template <class Mutable>
  requires std::is_same_v<const Mutable, Element>
  constexpr DeviceSpan(DeviceSpan<Mutable> other) noexcept  // NOLINT(google-explicit-constructor)
      : data(other.data), size(other.size) {}

  /// Elements [first, first + count); they must be there.
  [[nodiscard]] constexpr DeviceSpan subspan(std::int64_t first,
                                             std::int64_t count) const noexcept {
    return {data + first, count};
  }
};

/// A stream that somebody else owns. The default is CUDA's legacy default stream.
class StreamView {
 public:
  constexpr StreamView() = default;
  constexpr StreamView(CUstream_st* stream) noexcept  // NOLINT(google-explicit-constructor)
      : stream_(stream) {}
  [[nodiscard]] constexpr CUstream_st* get() const noexcept { return stream_; }
  /// Waits until all that was launched on it has ended. Throws CudaError, also for what failed
  /// there.
  void synchronize() const;

 private:
  CUstream_st* stream_ = nullptr;
};

/// A non-blocking stream of the current device.
class Stream {
 public:
  Stream();  ///< Throws CudaError.
  Stream(Stream&& other) noexcept : stream_(std::exchange(other.stream_, nullptr)) {}
  Stream& operator=(Stream&& other) noexcept {
    std::swap(stream_, other.stream_);
    return *this;
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream();
  [[nodiscard]] StreamView view() const noexcept { return {stream_}; }

 private:
  CUstream_st* stream_ = nullptr;
};

/// A point of a stream's work, with time.
class Event {
 public:
  Event();  ///< Throws CudaError.
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event();
  void record(StreamView stream);
  /// Work launched on `stream` from now on begins after the recorded point.
  void make_wait(StreamView stream) const;
  void synchronize() const;
  /// Milliseconds from `begin` to this, both reached.
  [[nodiscard]] float milliseconds_since(const Event& begin) const;

 private:
  CUevent_st* event_ = nullptr;
};

namespace detail {
[[nodiscard]] void* device_allocate(std::size_t bytes);
void device_free(void* memory) noexcept;
void copy_to_device(void* to, const void* from, std::size_t bytes, StreamView stream);
void copy_to_host(void* to, const void* from, std::size_t bytes, StreamView stream);
void fill_bytes(void* to, int value, std::size_t bytes, StreamView stream);
}  // namespace detail

/// Owns device memory for `size` elements, aligned to 256 bytes at least.
template <class Element>
requires std::is_trivially_copyable_v<Element>
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  /// With whatever is there. Throws CudaError, also where the device has too little memory.
  explicit DeviceBuffer(std::int64_t size)
      : data_(size > 0 ? static_cast<Element*>(detail::device_allocate(
                             static_cast<std::size_t>(size) * sizeof(Element)))
                       : nullptr),
        size_(size) {}
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  ~DeviceBuffer() { detail::device_free(data_); }

  [[nodiscard]] DeviceSpan<Element> span() const noexcept { return {data_, size_}; }
  [[nodiscard]] std::int64_t size() const noexcept { return size_; }

 private:
  Element* data_ = nullptr;
  std::int64_t size_ = 0;
};

/// Queues a copy of all elements; sizes must be equal, and `from` must live until it has run.
template <class Element>
void upload(DeviceSpan<Element> to, std::span<const Element> from, StreamView stream) {
  if (to.size != static_cast<std::int64_t>(from.size())) {
    throw CudaError("upload: sizes differ, " + std::to_string(to.size) + " and " +
                    std::to_string(from.size()));
  }
  if (!from.empty()) detail::copy_to_device(to.data, from.data(), from.size_bytes(), stream);
}

/// The elements, once all earlier work of the stream has ended.
template <class Element>
[[nodiscard]] std::vector<std::remove_const_t<Element>> download(DeviceSpan<Element> from,
                                                                 StreamView stream) {
  std::vector<std::remove_const_t<Element>> values(static_cast<std::size_t>(from.size));
  if (!values.empty()) {
    detail::copy_to_host(values.data(), from.data, values.size() * sizeof(Element), stream);
  }
  stream.synchronize();
  return values;
}

/// What a device is, as far as kernels choose by it.
struct DeviceProperties {
  std::string name;
  int major = 0, minor = 0;  ///< compute capability
  int multiprocessors = 0;
  std::int64_t shared_memory = 0;  ///< a block may ask for, bytes
  std::int64_t memory = 0;         ///< bytes
};

/// Why no kernel can run here, one sentence: no driver, no device. Nothing where one can.
[[nodiscard]] std::optional<std::string> why_no_device();

/// Of the current device. Throws CudaError.
[[nodiscard]] DeviceProperties device_properties();

}  // namespace slimpack::cuda
