// SPDX-License-Identifier: Apache-2.0
// Looks from outside at devices' threads during a step, and gives up those that do not answer.
#pragma once

#include <chrono>
#include <concepts>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "slimpack/exec/team.hpp"
#include "slimpack/exec/thread_hub.hpp"

namespace slimpack::exec {

/// What is seen of the threads of a step, and how it is ended.
template <class Candidate>
concept Watchable = requires(Candidate& hub, const std::string& sentence) {
  { hub.states() } -> std::same_as<std::vector<DeviceState>>;
  { hub.aborted() } -> std::same_as<std::optional<std::string>>;
  hub.abort(sentence);
};

/// Called every tick of a step. A device that neither waits in its transport nor has left has to
/// compute: where its thread has used no time of a core for `Patience::silence`, the step is
/// aborted with a sentence naming device and unit. A long unit on a slow machine computes, so it
/// is never taken for a dead one; a unit that computes for ever is not found either. Where the
/// system does not tell what threads compute, nobody is given up.
template <Watchable Hub>
class Watch {
 public:
  Watch(const Team& team, Hub& hub, const Patience& patience)
      : team_(team), hub_(hub), patience_(patience), seen_(team.size()) {}

  void operator()(std::chrono::milliseconds passed) {
    if (const auto sentence = hub_.aborted()) {
      since_abort_ += passed;
      if (given_up_ || (!silent_ && since_abort_ < patience_.grace)) return;
      given_up_ = true;
      patience_.give_up(*sentence);
      return;
    }
    const std::vector<DeviceState> states = hub_.states();
    for (std::size_t device = 0; device < states.size(); ++device) {
      Seen& seen = seen_[device];
      const auto computed = team_.computed(device);
      if (states[device].left || states[device].waiting || !computed || computed != seen.computed) {
        seen = {computed, {}};
        continue;
      }
      seen.silent += passed;
      if (seen.silent < patience_.silence) continue;
      silent_ = states[device].place + ", has not answered for " +
                std::to_string(seen.silent.count()) +
                " ms: it neither computes nor waits for another device";
      hub_.abort(*silent_);
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
  const Team& team_;
  Hub& hub_;
  const Patience& patience_;
  std::vector<Seen> seen_;
  std::chrono::milliseconds since_abort_{};
  bool given_up_ = false;
  std::optional<std::string> silent_;
};

}  // namespace slimpack::exec
