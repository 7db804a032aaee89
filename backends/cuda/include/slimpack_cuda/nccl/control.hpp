// SPDX-License-Identifier: Apache-2.0
// What the transport needs of the process that it is in: other ranks' failures, and ids to join by.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "slimpack_cuda/nccl/api.hpp"
#include "slimpack_processes/monitor.hpp"
#include "slimpack_processes/session.hpp"
#include "slimpack_processes/together.hpp"

namespace slimpack::cuda::nccl {

/// The host's side of a rank.
class Control {
 public:
  Control() = default;
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;
  virtual ~Control() = default;

  [[nodiscard]] virtual std::size_t rank() const = 0;
  /// Throws runtime::Aborted with the first cause where a rank has failed.
  virtual void check() const = 0;
  /// Tells all ranks of a failure.
  virtual void abort(const std::string& sentence) = 0;
  /// What the rank is about to do, and whether that is part of a step.
  virtual void announce(const std::string& place) = 0;
  virtual void inside(bool step) = 0;
  /// All ranks call it with as many ids, of which each gives some; all get all of them.
  [[nodiscard]] virtual std::vector<Id> agree(std::span<const std::optional<Id>> mine) = 0;
};

/// That of a session of processes.
class SessionControl : public Control {
 public:
  explicit SessionControl(processes::Session& session) : session_(session) {}

  [[nodiscard]] std::size_t rank() const override { return session_.rank(); }
  void check() const override { session_.check(); }
  void abort(const std::string& sentence) override {
    session_.monitor().abort("rank " + std::to_string(rank()) + ", " + sentence);
  }
  void announce(const std::string& place) override { session_.monitor().announce(place); }
  void inside(bool step) override {
    session_.monitor().doing(step ? processes::Doing::computing : processes::Doing::outside);
  }
  [[nodiscard]] std::vector<Id> agree(std::span<const std::optional<Id>> mine) override {
    std::vector<char> bytes;
    for (const auto& id : mine) {
      const Id value = id.value_or(Id{});
      bytes.push_back(id ? 1 : 0);
      bytes.insert(bytes.end(), value.begin(), value.end());
    }
    std::vector<Id> all(mine.size());
    constexpr std::size_t kEntry = 1 + sizeof(Id);
    for (const auto& part : session_.gather(std::as_bytes(std::span(bytes)))) {
      for (std::size_t i = 0; i < all.size() && (i + 1) * kEntry <= part.size(); ++i) {
        if (part[i * kEntry] == std::byte{0}) continue;
        std::memcpy(all[i].data(), part.data() + i * kEntry + 1, sizeof(Id));
      }
    }
    const auto shared = session_.share(processes::bytes_of(std::span<const Id>(all)));
    if (shared.size() == all.size() * sizeof(Id) && !all.empty()) {
      std::memcpy(all.data(), shared.data(), shared.size());
    }
    return all;
  }

 private:
  processes::Session& session_;
};

}  // namespace slimpack::cuda::nccl
