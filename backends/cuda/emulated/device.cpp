// SPDX-License-Identifier: Apache-2.0
// The emulated devices: their memory, streams, events and partitions.
#include "slimpack_cuda/device.hpp"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "emulated/runtime.hpp"
#include "ops/capability.hpp"
#include "ops/partition_size.hpp"
#include "simt/emulator.hpp"
#include "slimpack/core/error.hpp"
#include "slimpack_cuda/emulation.hpp"

namespace slimpack::cuda::emulated {
namespace {

struct Queue;

/// A point of a queue at which an event was recorded.
struct Point {
  std::shared_ptr<Queue> queue;  ///< null once it has been reached
  bool reached = false;
  std::string failure;  ///< of the work before it
  std::chrono::steady_clock::time_point at;
};

struct Item {
  std::string what;
  std::function<void()> work;
  std::shared_ptr<Point> awaited;   ///< a point of another queue, instead of work
  std::shared_ptr<Point> recorded;  ///< this point of the queue, instead of work
};

/// A stream. After a failure nothing of it runs, nor of what waits for it.
struct Queue {
  int context = 0;
  StreamPriority priority = StreamPriority::normal;
  std::deque<Item> items;
  std::string failure;
};

struct Allocation {
  std::size_t bytes;
  int device;
};

/// All that is emulated, under one lock.
struct Runtime {
  std::mutex lock;
  Emulation settings;
  std::vector<std::shared_ptr<Queue>> queues{std::make_shared<Queue>()};  ///< default stream first
  std::map<std::uintptr_t, Allocation> memory;
  int contexts = 0;  ///< that partitions have been given
};

Runtime& runtime() {
  static Runtime one;
  return one;
}
thread_local int current_device = 0;
/// The context that is current in this thread: that of a partition, a number from 1 on, or that of
/// a whole device, minus its number.
thread_local int current_context = 0;
/// Multiprocessors of the partition that is current to this thread, 0 where there is none.
thread_local int partition_size_here = 0;

void run_first(Queue& queue);

void reach(const Point& point) {
  while (!point.reached) run_first(*point.queue);
}

void run_first(Queue& queue) {
  const Item item = std::move(queue.items.front());
  queue.items.pop_front();
  if (item.recorded) {
    item.recorded->reached = true;
    item.recorded->failure = queue.failure;
    item.recorded->at = std::chrono::steady_clock::now();
    item.recorded->queue.reset();
  } else if (item.awaited) {
    // It was recorded before this wait was queued, so that no wait can come round to itself.
    const std::shared_ptr<Queue> other = item.awaited->queue;
    reach(*item.awaited);
    if (queue.failure.empty()) queue.failure = item.awaited->failure;
  } else if (queue.failure.empty()) {
    try {
      item.work();
    } catch (const std::exception& error) {
      queue.failure = item.what + " failed: " + error.what();
    }
  }
}

void drain(Queue& queue) {
  while (!queue.items.empty()) run_first(queue);
}

void drain_all(Runtime& all) {
  for (const auto& queue : all.queues) drain(*queue);
  // Nobody but the list holds the queue of a stream that is gone.
  std::erase_if(all.queues, [&](const auto& queue) {
    return queue != all.queues.front() && queue.use_count() == 1;
  });
}

void put(Runtime& all, Queue& queue, Item item) {
  queue.items.push_back(std::move(item));
  if (all.settings.timing == EmulatedTiming::at_once) drain(queue);
}

void report(const char* call, const std::string& failure) {
  if (!failure.empty()) throw CudaError(std::string(call) + " failed: " + failure);
}

std::int64_t bytes_used(const Runtime& all, int device) {
  std::int64_t used = 0;
  for (const auto& [address, allocation] : all.memory) {
    if (allocation.device == device) used += static_cast<std::int64_t>(allocation.bytes);
  }
  return used;
}

/// Throws CudaError unless all bytes lie in one piece of device memory.
void require_device_memory(Runtime& all, const void* data, std::size_t bytes, const char* call) {
  const auto address = std::bit_cast<std::uintptr_t>(data);
  const auto after = all.memory.upper_bound(address);
  if (after != all.memory.begin()) {
    const auto& [begin, allocation] = *std::prev(after);
    if (address - begin <= allocation.bytes && bytes <= allocation.bytes - (address - begin)) {
      return;
    }
  }
  throw CudaError(std::string(call) + " failed: " + std::to_string(bytes) +
                  " bytes do not lie in device memory");
}

/// The device's limits of a launch.
std::int64_t largest_shared_memory(const Emulation& settings) {
  return settings.major >= 9 ? 227 << 10 : 163 << 10;
}

}  // namespace
}  // namespace slimpack::cuda::emulated

