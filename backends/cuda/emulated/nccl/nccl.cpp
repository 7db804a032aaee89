// SPDX-License-Identifier: Apache-2.0
// NCCL's calls for emulated devices of one machine: numbers go through memory that ranks share, be
// they threads or processes. What goes on does so while somebody asks whether it has settled.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "slimpack/runtime/transport.hpp"
#include "slimpack_cuda/bf16.hpp"
#include "slimpack_cuda/nccl/api.hpp"

namespace slimpack::cuda::nccl {
namespace {

/// Bytes from one member to another, by one writer and one reader.
struct Pipe {
  static constexpr std::size_t kRoom = std::size_t{1} << 16U;
  std::atomic<std::uint64_t> written, read;
  std::byte room[kRoom];

  std::size_t put(std::span<const std::byte> bytes) noexcept {
    const std::uint64_t i = written.load(std::memory_order_relaxed);
    const std::size_t free =
        kRoom - static_cast<std::size_t>(i - read.load(std::memory_order_acquire));
    const std::size_t count = std::min(free, bytes.size());
    for (std::size_t done = 0; done < count;) {
      const std::size_t place = (i + done) % kRoom, part = std::min(count - done, kRoom - place);
      std::memcpy(room + place, bytes.data() + done, part);
      done += part;
    }
    written.store(i + count, std::memory_order_release);
    return count;
  }
  std::size_t take(std::span<std::byte> bytes) noexcept {
    const std::uint64_t i = read.load(std::memory_order_relaxed);
    const auto there = static_cast<std::size_t>(written.load(std::memory_order_acquire) - i);
    const std::size_t count = std::min(there, bytes.size());
    for (std::size_t done = 0; done < count;) {
      const std::size_t place = (i + done) % kRoom, part = std::min(count - done, kRoom - place);
      std::memcpy(bytes.data() + done, room + place, part);
      done += part;
    }
    read.store(i + count, std::memory_order_release);
    return count;
  }
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

/// What all members share; zero bytes are its beginning.
struct Shared {
  std::atomic<std::uint32_t> joined, aborted;
};

/// Both sides name as many bytes: the replay of what ranks ask for (tests/cuda/nccl) sees to that.
struct Message {
  std::byte* data = nullptr;
  std::size_t size = 0, done = 0;
};

/// One member's end.
class Communicator {
 public:
  Communicator(std::string name, std::size_t size, std::size_t self)
      : name_(std::move(name)), size_(size), self_(self), out_(size), in_(size) {
    const int file = ::shm_open(name_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    bytes_ = sizeof(Shared) + size * size * sizeof(Pipe);
    if (file < 0 || ::ftruncate(file, static_cast<off_t>(bytes_)) != 0) {
      throw NcclError(std::string("no shared memory: ") + std::strerror(errno));
    }
    void* const memory = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    ::close(file);
    if (memory == MAP_FAILED) throw NcclError("no shared memory");
    shared_ = static_cast<Shared*>(memory);
    pipes_ = reinterpret_cast<Pipe*>(static_cast<std::byte*>(memory) + sizeof(Shared));
    ++shared_->joined;
  }
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  ~Communicator() {
    if (!all_joined_) ::shm_unlink(name_.c_str());
    ::munmap(shared_, bytes_);
  }

  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] std::size_t self() const noexcept { return self_; }
  void give_up() noexcept { shared_->aborted = 1; }

  void send(std::size_t to, const void* from, std::size_t bytes) {
    out_.at(to).push_back(
        {const_cast<std::byte*>(static_cast<const std::byte*>(from)), bytes, 0});  // NOLINT
  }
  void receive(std::size_t from, void* into, std::size_t bytes) {
    in_.at(from).push_back({static_cast<std::byte*>(into), bytes, 0});
  }
  /// Has `work` called when all messages have moved.
  void behind(std::function<void()> work) { after_.push_back(std::move(work)); }

  [[nodiscard]] bool settled() {
    if (shared_->aborted != 0) throw NcclError("another rank has aborted");
    if (!all_joined_) {
      if (shared_->joined != size_) return false;
      all_joined_ = true;
      if (self_ == 0) ::shm_unlink(name_.c_str());
    }
    bool done = true;
    for (std::size_t peer = 0; peer < size_; ++peer) {
      move(out_[peer], [&](std::span<std::byte> bytes) { return pipe(self_, peer).put(bytes); });
      move(in_[peer], [&](std::span<std::byte> bytes) { return pipe(peer, self_).take(bytes); });
      done = done && out_[peer].empty() && in_[peer].empty();
    }
    if (!done) return false;
    for (const auto& work : std::exchange(after_, {})) work();
    return true;
  }

 private:
  [[nodiscard]] Pipe& pipe(std::size_t from, std::size_t to) { return pipes_[from * size_ + to]; }

  template <class Go>
  static void move(std::deque<Message>& messages, const Go& go) {
    while (!messages.empty()) {
      Message& one = messages.front();
      one.done += go(std::span(one.data, one.size).subspan(one.done));
      if (one.done < one.size) return;
      messages.pop_front();
    }
  }

