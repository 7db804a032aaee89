// SPDX-License-Identifier: Apache-2.0
// Looks from outside at devices' threads during a step, and gives up those that do not answer.
#pragma once

#include <chrono>
#include <concepts>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "slimpack/runtime/detail/rendezvous.hpp"
#include "slimpack/runtime/device_threads.hpp"

namespace slimpack::runtime {

/// What is seen of the threads of a step, and how it is ended.
template <class Candidate>
concept Watchable = requires(Candidate& rendezvous, const std::string& sentence) {
  { rendezvous.states() } -> std::same_as<std::vector<DeviceState>>;
  { rendezvous.aborted() } -> std::same_as<std::optional<std::string>>;
  rendezvous.abort(sentence);
};

/// Called every tick of a step. A device that neither waits in its transport nor has left has to
/// compute: where its thread has used no time of a core for `HangTimeouts::silence`, the step is
/// aborted with a sentence naming device and unit. A long unit on a slow machine computes, so it
/// is never taken for a dead one; a unit that computes for ever is not found either. Where the
/// system does not tell what threads compute, nobody is given up.
template <Watchable RendezvousType>
class HangDetector {
 public:
  HangDetector(const DeviceThreads& device_threads, RendezvousType& rendezvous,
               const HangTimeouts& hang_timeouts)
      : device_threads_(device_threads),
        rendezvous_(rendezvous),
        hang_timeouts_(hang_timeouts),
        seen_(device_threads.size()) {}

  void operator()(std::chrono::milliseconds passed) {
    if (const auto sentence = rendezvous_.aborted()) {
      since_abort_ += passed;
      if (given_up_ || (!silent_ && since_abort_ < hang_timeouts_.grace)) return;
      given_up_ = true;
      hang_timeouts_.give_up(*sentence);
      return;
    }
    const std::vector<DeviceState> states = rendezvous_.states();
    for (std::size_t device = 0; device < states.size(); ++device) {
      Seen& seen = seen_[device];
      const auto computed = device_threads_.computed(device);
      if (states[device].left || states[device].waiting || !computed || computed != seen.computed) {
        seen = {computed, {}};
        continue;
      }
      seen.silent += passed;
      if (seen.silent < hang_timeouts_.silence) continue;
      silent_ = states[device].place + ", has not answered for " +
                std::to_string(seen.silent.count()) +
                " ms: it neither computes nor waits for another device";
      rendezvous_.abort(*silent_);
      return;
    }
  }

  /// What was said of a device that did not answer.
  [[nodiscard]] const std::optional<std::string>& silent() const noexcept { return silent_; }

 private:
  struct Seen {
    std::optional<std::chrono::nanoseconds> computed;
    std::chrono::milliseconds silent{};
  };
  const DeviceThreads& device_threads_;
  RendezvousType& rendezvous_;
  const HangTimeouts& hang_timeouts_;
  std::vector<Seen> seen_;
  std::chrono::milliseconds since_abort_{};
  bool given_up_ = false;
  std::optional<std::string> silent_;
};

}  // namespace slimpack::runtime