struct CUstream_st {
  std::shared_ptr<slimpack::cuda::emulated::Queue> queue;
};
struct CUevent_st {
  int context = 0;
  slimpack::cuda::EventUse use = slimpack::cuda::EventUse::order;
  std::shared_ptr<slimpack::cuda::emulated::Point> point;
};

namespace slimpack::cuda::emulated {
namespace {

Queue& queue_of(Runtime& all, StreamView stream) {
  return stream.get() == nullptr ? *all.queues.front() : *stream.get()->queue;
}
std::shared_ptr<Queue> shared_queue_of(Runtime& all, StreamView stream) {
  return stream.get() == nullptr ? all.queues.front() : stream.get()->queue;
}

}  // namespace

void require_current(StreamView stream, const std::string& call) {
  if (stream.get() == nullptr || stream.get()->queue->context == current_context) return;
  throw CudaError(call + ": the stream belongs to another partition or device than is current");
}

void enqueue(StreamView stream, std::string what, std::function<void()> work) {
  Runtime& all = runtime();
  const std::lock_guard hold(all.lock);
  put(all, queue_of(all, stream), {std::move(what), std::move(work), nullptr, nullptr});
}

void start_kernel(const kernels::Launch& launch, const std::string& place, StreamView stream,
                  std::function<void()> thread) {
  const Emulation settings = emulation();
  if (launch.threads < 1 || launch.threads > 1024) {
    throw CudaError("launch failed at " + place + ": a block cannot have " +
                    std::to_string(launch.threads) + " threads");
  }
  if (static_cast<std::int64_t>(launch.shared_bytes) > largest_shared_memory(settings)) {
    throw CudaError("launch failed at " + place + ": a block cannot have " +
                    std::to_string(launch.shared_bytes) + " bytes of shared memory");
  }
  require_current(stream, "launch failed at " + place);
  const auto timing =
      settings.timing == EmulatedTiming::late ? simt::Timing::late : simt::Timing::at_once;
  enqueue(stream, "the kernel started at " + place, [launch, timing, thread = std::move(thread)] {
    simt::emulate({launch.blocks, launch.threads, launch.shared_bytes}, timing, thread);
  });
}

}  // namespace slimpack::cuda::emulated

