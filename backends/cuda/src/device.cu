// SPDX-License-Identifier: Apache-2.0
#include "slimpack_cuda/device.hpp"

#include <cuda_runtime.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <map>
#include <utility>

#include "check.hpp"
#include "ops/capability.hpp"
#include "ops/launch.hpp"

namespace slimpack::cuda {
namespace {

/// What kernels may ask for on a device, in the context that is current to this thread.
thread_local std::map<std::pair<const void*, int>, std::size_t> allowed;

/// Devices of which is remembered what CUDA was asked.
constexpr std::size_t kKept = 64;

/// Multiprocessors of the partition that is current to this thread, 0 where there is none.
thread_local int partition_size = 0;

/// Destructors must not throw, and nobody else would see the error.
void log_failure(cudaError_t error, const char* what) noexcept {
  if (error == cudaSuccess || error == cudaErrorCudartUnloading) return;
  std::fprintf(stderr, "slimpack: %s failed: %s\n", what, cudaGetErrorString(error));
}

}  // namespace

void StreamView::synchronize() const {
  SLIMPACK_CUDA_CHECK(cudaStreamSynchronize(stream_));
}

namespace {

/// CUDA's number of a priority on the current device: the smaller, the sooner.
int number_of(StreamPriority priority) {
  int least = 0, greatest = 0;
  SLIMPACK_CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  return priority == StreamPriority::high ? greatest : least;
}

}  // namespace

StreamPriority StreamView::priority() const {
  int number = 0;
  SLIMPACK_CUDA_CHECK(cudaStreamGetPriority(stream_, &number));
  return number < number_of(StreamPriority::normal) ? StreamPriority::high : StreamPriority::normal;
}

Stream::Stream(StreamPriority priority) {
  SLIMPACK_CUDA_CHECK(
      cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, number_of(priority)));
}
Stream::~Stream() {
  if (stream_ != nullptr) log_failure(cudaStreamDestroy(stream_), "cudaStreamDestroy");
}

Event::Event(EventUse use) {
  SLIMPACK_CUDA_CHECK(cudaEventCreateWithFlags(
      &event_, use == EventUse::time ? cudaEventDefault : cudaEventDisableTiming));
}
Event::~Event() {
  if (event_ != nullptr) log_failure(cudaEventDestroy(event_), "cudaEventDestroy");
}
void Event::record(StreamView stream) {
  SLIMPACK_CUDA_CHECK(cudaEventRecord(event_, stream.get()));
}
void Event::make_wait(StreamView stream) const {
  SLIMPACK_CUDA_CHECK(cudaStreamWaitEvent(stream.get(), event_, 0));
}
void Event::synchronize() const {
  SLIMPACK_CUDA_CHECK(cudaEventSynchronize(event_));
}
bool Event::reached() const {
  const cudaError_t answer = cudaEventQuery(event_);
  if (answer == cudaErrorNotReady) {
    (void)cudaGetLastError();  // the next launch would report it
    return false;
  }
  detail::check(answer, "cudaEventQuery(event_)", __FILE__, __LINE__);
  return true;
}
float Event::milliseconds_since(const Event& begin) const {
  float milliseconds = 0;
  SLIMPACK_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, begin.event_, event_));
  return milliseconds;
}

namespace detail {

void* device_allocate(std::size_t bytes) {
  void* memory = nullptr;
  const cudaError_t error = cudaMalloc(&memory, bytes);
  if (error != cudaSuccess) (void)cudaGetLastError();  // the next launch's check is not to find it
  check(error, "cudaMalloc", __FILE__, __LINE__);
  return memory;
}
void device_free(void* memory) noexcept {
  if (memory != nullptr) log_failure(cudaFree(memory), "cudaFree");
}
void* pinned_allocate(std::size_t bytes) {
  void* memory = nullptr;
  SLIMPACK_CUDA_CHECK(cudaHostAlloc(&memory, bytes, cudaHostAllocPortable));
  return memory;
}
void pinned_free(void* memory) noexcept {
  if (memory != nullptr) log_failure(cudaFreeHost(memory), "cudaFreeHost");
}
void copy_to_device(void* to, const void* from, std::size_t bytes, StreamView stream) {
  SLIMPACK_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream.get()));
}
void copy_to_host(void* to, const void* from, std::size_t bytes, StreamView stream) {
  SLIMPACK_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream.get()));
}
void fill_bytes(void* to, int value, std::size_t bytes, StreamView stream) {
  SLIMPACK_CUDA_CHECK(cudaMemsetAsync(to, value, bytes, stream.get()));
}

