// SPDX-License-Identifier: Apache-2.0
// The communicators that a rank is a member of, made as plans need them and ended together.
#pragma once

#include <algorithm>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "slimpack/core/error.hpp"
#include "slimpack/core/units.hpp"
#include "slimpack/runtime/transport.hpp"
#include "slimpack_cuda/device.hpp"
#include "slimpack_cuda/nccl/api.hpp"
#include "slimpack_cuda/nccl/control.hpp"
#include "slimpack_cuda/nccl/order.hpp"

namespace slimpack::cuda::nccl {

/// How long ranks wait for each other, and how sums are cut.
struct NcclOptions {
  std::chrono::milliseconds join{60000};  ///< until all members of a communicator have joined
  /// Until what a rank waits for on its device has ended. A step on the device may take no longer.
  std::chrono::milliseconds device{600000};
  /// After NCCL has failed, until the monitor must have said which rank is to blame.
  std::chrono::milliseconds blame{1000};
  std::size_t bucket = std::size_t{32} << 20U;  ///< bytes of a sum that travel at one time
  /// Blocks of a communicator's kernels: what several of them take beside attention, and, by their
  /// buffers, memory. 0: NCCL's own choice.
  int most_blocks = 16;
  /// How long the host asks without a pause whether NCCL has queued what it was told to.
  std::chrono::microseconds spin{100};
};

/// A communicator with the stream that it runs on.
struct Member {
  Comm comm = nullptr;
  std::size_t self = 0;
  std::optional<Stream> stream;
};

/// Every call of NCCL is made here, and ends before the next one begins. Where NCCL, or another
/// rank, has failed, all communicators are aborted, and nothing of NCCL is called any more.
class Communicators {
 public:
  Communicators(NcclApi& api, Control& control, const NcclOptions& options)
      : api_(api), control_(control), options_(options) {}
  Communicators(const Communicators&) = delete;
  Communicators& operator=(const Communicators&) = delete;
  /// Leaves all communicators where nothing has failed, which all ranks must do; aborts them else.
  ~Communicators() {
    if (failed_) return;
    try {
      for (auto& [key, member] : members_) {
        api_.leave(std::exchange(member.comm, nullptr));
      }
    } catch (const std::exception&) {
      abort_all();
    }
  }

  /// Makes the communicators that are not there yet. All ranks call it with the same ones.
  void make(std::span<const CommunicatorKey> communicators) {
    std::vector<CommunicatorKey> fresh;
    for (const CommunicatorKey& key : communicators) {
      if (known_.insert(key).second) fresh.push_back(key);
    }
    if (fresh.empty()) return;
    guarded([&] {
      const std::size_t rank = control_.rank();
      std::vector<std::optional<Id>> mine(fresh.size());
      for (std::size_t i = 0; i < fresh.size(); ++i) {
        if (fresh[i].members.front() == rank) mine[i] = api_.new_id();
      }
      const std::vector<Id> ids = control_.agree(mine);
      for (std::size_t i = 0; i < fresh.size(); ++i) {
        const auto& all = fresh[i].members;
        const auto self = std::find(all.begin(), all.end(), rank);
        if (self == all.end()) continue;
        Member& member = members_[fresh[i]];
        member.self = static_cast<std::size_t>(self - all.begin());
        member.stream.emplace(StreamPriority::high);
        member.comm = api_.join(ids[i], all.size(), member.self, options_.most_blocks);
        settle(member.comm, options_.join, [&] { return "a communicator with" + others(all); });
      }
    });
  }

  /// This rank's end of a communicator. Throws InvalidInput where `make` has not made it.
  [[nodiscard]] Member& at(const CommunicatorKey& key) {
    const auto found = members_.find(key);
    require(found != members_.end(),
            "NcclTransport: devices meet that have nothing to do with each other in the plan:" +
                others(key.members));
    return found->second;
  }

  /// Calls begin(api) and waits until NCCL has queued what it began.
  template <std::invocable<NcclApi&> Begin>
  void issue(const Member& member, Begin begin) {
    guarded([&] {
      begin(api_);
      settle(member.comm, options_.join, [] { return std::string("the other side"); });
    });
  }