namespace slimpack::cuda {

using namespace emulated;

Emulation emulation() {
  Runtime& all = runtime();
  const std::lock_guard hold(all.lock);
  return all.settings;
}
void set_emulation(const Emulation& next) {
  Runtime& all = runtime();
  const std::lock_guard hold(all.lock);
  drain_all(all);
  all.settings = next;
}

void StreamView::synchronize() const {
  Runtime& all = runtime();
  const std::lock_guard hold(all.lock);
  Queue& queue = queue_of(all, *this);
  drain(queue);
  report("cudaStreamSynchronize", queue.failure);
}

StreamPriority StreamView::priority() const {
  Runtime& all = runtime();
  const std::lock_guard hold(all.lock);
  return queue_of(all, *this).priority;
}

Stream::Stream(StreamPriority priority) {
  Runtime& all = runtime();
  const std::lock_guard hold(all.lock);
  stream_ = new CUstream_st{std::make_shared<Queue>()};
  stream_->queue->context = current_context;
  stream_->queue->priority = priority;
  all.queues.push_back(stream_->queue);
}
Stream::~Stream() {
  if (stream_ == nullptr) return;
  Runtime& all = runtime();
  const std::lock_guard hold(all.lock);
  if (stream_->queue->items.empty()) std::erase(all.queues, stream_->queue);
  delete stream_;
}

Event::Event(EventUse use) : event_(new CUevent_st{current_context, use, nullptr}) {}
Event::~Event() {
  delete event_;
}
void Event::record(StreamView stream) {
  Runtime& all = runtime();
  const std::lock_guard hold(all.lock);
  if (stream.get() != nullptr && stream.get()->queue->context != event_->context) {
    throw CudaError(
        "cudaEventRecord failed: the stream belongs to another partition or device than the event");
  }
  event_->point = std::make_shared<Point>();
  event_->point->queue = shared_queue_of(all, stream);
  put(all, queue_of(all, stream), {"", nullptr, nullptr, event_->point});
}
void Event::make_wait(StreamView stream) const {
  Runtime& all = runtime();
  const std::lock_guard hold(all.lock);
  if (event_->point) put(all, queue_of(all, stream), {"", nullptr, event_->point, nullptr});
}
void Event::synchronize() const {
  Runtime& all = runtime();
  const std::lock_guard hold(all.lock);
  if (!event_->point) return;
  reach(*event_->point);
  report("cudaEventSynchronize", event_->point->failure);
}
bool Event::reached() const {
  Runtime& all = runtime();
  const std::lock_guard hold(all.lock);
  if (!event_->point) return true;
  const bool before = event_->point->reached;
  reach(*event_->point);
  report("cudaEventQuery", event_->point->failure);
  return before;
}
float Event::milliseconds_since(const Event& begin) const {
  Runtime& all = runtime();
  const std::lock_guard hold(all.lock);
  for (const CUevent_st* event : {begin.event_, event_}) {
    if (event->use != EventUse::time) {
      throw CudaError("cudaEventElapsedTime failed: an event was made without its time");
    }
    if (!event->point || !event->point->reached) {
      throw CudaError("cudaEventElapsedTime failed: an event has not been reached");
    }
  }
  return std::chrono::duration<float, std::milli>(event_->point->at - begin.event_->point->at)
      .count();
}

namespace detail {

void* device_allocate(std::size_t bytes) {
  constexpr std::size_t kAlignment = 256;
  Runtime& all = runtime();
  const std::lock_guard hold(all.lock);
  const std::int64_t left = all.settings.memory - bytes_used(all, current_device);
  const std::size_t whole = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  void* memory =
      static_cast<std::int64_t>(whole) <= left ? std::aligned_alloc(kAlignment, whole) : nullptr;
  if (memory == nullptr) {
    throw CudaError("cudaMalloc failed: out of memory, " + std::to_string(bytes) +
                    " bytes asked for, " + std::to_string(left) + " left");
  }
  std::memset(memory, 0xff, whole);
  all.memory[std::bit_cast<std::uintptr_t>(memory)] = {whole, current_device};
  return memory;
}
void device_free(void* memory) noexcept {
  if (memory == nullptr) return;
  Runtime& all = runtime();
  const std::lock_guard hold(all.lock);
  drain_all(all);  // as cudaFree does
  all.memory.erase(std::bit_cast<std::uintptr_t>(memory));
  std::free(memory);
}
void* pinned_allocate(std::size_t bytes) {
  void* memory = std::malloc(bytes);
  if (memory == nullptr) throw CudaError("cudaMallocHost failed: out of memory");
  std::memset(memory, 0xff, bytes);
  return memory;
}
void pinned_free(void* memory) noexcept {
  if (memory == nullptr) return;
  Runtime& all = runtime();
  const std::lock_guard hold(all.lock);
  drain_all(all);  // as cudaFreeHost does
  std::free(memory);
}
void copy_to_device(void* to, const void* from, std::size_t bytes, StreamView stream) {
  Runtime& all = runtime();
  const std::lock_guard hold(all.lock);
  require_device_memory(all, to, bytes, "cudaMemcpyAsync");
  put(all, queue_of(all, stream),
      {"a copy", [=] { std::memcpy(to, from, bytes); }, nullptr, nullptr});
}
void copy_to_host(void* to, const void* from, std::size_t bytes, StreamView stream) {
  Runtime& all = runtime();
  const std::lock_guard hold(all.lock);
  require_device_memory(all, from, bytes, "cudaMemcpyAsync");
  put(all, queue_of(all, stream),
      {"a copy", [=] { std::memcpy(to, from, bytes); }, nullptr, nullptr});
}
void fill_bytes(void* to, int value, std::size_t bytes, StreamView stream) {
  Runtime& all = runtime();
  const std::lock_guard hold(all.lock);
  require_device_memory(all, to, bytes, "cudaMemsetAsync");
  put(all, queue_of(all, stream),
      {"a fill", [=] { std::memset(to, value, bytes); }, nullptr, nullptr});
}

Capability current_capability() {
  const Emulation settings = emulation();
  return {settings.major, settings.minor};
}
int current_multiprocessors() {
  return partition_size_here > 0 ? partition_size_here : emulation().multiprocessors;
}
void set_partition_size(int multiprocessors) {
  partition_size_here = multiprocessors;
}

}  // namespace detail

void copy_on_device(void* to, const void* from, std::size_t bytes, StreamView stream) {
  if (bytes == 0) return;
  Runtime& all = runtime();
  const std::lock_guard hold(all.lock);
  require_device_memory(all, to, bytes, "cudaMemcpyAsync");
  require_device_memory(all, from, bytes, "cudaMemcpyAsync");
  put(all, queue_of(all, stream),
      {"a copy", [=] { std::memcpy(to, from, bytes); }, nullptr, nullptr});
}

std::optional<std::string> why_no_device() {
  const Emulation settings = emulation();
  if (settings.devices == 0) return "no CUDA device can be used: there is none";
  if (settings.major < 8) {
    return "no CUDA device can be used: the current one has compute capability " +
           std::to_string(settings.major) + "." + std::to_string(settings.minor) +
           ", 8.0 is needed";
  }
  return std::nullopt;
}

DeviceProperties device_properties() {
  const Emulation settings = emulation();
  return {"emulated on the host",          settings.major, settings.minor, settings.multiprocessors,
          largest_shared_memory(settings), settings.memory};
}

int device_count() {
  return emulation().devices;
}
void set_device(int device) {
  if (device < 0 || device >= device_count()) {
    throw CudaError("cudaSetDevice failed: there is no device " + std::to_string(device));
  }
  current_device = device;
  current_context = -device;
  detail::set_partition_size(0);
}
void reach_memory_of(int device) {
  if (device < 0 || device >= device_count() || device == current_device) {
    throw CudaError("cudaDeviceEnablePeerAccess failed: there is no other device " +
                    std::to_string(device));
  }
}
std::int64_t free_memory() {
  Runtime& all = runtime();
  const std::lock_guard hold(all.lock);
  return all.settings.memory - bytes_used(all, current_device);
}

struct Partition::State {
  int multiprocessors = 0;
  int context = 0;
};
Partition::Partition(std::unique_ptr<State> state) : state_(std::move(state)) {}
Partition::Partition(Partition&&) noexcept = default;
Partition& Partition::operator=(Partition&&) noexcept = default;
Partition::~Partition() = default;
int Partition::multiprocessors() const noexcept {
  return state_->multiprocessors;
}
void Partition::make_current() const {
  current_context = state_->context;
  detail::set_partition_size(state_->multiprocessors);
}

std::vector<Partition> split_device(int count, int multiprocessors) {
  constexpr int kGranularity = 8;
  const int each = detail::partition_size(count, multiprocessors, emulation().multiprocessors,
                                          kGranularity, kGranularity);
  std::vector<Partition> parts;
  for (int i = 0; i < count; ++i) {
    Runtime& all = runtime();
    const std::lock_guard hold(all.lock);
    parts.push_back(
        Partition(std::make_unique<Partition::State>(Partition::State{each, ++all.contexts})));
  }
  return parts;
}

}  // namespace slimpack::cuda
