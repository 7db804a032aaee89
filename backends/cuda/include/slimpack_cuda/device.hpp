// SPDX-License-Identifier: Apache-2.0
// Memory, streams and events of a CUDA device: views that launchers take, and their owners. Needs
// no CUDA header.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
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

/// Whose blocks a device starts first when multiprocessors come free. What moves bytes is `high`: a
/// kernel of attention fills the device, and its next blocks would otherwise all come before.
enum class StreamPriority : std::uint8_t { normal, high };

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
  /// The priority that the stream was made with. Throws CudaError.
  [[nodiscard]] StreamPriority priority() const;

 private:
  CUstream_st* stream_ = nullptr;
};

/// A non-blocking stream of the current device, of the current Partition where there is one.
/// Kernels are launched on it by threads to which the same is current; copies by any.
class Stream {
 public:
  explicit Stream(StreamPriority priority = StreamPriority::normal);  ///< Throws CudaError.
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

/// What an event is for: others wait for it, or besides its time is taken, which costs more.
enum class EventUse : std::uint8_t { order, time };

/// A point of a stream's work. It is recorded on streams of the device and Partition that it was
/// made in; any stream may wait for it.
class Event {
 public:
  explicit Event(EventUse use = EventUse::order);  ///< Throws CudaError.
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
  /// Whether the recorded point has been reached; true of an event that was never recorded. Does
  /// not wait. Throws CudaError where work before it failed.
  [[nodiscard]] bool reached() const;
  /// Milliseconds from `begin` to this, both reached and both for EventUse::time. Throws CudaError.
  [[nodiscard]] float milliseconds_since(const Event& begin) const;

 private:
  CUevent_st* event_ = nullptr;
};

/// Polls until the recorded point has been reached, and sleeps in between. False where that has not
/// happened by `deadline`. Throws CudaError where work before it failed.
[[nodiscard]] bool wait_until(const Event& event, std::chrono::steady_clock::time_point deadline);

namespace detail {
[[nodiscard]] void* device_allocate(std::size_t bytes);
void device_free(void* memory) noexcept;
[[nodiscard]] void* pinned_allocate(std::size_t bytes);
void pinned_free(void* memory) noexcept;
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
  /// A buffer of any content. Throws CudaError, also where the device has too little memory.
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

/// Owns memory of the host for `size` elements that a device copies from and to while the host goes
/// on: between other memory of the host and a device a copy may wait for all that comes before it.
template <class Element>
  requires std::is_trivially_copyable_v<Element>
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  /// A buffer of any content. Throws CudaError.
  explicit PinnedBuffer(std::int64_t size)
      : data_(size > 0 ? static_cast<Element*>(detail::pinned_allocate(
                             static_cast<std::size_t>(size) * sizeof(Element)))
                       : nullptr),
        size_(size) {}
  PinnedBuffer(PinnedBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;
  ~PinnedBuffer() { detail::pinned_free(data_); }

  [[nodiscard]] std::span<Element> span() const noexcept {
    return {data_, static_cast<std::size_t>(size_)};
  }
  [[nodiscard]] std::int64_t size() const noexcept { return size_; }

 private:
  Element* data_ = nullptr;
  std::int64_t size_ = 0;
};

/// Queues a copy within device memory, from one device to another too. Throws CudaError.
void copy_on_device(void* to, const void* from, std::size_t bytes, StreamView stream);

/// Queues a copy of all elements; sizes must be equal, and `from` must live until it has run.
template <class Element>
void upload(DeviceSpan<Element> to, std::span<const Element> from, StreamView stream) {
  if (to.size != static_cast<std::int64_t>(from.size())) {
    throw CudaError("upload: sizes differ, " + std::to_string(to.size) + " and " +
                    std::to_string(from.size()));
  }
  if (!from.empty()) detail::copy_to_device(to.data, from.data(), from.size_bytes(), stream);
}

/// Queues a copy of all elements to the host; sizes must be equal, and `to` must live until it has
/// run.
template <class Element>
void copy_to_host(std::span<std::remove_const_t<Element>> to, DeviceSpan<Element> from,
                  StreamView stream) {
  if (from.size != static_cast<std::int64_t>(to.size())) {
    throw CudaError("copy_to_host: sizes differ, " + std::to_string(to.size()) + " and " +
                    std::to_string(from.size));
  }
  if (!to.empty()) detail::copy_to_host(to.data(), from.data, to.size_bytes(), stream);
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

/// The properties of the current device. Throws CudaError.
[[nodiscard]] DeviceProperties device_properties();

/// Devices that this process sees, 0 where there is no driver.
[[nodiscard]] int device_count();
/// Makes a device current to the calling thread, as a whole. Throws CudaError where there is none
/// of this number.
void set_device(int device);
/// Lets kernels of the current device use memory of another one from now on. Throws CudaError where
/// the two are not joined.
void reach_memory_of(int device);
/// Bytes that the current device has left. Throws CudaError.
[[nodiscard]] std::int64_t free_memory();

/// Some multiprocessors of a device for the work of one thread: a green context. Memory, caches and
/// copy engines are shared with the rest of the card. Must outlive the streams that were made in
/// it.
class Partition {
 public:
  Partition(Partition&&) noexcept;
  Partition& operator=(Partition&&) noexcept;
  Partition(const Partition&) = delete;
  Partition& operator=(const Partition&) = delete;
  ~Partition();

  [[nodiscard]] int multiprocessors() const noexcept;
  /// Streams that the calling thread makes from now on run here. To one thread at a time, which
  /// goes back to the whole card by set_device. Throws CudaError.
  void make_current() const;

 private:
  friend std::vector<Partition> split_device(int, int);
  struct State;
  explicit Partition(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// `count` disjoint partitions of the current device, alike and of `multiprocessors` at least; of
/// as many as there are for 0. The device's granularity applies: on Hopper multiples of 8. Throws
/// InvalidInput unless count >= 1 and multiprocessors >= 0, and where the device has too few;
/// CudaError where the driver fails or knows no green contexts.
[[nodiscard]] std::vector<Partition> split_device(int count, int multiprocessors = 0);

}  // namespace slimpack::cuda