Capability current_capability() {
  static std::array<std::atomic<int>, kKept> known{};  // 256 major + minor, 0: not asked yet
  int device = 0;
  SLIMPACK_CUDA_CHECK(cudaGetDevice(&device));
  const auto at = static_cast<std::size_t>(device);
  if (const int found = at < kKept ? known[at].load(std::memory_order_relaxed) : 0; found != 0) {
    return {found / 256, found % 256};
  }
  Capability found;
  SLIMPACK_CUDA_CHECK(
      cudaDeviceGetAttribute(&found.major, cudaDevAttrComputeCapabilityMajor, device));
  SLIMPACK_CUDA_CHECK(
      cudaDeviceGetAttribute(&found.minor, cudaDevAttrComputeCapabilityMinor, device));
  if (at < kKept) known[at].store(256 * found.major + found.minor, std::memory_order_relaxed);
  return found;
}

int current_multiprocessors() {
  if (partition_size > 0) return partition_size;
  static std::array<std::atomic<int>, kKept> known{};  // 0: not asked yet
  int device = 0, found = 0;
  SLIMPACK_CUDA_CHECK(cudaGetDevice(&device));
  const auto at = static_cast<std::size_t>(device);
  if (at < kKept) found = known[at].load(std::memory_order_relaxed);
  if (found > 0) return found;
  SLIMPACK_CUDA_CHECK(cudaDeviceGetAttribute(&found, cudaDevAttrMultiProcessorCount, device));
  if (at < kKept) known[at].store(found, std::memory_order_relaxed);
  return found;
}
void set_partition_size(int multiprocessors) {
  partition_size = multiprocessors;
}

void allow_shared_memory(const void* kernel, std::size_t bytes) {
  int device = 0;
  SLIMPACK_CUDA_CHECK(cudaGetDevice(&device));
  std::size_t& most = allowed[{kernel, device}];
  if (bytes <= most) return;
  SLIMPACK_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           static_cast<int>(bytes)));
  most = bytes;
}
void forget_shared_memory() {
  allowed.clear();
}

}  // namespace detail

void copy_on_device(void* to, const void* from, std::size_t bytes, StreamView stream) {
  if (bytes == 0) return;
  SLIMPACK_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream.get()));
}

std::optional<std::string> why_no_device() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) {
    (void)cudaGetLastError();  // it would be reported by the next launch
    return std::string("no CUDA device can be used: ") + cudaGetErrorString(error);
  }
  if (count == 0) return "no CUDA device can be used: there is none";
  if (const auto [major, minor] = detail::current_capability(); major < 8) {
    return "no CUDA device can be used: the current one has compute capability " +
           std::to_string(major) + "." + std::to_string(minor) + ", 8.0 is needed";
  }
  return std::nullopt;
}

DeviceProperties device_properties() {
  int device = 0;
  SLIMPACK_CUDA_CHECK(cudaGetDevice(&device));
  cudaDeviceProp found{};
  SLIMPACK_CUDA_CHECK(cudaGetDeviceProperties(&found, device));
  DeviceProperties properties;
  properties.name = found.name;
  properties.major = found.major;
  properties.minor = found.minor;
  properties.multiprocessors = found.multiProcessorCount;
  properties.shared_memory = static_cast<std::int64_t>(found.sharedMemPerBlockOptin);
  properties.memory = static_cast<std::int64_t>(found.totalGlobalMem);
  return properties;
}

int device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  (void)cudaGetLastError();  // it would be reported by the next launch
  return 0;
}
void set_device(int device) {
  SLIMPACK_CUDA_CHECK(cudaSetDevice(device));
  detail::forget_shared_memory();
  detail::set_partition_size(0);
}
void reach_memory_of(int device) {
  const cudaError_t result = cudaDeviceEnablePeerAccess(device, 0);
  if (result == cudaErrorPeerAccessAlreadyEnabled) {
    (void)cudaGetLastError();  // it would be reported by the next launch
    return;
  }
  SLIMPACK_CUDA_CHECK(result);
}
std::int64_t free_memory() {
  std::size_t left = 0, all = 0;
  SLIMPACK_CUDA_CHECK(cudaMemGetInfo(&left, &all));
  return static_cast<std::int64_t>(left);
}

}  // namespace slimpack::cuda