  std::string name_;
  std::size_t size_, self_, bytes_ = 0;
  Shared* shared_ = nullptr;
  Pipe* pipes_ = nullptr;
  bool all_joined_ = false;
  std::vector<std::deque<Message>> out_, in_;  ///< by peer
  std::vector<std::function<void()>> after_;
};

[[nodiscard]] Communicator& of(Comm comm) {
  return *reinterpret_cast<Communicator*>(comm);
}

class EmulatedNccl : public NcclApi {
 public:
  [[nodiscard]] Id new_id() override {
    std::random_device random;
    std::string name = "/slimpack-nccl-";
    for (int i = 0; i < 24; ++i) name += "0123456789abcdef"[random() % 16];
    Id id{};
    std::copy(name.begin(), name.end(), id.begin());
    return id;
  }
  [[nodiscard]] Comm join(const Id& id, std::size_t size, std::size_t rank, int) override {
    return reinterpret_cast<Comm>(new Communicator(std::string(id.data()), size, rank));  // NOLINT
  }
  [[nodiscard]] bool settled(Comm comm) override { return of(comm).settled(); }
  void leave(Comm comm) override { delete &of(comm); }  // NOLINT
  void abort(Comm comm) noexcept override {
    of(comm).give_up();
    delete &of(comm);  // NOLINT
  }

  /// Nothing is waited for before somebody asks, so that what is queued until then goes together.
  void group_begin() override {}
  void group_end() override {}

  void send(Comm comm, const void* from, std::size_t bytes, std::size_t to,
            StreamView stream) override {
    stream.synchronize();
    of(comm).send(to, from, bytes);
  }
  void receive(Comm comm, void* into, std::size_t bytes, std::size_t from,
               StreamView stream) override {
    stream.synchronize();
    of(comm).receive(from, into, bytes);
  }
  void broadcast(Comm comm, void* values, std::size_t bytes, std::size_t root,
                 StreamView stream) override {
    stream.synchronize();
    Communicator& own = of(comm);
    for (std::size_t peer = 0; peer < own.size(); ++peer) {
      if (own.self() == root && peer != root) own.send(peer, values, bytes);
    }
    if (own.self() != root) own.receive(root, values, bytes);
  }
  void all_gather(Comm comm, void* values, std::size_t part, StreamView stream) override {
    stream.synchronize();
    Communicator& own = of(comm);
    auto* const bytes = static_cast<std::byte*>(values);
    for (std::size_t peer = 0; peer < own.size(); ++peer) {
      if (peer == own.self()) continue;
      own.send(peer, bytes + own.self() * part, part);
      own.receive(peer, bytes + peer * part, part);
    }
  }
  // Sums are in the order of members, and of all numbers, of which a member keeps what it is to
  // have.
  void all_reduce(Comm comm, void* values, std::size_t count, Number number,
                  runtime::Reduction reduction, StreamView stream) override {
    stream.synchronize();
    combine(of(comm), values, count, number, reduction, 0, count);
  }
  void reduce_scatter(Comm comm, void* values, std::size_t part, Number number,
                      StreamView stream) override {
    stream.synchronize();
    const std::size_t self = of(comm).self();
    combine(of(comm), values, part * of(comm).size(), number, runtime::Reduction::sum, self * part,
            (self + 1) * part);
  }
  void reduce(Comm comm, void* values, std::size_t count, Number number, std::size_t root,
              StreamView stream) override {
    stream.synchronize();
    combine(of(comm), values, count, number, runtime::Reduction::sum, 0,
            of(comm).self() == root ? count : 0);
  }

 private:
  static void combine(Communicator& own, void* values, std::size_t count, Number number,
                      runtime::Reduction reduction, std::size_t first, std::size_t last) {
    if (number == Number::bf16) {
      combine(own, static_cast<Bf16*>(values), count, reduction, first, last);
    } else if (number == Number::f32) {
      combine(own, static_cast<float*>(values), count, reduction, first, last);
    } else {
      combine(own, static_cast<double*>(values), count, reduction, first, last);
    }
  }
  /// Numbers [first, last) become the combined ones when the others' have come.
  template <class Element>
  static void combine(Communicator& own, Element* values, std::size_t count,
                      runtime::Reduction reduction, std::size_t first, std::size_t last) {
    auto all = std::make_shared<std::vector<std::vector<Element>>>(own.size());
    for (std::size_t peer = 0; peer < own.size(); ++peer) {
      (*all)[peer].assign(values, values + count);
      if (peer == own.self()) continue;
      own.send(peer, values, count * sizeof(Element));
      own.receive(peer, (*all)[peer].data(), count * sizeof(Element));
    }
    own.behind([all, values, reduction, first, last] {
      const std::span<Element> sum((*all)[0]);
      if constexpr (std::is_same_v<Element, Bf16>) {  // a sum, rounded once
        static_cast<void>(reduction);
        for (std::size_t i = first; i < last; ++i) {
          float total = to_float(sum[i]);
          for (std::size_t member = 1; member < all->size(); ++member) {
            total += to_float((*all)[member][i]);
          }
          sum[i] = to_bf16(total);
        }
      } else {
        for (std::size_t member = 1; member < all->size(); ++member) {
          runtime::combine(sum, std::span<const Element>((*all)[member]), reduction);
        }
      }
      std::copy(sum.begin() + static_cast<std::ptrdiff_t>(first),
                sum.begin() + static_cast<std::ptrdiff_t>(last), values + first);
    });
  }
};

}  // namespace

std::unique_ptr<NcclApi> make_nccl() {
  return std::make_unique<EmulatedNccl>();
}

std::string nccl_version() {
  return "emulated";
}

}  // namespace slimpack::cuda::nccl