  /// Waits on the host until the event has been reached.
  void await(const Event& event) {
    using Clock = std::chrono::steady_clock;
    guarded([&] {
      const auto begin = Clock::now();
      auto looked = begin;
      for (std::chrono::microseconds pause{20}; !event.reached();) {
        control_.check();
        const auto now = Clock::now();
        if (now - looked >= std::chrono::milliseconds(5)) {
          looked = now;
          for (const auto& [key, member] : members_) {
            if (member.comm != nullptr) static_cast<void>(api_.settled(member.comm));
          }
        }
        if (now - begin >= options_.device) {
          throw runtime::ExecutionError("the device has not ended its work within " +
                                        std::to_string(options_.device.count() / 1000) +
                                        " s: it waits for another rank, or computes for ever");
        }
        std::this_thread::sleep_for(pause);
        pause = std::min(2 * pause, std::chrono::microseconds(500));
      }
    });
  }

  /// Throws runtime::Aborted where a rank has failed.
  void check() {
    guarded([&] { control_.check(); });
  }

  /// Aborts all communicators now, whatever they do.
  void abort_all() noexcept {
    failed_ = true;
    for (auto& [key, member] : members_) {
      if (member.comm != nullptr) api_.abort(std::exchange(member.comm, nullptr));
    }
  }

 private:
  [[nodiscard]] static std::string others(const std::vector<std::size_t>& members) {
    std::string text;
    for (const std::size_t member : members) {
      text += (text.empty() ? " rank " : ", rank ") + std::to_string(member);
    }
    return text;
  }

  template <std::invocable What>
  void settle(Comm comm, std::chrono::milliseconds limit, What what) {
    using Clock = std::chrono::steady_clock;
    const auto begin = Clock::now();
    for (std::chrono::microseconds pause{5}; !api_.settled(comm);) {
      const auto waited = Clock::now() - begin;
      if (waited < options_.spin) continue;  // mostly it takes less than a thread takes to wake up
      control_.check();
      if (waited >= limit) {
        throw runtime::ExecutionError("NCCL has waited " + std::to_string(limit.count() / 1000) +
                                      " s for " + what());
      }
      std::this_thread::sleep_for(pause);
      pause = std::min(2 * pause, std::chrono::microseconds(200));
    }
  }

  /// An error of NCCL is mostly the death of another rank: the monitor is given time to say whose.
  template <std::invocable Work>
  void guarded(Work work) {
    if (failed_) {
      control_.check();
      throw runtime::ExecutionError("NCCL has failed before");
    }
    try {
      work();
    } catch (const NcclError& error) {
      const std::string sentence = std::string("NCCL failed: ") + error.what();
      abort_all();
      const auto limit = std::chrono::steady_clock::now() + options_.blame;
      while (std::chrono::steady_clock::now() < limit) {
        control_.check();
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
      throw runtime::ExecutionError(sentence);
    } catch (...) {
      abort_all();
      throw;
    }
  }

  NcclApi& api_;
  Control& control_;
  NcclOptions options_;
  std::set<CommunicatorKey> known_;  ///< made so far, also without this rank
  std::map<CommunicatorKey, Member> members_;
  bool failed_ = false;
};

/// Bytes of device memory that a communicator of all ranks takes, which NCCL allocates when it is
/// made and when it is first used: this makes one, sums 16 MiB and ends it. All ranks call it.
[[nodiscard]] inline Bytes communicator_bytes(NcclApi& api, Control& control, std::size_t ranks,
                                              const NcclOptions& options = {}) {
  if (ranks == 1) return Bytes{};
  CommunicatorKey all{CommunicatorKey::Use::sum, std::vector<std::size_t>(ranks)};
  std::iota(all.members.begin(), all.members.end(), std::size_t{0});
  const DeviceBuffer<float> numbers(std::int64_t{4} << 20U);
  const std::int64_t before = free_memory();
  Communicators communicators(api, control, options);
  communicators.make(std::span(&all, 1));
  const Member& member = communicators.at(all);
  const StreamView stream = member.stream->view();
  cuda::detail::fill_bytes(numbers.span().data, 0,
                           static_cast<std::size_t>(numbers.size()) * sizeof(float), stream);
  communicators.issue(member, [&](NcclApi& nccl) {
    nccl.all_reduce(member.comm, numbers.span().data, static_cast<std::size_t>(numbers.size()),
                    Number::f32, runtime::Reduction::sum, stream);
  });
  Event summed;
  summed.record(stream);
  communicators.await(summed);
  return Bytes{std::max<std::int64_t>(0, before - free_memory())};
}

}  // namespace slimpack::cuda::nccl
